//! Requests and answers as protobuf. Everything a peer sends is checked here.

use std::{error::Error as _, time::Duration};

use foretoken_speculation::{Seed, TokenId, bounds::BoundCounts, sampling::SamplingParams};
use tonic::{Code, Status};

use super::{
    AheadStats, EmittedToken, EndpointStats, FinishReason, GenerateError, GenerateEvent,
    GenerateRequest, GenerationStats, Round, RoundStats, TargetInfo, TargetLoad, TokenLogprobs,
};
use crate::wire::{
    ValueError, Wire, check_text, end_of_call, pack_tokens, pack_words,
    proto::generation::v1::{self as proto, finished, generate_event},
    unpack_pairs, unpack_tokens,
};

/// Most alternatives per token; the largest that `OpenAI`'s and vLLM's APIs allow is far below.
const MAX_LOGPROBS: u32 = 1024;

/// Most endpoints a request can name.
const MAX_ENDPOINTS: usize = 64;

impl Wire for GenerateRequest {
    type Proto = proto::GenerateRequest;

    fn to_proto(&self) -> Self::Proto {
        Self::Proto {
            request_id: self.request_id.clone(),
            tokens: pack_tokens(&self.tokens),
            prompt_len: self.prompt_len as u32,
            sampling: Some(self.sampling.to_proto()),
            seed: self.seed.0,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            stop_token_ids: pack_tokens(&self.stop_token_ids),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            policy: self.policy.clone(),
            lookahead: self.lookahead,
            cache_prompt: self.cache_prompt,
            cache_salt: self.cache_salt.clone().unwrap_or_default(),
            endpoints: self.endpoints.clone(),
            owner: self.owner,
            tell_stats: self.tell_stats,
            hold_micros: u32::try_from(self.hold.as_micros()).unwrap_or(u32::MAX),
        }
    }

    fn from_proto(request: Self::Proto) -> Result<Self, ValueError> {
        let tokens = unpack_tokens("tokens", &request.tokens)?;
        let prompt_len = request.prompt_len as usize;
        at_most("prompt_len", prompt_len, tokens.len())?;
        if let Some(logprobs) = request.logprobs {
            at_most("logprobs", logprobs as usize, MAX_LOGPROBS as usize)?;
        }
        at_most("endpoints", request.endpoints.len(), MAX_ENDPOINTS)?;
        let sampling = request.sampling.ok_or(ValueError::Missing("sampling"))?;
        Ok(Self {
            request_id: check_text("request_id", request.request_id)?,
            owner: request.owner,
            tokens,
            prompt_len,
            sampling: SamplingParams::from_proto(sampling)?,
            seed: Seed(request.seed),
            max_tokens: request.max_tokens,
            ignore_eos: request.ignore_eos,
            stop_token_ids: unpack_tokens("stop_token_ids", &request.stop_token_ids)?,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            policy: request
                .policy
                .map(|policy| check_text("policy", policy))
                .transpose()?,
            lookahead: request.lookahead,
            cache_prompt: request.cache_prompt,
            cache_salt: Some(check_text("cache_salt", request.cache_salt)?)
                .filter(|salt| !salt.is_empty()),
            endpoints: request
                .endpoints
                .into_iter()
                .map(|endpoint| check_text("endpoints", endpoint))
                .collect::<Result<_, _>>()?,
            tell_stats: request.tell_stats,
            hold: Duration::from_micros(request.hold_micros.into()),
            trace: None,
        })
    }
}

fn at_most(field: &'static str, found: usize, limit: usize) -> Result<(), ValueError> {
    if found > limit {
        Err(ValueError::TooMany {
            field,
            found,
            limit,
        })
    } else {
        Ok(())
    }
}

impl Wire for GenerateEvent {
    type Proto = proto::GenerateEvent;

    fn to_proto(&self) -> Self::Proto {
        let event = match self {
            Self::Started {
                cached_tokens,
                prompt_logprobs,
                policy,
                verification,
            } => generate_event::Event::Started(proto::Started {
                cached_tokens: *cached_tokens,
                prompt_logprobs: prompt_logprobs.iter().map(Wire::to_proto).collect(),
                policy: policy.clone(),
                verification: verification.clone(),
            }),
            Self::Tokens(round) => generate_event::Event::Tokens(pack_round(round)),
            Self::Finished { reason, stats } => {
                generate_event::Event::Finished(pack_finished(*reason, stats))
            }
        };
        Self::Proto { event: Some(event) }
    }

    fn from_proto(event: Self::Proto) -> Result<Self, ValueError> {
        Ok(match event.event.ok_or(ValueError::Missing("the event"))? {
            generate_event::Event::Started(started) => Self::Started {
                cached_tokens: started.cached_tokens,
                prompt_logprobs: started
                    .prompt_logprobs
                    .into_iter()
                    .map(TokenLogprobs::from_proto)
                    .collect::<Result<_, _>>()?,
                policy: check_text("policy", started.policy)?,
                verification: check_text("verification", started.verification)?,
            },
            generate_event::Event::Tokens(round) => Self::Tokens(unpack_round(round)?),
            generate_event::Event::Finished(finished) => unpack_finished(finished)?,
        })
    }
}

fn pack_round(round: &Round) -> proto::Tokens {
    let tokens = &round.tokens;
    let with_logprobs = tokens.iter().any(|token| token.logprobs.is_some());
    let logprobs = |token: &EmittedToken| token.logprobs.clone().unwrap_or_default().to_proto();
    proto::Tokens {
        tokens: pack_words(tokens.iter().map(|token| token.token.0)),
        accepted: tokens
            .iter()
            .map(|token| u8::from(token.accepted))
            .collect(),
        logprobs: if with_logprobs {
            tokens.iter().map(logprobs).collect()
        } else {
            Vec::new()
        },
        drafted: round.drafted,
        so_far: round.stats.as_deref().map(pack_stats),
    }
}

fn unpack_round(emitted: proto::Tokens) -> Result<Round, ValueError> {
    let tokens = unpack_tokens("tokens", &emitted.tokens)?;
    let same_len = |field, found| {
        let expected = tokens.len();
        if found == expected {
            Ok(())
        } else {
            Err(ValueError::Count {
                field,
                found,
                expected,
            })
        }
    };
    same_len("accepted", emitted.accepted.len())?;
    let mut logprobs = Vec::new();
    if !emitted.logprobs.is_empty() {
        same_len("logprobs", emitted.logprobs.len())?;
        for one in emitted.logprobs {
            logprobs.push(Some(TokenLogprobs::from_proto(one)?));
        }
    }
    let logprobs = logprobs.into_iter().chain(std::iter::repeat(None));
    let pieces =
        tokens
            .iter()
            .zip(&emitted.accepted)
            .zip(logprobs)
            .map(|((token, accepted), logprobs)| EmittedToken {
                token: *token,
                accepted: *accepted != 0,
                logprobs,
            });
    Ok(Round {
        drafted: emitted.drafted,
        tokens: pieces.collect(),
        stats: emitted.so_far.map(unpack_stats).transpose()?.map(Box::new),
    })
}

fn pack_finished(reason: FinishReason, stats: &GenerationStats) -> proto::Finished {
    proto::Finished {
        reason: Some(match reason {
            FinishReason::Stop(token) => finished::Reason::StopToken(token.0),
            FinishReason::Length => finished::Reason::Length(proto::Length {}),
        }),
        ..pack_stats(stats)
    }
}

/// Without a reason.
fn pack_stats(stats: &GenerationStats) -> proto::Finished {
    proto::Finished {
        reason: None,
        rounds: stats.rounds,
        drafted: stats.drafted,
        accepted: stats.accepted,
        hits: stats.hits,
        misses: stats.misses,
        late: stats.late,
        bytes: stats.bytes,
        ahead: (stats.ahead != AheadStats::default()).then(|| pack_ahead(&stats.ahead)),
        saguaro_c: stats.saguaro_c,
        measured: (stats.measured != RoundStats::default()).then(|| pack_measured(&stats.measured)),
        endpoint: (stats.endpoint != EndpointStats::default())
            .then(|| pack_endpoint(&stats.endpoint)),
        cached_tokens: stats.cached_tokens,
        policy: stats.policy.clone(),
        prefill_nanoseconds: nanos(stats.prefill),
        decode_nanoseconds: nanos(stats.decode),
    }
}

fn unpack_finished(mut finished: proto::Finished) -> Result<GenerateEvent, ValueError> {
    let reason = match finished
        .reason
        .take()
        .ok_or(ValueError::Missing("the reason"))?
    {
        finished::Reason::StopToken(token) => FinishReason::Stop(TokenId(token)),
        finished::Reason::Length(proto::Length {}) => FinishReason::Length,
    };
    let stats = Box::new(unpack_stats(finished)?);
    Ok(GenerateEvent::Finished { reason, stats })
}

fn unpack_stats(finished: proto::Finished) -> Result<GenerationStats, ValueError> {
    Ok(GenerationStats {
        rounds: finished.rounds,
        drafted: finished.drafted,
        accepted: finished.accepted,
        hits: finished.hits,
        misses: finished.misses,
        late: finished.late,
        bytes: finished.bytes,
        ahead: finished.ahead.map(unpack_ahead).unwrap_or_default(),
        measured: finished.measured.map(unpack_measured).unwrap_or_default(),
        endpoint: finished.endpoint.map(unpack_endpoint).unwrap_or_default(),
        saguaro_c: finished.saguaro_c.filter(|c| (0.0..=1.0).contains(c)),
        cached_tokens: finished.cached_tokens,
        policy: check_text("policy", finished.policy)?,
        prefill: Duration::from_nanos(finished.prefill_nanoseconds),
        decode: Duration::from_nanos(finished.decode_nanoseconds),
    })
}

fn pack_ahead(stats: &AheadStats) -> proto::Ahead {
    let &AheadStats {
        first_hits,
        first_misses,
        alone,
        local,
        remote,
        received,
        used,
        late,
        placed,
        places,
    } = stats;
    proto::Ahead {
        first_hits,
        first_misses,
        alone,
        local,
        remote,
        received,
        used,
        late,
        placed,
        places,
    }
}

fn unpack_ahead(ahead: proto::Ahead) -> AheadStats {
    let proto::Ahead {
        first_hits,
        first_misses,
        alone,
        local,
        remote,
        received,
        used,
        late,
        placed,
        places,
    } = ahead;
    AheadStats {
        first_hits,
        first_misses,
        alone,
        local,
        remote,
        received,
        used,
        late,
        placed,
        places,
    }
}

fn pack_measured(measured: &RoundStats) -> proto::Measured {
    proto::Measured {
        bytes: measured.bytes,
        weighed: measured.weighed,
        hit_nanoseconds: nanos(measured.hit),
        hit_verification_nanoseconds: nanos(measured.hit_verification),
        awaited_nanoseconds: nanos(measured.awaited),
        lookahead_limits: measured.limits.to_places(),
    }
}

fn unpack_measured(measured: proto::Measured) -> RoundStats {
    RoundStats {
        bytes: measured.bytes,
        weighed: measured.weighed,
        hit: Duration::from_nanos(measured.hit_nanoseconds),
        hit_verification: Duration::from_nanos(measured.hit_verification_nanoseconds),
        awaited: Duration::from_nanos(measured.awaited_nanoseconds),
        limits: BoundCounts::by_place(measured.lookahead_limits),
    }
}

fn pack_endpoint(stats: &EndpointStats) -> proto::Endpoint {
    proto::Endpoint {
        judged: stats.judged,
        ranked: stats.ranked,
        ranks: stats.ranks,
        ahead_nanoseconds: nanos(stats.ahead),
        awaited_nanoseconds: nanos(stats.awaited),
        limits: stats.limits.to_places(),
    }
}

fn unpack_endpoint(endpoint: proto::Endpoint) -> EndpointStats {
    EndpointStats {
        judged: endpoint.judged,
        ranked: endpoint.ranked,
        ranks: endpoint.ranks,
        ahead: Duration::from_nanos(endpoint.ahead_nanoseconds),
        awaited: Duration::from_nanos(endpoint.awaited_nanoseconds),
        limits: BoundCounts::by_place(endpoint.limits),
    }
}

/// Whole nanoseconds, some centuries at most.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Wire for TokenLogprobs {
    type Proto = proto::Logprobs;

    fn to_proto(&self) -> Self::Proto {
        Self::Proto {
            logprob: self.logprob,
            rank: self.rank,
            top_tokens: pack_words(self.top.iter().map(|(token, _)| token.0)),
            top_logprobs: pack_words(self.top.iter().map(|(_, logprob)| logprob.to_bits())),
        }
    }

    fn from_proto(logprobs: Self::Proto) -> Result<Self, ValueError> {
        Ok(Self {
            logprob: logprobs.logprob,
            rank: logprobs.rank,
            top: unpack_pairs("logprobs", &logprobs.top_tokens, &logprobs.top_logprobs)?,
        })
    }
}

impl Wire for TargetInfo {
    type Proto = proto::TargetInfo;

    fn to_proto(&self) -> Self::Proto {
        Self::Proto {
            instance: self.instance.clone(),
            model_digest: self.model_digest.clone(),
            path: self.path.clone(),
            tokenizer_digest: self.tokenizer_digest.clone(),
            vocab_size: self.vocab_size,
            max_positions: self.max_positions,
            policy: self.policy.clone(),
            running: self.load.running,
            waiting: self.load.waiting,
            kv_used_permille: self.load.kv_used_permille,
            draining: self.load.draining,
        }
    }

    fn from_proto(info: Self::Proto) -> Result<Self, ValueError> {
        Ok(Self {
            instance: check_text("instance", info.instance)?,
            model_digest: check_text("model_digest", info.model_digest)?,
            path: check_text("path", info.path)?,
            tokenizer_digest: check_text("tokenizer_digest", info.tokenizer_digest)?,
            vocab_size: info.vocab_size,
            max_positions: info.max_positions,
            policy: check_text("policy", info.policy)?,
            load: TargetLoad {
                running: info.running,
                waiting: info.waiting,
                kv_used_permille: info.kv_used_permille,
                draining: info.draining,
            },
        })
    }
}

impl From<GenerateError> for Status {
    fn from(error: GenerateError) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::Invalid(_) => Self::invalid_argument(message),
            GenerateError::Busy { .. } => Self::resource_exhausted(message),
            GenerateError::Lost { .. } => Self::unavailable(message),
        }
    }
}

impl GenerateError {
    /// What a status that a call to `instance` ended with means.
    pub(super) fn of_status(instance: &str, status: &Status) -> Self {
        let instance = instance.to_string();
        match status.code() {
            Code::InvalidArgument => Self::Invalid(status.message().into()),
            // With a cause it is the connection that ended, for it says so too.
            Code::ResourceExhausted if status.source().is_none() => Self::Busy { instance },
            // The target may be newer or older than this router: another may understand.
            _ => Self::Lost {
                instance,
                cause: end_of_call(status),
            },
        }
    }
}

#[cfg(test)]
mod tests;
