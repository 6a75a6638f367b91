//! Whoever waits for a window after a miss waits alone.

use std::time::Duration;

use foretoken_speculation::SessionId;

use super::{
    super::rig::{Fault, Output, Rig, plain, request},
    slow, standing_in,
};
use crate::config::{FallbackName, OnLossName, PolicyName};

/// The request that nothing is drafted ahead for.
const ALONE: SessionId = SessionId(1);
/// Turns by which a window is late that never comes.
const NEVER: usize = 1_000_000;

/// A target whose requests wait for their endpoint after a miss, and an endpoint that is always right.
fn rig(step: Duration) -> Rig {
    let mut config = standing_in(PolicyName::Ssd);
    config.on_loss = OnLossName::Plain;
    config.ssd.fallback = FallbackName::Remote;
    slow(step, config, 1.0)
}

/// Waits until all of `outputs` but the first have ended: how often these got something, how long
/// that took, and the longest time in which none of them got anything.
fn watch(rig: &mut Rig, outputs: &mut [Output]) -> (u32, Duration, Duration) {
    let got = |outputs: &[Output]| -> usize {
        let hitting = outputs[1..].iter();
        hitting.map(|output| output.tokens.len()).sum()
    };
    let began = rig.worker.now;
    let (mut times, mut last, mut longest) = (0, began, Duration::ZERO);
    while outputs[1..].iter().any(|output| output.end.is_none()) {
        let before = got(outputs);
        rig.turn();
        for output in &mut *outputs {
            output.collect();
        }
        if got(outputs) > before {
            times += 1;
            longest = longest.max(rig.worker.now - last);
            last = rig.worker.now;
        }
    }
    (times, last - began, longest)
}

#[test]
fn a_row_that_misses_every_time_holds_up_none_of_those_that_hit_however_late_its_windows_are() {
    // Where the first ones come at once, others come to wait for them.
    for (at_first, later, step) in [(10, 10, 500), (NEVER, NEVER, 500), (0, NEVER, 4000)] {
        let step = Duration::from_micros(step);
        let mut rig = rig(step);
        let lengths = [200, 300, 300, 300].into_iter().zip(0..);
        let asked: Vec<_> = lengths
            .map(|(tokens, seed)| request(seed, 0.0, tokens))
            .collect();
        let mut outputs: Vec<_> = asked.iter().map(|asked| rig.ask(asked.clone())).collect();
        rig.fault = Fault::Lag(ALONE, at_first);
        let quick = if at_first == 0 { 50 } else { 0 };
        while outputs[0].tokens.len() < quick {
            rig.turn();
            outputs[0].collect();
        }
        rig.fault = Fault::Lag(ALONE, later);
        let (times, took, longest) = watch(&mut rig, &mut outputs);
        let case = format!("{later} turns late: {times} in {took:?}, once after {longest:?}");
        // A window that does not come is waited for once, for less than half a step in all.
        assert!(longest < step * 3 / 2, "{case}");
        assert!(took < step * times * 11 / 10, "{case}");
        // None of them falls out of step with the others for long.
        let rounds = outputs[1].stats().rounds;
        assert!(times <= rounds + rounds / 2, "{rounds} rounds, {case}");
        let waits = rig.worker.requests.values().next();
        let waits = waits.expect("it goes on").session.stats().ahead;
        assert!(waits.hits == 0 && waits.remote > 0, "{waits:?}");
        for output in &outputs[1..] {
            let stats = output.stats();
            // The prompt's verdict comes before anything can have been drafted for it.
            assert_eq!((stats.hits + 1, stats.misses), (stats.rounds, 1), "{case}");
        }
        rig.fault = Fault::None;
        rig.run(&mut outputs);
        for (asked, output) in asked.iter().zip(&outputs) {
            assert_eq!(output.tokens, plain(asked));
        }
        rig.assert_idle();
    }
}
