//! What a build has drafted for the outcome that came about.

use alloc::vec::Vec;

use super::{
    batch::Batch,
    build::{Build, BuildId, COUPLED},
};
use crate::{
    Round, TokenId,
    guess::{Candidates, OutcomeKey},
    message::SparseDistribution,
};

/// A branch whose outcome came about: what its fork has read follows the session's decided tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The build that the fork is of.
    pub build: BuildId,
    /// Its place among the forks of that.
    pub fork: usize,
    /// Tokens that it shares with the session's sequence.
    pub trunk_len: usize,
    /// The nodes of its tail that follow them, each a child of the one before.
    pub nodes: Vec<u32>,
    /// Their tokens, and those drawn after them.
    pub(super) tokens: Vec<TokenId>,
}

impl Build {
    /// Where an outcome of `round` is drafted for.
    fn found(&self, round: Round, key: OutcomeKey) -> Option<(&Batch, usize)> {
        self.order.filter(|order| order.round == round)?;
        let mut batches = [&self.early, &self.late].into_iter();
        batches.find_map(|batch| Some((batch, batch.place_of(key)?)))
    }

    /// The place of an outcome among those drafted for; those that begin later come after the others.
    pub(super) fn place_of(&self, round: Round, key: OutcomeKey) -> Option<usize> {
        let (batch, place) = self.found(round, key)?;
        let before = if batch.begins_late() {
            self.early.guesses()
        } else {
            0
        };
        Some(before + place)
    }

    /// The continuation that was drafted for an outcome of `round`, as far as it got.
    pub(super) fn find(
        &self,
        round: Round,
        key: OutcomeKey,
    ) -> impl Iterator<Item = TokenId> + use<'_> {
        let found = self.found(round, key).into_iter();
        found.flat_map(|(batch, place)| batch.tokens(place))
    }

    /// What its tokens were drawn from.
    pub(super) fn find_laws(
        &self,
        round: Round,
        key: OutcomeKey,
    ) -> impl Iterator<Item = SparseDistribution> + use<'_> {
        let found = self.found(round, key).into_iter();
        found.flat_map(|(batch, place)| batch.laws(place))
    }

    /// Tokens of that continuation for which there was thought to be time, as far as it goes on.
    pub(super) fn planned(&self, round: Round, key: OutcomeKey) -> usize {
        let Some((batch, place)) = self.found(round, key) else {
            return self.planned_unread(round, key);
        };
        let steps = self
            .planned
            .saturating_sub(usize::from(batch.begins_late()));
        let planned = batch.granted(place, steps);
        let drawn = batch.tokens(place).count().min(planned);
        if !batch.went_on(place) {
            return drawn;
        }
        // What it would have had, if nothing had ended it, may have ended of itself.
        let more = (1..=planned - drawn).map(|i| libm::pow(self.goes_on, i as f64));
        drawn + libm::round(more.sum()) as usize
    }

    /// The same of an outcome after the window, whose last token was not read in time: of what is
    /// likeliest there.
    fn planned_unread(&self, round: Round, key: OutcomeKey) -> usize {
        let known = self.order.is_some_and(|order| order.round == round);
        let at_end = known && self.is_open() && key.accepted as usize == self.window.len();
        let mut guesses = self.guesses.iter().filter(|_| at_end);
        let Some(place) = guesses.position(|guess| guess.key.accepted == key.accepted) else {
            return 0;
        };
        let widths = self.widths.iter().take(self.planned);
        let granted = widths.take_while(|&&width| width as usize > place).count();
        granted.saturating_sub(1)
    }

    /// Remembers what the branch of this outcome of `round` saw, if it saw anything: the next build is for
    /// what that drew.
    pub(super) fn recall(&mut self, round: Round, key: OutcomeKey) {
        let mut recalled = core::mem::replace(&mut self.recalled, Candidates::new(COUPLED, 0));
        recalled.clear();
        let found = self.found(round, key);
        for row in found
            .iter()
            .flat_map(|(batch, place)| batch.seen().rows(*place))
        {
            recalled.keep(&row);
        }
        self.recalled_for = found.map(|_| round.next());
        self.recalled = recalled;
    }

    /// The branch of this outcome of `round`, if there is one that is remembered.
    pub(super) fn confirmed(&self, round: Round, key: OutcomeKey) -> Option<Confirmed> {
        let order = self.order?;
        let (batch, place) = self.found(round, key)?;
        let before = if batch.begins_late() {
            self.early.feeds().len()
        } else {
            0
        };
        let nodes: Vec<u32> = batch.seen().nodes(place).collect();
        Some(Confirmed {
            build: self.id,
            fork: before + batch.fork_of(place).filter(|_| !nodes.is_empty())?,
            trunk_len: order.base_len + self.window.depth(key.accepted),
            nodes,
            tokens: [key.token].into_iter().chain(batch.tokens(place)).collect(),
        })
    }
}
