//! Windows and continuations that are a spine and tokens beside it.

use super::*;
use crate::message::Side;

/// Tokens that are drawn among.
const SUPPORT: usize = 3;

/// A target that may be sent trees of up to five proposals.
fn wooded(policy: Policy, saguaro: Saguaro) -> Play {
    let mut play = Play::new(policy, saguaro);
    play.tree = Some(TreeBudget::new(5, 0.0));
    play
}

/// What an endpoint drew after a context: a spine of two tokens, and beside each what `wanted` says,
/// given the token.
struct Grown {
    spine: Vec<TokenId>,
    sides: Vec<Side>,
    q: Vec<SparseDistribution>,
}

fn grow(
    play: &Play,
    more: &[TokenId],
    coins: &mut Enumerator,
    wanted: fn(TokenId) -> usize,
) -> Grown {
    let mut context = [play.session.tokens(), more].concat();
    let (mut spine, mut sides, mut q) = (Vec::new(), Vec::new(), Vec::new());
    for after in 0..2 {
        let law = draft_law_among(SUPPORT, &context);
        let mut left = law.clone();
        play.saguaro.apply(&mut left);
        let mut draw = || {
            let weights: Vec<f64> = left.entries.iter().map(|e| f64::from(e.1)).collect();
            left.entries.remove(coins.pick(&weights)).0
        };
        let own = draw();
        let others = wanted(own).min(law.entries.len() - 1);
        sides.extend((0..others).map(|_| Side {
            entry: 0,
            after,
            token: draw(),
        }));
        spine.push(own);
        context.push(own);
        q.push(law);
    }
    Grown { spine, sides, q }
}

/// The window of round 1.
fn window(play: &Play, coins: &mut Enumerator, wanted: fn(TokenId) -> usize) -> Window {
    let Grown { spine, sides, q } = grow(play, &[], coins, wanted);
    let beside = |depth| {
        let here = sides
            .iter()
            .filter(move |side| side.after as usize == depth);
        here.map(|side| side.token)
    };
    Window {
        session: SessionId(3),
        epoch: play.session.epoch(),
        round: Round(1),
        base_len: play.session.tokens().len() as u32,
        proposals: Proposals::with_sides(spine, beside),
        q,
        saguaro: play.saguaro,
        place: None,
    }
}

const WANTED: [fn(TokenId) -> usize; 2] = [|_| 1, |own| own.0 as usize % 3];

/// Lowered, but so that three tokens are left to draw among.
fn lowerings() -> [Saguaro; 2] {
    [Saguaro::default(), Saguaro::new(1, 7)]
}

#[test]
fn trees_that_are_waited_for_emit_the_targets_law() {
    for (saguaro, wanted) in lowerings().into_iter().zip(WANTED) {
        for (policy, most) in [(fixed(2), 9), (ahead(OnMiss::Remote), 9), (fixed(2), 2)] {
            assert_exact("tree", |coins| {
                let mut play = wooded(policy, saguaro);
                let first = play.verify(US, coins);
                play.decide(&first, &[]);
                let window = window(&play, coins, wanted);
                play.receive(&ToTarget::Window(window));
                // There may be room for a part of it.
                play.most = most;
                [first, play.verify(US, coins)].concat()
            });
        }
    }
}

#[test]
fn what_was_not_verified_of_a_tree_is_as_good_as_new() {
    for most in [0, 1, 3] {
        assert_exact("rest", |coins| {
            let mut play = wooded(ahead(OnMiss::Remote), Saguaro::default());
            let first = play.verify(US, coins);
            play.decide(&first, &[]);
            let window = window(&play, coins, |_| 1);
            play.receive(&ToTarget::Window(window));
            play.most = most;
            let second = play.verify(US, coins);
            play.decide(&second, &[]);
            play.most = 9;
            let third = match play.session.next(US) {
                Next::Verify(rest) if !rest.is_empty() => play.verify(US, coins),
                _ => Vec::new(),
            };
            [first, second, third].concat()
        });
    }
}

#[test]
fn hits_on_trees_emit_the_targets_law() {
    for (saguaro, wanted) in lowerings().into_iter().zip(WANTED) {
        let trees = core::cell::Cell::new(0);
        assert_exact("hit", |coins| {
            let mut play = wooded(ahead(OnMiss::Nothing), saguaro);
            let first = play.verify(US, coins);
            play.decide(&first, &[]);
            // Nothing is under verification now, and the endpoint drafts for one of what it may
            // come to.
            let base = play.session.tokens().to_vec();
            let key = draft_law(&base).entries[0].0;
            let Grown { spine, sides, q } = grow(&play, &[key], coins, wanted);
            play.receive(&ToTarget::Entries(Entries {
                session: SessionId(3),
                epoch: play.session.epoch(),
                round: Round(1),
                base_len: base.len() as u32,
                keys: vec![OutcomeKey {
                    accepted: 0,
                    token: key,
                }],
                tokens: spine,
                sides,
                q,
                saguaro,
                ..Entries::default()
            }));
            let second = play.verify(US, coins);
            play.decide(&second, &[]);
            if let Next::Verify(window) = play.session.next(US) {
                trees.set(trees.get() + u32::from(!window.is_chain()));
            }
            [first, second, play.verify(US, coins)].concat()
        });
        assert!(trees.get() > 10);
    }
}

/// A token that is never drawn from this.
fn never(q: &SparseDistribution) -> TokenId {
    let mut tokens = (0..VOCAB).map(TokenId);
    let found = tokens.find(|&token| q.weight(token) == 0);
    found.expect("some token is not drawn among")
}

#[test]
fn tokens_beside_a_spine_that_cannot_have_been_drawn_there_are_refused() {
    let mut coins = Enumerator::default();
    let spoil: [fn(&mut Window); 4] = [
        // Never drawn there.
        |window| {
            window.proposals.push(0, never(&window.q[0])).unwrap();
        },
        // After one beside the spine: nobody says what it was drawn from.
        |window| {
            window.proposals.push(2, never(&window.q[0])).unwrap();
        },
        |window| drop(window.q.pop()),
        |window| window.q.push(window.q[0].clone()),
    ];
    for spoil in spoil {
        let mut play = wooded(fixed(2), Saguaro::default());
        let first = play.verify(US, &mut coins);
        play.decide(&first, &[]);
        let mut window = window(&play, &mut coins, |_| 1);
        let whole = ToTarget::Window(window.clone());
        spoil(&mut window);
        assert_ne!(ToTarget::Window(window.clone()), whole);
        let message = ToTarget::Window(window);
        let effects = play.session.handle(US, Input::Received(&message));
        assert!(matches!(effects.messages[..], [ToDraft::Close { .. }]));
        assert_eq!(play.session.next(US), Next::Verify(&Proposals::new()));
        assert_eq!(play.session.stats().unexplained, 1);
    }
}

#[test]
fn continuations_with_tokens_beside_them_that_cannot_have_been_drawn_there_are_dropped() {
    let spoil: [fn(&mut Side, TokenId); 3] = [
        |_, _| (),
        |side, never| side.token = never,
        |side, _| side.after = 2,
    ];
    for (at, spoil) in spoil.into_iter().enumerate() {
        let mut coins = Enumerator::default();
        let mut play = wooded(ahead(OnMiss::Nothing), Saguaro::default());
        let first = play.verify(US, &mut coins);
        play.decide(&first, &[]);
        let key = TokenId(5);
        let Grown {
            spine,
            mut sides,
            q,
        } = grow(&play, &[key], &mut coins, |_| 1);
        spoil(&mut sides[0], never(&q[0]));
        play.receive(&ToTarget::Entries(Entries {
            session: SessionId(3),
            epoch: play.session.epoch(),
            round: Round(1),
            base_len: play.session.tokens().len() as u32,
            keys: vec![OutcomeKey {
                accepted: 0,
                token: key,
            }],
            tokens: spine,
            sides,
            q,
            ..Entries::default()
        }));
        let cached = play.session.cached();
        assert_eq!(cached, if at == 0 { 4 } else { 0 });
    }
}

#[test]
fn with_rows_for_nothing_drawn_trees_are_accepted_further_than_chains() {
    for policy in [fixed(4), ahead(OnMiss::Remote)] {
        let played = |likely: Option<f64>| -> (u32, usize) {
            let worlds = (0..60).map(|seed| {
                let (params, faults) = (sampling(1.0), Faults::default());
                let support = Verification::Rejection { support: 16 };
                let mut world = World::verifying(support, policy, params, seed, faults, 1.5, 64);
                world.tree = likely.map(|likely| TreeBudget::new(14, likely));
                world.run();
                assert!(world.trees.iter().all(|&(_, nodes)| nodes <= 14));
                (world.target.stats().rounds, world.trees.len())
            });
            worlds.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let (with, trees) = played(Some(0.0005));
        let (without, none) = played(None);
        assert!(trees > 200 && none == 0, "{trees} {none}");
        assert!(
            with * 100 < without * 97,
            "{with} rounds, {without} without"
        );
    }
}
