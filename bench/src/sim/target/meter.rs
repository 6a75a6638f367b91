//! What is measured of a request's rounds, from verdict to verdict, as services measure it.

use std::time::Duration;

use foretoken_speculation::{
    fallback::Fallback,
    message::ToDraft,
    policy::target::{Effects, Source},
};

/// A round: what was sought for it is known when it begins, how long it took when it has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    since: Duration,
    pub(super) took: Duration,
    /// Tokens that were sought for its window.
    pub(super) sought: u32,
    /// Whether they were to be drafted ahead.
    pub(super) ahead: bool,
    /// Whether a window of fewer had all that were worth it.
    pub(super) ended: bool,
    /// Whether any were sought for the round before it too.
    pub(super) in_a_row: bool,
    /// Where the window came from.
    pub(super) source: Source,
}

/// Watches the rounds of a request.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// When the window of the next round was asked for, and how many tokens.
    pub(super) asked: Option<(Duration, u32)>,
    begun: Option<Round>,
}

impl Meter {
    /// Takes in what follows from a verdict; the round that ended with it.
    pub(super) fn verdict(&mut self, effects: &Effects, now: Duration) -> Option<Round> {
        let asked = effects.messages.iter().find_map(|message| match message {
            ToDraft::Outcome(outcome) => outcome.asks(),
            ToDraft::Open(_) | ToDraft::Close { .. } => None,
        });
        self.asked = asked.map(|asked| (now, asked));
        let lookup = effects.lookup;
        let begun = self.begun.replace(Round {
            since: now,
            took: Duration::ZERO,
            sought: lookup.map_or(asked.unwrap_or(0), |lookup| lookup.sought),
            ahead: lookup.is_some_and(|lookup| lookup.expected),
            ended: asked.is_some() || lookup.is_some_and(|lookup| lookup.ended),
            in_a_row: self.begun.is_some_and(|before| before.sought > 0),
            source: match (lookup, asked) {
                (Some(lookup), _) => lookup.source,
                (None, Some(_)) => Source::Fallback(Fallback::Remote),
                (None, None) => Source::Fallback(Fallback::Nothing),
            },
        });
        begun.map(|round| Round {
            took: now.saturating_sub(round.since),
            ..round
        })
    }

    /// Whether tokens were sought for the round under way and for the one before it.
    pub(super) fn is_in_a_row(&self) -> bool {
        self.begun
            .is_some_and(|begun| begun.sought > 0 && begun.in_a_row)
    }
}
