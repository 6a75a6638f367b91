//! One choice's tokens, whatever happens to targets meanwhile.
//!
//! ```text
//! place --choose--> target --generate--> events --lost?--> place again with prompt + tokens so far
//! ```
//!
//! Output is a function of model, prompt, sampling and seed, so a target that gets the tokens so
//! far goes on exactly where the lost one stopped. Only targets with the same weights and
//! arithmetic, and with room for the longest that the output may be, are asked to.
//!
//! Dropping a [`Generation`] cancels it at the target.

mod trace;

use std::{sync::Arc, time::Duration};

use foretoken_protocol::generate::{
    EmittedToken, FinishReason, GenerateError, GenerateEvent, GenerateRequest, GenerateStream,
    GenerationStats, Round, TargetInfo, TokenLogprobs,
};
use foretoken_telemetry::{Span, SpanKind, Trace};
use futures::StreamExt;
use tokio::time::Instant;

use crate::{
    error::ApiError,
    metrics::ModelMetrics,
    request::Job,
    service::Shared,
    targets::{CachedAs, Identity, Lease, NoTarget},
};

/// Least wait before asking again when no target would take the request.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What a generation tells.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Tokens of one round.
    Tokens(Vec<EmittedToken>),
    /// Nothing follows.
    Finished(FinishReason),
}

/// One choice being generated.
pub(crate) struct Generation {
    shared: Arc<Shared>,
    job: Arc<Job>,
    metrics: ModelMetrics,
    /// `tokens` grows by what is emitted, so that it can be sent again at any time.
    request: GenerateRequest,
    /// The place and the stream; none while between targets.
    current: Option<(Lease, GenerateStream)>,
    /// The request's trace, and what is recorded of what the latest target was asked.
    trace: Trace,
    call: Option<Span>,
    /// What the latest target is. Once it has `started`, a replay must match: until then nothing of it
    /// is told, and whoever has the model will do.
    identity: Option<Identity>,
    /// Name of the target lost last.
    avoid: Option<String>,
    losses: u32,
    /// Whether a target has the prompt in.
    started: bool,
    /// Whether the current target's pass over its prompt has been read.
    is_past_prompt: bool,
    /// When tokens came last.
    last: Option<Instant>,
    /// What came while waiting for the start.
    pending: Option<Progress>,
    /// Whether the output has its end.
    over: bool,
    arrived: Instant,
    /// When waiting for a target ends.
    deadline: Option<Instant>,
    tally: Tally,
}

/// What a generation took so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) emitted: u32,
    pub(crate) cached_tokens: u32,
    /// Log-probabilities of prompt tokens 1.., if asked for.
    pub(crate) prompt_logprobs: Vec<TokenLogprobs>,
    pub(crate) accepted: u32,
    /// Tokens that drafts proposed and targets verified, in the rounds that were read.
    pub(crate) drafted: u32,
    /// Passes of targets that were read, but for each target's pass over its prompt.
    pub(crate) rounds: u32,
    /// Passes that verified something.
    drafts: u32,
    /// How speculation went, as the target that finished it says; of what a stop string ended, until its
    /// latest round.
    pub(crate) stats: GenerationStats,
    /// Policy of the target that served it last; none if none did.
    pub(crate) policy: Option<String>,
    /// Its rule of verification; none if nothing is proposed.
    pub(crate) verification: Option<String>,
    /// By this router's clock, from the request's arrival to its first token.
    first: Option<Duration>,
    /// By this router's clock, from the first token to the last.
    decode: Duration,
    /// The same two by the target's clock, if one target said all of the output.
    told: Option<(Duration, Duration)>,
    pub(crate) fingerprint: Option<String>,
}

impl Tally {
    /// Time to the first token; none if there is no token.
    pub(crate) fn prefill(&self) -> Option<Duration> {
        self.told.map(|(prefill, _)| prefill).or(self.first)
    }

    /// Time from the first token to the last.
    pub(crate) fn decode(&self) -> Duration {
        self.told.map_or(self.decode, |(_, decode)| decode)
    }
}

impl Generation {
    /// Prepares a choice; nothing is sent yet.
    pub(crate) fn new(
        shared: Arc<Shared>,
        job: Arc<Job>,
        request: GenerateRequest,
        trace: Trace,
        arrived: Instant,
    ) -> Self {
        let metrics = shared.metrics.of_model(&job.model.name);
        metrics.running.inc();
        Self {
            shared,
            job,
            metrics,
            request,
            current: None,
            trace,
            call: None,
            identity: None,
            avoid: None,
            losses: 0,
            started: false,
            is_past_prompt: false,
            last: None,
            pending: None,
            over: false,
            arrived,
            deadline: None,
            tally: Tally::default(),
        }
    }

    /// What it took so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Waits until a target has the prompt in, so that an error can still have a status.
    pub(crate) async fn start(&mut self) -> Result<(), ApiError> {
        while !self.started && self.pending.is_none() {
            self.pending = self.step().await?;
        }
        Ok(())
    }

    /// Log-probabilities of the prompt, if asked for; the tally has them no more.
    pub(crate) fn take_prompt_logprobs(&mut self) -> Vec<TokenLogprobs> {
        std::mem::take(&mut self.tally.prompt_logprobs)
    }

    /// The next tokens. After `Finished` or an error, not to be called again.
    pub(crate) async fn next(&mut self) -> Result<Progress, ApiError> {
        let mut progress = self.pending.take();
        loop {
            match progress {
                Some(progress) => return Ok(progress),
                None => progress = self.step().await?,
            }
        }
    }

    /// One event of the target, or one attempt to get a target. `None`: nothing to tell yet.
    async fn step(&mut self) -> Result<Option<Progress>, ApiError> {
        let stepped = self.advance().await;
        // What cannot go on is not what a client has left.
        self.over |= stepped.is_err();
        stepped
    }

    async fn advance(&mut self) -> Result<Option<Progress>, ApiError> {
        if let Some(reason) = self.already_over() {
            return Ok(Some(Progress::Finished(reason)));
        }
        let Some((_, stream)) = &mut self.current else {
            self.place().await?;
            return Ok(None);
        };
        match stream.next().await {
            Some(Ok(GenerateEvent::Started {
                cached_tokens,
                prompt_logprobs,
                policy,
                verification,
            })) => {
                self.tally.policy = Some(policy);
                self.tally.verification = Some(verification).filter(|rule| !rule.is_empty());
                self.started(cached_tokens, prompt_logprobs);
                Ok(None)
            }
            Some(Ok(GenerateEvent::Tokens(round))) if round.tokens.is_empty() => Ok(None),
            Some(Ok(GenerateEvent::Tokens(round))) => {
                self.count(&round);
                Ok(Some(Progress::Tokens(round.tokens)))
            }
            Some(Ok(GenerateEvent::Finished { reason, stats })) => {
                if self.losses == 0 {
                    self.tally.told = Some((stats.prefill, stats.decode));
                }
                self.tally.stats = *stats;
                self.current = None;
                Ok(Some(Progress::Finished(reason)))
            }
            Some(Err(error)) => self.lost(error).map(|()| None),
            None => {
                let instance = self.instance();
                let cause = "the stream ended early".to_owned();
                self.lost(GenerateError::Lost { instance, cause })
                    .map(|()| None)
            }
        }
    }

    /// Whether all tokens are there although the target was lost before it could say so.
    fn already_over(&self) -> Option<FinishReason> {
        if self.current.is_some() || self.tally.emitted == 0 {
            return None;
        }
        let last = self
            .request
            .tokens
            .last()
            .copied()
            .filter(|&t| self.job.ends_output(t));
        let full = self.tally.emitted >= self.request.max_tokens;
        last.map(FinishReason::Stop)
            .or(full.then_some(FinishReason::Length))
    }

    /// The output has its end, here or earlier; the target is told, if it is still at it.
    /// `told` tokens of it reach the user, `accepted` of them drafted.
    pub(crate) fn end(&mut self, reason: &'static str, told: u32, accepted: u32) {
        self.tally.emitted = told;
        self.tally.accepted = accepted;
        self.current = None;
        self.over = true;
        if let Some(call) = self.call.take() {
            trace::end(&call, reason, &self.tally);
        }
        self.metrics
            .latency
            .observe(self.arrived.elapsed().as_secs_f64());
        if let Some(later) = told.checked_sub(1).filter(|&later| later > 0) {
            // As users see it, by this router's clock.
            let each = self.tally.decode.as_secs_f64() / f64::from(later);
            self.metrics.per_token.observe(each);
        }
        self.shared.metrics.finished(&self.job.model.name, reason);
    }

    /// Chooses a target and sends it the request. On `Ok` without a place, try again.
    async fn place(&mut self) -> Result<(), ApiError> {
        let like = self.identity.as_ref().filter(|_| self.started);
        let prompt = CachedAs {
            model: &self.job.model.name,
            salt: self.request.cache_salt.as_deref(),
            tokens: &self.request.tokens,
        };
        let avoid = self.avoid.as_deref();
        let choice = self.shared.targets.choose(prompt, like, avoid);
        let lease = match choice {
            Ok(lease) => lease,
            Err(why) => return self.wait(why).await,
        };
        let now = Instant::now().into_std();
        let call = self.trace.begin("generate", SpanKind::Client, now);
        self.request.trace = call.context();
        self.call = call.into_span();
        if let Some(call) = &self.call {
            trace::begin(call, &lease.target().entry.name, self.losses);
        }
        match lease.target().client.generate(self.request.clone()).await {
            Ok(stream) => {
                if let Some(info) = lease.target().info() {
                    self.tally.fingerprint = Some(fingerprint(&info));
                    if !self.started {
                        self.identity = Some(Identity::of(&info, self.longest()));
                    }
                }
                self.current = Some((lease, stream));
                self.is_past_prompt = false;
                Ok(())
            }
            Err(error) => {
                self.found(&lease, &error);
                self.avoid = Some(lease.target().entry.name.clone());
                self.after(error)
            }
        }
    }

    fn started(&mut self, cached_tokens: u32, prompt_logprobs: Vec<TokenLogprobs>) {
        // A replay says it again, about a longer prompt.
        if !self.started {
            let prompt = self.request.prompt_len as u32;
            self.tally.cached_tokens = cached_tokens.min(prompt);
            self.tally.prompt_logprobs = prompt_logprobs;
            let (all, cached) = (&self.metrics.prompt_tokens, &self.metrics.cached_tokens);
            all.inc_by(prompt.into());
            cached.inc_by(self.tally.cached_tokens.into());
        }
        self.started = true;
        self.deadline = None;
    }

    fn count(&mut self, round: &Round) {
        let tokens = &round.tokens;
        self.deadline = None;
        self.request
            .tokens
            .extend(tokens.iter().map(|emitted| emitted.token));
        let tally = &mut self.tally;
        tally.emitted += tokens.len() as u32;
        tally.accepted += tokens.iter().filter(|emitted| emitted.accepted).count() as u32;
        tally.drafted += round.drafted;
        tally.drafts += u32::from(round.drafted > 0);
        tally.rounds += u32::from(self.is_past_prompt);
        if let Some(stats) = &round.stats {
            tally.stats = (**stats).clone();
        }
        self.is_past_prompt = true;
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            let took = now - last;
            tally.decode += took;
            self.metrics.inter_token.observe(took.as_secs_f64());
        }
        if tally.first.is_none() {
            let took = now - self.arrived;
            tally.first = Some(took);
            if let Some(call) = &self.call {
                call.event("first token", now.into_std());
            }
            self.metrics.first_token.observe(took.as_secs_f64());
        }
    }

    /// Length of its prompt and of the longest output that it may have.
    fn longest(&self) -> u32 {
        let prompt = u32::try_from(self.request.prompt_len).unwrap_or(u32::MAX);
        prompt.saturating_add(self.request.max_tokens)
    }

    fn instance(&self) -> String {
        self.current
            .as_ref()
            .map_or_else(String::new, |(lease, _)| lease.target().entry.name.clone())
    }

    /// The target that streamed gave up or is gone.
    fn lost(&mut self, error: GenerateError) -> Result<(), ApiError> {
        if let Some((lease, _)) = self.current.take() {
            self.found(&lease, &error);
            self.avoid = Some(lease.target().entry.name.clone());
        }
        self.after(error)
    }

    /// Remembers for other requests what this one found out.
    fn found(&self, lease: &Lease, error: &GenerateError) {
        match error {
            GenerateError::Invalid(_) => {}
            GenerateError::Busy { .. } => lease.target().set_busy(),
            GenerateError::Lost { .. } => self.shared.targets.lost(lease.target()),
        }
    }

    /// Whether to go on after an error.
    fn after(&mut self, error: GenerateError) -> Result<(), ApiError> {
        if let Some(call) = self.call.take() {
            call.fail(error.to_string());
        }
        match error {
            GenerateError::Invalid(message) => Err(ApiError::invalid(message)),
            GenerateError::Busy { .. } => Ok(()),
            GenerateError::Lost { instance, cause } => {
                self.losses += 1;
                self.metrics.replays.inc();
                let id = &self.request.request_id;
                let emitted = self.tally.emitted;
                tracing::warn!(request = id, target = instance, cause, emitted, "replaying");
                if self.losses <= self.shared.config.max_replays {
                    return Ok(());
                }
                let message = format!("{} targets were lost under this request", self.losses);
                Err(ApiError::unavailable(message))
            }
        }
    }

    /// Waits for a target to come up, if that is worth it.
    async fn wait(&mut self, why: NoTarget) -> Result<(), ApiError> {
        let replay = self.shared.config.replay;
        let began = self.tally.emitted > 0 || self.losses > 0;
        let expected = self
            .shared
            .targets
            .left_within(&self.job.model.name, replay);
        // Somebody else is there and full: that is for clients to know. Nobody is, and was just now:
        // whoever is to follow may not be listed or have answered yet.
        let hopeful = began || (expected && why != NoTarget::AllBusy);
        if !hopeful {
            return Err(refusal(&self.job.model.name, why));
        }
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + replay);
        if Instant::now() >= deadline {
            return Err(refusal(&self.job.model.name, why));
        }
        // The one that was lost may come back.
        self.avoid = None;
        let mut changes = self.shared.targets.changes();
        tokio::time::sleep_until(deadline.min(Instant::now() + RETRY_PAUSE)).await;
        let changed = tokio::time::timeout_at(deadline, changes.changed());
        // Late or not, the table is looked at again.
        let _ = tokio::time::timeout(RETRY_PAUSE, changed).await;
        Ok(())
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.metrics.running.dec();
        // Whatever became of it: what targets did was done.
        self.metrics
            .generation_tokens
            .inc_by(u64::from(self.tally.emitted));
        self.metrics.accepted.inc_by(u64::from(self.tally.accepted));
        self.metrics.drafts.inc_by(u64::from(self.tally.drafts));
        self.metrics.drafted.inc_by(u64::from(self.tally.drafted));
        if !self.over {
            self.metrics.cancelled.inc();
        }
    }
}

fn refusal(model: &str, why: NoTarget) -> ApiError {
    let reason = match why {
        NoTarget::NoneListed => "none is listed",
        NoTarget::NoneReady => "none of those listed answers yet",
        NoTarget::AllLeaving => "all are draining",
        NoTarget::AllBusy => return ApiError::full(model),
        NoTarget::NoneAlike => {
            "those that answer run other weights than the one that was lost, or have less room"
        }
    };
    ApiError::unavailable(format!(
        "no target for model '{model}' is ready: {reason}; try again soon"
    ))
}

/// Weights and arithmetic, short: with equal fingerprints, equal seeds give equal outputs.
fn fingerprint(info: &TargetInfo) -> String {
    let digest: String = info.model_digest.chars().take(12).collect();
    format!("fp_{digest}_{}", info.path.replace('/', "-"))
}
