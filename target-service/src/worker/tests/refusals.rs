//! Endpoints that do not want a request, for now or for good.

use std::time::Duration;

use foretoken_protocol::link::{LinkEvent, Malformed, Welcome};
use foretoken_speculation::SessionId;

use super::{
    endpoint::MiniEndpoint,
    rig::{Fault, Output, Rig, language, plain, request, slow_language},
};
use crate::config::{LookaheadConfig, TargetConfig};

/// A target whose steps take so long.
fn rig(lookahead: LookaheadConfig, base: Duration, per_row: Duration) -> Rig {
    let config = TargetConfig {
        lookahead,
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, slow_language(base, per_row), 0.7);
    rig.endpoint = MiniEndpoint::new(&language(), 0.7);
    rig.connect();
    rig
}

#[test]
fn a_free_slot_is_nothing_to_whom_its_endpoint_does_not_want_at_all() {
    let faults = [
        Fault::None,
        Fault::Foreign,
        Fault::Refuse { retry: false },
        Fault::Refuse { retry: true },
    ];
    for fault in faults {
        let mut rig = rig(LookaheadConfig::Fixed(4), Duration::ZERO, Duration::ZERO);
        rig.load(1, 0);
        rig.fault = fault;
        let asked = request(1, 1.0, 80);
        let mut output = rig.ask(asked.clone());
        rig.until(&mut output, 10);
        if fault == Fault::None {
            let malformed = Malformed {
                session: Some(SessionId(1)),
                reason: "it is cut off".into(),
            };
            rig.link(LinkEvent::Malformed(vec![malformed].into()));
            rig.turn();
        }
        assert_eq!((rig.opens, rig.endpoint.sessions()), (1, 0), "{fault:?}");
        rig.fault = Fault::None;
        rig.load(1, 1);
        rig.load(1, 0);
        rig.until(&mut output, 30);
        let again = usize::from(fault == Fault::Refuse { retry: true });
        assert_eq!(rig.opens, 1 + again, "{fault:?}");
        // It may be another one by then.
        rig.link(LinkEvent::Down("killed".into()));
        rig.endpoint.restart();
        rig.link(LinkEvent::Up(Welcome::default()));
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(rig.opens, 2 + again, "{fault:?}");
        assert_eq!(output.tokens, plain(&asked));
    }
}

#[test]
fn who_is_refused_again_and_again_asks_less_and_less_often() {
    let step = Duration::from_millis(50);
    let mut rig = rig(LookaheadConfig::Fixed(4), step, Duration::ZERO);
    rig.fault = Fault::Refuse { retry: true };
    let mut output = rig.ask(request(1, 1.0, 1000));
    rig.until(&mut output, 200);
    // At once, and after 0.5, 1, 2 and 4 seconds more.
    assert_eq!(rig.opens, 5, "in the first ten seconds");
    rig.until(&mut output, 400);
    assert!((7..=8).contains(&rig.opens), "{} in twenty", rig.opens);
    // A free slot is news: it is asked at once, and soon after.
    let soon = |rig: &mut Rig, output: &mut Output| {
        let (opens, tokens) = (rig.opens, output.tokens.len());
        rig.until(output, tokens + 16);
        rig.opens - opens
    };
    rig.load(1, 1);
    rig.load(1, 0);
    assert_eq!(soon(&mut rig, &mut output), 2);
    rig.until(&mut output, 600);
    assert_eq!(soon(&mut rig, &mut output), 0);
    // So is a slot that was given.
    rig.fault = Fault::None;
    while rig.endpoint.sessions() == 0 {
        rig.turn();
        output.collect();
    }
    // It is told that its session is not known there, and begins anew.
    rig.endpoint.restart();
    rig.fault = Fault::Refuse { retry: true };
    assert_eq!(soon(&mut rig, &mut output), 2);
}

/// What a request among so many that wait for a slot is asked to have in a window on average, and
/// how many tokens its windows have.
fn served_among(waiting: u64) -> (f64, f64) {
    let ms = Duration::from_millis;
    let mut rig = rig(LookaheadConfig::Adaptive { max: 6 }, ms(20), ms(1));
    let mut output = rig.ask(request(1, 0.0, 300));
    rig.until(&mut output, 2);
    rig.fault = Fault::Refuse { retry: true };
    let others = (0..waiting).map(|seed| request(2 + seed, 0.0, 400));
    let _others: Vec<_> = others.map(|asked| rig.ask(asked)).collect();
    let mut sought = Vec::new();
    while !output.collect() {
        rig.turn();
        sought.push(rig.worker.metrics.lookahead.get() as f64);
    }
    assert_eq!(rig.endpoint.sessions(), 0, "it was the only one");
    let stats = output.stats();
    let drafted = f64::from(stats.drafted) / f64::from(stats.rounds);
    (sought.iter().sum::<f64>() / sought.len() as f64, drafted)
}

#[test]
fn who_waits_for_a_slot_has_one_row_and_makes_no_window_dearer() {
    let (alone, tokens_alone) = served_among(0);
    assert!(alone > 4.0, "{alone}");
    let (among, tokens_among) = served_among(24);
    assert!(among > alone - 0.5, "{among} among them, {alone} alone");
    assert!(
        tokens_among > tokens_alone - 0.5,
        "{tokens_among} tokens among them, {tokens_alone} alone"
    );
}
