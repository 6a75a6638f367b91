//! Which text is whose: the text of an answer beside the bytes of its tokens.
//!
//! They differ in places. A character may be spread over tokens and is shown with the last of them,
//! text that may become a stop string is held back, and special tokens have bytes that nobody is shown.

use std::collections::VecDeque;

use serde_json::Value;

/// Text that was accepted, or was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The text.
    pub(super) text: String,
    /// Whether a draft had proposed it.
    pub(super) is_accepted: bool,
}

/// Tokens whose text is still to be shown.
#[derive(Debug, Default)]
pub(super) struct Spelling {
    tokens: VecDeque<Token>,
}

/// What is still to be shown of a token.
#[derive(Debug)]
struct Token {
    bytes: Vec<u8>,
    is_accepted: bool,
}

impl Spelling {
    /// A token that the server tells of: its bytes will come as text, unless it is a special one.
    pub(super) fn expect(&mut self, entry: &Value, is_accepted: bool) {
        let bytes = entry["bytes"].as_array();
        let bytes = bytes.map(|bytes| bytes.iter().filter_map(|byte| Some(byte.as_u64()? as u8)));
        // Other servers may tell no bytes.
        let text = || entry["token"].as_str().unwrap_or_default().into();
        let bytes = bytes.map_or_else(text, Iterator::collect);
        self.tokens.push_back(Token { bytes, is_accepted });
    }

    /// Divides text by whether it was accepted: a character if all its tokens were, and what no token
    /// has was not.
    pub(super) fn show(&mut self, text: &str) -> Vec<Piece> {
        let is_accepted = self.attribute(text.as_bytes());
        let mut pieces: Vec<Piece> = Vec::new();
        for (start, character) in text.char_indices() {
            let bytes = start..start + character.len_utf8();
            let is_accepted = is_accepted[bytes].iter().all(|is_accepted| *is_accepted);
            match pieces.last_mut() {
                Some(last) if last.is_accepted == is_accepted => last.text.push(character),
                _ => pieces.push(Piece {
                    text: character.into(),
                    is_accepted,
                }),
            }
        }
        pieces
    }

    /// Whether each byte was accepted. Tokens that are shown no other text than this are done with.
    fn attribute(&mut self, text: &[u8]) -> Vec<bool> {
        let mut is_accepted = Vec::with_capacity(text.len());
        while is_accepted.len() < text.len() {
            let rest = &text[is_accepted.len()..];
            let Some(token) = self.tokens.front_mut() else {
                is_accepted.resize(text.len(), false);
                break;
            };
            let shown = token.bytes.len().min(rest.len());
            if token.bytes[..shown] == rest[..shown] {
                is_accepted.resize(is_accepted.len() + shown, token.is_accepted);
                token.bytes.drain(..shown);
                if !token.bytes.is_empty() {
                    // The rest of it is held back.
                    break;
                }
            }
            self.tokens.pop_front();
        }
        is_accepted
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expecting(tokens: &[(&[u8], bool)]) -> Spelling {
        let mut spelling = Spelling::default();
        for (bytes, is_accepted) in tokens {
            let token = String::from_utf8_lossy(bytes);
            spelling.expect(&json!({"token": token, "bytes": bytes}), *is_accepted);
        }
        spelling
    }

    fn piece(text: &str, is_accepted: bool) -> Piece {
        Piece {
            text: text.into(),
            is_accepted,
        }
    }

    #[test]
    fn a_character_over_several_tokens_is_accepted_if_all_of_them_are() {
        let split: &[(&[u8], bool)] = &[(b"a\xc3", true), (b"\xbc", true), (b"\xe2\x82", true)];
        let mut spelling = expecting(&[split, &[(b"\xacb", false)]].concat());
        let parts = [piece("a\u{fc}", true), piece("\u{20ac}b", false)];
        assert_eq!(spelling.show("a\u{fc}\u{20ac}b"), parts);
    }

    #[test]
    fn special_tokens_are_passed_over() {
        let mut spelling = expecting(&[
            (b"a", true),
            (b"<x>", true),
            (b"b", false),
            (b"</s>", false),
        ]);
        assert_eq!(spelling.show("ab"), [piece("a", true), piece("b", false)]);
    }

    #[test]
    fn text_that_was_held_back_comes_with_a_later_round() {
        let mut spelling = expecting(&[(b"a b", true), (b" c", false)]);
        assert_eq!(spelling.show("a"), [piece("a", true)]);
        spelling.expect(&json!({"token": " d"}), true);
        let rest = [piece(" b", true), piece(" c", false), piece(" d", true)];
        assert_eq!(spelling.show(" b c d"), rest);
    }

    #[test]
    fn text_that_no_token_has_was_not_accepted() {
        let mut spelling = expecting(&[(b"a", true)]);
        assert_eq!(spelling.show("\u{fc}"), [piece("\u{fc}", false)]);
        assert_eq!(spelling.show(""), []);
    }
}
