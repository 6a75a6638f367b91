//! What becomes of proposals: how many are accepted, and the token that is decided after them.

use crate::{
    TokenId,
    sampling::{Sampler, Scratch},
};

/// Outcome of verifying a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Leading tokens of the window that are emitted.
    pub accepted: usize,
    /// The token emitted after them: a correction, or the bonus after full acceptance.
    pub decided: TokenId,
}

/// Coupled verification of a chain (architecture of the crate's `noise`): position by position, the
/// target's own choice is compared with the proposal. `row(i)` are the logits after `window[..i]`,
/// for i from 0 to `window.len()`; rows past the first mismatch are never asked for. The accepted
/// tokens and the decided one are pushed to `sampler`. Greedy verification is the same at
/// temperature 0.
///
/// Exact for any proposals from any source: what is emitted depends on the rows and the sampler
/// alone.
pub fn coupled_chain<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    window: &[TokenId],
    row: impl Fn(usize) -> &'a [f32],
) -> Verdict {
    let mut accepted = 0;
    loop {
        let decided = sampler.choose(row(accepted), scratch);
        sampler.push(decided);
        if window.get(accepted) != Some(&decided) {
            return Verdict { accepted, decided };
        }
        accepted += 1;
    }
}
