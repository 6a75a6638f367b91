//! Target and draft in one process: the target's state machine and the draft's own engine thread,
//! here without a thread, exchange their messages by hand.
//!
//! Nothing runs beside anything else, so each side does all it has to do before the other one goes
//! on: what is drafted ahead of a verdict is always ready, and outputs and counts are the same from
//! run to run.

use std::time::Duration;

use anyhow::Context as _;
use foretoken_draft::InProcess;
use foretoken_engine::{
    batch::{Engine, Feed, Reuse, SeqId, Wants},
    runner::RunnerInfo,
};
use foretoken_speculation::{
    Seed, SessionId, TokenId,
    message::ToTarget,
    policy::{
        Patience, Policy,
        target::{Effects, Input, Next, TargetConfig, TargetSession, Verified},
    },
    sampling::{Sampler, SamplingParams, Scratch, logprobs},
    verify::{Verification, coupled_chain},
};

use crate::failure::usage;

/// The only session.
const SESSION: SessionId = SessionId(0);

/// A completion to decode.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Prompt, at least one token.
    pub(super) prompt: Vec<TokenId>,
    /// How to sample.
    pub(super) sampling: SamplingParams,
    /// Where the randomness comes from.
    pub(super) seed: Seed,
    /// Who proposes.
    pub(super) policy: Policy,
    /// Most new tokens.
    pub(super) max_tokens: u32,
    /// Tokens that end the output.
    pub(super) stop: Vec<TokenId>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// A stop token, which is the last token of the output.
    Stop,
    /// `max_tokens` or the model's length.
    Length,
}

/// What a completion took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stats {
    /// Target passes after the prompt.
    pub(super) rounds: u32,
    /// Tokens proposed and verified.
    pub(super) drafted: u32,
    /// Of these, emitted.
    pub(super) accepted: u32,
    /// Verdicts that a window had been drafted for.
    pub(super) hits: u32,
    /// Verdicts that none had been drafted for, though one was to.
    pub(super) misses: u32,
}

/// A completion being decoded.
pub(super) struct Decoding {
    job: Job,
    target: Side,
    sampler: Sampler,
    scratch: Scratch,
    session: TargetSession,
    draft: Option<InProcess>,
    /// Why the draft drafted no more, the first time that it did not.
    refused: Option<String>,
    /// Most tokens of prompt and output together.
    max_len: usize,
    logprobs: Vec<f32>,
    finish: Finish,
    /// No wall clock: nothing here is waited for, so time only passes when a wait is over.
    now: Duration,
}

/// An engine and its one sequence.
struct Side {
    engine: Engine,
    seq: SeqId,
}

impl Decoding {
    /// Checks the job against the models.
    pub(super) fn new(job: Job, target: Engine, draft: Option<Engine>) -> anyhow::Result<Self> {
        let info = target.info().clone();
        check(&job, &info)?;
        let sampler = Sampler::new(
            job.sampling.clone(),
            job.seed,
            &job.prompt,
            job.prompt.len(),
        )
        .map_err(|invalid| usage(invalid.to_string()))?;
        let max_len = info
            .max_positions
            .min(job.prompt.len() + job.max_tokens as usize);
        let config = TargetConfig {
            session: SESSION,
            policy: job.policy,
            sampling: job.sampling.clone(),
            verification: Verification::Coupled,
            seed: job.seed,
            prompt_len: job.prompt.len() as u32,
            max_len,
            vocab_size: info.vocab_size as u32,
            patience: Patience::default(),
            reopen_after: Duration::ZERO,
            salt: [0; 32],
            keeps_nothing: false,
            trace: None,
        };
        let session = TargetSession::new(config, job.prompt.clone());
        let mut decoding = Self {
            target: Side::new(target),
            sampler,
            scratch: foretoken_engine::sampling::scratch(),
            session,
            draft: draft.map(InProcess::new),
            refused: None,
            max_len,
            logprobs: Vec::new(),
            finish: Finish::Length,
            now: Duration::ZERO,
            job,
        };
        decoding.prefill()?;
        if decoding.draft.is_some() {
            let effects = decoding.session.handle(decoding.now, Input::LinkUp);
            decoding.deliver(effects);
        }
        Ok(decoding)
    }

    /// Decodes until one more round is decided and returns its tokens; none once the output has
    /// ended.
    pub(super) fn round(&mut self) -> anyhow::Result<Option<&[TokenId]>> {
        if self.job.max_tokens == 0 {
            return Ok(None);
        }
        loop {
            let before = self.session.tokens().len();
            match self.session.next(self.now) {
                Next::Finished => return Ok(None),
                Next::Verify(window) => {
                    let window = window.tokens().to_vec();
                    self.draft_ahead();
                    self.verify(&window)?;
                    return Ok(Some(&self.session.tokens()[before..]));
                }
                Next::Wait { until } => {
                    if !self.draft_on() {
                        self.now = until;
                    }
                }
            }
        }
    }

    /// New tokens so far.
    pub(super) fn tokens(&self) -> &[TokenId] {
        &self.session.tokens()[self.job.prompt.len()..]
    }

    /// Log-probabilities of the new tokens.
    pub(super) fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// Why the output ended.
    pub(super) fn finish(&self) -> Finish {
        self.finish
    }

    /// Why the draft did not draft for all of it, if it did not.
    pub(super) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// What is being decoded.
    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    /// Counts so far. The session counts the prompt's pass, which decides the first token, too.
    pub(super) fn stats(&self) -> Stats {
        let stats = self.session.stats();
        Stats {
            rounds: stats.rounds.saturating_sub(1),
            drafted: stats.drafted,
            accepted: stats.accepted,
            hits: stats.ahead.hits,
            misses: stats.ahead.misses,
        }
    }

    /// Feeds all of the prompt but its last token, which the first round feeds.
    fn prefill(&mut self) -> anyhow::Result<()> {
        let (_, prefix) = self
            .job
            .prompt
            .split_last()
            .context("the prompt is empty")?;
        let max_rows = self.target.engine.info().max_rows;
        for chunk in prefix.chunks(max_rows) {
            self.target
                .feed(chunk, Wants::None)
                .context("cannot run the prompt")?;
        }
        Ok(())
    }

    /// One pass of the target over the last decided token and the window.
    fn verify(&mut self, window: &[TokenId]) -> anyhow::Result<()> {
        let decided = self.session.tokens();
        let last = decided.len() - 1;
        let mut rows = vec![decided[last]];
        rows.extend_from_slice(window);
        self.target.engine.truncate(self.target.seq, last)?;
        self.target
            .feed(&rows, Wants::All)
            .context("cannot run a step")?;
        let logits = self.target.engine.logits();
        let verdict = coupled_chain(&mut self.sampler, &mut self.scratch, window, |i| {
            logits.row(0, i)
        });
        let mut tokens = window[..verdict.accepted].to_vec();
        tokens.push(verdict.decided);
        tokens.truncate(self.max_len - decided.len());
        let stop = tokens
            .iter()
            .position(|token| self.job.stop.contains(token));
        if let Some(stop) = stop {
            tokens.truncate(stop + 1);
            self.finish = Finish::Stop;
        }
        for (i, token) in tokens.iter().enumerate() {
            self.logprobs
                .push(logprobs(logits.row(0, i), *token, 0, &mut self.scratch).logprob);
        }
        let verified = Verified {
            tokens: &tokens,
            accepted: verdict.accepted.min(tokens.len()) as u32,
            last: stop.is_some(),
            ..Verified::default()
        };
        let effects = self.session.handle(self.now, Input::Verified(verified));
        self.deliver(effects);
        Ok(())
    }

    /// Carries messages back and forth until nobody has any left.
    fn deliver(&mut self, effects: Effects) {
        let mut to_draft = effects.messages;
        let Some(draft) = &mut self.draft else {
            return;
        };
        loop {
            draft.tell(std::mem::take(&mut to_draft));
            for message in draft.answers() {
                if let ToTarget::Refused { reason, .. } = &message {
                    self.refused.get_or_insert_with(|| reason.clone());
                }
                let effects = self.session.handle(self.now, Input::Received(&message));
                to_draft.extend(effects.messages);
            }
            if to_draft.is_empty() {
                return;
            }
        }
    }

    /// Lets the draft make a step. False if it has nothing to do.
    fn draft_on(&mut self) -> bool {
        let worked = self.draft.as_mut().is_some_and(InProcess::step);
        self.deliver(Effects::default());
        worked
    }

    /// Lets the draft do all that it does while the target verifies.
    fn draft_ahead(&mut self) {
        while self.draft_on() {}
    }
}

impl Side {
    fn new(mut engine: Engine) -> Self {
        let seq = engine.open(&[], Reuse::Off);
        Self { engine, seq }
    }

    fn feed(&mut self, tokens: &[TokenId], logits: Wants) -> anyhow::Result<()> {
        self.engine.step(&[Feed {
            seq: self.seq,
            tokens,
            tree: None,
            logits,
        }])?;
        Ok(())
    }
}

/// What no engine could do, said in the words of the command line.
fn check(job: &Job, target: &RunnerInfo) -> anyhow::Result<()> {
    let RunnerInfo {
        vocab_size,
        max_positions,
        ..
    } = *target;
    if job.prompt.is_empty() {
        return Err(usage("the prompt is empty: give at least one token"));
    }
    if let Some(token) = job.prompt.iter().find(|token| token.index() >= vocab_size) {
        return Err(usage(format!(
            "token {token} is outside the vocabulary of {vocab_size}"
        )));
    }
    if job.prompt.len() >= max_positions {
        let len = job.prompt.len();
        return Err(usage(format!(
            "the prompt has {len} tokens; the model has room for {max_positions}, prompt and output \
             together, so a prompt may have at most {}",
            max_positions - 1
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
