//! What can go wrong with an object, and when it is tried again.

use std::time::Duration;

use crate::{authority::issue::IssueError, object::Made};

/// Why an object was not brought to what it says.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API server did not do what it was asked.
    #[error("cannot {what}: {}", said(source))]
    Api {
        /// What it was asked.
        what: String,
        /// What it said.
        source: kube::Error,
    },
    /// No certificate could be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The Secret of the authority is broken.
    #[error(
        "Secret {namespace}/foretoken-ca holds no authority ({problem}): restore it, or delete it, and \
         all certificates are made anew"
    )]
    Authority {
        /// Where it is.
        namespace: String,
        /// What is wrong.
        problem: String,
    },
    /// An object of that name is there, and it is somebody else's.
    #[error(
        "{kind:?} {namespace}/{name} is there already and was not made for this object: delete or \
         rename it, or rename this one"
    )]
    NameTaken {
        /// What it is.
        kind: Made,
        /// Where.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// What the API server said, without what only programmers want to see.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// When something that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// At once: somebody else wrote between reading and writing.
    Conflict,
    /// Soon, and less and less often: the API server is busy or away.
    Backoff,
    /// Once in a while: it takes somebody who changes rights, quotas or other objects, and nothing
    /// tells of that.
    Patient,
}

/// First pause of [`Retry::Backoff`]; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause of [`Retry::Backoff`].
const LONGEST: Duration = Duration::from_secs(120);
/// Pause of [`Retry::Conflict`].
const AT_ONCE: Duration = Duration::from_millis(50);
/// Failures in a row, and how long, that may pass by themselves before anybody is told: an API server that
/// starts anew is away for some seconds.
const FEW: u32 = 3;
const PASSING: Duration = Duration::from_secs(5);
/// What admission says of owners of a kind that it has not heard of yet: for half a minute after its
/// definition was installed.
const NOT_MAPPED: &str = "cannot find RESTMapping";
/// Pause of [`Retry::Patient`].
const PATIENT: Duration = Duration::from_secs(60);

impl Failure {
    /// When it is tried again.
    pub fn retry(&self) -> Retry {
        let status = match self {
            Self::NameTaken { .. } | Self::Authority { .. } | Self::Issue(_) => {
                return Retry::Patient;
            }
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => status,
            // The connection, or what came over it.
            Self::Api { .. } => return Retry::Backoff,
        };
        match status.code {
            409 => Retry::Conflict,
            // The namespace is gone, and this object will be; or what it names, such as the Role of a
            // RoleBinding, was made a moment ago.
            404 => Retry::Backoff,
            403 if status.message.contains(NOT_MAPPED) => Retry::Backoff,
            // Not understood, not allowed, not valid, too large.
            400..=408 | 410..=428 => Retry::Patient,
            // Too many requests, the server's own failures, and whatever is not known.
            _ => Retry::Backoff,
        }
    }

    /// Whether the API server understood the object and refuses it: what the user wrote is to blame.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::NameTaken { .. } => true,
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => matches!(status.code, 400 | 422),
            Self::Api { .. } | Self::Authority { .. } | Self::Issue(_) => false,
        }
    }

    /// Whether the object has another version than was thought, or is gone.
    pub fn is_of_another_time(&self) -> bool {
        let code = match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => Some(status.code),
            Self::Api { .. } | Self::NameTaken { .. } | Self::Authority { .. } | Self::Issue(_) => {
                None
            }
        };
        matches!(code, Some(404 | 409))
    }

    /// The same in one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NameTaken { .. } => "NameTaken",
            Self::Authority { .. } | Self::Issue(_) => "NoCertificate",
            Self::Api { .. } if self.is_refusal() => "RefusedByCluster",
            Self::Api { .. } => "ApplyFailed",
        }
    }
}

impl Retry {
    /// How long to wait after `failures` in a row, of which this is the last.
    pub fn pause(self, failures: u32) -> Duration {
        match self {
            // Who loses again and again is not alone in what it does.
            Self::Conflict if failures <= 3 => AT_ONCE,
            Self::Conflict | Self::Backoff => {
                let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
                doubled.min(LONGEST)
            }
            Self::Patient => PATIENT,
        }
    }

    /// Whether people are told of what failed so often in a row, and has for so long.
    pub fn is_told(self, failures: u32, lasting: Duration) -> bool {
        match self {
            Self::Patient => true,
            Self::Conflict | Self::Backoff => failures > FEW && lasting >= PASSING,
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn api(code: u16) -> Failure {
        Failure::Api {
            what: "apply".into(),
            source: kube::Error::Api(Status::failure("no", "No").with_code(code).boxed()),
        }
    }

    #[test]
    fn owners_of_a_kind_that_is_new_are_tried_again_soon() {
        let said = "cannot set blockOwnerDeletion in this case because cannot find RESTMapping";
        let status = Status::failure(said, "Forbidden").with_code(403);
        let failure = Failure::Api {
            what: "apply".into(),
            source: kube::Error::Api(status.boxed()),
        };
        assert_eq!(failure.retry(), Retry::Backoff);
    }

    #[test]
    fn every_answer_has_its_time_to_try_again() {
        for (code, retry) in [
            (400, Retry::Patient),
            (403, Retry::Patient),
            (404, Retry::Backoff),
            (409, Retry::Conflict),
            (422, Retry::Patient),
            (429, Retry::Backoff),
            (500, Retry::Backoff),
            (503, Retry::Backoff),
            (504, Retry::Backoff),
            (0, Retry::Backoff),
        ] {
            assert_eq!(api(code).retry(), retry, "{code}");
        }
    }

    #[test]
    fn pauses_grow_to_a_bound_and_conflicts_are_not_tried_for_ever() {
        let pauses: Vec<Duration> = (1..=40).map(|n| Retry::Backoff.pause(n)).collect();
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&LONGEST));
        assert!(Retry::Conflict.pause(1) < Retry::Conflict.pause(10));
    }

    #[test]
    fn what_passes_by_itself_is_not_told_and_what_waits_for_somebody_is_at_once() {
        assert!(Retry::Patient.is_told(1, Duration::ZERO));
        for retry in [Retry::Conflict, Retry::Backoff] {
            assert!(!retry.is_told(1, Duration::ZERO));
            assert!(!retry.is_told(1, PASSING), "once");
            assert!(!retry.is_told(40, Duration::from_millis(200)), "a moment");
            assert!(retry.is_told(FEW + 1, PASSING));
        }
    }

    #[test]
    fn only_what_was_understood_and_refused_is_blamed_on_the_user() {
        let blamed: Vec<u16> = [400, 403, 404, 409, 422, 500]
            .into_iter()
            .filter(|&code| api(code).is_refusal())
            .collect();
        assert_eq!(blamed, [400, 422]);
    }
}
