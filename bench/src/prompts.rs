//! Prompts that the shipped pair has not seen in training.

use std::{fs, path::Path};

use anyhow::Context;
use foretoken_artifacts::Tokenizer;
use serde::Deserialize;

#[derive(Deserialize)]
struct Problem {
    question: String,
}

/// The first 16 problems of GSM8K's test split, then every hundredth: `count` prompts at most, as
/// token ids with the begin-of-sequence token in front.
pub fn gsm8k(folder: &Path, count: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/gsm8k_test.jsonl");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let tokenizer = Tokenizer::load(folder)?;
    let picks = (0..16).chain((100..lines.len()).step_by(100)).take(count);
    picks
        .map(|i| {
            let problem: Problem = serde_json::from_str(lines[i])?;
            let prompt = format!("Question: {}\nAnswer:", problem.question);
            Ok(tokenizer
                .encode(&prompt, true)?
                .iter()
                .map(|t| t.0)
                .collect())
        })
        .collect()
}
