//! One answer as it streams in.

use anyhow::{Context as _, anyhow, bail};
use reqwest::Response;
use serde_json::Value;

use super::{
    events::Events,
    spelling::{Piece, Spelling},
};

/// An answer as it streams in.
#[derive(Debug)]
pub(super) struct Answer {
    response: Response,
    events: Events,
    rounds: Rounds,
    text: String,
    usage: Option<Value>,
    timings: Value,
    /// What went wrong after text that is to be shown first.
    failure: Option<anyhow::Error>,
}

/// Tells which text a draft had proposed. A chunk is a round of the target: it decided the last token,
/// and those before it had been proposed, unless the round was cut at the most tokens that were asked
/// for. Then the last one may have been proposed too, which is known once all are counted.
#[derive(Debug)]
struct Rounds {
    spelling: Spelling,
    max_tokens: usize,
    /// Tokens so far, and those of them that had been proposed.
    tokens: usize,
    accepted: usize,
    /// Choices of the chunks that wait for the count, in order.
    waiting: Vec<Value>,
}

/// The server takes no conversation as long as this one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct TooLong(String);

impl Answer {
    /// Checks that the server took the request, for this many tokens at most.
    pub(super) async fn begin(
        sent: reqwest::Result<Response>,
        max_tokens: usize,
    ) -> anyhow::Result<Self> {
        let response = sent.context("the server does not answer")?;
        let status = response.status();
        if !status.is_success() {
            let body: Value = response.json().await.unwrap_or_default();
            return Err(refusal(&body["error"], status.as_str()));
        }
        Ok(Self {
            response,
            events: Events::default(),
            rounds: Rounds::new(max_tokens),
            text: String::new(),
            usage: None,
            timings: Value::Null,
            failure: None,
        })
    }

    /// The next pieces; none at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<Piece>>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let bytes = self
            .response
            .chunk()
            .await
            .context("the answer broke off")?;
        let Some(bytes) = bytes else {
            let rest = self.rounds.finish(None);
            self.note(&rest);
            return Ok((!rest.is_empty()).then_some(rest));
        };
        let mut all = Vec::new();
        for data in self.events.push(&bytes) {
            match self.take(&data) {
                Ok(pieces) => all.extend(pieces),
                Err(failure) => {
                    all.extend(self.rounds.finish(None));
                    self.failure = Some(failure);
                    break;
                }
            }
        }
        self.note(&all);
        Ok(Some(all))
    }

    /// What an event has to show.
    fn take(&mut self, data: &str) -> anyhow::Result<Vec<Piece>> {
        if data == "[DONE]" {
            return Ok(self.rounds.finish(None));
        }
        let chunk: Value = serde_json::from_str(data).context("the server sent no JSON")?;
        if let Some(message) = chunk["error"]["message"].as_str() {
            bail!("{message}");
        }
        let mut pieces = Vec::new();
        if chunk["usage"].is_object() {
            self.usage = Some(chunk["usage"].clone());
            self.timings = chunk["timings"].clone();
            let accepted = chunk["usage"]["foretoken"]["accepted"].as_u64();
            pieces.extend(self.rounds.finish(accepted));
        }
        pieces.extend(self.rounds.push(&chunk["choices"][0]));
        Ok(pieces)
    }

    fn note(&mut self, pieces: &[Piece]) {
        let texts = pieces.iter().map(|piece| piece.text.as_str());
        self.text.extend(texts);
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

impl Rounds {
    fn new(max_tokens: usize) -> Self {
        Self {
            spelling: Spelling::default(),
            max_tokens,
            tokens: 0,
            accepted: 0,
            waiting: Vec::new(),
        }
    }

    /// Takes the choice of a chunk. What may have been cut is shown by [`Rounds::finish`].
    fn push(&mut self, choice: &Value) -> Vec<Piece> {
        let tokens = entries(choice).len();
        self.tokens += tokens;
        if self.tokens >= self.max_tokens {
            self.waiting.push(choice.clone());
            return Vec::new();
        }
        self.show(choice, tokens.saturating_sub(1))
    }

    /// Shows what waited; `accepted` of all tokens had been proposed.
    fn finish(&mut self, accepted: Option<u64>) -> Vec<Piece> {
        let waiting = std::mem::take(&mut self.waiting);
        let tokens: usize = waiting.iter().map(|choice| entries(choice).len()).sum();
        let is_all = accepted == Some((self.accepted + tokens) as u64);
        let show = |choice: &Value| {
            let decided = usize::from(!is_all);
            self.show(choice, entries(choice).len().saturating_sub(decided))
        };
        waiting.iter().flat_map(show).collect()
    }

    fn show(&mut self, choice: &Value, accepted: usize) -> Vec<Piece> {
        self.accepted += accepted;
        for (index, entry) in entries(choice).iter().enumerate() {
            self.spelling.expect(entry, index < accepted);
        }
        let content = choice["delta"]["content"].as_str();
        self.spelling.show(content.unwrap_or_default())
    }
}

/// Why a request was refused.
fn refusal(error: &Value, status: &str) -> anyhow::Error {
    let message = error["message"].as_str().unwrap_or(status);
    match error["code"].as_str() {
        Some("context_length_exceeded" | "prompt_too_long") => TooLong(message.to_owned()).into(),
        _ => anyhow!("{message}"),
    }
}

/// The tokens of a chunk, with what is told of each.
fn entries(choice: &Value) -> &[Value] {
    let entries = choice["logprobs"]["content"].as_array();
    entries.map_or(&[], Vec::as_slice)
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
        let entry = |token: &&str| json!({"token": token, "bytes": token.as_bytes()});
        let tokens: Vec<Value> = tokens.iter().map(entry).collect();
        json!({"delta": {"content": content}, "logprobs": {"content": tokens}})
    }

    /// Accepted text in brackets.
    fn shown(pieces: &[Piece]) -> String {
        let shown = |piece: &Piece| {
            if piece.is_accepted {
                format!("[{}]", piece.text)
            } else {
                piece.text.clone()
            }
        };
        pieces.iter().map(shown).collect()
    }

    #[test]
    fn all_tokens_of_a_round_but_the_last_were_accepted() {
        let mut rounds = Rounds::new(100);
        assert_eq!(
            shown(&rounds.push(&chunk("a b c", &["a", " b", " c"]))),
            "[a b] c"
        );
        let end = chunk(" d.", &[" d", ".", "</s>"]);
        assert_eq!(shown(&rounds.push(&end)), "[ d.]");
        assert_eq!(rounds.push(&json!({"delta": {}})), []);
        assert_eq!(rounds.finish(Some(4)), [], "nothing waits");
    }

    #[test]
    fn of_a_round_that_was_cut_the_count_tells_whether_the_last_token_was_accepted() {
        for (accepted, last) in [(Some(4), "[ d e]"), (Some(3), "[ d] e"), (None, "[ d] e")] {
            let mut rounds = Rounds::new(5);
            assert_eq!(
                shown(&rounds.push(&chunk("a b c", &["a", " b", " c"]))),
                "[a b] c"
            );
            assert_eq!(rounds.push(&chunk(" d e", &[" d", " e"])), [], "it waits");
            // Text that might have become a stop string comes last and has no tokens of its own.
            assert_eq!(rounds.push(&chunk("f", &[])), [], "its turn is later");
            assert_eq!(shown(&rounds.finish(accepted)), format!("{last}f"));
            assert_eq!(rounds.finish(accepted), [], "it was shown");
        }
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
