//! How long there is to draft in, and when a step is not worth beginning.

use super::{
    branches::{Bench, branching, open_with, verifying},
    *,
};
use crate::{
    control::StepCost,
    policy::draft::{Outlook, Timing},
};

const MS: Duration = Duration::from_millis(1);
/// Tokens of the windows under verification.
const WINDOW: usize = 3;

/// A session after verifications of such windows that took these times in turn, with 2 tokens each,
/// whose branches are planned; the last verification begins at the time given back.
fn session(took: [Duration; 2]) -> (Bench, Outlook, Timing, Duration) {
    let mut bench = Bench::new(4096);
    let (mut outlook, mut timing, mut now) = (Outlook::default(), Timing::default(), 100 * MS);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    for round in 0..200 {
        outlook.begin(now, WINDOW);
        now += took[round as usize % 2];
        let before = bench.draft.stats();
        let message = verifying(round, 2 + 2 * round, &[4, 5], &[6, 7, 8], 3);
        bench.draft.handle(&message);
        let ToDraft::Outcome(outcome) = &message else {
            unreachable!("it is a verdict");
        };
        outlook.hear(now, outcome, &before, &bench.draft, &mut timing);
    }
    let cost = StepCost::new(vec![(1, MS), (64, MS)]);
    for _ in 0..10 {
        if outlook.plan(&mut bench.draft, &mut bench.planners, &timing, &cost) {
            return (bench, outlook, timing, now);
        }
        bench.steps(1);
    }
    unreachable!("it has read what was decided and planned");
}

#[test]
fn a_step_that_ends_after_the_verdict_and_what_that_waits_is_not_begun() {
    let (_, outlook, timing, began) = session([10 * MS; 2]);
    let pause = |step: u32, at| {
        let step = (step * MS).as_secs_f64();
        outlook.pause(0, step, &timing, began + at)
    };
    // 2 tokens in 10 ms: for one that is as good as sure a target waits up to 5 ms.
    assert_eq!(pause(2, 2 * MS), None);
    assert_eq!(pause(9, 2 * MS), None, "it is waited for");
    let left = pause(20, 2 * MS).expect("it is in vain");
    assert!((left.as_secs_f64() - 0.028).abs() < 1e-4, "{left:?}");
    assert!(pause(20, 29 * MS).is_some());
    assert_eq!(pause(20, 31 * MS), None, "the verdict is overdue");
}

#[test]
fn where_times_vary_a_step_is_only_left_out_if_it_is_sure_to_be_late() {
    let pauses = |took| {
        let (_, outlook, timing, began) = session(took);
        let step = (15 * MS).as_secs_f64();
        let pause = outlook.pause(0, step, &timing, began + 2 * MS);
        pause.is_some()
    };
    assert!(pauses([10 * MS; 2]));
    assert!(!pauses([7 * MS, 13 * MS]));
}

#[test]
fn verifications_begin_when_their_verdict_came_not_when_it_was_read() {
    let left = |elapsed| {
        let (mut bench, mut outlook, mut timing, mut now) = session([10 * MS; 2]);
        for round in 200..220 {
            // Every other verdict is read 4 ms after it came.
            now += if round % 2 == 0 { 14 * MS } else { 6 * MS };
            let message = verifying(round, 2 + 2 * round, &[4, 5], &[6, 7, 8], 3);
            let before = bench.draft.stats();
            bench.draft.handle(&message);
            let ToDraft::Outcome(outcome) = message else {
                unreachable!("it is a verdict");
            };
            let outcome = Outcome { elapsed, ..outcome };
            outlook.hear(now, &outcome, &before, &bench.draft, &mut timing);
            if round == 218 {
                break;
            }
        }
        outlook.left(now, &timing).expect("it is known") / timing.part()
    };
    // 4 of 10 ms are over when the last one is read; without being told nothing seems to be.
    assert!((left(Duration::ZERO) - 0.010).abs() < 1e-3);
    let told = left(10 * MS);
    assert!(told < 0.0055, "{told}");
}
