//! How a session follows what its target says.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use super::{
    Binding, Choices, DraftSession, Job, Prepared, Wish,
    build::{MAX_TAIL, Order},
    tail::Tail,
};
use crate::{
    Epoch, Proposals, Round, TokenId,
    guess::OutcomeKey,
    ids::common_prefix,
    message::{Cutoffs, Delivery, Open, Outcome, Resync, ToTarget, Window},
    saguaro::Saguaro,
    sampling::{Sampler, SamplingParams},
    tree::choose,
    verify::Verification,
};

impl DraftSession {
    pub(super) fn open(&mut self, open: &Open) -> Option<ToTarget> {
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
        self.tree = None;
        self.confirmed = None;
        self.tail = Tail::Idle;
        self.choices = None;
        self.binding = None;
        self.replace(&open.tokens);
        self.binding = Some(Binding {
            epoch: open.epoch,
            round: Round(0),
            broken: false,
            sampler,
            verification: open.verification.of_request(&open.sampling),
            branching: open.branching,
            job: None,
        });
        if let Some(branching) = open.branching {
            self.begin_build(Wish {
                round: Round(0),
                lookahead: branching.lookahead,
                branches: branching.branches,
                saguaro: Saguaro::default(),
                tree: None,
                cutoffs: Cutoffs::default(),
            });
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
        let len = open.tokens.len();
        if len >= self.max_len {
            return Err(self.too_long(len));
        }
        let (sampling, most) = (&open.sampling, SamplingParams::MOST_NAMED);
        for (field, named) in [
            ("logit_bias", sampling.logit_bias.len()),
            ("banned_until_min", sampling.banned_until_min.len()),
        ] {
            if named > most {
                // Each row of the session goes over them, in steps that all sessions share.
                return Err(format!("{field} has {named} tokens, {most} are allowed"));
            }
        }
        let prompt_len = open.prompt_len as usize;
        Sampler::new(open.sampling.clone(), open.seed, &open.tokens, prompt_len)
            .map_err(|invalid| invalid.to_string())
    }

    fn too_long(&self, len: usize) -> String {
        let limit = self.max_len;
        format!("{len} tokens leave no room in a draft model of {limit} positions")
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome) -> Option<ToTarget> {
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
                        .is_none_or(|window| self.knows(window.tokens()))
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
        let len = self.decided + outcome.tokens.len();
        if len >= self.max_len {
            // Nothing more can be drafted, and what is kept for it must not grow for ever.
            self.close(outcome.epoch);
            return Some(self.refuse(outcome.epoch, self.too_long(len), false));
        }
        let wish = Wish {
            round: outcome.round.next(),
            lookahead: outcome.lookahead,
            branches: outcome.branches,
            saguaro: outcome.saguaro,
            tree: outcome.tree,
            cutoffs: if self.draws() {
                Cutoffs::default()
            } else {
                outcome.cutoffs
            },
        };
        let prepared = self.judged(outcome, &wish);
        match &outcome.verifying {
            Some(window) => {
                self.set_window(window);
                self.begin_build(wish);
                None
            }
            None if wish.lookahead > 0 => self.start_job(wish, prepared),
            None => None,
        }
    }

    /// Follows a verdict; what was drafted for it becomes proposals. `wish` is what is asked for.
    fn judged(&mut self, outcome: &Outcome, wish: &Wish) -> Prepared {
        let asked = outcome.asks().unwrap_or(0) as usize;
        let (mut drafted, mut prepared) = (Vec::new(), Prepared::default());
        // The target may have verified something else, if it lost patience with a window.
        let accepted = outcome
            .tokens
            .split_last()
            .map_or(&[][..], |(_, some)| some);
        let node = match &self.tree {
            Some(tree) => tree.find(accepted),
            None => self.tokens[self.decided..]
                .starts_with(accepted)
                .then_some(accepted.len() as u32),
        };
        self.tail.decide(self.tree.take().as_ref(), node);
        self.confirmed = None;
        if self.build.end() {
            self.stats.cut += 1;
        }
        if let (Some(accepted), Some(&token)) = (node, outcome.tokens.last()) {
            let key = OutcomeKey { accepted, token };
            // All of a window is lowered alike.
            if !self.draws() || self.build.saguaro() == Some(outcome.saguaro) {
                drafted.extend(self.build.find(outcome.round, key).take(asked));
                prepared.q = self
                    .build
                    .find_laws(outcome.round, key)
                    .take(asked)
                    .collect();
                prepared.place = self
                    .build
                    .place_of(outcome.round, key)
                    .map(|place| place as u32);
            }
            self.count_drafted(outcome, key);
            self.confirmed = self.build.confirmed(outcome.round, key);
            self.build.recall(outcome.round, key);
            self.build.judge(outcome.round, key);
        }
        if wish.weighs() {
            self.choices.get_or_insert_with(Choices::new);
        }
        if let Some(choices) = &mut self.choices {
            choices.judge(&outcome.tokens, wish.tree.is_some());
        }
        self.follow(&outcome.tokens);
        if self.draws() && self.tokens.len() > self.decided {
            // What is left of another window has laws that were sent already, and the target may
            // have seen it: the next one is drawn anew.
            self.set_tail(self.decided, &[]);
        }
        // Nothing of the window is left then: its next token is never drafted for as decided.
        if !drafted.is_empty() && self.tokens.len() + drafted.len() <= self.max_len {
            self.tokens.extend_from_slice(&drafted);
            self.stats.prepared += 1;
            return prepared;
        }
        Prepared::default()
    }

    /// Whether proposals are drawn, and come with what they were drawn from.
    fn draws(&self) -> bool {
        let binding = self.binding.as_ref();
        binding.is_some_and(|binding| binding.verification != Verification::Coupled)
    }

    /// Counts what was drafted for this verdict, by whether the target had it in time.
    fn count_drafted(&mut self, outcome: &Outcome, key: OutcomeKey) {
        let binding = self.binding.as_ref();
        let Some(branching) = binding.and_then(|binding| binding.branching) else {
            return;
        };
        let wanted = outcome.lookahead as usize;
        let planned = self.build.planned(outcome.round, key).min(wanted);
        let mut drafted = self.build.find(outcome.round, key).take(wanted);
        let first = drafted.next();
        let drafted = usize::from(first.is_some()) + drafted.count();
        let there = if branching.delivery == Delivery::Push {
            // What is verified instead has other tokens.
            let verified = outcome.verifying.as_ref();
            let used = verified.filter(|window| window.tokens().first() == first.as_ref());
            let used = drafted.min(used.map_or(0, Proposals::height));
            self.stats.timely += used as u32;
            self.stats.late += (drafted - used) as u32;
            used
        } else {
            drafted
        };
        self.stats.planned += planned as u32;
        // What the verdict waited for was not there in time either: were it not counted, builds would
        // become ever longer, and be waited for ever more often.
        let in_time = there.saturating_sub(outcome.awaited as usize);
        self.stats.missing += planned.saturating_sub(in_time) as u32;
    }

    fn knows(&self, tokens: &[TokenId]) -> bool {
        tokens.iter().all(|token| token.0 < self.vocab_size)
    }

    /// Begins a window with what is known of it already.
    fn start_job(&mut self, mut wish: Wish, prepared: Prepared) -> Option<ToTarget> {
        // A draft shorter than the target answers with what it can, at worst nothing: the target
        // then does not wait in vain.
        let room = self.max_len.saturating_sub(self.decided);
        wish.lookahead = wish.lookahead.min(u32::try_from(room).unwrap_or(u32::MAX));
        let Prepared { q, place } = prepared;
        let drawn = wish.tree.filter(|_| self.draws());
        self.binding.as_mut()?.job = Some(Job { wish, q, place });
        if let Some(choices) = self.choices.as_mut().filter(|_| wish.weighs()) {
            let known = &self.tokens[self.decided..];
            choices.begin(known, drawn, wish.lookahead as usize);
        }
        self.complete()
    }

    /// Ends the job if there are enough proposals: all that were asked for, or as many as are worth
    /// it.
    pub(super) fn complete(&mut self) -> Option<ToTarget> {
        let draws = self.draws();
        let binding = self.binding.as_mut()?;
        let proposals = &self.tokens[self.decided..];
        let next = self.choices.as_ref().map_or(1.0, Choices::next);
        let Job { wish, mut q, place } = binding.job.take_if(|job| {
            let all = proposals.len() >= job.wish.lookahead as usize;
            // Of a tree the best part is chosen in the end. A window without a token would teach
            // nothing.
            let chain = job.wish.tree.is_none() && !proposals.is_empty();
            all || (chain && next < job.wish.cutoffs.of_window().at(proposals.len() as u32))
        })?;
        let epoch = binding.epoch;
        let lookahead = proposals.len().min(wish.lookahead as usize);
        let proposals = match (wish.tree, &self.choices) {
            (Some(_), Some(Choices { growth, .. })) if draws => {
                let spine = proposals[..lookahead].iter().copied();
                Proposals::with_sides(spine, |depth| growth.sides_at(depth as u32))
            }
            (Some(budget), Some(Choices { drawn, chances, .. })) => {
                let mut window = choose::window(drawn, chances, budget);
                window.cut_below(lookahead);
                window
            }
            _ => proposals[..lookahead].into(),
        };
        self.stats.windows += 1;
        q.truncate(proposals.height());
        if binding.branching.is_some() {
            self.set_window(&proposals);
            self.begin_build(wish);
        }
        Some(ToTarget::Window(Window {
            session: self.session,
            epoch,
            round: wish.round,
            base_len: self.decided as u32,
            proposals,
            q,
            saguaro: wish.saguaro,
            place,
        }))
    }

    /// Begins to draft for the outcomes of a round, which verifies what follows the decided tokens.
    fn begin_build(&mut self, wish: Wish) {
        let Wish {
            round,
            lookahead,
            branches,
            saguaro,
            tree,
            cutoffs,
        } = wish;
        let Some((epoch, verification, branching)) = self
            .binding
            .as_ref()
            .and_then(|binding| Some((binding.epoch, binding.verification, binding.branching?)))
        else {
            return;
        };
        let window = match &self.tree {
            Some(tree) => tree.clone(),
            None => self.tokens[self.decided..].into(),
        };
        // The deepest branch feeds its last token at the model's last position at most.
        let room = self.max_len.saturating_sub(self.decided + window.height());
        let steps = room.min(lookahead as usize).min(MAX_TAIL);
        let budget = branches.min(self.max_branches) as usize;
        let Some(&last) = self.tokens[..self.decided].last() else {
            return;
        };
        // Nobody has use for a longer window, and its glue pass would be a burden for others. That
        // over a tree is one row for each token, whatever their depths.
        let fits = window.is_chain() || self.decided + window.len() <= self.max_len;
        if steps == 0 || budget == 0 || window.len() > MAX_TAIL || !fits {
            return;
        }
        self.stats.builds += 1;
        // Second choices are of use to nobody but a target that is sent them.
        let tree = tree.filter(|_| branching.delivery == Delivery::Push);
        let order = Order {
            session: self.session,
            epoch,
            round,
            base_len: self.decided,
            steps,
            budget,
            delivery: branching.delivery,
            verification,
            saguaro,
            tree,
            cutoffs,
        };
        self.build.begin(order, last, window);
    }

    /// Makes `window` what follows the decided tokens, as far as the model has room; of a tree, its
    /// first chain.
    fn set_window(&mut self, window: &Proposals) {
        let room = self.max_len.saturating_sub(self.decided);
        self.tree = (!window.is_chain()).then(|| window.clone());
        let chain;
        let window = if window.is_chain() {
            &window.tokens()[..window.len().min(room)]
        } else {
            chain = window
                .spine()
                .filter_map(|node| window.token(node))
                .take(room)
                .collect::<Vec<_>>();
            &chain
        };
        let proposals = &self.tokens[self.decided..];
        let common = common_prefix(proposals, window);
        if common < proposals.len() || common < window.len() {
            self.set_tail(self.decided + common, &window[common..]);
        }
    }

    /// Takes in what the target emitted after the decided tokens. Proposals that it confirms keep
    /// their KV; those that go on after the last one emitted stay proposals, since drafting again
    /// from the same tokens with the same noise would give the same (a window that came late is
    /// thus ready for the next round).
    fn follow(&mut self, emitted: &[TokenId]) {
        let common = common_prefix(&self.tokens[self.decided..], emitted);
        let keep = self.decided + common;
        self.decided += emitted.len();
        if common == emitted.len() {
            return;
        }
        self.set_tail(keep, &emitted[common..]);
    }

    /// Makes `tokens` the decided sequence; what it shares with the old one keeps its KV.
    fn replace(&mut self, tokens: &[TokenId]) {
        let common = common_prefix(&self.tokens, tokens);
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

    pub(super) fn close(&mut self, epoch: Epoch) {
        let current = self
            .binding
            .as_ref()
            .is_none_or(|binding| binding.epoch <= epoch);
        if current {
            self.binding = None;
            self.tokens.clear();
            self.tree = None;
            self.tail = Tail::Idle;
            self.choices = None;
            self.decided = 0;
            self.fed = 0;
            self.flight = None;
            self.branch_flight = None;
            self.confirmed = None;
            self.build.clear();
        }
        self.closed = self.closed.max(Some(epoch));
    }

    pub(super) fn refuse(&self, epoch: Epoch, reason: String, retry: bool) -> ToTarget {
        ToTarget::Refused {
            session: self.session,
            epoch,
            reason,
            retry,
        }
    }
}
