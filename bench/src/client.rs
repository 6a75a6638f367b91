//! A client of the `OpenAI` API that keeps what a benchmark needs.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

/// What to ask for.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The prompt, begin-of-sequence token included.
    pub ids: &'a [u32],
    /// Tokens to generate; end-of-sequence is ignored.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: f32,
    /// Seed of the request.
    pub seed: u64,
    /// Policy by name, and its lookahead; the deployment's own if absent.
    pub policy: Option<(&'a str, Option<u32>)>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The generated tokens.
    pub ids: Vec<u32>,
    /// Request out to reply in.
    pub wall: Duration,
    /// First token to last, as the target measured it.
    pub decode: Duration,
    /// Target passes after the prompt.
    pub rounds: u32,
    /// Tokens proposed.
    pub drafted: u32,
    /// Of these, accepted.
    pub accepted: u32,
}

impl Answer {
    /// Tokens per second after the first token.
    pub fn decode_rate(&self) -> f64 {
        (self.ids.len().saturating_sub(1)) as f64 / self.decode.as_secs_f64()
    }
}

#[derive(Deserialize)]
struct Reply {
    choices: Vec<Choice>,
    usage: Usage,
    timings: Timings,
}

#[derive(Deserialize)]
struct Choice {
    token_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Usage {
    foretoken: Extension,
}

#[derive(Deserialize)]
struct Extension {
    rounds: u32,
    drafted: u32,
    accepted: u32,
}

#[derive(Deserialize)]
struct Timings {
    predicted_ms: f64,
}

/// Talks to one router.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    model: String,
}

impl Client {
    /// A client of the router at `base`, for example `http://127.0.0.1:8000`.
    pub fn new(base: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            http: reqwest::Client::new(),
            base: base.into(),
            model: model.into(),
        }
    }

    fn body(&self, ask: &Ask<'_>) -> Value {
        let mut body = json!({
            "model": self.model, "prompt": ask.ids, "max_tokens": ask.max_tokens,
            "temperature": ask.temperature, "seed": ask.seed, "ignore_eos": true,
            "cache_prompt": false, "return_token_ids": true,
        });
        if let Some((policy, lookahead)) = ask.policy {
            body["foretoken"] = json!({"policy": policy});
            if let Some(k) = lookahead {
                body["foretoken"]["lookahead"] = json!(k);
            }
        }
        body
    }

    /// One completion, not streamed.
    pub async fn complete(&self, ask: &Ask<'_>) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let url = format!("{}/v1/completions", self.base);
        let response = self.http.post(url).json(&self.body(ask)).send().await?;
        let status = response.status();
        let text = response.text().await?;
        let wall = start.elapsed();
        if !status.is_success() {
            bail!("the router answered {status}: {text}");
        }
        let reply: Reply =
            serde_json::from_str(&text).with_context(|| format!("unexpected reply: {text}"))?;
        let choice = reply
            .choices
            .into_iter()
            .next()
            .context("a reply without choices")?;
        Ok(Answer {
            ids: choice.token_ids,
            wall,
            decode: Duration::from_secs_f64(reply.timings.predicted_ms / 1e3),
            rounds: reply.usage.foretoken.rounds,
            drafted: reply.usage.foretoken.drafted,
            accepted: reply.usage.foretoken.accepted,
        })
    }

    /// One streamed completion; the arrival of each chunk after the request was sent.
    pub async fn stream(&self, ask: &Ask<'_>) -> anyhow::Result<Vec<Duration>> {
        let start = Instant::now();
        let mut body = self.body(ask);
        body["stream"] = json!(true);
        let url = format!("{}/v1/completions", self.base);
        let response = self
            .http
            .post(url)
            .json(&body)
            .send()
            .await?
            .error_for_status()?;
        let mut arrivals = Vec::new();
        let mut bytes = response.bytes_stream();
        while let Some(chunk) = bytes.next().await {
            let events = chunk?.windows(6).filter(|w| w == b"data: ").count();
            arrivals.extend(std::iter::repeat_n(start.elapsed(), events));
        }
        arrivals.pop(); // the `[DONE]` that ends every stream
        Ok(arrivals)
    }
}
