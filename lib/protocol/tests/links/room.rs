//! Nobody is sent more than is taken in.

use std::time::{Duration, Instant};

use foretoken_protocol::link::{LinkOptions, ServerEvent};

use super::{
    behaviour::outcome,
    carrier::{dial, eager, hello, over_sockets, serve, wait_up, welcome},
};

#[test]
fn what_is_not_taken_in_holds_up_whoever_sends_and_nothing_is_lost() {
    const COUNT: u32 = 10_000;
    const QUIET: Duration = Duration::from_millis(100);
    const LONG: Duration = Duration::from_secs(60);
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let options = LinkOptions {
            queue: COUNT as usize,
            ..eager()
        };
        let target = dial(endpoint.server.address(), hello(), options);
        wait_up(&target);
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
