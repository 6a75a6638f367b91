//! Endpoints that do not want a request.

use std::time::Instant;

use crate::inbox::LinkKey;

/// Why a request is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was no slot for it, or there were no pages, or its target has its share of them. Endpoints
    /// say when a slot is free again and nothing of the rest, so it counts until this time.
    ForNow { until: Instant },
    /// What is said about it makes no sense, or it can never be served there. A free slot changes
    /// nothing of that.
    ForGood,
}

impl Refusal {
    fn is_for_now(self) -> bool {
        matches!(self, Self::ForNow { .. })
    }
}

/// Endpoints that do not want a request.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<(LinkKey, Refusal)>);

impl Refusals {
    /// The latest refusal of an endpoint counts.
    pub(crate) fn note(&mut self, link: LinkKey, refusal: Refusal) {
        self.forget(link);
        self.0.push((link, refusal));
    }

    pub(crate) fn has(&self, link: LinkKey) -> bool {
        self.0.iter().any(|(refused, _)| *refused == link)
    }

    /// Whether that endpoint is not to be asked again.
    pub(crate) fn has_for_good(&self, link: LinkKey) -> bool {
        self.0.contains(&(link, Refusal::ForGood))
    }

    /// It has, or may have, a slot now.
    pub(crate) fn forget_for_now(&mut self, link: LinkKey) {
        self.0
            .retain(|(refused, refusal)| *refused != link || !refusal.is_for_now());
    }

    /// It loses the endpoint that it has, whose session would ask again: by the time it looks for another, any of
    /// them may have a slot.
    pub(crate) fn forget_all_for_now(&mut self) {
        self.0.retain(|(_, refusal)| !refusal.is_for_now());
    }

    /// Looks at the time.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|(_, refusal)| match refusal {
            Refusal::ForNow { until } => now < *until,
            Refusal::ForGood => true,
        });
    }

    /// It may be another one now.
    pub(crate) fn forget(&mut self, link: LinkKey) {
        self.0.retain(|(refused, _)| *refused != link);
    }
}
