//! Clients that do not read cost a bounded amount of memory and nobody else anything.

use foretoken_protocol::generate::GenerateRequest;

use super::rig::{Output, Rig, language, plain, request};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    worker::parking::MOST_UNREAD,
};

/// With twenty alternatives each, several times what may wait for a client.
const LONG: u32 = 4000;

fn rig(config: TargetConfig) -> Rig {
    let lookahead = LookaheadConfig::Fixed(4);
    let mut rig = Rig::new(
        TargetConfig {
            lookahead,
            ..config
        },
        language(),
        0.9,
    );
    rig.connect();
    rig
}

fn long(seed: u64) -> GenerateRequest {
    GenerateRequest {
        logprobs: Some(20),
        ..request(seed, 1.0, LONG)
    }
}

/// Turns until all requests that the worker has are parked.
fn until_parked(rig: &mut Rig, count: usize) {
    while rig.worker.parked.len() < count {
        rig.turn();
    }
}

fn unread(rig: &Rig) -> Vec<usize> {
    let all = rig.worker.requests.values();
    all.map(|request| request.events.unread()).collect()
}

#[test]
fn a_client_that_does_not_read_is_waited_for_and_gets_every_token_when_it_does() {
    let mut rig = rig(TargetConfig::default());
    let mut output = rig.ask(long(3));
    until_parked(&mut rig, 1);
    let held = unread(&rig);
    assert!(
        held[0] > MOST_UNREAD && held[0] < MOST_UNREAD + (8 << 10),
        "{held:?}"
    );
    rig.turn();
    assert_eq!(unread(&rig), held, "it is not stepped any more");
    assert_eq!(
        rig.worker.engine.usage().referenced,
        0,
        "its pages are free"
    );
    assert_eq!(rig.worker.metrics.sessions.get(), 0);
    assert_eq!(rig.worker.metrics.parked.get(), 1);
    assert_eq!(rig.endpoint.sessions(), 0, "its slot is free");
    // It is parked again and again, since the client reads everything at once and then nothing.
    let mut parked = 0;
    while !output.collect() {
        parked += 1;
        rig.turn();
        while rig.worker.parked.is_empty() && !rig.worker.requests.is_empty() {
            rig.turn();
        }
    }
    assert!(parked >= 3, "parked {parked} times");
    assert_eq!(output.tokens, plain(&long(3)));
    let stats = output.stats();
    assert_eq!(stats.accepted + stats.rounds + 1, LONG);
    assert!(stats.accepted > LONG / 4, "speculation went on: {stats:?}");
    assert_eq!(rig.worker.metrics.parked.get(), 0);
    rig.assert_idle();
}

#[test]
fn others_are_served_although_every_place_had_gone_to_clients_that_do_not_read() {
    let config = TargetConfig {
        max_running: 2,
        max_waiting: 2,
        ..TargetConfig::default()
    };
    let mut rig = rig(config);
    let mut silent: Vec<Output> = (0..2).map(|seed| rig.ask(long(seed))).collect();
    until_parked(&mut rig, 2);
    let mut others: Vec<Output> = (5..7).map(|seed| rig.ask(request(seed, 1.0, 30))).collect();
    rig.run(&mut others);
    for (seed, output) in (5..7).zip(&others) {
        assert_eq!(output.tokens, plain(&request(seed, 1.0, 30)));
    }
    rig.run(&mut silent);
    for (seed, output) in (0..2).zip(&silent) {
        assert_eq!(output.tokens, plain(&long(seed)));
    }
}

#[test]
fn a_parked_request_comes_back_although_the_queue_is_full() {
    let config = TargetConfig {
        max_running: 1,
        max_waiting: 1,
        ..TargetConfig::default()
    };
    let mut rig = rig(config);
    let mut silent = rig.ask(long(1));
    until_parked(&mut rig, 1);
    // One runs and one waits, so there is no place in the queue when the client reads.
    let mut others = vec![rig.ask(request(5, 1.0, 40))];
    rig.turn();
    others.push(rig.ask(request(6, 1.0, 40)));
    silent.collect();
    rig.turn();
    assert_eq!(rig.worker.parked.len(), 1, "it still waits for a place");
    others.push(silent);
    rig.run(&mut others);
    assert_eq!(others[2].tokens, plain(&long(1)));
    rig.assert_idle();
}

#[test]
fn a_parked_request_whose_client_goes_away_is_forgotten() {
    let mut rig = rig(TargetConfig::default());
    let output = rig.ask(long(3));
    until_parked(&mut rig, 1);
    drop(output);
    while !rig.worker.requests.is_empty() {
        rig.turn();
    }
    rig.turn();
    assert!(rig.worker.parked.is_empty());
    rig.assert_idle();
}
