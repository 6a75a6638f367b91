//! Stop strings in streamed text.
//!
//! One pass over the bytes with an Aho-Corasick automaton (Aho, Corasick 1975), so a thousand
//! strings cost what one does. Where text is cut does not depend on how it came in pieces: the
//! first byte at which any stop string is complete decides, and of those complete there the
//! longest.

use std::{collections::VecDeque, sync::Arc};

/// A state of the automaton.
#[derive(Clone, Debug, Default)]
struct State {
    /// By ascending byte.
    next: Vec<(u8, u32)>,
    /// The state of the longest proper suffix that some string begins with.
    fail: u32,
    /// Bytes since the root: how much of some stop string the text ends with.
    depth: u32,
    /// Length and index of the longest stop string that is complete here.
    found: Option<(u32, u32)>,
}

/// Stop strings, prepared for matching.
#[derive(Clone, Debug)]
pub struct StopStrings {
    states: Vec<State>,
}

const ROOT: u32 = 0;

impl StopStrings {
    /// Prepares the strings. Empty ones match nothing.
    pub fn new<S: AsRef<str>>(strings: &[S]) -> Self {
        let mut states = vec![State::default()];
        for (index, string) in strings.iter().enumerate() {
            let bytes = string.as_ref().as_bytes();
            let mut at = ROOT as usize;
            for (depth, &byte) in bytes.iter().enumerate() {
                at = match states[at].next.binary_search_by_key(&byte, |&(b, _)| b) {
                    Ok(i) => states[at].next[i].1 as usize,
                    Err(i) => {
                        let new = states.len();
                        states[at].next.insert(i, (byte, new as u32));
                        states.push(State {
                            depth: depth as u32 + 1,
                            ..State::default()
                        });
                        new
                    }
                };
            }
            if at != ROOT as usize && states[at].found.is_none() {
                states[at].found = Some((bytes.len() as u32, index as u32));
            }
        }
        let mut this = Self { states };
        this.link();
        this
    }

    /// Sets the failure links, breadth first, so that a state's suffixes are done before it.
    fn link(&mut self) {
        let mut queue: VecDeque<u32> = self.states[ROOT as usize]
            .next
            .iter()
            .map(|n| n.1)
            .collect();
        while let Some(at) = queue.pop_front() {
            for (byte, child) in self.states[at as usize].next.clone() {
                let fail = self.step(self.states[at as usize].fail, byte);
                let inherited = self.states[fail as usize].found;
                let state = &mut self.states[child as usize];
                state.fail = fail;
                // The own string is longer than any suffix's.
                state.found = state.found.or(inherited);
                queue.push_back(child);
            }
        }
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            let state = &self.states[at as usize];
            match state.next.binary_search_by_key(&byte, |&(b, _)| b) {
                Ok(i) => return state.next[i].1,
                Err(_) if at == ROOT => return ROOT,
                Err(_) => at = state.fail,
            }
        }
    }

    /// Whether there is no string to look for.
    pub fn is_empty(&self) -> bool {
        self.states.len() == 1
    }
}

/// Looks for stop strings in a text that comes in pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    strings: Arc<StopStrings>,
    include: bool,
    at: u32,
    /// Text that may be the beginning of a stop string.
    held: String,
}

impl StopMatcher {
    /// Begins an empty text. With `include`, the stop string itself is part of the output.
    pub fn new(strings: Arc<StopStrings>, include: bool) -> Self {
        Self {
            strings,
            include,
            at: ROOT,
            held: String::new(),
        }
    }

    /// Adds a piece and appends to `out` the text that may be shown. `Some(i)` if stop string
    /// `i` is complete: nothing may be shown after it.
    pub fn push(&mut self, piece: &str, out: &mut String) -> Option<usize> {
        if self.strings.is_empty() {
            out.push_str(piece);
            return None;
        }
        for (i, byte) in piece.bytes().enumerate() {
            self.at = self.strings.step(self.at, byte);
            if let Some((len, index)) = self.strings.states[self.at as usize].found {
                self.held.push_str(&piece[..=i]);
                let keep = if self.include {
                    self.held.len()
                } else {
                    self.held.len() - len as usize
                };
                out.push_str(&self.held[..keep]);
                self.held.clear();
                self.at = ROOT;
                return Some(index as usize);
            }
        }
        self.held.push_str(piece);
        let depth = self.strings.states[self.at as usize].depth as usize;
        // A stop string begins with a character, so what is before it ends with one.
        let shown = self.held.len() - depth;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
        None
    }

    /// Ends the text and appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.at = ROOT;
    }
}

#[cfg(test)]
mod tests;
