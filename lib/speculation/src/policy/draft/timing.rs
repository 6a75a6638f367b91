//! How long a target takes, and how much of that time drafts can use.
//!
//! What is expected of a verification follows from the length of its window. Of that, only a part is
//! to be counted on: some verifications are shorter, and what is sent when one ends comes too late.
//! The part is learned from what was missing, so it contains the way to the target.
//!
//! Times are given as what has passed since any moment, the same one for all.

use core::time::Duration;

use super::arrivals::Arrivals;
use crate::message::Outcome;

/// Share of a deviation from what was expected that is taken over.
const RATE: f64 = 0.1;
/// Lengths of windows that are told apart; longer ones are like the last.
const LENGTHS: usize = 17;
/// Part of the time to count on, at first.
const FIRST_PART: f64 = 0.7;
/// Bounds of that part.
const PARTS: (f64, f64) = (0.3, 1.0);
/// How much the part grows after a round in which nothing was missing.
const GROWS: f64 = 0.0025;
/// How much it falls after one in which all was: a tenth is missing on average then. What is missing
/// are mostly the last tokens of continuations, which are worth no more than the first ones of the
/// outcomes that there would not be time for otherwise; but verdicts wait for them.
const FALLS: f64 = 9.0 * GROWS;
/// Longest verification that is believed, in seconds.
const LONGEST: f64 = 3600.0;

/// What was learned of the times of one target.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Seconds of a verification, by the length of its window.
    seconds: [Option<f64>; LENGTHS],
    /// Usual deviation from that, in seconds.
    spread: Option<f64>,
    /// Part of a verification that is counted on.
    part: f64,
    /// Tokens that a session emits in a second.
    rate: Option<f64>,
    /// Seconds from verdict to verdict: if the window between was there, and if it was asked for.
    rounds: [Option<f64>; 2],
}

/// The verification of a session that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verification {
    since: Option<(Duration, usize)>,
    /// When the last verdict came, and whether it asked for a window.
    verdict: Option<(Duration, bool)>,
    arrivals: Arrivals,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            seconds: [None; LENGTHS],
            spread: None,
            part: FIRST_PART,
            rate: None,
            rounds: [None; 2],
        }
    }
}

impl Timing {
    /// Takes in which share of what was planned for a verdict was not there in time.
    pub(super) fn observe_build(&mut self, missing: f64) {
        let change = GROWS - (GROWS + FALLS) * missing;
        self.part = (self.part + change).clamp(PARTS.0, PARTS.1);
    }

    /// Part of a verification that is counted on.
    pub fn part(&self) -> f64 {
        self.part
    }

    /// Tokens a second that a session emits, if known.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Seconds by which a round is longer whose window was asked for, if known.
    pub(super) fn wait(&self) -> Option<f64> {
        let [ready, asked] = self.rounds;
        Some((asked? - ready?).max(0.0))
    }

    /// Seconds that can be counted on from the beginning of the verification of such a window.
    pub(super) fn usable(&self, window: usize) -> Option<f64> {
        Some(self.expected(window)? * self.part)
    }

    /// Seconds that the verification of such a window takes.
    fn expected(&self, window: usize) -> Option<f64> {
        // Without experience with this length: that of the nearest.
        let own = window.min(LENGTHS - 1);
        let nearest = (0..LENGTHS)
            .filter(|&length| self.seconds[length].is_some())
            .min_by_key(|&length| length.abs_diff(own))?;
        self.seconds[nearest]
    }

    /// As if verifications of windows of so many tokens took so many seconds, until they are seen to
    /// take another time: for tests of services.
    pub fn expect(&mut self, window: usize, seconds: f64) {
        self.seconds[window.min(LENGTHS - 1)] = Some(seconds);
    }

    /// By how much verifications usually differ from what is expected of them, in seconds, if known.
    pub(super) fn spread(&self) -> Option<f64> {
        self.spread
    }

    fn observe(&mut self, window: usize, took: f64) {
        let known = &mut self.seconds[window.min(LENGTHS - 1)];
        if let Some(expected) = *known {
            let deviation = (took - expected).abs().min(expected);
            // At first as for timeouts of TCP (RFC 6298, section 2): half of what is measured.
            let spread = self.spread.get_or_insert(expected / 2.0);
            *spread += RATE * (deviation - *spread);
        }
        follow(known, took);
    }
}

/// Moves what is known towards what was seen.
fn follow(known: &mut Option<f64>, took: f64) {
    let known = known.get_or_insert(took);
    // What was held up by something else counts at most double.
    let took = if *known > 0.0 {
        took.min(2.0 * *known)
    } else {
        took
    };
    *known = (*known + RATE * (took - *known)).min(LONGEST);
}

impl Verification {
    /// The target verifies a window of this length from now on.
    pub(super) fn begin(&mut self, now: Duration, window: usize) {
        self.since = Some((now, window));
    }

    /// Its verdict is read; when it has come. For how long that waited is no time to plan with: it was to
    /// bring a few tokens more, and would become longer and longer.
    pub(super) fn end(
        &mut self,
        now: Duration,
        outcome: &Outcome,
        timing: &mut Timing,
    ) -> Duration {
        let now = self.arrivals.at(now, outcome.elapsed);
        // One that had come before the window was sent did not take it.
        if let Some((since, window)) = self.since.take().filter(|&(since, _)| since < now) {
            let took = now.saturating_sub(since);
            timing.observe(window, took.saturating_sub(outcome.lingered).as_secs_f64());
        }
        let asks = outcome.asks().is_some();
        if let Some((before, asked)) = self.verdict.replace((now, asks)) {
            let took = now.saturating_sub(before).as_secs_f64();
            follow(&mut timing.rounds[usize::from(asked)], took);
            let rate = (outcome.tokens.len() as f64 / took.clamp(1e-6, LONGEST)).max(1e-9);
            let known = timing.rate.get_or_insert(rate);
            // Of rates the harmonic mean counts: time adds up.
            *known = 1.0 / (1.0 / *known + RATE * (1.0 / rate - 1.0 / *known));
        }
        now
    }

    /// Seconds that can be counted on of all that the verification under way takes.
    pub(super) fn usable(&self, timing: &Timing) -> Option<f64> {
        timing.usable(self.since?.1)
    }

    /// Seconds until the verdict is expected, below 0 when it is late; none if nothing is known or nothing
    /// is verified.
    pub(super) fn expected(&self, now: Duration, timing: &Timing) -> Option<f64> {
        let (_, window) = self.since?;
        Some(timing.expected(window)? - self.spent(now)?)
    }

    /// Seconds left of what can be counted on, below 0 when they are over; none if nothing is known
    /// or nothing is verified.
    pub(super) fn left(&self, now: Duration, timing: &Timing) -> Option<f64> {
        Some(self.usable(timing)? - self.spent(now)?)
    }

    /// Seconds since it began.
    fn spent(&self, now: Duration) -> Option<f64> {
        let (since, _) = self.since?;
        Some(now.saturating_sub(since).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Proposals, TokenId};

    const MS: Duration = Duration::from_millis(1);
    const BEGIN: Duration = Duration::from_secs(1000);

    /// A verdict of so many tokens, that asks for a window or does not.
    fn verdict(tokens: u32, asks: bool) -> Outcome {
        Outcome {
            tokens: (0..tokens).map(TokenId).collect(),
            lookahead: 4,
            verifying: (!asks).then(Proposals::new),
            ..Outcome::default()
        }
    }

    /// What is left at the start of a verification of `window` tokens after `rounds` of 10 ms with
    /// 4 tokens.
    fn learned(rounds: usize, late_every: usize) -> Timing {
        let (mut timing, mut verification) = (Timing::default(), Verification::default());
        let mut now = BEGIN;
        for round in 0..rounds {
            verification.begin(now, 4);
            now += 10 * MS;
            verification.end(now, &verdict(2, false), &mut timing);
            timing.observe_build(if round % late_every == 0 { 1.0 } else { 0.0 });
        }
        timing
    }

    #[test]
    fn the_part_to_count_on_is_what_is_seldom_too_much() {
        for (late_every, expected) in [(2, 0.3), (1000, 1.0)] {
            let usable = learned(2000, late_every).usable(4).expect("known");
            assert!((usable / 0.01 - expected).abs() < 0.03, "{usable}");
        }
        let (before, after) = (learned(200, 10), learned(1200, 10));
        assert!(
            (before.part - after.part).abs() < 0.03 && after.part < 0.75,
            "one in ten is as it should be"
        );
    }

    #[test]
    fn lengths_without_experience_are_like_the_nearest() {
        let mut timing = learned(5, 10);
        timing.observe(12, 0.03);
        let usable = |window| timing.usable(window).expect("known") / timing.part;
        assert!((usable(0) - 0.01).abs() < 1e-9);
        assert!((usable(10) - 0.03).abs() < 1e-9);
        assert!((usable(usize::MAX) - 0.03).abs() < 1e-9);
        assert_eq!(Timing::default().usable(4), None);
    }

    #[test]
    fn what_a_miss_waits_for_is_the_difference_of_rounds() {
        let (mut timing, mut verification) = (Timing::default(), Verification::default());
        let mut now = BEGIN;
        for round in 0..40 {
            let asks = round % 4 == 0;
            assert!(round > 2 || timing.wait().is_none());
            verification.end(now, &verdict(3, asks), &mut timing);
            now += if asks { 14 * MS } else { 10 * MS };
        }
        let wait = timing.wait().expect("both are known");
        assert!((wait - 0.004).abs() < 1e-4, "{wait}");
    }

    #[test]
    fn time_passes_and_may_be_over() {
        let timing = learned(5, 10);
        let mut verification = Verification::default();
        let now = BEGIN;
        assert_eq!(verification.left(now, &timing), None);
        verification.begin(now, 4);
        let left = |after| verification.left(now + after, &timing).expect("under way");
        assert!(left(Duration::ZERO) > left(MS) && left(MS) > 0.0);
        assert!(left(1000 * MS) < 0.0);
    }

    #[test]
    fn a_hiccup_counts_little_and_rates_are_tokens_over_time() {
        let (mut timing, mut verification) = (learned(50, 10), Verification::default());
        let before = timing.usable(4).expect("known");
        let rate = timing.rate().expect("known");
        assert!((rate - 200.0).abs() < 1.0, "2 tokens in 10 ms: {rate}");
        let now = BEGIN;
        verification.begin(now, 4);
        verification.end(now + 100_000 * MS, &verdict(2, false), &mut timing);
        assert!(timing.usable(4).expect("known") < 1.11 * before);
    }

    #[test]
    fn a_verdict_from_before_its_window_says_nothing() {
        let (mut timing, mut verification) = (Timing::default(), Verification::default());
        let mut early = verdict(2, false);
        verification.end(BEGIN, &early, &mut timing);
        verification.begin(BEGIN + 12 * MS, 4);
        early.elapsed = 10 * MS;
        verification.end(BEGIN + 15 * MS, &early, &mut timing);
        assert_eq!(timing.usable(4), None);
        let mut seconds = Some(0.0);
        follow(&mut seconds, 1.0);
        assert!(seconds > Some(0.0), "nothing is stuck");
    }

    #[test]
    fn a_verdict_that_waited_was_there_before() {
        let (mut timing, mut verification) = (Timing::default(), Verification::default());
        let now = BEGIN;
        verification.begin(now, 4);
        let mut waited = verdict(2, false);
        waited.lingered = 3 * MS;
        verification.end(now + 13 * MS, &waited, &mut timing);
        let usable = timing.usable(4).expect("known") / timing.part;
        assert!((usable - 0.01).abs() < 1e-9, "{usable}");
    }
}
