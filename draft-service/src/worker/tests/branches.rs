//! Sessions that draft for the outcomes of a verification.

use std::time::Instant;

use foretoken_speculation::{
    Proposals,
    control::StepCost,
    fanout::FanOut,
    message::{Branching, Delivery, Entries, TreeBudget},
};

use super::*;

pub(super) const K: u32 = 4;
const BUDGET: u32 = 12;
const MS: Duration = Duration::from_millis(1);

pub(super) fn open_ahead(session: u64, tokens: Vec<TokenId>) -> ToDraft {
    let ToDraft::Open(open) = open(session, tokens) else {
        panic!("it opens")
    };
    ToDraft::Open(Open {
        branching: Some(Branching {
            lookahead: K,
            branches: BUDGET,
            fan_out: FanOut::Learned,
            delivery: Delivery::Push,
        }),
        ..open
    })
}

/// The verdict of a round, after which `window` is verified.
pub(super) fn verifying(
    session: u64,
    round: u32,
    base_len: usize,
    tokens: &[TokenId],
    window: &[TokenId],
) -> ToDraft {
    let ToDraft::Outcome(outcome) = outcome(session, round, base_len, tokens, K) else {
        panic!("a verdict")
    };
    ToDraft::Outcome(Outcome {
        verifying: Some(window.into()),
        branches: BUDGET,
        ..outcome
    })
}

pub(super) fn entries(sent: &[(LinkId, ToTarget)]) -> Vec<(LinkId, &Entries)> {
    let part = |(link, message): &'_ (LinkId, ToTarget)| match message {
        ToTarget::Entries(_) => Some(*link),
        _ => None,
    };
    let links = sent.iter().filter_map(part);
    let parts = sent.iter().filter_map(|(_, message)| match message {
        ToTarget::Entries(part) => Some(part),
        _ => None,
    });
    links.zip(parts).collect()
}

/// The columns of the build for round 1 of a link's session, all of them.
fn columns(sent: &[(LinkId, ToTarget)], link: LinkId) -> Vec<&Entries> {
    let parts = entries(sent).into_iter();
    let of_build = parts.filter(|(to, part)| *to == link && part.round == Round(1));
    let columns: Vec<_> = of_build.map(|(_, part)| part).collect();
    assert_eq!(columns.len(), K as usize);
    columns
}

fn branch_pages(rig: &Rig) -> usize {
    let forks = |session: &super::super::sessions::Session| usize::from(!session.forks.is_empty());
    rig.worker.sessions.iter().map(forks).sum()
}

#[test]
fn entries_of_all_sessions_are_what_decoding_one_by_one_gives_and_leave_no_page() {
    for widths in [[BUDGET; K as usize], [BUDGET, 7, 3, 1], [9, 9, 2, 2]] {
        check_entries_of_all_sessions(widths);
    }
}

/// With so many outcomes in each step.
fn check_entries_of_all_sessions(widths: [u32; K as usize]) {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let window = [TokenId(5), TokenId(9), TokenId(33)];
    let prompts = [(A, 1, prompt(20)), (B, 2, prompt(31))];
    for (link, session, tokens) in &prompts {
        rig.tell(*link, open_ahead(*session, tokens.clone()));
        rig.tell(
            *link,
            verifying(*session, 0, tokens.len(), &[TokenId(7)], &window),
        );
    }
    let ready = |rig: &Rig| {
        rig.worker
            .sessions
            .iter()
            .all(|s| s.draft.build().is_some())
    };
    let mut steps = 0;
    while !ready(&rig) {
        assert!(rig.worker.step(), "prompts and glue passes");
        steps += 1;
        rig.worker.prepare_branches();
    }
    for session in &mut rig.worker.sessions {
        session.draft.grant(&widths);
    }
    let (more, sent) = rig.settle();
    // A prompt and a glue pass, then all branches of both at once.
    assert!(steps + more <= 3 + K as usize, "{steps} steps, and {more}");
    for (link, session, tokens) in &prompts {
        let parts = columns(&sent, *link);
        let keys = &parts[0].keys;
        let lengths: Vec<_> = parts.iter().map(|part| part.tokens.len() as u32).collect();
        assert_eq!(
            (keys.len(), &lengths[..]),
            (lengths[0] as usize, &widths[..])
        );
        for (place, key) in keys.iter().enumerate() {
            let mut context = tokens.clone();
            context.push(TokenId(7));
            context.extend_from_slice(&window[..key.accepted as usize]);
            context.push(key.token);
            let drafted = parts.iter().filter_map(|part| part.tokens.get(place));
            let drafted: Vec<_> = drafted.copied().collect();
            let expected = continuation(language(), *session, &context, drafted.len());
            assert_eq!(drafted, expected, "{key:?}");
        }
    }
    assert_eq!(branch_pages(&rig), 2, "the verdict may have use for them");
    for (link, session, _) in prompts {
        rig.tell(link, close(session));
    }
    rig.assert_idle();
}

#[test]
fn a_verdict_ends_the_branches_and_a_window_that_is_waited_for_comes_first() {
    let config = DraftConfig {
        // One glue pass, or the branches of one session.
        max_step_rows: BUDGET as usize,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    for (link, session) in [(A, 1), (B, 2)] {
        rig.tell(link, open_ahead(session, prompt(8)));
    }
    rig.settle();
    for (link, session) in [(A, 1), (B, 2)] {
        rig.tell(link, verifying(session, 0, 8, &[TokenId(7)], &[TokenId(3)]));
    }
    while branch_pages(&rig) < 2 {
        assert!(rig.worker.step(), "both have branches at some time");
    }
    rig.tell(A, outcome(1, 1, 9, &[TokenId(60)], 3));
    rig.collect();
    for _ in 0..3 {
        assert!(rig.worker.step());
    }
    let sent = rig.collect();
    let [(A, window)] = windows(&sent)[..] else {
        panic!("the window took more steps than tokens: {sent:?}")
    };
    let mut tokens = prompt(8);
    tokens.extend([TokenId(7), TokenId(60)]);
    assert_eq!(
        window.proposals.tokens(),
        continuation(language(), 1, &tokens, 3)
    );
    assert!(
        entries(&sent).iter().all(|(link, _)| *link == B),
        "the verdict had not ended them: {sent:?}"
    );
    rig.settle();
    rig.worker.close_where(|_| true);
    rig.assert_idle();
}

#[test]
fn short_of_pages_branches_go_and_no_session_does() {
    let options = SimOptions {
        pages: 8,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    let tokens = prompt(100);
    rig.tell(A, open_ahead(1, tokens.clone()));
    rig.settle();
    rig.tell(
        A,
        verifying(1, 0, 100, &[TokenId(7)], &[TokenId(3), TokenId(4)]),
    );
    let (_, sent) = rig.settle();
    assert!(entries(&sent).is_empty(), "there was room: {sent:?}");
    assert_eq!(rig.worker.sessions.len(), 1, "{sent:?}");
    rig.tell(A, outcome(1, 1, 101, &[TokenId(3), TokenId(60)], 3));
    let (_, sent) = rig.settle();
    let context = [&tokens[..], &[TokenId(7), TokenId(3), TokenId(60)]].concat();
    assert_eq!(
        windows(&sent)[0].1.proposals.tokens(),
        continuation(options, 1, &context, 3)
    );
    rig.worker.close_where(|_| true);
    rig.assert_idle();
}

#[test]
fn what_a_target_asks_for_is_kept_within_the_endpoints_bounds() {
    let config = DraftConfig {
        max_branches: 5,
        max_lookahead: 2,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    rig.tell(A, open_ahead(1, prompt(12)));
    let (_, sent) = rig.settle();
    let parts = entries(&sent);
    assert_eq!((parts.len(), parts[0].1.keys.len()), (2, 5));
}

#[test]
fn outcomes_are_as_many_as_there_is_time_for() {
    for (verification, expected) in [(Duration::ZERO, 2), (Duration::from_secs(3000), BUDGET)] {
        let mut rig = Rig::new(&DraftConfig::default(), language());
        rig.tell(A, open_ahead(1, prompt(12)));
        let learned = rig.worker.learned.entry(A).or_default();
        learned.timing.expect(0, verification.as_secs_f64());
        let now = rig.worker.clock();
        rig.worker.sessions[0].outlook.begin(now, 0);
        let (_, sent) = rig.settle();
        assert_eq!(entries(&sent)[0].1.keys.len(), expected as usize);
    }
}

/// What becomes of a build before its verdict.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    /// It is drafted to the end.
    Done,
    /// Nothing of it is drafted.
    Late,
    /// The endpoint gives it up itself.
    Dropped,
    /// There seemed to be no time for it, and there was none.
    Hopeless,
    /// There seemed to be no time for it, and it is drafted to the end.
    Hoped,
}

/// The part of verifications that is counted on after some with builds of such a fate, the verdict
/// always being what is drafted for first, and the tokens that were planned and that were missing.
fn part_after(fate: Fate) -> (f64, [u64; 2]) {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let mut tokens = prompt(12);
    rig.tell(A, open_ahead(1, tokens.clone()));
    let now = rig.worker.clock();
    rig.worker.sessions[0].outlook.begin(now, 0);
    let mut window: Vec<TokenId> = Vec::new();
    for round in 0..20 {
        let learned = rig.worker.learned.entry(A).or_default();
        let in_hope = matches!(fate, Fate::Hopeless | Fate::Hoped);
        let seconds = if in_hope { 0.0 } else { 3000.0 };
        learned.timing.expect(window.len(), seconds);
        while rig.worker.sessions[0].draft.build().is_none() {
            assert!(rig.worker.step(), "a prompt, then glue passes");
            rig.worker.prepare_branches();
        }
        let session = &mut rig.worker.sessions[0];
        // Some outcomes are known only when the window is read.
        let mut guesses = session.draft.guesses().iter();
        let known = guesses.find(|guess| guess.key.token.0 < 64);
        let key = known.expect("an outcome that is known").key;
        if fate == Fate::Dropped {
            session.drop_branches(&mut rig.worker.engine);
        }
        let mut emitted = window[..key.accepted as usize].to_vec();
        emitted.push(key.token);
        window.clear();
        if matches!(fate, Fate::Done | Fate::Hoped) {
            let (_, sent) = rig.settle();
            let parts = entries(&sent).into_iter().map(|(_, part)| part);
            let parts = parts.filter(|part| part.round == Round(round) && !part.late);
            let parts: Vec<_> = parts.collect();
            let place = parts[0].keys.iter().position(|known| *known == key);
            let place = place.expect("it is drafted for");
            window = parts.iter().map(|part| part.tokens[place]).collect();
            assert_eq!(window.len(), K as usize);
        }
        rig.tell(A, verifying(1, round, tokens.len(), &emitted, &window));
        tokens.extend(emitted);
    }
    let counted = &rig.worker.metrics.entry_tokens;
    let counted = [counted.planned.get(), counted.missing.get()];
    (rig.worker.learned[&A].timing.part(), counted)
}

#[test]
fn what_is_never_there_in_time_shortens_the_time_that_is_counted_on() {
    let parts = [Fate::Done, Fate::Late, Fate::Dropped, Fate::Hopeless];
    let [done, late, dropped, hopeless] = parts.map(|fate| part_after(fate).0);
    assert!(late < dropped - 0.1, "{late} of {dropped}");
    assert!(done > dropped, "{done} of {dropped}");
    assert!(
        (hopeless - dropped).abs() < 1e-12,
        "{hopeless} of {dropped}"
    );
}

#[test]
fn what_is_there_although_there_seemed_to_be_no_time_lengthens_the_time_that_is_counted_on() {
    let [hoped, hopeless] = [Fate::Hoped, Fate::Hopeless].map(|fate| part_after(fate).0);
    assert!(hoped > hopeless, "{hoped} of {hopeless}");
}

#[test]
fn only_what_there_seemed_to_be_time_for_is_counted_as_planned() {
    let counted = |fate| part_after(fate).1;
    let [planned, missing] = counted(Fate::Done);
    assert!(planned > 0 && missing == 0, "{missing} of {planned}");
    let [planned, missing] = counted(Fate::Late);
    assert!(planned > 0 && missing == planned, "{missing} of {planned}");
    for fate in [Fate::Dropped, Fate::Hopeless] {
        assert_eq!(counted(fate), [0, 0]);
    }
}

#[test]
fn after_a_tree_entries_are_what_decoding_each_path_gives_and_leave_no_page() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let tree = Proposals::with_parents([5, 9, 33, 9].map(TokenId).to_vec(), &[0, 0, 1, 3]);
    let tree = tree.expect("is a tree");
    // The trunk ends in the middle of a page, and with one.
    let prompts = [(A, 1, prompt(20)), (B, 2, prompt(16))];
    for (link, session, tokens) in &prompts {
        rig.tell(*link, open_ahead(*session, tokens.clone()));
        let verdict = verifying(*session, 0, tokens.len(), &[TokenId(7)], &[]);
        rig.tell(*link, with_tree(verdict, &tree));
    }
    let (steps, sent) = rig.settle();
    assert!(steps <= 4 + K as usize, "{steps} steps");
    let mut sides = 0;
    for (link, session, tokens) in &prompts {
        let parts = columns(&sent, *link);
        let keys = &parts[0].keys;
        let nodes: std::collections::BTreeSet<_> = keys.iter().map(|key| key.accepted).collect();
        assert!(nodes.len() > 2, "of all nodes only {nodes:?}");
        for (place, key) in keys.iter().enumerate() {
            let mut context = tokens.clone();
            context.push(TokenId(7));
            context.extend(tree.spelled(key.accepted));
            assert_eq!(
                tree.child(key.accepted, key.token),
                None,
                "it would be accepted"
            );
            context.push(key.token);
            let drafted: Vec<_> = parts.iter().map(|part| part.tokens[place]).collect();
            let expected = continuation(language(), *session, &context, K as usize);
            assert_eq!(drafted, expected, "{key:?}");
        }
        sides += parts.iter().map(|part| part.sides.len()).sum::<usize>();
    }
    assert!(sides > 0, "second choices cost nothing");
    // What was read of the tree is kept: the next one is read at once, and branches follow.
    let base = prompts[1].2.len() + 1;
    let emitted = [5, 33, 9, 60].map(TokenId);
    let verdict = verifying(2, 1, base, &emitted, &[]);
    rig.tell(B, with_tree(verdict, &tree));
    assert_eq!(rig.settle().0, 1 + K as usize);
    // A verdict down the second child: what was drafted for it is followed.
    let base = prompts[0].2.len() + 1;
    let emitted = [TokenId(9), TokenId(60)];
    rig.tell(A, outcome(1, 1, base, &emitted, 3));
    let (_, sent) = rig.settle();
    let context = [&prompts[0].2[..], &[TokenId(7)], &emitted].concat();
    let expected = continuation(language(), 1, &context, 3);
    assert_eq!(windows(&sent)[0].1.proposals.tokens(), expected);
    rig.worker.close_where(|_| true);
    rig.assert_idle();
}

/// The same verdict, after which `tree` is verified.
fn with_tree(verdict: ToDraft, tree: &Proposals) -> ToDraft {
    let ToDraft::Outcome(outcome) = verdict else {
        panic!("it is an outcome")
    };
    ToDraft::Outcome(Outcome {
        verifying: Some(tree.clone()),
        tree: Some(TreeBudget::new(12, 0.0)),
        ..outcome
    })
}

/// Frames with columns of a build, and the columns in each, as they are sent after every step.
fn columns_by_frame(rig: &mut Rig) -> Vec<usize> {
    let mut frames = Vec::new();
    loop {
        let worked = rig.worker.step();
        if worked {
            rig.worker.flush_urgent();
        } else {
            rig.worker.flush();
        }
        let columns = entries(&rig.take_sent()).len();
        frames.extend((columns > 0).then_some(columns));
        if !worked {
            return frames;
        }
    }
}

#[test]
fn columns_travel_together_if_the_verdict_is_far_off_and_alone_if_nothing_is_known_of_it() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let tokens = prompt(20);
    rig.tell(A, open_ahead(1, tokens.clone()));
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &[TokenId(5)]));
    assert_eq!(columns_by_frame(&mut rig), [1; K as usize]);
    rig.tell(A, verifying(1, 1, 21, &[TokenId(9)], &[TokenId(6)]));
    let learned = rig.worker.learned.entry(A).or_default();
    learned.timing.expect(1, 3000.0);
    assert_eq!(columns_by_frame(&mut rig), [K as usize]);
    // A verdict that comes while columns wait leaves nothing of them to be sent.
    rig.tell(A, verifying(1, 2, 22, &[TokenId(11)], &[TokenId(8)]));
    while rig.worker.outgoing.is_empty() {
        assert!(rig.worker.step(), "it drafts");
        rig.worker.flush_urgent();
    }
    rig.tell(A, outcome(1, 3, 23, &[TokenId(12)], 0));
    assert!(rig.worker.outgoing.is_empty() && rig.take_sent().is_empty());
}

#[test]
fn a_verdict_that_comes_twice_or_late_changes_nothing() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.settle();
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &[TokenId(5)]));
    rig.settle();
    rig.tell(A, verifying(1, 1, 21, &[TokenId(9)], &[TokenId(6)]));
    while rig.worker.outgoing.is_empty() {
        assert!(rig.worker.step(), "it drafts");
    }
    let known = |rig: &Rig| {
        let session = &rig.worker.sessions[0];
        let (timing, stats) = (&rig.worker.learned[&A].timing, session.draft.stats());
        let outlook = &session.outlook;
        format!("{:?} {timing:?} {stats:?} {outlook:?}", rig.worker.outgoing)
    };
    let before = known(&rig);
    for (round, base, token, window) in [(1, 21, 9, 6), (0, 20, 7, 5)] {
        rig.tell(
            A,
            verifying(1, round, base, &[TokenId(token)], &[TokenId(window)]),
        );
        assert_eq!(known(&rig), before);
    }
}

#[test]
fn a_step_that_only_keeps_the_next_round_waiting_is_not_begun_until_the_verdict_is_overdue() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &[TokenId(5)]));
    rig.tell(A, verifying(1, 1, 21, &[TokenId(9)], &[TokenId(6)]));
    rig.tell(A, verifying(1, 2, 22, &[TokenId(11)], &[TokenId(8)]));
    rig.collect();
    let expect = |rig: &mut Rig, seconds, step| {
        let learned = rig.worker.learned.entry(A).or_default();
        learned.timing.expect(1, seconds);
        rig.worker.steps = StepCost::new([(1, step), (64, step)].to_vec());
    };
    expect(&mut rig, 3000.0, MS);
    while rig.worker.outgoing.is_empty() {
        assert!(rig.worker.step(), "it drafts, as there is time");
    }
    expect(&mut rig, 1.0, 60_000 * MS);
    assert!(!rig.worker.step(), "the verdict comes before its end");
    assert!(rig.worker.sessions[0].draft.build().is_some());
    let resumes_in = |rig: &Rig| {
        let at = rig.worker.resumes_at.expect("it is paused");
        at.saturating_duration_since(Instant::now())
    };
    assert!(resumes_in(&rig) > 50_000 * MS);
    expect(&mut rig, 1e-6, 60_000 * MS);
    assert!(!rig.worker.step(), "the verdict is not overdue");
    assert!(resumes_in(&rig) <= 60_000 * MS && rig.worker.nap() <= 60_000 * MS);
    expect(&mut rig, 1e-6, MS);
    while !rig.worker.step() {
        assert!(resumes_in(&rig) <= MS);
        std::thread::sleep(MS / 10);
    }
}
