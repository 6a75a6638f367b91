//! Tokens that may wait for later ones, to leave with them.

use std::{
    sync::{Arc, Mutex},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use foretoken_engine::sim::SimOptions;
use foretoken_protocol::generate::GenerateRequest;
use foretoken_speculation::TokenId;

use super::rig::{Fault, Rig, TestClock, plain, request, slow_language};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    worker::clock::Clock,
};

const STEP: Duration = Duration::from_millis(1);
/// What looks at the clock come to in the longest test, and more.
const TICKS: Duration = Duration::from_millis(1);
const TOKENS: u32 = 60;

/// Notes when a reader is woken.
struct Bell {
    clock: TestClock,
    rung: Mutex<Option<Instant>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let now = self.clock.now();
        self.rung
            .lock()
            .expect("no test panicked")
            .get_or_insert(now);
    }
}

fn rig(language: SimOptions) -> Rig {
    Rig::new(TargetConfig::default(), language, 1.0)
}

fn held(hold: Duration) -> GenerateRequest {
    GenerateRequest {
        hold,
        ..request(3, 1.0, TOKENS)
    }
}

/// When each token of `asked` leaves, and what they are; once some are decided `other` is asked for,
/// too.
fn leaving(
    rig: &mut Rig,
    asked: GenerateRequest,
    other: Option<GenerateRequest>,
) -> (Vec<Duration>, Vec<TokenId>) {
    let clock = rig.clock();
    let begun = clock.now();
    let bell = Arc::new(Bell {
        clock,
        rung: Mutex::default(),
    });
    let waker = Waker::from(Arc::clone(&bell));
    let mut output = rig.ask(asked);
    let (mut others, mut times) = (other.into_iter(), Vec::new());
    let mut asked_for = Vec::new();
    while !output.wait(&waker) {
        if decided(rig) > 25 {
            asked_for.extend(others.next().map(|other| rig.ask(other)));
        }
        rig.turn();
        if let Some(at) = bell.rung.lock().expect("no test panicked").take() {
            output.collect();
            times.resize(output.tokens.len(), at - begun);
        }
    }
    assert_eq!(times.len(), output.tokens.len());
    (times, output.tokens)
}

/// Tokens that the worker has decided for those that it still serves.
fn decided(rig: &Rig) -> usize {
    let requests = rig.worker.requests.values();
    requests.map(|request| request.emitted() as usize).sum()
}

fn distinct(times: &[Duration]) -> usize {
    times.chunk_by(|a, b| a == b).count()
}

/// The longest that a token waited which could have left at the times of `at_once`.
fn longest_wait(times: &[Duration], at_once: &[Duration]) -> Duration {
    let pairs = times.iter().zip(at_once);
    let waits = pairs.map(|(at, soonest)| at.saturating_sub(*soonest));
    waits.max().expect("there are tokens")
}

#[test]
fn rounds_of_short_steps_leave_together_and_none_waits_longer_than_it_may() {
    let short = slow_language(STEP, Duration::ZERO);
    let (at_once, tokens) = leaving(&mut rig(short), held(Duration::ZERO), None);
    assert_eq!(distinct(&at_once), TOKENS as usize);
    assert_eq!(tokens, plain(&request(3, 1.0, TOKENS)));
    let hold = STEP * 8;
    let (times, held_tokens) = leaving(&mut rig(short), held(hold), None);
    assert_eq!(held_tokens, tokens);
    let left = distinct(&times);
    assert!((8..=10).contains(&left), "{left}");
    assert_eq!(
        times[0].as_millis(),
        at_once[0].as_millis(),
        "the first waits for nothing"
    );
    let wait = longest_wait(&times, &at_once);
    assert!(wait <= hold + TICKS, "{wait:?}");
}

#[test]
fn rounds_of_long_steps_leave_at_once() {
    let long = slow_language(STEP * 9, Duration::ZERO);
    let (times, _) = leaving(&mut rig(long), held(STEP * 8), None);
    assert_eq!(distinct(&times), TOKENS as usize);
}

#[test]
fn nothing_waits_for_the_end_of_a_step_that_takes_longer_than_it_may_wait() {
    // Rows of a prompt take long.
    let slow = slow_language(STEP, STEP);
    let other = || {
        let mut other = request(4, 1.0, 1);
        other.tokens = (0..100).map(|i| TokenId(i * 7 % 64)).collect();
        other.prompt_len = other.tokens.len();
        Some(other)
    };
    let (at_once, _) = leaving(&mut rig(slow), held(Duration::ZERO), other());
    let hold = STEP * 20;
    let (times, _) = leaving(&mut rig(slow), held(hold), other());
    assert!(distinct(&times) < TOKENS as usize / 4);
    let wait = longest_wait(&times, &at_once);
    assert!(wait <= hold + TICKS, "{wait:?}");
}

#[test]
fn what_is_held_leaves_when_the_engine_waits() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(3),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, slow_language(STEP, Duration::ZERO), 0.8);
    rig.fault = Fault::Delay(2);
    rig.connect();
    let mut output = rig.ask(held(Duration::from_secs(1)));
    let mut windows = 0;
    while !output.collect() {
        let is_idle = rig.turn();
        output.collect();
        let decided = decided(&rig);
        if is_idle && decided > 1 {
            windows += 1;
            assert_eq!(output.tokens.len(), decided);
        }
    }
    assert!(windows > 5, "it waited for windows");
}

#[test]
fn rounds_that_tell_what_the_output_took_never_wait() {
    let mut asked = held(Duration::from_secs(1));
    asked.tell_stats = true;
    let mut rig = rig(slow_language(STEP, Duration::ZERO));
    let (times, _) = leaving(&mut rig, asked, None);
    assert_eq!(distinct(&times), TOKENS as usize);
}

#[test]
fn what_is_held_is_not_lost_with_the_target() {
    let mut rig = rig(slow_language(STEP, Duration::ZERO));
    let mut output = rig.ask(held(Duration::from_secs(1)));
    for _ in 0..20 {
        rig.turn();
    }
    output.collect();
    assert_eq!(output.tokens.len(), 1);
    let decided = decided(&rig);
    assert!(decided > 10);
    rig.worker.lose_all("the test says so");
    output.collect();
    assert_eq!(output.tokens.len(), decided);
    assert!(output.end.is_some_and(|end| end.is_err()));
}
