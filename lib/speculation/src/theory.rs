//! What speculation ahead of the verdict gains, in closed form.
//!
//! Times are in units of one target verification. A *primary* drafts while the target verifies and
//! takes `T_p` a round; after a miss a *backup* drafts while the target waits, which takes `T_b`. A
//! round emits `E` tokens in expectation, the decided one included. Sources: Leviathan et al. 2023
//! (arXiv 2211.17192); SSD, Kumar et al. 2026 (arXiv 2603.03251), by number of theorem.

mod batch;

pub use self::batch::LockStep;

/// Expected tokens of a round with `lookahead` drafted tokens, each accepted with probability
/// `acceptance` given those before it: `(1 - a^(K+1)) / (1 - a)` (Leviathan et al. 2023, eq. 1).
pub fn expected_tokens(acceptance: f64, lookahead: u32) -> f64 {
    // As a sum: the closed form loses all digits near a = 1.
    let mut reached = 1.0;
    let mut sum = 1.0;
    for _ in 0..lookahead {
        reached *= acceptance;
        sum += reached;
    }
    sum
}

/// Acceptance and speculation cost of what a round is drafted by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speculator {
    /// Expected tokens of a round with its draft.
    pub tokens: f64,
    /// Time it takes, in verifications.
    pub time: f64,
    /// Probability that the round after such a round is a hit.
    pub next_hit: f64,
}

/// Speculation ahead with a backup after misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ahead {
    /// What drafts the rounds that hit.
    pub primary: Speculator,
    /// What drafts the rounds that miss.
    pub backup: Speculator,
}

impl Ahead {
    /// Long-run share of rounds that hit. Whether a round hits depends on what the one before was
    /// drafted by, a chain of two states: `h = p_b / (1 - p_p + p_b)` (Theorem 7). A chain that
    /// never leaves its state is taken to have begun with a miss.
    pub fn hit_rate(&self) -> f64 {
        let (primary, backup) = (self.primary.next_hit, self.backup.next_hit);
        let leaves = 1.0 - primary + backup;
        if leaves > 0.0 { backup / leaves } else { 0.0 }
    }

    /// Expected tokens of a round.
    pub fn tokens(&self) -> f64 {
        let hit = self.hit_rate();
        hit * self.primary.tokens + (1.0 - hit) * self.backup.tokens
    }

    /// Expected time of a round, in verifications.
    pub fn time(&self) -> f64 {
        let hit = self.hit_rate();
        hit * self.primary.time.max(1.0) + (1.0 - hit) * (1.0 + self.backup.time)
    }

    /// Tokens per time over those of plain decoding, one each verification (Theorem 7).
    pub fn speedup(&self) -> f64 {
        self.tokens() / self.time()
    }

    /// The same over plain speculative decoding, whose rounds emit `tokens` tokens and draft for
    /// `time` before each verification.
    pub fn over_speculative(&self, tokens: f64, time: f64) -> f64 {
        self.speedup() / speculative(tokens, time)
    }

    /// The speedup of a batch of `batch` sessions in lock-step, where one miss holds up all:
    /// `E / (1 + (1 - h^b) T_b)` for `T_p <= 1` (Corollary 16). Sessions that do not wait for each
    /// other have [`Self::speedup`] at any batch size.
    pub fn lock_step(&self, batch: u32) -> f64 {
        let all_hit = libm::pow(self.hit_rate(), f64::from(batch));
        self.tokens() / (self.primary.time.max(1.0) + (1.0 - all_hit) * self.backup.time)
    }
}

/// Speedup of plain speculative decoding over plain decoding: `E / (1 + T)` (Leviathan et al. 2023,
/// theorem 3.8).
pub fn speculative(tokens: f64, time: f64) -> f64 {
    tokens / (1.0 + time)
}

/// What speculating ahead gains over plain speculation at most, and at least, if drafting fits the
/// time of a verification and the backup takes none (Corollary 9). `plain` is the draft of plain
/// speculation; `primary` and `hit_rate` are those of speculating ahead.
///
/// Returns `((1 + T) (h E_hit + 1 - h) / E, (1 + T) E_hit / E)`; the lower bound, tighter than the
/// paper's, uses that a round that misses emits a token.
pub fn gain_bounds(plain: Speculator, primary: Speculator, hit_rate: f64) -> (f64, f64) {
    let least = hit_rate * primary.tokens + 1.0 - hit_rate;
    let scale = (1.0 + plain.time) / plain.tokens;
    (scale * least, scale * primary.tokens)
}

#[cfg(test)]
mod tests;
