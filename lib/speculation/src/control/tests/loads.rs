//! What is learned under one load, under another.

use super::*;

#[test]
fn load_ends_speculation_at_the_same_acceptance_and_its_end_brings_it_back() {
    let mut controller = controller(100, 20);
    teach(&mut controller, 7, 8);
    let alone = controller.choose(Load::of(1));
    assert!(alone.lookahead >= 3, "{alone:?}");
    let crowded = controller.choose(Load::of(64));
    assert!(crowded.lookahead <= 1, "{crowded:?}");
    assert_eq!(crowded.limit, Limit::Step);
    assert!(controller.choose(Load::of(1)).lookahead + 1 >= alone.lookahead);
}

#[test]
fn what_pays_for_a_moment_only_is_not_begun_with() {
    let mut controller = controller(100, 20);
    teach(&mut controller, 7, 8);
    settle(&mut controller, Load::of(64));
    let mut plain = |sessions| {
        let choice = decide(&mut controller, Load::of(sessions));
        choice.lookahead == 0 || choice.limit == Limit::Probe
    };
    // Requests end, and a step or two later the next ones of the same clients are there.
    for _ in 0..200 {
        assert!((0..20).all(|_| plain(64)) && (1..PERSISTENT).all(|_| plain(1)));
    }
    assert!((0..20).all(|_| plain(64)));
    assert!(
        begins(&mut controller, Load::of(1)),
        "they are fewer for good"
    );
}

#[test]
fn rows_of_prompts_count_as_load() {
    let mut controller = controller(100, 20);
    teach(&mut controller, 7, 8);
    let alone = controller.choose(Load::of(1)).lookahead;
    let beside = controller
        .choose(Load {
            sessions: 1,
            other_rows: 15,
        })
        .lookahead;
    assert!(beside < alone, "{beside} beside a prompt, {alone} without");
}

/// Decisions for plain rounds among so many, when a lookahead pays by less than it takes to try
/// them seldom.
fn trials(controller: &mut Controller, decisions: u32, loads: &[u32]) -> usize {
    let loads = loads.iter().cycle().take(decisions as usize);
    let tried = loads.filter(|&&sessions| {
        let choice = decide(controller, Load::of(sessions));
        assert!(choice.lookahead > 0 || choice.limit == Limit::Probe);
        choice.lookahead == 0
    });
    tried.count()
}

#[test]
fn plain_rounds_are_tried_soon_under_a_load_that_is_new() {
    let config = ControlConfig::default();
    let mut controller = controller(50, 10);
    teach(&mut controller, 3, 8);
    trials(&mut controller, 20_000, &[1]);
    while decide(&mut controller, Load::of(1)).limit != Limit::Probe {}
    trials(&mut controller, config.plain_rounds - 1, &[1]);
    assert_eq!(trials(&mut controller, 500, &[1]), 0, "the next is far off");
    let soon = config.plain_after + config.plain_rounds;
    let tried = trials(&mut controller, soon, &[4]);
    assert_eq!(tried as u32, config.plain_rounds);
    // Nothing new is thought of the load before because of that.
    assert_eq!(trials(&mut controller, 500, &[1]), 0);
}

#[test]
fn loads_that_take_turns_are_not_tried_again_each_time() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 3, 8);
    let tried = trials(&mut controller, 40_000, &[1, 2, 1, 4, 4]);
    assert!((100..=1200).contains(&tried), "{tried} of 40,000");
}

#[test]
fn what_one_load_hid_from_plain_rounds_is_found_under_another() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 3, 8);
    let play = |controller: &mut Controller, sessions: u32, rounds: u32| {
        let plain = (0..rounds).filter(|_| {
            let k = controller.choose(Load::of(sessions)).lookahead;
            // Alone something holds plain rounds up; in a crowd it is those with windows.
            let held_up = match (sessions, k) {
                (1, 0) => 1.5,
                (1, _) | (_, 0) => 1.0,
                (..) => 1.4,
            };
            let rows = sessions * (k + 1);
            let took = steps().seconds(rows) * held_up;
            let answer = if k > 0 {
                controller.answers().seconds(k)
            } else {
                0.0
            };
            let took = Duration::from_secs_f64(took + answer);
            (0..sessions).for_each(|_| controller.observe_turn(k, rows, took));
            k == 0
        });
        plain.count()
    };
    play(&mut controller, 1, 40_000);
    while play(&mut controller, 1, 1) == 0 {}
    while play(&mut controller, 1, 1) > 0 {}
    let plain = play(&mut controller, 4, 300);
    assert!(plain > 200, "{plain} of 300 rounds in a crowd are plain");
    let plain = play(&mut controller, 1, 300);
    assert!(plain < 100, "{plain} of 300 rounds alone are plain");
}

#[test]
fn a_trial_waits_for_rounds_that_tell_something() {
    let config = ControlConfig::default();
    let crowd = Load::of(8);
    let mut controller = controller(50, 10);
    teach(&mut controller, 3, 8);
    let before = controller.goodput(0, crowd);
    let unchanged = |controller: &Controller| {
        let now = controller.goodput(0, crowd);
        assert!((now / before - 1.0).abs() < 0.02, "{now} after {before}");
    };
    while decide(&mut controller, crowd).limit != Limit::Probe {}
    // Prompts are read: one step takes long, and then decisions have no rounds.
    (0..8).for_each(|_| controller.observe_turn(0, 8, 9000 * US));
    for _ in 0..2 * config.plain_rounds {
        assert_eq!(controller.choose(crowd).limit, Limit::Probe);
    }
    while decide(&mut controller, crowd).limit == Limit::Probe {}
    unchanged(&controller);
    // One that never has any ends all the same.
    while controller.choose(crowd).limit != Limit::Probe {}
    let decisions = 1
        + (0..10_000)
            .take_while(|_| controller.choose(crowd).limit == Limit::Probe)
            .count();
    assert!(decisions < 4 * config.plain_rounds as usize, "{decisions}");
    unchanged(&controller);
}

#[test]
fn a_lookahead_in_doubt_is_left_without_rounds_only_after_several_trials() {
    let mut controller = controller(50, 300);
    teach(&mut controller, 1, 8);
    let decisions = (1..10_000).find(|_| {
        assert_eq!(controller.choose(Load::of(1)).lookahead, 0);
        controller.rests()
    });
    let one = 3 * ControlConfig::default().plain_rounds;
    let decisions = decisions.expect("it is left");
    assert!(
        decisions > 2 * one && decisions <= 3 * one + 3,
        "{decisions}"
    );
}

#[test]
fn loads_that_take_turns_do_not_keep_a_lookahead_in_doubt() {
    let mut controller = controller(50, 300);
    teach(&mut controller, 1, 8);
    let mut loads = [5, 5, 6].into_iter().cycle().take(300);
    assert!(loads.any(|sessions| {
        decide(&mut controller, Load::of(sessions));
        controller.rests()
    }));
}
