//! Text of a stream of tokens, as early as it is certain.

use std::sync::Arc;

use foretoken_speculation::TokenId;

use super::Tokenizer;

/// Tokens after which a text that still ends in an incomplete character is taken as it is: no
/// character has more bytes than this.
const LONGEST_WAIT: usize = 8;

/// Turns tokens into text one by one. What it returns, joined (with [`Self::finish`] at the end),
/// equals decoding all tokens at once; a character whose bytes are spread over tokens is held
/// back until it is whole.
pub struct IncrementalDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// Byte-level: bytes of an unfinished character.
    pending: Vec<u8>,
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
            tokenizer,
            skip_special,
            pending: Vec::new(),
            window: Vec::new(),
            read: 0,
            shown: String::new(),
        }
    }

    /// Adds a token and appends to `out` the text that is now certain.
    pub fn push(&mut self, token: TokenId, out: &mut String) {
        if self.tokenizer.pieces.is_exact() {
            if !(self.skip_special && self.tokenizer.is_special(token)) {
                self.pending
                    .extend_from_slice(self.tokenizer.pieces.bytes(token));
                drain_utf8(&mut self.pending, out);
            }
            return;
        }
        self.window.push(token);
        let text = self.tokenizer.decode_whole(&self.window, self.skip_special);
        let waiting = self.window.len() - self.read;
        let unfinished = text.ends_with('\u{fffd}') && waiting < LONGEST_WAIT;
        if unfinished {
            return;
        }
        if let Some(new) = text
            .strip_prefix(self.shown.as_str())
            .filter(|new| !new.is_empty())
        {
            out.push_str(new);
            // Keep the tokens just shown as context for the next ones, and forget older ones.
            self.window.drain(..self.read);
            self.read = self.window.len();
            self.shown = self.tokenizer.decode_whole(&self.window, self.skip_special);
        }
    }

    /// Ends the text and appends what was held back.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&String::from_utf8_lossy(&self.pending));
        self.pending.clear();
        let text = self.tokenizer.decode_whole(&self.window, self.skip_special);
        if let Some(new) = text.strip_prefix(self.shown.as_str()) {
            out.push_str(new);
        }
        self.window.clear();
        self.shown.clear();
        self.read = 0;
    }
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
