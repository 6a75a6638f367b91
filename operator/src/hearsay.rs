//! What pods say of themselves: every one that serves is asked now and then, over the pods' own
//! network and never through the API server.
//!
//! Of those that do not answer, all but a try now and then is spared. Objects that have something
//! new to tell are looked at: at once when something turned, else not more often than every
//! [`QUIET`].

mod candidate;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use foretoken_service::report::{Report, Rounds};
use futures::{StreamExt as _, stream};
use reqwest::{Client, redirect};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::{
    figures::{
        self, Counted, DeploymentFigures, EndpointFigures, Fetching, History, Named, News,
        Revisions, Tally, Trial,
    },
    rollout::Heard,
    world::{Bells, World},
};
pub(crate) use candidate::{Candidate, Whose, is_ready};

/// How often pods are asked.
const PERIOD: Duration = Duration::from_secs(5);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long all first answers may take together before objects are looked at without.
const FIRST: Duration = Duration::from_secs(5);
/// Most pods that are asked at once.
const AT_ONCE: usize = 32;
/// Longest pause between two tries to ask a pod that does not answer.
const LONGEST: Duration = Duration::from_secs(120);
/// How often numbers that drift are told of an object.
const QUIET: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
const MOST: usize = 256 << 10;

/// What pods have said.
pub(crate) struct Hearsay {
    client: Option<Client>,
    began: Instant,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    pods: HashMap<String, Spoken>,
    deployments: HashMap<Named, Noted<DeploymentFigures>>,
    endpoints: HashMap<Named, Noted<EndpointFigures>>,
    fetching: HashMap<Whose, Fetching>,
    revisions: Revisions,
    tally: Tally,
}

/// One pod.
struct Spoken {
    whose: Whose,
    history: Option<History>,
    /// Times in a row that it did not answer.
    silent: u32,
    due: Instant,
}

/// Figures of an object, and those that it was looked at with last.
struct Noted<F> {
    now: F,
    rung: Option<(Instant, F)>,
}

impl Hearsay {
    /// Nothing has been heard.
    pub(crate) fn new() -> Self {
        let client = Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .build();
        if let Err(error) = &client {
            tracing::warn!(%error, "pods cannot be asked how they are doing");
        }
        Self {
            client: client.ok(),
            began: Instant::now(),
            known: Mutex::default(),
        }
    }

    /// Asks all pods once, so that the first statuses are of what is so.
    pub(crate) async fn ask_first(&self, world: &World, bells: &Bells) {
        if timeout(FIRST, self.ask(world, bells)).await.is_err() {
            tracing::info!("not all pods have answered yet");
        }
    }

    /// Asks for ever.
    pub(crate) async fn keep_asking(&self, world: &World, bells: &Bells) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.ask(world, bells).await;
        }
    }

    /// What is known of a deployment, if anything.
    pub(crate) fn deployment(&self, named: &Named) -> Option<DeploymentFigures> {
        self.lock()
            .deployments
            .get(named)
            .map(|noted| noted.now.clone())
    }

    /// What is known of an endpoint, if anything.
    pub(crate) fn endpoint(&self, named: &Named) -> Option<EndpointFigures> {
        self.lock()
            .endpoints
            .get(named)
            .map(|noted| noted.now.clone())
    }

    /// How far downloads of a model are.
    pub(crate) fn fetching(&self, whose: &Whose) -> Option<Fetching> {
        self.lock().fetching.get(whose).copied()
    }

    /// What targets say of two revisions since the trial began; `before` is what had been told of it.
    pub(crate) fn heard(&self, named: &Named, trial: &Trial, before: [Rounds; 2]) -> Heard {
        let mut known = self.lock();
        let now = self.began.elapsed();
        let Counted {
            rounds: [old, new],
            since,
        } = known.tally.of(named, trial, before, now);
        let histories = known
            .pods
            .values()
            .filter_map(|spoken| spoken.history.as_ref());
        let latest = histories.map(History::latest);
        let refused = figures::refusal(latest, named, trial, &known.revisions);
        Heard {
            old,
            new,
            refused,
            counted: now.saturating_sub(since),
        }
    }

    /// No revisions of this endpoint are compared.
    pub(crate) fn compare_none(&self, named: &Named) {
        self.lock().tally.end(named);
    }

    async fn ask(&self, world: &World, bells: &Bells) {
        let Some(client) = &self.client else { return };
        let pods = world.pods.state();
        let candidates = pods.iter().filter_map(|pod| pod.candidate.clone());
        let due = self.begin(candidates.collect());
        let answers = stream::iter(due)
            .map(|candidate| async move {
                let report = ask(client, &candidate.url()).await;
                let report = report.map(|report| of_its_own(world, &candidate.whose, report));
                (candidate.uid, report)
            })
            .buffer_unordered(AT_ONCE);
        let mut answers = std::pin::pin!(answers);
        while let Some((uid, answer)) = answers.next().await {
            self.lock().hear(&uid, answer, self.began);
        }
        self.lock().conclude(bells);
    }

    /// Forgets pods that have gone; gives those that are to be asked now.
    fn begin(&self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let now = Instant::now();
        let mut known = self.lock();
        let mut pods = std::mem::take(&mut known.pods);
        known.revisions = candidates.iter().filter_map(revision).collect();
        let mut due = Vec::new();
        for candidate in candidates {
            let spoken = pods.remove(&candidate.uid).unwrap_or_else(|| Spoken {
                whose: candidate.whose.clone(),
                history: None,
                silent: 0,
                due: now,
            });
            let is_due = spoken.due <= now;
            known.pods.insert(candidate.uid.clone(), spoken);
            if is_due {
                due.push(candidate);
            }
        }
        due
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn hear(&mut self, uid: &str, answer: Option<Report>, began: Instant) {
        let Some(spoken) = self.pods.get_mut(uid) else {
            return;
        };
        let now = Instant::now();
        let Some(report) = answer else {
            spoken.silent = spoken.silent.saturating_add(1);
            spoken.due = now + pause(spoken.silent);
            return;
        };
        spoken.silent = 0;
        spoken.due = now;
        let at = now.saturating_duration_since(began);
        match &mut spoken.history {
            Some(history) => {
                self.tally.hear(history.latest(), &report, &self.revisions);
                history.hear(at, report);
            }
            history => *history = Some(History::new(at, report)),
        }
    }

    /// How far downloads are, and the bells of whom that concerns.
    fn conclude_downloads(&mut self, bells: &Bells) {
        let mut by_owner: HashMap<&Whose, Vec<&History>> = HashMap::new();
        for spoken in self.pods.values() {
            let histories = by_owner.entry(&spoken.whose).or_default();
            histories.extend(&spoken.history);
        }
        let fetching: HashMap<Whose, Fetching> = by_owner
            .into_iter()
            .filter_map(|(whose, pods)| Some((whose.clone(), figures::fetching(pods)?)))
            .collect();
        let before = std::mem::replace(&mut self.fetching, fetching);
        let is_news = |whose: &&Whose| before.get(whose) != self.fetching.get(whose);
        let concerned: HashSet<&Whose> = before.keys().chain(self.fetching.keys()).collect();
        for whose in concerned.into_iter().filter(|whose| is_news(whose)) {
            match whose {
                Whose::Deployment((namespace, name)) => bells.deployment(name, namespace),
                Whose::Endpoint((namespace, name)) => bells.endpoint(name, namespace),
            }
        }
    }

    /// Figures of all, and the bells of those that have something to tell.
    fn conclude(&mut self, bells: &Bells) {
        self.conclude_downloads(bells);
        let mut targets: BTreeMap<&Named, Vec<&History>> = BTreeMap::new();
        let mut drafts: BTreeMap<&Named, Vec<&History>> = BTreeMap::new();
        for spoken in self.pods.values() {
            let Some(history) = &spoken.history else {
                continue;
            };
            match &spoken.whose {
                Whose::Deployment(named) => targets.entry(named).or_default().push(history),
                Whose::Endpoint(named) => drafts.entry(named).or_default().push(history),
            }
        }
        let rounds = figures::rounds_by_endpoint(targets.values().flatten().copied());
        let deployments = targets.into_iter().filter_map(|(named, histories)| {
            Some((named.clone(), figures::deployment(histories)?))
        });
        let endpoints = drafts.into_iter().filter_map(|(named, histories)| {
            let rounds = rounds.get(named).copied().unwrap_or_default();
            Some((named.clone(), figures::endpoint(histories, rounds)?))
        });
        let now = Instant::now();
        let rung = note(
            &mut self.deployments,
            deployments.collect(),
            figures::news_of_deployment,
            now,
        );
        for (namespace, name) in rung {
            bells.deployment(&name, &namespace);
        }
        let rung = note(
            &mut self.endpoints,
            endpoints.collect(),
            figures::news_of_endpoint,
            now,
        );
        for (namespace, name) in rung {
            bells.endpoint(&name, &namespace);
        }
    }
}

/// The revision of a draft, by whose it is and where.
fn revision(candidate: &Candidate) -> Option<((Named, IpAddr), String)> {
    let Whose::Endpoint(named) = &candidate.whose else {
        return None;
    };
    let revision = candidate.revision.clone()?;
    Some(((named.clone(), candidate.address), revision))
}

/// Replaces figures; says whose are to be told now.
fn note<F: Clone>(
    known: &mut HashMap<Named, Noted<F>>,
    figures: Vec<(Named, F)>,
    news: fn(Option<&F>, &F) -> Option<News>,
    now: Instant,
) -> Vec<Named> {
    let mut before = std::mem::take(known);
    let mut told = Vec::new();
    for (named, figures) in figures {
        let mut rung = before.remove(&named).and_then(|noted| noted.rung);
        let is_quiet = rung.as_ref().is_some_and(|(at, _)| now - *at < QUIET);
        let is_told = match news(rung.as_ref().map(|(_, figures)| figures), &figures) {
            Some(News::Turn) => true,
            Some(News::Drift) => !is_quiet,
            None => false,
        };
        if is_told {
            rung = Some((now, figures.clone()));
            told.push(named.clone());
        }
        known.insert(named, Noted { now: figures, rung });
    }
    told
}

/// How long a pod that did not answer so many times in a row is left alone.
fn pause(silent: u32) -> Duration {
    let doubled = PERIOD.saturating_mul(1 << silent.saturating_sub(1).min(16));
    doubled.min(LONGEST)
}

/// What a pod says of what is its own. Anybody can make a pod that looks like a target's: endpoints that
/// the deployment does not mean, or may not use, are none of its business.
fn of_its_own(world: &World, whose: &Whose, mut report: Report) -> Report {
    if let (Whose::Deployment(named), Some(target)) = (whose, &mut report.target) {
        target.endpoints.retain(|endpoint| {
            let meant = figures::endpoint_of(&endpoint.name);
            meant.is_some_and(|meant| world.uses(named, &meant))
        });
    }
    report
}

/// What a pod says, if it does and is understood.
async fn ask(client: &Client, url: &str) -> Option<Report> {
    let answer = async {
        let mut response = client.get(url).send().await?.error_for_status()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MOST {
                return Ok(None);
            }
            body.extend_from_slice(&chunk);
        }
        Ok::<_, reqwest::Error>(serde_json::from_slice(&body).ok())
    };
    match answer.await {
        Ok(Some(report)) => Some(report),
        Ok(None) => {
            tracing::debug!(url, "a pod said something that makes no sense");
            None
        }
        Err(error) => {
            tracing::debug!(url, %error, "a pod does not say how it is doing");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_asked_less_and_less_often_up_to_a_bound() {
        let pauses: Vec<Duration> = (1..40).map(pause).collect();
        assert_eq!(pauses[0], PERIOD);
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&LONGEST));
    }

    #[test]
    fn turns_are_told_at_once_and_drifts_now_and_then() {
        let named: Named = ("d".into(), "tiny".into());
        let (mut known, began) = (HashMap::new(), Instant::now());
        let mut tell = |after: Duration, tokenizer: &str, slots_in_use| {
            let figures = EndpointFigures {
                slots_in_use,
                tokenizer: Some(tokenizer.into()),
                ..EndpointFigures::default()
            };
            let all = vec![(named.clone(), figures)];
            let news = figures::news_of_endpoint;
            !note(&mut known, all, news, began + after).is_empty()
        };
        let now = Duration::ZERO;
        assert!(tell(now, "a", 0), "the first");
        assert!(!tell(now, "a", 5), "told just now");
        assert!(tell(now, "b", 5), "another model");
        assert!(!tell(QUIET, "b", 5), "nothing new");
        assert!(tell(QUIET, "b", 9));
    }
}
