//! Which tokens a sequence has, as penalties and noise see it.

use alloc::vec::Vec;

use crate::TokenId;

/// Bit of a tally: the token occurs in the prompt.
const IN_PROMPT: u32 = 1 << 31;
/// Bit of a tally: the token is in `distinct`.
const LISTED: u32 = 1 << 30;
/// Bits of a tally that count occurrences in the output.
const COUNT: u32 = LISTED - 1;

/// Tokens from here on are in no vocabulary; they are not tallied, so that a bad id costs no memory.
const MAX_VOCABULARY: usize = 1 << 24;
/// Tokens whose tallies are made together. All of a vocabulary would take longer to make than a short
/// sequence to read, and a target may open and close such sequences as often as it likes.
const PAGE: usize = 1024;

/// The tokens of one sequence: prompt length, output, and (if penalties want it) how often each
/// token occurred. A draft window can be pushed ahead of its verdict and popped again.
#[derive(Clone, Debug)]
pub struct History {
    prompt_len: usize,
    output: Vec<TokenId>,
    counts_tokens: bool,
    /// By token: two flags and the number of occurrences in the output. Pages are made on demand.
    tallies: Vec<Vec<u32>>,
    /// Tokens that are listed, in order of appearance: all whose tally is not zero, and a few that were
    /// popped while others that came later stayed.
    distinct: Vec<TokenId>,
}

/// What penalties need to know about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) token: TokenId,
    pub(super) in_prompt: bool,
    pub(super) outputs: u32,
}

impl History {
    /// A sequence of `tokens`, the first `prompt_len` of which are the prompt (all, if there are
    /// fewer). Occurrences are counted only if `counts_tokens`.
    pub fn new(tokens: &[TokenId], prompt_len: usize, counts_tokens: bool) -> Self {
        let prompt_len = prompt_len.min(tokens.len());
        let (prompt, output) = tokens.split_at(prompt_len);
        let mut history = Self {
            prompt_len,
            output: Vec::with_capacity(output.len() + 64),
            counts_tokens,
            tallies: Vec::new(),
            distinct: Vec::new(),
        };
        if counts_tokens {
            for &token in prompt {
                history.update_tally(token, |tally| tally | IN_PROMPT);
            }
        }
        for &token in output {
            history.push(token);
        }
        history
    }

    /// Appends a token of output.
    pub fn push(&mut self, token: TokenId) {
        self.output.push(token);
        if self.counts_tokens {
            self.update_tally(token, |tally| tally + 1);
        }
    }

    /// Removes the last token of output, if there is any.
    pub fn pop(&mut self) -> Option<TokenId> {
        let token = self.output.pop()?;
        if self.counts_tokens {
            self.update_tally(token, |tally| tally - 1);
            self.unlist(token);
        }
        Some(token)
    }

    /// Removes output from the end until the sequence has at most `len` tokens; the prompt stays.
    pub fn truncate(&mut self, len: usize) {
        while self.len() > len && self.pop().is_some() {}
    }

    /// Tokens of the sequence, prompt included: the position of the next one.
    pub fn len(&self) -> usize {
        self.prompt_len + self.output.len()
    }

    /// Whether the sequence has no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of output, oldest first.
    pub fn output(&self) -> &[TokenId] {
        &self.output
    }

    /// Every distinct token with what is known of it, if occurrences are counted.
    pub(super) fn seen(&self) -> impl Iterator<Item = Seen> {
        self.distinct.iter().filter_map(|&token| {
            let tally = self.tallies[token.index() / PAGE][token.index() % PAGE];
            let (in_prompt, outputs) = (tally & IN_PROMPT != 0, tally & COUNT);
            (in_prompt || outputs > 0).then_some(Seen {
                token,
                in_prompt,
                outputs,
            })
        })
    }

    fn update_tally(&mut self, token: TokenId, update: impl FnOnce(u32) -> u32) {
        let index = token.index();
        if index >= MAX_VOCABULARY {
            return;
        }
        let (number, place) = (index / PAGE, index % PAGE);
        if self.tallies.len() <= number {
            self.tallies.resize(number + 1, Vec::new());
        }
        let page = &mut self.tallies[number];
        if page.is_empty() {
            page.resize(PAGE, 0);
        }
        let tally = &mut page[place];
        if *tally & LISTED == 0 {
            *tally |= LISTED;
            self.distinct.push(token);
        }
        *tally = update(*tally);
    }

    /// Takes `token` off the list if it is the last there and does not occur any more: the tokens of a
    /// window that is popped again, whose number has no end.
    fn unlist(&mut self, token: TokenId) {
        if self.distinct.last() == Some(&token) {
            let tally = &mut self.tallies[token.index() / PAGE][token.index() % PAGE];
            if *tally == LISTED {
                *tally = 0;
                self.distinct.pop();
            }
        }
    }

    /// Tokens that are listed.
    #[cfg(test)]
    pub(super) fn listed(&self) -> usize {
        self.distinct.len()
    }

    /// Tallies that there is memory for.
    #[cfg(test)]
    pub(super) fn tallies(&self) -> usize {
        self.tallies.iter().map(Vec::len).sum()
    }
}
