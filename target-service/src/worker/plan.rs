//! From the state of all requests to one engine step.

use std::time::{Duration, Instant};

use foretoken_engine::{
    batch::{Feed, SeqId, StepError, Wants},
    schedule::{Ask, Chunk, Decode, Plan, RequestId, Running},
};
use foretoken_protocol::link::Mailbox;
use foretoken_speculation::{
    Proposals, TokenId,
    policy::{Policy, target::Next},
};

use super::{Flow, Turn, Worker};
use crate::{
    gather::{self, Due, Ready},
    inbox::Message,
    request::Request,
};

/// Most rows of a chunk whose every row needs logits: bounds the memory they take.
const PROMPT_LOGITS_ROWS: usize = 64;

/// When a window is expected of which nothing is known.
const UNKNOWN: Duration = Duration::from_secs(3600);

/// Plain steps that have to have come before one for it to take what such steps take in a row. The
/// first ones after speculation take up to a fifth longer: the cores were at something else.
const SETTLING: u32 = 6;

/// Rows of one request in the step being built.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) request: RequestId,
    pub(super) seq: SeqId,
    /// Tokens with KV before the step.
    pub(super) len: usize,
    /// Where its tokens are in [`Feeding::tokens`].
    start: usize,
    end: usize,
    /// Its window among [`Feeding::trees`], if that is no chain.
    tree: Option<usize>,
    wants: Wants,
    pub(super) kind: Kind,
}

/// What a share is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Known tokens; more of them follow in later steps.
    Chunk,
    /// Known tokens up to the last: the first token is decided.
    First,
    /// The last token and a window of proposals.
    Window,
}

/// The step being built; its buffers are kept from step to step.
#[derive(Default)]
pub(super) struct Feeding {
    tokens: Vec<TokenId>,
    /// Windows that are trees.
    trees: Vec<Proposals>,
    /// Parents of their nodes, the last token before each included.
    parents: Vec<Option<u32>>,
    pub(super) shares: Vec<Share>,
    /// How long the latest step took.
    pub(super) took: Duration,
    /// Whether the links were looked at after the latest step.
    pub(super) looked: bool,
    /// Whether the latest step took what such steps always take. Steps without proposals are
    /// learned from for what they say about plain decoding: one beside an endpoint that reads a
    /// whole sequence, maybe on the target's cores, says nothing about it, nor does one that plain
    /// ones did not come before. Either would make speculation look good by what it spoils.
    pub(super) typical: bool,
    /// Steps without proposals up to the latest one.
    plain: u32,
    running: Vec<Running>,
    due: Vec<Due>,
}

impl Feeding {
    /// Rows of the step.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Whether anything is proposed in it.
    fn proposes(&self) -> bool {
        let mut shares = self.shares.iter();
        shares.any(|share| !self.window(share).is_empty())
    }

    /// Takes in a step of these rows, beside an endpoint that reads or not.
    fn settle(&mut self, catches_up: bool) {
        let proposes = self.proposes();
        self.typical = proposes || (!catches_up && self.plain >= SETTLING);
        self.plain = if proposes {
            0
        } else {
            self.plain.saturating_add(1)
        };
    }

    /// The proposals of a share of [`Kind::Window`].
    pub(super) fn window(&self, share: &Share) -> &[TokenId] {
        match share.kind {
            Kind::Window => &self.tokens[share.start + 1..share.end],
            Kind::Chunk | Kind::First => &[],
        }
    }

    /// The same, if they are a tree.
    pub(super) fn tree(&self, share: &Share) -> Option<&Proposals> {
        self.trees.get(share.tree?)
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.trees.clear();
        self.parents.clear();
        self.shares.clear();
    }

    fn push(
        &mut self,
        request: &Request,
        len: usize,
        tokens: impl Iterator<Item = TokenId>,
        tree: Option<Proposals>,
        kind: Kind,
    ) {
        let Some(seq) = request.seq else { return };
        let start = self.tokens.len();
        self.tokens.extend(tokens);
        let wants = match kind {
            Kind::Window => Wants::All,
            Kind::Chunk | Kind::First if request.wants_prompt_logprobs() => Wants::All,
            Kind::First => Wants::Last,
            Kind::Chunk => Wants::None,
        };
        let tree = tree.map(|tree| {
            self.trees.push(tree);
            self.trees.len() - 1
        });
        let end = self.tokens.len();
        self.shares.push(Share {
            request: request.id,
            seq,
            len,
            start,
            end,
            tree,
            wants,
            kind,
        });
    }

    /// The last token of a sequence and as much of its window as fits.
    fn push_window(&mut self, request: &Request, len: usize, window: &Proposals, most: usize) {
        let Some(&last) = request.session.tokens().last() else {
            return;
        };
        let fits = most.min(window.len());
        let proposed = window.tokens()[..fits].iter().copied();
        let tree = (!window.is_chain()).then(|| {
            let mut tree = window.clone();
            tree.truncate(fits);
            tree
        });
        let tree = tree.filter(|tree| !tree.is_chain());
        let tokens = std::iter::once(last).chain(proposed);
        self.push(request, len, tokens, tree, Kind::Window);
    }

    /// The rows of a step. A tree hangs on the last token, which is a node itself: what becomes of
    /// it is decided with the tree.
    fn feeds(&mut self) -> Vec<Feed<'_>> {
        let mut ends = Vec::with_capacity(self.trees.len());
        for tree in &self.trees {
            self.parents.push(None);
            let nodes = 1..=tree.len() as u32;
            self.parents
                .extend(nodes.map(|node| Some(tree.parent(node))));
            ends.push(self.parents.len());
        }
        let Self {
            tokens,
            parents,
            shares,
            ..
        } = self;
        let feed = |share: &Share| Feed {
            seq: share.seq,
            tokens: &tokens[share.start..share.end],
            tree: share.tree.map(|tree| {
                let end = ends[tree];
                &parents[end - (share.end - share.start)..end]
            }),
            logits: share.wants,
        };
        shares.iter().map(feed).collect()
    }
}

/// What the running requests can do now.
#[derive(Default)]
struct Survey {
    ready: Ready,
    /// Whether somebody is in prefill.
    prefill: bool,
    /// Whether an endpoint has yet to read somebody's sequence.
    catches_up: bool,
    /// When the first window is overdue.
    deadline: Option<Instant>,
}

impl Worker {
    /// Runs a step if anything can and should run now.
    pub(super) fn step(&mut self, inbox: Option<&Mailbox<Message>>) -> Turn {
        self.feeding.looked = false;
        let survey = self.survey();
        if let Some(until) = self.patience_for_others(&survey) {
            return Turn::Idle(Some(until));
        }
        let free = self.engine.free_pages();
        let plan = self.scheduler.plan(free, &self.feeding.running);
        let preempted = !plan.preempt.is_empty();
        self.build(&plan);
        // Bound while its prompt is computed, so that the endpoint does the same meanwhile.
        let opened = self.endpoints.flush();
        if self.feeding.shares.is_empty() {
            // What was preempted, or admitted with its prompt cached, can go on at once.
            let again = preempted || !plan.admit.is_empty();
            return if again {
                Turn::Stepped
            } else {
                Turn::Idle(survey.deadline)
            };
        }
        if opened && let Some(inbox) = inbox {
            inbox.send();
        }
        let started = Instant::now();
        if let Err(error) = self.forward() {
            tracing::error!(%error, "a step failed; its requests are lost");
            self.lose_step(&error);
            return Turn::Stepped;
        }
        self.now = Instant::now();
        let took = self.now.saturating_duration_since(started);
        self.feeding.took = took;
        let rows = self.feeding.rows();
        self.metrics.step_rows.observe(rows as f64);
        self.metrics.step_seconds.observe(took.as_secs_f64());
        self.feeding.settle(survey.catches_up);
        if self.feeding.typical {
            self.endpoints.observe_step(rows as u32, took);
        }
        // What was drafted for the verdicts came while they were computed.
        if self.looks_up()
            && let Some(inbox) = inbox
        {
            self.feeding.looked = true;
            if self.hear(inbox, Duration::ZERO) == Flow::End {
                return Turn::Ended;
            }
            self.now = Instant::now();
        }
        self.conclude();
        Turn::Stepped
    }

    /// Describes the running requests to the scheduler, and finds out who waits for what.
    fn survey(&mut self) -> Survey {
        let mut survey = Survey::default();
        let now = self.clock();
        let Feeding { running, due, .. } = &mut self.feeding;
        running.clear();
        due.clear();
        for id in self.scheduler.running() {
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            let Some(seq) = request.seq else { continue };
            survey.catches_up |= request.session.is_bound() && !request.session.is_caught_up();
            let (Ok(len), Ok(owned_pages), Ok(shares_tail)) = (
                self.engine.len(seq),
                self.engine.owned_pages(seq),
                self.engine.shares_tail(seq),
            ) else {
                continue;
            };
            let mut tokens = request.session.tokens().len();
            let mut ask = Ask::Run { window: 0 };
            if len + 1 < tokens {
                survey.prefill = true;
                if request.has_started() {
                    // Preempted and back: its last token is for the next window.
                    tokens -= 1;
                }
            } else {
                match request.session.next(now) {
                    Next::Verify(window) => {
                        ask = Ask::Run {
                            window: window.len(),
                        };
                        survey.ready.requests += 1;
                        survey.ready.rows += 1 + window.len();
                    }
                    Next::Wait { until } => {
                        ask = Ask::SitOut;
                        let until = self.started + until;
                        survey.deadline =
                            Some(survey.deadline.map_or(until, |sooner| sooner.min(until)));
                        due.push(expected(request, &self.endpoints, self.now));
                    }
                    Next::Finished => ask = Ask::SitOut,
                }
            }
            running.push(Running {
                id,
                len,
                tokens,
                owned_pages,
                shares_tail,
                ask,
            });
        }
        due.sort_unstable_by_key(|due| due.after);
        survey
    }

    /// Until when those who are ready should wait for windows that are due soon.
    fn patience_for_others(&self, survey: &Survey) -> Option<Instant> {
        let limits = self.scheduler.limits();
        let admits = self.scheduler.waiting().len() > 0
            && self.scheduler.running().len() < limits.running.min(limits.rows);
        if survey.prefill || admits || survey.ready.requests == 0 {
            return None;
        }
        let cost = |rows| self.endpoints.step_cost(rows);
        let wait = gather::wait_for(survey.ready, &self.feeding.due, cost)?;
        let until = self.now + wait;
        Some(
            survey
                .deadline
                .map_or(until, |deadline| deadline.min(until)),
        )
    }

    /// Carries out a plan up to the feeds of its step.
    fn build(&mut self, plan: &Plan) {
        self.feeding.clear();
        for &id in &plan.preempt {
            self.preempt(id);
        }
        for &Decode { id, window } in &plan.decode {
            self.feed_decode(id, window);
        }
        for &Chunk { id, rows } in &plan.prefill {
            self.feed_chunk(id, rows);
        }
        for &Chunk { id, rows } in &plan.admit {
            self.admit(id);
            self.feed_chunk(id, rows);
        }
    }

    fn preempt(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        self.metrics.preemptions.inc();
        if let Some(seq) = request.seq.take()
            && let Err(error) = self.engine.close(seq)
        {
            tracing::error!(%error, "a preempted request had no sequence");
        }
    }

    /// Opens a sequence for a request, and a session on an endpoint.
    fn admit(&mut self, id: RequestId) {
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        let tokens = request.session.tokens();
        let count = tokens.len();
        let seq = self.engine.open(tokens, request.reuse);
        let cached = self.engine.cached_len(seq).unwrap_or(0);
        if !request.has_started() {
            self.metrics.prefix_queries.inc_by(count as u64);
            self.metrics.prefix_hits.inc_by(cached as u64);
        }
        if let Some(waited) = request.opened(seq, cached, self.now) {
            self.metrics.queue_time.observe(waited.as_secs_f64());
            self.admitted.0 += 1;
            self.admitted.1 += waited;
        }
        if request.link.is_none() {
            self.bind(&mut request);
        }
        self.requests.insert(id, request);
    }

    /// Feeds the last token and as much of the window as fits.
    fn feed_decode(&mut self, id: RequestId, window: usize) {
        let now = self.clock();
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        let len = request.session.tokens().len();
        let kept = request
            .seq
            .and_then(|seq| self.engine.len(seq).ok())
            .unwrap_or(0);
        if kept + 1 < len {
            return self.feed_chunk(id, 1);
        }
        // Asking settles the window; what is asked for is then there to be read.
        if let Next::Verify(_) = request.session.next(now) {
            let proposed = request.session.window();
            self.feeding.push_window(request, kept, proposed, window);
        }
    }

    /// Feeds up to `rows` known tokens.
    fn feed_chunk(&mut self, id: RequestId, rows: usize) {
        let Some(request) = self.requests.get(&id) else {
            return;
        };
        let tokens = request.session.tokens();
        let kept = request
            .seq
            .and_then(|seq| self.engine.len(seq).ok())
            .unwrap_or(0);
        let known = if request.has_started() {
            tokens.len() - 1
        } else {
            tokens.len()
        };
        let mut rows = rows.min(known.saturating_sub(kept));
        if request.wants_prompt_logprobs() {
            rows = rows.min(PROMPT_LOGITS_ROWS);
        }
        if rows == 0 {
            return;
        }
        let first = !request.has_started() && kept + rows == known;
        let kind = if first { Kind::First } else { Kind::Chunk };
        let fed = tokens[kept..kept + rows].iter().copied();
        self.feeding.push(request, kept, fed, None, kind);
    }

    /// Whether a verdict of this step may have been drafted for.
    fn looks_up(&self) -> bool {
        let mut shares = self.feeding.shares.iter();
        shares.any(|share| {
            let request = self.requests.get(&share.request);
            request.is_some_and(|request| {
                share.kind != Kind::Chunk && matches!(request.policy, Policy::Ssd(_))
            })
        })
    }

    fn forward(&mut self) -> Result<(), StepError> {
        let feeds = self.feeding.feeds();
        self.engine.step(&feeds).map(|_| ())
    }

    /// Gives up the requests of a step that did not run; the router replays them elsewhere.
    fn lose_step(&mut self, error: &StepError) {
        let cause = error.to_string();
        let ids: Vec<_> = self
            .feeding
            .shares
            .iter()
            .map(|share| share.request)
            .collect();
        for id in ids {
            self.lose(id, &cause);
        }
        self.endpoints.flush();
    }
}

/// When the window of a waiting request is to be expected. One that is overdue is expected later
/// the longer it is overdue, so that nobody waits for it for long.
fn expected(request: &Request, endpoints: &super::Endpoints, now: Instant) -> Due {
    let Some((link, (asked, tokens))) = request.link.zip(request.meter.asked) else {
        return Due {
            after: UNKNOWN,
            rows: 1,
        };
    };
    let answer = endpoints.answer_time(request.cohort(link), tokens);
    let waited = now.saturating_duration_since(asked);
    let after = match answer.checked_sub(waited) {
        Some(left) => left,
        None => waited.saturating_sub(answer) + answer / 4,
    };
    Due {
        after,
        rows: 1 + tokens as usize,
    }
}
