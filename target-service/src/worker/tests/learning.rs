//! What steps teach about plain decoding.

use std::time::Duration;

use foretoken_engine::sim::{Latency, SimOptions};

use super::rig::{Fault, Rig, language, request};
use crate::config::{LookaheadConfig, TargetConfig};

/// What is thought of a step with one row, after each turn of a request's plain rounds.
fn thought(rig: &mut Rig, rounds: u32) -> Vec<f64> {
    let mut output = rig.ask(request(1, 0.0, rounds));
    let mut thought = Vec::new();
    while !output.collect() {
        rig.turn();
        thought.push(rig.worker.endpoints.steps().seconds(1));
    }
    // The first has the prompt, and is over before any endpoint can have read it.
    thought.remove(0);
    thought.dedup();
    thought
}

#[test]
fn plain_steps_beside_an_endpoint_that_reads_teach_nothing() {
    let slow = SimOptions {
        latency: Latency {
            base: Duration::from_micros(200),
            ..Latency::default()
        },
        ..language()
    };
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 4 },
        patience: Duration::from_millis(1),
        ..TargetConfig::default()
    };
    let mut alone = Rig::new(config.clone(), slow, 1.0);
    assert!(thought(&mut alone, 20).len() > 10, "each step is news");
    let mut beside = Rig::new(config, slow, 1.0);
    beside.connect();
    beside.fault = Fault::Silent;
    assert_eq!(thought(&mut beside, 20).len(), 1);
}
