//! Log-probabilities in both APIs' forms.

use foretoken_artifacts::Tokenizer;
use foretoken_protocol::generate::TokenLogprobs;
use foretoken_speculation::TokenId;
use serde::{Serialize, Serializer};

use crate::{
    choice::Told,
    request::{Job, Shape},
    response::offsets::Offsets,
};

/// Stands for minus infinity, which JSON cannot say; vLLM's value.
const LEAST: f32 = -9999.0;

/// The `logprobs` of a choice, as the API words it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Listed {
    /// An entry a token.
    Chat {
        content: Vec<Entry>,
        refusal: Option<()>,
    },
    /// Parallel lists.
    Completion {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f32>>,
        top_logprobs: Vec<Option<Ranked>>,
        text_offset: Vec<usize>,
    },
}

/// A token of a chat's output.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    own: Likely,
    top_logprobs: Vec<Likely>,
}

/// A token and how likely it is.
#[derive(Debug, Serialize)]
struct Likely {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// Texts of tokens and their log-probabilities, likeliest first: a map whose order is told.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ranked(Vec<(String, f32)>);

impl Ranked {
    /// Adds a token that is no likelier than those before. Of several tokens with one text only
    /// the likeliest is told, since a map has no key twice.
    fn push(&mut self, text: String, logprob: f32) {
        if self.0.iter().all(|(known, _)| *known != text) {
            self.0.push((text, logprob));
        }
    }
}

impl Serialize for Ranked {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

/// Builds the `logprobs` of a choice, whole or piece by piece.
pub(crate) struct Logprobs<'a> {
    job: &'a Job,
    /// Of the choice, over all its pieces.
    offsets: &'a mut Offsets,
    listed: Listed,
}

impl<'a> Logprobs<'a> {
    pub(crate) fn new(job: &'a Job, offsets: &'a mut Offsets) -> Self {
        let listed = match job.shape {
            Shape::Chat => Listed::Chat {
                content: Vec::new(),
                refusal: None,
            },
            Shape::Completion => Listed::Completion {
                tokens: Vec::new(),
                token_logprobs: Vec::new(),
                top_logprobs: Vec::new(),
                text_offset: Vec::new(),
            },
        };
        Self {
            job,
            offsets,
            listed,
        }
    }

    /// Adds the tokens of an echoed prompt, of which the first has no probability.
    pub(crate) fn push_prompt(&mut self, index: usize, logprobs: &[TokenLogprobs]) {
        let prompt = self.job.prompt_of(index);
        if let Listed::Completion { text_offset, .. } = &mut self.listed {
            text_offset.extend(self.offsets.of_prompt(self.job, prompt));
        }
        let told = std::iter::once(None).chain(logprobs.iter().map(Some));
        let told = told.chain(std::iter::repeat(None));
        for (&token, logprobs) in prompt.tokens.iter().zip(told) {
            self.push_one(token, logprobs);
        }
    }

    /// Adds tokens of the output.
    pub(crate) fn push(&mut self, told: &[Told]) {
        for told in told {
            if let Listed::Completion { text_offset, .. } = &mut self.listed {
                text_offset.push(self.offsets.next(told.token));
            }
            self.push_one(told.token, Some(&told.logprobs));
        }
    }

    /// Adds a token; one without log-probabilities is told by completions alone.
    fn push_one(&mut self, token: TokenId, logprobs: Option<&TokenLogprobs>) {
        let job = self.job;
        let named = |token| named(job, token);
        let most = self.job.output.logprobs.unwrap_or(0) as usize;
        let top = |logprobs: &'_ TokenLogprobs| logprobs.top.len().min(most);
        match &mut self.listed {
            Listed::Chat { content, .. } => {
                let Some(told) = logprobs else { return };
                let likely = |&(token, logprob): &(TokenId, f32)| Likely {
                    token: named(token),
                    logprob: finite(logprob),
                    bytes: job.model.tokenizer.token_bytes(token).to_vec(),
                };
                content.push(Entry {
                    own: likely(&(token, told.logprob)),
                    top_logprobs: told.top[..top(told)].iter().map(likely).collect(),
                });
            }
            Listed::Completion {
                tokens,
                token_logprobs,
                top_logprobs,
                text_offset: _,
            } => {
                let text = named(token);
                token_logprobs.push(logprobs.map(|told| finite(told.logprob)));
                top_logprobs.push(logprobs.map(|told| {
                    let mut ranked = Ranked::default();
                    for &(token, logprob) in &told.top[..top(told)] {
                        ranked.push(named(token), finite(logprob));
                    }
                    // If it is not among the likeliest it comes after them.
                    ranked.push(text.clone(), finite(told.logprob));
                    ranked
                }));
                tokens.push(text);
            }
        }
    }

    /// What was added.
    pub(crate) fn into_listed(self) -> Listed {
        self.listed
    }
}

/// What a token is called: by its text, or by its id, which tells all of them apart (vLLM's form).
fn named(job: &Job, token: TokenId) -> String {
    if job.output.ids_as_texts {
        format!("token_id:{token}")
    } else {
        shown(&job.model.tokenizer, token)
    }
}

/// A token's own text; part of a character shows as U+FFFD.
pub(crate) fn shown(tokenizer: &Tokenizer, token: TokenId) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.max(LEAST)
    } else {
        LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_of_one_text_the_likeliest_is_told() {
        let mut ranked = Ranked::default();
        for (text, logprob) in [
            ("z", -0.1),
            ("\u{fffd}", -0.5),
            ("a", -1.0),
            ("\u{fffd}", -2.0),
        ] {
            ranked.push(text.to_owned(), logprob);
        }
        let json = serde_json::to_string(&ranked).expect("it is a map");
        assert_eq!(json, "{\"z\":-0.1,\"\u{fffd}\":-0.5,\"a\":-1.0}");
    }
}
