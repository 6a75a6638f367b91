use foretoken_speculation::{
    Epoch, Round, Seed, SessionId, TokenId,
    message::{Account, Entries, Open, Outcome, Window},
    sampling::SamplingParams,
};
use futures::FutureExt as _;
use futures::StreamExt as _;

use super::*;

fn outcome(session: u64, round: u32) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(session),
        epoch: Epoch(1),
        round: Round(round),
        base_len: 0,
        tokens: vec![TokenId(0)],
        lookahead: 1,
        ..Outcome::default()
    })
}

fn open(session: u64, len: usize) -> ToDraft {
    ToDraft::Open(Open {
        session: SessionId(session),
        epoch: Epoch(1),
        sampling: SamplingParams::default(),
        seed: Seed(0),
        prompt_len: 0,
        tokens: vec![TokenId(0); len],
        ..Open::default()
    })
}

fn close(session: u64) -> ToDraft {
    ToDraft::Close {
        session: SessionId(session),
        epoch: Epoch(1),
    }
}

/// The next frame, if there is one now.
fn next(outgoing: &mut Outgoing<TargetFrame>) -> Option<TargetFrame> {
    outgoing
        .next()
        .now_or_never()
        .map(|frame| frame.expect("the connection lives"))
}

/// What an endpoint says of a round: the window that is to be verified in it, and what is drafted ahead of
/// that verdict.
fn window(session: u64, round: u32) -> ToTarget {
    ToTarget::Window(Window {
        session: SessionId(session),
        round: Round(round),
        ..Window::default()
    })
}

fn entries(session: u64, round: u32) -> ToTarget {
    ToTarget::Entries(Entries {
        session: SessionId(session),
        round: Round(round),
        ..Entries::default()
    })
}

/// A queue of an endpoint, with an open connection.
fn answering(capacity: usize) -> (Arc<Queue<DraftFrame>>, Outgoing<DraftFrame>) {
    let queue = Arc::new(Queue::new(capacity, Arc::default()));
    let mut outgoing = queue.connect(Welcome::default());
    outgoing.next().now_or_never().expect("introduces itself");
    queue.open(1 << 20);
    (queue, outgoing)
}

/// A queue with an open connection that has introduced itself.
fn opened(capacity: usize, max_frame: usize) -> (Arc<Queue<TargetFrame>>, Outgoing<TargetFrame>) {
    let queue = Arc::new(Queue::new(capacity, Arc::default()));
    let mut outgoing = queue.connect(Hello::default());
    let first = next(&mut outgoing).expect("introduces itself");
    assert_eq!(first.hello, Some((VERSION, Hello::default())));
    assert_eq!(next(&mut outgoing), None);
    queue.open(max_frame);
    (queue, outgoing)
}

#[test]
fn everything_that_waits_goes_out_in_order_in_one_frame() {
    let (queue, mut outgoing) = opened(100, 1 << 20);
    queue.push(vec![open(1, 5), outcome(1, 0)]).expect("is up");
    queue.push(vec![outcome(1, 1)]).expect("is up");
    queue.beat(Instant::now());
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [open(1, 5), outcome(1, 0), outcome(1, 1)]);
    assert_eq!(frame.beat, Some(1));
    assert_eq!(next(&mut outgoing), None);
}

#[test]
fn nothing_is_kept_while_the_link_is_down() {
    let queue: Arc<Queue<TargetFrame>> = Arc::new(Queue::new(10, Arc::default()));
    assert_eq!(queue.push(vec![close(1)]), Err(SendError::Down));
    let mut outgoing = queue.connect(Hello::default());
    assert_eq!(
        queue.push(vec![close(1)]),
        Err(SendError::Down),
        "not before the welcome"
    );
    queue.open(1 << 20);
    queue.push(vec![close(1)]).expect("is up");
    queue.close();
    assert_eq!(
        outgoing.next().now_or_never(),
        Some(None),
        "the stream ends"
    );
    assert_eq!(queue.push(vec![close(2)]), Err(SendError::Down));
    let mut again = queue.connect(Hello::default());
    assert_eq!(
        outgoing.next().now_or_never(),
        Some(None),
        "the old stream takes nothing"
    );
    queue.open(1 << 20);
    assert_eq!(next(&mut again).expect("introduces itself").messages, []);
}

#[test]
fn on_overflow_superseded_outcomes_go_first() {
    let (queue, mut outgoing) = opened(4, 1 << 20);
    queue
        .push(vec![
            open(1, 1),
            outcome(1, 0),
            outcome(2, 0),
            outcome(1, 1),
        ])
        .expect("fits");
    let lost = queue.push(vec![outcome(1, 2)]);
    assert_eq!(
        lost,
        Err(SendError::Overflow {
            sessions: vec![SessionId(1)]
        })
    );
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [open(1, 1), outcome(2, 0), outcome(1, 2)]);
}

#[test]
fn on_overflow_what_only_tells_goes_before_the_window_that_it_comes_with() {
    let (queue, mut outgoing) = answering(3);
    let account = |session| {
        ToTarget::Account(Account {
            session: SessionId(session),
            ..Account::default()
        })
    };
    for session in 1..=2 {
        queue.push(vec![account(session), window(session, 1)]).ok();
    }
    let frame = outgoing.next().now_or_never().flatten().expect("a frame");
    assert_eq!(frame.messages, [window(1, 1), window(2, 1)]);
}

#[test]
fn on_overflow_what_was_drafted_for_earlier_verdicts_goes_and_the_window_that_is_waited_for_stays()
{
    let (queue, mut outgoing) = answering(3);
    queue
        .push(vec![window(1, 1), entries(1, 1), entries(1, 1)])
        .expect("fits");
    let lost = queue.push(vec![window(1, 2), entries(1, 2)]);
    let sessions = vec![SessionId(1)];
    assert_eq!(lost, Err(SendError::Overflow { sessions }));
    let frame = outgoing.next().now_or_never().flatten().expect("a frame");
    assert_eq!(frame.messages, [window(1, 2), entries(1, 2)]);
}

#[test]
fn on_overflow_what_a_session_said_before_its_end_goes_before_anything_of_others() {
    let (queue, mut outgoing) = opened(3, 1 << 20);
    for message in [outcome(1, 5), close(1), open(2, 1)] {
        queue.push(vec![message]).expect("fits");
    }
    let lost = queue.push(vec![outcome(3, 0)]);
    let sessions = vec![SessionId(1)];
    assert_eq!(lost, Err(SendError::Overflow { sessions }));
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [close(1), open(2, 1), outcome(3, 0)]);
}

#[test]
fn bytes_that_wait_are_bounded_however_few_messages_they_are_in() {
    const FRAME: usize = 10_000;
    let (queue, mut outgoing) = opened(1000, FRAME);
    let size = open(1, 1000).frame_size();
    let lost: BTreeSet<_> = (1..=100)
        .filter(|&session| queue.push(vec![open(session, 1000)]).is_err())
        .collect();
    let kept = (100 - lost.len()) * size;
    assert!((MOST_FRAMES - 1) * FRAME < kept && kept <= MOST_FRAMES * FRAME);
    queue.push(vec![close(1)]).ok();
    let mut sent = Vec::new();
    while let Some(frame) = next(&mut outgoing) {
        sent.extend(frame.messages);
    }
    assert!(sent.contains(&close(1)), "it must not be lost");
    // What has left makes room.
    let nothing = Room {
        messages: 0,
        bytes: 0,
    };
    assert!(!queue.lock().backlog.exceeds(nothing));
}

#[test]
fn on_overflow_without_superseded_messages_the_newest_go_but_never_a_close() {
    let (queue, mut outgoing) = opened(2, 1 << 20);
    queue.push(vec![open(1, 1), open(2, 1)]).expect("fits");
    let lost = queue.push(vec![open(3, 1), close(4)]);
    let sessions = vec![SessionId(2), SessionId(3)];
    assert_eq!(lost, Err(SendError::Overflow { sessions }));
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [open(1, 1), close(4)]);
}

/// A queue with an open connection whose peer grants nothing any more.
fn starved(capacity: usize) -> (Arc<Queue<TargetFrame>>, Outgoing<TargetFrame>) {
    let (queue, mut outgoing) = opened(capacity, 1 << 20);
    for round in 0..CREDIT_WINDOW {
        queue.push(vec![outcome(0, round)]).expect("is up");
        next(&mut outgoing).expect("a frame");
    }
    (queue, outgoing)
}

#[test]
fn sessions_that_end_before_anything_of_them_has_left_leave_nothing_behind() {
    const CAPACITY: usize = 8;
    let (queue, mut outgoing) = starved(CAPACITY);
    queue.push(vec![outcome(0, CREDIT_WINDOW)]).expect("fits");
    for session in 1..=100 * CAPACITY as u64 {
        let begin = vec![open(session, 1), outcome(session, 0)];
        queue.push(begin).expect("fits");
        queue.push(vec![close(session)]).expect("fits");
        assert_eq!(queue.lock().backlog.len(), 1);
    }
    queue.granted(100);
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [outcome(0, CREDIT_WINDOW)]);
}

#[test]
fn a_session_that_the_peer_may_know_is_closed_and_says_nothing_else() {
    let (queue, mut outgoing) = starved(8);
    let ToDraft::Open(again) = open(1, 1) else {
        unreachable!("just made")
    };
    let again = |epoch| {
        let epoch = Epoch(epoch);
        ToDraft::Open(Open {
            epoch,
            ..again.clone()
        })
    };
    let close_of = |epoch| ToDraft::Close {
        session: SessionId(1),
        epoch: Epoch(epoch),
    };
    queue.push(vec![again(2), outcome(2, 5)]).expect("fits");
    let turns = vec![outcome(1, 6), close_of(2), again(3)];
    queue.push(turns).expect("fits");
    queue.granted(100);
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages, [outcome(2, 5), close_of(2), again(3)]);
}

#[test]
fn a_queue_in_which_too_much_waits_that_must_not_be_lost_is_stuck_and_keeps_nothing() {
    const CAPACITY: usize = 8;
    let (queue, mut outgoing) = starved(CAPACITY);
    let mut refused = 0;
    for session in 1..=100 * CAPACITY as u64 {
        match queue.push(vec![close(session)]) {
            Ok(()) => assert!(!queue.is_stuck(Duration::MAX)),
            Err(error) => {
                assert_eq!(error, SendError::Down);
                refused += 1;
            }
        }
        assert!(queue.lock().backlog.len() <= CAPACITY);
    }
    assert_eq!(refused, 99 * CAPACITY);
    assert!(queue.is_stuck(Duration::MAX));
    queue.beat(Instant::now());
    let frame = next(&mut outgoing).expect("its end is for others to see");
    assert_eq!((frame.messages, frame.beat), (Vec::new(), Some(1)));
    queue.close();
    let _again = queue.connect(Hello::default());
    queue.open(1 << 20);
    assert!(!queue.is_stuck(Duration::ZERO));
    queue.push(vec![close(1)]).expect("is up");
}

#[test]
fn a_queue_is_stuck_once_messages_have_waited_too_long_and_none_was_taken() {
    const PATIENCE: Duration = Duration::from_secs(10);
    let beat = |queue: &Queue<TargetFrame>, ago| {
        let long_ago = Instant::now().checked_sub(ago).expect("a time");
        queue.beat(long_ago);
        queue.is_stuck(PATIENCE)
    };
    // Whether the peer lets nothing more be sent, or does not read.
    for (queue, mut outgoing) in [starved(8), opened(8, 1 << 20)] {
        assert!(!beat(&queue, 5 * PATIENCE), "nothing waits");
        queue.push(vec![close(1)]).expect("fits");
        assert!(!beat(&queue, PATIENCE / 2), "not for long");
        queue.granted(1);
        next(&mut outgoing).expect("a frame");
        queue.push(vec![close(2)]).expect("fits");
        assert!(!beat(&queue, 2 * PATIENCE), "one was taken since");
        assert!(beat(&queue, 2 * PATIENCE));
        queue.granted(1);
        assert!(beat(&queue, Duration::ZERO), "and it still waits");
    }
}

#[test]
fn no_more_is_sent_than_the_peer_has_granted() {
    let (queue, mut outgoing) = opened(1 << 20, 1 << 30);
    let total = CREDIT_WINDOW + 10;
    queue
        .push((0..total).map(|round| outcome(1, round)).collect())
        .expect("fits");
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages.len(), CREDIT_WINDOW as usize);
    assert_eq!(next(&mut outgoing), None);
    queue.granted(3);
    let frame = next(&mut outgoing).expect("a frame");
    assert_eq!(frame.messages[0], outcome(1, CREDIT_WINDOW));
    assert_eq!(frame.messages.len(), 3);
}

#[test]
fn frames_keep_to_the_peers_limit_and_what_never_fits_is_reported() {
    let (queue, mut outgoing) = opened(100, 5000);
    let lost = queue.push(vec![open(1, 1000), open(2, 1300), open(3, 1000), close(3)]);
    assert_eq!(
        lost,
        Err(SendError::Overflow {
            sessions: vec![SessionId(2)]
        })
    );
    assert_eq!(
        next(&mut outgoing).expect("a frame").messages,
        [open(1, 1000)]
    );
    assert_eq!(
        next(&mut outgoing).expect("a frame").messages,
        [open(3, 1000), close(3)]
    );
}

#[test]
fn a_push_wakes_the_stream() {
    let (queue, mut outgoing) = opened(10, 1 << 20);
    // As whoever runs the links' runtime does.
    queue.departures.begin();
    let sender = std::thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.push(vec![close(1)])
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("runtime");
    let frame = runtime
        .block_on(outgoing.next())
        .expect("the connection lives");
    assert_eq!(frame.messages, [close(1)]);
    sender.join().expect("ends").expect("is up");
}
