//! Verification by ratio: the law of what is emitted is the target's own, whatever becomes of
//! proposals on their way.

mod fallbacks;
mod samples;
mod trees;

use alloc::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    message::{SparseDistribution, TreeBudget},
    proposal,
    saguaro::Saguaro,
    sampling::{RankBy, Ranking},
    verify::{
        Coins, Drawn, DrawnTree, RatioRule, Verification, ratio_chain, ratio_tree,
        tests::Enumerator,
    },
};

const REJECTION: Verification = Verification::Rejection { support: 3 };

fn params() -> SamplingParams {
    SamplingParams {
        temperature: 1.3,
        top_k: 3,
        frequency_penalty: 0.5,
        ..SamplingParams::default()
    }
}

fn sampler(context: &[TokenId]) -> Sampler {
    Sampler::new(params(), Seed(0), context, prompt().len()).unwrap()
}

/// The target's law after `context`.
fn target_law(context: &[TokenId]) -> Vec<f64> {
    let mut p = Vec::new();
    sampler(context).distribution(&logits(context, 0.0), &mut Scratch::new(), &mut p);
    p
}

/// What a draft draws from after `context`, before it is lowered.
fn draft_law(context: &[TokenId]) -> SparseDistribution {
    draft_law_among(2, context)
}

/// The same among so many tokens.
fn draft_law_among(n: usize, context: &[TokenId]) -> SparseDistribution {
    let ranking = Ranking {
        by: RankBy::Likelihood,
        n,
        without: None,
    };
    let mut ranked = Vec::new();
    let row = logits(context, 1.5);
    sampler(context).rank(ranking, &row, &mut Scratch::new(), &mut ranked);
    proposal::law(&ranked)
}

/// Probability that the target itself emits `tokens` after `context`.
fn joint(context: &[TokenId], tokens: &[TokenId]) -> f64 {
    (0..tokens.len())
        .map(|i| target_law(&[context, &tokens[..i]].concat())[tokens[i].index()])
        .product()
}

/// A target in the state machine's hands, with every decision enumerated.
struct Play {
    session: TargetSession,
    /// Tokens that a round verifies at most.
    most: usize,
    saguaro: Saguaro,
    /// What there is for trees.
    tree: Option<TreeBudget>,
}

const RULE: RatioRule = RatioRule::Block;

impl Play {
    fn new(policy: Policy, saguaro: Saguaro) -> Self {
        let world = World::verifying(REJECTION, policy, params(), 0, Faults::default(), 0.0, 64);
        let mut session = world.target;
        session.handle(Duration::ZERO, Input::LinkUp);
        Self {
            session,
            most: 9,
            saguaro,
            tree: None,
        }
    }

    /// Draws a chain after the sequence and `more`.
    fn draw(&self, more: &[TokenId], n: usize, coins: &mut Enumerator) -> Window {
        let mut context = [self.session.tokens(), more].concat();
        let base_len = context.len();
        let (mut tokens, mut laws) = (Vec::new(), Vec::new());
        for _ in 0..n {
            let q = draft_law(&context);
            let mut lowered = q.clone();
            self.saguaro.apply(&mut lowered);
            let weights: Vec<f64> = lowered.entries.iter().map(|e| f64::from(e.1)).collect();
            let token = lowered.entries[coins.pick(&weights)].0;
            tokens.push(token);
            context.push(token);
            laws.push(q);
        }
        Window {
            session: SessionId(3),
            epoch: self.session.epoch(),
            round: Round(0),
            base_len: base_len as u32,
            proposals: tokens.into(),
            q: laws,
            saguaro: self.saguaro,
            place: None,
        }
    }

    fn receive(&mut self, message: &ToTarget) {
        self.session.handle(US, Input::Received(message));
    }

    /// Verifies what is to be verified; the tokens it comes to.
    fn verify(&mut self, now: Duration, coins: &mut Enumerator) -> Vec<TokenId> {
        let base = self.session.tokens().to_vec();
        let Next::Verify(window) = self.session.next(now) else {
            unreachable!("it waits")
        };
        let mut window = window.clone();
        window.truncate(self.most);
        let q = self.session.laws().lowered();
        let rows: Vec<_> = (0..=window.len() as u32)
            .map(|node| logits(&[&base[..], &window.spelled(node)].concat(), 0.0))
            .collect();
        let (mut sampler, scratch) = (sampler(&base), &mut Scratch::new());
        if !window.is_chain() {
            let (tree, q) = (&window, &q[..]);
            let row = |node: u32| &rows[node as usize][..];
            let drawn = DrawnTree { tree, q };
            let verdict = ratio_tree(&mut sampler, scratch, drawn, row, |_, _| {}, coins);
            return [window.spelled(verdict.node), vec![verdict.decided]].concat();
        }
        let window = window.tokens();
        let drawn = Drawn {
            window,
            q: &q[..q.len().min(window.len())],
        };
        let verdict = ratio_chain(RULE, &mut sampler, scratch, drawn, |i| &rows[i], coins);
        let mut tokens = window[..verdict.accepted].to_vec();
        tokens.push(verdict.decided);
        tokens
    }

    /// Tells the session what a verification came to.
    fn decide(&mut self, tokens: &[TokenId], local: &[TokenId]) {
        let fallback = (!local.is_empty()).then_some(Fallback::Local);
        self.fall_back(tokens, local, fallback);
    }

    /// The same, and what is to follow a miss.
    fn fall_back(&mut self, tokens: &[TokenId], local: &[TokenId], fallback: Option<Fallback>) {
        let verified = Verified {
            tokens,
            accepted: tokens.len() as u32 - 1,
            suggested: 2,
            local,
            fallback,
            tree: self.tree,
            saguaro: self.saguaro,
            ..Verified::default()
        };
        self.session.handle(US, Input::Verified(verified));
    }
}

/// Plays all ways that a few rounds can go; the law of what they emit has to be the target's.
fn assert_exact(name: &str, play: impl Fn(&mut Enumerator) -> Vec<TokenId>) {
    let (tokens, found, expected) = furthest(name, play);
    assert!(
        (found - expected).abs() < 1e-12,
        "{name}: {tokens:?} {found} {expected}"
    );
}

/// Plays all ways that a few rounds can go; the tokens whose probability is furthest from the
/// target's, and both.
fn furthest(
    name: &str,
    play: impl Fn(&mut Enumerator) -> Vec<TokenId>,
) -> (Vec<TokenId>, f64, f64) {
    let mut law: BTreeMap<Vec<TokenId>, f64> = BTreeMap::new();
    let mut coins = Enumerator::default();
    loop {
        let tokens = play(&mut coins);
        *law.entry(tokens).or_insert(0.0) += coins.probability();
        if !coins.advance() {
            break;
        }
    }
    // Of each sequence: what is emitted, and the target's own law where that ends.
    let longest = law.keys().map(Vec::len).max().unwrap_or(0);
    let prefixes: BTreeSet<Vec<TokenId>> = law
        .keys()
        .flat_map(|tokens| (1..=tokens.len()).map(|end| tokens[..end].to_vec()))
        .collect();
    assert!(law.len() > 3 && longest > 1, "{name}: {law:?}");
    let both = prefixes.into_iter().map(|tokens| {
        // It is emitted by what begins with it, or by what it begins with and the target goes on.
        let found: f64 = law
            .iter()
            .map(|(emitted, probability)| {
                if emitted.starts_with(&tokens) {
                    *probability
                } else if tokens.starts_with(emitted) {
                    let context = [&prompt()[..], emitted].concat();
                    probability * joint(&context, &tokens[emitted.len()..])
                } else {
                    0.0
                }
            })
            .sum();
        let expected = joint(&prompt(), &tokens);
        (tokens, found, expected)
    });
    let distance = |(_, found, expected): &(_, f64, f64)| (found - expected).abs();
    let furthest = both.max_by(|a, b| distance(a).total_cmp(&distance(b)));
    furthest.expect("something is emitted")
}

fn ahead(fallback: OnMiss) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(2),
        fallback,
        ..SsdOptions::default()
    })
}

const LOWERINGS: [(u32, u32); 3] = [(0, 0), (1, 7), (1, 20)];

fn lowerings() -> impl Iterator<Item = Saguaro> {
    LOWERINGS
        .into_iter()
        .map(|(fan_out, lost)| Saguaro::new(fan_out, lost))
}

#[test]
fn windows_that_are_waited_for_emit_the_targets_law() {
    for saguaro in lowerings() {
        for policy in [fixed(2), ahead(OnMiss::Remote)] {
            assert_exact("remote", |coins| {
                let mut play = Play::new(policy, saguaro);
                let first = play.verify(US, coins);
                play.decide(&first, &[]);
                let window = play.draw(&[], 2, coins);
                play.receive(&ToTarget::Window(Window {
                    round: Round(1),
                    ..window
                }));
                [first, play.verify(US, coins)].concat()
            });
        }
    }
}

#[test]
fn hits_emit_the_targets_law_and_misses_that_nothing_follows_too() {
    for saguaro in lowerings() {
        assert_exact("hit", |coins| {
            let mut play = Play::new(ahead(OnMiss::Nothing), saguaro);
            // Drafted before the verdict, for two of what it may be.
            for (at, key) in draft_law(&prompt()).entries.into_iter().enumerate() {
                let window = play.draw(&[key.0], 2, coins);
                if at > 0 {
                    continue;
                }
                play.receive(&ToTarget::Entries(Entries {
                    session: SessionId(3),
                    epoch: window.epoch,
                    base_len: prompt().len() as u32,
                    keys: vec![OutcomeKey {
                        accepted: 0,
                        token: key.0,
                    }],
                    tokens: window.proposals.tokens().to_vec(),
                    q: window.q,
                    saguaro,
                    ..Entries::default()
                }));
            }
            let first = play.verify(US, coins);
            play.decide(&first, &[]);
            [first, play.verify(US, coins)].concat()
        });
    }
}

#[test]
fn proposals_of_the_targets_host_count_as_certain_and_emit_its_law() {
    for local in [[3, 7], [0, 0], [11, 2]] {
        assert_exact("local", |coins| {
            let mut play = Play::new(ahead(OnMiss::Local), Saguaro::default());
            let first = play.verify(US, coins);
            play.decide(&first, &local.map(TokenId));
            assert!(play.session.laws().q.is_empty());
            [first, play.verify(US, coins)].concat()
        });
    }
}

#[test]
fn what_was_not_verified_of_a_window_is_as_good_as_new() {
    for saguaro in lowerings() {
        assert_exact("rest", |coins| {
            let mut play = Play::new(ahead(OnMiss::Remote), saguaro);
            let first = play.verify(US, coins);
            play.decide(&first, &[]);
            let window = play.draw(&[], 2, coins);
            play.receive(&ToTarget::Window(Window {
                round: Round(1),
                ..window
            }));
            // There is room for none of it, and for all of it then.
            play.most = 0;
            let second = play.verify(US, coins);
            play.decide(&second, &[]);
            play.most = 9;
            let third = match play.session.next(US) {
                Next::Verify(rest) => {
                    assert_eq!(rest.len(), 1, "the rest");
                    play.verify(US, coins)
                }
                Next::Wait { .. } | Next::Finished => Vec::new(),
            };
            [first, second, third].concat()
        });
    }
}

#[test]
fn windows_that_come_too_late_are_used_as_far_as_they_hold() {
    assert_exact("late", |coins| {
        let mut play = Play::new(ahead(OnMiss::Remote), Saguaro::default());
        let first = play.verify(US, coins);
        play.decide(&first, &[]);
        let window = play.draw(&[], 2, coins);
        // Patience is over, so the pass goes without; then it comes.
        let late = Duration::from_secs(9);
        let second = play.verify(late, coins);
        play.receive(&ToTarget::Window(Window {
            round: Round(1),
            ..window
        }));
        play.decide(&second, &[]);
        let third = match play.session.next(US) {
            Next::Verify(rest) if !rest.is_empty() => play.verify(US, coins),
            _ => Vec::new(),
        };
        [first, second, third].concat()
    });
}

#[test]
fn a_window_that_does_not_say_what_it_was_drawn_from_is_refused_and_nothing_else_happens() {
    let mut coins = Enumerator::default();
    let spoil: [fn(&mut Window); 3] = [
        |window| window.q.clear(),
        |window| drop(window.q.pop()),
        |window| window.q[1].entries = vec![(TokenId(11), 5), (TokenId(12), 5)],
    ];
    for spoil in spoil {
        let mut play = Play::new(fixed(2), Saguaro::default());
        let first = play.verify(US, &mut coins);
        play.decide(&first, &[]);
        let mut window = play.draw(&[], 2, &mut coins);
        window.round = Round(1);
        spoil(&mut window);
        let message = ToTarget::Window(window);
        let effects = play.session.handle(US, Input::Received(&message));
        assert!(matches!(effects.messages[..], [ToDraft::Close { .. }]));
        assert_eq!(play.session.next(US), Next::Verify(&Proposals::new()));
        assert_eq!(play.session.stats().unexplained, 1);
        assert!(!play.session.is_bound());
    }
}
