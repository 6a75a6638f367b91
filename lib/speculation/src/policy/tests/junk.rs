//! Messages that make no sense, or come at the wrong time.

use proptest::prelude::*;

use super::*;
use crate::{
    message::{Cutoffs, Rise, Side, TreeBudget},
    policy::draft::ForkFeed,
    saguaro::Saguaro,
};

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..VOCAB + 1, 0..6)
}

fn any_to_draft() -> impl Strategy<Value = ToDraft> {
    prop_oneof![
        (0..5_u32, tokens()).prop_map(|(epoch, tokens)| open(epoch, &tokens)),
        (0..5_u32, 0..4_u32, 0..12_u32, tokens(), 0..5_u32)
            .prop_map(|(epoch, round, base, tokens, k)| outcome(epoch, round, base, &tokens, k)),
        (0..5_u32, tokens(), 0..9_u32, any::<bool>()).prop_map(|(epoch, tokens, k, pull)| {
            let delivery = if pull { Delivery::Pull } else { Delivery::Push };
            match open(epoch, &tokens) {
                ToDraft::Open(open) => ToDraft::Open(Open {
                    branching: Some(Branching {
                        lookahead: k,
                        branches: 2 * k,
                        fan_out: FanOut::Learned,
                        delivery,
                    }),
                    ..open
                }),
                other => other,
            }
        }),
        (0..5_u32, 0..4_u32, 0..12_u32, tokens(), tokens(), 0..5_u32).prop_map(
            |(epoch, round, base, tokens, window, k)| {
                match outcome(epoch, round, base, &tokens, k) {
                    ToDraft::Outcome(outcome) => ToDraft::Outcome(Outcome {
                        // A tree for every second length, asked for now and then.
                        verifying: Some(star(&window, window.len() % 2 == 0)),
                        branches: 3 * k,
                        tree: (k > 2).then(|| TreeBudget::new(9, 0.001)),
                        cutoffs: cutoffs(epoch),
                        ..outcome
                    }),
                    other => other,
                }
            }
        ),
        (0..5_u32).prop_map(|e| ToDraft::Close {
            session: SessionId(3),
            epoch: Epoch(e)
        }),
    ]
}

fn any_to_target() -> impl Strategy<Value = ToTarget> {
    let session = SessionId(3);
    prop_oneof![
        (0..4_u32).prop_map(move |e| ToTarget::Opened {
            session,
            epoch: Epoch(e)
        }),
        (0..4_u32, any::<bool>()).prop_map(move |(e, retry)| {
            let reason = std::string::String::new();
            ToTarget::Refused {
                session,
                epoch: Epoch(e),
                reason,
                retry,
            }
        }),
        (0..4_u32, 0..6_u32, 9..20_u32, tokens()).prop_map(|(epoch, round, base, tokens)| {
            match window(epoch, round, base, &tokens) {
                ToTarget::Window(window) => ToTarget::Window(Window {
                    proposals: star(&tokens, base % 2 == 0),
                    ..window
                }),
                other => other,
            }
        }),
        (0..4_u32, 0..6_u32, 9..20_u32, 0..4_u32, tokens(), tokens()).prop_map(
            move |(epoch, round, base_len, before, keys, tokens)| {
                let side = |(i, &token): (usize, &u32)| Side {
                    entry: i as u32,
                    after: token % 3,
                    token: TokenId(token),
                };
                let sides: Vec<_> = keys.iter().enumerate().map(side).collect();
                ToTarget::Entries(Entries {
                    session,
                    epoch: Epoch(epoch),
                    round: Round(round),
                    base_len,
                    late: epoch % 2 == 1,
                    before,
                    keys: keys
                        .into_iter()
                        .map(|token| OutcomeKey {
                            accepted: base_len % 3,
                            token: TokenId(token),
                        })
                        .collect(),
                    // Every other number that is no token ends a continuation.
                    tokens: tokens
                        .into_iter()
                        .map(|token| match token {
                            VOCAB if base_len % 2 == 0 => Entries::ENDED,
                            token => TokenId(token),
                        })
                        .collect(),
                    sides,
                    ..Entries::default()
                })
            }
        ),
        (0..4_u32).prop_map(move |e| ToTarget::Resync(Resync {
            session,
            epoch: Epoch(e),
            have_len: 0
        })),
    ]
}

/// Some for every number.
fn cutoffs(number: u32) -> Cutoffs {
    let [window, entries, parts] =
        [3000, u32::MAX / 4, u32::MAX / 2].map(|factor| number.wrapping_mul(factor));
    let rise = Rise {
        after: number % 5,
        parts,
    };
    Cutoffs {
        window,
        entries,
        rise,
    }
}

/// A chain, or as much of a tree as these tokens can be, two under each node.
fn star(window: &[u32], tree: bool) -> Proposals {
    let mut proposals = Proposals::new();
    for (i, &token) in (0..).zip(window) {
        let parent = if tree { i / 2 } else { proposals.len() as u32 };
        proposals.push(parent, TokenId(token)).ok();
    }
    proposals
}

#[derive(Clone, Debug)]
enum Poke {
    LinkUp,
    LinkDown,
    Received(ToTarget),
    Verified(Vec<u32>, u32, u32, bool),
    Next,
}

fn any_poke() -> impl Strategy<Value = Poke> {
    prop_oneof![
        Just(Poke::LinkUp),
        Just(Poke::LinkDown),
        any_to_target().prop_map(Poke::Received),
        any_to_target().prop_map(Poke::Received),
        (
            tokens(),
            any::<u32>(),
            any::<u32>(),
            prop::bool::weighted(0.02)
        )
            .prop_map(|(t, a, k, last)| Poke::Verified(t, a % 8, k, last)),
        Just(Poke::Next),
        Just(Poke::Next),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_draft_session_takes_any_messages_in_any_order(
        messages in prop::collection::vec((any_to_draft(), 0..3_u8), 0..40),
    ) {
        let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 10), Scratch::new());
        let row = [0.0; VOCAB as usize];
        let mut planners = Planners::default();
        let mut held = 0;
        for (message, steps) in &messages {
            let mut pending = None;
            for _ in 0..*steps {
                let work = draft.work();
                let Some(work) = work else { break };
                prop_assert!(work.keep <= held, "keeps KV that was never written");
                prop_assert!(!work.tokens.is_empty() && work.keep + work.tokens.len() <= 10);
                let fed = 1 + usize::from(*steps) % work.tokens.len();
                // A tail is no part of what is held.
                held = work.keep + if work.parents.is_some() { 0 } else { fed };
                pending = Some((work.ticket, fed));
            }
            draft.handle(message);
            if let Some((ticket, fed)) = pending {
                // As many rows as were wanted, or not.
                let rows = vec![&row[..]; fed];
                draft.stepped(ticket, fed, &rows, &mut scratch);
            }
            draft.plan(&mut planners);
            if let Some(work) = draft.branches() {
                let (ticket, rows) = (work.ticket, work.rows());
                let trunk = |fork: ForkFeed<'_>| fork.trunk_len as usize - fork.path.len();
                prop_assert!(work.forks().all(|fork| trunk(fork) <= held));
                let rows = vec![&row[..]; rows - usize::from(*steps == 2)];
                draft.branched(ticket, &rows, &mut scratch);
            }
            prop_assert!(draft.tokens().iter().all(|token| token.0 < VOCAB));
        }
    }

    #[test]
    fn a_target_session_takes_any_inputs_in_any_order(
        pokes in prop::collection::vec((any_poke(), 0..4000_u32), 0..60),
        ahead in any::<bool>(),
    ) {
        let mut target = if ahead {
            let policy = Policy::Ssd(SsdOptions {
                lookahead: Lookahead::Fixed(3),
                budget: 4,
                ..SsdOptions::default()
            });
            let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, 64);
            world.target.handle(Duration::ZERO, Input::LinkUp);
            world.target
        } else {
            open_target().0
        };
        let mut now = Duration::ZERO;
        let mut emitted = 0;
        for (poke, later) in &pokes {
            now += US * *later;
            let before = target.tokens().len();
            match poke {
                Poke::LinkUp => { target.handle(now, Input::LinkUp); }
                Poke::LinkDown => { target.handle(now, Input::LinkDown); }
                Poke::Received(message) => { target.handle(now, Input::Received(message)); }
                Poke::Verified(tokens, accepted, suggested, last) => {
                    let tokens: Vec<_> = tokens.iter().map(|&t| TokenId(t)).collect();
                    let (accepted, suggested, last) = (*accepted, *suggested, *last);
                    let local = &tokens[..tokens.len() / 2];
                    let chosen = [Fallback::Nothing, Fallback::Local, Fallback::Remote];
                    let fallback = chosen.get(suggested as usize % 4).copied();
                    let tree = suggested.is_multiple_of(3).then(|| TreeBudget::new(7, 0.01));
                    let saguaro = Saguaro::new(suggested, accepted);
                    let lingered = US * suggested;
                    let result = Verified {
                        tokens: &tokens, accepted, suggested, last, local, fallback, tree, saguaro, lingered,
                        had: Some(suggested),
                        refrains: suggested % 5 == 4,
                        cutoffs: cutoffs(suggested),
                    };
                    let drafted = target.drafted(&result);
                    prop_assert!(drafted.is_none_or(|own| own.tokens > 0 && own.tokens <= 3));
                    target.handle(now, Input::Verified(result));
                }
                Poke::Next => {
                    if let Next::Verify(window) = target.next(now) {
                        prop_assert!(window.tokens().iter().all(|token| token.0 < VOCAB));
                        prop_assert!(window.height() <= 3 && window.len() <= 7 && before + window.len() < 64);
                    }
                }
            }
            prop_assert!(target.cached() <= 4 * 3);
            // Only a verdict changes the sequence.
            emitted += target.tokens().len() - before;
            prop_assert!(emitted == target.stats().emitted as usize);
        }
    }
}
