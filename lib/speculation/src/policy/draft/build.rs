//! Continuations for the outcomes of the round under verification.

use alloc::{vec, vec::Vec};

use super::{
    COUNTED_RANKS, DraftStats, forks::BranchWork, growth::Growth, layout::Layout, work::Ticket,
};
use crate::{
    Epoch, Proposals, Round, SessionId, TokenId,
    branch::BranchPlan,
    columns::Columns,
    fanout::{Guess, Planner},
    guess::{Candidates, OutcomeKey},
    message::{Cutoff, Cutoffs, Delivery, Entries, SparseDistribution, TreeBudget},
    noise::Domain,
    proposal::{Place, Proposer},
    saguaro::Saguaro,
    sampling::{RankBy, Sampler, Scratch},
    verify::Verification,
};

/// Most nodes of the tail of a fork.
pub const MAX_TAIL: usize = 64;

/// Fewest candidates that are ranked in a row, whatever the budget: they tell ranks on misses.
const FEWEST_CANDIDATES: usize = COUNTED_RANKS;
/// Most candidates that are ranked in a row.
const MOST_CANDIDATES: usize = 64;

/// Identifies a build; forks of one that has ended are of no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BuildId(pub(super) u64);

/// What a build is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) session: SessionId,
    pub(super) epoch: Epoch,
    pub(super) round: Round,
    pub(super) base_len: usize,
    pub(super) steps: usize,
    pub(super) budget: usize,
    pub(super) delivery: Delivery,
    pub(super) verification: Verification,
    pub(super) saguaro: Saguaro,
    /// Whether continuations may be trees.
    pub(super) tree: Option<TreeBudget>,
    /// How likely tokens have to be.
    pub(super) cutoffs: Cutoffs,
}

impl Order {
    /// Whether it matters how likely what is drawn is.
    fn weighs(&self) -> bool {
        self.tree.is_some() || self.cutoffs.of_entries().cuts()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing to do.
    #[default]
    Ended,
    /// The glue pass is to be fed.
    Glue,
    /// The candidates are there, the branches are not.
    Ranked,
    /// The branches are being decoded.
    Branching,
}

/// A build and its memory, which is kept from round to round.
#[derive(Debug)]
pub(super) struct Build {
    id: BuildId,
    order: Option<Order>,
    stage: Stage,
    /// What is under verification, and the outcomes that are drafted for.
    plan: BranchPlan,
    /// If the window is a tree, its glue pass: the decided token and the window, and their parents.
    glue: Vec<TokenId>,
    glue_parents: Vec<Option<u32>>,
    /// What may be decided.
    candidates: Candidates,
    /// Candidates of an earlier round, and its verdict, that nobody learned from yet.
    judged: Candidates,
    verdict: Option<OutcomeKey>,
    guesses: Vec<Guess>,
    /// Tokens that were looked at after the first ones of continuations, and those of them before which
    /// one ended; until somebody learns from it.
    ends: (u32, u32),
    /// Probability that a continuation goes on after a token.
    goes_on: f64,
    /// Of how many guesses, from the first on, each step draws a token; ever fewer.
    widths: Vec<u32>,
    /// For how many of these steps there was thought to be time.
    planned: usize,
    layout: Layout,
    growth: Growth,
    /// What the branches fed and drew, by guess: their outcomes' tokens, then a column a step.
    columns: Columns<TokenId>,
    /// What those that were drawn were drawn from, if that is to be told.
    q: Columns<SparseDistribution>,
    proposer: Proposer,
}

impl Build {
    pub(super) fn new() -> Self {
        Self {
            id: BuildId::default(),
            order: None,
            stage: Stage::Ended,
            plan: BranchPlan::new(),
            glue: Vec::new(),
            glue_parents: Vec::new(),
            candidates: Candidates::new(COUPLED, 0),
            judged: Candidates::new(COUPLED, 0),
            verdict: None,
            guesses: Vec::new(),
            ends: (0, 0),
            goes_on: 1.0,
            widths: Vec::new(),
            planned: 0,
            layout: Layout::default(),
            growth: Growth::new(),
            columns: Columns::new(),
            q: Columns::new(),
            proposer: Proposer::default(),
        }
    }

    pub(super) fn id(&self) -> Option<BuildId> {
        (self.stage == Stage::Branching).then_some(self.id)
    }

    /// Begins a build for the outcomes of `window` after `decided`; the one before is forgotten.
    pub(super) fn begin(&mut self, order: Order, decided: TokenId, window: Proposals) {
        self.clear();
        if self.plan.begin(order.base_len as u32, window).is_err() {
            return;
        }
        let window = self.plan.window();
        if !window.is_chain() {
            self.glue.push(decided);
            self.glue.extend_from_slice(window.tokens());
            self.glue_parents.extend(self.plan.glue_parents());
        }
        let wanted = order.budget.clamp(FEWEST_CANDIDATES, MOST_CANDIDATES);
        let by = match order.verification {
            Verification::Coupled => COUPLED,
            Verification::Rejection { .. } => RankBy::Likelihood,
        };
        self.candidates.reset(by, wanted);
        self.order = Some(order);
        self.stage = Stage::Glue;
    }

    /// Ends the build; what was drafted can still be looked up.
    pub(super) fn end(&mut self) -> bool {
        core::mem::take(&mut self.stage) != Stage::Ended
    }

    /// Forgets the build, but not what is to be learned from its verdict.
    pub(super) fn clear(&mut self) {
        self.id.0 += 1;
        self.order = None;
        self.stage = Stage::Ended;
        self.candidates.clear();
        self.guesses.clear();
        self.columns.clear();
        self.q.clear();
        self.widths.clear();
        self.layout.clear();
        self.glue.clear();
        self.glue_parents.clear();
        self.growth.sides.clear();
    }

    /// Tokens of the window whose glue pass is to be fed.
    pub(super) fn glue(&self) -> Option<(BuildId, usize)> {
        (self.stage == Stage::Glue).then_some((self.id, self.plan.window().len()))
    }

    /// What a glue pass over a tree feeds: the decided token and the window, and their parents.
    pub(super) fn glue_tree(&self) -> Option<(&[TokenId], &[Option<u32>])> {
        (!self.glue.is_empty()).then_some((&self.glue, &self.glue_parents))
    }

    /// Takes in the rows of the glue pass.
    pub(super) fn glued(&mut self, rows: &[&[f32]], sampler: &mut Sampler, scratch: &mut Scratch) {
        self.candidates
            .rank(sampler, scratch, self.plan.window(), |row| rows[row]);
        self.stage = Stage::Ranked;
    }

    /// Notes how the round ended, to be learned from when the next build is planned.
    pub(super) fn judge(&mut self, round: Round, key: OutcomeKey) {
        let ranked = self.candidates.rows().len() > 0;
        if ranked && self.order.is_some_and(|order| order.round == round) {
            core::mem::swap(&mut self.candidates, &mut self.judged);
            self.verdict = Some(key);
        }
    }

    /// The continuation that was drafted for an outcome of `round`, as far as it got.
    pub(super) fn find(
        &self,
        round: Round,
        key: OutcomeKey,
    ) -> impl Iterator<Item = TokenId> + use<'_> {
        let place = self.place_of(round, key);
        let column = place.map(|place| self.columns.of(place));
        let tokens = column.into_iter().flatten().skip(1).copied();
        tokens.take_while(|&token| token != Entries::ENDED)
    }

    /// Tokens of that continuation for which there was thought to be time, as far as it goes on.
    pub(super) fn planned(&self, round: Round, key: OutcomeKey) -> usize {
        let Some(place) = self.place_of(round, key) else {
            return 0;
        };
        let widths = self.widths.iter().take(self.planned);
        let planned = widths.take_while(|&&width| width as usize > place).count();
        let drawn = self.find(round, key).count().min(planned);
        if (drawn as u32) < self.step() {
            return drawn;
        }
        // What it would have had, if nothing had ended it, may have ended of itself.
        let more = (1..=planned - drawn).map(|i| libm::pow(self.goes_on, i as f64));
        drawn + libm::round(more.sum()) as usize
    }

    /// What its tokens were drawn from.
    pub(super) fn find_laws(
        &self,
        round: Round,
        key: OutcomeKey,
    ) -> impl Iterator<Item = SparseDistribution> + use<'_> {
        let place = self.place_of(round, key);
        let laws = place.map(|place| self.q.of(place));
        laws.into_iter().flatten().cloned()
    }

    /// The place of an outcome among the guesses.
    pub(super) fn place_of(&self, round: Round, key: OutcomeKey) -> Option<usize> {
        let known = self.order.is_some_and(|order| order.round == round);
        let mut guesses = self.guesses.iter().filter(|_| known);
        guesses.position(|guess| guess.key == key)
    }

    /// How what was drafted was lowered.
    pub(super) fn saguaro(&self) -> Option<Saguaro> {
        self.order.map(|order| order.saguaro)
    }

    /// Learns from the last verdict, and counts the rank of its token if that is listed.
    pub(super) fn learn(&mut self, planner: &mut Planner, stats: &mut DraftStats) {
        let (looked_at, ended) = core::mem::take(&mut self.ends);
        planner.observe_ends(looked_at, ended);
        let Some(verdict) = self.verdict.take() else {
            return;
        };
        stats.judged += 1;
        let rank = planner.observe(&self.judged, verdict);
        if let Some(count) = rank.and_then(|rank| stats.ranks.get_mut(rank)) {
            *count += 1;
        }
    }

    /// Whether candidates wait for a plan.
    pub(super) fn is_ranked(&self) -> bool {
        self.stage == Stage::Ranked
    }

    /// Spends the budget on the likeliest outcomes.
    pub(super) fn plan(&mut self, planner: &mut Planner) {
        let Some(order) = self.order.filter(|_| self.stage == Stage::Ranked) else {
            return;
        };
        planner.plan(&self.candidates, order.budget, &mut self.guesses);
        self.goes_on = if order.cutoffs.of_entries().cuts() {
            planner.estimates().goes_on()
        } else {
            1.0
        };
        if order.weighs() {
            self.growth.chances = planner.estimates().chances();
        }
        self.widths.clear();
        self.widths.resize(order.steps, self.guesses.len() as u32);
        self.planned = order.steps;
        self.lay_out(order);
    }

    /// Draws for the first `widths[i]` guesses in step i, and in steps after the last of them for as
    /// many as in that; never for more than in the step before. No effect once branches have begun.
    pub(super) fn grant(&mut self, widths: &[u32]) {
        let waits = self.stage == Stage::Branching && self.step() == 0;
        let Some(order) = self.order.filter(|_| waits) else {
            return;
        };
        self.planned = widths.len().min(order.steps);
        let mut granted = widths.iter().copied();
        let mut most = u32::MAX;
        let narrowed = self.widths.iter().map(|&width| {
            most = most.min(granted.next().unwrap_or(u32::MAX));
            most.min(width)
        });
        let narrowed: Vec<u32> = narrowed.take_while(|&width| width > 0).collect();
        if narrowed != self.widths {
            self.guesses
                .truncate(narrowed.first().map_or(0, |&width| width as usize));
            self.widths = narrowed;
            self.lay_out(order);
        }
    }

    /// Probability that one of its continuations goes on after a token.
    pub(super) fn goes_on(&self) -> f64 {
        self.goes_on
    }

    /// How likely tokens of a window have to be that is asked for.
    pub(super) fn window_cutoff(&self) -> Cutoff {
        let order = self.order.as_ref();
        order.map_or_else(Cutoff::default, |order| order.cutoffs.of_window())
    }

    pub(super) fn guesses(&self) -> &[Guess] {
        if self.stage == Stage::Branching {
            &self.guesses
        } else {
            &[]
        }
    }

    /// Tokens that the longest continuations have yet to draw.
    pub(super) fn steps_left(&self) -> u32 {
        if self.stage == Stage::Branching {
            self.widths.len() as u32 - self.step()
        } else {
            0
        }
    }

    /// The next step of the branches.
    pub(super) fn work(&self, ticket: Ticket) -> Option<BranchWork<'_>> {
        (self.stage == Stage::Branching).then(|| BranchWork {
            ticket,
            build: self.id,
            step: self.step(),
            layout: &self.layout,
        })
    }

    /// Takes in the rows of a step, and counts what they came to; the part to be sent, if any.
    /// `sampler` is at the token after the last decided one, and is there again afterwards.
    pub(super) fn stepped(
        &mut self,
        rows: &[&[f32]],
        sampler: &mut Sampler,
        scratch: &mut Scratch,
        stats: &mut DraftStats,
    ) -> Option<Entries> {
        let order = self.order?;
        if rows.len() != self.layout.rows().len() {
            self.end();
            return None;
        }
        let step = self.step();
        let base = sampler.history().len();
        let (mut node, mut depth) = (0, 0);
        let width = self.layout.rows().map(|(_, guess)| guess + 1).max();
        let mut column = vec![Entries::ENDED; width.unwrap_or(0)];
        let mut laws = Vec::new();
        self.growth.sides.clear();
        for ((branch, guess), row) in self.layout.rows().zip(rows) {
            // Branches come by ascending node, so a chain is only ever extended.
            let accepted = self.plan.branches()[branch].accepted;
            if accepted != node {
                let window = self.plan.window();
                let kept = if window.is_chain() { depth } else { 0 };
                sampler.truncate(base + kept);
                let spelled = window.spelled(accepted);
                spelled[kept..]
                    .iter()
                    .for_each(|&token| sampler.push(token));
                (node, depth) = (accepted, spelled.len());
            }
            let own = self.columns.of(guess);
            own.for_each(|&token| sampler.push(token));
            column[guess] = match order.verification {
                Verification::Coupled if order.weighs() => {
                    let drawn = self.growth.draw((guess, step), row, sampler, scratch);
                    drawn.unwrap_or(Entries::ENDED)
                }
                Verification::Coupled => sampler.choose(row, scratch),
                Verification::Rejection { support } => {
                    // The window that follows this outcome starts after its decided token.
                    let place = Place {
                        start: (order.base_len + depth + 1) as u32,
                        index: step,
                    };
                    let among = (support, order.saguaro);
                    let proposer = &mut self.proposer;
                    let (token, q) = proposer.draw(sampler, scratch, row, place, among);
                    if order.tree.is_some() {
                        let branch = (guess, step);
                        self.growth
                            .draw_beside(branch, token, proposer, sampler.seed());
                    }
                    laws.resize(rows.len(), SparseDistribution::default());
                    laws[guess] = q;
                    token
                }
            };
            sampler.truncate(base + depth);
        }
        sampler.truncate(base);
        let looked_at = rows.len() as u32;
        let drawn = Entries::drawn_of(&column);
        if step > 0 && order.cutoffs.of_entries().cuts() {
            self.ends.0 += looked_at;
            self.ends.1 += looked_at - drawn;
        }
        stats.built += drawn;
        self.columns.push(column);
        self.q.push(laws);
        self.go_on();
        let sends = order.delivery == Delivery::Push;
        sends.then(|| self.part(order, step))
    }

    /// Lays out the next step, or ends the build after the last.
    fn go_on(&mut self) {
        let step = self.step() as usize;
        let column = self.columns.get(step);
        let width = self.widths.get(step).map_or(0, |&width| width as usize);
        self.layout.advance(&column[..width.min(column.len())]);
        if self.layout.rows().len() == 0 {
            self.stage = Stage::Ended;
        }
    }

    /// The column that `step` drew.
    fn part(&self, order: Order, step: u32) -> Entries {
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
            before: step,
            keys,
            tokens: self.columns.get(step as usize + 1).to_vec(),
            q: self.q.get(step as usize).to_vec(),
            saguaro: order.saguaro,
            sides: self.growth.sides.clone(),
        }
    }

    /// Steps that the branches have made.
    fn step(&self) -> u32 {
        self.columns.count().saturating_sub(1) as u32
    }

    /// From guesses to branches and forks.
    fn lay_out(&mut self, order: Order) {
        let keys = self.guesses.iter().map(|guess| guess.key);
        if self.plan.set(keys).is_err() || self.guesses.is_empty() {
            self.stage = Stage::Ended;
            return;
        }
        self.stage = Stage::Branching;
        if order.weighs() {
            let branches = self.guesses.len();
            self.growth.begin(
                order.tree,
                order.cutoffs.of_entries(),
                order.steps,
                branches,
            );
        }
        let glued = self.glue_tree().is_some();
        self.layout
            .begin(&self.plan, &self.guesses, &self.widths, glued);
        self.q.clear();
        self.columns.clear();
        self.columns
            .push(self.guesses.iter().map(|guess| guess.key.token));
        self.go_on();
    }
}

/// What outcomes are ranked by if both sides share the noise.
pub(super) const COUPLED: RankBy = RankBy::Noise(Domain::Coupled);
