//! Nobody is sent more than is taken in.

use std::time::{Duration, Instant};

use foretoken_protocol::link::{LinkEvent, LinkOptions, ServerEvent};

use super::{
    behaviour::{outcome, wait_link},
    carrier::{dial, eager, hello, over_sockets, serve, wait_up, welcome},
};

/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn what_is_not_taken_in_holds_up_whoever_sends_and_nothing_is_lost() {
    const COUNT: u32 = 10_000;
    const QUIET: Duration = Duration::from_millis(100);
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let options = LinkOptions {
            queue: COUNT as usize,
            ..eager()
        };
        let target = dial(endpoint.server.address(), hello(), options);
        wait_up(&target);
        wait_link(&endpoint);
        let messages = (0..COUNT).map(|round| outcome(1, round));
        target.link.send(messages.collect()).expect("is up");
        // What comes until nothing more does, for as long as it is kept.
        let kept = || {
            let mut patience = LONG;
            let next = || {
                let patience = std::mem::replace(&mut patience, QUIET);
                endpoint.events.recv_timeout(patience).ok()
            };
            let events = std::iter::from_fn(next);
            let messages = events.filter_map(|event| match event {
                ServerEvent::Messages { messages, .. } => Some(messages),
                _ => None,
            });
            messages.collect::<Vec<_>>()
        };
        let (begun, mut all) = (Instant::now(), Vec::new());
        while all.len() < COUNT as usize {
            let frames = kept();
            let count: usize = frames.iter().map(|frame| frame.len()).sum();
            assert!((1..=4096).contains(&count), "{count} messages at once");
            all.extend(frames.into_iter().flatten());
            assert!(begun.elapsed() < LONG, "nobody is woken");
        }
        assert!(
            all.iter()
                .cloned()
                .eq((0..COUNT).map(|round| outcome(1, round)))
        );
    });
}

#[test]
fn an_endpoint_that_beats_and_takes_nothing_in_loses_its_link_and_is_dialled_again() {
    let options = LinkOptions {
        dead_after: Duration::from_secs(1),
        ..eager()
    };
    over_sockets(|address| {
        // Its events stay where they are, and so do the messages in them.
        let endpoint = serve(address, welcome(), eager());
        let target = dial(endpoint.server.address(), hello(), options);
        wait_up(&target);
        let (begun, mut round) = (Instant::now(), 0);
        loop {
            assert!(begun.elapsed() < LONG, "it is never cut for that");
            round += 1;
            // Refused while the link is down: this machine may be too busy for its beats, or to dial.
            let _ = target.link.send(vec![outcome(1, round)]);
            match target.events.recv_timeout(Duration::from_millis(1)) {
                Ok(LinkEvent::Down(reason)) if reason == "the peer takes no messages in" => break,
                _ => {}
            }
        }
        wait_up(&target);
    });
}
