//! Plain rounds in between, and what is made of them.

use super::*;

#[test]
fn plain_rounds_thought_slow_are_tried_again_and_win_if_they_are_not() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 4, 8);
    // Something held plain rounds up for a while.
    for _ in 0..100 {
        controller.observe_step(1, 4000 * US);
        controller.observe_turn(0, 1, 9000 * US);
    }
    let mut plain = 0;
    for round in 0..20_000 {
        let choice = controller.choose(Load::of(1));
        assert!(round > 0 || choice.lookahead > 0, "plain rounds look slow");
        let k = choice.lookahead;
        // They take what they take; windows take five times that.
        let took = if k == 0 { 1000 * US } else { 5000 * US };
        controller.observe_step(k + 1, if k == 0 { 1000 * US } else { 4000 * US });
        controller.observe_turn(k, k + 1, took);
        plain += u32::from(round >= 19_000 && k == 0);
    }
    assert!(plain > 900, "{plain} of the last 1000 rounds were plain");
}

#[test]
fn trials_of_plain_rounds_are_few_where_speculation_pays() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 8, 8);
    let plain = (0..20_000).filter(|_| decide(&mut controller, Load::of(1)).lookahead == 0);
    let plain = plain.count();
    assert!((12..=400).contains(&plain), "{plain} of 20,000");
}

#[test]
fn plain_rounds_far_behind_are_tried_as_seldom_as_can_be() {
    let first_trial = |tenths| {
        let mut controller = controller(50, 10);
        teach(&mut controller, tenths, 8);
        let gain = controller.goodput(8, Load::of(1)) / controller.goodput(0, Load::of(1));
        let trial = (1..=40_000).find(|_| controller.choose(Load::of(1)).lookahead == 0);
        (gain, trial.unwrap_or(0))
    };
    let config = ControlConfig::default();
    let (gain, trial) = first_trial(10);
    let seldom = (f64::from(config.probe_at_most) * gain) as u32;
    assert!(
        (2.0..8.0).contains(&gain) && trial == seldom,
        "{gain} {trial}"
    );
    let (gain, trial) = first_trial(3);
    assert!(gain < 1.5 && trial == config.plain_after, "{gain} {trial}");
}

#[test]
fn a_trial_is_judged_by_its_median() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 3, 8);
    let chosen = controller.choose(Load::of(1)).lookahead;
    let speculative = controller.goodput(chosen, Load::of(1));
    while controller.choose(Load::of(1)).limit != Limit::Probe {}
    // Plain rounds take 1.2 ms, but every fourth is held up.
    let mut rounds = 0;
    loop {
        let took = if rounds % 4 == 0 { 3000 } else { 1200 };
        controller.observe_turn(0, 1, took * US);
        rounds += 1;
        if controller.choose(Load::of(1)).limit != Limit::Probe {
            break;
        }
    }
    assert_eq!(rounds, ControlConfig::default().plain_rounds);
    let plain = controller.goodput(0, Load::of(1));
    assert!((plain * 1200e-6 - 1.0).abs() < 0.01, "{plain} a second");
    assert!(speculative > 1.03 * plain);
}

#[test]
fn a_lookahead_that_was_held_up_for_a_moment_is_not_left() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 5, 8);
    let chosen = controller.choose(Load::of(1)).lookahead;
    let gain = |controller: &Controller| {
        controller.goodput(chosen, Load::of(1)) / controller.goodput(0, Load::of(1))
    };
    let (plain, usual) = (1000 * US, controller.seconds(chosen, Load::of(1)));
    let usual = Duration::from_secs_f64(usual);
    let round = |controller: &mut Controller, took: Duration| {
        let lookahead = controller.choose(Load::of(1)).lookahead;
        let took = if lookahead == 0 { plain } else { took };
        controller.observe_turn(lookahead, lookahead + 1, took);
        lookahead
    };
    for _ in 0..20 {
        round(&mut controller, usual);
    }
    assert!(gain(&controller) > 1.1, "{}", gain(&controller));
    let mut held_up = 0;
    while round(&mut controller, 3 * usual) > 0 {
        held_up += 1;
    }
    assert!((2..16).contains(&held_up), "{held_up}");
    // It seems worse than plain decoding; its median is still what it was.
    let tried = 1
        + (0..100)
            .take_while(|_| round(&mut controller, usual) == 0)
            .count();
    assert_eq!(tried as u32, ControlConfig::default().plain_rounds);
    assert!(gain(&controller) > 1.1, "{}", gain(&controller));
    // Once that has changed for good, it is left.
    for _ in 0..1000 {
        round(&mut controller, 3 * usual);
    }
    assert!(controller.rests());
}
