//! Where windows come from after verdicts, whether something was drafted for them or not: all ways that
//! it can go, with the target's law in the end.

use core::cell::Cell;

use super::*;

fn ssd(fallback: OnMiss, delivery: Delivery) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(2),
        fallback,
        delivery,
        ..SsdOptions::default()
    })
}

/// What a host may propose: what is likeliest to follow, and what was said first.
fn guess(context: &[TokenId]) -> [TokenId; 2] {
    let law = target_law(context);
    let tokens = 0..law.len();
    let likeliest = tokens.max_by(|&a, &b| law[a].total_cmp(&law[b]));
    [TokenId(likeliest.unwrap() as u32), context[0]]
}

impl Play {
    /// Without any endpoint.
    fn alone(policy: Policy) -> Self {
        let mut play = Self::new(policy, Saguaro::default());
        play.session.handle(US, Input::LinkDown);
        play
    }

    /// Decides, with proposals of the host on offer.
    fn offer(&mut self, tokens: &[TokenId], fallback: Option<Fallback>) {
        let local = guess(&[self.session.tokens(), tokens].concat());
        self.fall_back(tokens, &local, fallback);
    }

    /// Answers what was asked for.
    fn answer(&mut self, round: u32, place: Option<u32>, window: Window) {
        self.receive(&ToTarget::Window(Window {
            round: Round(round),
            place,
            ..window
        }));
    }

    /// What is verified next, if anything is without waiting.
    fn proposed(&self) -> Vec<TokenId> {
        self.session.window().tokens().to_vec()
    }
}

/// A round of a window of one token, for whose likeliest verdicts something is drafted meanwhile: the
/// one if the token is turned down, the other if it is accepted. Then the round after that.
fn drafted_ahead(
    (policy, saguaro): (Policy, Saguaro),
    stats: &Cell<(u32, u32)>,
    coins: &mut Enumerator,
) -> Vec<TokenId> {
    let mut play = Play::new(policy, saguaro);
    let first = play.verify(US, coins);
    play.decide(&first, &[]);
    let window = play.draw(&[], 1, coins);
    let x = window.proposals.tokens()[0];
    play.answer(1, None, window);
    let after = |more: &[TokenId]| [play.session.tokens(), more].concat();
    let likely = |context: &[TokenId], but: Option<TokenId>| {
        let law = draft_law(context).entries;
        let found = law.into_iter().find(|entry| Some(entry.0) != but);
        found.unwrap().0
    };
    let verdicts = [
        vec![likely(&after(&[]), Some(x))],
        vec![x, likely(&after(&[x]), None)],
    ];
    let drafted = verdicts.clone().map(|v| play.draw(&v, 1, coins));
    let Policy::Ssd(options) = policy else {
        unreachable!("it drafts ahead")
    };
    if options.delivery == Delivery::Push {
        play.receive(&ToTarget::Entries(Entries {
            session: SessionId(3),
            epoch: play.session.epoch(),
            round: Round(1),
            base_len: play.session.tokens().len() as u32,
            keys: (0..2).zip(&verdicts).map(key).collect(),
            tokens: drafted.iter().map(|w| w.proposals.tokens()[0]).collect(),
            q: drafted.iter().map(|w| w.q[0].clone()).collect(),
            saguaro,
            ..Entries::default()
        }));
    }
    let second = play.verify(US, coins);
    play.decide(&second, &[]);
    match verdicts.iter().position(|verdict| *verdict == second) {
        Some(place) if options.delivery == Delivery::Pull => {
            play.answer(2, Some(place as u32), drafted[place].clone());
        }
        Some(_) => {}
        None => {
            let window = play.draw(&[], 1, coins);
            play.answer(2, None, window);
        }
    }
    let third = play.verify(US, coins);
    let (hits, misses) = stats.get();
    let ahead = play.session.stats().ahead;
    stats.set((hits + ahead.hits, misses + ahead.misses));
    [first, second, third].concat()
}

fn key((accepted, verdict): (u32, &Vec<TokenId>)) -> OutcomeKey {
    OutcomeKey {
        accepted,
        token: verdict[accepted as usize],
    }
}

/// That rounds under `policy` emit the target's law, whether what was drafted is used or not.
fn assert_drafted_ahead_exact(name: &str, policy: Policy) {
    for saguaro in lowerings() {
        let stats = Cell::new((0, 0));
        assert_exact(name, |coins| {
            drafted_ahead((policy, saguaro), &stats, coins)
        });
        let (hits, misses) = stats.get();
        assert!(hits > 20 && misses > 20, "{name}: {hits} {misses}");
    }
}

#[test]
fn windows_that_are_pulled_emit_the_targets_law_wherever_they_were_drafted() {
    for fallback in [OnMiss::Auto, OnMiss::Remote] {
        assert_drafted_ahead_exact("pulled", ssd(fallback, Delivery::Pull));
    }
}

#[test]
fn what_was_drafted_for_verdicts_on_a_window_emits_the_targets_law() {
    assert_drafted_ahead_exact("pushed", ssd(OnMiss::Remote, Delivery::Push));
}

#[test]
fn without_any_endpoint_what_the_host_proposes_emits_the_targets_law() {
    for policy in [
        fixed(2),
        ahead(OnMiss::Nothing),
        ahead(OnMiss::Remote),
        ahead(OnMiss::Auto),
    ] {
        assert_exact("alone", |coins| {
            let mut play = Play::alone(policy);
            let mut emitted = play.verify(US, coins);
            play.offer(&emitted, None);
            for _ in 0..2 {
                assert_eq!(play.proposed(), guess(play.session.tokens()));
                let tokens = play.verify(US, coins);
                play.offer(&tokens, None);
                emitted.extend(tokens);
            }
            emitted
        });
    }
}

#[test]
fn what_the_host_proposes_in_place_of_a_lost_endpoint_emits_the_targets_law() {
    for policy in [fixed(2), ahead(OnMiss::Remote)] {
        assert_exact("lost", |coins| {
            let mut play = Play::new(policy, Saguaro::default());
            let first = play.verify(US, coins);
            play.offer(&first, None);
            let window = play.draw(&[], 2, coins);
            play.answer(1, None, window);
            assert_eq!(play.proposed().len(), 2);
            // It is lost with the endpoint.
            play.session.handle(US, Input::LinkDown);
            let second = play.verify(US, coins);
            assert_eq!(second.len(), 1);
            play.offer(&second, None);
            assert_eq!(play.proposed(), guess(play.session.tokens()));
            [first, second, play.verify(US, coins)].concat()
        });
    }
}

#[test]
fn what_the_host_proposes_while_an_endpoint_is_silent_emits_the_targets_law() {
    for policy in [fixed(2), ahead(OnMiss::Remote)] {
        assert_exact("silent", |coins| {
            let mut play = Play::new(policy, Saguaro::default());
            let mut emitted = Vec::new();
            // Two windows are waited for in vain.
            for _ in 0..3 {
                let tokens = play.verify(Duration::from_secs(9), coins);
                assert_eq!(tokens.len(), 1);
                play.offer(&tokens, None);
                emitted.extend(tokens);
            }
            assert_eq!(play.session.stats().missed, 2);
            assert_eq!(play.proposed(), guess(play.session.tokens()));
            [emitted, play.verify(US, coins)].concat()
        });
    }
}

/// A round after a miss whose fallback `choose` finds, given the verdict and a window on its way.
fn chosen(
    rule: OnMiss,
    coins: &mut Enumerator,
    choose: impl Fn(&[TokenId], &Window) -> Fallback,
) -> Vec<TokenId> {
    let mut play = Play::new(ahead(rule), Saguaro::default());
    let first = play.verify(US, coins);
    let window = play.draw(&first, 2, coins);
    let fallback = choose(&first, &window);
    play.offer(&first, Some(fallback));
    if fallback == Fallback::Remote {
        play.answer(1, None, window);
    }
    let second = play.verify(US, coins);
    let ahead = play.session.stats().ahead;
    assert_eq!(ahead.alone + ahead.local + ahead.remote, 1);
    [first, second].concat()
}

const ALL: [Fallback; 3] = [Fallback::Nothing, Fallback::Local, Fallback::Remote];

#[test]
fn fallbacks_that_are_chosen_by_what_was_said_emit_the_targets_law() {
    for rule in [OnMiss::Auto, OnMiss::LockStep] {
        for turn in 0..3 {
            let taken = Cell::new([false; 3]);
            assert_exact("chosen", |coins| {
                chosen(rule, coins, |first, _| {
                    let law = target_law(&prompt());
                    let rank = law.iter().filter(|&&p| p > law[first[0].index()]).count();
                    let choice = (rank + turn) % 3;
                    let mut all = taken.get();
                    all[choice] = true;
                    taken.set(all);
                    ALL[choice]
                })
            });
            assert_eq!(taken.get(), [true; 3]);
        }
    }
}

#[test]
fn it_shows_if_a_fallback_is_chosen_by_what_was_drawn() {
    for other in [Fallback::Nothing, Fallback::Local] {
        let (tokens, found, expected) = furthest("by what was drawn", |coins| {
            chosen(OnMiss::Auto, coins, |first, window| {
                let law = draft_law(&[&prompt()[..], first].concat());
                let first_of_two = window.proposals.tokens()[0] == law.entries[0].0;
                if first_of_two {
                    Fallback::Remote
                } else {
                    other
                }
            })
        });
        let off = (found - expected).abs();
        assert!(off > 0.01, "it passes: {tokens:?} {found} {expected}");
    }
}
