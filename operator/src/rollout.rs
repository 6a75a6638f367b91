//! How a pool comes to another draft: which revision has how many pods. Pure: it is told the time, and
//! all that it remembers stands in statuses and objects.
//!
//! ```text
//! spec asks for another revision ──> Try: the old one and a share of the new one
//!   ├─ not ready in time, refused by targets, shorter accepted, of no use ──> Keep: the old one alone
//!   └─ as good, or nobody to ask ──> Promote: the old pods are replaced ──> All
//! ```
//!
//! A target decides every token, so a bad draft costs speed and nothing else: both revisions may serve
//! at once, and what targets verified of either is what they are compared by.

use std::time::Duration;

use foretoken_crds::rollout::{
    CanarySpec, CanaryStatus, RevisionFigures, RolloutOutcome, RolloutResult, RolloutSpec,
    RolloutStatus, RolloutType, Undecided,
};
use foretoken_service::report::Rounds;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::figures;

/// How many times the verdicts that are needed the old revision has, by its share, when the new one's
/// being without them at the deadline says that targets have no use for it.
const IN_VAIN: f64 = 2.0;
/// How long the new revision has to have been ready before few verdicts say anything: targets learn of pods by
/// names, half a minute late where resolvers keep these, and requests stay with the endpoint that they
/// began with. Meanwhile the old one has all verdicts.
const FOUND: Duration = Duration::from_secs(60);
/// How long verdicts have to have been counted before a deadline that passed ends a trial: while no
/// operator was there nobody counted them.
const COUNTED: Duration = Duration::from_secs(60);

/// How many standard errors a difference has to have: it is looked at again and again.
const CERTAIN: f64 = 2.5;
/// How many times the verdicts that are needed are waited for until chance may say nothing else.
const MOST: u64 = 20;

/// What is known of a pool and its revisions.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// Digest of what the spec asks for.
    pub wanted: &'a str,
    /// Digest of what serves; none: nothing does, or it is not known what it was made of.
    pub running: Option<&'a str>,
    /// How it is to be rolled.
    pub rollout: RolloutSpec,
    /// What was told before.
    pub before: &'a RolloutStatus,
    /// Pods of both.
    pub split: Split,
    /// Whether the pods that serve are as they were applied last.
    pub is_settled: bool,
    /// Pods of the new revision; none: it has no Deployment.
    pub canary: Option<CanaryPods>,
    /// What targets say of both since the new one was ready first.
    pub heard: Heard,
    /// Whether any deployment may use the pool.
    pub is_used: bool,
    /// The time.
    pub now: Timestamp,
}

/// Pods of the new revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CanaryPods {
    /// Those that are ready.
    pub ready: u32,
    /// What keeps them from being so, if that is known.
    pub trouble: Option<String>,
}

/// What targets say of two revisions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    /// Rounds with the old one.
    pub old: Rounds,
    /// Rounds with the new one.
    pub new: Rounds,
    /// Why a target that the old one serves does not go together with the new one.
    pub refused: Option<String>,
    /// For how long this process has counted rounds of the two.
    pub counted: Duration,
}

/// How many pods each revision has while both are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// The old one, and the one that serves later.
    pub old: u32,
    /// The new one, while it is tried.
    pub new: u32,
}

impl Split {
    /// How `replicas` are divided, `share` percent of them being the new one's. One alone has one
    /// more beside it.
    pub fn of(replicas: u32, share: u32) -> Self {
        if replicas < 2 {
            return Self {
                old: replicas,
                new: replicas,
            };
        }
        let new = (u64::from(replicas) * u64::from(share) + 50) / 100;
        let new = u32::try_from(new).unwrap_or(1).clamp(1, replicas - 1);
        Self {
            old: replicas - new,
            new,
        }
    }
}

/// Which revision has which pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// The wanted one has all.
    All,
    /// The wanted one replaces the old pods; those that tried it serve until then.
    Promote,
    /// Old and new serve beside each other.
    Try,
    /// The old one has all.
    Keep,
}

/// What is to be done, and what to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What is to be done.
    pub course: Course,
    /// What to tell, and to remember.
    pub status: RolloutStatus,
}

/// What a trial has come to.
struct End {
    result: RolloutResult,
    reason: &'static str,
    message: String,
}

/// What is to be done about a pool's revisions now.
pub fn decide(given: &Given<'_>) -> Decision {
    let Given {
        wanted,
        running,
        rollout,
        before,
        ..
    } = *given;
    // What another revision came to says nothing of this one.
    let outcome = before.outcome.clone();
    let outcome = outcome.filter(|outcome| outcome.revision == wanted);
    let result = outcome.as_ref().map(|outcome| outcome.result);
    let told = |course, canary, outcome| Decision {
        course,
        status: RolloutStatus {
            revision: Some(running.unwrap_or(wanted).to_owned()),
            canary,
            outcome,
        },
    };
    let Some(old) = running.filter(|old| *old != wanted) else {
        let is_promoted = given.canary.is_some() && !given.is_settled;
        let course = if is_promoted && rollout.kind == RolloutType::Canary {
            Course::Promote
        } else {
            Course::All
        };
        let outcome = outcome.filter(|outcome| outcome.result == RolloutResult::Promoted);
        return told(course, None, outcome);
    };
    if rollout.kind == RolloutType::Rolling || given.split.new == 0 {
        return told(Course::All, None, None);
    }
    match result {
        // Decided, and not seen by everybody yet.
        Some(RolloutResult::Promoted) => return told(Course::Promote, None, outcome),
        Some(RolloutResult::RolledBack) => return told(Course::Keep, None, outcome),
        None => {}
    }
    let canary = canary(given);
    let terms = rollout.canary.unwrap_or_default();
    let Some(End {
        result,
        reason,
        message,
    }) = end(given, &canary, &terms, old)
    else {
        return told(Course::Try, Some(canary), None);
    };
    let course = match result {
        RolloutResult::Promoted => Course::Promote,
        RolloutResult::RolledBack => Course::Keep,
    };
    let outcome = RolloutOutcome {
        revision: wanted.to_owned(),
        result,
        reason: reason.to_owned(),
        message,
        at: Time(given.now),
    };
    told(course, None, Some(outcome))
}

/// The trial as it is now: begun if it was not, or was another revision's.
fn canary(given: &Given<'_>) -> CanaryStatus {
    let before = given.before.canary.clone();
    let before = before.filter(|canary| canary.revision == given.wanted);
    let mut canary = before.unwrap_or_else(|| CanaryStatus {
        revision: given.wanted.to_owned(),
        started_at: Time(given.now),
        ready_at: None,
        old: RevisionFigures::default(),
        new: RevisionFigures::default(),
    });
    if is_ready(given) && canary.ready_at.is_none() {
        canary.ready_at = Some(Time(given.now));
    }
    if canary.ready_at.is_some() {
        canary.old = told(canary.old, given.heard.old);
        canary.new = told(canary.new, given.heard.new);
    }
    canary
}

fn is_ready(given: &Given<'_>) -> bool {
    let ready = given.canary.as_ref().map_or(0, |pods| pods.ready);
    ready >= given.split.new
}

/// Figures to tell, and to go on from after a restart: small changes are not worth a write.
fn told(before: RevisionFigures, now: Rounds) -> RevisionFigures {
    let windows = u32::try_from(now.windows).unwrap_or(u32::MAX);
    let verdicts = figures::told_count(Some(before.verdicts), windows);
    if verdicts == before.verdicts {
        return before;
    }
    RevisionFigures {
        verdicts,
        acceptance_length: now
            .acceptance_length()
            .map(|length| (length * 100.0).round() / 100.0),
    }
}

/// Rounds as they were when `figures` were told.
pub fn rounds(figures: RevisionFigures) -> Rounds {
    let accepted = figures.acceptance_length.unwrap_or(1.0) - 1.0;
    let windows = u64::from(figures.verdicts);
    Rounds {
        windows,
        accepted: (accepted.max(0.0) * windows as f64).round() as u64,
        ..Rounds::default()
    }
}

/// What the trial has come to, if it is over.
fn end(given: &Given<'_>, canary: &CanaryStatus, terms: &CanarySpec, old: &str) -> Option<End> {
    let Given {
        wanted,
        heard,
        now,
        split,
        ..
    } = given;
    let rolled_back = |reason, message: String| {
        Some(End {
            result: RolloutResult::RolledBack,
            reason,
            message,
        })
    };
    let promoted = |reason, message: String| {
        Some(End {
            result: RolloutResult::Promoted,
            reason,
            message,
        })
    };
    if let Some(why) = &heard.refused {
        return rolled_back(
            "Incompatible",
            format!("targets refuse revision {wanted}: {why}"),
        );
    }
    let since = canary.ready_at.as_ref().unwrap_or(&canary.started_at);
    let tried = passed(since, *now);
    let deadline = Duration::from_secs(terms.deadline_seconds.into());
    let is_over = tried >= deadline;
    if !is_ready(given) {
        let trouble = given.canary.as_ref().and_then(|pods| pods.trouble.clone());
        let trouble = trouble.unwrap_or_else(|| "see its pods before they are gone".to_owned());
        let limit = terms.deadline_seconds;
        let message = format!("revision {wanted} was not ready within {limit} s: {trouble}");
        return is_over.then(|| rolled_back("NotReady", message)).flatten();
    }
    if !given.is_used {
        let message = format!("no deployment may use the pool, so nobody compares {wanted}");
        return promoted("Unused", message);
    }
    let least = u64::from(terms.min_verdicts);
    let figures = compared(wanted, old, heard);
    let fewest = heard.old.windows.min(heard.new.windows);
    let is_over = is_over && tried >= FOUND && heard.counted >= COUNTED.min(deadline);
    if fewest >= least {
        let last = is_over || fewest >= least.saturating_mul(MOST);
        return if is_as_good(heard, terms.tolerance, last)? {
            promoted("AsGood", figures)
        } else {
            rolled_back("LowerAcceptance", figures)
        };
    }
    if !is_over {
        return None;
    }
    let fair = heard.old.windows as f64 * f64::from(split.new) / f64::from(split.old.max(1));
    if heard.new.windows < least && fair >= IN_VAIN * least as f64 {
        return rolled_back(
            "NotUsed",
            format!("targets draft too little with it: {figures}"),
        );
    }
    let message = format!("fewer than {least} verdicts on each in time: {figures}");
    match terms.undecided {
        Undecided::Promote => promoted("TooFewVerdicts", message),
        Undecided::RollBack => rolled_back("TooFewVerdicts", message),
    }
}

/// Whether the new revision's acceptance length is at most `tolerance` shorter than the old one's; none
/// while chance alone may say either, unless it is the `last` look.
fn is_as_good(heard: &Heard, tolerance: f64, last: bool) -> Option<bool> {
    let accepted = |rounds: Rounds| rounds.acceptance_length().unwrap_or(1.0) - 1.0;
    let kept = 1.0 - tolerance;
    let difference = 1.0 + accepted(heard.new) - kept * (1.0 + accepted(heard.old));
    // Reports have no variances. Were each token accepted with one probability, without an end, the
    // number accepted would be geometric: of mean a, its variance is a (1 + a).
    let variance = |rounds: Rounds| {
        let mean = accepted(rounds);
        mean * (1.0 + mean) / rounds.windows.max(1) as f64
    };
    let error = (variance(heard.new) + kept * kept * variance(heard.old)).sqrt();
    (last || difference.abs() > CERTAIN * error).then_some(difference >= 0.0)
}

fn passed(since: &Time, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since.0)).unwrap_or_default()
}

/// Both figures in words.
fn compared(new: &str, old: &str, heard: &Heard) -> String {
    let figure = |rounds: Rounds| match rounds.acceptance_length() {
        Some(length) => format!(
            "acceptance length {length:.2} of {} verdicts",
            rounds.windows
        ),
        None => "no verdicts".to_owned(),
    };
    format!(
        "revision {new} had {}, {old} had {}",
        figure(heard.new),
        figure(heard.old)
    )
}

#[cfg(test)]
mod tests;
