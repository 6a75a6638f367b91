//! What endpoints say of their work.

use foretoken_speculation::message::Account;

use super::*;

fn accounts(sent: Vec<(LinkId, ToTarget)>) -> Vec<Account> {
    let account = |(_, message)| match message {
        ToTarget::Account(account) => Some(account),
        _ => None,
    };
    sent.into_iter().filter_map(account).collect()
}

/// What is said of a verdict that decides the candidate of this rank after one token of the window, or
/// what is none.
fn account_of(rank: Option<usize>) -> Account {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let window = [TokenId(5), TokenId(9)];
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.tell(A, verifying(1, 0, 20, &[TokenId(7)], &window));
    let (_, sent) = rig.settle();
    let first = entries(&sent)[0].1.clone();
    let after_one = first.keys.iter().filter(|key| key.accepted == 1);
    let candidates: Vec<_> = after_one.map(|key| key.token).collect();
    let decided = match rank {
        Some(rank) => candidates[rank],
        // The next of the window would have been accepted.
        None => window[1],
    };
    rig.tell(
        A,
        verifying(1, 1, 21, &[window[0], decided], &[TokenId(2), TokenId(3)]),
    );
    let (_, sent) = rig.settle();
    let [account] = &accounts(sent)[..] else {
        panic!("one account of one verdict")
    };
    *account
}

#[test]
fn of_each_verdict_a_target_is_told_its_rank_and_what_was_done_for_it() {
    for rank in [0, 1] {
        let account = account_of(Some(rank));
        assert_eq!((account.session, account.epoch), (SessionId(1), Epoch(1)));
        let ranks = (account.judged, account.ranked, account.ranks);
        assert_eq!(ranks, (1, 1, rank as u32 + 1));
        assert!(account.ahead > Duration::ZERO, "{account:?}");
        assert_eq!(account.awaited, Duration::ZERO, "nobody waited");
        assert_eq!(account.limits.to_places().iter().sum::<u32>(), 1);
    }
    let unlikely = account_of(None);
    let ranks = (unlikely.judged, unlikely.ranked, unlikely.ranks);
    assert_eq!(ranks, (1, 0, 0));
}

#[test]
fn what_a_target_waited_for_is_told_apart() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.settle();
    rig.tell(A, outcome(1, 0, 20, &[TokenId(7)], 3));
    rig.settle();
    rig.tell(A, outcome(1, 1, 21, &[TokenId(8)], 3));
    let (_, sent) = rig.settle();
    let told = accounts(sent).pop().expect("an account");
    assert!(told.awaited > Duration::ZERO, "{told:?}");
}

#[test]
fn targets_that_want_nothing_ahead_are_told_nothing() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open(1, prompt(20)));
    rig.settle();
    for round in 0..3 {
        let base = 20 + round as usize;
        rig.tell(A, outcome(1, round, base, &[TokenId(round)], 4));
        let (_, sent) = rig.settle();
        assert!(!windows(&sent).is_empty());
        assert_eq!(accounts(sent), []);
    }
}

#[test]
fn an_account_has_no_frame_of_its_own_while_there_is_more_to_send() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.tell(A, open_ahead(1, prompt(20)));
    rig.tell(
        A,
        verifying(1, 0, 20, &[TokenId(7)], &[TokenId(5), TokenId(9)]),
    );
    rig.settle();
    rig.tell(
        A,
        verifying(1, 1, 21, &[TokenId(8)], &[TokenId(2), TokenId(3)]),
    );
    while rig.worker.step() {
        rig.worker.flush_urgent();
        let sent = rig.take_sent();
        if !sent.is_empty() {
            assert!(!entries(&sent).is_empty(), "with a column: {sent:?}");
            assert_eq!(accounts(sent).len(), 1);
            return;
        }
    }
    panic!("nothing was sent");
}

#[test]
fn targets_that_do_not_know_accounts_are_told_none() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let link = LinkId(9);
    let hello = Hello::default();
    rig.worker.take(0, ServerEvent::Up { link, hello });
    rig.tell(link, open_ahead(1, prompt(20)));
    let window = [TokenId(5), TokenId(9)];
    rig.tell(link, verifying(1, 0, 20, &[TokenId(7)], &window));
    let (_, sent) = rig.settle();
    assert!(!entries(&sent).is_empty());
    assert_eq!(accounts(sent), []);
}
