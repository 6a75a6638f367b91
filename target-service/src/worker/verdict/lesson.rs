//! What is learned from a verdict, about endpoints and this host's own proposals.

use foretoken_speculation::{
    control::Drafting,
    fallback::Fallback,
    local::Origin,
    policy::target::{Effects, Source},
};

use super::Endpoints;
use crate::{
    metrics::Metrics,
    request::{Course, Request, Turnaround},
};

/// What there is to be learned from a verdict.
pub(super) struct Lesson {
    /// Most tokens of the window that follow each other, those that were tried one after the other,
    /// and how many were emitted.
    pub(super) drafted: u32,
    pub(super) proposed: u32,
    /// Whether the window had more, for which the step or the output had no room.
    pub(super) clipped: bool,
    pub(super) accepted: u32,
    /// Whether they were drawn, and came with what they were drawn from.
    pub(super) drawn: bool,
    /// Rows of the step, and whether it took what such steps always take.
    pub(super) rows: u32,
    pub(super) typical: bool,
    /// Requests that are being served.
    pub(super) sessions: u32,
    /// The round that ended with it.
    pub(super) round: Option<Turnaround>,
    /// Where this host's proposals for the next window came from.
    pub(super) offered: Origin,
}

impl Lesson {
    pub(super) fn teach(
        self,
        request: &mut Request,
        effects: &Effects,
        endpoints: &mut Endpoints,
        metrics: &Metrics,
    ) {
        let Self {
            drafted,
            proposed,
            clipped,
            accepted,
            drawn,
            rows,
            typical,
            sessions,
            round,
            offered,
        } = self;
        let own = request.own.take();
        request.own = (effects.local > 0).then_some(offered);
        let bound = request.link.map(|link| request.cohort(link));
        match (own, bound) {
            (Some(origin), _) => metrics.note_local(origin, proposed, accepted),
            (None, Some(cohort)) => {
                // Where it did not end of itself, nothing is known of what might have followed.
                let whole = round.filter(|round| round.ended && !clipped);
                let sought = whole.map_or(proposed, |round| round.sought);
                endpoints.observe_round(cohort, sought, drafted, accepted);
            }
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
        let Some(round) = round.filter(Turnaround::is_timed) else {
            return;
        };
        if let Some(cohort) = endpoints.serves(request) {
            // A window of this host's that came in the place of one waited for says nothing about
            // waiting.
            let is_news = own.is_none() || cohort.drafting == Drafting::Ahead;
            let is_usual = if round.sought > 0 {
                round.course == Course::InARow
            } else {
                typical
            };
            if round.sought > 0 {
                endpoints.observe_emitted(cohort, accepted + 1, round.took, sessions);
            }
            if is_news && is_usual {
                endpoints.observe_turn(cohort, round.sought, rows, round.took);
            }
            if round.ahead {
                let found = if own.is_none() { drafted } else { 0 };
                let ended = round.ended && found > 0;
                // What there was no room for may have been there.
                let sought = if clipped { found } else { round.sought };
                endpoints.observe_coverage(cohort, sought, found, ended);
            }
        }
        if let (Some(lookup), Some(cohort)) = (effects.lookup, bound)
            && lookup.expected
            && !lookup.first
        {
            let hit = lookup.is_hit();
            endpoints.observe_source(cohort, round.source, hit);
            // The rest of a window that was not verified whole was no guess.
            if drawn && !matches!(lookup.source, Source::Ahead { place: None }) {
                endpoints.observe_guess(cohort, accepted == proposed, hit);
            }
        }
    }
}
