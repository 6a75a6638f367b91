//! What is measured of a request's rounds, from verdict to verdict, as services measure it.

use std::time::Duration;

use foretoken_speculation::policy::target::{Effects, Sought};

/// A round that has ended: what was sought for its window, and how long it took.
pub(super) type Round = (Sought, Duration);

/// Watches the rounds of a request.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// When the window of the next round was asked for, and how many tokens.
    pub(super) asked: Option<(Duration, u32)>,
    /// When the round under way began, and what was sought for it.
    begun: Option<(Duration, Sought)>,
}

impl Meter {
    /// Takes in what follows from a verdict; the round that ended with it.
    pub(super) fn verdict(&mut self, effects: &Effects, now: Duration) -> Option<Round> {
        let asked = effects.asked();
        self.asked = (asked > 0).then_some((now, asked));
        let before = self.begun.map(|(_, sought)| sought);
        let begun = self.begun.replace((now, Sought::after(effects, before)));
        begun.map(|(since, sought)| (sought, now.saturating_sub(since)))
    }

    /// Whether tokens were sought for the round under way and for the one before it.
    pub(super) fn is_in_a_row(&self) -> bool {
        self.begun.is_some_and(|(_, sought)| sought.is_in_a_row())
    }
}
