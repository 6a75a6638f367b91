//! Stop strings in streamed text.
//!
//! One pass over the bytes with an Aho-Corasick automaton (Aho, Corasick 1975), so a thousand
//! strings cost what one does. Where text is cut does not depend on how it came in pieces: the
//! first byte at which any stop string is complete decides, and of those complete there the
//! longest.

use std::{collections::VecDeque, ops::Range, sync::Arc};

/// Stop strings, prepared for matching: a trie with failure links, in 17 bytes for each of theirs.
/// States are numbered breadth first and siblings by their bytes, so those after a state are
/// neighbours in order.
#[derive(Clone, Debug)]
pub struct StopStrings {
    /// The byte that leads to each state; the root has one that means nothing.
    bytes: Vec<u8>,
    /// The states after state s are `after[s]..after[s + 1]`.
    after: Vec<u32>,
    /// The state of the longest proper suffix that some string begins with.
    fail: Vec<u32>,
    /// Bytes since the root: how much of some stop string the text ends with.
    depth: Vec<u32>,
    /// The longest stop string that is complete here, or [`NONE`].
    found: Vec<u32>,
    /// Length of each string.
    lengths: Vec<u32>,
}

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

impl StopStrings {
    /// Prepares the strings. Empty ones match nothing.
    pub fn new<S: AsRef<str>>(strings: &[S]) -> Self {
        let bytes = strings.iter().map(|string| string.as_ref().as_bytes());
        let lengths: Vec<u32> = bytes.clone().map(|bytes| bytes.len() as u32).collect();
        let mut sorted: Vec<(&[u8], u32)> = bytes.zip(0..).filter(|(b, _)| !b.is_empty()).collect();
        sorted.sort_unstable();
        let most = 1 + sorted.iter().map(|(bytes, _)| bytes.len()).sum::<usize>();
        let mut this = Self {
            bytes: Vec::with_capacity(most),
            after: Vec::with_capacity(most + 1),
            fail: Vec::new(),
            depth: Vec::with_capacity(most),
            found: Vec::with_capacity(most),
            lengths,
        };
        this.grow(&sorted);
        this.link();
        this
    }

    /// Makes the states, of strings in order.
    fn grow(&mut self, sorted: &[(&[u8], u32)]) {
        // The strings that go through each state whose followers are to be made.
        let mut through = VecDeque::from([(sorted, 0)]);
        self.bytes.push(0);
        while let Some((mut strings, depth)) = through.pop_front() {
            let ends = strings.first().filter(|(bytes, _)| bytes.len() == depth);
            self.found.push(ends.map_or(NONE, |&(_, index)| index));
            self.depth.push(depth as u32);
            self.after.push(self.bytes.len() as u32);
            strings = &strings[strings.partition_point(|(bytes, _)| bytes.len() == depth)..];
            while let Some((bytes, _)) = strings.first() {
                let byte = bytes[depth];
                let same = strings.partition_point(|(bytes, _)| bytes[depth] == byte);
                self.bytes.push(byte);
                through.push_back((&strings[..same], depth + 1));
                strings = &strings[same..];
            }
        }
        self.after.push(self.bytes.len() as u32);
    }

    /// Sets the failure links, breadth first, so that a state's suffixes are done before it.
    fn link(&mut self) {
        self.fail = vec![ROOT; self.bytes.len()];
        for at in 0..self.bytes.len() {
            for child in self.children(at as u32) {
                let fail = match at as u32 {
                    ROOT => ROOT,
                    at => self.step(self.fail[at as usize], self.bytes[child]),
                };
                self.fail[child] = fail;
                // The own string is longer than any suffix's.
                if self.found[child] == NONE {
                    self.found[child] = self.found[fail as usize];
                }
            }
        }
    }

    fn children(&self, at: u32) -> Range<usize> {
        let at = at as usize;
        self.after[at] as usize..self.after[at + 1] as usize
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            let children = self.children(at);
            match self.bytes[children.clone()].binary_search(&byte) {
                Ok(i) => return (children.start + i) as u32,
                Err(_) if at == ROOT => return ROOT,
                Err(_) => at = self.fail[at as usize],
            }
        }
    }

    /// Length and index of the longest stop string that is complete in a state.
    fn found(&self, at: u32) -> Option<(usize, usize)> {
        let index = Some(self.found[at as usize]).filter(|&index| index != NONE)? as usize;
        Some((self.lengths[index] as usize, index))
    }

    /// Whether there is no string to look for.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 1
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
            if let Some((len, index)) = self.strings.found(self.at) {
                self.held.push_str(&piece[..=i]);
                let keep = if self.include {
                    self.held.len()
                } else {
                    self.held.len() - len
                };
                out.push_str(&self.held[..keep]);
                self.held.clear();
                self.at = ROOT;
                return Some(index);
            }
        }
        self.show(piece, out);
        None
    }

    /// The same of a piece in which no stop string may end: those that are complete in it do not
    /// count, and one that only begins in it may be complete later.
    pub fn pass(&mut self, piece: &str, out: &mut String) {
        for byte in piece.bytes() {
            self.at = self.strings.step(self.at, byte);
        }
        self.show(piece, out);
    }

    /// Takes over a piece that has been read, and appends to `out` what is no beginning of a stop string,
    /// nor one that has just been passed.
    fn show(&mut self, piece: &str, out: &mut String) {
        self.held.push_str(piece);
        let depth = self.strings.depth[self.at as usize] as usize;
        // A stop string begins with a character, so what is before it ends with one.
        let shown = self.held.len() - depth;
        out.push_str(&self.held[..shown]);
        self.held.drain(..shown);
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
