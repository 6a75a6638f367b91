//! Prompts that the shipped pair has not seen in training.

use std::path::Path;

use foretoken_artifacts::Tokenizer;
use serde::{Deserialize, de::DeserializeOwned};

/// Carried, since whoever runs an installed executable has no source tree.
const PROBLEMS: &str = include_str!("../data/gsm8k_test.jsonl");
const VERSES: &str = include_str!("../data/bible_heldout.jsonl");

/// Where prompts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Class {
    /// Problems of GSM8K's test split.
    Gsm8k,
    /// Verses of Ruth, Jonah and Mark (King James Version), the books held out in training.
    Bible,
}

impl Class {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gsm8k => "GSM8K",
            Self::Bible => "Bible",
        }
    }

    /// `count` prompts at most, as token ids of the tokenizer in `folder` with the
    /// begin-of-sequence token in front.
    pub fn load(self, folder: &Path, count: usize) -> anyhow::Result<Vec<Vec<u32>>> {
        match self {
            Self::Gsm8k => gsm8k(folder, count),
            Self::Bible => bible(folder, count),
        }
    }
}

#[derive(Deserialize)]
struct Problem {
    question: String,
}

#[derive(Deserialize)]
struct Verses {
    text: String,
}

/// The first 16 problems of GSM8K's test split, then every hundredth: `count` prompts at most, as
/// token ids with the begin-of-sequence token in front.
pub fn gsm8k(folder: &Path, count: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let problems: Vec<Problem> = read(PROBLEMS)?;
    let picks = (0..16).chain((100..problems.len()).step_by(100));
    let prompts = picks.map(|i| format!("Question: {}\nAnswer:", problems[i].question));
    encode(folder, prompts.take(count))
}

/// A few verses each, as in training: one a line.
fn bible(folder: &Path, count: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let places: Vec<Verses> = read(VERSES)?;
    encode(
        folder,
        places.into_iter().map(|place| place.text).take(count),
    )
}

fn read<T: DeserializeOwned>(text: &str) -> anyhow::Result<Vec<T>> {
    let lines = text.lines().map(|line| Ok(serde_json::from_str(line)?));
    lines.collect()
}

fn encode(folder: &Path, prompts: impl Iterator<Item = String>) -> anyhow::Result<Vec<Vec<u32>>> {
    let tokenizer = Tokenizer::load(folder)?;
    prompts
        .map(|prompt| {
            let ids = tokenizer.encode(&prompt, true)?;
            Ok(ids.iter().map(|token| token.0).collect())
        })
        .collect()
}

/// A prompt for simulated models, to whom tokens mean nothing: 32 of a vocabulary of 4,096.
pub fn simulated(number: usize) -> Vec<u32> {
    let first = number as u32 * 131;
    (0..32).map(|i| 3 + (first + i * 17) % 4000).collect()
}
