//! Pages that run out while branches have some: who gives which.

use foretoken_speculation::bounds::BoundCounts;

use super::{
    branches::K,
    sharing::{held, own_prompt, refusal},
    *,
};

const WINDOW: [TokenId; 5] = [TokenId(5), TokenId(9), TokenId(33), TokenId(1), TokenId(2)];

/// Builds are for so many outcomes, whatever time there is.
fn rig(pages: usize, branches: u32) -> Rig {
    let config = DraftConfig {
        max_branches: branches,
        ..DraftConfig::default()
    };
    let options = SimOptions {
        pages,
        ..language()
    };
    let mut rig = Rig::new(&config, options);
    rig.worker.unhurried = true;
    rig
}

/// Opens a session and has it draft for outcomes, until its branches have pages; says how many.
fn open_with_branches(rig: &mut Rig, link: LinkId, id: u64, len: u32) -> usize {
    rig.tell(link, open_ahead(id, prompt(len)));
    let decided = verifying(id, 0, len as usize, &[TokenId(7)], &WINDOW);
    rig.tell(link, decided);
    while branch_pages(rig, link, id) == 0 {
        assert!(rig.worker.step(), "a prompt, a glue pass and branches");
    }
    rig.collect();
    branch_pages(rig, link, id)
}

fn branch_pages(rig: &Rig, link: LinkId, id: u64) -> usize {
    let index = rig.worker.find(link, SessionId(id)).expect("has a slot");
    rig.worker.sessions[index].forks.pages()
}

fn dropped(rig: &Rig, link: LinkId, id: u64) -> u64 {
    let index = rig.worker.find(link, SessionId(id)).expect("has a slot");
    u64::from(rig.worker.sessions[index].draft.stats().dropped)
}

/// What is left can be ended, and has no page then.
fn leaves_nothing(mut rig: Rig) {
    rig.settle();
    rig.worker.close_where(|_| true);
    rig.assert_idle();
}

#[test]
fn a_session_and_its_branches_make_room_together_for_a_target_with_fewer_pages() {
    let mut rig = rig(17, 4);
    // Its sequence has 11 pages.
    assert_eq!(open_with_branches(&mut rig, A, 1, 160), 3);
    assert_eq!(rig.worker.engine.free_pages(), 3);
    // It needs more than is free without the branches.
    rig.tell(B, open(2, own_prompt(1).repeat(3)[..150].to_vec()));
    let sent = rig.collect();
    let reason = refusal(&sent, A, 1);
    assert_eq!(reason, Some("its pages go to a target with fewer"));
    assert_eq!(refusal(&sent, B, 2), None);
    assert_eq!([held(&rig, A), held(&rig, B)], [0, 1]);
    leaves_nothing(rig);
}

#[test]
fn who_is_refused_has_cost_nobody_anything() {
    let mut rig = rig(17, 4);
    open_with_branches(&mut rig, A, 1, 160);
    rig.tell(B, open(2, own_prompt(1).repeat(4)));
    let sent = rig.collect();
    let reason = refusal(&sent, B, 2);
    assert_eq!(reason, Some("18 KV pages are needed and not free"));
    assert_eq!(branch_pages(&rig, A, 1), 3);
    leaves_nothing(rig);
}

#[test]
fn branches_make_room_for_a_session_and_no_session_has_to_go() {
    // One of the same target, one of a target with less, and one of a target that will have more.
    for (link, len, pages) in [(A, 64, 14), (B, 64, 14), (B, 150, 16)] {
        let mut rig = rig(pages, 6);
        // Its sequence has 5.
        assert_eq!(open_with_branches(&mut rig, A, 1, 64), 4);
        rig.tell(link, open(2, own_prompt(1).repeat(3)[..len].to_vec()));
        let sent = rig.collect();
        assert_eq!(refusal(&sent, link, 2), None);
        assert_eq!(rig.worker.sessions.len(), 2, "{sent:?}");
        assert_eq!(branch_pages(&rig, A, 1), 0);
        assert_eq!(dropped(&rig, A, 1), 1);
        let account = rig.worker.sessions[0].account;
        assert_ne!(account.limits, BoundCounts::default(), "its target is told");
        leaves_nothing(rig);
    }
}

#[test]
fn the_branches_go_of_who_has_more_with_them_though_it_has_less_without() {
    let mut rig = rig(13, 12);
    // A has 2 pages and wants 6 for a fork each, B has 4 and wants 2.
    rig.tell(A, open_ahead(1, own_prompt(1)[..20].to_vec()));
    rig.tell(B, open_ahead(2, own_prompt(2)[..50].to_vec()));
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &WINDOW));
    rig.tell(B, verifying(2, 0, 50, &[TokenId(7)], &WINDOW[..1]));
    let (_, sent) = rig.settle();
    assert_eq!([dropped(&rig, A, 1), dropped(&rig, B, 2)], [1, 0]);
    assert!(entries(&sent).iter().all(|(to, _)| *to == B));
    leaves_nothing(rig);
}

#[test]
fn a_build_that_a_verdict_has_ended_keeps_nobody_out() {
    let mut rig = rig(14, 6);
    open_with_branches(&mut rig, A, 1, 64);
    rig.tell(A, outcome(1, 1, 65, &[TokenId(60)], 0));
    rig.tell(B, open(2, own_prompt(1)));
    assert_eq!(refusal(&rig.collect(), B, 2), None);
    let account = rig.worker.sessions[0].account;
    assert_eq!(
        account.limits,
        BoundCounts::default(),
        "pages cost it nothing"
    );
    leaves_nothing(rig);
}

#[test]
fn sessions_of_a_target_with_its_share_take_no_page_of_anothers_branches() {
    // Sessions of A have 4 pages each, that of B 2, and 4 for branches.
    let mut rig = rig(38, 6);
    for session in 10..17 {
        rig.tell(A, open(session, own_prompt(session as u32)));
        rig.settle();
    }
    open_with_branches(&mut rig, B, 1, 20);
    for session in 20..60 {
        rig.tell(A, open(session, own_prompt(session as u32)));
    }
    let sent = rig.collect();
    assert!(sent.iter().all(|(_, message)| is_refusal(message, true)));
    assert_eq!((sent.len(), branch_pages(&rig, B, 1)), (40, 4));
    leaves_nothing(rig);
}

/// Rounds of a session of B that drafts ahead, while A opens all sessions that it has not, after
/// some have decided something; says how many of A's had to go.
fn rounds_beside_a_flood(rig: &mut Rig, rounds: u32, mut base: usize) -> usize {
    let mut gone = 0;
    for round in 0..rounds {
        let verdict = verifying(1, round, base, &[TokenId(round % 64)], &WINDOW);
        rig.tell(B, verdict);
        base += 1;
        let (_, sent) = rig.settle();
        let reason = Some("its pages go to a target with fewer");
        gone += (10..30)
            .filter(|&id| refusal(&sent, A, id) == reason)
            .count();
        let drafted = entries(&sent).into_iter().filter(|(to, _)| *to == B);
        assert_eq!(drafted.count(), K as usize, "round {round}");
        flood(rig);
        rig.settle();
    }
    gone
}

fn flood(rig: &mut Rig) {
    for session in 10..30 {
        if rig.worker.find(A, SessionId(session)).is_none() {
            rig.tell(A, open(session, own_prompt(session as u32)));
        }
    }
}

#[test]
fn a_flood_of_sessions_costs_no_other_target_its_branches_and_does_not_come_back_for_them() {
    let mut rig = rig(40, 6);
    flood(&mut rig);
    rig.settle();
    assert_eq!(held(&rig, A), 9, "nobody else wants any");
    rig.tell(B, open_ahead(1, prompt(20)));
    let gone = rounds_beside_a_flood(&mut rig, 40, 20);
    assert_eq!(dropped(&rig, B, 1), 0);
    assert_eq!((gone, held(&rig, A)), (1, 8));
    leaves_nothing(rig);
}

#[test]
fn a_target_with_its_share_grows_at_its_own_expense() {
    let mut rig = rig(38, 6);
    for session in 10..18 {
        rig.tell(A, open(session, own_prompt(session as u32)));
        rig.settle();
    }
    open_with_branches(&mut rig, B, 1, 20);
    assert_eq!(rig.worker.engine.free_pages(), 0);
    rig.tell(A, outcome(10, 0, 64, &[TokenId(9)], 1));
    let (_, sent) = rig.settle();
    let reason = refusal(&sent, A, 17);
    assert_eq!(reason, Some("its pages go to a target with fewer"));
    assert_eq!(windows(&sent).len(), 1);
    assert_eq!(dropped(&rig, B, 1), 0);
    assert_eq!([held(&rig, A), held(&rig, B)], [7, 1]);
    leaves_nothing(rig);
}

#[test]
fn no_session_goes_for_branches_if_its_target_had_less_than_theirs_then() {
    let mut rig = rig(30, 6);
    rig.tell(A, open(10, own_prompt(1).repeat(7)[..390].to_vec()));
    rig.settle();
    rig.tell(B, open_ahead(1, prompt(20)));
    rig.settle();
    rig.tell(B, verifying(1, 0, 20, &[TokenId(7)], &WINDOW));
    rig.settle();
    assert_eq!([held(&rig, A), held(&rig, B)], [1, 1]);
    assert_eq!(dropped(&rig, B, 1), 1);
    leaves_nothing(rig);
}

#[test]
fn no_session_goes_for_branches_that_do_not_fit_all_the_same() {
    // A has 12 and 2 pages; branches want 6 and have 2, those of the smaller session are not enough.
    let mut rig = rig(18, 12);
    rig.tell(A, open(10, own_prompt(1).repeat(3)));
    rig.tell(A, open(11, own_prompt(2)[..32].to_vec()));
    rig.settle();
    assert_eq!(held(&rig, A), 2);
    rig.tell(B, open_ahead(1, prompt(20)));
    rig.tell(B, verifying(1, 0, 20, &[TokenId(7)], &WINDOW));
    rig.settle();
    assert_eq!([held(&rig, A), held(&rig, B)], [2, 1]);
    assert_eq!(dropped(&rig, B, 1), 1);
    leaves_nothing(rig);
}

#[test]
fn a_shared_page_that_is_cut_into_costs_no_other_target_its_session() {
    let mut rig = rig(12, 6);
    let start = [prompt(28), vec![TokenId(7)]].concat();
    rig.tell(A, open(1, start[..28].to_vec()));
    rig.tell(A, outcome(1, 0, 28, &[TokenId(7)], 4));
    let (_, sent) = rig.settle();
    let drafted = windows(&sent)[0].1.proposals.tokens().to_vec();
    // It holds two whole pages, the last of which ends with what was drafted. Another has the same.
    let same = [&start[..], &drafted[..3], &own_prompt(3)[..8]].concat();
    rig.tell(A, open(2, same));
    rig.settle();
    assert_eq!(rig.worker.metrics.prefix_hits.get(), 32);
    rig.tell(B, open(9, own_prompt(9)[..8].to_vec()));
    rig.tell(A, open(3, own_prompt(5)[..20].to_vec()));
    rig.settle();
    rig.tell(A, outcome(3, 0, 20, &[TokenId(3); 80], 1));
    rig.settle();
    assert_eq!(rig.worker.engine.free_pages(), 1);
    // Nothing of what was drafted is right, so the page is copied, and another begins.
    let other = TokenId((drafted[0].0 + 1) % 64);
    rig.tell(A, outcome(1, 1, 29, &[other; 5], 1));
    rig.tell(B, outcome(9, 0, 8, &[TokenId(1)], 1));
    let (_, sent) = rig.settle();
    assert_eq!(refusal(&sent, B, 9), None, "{sent:?}");
    assert_eq!([held(&rig, A), held(&rig, B)], [2, 1]);
    leaves_nothing(rig);
}

#[test]
fn who_would_be_refused_whatever_there_is_costs_nobody_a_slot() {
    let config = DraftConfig {
        max_sessions: 2,
        ..DraftConfig::default()
    };
    let mut rig = Rig::new(&config, language());
    rig.tell(A, open(1, prompt(8)));
    rig.tell(A, open(2, prompt(8)));
    rig.collect();
    // No token of the vocabulary.
    rig.tell(B, open(9, vec![TokenId(64)]));
    let sent = rig.collect();
    assert!(
        matches!(&sent[..], [(to, message)] if *to == B && is_refusal(message, false)),
        "{sent:?}"
    );
    assert_eq!(held(&rig, A), 2);
}
