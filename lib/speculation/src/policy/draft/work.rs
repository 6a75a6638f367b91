//! What a session wants its driver to feed, and what becomes of the logits.

use alloc::vec::Vec;

use super::{
    DraftSession, batch::Hand, build::BuildId, forks::BranchWork, lookup::Confirmed,
    planners::Planners, tail::Tail,
};
use crate::{
    TokenId,
    fanout::Guess,
    ids::common_prefix,
    message::{Cutoff, ToTarget},
    proposal::Place,
    sampling::{Sampler, Scratch},
    verify::Verification,
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
    /// If they are a tree: their parents among them, to be fed as nodes of a tail, all in one step;
    /// `None` is the last token kept. The tail is there until the next work, which truncates it;
    /// before that, see [`DraftSession::take_decided`].
    pub parents: Option<&'a [Option<u32>]>,
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
pub struct Ticket(pub(super) u64);

/// What a step under way writes, while messages change the sequence under it.
#[derive(Debug)]
pub(super) struct Flight {
    ticket: Ticket,
    keep: usize,
    /// Tokens up to here are still those the step was planned with.
    pub(super) valid: usize,
    /// Nothing changed since the work was planned.
    pub(super) current: bool,
    aim: Aim,
}

/// What the logits of a step are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aim {
    Nothing,
    Token,
    Glue(BuildId),
}

/// What is fed next.
#[derive(Clone, Copy)]
struct Next {
    ticket: Ticket,
    keep: usize,
    /// Where the tokens end; none for the glue pass over a tree.
    end: Option<usize>,
    wants: Wants,
    purpose: Purpose,
}

/// A step of branches under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchFlight {
    ticket: Ticket,
    build: BuildId,
    /// Rows of branches that began later than others.
    late: usize,
}

impl DraftSession {
    /// What to feed the engine, if anything. Forgets earlier work that was not reported.
    pub fn work(&mut self) -> Option<Work<'_>> {
        let feed = self.next_feed()?;
        self.work_of(feed)
    }

    /// The next step of the session's branches, if it has any planned. Forgets an earlier one that was not
    /// reported.
    pub fn branches(&mut self) -> Option<BranchWork<'_>> {
        let ticket = self.next_branches()?;
        self.build.work(ticket)
    }

    /// Both, which may be fed in one step. The rows of one may be reported before those of the other.
    pub fn works(&mut self) -> (Option<Work<'_>>, Option<BranchWork<'_>>) {
        let (feed, branches) = (self.next_feed(), self.next_branches());
        (
            feed.and_then(|feed| self.work_of(feed)),
            branches.and_then(|ticket| self.build.work(ticket)),
        )
    }

    /// Notes what is fed next.
    fn next_feed(&mut self) -> Option<Next> {
        self.flight = None;
        let drafts = self.binding.as_ref()?.job.is_some();
        let end = self.tokens.len().min(self.max_len);
        let last = end.saturating_sub(1);
        if !drafts && self.tree.is_some() {
            return self.next_of_tree();
        }
        // Logits are needed even of tokens whose KV is there already.
        let (keep, end, wants, purpose, aim) = if drafts {
            (
                self.fed.min(last),
                end,
                Wants::Last,
                Purpose::Window,
                Aim::Token,
            )
        } else if let Some((build, rows)) = self.build.glue() {
            let first = end - rows;
            let aim = Aim::Glue(build);
            if rows == 1 {
                (self.fed.min(last), end, Wants::Last, Purpose::Ahead, aim)
            } else if self.fed < first {
                (self.fed, first, Wants::None, Purpose::Ahead, Aim::Nothing)
            } else {
                (first, end, Wants::All, Purpose::Ahead, aim)
            }
        } else {
            let purpose = if self.build.is_ranked() {
                Purpose::Ahead
            } else {
                Purpose::Follow
            };
            (self.fed, end, Wants::None, purpose, Aim::Nothing)
        };
        (keep < end).then(|| Next {
            ticket: self.take_off(keep, end, aim),
            keep,
            end: Some(end),
            wants,
            purpose,
        })
    }

    /// What is fed while a tree is under verification: the tokens before its root, which is the
    /// last decided one, then its glue pass. None of its tokens joins the sequence before the
    /// verdict.
    fn next_of_tree(&mut self) -> Option<Next> {
        let root = self.decided.checked_sub(1)?;
        let glue = self.build.glue();
        let purpose = if glue.is_some() {
            Purpose::Ahead
        } else {
            Purpose::Follow
        };
        if self.fed < root {
            let keep = self.fed;
            return Some(Next {
                ticket: self.take_off(keep, root, Aim::Nothing),
                keep,
                end: Some(root),
                wants: Wants::None,
                purpose,
            });
        }
        let (build, _) = glue?;
        Some(Next {
            ticket: self.take_off(root, root, Aim::Glue(build)),
            keep: root,
            end: None,
            wants: Wants::All,
            purpose,
        })
    }

    fn work_of(&self, next: Next) -> Option<Work<'_>> {
        let Next {
            ticket,
            keep,
            end,
            wants,
            purpose,
        } = next;
        let (tokens, parents) = if let Some(end) = end {
            (&self.tokens[keep..end], None)
        } else {
            let (tokens, parents) = self.build.glue_tree()?;
            (tokens, Some(parents))
        };
        Some(Work {
            ticket,
            keep,
            tokens,
            parents,
            wants,
            purpose,
        })
    }

    /// Notes the next step of branches.
    fn next_branches(&mut self) -> Option<Ticket> {
        self.branch_flight = None;
        let build = self.build.id()?;
        let late = self.build.late_rows();
        let ticket = self.next_ticket();
        self.branch_flight = Some(BranchFlight {
            ticket,
            build,
            late,
        });
        Some(ticket)
    }

    /// Nodes of the tail behind the engine's sequence that a verdict has decided, each a child of the
    /// one before, if there are any: to be asked for after each message. Whoever takes them has to
    /// make them part of that sequence at once; otherwise their tokens are fed again.
    pub fn take_decided(&mut self) -> Option<Vec<u32>> {
        let Tail::Decided(nodes) = &mut self.tail else {
            return None;
        };
        let nodes = core::mem::take(nodes);
        self.tail = Tail::Idle;
        self.fed += nodes.len();
        Some(nodes)
    }

    /// The branch whose outcome came about, if its fork has read more of what follows than the session's
    /// sequence: to be asked for after each message, while no step is under way. Whoever puts its
    /// [nodes](Confirmed::nodes) behind the [first tokens](Confirmed::trunk_len) of that sequence says so by
    /// [`Self::joined`]; otherwise their tokens are fed again.
    pub fn take_confirmed(&mut self) -> Option<Confirmed> {
        let mut confirmed = self.confirmed.take()?;
        let own = self.tokens.get(confirmed.trunk_len..)?;
        let common = common_prefix(own, &confirmed.tokens);
        confirmed.nodes.truncate(common);
        let reaches = confirmed.trunk_len + confirmed.nodes.len();
        let follows = (confirmed.trunk_len..reaches).contains(&self.fed);
        // A tree is read behind the tokens before its root.
        (follows && self.tree.is_none()).then_some(confirmed)
    }

    /// The engine's sequence ends with the nodes of this branch, which has just been taken.
    pub fn joined(&mut self, branch: &Confirmed) {
        self.fed = branch.trunk_len + branch.nodes.len();
        self.build.join();
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
        self.fed = flight.keep.saturating_add(fed).min(flight.valid);
        let binding = self.binding.as_mut()?;
        let whole = match flight.aim {
            // A tail is no part of the sequence.
            Aim::Glue(_) if self.tree.is_some() => true,
            _ => self.fed >= self.tokens.len(),
        };
        if !flight.current || !whole {
            return None;
        }
        match flight.aim {
            Aim::Nothing => {}
            Aim::Token => {
                let job = binding.job.as_mut()?;
                align(&mut binding.sampler, &self.tokens, self.tokens.len());
                let row = logits.first()?;
                let choices = self.choices.as_mut().filter(|_| job.wish.weighs());
                let token = match binding.verification {
                    Verification::Coupled => match choices {
                        Some(choices) => choices.drawn.draw(&binding.sampler, scratch, row),
                        None => binding.sampler.choose(row, scratch),
                    },
                    Verification::Rejection { support } => {
                        let place = Place {
                            start: self.decided as u32,
                            index: (self.tokens.len() - self.decided) as u32,
                        };
                        let among = (support, job.wish.saguaro);
                        let sampler = &binding.sampler;
                        let proposer = &mut self.proposer;
                        let (token, q) = proposer.draw(sampler, scratch, row, place, among);
                        if let Some(choices) = choices {
                            choices.drawn(token, place.index, proposer, sampler.seed());
                        }
                        job.q.push(q);
                        token
                    }
                };
                self.tokens.push(token);
                return self.complete();
            }
            Aim::Glue(build) => {
                let current = self.build.glue().filter(|(glued, _)| *glued == build);
                if current.is_some_and(|(_, rows)| logits.len() == rows) {
                    let sampler = &mut binding.sampler;
                    if self.build.is_open() {
                        align(sampler, &self.tokens, self.tokens.len());
                        self.build.read_last(logits[0], sampler, scratch);
                    } else {
                        align(sampler, &self.tokens, self.decided);
                        self.build.glued(logits, sampler, scratch);
                    }
                    if self.tree.is_some() {
                        self.tail = Tail::Glued;
                    }
                } else if current.is_some() {
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
        let learns = self.choices.as_ref().is_some_and(|choices| choices.stale);
        let is_ranked = self.build.is_ranked() && self.is_read();
        if (learns || is_ranked)
            && let Some(planner) = planners.for_session(self)
        {
            // Where outcomes are drafted for, their own glue pass teaches.
            let own = self.binding.as_ref().is_some_and(|b| b.branching.is_none());
            if let Some(choices) = &mut self.choices {
                choices.learn(planner, own);
            }
            if is_ranked {
                self.build.learn(planner, &mut self.stats);
                self.build.plan(planner);
            }
        }
        self.build.guesses()
    }

    /// The outcomes that are drafted for, likeliest first.
    pub fn guesses(&self) -> &[Guess] {
        self.build.guesses()
    }

    /// Drafts for fewer of the planned outcomes: in each step for the first `widths` of them, ever
    /// fewer (see [`Taper`](crate::fanout::Taper)), and in steps after the last of these as in that. A
    /// single number is one for all steps. No effect once their first step was made.
    pub fn grant(&mut self, widths: &[u32]) {
        if widths.first().is_none_or(|&width| width == 0) {
            self.drop_branches();
        } else {
            self.build.grant(widths);
        }
    }

    /// Reports the step of the branches with this ticket: a row of logits for each branch. Returns
    /// the parts of the entries that it completes.
    pub fn branched(
        &mut self,
        ticket: Ticket,
        logits: &[&[f32]],
        scratch: &mut Scratch,
    ) -> Vec<ToTarget> {
        let flight = &mut self.branch_flight;
        let flight = flight.take_if(|flight| flight.ticket == ticket);
        let flight = flight.filter(|flight| self.build.id() == Some(flight.build));
        let Some((flight, binding)) = flight.zip(self.binding.as_mut()) else {
            return Vec::new();
        };
        align(&mut binding.sampler, &self.tokens, self.decided);
        let hand = Hand {
            sampler: &mut binding.sampler,
            scratch,
            proposer: &mut self.proposer,
        };
        let parts = self
            .build
            .stepped(logits, flight.late, hand, &mut self.stats);
        parts.into_iter().map(ToTarget::Entries).collect()
    }

    /// Whether the sequence is read as far as branches begin in it.
    fn is_read(&self) -> bool {
        let end = self.tokens.len().min(self.max_len);
        let unread = usize::from(self.build.may_begin_unread());
        self.tree.is_some() || self.fed + unread >= end
    }

    /// Gives up the branches of this round, for want of pages for example. The session goes on, and
    /// what was sent is of use.
    pub fn drop_branches(&mut self) {
        if self.build.end() {
            self.stats.dropped += 1;
        }
    }

    /// Whether branches have tokens yet to draw.
    pub fn is_branching(&self) -> bool {
        self.build.is_under_way()
    }

    /// The build whose forks are in use, if any: until its verdict, since what they have read may be of use
    /// then.
    pub fn build(&self) -> Option<BuildId> {
        self.build.id()
    }

    /// Steps that the longest branches of the build have yet to make.
    pub fn branch_steps(&self) -> u32 {
        self.build.steps_left()
    }

    /// Probability that a continuation of the build goes on after a token: 1 if none ends early.
    pub fn goes_on(&self) -> f64 {
        self.build.goes_on()
    }

    /// How likely tokens of a window have to be that is asked for; the first is drawn anyway.
    pub fn window_cutoff(&self) -> Cutoff {
        self.build.window_cutoff()
    }

    /// Notes a step that is about to be made.
    fn take_off(&mut self, keep: usize, end: usize, aim: Aim) -> Ticket {
        self.tail = Tail::Idle;
        let ticket = self.next_ticket();
        self.flight = Some(Flight {
            ticket,
            keep,
            valid: end,
            current: true,
            aim,
        });
        ticket
    }

    fn next_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }
}

/// Brings `sampler`, which is at some token of `tokens`, to the one after the first `len`.
fn align(sampler: &mut Sampler, tokens: &[TokenId], len: usize) {
    sampler.truncate(len);
    for &token in tokens.get(sampler.history().len()..len).unwrap_or_default() {
        sampler.push(token);
    }
}
