//! What was sought for the window of a round: for whoever measures rounds.

use super::{Effects, Source};
use crate::{fallback::Fallback, message::ToDraft};

/// What a round's time says of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Nothing was sought for the round before it: the endpoint had to read on.
    Anew,
    /// Something was sought for the round before it too.
    InARow,
    /// Nothing: the request was held up in it by something else.
    Interrupted,
}

/// What was sought for the window of a round, as it is known when the round begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought {
    /// Tokens: asked for, or drafted ahead.
    pub tokens: u32,
    /// Whether they were to be drafted ahead.
    pub ahead: bool,
    /// Whether a window of fewer tokens had all that were worth it: it was asked for, or drafted ahead
    /// to its end.
    pub ended: bool,
    /// Where the window comes from.
    pub source: Source,
    /// What the time of the round says of the endpoint.
    pub course: Course,
}

impl Sought {
    /// For the round that begins with a verdict from which this follows, after the round `before`.
    pub fn after(effects: &Effects, before: Option<Self>) -> Self {
        let asked = effects.asked();
        let lookup = effects.lookup;
        Self {
            tokens: lookup.map_or(asked, |lookup| lookup.sought),
            ahead: lookup.is_some_and(|lookup| lookup.expected),
            ended: asked > 0 || lookup.is_some_and(|lookup| lookup.ended),
            source: match lookup {
                Some(lookup) => lookup.source,
                None if asked > 0 => Source::Fallback(Fallback::Remote),
                None if effects.local > 0 => Source::Fallback(Fallback::Local),
                None => Source::Fallback(Fallback::Nothing),
            },
            course: if before.is_some_and(|before| before.tokens > 0) {
                Course::InARow
            } else {
                Course::Anew
            },
        }
    }

    /// Whether tokens were sought for this round and for the one before it. An endpoint that was asked
    /// for nothing has to read on first, with cold caches: its first answer takes longer than those that
    /// follow, and says little about them.
    pub fn is_in_a_row(&self) -> bool {
        self.tokens > 0 && self.course == Course::InARow
    }

    /// Whether the round's time is that of its window and its step.
    pub fn is_timed(&self) -> bool {
        self.course != Course::Interrupted
    }
}

impl Effects {
    /// Tokens of the window that the endpoint is asked for.
    pub fn asked(&self) -> u32 {
        let asked = self.messages.iter().find_map(|message| match message {
            ToDraft::Outcome(outcome) => outcome.asks(),
            ToDraft::Open(_) | ToDraft::Close { .. } => None,
        });
        asked.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::{message::Outcome, policy::target::Lookup};

    fn asking(lookahead: u32) -> Effects {
        Effects {
            messages: vec![ToDraft::Outcome(Outcome {
                lookahead,
                ..Outcome::default()
            })],
            ..Effects::default()
        }
    }

    /// After a verdict that was drafted for.
    fn hit(ended: bool) -> Effects {
        Effects {
            lookup: Some(Lookup {
                source: Source::Ahead { place: Some(3) },
                tokens: 4,
                sought: 5,
                ended,
                expected: true,
                first: false,
            }),
            ..asking(0)
        }
    }

    #[test]
    fn where_a_window_comes_from_follows_from_the_verdict() {
        let source_of = |effects: &Effects| Sought::after(effects, None).source;
        assert_eq!(source_of(&hit(false)), Source::Ahead { place: Some(3) });
        let own = Effects {
            local: 2,
            ..Effects::default()
        };
        for (effects, kind) in [
            (asking(4), Fallback::Remote),
            (asking(0), Fallback::Nothing),
            (Effects::default(), Fallback::Nothing),
            (own, Fallback::Local),
        ] {
            assert_eq!(source_of(&effects), Source::Fallback(kind), "{effects:?}");
        }
    }

    #[test]
    fn a_window_is_whole_that_was_asked_for_or_drafted_ahead_to_its_end() {
        for (effects, tokens, ahead, ended) in [
            (asking(4), 4, false, true),
            (asking(0), 0, false, false),
            (hit(true), 5, true, true),
            (hit(false), 5, true, false),
        ] {
            let sought = Sought::after(&effects, None);
            let seen = (sought.tokens, sought.ahead, sought.ended);
            assert_eq!(seen, (tokens, ahead, ended), "{effects:?}");
        }
    }

    #[test]
    fn rounds_are_in_a_row_if_the_one_before_sought_something_too() {
        let mut before = None;
        for (lookahead, course, in_a_row) in [
            (0, Course::Anew, false),
            (4, Course::Anew, false),
            (4, Course::InARow, true),
            (0, Course::InARow, false),
            (4, Course::Anew, false),
        ] {
            let sought = Sought::after(&asking(lookahead), before);
            assert_eq!((sought.course, sought.is_in_a_row()), (course, in_a_row));
            before = Some(sought);
        }
    }
}
