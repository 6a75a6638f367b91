//! Whether to draft ahead of verdicts: where hits are rare, or what is computed for them slows the
//! target down, the same request is served sooner by an endpoint that drafts for nothing but the
//! verdict that it is told.

use core::time::Duration;

use super::turns::Turns;

/// By how much rounds have to be better than others that wait for their windows are thought to be, for
/// those to be out of the question.
const CLEARLY: f64 = 1.1;

/// Whether endpoints draft ahead, in turn where that is not clear.
#[derive(Clone, Debug)]
pub(super) struct Ahead(Turns);

impl Ahead {
    pub(super) fn new() -> Self {
        Self(Turns::new(1.0))
    }

    /// Whether endpoints are to draft ahead now.
    pub(super) fn drafts(&self) -> bool {
        self.0.is_first()
    }

    /// Whether it is the turn of the way that is not preferred.
    pub(super) fn is_aside(&self) -> bool {
        self.0.is_aside()
    }

    /// Something else is other than usual for now.
    pub(super) fn disturb(&mut self) {
        self.0.disturb();
    }

    /// Takes in a round of one of so many sessions. `waiting` is what is thought of rounds that wait for
    /// their windows instead, in tokens a second.
    pub(super) fn observe(&mut self, tokens: u32, took: Duration, sessions: u32, waiting: f64) {
        self.0.observe(tokens, took, sessions);
        let ahead = self.0.first_rate();
        if ahead.is_none_or(|ahead| ahead > CLEARLY * waiting) {
            self.0.keep_to_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::philox;

    /// Of the last 2,000 of 8,000 rounds, how many had endpoints that draft ahead: then so many in a hundred
    /// verdicts are hits, whose round takes a millisecond, and of others the next round has one token; without,
    /// each waits `window` more milliseconds, which are thought to be `thought`.
    fn rounds_ahead(hits: u32, window: f64, thought: f64, sessions: u32) -> usize {
        let mut ahead = Ahead::new();
        let rounds = (0..8000_u32).filter(|&round| {
            let [tokens, hit, ..] = philox([round, 0, 0, 0], [1, 2]);
            let tokens = 1 + tokens % 5;
            let drafts = ahead.drafts();
            let (tokens, ms) = match (drafts, hit % 100 < hits) {
                (true, true) => (tokens, 1.0),
                (true, false) => (1, 1.0),
                (false, _) => (tokens, 1.0 + window),
            };
            let took = Duration::from_secs_f64(1e-3 * ms);
            ahead.observe(tokens, took, sessions, 3e3 / (1.0 + thought));
            drafts && round >= 6000
        });
        rounds.count()
    }

    #[test]
    fn endpoints_draft_ahead_where_that_pays_and_now_and_then_where_it_does_not() {
        for sessions in [1, 4] {
            // Nine hits of ten, and a third of a round for a window.
            assert_eq!(rounds_ahead(90, 0.35, 0.35, sessions), 2000);
            // It pays, though it was not thought to.
            let better = rounds_ahead(80, 0.6, 0.1, sessions);
            assert!((1500..2000).contains(&better), "{better}");
            // Hits are rare.
            let rare = rounds_ahead(30, 0.35, 0.35, sessions);
            assert!((50..500).contains(&rare), "{rare}");
        }
    }
}
