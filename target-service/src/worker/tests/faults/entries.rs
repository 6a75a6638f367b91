//! The same of what endpoints draft ahead.

use std::time::Duration;

use foretoken_protocol::generate::{GenerateRequest, GenerationStats};
use foretoken_speculation::TokenId;

use super::super::rig::{Fault, Output, Rig, language, plain, request};
use crate::config::{
    FallbackName, LookaheadConfig, PolicyName, SsdConfig, TargetConfig, TreesName,
};

/// A target that has windows drafted ahead, and an endpoint that is right more often than not.
fn rig(fallback: FallbackName, trees: TreesName) -> Rig {
    let config = TargetConfig {
        policy: PolicyName::Ssd,
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(4),
            fallback,
            ..SsdConfig::default()
        },
        trees,
        patience: Duration::from_millis(3),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 0.8);
    rig.connect();
    rig
}

/// Requests of several temperatures, with penalties and without, and what they get without drafts.
fn requests() -> (Vec<GenerateRequest>, Vec<Vec<TokenId>>) {
    let asked = (0..4).map(|seed| {
        let mut asked = request(seed, [0.0, 0.7, 1.0, 1.3][seed as usize], 40);
        if seed % 2 == 1 {
            asked.sampling.repetition_penalty = 1.1;
            asked.sampling.presence_penalty = 0.3;
            asked.sampling.frequency_penalty = 0.2;
        }
        asked
    });
    let asked: Vec<_> = asked.collect();
    let expected = asked.iter().map(plain).collect();
    (asked, expected)
}

fn sum(outputs: &[Output], count: impl Fn(&GenerationStats) -> u64) -> u64 {
    outputs.iter().map(|output| count(output.stats())).sum()
}

/// That what was drafted ahead under a fault was found as often as that leaves it to be found, where
/// nothing else is proposed.
fn assert_found(fault: Fault, trees: TreesName, outputs: &[Output]) {
    let accepted = sum(outputs, |stats| stats.accepted.into());
    let hits = sum(outputs, |stats| stats.hits.into());
    let used = sum(outputs, |stats| stats.ahead.used);
    let received = sum(outputs, |stats| stats.ahead.received);
    let late = sum(outputs, |stats| stats.ahead.late);
    let case = format!("{fault:?} {trees:?}: {hits} hits, {used} used, {accepted} accepted");
    match fault {
        Fault::None | Fault::Lose(_) => assert!(hits > 20 && 2 * accepted > hits, "{case}"),
        // What comes again is late.
        Fault::Duplicate => assert!(accepted > hits && hits > 20 && late >= received, "{case}"),
        // The first tokens come last, and nothing after them.
        Fault::Reverse => {
            assert!(hits > 20 && accepted > 20, "{case}");
            assert!(used == hits || trees == TreesName::Auto, "{case}");
        }
        // It is found, and wrong.
        Fault::Wrong | Fault::Exchange => assert!(hits > 20 && 10 * accepted < used, "{case}"),
        // Nothing of it is of the round under verification, or of the vocabulary.
        Fault::Delay(_) | Fault::Silent | Fault::Foreign => {
            assert_eq!((hits, received, accepted), (0, 0, 0), "{case}");
        }
        Fault::Refuse { .. } | Fault::Lag(..) => unreachable!("nothing is drafted ahead"),
    }
}

#[test]
fn no_fault_in_what_is_drafted_ahead_changes_a_token_or_ends_a_request() {
    let (asked, expected) = requests();
    for (fallback, trees) in [
        (FallbackName::Nothing, TreesName::Off),
        (FallbackName::Nothing, TreesName::Auto),
        (FallbackName::Remote, TreesName::Off),
        (FallbackName::Auto, TreesName::Auto),
    ] {
        for fault in [Fault::None].into_iter().chain(Fault::OF_MESSAGES) {
            let mut rig = rig(fallback, trees);
            rig.fault = fault;
            let mut outputs: Vec<_> = asked.iter().map(|asked| rig.ask(asked.clone())).collect();
            rig.run(&mut outputs);
            for (output, expected) in outputs.iter().zip(&expected) {
                assert_eq!(&output.tokens, expected, "{fallback:?} {trees:?} {fault:?}");
            }
            if fallback == FallbackName::Nothing {
                assert_found(fault, trees, &outputs);
            }
            if matches!(fault, Fault::None | Fault::Duplicate | Fault::Reverse) {
                assert!(sum(&outputs, |stats| stats.hits.into()) > 0, "{fallback:?}");
                let verified = rig.worker.metrics.tree_windows.get();
                assert_eq!(verified > 0, trees == TreesName::Auto, "{fallback:?}");
            }
            rig.assert_idle();
            if !matches!(fault, Fault::Lose(_)) {
                assert_eq!((rig.endpoint.sessions(), rig.endpoint.pages()), (0, 0));
            }
        }
    }
}
