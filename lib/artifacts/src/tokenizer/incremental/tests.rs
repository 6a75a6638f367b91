use std::sync::{Arc, OnceLock};

use foretoken_speculation::TokenId;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{IncrementalDecoder, LONGEST_WAIT, Tokenizer};
use crate::tokenizer::tests::{folder, sentencepiece, tokenizer};

/// The tokenizer of `sentencepiece` with another decoder.
fn decoding_by(decoder: &Value) -> Arc<Tokenizer> {
    let mut json = sentencepiece();
    json["decoder"] = decoder.clone();
    Arc::new(Tokenizer::load(folder(&json, &json!({})).path()).unwrap())
}

/// The decoder of Llama 2 and Mistral.
fn llama() -> Value {
    sentencepiece()["decoder"].clone()
}

/// That of Gemma, which shows the first space too.
fn gemma() -> Value {
    let mut decoder = llama();
    decoder["decoders"].as_array_mut().unwrap().pop();
    decoder
}

/// One that takes back what it said of bytes, and that nothing is known of.
fn swapped() -> Value {
    let mut decoder = llama();
    decoder["decoders"].as_array_mut().unwrap().swap(0, 1);
    decoder
}

/// One that looks at neighbours and takes nothing back.
fn metaspace() -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[TokenId], skip_special: bool) -> Vec<String> {
    let decoder = IncrementalDecoder::new(Arc::clone(tokenizer), skip_special);
    streamed_by(decoder, ids)
}

fn streamed_by(mut decoder: IncrementalDecoder, ids: &[TokenId]) -> Vec<String> {
    let mut pieces = Vec::new();
    for &id in ids {
        let mut piece = String::new();
        decoder.push(id, &mut piece);
        pieces.push(piece);
    }
    let mut rest = String::new();
    decoder.finish(&mut rest);
    pieces.push(rest);
    pieces
}

/// Ids of tokens by their names.
fn named(tokenizer: &Tokenizer, names: &[&str]) -> Vec<TokenId> {
    let ids = names.iter().map(|name| tokenizer.token_id(name).unwrap());
    ids.collect()
}

#[test]
fn a_text_that_goes_on_keeps_the_space_between() {
    for decoder in [llama(), gemma(), metaspace()] {
        let tokenizer = decoding_by(&decoder);
        let all = tokenizer.encode("the cat the", false).unwrap();
        for cut in 0..all.len() {
            let (context, rest) = all.split_at(cut);
            let decoder = IncrementalDecoder::new(Arc::clone(&tokenizer), true).after(context);
            let mut text = tokenizer.decode(context, true);
            text += &streamed_by(decoder, rest).concat();
            assert_eq!(text, tokenizer.decode(&all, true), "{cut}");
        }
    }
}

#[test]
fn a_character_spread_over_tokens_comes_when_it_is_whole() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("a🦀b", false).unwrap();
    assert!(
        ids.len() > 3,
        "the crab must be spread for this test to mean anything"
    );
    let pieces = streamed(&tokenizer, &ids, true);
    assert_eq!(pieces.concat(), "a🦀b");
    assert!(
        pieces.iter().all(|piece| !piece.contains('\u{fffd}')),
        "{pieces:?}"
    );
    let cut = streamed(&tokenizer, &ids[..ids.len() - 2], true);
    assert_eq!(cut.concat(), tokenizer.decode(&ids[..ids.len() - 2], true));
    assert!(
        cut.last().unwrap().contains('\u{fffd}'),
        "the torn rest comes at the end: {cut:?}"
    );
}

#[test]
fn special_tokens_show_only_if_asked_for() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("<s>Hi</s>", false).unwrap();
    assert_eq!(streamed(&tokenizer, &ids, true).concat(), "Hi");
    assert_eq!(streamed(&tokenizer, &ids, false).concat(), "<s>Hi</s>");
    assert_eq!(tokenizer.decode(&ids, false), "<s>Hi</s>");
    assert!(tokenizer.is_special(TokenId(0)) && !tokenizer.is_special(TokenId(100)));
}

#[test]
fn tokenizers_that_look_at_neighbours_stream_the_same_text() {
    for decoder in [llama(), swapped()] {
        let tokenizer = decoding_by(&decoder);
        for text in ["ab ab", "a  b", "日本 é 🦀 ab", "b"] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, true), text);
            let pieces = streamed(&tokenizer, &ids, true);
            assert_eq!(pieces.concat(), text, "{pieces:?}");
            assert!(
                pieces.iter().all(|piece| !piece.contains('\u{fffd}')),
                "{pieces:?}"
            );
        }
    }
    let tokenizer = decoding_by(&llama());
    assert_eq!(
        tokenizer.token_bytes(tokenizer.token_id("<0x0A>").unwrap()),
        b"\n"
    );
    assert_eq!(
        tokenizer.token_bytes(tokenizer.token_id("▁ab").unwrap()),
        b" ab"
    );
}

#[test]
fn a_byte_that_is_no_text_takes_nothing_with_it() {
    for (bytes, text) in [
        (&["<0x0A>", "<0xF0>"][..], "\n\u{fffd} ab ab"),
        (&["<0xF0>", "<0x0A>"], "\u{fffd}\n ab ab"),
        (
            &["<0xF0>", "<0x9F>", "<0xF0>", "<0x80>"],
            "\u{fffd}\u{fffd}\u{fffd} ab ab",
        ),
        (&["<0x41>", "<0x42>", "<0xC3>"], "AB\u{fffd} ab ab"),
    ] {
        for decoder in [llama(), gemma()] {
            let tokenizer = decoding_by(&decoder);
            let ids = [named(&tokenizer, bytes), named(&tokenizer, &["▁ab", "▁ab"])].concat();
            let pieces = streamed(&tokenizer, &ids, true);
            assert_eq!(pieces.concat(), text, "{pieces:?}");
            assert_eq!(tokenizer.decode(&ids, true), text);
            assert_eq!(pieces[bytes.len() + 1], " ab", "as soon as it can be");
        }
    }
}

#[test]
fn a_decoder_that_takes_back_what_was_shown_loses_nothing_that_follows() {
    let tokenizer = decoding_by(&swapped());
    let names = ["<0x0A>", "<0xF0>", "▁ab", "<0xF0>", "<0x0A>", "▁ab", "▁a"];
    let ids = named(&tokenizer, &names);
    let decoded = tokenizer.decode(&ids, true);
    assert_eq!(decoded, "\u{fffd}\u{fffd} ab\u{fffd}\u{fffd} ab a");
    let text = streamed(&tokenizer, &ids, true).concat();
    assert_eq!(text, format!("\n{decoded}"), "what was shown stays");
}

#[test]
fn only_the_first_space_of_a_text_is_hidden_and_that_of_the_next_text_too() {
    for (decoder, hidden) in [(llama(), 1), (gemma(), 0)] {
        let tokenizer = decoding_by(&decoder);
        let mut decoder = IncrementalDecoder::new(Arc::clone(&tokenizer), true);
        for (names, whole) in [
            (&["▁", "▁a"][..], "  a"),
            (&["</s>", "<0x20>", "▁", "a"], "  a"),
            (&["▁", "<0xF0>"], " \u{fffd}"),
        ] {
            let ids = named(&tokenizer, names);
            let mut text = String::new();
            for &id in &ids {
                decoder.push(id, &mut text);
            }
            decoder.finish(&mut text);
            assert_eq!(text, whole[hidden..]);
            assert_eq!(tokenizer.decode(&ids, true), text);
        }
    }
}

#[test]
fn tokens_without_text_do_not_pile_up() {
    for decoder in [llama(), metaspace(), swapped()] {
        let tokenizer = decoding_by(&decoder);
        let of = |name| tokenizer.token_id(name).unwrap();
        let mut decoder = IncrementalDecoder::new(Arc::clone(&tokenizer), true);
        let mut text = String::new();
        decoder.push(of("▁ab"), &mut text);
        // Skipped, outside the vocabulary, and part of no character.
        for id in [of("</s>"), TokenId(9999), of("<0x9F>")] {
            for _ in 0..1000 {
                decoder.push(id, &mut text);
                assert!(decoder.window.len() <= 2 * LONGEST_WAIT);
                assert!(decoder.pending.len() < LONGEST_WAIT);
            }
        }
        decoder.push(of("▁ab"), &mut text);
        decoder.finish(&mut text);
        assert!(text.starts_with("ab") && text.ends_with(" ab"));
    }
}

/// Tokens of `sentencepiece`: any, and characters and parts of them as bytes.
fn spelled() -> impl Strategy<Value = Vec<TokenId>> {
    let bytes = |text: &'static [u8]| {
        let ids = text.iter().map(|&byte| 3 + u32::from(byte));
        Just(ids.collect::<Vec<u32>>())
    };
    let part = prop_oneof![
        3 => (0_u32..270).prop_map(|id| vec![id]),
        3 => (259_u32..266).prop_map(|id| vec![id]),
        1 => bytes(b"\n"),
        1 => bytes(b" "),
        1 => bytes("é".as_bytes()),
        1 => bytes("日".as_bytes()),
        1 => bytes("🦀".as_bytes()),
        1 => bytes(&[0xF0]),
        1 => bytes(&[0xE6, 0x97]),
    ];
    let parts = prop::collection::vec(part, 0..24);
    parts.prop_map(|parts| parts.concat().into_iter().map(TokenId).collect())
}

/// Loading takes longer than a case.
fn loaded() -> &'static [Arc<Tokenizer>; 4] {
    static ONCE: OnceLock<[Arc<Tokenizer>; 4]> = OnceLock::new();
    ONCE.get_or_init(|| {
        let [a, b, c] = [llama(), gemma(), metaspace()].map(|decoder| decoding_by(&decoder));
        [tokenizer(), a, b, c]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn streamed_text_equals_decoding_at_once(
        ids in prop::collection::vec(0_u32..4200, 0..60),
        spelled in spelled(),
        skip in any::<bool>(),
    ) {
        let ids: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        let [shipped, others @ ..] = loaded();
        let all = others.iter().map(|other| (other, &spelled));
        for (tokenizer, ids) in std::iter::once((shipped, &ids)).chain(all) {
            let text = tokenizer.decode(ids, skip);
            prop_assert_eq!(streamed(tokenizer, ids, skip).concat(), text.as_str());
            // Of bytes that are text the tokenizer's own decoder says the same.
            let own = tokenizer.decode_whole(ids, skip);
            if !text.contains('\u{fffd}') || std::ptr::eq(tokenizer, shipped) {
                prop_assert_eq!(&own, &text);
            }
            let kept = |text: &str| text.replace(|c: char| c == '\u{fffd}' || c.is_ascii(), "");
            let shown = kept(&own);
            prop_assert!(kept(&text).len() >= shown.len(), "{} of {}", text, own);
        }
    }
}
