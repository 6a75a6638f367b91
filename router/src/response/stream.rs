//! Server-sent events.
//!
//! A round's tokens of a choice make one chunk. What does not change between chunks is rendered
//! once; the usual chunk (text, nothing else) is then a few copies into one buffer.

use std::{convert::Infallible, io::Write, sync::Arc};

use axum::body::{Body, Bytes};
use foretoken_protocol::generate::TokenLogprobs;
use futures::{Stream, StreamExt, stream};
use serde::Serialize;
use serde_json::json;

use super::{
    Envelope, echo_of, ids,
    logprobs::{Listed, Logprobs},
    offsets::Offsets,
    stop_reason, timings, tokens_used, usage,
};
use crate::{
    choice::{Finish, News, Piece, Update},
    error::ApiError,
    generation::Tally,
    request::{Job, Output, Shape, StreamedUsage},
};

/// Room for a usual chunk.
const CHUNK_BYTES: usize = 512;
/// What comes after a line break of an event's data.
const END: &[u8] = b"\n\n";

/// What a choice begins with.
#[derive(Serialize)]
struct FirstChoice {
    index: usize,
    #[serde(flatten)]
    text: FirstText,
    logprobs: Option<Listed>,
    finish_reason: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 0]>,
}

/// Its text, under the name that the API gives it.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum FirstText {
    Delta {
        role: &'static str,
        content: &'static str,
    },
    Text(String),
}

/// Renders chunks of one answer.
pub(crate) struct Chunks {
    job: Arc<Job>,
    /// `data: {"id":...,"choices":[`, the same for all chunks.
    head: Vec<u8>,
    /// Per choice, where the text of its tokens starts; empty if nobody asked for log-probabilities.
    offsets: Vec<Offsets>,
    /// Per choice, whether its first chunk is still to come.
    fresh: Vec<bool>,
    /// Per choice, tokens so far.
    told: Vec<u32>,
    tallies: Vec<Option<Box<Tally>>>,
    /// Per choice, log-probabilities of its prompt, until they are told.
    prompts: Vec<Vec<TokenLogprobs>>,
}

impl Chunks {
    /// Chunks for the choices of `job`.
    pub(crate) fn new(job: Arc<Job>, envelope: &Envelope) -> Self {
        let object = match job.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Completion => "text_completion",
        };
        let common = json!({
            "id": envelope.id,
            "object": object,
            "created": envelope.created,
            "model": job.model.name,
            "system_fingerprint": envelope.fingerprint,
        });
        let mut head = format!("data: {common}").into_bytes();
        head.pop();
        head.extend_from_slice(b",\"choices\":[");
        let choices = job.choices();
        Self {
            head,
            offsets: match job.output.logprobs {
                Some(_) => (0..choices).map(|i| Offsets::new(&job, i)).collect(),
                None => Vec::new(),
            },
            fresh: vec![true; choices],
            told: vec![0; choices],
            tallies: vec![None; choices],
            prompts: vec![Vec::new(); choices],
            job,
        }
    }

    /// The chunks of some news; may be empty if nothing is to be shown yet.
    fn news(&mut self, news: News) -> Vec<u8> {
        match news {
            News::Begun(begun) => {
                self.prompts[begun.index] = begun.prompt_logprobs;
                Vec::new()
            }
            News::Update(update) => self.update(update),
        }
    }

    /// The chunks of an update.
    fn update(&mut self, update: Update) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHUNK_BYTES);
        let Update {
            index,
            piece,
            told,
            finish,
        } = update;
        if std::mem::take(&mut self.fresh[index]) {
            self.first(&mut out, index);
        }
        self.told[index] = told;
        if !piece.text.is_empty() || !piece.logprobs.is_empty() || !piece.tokens.is_empty() {
            self.piece(&mut out, index, &piece);
        }
        if let Some((finish, tally)) = finish {
            self.end(&mut out, index, &finish);
            self.tallies[index] = Some(tally);
        }
        out
    }

    /// The first chunk of a choice: the role, or the echoed prompt.
    fn first(&mut self, out: &mut Vec<u8>, index: usize) {
        let Output {
            echo,
            return_token_ids,
            ..
        } = self.job.output;
        let prompt = self.job.prompt_of(index);
        let text = match self.job.shape {
            Shape::Chat => FirstText::Delta {
                role: "assistant",
                content: "",
            },
            Shape::Completion if echo => FirstText::Text(echo_of(&self.job, prompt)),
            Shape::Completion if return_token_ids => FirstText::Text(String::new()),
            Shape::Completion => return,
        };
        let logprobs = self.job.output.logprobs.filter(|_| echo).map(|_| {
            let mut logprobs = Logprobs::new(&self.job, &mut self.offsets[index]);
            let told = self.prompts.get_mut(index).map(std::mem::take);
            logprobs.push_prompt(index, &told.unwrap_or_default());
            logprobs.into_listed()
        });
        let choice = FirstChoice {
            index,
            text,
            logprobs,
            finish_reason: None,
            prompt_token_ids: return_token_ids.then(|| ids(&prompt.tokens)),
            token_ids: return_token_ids.then_some([]),
        };
        self.chunk(out, index, |out| write_json(out, &choice));
    }

    /// A chunk of text.
    fn piece(&mut self, out: &mut Vec<u8>, index: usize, piece: &Piece) {
        let logprobs = self.job.output.logprobs.map(|_| {
            let mut logprobs = Logprobs::new(&self.job, &mut self.offsets[index]);
            logprobs.push(&piece.logprobs);
            logprobs.into_listed()
        });
        let job = Arc::clone(&self.job);
        self.chunk(out, index, |out| {
            // Writing to a Vec cannot fail.
            let _ = write!(out, "{{\"index\":{index},");
            out.extend_from_slice(match job.shape {
                Shape::Chat => b"\"delta\":{\"content\":",
                Shape::Completion => b"\"text\":",
            });
            write_json(out, &piece.text);
            if job.shape == Shape::Chat {
                out.push(b'}');
            }
            out.extend_from_slice(b",\"logprobs\":");
            write_json(out, &logprobs);
            for (wanted, name) in [
                (job.output.return_token_ids, "token_ids"),
                (job.output.return_tokens, "tokens"),
            ] {
                if wanted {
                    let _ = write!(out, ",\"{name}\":");
                    write_json(out, &ids(&piece.tokens));
                }
            }
            out.extend_from_slice(b",\"finish_reason\":null}");
        });
    }

    /// The last chunk of a choice.
    fn end(&self, out: &mut Vec<u8>, index: usize, finish: &Finish) {
        let mut choice = json!({
            "index": index,
            "logprobs": null,
            "finish_reason": finish.reason(),
            "stop_reason": stop_reason(&self.job, Some(finish)),
        });
        match self.job.shape {
            Shape::Chat => choice["delta"] = json!({}),
            Shape::Completion => choice["text"] = json!(""),
        }
        self.chunk(out, index, |out| write_json(out, &choice));
    }

    fn chunk(&self, out: &mut Vec<u8>, index: usize, choice: impl FnOnce(&mut Vec<u8>)) {
        out.extend_from_slice(&self.head);
        choice(out);
        match self.job.output.usage {
            StreamedUsage::Never => out.extend_from_slice(b"]}"),
            StreamedUsage::AtEnd => out.extend_from_slice(b"],\"usage\":null}"),
            StreamedUsage::Always => {
                out.extend_from_slice(b"],\"usage\":");
                let prompt = self.job.prompt_of(index).tokens.len();
                write_json(out, &tokens_used(prompt, self.told[index]));
                out.push(b'}');
            }
        }
        out.extend_from_slice(END);
    }

    /// What ends the stream.
    fn done(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(CHUNK_BYTES);
        if self.job.output.usage != StreamedUsage::Never {
            let tallies: Vec<&Tally> = self
                .tallies
                .iter()
                .flatten()
                .map(|tally| &**tally)
                .collect();
            out.extend_from_slice(&self.head);
            out.extend_from_slice(b"],\"usage\":");
            write_json(&mut out, &usage(&self.job, &tallies));
            out.extend_from_slice(b",\"timings\":");
            write_json(&mut out, &timings(&self.job, &tallies));
            out.extend_from_slice(b"}\n\n");
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
        out
    }
}

fn write_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Strings, numbers and maps with string keys: neither they nor a Vec can fail.
    let _ = serde_json::to_writer(out, value);
}

fn error_event(error: &ApiError) -> Vec<u8> {
    format!("data: {}\n\ndata: [DONE]\n\n", error.to_json()).into_bytes()
}

/// The body of a streamed answer. Dropping it drops `news`, which cancels the choices.
pub(crate) fn body(
    chunks: Chunks,
    news: impl Stream<Item = Result<News, ApiError>> + Send + 'static,
) -> Body {
    // Boxed, since the state is moved with every item.
    let state = Some((Box::new(chunks), Box::pin(news)));
    let frames = stream::unfold(state, |state| async move {
        let (mut chunks, mut news) = state?;
        loop {
            match news.next().await {
                Some(Ok(said)) => {
                    let bytes = chunks.news(said);
                    if !bytes.is_empty() {
                        return Some((Bytes::from(bytes), Some((chunks, news))));
                    }
                }
                Some(Err(error)) => return Some((Bytes::from(error_event(&error)), None)),
                None => return Some((Bytes::from(chunks.done()), None)),
            }
        }
    });
    Body::from_stream(frames.map(Ok::<_, Infallible>))
}
