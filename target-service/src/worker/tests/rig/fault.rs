//! What happens to messages on their way.

use std::{collections::BTreeMap, mem};

use foretoken_speculation::{
    Proposals, SessionId, TokenId,
    message::{Entries, Keyed as _, ToTarget, Window},
};

/// What happens to messages on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker::tests) enum Fault {
    None,
    /// Every so manieth message is lost, in both directions.
    Lose(usize),
    /// Every message to the target comes twice.
    Duplicate,
    /// Messages to the target come so many turns late.
    Delay(usize),
    /// Messages to the target come in reverse order of each delivery.
    Reverse,
    /// The endpoint says nothing at all.
    Silent,
    /// All proposed tokens are wrong but exist.
    Wrong,
    /// Proposed tokens do not exist.
    Foreign,
    /// What is proposed to one session was drafted for another.
    Exchange,
    /// Every session is refused, for now or for good.
    Refuse {
        retry: bool,
    },
    /// Nothing is drafted ahead for one session, and its windows come so many turns late.
    Lag(SessionId, usize),
}

impl Fault {
    /// All that can become of messages between a target and an endpoint that goes on.
    pub(in crate::worker::tests) const OF_MESSAGES: [Self; 10] = [
        Self::Lose(3),
        Self::Lose(7),
        Self::Duplicate,
        Self::Delay(1),
        Self::Delay(5),
        Self::Reverse,
        Self::Silent,
        Self::Wrong,
        Self::Foreign,
        Self::Exchange,
    ];

    /// Spoils what the endpoint says in one delivery.
    pub(super) fn spoil(self, answers: &mut Vec<ToTarget>) {
        match self {
            Self::Silent => answers.clear(),
            Self::Wrong => respell(answers, |token| TokenId((token.0 + 1) % 64)),
            Self::Foreign => respell(answers, |token| TokenId(token.0 + 64)),
            Self::Exchange => exchange(answers),
            Self::Lag(session, _) => answers.retain(|answer| {
                let is_ahead = matches!(answer, ToTarget::Entries(_));
                !is_ahead || answer.session() != session
            }),
            Self::None
            | Self::Lose(_)
            | Self::Duplicate
            | Self::Delay(_)
            | Self::Reverse
            | Self::Refuse { .. } => {}
        }
    }

    /// Turns by which an answer is late.
    pub(super) fn delay(self, answer: &ToTarget) -> usize {
        match (self, answer) {
            (Self::Delay(turns), _) => turns,
            (Self::Lag(session, turns), ToTarget::Window(window)) if window.session == session => {
                turns
            }
            _ => 0,
        }
    }

    /// What comes in the place of a delivery.
    pub(super) fn deliver(self, mut due: Vec<ToTarget>) -> Vec<ToTarget> {
        match self {
            Self::Duplicate => {
                let twice = due.into_iter().flat_map(|answer| [answer.clone(), answer]);
                twice.collect()
            }
            Self::Reverse => {
                due.reverse();
                due
            }
            _ => due,
        }
    }
}

/// Has all proposals made of other tokens. What is said to end goes on ending, and outcomes stay what
/// they are.
fn respell(answers: &mut [ToTarget], other: impl Fn(TokenId) -> TokenId) {
    for answer in answers {
        match answer {
            ToTarget::Window(Window { proposals, .. }) => {
                let tokens = proposals.tokens().iter().map(|&token| other(token));
                let (tokens, parents) = (tokens.collect(), proposals.parents());
                *proposals = Proposals::with_parents(tokens, parents).expect("is still a tree");
            }
            ToTarget::Entries(part) => {
                let own = part.tokens.iter_mut();
                let own = own.filter(|token| **token != Entries::ENDED);
                let sides = part.sides.iter_mut().map(|side| &mut side.token);
                own.chain(sides).for_each(|token| *token = other(*token));
            }
            _ => {}
        }
    }
}

/// Gives each session what was drafted for another, under its own name: of windows, and of columns of
/// continuations, the proposals go round.
fn exchange(answers: &mut [ToTarget]) {
    let mut windows = Vec::new();
    let mut columns = BTreeMap::<u32, Vec<&mut Entries>>::new();
    for answer in answers {
        match answer {
            ToTarget::Window(window) => windows.push(window),
            ToTarget::Entries(part) => columns.entry(part.before).or_default().push(part),
            _ => {}
        }
    }
    pass_on(&mut windows, |one, other| {
        mem::swap(&mut one.proposals, &mut other.proposals);
    });
    for parts in columns.values_mut() {
        pass_on(parts, |one, other| {
            mem::swap(&mut one.keys, &mut other.keys);
            mem::swap(&mut one.tokens, &mut other.tokens);
            mem::swap(&mut one.sides, &mut other.sides);
        });
    }
}

/// Gives each what the next one has, and the last what the first has.
fn pass_on<T>(all: &mut [&mut T], swap: impl Fn(&mut T, &mut T)) {
    for next in 1..all.len() {
        let (before, after) = all.split_at_mut(next);
        swap(before[next - 1], after[0]);
    }
}
