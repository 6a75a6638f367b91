//! Text of a stream of tokens, as early as it is certain.

use std::sync::Arc;

use foretoken_speculation::TokenId;

use super::Tokenizer;

/// Tokens after which a text that still ends in an incomplete character, or has nothing new, is taken
/// as it is: no character has more bytes than this.
const LONGEST_WAIT: usize = 8;

/// Turns tokens into text one by one. What it returns, joined (with [`Self::finish`] at the end),
/// equals [`Tokenizer::decode`] of all tokens at once; a character whose bytes are spread over tokens
/// is held back until it is whole. A token costs the same however many came before it.
///
/// Of tokenizers whose decoder is asked for text because nothing else knows it, that is so while the
/// decoder takes nothing back. Where it does, what was shown stays, and what it has instead follows:
/// nothing is left out.
pub struct IncrementalDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// Joined pieces: bytes of an unfinished character.
    pending: Vec<u8>,
    /// Joined pieces: how many spaces that the text may still begin with are not shown.
    hidden: usize,
    /// Other decoders: recent tokens. `..read` have been emitted, and give the decoder the
    /// context that it wants.
    window: Vec<TokenId>,
    read: usize,
    /// Decoded text of `window[..read]`.
    shown: String,
}

impl IncrementalDecoder {
    /// Begins an empty text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self {
            hidden: tokenizer.pieces.hidden().unwrap_or(0),
            tokenizer,
            skip_special,
            pending: Vec::new(),
            window: Vec::new(),
            read: 0,
            shown: String::new(),
        }
    }

    /// The same for a text that goes on after these tokens: a space that is not shown where a text
    /// begins is shown then.
    #[must_use]
    pub fn after(mut self, context: &[TokenId]) -> Self {
        let pieces = &self.tokenizer.pieces;
        let skipped = |token: TokenId| self.skip_special && pieces.is_special(token);
        let shown = context.iter().copied().filter(|&token| !skipped(token));
        let last: Vec<_> = shown.rev().take(LONGEST_WAIT).collect();
        if last.is_empty() {
            return self;
        }
        if pieces.hidden().is_some() {
            self.hidden = 0;
            return self;
        }
        self.window = last.into_iter().rev().collect();
        self.read = self.window.len();
        self.shown = self.tokenizer.decode_whole(&self.window, self.skip_special);
        self
    }

    /// Adds a token and appends to `out` the text that is now certain.
    pub fn push(&mut self, token: TokenId, out: &mut String) {
        let pieces = &self.tokenizer.pieces;
        if self.skip_special && pieces.is_special(token) {
            return;
        }
        if pieces.hidden().is_none() {
            self.push_to_window(token, out);
            return;
        }
        self.pending.extend_from_slice(pieces.bytes(token));
        let from = out.len();
        drain_utf8(&mut self.pending, out);
        while self.hidden > 0 && out.len() > from {
            if out[from..].starts_with(' ') {
                out.remove(from);
                self.hidden -= 1;
            } else {
                self.hidden = 0;
            }
        }
    }

    fn push_to_window(&mut self, token: TokenId, out: &mut String) {
        self.window.push(token);
        let text = self.tokenizer.decode_whole(&self.window, self.skip_special);
        let new = beyond(&self.shown, &text);
        let unfinished = new.is_empty() || new.ends_with('\u{fffd}');
        if unfinished && self.window.len() - self.read < LONGEST_WAIT {
            return;
        }
        out.push_str(new);
        // Keep the tokens just shown as context for the next ones, and forget older ones.
        self.window.drain(..self.read);
        self.read = self.window.len();
        self.shown = self.tokenizer.decode_whole(&self.window, self.skip_special);
    }

    /// Ends the text and appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
        self.hidden = self.tokenizer.pieces.hidden().unwrap_or(0);
        let text = self.tokenizer.decode_whole(&self.window, self.skip_special);
        out.push_str(beyond(&self.shown, &text));
        self.window.clear();
        self.shown.clear();
        self.read = 0;
    }
}

/// What `text` has after what it has in common with `shown`.
fn beyond<'a>(shown: &str, text: &'a str) -> &'a str {
    let pairs = shown.chars().zip(text.chars());
    let common = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8());
    &text[common.sum()..]
}

/// Moves whole characters from `pending` to `out`, each invalid sequence as one U+FFFD just as
/// `String::from_utf8_lossy` would, and leaves an unfinished character.
fn drain_utf8(pending: &mut Vec<u8>, out: &mut String) {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&pending[done..]) {
            Ok(text) => {
                out.push_str(text);
                done = pending.len();
                break;
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&pending[done..valid]));
                done = valid;
                let Some(bad) = error.error_len() else { break };
                out.push('\u{fffd}');
                done += bad;
            }
        }
    }
    pending.drain(..done);
}

#[cfg(test)]
mod tests;
