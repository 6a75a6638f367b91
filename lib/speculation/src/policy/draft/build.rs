//! Continuations for the outcomes of the round under verification.

use alloc::vec::Vec;

use super::{
    COUNTED_RANKS, DraftStats,
    batch::{Batch, Drawn, Hand},
    forks::BranchWork,
    work::Ticket,
};
use crate::{
    Epoch, Proposals, Round, SessionId, TokenId,
    branch::glue_parents,
    fanout::{Guess, Planner},
    guess::{Candidates, OutcomeKey},
    message::{Cutoff, Cutoffs, Delivery, Entries, TreeBudget},
    noise::Domain,
    saguaro::Saguaro,
    sampling::{RankBy, Sampler, Scratch},
    verify::Verification,
};

/// Most nodes of the tail of a fork.
pub const MAX_TAIL: usize = 64;

/// Fewest candidates that are ranked in a row of a glue pass, whatever the budget: they tell ranks on
/// misses. Of what a branch has read there are [fewer](super::seen::Seen).
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
    pub(super) fn weighs(&self) -> bool {
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
    /// The branches are being decoded, or wait for the verdict.
    Branching,
}

/// A build and its memory, which is kept from round to round.
///
/// If the window is what a branch of the build before drew, that has seen all of it but its last token
/// ([`Seen`](super::seen::Seen)): the outcomes before its end are drafted for at once, and those after it,
/// of which as many are planned as in the mean are worth it, once that token is read.
#[derive(Debug)]
pub(super) struct Build {
    pub(super) id: BuildId,
    pub(super) order: Option<Order>,
    stage: Stage,
    pub(super) window: Proposals,
    /// If the window is a tree, its glue pass: the decided token and the window, and their parents.
    glue: Vec<TokenId>,
    glue_parents: Vec<Option<u32>>,
    /// What may be decided.
    candidates: Candidates,
    /// Candidates of an earlier round, and its verdict, that nobody learned from yet.
    judged: Candidates,
    verdict: Option<OutcomeKey>,
    /// What the branch of the outcome that came about saw, and the round that its window is for.
    pub(super) recalled: Candidates,
    pub(super) recalled_for: Option<Round>,
    pub(super) guesses: Vec<Guess>,
    /// Tokens that were looked at after the first ones of continuations, and those of them before which
    /// one ended; until somebody learns from it.
    ends: (u32, u32),
    /// Probability that a continuation goes on after a token.
    pub(super) goes_on: f64,
    /// Of how many guesses, from the first on, each step draws a token; ever fewer.
    pub(super) widths: Vec<u32>,
    /// For how many of these steps there was thought to be time.
    pub(super) planned: usize,
    /// Whether what the recalled branch read is in the session's sequence.
    joined: bool,
    /// Steps that were made, and whether more is settled than a grant can change.
    made: u32,
    begun: bool,
    /// Branches that begin at once, and those that begin when the last token of the window is read.
    pub(super) early: Batch,
    pub(super) late: Batch,
}

impl Build {
    pub(super) fn new() -> Self {
        Self {
            id: BuildId::default(),
            order: None,
            stage: Stage::Ended,
            window: Proposals::new(),
            glue: Vec::new(),
            glue_parents: Vec::new(),
            candidates: Candidates::new(COUPLED, 0),
            judged: Candidates::new(COUPLED, 0),
            verdict: None,
            recalled: Candidates::new(COUPLED, 0),
            recalled_for: None,
            guesses: Vec::new(),
            ends: (0, 0),
            goes_on: 1.0,
            widths: Vec::new(),
            planned: 0,
            joined: false,
            made: 0,
            begun: false,
            early: Batch::new(false),
            late: Batch::new(true),
        }
    }

    pub(super) fn id(&self) -> Option<BuildId> {
        (self.stage == Stage::Branching).then_some(self.id)
    }

    /// Begins a build for the outcomes of `window` after `decided`; the one before is forgotten.
    pub(super) fn begin(&mut self, order: Order, decided: TokenId, window: Proposals) {
        let is_recalled = self.recalled_for == Some(order.round);
        self.clear();
        self.window = window;
        let window = &self.window;
        if !window.is_chain() {
            self.glue.push(decided);
            self.glue.extend_from_slice(window.tokens());
            self.glue_parents.extend(glue_parents(window));
        }
        let wanted = order.budget.clamp(FEWEST_CANDIDATES, MOST_CANDIDATES);
        let by = match order.verification {
            Verification::Coupled => COUPLED,
            Verification::Rejection { .. } => RankBy::Likelihood,
        };
        self.candidates.reset(by, wanted);
        let is_recalled = is_recalled && !window.is_empty();
        let is_recalled = is_recalled && self.candidates.recall(window, self.recalled.rows());
        self.order = Some(order);
        self.stage = if is_recalled {
            Stage::Ranked
        } else {
            Stage::Glue
        };
    }

    /// Ends the build; what was drafted can still be looked up. Says whether there was more to do.
    pub(super) fn end(&mut self) -> bool {
        let drafts = self.is_under_way();
        match core::mem::take(&mut self.stage) {
            Stage::Ended => false,
            Stage::Glue | Stage::Ranked => true,
            Stage::Branching => drafts,
        }
    }

    /// Forgets the build, but not what is to be learned from its verdict.
    pub(super) fn clear(&mut self) {
        self.id.0 += 1;
        self.order = None;
        self.stage = Stage::Ended;
        self.recalled_for = None;
        self.candidates.clear();
        self.guesses.clear();
        self.widths.clear();
        self.joined = false;
        self.made = 0;
        self.begun = false;
        self.glue.clear();
        self.glue_parents.clear();
        self.early.clear();
        self.late.clear();
    }

    /// Rows that are to be read: those of the glue pass, or the one after the window if that alone is not
    /// known.
    pub(super) fn glue(&self) -> Option<(BuildId, usize)> {
        let rows = match self.stage {
            Stage::Glue => self.window.len() + 1,
            Stage::Ranked | Stage::Branching if self.candidates.is_open() => 1,
            Stage::Ended | Stage::Ranked | Stage::Branching => return None,
        };
        Some((self.id, rows))
    }

    /// What a glue pass over a tree feeds: the decided token and the window, and their parents.
    pub(super) fn glue_tree(&self) -> Option<(&[TokenId], &[Option<u32>])> {
        (!self.glue.is_empty()).then_some((&self.glue, &self.glue_parents))
    }

    /// Takes in the rows of the glue pass.
    pub(super) fn glued(&mut self, rows: &[&[f32]], sampler: &mut Sampler, scratch: &mut Scratch) {
        self.candidates
            .rank(sampler, scratch, &self.window, |row| rows[row]);
        self.stage = Stage::Ranked;
    }

    /// Whether of the candidates only those after the window are to be read.
    pub(super) fn is_open(&self) -> bool {
        self.candidates.is_open()
    }

    /// The session's sequence ends with what the recalled branch read.
    pub(super) fn join(&mut self) {
        self.joined = true;
    }

    /// Whether branches may begin before the last token of the window is read.
    pub(super) fn may_begin_unread(&self) -> bool {
        self.joined && self.candidates.is_open()
    }

    /// Takes in the row after the window; `sampler` is there. What is planned for it begins.
    pub(super) fn read_last(&mut self, row: &[f32], sampler: &Sampler, scratch: &mut Scratch) {
        self.candidates.read_last(sampler, scratch, row);
        let Some(order) = self.order.filter(|_| self.stage == Stage::Branching) else {
            return;
        };
        self.begun = true;
        let end = self.window.len();
        let row = self.candidates.row(end);
        let listed = row.map_or(&[][..], |row| row.candidates);
        let is_late = |guess: &Guess| guess.key.accepted as usize == end;
        for guess in self.guesses.iter_mut().filter(|guess| is_late(guess)) {
            let candidate = listed.get(guess.rank as usize);
            guess.key.token = candidate.map_or(Candidates::UNREAD, |candidate| candidate.token);
        }
        // They begin a step later than others and have that one less, but each has a token.
        let (first, rest) = (self.widths.iter().take(1), self.widths.iter().skip(2));
        let more = self.widths.len() == order.steps && order.steps > 1;
        let last = self.widths.iter().rev().take(usize::from(more));
        let widths = first.chain(rest).chain(last).copied();
        let guesses = &self.guesses;
        let widths = widths.map(|width| count(guesses, width, is_late));
        let known = |guess: &&Guess| is_late(guess) && guess.key.token != Candidates::UNREAD;
        let late = guesses.iter().filter(known).copied();
        self.late.begin(&order, &self.window, late, widths);
    }

    /// Notes how the round ended, to be learned from when the next build is planned.
    pub(super) fn judge(&mut self, round: Round, key: OutcomeKey) {
        self.candidates.drop_open();
        let ranked = self.candidates.rows().len() > 0;
        if ranked && self.order.is_some_and(|order| order.round == round) {
            core::mem::swap(&mut self.candidates, &mut self.judged);
            self.verdict = Some(key);
        }
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
            let chances = planner.estimates().chances();
            if self.candidates.is_open() {
                self.late.expect(chances.clone());
            }
            self.early.expect(chances);
        }
        self.widths.clear();
        self.widths.resize(order.steps, self.guesses.len() as u32);
        self.planned = order.steps;
        self.lay_out(order);
    }

    /// Draws for the first `widths[i]` guesses in step i, and in steps after the last of them for as
    /// many as in that; never for more than in the step before. No effect once branches have begun.
    pub(super) fn grant(&mut self, widths: &[u32]) {
        let waits = self.stage == Stage::Branching && !self.begun;
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
            (self.widths.len() as u32).saturating_sub(self.made)
        } else {
            0
        }
    }

    /// The next step of the branches.
    pub(super) fn work(&self, ticket: Ticket) -> Option<BranchWork<'_>> {
        (self.stage == Stage::Branching && self.draws()).then_some(BranchWork {
            ticket,
            build: self.id,
            step: self.made,
            outcomes: self.guesses.len() as u32,
            batches: [&self.early, &self.late],
        })
    }

    /// Takes in the rows of a step, of which `late` are those of branches that begin later, and counts
    /// what they came to; the parts to be sent, if any.
    pub(super) fn stepped(
        &mut self,
        rows: &[&[f32]],
        late: usize,
        mut hand: Hand<'_>,
        stats: &mut DraftStats,
    ) -> Vec<Entries> {
        let Some(order) = self.order else {
            return Vec::new();
        };
        if rows.len() != self.early.rows() + late || (late > 0 && late != self.late.rows()) {
            self.end();
            return Vec::new();
        }
        let (early, late) = rows.split_at(rows.len() - late);
        let mut parts = Vec::new();
        for (batch, rows) in [(&mut self.early, early), (&mut self.late, late)] {
            if rows.is_empty() {
                continue;
            }
            let drawn = batch.stepped(&order, rows, &mut hand);
            let Drawn {
                looked_at, tokens, ..
            } = drawn;
            if !drawn.first && order.cutoffs.of_entries().cuts() {
                self.ends.0 += looked_at;
                self.ends.1 += looked_at - tokens;
            }
            stats.built += tokens;
            parts.extend(drawn.part);
        }
        self.made += 1;
        self.begun = true;
        parts
    }

    /// Whether any branch has a row in the next step.
    fn draws(&self) -> bool {
        self.early.draws() || self.late.draws()
    }

    /// Whether any branch has a row in the next step, or in one after the last row is read.
    pub(super) fn is_under_way(&self) -> bool {
        self.stage == Stage::Branching && (self.draws() || self.candidates.is_open())
    }

    /// Rows of the next step that are of branches which begin later.
    pub(super) fn late_rows(&self) -> usize {
        self.late.rows()
    }

    /// From guesses to the branches that begin at once.
    fn lay_out(&mut self, order: Order) {
        let last = self.candidates.is_open().then_some(self.window.len());
        let is_early = |guess: &Guess| Some(guess.key.accepted as usize) != last;
        let guesses = &self.guesses;
        let early = guesses.iter().filter(|guess| is_early(guess)).copied();
        let widths = self.widths.iter();
        let widths = widths.map(|&width| count(guesses, width, is_early));
        let begins = self.early.begin(&order, &self.window, early, widths);
        let waits = last.is_some() && guesses.iter().any(|guess| !is_early(guess));
        self.stage = if begins || waits {
            Stage::Branching
        } else {
            Stage::Ended
        };
    }
}

/// How many of the first `width` guesses are such.
fn count(guesses: &[Guess], width: u32, such: impl Fn(&Guess) -> bool) -> u32 {
    let first = guesses.iter().take(width as usize);
    first.filter(|guess| such(guess)).count() as u32
}

/// What outcomes are ranked by if both sides share the noise.
pub(super) const COUPLED: RankBy = RankBy::Noise(Domain::Coupled);
