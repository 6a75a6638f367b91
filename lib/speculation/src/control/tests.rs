mod loads;
mod trials;

use std::{vec, vec::Vec};

use super::*;
use crate::noise::philox;

const US: Duration = Duration::from_micros(1);

/// A memory-bound target: rows are nearly free up to 16, then cost in proportion.
fn steps() -> StepCost {
    StepCost::new(vec![
        (1, 1000 * US),
        (16, 1100 * US),
        (64, 4400 * US),
        (256, 17_600 * US),
    ])
}

fn controller(overhead: u32, per_token: u32) -> Controller {
    let answers = AnswerTime::new(US * overhead, US * per_token);
    Controller::new(ControlConfig::default(), steps(), answers)
}

/// Feeds rounds in which each position is accepted `tenths` times in ten.
fn teach(controller: &mut Controller, tenths: u32, drafted: u32) {
    for i in 0..500 {
        let roll = |p: u32| philox([i, p, 0, 0], [1, 2])[0] % 10;
        let accepted = (0..drafted).take_while(|&p| roll(p) < tenths).count() as u32;
        controller.observe_round(drafted, drafted, accepted);
    }
}

/// A decision, and if it is for plain rounds these: they take their step.
fn decide(controller: &mut Controller, load: Load) -> Choice {
    let choice = controller.choose(load);
    if choice.lookahead == 0 {
        let took = Duration::from_secs_f64(controller.step_seconds(0, load));
        (0..load.sessions).for_each(|_| controller.observe_turn(0, load.sessions, took));
    }
    choice
}

/// Decisions until plain decoding is not only tried. It has to seem better.
fn settle(controller: &mut Controller, load: Load) {
    for _ in 0..ControlConfig::default().plain_rounds {
        assert!(!controller.rests());
        assert_eq!(decide(controller, load).lookahead, 0);
    }
}

/// Whether a lookahead is begun with now that one pays, as soon as it has for long enough.
fn begins(controller: &mut Controller, load: Load) -> bool {
    let mut decide = || controller.choose(load).lookahead;
    (1..PERSISTENT).all(|_| decide() == 0) && decide() > 0
}

#[test]
fn a_good_cheap_draft_is_used_to_the_maximum() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 10, 8);
    assert_eq!(
        controller.choose(Load::of(1)),
        Choice {
            lookahead: 8,
            limit: Limit::Maximum
        }
    );
}

#[test]
fn a_bad_draft_is_not_used_and_acceptance_is_named() {
    let mut controller = controller(50, 300);
    teach(&mut controller, 1, 8);
    assert_eq!(
        controller.choose(Load::of(1)),
        Choice {
            lookahead: 0,
            limit: Limit::Acceptance
        }
    );
}

#[test]
fn a_long_round_trip_ends_speculation_and_the_answer_is_named() {
    let mut controller = controller(20_000, 10);
    teach(&mut controller, 8, 8);
    assert_eq!(
        controller.choose(Load::of(1)),
        Choice {
            lookahead: 0,
            limit: Limit::Answer
        }
    );
}

#[test]
fn the_choice_is_the_best_by_its_own_model_up_to_the_margin() {
    for tenths in 0..=10 {
        for sessions in [1, 2, 5, 16, 50] {
            let mut controller = controller(150, 60);
            teach(&mut controller, tenths, 8);
            let chosen = controller.choose(Load::of(sessions)).lookahead;
            let goodput = |k| controller.goodput(k, Load::of(sessions));
            let best = (0..=8).map(goodput).fold(0.0, f64::max);
            assert!(goodput(chosen) * 1.06 >= best);
            assert!(goodput(chosen) >= goodput(0), "nothing is known at first");
        }
    }
}

#[test]
fn a_small_gain_does_not_change_the_lookahead() {
    let mut controller = controller(100, 100);
    teach(&mut controller, 7, 8);
    let first = controller.choose(Load::of(1)).lookahead;
    let mut changes = 0;
    let mut last = first;
    for i in 0..400 {
        controller.observe_round(8, 8, if i % 2 == 0 { 2 } else { 3 });
        let chosen = controller.choose(Load::of(1)).lookahead;
        changes += u32::from(chosen != last);
        last = chosen;
    }
    assert!(changes <= 3, "{changes} changes");
}

#[test]
fn plain_decoding_probes_now_and_then_and_finds_a_draft_that_became_good() {
    let mut controller = controller(100, 100);
    teach(&mut controller, 0, 8);
    settle(&mut controller, Load::of(1));
    let mut probes = vec![];
    let mut back = None;
    let mut probing = false;
    for round in 0..200_000 {
        let choice = decide(&mut controller, Load::of(1));
        let probed = core::mem::replace(&mut probing, choice.limit == Limit::Probe);
        if probing {
            assert!(choice.lookahead > 0);
            if !probed {
                probes.push(round);
            }
        } else if choice.lookahead > 0 {
            back = Some(round);
            break;
        }
        if choice.lookahead > 0 {
            controller.observe_round(choice.lookahead, choice.lookahead, choice.lookahead);
            controller.observe_answer(&answer(choice.lookahead, 300 * US));
        }
    }
    assert!(back.is_some());
    assert!(probes.len() < 400, "{} probes", probes.len());
    assert!(probes[0] >= 30 && probes[0] < 70);
    assert!(probes[1] - probes[0] > probes[0]);
}

/// One that was drafted when it was asked for.
fn answer(tokens: u32, took: Duration) -> Answer {
    Answer {
        tokens,
        took,
        late: false,
        prepared: false,
    }
}

#[test]
fn windows_that_had_been_drafted_say_nothing_of_what_others_take() {
    let mut controller = controller(50, 50);
    for round in 0..400 {
        let hit = round % 10 > 0;
        controller.observe_answer(&Answer {
            prepared: hit,
            ..answer(8, if hit { 60 * US } else { 900 * US })
        });
    }
    assert!((controller.window_seconds(8) - 900e-6).abs() < 1e-6);
}

#[test]
fn a_maximum_of_zero_is_plain_decoding_without_probes() {
    let config = ControlConfig {
        max: 0,
        ..ControlConfig::default()
    };
    let mut controller = Controller::new(config, steps(), AnswerTime::new(US, US));
    for _ in 0..5000 {
        let choice = controller.choose(Load::of(1));
        assert_eq!(
            choice,
            Choice {
                lookahead: 0,
                limit: Limit::Maximum
            }
        );
    }
}

#[test]
fn answers_of_more_than_a_second_and_steps_of_none_break_nothing() {
    let mut controller = controller(0, 0);
    controller.observe_answer(&answer(3, Duration::MAX));
    controller.observe_step(0, Duration::ZERO);
    controller.observe_step(u32::MAX, Duration::MAX);
    controller.observe_round(u32::from(u16::MAX), u32::from(u16::MAX), 9);
    let choice = controller.choose(Load {
        sessions: u32::MAX,
        other_rows: u32::MAX,
    });
    assert!(choice.lookahead <= 8);
}

#[test]
fn what_rounds_really_take_decides_against_what_they_should_take() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 7, 8);
    let chosen = controller.choose(Load::of(1)).lookahead;
    assert!(chosen > 0);
    // Rounds with windows take four times as long as step and answer explain.
    for _ in 0..200 {
        controller.observe_turn(chosen, chosen + 1, 5000 * US);
    }
    assert_eq!(controller.choose(Load::of(1)).lookahead, 0);
    // Long after that the figure is forgotten, and speculation is tried again.
    let comes_back = (0..5000).any(|_| {
        let choice = decide(&mut controller, Load::of(1));
        choice.lookahead > 0 && choice.limit != Limit::Probe
    });
    assert!(comes_back);
}

#[test]
fn answers_hidden_behind_other_steps_are_not_charged() {
    let mut controller = controller(3000, 10);
    teach(&mut controller, 8, 8);
    assert_eq!(controller.choose(Load::of(4)).lookahead, 0);
    for _ in 0..200 {
        controller.observe_turn(4, 20, 1200 * US);
    }
    assert!(controller.choose(Load::of(4)).lookahead > 0);
}

#[test]
fn one_long_pause_changes_little() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 8, 8);
    assert_eq!(controller.choose(Load::of(1)).lookahead, 8);
    controller.observe_turn(8, 9, Duration::from_secs(10));
    assert!(controller.choose(Load::of(1)).lookahead >= 7);
}

#[test]
fn a_lookahead_that_looks_cheap_because_of_others_is_corrected_once_tried() {
    let mut controller = controller(50, 10);
    teach(&mut controller, 4, 8);
    let expected = |controller: &Controller, k: u32| {
        steps().seconds(k + 1)
            + if k > 0 {
                controller.answers().seconds(k)
            } else {
                0.0
            }
    };
    // Windows of six that somebody else asked for came for nothing.
    for _ in 0..100 {
        controller.observe_turn(6, 7, Duration::from_secs_f64(steps().seconds(7)));
    }
    // For everybody here all windows take three times their time.
    let mut plain = 0;
    for round in 0..2000 {
        let k = controller.choose(Load::of(1)).lookahead;
        let factor = if k > 0 { 3.0 } else { 1.0 };
        let took = Duration::from_secs_f64(expected(&controller, k) * factor);
        controller.observe_turn(k, k + 1, took);
        plain += u32::from(round >= 1000 && k == 0);
    }
    assert!(plain > 900, "{plain} of the last 1000 rounds were plain");
}

/// A controller of windows that are drafted ahead.
fn ahead() -> Controller {
    let answers = AnswerTime::new(20_000 * US, 10_000 * US);
    Controller::new(ControlConfig::of(Drafting::Ahead, 8), steps(), answers)
}

#[test]
fn what_is_drafted_ahead_is_not_waited_for() {
    let mut controller = ahead();
    teach(&mut controller, 8, 8);
    let chosen = controller.choose(Load::of(1)).lookahead;
    assert!(chosen >= 7, "{chosen} though the draft takes its time");
}

#[test]
fn windows_that_are_seldom_there_count_for_what_they_bring_and_cost() {
    let mut controller = ahead();
    teach(&mut controller, 8, 8);
    let (all, bare) = (
        controller.goodput(6, Load::of(1)),
        controller.goodput(0, Load::of(1)),
    );
    // Every fourth verdict finds its window.
    for i in 0..4000 {
        controller.observe_coverage(6, if i % 4 == 0 { 6 } else { 0 }, false);
    }
    let quarter = controller.goodput(6, Load::of(1));
    let expected = bare + (all - bare) / 4.0;
    assert!(
        (quarter / expected - 1.0).abs() < 0.15,
        "{quarter} of {all}"
    );
    assert!((controller.covered(3) - controller.covered(6)).abs() < 1e-12);
    // Where nobody looks for windows any more, the figure is forgotten.
    (0..5000).for_each(|_| controller.observe_turn(0, 1, 1000 * US));
    assert!(controller.covered(6) > 0.95);
}

#[test]
fn a_crowd_ends_drafting_ahead_and_is_probed_for_several_rounds_at_once() {
    let mut controller = ahead();
    teach(&mut controller, 6, 8);
    let crowd = Load::of(64);
    settle(&mut controller, crowd);
    let probes: Vec<bool> = (0..500)
        .map(|_| decide(&mut controller, crowd).limit == Limit::Probe)
        .collect();
    let runs: Vec<usize> = probes
        .split(|probe| !probe)
        .map(<[bool]>::len)
        .filter(|&run| run > 0)
        .collect();
    assert!(
        !runs.is_empty() && runs.iter().all(|&run| run == 6),
        "{runs:?}"
    );
    assert!(begins(&mut controller, Load::of(1)));
}

#[test]
fn windows_are_begun_for_two_margins_and_ended_for_less_than_one() {
    let answers = AnswerTime::new(US, US);
    let config = ControlConfig::of(Drafting::Ahead, 1);
    let mut controller = Controller::new(config, steps(), answers);
    teach(&mut controller, 4, 1);
    let chosen = controller.choose(Load::of(1)).lookahead;
    assert!(chosen > 0);
    let gain = |controller: &Controller| {
        controller.goodput(chosen, Load::of(1)) / controller.goodput(0, Load::of(1))
    };
    let mut took = 1000;
    // Rounds come to take ever longer, until windows are worth this factor; or ever less.
    let mut worth = |controller: &mut Controller, factor: f64| {
        let longer = gain(controller) > factor;
        while (gain(controller) > factor) == longer {
            took = if longer { took + 5 } else { took - 5 };
            controller.observe_turn(chosen, chosen + 1, took * US);
        }
        // A lookahead that does not last makes the next one harder to begin with.
        (0..1000).for_each(|_| _ = controller.choose(Load::of(1)));
        controller.choose(Load::of(1))
    };
    assert_eq!(worth(&mut controller, 1.04).lookahead, chosen);
    let ended = worth(&mut controller, 1.025);
    assert_eq!((ended.lookahead, ended.limit), (0, Limit::Margin));
    let still = worth(&mut controller, 1.05);
    assert_eq!((still.lookahead, still.limit), (0, Limit::Margin));
    assert_eq!(worth(&mut controller, 1.065).lookahead, chosen);
}

#[test]
fn sessions_are_let_go_only_once_a_probe_has_had_its_consequences() {
    let mut controller = controller(50, 300);
    teach(&mut controller, 1, 8);
    settle(&mut controller, Load::of(1));
    let mut since = 0;
    for _ in 0..2000 {
        let choice = decide(&mut controller, Load::of(1));
        since = if choice.limit == Limit::Probe {
            controller.observe_round(choice.lookahead, choice.lookahead, 0);
            0
        } else {
            since + 1
        };
        assert_eq!(controller.rests_for_long(), since >= 32, "{since}");
    }
    teach(&mut controller, 10, 8);
    assert!(begins(&mut controller, Load::of(1)));
    assert!(!controller.rests_for_long());
}
