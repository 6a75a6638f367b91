//! What was measured, beside what theory makes of it.

use foretoken_speculation::theory::{Ahead, Speculator, gain_bounds};
use serde::Serialize;

use crate::run::Tally;

/// Theory of one comparison. Times in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Theory {
    /// A bare verification of the rows of SSD's hit rounds: their steps, and what a round of plain
    /// decoding needs besides its step.
    pub verification: f64,
    /// The wait for a window after a verdict without one, in verifications of whole windows.
    pub draft: f64,
    /// What SSD can gain over `Speculative` at most (Corollary 9): every verdict a hit with a whole
    /// window behind it. A verification is `Speculative`'s, which hands tokens on while it waits.
    pub bound: f64,
    /// The same with a bare verification of SSD, which waits for nothing meanwhile: the least that
    /// its rounds can take.
    pub bare_bound: f64,
    /// Time of SSD's rounds by Theorem 7.
    pub predicted: f64,
    /// As measured.
    pub measured: f64,
    /// Time of a hit round over that of a bare verification.
    pub hit_round: f64,
    /// What a hit round waits besides for more of what was drafted, in the same unit.
    pub lingered: f64,
    /// Tokens of the windows that SSD verified, over those it was to have.
    pub whole: f64,
}

impl Theory {
    /// `plain` decodes on the target's core; `speculative` has its own best lookahead, `same` that
    /// of `ssd`, which is `lookahead`.
    pub fn of(
        plain: &Tally,
        [speculative, same]: [&Tally; 2],
        ssd: &Tally,
        lookahead: u32,
    ) -> Self {
        let (hit_round, verification) = ssd.hit_round(plain);
        let lingered = ssd.lingered() / verification;
        // Of a round of `Speculative` with SSD's windows, less the wait for them.
        let whole = same.round() - same.wait();
        let speculator = |tally: &Tally, time, next_hit| Speculator {
            tokens: tally.tokens_per_round(),
            time,
            next_hit,
        };
        let hit = ssd.hit_rate(false);
        let best = speculator(same, 1.0, hit);
        // The best lookahead of `Speculative` may be another one: its rounds in the same unit.
        let bound = |unit| {
            let draft = speculative.round() / unit - 1.0;
            gain_bounds(speculator(speculative, draft, 0.0), best, hit).1
        };
        let misses = (1.0 - hit).max(f64::EPSILON);
        let ahead = Ahead {
            // The verdict cuts drafting ahead off, but for what it waits for.
            primary: speculator(ssd, 1.0 + lingered, hit),
            // Some misses are verified without asking the endpoint.
            backup: speculator(
                ssd,
                same.wait() / verification * ssd.asked_rate() / misses,
                hit,
            ),
        };
        Self {
            verification,
            draft: same.wait() / whole,
            bound: bound(whole),
            bare_bound: bound(verification),
            predicted: ahead.time() * verification,
            measured: ssd.round(),
            hit_round: hit_round / verification,
            lingered,
            whole: ssd.drafted_per_round() / f64::from(lookahead.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::tally;

    #[test]
    fn bounds_and_round_times_follow_from_what_was_measured() {
        // Milliseconds of a round: 1.0, of which 0.1 besides its step.
        let plain = "foretoken_round_seconds_sum{source=\"none\"} 0.1\n\
            foretoken_round_seconds_count{source=\"none\"} 100\n\
            foretoken_round_extra_seconds_sum{source=\"none\"} 0.01\n\
            foretoken_round_extra_seconds_count{source=\"none\"} 100\n";
        // Of 1.5, of which 0.5 waited for windows, with four tokens.
        let waits = "foretoken_draft_seconds_sum{} 0.05\n";
        // Of hits: 1.11, of which 0.11 besides the step, 0.01 of that waited for more. Of ten misses
        // five ask.
        let ahead = "foretoken_hits_total{round=\"later\"} 90\nforetoken_misses_total{round=\"later\"} 10\n\
            foretoken_lookups_total{source=\"ahead\"} 90\nforetoken_lookups_total{source=\"remote\"} 5\n\
            foretoken_lookups_total{source=\"none\"} 5\n\
            foretoken_round_seconds_sum{source=\"ahead\"} 0.0999\n\
            foretoken_round_seconds_count{source=\"ahead\"} 90\n\
            foretoken_round_extra_seconds_sum{source=\"ahead\"} 0.0099\n\
            foretoken_round_extra_seconds_count{source=\"ahead\"} 90\n\
            foretoken_round_lingered_seconds_sum{source=\"ahead\"} 0.0009\n";
        let plain = tally((100, 100, 0.1), [plain, ""]);
        let speculative = tally((400, 100, 0.15), [waits, ""]);
        let ssd = tally((380, 100, 0.12), [ahead, ""]);
        let theory = Theory::of(&plain, [&speculative, &speculative], &ssd, 4);
        let near = |name, seen: f64, wanted: f64| {
            assert!((seen - wanted).abs() < 1e-9, "{name}: {seen}, not {wanted}");
        };
        near("bare verification", theory.verification, 1.1e-3);
        near("wait, in whole windows", theory.draft, 0.5);
        near("bound", theory.bound, 1.5);
        near("bound by a bare verification", theory.bare_bound, 1.5 / 1.1);
        near("hit round", theory.hit_round, 1.0);
        near("waits for more", theory.lingered, 0.01 / 1.1);
        // Theorem 7: .9 of the rounds wait for more, .1 for a window in half the cases.
        let misses = 0.1 * (1.0 + 0.5 / 1.1 * 0.5);
        let hits = 0.9 * (1.0 + 0.01 / 1.1);
        near("round", theory.predicted, 1.1e-3 * (hits + misses));
        near("round, as measured", theory.measured, 1.2e-3);
        near("windows", theory.whole, 0.75);
    }
}
