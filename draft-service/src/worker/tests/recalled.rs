//! What a branch has read, once its outcome comes about.

use std::collections::BTreeMap;

use foretoken_speculation::{guess::OutcomeKey, message::Entries};

use super::{branches::K, *};

const LEN: usize = 20;

/// Rounds of a target that decides as the draft does, so that all of a window is accepted. What becomes of
/// the endpoint's branches before each verdict is up to `fate`; `check` sees the worker after it, with the
/// tokens so far and those of the window.
fn play(
    config: &DraftConfig,
    rounds: u32,
    mut fate: impl FnMut(&mut Rig, u32, &[(LinkId, ToTarget)]),
    mut check: impl FnMut(&mut Rig, u32, (usize, usize)),
) -> Rig {
    let mut rig = Rig::new(config, language());
    // However long steps take here.
    rig.worker.unhurried = true;
    let mut tokens = prompt(LEN as u32);
    let truth = continuation(language(), 1, &tokens, (rounds * (K + 1)) as usize + 8);
    rig.tell(A, open_ahead(1, tokens.clone()));
    let mut window = Vec::new();
    for round in 0..rounds {
        let (_, sent) = rig.settle();
        fate(&mut rig, round, &sent);
        let after = &truth[tokens.len() - LEN..];
        let (emitted, after) = after.split_at(window.len() + 1);
        let key = OutcomeKey {
            accepted: window.len() as u32,
            token: emitted[window.len()],
        };
        window = continuations(&sent, round).remove(&key).expect("a hit");
        assert_eq!(window, &after[..K as usize], "round {round}");
        rig.tell(A, verifying(1, round, tokens.len(), emitted, &window));
        tokens.extend_from_slice(emitted);
        check(&mut rig, round, (tokens.len(), window.len()));
    }
    rig
}

/// Rounds of a target that verifies whatever comes for its verdicts, where there are so many pages; how often
/// a window was read by its branch.
fn live_with(pages: usize) -> usize {
    let options = SimOptions {
        pages,
        ..language()
    };
    let mut rig = Rig::new(&DraftConfig::default(), options);
    rig.worker.unhurried = true;
    let mut tokens = prompt(LEN as u32);
    let truth = continuation(language(), 1, &tokens, 80);
    rig.tell(A, open_ahead(1, tokens.clone()));
    let (mut window, mut kept) = (Vec::new(), 0);
    for round in 0..12 {
        let (_, sent) = rig.settle();
        let refused = |(_, message): &(_, ToTarget)| matches!(message, ToTarget::Refused { .. });
        assert!(!sent.iter().any(refused), "{pages} pages: {sent:?}");
        let emitted = &truth[tokens.len() - LEN..][..=window.len()];
        let key = OutcomeKey {
            accepted: window.len() as u32,
            token: emitted[window.len()],
        };
        let drafted = continuations(&sent, round).remove(&key);
        window = drafted.unwrap_or_default();
        rig.tell(A, verifying(1, round, tokens.len(), emitted, &window));
        tokens.extend_from_slice(emitted);
        let read = rig.worker.engine.len(rig.worker.sessions[0].seq);
        kept += usize::from(!window.is_empty() && read == Ok(tokens.len() + window.len() - 1));
    }
    kept
}

#[test]
fn however_few_pages_there_are_no_step_fails() {
    let kept: Vec<usize> = (5..40).map(live_with).collect();
    assert!(kept[0] < 6 && kept[kept.len() - 1] > 9, "{kept:?}");
}

/// What was sent for the outcomes of a round.
fn continuations(sent: &[(LinkId, ToTarget)], round: u32) -> BTreeMap<OutcomeKey, Vec<TokenId>> {
    let mut all = BTreeMap::new();
    for late in [false, true] {
        let parts = entries(sent).into_iter().map(|(_, part)| part);
        let of_round = |part: &&Entries| part.round == Round(round) && part.late == late;
        let mut own: Vec<(OutcomeKey, Vec<TokenId>)> = Vec::new();
        for part in parts.filter(of_round) {
            own.extend(part.keys.iter().map(|&key| (key, Vec::new())));
            for ((_, tokens), &token) in own.iter_mut().zip(&part.tokens) {
                tokens.push(token);
            }
        }
        for (key, tokens) in own {
            assert_eq!(
                all.insert(key, tokens),
                None,
                "an outcome is drafted for once"
            );
        }
    }
    all
}

#[test]
fn a_hit_leaves_only_the_last_token_of_its_window_to_be_read() {
    let mut rig = play(
        &DraftConfig::default(),
        12,
        |_, _, _| {},
        |rig, _, (decided, window)| {
            let session = &rig.worker.sessions[0];
            let len = |rig: &Rig| rig.worker.engine.len(rig.worker.sessions[0].seq).unwrap();
            assert_eq!(session.draft.tokens().len(), decided + window);
            assert_eq!(len(rig), decided + window - 1);
            assert!(session.forks.is_empty());
            // Branches begin in the step that reads it.
            assert!(rig.worker.step());
            assert_eq!(len(rig), decided + window);
            let first = rig.collect();
            let parts = entries(&first);
            assert_eq!(parts.len(), 1);
            assert!(!parts[0].1.late && parts[0].1.before == 0);
            assert!(!rig.worker.sessions[0].forks.is_empty());
            // They are looked at with those of the next steps.
            for (link, message) in first {
                rig.worker.answer(link, message);
            }
        },
    );
    rig.tell(A, close(1));
    rig.assert_idle();
}

#[test]
fn with_fewer_rows_than_outcomes_everything_granted_is_drafted() {
    let config = DraftConfig {
        max_step_rows: 6,
        ..DraftConfig::default()
    };
    play(&config, 8, |_, _, _| {}, |_, _, _| {});
}

#[test]
fn a_target_that_knows_no_late_entries_gets_none() {
    play(
        &DraftConfig::default(),
        6,
        |rig, _, sent| {
            let peer = rig.worker.links.get_mut(&A).expect("it is connected");
            peer.late_entries = false;
            assert!(entries(sent).iter().all(|(_, part)| !part.late));
        },
        |rig, _, (decided, _)| {
            let len = rig.worker.engine.len(rig.worker.sessions[0].seq);
            assert_eq!(len.unwrap(), decided - 1, "the window is read whole");
        },
    );
}

#[test]
fn without_its_fork_a_window_is_read_whole_and_nothing_else_changes() {
    play(
        &DraftConfig::default(),
        9,
        |rig, round, _| {
            if round % 2 == 1 {
                rig.worker.sessions[0].drop_branches(&mut rig.worker.engine);
            }
        },
        |rig, round, (decided, window)| {
            let len = rig.worker.engine.len(rig.worker.sessions[0].seq).unwrap();
            let kept = if round % 2 == 1 { 0 } else { window };
            assert_eq!(len, decided - 1 + kept, "round {round}");
        },
    );
}
