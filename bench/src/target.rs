//! A client of one target, without a router in between.

use std::time::Instant;

use anyhow::{Context, bail};
use foretoken_protocol::{
    Address,
    generate::{GenerateClient, GenerateEvent, GenerateRequest, HOLD_FOR_WHOLE},
};
use foretoken_speculation::{Seed, TokenId, sampling::SamplingParams};
use futures::StreamExt;

use crate::client::{Answer, Ask};

/// Talks to one target.
#[derive(Clone, Debug)]
pub struct TargetClient(GenerateClient);

impl TargetClient {
    /// A client of the target at `address`.
    pub fn new(address: Address) -> Self {
        Self(GenerateClient::new("target", address))
    }

    /// Whether the target answers.
    pub async fn answers(&self) -> bool {
        self.0.info().await.is_ok()
    }

    /// One completion, read to its end.
    pub async fn complete(&self, ask: &Ask<'_>) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let mut events = self.0.generate(request(ask)).await?;
        let mut ids = Vec::with_capacity(ask.max_tokens as usize);
        let mut ended = None;
        while let Some(event) = events.next().await {
            match event? {
                GenerateEvent::Started { .. } => {}
                GenerateEvent::Tokens(round) => {
                    ids.extend(round.tokens.iter().map(|emitted| emitted.token.0));
                }
                GenerateEvent::Finished { stats, .. } => ended = Some(stats),
            }
        }
        let stats = ended.context("an answer without an end")?;
        if ids.len() != ask.max_tokens as usize {
            bail!("{} tokens came of {}", ids.len(), ask.max_tokens);
        }
        Ok(Answer {
            ids,
            wall: start.elapsed(),
            decode: stats.decode,
            rounds: stats.rounds,
            drafted: stats.drafted,
            accepted: stats.accepted,
        })
    }
}

/// What the router would make of `ask`, for an answer that is not streamed.
pub fn request(ask: &Ask<'_>) -> GenerateRequest {
    GenerateRequest {
        request_id: "bench".to_owned(),
        owner: 0,
        tokens: ask.ids.iter().copied().map(TokenId).collect(),
        prompt_len: ask.ids.len(),
        sampling: SamplingParams {
            temperature: ask.temperature,
            ..SamplingParams::default()
        },
        seed: Seed(ask.seed),
        max_tokens: ask.max_tokens,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        policy: ask.policy.map(|(policy, _)| policy.to_owned()),
        lookahead: ask.policy.and_then(|(_, lookahead)| lookahead),
        cache_prompt: false,
        cache_salt: None,
        endpoints: Vec::new(),
        tell_stats: false,
        hold: HOLD_FOR_WHOLE,
        trace: None,
    }
}
