//! Endpoints that do not want a request.

use crate::inbox::LinkKey;

/// Why a request is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was no slot for it.
    ForNow,
    /// What is said about it makes no sense, or it can never be served there. A free slot changes
    /// nothing of that.
    ForGood,
}

/// Endpoints that do not want a request.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Vec<(LinkKey, Refusal)>);

impl Refusals {
    pub(crate) fn note(&mut self, link: LinkKey, refusal: Refusal) {
        if !self.0.contains(&(link, refusal)) {
            self.0.push((link, refusal));
        }
    }

    pub(crate) fn has(&self, link: LinkKey) -> bool {
        self.0.iter().any(|(refused, _)| *refused == link)
    }

    /// It has, or may have, a slot now.
    pub(crate) fn forget_for_now(&mut self, link: LinkKey) {
        self.0.retain(|refused| *refused != (link, Refusal::ForNow));
    }

    /// It loses the endpoint that it has, whose session would ask again: by the time it looks for another, any of
    /// them may have a slot.
    pub(crate) fn forget_all_for_now(&mut self) {
        self.0.retain(|(_, refusal)| *refusal != Refusal::ForNow);
    }

    /// It may be another one now.
    pub(crate) fn forget(&mut self, link: LinkKey) {
        self.0.retain(|(refused, _)| *refused != link);
    }
}
