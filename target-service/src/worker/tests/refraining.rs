//! Endpoints are asked not to draft ahead, in turn, where it may not pay.

use std::time::Duration;

use foretoken_speculation::SessionId;

use super::{
    endpoint::MiniEndpoint,
    rig::{Fault, Rig, language, plain, request, slow_language},
};
use crate::config::{FallbackName, LookaheadConfig, PolicyName, SsdConfig, TargetConfig};

/// Rounds of a request, and those of them whose verdicts nothing was to be drafted for, where nothing that
/// is drafted ahead arrives.
fn refrained(fallback: FallbackName) -> (u32, u32) {
    let config = TargetConfig {
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(4),
            fallback,
            ..SsdConfig::default()
        },
        policy: PolicyName::Ssd,
        ..TargetConfig::default()
    };
    let steps = slow_language(Duration::from_millis(2), Duration::ZERO);
    let mut rig = Rig::new(config, steps, 0.8);
    rig.endpoint = MiniEndpoint::new(&language(), 0.8);
    rig.connect();
    rig.fault = Fault::Lag(SessionId(1), 0);
    let asked = request(1, 1.0, 2000);
    let mut output = rig.ask(asked.clone());
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
    let stats = output.stats();
    rig.assert_idle();
    (stats.rounds, stats.rounds - stats.hits - stats.misses)
}

#[test]
fn where_nothing_hits_endpoints_draft_ahead_in_turn_at_most() {
    let (rounds, refrained_then) = refrained(FallbackName::Auto);
    let share = f64::from(refrained_then) / f64::from(rounds);
    assert!((0.2..0.98).contains(&share), "{refrained_then} of {rounds}");
    // Whose deployment says what follows a miss says that there are to be hits.
    let (rounds, none) = refrained(FallbackName::Remote);
    assert!(none < 3, "{none} of {rounds}");
}
