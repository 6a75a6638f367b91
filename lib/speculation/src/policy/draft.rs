//! The endpoint's side of one session.
//!
//! The session knows the sequence the engine should hold: the tokens the target decided, then its
//! own proposals or the window under verification. A driver asks [`DraftSession::work`], truncates
//! its engine sequence to `keep`, feeds the tokens, and reports with [`DraftSession::stepped`];
//! verdicts may arrive in between. The driver may feed fewer tokens than offered (a chunk of a long
//! prompt).
//!
//! A session whose target wants entries also drafts for the outcomes of the verification under way:
//!
//! ```text
//! Outcome ──> work: glue pass ──> stepped ──> plan ──> branches: step 0 ──> branched ──> Entries
//!    ^                                        grant       └ step 1 ──> branched ──> Entries ..
//!    └── the next one ends this wherever it is
//! ```
//!
//! Branches live in forks of the session's sequence, which the driver makes at step 0 and drops
//! when [`DraftSession::build`] names another build, or none. The sequence itself never holds them,
//! so nothing needs to be undone when a build is cut.

mod build;
mod planners;

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use self::build::{Build, Order};
pub use self::{
    build::{BranchWork, BuildId, ForkFeed, MAX_TAIL},
    planners::Planners,
};
use crate::{
    Epoch, Round, SessionId, TokenId,
    fanout::{FanOut, Guess},
    message::{Branching, Open, Outcome, Resync, ToDraft, ToTarget, Window},
    sampling::{Sampler, Scratch},
};

/// Most outcomes that a session drafts for unless its driver says otherwise, whatever a target
/// asks for.
pub const MAX_BRANCHES: u32 = 256;

/// Ranks of decided tokens that are counted one by one.
pub const COUNTED_RANKS: usize = 32;

/// Feeding the engine: what a session wants next.
#[derive(Debug, PartialEq, Eq)]
pub struct Work<'a> {
    /// Hand this back to [`DraftSession::stepped`].
    pub ticket: Ticket,
    /// Truncate the engine's sequence to this many tokens first.
    pub keep: usize,
    /// Then feed these, or as many of the first of them as fit. Never empty.
    pub tokens: &'a [TokenId],
    /// Rows whose logits are needed, if all tokens are fed in this step.
    pub wants: Wants,
    /// What it is for.
    pub purpose: Purpose,
}

/// Which rows of a piece of [`Work`] need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// None.
    None,
    /// The last one.
    Last,
    /// All: the tokens are of use only if all of them go into one step. There are at most as many
    /// as a window has, and one more. A driver whose steps never take as many calls
    /// [`DraftSession::drop_branches`].
    All,
}

/// What work is for, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// The target waits for a window.
    Window,
    /// The target verifies; until it is done there is time to draft for its verdict.
    Ahead,
    /// Nobody waits: it only keeps pace with the target.
    Follow,
}

/// Identifies a piece of [`Work`] or of [`BranchWork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Windows sent.
    pub windows: u32,
    /// Windows whose first tokens had been drafted before they were asked for.
    pub prepared: u32,
    /// Builds of entries that were begun.
    pub builds: u32,
    /// Builds that a verdict ended before they were complete.
    pub cut: u32,
    /// Builds that the driver gave up.
    pub dropped: u32,
    /// Tokens that branches drew.
    pub built: u32,
    /// Tokens of continuations that were sent.
    pub pushed: u32,
    /// Verdicts that the candidates were held against.
    pub judged: u32,
    /// By rank of the decided token among the candidates of its row, 0 being the best: how often.
    /// Hits and misses alike.
    pub ranks: [u32; COUNTED_RANKS],
}

/// The window being drafted, and what to do then.
#[derive(Debug)]
struct Job {
    round: Round,
    lookahead: usize,
    branches: u32,
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
    aim: Aim,
}

/// What the logits of a step are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    Nothing,
    Token,
    Glue(BuildId),
    Branches(BuildId),
}

#[derive(Debug)]
struct Binding {
    epoch: Epoch,
    /// Round of the next `Outcome`.
    round: Round,
    /// An outcome was missed; only an `Open` helps.
    broken: bool,
    /// At some token of the sequence; brought to where it is needed.
    sampler: Sampler,
    branching: Option<Branching>,
    job: Option<Job>,
}

/// One session on an endpoint.
#[derive(Debug)]
pub struct DraftSession {
    session: SessionId,
    vocab_size: u32,
    max_len: usize,
    max_branches: u32,
    /// Epochs up to this one are closed or were refused.
    closed: Option<Epoch>,
    binding: Option<Binding>,
    /// Decided tokens, then proposals of the current job or the window under verification.
    tokens: Vec<TokenId>,
    decided: usize,
    /// Tokens whose KV the engine holds.
    fed: usize,
    flight: Option<Flight>,
    tickets: u64,
    build: Build,
    stats: DraftStats,
}

impl DraftSession {
    /// A session that nothing is known of yet. `vocab_size` and `max_len` are the draft model's.
    pub fn new(session: SessionId, vocab_size: u32, max_len: usize) -> Self {
        Self {
            session,
            vocab_size,
            max_len,
            max_branches: MAX_BRANCHES,
            closed: None,
            binding: None,
            tokens: Vec::new(),
            decided: 0,
            fed: 0,
            flight: None,
            tickets: 0,
            build: Build::new(),
            stats: DraftStats::default(),
        }
    }

    /// The same with another bound on the outcomes it drafts for.
    #[must_use]
    pub fn with_max_branches(mut self, max_branches: u32) -> Self {
        self.max_branches = max_branches;
        self
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
        let drafts = self.binding.as_ref()?.job.is_some();
        let end = self.tokens.len().min(self.max_len);
        let last = end.saturating_sub(1);
        // Logits are needed even of tokens whose KV is there already.
        let (keep, end, wants, purpose, aim) = if drafts {
            (
                self.fed.min(last),
                end,
                Wants::Last,
                Purpose::Window,
                Aim::Token,
            )
        } else if let Some((build, window)) = self.build.glue() {
            let first = last - window;
            let aim = Aim::Glue(build);
            if window == 0 {
                (self.fed.min(last), end, Wants::Last, Purpose::Ahead, aim)
            } else if self.fed < first {
                (self.fed, first, Wants::None, Purpose::Ahead, Aim::Nothing)
            } else {
                (first, end, Wants::All, Purpose::Ahead, aim)
            }
        } else {
            (self.fed, end, Wants::None, Purpose::Follow, Aim::Nothing)
        };
        if keep >= end {
            return None;
        }
        let ticket = self.take_off(keep, end, aim);
        Some(Work {
            ticket,
            keep,
            tokens: &self.tokens[keep..end],
            wants,
            purpose,
        })
    }

    /// Reports that the engine fed the first `fed` tokens of the work with this ticket. `logits`
    /// are the rows that were wanted, none if not all tokens were fed; they are used if nothing
    /// changed since. Returns the window, once it is complete.
    pub fn stepped(
        &mut self,
        ticket: Ticket,
        fed: usize,
        logits: &[&[f32]],
        scratch: &mut Scratch,
    ) -> Option<ToTarget> {
        let flight = self.flight.take_if(|flight| flight.ticket == ticket)?;
        if let Aim::Branches(_) = flight.aim {
            return None;
        }
        self.fed = flight.keep.saturating_add(fed).min(flight.valid);
        let binding = self.binding.as_mut()?;
        if !flight.current || self.fed < self.tokens.len() {
            return None;
        }
        match flight.aim {
            Aim::Nothing | Aim::Branches(_) => {}
            Aim::Token => {
                binding.job.as_ref()?;
                align(&mut binding.sampler, &self.tokens, self.tokens.len());
                let token = binding.sampler.choose(logits.first()?, scratch);
                self.tokens.push(token);
                return self.complete();
            }
            Aim::Glue(build) => {
                let window = &self.tokens[self.decided..];
                let current = self.build.glue() == Some((build, window.len()));
                if current && logits.len() == window.len() + 1 {
                    align(&mut binding.sampler, &self.tokens, self.decided);
                    self.build
                        .glued(window, logits, &mut binding.sampler, scratch);
                } else if current {
                    self.drop_branches();
                }
            }
        }
        None
    }

    /// Spends the budget of branches, if a glue pass is done that was not planned for yet; learns
    /// from the verdict before. Returns the outcomes that will be drafted for, likeliest first:
    /// what a driver that divides a budget over sessions needs before [`Self::grant`].
    pub fn plan(&mut self, planners: &mut Planners) -> &[Guess] {
        if self.build.is_ranked()
            && let Some(planner) = planners.for_session(self)
        {
            if let Some(rank) = self.build.learn(planner) {
                self.stats.judged += 1;
                if let Some(count) = rank.and_then(|rank| self.stats.ranks.get_mut(rank)) {
                    *count += 1;
                }
            }
            self.build.plan(planner);
        }
        self.build.guesses()
    }

    /// Drafts for the first `branches` of the planned outcomes only. No effect once their first
    /// step was made.
    pub fn grant(&mut self, branches: usize) {
        if branches == 0 {
            self.drop_branches();
        } else {
            self.build.grant(branches);
        }
    }

    /// The next step of the session's branches, if it has any planned. Forgets earlier work that
    /// was not reported.
    pub fn branches(&mut self) -> Option<BranchWork<'_>> {
        let build = self.build.id()?;
        let ticket = self.take_off(self.fed, self.fed, Aim::Branches(build));
        self.build.work(ticket)
    }

    /// Reports the step of the branches with this ticket: a row of logits for each branch. Returns
    /// the part of the entries that it completes.
    pub fn branched(
        &mut self,
        ticket: Ticket,
        logits: &[&[f32]],
        scratch: &mut Scratch,
    ) -> Option<ToTarget> {
        let flight = self.flight.take_if(|flight| flight.ticket == ticket)?;
        let binding = self.binding.as_mut()?;
        let Aim::Branches(build) = flight.aim else {
            return None;
        };
        if self.build.id() != Some(build) {
            return None;
        }
        align(&mut binding.sampler, &self.tokens, self.decided);
        let window = &self.tokens[self.decided..];
        let drawn = self.build.drawn();
        let part = self
            .build
            .stepped(window, logits, &mut binding.sampler, scratch);
        self.stats.built += (self.build.drawn() - drawn) as u32;
        let part = part?;
        self.stats.pushed += part.tokens.len() as u32;
        Some(ToTarget::Entries(part))
    }

    /// Gives up the branches of this round, for want of pages for example. The session goes on, and
    /// what was sent is of use.
    pub fn drop_branches(&mut self) {
        if self.build.end() {
            self.stats.dropped += 1;
        }
    }

    /// The build whose forks are in use, if any.
    pub fn build(&self) -> Option<BuildId> {
        self.build.id()
    }

    /// Steps that the branches of the build have yet to make.
    pub fn branch_steps(&self) -> u32 {
        self.build.steps_left()
    }

    /// Counts so far.
    pub fn stats(&self) -> DraftStats {
        self.stats
    }

    /// How the session's budgets are spent, and whether it is greedy.
    pub fn learns_as(&self) -> Option<(FanOut, bool)> {
        let binding = self.binding.as_ref()?;
        let branching = binding.branching?;
        Some((branching.fan_out, binding.sampler.params().is_greedy()))
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

    /// The sequence as the session wants it: decided tokens, then proposals or the window under
    /// verification.
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
        self.build.clear();
        self.binding = None;
        self.replace(&open.tokens);
        self.binding = Some(Binding {
            epoch: open.epoch,
            round: Round(0),
            broken: false,
            sampler,
            branching: open.branching,
            job: None,
        });
        if let Some(branching) = open.branching {
            self.begin_build(Round(0), branching.lookahead, branching.branches);
        }
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
                    && self.knows(&outcome.tokens)
                    && outcome
                        .verifying
                        .as_ref()
                        .is_none_or(|window| self.knows(window))
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
                self.build.clear();
                return Some(ToTarget::Resync(Resync {
                    session: self.session,
                    epoch: outcome.epoch,
                    have_len,
                }));
            }
        }
        self.judged(outcome);
        match &outcome.verifying {
            Some(window) => {
                self.set_window(window);
                let round = outcome.round.next();
                self.begin_build(round, outcome.lookahead, outcome.branches);
                None
            }
            None => self.start_job(outcome),
        }
    }

    /// Follows a verdict; what was drafted for it becomes proposals.
    fn judged(&mut self, outcome: &Outcome) {
        let asked = outcome.asks().unwrap_or(0) as usize;
        let mut drafted = Vec::new();
        // The target may have verified something else, if it lost patience with a window.
        let accepted = outcome
            .tokens
            .split_last()
            .map_or(&[][..], |(_, some)| some);
        let ours = self.tokens[self.decided..].starts_with(accepted);
        if let Some(key) = outcome.key().filter(|_| ours) {
            drafted.extend(self.build.find(outcome.round, key).take(asked));
            self.build.judge(outcome.round, key);
        }
        if self.build.end() {
            self.stats.cut += 1;
        }
        self.build.clear();
        let base = self.decided;
        self.follow(&outcome.tokens);
        let same = self.tokens[base..].len() == outcome.tokens.len();
        if same && !drafted.is_empty() && self.tokens.len() + drafted.len() <= self.max_len {
            self.tokens.extend_from_slice(&drafted);
            self.stats.prepared += 1;
        }
    }

    fn knows(&self, tokens: &[TokenId]) -> bool {
        tokens.iter().all(|token| token.0 < self.vocab_size)
    }

    /// Begins the window for the round after `outcome`.
    fn start_job(&mut self, outcome: &Outcome) -> Option<ToTarget> {
        let lookahead = outcome.asks()? as usize;
        // A draft shorter than the target answers with what it can, at worst nothing: the target
        // then does not wait in vain.
        let room = self.max_len.saturating_sub(self.decided);
        self.binding.as_mut()?.job = Some(Job {
            round: outcome.round.next(),
            lookahead: room.min(lookahead),
            branches: outcome.branches,
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
        let epoch = binding.epoch;
        let tokens = proposals[..job.lookahead].to_vec();
        self.stats.windows += 1;
        if binding.branching.is_some() {
            self.set_window(&tokens);
            self.begin_build(job.round, job.lookahead as u32, job.branches);
        }
        Some(ToTarget::Window(Window {
            session: self.session,
            epoch,
            round: job.round,
            base_len: self.decided as u32,
            tokens,
            q: Vec::new(),
        }))
    }

    /// Begins to draft for the outcomes of `round`, which verifies what follows the decided tokens.
    fn begin_build(&mut self, round: Round, lookahead: u32, branches: u32) {
        let Some((epoch, branching)) = self
            .binding
            .as_ref()
            .and_then(|binding| Some((binding.epoch, binding.branching?)))
        else {
            return;
        };
        // The deepest branch feeds its last token at the model's last position at most.
        let room = self.max_len.saturating_sub(self.tokens.len());
        let steps = room.min(lookahead as usize).min(MAX_TAIL);
        let budget = branches.min(self.max_branches) as usize;
        let window = self.tokens.len() - self.decided;
        // Nobody has use for a longer window, and its glue pass would be a burden for others.
        if self.decided == 0 || steps == 0 || budget == 0 || window > MAX_TAIL {
            return;
        }
        self.stats.builds += 1;
        self.build.begin(Order {
            session: self.session,
            epoch,
            round,
            base_len: self.decided,
            window,
            steps,
            budget,
            delivery: branching.delivery,
        });
    }

    /// Makes `window` what follows the decided tokens, as far as the model has room.
    fn set_window(&mut self, window: &[TokenId]) {
        let room = self.max_len.saturating_sub(self.decided);
        let window = &window[..window.len().min(room)];
        let proposals = &self.tokens[self.decided..];
        let common = proposals
            .iter()
            .zip(window)
            .take_while(|(a, b)| a == b)
            .count();
        if common < proposals.len() || common < window.len() {
            self.set_tail(self.decided + common, &window[common..]);
        }
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
        if let Some(binding) = &mut self.binding {
            binding.sampler.truncate(keep);
        }
        if let Some(flight) = &mut self.flight {
            flight.valid = flight.valid.min(keep);
            flight.current = false;
        }
    }

    /// Notes a step that is about to be made.
    fn take_off(&mut self, keep: usize, end: usize, aim: Aim) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.flight = Some(Flight {
            ticket,
            keep,
            valid: end,
            current: true,
            aim,
        });
        ticket
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
            self.build.clear();
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

/// Brings `sampler`, which is at some token of `tokens`, to the one after the first `len`.
fn align(sampler: &mut Sampler, tokens: &[TokenId], len: usize) {
    sampler.truncate(len);
    for &token in tokens.get(sampler.history().len()..len).unwrap_or_default() {
        sampler.push(token);
    }
}
