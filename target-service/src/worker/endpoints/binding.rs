//! Who is bound to which endpoint, and what endpoints say to whom.

use std::time::Instant;

use foretoken_engine::schedule::RequestId;
use foretoken_protocol::Callee;
use foretoken_service::{complaints::Complaints, report::Rounds};
use foretoken_speculation::{
    control::{AnswerTime, ControlConfig, Drafting},
    message::{Keyed as _, ToDraft, ToTarget},
    policy::{
        SsdOptions,
        target::{Input, Source},
    },
};

use super::{Endpoint, Endpoints, Hearing, Slots, choice::keeps, fresh_patience};
use crate::{
    config::{TreesName, VerificationConfig},
    inbox::{self, LinkKey},
    request::{Refusal, Request},
    worker::{Worker, arrivals::REFUSED_FOR, bound, cohort::Cohorts},
};

impl Worker {
    /// Binds a request to the best endpoint there is, if any, and if it is of use.
    pub(in crate::worker) fn bind(&mut self, request: &mut Request) {
        if request.policy.lookahead(u32::MAX) == 0 {
            return;
        }
        self.take_stock();
        let Some(link) = self.endpoints.pick(request) else {
            return;
        };
        if self.endpoints.is_of_use(link, request) {
            self.bind_to(link, request);
        }
    }

    /// Looks at what a choice depends on: the sessions that endpoints hold for this target, and the time
    /// since something was heard of them.
    fn take_stock(&mut self) {
        let now = self.elapsed();
        for endpoint in &mut self.endpoints.list {
            let holds = |request: &&Request| {
                request.link == Some(endpoint.link) && request.session.is_bound()
            };
            endpoint.own = self.requests.values().filter(holds).count() as u32;
            endpoint.hearing.look(now);
        }
    }

    /// Binds a request that runs unbound, unless those that were bound before it have left no slot; says whether
    /// it did.
    pub(in crate::worker) fn bind_running(&mut self, link: LinkKey, id: RequestId) -> bool {
        let Some(mut request) = self.requests.remove(&id) else {
            return false;
        };
        let is_served = self.endpoints.pick(&request) == Some(link);
        if is_served {
            self.bind_to(link, &mut request);
        }
        self.requests.insert(id, request);
        is_served
    }

    fn bind_to(&mut self, link: LinkKey, request: &mut Request) {
        request.link = Some(link);
        request.has_slot = false;
        let now = self.elapsed();
        if let Some(endpoint) = self.endpoints.find(link) {
            endpoint.hearing.asked(now);
            endpoint.own += 1;
            request.session.set_patience(endpoint.patience.clone());
        }
        let effects = request.session.handle(now, Input::LinkUp);
        request.meter.weigh_sent(&effects.messages);
        self.endpoints.post(Some(link), effects.messages);
        self.metrics.sessions.inc();
    }

    /// Ends the session that a request has on an endpoint, if any; the request runs on.
    pub(in crate::worker) fn let_go(&mut self, id: RequestId) {
        let now = self.elapsed();
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        if request.session.is_bound() {
            let close = vec![request.session.close()];
            request.meter.weigh_sent(&close);
            self.endpoints.post(request.link, close);
        }
        request.session.handle(now, Input::LinkDown);
        request.refused.forget_all_for_now();
        request.unlink(&self.metrics);
    }

    /// Takes in the list of endpoints: dials new ones, drops the links of those that have gone.
    pub(in crate::worker) fn set_endpoints(&mut self, list: Vec<inbox::Source>) {
        let mut old = std::mem::take(&mut self.endpoints.list);
        for source in list {
            let inbox::Source {
                name,
                callee,
                share,
            } = source;
            let known = old
                .iter()
                .position(|e| e.name == name && e.callee == callee);
            let mut endpoint = match known {
                Some(index) => old.swap_remove(index),
                None => self.dial(name, callee),
            };
            endpoint.share = share;
            self.endpoints.list.push(endpoint);
        }
        for gone in old {
            if !self.endpoints.list.iter().any(|e| e.name == gone.name) {
                self.metrics.forget_endpoint(&gone.name);
            }
            self.unbind(gone.link);
        }
        self.count_links();
        self.endpoints.flush();
    }

    fn dial(&mut self, name: String, callee: Callee) -> Endpoint {
        let endpoints = &mut self.endpoints;
        endpoints.links += 1;
        let link = LinkKey(endpoints.links);
        let outlet = endpoints.dial.dial(link, &callee);
        let trees = self.config.trees == TreesName::Auto;
        let may_refrain = SsdOptions::from(self.config.ssd).may_refrain();
        let config = |drafting| {
            let most = match drafting {
                Drafting::InTurn => endpoints.most_in_turn,
                Drafting::Ahead => endpoints.most_ahead,
            };
            ControlConfig {
                trees,
                may_refrain: drafting == Drafting::Ahead && may_refrain,
                ..ControlConfig::of(drafting, most)
            }
        };
        let answers = AnswerTime::beside(&endpoints.steps);
        let cohorts = Cohorts::new(config, &endpoints.steps, &answers, endpoints.fan_out);
        let is_drawn = self.config.verification != VerificationConfig::Coupled;
        let c = is_drawn.then(|| self.metrics.c_of(&name));
        let (up, trouble, suspect) = (false, None, false);
        Endpoint {
            name,
            callee,
            link,
            share: None,
            outlet,
            up,
            ups: 0,
            trouble,
            suspect,
            hearing: Hearing::default(),
            slots: Slots::default(),
            positions: usize::MAX,
            own: 0,
            outgoing: Vec::new(),
            cohorts,
            c,
            refused: false,
            said: Default::default(),
            rounds: Rounds::default(),
            patience: fresh_patience(self.config.patience),
            complaints: Complaints::default(),
        }
    }

    /// Moves the requests of a lost endpoint to others.
    pub(in crate::worker) fn unbind(&mut self, link: LinkKey) {
        let ids: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| request.link == Some(link))
            .map(|(&id, _)| id)
            .collect();
        let now = self.elapsed();
        for id in ids {
            let Some(mut request) = self.requests.remove(&id) else {
                continue;
            };
            request.unlink(&self.metrics);
            request.session.handle(now, Input::LinkDown);
            request.refused.forget_all_for_now();
            self.bind(&mut request);
            self.requests.insert(id, request);
        }
    }

    /// Binds requests that have no endpoint, or wait for a slot of one that is full.
    pub(in crate::worker) fn bind_unbound(&mut self) {
        self.bind_unbound_while(|_| true);
    }

    /// Binds those of them that slots of an endpoint, which are free now, are enough for: of the others, each would
    /// send its whole sequence to be refused.
    pub(in crate::worker) fn bind_into_room(&mut self, link: LinkKey) {
        self.bind_unbound_while(|endpoints| endpoints.find(link).is_some_and(|it| it.has_room()));
    }

    fn bind_unbound_while(&mut self, goes_on: impl Fn(&mut Endpoints) -> bool) {
        let ids: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| request.seq.is_some() && !request.session.is_bound())
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            if !goes_on(&mut self.endpoints) {
                return;
            }
            let Some(mut request) = self.requests.remove(&id) else {
                continue;
            };
            self.pass_on(&mut request);
            self.requests.insert(id, request);
        }
    }

    /// Takes an unbound request from its endpoint, if it has one, and binds it to another, if there is
    /// one: where it is, its session may ask again. Where that is so it is not left for one with which no
    /// lookahead pays, but by the few that find out whether one does again.
    fn pass_on(&mut self, request: &mut Request) {
        self.take_stock();
        let Some(link) = self.endpoints.pick(request) else {
            return;
        };
        let own = request.link;
        let asks_again = own.is_some_and(|own| !request.refused.has_for_good(own));
        if asks_again && !self.endpoints.is_of_use(link, request) && !keeps(request) {
            return;
        }
        request.unlink(&self.metrics);
        request.session.handle(self.elapsed(), Input::LinkDown);
        self.bind(request);
    }

    pub(in crate::worker) fn receive(&mut self, link: LinkKey, message: &ToTarget, at: Instant) {
        let session = message.session();
        let now = at.saturating_duration_since(self.started);
        let Some(request) = bound(&mut self.requests, link, session.0) else {
            return;
        };
        let cohort = request.cohort(link);
        request.meter.weigh_received(message);
        let was_bound = request.session.is_bound();
        let had_slot = request.has_slot;
        let effects = request.session.handle(now, Input::Received(message));
        request.meter.weigh_sent(&effects.messages);
        if let Some(account) = &effects.account {
            request.meter.note_account(account);
        }
        let is_bound = request.session.is_bound();
        // It had a slot, or got none. Whoever loses one may lose it to another: if not, the endpoint
        // says so.
        let reopens = was_bound
            && effects
                .messages
                .iter()
                .any(|message| matches!(message, ToDraft::Open(_)));
        let is_refused = was_bound && !is_bound && effects.messages.is_empty();
        let is_uncounted = reopens || (is_refused && !std::mem::take(&mut request.has_slot));
        if is_bound && matches!(message, ToTarget::Opened { .. }) {
            request.has_slot = true;
            request.refused.forget_for_now(link);
        }
        let is_usual = request.meter.is_in_a_row();
        let patience = effects.answer.map(|_| request.session.patience().clone());
        if let Some(lookup) = effects.lookup {
            if let Source::Ahead { place } = lookup.source {
                request.meter.prepared(place);
            }
            self.metrics.note_lookup(lookup.source);
            self.endpoints.observe_lookup(link, lookup.is_hit());
        }
        self.endpoints.post(Some(link), effects.messages);
        if is_uncounted {
            self.endpoints.uncount(link);
        }
        match message {
            ToTarget::Opened { .. } | ToTarget::Account(_) | ToTarget::Entries(_) => {}
            ToTarget::Resync(_) => {
                self.metrics.resyncs.inc();
            }
            ToTarget::Refused { reason, .. } => {
                tracing::debug!(?link, %reason, "session refused");
                self.metrics.refusals.inc();
            }
            ToTarget::Window(_) => match effects.answer {
                Some(answer) => {
                    self.metrics
                        .draft_seconds
                        .observe(answer.took.as_secs_f64());
                    if answer.late {
                        self.metrics.stale_windows.inc();
                    }
                    if let Some((endpoint, patience)) = self.endpoints.find(link).zip(patience) {
                        endpoint.patience = patience;
                    }
                    if is_usual && let Some(controller) = self.endpoints.controller(cohort) {
                        controller.observe_answer(&answer);
                    }
                }
                None => {
                    self.metrics.stale_windows.inc();
                }
            },
        }
        if was_bound && !is_bound {
            let refusal = match message {
                ToTarget::Refused { retry: true, .. } | ToTarget::Resync(_) => Refusal::ForNow {
                    until: self.now + REFUSED_FOR,
                },
                _ => Refusal::ForGood,
            };
            self.give_up(link, session.0, refusal, had_slot);
            // The slot that it did not get may do for another, who needs fewer pages or has more of its quota.
            if is_uncounted {
                self.bind_into_room(link);
            }
        }
    }

    /// Ends the session of a request with an endpoint that makes no sense, and passes the request to the
    /// next one, if there is one.
    pub(in crate::worker) fn turn_away(&mut self, link: LinkKey, session: u64) {
        let Some(request) = bound(&mut self.requests, link, session) else {
            return;
        };
        request.refused.note(link, Refusal::ForGood);
        let id = request.id;
        self.let_go(id);
        if let Some(mut request) = self.requests.remove(&id) {
            self.bind(&mut request);
            self.requests.insert(id, request);
        }
    }

    /// Passes a request that an endpoint does not want (or serves badly) to the next one; if there
    /// is none it stays, and its session asks again if the refusal was temporary. One that it had served, or does
    /// not want at all, may ask anybody again; one whose turn it only was not would ask two in turns for ever, and
    /// asks the other again only after a while.
    fn give_up(&mut self, link: LinkKey, session: u64, refusal: Refusal, was_served: bool) {
        let Some(request) = bound(&mut self.requests, link, session) else {
            return;
        };
        let id = request.id;
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        if was_served || refusal == Refusal::ForGood {
            request.refused.forget_all_for_now();
        }
        request.refused.note(link, refusal);
        self.pass_on(&mut request);
        self.requests.insert(id, request);
    }
}
