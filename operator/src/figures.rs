//! What services say of themselves, made into what objects tell. Pure: reports in, figures out.
//!
//! Figures are of the last minute or so: counts since the start of a process say little of how it is
//! doing. Small changes of them are not worth telling, so that a cluster under steady load writes
//! nothing.

mod history;
mod tally;

use std::{collections::BTreeMap, fmt, time::Duration};

use foretoken_service::report::{
    ConsumerReport, DraftReport, FetchReport, LinkState, LoadReport, Report, Rounds,
};

pub use history::History;
pub use tally::{Counted, Revisions, Tally, Trial, refusal};

/// Least windows, and least verdicts, that a figure is taken from.
const ENOUGH: u64 = 20;
/// Changes of an acceptance length that are not worth telling.
const SAME_LENGTH: f64 = 0.15;
/// The same of shares.
const SAME_SHARE: f64 = 0.06;

/// Namespace and name of an object.
pub type Named = (String, String);

/// What the targets of a deployment say of its endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentFigures {
    /// By endpoint: the links to its replicas.
    pub links: BTreeMap<Named, Links>,
    /// What proposals came to of late.
    pub rounds: Rounds,
    /// How busy the targets are.
    pub load: TargetLoad,
}

/// How busy the targets of a deployment are, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLoad {
    /// Targets that have said so.
    pub heard: u32,
    /// Requests they work on, and most of these at a time.
    pub running: u64,
    /// See [`TargetLoad::running`].
    pub places: u64,
    /// Requests that wait for a place.
    pub waiting: u64,
    /// Requests that were given one of late.
    pub admitted: u64,
    /// Milliseconds that these had waited, all together.
    pub waited_millis: u64,
    /// For how long the target that was listened to longest was: what "of late" means.
    pub over: Duration,
    /// Pages for keys and values, and those in use.
    pub pages: u64,
    /// See [`TargetLoad::pages`].
    pub pages_in_use: u64,
}

/// Links of a deployment's targets to the replicas of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// How many are up.
    pub up: usize,
    /// Why the two do not go together, if a target or a replica says so.
    pub refused: Option<String>,
    /// Why a link is not up otherwise.
    pub trouble: Option<String>,
}

/// What the replicas of an endpoint say, and targets of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointFigures {
    /// Sessions that are served.
    pub slots_in_use: u32,
    /// Sessions by deployment; of those only connected, 0.
    pub consumers: BTreeMap<Named, u32>,
    /// Share of the time of late in which replicas had nothing to do.
    pub slack: Option<f64>,
    /// Digest of the tokenizer.
    pub tokenizer: Option<String>,
    /// What proposals came to of late, by all targets.
    pub rounds: Rounds,
    /// Replicas that have said how they are doing.
    pub heard: u32,
    /// Sessions that these can serve at a time.
    pub slots: u32,
    /// Tokens drafted of late for what came about, in time and too late.
    pub timely_tokens: u64,
    /// See [`EndpointFigures::timely_tokens`].
    pub late_tokens: u64,
}

/// How far the download of a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetching {
    /// Tens of percent.
    pub percent: u64,
    /// Bytes in all; 0: not known yet.
    pub total: u64,
}

impl fmt::Display for Fetching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percent, total } = *self;
        if total == 0 {
            return f.write_str("the model is being downloaded");
        }
        let (amount, unit) = match total {
            1_000_000_000.. => (total as f64 / 1e9, "GB"),
            _ => (total as f64 / 1e6, "MB"),
        };
        write!(
            f,
            "the model is being downloaded: {percent} % of {amount:.1} {unit}"
        )
    }
}

/// How far the slowest of these pods is with its model, of those that download it.
pub fn fetching<'a>(pods: impl IntoIterator<Item = &'a History>) -> Option<Fetching> {
    let reports = pods
        .into_iter()
        .filter_map(|history| history.latest().fetch);
    let shares = reports.map(|FetchReport { done, total }| Fetching {
        percent: done
            .saturating_mul(10)
            .checked_div(total)
            .unwrap_or(0)
            .min(10)
            * 10,
        total,
    });
    shares.min_by_key(|fetching| fetching.percent)
}

/// Which endpoint a target means by a name of its own: `NAMESPACE/NAME`, and what tells replicas
/// apart after `@`.
pub(crate) fn endpoint_of(name: &str) -> Option<Named> {
    let pool = name.split_once('@').map_or(name, |(pool, _)| pool);
    let (namespace, name) = pool.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

/// What the targets of a deployment say; none if none of them has been heard.
pub fn deployment<'a>(targets: impl IntoIterator<Item = &'a History>) -> Option<DeploymentFigures> {
    let mut figures = DeploymentFigures::default();
    let mut is_heard = false;
    for history in targets {
        let Some(target) = &history.latest().target else {
            continue;
        };
        is_heard = true;
        for endpoint in &target.endpoints {
            let Some(named) = endpoint_of(&endpoint.name) else {
                continue;
            };
            let links = figures.links.entry(named).or_default();
            match endpoint.link {
                LinkState::Up => links.up += 1,
                LinkState::Refused => links.refused.clone_from(&endpoint.trouble),
                LinkState::Down => links.trouble.clone_from(&endpoint.trouble),
                LinkState::Dialling => {}
            }
        }
        for (_, rounds) in rounds_of(history) {
            figures.rounds = figures.rounds.plus(rounds);
        }
        if let Some(load) = target.load {
            let before = history.earlier().and_then(|report| report.target.as_ref());
            let before = before.and_then(|target| target.load).unwrap_or(load);
            figures.load.add(before, load);
            figures.load.over = figures.load.over.max(history.span());
        }
    }
    is_heard.then_some(figures)
}

impl TargetLoad {
    /// One more target, which says `now` what it is, and said `before` what it was.
    fn add(&mut self, before: LoadReport, now: LoadReport) {
        self.heard += 1;
        self.running += u64::from(now.running);
        self.places += u64::from(now.places);
        self.waiting += u64::from(now.waiting);
        self.pages += now.pages;
        self.pages_in_use += now.pages_in_use;
        // A process that was started again counts from nothing.
        if now.admitted >= before.admitted && now.waited_millis >= before.waited_millis {
            self.admitted += now.admitted - before.admitted;
            self.waited_millis += now.waited_millis - before.waited_millis;
        }
    }
}

/// What the replicas of an endpoint say, and what `rounds` targets had with it of late. None if no
/// replica has been heard.
pub fn endpoint<'a>(
    drafts: impl IntoIterator<Item = &'a History>,
    rounds: Rounds,
) -> Option<EndpointFigures> {
    let mut figures = EndpointFigures {
        rounds,
        ..EndpointFigures::default()
    };
    let (mut up, mut busy, mut is_heard) = (0.0, 0.0, false);
    for history in drafts {
        let report = history.latest();
        let Some(draft) = &report.draft else { continue };
        is_heard = true;
        figures.heard += 1;
        figures.slots = figures.slots.saturating_add(draft.slots);
        figures.slots_in_use = figures.slots_in_use.saturating_add(draft.slots_in_use);
        for consumer in draft.consumers.iter().filter(|one| is_named(one)) {
            let key = (consumer.namespace.clone(), consumer.deployment.clone());
            let slots = figures.consumers.entry(key).or_default();
            *slots = slots.saturating_add(consumer.slots);
        }
        let tokenizer = &report.model.tokenizer;
        figures.tokenizer = Some(tokenizer.clone()).filter(|digest| !digest.is_empty());
        if let Some((passed, worked)) = history.earlier().and_then(|before| time(before, draft)) {
            up += passed;
            busy += worked;
        }
        let before = history.earlier().and_then(|report| report.draft.as_ref());
        if let Some(before) = before {
            let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
            figures.timely_tokens += since(draft.timely_tokens, before.timely_tokens);
            figures.late_tokens += since(draft.late_tokens, before.late_tokens);
        }
    }
    if up > 0.0 {
        figures.slack = Some((1.0 - busy / up).clamp(0.0, 1.0));
    }
    is_heard.then_some(figures)
}

/// What proposals of each endpoint came to of late, by all of these targets.
pub fn rounds_by_endpoint<'a>(
    targets: impl IntoIterator<Item = &'a History>,
) -> BTreeMap<Named, Rounds> {
    let mut all: BTreeMap<Named, Rounds> = BTreeMap::new();
    for (name, rounds) in targets.into_iter().flat_map(rounds_of) {
        if let Some(named) = endpoint_of(name) {
            let known = all.entry(named).or_default();
            *known = known.plus(rounds);
        }
    }
    all
}

fn is_named(consumer: &ConsumerReport) -> bool {
    !consumer.namespace.is_empty() && !consumer.deployment.is_empty()
}

/// Seconds that passed between two reports, and those of them with work; none if the process was
/// started again.
fn time(before: &Report, now: &DraftReport) -> Option<(f64, f64)> {
    let before = before.draft.as_ref()?;
    let passed = now.up_seconds - before.up_seconds;
    let worked = now.busy_seconds - before.busy_seconds;
    (passed > 0.0 && worked >= 0.0).then_some((passed, worked))
}

/// What each of a target's endpoints came to of late, by the target's name of it.
pub fn rounds_of(history: &History) -> impl Iterator<Item = (&str, Rounds)> {
    let before = history.earlier().and_then(|report| report.target.as_ref());
    let now = history.latest().target.as_ref();
    let endpoints = now.into_iter().flat_map(|target| &target.endpoints);
    endpoints.filter_map(move |endpoint| {
        // Without an earlier look nobody knows when these were counted.
        let known = before?.endpoints.iter();
        let mut same = known
            .filter(|known| known.name == endpoint.name && known.instance == endpoint.instance);
        let before = same.next().map(|known| known.rounds).unwrap_or_default();
        Some((endpoint.name.as_str(), endpoint.rounds.since(before)))
    })
}

/// The acceptance length to tell, after `before`.
pub fn told_length(before: Option<f64>, rounds: Rounds) -> Option<f64> {
    let now = rounds.acceptance_length();
    let now = now.filter(|_| rounds.windows >= ENOUGH);
    told(before, now, SAME_LENGTH, 10.0)
}

/// The hit rate to tell, after `before`.
pub fn told_hits(before: Option<f64>, rounds: Rounds) -> Option<f64> {
    let now = rounds.hit_rate();
    let now = now.filter(|_| rounds.hits + rounds.misses >= ENOUGH);
    told(before, now, SAME_SHARE, 100.0)
}

/// The slack to tell, after `before`.
pub fn told_slack(before: Option<f64>, now: Option<f64>) -> Option<f64> {
    told(before, now, SAME_SHARE, 100.0)
}

/// What to tell of a number that is `now`, in parts of one: what was told before, unless it is
/// another by more than `same`.
fn told(before: Option<f64>, now: Option<f64>, same: f64, parts: f64) -> Option<f64> {
    let Some(now) = now.map(|now| (now * parts).round() / parts) else {
        return before;
    };
    match before {
        Some(before) if (before - now).abs() <= same => Some(before),
        _ => Some(now),
    }
}

/// What to tell of a count that is `now`: what was told before, unless it is another by a fifth, or
/// begins or ends.
pub fn told_count(before: Option<u32>, now: u32) -> u32 {
    let Some(before) = before else { return now };
    let far = u64::from(before.abs_diff(now)) * 5 >= u64::from(before.max(now));
    let begins_or_ends = (before == 0) != (now == 0);
    if far || begins_or_ends { now } else { before }
}

/// What is different about a deployment or an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Something else than a number: it is told at once.
    Turn,
    /// A number: it is told now and then.
    Drift,
}

/// What is worth telling of `now`, `before` having been told.
pub fn news_of_deployment(
    before: Option<&DeploymentFigures>,
    now: &DeploymentFigures,
) -> Option<News> {
    let kinds = |figures: &DeploymentFigures| -> Vec<(Named, bool, bool)> {
        let links = figures.links.iter();
        links
            .map(|(named, links)| (named.clone(), links.up > 0, links.refused.is_some()))
            .collect()
    };
    let Some(before) = before.filter(|before| kinds(before) == kinds(now)) else {
        return Some(News::Turn);
    };
    let (length, hits) = (
        told_length(None, before.rounds),
        told_hits(None, before.rounds),
    );
    let has_drifted =
        told_length(length, now.rounds) != length || told_hits(hits, now.rounds) != hits;
    has_drifted.then_some(News::Drift)
}

/// The same of an endpoint.
pub fn news_of_endpoint(before: Option<&EndpointFigures>, now: &EndpointFigures) -> Option<News> {
    let Some(before) = before.filter(|before| before.tokenizer == now.tokenizer) else {
        return Some(News::Turn);
    };
    let hits = told_hits(None, before.rounds);
    let slack = told_slack(None, before.slack);
    let has_drifted = told_count(Some(before.slots_in_use), now.slots_in_use)
        != before.slots_in_use
        || told_consumers(Some(&before.consumers), &now.consumers) != before.consumers
        || told_hits(hits, now.rounds) != hits
        || told_slack(slack, now.slack) != slack;
    has_drifted.then_some(News::Drift)
}

/// The consumers to tell, after those `before`.
pub fn told_consumers(
    before: Option<&BTreeMap<Named, u32>>,
    now: &BTreeMap<Named, u32>,
) -> BTreeMap<Named, u32> {
    let told = |(named, &slots): (&Named, &u32)| {
        let known = before.and_then(|before| before.get(named)).copied();
        (named.clone(), told_count(known, slots))
    };
    now.iter().map(told).collect()
}

#[cfg(test)]
mod tests;
