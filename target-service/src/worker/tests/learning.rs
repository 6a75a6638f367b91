//! What steps teach about plain decoding.

use std::time::Duration;

use foretoken_engine::sim::{Latency, SimOptions};

use super::rig::{Fault, Rig, language, request};
use crate::config::{LookaheadConfig, TargetConfig};

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

/// A target whose steps take long enough to tell one from the next.
fn slow() -> SimOptions {
    SimOptions {
        latency: Latency {
            base: Duration::from_micros(200),
            ..Latency::default()
        },
        ..language()
    }
}

#[test]
fn plain_steps_beside_an_endpoint_that_reads_teach_nothing() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 4 },
        patience: Duration::from_millis(1),
        ..TargetConfig::default()
    };
    let mut alone = Rig::new(config.clone(), slow(), 1.0);
    let (steps, news) = plain(&thought(&mut alone, 20));
    assert!(news > 10 && news <= steps, "{news} of {steps} are news");
    let mut beside = Rig::new(config, slow(), 1.0);
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
    let mut rig = Rig::new(config, slow(), 1.0);
    rig.connect();
    // The last token has no window.
    let thought = thought(&mut rig, 22);
    assert_eq!(plain(&thought), (1, 0));
}

/// What is thought of an answer of four tokens after a request of so many.
fn thought_of_answers(tokens: u32) -> Option<Duration> {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, slow(), 1.0);
    rig.connect();
    let mut output = rig.ask(request(1, 0.0, tokens));
    let mut cohort = None;
    while !output.collect() {
        rig.turn();
        let running = rig.worker.requests.values().next();
        let bound = running.and_then(|request| Some(request.cohort(request.link?)));
        cohort = bound.or(cohort);
    }
    assert_eq!(output.stats().drafted, (tokens - 1) / 5 * 4);
    Some(rig.worker.endpoints.answer_time(cohort?, 4))
}

#[test]
fn an_answer_teaches_only_if_one_was_asked_for_in_the_round_before() {
    let guess = thought_of_answers(2);
    assert!(guess.is_some());
    assert_eq!(thought_of_answers(7), guess, "the endpoint had to read on");
    assert_ne!(thought_of_answers(12), guess);
}
