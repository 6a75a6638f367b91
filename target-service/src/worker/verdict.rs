//! From logits to verdicts: what is accepted, what is decided, who is told.

mod lesson;
mod suggestions;

use std::time::Duration;

use foretoken_engine::{
    batch::{SeqId, StepLogits},
    schedule::RequestId,
};
use foretoken_protocol::generate::FinishReason;
use foretoken_speculation::{
    Proposals, TokenId,
    control::Lesson,
    policy::target::{Input, Lookup, Verified},
    proposal::Laws,
    saguaro::{Saguaro, Seen},
    sampling::Scratch,
    verify::{self, Drawn, DrawnTree, TreeVerdict, Verification},
};

use self::lesson::Taught;
use super::{
    Endpoints, Worker,
    feeding::{Feeding, Kind, Share},
    parking::MOST_UNREAD,
    stopgap::Step,
};
use crate::{
    metrics::Pass as Counted,
    request::{Decided, Passed, Request, Turnaround},
};

/// What a step decided for a request.
pub(super) struct Decision {
    pub(super) share: Share,
    /// Tokens of the window, and whether there was no room for more of them.
    drafted: usize,
    clipped: bool,
    pub(super) decided: Decided,
    /// What is emitted.
    pub(super) emitted: Vec<TokenId>,
    /// Most tokens of the window that follow each other, and those that were held against the target's
    /// choice, one after the other.
    height: u32,
    tried: u32,
    /// Nodes of the tail to keep, if the window was a tree.
    path: Option<Vec<u32>>,
    /// Tokens of what was drafted for it that were there before, if its step waited for more.
    pub(super) had: Option<u32>,
    /// Whether the step waited for more of what was drafted for this one.
    pub(super) is_awaited: bool,
}

impl Decision {
    /// What it teaches, with the round that ended with it, beside so many sessions. `own`: the window was
    /// of this host.
    fn lesson(
        &self,
        own: bool,
        feeding: &Feeding,
        sessions: u32,
        round: Option<Turnaround>,
    ) -> Lesson {
        Lesson {
            drafted: self.height,
            tried: self.tried,
            clipped: self.clipped,
            accepted: self.decided.accepted as u32,
            own,
            rows: feeding.rows() as u32,
            typical: feeding.typical,
            sessions,
            round: round.map(|round| (round.sought, round.took)),
        }
    }
}

/// A verdict whose consequences are still to be drawn.
pub(super) struct Verdict {
    pub(super) request: RequestId,
    seq: SeqId,
    /// Tokens whose KV is right.
    keep: usize,
    /// Rows that were fed.
    fed: usize,
    /// Nodes of the tail to keep, if the window was a tree.
    path: Option<Vec<u32>>,
    pub(super) decided: Decided,
    /// Tokens of the window.
    pub(super) drafted: usize,
    pub(super) emitted: usize,
    /// What was emitted, if somebody reads along.
    pub(super) tokens: Option<Vec<u32>>,
    pub(super) lookup: Option<Lookup>,
    /// Whether its step waited for more of what was drafted for it.
    is_awaited: bool,
    /// How the window was lowered, if it was drawn.
    pub(super) drawn: Option<Saguaro>,
    /// The round that ended with it.
    pub(super) round: Option<Turnaround>,
}

impl Worker {
    /// Decides every token that the step's logits can decide.
    pub(super) fn decide(&mut self) -> Vec<Decision> {
        let now = self.now.saturating_duration_since(self.started);
        let logits = self.engine.logits();
        let mut decisions = Vec::with_capacity(self.feeding.shares.len());
        for (feed, share) in self.feeding.shares.iter().enumerate() {
            let Some(request) = self.requests.get_mut(&share.request) else {
                continue;
            };
            let read = (0..logits.rows(feed)).map(|i| logits.row(feed, i));
            request.note_prompt_rows(share.len, read, &mut self.scratch);
            if share.kind == Kind::Chunk {
                continue;
            }
            let pass = Pass::of(share, &self.feeding, feed, logits);
            let clipped = pass.window.len() < request.session.window().len();
            let mut emitted = Vec::new();
            let decided = pass.decide(request, now, &mut self.scratch, &mut emitted);
            let (tried, path) = pass.way(&emitted[..decided.accepted]);
            // Of what comes after the end of an output nothing is known.
            let cut = decided.ended.is_some() && decided.accepted == emitted.len();
            let most = if cut {
                decided.accepted as u32
            } else {
                u32::MAX
            };
            decisions.push(Decision {
                share: *share,
                drafted: pass.window.len(),
                clipped: clipped || cut,
                decided,
                emitted,
                height: pass.height().min(most),
                tried: tried.min(most),
                path,
                had: None,
                is_awaited: false,
            });
        }
        decisions
    }

    /// Draws the consequences of what was decided.
    pub(super) fn conclude(&mut self, decisions: Vec<Decision>) {
        let mut verdicts = Vec::with_capacity(decisions.len());
        let suggestions = self.suggest();
        let load = suggestions.load;
        let trees = self.trees(load);
        let now = self.now.saturating_duration_since(self.started);
        let rows = self.feeding.rows() as u32;
        let is_read = self.feed.is_read();
        let sessions = self.scheduler.running().len() as u32;
        for decision in decisions {
            let Decision {
                share, ref decided, ..
            } = decision;
            let Some(request) = self.requests.get_mut(&share.request) else {
                continue;
            };
            let accepted = &decision.emitted[..decided.accepted];
            let drawn = self.endpoints.observe_laws(share.link, request, accepted);
            let suggested = suggestions.tell(request);
            let step = Step {
                rows: rows - decision.drafted as u32,
                sessions,
            };
            let accepted = decided.accepted as u32;
            let endpoints = &mut self.endpoints;
            let verified = Verified {
                tokens: &decision.emitted,
                accepted,
                suggested,
                cutoffs: endpoints.cutoffs(request, load, suggested),
                lingered: self.feeding.lingered,
                had: decision.had,
                last: decided.ended.is_some(),
                ..Verified::default()
            };
            let offer = self.stopgap.offer(request, &verified, step, endpoints);
            let verified = Verified {
                local: &offer.tokens,
                fallback: offer.fallback,
                refrains: offer.refrains,
                tree: endpoints.tree_budget(request, trees, suggested),
                saguaro: offer.saguaro,
                ..verified
            };
            let effects = request.session.handle(now, Input::Verified(verified));
            let took = self.feeding.took;
            let round = request.meter.verdict(&effects, self.now, took);
            let local = (effects.local > 0).then_some(offer.origin);
            let own = std::mem::replace(&mut request.own, local);
            let taught = Taught {
                lesson: decision.lesson(own.is_some(), &self.feeding, sessions, round),
                fed: share.link,
                own,
                drawn: drawn.is_some(),
            };
            taught.teach(request, &effects, &mut self.endpoints, &self.metrics);
            self.endpoints.post(request.link, effects.messages);
            verdicts.push(Verdict {
                request: share.request,
                seq: share.seq,
                keep: share.len + 1 + decided.accepted,
                fed: share.len + 1 + decision.drafted,
                path: decision.path,
                decided: decision.decided,
                drafted: decision.drafted,
                emitted: decision.emitted.len(),
                tokens: is_read.then(|| decision.emitted.iter().map(|token| token.0).collect()),
                lookup: effects.lookup,
                is_awaited: decision.is_awaited,
                drawn,
                round,
            });
        }
        self.endpoints.flush();
        if self.feed.is_heard() {
            self.tell_rounds(&mut verdicts);
        }
        self.note_pace(&verdicts);
        for verdict in verdicts {
            self.follow_up(&verdict);
        }
    }

    /// Notes how much the step has brought.
    fn note_pace(&mut self, verdicts: &[Verdict]) {
        if verdicts.is_empty() {
            return;
        }
        let tokens: usize = verdicts.iter().map(|verdict| verdict.emitted).sum();
        let ended = verdicts.iter().filter(|v| v.decided.ended.is_some());
        let goes_on = ended.count() < self.scheduler.running().len();
        self.stopgap.note_step(tokens as u32, self.now, goes_on);
    }

    /// What concerns nobody but the request: counts, KV, events, its end.
    fn follow_up(&mut self, verdict: &Verdict) {
        let Some(request) = self.requests.get_mut(&verdict.request) else {
            return;
        };
        let lingered = if verdict.is_awaited {
            self.feeding.lingered
        } else {
            Duration::ZERO
        };
        request.meter.note_lingered(lingered);
        request.record(verdict, &self.feeding, self.now);
        self.metrics.note_pass(&Counted {
            drafted: verdict.drafted,
            accepted: verdict.decided.accepted,
            tree: verdict.path.is_some(),
            emitted: verdict.emitted,
            verification: self.feeding.took,
            lingered,
            drawn: verdict.drawn.is_some(),
            lookup: verdict.lookup,
            round: verdict.round,
        });
        self.metrics
            .note_stats(&mut request.meter.counted, request.session.stats());
        if verdict.emitted > 0
            && let Some(took) = request.note_tokens(self.now)
        {
            self.metrics.first_token.observe(took.as_secs_f64());
        }
        let Some(reason) = verdict.decided.ended else {
            // What comes now nobody can have read.
            let unread = request.events.unread();
            request.flush_due(self.now, self.now);
            let kept = match &verdict.path {
                Some(path) => self.engine.accept_path(verdict.seq, path),
                None if verdict.keep < verdict.fed => {
                    self.engine.truncate(verdict.seq, verdict.keep)
                }
                None => Ok(()),
            };
            if let Err(error) = kept {
                tracing::error!(%error, "a request had no sequence");
            }
            if unread > MOST_UNREAD {
                self.park(verdict.request);
            }
            return;
        };
        self.finish(verdict.request, reason);
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        if let (Some(recording), Some(link)) = (&request.recording, request.link)
            && let Some(endpoint) = self.endpoints.find(link)
        {
            recording.bound(&endpoint.name);
        }
        request.finish(reason, self.now);
        // Whoever has the answer finds it counted.
        self.count_finished(&request, reason);
        request.flush(self.now);
        self.release(&mut request);
    }
}

/// One request's part of a step's logits.
struct Pass<'a> {
    feed: usize,
    logits: StepLogits<'a>,
    window: &'a [TokenId],
    /// The window, if it is a tree.
    tree: Option<&'a Proposals>,
}

impl<'a> Pass<'a> {
    fn of(share: &Share, feeding: &'a Feeding, feed: usize, logits: StepLogits<'a>) -> Self {
        Self {
            feed,
            logits,
            window: feeding.window(share),
            tree: feeding.tree(share),
        }
    }

    fn decide(
        &self,
        request: &mut Request,
        now: Duration,
        scratch: &mut Scratch,
        emitted: &mut Vec<TokenId>,
    ) -> Decided {
        // The verdict on the prompt has no window to wait for.
        request.session.next(now);
        if request.session.tokens().len() >= request.limit {
            emitted.clear();
            return Decided {
                accepted: 0,
                ended: Some(FinishReason::Length),
            };
        }
        let drafted = self.window.len() as u32;
        let Some(tree) = self.tree else {
            let verdict = self.decide_chain(request, scratch);
            let passed = Passed {
                drafted,
                accepted: &self.window[..verdict.accepted],
                decided: verdict.decided,
            };
            return request.emit(passed, |i| self.row(i), emitted, scratch);
        };
        let verdict = self.decide_tree(tree, request, scratch);
        let path = tree.path(verdict.node);
        let accepted = tree.spelled(verdict.node);
        let passed = Passed {
            drafted,
            accepted: &accepted,
            decided: verdict.decided,
        };
        let after = |i: usize| i.checked_sub(1).map_or(0, |last| path[last] as usize);
        request.emit(passed, |i| self.row(after(i)), emitted, scratch)
    }

    /// The logits after the last token before the window, and after each of its tokens.
    fn row(&self, node: usize) -> &'a [f32] {
        let first = self.logits.rows(self.feed) - self.window.len() - 1;
        self.logits.row(self.feed, first + node)
    }

    fn decide_chain(&self, request: &mut Request, scratch: &mut Scratch) -> verify::Verdict {
        let Request {
            session,
            sampler,
            seen,
            ..
        } = request;
        let row = |i| self.row(i);
        match session.verification() {
            Verification::Coupled => verify::coupled_chain(sampler, scratch, self.window, row),
            Verification::Rejection { .. } => {
                let laws = session.laws();
                let q = laws.lowered();
                let drawn = Drawn {
                    window: self.window,
                    // Not all of the window may have found room.
                    q: q.get(..self.window.len()).unwrap_or_default(),
                };
                let watch = watch(seen, laws);
                verify::drawn_chain(sampler, scratch, drawn, session.stats().rounds, row, watch)
            }
        }
    }

    fn decide_tree(
        &self,
        tree: &Proposals,
        request: &mut Request,
        scratch: &mut Scratch,
    ) -> TreeVerdict {
        let Request {
            session,
            sampler,
            seen,
            ..
        } = request;
        let row = |node| self.row(node as usize);
        match session.verification() {
            Verification::Coupled => verify::coupled_tree(sampler, scratch, tree, row),
            Verification::Rejection { .. } => {
                let laws = session.laws();
                let drawn = DrawnTree {
                    tree,
                    q: &laws.lowered(),
                };
                let watch = watch(seen, laws);
                verify::drawn_tree(sampler, scratch, drawn, session.stats().rounds, row, watch)
            }
        }
    }

    /// Most tokens of the window that follow each other.
    fn height(&self) -> u32 {
        let height = self.tree.map_or(self.window.len(), Proposals::height);
        height as u32
    }

    /// How many tokens, one after the other, were held against the target's choice; and the nodes of
    /// the sequence's tail that are accepted, if the window was a tree. The last token before it is
    /// the first of them.
    fn way(&self, accepted: &[TokenId]) -> (u32, Option<Vec<u32>>) {
        let Some(tree) = self.tree else {
            return (self.window.len() as u32, None);
        };
        let node = tree.find(accepted).unwrap_or(0);
        let path = [vec![0], tree.path(node)].concat();
        (tree.tried(node), Some(path))
    }
}

/// Has `seen` take in what the target makes of what a window was drawn from.
fn watch<'a>(seen: &'a mut Seen, laws: &'a Laws) -> impl FnMut(usize, &[f64]) + 'a {
    seen.clear();
    |depth, p| {
        if let Some(q) = laws.q.get(depth) {
            seen.push(q, p);
        }
    }
}
