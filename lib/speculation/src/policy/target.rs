//! The target's side of one request.
//!
//! A driver asks [`TargetSession::next`] what to verify, runs the pass, hands the tokens to
//! [`TargetSession::handle`] and sends the messages that come back. It calls `next` again when a
//! message arrived or the time it was told to wait for has come.

mod ahead;
mod asked;
mod cache;
mod exchange;
mod sought;
mod verified;

use alloc::vec::Vec;
use core::time::Duration;

pub use self::ahead::{AheadStats, Drafted, Lookup, Source};
pub use self::asked::Answer;
pub use self::exchange::{Effects, Input, Next, TargetStats};
pub use self::sought::{Course, Sought};
pub use self::verified::Verified;
use self::{ahead::Author, asked::Asked, cache::Cache};
use super::{Patience, Policy};
use crate::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    message::{Cutoffs, Keyed as _, Open, Outcome, ToDraft, ToTarget},
    proposal::Laws,
    saguaro::Saguaro,
    sampling::SamplingParams,
    trace::TraceContext,
    verify::Verification,
};

/// Bindings in a row of which the endpoint loses the thread before anything of them comes: then it is left
/// in peace for a while, for each costs the whole sequence.
const MOST_UNHEARD: u32 = 8;
/// The wait before an endpoint is asked again doubles with each refusal in a row, this often at most:
/// to ask costs the whole sequence.
pub const MOST_DOUBLINGS: u32 = 3;

/// What a session is made of.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Name of the session, unique on its link.
    pub session: SessionId,
    /// Who proposes how much.
    pub policy: Policy,
    /// How the request samples; told to the endpoint.
    pub sampling: SamplingParams,
    /// How its tokens are verified, if any noise is in them; told to the endpoint.
    pub verification: Verification,
    /// Seed of the request's noise; told to the endpoint.
    pub seed: Seed,
    /// How many of the tokens at start are the prompt.
    pub prompt_len: u32,
    /// Most tokens the sequence may get, prompt included.
    pub max_len: usize,
    /// Entries of the vocabulary: windows with other tokens end the speculation of this session.
    pub vocab_size: u32,
    /// How long to wait for windows.
    pub patience: Patience,
    /// How long after a refusal that may be temporary to ask again; longer after several in a row.
    pub reopen_after: Duration,
    /// Whose prefixes endpoints may reuse, see [`Open::salt`].
    pub salt: [u8; 32],
    /// Whether endpoints are to keep nothing of its tokens.
    pub keeps_nothing: bool,
    /// Trace that endpoints are told to add to, if any.
    pub trace: Option<TraceContext>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// No endpoint, or one that does not want this session.
    Down,
    /// `Open` was sent; windows of this epoch count.
    Bound,
    /// Refused; `Open` goes out again with the first verdict after this time.
    Refused(Duration),
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// May be verified, or wait for its window until the deadline.
    Collecting {
        deadline: Option<Duration>,
    },
    /// The driver has been told to verify.
    Verifying,
    Finished,
}

/// One request on the target.
#[derive(Debug)]
pub struct TargetSession {
    config: TargetConfig,
    tokens: Vec<TokenId>,
    link: Link,
    epoch: Epoch,
    round: Round,
    phase: Phase,
    window: Proposals,
    /// What its tokens were drawn from.
    laws: Laws,
    author: Author,
    /// A window for the round under verification that came too late for it.
    late: Proposals,
    late_laws: Laws,
    /// Continuations for outcomes of the round under verification.
    cache: Cache,
    /// Whether the endpoint is to draft for them and to keep that.
    kept: bool,
    /// The last window asked for, until it is answered.
    asked: Option<Asked>,
    /// Whether the endpoint has said anything since the last `Open`.
    spoken: bool,
    /// Whether anything has been drafted since.
    heard: bool,
    /// Consecutive requests without an answer.
    unanswered: u32,
    /// Verifications until the next request, while the endpoint does not answer.
    silence: u32,
    /// Consecutive refusals that may be temporary.
    refusals: u32,
    /// Consecutive bindings that the endpoint lost the thread of before anything of them came.
    unheard: u32,
    /// When the last verdict of which binding was sent, in whole microseconds.
    told: Option<(Epoch, u128)>,
    stats: TargetStats,
}

impl TargetSession {
    /// A session whose sequence so far is `tokens` (the prompt, and output that another target
    /// already emitted). Nothing is sent before [`Input::LinkUp`].
    pub fn new(mut config: TargetConfig, tokens: Vec<TokenId>) -> Self {
        config.verification = config.verification.of_request(&config.sampling);
        Self {
            config,
            tokens,
            link: Link::Down,
            epoch: Epoch(0),
            round: Round(0),
            phase: Phase::Collecting { deadline: None },
            window: Proposals::new(),
            author: Author::Endpoint,
            laws: Laws::default(),
            late: Proposals::new(),
            late_laws: Laws::default(),
            cache: Cache::default(),
            kept: false,
            asked: None,
            spoken: false,
            heard: false,
            unanswered: 0,
            silence: 0,
            refusals: 0,
            unheard: 0,
            told: None,
            stats: TargetStats::default(),
        }
    }

    /// Takes in what happened by `now`. Every input is legal in every state; one that does not fit
    /// has no effect.
    pub fn handle(&mut self, now: Duration, input: Input<'_>) -> Effects {
        let mut effects = Effects::default();
        if self.phase == Phase::Finished {
            return effects;
        }
        match input {
            Input::LinkUp => {
                self.refusals = 0;
                self.open(&mut effects);
            }
            Input::LinkDown => self.unbind(Link::Down),
            Input::Received(message) => self.receive(now, message, &mut effects),
            Input::Verified(verified) => {
                if self.phase == Phase::Verifying {
                    self.verified(now, verified, &mut effects);
                }
            }
            Input::Cancelled => self.finish(&mut effects),
        }
        effects
    }

    /// What to do at `now`.
    pub fn next(&mut self, now: Duration) -> Next<'_> {
        match self.phase {
            Phase::Finished => return Next::Finished,
            Phase::Verifying => {}
            Phase::Collecting {
                deadline: Some(until),
            } if now < until => {
                return Next::Wait { until };
            }
            Phase::Collecting { deadline } => {
                if deadline.is_some() {
                    self.missed();
                }
                self.phase = Phase::Verifying;
            }
        }
        Next::Verify(&self.window)
    }

    /// The window that is verified, or will be unless a better one comes first.
    pub fn window(&self) -> &Proposals {
        &self.window
    }

    /// The sequence: prompt and everything emitted.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Counts so far.
    pub fn stats(&self) -> TargetStats {
        self.stats
    }

    /// The current estimate of how long windows take; a good start for the next session with the
    /// same endpoint.
    pub fn patience(&self) -> &Patience {
        &self.config.patience
    }

    /// Starts with this estimate instead: what was learned of one endpoint says nothing about
    /// another. To be called before [`Input::LinkUp`].
    pub fn set_patience(&mut self, patience: Patience) {
        self.config.patience = patience;
    }

    /// How the window is to be verified.
    pub fn verification(&self) -> Verification {
        self.config.verification
    }

    /// What the tokens of the window were drawn from, with [`Verification::Rejection`]; none for
    /// certain ones.
    pub fn laws(&self) -> &Laws {
        &self.laws
    }

    /// Name of the session.
    pub fn id(&self) -> SessionId {
        self.config.session
    }

    /// Epoch of the current binding.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether an endpoint serves this session, as far as the target knows.
    pub fn is_bound(&self) -> bool {
        self.link == Link::Bound
    }

    /// Whether it answers, too: one that was silent is left in peace for a while.
    pub fn is_answered(&self) -> bool {
        self.is_bound() && self.silence == 0
    }

    fn open(&mut self, effects: &mut Effects) {
        if self.config.policy == Policy::Autoregressive {
            return;
        }
        if self.epoch != Epoch(0) {
            self.stats.reopened += 1;
        }
        self.unbind(Link::Bound);
        self.epoch = self.epoch.next();
        self.round = Round(0);
        self.spoken = false;
        self.heard = false;
        self.unanswered = 0;
        self.silence = 0;
        let policy = self.config.policy;
        // What follows the first verdict, and the token decided after it.
        let room = self.room(2);
        let most = policy.lookahead(u32::MAX).min(room);
        let branching = policy.branching(most);
        self.expect(most, 0);
        effects.messages.push(ToDraft::Open(Open {
            session: self.config.session,
            epoch: self.epoch,
            sampling: self.config.sampling.clone(),
            verification: self.config.verification,
            seed: self.config.seed,
            prompt_len: self.config.prompt_len,
            tokens: self.tokens.clone(),
            branching,
            salt: self.config.salt,
            keeps_nothing: self.config.keeps_nothing,
            trace: self.config.trace,
        }));
    }

    /// Drops what is expected of the current binding. A window under verification stays: it is
    /// only a proposal, wherever it came from.
    fn unbind(&mut self, link: Link) {
        self.link = link;
        self.asked = None;
        self.late.clear();
        self.expect_nothing();
        if let Phase::Collecting { deadline } = &mut self.phase {
            *deadline = None;
            self.window.clear();
            self.laws = Laws::default();
        }
    }

    fn receive(&mut self, now: Duration, message: &ToTarget, effects: &mut Effects) {
        let is_own = message.key() == (self.config.session, self.epoch);
        if !is_own || self.link != Link::Bound {
            return;
        }
        self.spoken = true;
        match message {
            ToTarget::Opened { .. } => self.refusals = 0,
            ToTarget::Account(account) => {
                let ahead = matches!(self.config.policy, Policy::Ssd(_));
                effects.account = Some(*account).filter(|_| ahead);
            }
            ToTarget::Refused { retry: true, .. } => self.rest(now),
            ToTarget::Refused { retry: false, .. } => self.unbind(Link::Down),
            // An honest draft says so of an outcome. Without one there is nothing that it could have missed,
            // and a session would be opened as often as somebody likes.
            ToTarget::Resync(_) if self.round == Round(0) => {}
            ToTarget::Resync(_) => self.begin_anew(now, effects),
            ToTarget::Window(window) => {
                self.heard = true;
                self.arrived(now, window, effects);
            }
            ToTarget::Entries(entries) => {
                self.heard = true;
                self.receive_entries(entries, effects);
            }
        }
    }

    /// Asks again after a while, the longer the more often it had to.
    fn rest(&mut self, now: Duration) {
        let wait = self.config.reopen_after.saturating_mul(1 << self.refusals);
        self.refusals = (self.refusals + 1).min(MOST_DOUBLINGS);
        self.unbind(Link::Refused(now.saturating_add(wait)));
    }

    /// The endpoint has lost the thread.
    fn begin_anew(&mut self, now: Duration, effects: &mut Effects) {
        self.unheard = if self.heard { 1 } else { self.unheard + 1 };
        if self.unheard < MOST_UNHEARD {
            self.open(effects);
        } else {
            effects.messages.push(self.close());
            self.rest(now);
        }
    }

    /// Whether all tokens are of the vocabulary; if not, nothing this endpoint says about the
    /// session can be of use, and it is let go.
    fn understands(
        &mut self,
        mut tokens: impl Iterator<Item = TokenId>,
        effects: &mut Effects,
    ) -> bool {
        let known = tokens.all(|token| token.0 < self.config.vocab_size);
        if !known {
            self.let_go(effects);
        }
        known
    }

    fn let_go(&mut self, effects: &mut Effects) {
        self.unbind(Link::Down);
        effects.messages.push(self.close());
    }

    fn verified(&mut self, now: Duration, verified: Verified<'_>, effects: &mut Effects) {
        let base_len = self.tokens.len() as u32;
        effects.lost = self.lose();
        let looked = self.look_up(&verified);
        self.tokens.extend_from_slice(verified.tokens);
        self.stats.rounds += 1;
        self.stats.drafted += self.window.len() as u32;
        self.stats.accepted += verified.accepted;
        self.stats.emitted += verified.tokens.len() as u32;
        self.window.clear();
        self.laws = Laws::default();
        self.late.clear();
        self.expect_nothing();
        self.phase = Phase::Collecting { deadline: None };
        if verified.last || self.tokens.len() >= self.config.max_len {
            return self.finish(effects);
        }
        let decided = self.round;
        self.round = self.round.next();
        if self.link != Link::Bound {
            if matches!(self.link, Link::Refused(until) if now >= until) {
                self.open(effects);
            }
            effects.local = self.propose_locally(&verified, self.room(1));
            return;
        }
        let kept = looked.kept.then_some(looked.first);
        let (settled, lookahead) = self.settle(looked, &verified, effects);
        let coupled = self.config.verification == Verification::Coupled;
        let tree = verified.tree.filter(|tree| lookahead > 0 && tree.nodes > 0);
        let nodes = tree.map_or(0, |tree| tree.nodes);
        if lookahead > 0 && !settled {
            self.asked = Some(Asked {
                round: self.round,
                since: now,
                lookahead,
                nodes,
                kept,
            });
            let deadline = now.saturating_add(self.config.patience.limit());
            self.phase = Phase::Collecting {
                deadline: Some(deadline),
            };
        }
        let ahead = if verified.refrains { 0 } else { lookahead };
        let branches = self.expect(ahead, nodes);
        effects.messages.push(ToDraft::Outcome(Outcome {
            session: self.config.session,
            epoch: self.epoch,
            round: decided,
            base_len,
            tokens: verified.tokens.to_vec(),
            lookahead,
            verifying: settled.then(|| self.window.clone()),
            branches,
            tree,
            cutoffs: self.cutoffs(&verified),
            saguaro: if coupled {
                Saguaro::default()
            } else {
                verified.saguaro
            },
            lingered: verified.lingered,
            awaited: self.awaited(&verified),
            elapsed: self.elapsed(now),
        }));
    }

    /// Where what the endpoint is asked for ends early: nowhere if its tokens are drawn by ratio, for
    /// whether one is left out must not depend on which it is.
    pub fn cutoffs(&self, verified: &Verified<'_>) -> Cutoffs {
        if self.config.verification == Verification::Coupled {
            verified.cutoffs
        } else {
            Cutoffs::default()
        }
    }

    /// Tokens of the next window that came while the verdict waited.
    fn awaited(&self, verified: &Verified<'_>) -> u32 {
        let height = self.window.height() as u32;
        verified.had.map_or(0, |had| height.saturating_sub(had))
    }

    /// Time since the last verdict of this binding, one being sent now.
    fn elapsed(&mut self, now: Duration) -> Duration {
        let told = (self.epoch, now.as_micros());
        let before = self
            .told
            .replace(told)
            .filter(|(epoch, _)| *epoch == self.epoch);
        let elapsed = before.map_or(0, |(_, before)| told.1.saturating_sub(before));
        Duration::from_micros(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }

    /// Tokens that the sequence has room for after `more` others.
    fn room(&self, more: usize) -> u32 {
        let room = self.config.max_len.saturating_sub(self.tokens.len() + more);
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    fn finish(&mut self, effects: &mut Effects) {
        self.phase = Phase::Finished;
        if self.link == Link::Bound {
            effects.messages.push(self.close());
        }
    }

    /// What ends the current binding at its endpoint.
    pub fn close(&self) -> ToDraft {
        ToDraft::Close {
            session: self.config.session,
            epoch: self.epoch,
        }
    }
}
