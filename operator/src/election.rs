//! Which of several operators works: the one that holds a Lease.
//!
//! A lease is taken from a holder only after its record has not changed for as long as it says, by
//! this process's own clock: clocks of different nodes are never compared. Whoever could not renew
//! for [`GIVE_UP`] stops, which is earlier than anybody else may start.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, ResourceExt as _, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How long a lease that is not renewed holds.
const TERM: Duration = Duration::from_secs(15);
/// How long its holder tries to renew it.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often it is renewed, and looked at by those who wait.
const PERIOD: Duration = Duration::from_secs(2);

/// A candidate.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

/// The lease is somebody else's, or may be by now.
#[derive(Debug, thiserror::Error)]
#[error("the lease {name} is lost: {why}")]
pub(crate) struct Lost {
    name: String,
    why: String,
}

/// What a candidate does next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Nobody holds it.
    Take,
    /// It is the candidate's.
    Renew,
    /// Somebody else holds it.
    Wait,
}

/// What a candidate called `me` does about a lease whose record has been the same for `unchanged`.
fn step(lease: &LeaseSpec, me: &str, unchanged: Duration) -> Step {
    let holder = lease.holder_identity.as_deref().unwrap_or_default();
    let term = lease.lease_duration_seconds.unwrap_or_default();
    let term = Duration::from_secs(term.try_into().unwrap_or_default());
    if holder == me {
        Step::Renew
    } else if holder.is_empty() || unchanged >= term {
        Step::Take
    } else {
        Step::Wait
    }
}

/// The record of `me`, after the record `before`.
fn record(before: Option<&LeaseSpec>, me: &str, now: Timestamp) -> LeaseSpec {
    let before = before.cloned().unwrap_or_default();
    let is_mine = before.holder_identity.as_deref() == Some(me);
    let since = before.acquire_time.filter(|_| is_mine);
    let transitions = before.lease_transitions.unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(TERM.as_secs() as i32),
        acquire_time: Some(since.unwrap_or(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions.saturating_add(i32::from(!is_mine))),
        ..LeaseSpec::default()
    }
}

impl Candidate {
    /// A candidate for the lease `name`, told from the others by `identity`.
    pub(crate) fn new(client: &Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
        }
    }

    /// Waits until the lease is this candidate's; since when, at the earliest. None if it is told to `stop`
    /// before: an attempt that is under way is finished first, or what it writes might come after all that
    /// gives the lease back.
    pub(crate) async fn acquire(&self, stop: &CancellationToken) -> Option<Instant> {
        let mut seen: Option<(String, Instant)> = None;
        loop {
            let began = Instant::now();
            match timeout(GIVE_UP, self.try_acquire(&mut seen)).await {
                Ok(Ok(true)) => return Some(began),
                Ok(Ok(false)) => {}
                Err(_) => {
                    tracing::warn!(lease = self.name, "the API server does not answer");
                }
                Ok(Err(error)) => {
                    let lease = &self.name;
                    tracing::warn!(lease, %error, "the lease cannot be read or taken");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(PERIOD) => {}
            }
        }
    }

    /// Takes the lease if it may be taken. `seen` is its version and since when it has been that.
    async fn try_acquire(&self, seen: &mut Option<(String, Instant)>) -> kube::Result<bool> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            return self.write(None).await;
        };
        let version = lease.resource_version().unwrap_or_default();
        let since = match seen {
            Some((known, since)) if *known == version => *since,
            _ => Instant::now(),
        };
        *seen = Some((version, since));
        let spec = lease.spec.clone().unwrap_or_default();
        match step(&spec, &self.identity, since.elapsed()) {
            Step::Take | Step::Renew => self.write(Some(lease)).await,
            Step::Wait => {
                let holder = spec.holder_identity.unwrap_or_default();
                tracing::debug!(holder, "waiting for the lease");
                Ok(false)
            }
        }
    }

    /// Writes this candidate's record; false if somebody else was faster.
    async fn write(&self, before: Option<Lease>) -> kube::Result<bool> {
        let spec = before.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = Some(record(spec, &self.identity, Timestamp::now()));
        let params = PostParams::default();
        let written = if let Some(lease) = before {
            let lease = Lease { spec, ..lease };
            self.api.replace(&self.name, &params, &lease).await
        } else {
            let mut lease = Lease {
                spec,
                ..Lease::default()
            };
            lease.metadata.name = Some(self.name.clone());
            self.api.create(&params, &lease).await
        };
        match written {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews the lease, which was `taken` then, until that fails for too long or somebody else has it.
    pub(crate) async fn hold(&self, taken: Instant) -> Lost {
        let lost = |why: String| Lost {
            name: self.name.clone(),
            why,
        };
        let mut renewed = taken;
        loop {
            let next = Instant::now() + PERIOD;
            let left = GIVE_UP.saturating_sub(renewed.elapsed());
            let began = Instant::now();
            let why = match timeout(left, self.renew()).await {
                Ok(Ok(None)) => {
                    // The record says when it was written, which was not before this.
                    renewed = began;
                    String::new()
                }
                Ok(Ok(Some(holder))) => return lost(format!("{holder} holds it")),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "the API server does not answer".to_owned(),
            };
            if renewed.elapsed() >= GIVE_UP {
                return lost(why);
            }
            sleep_until(next).await;
        }
    }

    /// Renews the lease; who holds it, if it is somebody else.
    async fn renew(&self) -> kube::Result<Option<String>> {
        let lease = self.api.get(&self.name).await?;
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone());
        if holder.as_deref() != Some(&self.identity) {
            return Ok(Some(holder.unwrap_or_else(|| "nobody".to_owned())));
        }
        // Whoever wrote in between is found at the next look.
        self.write(Some(lease)).await.map(|_| None)
    }

    /// Gives the lease back, unless somebody else has it or writes it meanwhile.
    async fn try_release(&self) -> kube::Result<()> {
        let lease = self.api.get(&self.name).await?;
        let mut spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        let lease = Lease {
            spec: Some(spec),
            ..lease
        };
        let params = PostParams::default();
        let released = self.api.replace(&self.name, &params, &lease);
        released.await.map(|_| ())
    }

    /// Gives the lease back, so that the next one need not wait for its end.
    pub(crate) async fn release(&self) {
        let released = async {
            loop {
                match self.try_release().await {
                    // A renewal that was under way has been written meanwhile.
                    Err(kube::Error::Api(status)) if status.is_conflict() => {}
                    result => return result,
                }
            }
        };
        let result = timeout(PERIOD, released).await;
        if !matches!(result, Ok(Ok(()))) {
            tracing::info!(
                lease = self.name,
                "the lease was not given back; it ends by itself"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn held_by(holder: &str) -> LeaseSpec {
        record(None, holder, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_lease_is_taken_only_when_it_has_not_changed_for_its_term() {
        let lease = held_by("other");
        assert_eq!(step(&lease, "me", Duration::ZERO), Step::Wait);
        assert_eq!(
            step(&lease, "me", TERM.saturating_sub(Duration::from_millis(1))),
            Step::Wait
        );
        assert_eq!(step(&lease, "me", TERM), Step::Take);
        assert_eq!(step(&held_by("me"), "me", Duration::ZERO), Step::Renew);
        assert_eq!(step(&held_by(""), "me", Duration::ZERO), Step::Take);
        assert_eq!(
            step(&LeaseSpec::default(), "me", Duration::ZERO),
            Step::Take
        );
    }

    /// An API server that never answers the first request, and later ones with a lease of nobody.
    fn silent_at_first() -> Client {
        let asked = AtomicUsize::new(0);
        let lease = serde_json::to_vec(&Lease::default()).expect("JSON");
        let answers = move |_| {
            let is_first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            let answer = Response::new(Body::from(lease.clone()));
            async move {
                if is_first {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(answer)
            }
        };
        Client::new(tower::service_fn(answers), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_keeps_nobody_from_the_lease() {
        let candidate = Candidate::new(&silent_at_first(), "default", "lease", "me");
        let began = Instant::now();
        let taken = candidate.acquire(&CancellationToken::new()).await;
        let taken = taken.expect("it goes on");
        assert_eq!(taken - began, GIVE_UP + PERIOD, "when it was asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_to_stop_finishes_the_attempt_that_is_under_way() {
        let candidate = Candidate::new(&silent_at_first(), "default", "lease", "me");
        let (began, stop) = (Instant::now(), CancellationToken::new());
        stop.cancel();
        assert_eq!(candidate.acquire(&stop).await, None);
        assert_eq!(began.elapsed(), GIVE_UP);
        let taken = candidate.acquire(&stop).await;
        assert!(taken.is_some(), "it has the lease to give back");
    }

    /// An API server with a lease of `holder` that finds the first write in conflict with another; what it was
    /// to write.
    fn busy_at_first(holder: &str) -> (Client, Arc<Mutex<Vec<Lease>>>) {
        let lease = Lease {
            spec: Some(held_by(holder)),
            ..Lease::default()
        };
        let lease = serde_json::to_vec(&lease).expect("JSON");
        let conflict = json!({"status": "Failure", "reason": "Conflict", "code": 409});
        let writes = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&writes);
        let answers = move |request: Request<Body>| {
            let (noted, lease) = (Arc::clone(&noted), lease.clone());
            let conflict = conflict.to_string().into_bytes();
            async move {
                let is_write = request.method() == Method::PUT;
                let body = request.into_body().collect_bytes().await.expect("a body");
                if is_write {
                    let written = serde_json::from_slice(&body).expect("a lease");
                    let mut writes = noted.lock().expect("nobody panics");
                    writes.push(written);
                    if writes.len() == 1 {
                        let answer = Response::builder().status(409);
                        return Ok(answer.body(Body::from(conflict)).expect("an answer"));
                    }
                }
                Ok::<_, Infallible>(Response::new(Body::from(lease)))
            }
        };
        (Client::new(tower::service_fn(answers), "default"), writes)
    }

    #[tokio::test]
    async fn a_lease_is_given_back_though_it_was_renewed_meanwhile() {
        for (holder, expected) in [("me", 2), ("other", 0)] {
            let (client, writes) = busy_at_first(holder);
            Candidate::new(&client, "default", "lease", "me")
                .release()
                .await;
            let writes = writes.lock().expect("nobody panics");
            assert_eq!(writes.len(), expected, "{holder}");
            let holders = writes
                .iter()
                .map(|lease| lease.spec.as_ref()?.holder_identity.as_ref());
            assert_eq!(holders.flatten().count(), 0, "it is nobody's");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_held_from_when_it_was_asked_for() {
        let candidate = Candidate::new(&silent_at_first(), "default", "lease", "me");
        let taken = Instant::now();
        tokio::time::advance(GIVE_UP / 2).await;
        candidate.hold(taken).await;
        assert_eq!(taken.elapsed(), GIVE_UP);
    }

    #[test]
    fn a_holder_stops_before_anybody_else_may_start() {
        assert!(GIVE_UP + PERIOD < TERM);
    }

    #[test]
    fn a_record_counts_changes_of_hands_and_keeps_when_it_was_taken() {
        let first = held_by("a");
        assert_eq!(first.lease_transitions, Some(1));
        let later = Timestamp::from_second(9).expect("a time");
        let renewed = record(Some(&first), "a", later);
        assert_eq!(renewed.acquire_time, first.acquire_time);
        assert_eq!(renewed.lease_transitions, Some(1));
        let taken = record(Some(&renewed), "b", later);
        assert_eq!(taken.lease_transitions, Some(2));
        assert_eq!(taken.acquire_time, Some(MicroTime(later)));
    }
}
