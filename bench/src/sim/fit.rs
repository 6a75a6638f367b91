//! How many outcomes are drafted for in the time that verification leaves.

use std::time::Duration;

use foretoken_speculation::{fanout::Guess, theory};

/// Share of a deviation from what was expected of verifications that is taken over.
const RATE: f64 = 0.1;

/// How long a session's target takes from verdict to verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leeway {
    since: Option<Duration>,
    seconds: Option<f64>,
}

impl Leeway {
    /// The target verifies from now on.
    pub(super) fn begin(&mut self, now: Duration) {
        self.since = Some(now);
    }

    /// Its verdict has come.
    pub(super) fn end(&mut self, now: Duration) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_sub(since).as_secs_f64();
            let known = self.seconds.get_or_insert(took);
            *known += RATE * (took - *known);
        }
    }

    /// How long after its expected verdict a target may be thought to wait for a token that is
    /// accepted with this probability, if it emits `tokens` a round.
    pub(super) fn grace(&self, reached: f64, tokens: f64) -> Duration {
        let round = self.seconds.unwrap_or_default();
        Duration::from_secs_f64(reached * round / tokens.max(1.0))
    }

    /// What is left of it until a verdict comes that a round trip passes before.
    pub(super) fn left(&self, now: Duration, round_trip: Duration) -> Option<Duration> {
        let spent = now.saturating_sub(self.since?) + round_trip;
        Some(Duration::from_secs_f64(self.seconds?).saturating_sub(spent))
    }
}

/// Time for branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Until the verdict; none if that is not known.
    pub(super) left: Option<Duration>,
    /// Steps that complete continuations take.
    pub(super) steps: u32,
    /// Sessions that have branches in each step.
    pub(super) sharers: u32,
}

impl Room {
    /// How many of the likeliest `guesses` to draft for: the number with the most expected tokens,
    /// hits times what the steps that fit will bring. `cost` is that of a step by its rows.
    pub(super) fn branches(
        &self,
        guesses: &[Guess],
        acceptance: f64,
        cost: impl Fn(u32) -> Duration,
    ) -> usize {
        let Some(left) = self.left else {
            return guesses.len();
        };
        let (mut mass, mut best) = (0.0, (0.0, 1));
        for (i, guess) in guesses.iter().enumerate() {
            mass += guess.probability;
            let step = cost((i as u32 + 1) * self.sharers).as_secs_f64();
            let steps = (left.as_secs_f64() / step.max(1e-9)) as u32;
            let worth = mass * (theory::expected_tokens(acceptance, steps.min(self.steps)) - 1.0);
            if worth > best.0 {
                best = (worth, i + 1);
            }
        }
        best.1
    }
}
