//! One request on the engine thread: what it needs to decode, and what it owes its client.

mod meter;
mod outbox;
mod refusals;
mod times;

use std::time::{Duration, Instant};

use foretoken_engine::{
    batch::{Reuse, SeqId},
    kv::Salt,
    schedule::{self, RequestId},
};
use foretoken_protocol::generate::{
    AheadStats, EmittedToken, EventSender, FinishReason, GenerateEvent, GenerationStats, Round,
    TokenLogprobs,
};
use foretoken_speculation::{
    SessionId, TokenId,
    control::Drafting,
    local::{Origin, Proposer},
    policy::{Lookahead, Patience, Policy, SsdOptions, target},
    saguaro::{Saguaro, Seen},
    sampling::{InvalidSampling, Sampler, Scratch, logprobs},
    verify::Verification,
};

use self::outbox::Outbox;
pub(crate) use self::{
    meter::{Meter, Turnaround},
    refusals::{Refusal, Refusals},
};
use crate::{
    inbox::{Arrival, LinkKey},
    metrics::Metrics,
    recording::Recording,
    worker::{Cohort, Regime},
};

/// Tokens in which a request finds again what it said, at least.
const REMEMBERED: usize = 4096;

/// What all requests of a target share.
pub(crate) struct Setting<'a> {
    pub(crate) vocab_size: usize,
    /// Longest sequence, in tokens.
    pub(crate) longest: usize,
    pub(crate) eos: &'a [TokenId],
    pub(crate) prefix_cache: bool,
    pub(crate) patience: Patience,
    pub(crate) reopen_after: Duration,
    pub(crate) verification: Verification,
}

/// One request on the engine thread.
pub(crate) struct Request {
    pub(crate) id: RequestId,
    /// Whose it is: choices of one user's request have the same.
    owner: u64,
    pub(crate) events: EventSender,
    pub(crate) policy: Policy,
    pub(crate) regime: Regime,
    /// Decides what is verified when, and holds the sequence.
    pub(crate) session: target::TargetSession,
    pub(crate) sampler: Sampler,
    /// Its KV; none while it waits.
    pub(crate) seq: Option<SeqId>,
    pub(crate) reuse: Reuse,
    /// The endpoint it is bound to.
    pub(crate) link: Option<LinkKey>,
    /// Whether that has given it a slot.
    pub(crate) has_slot: bool,
    /// Endpoints that do not want it.
    pub(crate) refused: Refusals,
    /// Endpoints to try, best first; empty: all.
    pub(crate) endpoints: Vec<String>,
    /// Tokens the sequence may come to have.
    pub(crate) limit: usize,
    pub(crate) arrived: Instant,
    /// What is recorded of it, if anything is.
    pub(crate) recording: Option<Recording>,
    pub(crate) prompt_len: usize,
    /// Names whose requests it may share anything with.
    pub(crate) salt: Salt,
    /// What this host has to say about it.
    pub(crate) proposer: Proposer,
    /// Whether it takes from what its tenant's requests have in common, and gives to it.
    pub(crate) recycles: bool,
    /// What this target makes of what the window under verification was drawn from.
    pub(crate) seen: Seen,
    /// How what is drawn for it ahead is lowered, if it is.
    pub(crate) saguaro: Option<Saguaro>,
    /// Where the window under verification comes from, if this host proposed it.
    pub(crate) own: Option<Origin>,
    stops: Vec<TokenId>,
    top_logprobs: Option<usize>,
    /// Whether every round tells what it took so far.
    tells_stats: bool,
    /// Log-probabilities of the prompt so far, if they are wanted.
    prompt_logprobs: Option<Vec<TokenLogprobs>>,
    cached: Option<u32>,
    /// When it first had a place.
    admitted: Option<Instant>,
    pub(crate) meter: Meter,
    /// When the first token was emitted, and the last so far.
    emitting: Option<(Instant, Instant)>,
    outbox: Outbox,
    emitted: u32,
}

/// A verdict on a window.
#[derive(Clone, Copy)]
pub(crate) struct Passed<'a> {
    /// Tokens of the window.
    pub(crate) drafted: u32,
    /// Those that are accepted, in order.
    pub(crate) accepted: &'a [TokenId],
    /// The token decided after them.
    pub(crate) decided: TokenId,
}

/// What a verification came to.
pub(crate) struct Decided {
    /// Emitted tokens that had been proposed.
    pub(crate) accepted: usize,
    /// Why the output ends with them, if it does.
    pub(crate) ended: Option<FinishReason>,
}

impl Request {
    /// A request that has passed its checks.
    pub(crate) fn new(
        id: RequestId,
        arrival: Arrival,
        setting: &Setting<'_>,
    ) -> Result<Self, (EventSender, InvalidSampling)> {
        let Arrival {
            request,
            policy,
            events,
            at,
            recording,
        } = arrival;
        let owner = match request.owner {
            0 => id.0,
            owner => owner,
        };
        let sampling = request.sampling.clone();
        let regime = Regime::of(&sampling);
        let (tokens, prompt_len) = (request.tokens, request.prompt_len);
        let sampler = match Sampler::new(sampling, request.seed, &tokens, prompt_len) {
            Ok(sampler) => sampler,
            Err(invalid) => return Err((events, invalid)),
        };
        let limit = prompt_len
            .saturating_add(request.max_tokens as usize)
            .min(setting.longest);
        let salt = request.cache_salt.as_deref();
        let salt = salt.map_or_else(Salt::default, Salt::of);
        let config = target::TargetConfig {
            session: SessionId(id.0),
            policy,
            sampling: request.sampling,
            verification: setting.verification,
            seed: request.seed,
            prompt_len: prompt_len as u32,
            max_len: limit,
            vocab_size: setting.vocab_size as u32,
            patience: setting.patience.clone(),
            reopen_after: setting.reopen_after,
            salt: salt.0,
            keeps_nothing: !request.cache_prompt,
            trace: request.trace.filter(|trace| trace.is_sampled()),
        };
        let session = target::TargetSession::new(config, tokens);
        // Cached rows have no logits, so whoever wants those computes the prompt anew.
        let cacheable = setting.prefix_cache && request.cache_prompt && !request.prompt_logprobs;
        let ends = if request.ignore_eos { &[] } else { setting.eos };
        Ok(Self {
            id,
            owner,
            events,
            policy,
            regime,
            // What an earlier request with the same seed said was decided by the same coins that would judge
            // it here, so that by ratio it would come more often than it may.
            recycles: request.cache_prompt && session.verification() == Verification::Coupled,
            session,
            sampler,
            seq: None,
            reuse: if cacheable {
                Reuse::Within(salt)
            } else {
                Reuse::Off
            },
            link: None,
            has_slot: false,
            refused: Refusals::default(),
            endpoints: request.endpoints,
            limit,
            arrived: at,
            recording,
            prompt_len,
            salt,
            proposer: Proposer::new(setting.longest.min(REMEMBERED)),
            seen: Seen::default(),
            saguaro: None,
            own: None,
            stops: [&request.stop_token_ids, ends].concat(),
            top_logprobs: request.logprobs.map(|top| top as usize),
            tells_stats: request.tell_stats,
            prompt_logprobs: request.prompt_logprobs.then(Vec::new),
            cached: None,
            admitted: None,
            meter: Meter::default(),
            emitting: None,
            outbox: Outbox::new(request.hold, request.tell_stats),
            emitted: 0,
        })
    }

    /// What the scheduler has to know of it.
    pub(crate) fn to_be_scheduled(&self) -> schedule::Request {
        let tokens = self.session.tokens().len();
        schedule::Request {
            id: self.id,
            owner: self.owner,
            tokens,
            max_tokens: self.limit.max(tokens),
        }
    }

    /// Why it ends before anything is computed, if it does: a replay may carry everything that was
    /// to be emitted.
    pub(crate) fn ended_on_arrival(&self) -> Option<FinishReason> {
        let tokens = self.session.tokens();
        let last = tokens.last().filter(|_| tokens.len() > self.prompt_len)?;
        if self.stops.contains(last) {
            return Some(FinishReason::Stop(*last));
        }
        (tokens.len() >= self.limit).then_some(FinishReason::Length)
    }

    /// Notes how much of the prompt came from the cache; the first time counts. Says how long it
    /// waited, that time.
    pub(crate) fn opened(&mut self, seq: SeqId, cached: usize, now: Instant) -> Option<Duration> {
        self.seq = Some(seq);
        if let Some(recording) = &mut self.recording {
            recording.admitted(self.prompt_len, cached, now);
        }
        let cached = cached.min(self.prompt_len) as u32;
        self.cached.get_or_insert(cached);
        if self.admitted.is_some() {
            return None;
        }
        self.admitted = Some(now);
        Some(now.saturating_duration_since(self.arrived))
    }

    /// Those it is speculated on alike with, if it has the endpoint of `link`.
    pub(crate) fn cohort(&self, link: LinkKey) -> Cohort {
        Cohort {
            link,
            regime: self.regime,
            drafting: match self.policy {
                Policy::Autoregressive | Policy::Speculative(_) => Drafting::InTurn,
                Policy::Ssd(_) => Drafting::Ahead,
            },
        }
    }

    /// Leaves its endpoint, if it has one.
    pub(crate) fn unlink(&mut self, metrics: &Metrics) {
        if self.link.take().is_some() {
            metrics.sessions.dec();
        }
    }

    /// Whether a controller chooses how much is speculated on.
    pub(crate) fn is_adaptive(&self) -> bool {
        match self.policy {
            Policy::Autoregressive => false,
            Policy::Speculative(lookahead) | Policy::Ssd(SsdOptions { lookahead, .. }) => {
                matches!(lookahead, Lookahead::Adaptive { .. })
            }
        }
    }

    /// Whether every row of its prompt needs logits.
    pub(crate) fn wants_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.is_some() && !self.has_started()
    }

    /// Whether a token has been decided here. From then on the last token of the sequence is only
    /// fed together with a window.
    pub(crate) fn has_started(&self) -> bool {
        self.session.stats().rounds > 0
    }

    /// Takes in logits rows of the prompt, if they are wanted: those from the token at `first` on.
    pub(crate) fn note_prompt_rows<'a>(
        &mut self,
        first: usize,
        rows: impl Iterator<Item = &'a [f32]>,
        scratch: &mut Scratch,
    ) {
        if self.wants_prompt_logprobs() {
            for (position, row) in (first..).zip(rows) {
                self.note_prompt_row(position, row, scratch);
            }
        }
    }

    /// Takes in a logits row of the prompt: that of the token at `position`.
    fn note_prompt_row(&mut self, position: usize, row: &[f32], scratch: &mut Scratch) {
        let next = position + 1;
        let Some(known) = &mut self.prompt_logprobs else {
            return;
        };
        if next >= self.prompt_len || known.len() + 1 != next {
            return;
        }
        let token = self.session.tokens()[next];
        known.push(token_logprobs(
            row,
            token,
            self.top_logprobs.unwrap_or(0),
            scratch,
        ));
    }

    /// Turns a verdict into events: what was accepted, then the decided token, up to a stop. Leaves
    /// the emitted tokens in `tokens`. `row(i)` are the logits after i accepted tokens.
    pub(crate) fn emit<'a>(
        &mut self,
        passed: Passed<'_>,
        row: impl Fn(usize) -> &'a [f32],
        tokens: &mut Vec<TokenId>,
        scratch: &mut Scratch,
    ) -> Decided {
        tokens.clear();
        tokens.extend_from_slice(passed.accepted);
        tokens.push(passed.decided);
        let room = self.limit.saturating_sub(self.session.tokens().len());
        tokens.truncate(room.max(1));
        let stop = tokens.iter().position(|token| self.stops.contains(token));
        if let Some(stop) = stop {
            tokens.truncate(stop + 1);
        }
        let ended = match stop {
            Some(at) => Some(FinishReason::Stop(tokens[at])),
            None if tokens.len() >= room => Some(FinishReason::Length),
            None => None,
        };
        let accepted = passed.accepted.len().min(tokens.len());
        let pieces = tokens.iter().enumerate().map(|(i, &token)| EmittedToken {
            token,
            accepted: i < accepted,
            logprobs: self
                .top_logprobs
                .map(|top| token_logprobs(row(i), token, top, scratch)),
        });
        let round = Round {
            drafted: passed.drafted,
            tokens: pieces.collect(),
            stats: None,
        };
        self.start();
        self.outbox.push(GenerateEvent::Tokens(round));
        self.emitted += tokens.len() as u32;
        Decided { accepted, ended }
    }

    /// Sends what may not wait longer than until `at`.
    pub(crate) fn flush_due(&mut self, at: Instant, now: Instant) {
        if self.outbox.is_due(at) {
            self.flush(now);
        }
    }

    /// Sends all that waits.
    pub(crate) fn flush(&mut self, now: Instant) {
        if self.outbox.is_empty() {
            return;
        }
        if self.tells_stats {
            let stats = self.stats(now);
            if let Some(round) = self.outbox.last_round() {
                round.stats = Some(Box::new(stats));
            }
        }
        // The client may have gone, which is seen before the next step.
        let _ = self.events.send_all(self.outbox.take(now));
    }

    /// Queues the last event.
    pub(crate) fn finish(&mut self, reason: FinishReason, now: Instant) {
        self.start();
        let stats = self.stats(now);
        if let Some(recording) = self.recording.take() {
            recording.finished(reason, &stats, self.emitted, now);
        }
        let stats = Box::new(stats);
        self.outbox.push(GenerateEvent::Finished { reason, stats });
    }

    /// What it took so far.
    fn stats(&self, now: Instant) -> GenerationStats {
        let stats = self.session.stats();
        let ahead = stats.ahead;
        let (placed, places) = self.meter.places();
        let first = self.emitting.map_or(now, |(first, _)| first);
        GenerationStats {
            // The first pass belongs to the prompt.
            rounds: stats.rounds.saturating_sub(1),
            drafted: stats.drafted,
            accepted: stats.accepted,
            hits: ahead.hits,
            misses: ahead.misses,
            late: stats.missed,
            bytes: self.meter.all_bytes(),
            ahead: AheadStats {
                first_hits: ahead.first_hits,
                first_misses: ahead.first_misses,
                alone: ahead.alone,
                local: ahead.local,
                remote: ahead.remote,
                received: ahead.received,
                used: ahead.used.into(),
                late: ahead.late,
                placed,
                places,
            },
            measured: self.meter.measured(),
            endpoint: self.meter.endpoint(),
            saguaro_c: self.saguaro.map(|saguaro| saguaro.c() as f32),
            cached_tokens: self.cached.unwrap_or(0),
            policy: self.policy.name().into(),
            prefill: first.saturating_duration_since(self.arrived),
            decode: now.saturating_duration_since(first),
        }
    }

    /// Tokens emitted here so far.
    pub(crate) fn emitted(&self) -> u32 {
        self.emitted
    }

    /// Queues the event that precedes all tokens, once.
    fn start(&mut self) {
        if self.emitted == 0 && self.outbox.is_empty() {
            let cached_tokens = self.cached.unwrap_or(0);
            let prompt_logprobs = self.prompt_logprobs.take().unwrap_or_default();
            self.outbox.push(GenerateEvent::Started {
                cached_tokens,
                prompt_logprobs,
                policy: self.policy.name().into(),
                verification: match self.policy {
                    Policy::Autoregressive => String::new(),
                    Policy::Speculative(_) | Policy::Ssd(_) => {
                        self.session.verification().name().into()
                    }
                },
            });
        }
    }
}

fn token_logprobs(row: &[f32], token: TokenId, top: usize, scratch: &mut Scratch) -> TokenLogprobs {
    let found = logprobs(row, token, top, scratch);
    TokenLogprobs {
        logprob: found.logprob,
        rank: found.rank,
        top: found.top,
    }
}
