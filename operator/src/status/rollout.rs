//! Conditions about the revisions of an endpoint.

use foretoken_crds::{
    SpeculationEndpoint,
    rollout::RolloutResult,
    status::condition::{PROGRESSING, ROLLED_OUT},
};

use super::condition::Conditions;
use crate::rollout::{Course, Decision};

/// `RolledOut`.
pub(super) fn rolled_out(
    conditions: &mut Conditions<'_>,
    object: &SpeculationEndpoint,
    decision: Option<&Decision>,
) {
    let kind = ROLLED_OUT;
    let Some(Decision { course, status }) = decision else {
        let message = "it is not acted upon until it is accepted";
        return conditions.set_unknown(kind, "NotAccepted", message);
    };
    let outcome = status.outcome.as_ref();
    let why = outcome.map_or("", |outcome| outcome.message.as_str());
    let running = status.revision.as_deref().unwrap_or_default();
    match course {
        Course::All => match outcome.map(|outcome| outcome.result) {
            Some(RolloutResult::Promoted) => conditions.set(kind, true, "Promoted", why),
            Some(RolloutResult::RolledBack) | None => {
                let message = "drafts have the revision that is asked for";
                conditions.set(kind, true, "UpToDate", message);
            }
        },
        Course::Promote => {
            let message = format!("{why}; its pods replace those of the old one");
            conditions.set(kind, false, "Promoting", message);
        }
        Course::Keep => {
            let reason = outcome.map_or("", |outcome| outcome.reason.as_str());
            let message = format!(
                "{reason}: {why}; {running} serves on. Edit the spec; to have this revision all the \
                 same, set spec.rollout.type to Rolling"
            );
            conditions.set(kind, false, "RolledBack", message);
        }
        Course::Try => {
            let terms = object.spec.rollout.unwrap_or_default();
            let terms = terms.canary.unwrap_or_default();
            let limit = terms.deadline_seconds;
            let Some(canary) = &status.canary else { return };
            let new = &canary.revision;
            if canary.ready_at.is_none() {
                let message = format!(
                    "revision {new} starts beside {running}, and has {limit} s to become ready"
                );
                return conditions.set(kind, false, "Starting", message);
            }
            let least = terms.min_verdicts;
            let message = format!(
                "revision {new} serves beside {running}: {least} verdicts of targets on each are \
                 waited for, {limit} s at most, of which about {} and {} are there",
                canary.new.verdicts, canary.old.verdicts
            );
            conditions.set(kind, false, "Comparing", message);
        }
    }
}

/// `Progressing`, where revisions say more than pods. Whether it was set.
pub(super) fn progressing(conditions: &mut Conditions<'_>, decision: Option<&Decision>) -> bool {
    match decision.map(|decision| decision.course) {
        Some(Course::Try) => {
            let message = "a new revision is tried: see RolledOut";
            conditions.set(PROGRESSING, true, "Canary", message);
            true
        }
        Some(Course::Keep) => {
            let message = "the revision that is asked for was rolled back: see RolledOut";
            conditions.set(PROGRESSING, false, "RolledBack", message);
            true
        }
        Some(Course::All | Course::Promote) | None => false,
    }
}
