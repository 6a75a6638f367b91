//! What each token stands for, in bytes, worked out once.
//!
//! Byte-level BPE (GPT-2 onwards) writes every byte as a printable character, `SentencePiece` with
//! byte fallback (Llama 2, Mistral, Gemma) those that have no token as `<0xNN>`. Joining the bytes
//! of the tokens and decoding UTF-8 gives the text of either, so it needs no call into the decoder.
//! The one of the crate is asked for no text of the second kind, since for one byte that is no UTF-8
//! it gives up all that stand beside it, those that were shown already too. Other decoders look at
//! neighbours; for them the bytes serve for display only.

use foretoken_speculation::TokenId;
use serde_json::{Value, json};
use tokenizers::tokenizer::Tokenizer as HfTokenizer;

/// How a vocabulary writes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Each as a printable character.
    ByteLevel,
    /// `▁` is a space and `<0xNN>` a byte. Of a text's first spaces, so many are not shown.
    SentencePiece { hidden: usize },
    /// In a way that only the tokenizer's decoder knows.
    Other,
}

impl Spelling {
    /// What the tokenizer's decoder undoes.
    fn of(tokenizer: &HfTokenizer) -> Self {
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
        if decoder["type"] == "ByteLevel" {
            return Self::ByteLevel;
        }
        let parts = decoder["decoders"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let joins = [
            json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        let hidden = match parts.strip_prefix(joins.as_slice()) {
            Some([]) => Some(0),
            Some([strip]) if strip["type"] == "Strip" && strip["content"] == " " => {
                let start = strip["start"].as_u64().filter(|_| strip["stop"] == 0);
                start.map(|start| start as usize)
            }
            _ => None,
        };
        hidden.map_or(Self::Other, |hidden| Self::SentencePiece { hidden })
    }
}

/// Highest id that a token may have; models have a hundredth of so many.
const HIGHEST: u32 = (1 << 24) - 1;

/// Bytes of all tokens, back to back.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    special: Vec<bool>,
    /// How many there are without those that were added.
    own: usize,
    spelling: Spelling,
}

impl Pieces {
    /// # Errors
    /// If an id is beyond all vocabularies: all up to it would have to be kept.
    pub(super) fn new(tokenizer: &HfTokenizer) -> Result<Self, String> {
        let spelling = Spelling::of(tokenizer);
        let added = tokenizer.get_added_tokens_decoder();
        let highest = tokenizer.get_vocab(true).into_iter();
        let highest = highest.max_by_key(|(_, id)| *id);
        if let Some((token, id)) = highest.as_ref().filter(|(_, id)| *id > HIGHEST) {
            return Err(format!(
                "the id of {token:?} is {id}, but may be {HIGHEST} at most"
            ));
        }
        let len = highest.map_or(0, |(_, id)| id + 1);
        let unprintable = byte_characters();
        let own = tokenizer.get_vocab(false).into_values().max();
        let mut pieces = Self {
            own: own.map_or(0, |id| id as usize + 1),
            bytes: Vec::new(),
            ends: Vec::with_capacity(len as usize),
            special: vec![false; len as usize],
            spelling,
        };
        for id in 0..len {
            if let Some(token) = tokenizer.id_to_token(id) {
                if spelling == Spelling::ByteLevel {
                    push_byte_level(&mut pieces.bytes, &token, &unprintable);
                } else {
                    push_display(&mut pieces.bytes, &token);
                }
            }
            pieces.ends.push(pieces.bytes.len() as u32);
            pieces.special[id as usize] = added.get(&id).is_some_and(|token| token.special);
        }
        Ok(pieces)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn own(&self) -> usize {
        self.own
    }

    /// Whether joined pieces are the text; if so, how many of the spaces that it begins with are not
    /// shown.
    pub(super) fn hidden(&self) -> Option<usize> {
        match self.spelling {
            Spelling::ByteLevel => Some(0),
            Spelling::SentencePiece { hidden } => Some(hidden),
            Spelling::Other => None,
        }
    }

    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let i = id.index();
        let Some(&end) = self.ends.get(i) else {
            return &[];
        };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub(super) fn is_special(&self, id: TokenId) -> bool {
        self.special.get(id.index()).copied().unwrap_or(false)
    }

    /// The text of tokens, if pieces can simply be joined.
    pub(super) fn join(&self, ids: &[TokenId], skip_special: bool) -> Option<String> {
        let hidden = self.hidden()?;
        let shown = ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.bytes(id)).copied().collect();
        let spaces = bytes.iter().take(hidden).take_while(|&&byte| byte == b' ');
        let text = &bytes[spaces.count()..];
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// The byte that each of U+0000..U+0143 stands for in byte-level BPE: printable Latin-1
/// characters stand for themselves, the other bytes, in order, for U+0100 and on (Radford et al.
/// 2019, section 2.2).
fn byte_characters() -> [Option<u8>; 0x144] {
    let mut table = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        if printable {
            table[usize::from(byte)] = Some(byte);
        } else {
            table[next] = Some(byte);
            next += 1;
        }
    }
    table
}

fn push_byte_level(out: &mut Vec<u8>, token: &str, table: &[Option<u8>]) {
    let start = out.len();
    for c in token.chars() {
        let Some(byte) = table.get(c as usize).copied().flatten() else {
            // An added token with characters outside the alphabet is plain text.
            out.truncate(start);
            out.extend_from_slice(token.as_bytes());
            return;
        };
        out.push(byte);
    }
}

/// Bytes of a token of a `SentencePiece` vocabulary: `▁` is a space and `<0xNN>` a byte.
fn push_display(out: &mut Vec<u8>, token: &str) {
    let byte = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|hex| hex.len() == 2)
        .and_then(|hex| u8::from_str_radix(hex, 16).ok());
    match byte {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(token.replace('\u{2581}', " ").as_bytes()),
    }
}

/// Digest of what ids mean: vocabulary by id, added tokens, merges in order.
pub(super) fn digest(tokenizer: &HfTokenizer, raw: &Value) -> String {
    let mut hash = blake3::Hasher::new();
    let mut field = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    let mut vocabulary: Vec<(u32, String)> = tokenizer
        .get_vocab(true)
        .into_iter()
        .map(|(token, id)| (id, token))
        .collect();
    vocabulary.sort_unstable();
    field("vocabulary");
    for (id, token) in &vocabulary {
        field(&id.to_string());
        field(token);
    }
    let mut added: Vec<_> = tokenizer.get_added_tokens_decoder().into_iter().collect();
    added.sort_unstable_by_key(|(id, _)| *id);
    field("added");
    for (id, token) in &added {
        field(&id.to_string());
        field(if token.special { "special" } else { "text" });
    }
    field("merges");
    let merges = raw.pointer("/model/merges").and_then(Value::as_array);
    for merge in merges.into_iter().flatten() {
        match merge {
            // Two spellings of one thing: "a b", and since 2024 ["a", "b"].
            Value::String(pair) => field(pair),
            Value::Array(pair) => {
                let parts: Vec<&str> = pair.iter().filter_map(|p| p.as_str()).collect();
                field(&parts.join(" "));
            }
            _ => {}
        }
    }
    hash.finalize().to_hex().to_string()
}
