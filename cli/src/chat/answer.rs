//! One answer as it streams in.

use anyhow::{Context as _, bail};
use reqwest::Response;
use serde_json::Value;

use super::events::Events;

/// Text of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The text.
    pub(super) text: String,
    /// Whether a draft had proposed it.
    pub(super) is_accepted: bool,
}

/// An answer as it streams in.
#[derive(Debug)]
pub(super) struct Answer {
    response: Response,
    events: Events,
    text: String,
    usage: Option<Value>,
    timings: Value,
}

impl Answer {
    /// Checks that the server took the request.
    pub(super) async fn begin(sent: reqwest::Result<Response>) -> anyhow::Result<Self> {
        let response = sent.context("the server does not answer")?;
        let status = response.status();
        if !status.is_success() {
            let body: Value = response.json().await.unwrap_or_default();
            bail!(
                "{}",
                body["error"]["message"].as_str().unwrap_or(status.as_str())
            );
        }
        Ok(Self {
            response,
            events: Events::default(),
            text: String::new(),
            usage: None,
            timings: Value::Null,
        })
    }

    /// The next pieces; none at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<Piece>>> {
        let bytes = self
            .response
            .chunk()
            .await
            .context("the answer broke off")?;
        let Some(bytes) = bytes else { return Ok(None) };
        let mut all = Vec::new();
        for data in self.events.push(&bytes) {
            if data == "[DONE]" {
                continue;
            }
            let chunk: Value = serde_json::from_str(&data).context("the server sent no JSON")?;
            if let Some(message) = chunk["error"]["message"].as_str() {
                bail!("{message}");
            }
            if chunk["usage"].is_object() {
                self.usage = Some(chunk["usage"].clone());
                self.timings = chunk["timings"].clone();
            }
            let pieces = pieces(&chunk["choices"][0]);
            self.text
                .extend(pieces.iter().map(|piece| piece.text.as_str()));
            all.extend(pieces);
        }
        Ok(Some(all))
    }

    /// The text so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// One line on how it went.
    pub(super) fn summary(&self) -> String {
        match &self.usage {
            Some(usage) => summary(usage, &self.timings),
            None => "stopped".to_owned(),
        }
    }
}

/// The tokens of a chunk. A chunk is a round of the target: it decided the last token, and the
/// ones before it had been proposed by a draft.
fn pieces(choice: &Value) -> Vec<Piece> {
    let content = choice["delta"]["content"].as_str().unwrap_or_default();
    if content.is_empty() {
        return Vec::new();
    }
    let empty = Vec::new();
    let tokens = choice["logprobs"]["content"].as_array().unwrap_or(&empty);
    let texts: Vec<&str> = tokens
        .iter()
        .filter_map(|token| token["token"].as_str())
        .collect();
    if texts.concat() != content {
        // Characters whose bytes are spread over tokens, or text held back: no token has it.
        return vec![Piece {
            text: content.to_owned(),
            is_accepted: false,
        }];
    }
    let piece = |(index, text): (usize, &&str)| Piece {
        text: (*text).to_owned(),
        is_accepted: index + 1 < texts.len(),
    };
    texts.iter().enumerate().map(piece).collect()
}

/// Tokens a second are by the server's clock: what arrives together says nothing of its time.
fn summary(usage: &Value, timings: &Value) -> String {
    let tokens = usage["completion_tokens"].as_u64().unwrap_or(0);
    let mut parts = vec![format!("{tokens} tokens")];
    if let Some(rate) = timings["predicted_per_second"].as_f64() {
        parts.push(format!("{rate:.0} tokens/s"));
    }
    if let Some(length) = usage["foretoken"]["acceptance_length"].as_f64() {
        parts.push(format!("{length:.2} tokens a round"));
    }
    if let Some(policy) = usage["foretoken"]["policy"].as_str() {
        parts.push(policy.to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chunk(content: &str, tokens: &[&str]) -> Value {
        let tokens: Vec<Value> = tokens.iter().map(|token| json!({"token": token})).collect();
        json!({"delta": {"content": content}, "logprobs": {"content": tokens}})
    }

    #[test]
    fn all_tokens_of_a_round_but_the_last_were_accepted() {
        let found = pieces(&chunk("a b c", &["a", " b", " c"]));
        let accepted: Vec<bool> = found.iter().map(|piece| piece.is_accepted).collect();
        assert_eq!(accepted, [true, true, false]);
        assert_eq!(found[1].text, " b");
    }

    #[test]
    fn text_that_is_not_that_of_its_tokens_is_shown_without_colour() {
        let found = pieces(&chunk("\u{fc}", &["\u{fffd}", "\u{fffd}"]));
        assert_eq!(
            found,
            [Piece {
                text: "\u{fc}".into(),
                is_accepted: false
            }]
        );
        assert_eq!(pieces(&json!({"delta": {}})), []);
    }

    #[test]
    fn the_summary_has_the_rate_that_the_server_measured() {
        let usage = json!({
            "completion_tokens": 11,
            "foretoken": {"acceptance_length": 2.5, "policy": "Speculative"},
        });
        assert_eq!(
            summary(&usage, &json!({"predicted_per_second": 100.0})),
            "11 tokens, 100 tokens/s, 2.50 tokens a round, Speculative"
        );
        assert_eq!(summary(&json!({}), &Value::Null), "0 tokens");
    }
}
