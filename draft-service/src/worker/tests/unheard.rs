//! Messages that come faster than they are taken in.

use super::*;
use crate::inbox::Message;

const LONG: Duration = Duration::from_secs(3600);

fn post(rig: &mut Rig, event: ServerEvent) {
    assert!(rig.worker.hear(Message::Link(0, event)).is_continue());
}

fn post_messages(rig: &mut Rig, link: LinkId, messages: Vec<ToDraft>) {
    let messages = messages.into();
    post(rig, ServerEvent::Messages { link, messages });
}

/// Takes in one thing of each link; the answers.
fn listen(rig: &mut Rig) -> Vec<(LinkId, ToTarget)> {
    rig.worker.listen(Duration::ZERO);
    rig.collect()
}

/// Verdicts of sessions that there are none of, by number: each is answered.
fn verdicts(sessions: std::ops::Range<u64>) -> Vec<ToDraft> {
    let verdicts = sessions.map(|session| outcome(session, 0, 10, &[TokenId(1)], 4));
    verdicts.collect()
}

/// Of which sessions the link is told that there are none.
fn unknown(sent: &[(LinkId, ToTarget)], link: LinkId) -> Vec<u64> {
    let unknown = sent.iter().filter_map(|(to, message)| match message {
        ToTarget::Resync(resync) if *to == link => Some(resync.session.0),
        _ => None,
    });
    unknown.collect()
}

#[test]
fn a_link_that_says_much_at_once_keeps_no_other_waiting() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    post_messages(&mut rig, A, verdicts(0..4096));
    post_messages(&mut rig, B, verdicts(0..1));
    let sent = listen(&mut rig);
    assert_eq!(
        (unknown(&sent, A), unknown(&sent, B)),
        (vec![0], vec![0]),
        "one of each"
    );
    // What comes later of another waits no longer.
    post_messages(&mut rig, B, verdicts(1..3));
    let sent = listen(&mut rig);
    assert_eq!((unknown(&sent, A), unknown(&sent, B)), (vec![1], vec![1]));
    let sent = listen(&mut rig);
    assert_eq!((unknown(&sent, A), unknown(&sent, B)), (vec![2], vec![2]));
    rig.worker.listen(LONG);
    let rest: Vec<_> = (3..4096).collect();
    assert_eq!(
        unknown(&rig.collect(), A),
        rest,
        "in order, while there is time"
    );
    assert_eq!(rig.worker.unheard.links(), 0);
}

#[test]
fn whatever_a_link_says_is_taken_in_in_the_order_in_which_it_came() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    let link = LinkId(7);
    let hello = Hello::default();
    post(&mut rig, ServerEvent::Up { link, hello });
    post_messages(
        &mut rig,
        link,
        vec![open(1, prompt(10)), open(2, prompt(12))],
    );
    let malformed = Malformed {
        session: Some(SessionId(1)),
        reason: "odd".into(),
    };
    let malformed = vec![malformed].into();
    post(&mut rig, ServerEvent::Malformed { link, malformed });
    post_messages(&mut rig, link, Vec::new());
    post_messages(&mut rig, link, verdicts(1..2));
    let reason = "gone".into();
    post(&mut rig, ServerEvent::Down { link, reason });
    assert!(listen(&mut rig).is_empty() && rig.worker.links.contains_key(&link));
    for _ in 0..2 {
        let sent = listen(&mut rig);
        assert!(matches!(sent[..], [(LinkId(7), ToTarget::Opened { .. })]));
    }
    let sent = listen(&mut rig);
    assert!(matches!(&sent[..], [(_, refused)] if is_refusal(refused, true)));
    assert_eq!(unknown(&listen(&mut rig), link), [1]);
    assert_eq!(rig.worker.sessions.len(), 1);
    listen(&mut rig);
    assert!(!rig.worker.links.contains_key(&link));
    rig.assert_idle();
}

#[test]
fn nobody_sleeps_or_leaves_while_messages_wait() {
    let mut rig = Rig::new(&DraftConfig::default(), language());
    rig.worker.drain();
    assert!(rig.worker.may_leave());
    post_messages(&mut rig, A, verdicts(0..2));
    for _ in 0..2 {
        assert!(rig.worker.nap().is_zero() && !rig.worker.may_leave());
        listen(&mut rig);
    }
    assert!(!rig.worker.nap().is_zero() && rig.worker.may_leave());
}
