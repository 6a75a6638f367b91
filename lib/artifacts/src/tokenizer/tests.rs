use std::{fs, path::PathBuf, sync::Arc};

use serde_json::{Value, json};

use super::*;

fn shipped() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/target")
}

pub(super) fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::load(&shipped()).unwrap())
}

/// A folder with a tokenizer and its configuration.
pub(super) fn folder(tokenizer: &Value, config: &Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    dir
}

/// A vocabulary as `SentencePiece` models have it: `▁` for spaces, bytes as a last resort.
pub(super) fn sentencepiece() -> Value {
    let mut vocab = serde_json::Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    for byte in 0..=255_u8 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(vocab.len()));
    }
    for token in ["▁", "a", "b", "▁a", "ab", "▁ab", "é"] {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": ["▁ a", "a b", "▁a b"]}
    })
}

#[test]
fn the_shipped_tokenizer_reads_back_what_it_writes() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.vocab_size(), 4096);
    for text in [
        "Question: 12 + 30?\nAnswer:",
        "naïve — 日本語 🦀",
        "",
        "  two  spaces ",
    ] {
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
}

#[test]
fn a_file_that_was_cut_is_told_where_it_ends() {
    let folder = folder(&sentencepiece(), &json!({}));
    let path = folder.path().join("tokenizer.json");
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, &whole[..500]).unwrap();
    let refused = Tokenizer::load(folder.path()).err().unwrap().to_string();
    assert!(refused.contains("is not a valid tokenizer"), "{refused}");
    assert!(refused.contains("line 1 column 500"), "{refused}");
}

#[test]
fn a_beginning_token_is_put_first_exactly_once() {
    let tokenizer = tokenizer();
    let bos = TokenId(0);
    let plain = tokenizer.encode("Hello", false).unwrap();
    assert_ne!(plain.first(), Some(&bos));
    for text in ["Hello", "<s>Hello"] {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids[0], bos, "{text}");
        assert_eq!(ids[1..], plain, "{text}");
    }
}

#[test]
fn a_beginning_token_that_only_the_configuration_asks_for_is_added() {
    let mut json: Value =
        serde_json::from_slice(&fs::read(shipped().join("tokenizer.json")).unwrap()).unwrap();
    json["post_processor"] = Value::Null;
    for (add, config) in [
        (true, json!({"add_bos_token": true, "bos_token": "<s>"})),
        (
            true,
            json!({"add_bos_token": true, "bos_token": {"content": "<s>"}}),
        ),
        (false, json!({"add_bos_token": false, "bos_token": "<s>"})),
        (false, json!({"bos_token": "<s>"})),
    ] {
        let dir = folder(&json, &config);
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let ids = tokenizer.encode("Hello", true).unwrap();
        assert_eq!(ids[0] == TokenId(0), add, "{config}");
        assert_ne!(
            tokenizer.encode("Hello", false).unwrap()[0],
            TokenId(0),
            "{config}"
        );
    }
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Tokenizer::load(dir.path()).err().unwrap().to_string();
    assert!(missing.contains("tokenizer.json is missing"), "{missing}");
    fs::write(dir.path().join("tokenizer.json"), "{\"version\": ").unwrap();
    let broken = Tokenizer::load(dir.path()).err().unwrap().to_string();
    assert!(
        broken.contains("tokenizer.json is not a valid tokenizer"),
        "{broken}"
    );
    let model = json!({"type": "WordLevel", "unk_token": "a", "vocab": {"a": 4_000_000_000_u32}});
    let absurd = json!({"added_tokens": [], "model": model}).to_string();
    fs::write(dir.path().join("tokenizer.json"), absurd).unwrap();
    let absurd = Tokenizer::load(dir.path()).err().unwrap().to_string();
    assert!(
        absurd.contains(r#"the id of "a" is 4000000000, but may be 16777215 at most"#),
        "{absurd}"
    );
}

#[test]
fn a_tokenizer_of_another_model_is_refused_and_added_tokens_are_not() {
    let mut tokenizer = sentencepiece();
    let tokens = 266;
    let load = |tokenizer: &Value, vocabulary: u32| {
        let dir = folder(tokenizer, &json!({}));
        let config = json!({"vocab_size": vocabulary}).to_string();
        fs::write(dir.path().join("config.json"), config).unwrap();
        Tokenizer::load(dir.path()).map(|tokenizer| tokenizer.vocab_size())
    };
    for vocabulary in [tokens, tokens + 6, 2 * tokens] {
        assert_eq!(load(&tokenizer, vocabulary).unwrap(), tokens as usize);
    }
    for vocabulary in [tokens - 1, 2 * tokens + 2, 4096] {
        let refused = load(&tokenizer, vocabulary).unwrap_err().to_string();
        for part in ["tokenizer.json", " 266 tokens", &format!(" {vocabulary}:")] {
            assert!(refused.contains(part), "{refused}");
        }
    }
    // A padding token that nobody gave the model a row for.
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut padding = added[0].clone();
    padding["id"] = json!(tokens);
    padding["content"] = json!("<pad>");
    added.push(padding);
    assert_eq!(load(&tokenizer, tokens).unwrap(), tokens as usize + 1);
}

#[test]
fn bytes_of_tokens_join_to_the_text() {
    let tokenizer = tokenizer();
    let text = "He said: 日本 🦀";
    let ids = tokenizer.encode(text, false).unwrap();
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .copied()
        .collect();
    assert_eq!(bytes, text.as_bytes());
    assert_eq!(tokenizer.token_bytes(TokenId(999_999)), b"");
}

#[test]
fn the_digest_is_about_meaning_not_spelling() {
    let json: Value =
        serde_json::from_slice(&fs::read(shipped().join("tokenizer.json")).unwrap()).unwrap();
    let digest = |json: &Value| {
        Tokenizer::load(folder(json, &json!({})).path())
            .unwrap()
            .digest()
            .to_owned()
    };
    let base = digest(&json);
    assert_eq!(base, tokenizer().digest());
    let draft = Tokenizer::load(&shipped().join("../draft")).unwrap();
    assert_eq!(base, draft.digest());

    let mut respelled = json.clone();
    let merges = respelled["model"]["merges"].as_array_mut().unwrap();
    for merge in merges {
        *merge = match merge.take() {
            Value::String(pair) => {
                let (a, b) = pair.split_once(' ').unwrap();
                json!([a, b])
            }
            Value::Array(pair) => {
                json!(format!(
                    "{} {}",
                    pair[0].as_str().unwrap(),
                    pair[1].as_str().unwrap()
                ))
            }
            other => other,
        };
    }
    assert_eq!(digest(&respelled), base, "merges as pairs or as text");

    let mut other = json.clone();
    let vocab = other["model"]["vocab"].as_object_mut().unwrap();
    let (a, b) = (vocab["A"].clone(), vocab["B"].clone());
    vocab["A"] = b;
    vocab["B"] = a;
    assert_ne!(digest(&other), base, "two ids swapped");
}
