//! Windows that are waited for, and what comes of them.

use core::time::Duration;

use super::{Effects, Phase, TargetSession, ahead::Author};
use crate::{
    Proposals, Round,
    message::Window,
    policy::Policy,
    proposal::{Laws, explains_all},
    verify::Verification,
};

/// How long an endpoint took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Tokens in the window.
    pub tokens: u32,
    /// From the request for it to its arrival.
    pub took: Duration,
    /// Whether it came after its round had been verified without it.
    pub late: bool,
    /// Whether it had been drafted for the verdict, at least in part, by an endpoint that verdicts are
    /// looked up by: then it says nothing of how long such a window takes to draft.
    pub prepared: bool,
}

/// A window that was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) round: Round,
    pub(super) since: Duration,
    /// Tokens from first to last.
    pub(super) lookahead: u32,
    /// Most proposals of a tree; 0: it is to be a chain.
    pub(super) nodes: u32,
    /// Whether the endpoint was to draft for the verdict before it, and to keep that; then whether that
    /// was the first verdict of a binding.
    pub(super) kept: Option<bool>,
}

impl Asked {
    /// As much of what came as was asked for.
    pub(super) fn accept(&self, proposals: &Proposals) -> Proposals {
        let mut accepted = Proposals::new();
        if proposals.is_chain() || self.nodes > 0 {
            accepted.clone_from(proposals);
            accepted.cut_below(self.lookahead as usize);
        }
        if !accepted.is_chain() {
            accepted.truncate(self.nodes as usize);
        }
        accepted
    }
}

/// Verifications without speculation after two unanswered requests, before the next is made.
const FIRST_SILENCE: u32 = 4;
/// Silence doubles with each further unanswered request, up to this.
const LONGEST_SILENCE: u32 = 256;

/// Rounds after which an endpoint has read a sequence even if nothing that it drafted has come: it
/// may be too slow to draft ahead.
const CATCH_UP_ROUNDS: u32 = 32;

impl TargetSession {
    /// Whether the endpoint should have read the sequence.
    pub fn is_caught_up(&self) -> bool {
        self.is_bound() && (self.heard || self.round.0 >= CATCH_UP_ROUNDS)
    }

    /// Tokens to ask for: what the policy wants, if the endpoint answers and the sequence has room
    /// for them and the decided token.
    pub(super) fn wanted(&mut self, suggested: u32) -> u32 {
        if self.silence > 0 {
            self.silence -= 1;
            return 0;
        }
        self.config.policy.lookahead(suggested).min(self.room(1))
    }

    /// The window did not come. Once may be chance; an endpoint that stays silent is left in peace
    /// for longer and longer. One that has said anything may only be slower than was thought, so it is waited
    /// for longer, too: if it is told the next verdict before it has answered, it answers never.
    pub(super) fn missed(&mut self) {
        self.stats.missed += 1;
        if self.spoken {
            self.config.patience.back_off();
        }
        if let Some(doublings) = self.unanswered.checked_sub(1) {
            self.silence = (FIRST_SILENCE << doublings.min(16)).min(LONGEST_SILENCE);
        }
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Takes in a window.
    pub(super) fn arrived(&mut self, now: Duration, window: &Window, effects: &mut Effects) {
        let tokens = window.proposals.tokens().iter().copied();
        let explains = || explains_all(&window.q, window.saguaro, &window.proposals);
        if !self.understands(tokens, effects) || !self.explained(explains, effects) {
            return;
        }
        let Some(asked) = self.asked.take_if(|asked| asked.round == window.round) else {
            return;
        };
        let took = now.saturating_sub(asked.since);
        self.config.patience.observe(took);
        let fits = asked.round == self.round && window.base_len as usize == self.tokens.len();
        let waiting = matches!(self.phase, Phase::Collecting { deadline: Some(_) });
        effects.answer = Some(Answer {
            // A tree takes the endpoint as long as its longest chain.
            tokens: window.proposals.height() as u32,
            took,
            late: !(fits && waiting),
            prepared: asked.kept.is_some() && window.place.is_some(),
        });
        self.unanswered = 0;
        self.silence = 0;
        let proposals = asked.accept(&window.proposals);
        // How many are kept does not depend on which they are, or they would not have their law.
        let kept = window.q.get(..proposals.height()).unwrap_or(&window.q);
        let laws = Laws {
            q: kept.to_vec(),
            saguaro: window.saguaro,
        };
        if fits && waiting {
            self.window = proposals;
            self.author = Author::Endpoint;
            self.laws = laws;
            self.phase = Phase::Collecting { deadline: None };
        } else if fits && matches!(self.config.policy, Policy::Ssd(_)) {
            self.late = proposals;
            self.late_laws = laws;
        }
        if let Some(first) = asked.kept {
            // What comes too late had as well not been drafted.
            let place = window.place.filter(|_| fits && waiting);
            self.looked_up_there(place, (asked.lookahead, first), effects);
        }
    }

    /// Whether the laws of a message explain its tokens, if that has to be known. If not, nothing of the
    /// kind can be verified, and the endpoint is let go.
    pub(super) fn explained(
        &mut self,
        explains: impl FnOnce() -> bool,
        effects: &mut Effects,
    ) -> bool {
        let coupled = self.config.verification == Verification::Coupled;
        let explained = coupled || explains();
        if !explained {
            self.stats.unexplained += 1;
            self.let_go(effects);
        }
        explained
    }
}
