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
