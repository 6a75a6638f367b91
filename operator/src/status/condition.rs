//! Conditions: set from what was observed, with the time of their last change.

use foretoken_crds::status::{
    DeploymentStatus, EndpointStatus,
    condition::{
        ACCEPTED, ENDPOINTS_RESOLVED, PROGRESSING, READY, ROLLED_OUT, ROUTER_READY, TARGET_READY,
    },
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::workload::Workload;

/// Longest message of a condition that is written.
const MAX_MESSAGE: usize = 4096;

/// A status with conditions.
pub trait HasConditions {
    /// All of them.
    fn conditions(&self) -> &[Condition];
}

impl HasConditions for DeploymentStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

impl HasConditions for EndpointStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

/// Why an object is not acted upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In one word.
    pub reason: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What was not brought to what an object says, and is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It may pass by itself.
    Briefly,
    /// It has failed for a while, or until somebody does something.
    Lastingly(Refused),
}

/// Conditions that are being set anew.
#[derive(Debug)]
pub struct Conditions<'a> {
    before: &'a [Condition],
    now: Timestamp,
    generation: Option<i64>,
    set: Vec<Condition>,
}

impl<'a> Conditions<'a> {
    /// None is set yet; `before` were set last, and `generation` is that of the spec.
    pub fn new(before: &'a [Condition], now: Timestamp, generation: Option<i64>) -> Self {
        Self {
            before,
            now,
            generation,
            set: Vec::new(),
        }
    }

    /// Sets one. Its time is that of its last change of status.
    pub fn set(&mut self, kind: &str, holds: bool, reason: &str, message: impl Into<String>) {
        let status = if holds { "True" } else { "False" };
        self.put(kind, status, reason, message);
    }

    /// Sets one of which nothing is known: as it was before, if it was set before.
    pub fn set_unknown(&mut self, kind: &str, reason: &str, message: impl Into<String>) {
        self.set_unknown_after(kind, reason, message, &[]);
    }

    /// The same, but for one that was set for one of the reasons `over`, which do not hold any more.
    pub fn set_unknown_after(
        &mut self,
        kind: &str,
        reason: &str,
        message: impl Into<String>,
        over: &[&str],
    ) {
        let mut before = self.before.iter();
        let before = before.find(|known| known.type_ == kind);
        if let Some(before) = before.filter(|known| !over.contains(&known.reason.as_str())) {
            let mut kept = before.clone();
            kept.observed_generation = self.generation;
            self.set.push(kept);
        } else {
            self.put(kind, "Unknown", reason, message);
        }
    }

    fn put(&mut self, kind: &str, status: &str, reason: &str, message: impl Into<String>) {
        let before = self.before.iter().find(|known| known.type_ == kind);
        let unchanged = before.filter(|known| known.status == status);
        let mut message = message.into();
        while message.len() > MAX_MESSAGE {
            message.pop();
        }
        self.set.push(Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: self.generation,
            last_transition_time: unchanged
                .map_or(Time(self.now), |known| known.last_transition_time.clone()),
        });
    }

    /// Sets `Accepted`.
    pub(super) fn accepted(&mut self, refused: Option<&Refused>, is_simulated: bool) {
        match refused {
            None if is_simulated => {
                let message = "this version serves it by a simulated model, whose tokens mean \
                               nothing: its AcceleratorProfile has device: sim";
                self.set(ACCEPTED, true, "Simulated", message);
            }
            None => self.set(ACCEPTED, true, "Accepted", "this version serves it"),
            Some(Refused { reason, message }) => self.set(ACCEPTED, false, reason, message),
        }
    }

    /// Sets `Progressing`, by the components of an object.
    pub(super) fn progressing(
        &mut self,
        workloads: &[(&str, &Workload)],
        refused: Option<&Refused>,
        failing: Option<&Failing>,
    ) {
        let lasting = failing.and_then(|failing| match failing {
            Failing::Briefly => None,
            Failing::Lastingly(why) => Some(why),
        });
        if refused.is_some() {
            let message = "it is not acted upon until it is accepted; what ran before goes on";
            let message = match lasting {
                Some(Refused { message: why, .. }) => format!("{message}; {why}"),
                None => message.to_owned(),
            };
            return self.set(PROGRESSING, false, "NotAccepted", message);
        }
        if let Some(Refused { reason, message }) = lasting {
            return self.set(PROGRESSING, true, reason, message);
        }
        let is_underway = |(_, workload): &&(&str, &Workload)| !workload.is_settled();
        let underway = workloads.iter().filter(is_underway);
        let underway: Vec<_> = underway.collect();
        if underway.is_empty() && failing.is_some() {
            return self.unfinished();
        }
        if underway.is_empty() {
            return self.set(PROGRESSING, false, "Complete", "what is asked for runs");
        }
        let names = underway.iter();
        let names: Vec<String> = names
            .map(|(name, workload)| format!("{name} {}", workload.shown()))
            .collect();
        let mut message = format!("ready of wanted: {}", names.join(", "));
        let mut reason = "RollingOut";
        for (_, workload) in underway {
            if let Some(trouble) = &workload.trouble {
                reason = trouble.reason;
                message = format!("{message}; {}", trouble.message);
            } else if let Some(fetching) = &workload.fetching {
                message = format!("{message}; {fetching}");
            }
        }
        self.set(PROGRESSING, true, reason, message);
    }

    /// Sets `Progressing` where something has just failed: as it was, if what is asked for is what it was.
    fn unfinished(&mut self) {
        let mut before = self.before.iter();
        let before = before.find(|known| {
            known.type_ == PROGRESSING && known.observed_generation == self.generation
        });
        if let Some(before) = before {
            self.set.push(before.clone());
        } else {
            let message = "not all that it says is carried out yet: it is tried again";
            self.set(PROGRESSING, true, "RollingOut", message);
        }
    }

    /// All that were set.
    pub fn finish(self) -> Vec<Condition> {
        self.set
    }
}

/// A change that people are told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether somebody should look.
    pub is_warning: bool,
    /// Reason of the condition.
    pub reason: String,
    /// Condition and message.
    pub note: String,
}

/// Which changes from `before` to `after` people are told of: those of a status, or of why it is
/// `False`. Of what is new, only what somebody has to correct.
pub fn changes(before: &[Condition], after: &[Condition]) -> Vec<Change> {
    let mut changes = Vec::new();
    let is_ready = |conditions: &[Condition]| {
        let mut conditions = conditions.iter();
        conditions.any(|one| one.type_ == READY && one.status == "True")
    };
    let has_become_ready = is_ready(after) && !is_ready(before);
    for new in after {
        let old = before.iter().find(|known| known.type_ == new.type_);
        let holds = new.status == "True";
        if has_become_ready && holds && [TARGET_READY, ROUTER_READY].contains(&new.type_.as_str()) {
            // It says so.
            continue;
        }
        let is_told = match old {
            // What was not known and is well surprises nobody.
            Some(old) if old.status == "Unknown" && holds => false,
            Some(old) => old.status != new.status || (!holds && old.reason != new.reason),
            None => !holds && [ACCEPTED, ENDPOINTS_RESOLVED].contains(&new.type_.as_str()),
        };
        // Rollouts come and go; what they lead to is told by the others.
        if is_told && new.type_ != PROGRESSING {
            changes.push(Change {
                // One that is tried is nothing to look at; one that was rolled back is.
                is_warning: !holds && (new.type_ != ROLLED_OUT || new.reason == "RolledBack"),
                reason: new.reason.clone(),
                note: format!("{}: {}", new.type_, new.message),
            });
        }
    }
    changes
}

/// Whether people should hear of the changes from `before` to `after` at once: a condition turned that
/// no other sums up, or the object was edited.
pub fn is_urgent(before: &[Condition], after: &[Condition]) -> bool {
    const SUMMED_UP: [&str; 3] = [TARGET_READY, ROUTER_READY, PROGRESSING];
    after.iter().any(|new| {
        let old = before.iter().find(|known| known.type_ == new.type_);
        old.is_none_or(|old| {
            let has_turned = old.status != new.status && !SUMMED_UP.contains(&new.type_.as_str());
            has_turned || old.observed_generation != new.observed_generation
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(before: &[Condition], at: i64, holds: bool, reason: &str) -> Vec<Condition> {
        let now = Timestamp::from_second(at).expect("a time");
        let mut conditions = Conditions::new(before, now, Some(1));
        conditions.set("Ready", holds, reason, "m");
        conditions.finish()
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_status() {
        let first = conditions(&[], 1, false, "A");
        let second = conditions(&first, 2, false, "B");
        assert_eq!(
            second[0].last_transition_time,
            first[0].last_transition_time
        );
        let third = conditions(&second, 3, true, "C");
        assert_ne!(third[0].last_transition_time, first[0].last_transition_time);
    }

    #[test]
    fn people_are_told_of_transitions_and_of_nothing_else() {
        let first = conditions(&[], 1, false, "A");
        assert_eq!(changes(&[], &first), [], "it starts");
        assert_eq!(changes(&first, &first), []);
        let other = conditions(&first, 2, false, "B");
        assert_eq!(changes(&first, &other).len(), 1, "another reason");
        let ready = conditions(&other, 3, true, "C");
        let told = changes(&other, &ready);
        assert_eq!((told.len(), told[0].is_warning), (1, false));
        assert!(changes(&ready, &first)[0].is_warning);
    }

    #[test]
    fn readiness_of_components_is_summed_up_in_that_of_the_whole() {
        let set = |ready: &[(&str, bool)]| {
            let mut conditions = Conditions::new(&[], Timestamp::UNIX_EPOCH, Some(1));
            for (kind, holds) in ready {
                conditions.set(kind, *holds, "R", "m");
            }
            conditions.finish()
        };
        let none = set(&[(TARGET_READY, false), (ROUTER_READY, false), (READY, false)]);
        let half = set(&[(TARGET_READY, true), (ROUTER_READY, false), (READY, false)]);
        let all = set(&[(TARGET_READY, true), (ROUTER_READY, true), (READY, true)]);
        assert!(is_urgent(&[], &none), "it is new");
        assert!(!is_urgent(&none, &half));
        assert_eq!(changes(&none, &half).len(), 1);
        assert!(is_urgent(&half, &all) && is_urgent(&all, &half));
        let told = changes(&none, &all);
        assert_eq!((told.len(), told[0].note.as_str()), (1, "Ready: m"));
        let mut edited = all.clone();
        edited[0].observed_generation = Some(2);
        assert!(is_urgent(&all, &edited));
    }

    #[test]
    fn what_is_not_known_stays_what_it_was() {
        let now = Timestamp::UNIX_EPOCH;
        let unknown = |before: &[Condition]| {
            let mut conditions = Conditions::new(before, now, Some(2));
            conditions.set_unknown("Ready", "NotKnownYet", "wait");
            conditions.finish()
        };
        assert_eq!(unknown(&[])[0].status, "Unknown");
        let known = conditions(&[], 1, false, "A");
        let kept = unknown(&known);
        assert_eq!(
            (kept[0].status.as_str(), kept[0].reason.as_str()),
            ("False", "A")
        );
        assert_eq!(kept[0].observed_generation, Some(2));
        let mut after = Conditions::new(&known, now, Some(2));
        after.set_unknown_after("Ready", "NotKnownYet", "wait", &["A"]);
        assert_eq!(after.finish()[0].status, "Unknown");
        assert_eq!(changes(&unknown(&[]), &conditions(&[], 1, true, "B")), []);
        assert_eq!(changes(&unknown(&[]), &known).len(), 1);
    }

    #[test]
    fn nothing_is_complete_while_it_fails() {
        let settled = Workload {
            is_seen: true,
            ..Workload::default()
        };
        let told = |before: &[Condition], generation, failing: Option<&Failing>| {
            let now = Timestamp::UNIX_EPOCH;
            let mut conditions = Conditions::new(before, now, Some(generation));
            conditions.progressing(&[("target", &settled)], None, failing);
            conditions.finish()
        };
        let shown = |conditions: &[Condition]| {
            let Condition { status, reason, .. } = &conditions[0];
            format!("{status} {reason}")
        };
        let lasting = Failing::Lastingly(Refused {
            reason: "ApplyFailed".into(),
            message: "exceeded quota".into(),
        });
        let complete = told(&[], 1, None);
        assert_eq!(shown(&complete), "False Complete");
        assert_eq!(
            shown(&told(&complete, 2, Some(&Failing::Briefly))),
            "True RollingOut"
        );
        let failed = told(&complete, 2, Some(&lasting));
        assert_eq!(shown(&failed), "True ApplyFailed");
        assert_eq!(failed[0].message, "exceeded quota");
        // What may pass turns nothing back and forth.
        assert_eq!(told(&complete, 1, Some(&Failing::Briefly)), complete);
        assert_eq!(told(&failed, 2, Some(&Failing::Briefly)), failed);
        assert_eq!(shown(&told(&failed, 2, None)), "False Complete");
    }

    #[test]
    fn what_has_to_be_corrected_is_told_at_once() {
        let mut conditions = Conditions::new(&[], Timestamp::UNIX_EPOCH, None);
        conditions.set(ACCEPTED, false, "PolicyNotServed", "set it");
        let told = changes(&[], &conditions.finish());
        assert_eq!(told[0].note, "Accepted: set it");
    }
}
