//! What a row verifies when no entry fits its verdict.
//!
//! Rows are ragged: others go on while one waits (or wait for it as long as that pays for all, see
//! [`gather`](crate::gather)), so each decides for itself. In the long run a row emits `rate` tokens
//! a second; a second of waiting costs as many. Of its offers it takes the one with the most tokens
//! after what the time is worth, counting the hits it makes possible in the round after:
//!
//! ```text
//! value = tokens + next_hit * hit_value - rate * delay
//! ```
//!
//! This is the rule of optimal rates (Charnov 1976's marginal value theorem; renewal-reward): wait
//! for a draft iff its extra tokens per extra time beat the row's own rate. For a batch in lock-step
//! see [`LockStep`](crate::theory::LockStep).

mod chooser;

use core::time::Duration;

pub use self::chooser::{Chooser, Expected, Miss, Situation};
use crate::theory::Ahead;

/// Where proposals come from after a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fallback {
    /// Nowhere: the row decides one token.
    Nothing,
    /// The target's own host: see [`local`](crate::local).
    Local,
    /// The endpoint, just in time.
    Remote,
}

impl Fallback {
    /// The name used in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

/// Who chooses what follows a miss, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnMiss {
    /// Always [`Fallback::Nothing`].
    Nothing,
    /// Always [`Fallback::Local`]; nothing where the target's host has no proposal.
    Local,
    /// Always [`Fallback::Remote`].
    Remote,
    /// For each row whatever brings it the most tokens for its time. What others lose is not counted:
    /// they wait for it only as long as that pays for all of them ([`gather`](crate::gather)).
    #[default]
    Auto,
    /// The same for all rows, by their number: the rule for rows that always wait for each other
    /// (SSD, Theorem 17). Here they do only while that pays, so this is for comparisons.
    LockStep,
}

impl OnMiss {
    /// What follows a miss if that does not depend on anything else.
    pub fn always(self) -> Option<Fallback> {
        match self {
            Self::Nothing => Some(Fallback::Nothing),
            Self::Local => Some(Fallback::Local),
            Self::Remote => Some(Fallback::Remote),
            Self::Auto | Self::LockStep => None,
        }
    }

    /// Whether proposals of the target's host may follow.
    pub fn may_be_local(self) -> bool {
        !matches!(self, Self::Nothing | Self::Remote)
    }
}

/// What a fallback would bring to a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Which one.
    pub fallback: Fallback,
    /// Expected proposed tokens that are accepted.
    pub tokens: f64,
    /// How much later the row's verification starts, or ends because of more rows.
    pub delay: Duration,
    /// Probability that the round after is a hit.
    pub next_hit: f64,
}

impl Offer {
    /// Decides one token, at once; the round after hits with probability `next_hit`.
    pub fn nothing(next_hit: f64) -> Self {
        Self {
            fallback: Fallback::Nothing,
            tokens: 0.0,
            delay: Duration::ZERO,
            next_hit,
        }
    }
}

/// What a row's time is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowWorth {
    /// Tokens a second that the row emits in the long run.
    pub rate: f64,
    /// What it is worth to have a hit in the next round rather than a miss, in tokens: those
    /// emitted more, those that the time saved is worth, and the same again for the rounds after.
    pub hit_value: f64,
}

impl RowWorth {
    /// Of a row that speculates like this, with verifications of this length. With h the rate and D
    /// the hit value, both states of the chain of Theorem 7 (SSD, arXiv 2603.03251) have the same
    /// long-run value, so `D = E_p - E_b + rate (1 + T_b - max(1, T_p)) + (p_p - p_b) D`.
    pub fn of(ahead: &Ahead, verification: Duration) -> Self {
        let (primary, backup) = (ahead.primary, ahead.backup);
        let speedup = ahead.speedup();
        let saved = 1.0 + backup.time - primary.time.max(1.0);
        let gains = primary.tokens - backup.tokens + speedup * saved;
        Self {
            rate: speedup / verification.as_secs_f64().max(1e-9),
            hit_value: gains / turnover(primary.next_hit, backup.next_hit),
        }
    }

    /// Tokens that an offer brings, less those that its delay costs.
    pub fn value(&self, offer: &Offer) -> f64 {
        offer.tokens + offer.next_hit * self.hit_value - self.rate * offer.delay.as_secs_f64()
    }

    /// The offer with the highest value; the first of several, and nothing without any.
    pub fn choose(&self, offers: &[Offer]) -> Fallback {
        let mut best = (f64::NEG_INFINITY, Fallback::Nothing);
        for offer in offers {
            let value = self.value(offer);
            if value > best.0 {
                best = (value, offer.fallback);
            }
        }
        best.1
    }
}

/// How much of a difference that a hit makes is gone a round later: `1 - p_p + p_b` of Theorem 7
/// (SSD, arXiv 2603.03251), but never so little that nothing can be divided by it.
fn turnover(primary_hit: f64, backup_hit: f64) -> f64 {
    (1.0 - primary_hit + backup_hit).max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{noise::philox, theory};

    fn unit(i: u32, j: u32) -> f64 {
        f64::from(philox([i, j, 0, 0], [8, 8])[0]) / f64::from(u32::MAX)
    }

    #[test]
    fn a_row_waits_only_for_a_draft_that_beats_its_own_rate() {
        let worth = RowWorth {
            rate: 100.0,
            hit_value: 0.0,
        };
        let remote = |tokens, delay| Offer {
            fallback: Fallback::Remote,
            tokens,
            delay: Duration::from_millis(delay),
            next_hit: 0.0,
        };
        let local = Offer {
            fallback: Fallback::Local,
            tokens: 0.5,
            delay: Duration::ZERO,
            next_hit: 0.0,
        };
        let nothing = Offer::nothing(0.0);
        assert_eq!(
            worth.choose(&[nothing, local, remote(2.0, 10)]),
            Fallback::Remote
        );
        assert_eq!(
            worth.choose(&[nothing, local, remote(2.0, 20)]),
            Fallback::Local
        );
        assert_eq!(worth.choose(&[nothing, remote(2.0, 20)]), Fallback::Nothing);
        assert_eq!(worth.choose(&[]), Fallback::Nothing);
    }

    #[test]
    fn a_draft_that_makes_the_next_round_hit_is_worth_its_wait_sooner() {
        let remote = Offer {
            fallback: Fallback::Remote,
            tokens: 1.0,
            delay: Duration::from_millis(20),
            next_hit: 0.9,
        };
        let choose = |hit_value| {
            let worth = RowWorth {
                rate: 100.0,
                hit_value,
            };
            worth.choose(&[Offer::nothing(0.3), remote])
        };
        assert_eq!(choose(1.0), Fallback::Nothing);
        assert_eq!(choose(3.0), Fallback::Remote);
    }

    /// What a backup offers a row, with verifications of a second.
    fn offer(fallback: Fallback, source: theory::Speculator) -> Offer {
        Offer {
            fallback,
            tokens: source.tokens - 1.0,
            delay: Duration::from_secs_f64(source.time),
            next_hit: source.next_hit,
        }
    }

    #[test]
    fn a_row_does_not_care_where_both_backups_are_as_fast() {
        for i in 0..500 {
            let fast = theory::Speculator {
                tokens: 1.0 + unit(i, 3),
                time: 0.0,
                next_hit: unit(i, 4),
            };
            let mut primary = theory::Speculator {
                tokens: fast.tokens + 4.0 * unit(i, 0),
                time: 0.5,
                next_hit: 0.9 * unit(i, 2),
            };
            let with_fast = Ahead {
                primary,
                backup: fast,
            };
            // Theorem 7 solved for the time at which E_p / (1 + (1 - p_p) T) is the same speedup.
            primary.time = (primary.tokens / with_fast.speedup() - 1.0) / (1.0 - primary.next_hit);
            let worth = RowWorth::of(&with_fast, Duration::from_secs(1));
            let remote = worth.value(&offer(Fallback::Remote, primary));
            let local = worth.value(&offer(Fallback::Local, fast));
            assert!((remote - local).abs() < 1e-6, "{remote} and {local}");
        }
    }

    #[test]
    fn the_rule_finds_the_backup_with_the_higher_speedup() {
        // Theorem 7 decides which backup is better; a row that knows its worth with the better one
        // has to agree.
        for i in 0..2000 {
            let primary = theory::Speculator {
                tokens: 2.0 + 4.0 * unit(i, 0),
                time: unit(i, 1),
                next_hit: unit(i, 2),
            };
            let fast = theory::Speculator {
                tokens: 1.0 + unit(i, 3),
                time: 0.0,
                next_hit: unit(i, 4),
            };
            let with = |backup| theory::Ahead { primary, backup }.speedup();
            let (slow_rate, fast_rate) = (with(primary), with(fast));
            if (slow_rate / fast_rate - 1.0).abs() < 1e-6 {
                continue;
            }
            let backup = if slow_rate > fast_rate { primary } else { fast };
            let worth = RowWorth::of(&theory::Ahead { primary, backup }, Duration::from_secs(1));
            let chosen = worth.choose(&[
                offer(Fallback::Local, fast),
                offer(Fallback::Remote, primary),
            ]);
            assert_eq!(
                chosen == Fallback::Remote,
                slow_rate > fast_rate,
                "case {i}"
            );
        }
    }
}
