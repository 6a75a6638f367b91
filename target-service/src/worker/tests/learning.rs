//! What steps teach about plain decoding.

use std::time::Duration;

use foretoken_engine::schedule::RequestId;
use foretoken_protocol::link::{LinkEvent, Transport, TransportOptions, Welcome};

use super::{
    endpoint::MiniEndpoint,
    rig::{Fault, Output, Rig, language, request, slow_language},
};
use crate::{
    config::{LookaheadConfig, PolicyName, SsdConfig, TargetConfig, VerificationConfig},
    inbox::{LinkKey, Message},
    worker::cohort::Cohort,
};

/// Rows of each step of a request, and what is thought of one with a single row after it.
fn thought(rig: &mut Rig, tokens: u32) -> Vec<(usize, f64)> {
    let mut output = rig.ask(request(1, 0.0, tokens));
    let mut thought = Vec::new();
    while !output.collect() {
        rig.turn();
        let seconds = rig.worker.endpoints.steps().seconds(1);
        thought.push((rig.worker.feeding.rows(), seconds));
    }
    // The first has the prompt, and is over before any endpoint can have read it.
    thought.remove(0);
    thought
}

/// Steps with a single row, and how many of them changed what is thought of such.
fn plain(thought: &[(usize, f64)]) -> (usize, usize) {
    let pairs = thought.windows(2).filter(|pair| pair[1].0 == 1);
    let news = pairs
        .clone()
        .filter(|pair| pair[0].1.total_cmp(&pair[1].1).is_ne());
    (pairs.count(), news.count())
}

/// A target whose steps take long enough to tell one from the next, and so long that drafting, by an
/// endpoint that is always right, is cheap beside it: windows then have all of their tokens.
fn slow(config: TargetConfig) -> Rig {
    let slow = slow_language(Duration::from_millis(2), Duration::ZERO);
    let mut rig = Rig::new(config, slow, 1.0);
    rig.endpoint = MiniEndpoint::new(&language(), 1.0);
    rig
}

#[test]
fn plain_steps_beside_an_endpoint_that_reads_teach_nothing() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 4 },
        patience: Duration::from_millis(1),
        ..TargetConfig::default()
    };
    let mut alone = slow(config.clone());
    let (steps, news) = plain(&thought(&mut alone, 20));
    assert!(news > 10 && news <= steps, "{news} of {steps} are news");
    let mut beside = slow(config);
    beside.connect();
    beside.fault = Fault::Silent;
    let (steps, news) = plain(&thought(&mut beside, 20));
    assert!(steps > 10 && news == 0, "{news} of {steps} are news");
}

#[test]
fn plain_steps_among_speculative_ones_teach_nothing() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    // The last token has no window.
    let thought = thought(&mut rig, 22);
    assert_eq!(plain(&thought), (1, 0));
}

/// Asks for so many tokens; the answer, and whom the request was bound to.
fn serve(rig: &mut Rig, tokens: u32) -> (Output, Option<Cohort>) {
    let mut output = rig.ask(request(1, 0.0, tokens));
    let mut cohort = None;
    while !output.collect() {
        rig.turn();
        let running = rig.worker.requests.values().next();
        let bound = running.and_then(|request| Some(request.cohort(request.link?)));
        cohort = bound.or(cohort);
    }
    (output, cohort)
}

#[test]
fn a_window_is_put_down_to_the_endpoint_that_it_came_from_though_that_is_lost_meanwhile() {
    let config = TargetConfig {
        policy: PolicyName::Ssd,
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(4),
            ..SsdConfig::default()
        },
        verification: VerificationConfig::Rejection { support: 8 },
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    rig.endpoints(&[("draft", 1), ("other", 2)]);
    rig.hear(2, LinkEvent::Up(Welcome::default()));
    let mut output = rig.ask(request(1, 1.0, 60));
    rig.until(&mut output, 10);
    // Windows, and what is known of what they were drawn from.
    let taught = |rig: &Rig| {
        let (told, request) = (
            rig.worker.endpoints.told(),
            &rig.worker.requests[&RequestId(1)],
        );
        [1, 2].map(|link| {
            let learned = rig.worker.endpoints.learned(request.cohort(LinkKey(link)));
            let tuner = format!("{:?}", learned.expect("it is there").tuner);
            (told[link as usize - 1].rounds.windows, tuner)
        })
    };
    let link = |rig: &Rig| rig.worker.requests[&RequestId(1)].link;
    let [own, other] = taught(&rig);
    assert_eq!((link(&rig), other.0), (Some(LinkKey(1)), 0));
    let transport = Transport::start(TransportOptions::default()).expect("it starts");
    let (postbox, inbox) = transport.mailbox();
    let down = LinkEvent::Down("killed".into());
    let message = Message::Link(LinkKey(1), down, rig.worker.clock.now());
    assert!(postbox.post(message).is_ok(), "it listens");
    rig.worker.turn(Some(&inbox));
    assert_eq!(link(&rig), Some(LinkKey(2)));
    let [own_then, other_then] = taught(&rig);
    assert_eq!(own_then.0, own.0 + 1, "a window was verified");
    assert_ne!(own_then.1, own.1);
    assert_eq!(other_then, other);
}

/// What is thought of an answer of four tokens after a request of so many.
fn thought_of_answers(tokens: u32) -> Option<Duration> {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    let (output, cohort) = serve(&mut rig, tokens);
    assert_eq!(output.stats().drafted, (tokens - 1) / 5 * 4);
    Some(rig.worker.endpoints.due(cohort?, 4, Duration::ZERO).after)
}

#[test]
fn an_answer_teaches_only_if_one_was_asked_for_in_the_round_before() {
    let guess = thought_of_answers(2);
    assert!(guess.is_some());
    assert_eq!(thought_of_answers(7), guess, "the endpoint had to read on");
    assert_ne!(thought_of_answers(12), guess);
}

#[test]
fn a_round_that_a_preemption_interrupts_teaches_nothing_of_its_endpoint() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    let (_, cohort) = serve(&mut rig, 100);
    let cohort = cohort.expect("it was bound");
    let goodput = |rig: &Rig| rig.worker.endpoints.goodput(cohort, 4);
    let before = goodput(&rig).expect("it is there");
    let mut output = rig.ask(request(1, 0.0, 50));
    while !output.collect() {
        for request in rig.worker.requests.values_mut() {
            request.meter.interrupt();
        }
        rig.pass(Duration::from_secs(1));
        rig.turn();
    }
    let after = goodput(&rig).expect("it is there");
    assert!(after > 0.98 * before, "{before}, then {after}");
}

#[test]
fn windows_that_a_step_has_no_room_for_say_nothing_of_how_long_they_are() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        max_step_rows: 3,
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    let (_, cohort) = serve(&mut rig, 200);
    let cohort = cohort.expect("it was bound");
    let due = rig.worker.endpoints.due(cohort, 4, Duration::ZERO);
    assert_eq!(due.rows, 1 + 4);
    assert!(rig.worker.endpoints.reached(cohort, 3) > 0.9);
}

#[test]
fn the_end_of_an_output_refuses_nothing() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = slow(config);
    rig.connect();
    let (output, cohort) = serve(&mut rig, 12);
    let cohort = cohort.expect("it was bound");
    let tokens = output.tokens;
    // Within the first window.
    let end = tokens[3];
    assert!(!tokens[..3].contains(&end));
    for _ in 0..40 {
        let mut ask = request(1, 0.0, 12);
        ask.stop_token_ids = vec![end];
        let mut output = rig.ask(ask);
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(output.tokens, tokens[..4]);
    }
    let reached = rig.worker.endpoints.reached(cohort, 4);
    assert!(reached > 0.9, "{reached}");
}

#[test]
fn windows_end_before_tokens_that_are_not_worth_their_rows() {
    for (per_row, ends) in [(Duration::from_millis(2), true), (Duration::ZERO, false)] {
        let dear = slow_language(Duration::from_millis(5), per_row);
        let config = TargetConfig {
            lookahead: LookaheadConfig::Fixed(5),
            ..TargetConfig::default()
        };
        let mut rig = Rig::new(config, dear, 1.0);
        // One that is often wrong, and takes no time.
        rig.endpoint = MiniEndpoint::new(&language(), 0.5);
        rig.connect();
        let mut outputs = [rig.ask(request(3, 1.0, 60))];
        rig.run(&mut outputs);
        let stats = outputs[0].stats();
        let as_expected = if ends {
            stats.drafted <= 2 * stats.rounds
        } else {
            stats.drafted > 4 * stats.rounds
        };
        assert!(as_expected, "{stats:?}");
    }
}
