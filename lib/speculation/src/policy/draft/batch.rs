//! Branches that begin together: from the outcomes that are drafted for to their continuations, column by
//! column.

use alloc::{vec, vec::Vec};

use super::{
    build::Order,
    growth::Growth,
    layout::{ForkFeed, Layout},
    seen::Seen,
};
use crate::{
    Proposals, TokenId,
    branch::BranchPlan,
    columns::Columns,
    fanout::{Chances, Guess},
    guess::OutcomeKey,
    message::{Delivery, Entries, SparseDistribution},
    proposal::{Place, Proposer},
    sampling::{Sampler, Scratch},
    verify::Verification,
};

/// Branches, and what they draw. Memory is kept from build to build.
#[derive(Debug)]
pub(super) struct Batch {
    /// Whether it begins after other branches of its build.
    late: bool,
    plan: BranchPlan,
    guesses: Vec<Guess>,
    /// Of how many guesses, from the first on, each step draws a token; ever fewer.
    widths: Vec<u32>,
    layout: Layout,
    growth: Growth,
    /// What the branches fed and drew, by guess: their outcomes' tokens, then a column a step.
    columns: Columns<TokenId>,
    /// What those that were drawn were drawn from, if that is to be told.
    q: Columns<SparseDistribution>,
    seen: Seen,
}

/// What draws: the session's sampler, at the token after the last decided one and there again afterwards,
/// and what it needs.
pub(super) struct Hand<'a> {
    pub(super) sampler: &'a mut Sampler,
    pub(super) scratch: &'a mut Scratch,
    pub(super) proposer: &'a mut Proposer,
}

/// What came of a step.
pub(super) struct Drawn {
    /// Continuations that had a row.
    pub(super) looked_at: u32,
    /// Those that went on.
    pub(super) tokens: u32,
    /// Whether these were their first tokens.
    pub(super) first: bool,
    /// The column, if it is to be sent.
    pub(super) part: Option<Entries>,
}

impl Batch {
    pub(super) fn new(late: bool) -> Self {
        Self {
            late,
            plan: BranchPlan::new(),
            guesses: Vec::new(),
            widths: Vec::new(),
            layout: Layout::default(),
            growth: Growth::new(),
            columns: Columns::new(),
            q: Columns::new(),
            seen: Seen::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.guesses.clear();
        self.widths.clear();
        self.layout.clear();
        self.growth.clear();
        self.columns.clear();
        self.q.clear();
        self.seen.clear();
    }

    /// What is thought of tokens by how clearly they are drawn.
    pub(super) fn expect(&mut self, chances: Chances) {
        self.growth.chances = chances;
    }

    /// Begins with branches for the first of these guesses, outcomes of `window`, in place of any others: in
    /// step i `widths[i]` of them draw. Says whether there are any.
    pub(super) fn begin(
        &mut self,
        order: &Order,
        window: &Proposals,
        guesses: impl IntoIterator<Item = Guess>,
        widths: impl IntoIterator<Item = u32>,
    ) -> bool {
        self.clear();
        self.guesses.extend(guesses);
        let widths = widths.into_iter().take_while(|&width| width > 0);
        self.widths.extend(widths);
        let most = self.widths.first().map_or(0, |&width| width as usize);
        self.guesses.truncate(most);
        let begun = self.plan.begin(order.base_len as u32, window.clone());
        let keys = self.guesses.iter().map(|guess| guess.key);
        if begun.and_then(|()| self.plan.set(keys)).is_err() {
            self.clear();
        }
        if order.weighs() {
            self.growth.begin(
                order.tree,
                order.cutoffs.of_entries(),
                order.steps,
                self.guesses.len(),
            );
        }
        let glued = !window.is_chain();
        self.layout
            .begin(&self.plan, &self.guesses, &self.widths, glued);
        self.columns
            .push(self.guesses.iter().map(|guess| guess.key.token));
        self.go_on();
        self.draws()
    }

    /// Whether it begins after other branches of its build.
    pub(super) fn begins_late(&self) -> bool {
        self.late
    }

    /// Whether any of its branches has a row in the next step.
    pub(super) fn draws(&self) -> bool {
        self.rows() > 0
    }

    /// Rows of the next step.
    pub(super) fn rows(&self) -> usize {
        self.layout.rows().len()
    }

    /// What to feed in that step, by fork.
    pub(super) fn feeds(&self) -> impl ExactSizeIterator<Item = ForkFeed<'_>> {
        self.layout.feeds()
    }

    /// Steps that the branches have made.
    fn step(&self) -> u32 {
        self.columns.count().saturating_sub(1) as u32
    }

    /// The place of an outcome among the guesses.
    pub(super) fn place_of(&self, key: OutcomeKey) -> Option<usize> {
        self.guesses.iter().position(|guess| guess.key == key)
    }

    /// How many there are.
    pub(super) fn guesses(&self) -> usize {
        self.guesses.len()
    }

    /// The continuation of the guess at this place, as far as it got.
    pub(super) fn tokens(&self, place: usize) -> impl Iterator<Item = TokenId> + use<'_> {
        let tokens = self.columns.of(place).skip(1).copied();
        tokens.take_while(|&token| token != Entries::ENDED)
    }

    /// What its tokens were drawn from.
    pub(super) fn laws(&self, place: usize) -> impl Iterator<Item = SparseDistribution> + use<'_> {
        self.q.of(place).cloned()
    }

    /// Whether nothing ended it.
    pub(super) fn went_on(&self, place: usize) -> bool {
        self.tokens(place).count() as u32 >= self.step()
    }

    /// In how many of the first `steps` it was to draw a token.
    pub(super) fn granted(&self, place: usize, steps: usize) -> usize {
        let widths = self.widths.iter().take(steps);
        widths.take_while(|&&width| width as usize > place).count()
    }

    /// What its branch saw.
    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// The fork that its branch is in.
    pub(super) fn fork_of(&self, place: usize) -> Option<usize> {
        self.layout.fork_of(place)
    }

    /// Takes in the rows of a step, as many as it has.
    pub(super) fn stepped(&mut self, order: &Order, rows: &[&[f32]], hand: &mut Hand<'_>) -> Drawn {
        let step = self.step();
        let base = hand.sampler.history().len();
        let width = self.layout.rows().map(|(_, guess)| guess + 1).max();
        let mut column = vec![Entries::ENDED; width.unwrap_or(0)];
        let mut laws = Vec::new();
        self.growth.sides.clear();
        let (mut node, mut depth) = (0, 0);
        for i in 0..rows.len() {
            let (branch, guess) = self.layout.row(i);
            // Branches come by ascending node, so a chain is only ever extended.
            let accepted = self.plan.branches()[branch].accepted;
            if accepted != node {
                let window = self.plan.window();
                let kept = if window.is_chain() { depth } else { 0 };
                hand.sampler.truncate(base + kept);
                let spelled = window.spelled(accepted);
                spelled[kept..]
                    .iter()
                    .for_each(|&token| hand.sampler.push(token));
                (node, depth) = (accepted, spelled.len());
            }
            let own = self.columns.of(guess);
            own.for_each(|&token| hand.sampler.push(token));
            column[guess] = match order.verification {
                Verification::Coupled => self.choose((branch, guess), order, rows[i], hand),
                Verification::Rejection { support } => {
                    // The window that follows this outcome starts after its decided token.
                    let start = (order.base_len + depth + 1) as u32;
                    let place = Place { start, index: step };
                    let (token, q) = self.draw((guess, place), (order, support), rows[i], hand);
                    laws.resize(rows.len(), SparseDistribution::default());
                    laws[guess] = q;
                    token
                }
            };
            hand.sampler.truncate(base + depth);
        }
        hand.sampler.truncate(base);
        let tokens = Entries::drawn_of(&column);
        self.columns.push(column);
        self.q.push(laws);
        self.seen.end_step();
        self.go_on();
        Drawn {
            looked_at: rows.len() as u32,
            tokens,
            first: step == 0,
            part: (order.delivery == Delivery::Push).then(|| self.part(order, step)),
        }
    }

    /// Chooses what follows in a branch, which the target chooses too if the draft is right about it.
    fn choose(
        &mut self,
        (branch, guess): (usize, usize),
        order: &Order,
        row: &[f32],
        hand: &mut Hand<'_>,
    ) -> TokenId {
        let (sampler, scratch) = (&*hand.sampler, &mut *hand.scratch);
        let ranks = Seen::ranks(guess);
        if ranks.is_none() && !order.weighs() {
            return sampler.choose(row, scratch);
        }
        let entry = (guess, self.step());
        let drawn = self.growth.draw(entry, ranks, row, (sampler, scratch));
        if let Some((row, node)) = self.growth.row().zip(self.layout.node(branch)) {
            self.seen.note(guess, node, &row);
        }
        drawn.unwrap_or(Entries::ENDED)
    }

    /// Draws what follows in a branch, and what it was drawn from.
    fn draw(
        &mut self,
        (guess, place): (usize, Place),
        (order, support): (&Order, u32),
        row: &[f32],
        hand: &mut Hand<'_>,
    ) -> (TokenId, SparseDistribution) {
        let (sampler, proposer) = (&*hand.sampler, &mut *hand.proposer);
        let among = (support, order.saguaro);
        let (token, q) = proposer.draw(sampler, hand.scratch, row, place, among);
        if order.tree.is_some() {
            let branch = (guess, place.index);
            self.growth
                .draw_beside(branch, token, proposer, sampler.seed());
        }
        (token, q)
    }

    /// Lays out the next step, if any branch goes on.
    fn go_on(&mut self) {
        let step = self.step() as usize;
        let column = self.columns.get(step);
        let width = self.widths.get(step).map_or(0, |&width| width as usize);
        self.layout.advance(&column[..width.min(column.len())]);
    }

    /// The column that `step` drew.
    fn part(&self, order: &Order, step: u32) -> Entries {
        let keys = if step == 0 {
            self.guesses.iter().map(|guess| guess.key).collect()
        } else {
            Vec::new()
        };
        Entries {
            session: order.session,
            epoch: order.epoch,
            round: order.round,
            base_len: order.base_len as u32,
            late: self.late,
            before: step,
            keys,
            tokens: self.columns.get(step as usize + 1).to_vec(),
            q: self.q.get(step as usize).to_vec(),
            saguaro: order.saguaro,
            sides: self.growth.sides.clone(),
        }
    }
}
