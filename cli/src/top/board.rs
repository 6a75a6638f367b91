//! What is known of all services and of the requests they serve.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, UNIX_EPOCH},
};

use foretoken_service::{
    metrics::START,
    rounds::{Build, Line, Round},
};
use serde::Serialize;

use super::{
    counts::Counts,
    figures::Figures,
    places::Place,
    scrape::Totals,
    session::{Session, SessionView},
    watch::News,
};

/// Most sessions that are kept; the silent ones go first.
const MOST_SESSIONS: usize = 512;

/// Everything that is shown.
#[derive(Debug, Default)]
pub(super) struct Board {
    services: BTreeMap<String, Service>,
    sessions: BTreeMap<(String, u64), Session>,
    missed: u64,
}

#[derive(Debug, Default)]
struct Service {
    name: String,
    trouble: Option<String>,
    kind: Option<String>,
    /// What it calls itself.
    instance: String,
    /// The look before the latest, and the latest.
    before: Option<(Totals, Instant)>,
    latest: Option<(Totals, Instant)>,
}

/// The board at one moment.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Snapshot {
    /// Over the latest interval.
    pub(super) now: Figures,
    /// Since the services began.
    pub(super) all: Figures,
    pub(super) requests: Requests,
    pub(super) services: Vec<ServiceView>,
    /// Those that run first, then those that ended, the latest first.
    pub(super) sessions: Vec<SessionView>,
    /// Events that came too fast to be shown.
    pub(super) missed_events: u64,
}

/// Requests on all targets; if none of these is known, on all routers, which know what runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Requests {
    pub(super) running: Option<u64>,
    pub(super) waiting: Option<u64>,
    pub(super) parked: Option<u64>,
}

/// A service.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ServiceView {
    pub(super) name: String,
    pub(super) url: String,
    /// `target`, `draft` or `router`; none while that is not known.
    pub(super) kind: Option<String>,
    /// Why it cannot be asked, if it cannot.
    pub(super) trouble: Option<String>,
    /// Tokens emitted (targets, routers) or drafted (drafts) a second; none before two looks.
    pub(super) tokens_per_second: Option<f64>,
    /// Share of its KV pages in use.
    pub(super) kv_usage: Option<f64>,
    /// Requests running, or sessions open.
    pub(super) sessions: Option<u64>,
    /// Links to endpoints, or targets, that are up.
    pub(super) links: Option<u64>,
}

impl Board {
    /// Takes in what became known.
    pub(super) fn note(&mut self, news: News) {
        match news {
            News::Places(places) => self.set_places(places),
            News::Scraped(url, totals, at) => {
                if let Some(service) = self.services.get_mut(&url) {
                    service.scraped(totals, at);
                }
            }
            News::Failed(url, why) => {
                if let Some(service) = self.services.get_mut(&url) {
                    service.trouble = Some(why);
                    service.before = None;
                    service.latest = None;
                }
            }
            News::Told(url, Line::Hello(hello)) => {
                if let Some(service) = self.services.get_mut(&url) {
                    service.kind = Some(hello.service.into_owned());
                    service.instance = hello.instance;
                }
            }
            News::Told(url, Line::Round(round)) => self.note_round(url, round),
            News::Told(_, Line::Missed { events }) => self.missed += events,
            News::Told(_, Line::Build(build)) => self.note_build(&build),
            News::Stop => {}
        }
    }

    fn set_places(&mut self, places: Vec<Place>) {
        let mut old = std::mem::take(&mut self.services);
        for Place { name, url } in places {
            let known = old.remove(&url).unwrap_or_default();
            self.services.insert(url, Service { name, ..known });
        }
        let services = &self.services;
        self.sessions
            .retain(|(url, _), _| services.contains_key(url));
    }

    fn note_round(&mut self, url: String, round: Round) {
        let now = Instant::now();
        let key = (url, round.session);
        let session = self.sessions.entry(key);
        let session = session.or_insert_with(|| Session::new(&round.policy, now));
        // Verdicts of a request only become more: it is one of a target that has begun anew.
        if !session.may_go_on(&round) {
            *session = Session::new(&round.policy, now);
        }
        session.note_round(round, now);
        if self.sessions.len() > MOST_SESSIONS {
            let silent = self
                .sessions
                .iter()
                .min_by_key(|(_, session)| session.heard);
            if let Some(key) = silent.map(|(key, _)| key.clone()) {
                self.sessions.remove(&key);
            }
        }
    }

    /// An endpoint knows a session by its number and by what the target calls itself.
    fn note_build(&mut self, build: &Build) {
        let services = self.services.iter();
        let mut named = services.filter(|(_, service)| {
            service.kind() == Some("target") && service.instance == build.target
        });
        // Of two targets of one name it could be either's.
        let (Some((url, _)), None) = (named.next(), named.next()) else {
            return;
        };
        let key = (url.clone(), build.session);
        if let Some(session) = self.sessions.get_mut(&key) {
            session.note_build(build);
        }
    }

    /// Whether every service that answers has been asked twice.
    pub(super) fn has_rates(&self) -> bool {
        let mut up = self
            .services
            .values()
            .filter(|s| s.trouble.is_none())
            .peekable();
        up.peek().is_some() && up.all(|service| service.before.is_some())
    }

    /// All of it, as it is now. Forgets sessions that are over.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let now = Instant::now();
        self.sessions.retain(|_, session| session.is_shown(now));
        Snapshot {
            now: self.figures(|service| service.before.as_ref()),
            all: self.lifetime(),
            requests: self.requests(),
            services: self.services.iter().map(Service::view).collect(),
            sessions: self.views(),
            missed_events: self.missed,
        }
    }

    /// What was counted between a look and the latest one.
    fn figures(&self, before: impl Fn(&Service) -> Option<&(Totals, Instant)>) -> Figures {
        self.joined(|service| {
            let ((then, at), (now, since)) = (before(service)?, service.latest.as_ref()?);
            Some((now.since(then), since.saturating_duration_since(*at)))
        })
    }

    /// What was counted since the services began.
    fn lifetime(&self) -> Figures {
        self.joined(|service| {
            let (now, _) = service.latest.as_ref()?;
            let began = now.has(START).then(|| now.sum(START));
            let began = began.and_then(|began| Duration::try_from_secs_f64(began).ok());
            let up = began.and_then(|began| UNIX_EPOCH.checked_add(began)?.elapsed().ok());
            Some((now.clone(), up.unwrap_or_default()))
        })
    }

    /// What `counted` says of each service, and in which time, joined. Without targets routers tell
    /// what they count by the same names: tokens, windows and what was accepted.
    fn joined(&self, counted: impl Fn(&Service) -> Option<(Totals, Duration)>) -> Figures {
        let all = |kind: &str| {
            let services = self.services.values().filter(|s| s.kind() == Some(kind));
            let counts = services.filter_map(&counted);
            counts.reduce(|(mut totals, longest), (more, took)| {
                totals.join(&more);
                (totals, longest.max(took))
            })
        };
        let (targets, drafts) = (all("target"), all("draft"));
        let has = (targets.is_some(), drafts.is_some());
        let (emitted, took) = targets.or_else(|| all("router")).unwrap_or_default();
        let (drafted, _) = drafts.unwrap_or_default();
        let figures = Figures::of(&Counts::of(&emitted, &drafted), took.as_secs_f64());
        match has {
            (true, true) => figures,
            (true, false) => figures.without_drafts(),
            (false, true) => figures.without_targets(),
            (false, false) => figures.without_targets().without_drafts(),
        }
    }

    fn requests(&self) -> Requests {
        let sum = |kind: &str, name: &str| {
            let services = self.services.values().filter(|s| s.kind() == Some(kind));
            let latest = services.filter_map(|s| s.latest.as_ref());
            let counts = latest.map(|(totals, _)| totals.sum(name));
            counts.reduce(|a, b| a + b).map(|sum| sum as u64)
        };
        let running = |kind| sum(kind, "vllm:num_requests_running");
        Requests {
            running: running("target").or_else(|| running("router")),
            waiting: sum("target", "vllm:num_requests_waiting"),
            parked: sum("target", "foretoken_requests_parked"),
        }
    }

    fn views(&self) -> Vec<SessionView> {
        let view = |((url, number), session): (&(String, u64), &Session)| {
            let service = self.services.get(url);
            let target = service.map_or_else(|| url.clone(), |s| s.name.clone());
            session.view(target, *number)
        };
        let mut sessions: Vec<_> = self.sessions.iter().collect();
        // Those that run keep their lines from look to look.
        sessions.sort_by_key(|(_, session)| session.place());
        sessions.into_iter().map(view).collect()
    }
}

impl Snapshot {
    /// Whether any service answers.
    pub(super) fn is_anything_up(&self) -> bool {
        let mut services = self.services.iter();
        services.any(|service| service.trouble.is_none() && service.kind.is_some())
    }
}

impl Service {
    fn scraped(&mut self, totals: Totals, at: Instant) {
        self.trouble = None;
        self.before = self.latest.take();
        self.latest = Some((totals, at));
    }

    /// What it says it is, or what its metrics show it to be.
    fn kind(&self) -> Option<&str> {
        if let Some(kind) = &self.kind {
            return Some(kind);
        }
        let (totals, _) = self.latest.as_ref()?;
        if totals.has("foretoken_targets_ready") {
            Some("router")
        } else if totals.has("foretoken_builds_total") {
            Some("draft")
        } else if totals.has("foretoken_links_up") {
            Some("target")
        } else {
            None
        }
    }

    fn view((url, service): (&String, &Self)) -> ServiceView {
        let kind = service.kind().map(str::to_owned);
        let latest = service.latest.as_ref().map(|(totals, _)| totals);
        let rate = |name: &str| {
            let (then, at) = service.before.as_ref()?;
            let (now, since) = service.latest.as_ref()?;
            let seconds = since.saturating_duration_since(*at).as_secs_f64();
            (seconds > 0.0).then(|| now.since(then).sum(name) / seconds)
        };
        let drafted = || {
            let windows = rate("foretoken_drafted_tokens_total")?;
            Some(windows + rate("foretoken_branch_tokens_total")?)
        };
        let emitted = || rate("vllm:generation_tokens_total");
        let running = "vllm:num_requests_running";
        let (tokens, sessions, links) = match kind.as_deref() {
            Some("draft") => (drafted(), "foretoken_sessions", "foretoken_links"),
            Some("router") => (emitted(), running, "foretoken_targets_ready"),
            _ => (emitted(), running, "foretoken_links_up"),
        };
        let gauge = |name: &str| {
            latest
                .filter(|totals| totals.has(name))
                .map(|t| t.sum(name))
        };
        ServiceView {
            name: service.name.clone(),
            url: url.clone(),
            kind,
            trouble: service.trouble.clone(),
            tokens_per_second: tokens,
            kv_usage: gauge("vllm:kv_cache_usage_perc"),
            sessions: gauge(sessions).map(|sessions| sessions as u64),
            links: gauge(links).map(|links| links as u64),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
