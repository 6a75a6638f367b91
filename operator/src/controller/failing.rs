//! What failed of objects: how often in a row, since when, and what people are told of it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::refused;
use crate::{
    failure::Failure,
    status::{Failing, Refused},
};

/// How long what was told of a failure stays while others of its reason follow: some say something else
/// each time, and each would be a status to write.
const SAID: Duration = Duration::from_secs(60);

/// Failures in a row, by object.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<String, Row>>);

/// Those of one object.
#[derive(Debug)]
struct Row {
    count: u32,
    since: Instant,
    /// What people were told last, when, and of which generation of the object.
    told: Option<(Refused, Instant, Option<i64>)>,
}

impl Row {
    fn new(now: Instant) -> Self {
        Self {
            count: 0,
            since: now,
            told: None,
        }
    }
}

impl Failures {
    /// The object failed; how often that was so in a row.
    pub(super) fn count(&self, object: &str, now: Instant) -> u32 {
        let mut rows = self.lock();
        let row = rows.entry(object.to_owned());
        let row = row.or_insert_with(|| Row::new(now));
        row.count = row.count.saturating_add(1);
        row.count
    }

    /// It did not, or is gone.
    pub(super) fn end(&self, object: &str) {
        self.lock().remove(object);
    }

    /// What people are told of a `failure` of the object that comes on top of those that were counted.
    pub(super) fn told(
        &self,
        (object, generation): (&str, Option<i64>),
        failure: &Failure,
        now: Instant,
    ) -> Failing {
        let mut rows = self.lock();
        let row = rows.entry(object.to_owned());
        let row = row.or_insert_with(|| Row::new(now));
        let lasting = now.saturating_duration_since(row.since);
        if !failure.retry().is_told(row.count + 1, lasting) {
            return Failing::Briefly;
        }
        let told = row.told.take().filter(|(told, at, of)| {
            let is_new = now.saturating_duration_since(*at) < SAID;
            is_new && *of == generation && told.reason == failure.reason()
        });
        let told = told.unwrap_or_else(|| (refused(failure.reason(), failure), now, generation));
        row.told = Some(told.clone());
        Failing::Lastingly(told.0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Row>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn failure(code: u16, said: &str) -> Failure {
        Failure::Api {
            what: "apply Service chat/story-router".into(),
            source: kube::Error::Api(Status::failure(said, "No").with_code(code).boxed()),
        }
    }

    fn message(failing: Failing) -> String {
        match failing {
            Failing::Lastingly(Refused { reason, message }) => format!("{reason} {message}"),
            Failing::Briefly => "briefly".to_owned(),
        }
    }

    #[test]
    fn what_waits_for_somebody_is_told_at_once() {
        let (failures, now) = (Failures::default(), Instant::now());
        let told = failures.told(("o", Some(1)), &failure(403, "exceeded quota"), now);
        assert_eq!(
            message(told),
            "ApplyFailed cannot apply Service chat/story-router: exceeded quota"
        );
        let broken = Failure::Authority {
            namespace: "foretoken".into(),
            problem: "1.key is missing".into(),
        };
        let told = message(failures.told(("o", Some(1)), &broken, now));
        assert!(
            told.starts_with("NoCertificate") && told.contains("1.key is missing"),
            "{told}"
        );
    }

    #[test]
    fn what_passes_is_told_when_it_has_not_passed_for_a_while() {
        let (failures, now) = (Failures::default(), Instant::now());
        let away = failure(503, "not ready");
        let told = |after| failures.told(("o", Some(1)), &away, now + Duration::from_secs(after));
        for after in 0..4 {
            assert_eq!(told(after), Failing::Briefly);
            failures.count("o", now);
        }
        assert!(message(told(8)).contains("not ready"));
        failures.end("o");
        assert_eq!(told(9), Failing::Briefly, "another time");
    }

    #[test]
    fn a_failure_that_says_something_else_each_time_is_told_once_a_minute() {
        let (failures, now) = (Failures::default(), Instant::now());
        let told = |number: u64, generation| {
            let denied = failure(403, &format!("request {number} is denied"));
            let now = now + Duration::from_secs(number);
            message(failures.told(("o", Some(generation)), &denied, now))
        };
        let first = told(0, 1);
        assert_eq!(told(1, 1), first);
        assert_ne!(told(2, 2), first, "the object was edited");
        assert!(told(2 + SAID.as_secs(), 2).contains("request 62"));
    }
}
