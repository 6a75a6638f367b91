//! The endpoint's side of one session.
//!
//! The session knows the sequence the engine should hold: the tokens the target decided, then its
//! own proposals. A driver asks [`DraftSession::work`], truncates its engine sequence to `keep`,
//! feeds the tokens, and reports with [`DraftSession::stepped`]; verdicts may arrive in between.
//! The driver may feed fewer tokens than offered (a chunk of a long prompt).

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use crate::{
    Epoch, Round, SessionId, TokenId,
    message::{Open, Outcome, Resync, ToDraft, ToTarget, Window},
    sampling::{Sampler, Scratch},
};

/// Feeding the engine: what a session wants next.
#[derive(Debug, PartialEq, Eq)]
pub struct Work<'a> {
    /// Hand this back to [`DraftSession::stepped`].
    pub ticket: Ticket,
    /// Truncate the engine's sequence to this many tokens first.
    pub keep: usize,
    /// Then feed these, or as many of the first of them as fit. Never empty.
    pub tokens: &'a [TokenId],
    /// Whether the logits of the last one are needed (if it is fed in this step). If not, the work
    /// only keeps pace with the target, and more urgent sessions may go first.
    pub wants_logits: bool,
}

/// Identifies a piece of [`Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The window being drafted.
#[derive(Debug)]
struct Job {
    round: Round,
    lookahead: usize,
}

/// What a step under way writes, while messages change the sequence under it.
#[derive(Debug)]
struct Flight {
    ticket: Ticket,
    keep: usize,
    /// Tokens up to here are still those the step was planned with.
    valid: usize,
    /// Nothing changed since the work was planned.
    current: bool,
}

#[derive(Debug)]
struct Binding {
    epoch: Epoch,
    /// Round of the next `Outcome`.
    round: Round,
    /// An outcome was missed; only an `Open` helps.
    broken: bool,
    sampler: Sampler,
    job: Option<Job>,
}

/// One session on an endpoint.
#[derive(Debug)]
pub struct DraftSession {
    session: SessionId,
    vocab_size: u32,
    max_len: usize,
    /// Epochs up to this one are closed or were refused.
    closed: Option<Epoch>,
    binding: Option<Binding>,
    /// Decided tokens, then proposals of the current job.
    tokens: Vec<TokenId>,
    decided: usize,
    /// Tokens whose KV the engine holds.
    fed: usize,
    flight: Option<Flight>,
    tickets: u64,
}

impl DraftSession {
    /// A session that nothing is known of yet. `vocab_size` and `max_len` are the draft model's.
    pub fn new(session: SessionId, vocab_size: u32, max_len: usize) -> Self {
        Self {
            session,
            vocab_size,
            max_len,
            closed: None,
            binding: None,
            tokens: Vec::new(),
            decided: 0,
            fed: 0,
            flight: None,
            tickets: 0,
        }
    }

    /// The answer to a message for a session that the endpoint does not have (its `Open` was lost,
    /// or the endpoint restarted). An `Open` is answered by making a session instead.
    pub fn answer_unknown(message: &ToDraft) -> Option<ToTarget> {
        match message {
            ToDraft::Outcome(outcome) => Some(ToTarget::Resync(Resync {
                session: outcome.session,
                epoch: outcome.epoch,
                have_len: 0,
            })),
            ToDraft::Open(_) | ToDraft::Close { .. } => None,
        }
    }

    /// Takes in a message of the target; the answer is to be sent. Every message is legal in every
    /// state.
    pub fn handle(&mut self, message: &ToDraft) -> Option<ToTarget> {
        match message {
            ToDraft::Open(open) if open.session == self.session => self.open(open),
            ToDraft::Outcome(outcome) if outcome.session == self.session => self.outcome(outcome),
            ToDraft::Close { session, epoch } if *session == self.session => {
                self.close(*epoch);
                None
            }
            ToDraft::Open(_) | ToDraft::Outcome(_) | ToDraft::Close { .. } => None,
        }
    }

    /// Gives the session up, for want of slots for example. The answer is to be sent; the driver
    /// may then forget the session.
    pub fn evict(&mut self, reason: &str) -> Option<ToTarget> {
        let epoch = self.binding.as_ref()?.epoch;
        self.close(epoch);
        Some(self.refuse(epoch, reason.to_string(), true))
    }

    /// What to feed the engine, if anything. Forgets earlier work that was not reported.
    pub fn work(&mut self) -> Option<Work<'_>> {
        self.flight = None;
        let wants_logits = self.binding.as_ref()?.job.is_some();
        let end = self.tokens.len().min(self.max_len);
        let keep = if wants_logits {
            // The logits after the last token are needed, even if its KV is there already.
            self.fed.min(end.saturating_sub(1))
        } else {
            self.fed
        };
        if keep >= end {
            return None;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.flight = Some(Flight {
            ticket,
            keep,
            valid: end,
            current: true,
        });
        Some(Work {
            ticket,
            keep,
            tokens: &self.tokens[keep..end],
            wants_logits,
        })
    }

    /// Reports that the engine fed the first `fed` tokens of the work with this ticket. `logits`
    /// are those of the last one; they are used if it was the last offered and nothing changed
    /// since. Returns the window, once it is complete.
    pub fn stepped(
        &mut self,
        ticket: Ticket,
        fed: usize,
        logits: Option<&[f32]>,
        scratch: &mut Scratch,
    ) -> Option<ToTarget> {
        let flight = self.flight.take_if(|flight| flight.ticket == ticket)?;
        self.fed = flight.keep.saturating_add(fed).min(flight.valid);
        let binding = self.binding.as_mut()?;
        if !flight.current || self.fed < self.tokens.len() {
            return None;
        }
        binding.job.as_ref()?;
        let token = binding.sampler.choose(logits?, scratch);
        binding.sampler.push(token);
        self.tokens.push(token);
        self.complete()
    }

    /// Name of the session.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// Whether the session holds a binding; if not, its slot is free.
    pub fn is_bound(&self) -> bool {
        self.binding.is_some()
    }

    /// Tokens still to be drafted for the window being made.
    pub fn remaining(&self) -> usize {
        let job = self
            .binding
            .as_ref()
            .and_then(|binding| binding.job.as_ref());
        job.map_or(0, |job| {
            job.lookahead
                .saturating_sub(self.tokens.len() - self.decided)
        })
    }

    /// The sequence as the session wants it: decided tokens, then proposals.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    fn open(&mut self, open: &Open) -> Option<ToTarget> {
        if self.closed.is_some_and(|closed| open.epoch <= closed) {
            return None;
        }
        if let Some(binding) = &self.binding {
            if open.epoch < binding.epoch {
                return None;
            }
            if open.epoch == binding.epoch {
                return Some(ToTarget::Opened {
                    session: self.session,
                    epoch: open.epoch,
                });
            }
        }
        let sampler = match self.admit(open) {
            Ok(sampler) => sampler,
            Err(reason) => {
                self.close(open.epoch);
                return Some(self.refuse(open.epoch, reason, false));
            }
        };
        self.binding = Some(Binding {
            epoch: open.epoch,
            round: Round(0),
            broken: false,
            sampler,
            job: None,
        });
        self.replace(&open.tokens);
        Some(ToTarget::Opened {
            session: self.session,
            epoch: open.epoch,
        })
    }

    fn admit(&self, open: &Open) -> Result<Sampler, String> {
        if let Some(token) = open.tokens.iter().find(|token| token.0 >= self.vocab_size) {
            let size = self.vocab_size;
            return Err(format!("token {token} is outside the vocabulary of {size}"));
        }
        let (len, limit) = (open.tokens.len(), self.max_len);
        if len >= limit {
            return Err(format!(
                "{len} tokens leave no room in a draft model of {limit} positions"
            ));
        }
        let prompt_len = open.prompt_len as usize;
        Sampler::new(open.sampling.clone(), open.seed, &open.tokens, prompt_len)
            .map_err(|invalid| invalid.to_string())
    }

    fn outcome(&mut self, outcome: &Outcome) -> Option<ToTarget> {
        if self.closed.is_some_and(|closed| outcome.epoch <= closed) {
            return None;
        }
        let follows = match &self.binding {
            Some(binding) if outcome.epoch < binding.epoch => return None,
            Some(binding) if outcome.epoch == binding.epoch => {
                if outcome.round < binding.round {
                    return None;
                }
                !binding.broken
                    && outcome.round == binding.round
                    && outcome.base_len as usize == self.decided
                    && outcome.tokens.iter().all(|token| token.0 < self.vocab_size)
            }
            // Its `Open` was lost or comes later.
            Some(_) | None => false,
        };
        let have_len = self.decided as u32;
        match &mut self.binding {
            Some(binding) if follows => {
                binding.round = outcome.round.next();
                binding.job = None;
            }
            binding => {
                if let Some(binding) = binding {
                    binding.broken = true;
                    binding.job = None;
                }
                return Some(ToTarget::Resync(Resync {
                    session: self.session,
                    epoch: outcome.epoch,
                    have_len,
                }));
            }
        }
        self.follow(&outcome.tokens);
        self.start_job(outcome)
    }

    /// Begins the window for the round after `outcome`.
    fn start_job(&mut self, outcome: &Outcome) -> Option<ToTarget> {
        if outcome.lookahead == 0 {
            return None;
        }
        // A draft shorter than the target answers with what it can, at worst nothing: the target
        // then does not wait in vain.
        let room = self.max_len.saturating_sub(self.decided);
        let lookahead = room.min(outcome.lookahead as usize);
        self.binding.as_mut()?.job = Some(Job {
            round: outcome.round.next(),
            lookahead,
        });
        self.complete()
    }

    /// Ends the job if there are enough proposals.
    fn complete(&mut self) -> Option<ToTarget> {
        let binding = self.binding.as_mut()?;
        let proposals = &self.tokens[self.decided..];
        let job = binding
            .job
            .take_if(|job| proposals.len() >= job.lookahead)?;
        Some(ToTarget::Window(Window {
            session: self.session,
            epoch: binding.epoch,
            round: job.round,
            base_len: self.decided as u32,
            tokens: proposals[..job.lookahead].to_vec(),
            q: Vec::new(),
        }))
    }

    /// Takes in what the target emitted after the decided tokens. Proposals that it confirms keep
    /// their KV; those that go on after the last one emitted stay proposals, since drafting again
    /// from the same tokens with the same noise would give the same (a window that came late is
    /// thus ready for the next round).
    fn follow(&mut self, emitted: &[TokenId]) {
        let proposals = &self.tokens[self.decided..];
        let common = proposals
            .iter()
            .zip(emitted)
            .take_while(|(a, b)| a == b)
            .count();
        let keep = self.decided + common;
        self.decided += emitted.len();
        if common == emitted.len() {
            return;
        }
        self.set_tail(keep, &emitted[common..]);
        if let Some(binding) = &mut self.binding {
            binding.sampler.truncate(keep);
            for &token in &emitted[common..] {
                binding.sampler.push(token);
            }
        }
    }

    /// Makes `tokens` the decided sequence; what it shares with the old one keeps its KV.
    fn replace(&mut self, tokens: &[TokenId]) {
        let common = self
            .tokens
            .iter()
            .zip(tokens)
            .take_while(|(a, b)| a == b)
            .count();
        self.set_tail(common, &tokens[common..]);
        self.decided = self.tokens.len();
    }

    fn set_tail(&mut self, keep: usize, tail: &[TokenId]) {
        self.tokens.truncate(keep);
        self.tokens.extend_from_slice(tail);
        self.fed = self.fed.min(keep);
        if let Some(flight) = &mut self.flight {
            flight.valid = flight.valid.min(keep);
            flight.current = false;
        }
    }

    fn close(&mut self, epoch: Epoch) {
        let current = self
            .binding
            .as_ref()
            .is_none_or(|binding| binding.epoch <= epoch);
        if current {
            self.binding = None;
            self.tokens.clear();
            self.decided = 0;
            self.fed = 0;
            self.flight = None;
        }
        self.closed = self.closed.max(Some(epoch));
    }

    fn refuse(&self, epoch: Epoch, reason: String, retry: bool) -> ToTarget {
        ToTarget::Refused {
            session: self.session,
            epoch,
            reason,
            retry,
        }
    }
}
