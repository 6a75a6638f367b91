//! Continuations for the outcomes of the round under verification.

use alloc::{vec, vec::Vec};

use super::{DraftStats, forks::BranchWork, second::Second, work::Ticket};
use crate::{
    Epoch, Proposals, Round, SessionId, TokenId,
    branch::{BranchPlan, Fork},
    fanout::{Guess, Planner},
    guess::{Candidates, OutcomeKey},
    message::{Delivery, Entries, SparseDistribution, TreeBudget},
    noise::Domain,
    proposal::{Place, Proposer},
    saguaro::Saguaro,
    sampling::{RankBy, Sampler, Scratch},
    verify::Verification,
};

/// Most nodes of the tail of a fork.
pub const MAX_TAIL: usize = 64;

/// Fewest candidates that are ranked in a row, whatever the budget: they teach ranks on misses.
const FEWEST_CANDIDATES: usize = 8;
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
    forks: Vec<Fork>,
    /// Nodes of the glue pass that each fork begins with, if that was a tree.
    paths: Vec<Vec<u32>>,
    /// Place in the plan of each guess, and the other way round.
    places: Vec<usize>,
    guess_of: Vec<usize>,
    second: Second,
    /// What the branches fed and drew, step by step: their outcomes' tokens, then a column a step.
    columns: Vec<TokenId>,
    /// What those that were drawn were drawn from, if that is to be told.
    q: Vec<SparseDistribution>,
    proposer: Proposer,
    parents: Vec<Option<u32>>,
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
            forks: Vec::new(),
            paths: Vec::new(),
            places: Vec::new(),
            guess_of: Vec::new(),
            second: Second::new(),
            columns: Vec::new(),
            q: Vec::new(),
            proposer: Proposer::default(),
            parents: Vec::new(),
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
        self.forks.clear();
        self.paths.clear();
        self.places.clear();
        self.glue.clear();
        self.glue_parents.clear();
        self.second.sides.clear();
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
        let (place, count) = self.place_of(round, key);
        let columns = place.and_then(|place| self.columns.get(count + place..));
        let columns = columns.unwrap_or_default();
        columns.iter().step_by(count.max(1)).copied()
    }

    /// What its tokens were drawn from.
    pub(super) fn find_laws(
        &self,
        round: Round,
        key: OutcomeKey,
    ) -> impl Iterator<Item = SparseDistribution> + use<'_> {
        let (place, count) = self.place_of(round, key);
        let q = place.and_then(|place| self.q.get(place..));
        q.unwrap_or_default().iter().step_by(count.max(1)).cloned()
    }

    /// The branch of an outcome, and how many there are.
    fn place_of(&self, round: Round, key: OutcomeKey) -> (Option<usize>, usize) {
        let known = self.order.is_some_and(|order| order.round == round);
        let keys = if known && !self.columns.is_empty() {
            self.plan.branches()
        } else {
            &[]
        };
        let place = keys.iter().position(|&branch| branch == key);
        (place, keys.len())
    }

    /// How what was drafted was lowered.
    pub(super) fn saguaro(&self) -> Option<Saguaro> {
        self.order.map(|order| order.saguaro)
    }

    /// Learns from the last verdict, and counts the rank of its token if that is listed.
    pub(super) fn learn(&mut self, planner: &mut Planner, stats: &mut DraftStats) {
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
        if order.tree.is_some() {
            self.second.chances = planner.estimates().chances();
        }
        self.lay_out(order);
    }

    /// Keeps the first `branches` guesses, unless their branches have begun.
    pub(super) fn grant(&mut self, branches: usize) {
        let begun = self.columns.len() > self.plan.branches().len();
        if let Some(order) = self.order
            && self.stage == Stage::Branching
            && !begun
            && branches < self.guesses.len()
        {
            self.guesses.truncate(branches);
            self.lay_out(order);
        }
    }

    pub(super) fn guesses(&self) -> &[Guess] {
        if self.stage == Stage::Branching {
            &self.guesses
        } else {
            &[]
        }
    }

    /// Tokens that the outcomes and their branches have.
    pub(super) fn drawn(&self) -> usize {
        self.columns.len()
    }

    /// Tokens that every branch has yet to draw.
    pub(super) fn steps_left(&self) -> u32 {
        let Some(order) = self.order.filter(|_| self.stage == Stage::Branching) else {
            return 0;
        };
        order.steps as u32 - self.step()
    }

    /// The next step of the branches.
    pub(super) fn work(&mut self, ticket: Ticket) -> Option<BranchWork<'_>> {
        if self.stage != Stage::Branching {
            return None;
        }
        let step = self.step();
        self.parents.clear();
        let parents = self.forks.iter().flat_map(|fork| fork.parents(step));
        self.parents.extend(parents);
        let count = self.plan.branches().len();
        Some(BranchWork {
            ticket,
            build: self.id,
            step,
            forks: &self.forks,
            paths: &self.paths,
            tokens: &self.columns[step as usize * count..],
            parents: &self.parents,
        })
    }

    /// Takes in the rows of a step; the part to be sent, if any. `sampler` is at the token after
    /// the last decided one, and is there again afterwards.
    pub(super) fn stepped(
        &mut self,
        rows: &[&[f32]],
        sampler: &mut Sampler,
        scratch: &mut Scratch,
    ) -> Option<Entries> {
        let order = self.order?;
        let count = self.plan.branches().len();
        if rows.len() != count {
            self.end();
            return None;
        }
        let step = self.step();
        let base = sampler.history().len();
        let (mut node, mut depth) = (0, 0);
        self.second.sides.clear();
        for (branch, row) in rows.iter().enumerate() {
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
            let own = self.columns[branch..].iter().step_by(count);
            own.for_each(|&token| sampler.push(token));
            let token = match order.verification {
                Verification::Coupled if order.tree.is_some() => {
                    let place = (self.guess_of[branch], step);
                    self.second.draw(branch, place, row, sampler, scratch)
                }
                Verification::Coupled => sampler.choose(row, scratch),
                Verification::Rejection { support } => {
                    // The window that follows this outcome starts after its decided token.
                    let place = Place {
                        start: (order.base_len + depth + 1) as u32,
                        index: step,
                    };
                    let among = (support, order.saguaro);
                    let (token, q) = self.proposer.draw(sampler, scratch, row, place, among);
                    self.q.push(q);
                    token
                }
            };
            sampler.truncate(base + depth);
            self.columns.push(token);
        }
        sampler.truncate(base);
        if self.step() as usize >= order.steps {
            self.stage = Stage::Ended;
        }
        (order.delivery == Delivery::Push).then(|| self.part(order, step))
    }

    /// The column that `step` drew.
    fn part(&self, order: Order, step: u32) -> Entries {
        let count = self.places.len();
        let column = &self.columns[(step as usize + 1) * count..];
        let q = self.q.get(step as usize * count..).unwrap_or_default();
        let law_at = |&place: &usize| q.get(place).cloned();
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
            tokens: self.places.iter().map(|&place| column[place]).collect(),
            q: self.places.iter().filter_map(law_at).collect(),
            saguaro: order.saguaro,
            sides: self.second.sides.clone(),
        }
    }

    /// Steps that the branches have made.
    fn step(&self) -> u32 {
        let count = self.plan.branches().len().max(1);
        (self.columns.len() / count).saturating_sub(1) as u32
    }

    /// From guesses to branches and forks.
    fn lay_out(&mut self, order: Order) {
        let keys = self.guesses.iter().map(|guess| guess.key);
        if self.plan.set(keys).is_err() || self.guesses.is_empty() {
            self.stage = Stage::Ended;
            return;
        }
        self.stage = Stage::Branching;
        let branches = self.plan.branches();
        self.q.clear();
        self.columns.clear();
        self.columns.extend(branches.iter().map(|key| key.token));
        // Places of the guesses: within a depth the plan keeps their order.
        let mut next = vec![0; self.plan.window().len() + 1];
        for (place, key) in branches.iter().enumerate().rev() {
            next[key.accepted as usize] = place;
        }
        self.places.clear();
        self.guess_of.clear();
        self.guess_of.resize(branches.len(), 0);
        for (i, guess) in self.guesses.iter().enumerate() {
            let place = &mut next[guess.key.accepted as usize];
            self.places.push(*place);
            self.guess_of[*place] = i;
            *place += 1;
        }
        if let Some(tree) = order.tree {
            self.second.begin(tree, order.steps, branches.len());
        }
        let most = (MAX_TAIL / order.steps).max(1);
        self.forks.clear();
        self.paths.clear();
        for fork in self.plan.forks() {
            // The decided token is the first node of a glue pass over a tree.
            let path = match self.glue_tree() {
                Some(_) => [vec![0], self.plan.window().path(fork.node)].concat(),
                None => Vec::new(),
            };
            let mut start = fork.branches.start;
            while start < fork.branches.end {
                let end = fork.branches.end.min(start + most);
                self.forks.push(Fork {
                    branches: start..end,
                    ..fork
                });
                self.paths.push(path.clone());
                start = end;
            }
        }
    }
}

/// What outcomes are ranked by if both sides share the noise.
pub(super) const COUPLED: RankBy = RankBy::Noise(Domain::Coupled);
