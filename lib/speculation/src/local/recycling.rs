//! Which tokens were last seen to follow which.

use alloc::vec::Vec;

use crate::TokenId;

/// Successors kept of each token.
const SUCCESSORS: usize = 8;

/// The last eight different successors of each token of a vocabulary, latest first. (After token
/// recycling, Luo et al. 2024, arXiv 2408.08696, whose table keeps the likeliest candidates.)
///
/// Takes 32 bytes an entry of the vocabulary; taking in a token is O(1), proposing n is O(n). A
/// table may serve several requests: what it proposes is verified like anything else. Whoever
/// shares one between users should know that how quickly a user's tokens come then depends, a
/// little, on what others said: see [`Tenants`](super::Tenants).
#[derive(Clone, Debug)]
pub struct Recycling {
    /// Ids, each plus one; 0 is an empty place. Zeroed memory costs nothing before it is used.
    successors: Vec<u32>,
}

impl Recycling {
    /// An empty table for tokens below `vocab_size`.
    pub fn new(vocab_size: u32) -> Self {
        Self {
            successors: alloc::vec![0; vocab_size as usize * SUCCESSORS],
        }
    }

    /// Memory of a table for tokens below `vocab_size`.
    pub fn bytes(vocab_size: u32) -> usize {
        vocab_size as usize * SUCCESSORS * size_of::<u32>()
    }

    /// Takes in that `next` followed `token`. Tokens outside the vocabulary are passed over.
    pub fn observe(&mut self, token: TokenId, next: TokenId) {
        if next.index() >= self.successors.len() / SUCCESSORS {
            return;
        }
        let start = token.index() * SUCCESSORS;
        let Some(row) = self.successors.get_mut(start..start + SUCCESSORS) else {
            return;
        };
        let stored = next.0 + 1;
        let place = row.iter().position(|&known| known == stored);
        let place = place.unwrap_or(SUCCESSORS - 1);
        row[place] = stored;
        row[..=place].rotate_right(1);
    }

    /// Takes in all neighbours of a sequence, in order.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        for pair in tokens.windows(2) {
            self.observe(pair[0], pair[1]);
        }
    }

    /// Successors of `token`, the one seen last first.
    pub fn successors(&self, token: TokenId) -> impl Iterator<Item = TokenId> + '_ {
        let start = token.index() * SUCCESSORS;
        let row = self.successors.get(start..start + SUCCESSORS);
        let row = row.unwrap_or_default().iter().copied();
        row.map_while(|stored| stored.checked_sub(1).map(TokenId))
    }

    /// Replaces `proposals` by up to `n` tokens, each the latest successor of the one before, the
    /// first that of `last`; fewer if nothing is known to follow.
    pub fn propose(&self, last: TokenId, n: usize, proposals: &mut Vec<TokenId>) {
        proposals.clear();
        let mut token = last;
        while proposals.len() < n {
            let Some(next) = self.successors(token).next() else {
                break;
            };
            proposals.push(next);
            token = next;
        }
    }
}
