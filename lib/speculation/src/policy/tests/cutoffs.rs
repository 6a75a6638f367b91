//! Windows and continuations that end where the next token is not worth its time.

use super::{
    branches::{Bench, branching, counting, open_with, verifying},
    *,
};
use crate::{
    message::{Cutoffs, Rise},
    verify::Verification,
};

fn cutoffs(window: f64, entries: f64) -> Cutoffs {
    Cutoffs::new(window, entries, Rise::default())
}

fn ssd(delivery: Delivery) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(6),
        budget: 12,
        delivery,
        ..SsdOptions::default()
    })
}

fn play(policy: Policy, seed: u64, faults: Faults, blur: f32, cutoffs: Cutoffs) -> World {
    let params = demanding([0.0, 0.7, 1.0][seed as usize % 3]);
    let prepare = |world: &mut World| world.cutoffs = cutoffs;
    played(policy, params, seed, faults, blur, prepare).0
}

#[test]
fn what_ends_early_changes_no_token_whatever_becomes_of_messages_and_endpoints() {
    for policy in [fixed(6), ssd(Delivery::Push), ssd(Delivery::Pull)] {
        for faults in [Faults::default(), Faults::ALL] {
            for seed in 0..12 {
                let cutoff = 0.1 * (1 + seed % 9) as f64;
                let rise = Rise::new(seed as u32 % 5, 0.3);
                play(
                    policy,
                    seed,
                    faults,
                    1.5,
                    Cutoffs::new(cutoff, cutoff, rise),
                );
            }
        }
    }
}

#[test]
fn less_is_verified_and_nearly_as_much_accepted() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let sum = |cutoffs| {
            let stats = (0..12).map(|seed| {
                let world = play(policy, seed, Faults::default(), 1.5, cutoffs);
                let stats = world.target.stats();
                (stats.drafted, stats.accepted)
            });
            stats.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let (all, accepted) = sum(Cutoffs::default());
        let (some, kept) = sum(cutoffs(0.3, 0.3));
        assert!(some * 10 < all * 8, "{policy:?}: {some} of {all} drafted");
        // What is left out is accepted less often than what is not.
        let (left_out, missed) = (all - some, accepted.saturating_sub(kept));
        assert!(
            missed * some < left_out * kept / 2,
            "{policy:?}: {kept} of {some}, {accepted} of {all}"
        );
    }
}

#[test]
fn a_draft_that_is_always_right_comes_to_make_whole_windows() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let world = play(policy, 0, Faults::default(), 0.0, cutoffs(0.5, 0.5));
        let stats = world.target.stats();
        assert!(stats.drafted > 5 * stats.rounds, "{policy:?}: {stats:?}");
    }
}

#[test]
fn however_unlikely_tokens_are_one_is_proposed() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let stats = play(policy, 0, Faults::default(), 2.0, cutoffs(1.0, 1.0))
            .target
            .stats();
        assert!(stats.drafted > stats.rounds / 2, "{policy:?}: {stats:?}");
        assert!(stats.drafted <= stats.rounds + 6, "{policy:?}: {stats:?}");
    }
}

#[test]
fn proposals_that_are_drawn_are_asked_for_whole() {
    let support = Verification::Rejection { support: 8 };
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let faults = Faults::default();
        let mut world = World::verifying(support, policy, sampling(1.0), 1, faults, 1.5, 120);
        world.cutoffs = cutoffs(1.0, 1.0);
        world.run();
        let stats = world.target.stats();
        assert!(stats.drafted > 3 * stats.rounds, "{policy:?}: {stats:?}");
    }
}

#[test]
fn a_target_says_where_proposals_end_unless_they_are_drawn() {
    let given = cutoffs(0.5, 0.25);
    let support = Verification::Rejection { support: 8 };
    for (verification, expected) in [
        (Verification::Coupled, given),
        (support, Cutoffs::default()),
    ] {
        let faults = Faults::default();
        let mut world = World::verifying(verification, fixed(3), sampling(1.0), 1, faults, 0.0, 64);
        world.target.handle(Duration::ZERO, Input::LinkUp);
        world.target.next(US);
        let verdict = Verified {
            tokens: &[TokenId(5)],
            cutoffs: given,
            ..Verified::default()
        };
        let effects = world.target.handle(US, Input::Verified(verdict));
        let [ToDraft::Outcome(told)] = &effects.messages[..] else {
            unreachable!("{effects:?}");
        };
        assert_eq!(told.cutoffs, expected);
    }
}

/// A draft that is sure of what follows an even token, and not whether an odd one is followed by the
/// next one or the one after that.
fn hesitating(context: &[TokenId]) -> Vec<f32> {
    let mut row = counting(context);
    let last = context.last().map_or(0, |token| token.0);
    let (step, score) = if last.is_multiple_of(2) {
        (1, 20.0)
    } else {
        (2, -0.01)
    };
    row[((last + step) % VOCAB) as usize] = score;
    row
}

#[test]
fn continuations_end_before_unlikely_tokens() {
    // An odd token is followed by the next one every other time.
    let truth = |last: u32, position: u32| {
        let skips = last % 2 == 1 && philox([position, 0, 0, 0], [4, 2])[0] < u32::MAX / 2;
        (last + 1 + u32::from(skips)) % VOCAB
    };
    let mut bench = Bench::new(4096);
    bench.language = hesitating;
    bench.draft.handle(&open_with(1, &[1, 2], branching(6, 4)));
    let (mut base, mut last) = (2, 2);
    let (mut window, mut parts) = (vec![], vec![]);
    for round in 0..400 {
        parts = bench.parts();
        let mut emitted = vec![];
        loop {
            last = truth(last, base);
            emitted.push(last);
            base += 1;
            if window.get(emitted.len() - 1) != Some(&last) {
                break;
            }
        }
        window = vec![(last + 1) % VOCAB, (last + 2) % VOCAB];
        let before = base - emitted.len() as u32;
        let ToDraft::Outcome(told) = verifying(round, before, &emitted, &window, 6) else {
            unreachable!();
        };
        let cutoffs = cutoffs(0.0, 0.4);
        let told = Outcome { cutoffs, ..told };
        bench.draft.handle(&ToDraft::Outcome(told));
    }
    // After an even token one that is sure and one that is not, and another that is sure; after an odd
    // one the last two of these.
    assert_eq!(lengths(&parts), [2, 3]);
    // The column in which the last one ends is the last.
    assert_eq!(parts.len(), 4);
    // What is known of ends is planned with where continuations end, and nowhere else.
    let mut next = |cutoffs, round: u32| {
        let ToDraft::Outcome(told) = verifying(round, base + round - 400, &[1], &[2], 6) else {
            unreachable!();
        };
        bench
            .draft
            .handle(&ToDraft::Outcome(Outcome { cutoffs, ..told }));
        let parts = bench.parts();
        (parts, bench.draft.goes_on())
    };
    assert!(next(cutoffs(0.0, 0.4), 400).1 < 0.8);
    assert!(next(cutoffs(0.0, 0.0), 401).1 >= 1.0);
    // Tokens after two others have to be likelier.
    let (parts, goes_on) = next(Cutoffs::new(0.0, 0.4, Rise::new(2, 0.2)), 402);
    assert_eq!(lengths(&parts), [2, 2]);
    assert!(goes_on < 0.8);
}

/// Tokens of continuations after an odd token, and after an even one; there are both.
fn lengths(parts: &[Entries]) -> [usize; 2] {
    let mut lengths = [Vec::new(), Vec::new()];
    for (place, key) in parts[0].keys.iter().enumerate() {
        let tokens = parts.iter().map_while(|part| part.tokens.get(place));
        let tokens = tokens.take_while(|&&token| token != Entries::ENDED);
        lengths[usize::from(key.token.0 % 2 == 0)].push(tokens.count());
    }
    lengths.map(|alike| {
        assert!(alike.windows(2).all(|two| two[0] == two[1]), "{parts:?}");
        alike[0]
    })
}

#[test]
fn windows_end_before_a_token_that_is_too_unlikely_unless_they_are_drawn_by_ratio() {
    let ask = |verification, cutoff, rise| {
        let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
        let ToDraft::Open(mut opening) = open(1, &[1, 2]) else {
            unreachable!();
        };
        opening.verification = verification;
        opening.sampling.temperature = 1.0;
        draft.handle(&ToDraft::Open(opening));
        let ToDraft::Outcome(told) = outcome(1, 0, 2, &[3], 6) else {
            unreachable!();
        };
        draft.handle(&ToDraft::Outcome(Outcome {
            cutoffs: Cutoffs::new(cutoff, 0.0, rise),
            ..told
        }));
        let sent = settle(&mut draft, &mut scratch);
        let [ToTarget::Window(window)] = &sent[..] else {
            unreachable!("{sent:?}");
        };
        window.proposals.len()
    };
    // Until something is known each is accepted seven times in ten.
    let even = Rise::default();
    let coupled = |cutoff| ask(Verification::Coupled, cutoff, even);
    assert_eq!([0.0, 0.4, 0.5, 0.9].map(coupled), [6, 2, 1, 1]);
    assert_eq!(ask(Verification::Rejection { support: 4 }, 1.0, even), 6);
    // 0.34 after two tokens, 0.24 after three, 0.17 after four.
    let rising = |after| ask(Verification::Coupled, 0.2, Rise::new(after, 0.1));
    assert_eq!([0, 2, 3, 4, 5].map(rising), [3, 3, 3, 4, 4]);
    assert_eq!(ask(Verification::Coupled, 0.0, Rise::new(4, 1.0)), 4);
}
