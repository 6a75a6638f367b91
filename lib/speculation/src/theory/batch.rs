//! Which backup serves a batch in lock-step.

/// Two backups after a miss, in a batch where one miss holds up all sessions: the primary itself,
/// just in time, or a source that takes no time (SSD, arXiv 2603.03251, Theorem 17).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LockStep {
    /// Expected tokens of a round that the primary drafted.
    pub primary_tokens: f64,
    /// Expected tokens of a round that the fast source drafted.
    pub fast_tokens: f64,
    /// Time that drafting just in time takes, round trip included, in verifications.
    pub primary_time: f64,
    /// Probability of a hit after a round that the primary drafted.
    pub primary_hit: f64,
    /// Probability of a hit after a round that the fast source drafted.
    pub fast_hit: f64,
}

impl LockStep {
    /// Speedup with just-in-time drafts after misses: `E_p / (1 + (1 - p_p^b) T_p)`.
    pub fn just_in_time(&self, batch: f64) -> f64 {
        let miss = 1.0 - libm::pow(self.primary_hit, batch);
        self.primary_tokens / (1.0 + miss * self.primary_time)
    }

    /// Speedup with the fast source after misses, at any batch size: `h_f E_p + (1 - h_f) E_b`,
    /// `h_f = p_b / (1 - p_p + p_b)`.
    pub fn fast(&self) -> f64 {
        let leaves = 1.0 - self.primary_hit + self.fast_hit;
        let hit = if leaves > 0.0 {
            self.fast_hit / leaves
        } else {
            0.0
        };
        hit * self.primary_tokens + (1.0 - hit) * self.fast_tokens
    }

    /// The batch size below which drafting just in time is faster, and above which the fast source
    /// is: `b* = ln(1 - g) / ln p_p` with `g = (E_p / S_fast - 1) / T_p`; infinite if `g >= 1`, 0 if
    /// `g <= 0`.
    pub fn batch_limit(&self) -> f64 {
        let gain = self.primary_tokens / self.fast() - 1.0;
        if gain <= 0.0 || gain.is_nan() {
            return 0.0;
        }
        // Also where drafting takes no time at all.
        if gain >= self.primary_time || self.primary_hit >= 1.0 {
            return f64::INFINITY;
        }
        if self.primary_hit <= 0.0 {
            return 0.0;
        }
        libm::log(1.0 - gain / self.primary_time) / libm::log(self.primary_hit)
    }

    /// Whether a batch of `batch` sessions should wait for just-in-time drafts after misses.
    pub fn waits(&self, batch: u32) -> bool {
        f64::from(batch) < self.batch_limit()
    }
}
