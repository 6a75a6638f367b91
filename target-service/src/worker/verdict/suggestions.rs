//! What the next windows should have, asked once a step.

use foretoken_engine::schedule::RequestId;
use foretoken_speculation::{
    bounds::Bound as _,
    control::{Drafting, Limit, Load, MOST_NODES},
};

use crate::{
    request::Request,
    worker::{Worker, cohort::Cohort, endpoints::Trees},
};

/// What the next windows should have.
pub(super) struct Suggestions {
    by_cohort: Vec<Suggestion>,
    /// Requests bound just now: their endpoint has yet to read them, so nothing is asked of it.
    fresh: Vec<RequestId>,
    /// All requests that decode; sessions are those with an endpoint that may propose.
    pub(super) load: Load,
}

/// What the next windows of a cohort should have.
struct Suggestion {
    cohort: Cohort,
    lookahead: u32,
    limit: Limit,
    /// Those of this request only; none: of all.
    only: Option<RequestId>,
}

/// The adaptive requests of a cohort in the next step.
struct Crowd {
    cohort: Cohort,
    bound: Vec<RequestId>,
    unbound: Vec<RequestId>,
}

impl Worker {
    /// Asks the controllers of all endpoints in use, once for the whole step, binds requests for
    /// which speculation now pays, and lets go of those for which it has not for a while.
    pub(super) fn suggest(&mut self) -> Suggestions {
        let (crowds, load) = self.crowds();
        let decoding = load.sessions + load.other_rows;
        let mut by_cohort = Vec::with_capacity(crowds.len());
        let mut fresh = Vec::new();
        for crowd in crowds {
            let sessions = (crowd.bound.len() + crowd.unbound.len()) as u32;
            let load = Load {
                sessions,
                other_rows: decoding - sessions,
            };
            let Some(choice) = self.endpoints.choose(crowd.cohort, load) else {
                continue;
            };
            self.metrics.lookahead.set(i64::from(choice.lookahead));
            self.metrics.lookahead_limit(choice.limit.name()).inc();
            // One is enough to find out, if nobody waits for it.
            let alone = choice.limit == Limit::Probe
                && choice.lookahead > 0
                && crowd.cohort.drafting == Drafting::Ahead;
            by_cohort.push(Suggestion {
                cohort: crowd.cohort,
                lookahead: choice.lookahead,
                limit: choice.limit,
                only: crowd.bound.first().copied().filter(|_| alone),
            });
            let wanted = match (choice.lookahead, choice.limit) {
                (0, _) => 0,
                // One is enough to find out.
                (_, Limit::Probe) => usize::from(crowd.bound.is_empty()),
                _ => crowd.unbound.len(),
            };
            let settles = wanted > 0
                && (choice.limit != Limit::Probe || self.endpoints.postpone_probe(crowd.cohort));
            if self.endpoints.rests_for_long(crowd.cohort) {
                for &id in &crowd.bound {
                    self.let_go(id);
                }
            }
            for &id in crowd.unbound.iter().take(wanted) {
                if self.bind_running(crowd.cohort.link, id) && settles {
                    fresh.push(id);
                }
            }
        }
        Suggestions {
            by_cohort,
            fresh,
            load,
        }
    }

    /// What there is for trees under `load`, for those who want any.
    pub(super) fn trees(&self, load: Load) -> Option<Trees> {
        let rows = self.scheduler.limits().rows as u32;
        let rows = rows.saturating_sub(load.other_rows) / load.sessions.max(1);
        let nodes = rows.saturating_sub(1).min(MOST_NODES);
        (nodes > 0).then_some(Trees { nodes, load })
    }

    /// The adaptive requests by cohort, and all that decode.
    fn crowds(&self) -> (Vec<Crowd>, Load) {
        let mut crowds: Vec<Crowd> = Vec::new();
        let mut load = Load::of(0);
        for id in self.scheduler.running() {
            let Some(request) = self.requests.get(&id) else {
                continue;
            };
            if request.session.is_bound() {
                load.sessions += 1;
            } else {
                load.other_rows += 1;
            }
            if !request.is_adaptive() {
                continue;
            }
            let Some(cohort) = self.endpoints.serves(request) else {
                continue;
            };
            let at = crowds.iter().position(|crowd| crowd.cohort == cohort);
            let at = at.unwrap_or_else(|| {
                crowds.push(Crowd {
                    cohort,
                    bound: Vec::new(),
                    unbound: Vec::new(),
                });
                crowds.len() - 1
            });
            let crowd = &mut crowds[at];
            match request.link {
                Some(_) => crowd.bound.push(id),
                None if request.seq.is_some() => crowd.unbound.push(id),
                None => {}
            }
        }
        (crowds, load)
    }
}

impl Suggestions {
    /// What the next window of a request should have; it takes down what bound that.
    pub(super) fn tell(&self, request: &mut Request) -> u32 {
        let is_fresh = self.fresh.contains(&request.id);
        let cohort = request.link.map(|link| request.cohort(link));
        let cohort = cohort.filter(|_| request.is_adaptive() && !is_fresh);
        let mut by_cohort = self.by_cohort.iter();
        let found = by_cohort.find(|suggestion| cohort == Some(suggestion.cohort));
        let found = found.filter(|found| found.only.is_none_or(|only| only == request.id));
        request.meter.bound_by(found.map(|found| found.limit));
        found.map_or(0, |found| found.lookahead)
    }
}
