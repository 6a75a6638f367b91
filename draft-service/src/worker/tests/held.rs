//! What sessions hold is what they are counted for, whatever their targets say that they want.

use super::{
    branches::{open_ahead, verifying},
    sharing::{held, own_prompt, own_prompt_of, refusal},
    *,
};

fn rig() -> Rig {
    with_slots(64)
}

fn with_slots(max_sessions: usize) -> Rig {
    let config = DraftConfig {
        max_sessions,
        ..DraftConfig::default()
    };
    let options = SimOptions {
        pages: 24,
        ..language()
    };
    Rig::new(&config, options)
}

/// The session begins anew.
fn again(session: u64, tokens: Vec<TokenId>) -> ToDraft {
    let ToDraft::Open(again) = open(session, tokens) else {
        panic!("it opens")
    };
    let epoch = Epoch(2);
    ToDraft::Open(Open { epoch, ..again })
}

fn counted(rig: &Rig, link: LinkId) -> usize {
    let tenant = rig.worker.tenants.of(link).expect("it has dialled");
    rig.worker.held().trunks.of(tenant)
}

/// All pages of sessions are somebody's, and none is two's.
fn assert_all_counted(rig: &Rig) {
    let branches = rig.worker.sessions.iter().map(|s| s.forks.pages());
    let referenced = rig.worker.engine.usage().referenced;
    let trunks = referenced - branches.sum::<usize>();
    assert_eq!(counted(rig, A) + counted(rig, B), trunks);
}

#[test]
fn who_begins_anew_with_less_keeps_no_pages_of_what_was_read_before() {
    let mut rig = rig();
    let tokens = own_prompt_of(300, 1);
    rig.tell(A, open(1, tokens.clone()));
    rig.settle();
    assert_eq!(counted(&rig, A), 19);
    assert_all_counted(&rig);
    rig.tell(A, again(1, tokens[..1].to_vec()));
    rig.settle();
    assert_all_counted(&rig);
    rig.tell(B, open(2, own_prompt_of(150, 2)));
    let (_, sent) = rig.settle();
    assert_eq!(refusal(&sent, B, 2), None);
    assert_eq!([held(&rig, A), held(&rig, B)], [1, 1]);
    assert_eq!([counted(&rig, A), counted(&rig, B)], [1, 10]);
    assert_all_counted(&rig);
}

#[test]
fn a_window_that_is_over_keeps_no_pages() {
    let mut rig = rig();
    rig.tell(A, open_ahead(1, own_prompt_of(20, 1)));
    rig.tell(
        A,
        verifying(1, 0, 20, &[TokenId(7)], &own_prompt_of(200, 2)),
    );
    rig.settle();
    assert_eq!(counted(&rig, A), 14);
    rig.tell(A, verifying(1, 1, 21, &[TokenId(9)], &[]));
    assert_eq!(counted(&rig, A), 2);
    assert_all_counted(&rig);
    rig.settle();
    assert_all_counted(&rig);
}

#[test]
fn what_is_yet_to_be_read_counts_as_if_it_were() {
    let mut rig = rig();
    rig.tell(A, open(1, own_prompt_of(100, 1)));
    rig.tell(B, open(2, own_prompt_of(40, 2)));
    assert_eq!([counted(&rig, A), counted(&rig, B)], [7, 3]);
    rig.settle();
    // Other tokens take the place of those that were read.
    rig.tell(A, again(1, own_prompt_of(120, 3)));
    assert_eq!([counted(&rig, A), counted(&rig, B)], [8, 3]);
    rig.settle();
    assert_eq!([counted(&rig, A), counted(&rig, B)], [8, 3]);
    assert_all_counted(&rig);
}

/// The first of B has ten pages, and three of A nine, six of which they share.
fn with_shared_pages() -> Rig {
    let mut rig = rig();
    rig.tell(B, open(9, own_prompt_of(150, 9)));
    rig.settle();
    for session in 1..=3 {
        rig.tell(A, open(session, shared_prompt(session as u32)));
        rig.settle();
    }
    assert_eq!(rig.worker.engine.free_pages(), 5);
    rig
}

/// 96 tokens that all have, and eight that only one has.
fn shared_prompt(number: u32) -> Vec<TokenId> {
    [own_prompt_of(96, 1), own_prompt_of(8, number)].concat()
}

#[test]
fn pages_that_sessions_share_count_once() {
    let mut rig = with_shared_pages();
    assert_eq!([counted(&rig, A), counted(&rig, B)], [9, 10]);
    assert_all_counted(&rig);
    rig.tell(B, outcome(9, 0, 150, &own_prompt_of(100, 5), 1));
    let (_, sent) = rig.settle();
    let reason = Some("the endpoint ran out of KV pages");
    assert_eq!(refusal(&sent, B, 9), reason, "{sent:?}");
    assert_eq!([held(&rig, A), held(&rig, B)], [3, 0]);
    assert_all_counted(&rig);
}

#[test]
fn a_session_needs_no_pages_for_what_others_of_its_target_have() {
    let mut rig = with_shared_pages();
    rig.tell(B, outcome(9, 0, 150, &own_prompt_of(30, 5), 1));
    rig.settle();
    assert_eq!(rig.worker.engine.free_pages(), 3);
    rig.tell(A, open(4, shared_prompt(4)));
    let (_, sent) = rig.settle();
    assert_eq!(refusal(&sent, A, 4), None);
    assert_eq!([held(&rig, A), held(&rig, B)], [4, 1]);
    assert_eq!([counted(&rig, A), counted(&rig, B)], [10, 12]);
    assert_all_counted(&rig);
}

#[test]
fn a_session_makes_its_target_no_richer_by_what_others_of_it_have() {
    let mut rig = with_shared_pages();
    rig.tell(B, outcome(9, 0, 150, &own_prompt_of(50, 5), 1));
    rig.settle();
    assert_eq!([counted(&rig, A), counted(&rig, B)], [9, 13]);
    // A has less with it, though it alone has eight pages.
    let tokens = [own_prompt_of(96, 1), own_prompt_of(24, 4)].concat();
    rig.tell(A, open(4, tokens));
    let (_, sent) = rig.settle();
    let reason = refusal(&sent, B, 9);
    assert_eq!(reason, Some("its pages go to a target with fewer"));
    assert_eq!(refusal(&sent, A, 4), None);
    assert_eq!(counted(&rig, A), 11);
    assert_all_counted(&rig);
}

#[test]
fn what_is_left_without_a_session_is_known_before_it_goes() {
    let mut rig = with_shared_pages();
    let mut left = rig.worker.held();
    while let Some(session) = rig.worker.sessions.last() {
        let (link, id) = (session.link, session.draft.id());
        let tenant = rig.worker.tenants.of(link).expect("it has dialled");
        let (free, before) = (rig.worker.engine.free_pages(), left.trunks.of(tenant));
        let alone = left.alone(session, tenant, &rig.worker.engine);
        let freed = left.close(session, tenant, &rig.worker.engine);
        rig.worker.evict(link, id, "it is closed");
        assert_eq!(rig.worker.engine.free_pages() - free, freed);
        assert_eq!(before - left.trunks.of(tenant), alone);
        for link in [A, B] {
            let tenant = rig.worker.tenants.of(link).expect("it has dialled");
            assert_eq!(left.trunks.of(tenant), counted(&rig, link));
        }
    }
    rig.assert_idle();
}

#[test]
fn who_is_refused_leaves_no_page_referenced() {
    let mut rig = with_shared_pages();
    let tokens = [own_prompt_of(96, 1), own_prompt_of(200, 4)].concat();
    rig.tell(A, open(4, tokens));
    let (_, sent) = rig.settle();
    let reason = refusal(&sent, A, 4);
    assert_eq!(reason, Some("14 KV pages are needed and not free"));
    assert_eq!(rig.worker.engine.free_pages(), 5);
    assert_all_counted(&rig);
}

#[test]
fn pages_that_two_targets_share_are_given_back_by_none_of_them_alone() {
    // Those that give no name share a salt.
    let mut rig = rig();
    for (session, len) in [(1, 76), (2, 272)] {
        rig.tell(A, open(session, own_prompt_of(len, session as u32)));
        rig.settle();
    }
    rig.tell(A, outcome(1, 0, 76, &own_prompt_of(10, 3), 1));
    rig.settle();
    assert_eq!(rig.worker.engine.free_pages(), 1);
    let tokens = [own_prompt_of(272, 2), own_prompt_of(8, 9)].concat();
    rig.tell(B, open(9, tokens));
    let sent = rig.collect();
    let reason = refusal(&sent, B, 9);
    assert_eq!(reason, Some("2 KV pages are needed and not free"));
    assert_eq!([held(&rig, A), held(&rig, B)], [2, 0]);
}

#[test]
fn as_many_sessions_give_way_as_leave_their_target_no_less_than_the_other_has() {
    let pages = "its pages go to a target with fewer";
    let slot = "its slot goes to a target with fewer";
    for (max_sessions, reasons) in [(6, [pages, pages]), (5, [slot, pages])] {
        let mut rig = with_slots(max_sessions);
        for session in 1..=5 {
            rig.tell(A, open(u64::from(session), own_prompt(session)));
            rig.settle();
        }
        rig.tell(B, open(9, own_prompt_of(150, 9)));
        let (_, sent) = rig.settle();
        assert_eq!(refusal(&sent, B, 9), None);
        assert_eq!([held(&rig, A), held(&rig, B)], [3, 1]);
        for (session, reason) in [5, 4].into_iter().zip(reasons) {
            assert_eq!(refusal(&sent, A, session), Some(reason));
        }
    }
}
