//! Sends prompts to where their beginning is cached already, unless that place is overloaded.
//!
//! Every full block of a prompt has a hash of itself and all before it; a table remembers which
//! target saw it last. The deepest block that a candidate has seen wins, if that candidate's
//! load is within a factor of the mean (consistent hashing with bounded loads, Mirrokni et al.
//! 2018, arXiv:1608.01350); otherwise, and for new prompts, the least loaded candidate does.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    sync::Arc,
};

use foretoken_speculation::TokenId;

/// Tokens per block: a multiple of the engine's KV page.
const BLOCK: usize = 32;
/// Blocks of a prompt that are looked at: 4096 tokens tell prompts apart.
const DEPTH: usize = 128;
/// So many blocks that were looked for last are remembered, and at most twice as many.
const CAPACITY: usize = 1 << 16;
/// Load a favourite may have relative to the mean, in percent, plus [`SLACK`].
const BOUND_PERCENT: u64 = 125;
/// Requests a favourite may always have above the bound, so that a few requests stay together.
const SLACK: u64 = 2;

/// A prompt, and what its KV is cached under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedAs<'a> {
    /// Name of the model.
    pub(crate) model: &'a str,
    /// The request's secret: under another one the same prompt is cached apart.
    pub(crate) salt: Option<&'a str>,
    /// The prompt.
    pub(crate) tokens: &'a [TokenId],
}

/// Which target saw which prefix.
pub(super) struct Affinity {
    /// Blocks of the latest prompts.
    recent: HashMap<u64, Arc<str>>,
    /// Those before them: what is looked for again becomes recent, the rest is forgotten together.
    earlier: HashMap<u64, Arc<str>>,
    /// Breaks ties between equal loads in turn.
    turn: usize,
}

impl Affinity {
    pub(super) fn new() -> Self {
        Self {
            recent: HashMap::new(),
            earlier: HashMap::new(),
            turn: 0,
        }
    }

    /// Index of the candidate (name, load) that `prompt` goes to; `candidates` is not empty.
    pub(super) fn choose(&mut self, prompt: CachedAs<'_>, candidates: &[(&str, u32)]) -> usize {
        let hashes = prefix_hashes(prompt);
        let total: u64 = candidates.iter().map(|&(_, load)| u64::from(load)).sum();
        let mean_after = (total + 1).div_ceil(candidates.len().max(1) as u64);
        let bound = mean_after * BOUND_PERCENT / 100 + SLACK;
        let favourite = hashes
            .iter()
            .rev()
            .find_map(|hash| {
                let name = self.recent.get(hash).or_else(|| self.earlier.get(hash))?;
                candidates
                    .iter()
                    .position(|(candidate, _)| **candidate == **name)
            })
            .filter(|&i| u64::from(candidates[i].1) < bound);
        let chosen = favourite.unwrap_or_else(|| self.least_loaded(candidates));
        self.remember(&hashes, candidates[chosen].0);
        chosen
    }

    fn least_loaded(&mut self, candidates: &[(&str, u32)]) -> usize {
        self.turn = self.turn.wrapping_add(1);
        let n = candidates.len();
        (0..n)
            .map(|i| (i + self.turn) % n)
            .min_by_key(|&i| candidates[i].1)
            .unwrap_or(0)
    }

    fn remember(&mut self, hashes: &[u64], name: &str) {
        let name: Arc<str> = name.into();
        for &hash in hashes {
            if self.recent.len() == CAPACITY && !self.recent.contains_key(&hash) {
                mem::swap(&mut self.recent, &mut self.earlier);
                self.recent.clear();
            }
            self.recent.insert(hash, Arc::clone(&name));
        }
    }
}

/// Hash of each leading run of whole blocks.
fn prefix_hashes(prompt: CachedAs<'_>) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    (prompt.model, prompt.salt).hash(&mut hasher);
    prompt
        .tokens
        .chunks_exact(BLOCK)
        .take(DEPTH)
        .map(|block| {
            block.hash(&mut hasher);
            hasher.finish()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(first: u32, len: u32) -> Vec<TokenId> {
        (0..len).map(|i| TokenId(first + i)).collect()
    }

    fn unsalted(tokens: &[TokenId]) -> CachedAs<'_> {
        CachedAs {
            model: "m",
            salt: None,
            tokens,
        }
    }

    #[test]
    fn the_same_prompt_under_another_salt_is_another_one() {
        let mut affinity = Affinity::new();
        let tokens = prompt(0, 64);
        let under = |salt| CachedAs {
            salt,
            ..unsalted(&tokens)
        };
        let even = [("a", 0), ("b", 0)];
        let first = affinity.choose(under(Some("x")), &even);
        // Whoever has seen it keeps it although the other one is idle.
        let mut loads = even;
        loads[first].1 = 1;
        assert_eq!(affinity.choose(under(Some("x")), &loads), first);
        assert_ne!(affinity.choose(under(Some("y")), &loads), first);
        assert_ne!(affinity.choose(under(None), &loads), first);
    }

    #[test]
    fn a_prompt_goes_where_its_longest_prefix_went() {
        let mut affinity = Affinity::new();
        let idle = [("a", 0), ("b", 0), ("c", 0)];
        let first = affinity.choose(unsalted(&prompt(0, 128)), &idle);
        let other = affinity.choose(unsalted(&prompt(9000, 128)), &idle);
        assert_ne!(first, other, "equal loads take turns");
        for len in [64, 128, 500] {
            assert_eq!(
                affinity.choose(unsalted(&prompt(0, len)), &idle),
                first,
                "{len}"
            );
            assert_eq!(
                affinity.choose(unsalted(&prompt(9000, len)), &idle),
                other,
                "{len}"
            );
        }
    }

    #[test]
    fn an_overloaded_favourite_is_passed_over_for_the_least_loaded() {
        let mut affinity = Affinity::new();
        let first = affinity.choose(unsalted(&prompt(0, 64)), &[("a", 0), ("b", 0), ("c", 0)]);
        let mut loads = [("a", 1), ("b", 2), ("c", 3)];
        loads[first].1 = 20;
        let chosen = affinity.choose(unsalted(&prompt(0, 64)), &loads);
        let least = (0..3).min_by_key(|&i| loads[i].1).unwrap();
        assert_eq!(chosen, least);
    }

    #[test]
    fn load_decides_for_prompts_shorter_than_a_block() {
        let mut affinity = Affinity::new();
        for _ in 0..10 {
            assert_eq!(
                affinity.choose(unsalted(&prompt(0, 31)), &[("a", 5), ("b", 4)]),
                1
            );
        }
    }

    #[test]
    fn a_target_that_is_gone_is_no_favourite() {
        let mut affinity = Affinity::new();
        affinity.choose(unsalted(&prompt(0, 64)), &[("gone", 0)]);
        assert_eq!(
            affinity.choose(unsalted(&prompt(0, 64)), &[("a", 1), ("b", 0)]),
            1
        );
    }

    /// Sends so many prompts of [`DEPTH`] new blocks, and calls `between` after each.
    fn flood(affinity: &mut Affinity, prompts: usize, mut between: impl FnMut(&mut Affinity)) {
        for i in 0..prompts as u32 {
            affinity.choose(unsalted(&prompt(1_000_000 + i * 10_000, 4096)), &[("a", 0)]);
            between(affinity);
        }
    }

    /// Where `system` has gone, and loads for which only that speaks: the other target is idle.
    fn settled(affinity: &mut Affinity, system: &[TokenId]) -> (usize, [(&'static str, u32); 2]) {
        let mut loads = [("a", 0), ("b", 0)];
        let home = affinity.choose(unsalted(system), &loads);
        loads[home].1 = 1;
        (home, loads)
    }

    #[test]
    fn a_prefix_in_use_keeps_its_target_however_many_others_come() {
        let (mut affinity, system) = (Affinity::new(), prompt(0, 64));
        let (home, loads) = settled(&mut affinity, &system);
        flood(&mut affinity, 3 * CAPACITY / DEPTH, |affinity| {
            assert_eq!(affinity.choose(unsalted(&system), &loads), home);
        });
    }

    #[test]
    fn a_prefix_out_of_use_is_remembered_for_a_while_and_then_forgotten() {
        let (mut affinity, system) = (Affinity::new(), prompt(0, 64));
        let (home, loads) = settled(&mut affinity, &system);
        flood(&mut affinity, CAPACITY / DEPTH - 1, |_| {});
        assert_eq!(affinity.choose(unsalted(&system), &loads), home);
        flood(&mut affinity, 2 * CAPACITY / DEPTH + 1, |_| {});
        assert_ne!(affinity.choose(unsalted(&system), &loads), home);
    }

    #[test]
    fn memory_is_bounded() {
        let mut affinity = Affinity::new();
        flood(&mut affinity, 3 * CAPACITY / DEPTH, |_| {});
        assert!(affinity.recent.len() <= CAPACITY && affinity.earlier.len() <= CAPACITY);
    }
}
