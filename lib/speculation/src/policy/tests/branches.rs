//! The endpoint's side of `Ssd`, message by message.

use super::{engine::ToyEngine, *};
use crate::policy::draft::{MAX_BRANCHES, MAX_TAIL, Purpose, Wants};

pub(super) fn branching(lookahead: u32, branches: u32) -> Branching {
    Branching {
        lookahead,
        branches,
        fan_out: FanOut::Learned,
        delivery: Delivery::Push,
    }
}

pub(super) fn open_with(epoch: u32, prompt: &[u32], branching: Branching) -> ToDraft {
    match open(epoch, prompt) {
        ToDraft::Open(open) => ToDraft::Open(Open {
            branching: Some(branching),
            ..open
        }),
        other => other,
    }
}

pub(super) fn verifying(
    round: u32,
    base_len: u32,
    emitted: &[u32],
    window: &[u32],
    k: u32,
) -> ToDraft {
    match outcome(1, round, base_len, emitted, k) {
        ToDraft::Outcome(outcome) => ToDraft::Outcome(Outcome {
            verifying: Some(chain(window)),
            branches: 5,
            ..outcome
        }),
        other => other,
    }
}

/// Greedy continuation is the last token plus one; the others follow by distance.
pub(super) fn counting(context: &[TokenId]) -> Vec<f32> {
    let last = context.last().map_or(0, |token| token.0);
    let behind = |v: u32| (v + 2 * VOCAB - last - 1) % VOCAB;
    (0..VOCAB).map(|v| -(behind(v) as f32)).collect()
}

pub(super) struct Bench {
    pub(super) draft: DraftSession,
    pub(super) engine: ToyEngine,
    pub(super) planners: Planners,
    scratch: Scratch,
    /// The draft model.
    pub(super) language: fn(&[TokenId]) -> Vec<f32>,
}

impl Bench {
    pub(super) fn new(max_len: usize) -> Self {
        Self {
            draft: DraftSession::new(SessionId(3), VOCAB, max_len),
            engine: ToyEngine::default(),
            planners: Planners::default(),
            scratch: Scratch::new(),
            language: counting,
        }
    }

    /// Makes a step; false if there is nothing to do.
    fn step(&mut self, sent: &mut Vec<ToTarget>) -> bool {
        self.engine.join(&mut self.draft);
        self.draft.plan(&mut self.planners);
        let Some(step) = self.engine.step(&mut self.draft, 1000) else {
            return false;
        };
        sent.extend(step.report(&mut self.draft, &mut self.scratch, self.language));
        true
    }

    pub(super) fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step(&mut vec![]);
        }
    }

    /// Runs until there is nothing to do.
    fn settle(&mut self) -> Vec<ToTarget> {
        let mut sent = vec![];
        while self.step(&mut sent) {}
        sent
    }

    pub(super) fn parts(&mut self) -> Vec<Entries> {
        let sent = self.settle().into_iter();
        sent.filter_map(|message| match message {
            ToTarget::Entries(part) => Some(part),
            _ => None,
        })
        .collect()
    }
}

#[test]
fn outcomes_are_drafted_for_from_the_prompt_on_likeliest_first() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    let parts = bench.parts();
    assert_eq!(parts.len(), 3);
    let keys: Vec<_> = parts[0].keys.iter().map(|key| key.token.0).collect();
    assert_eq!(keys, [3, 4, 5, 6]);
    for (i, part) in parts.iter().enumerate() {
        assert_eq!((part.round, part.base_len), (Round(0), 2));
        assert_eq!(part.before as usize, i);
        assert_eq!(part.keys.is_empty(), i > 0);
        let drawn: Vec<_> = part.tokens.iter().map(|token| token.0).collect();
        let expected: Vec<_> = (0..4).map(|j| (4 + i as u32 + j) % VOCAB).collect();
        assert_eq!(drawn, expected);
    }
}

#[test]
fn the_decided_token_and_the_window_are_fed_and_nothing_else() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    bench.settle();
    bench.draft.handle(&verifying(0, 2, &[4], &[8, 9, 7], 3));
    let work = bench.draft.work().unwrap();
    let tokens: Vec<_> = work.tokens.iter().map(|token| token.0).collect();
    assert_eq!((work.keep, &tokens[..]), (2, &[4, 8, 9, 7][..]));
    assert_eq!((work.wants, work.purpose), (Wants::All, Purpose::Ahead));
    let parts = bench.parts();
    assert_eq!((parts.len(), parts[0].base_len), (3, 3));
    // Two are accepted: their KV stays.
    bench.draft.handle(&verifying(1, 3, &[8, 9, 5], &[1], 3));
    assert_eq!(bench.draft.work().map(|work| work.keep), Some(5));
}

#[test]
fn what_a_target_did_not_have_of_its_verdicts_continuation_was_late() {
    // Of a continuation of three tokens the target had so many, and looks for so many.
    for (window, wanted, late) in [(3, 3, 0), (1, 3, 2), (0, 3, 3), (1, 1, 0)] {
        let mut bench = Bench::new(64);
        bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
        bench.settle();
        let window = &[5, 6, 7][..window];
        bench.draft.handle(&verifying(0, 2, &[4], window, wanted));
        let stats = bench.draft.stats();
        assert_eq!(
            (stats.late, stats.missing, stats.planned),
            (late, late, wanted)
        );
    }
    let after = |token, window: &[u32]| {
        let mut bench = Bench::new(64);
        bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
        bench.settle();
        bench.draft.handle(&verifying(0, 2, &[token], window, 3));
        let stats = bench.draft.stats();
        (stats.timely, stats.late, stats.missing)
    };
    assert_eq!(after(19, &[]), (0, 0, 0), "nothing was drafted for it");
    assert_eq!(after(4, &[9, 9]), (0, 3, 3), "something else is verified");
}

#[test]
fn what_a_verdict_waited_for_was_not_there_in_time_unless_it_was_not_planned_either() {
    for (awaited, widths, missing) in [
        (0, &[4, 4, 4][..], 0),
        (2, &[4, 4, 4], 2),
        (2, &[4, 4], 1),
        (1, &[4, 4], 0),
        (u32::MAX, &[4, 4], 2),
    ] {
        let mut bench = Bench::new(64);
        bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
        bench.steps(1);
        bench.draft.plan(&mut bench.planners);
        bench.draft.grant(widths);
        bench.settle();
        let ToDraft::Outcome(outcome) = verifying(0, 2, &[4], &[5, 6, 7], 3) else {
            unreachable!("it is a verdict");
        };
        let outcome = Outcome { awaited, ..outcome };
        bench.draft.handle(&ToDraft::Outcome(outcome));
        let stats = bench.draft.stats();
        assert_eq!((stats.missing, stats.timely), (missing, 3), "{awaited}");
    }
}

#[test]
fn what_was_planned_for_a_verdict_and_never_drafted_is_missing() {
    for delivery in [Delivery::Push, Delivery::Pull] {
        // Outcomes 3 to 6 have so many tokens each that there is time for; then the verdict comes.
        for (widths, token, planned) in [
            (&[4, 4, 4][..], 4, 3),
            (&[4, 2], 4, 2),
            (&[4, 2], 6, 1),
            (&[1], 6, 0),
        ] {
            for steps in 0..=3 {
                let mut bench = Bench::new(64);
                let branching = Branching {
                    delivery,
                    ..branching(3, 4)
                };
                bench.draft.handle(&open_with(1, &[1, 2], branching));
                bench.steps(1);
                bench.draft.plan(&mut bench.planners);
                bench.draft.grant(widths);
                bench.steps(steps);
                let drafted = planned.min(steps as u32);
                let window: Vec<u32> = (0..drafted).map(|i| (token + 1 + i) % VOCAB).collect();
                bench.draft.handle(&verifying(0, 2, &[token], &window, 3));
                let stats = bench.draft.stats();
                let seen = (stats.planned, stats.missing);
                assert_eq!(
                    seen,
                    (planned, planned - drafted),
                    "{widths:?} {token} {steps}"
                );
            }
        }
    }
}

#[test]
fn no_outcome_is_drafted_for_that_cannot_be() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1], branching(2, 40)));
    bench.settle();
    bench.draft.handle(&verifying(0, 1, &[2], &[3, 9], 2));
    bench.draft.grant(&[40]);
    let first = bench.parts().swap_remove(0);
    for (accepted, proposed) in [(0, 3), (1, 9)] {
        let key = OutcomeKey {
            accepted,
            token: TokenId(proposed),
        };
        assert!(!first.keys.contains(&key));
    }
    let deep = first.keys.iter().filter(|key| key.accepted > 0).count();
    assert!(deep > 0 && deep < first.keys.len());
}

#[test]
fn the_next_outcome_ends_a_build_wherever_it_is() {
    // Steps of a whole build: the prompt, then three of the branches.
    for steps in 0..5 {
        let mut bench = Bench::new(64);
        bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
        bench.steps(steps);
        let begun = bench.draft.build();
        let (ticket, rows) = match bench.draft.branches() {
            Some(work) => (Some(work.ticket), work.rows()),
            None => (None, 0),
        };
        bench.draft.handle(&verifying(0, 2, &[4], &[], 3));
        if let Some(ticket) = ticket {
            let row = counting(&[TokenId(1)]);
            let rows = vec![&row[..]; rows];
            let late = bench.draft.branched(ticket, &rows, &mut bench.scratch);
            assert_eq!(late, []);
        }
        assert!(bench.draft.build().is_none());
        let cut = u32::from(steps < 4);
        assert_eq!(bench.draft.stats().cut, cut, "after {steps} steps");
        let parts = bench.parts();
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(|part| part.round == Round(1)));
        assert!(begun.is_none() || bench.draft.build() != begun);
    }
}

#[test]
fn what_was_drafted_for_a_verdict_answers_a_request_for_a_window() {
    let mut bench = Bench::new(64);
    let pull = Branching {
        delivery: Delivery::Pull,
        ..branching(3, 4)
    };
    bench.draft.handle(&open_with(1, &[1, 2], pull));
    assert_eq!(bench.settle(), []);
    let answer = bench.draft.handle(&outcome(1, 0, 2, &[5], 3));
    // After 3 and 4, of the guesses 3, 4, 5 and 6.
    assert_eq!(answer, Some(prepared(2, window(1, 1, 3, &[6, 7, 8]))));
    assert_eq!(bench.draft.stats().prepared, 1);
    // Nothing was drafted for this one.
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], pull));
    bench.settle();
    assert_eq!(bench.draft.handle(&outcome(1, 0, 2, &[11], 2)), None);
    assert_eq!(bench.settle()[0], window(1, 1, 3, &[0, 1]));
    assert_eq!(bench.draft.stats().prepared, 0);
}

#[test]
fn what_was_drafted_for_another_window_is_not_taken_for_this_verdict() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 30)));
    bench.settle();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6], 3));
    let keys = bench.parts().swap_remove(0).keys;
    let key = keys.iter().find(|key| key.accepted == 2).unwrap();
    // As many are accepted, but of another window.
    let emitted = [8, 9, key.token.0];
    bench.draft.handle(&outcome(1, 1, 3, &emitted, 3));
    assert_eq!(bench.draft.stats().prepared, 0);
    let tokens: Vec<_> = bench.draft.tokens().iter().map(|t| t.0).collect();
    assert_eq!(tokens, [&[1, 2, 4][..], &emitted].concat());
}

#[test]
fn a_driver_without_pages_drops_branches_and_the_session_goes_on() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    bench.steps(2);
    bench.draft.drop_branches();
    assert!(!bench.step(&mut vec![]) && bench.draft.build().is_none());
    assert_eq!(bench.draft.stats().dropped, 1);
    bench.draft.handle(&verifying(0, 2, &[4], &[], 3));
    assert_eq!(bench.parts().len(), 3);
}

#[test]
fn a_driver_may_grant_fewer_branches_before_the_first_step() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 6)));
    bench.steps(1);
    assert_eq!(bench.draft.plan(&mut bench.planners).len(), 6);
    bench.draft.grant(&[2]);
    bench.steps(1);
    bench.draft.grant(&[1]);
    let parts = bench.parts();
    assert!(parts.iter().all(|part| part.tokens.len() == 2));
    bench.draft.handle(&verifying(0, 2, &[4], &[], 3));
    bench.steps(1);
    bench.draft.plan(&mut bench.planners);
    bench.draft.grant(&[]);
    assert!(!bench.step(&mut vec![]));
}

#[test]
fn whatever_a_target_asks_for_steps_and_tails_stay_small() {
    let greedy = branching(u32::MAX, u32::MAX);
    let mut bench = Bench::new(4096);
    let wide = |token: u32| TokenId(token % VOCAB);
    for epoch in 1..20 {
        bench.draft.handle(&open_with(epoch, &[1, 2, 3], greedy));
        let mut most = 0;
        let mut parts = 0;
        loop {
            bench.draft.plan(&mut bench.planners);
            if let Some(work) = bench.draft.work() {
                assert!(work.wants != Wants::All || work.tokens.len() <= MAX_TAIL + 1);
            } else if let Some(work) = bench.draft.branches() {
                most = most.max(work.rows());
                assert!(work.forks().all(|fork| fork.tokens.len() <= MAX_TAIL));
            }
            let mut sent = vec![];
            if !bench.step(&mut sent) {
                break;
            }
            parts += sent.len();
        }
        assert!(most <= MAX_BRANCHES as usize && parts <= MAX_TAIL);
        // A window without end is not drafted for.
        let endless: Vec<_> = (0..4000).map(wide).collect();
        bench.draft.handle(&ToDraft::Outcome(Outcome {
            session: SessionId(3),
            epoch: Epoch(epoch),
            base_len: 3,
            tokens: vec![TokenId(4)],
            lookahead: u32::MAX,
            verifying: Some(endless.into()),
            branches: u32::MAX,
            ..Outcome::default()
        }));
        assert_eq!(bench.parts(), []);
    }
    let mut few = Bench::new(64);
    few.draft = few.draft.with_max_branches(3);
    few.draft.handle(&open_with(1, &[1, 2], greedy));
    assert!(few.parts().iter().all(|part| part.tokens.len() == 3));
}

#[test]
fn a_window_with_unknown_tokens_asks_for_a_resync() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    bench.steps(2);
    assert!(bench.draft.build().is_some());
    let answer = bench.draft.handle(&verifying(0, 2, &[4], &[VOCAB], 3));
    assert!(matches!(answer, Some(ToTarget::Resync(_))));
    assert!(bench.draft.build().is_none());
    assert_eq!(bench.settle(), []);
}

#[test]
fn a_build_ends_with_its_binding() {
    let close = ToDraft::Close {
        session: SessionId(3),
        epoch: Epoch(1),
    };
    for end in [close, open(2, &[1, 2])] {
        let mut bench = Bench::new(64);
        bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
        bench.steps(2);
        assert!(bench.draft.build().is_some());
        bench.draft.handle(&end);
        assert!(bench.draft.build().is_none());
        assert_eq!(bench.parts(), []);
    }
}

#[test]
fn branches_stay_within_the_positions_of_the_draft_model() {
    for (max_len, steps) in [(9, 3), (8, 2), (7, 1), (6, 0), (5, 0)] {
        let mut bench = Bench::new(max_len);
        bench.draft.handle(&open_with(1, &[1, 2], branching(0, 4)));
        bench.settle();
        bench.draft.handle(&verifying(0, 2, &[4], &[5, 6, 7], 3));
        assert_eq!(bench.parts().len(), steps, "of {max_len} positions");
    }
}

#[test]
fn ranks_are_learned_from_misses_too() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 2)));
    bench.settle();
    // The candidates are 3, 4, 5 and so on; two of them were drafted for.
    bench.draft.handle(&verifying(0, 2, &[8], &[], 3));
    bench.settle();
    bench.draft.handle(&verifying(1, 3, &[9], &[], 3));
    bench.settle();
    let stats = bench.draft.stats();
    assert_eq!((stats.judged, stats.ranks[5], stats.ranks[0]), (2, 1, 1));
}

#[test]
fn a_glue_pass_under_way_for_another_window_is_made_again() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    bench.settle();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6], 3));
    bench.draft.plan(&mut bench.planners);
    let step = bench.engine.step(&mut bench.draft, 1000).unwrap();
    // Only the first was verified; the second is verified now.
    bench.draft.handle(&verifying(1, 3, &[5], &[6], 3));
    step.report(&mut bench.draft, &mut bench.scratch, counting);
    let parts = bench.parts();
    assert_eq!((parts.len(), parts[0].round), (3, Round(2)));
    assert!(parts[0].keys.iter().all(|key| key.accepted <= 1));
    assert_eq!(bench.draft.stats().dropped, 0);
}

#[test]
fn a_window_shorter_than_what_is_left_is_what_branches_leave_from() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 12)));
    bench.settle();
    bench.draft.handle(&verifying(0, 2, &[3], &[4, 5, 6, 7], 3));
    bench.settle();
    let ask = match outcome(1, 1, 3, &[4], 1) {
        ToDraft::Outcome(outcome) => ToDraft::Outcome(Outcome {
            branches: 12,
            ..outcome
        }),
        other => other,
    };
    assert_eq!(bench.draft.handle(&ask), Some(window(1, 2, 4, &[5])));
    let parts = bench.parts();
    assert!(parts[0].keys.iter().all(|key| key.accepted <= 1));
    assert!(parts[0].keys.iter().any(|key| key.accepted == 1));
}
