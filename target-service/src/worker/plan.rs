//! From the state of all requests to one engine step.

use std::time::{Duration, Instant};

use foretoken_engine::{
    batch::{Reuse, StepError},
    schedule::{Ask, Chunk, Decode, Plan, RequestId, Running},
};
use foretoken_protocol::link::Mailbox;
use foretoken_speculation::{
    gather::{self, Due, Ready},
    policy::{Policy, target::Next},
};

use super::{
    Flow, Turn, Worker,
    feeding::{Feeding, Kind},
};
use crate::{inbox::Message, request::Request};

/// Most rows of a chunk whose every row needs logits: bounds the memory they take.
const PROMPT_LOGITS_ROWS: usize = 64;

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
            if self.scheduler.running().len() == 0 {
                self.stopgap.rest();
            }
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
        let started = self.clock.now();
        self.hand_on_before(started + self.endpoints.step_cost(self.feeding.rows()));
        if let Err(error) = self.forward() {
            tracing::error!(%error, "a step failed; its requests are lost");
            self.lose_step(&error);
            return Turn::Stepped;
        }
        self.now = self.clock.now();
        let computed = self.now.saturating_duration_since(started);
        let mut decisions = self.decide();
        self.now = self.clock.now();
        let took = self.now.saturating_duration_since(started);
        self.feeding.took = took;
        let rows = self.feeding.rows();
        self.metrics.step_rows.observe(rows as f64);
        self.metrics.step_seconds.observe(took.as_secs_f64());
        self.feeding.settle(survey.catches_up);
        if self.feeding.typical {
            self.endpoints.observe_step(rows as u32, computed);
        }
        // What was drafted for the verdicts came while they were computed.
        if self.looks_up()
            && let Some(inbox) = inbox
        {
            self.feeding.looked = true;
            if self.hear(inbox, Duration::ZERO) == Flow::End {
                return Turn::Ended;
            }
            self.now = self.clock.now();
        }
        self.feeding.lingered = Duration::ZERO;
        if self.feeding.looked
            && let Some(inbox) = inbox
            && self.linger(inbox, &mut decisions) == Flow::End
        {
            return Turn::Ended;
        }
        self.conclude(decisions);
        Turn::Stepped
    }

    /// Describes the running requests to the scheduler, and finds out who waits for what.
    fn survey(&mut self) -> Survey {
        let mut survey = Survey::default();
        let now = self.elapsed();
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
                let missed = request.session.stats().missed;
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
                if request.session.stats().missed > missed {
                    self.endpoints.note_silence(request, now, &self.metrics);
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
        request.meter.interrupt();
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
        // One that was preempted comes again.
        if let Some(waited) = request.opened(seq, cached, self.now) {
            self.metrics.prompt_tokens.inc_by(request.prompt_len as u64);
            if request.reuse != Reuse::Off {
                self.metrics.prefix_queries.inc_by(count as u64);
                self.metrics.prefix_hits.inc_by(cached as u64);
            }
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
        let now = self.elapsed();
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

/// When the window of a waiting request is to be expected.
fn expected(request: &Request, endpoints: &super::Endpoints, now: Instant) -> Due {
    let Some((link, (asked, most))) = request.link.zip(request.meter.asked) else {
        return Due::UNKNOWN;
    };
    let waited = now.saturating_duration_since(asked);
    endpoints.due(request.cohort(link), most, waited)
}
