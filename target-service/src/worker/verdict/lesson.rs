//! What is learned from a verdict, about endpoints and this host's own proposals.

use foretoken_speculation::{
    control::Lesson,
    fallback::Fallback,
    local::Origin,
    policy::target::{Effects, Source},
};

use super::Endpoints;
use crate::{inbox::LinkKey, metrics::Metrics, request::Request};

/// What there is to be learned from a verdict.
pub(super) struct Taught {
    /// What it says of lookaheads.
    pub(super) lesson: Lesson,
    /// The endpoint that the request had when its window was fed, if any.
    pub(super) fed: Option<LinkKey>,
    /// Where the window came from, if it was of this host.
    pub(super) own: Option<Origin>,
    /// Whether the window was drawn, and came with what it was drawn from.
    pub(super) drawn: bool,
}

impl Taught {
    pub(super) fn teach(
        &self,
        request: &Request,
        effects: &Effects,
        endpoints: &mut Endpoints,
        metrics: &Metrics,
    ) {
        let Self {
            lesson,
            fed,
            own,
            drawn,
        } = self;
        let bound = request.link.map(|link| request.cohort(link));
        match (own, fed) {
            (Some(origin), _) => metrics.note_local(*origin, lesson.tried, lesson.accepted),
            (None, Some(link)) => endpoints.observe_window(request.cohort(*link), lesson),
            (None, None) => {}
        }
        if let (Some(lookup), Some(cohort)) = (effects.lookup, bound)
            && lookup.expected
        {
            endpoints.observe_lookup(cohort.link, lookup.is_hit());
        }
        if effects.lost {
            metrics.note_lookup(Source::Fallback(Fallback::Remote));
            if let Some(cohort) = bound {
                endpoints.observe_lookup(cohort.link, false);
            }
        }
        let Some((sought, _)) = lesson.timed() else {
            return;
        };
        if let Some(cohort) = endpoints.serves(request) {
            endpoints.observe_time(cohort, lesson);
        }
        if let (Some(lookup), Some(cohort)) = (effects.lookup, bound)
            && lookup.expected
            && !lookup.first
        {
            let hit = lookup.is_hit();
            endpoints.observe_source(cohort, sought.source, hit);
            // The rest of a window that was not verified whole was no guess.
            if *drawn && !matches!(lookup.source, Source::Ahead { place: None }) {
                endpoints.observe_guess(cohort, lesson.accepted == lesson.tried, hit);
            }
        }
    }
}
