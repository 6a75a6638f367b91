//! Endpoints that are up and say nothing.
//!
//! A link beats as long as the process at its other end lives, whatever has become of what drafts in
//! it. Each session finds out by itself and leaves such an endpoint in peace for longer and longer, but
//! what it waits for first comes with every request. So the endpoint is known by what all of them find
//! out: it gets no new requests but for one every now and then, until anything is heard of it.

use std::time::Duration;

use foretoken_engine::schedule::RequestId;

use super::Endpoints;
use crate::{metrics::Metrics, request::Request};

/// So many requests have to wait in vain, so that none can speak for all others.
const WITNESSES: usize = 3;
/// Nothing has to be heard for so long: several times what anybody waits for a window, and longer than a
/// step of prompts takes a draft.
const SILENCE: Duration = Duration::from_secs(1);
/// When one request is tried again, first; the time doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two.
const LONGEST_PAUSE: Duration = Duration::from_secs(32);

/// What is heard of one endpoint while it is up.
#[derive(Debug, Default)]
pub(in crate::worker) struct Hearing {
    /// When somebody first waited in vain since anything was heard.
    since: Option<Duration>,
    /// Who has, [`WITNESSES`] at most.
    witnesses: Vec<RequestId>,
    mute: Option<Mute>,
}

#[derive(Debug)]
struct Mute {
    /// When a request may be tried next.
    next: Duration,
    /// How long after that the one after it.
    pause: Duration,
    /// Whether that time had come when it was last looked at.
    is_due: bool,
}

impl Hearing {
    /// Takes in that a request has waited in vain. True if the endpoint is given up by that.
    pub(in crate::worker) fn missed(&mut self, request: RequestId, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        if self.witnesses.len() < WITNESSES && !self.witnesses.contains(&request) {
            self.witnesses.push(request);
        }
        let enough = self.witnesses.len() == WITNESSES && now.saturating_sub(since) >= SILENCE;
        let is_news = enough && self.mute.is_none();
        if is_news {
            self.mute = Some(Mute {
                next: now + FIRST_PAUSE,
                pause: FIRST_PAUSE * 2,
                is_due: false,
            });
        }
        is_news
    }

    /// Takes in that it has said something. True if it had been given up.
    pub(in crate::worker) fn heard(&mut self) -> bool {
        self.since = None;
        self.witnesses.clear();
        self.mute.take().is_some()
    }

    /// Looks at the time.
    pub(super) fn look(&mut self, now: Duration) {
        if let Some(mute) = &mut self.mute {
            mute.is_due = mute.next <= now;
        }
    }

    /// Whether it has been given up.
    pub(super) fn is_mute(&self) -> bool {
        self.mute.is_some()
    }

    /// Whether a request may be bound to it.
    pub(super) fn may_ask(&self) -> bool {
        self.mute.as_ref().is_none_or(|mute| mute.is_due)
    }

    /// Takes in that one is.
    pub(super) fn asked(&mut self, now: Duration) {
        if let Some(mute) = &mut self.mute {
            mute.next = now + mute.pause;
            mute.pause = (mute.pause * 2).min(LONGEST_PAUSE);
            mute.is_due = false;
        }
    }
}

impl Endpoints {
    /// Takes in that a request has waited in vain for its endpoint.
    pub(in crate::worker) fn note_silence(
        &mut self,
        request: &Request,
        now: Duration,
        metrics: &Metrics,
    ) {
        let endpoint = request.link.and_then(|link| self.find(link));
        if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.up)
            && endpoint.hearing.missed(request.id, now)
        {
            metrics.link_failed("silent");
            tracing::warn!(
                endpoint = %endpoint.name,
                "endpoint is connected and says nothing; until it does only few requests ask it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// One that three requests have waited for in vain, from 0 to 1 s.
    fn mute() -> Hearing {
        let mut hearing = Hearing::default();
        assert!(!hearing.missed(RequestId(1), seconds(0.0)));
        assert!(!hearing.missed(RequestId(2), seconds(0.5)));
        assert!(hearing.missed(RequestId(3), seconds(1.0)));
        hearing
    }

    #[test]
    fn neither_one_request_nor_many_in_a_moment_say_that_an_endpoint_is_mute() {
        let mut hearing = Hearing::default();
        for tenth in 0..600 {
            assert!(!hearing.missed(RequestId(tenth % 2), seconds(tenth as f64 / 10.0)));
        }
        let mut hearing = Hearing::default();
        for request in 0..100 {
            assert!(!hearing.missed(RequestId(request), seconds(0.9)));
        }
        assert!(hearing.may_ask() && !hearing.is_mute());
    }

    #[test]
    fn whatever_is_heard_begins_anew() {
        let mut hearing = Hearing::default();
        for request in 0..100 {
            assert!(!hearing.missed(RequestId(request), seconds(request as f64)));
            assert!(!hearing.heard());
        }
        let mut hearing = mute();
        assert!(hearing.heard());
        assert!(hearing.may_ask() && !hearing.is_mute());
        assert!(!hearing.missed(RequestId(4), seconds(9.0)));
    }

    #[test]
    fn one_request_at_a_time_is_tried_and_they_become_rarer() {
        let mut hearing = mute();
        let (mut tried, mut now) = (Vec::new(), 1.0);
        while now < 200.0 {
            hearing.look(seconds(now));
            if hearing.may_ask() {
                tried.push(now);
                hearing.asked(seconds(now));
                assert!(!hearing.may_ask());
                assert!(!hearing.missed(RequestId(9), seconds(now + 0.1)));
            }
            now += 0.5;
        }
        assert_eq!(
            tried,
            [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0, 128.0, 160.0, 192.0]
        );
    }
}
