//! Whether to draft ahead of verdicts: where hits are rare, or what is computed for them slows the
//! target down, the same request is served sooner by an endpoint that drafts for nothing but the
//! verdict that it is told.

use core::time::Duration;

use super::turns::{Turns, Way};
use crate::{fallback::Fallback, policy::target::Source};

/// Rounds with a window that was asked for, beside those with others, that say whether it may pay not to
/// draft ahead.
const FEWEST: f64 = 16.0;
/// By how much all rounds have to be better than those with a window that was asked for, for that to be
/// out of the question: such a window comes sooner from an endpoint that drafts for nothing else.
const CLEARLY: f64 = 1.15;

/// Whether endpoints draft ahead, in turn where that is not clear.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    turns: Turns,
    /// Rounds whose window was asked for after a miss.
    asked: Way,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self {
            turns: Turns::new(1.0),
            asked: Way::default(),
        }
    }

    /// Whether endpoints are to draft ahead now.
    pub(super) fn drafts(&self) -> bool {
        self.turns.is_first()
    }

    /// Takes in a round of one of so many sessions, and where its window came from.
    pub(super) fn observe(
        &mut self,
        (tokens, took): (u32, Duration),
        source: Source,
        sessions: u32,
    ) {
        if self.drafts() && source == Source::Fallback(Fallback::Remote) {
            self.asked.add(tokens, took);
        }
        self.turns.observe(tokens, took, sessions);
        if self.is_clear() {
            self.turns.keep_to_first();
        }
    }

    /// Whether it pays beyond doubt to draft ahead, or too little is known to doubt it.
    fn is_clear(&self) -> bool {
        if self.asked.rounds() < FEWEST {
            return true;
        }
        let all = self.turns.first_rate();
        all.is_none_or(|all| all > CLEARLY * self.asked.rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::philox;

    /// Of 8,000 rounds with and without drafting ahead, how many of the last 2,000 had it: with it so many in a
    /// hundred verdicts are hits, whose round takes a millisecond; a window that is asked for takes
    /// `asked` more milliseconds, and `alone` where nothing is drafted ahead.
    fn rounds_ahead(hits: u32, asked: f64, alone: f64, sessions: u32) -> usize {
        let mut ahead = Ahead::new();
        let rounds = (0..8000_u32).filter(|&round| {
            let [tokens, hit, ..] = philox([round, 0, 0, 0], [1, 2]);
            let tokens = 1 + tokens % 5;
            let (source, more) = match (ahead.drafts(), hit % 100 < hits) {
                (true, true) => (Source::Ahead { place: Some(0) }, 0.0),
                (true, false) => (Source::Fallback(Fallback::Remote), asked),
                (false, _) => (Source::Fallback(Fallback::Remote), alone),
            };
            let drafts = ahead.drafts();
            let took = Duration::from_secs_f64(1e-3 * (1.0 + more));
            ahead.observe((tokens, took), source, sessions);
            drafts && round >= 6000
        });
        rounds.count()
    }

    #[test]
    fn endpoints_draft_ahead_where_that_pays_and_now_and_then_where_it_does_not() {
        for sessions in [1, 4] {
            // Nine hits of ten, and a third of a round for a window.
            assert_eq!(rounds_ahead(90, 0.3, 0.3, sessions), 2000);
            // Hits are rare, but a window takes as long with and without them.
            let rare = rounds_ahead(30, 0.3, 0.3, sessions);
            assert!(rare > 1500, "{rare}");
            // A window takes twice as long beside what is drafted ahead.
            let slowed = rounds_ahead(20, 0.4, 0.2, sessions);
            assert!((50..500).contains(&slowed), "{slowed}");
        }
    }

    #[test]
    fn what_is_never_asked_for_after_a_miss_says_nothing() {
        let mut ahead = Ahead::new();
        for _ in 0..5000 {
            let took = Duration::from_millis(1);
            ahead.observe((1, took), Source::Fallback(Fallback::Nothing), 1);
            assert!(ahead.drafts());
        }
    }
}
