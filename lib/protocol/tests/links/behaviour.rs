//! What links promise, one by one.

use std::{sync::atomic::Ordering, time::Duration};

use foretoken_protocol::link::{
    LinkEvent, LinkId, LinkOptions, LoadReport, SendError, ServerEvent, Transport,
    TransportOptions, Welcome,
};
use foretoken_speculation::{
    Epoch, Round, Seed, SessionId, TokenId,
    message::{Open, Outcome, ToDraft, ToTarget, Window},
    sampling::SamplingParams,
};
use tokio_util::sync::CancellationToken;

use crate::carrier::{
    Endpoint, LONG, dial, eager, hello, over_sockets, serve, through_proxy, wait, wait_up, welcome,
};

pub(crate) fn outcome(session: u64, round: u32) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(session),
        epoch: Epoch(1),
        round: Round(round),
        base_len: 0,
        tokens: vec![TokenId(1); 3],
        lookahead: 4,
        ..Outcome::default()
    })
}

pub(crate) fn open(session: u64, len: usize) -> ToDraft {
    ToDraft::Open(Open {
        session: SessionId(session),
        epoch: Epoch(1),
        sampling: SamplingParams::default(),
        seed: Seed(1),
        prompt_len: 0,
        tokens: vec![TokenId(2); len],
        ..Open::default()
    })
}

pub(crate) fn window(session: u64, round: u32) -> ToTarget {
    ToTarget::Window(Window {
        session: SessionId(session),
        epoch: Epoch(1),
        round: Round(round),
        base_len: 0,
        proposals: vec![TokenId(1); 4].into(),
        ..Window::default()
    })
}

pub(crate) fn wait_link(endpoint: &Endpoint) -> LinkId {
    wait(&endpoint.events, |event| match event {
        ServerEvent::Up { link, hello: peer } => {
            assert_eq!(peer, hello());
            Some(link)
        }
        _ => None,
    })
}

pub(crate) fn received(endpoint: &Endpoint, count: usize) -> Vec<ToDraft> {
    let mut all = Vec::new();
    while all.len() < count {
        wait(&endpoint.events, |event| match event {
            ServerEvent::Messages { messages, .. } => {
                all.extend(messages);
                Some(())
            }
            _ => None,
        });
    }
    all
}

#[test]
fn both_ends_learn_who_the_other_is() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let target = dial(endpoint.server.address(), hello(), eager());
        assert_eq!(wait_up(&target), welcome());
        wait_link(&endpoint);
    });
}

#[test]
fn thousands_of_messages_arrive_once_and_in_order_both_ways() {
    const COUNT: u32 = 20_000;
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let target = dial(endpoint.server.address(), hello(), eager());
        wait_up(&target);
        let link = wait_link(&endpoint);
        let (mut next, mut answered) = (0, 0);
        while next < COUNT {
            let end = (next + 1 + next % 97).min(COUNT);
            let batch = (next..end).map(|round| outcome(1, round)).collect();
            match target.link.send(batch) {
                Ok(()) => next = end,
                other => panic!("{other:?}"),
            }
            // A queue of thousands never overflows if the other end is waited for.
            let got = received(&endpoint, 1);
            let from = got.first().cloned().expect("at least one");
            assert_eq!(from, outcome(1, end - got.len() as u32));
            let answers = got.iter().zip(end - got.len() as u32..);
            let answers = answers.map(|(message, round)| {
                assert_eq!(*message, outcome(1, round));
                window(1, round)
            });
            endpoint
                .server
                .send(link, answers.collect())
                .expect("is up");
            while answered < end {
                let messages = wait(&target.events, |event| match event {
                    LinkEvent::Messages(messages) => Some(messages),
                    _ => None,
                });
                for message in messages {
                    assert_eq!(message, window(1, answered));
                    answered += 1;
                }
            }
        }
    });
}

#[test]
fn incompatible_ends_are_refused_with_the_reason_before_any_message() {
    over_sockets(|address| {
        for (other, word) in [
            (
                Welcome {
                    vocab_size: 13,
                    ..welcome()
                },
                "12 entries, the endpoint of 13",
            ),
            (
                Welcome {
                    tokenizer_digest: "x".into(),
                    ..welcome()
                },
                "tokenizer",
            ),
        ] {
            let endpoint = serve(address, other, eager());
            let target = dial(endpoint.server.address(), hello(), eager());
            let event = target.events.recv_timeout(LONG).expect("an event");
            let LinkEvent::Incompatible(reason) = event else {
                panic!("{event:?}")
            };
            assert!(reason.contains(word), "{reason}");
            assert_eq!(target.link.send(vec![open(1, 1)]), Err(SendError::Down));
            let told = endpoint.events.try_recv();
            let Ok(ServerEvent::Refused { reason, .. }) = told else {
                panic!("{told:?}")
            };
            assert!(reason.contains(word), "{reason}");
        }
    });
}

#[test]
fn a_target_that_starts_first_finds_its_endpoint_later() {
    over_sockets(|address| {
        // Finds a free port, and leaves it.
        let address = serve(address, welcome(), eager()).server.address().clone();
        let target = dial(&address, hello(), eager());
        let first = target.events.recv_timeout(LONG).expect("an event");
        assert!(matches!(first, LinkEvent::Down(_)), "{first:?}");
        assert_eq!(target.link.send(vec![open(1, 1)]), Err(SendError::Down));
        let _endpoint = serve(&address, welcome(), eager());
        let mut last = first;
        while !matches!(last, LinkEvent::Up(_)) {
            let next = target.events.recv_timeout(LONG).expect("an event");
            assert_ne!(next, last, "said once, until another reason keeps it down");
            last = next;
        }
    });
}

#[test]
fn a_lost_endpoint_is_noticed_and_found_again() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let address = endpoint.server.address().clone();
        let target = dial(&address, hello(), eager());
        wait_up(&target);
        drop(endpoint);
        wait(&target.events, |event| {
            matches!(event, LinkEvent::Down(_)).then_some(())
        });
        assert_eq!(target.link.send(vec![open(1, 1)]), Err(SendError::Down));
        let endpoint = serve(&address, welcome(), eager());
        wait_up(&target);
        target.link.send(vec![open(1, 1)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [open(1, 1)]);
        // What was meant for the lost connection is not for this one.
        for up in [0, 1, 3] {
            let sent = target.link.send_over(up, vec![open(2, 1)]);
            assert_eq!(sent, Err(SendError::Down), "{up}");
        }
        target.link.send_over(2, vec![open(3, 1)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [open(3, 1)]);
    });
}

#[test]
fn the_leases_of_a_lost_target_expire() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let target = dial(endpoint.server.address(), hello(), eager());
        wait_up(&target);
        let link = wait_link(&endpoint);
        let other = dial(endpoint.server.address(), hello(), eager());
        wait_up(&other);
        let other_link = wait_link(&endpoint);
        target.stop.cancel();
        let down = wait(&endpoint.events, |event| match event {
            ServerEvent::Down { link, .. } => Some(link),
            _ => None,
        });
        assert_eq!(down, link);
        assert_eq!(
            endpoint.server.send(link, vec![window(1, 1)]),
            Err(SendError::Down)
        );
        endpoint
            .server
            .send(other_link, vec![window(5, 1)])
            .expect("the other link is untouched");
        other
            .link
            .send(vec![outcome(5, 0)])
            .expect("the other link is untouched");
        assert_eq!(received(&endpoint, 1), [outcome(5, 0)]);
    });
}

#[test]
fn a_peer_killed_in_the_middle_of_a_message_leaves_no_half_of_it() {
    over_sockets(|address| {
        let (endpoint, proxy, target) = through_proxy(address, eager());
        for corrupts in [false, true] {
            wait_up(&target);
            target.link.send(vec![outcome(1, 0)]).expect("is up");
            assert_eq!(received(&endpoint, 1), [outcome(1, 0)]);
            proxy
                .orders
                .harm_after(if corrupts { 1 } else { 20_000 }, corrupts, false);
            target.link.send(vec![open(7, 50_000)]).expect("is up");
            wait(&endpoint.events, |event| match event {
                ServerEvent::Down { .. } => Some(()),
                ServerEvent::Messages { messages, .. } => panic!("{messages:?}"),
                _ => None,
            });
        }
        wait_up(&target);
        target.link.send(vec![open(8, 50_000)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [open(8, 50_000)]);
    });
}

#[test]
fn a_silent_peer_is_suspected_then_dropped() {
    let impatient = LinkOptions {
        beat: Duration::from_millis(50),
        suspect_after: Duration::from_millis(200),
        dead_after: Duration::from_secs(10),
        ..eager()
    };
    over_sockets(|address| {
        let (endpoint, proxy, target) = through_proxy(address, impatient);
        wait_up(&target);
        proxy.orders.frozen.store(true, Ordering::SeqCst);
        let suspected = wait(&target.events, |event| match event {
            LinkEvent::Suspect(suspect) => Some(suspect),
            LinkEvent::Down(reason) => panic!("{reason}"),
            _ => None,
        });
        assert!(suspected);
        let reason = wait(&target.events, |event| match event {
            LinkEvent::Down(reason) => Some(reason),
            _ => None,
        });
        assert!(reason.contains("nothing heard"), "{reason}");
        wait(&endpoint.events, |event| {
            matches!(event, ServerEvent::Down { .. }).then_some(())
        });
        proxy.orders.frozen.store(false, Ordering::SeqCst);
        wait_up(&target);
    });
}

#[test]
fn a_peer_that_does_not_keep_up_costs_superseded_rounds_and_never_the_newest() {
    let small = LinkOptions {
        queue: 64,
        ..eager()
    };
    over_sockets(|address| {
        let (endpoint, proxy, target) = through_proxy(address, small);
        wait_up(&target);
        proxy.orders.frozen.store(true, Ordering::SeqCst);
        let mut last = 0;
        let mut overflows = 0;
        // Until sockets, windows and credit are used up and the queue has overflowed repeatedly.
        while overflows < 20 {
            last += 1;
            match target
                .link
                .send((1..=8).map(|session| outcome(session, last)).collect())
            {
                Ok(()) => {}
                Err(SendError::Overflow { sessions }) => {
                    assert!(sessions.iter().all(|session| (1..=8).contains(&session.0)));
                    overflows += 1;
                }
                Err(SendError::Down) => panic!("the link is up"),
            }
        }
        proxy.orders.frozen.store(false, Ordering::SeqCst);
        let mut newest = [0; 9];
        while newest[1..].iter().any(|round| *round < last) {
            for message in received(&endpoint, 1) {
                let ToDraft::Outcome(outcome) = message else {
                    panic!("{message:?}")
                };
                let newest = &mut newest[outcome.session.0 as usize];
                assert!(*newest < outcome.round.0, "in order, and once");
                *newest = outcome.round.0;
            }
        }
    });
}

#[test]
fn a_malformed_message_ends_no_other_session() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let target = dial(endpoint.server.address(), hello(), eager());
        wait_up(&target);
        let ToDraft::Open(mut open) = open(2, 1) else {
            unreachable!("just made")
        };
        open.sampling.temperature = f32::NAN;
        target
            .link
            .send(vec![outcome(1, 0), ToDraft::Open(open), outcome(3, 0)])
            .expect("is up");
        let malformed = wait(&endpoint.events, |event| match event {
            ServerEvent::Malformed { malformed, .. } => malformed.first().cloned(),
            _ => None,
        });
        assert_eq!(malformed.session, Some(SessionId(2)));
        assert!(
            malformed.reason.contains("temperature"),
            "{}",
            malformed.reason
        );
        assert_eq!(received(&endpoint, 2), [outcome(1, 0), outcome(3, 0)]);
    });
}

#[test]
fn load_reaches_targets_that_are_there_and_those_that_come_later() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let first = dial(endpoint.server.address(), hello(), eager());
        wait_up(&first);
        wait_link(&endpoint);
        let load = LoadReport {
            slots: 8,
            used: 3,
            draining: true,
        };
        endpoint.server.report(load);
        let second = dial(endpoint.server.address(), hello(), eager());
        for target in [&first, &second] {
            let told = wait(&target.events, |event| match event {
                LinkEvent::Load(load) => Some(load),
                _ => None,
            });
            assert_eq!(told, load);
        }
    });
}

#[test]
fn an_engine_that_waits_at_its_mailbox_carries_the_link_itself() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let transport = Transport::start(TransportOptions::default()).expect("a thread");
        let (postbox, mailbox) = transport.mailbox();
        let stop = CancellationToken::new();
        let other = postbox.clone();
        let to = endpoint.server.address().clone();
        let link = transport.dial(to, hello(), eager(), &stop, move |event| {
            drop(postbox.post(Some(event)));
        });
        let up = mailbox.recv_timeout(LONG);
        assert!(matches!(up, Some(Some(LinkEvent::Up(_)))), "{up:?}");
        let peer = wait_link(&endpoint);
        link.send(vec![outcome(1, 0)]).expect("is up");
        // Passing by is enough to send.
        assert_eq!(mailbox.try_recv(), None);
        assert_eq!(received(&endpoint, 1), [outcome(1, 0)]);
        endpoint
            .server
            .send(peer, vec![window(1, 1)])
            .expect("is up");
        let answer = mailbox.recv_timeout(LONG);
        assert_eq!(
            answer,
            Some(Some(LinkEvent::Messages(vec![window(1, 1)].into())))
        );
        // Whoever has work to do may leave the links alone for a while, but not what was posted.
        other.post(None).expect("the mailbox is there");
        assert!(mailbox.arrived(LONG).eq([None]));
        link.send(vec![outcome(1, 1)]).expect("is up");
        assert_eq!(mailbox.arrived(Duration::ZERO).count(), 0);
        assert_eq!(received(&endpoint, 1), [outcome(1, 1)]);
        // Whoever posts more for each item that is taken keeps nobody here.
        other.post(None).expect("the mailbox is there");
        let again = |item| other.post(item).expect("the mailbox is there");
        assert_eq!(mailbox.arrived(Duration::ZERO).map(again).count(), 1);
        assert_eq!(mailbox.try_recv(), Some(None));
        // Others can post, too, while the engine waits.
        let poster = std::thread::spawn(move || other.post(None));
        assert_eq!(mailbox.recv_timeout(LONG), Some(None));
        poster.join().expect("ends").expect("the mailbox is there");
        assert_eq!(mailbox.recv_timeout(Duration::from_millis(1)), None);
    });
}

#[test]
fn links_live_on_while_their_engine_computes() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let transport = Transport::start(TransportOptions::default()).expect("a thread");
        // An engine that never comes to its mailbox.
        let (postbox, mailbox) = transport.mailbox();
        let stop = CancellationToken::new();
        let to = endpoint.server.address().clone();
        let link = transport.dial(to, hello(), eager(), &stop, move |event| {
            drop(postbox.post(event));
        });
        wait_link(&endpoint);
        while link.send(vec![outcome(1, 0)]).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(received(&endpoint, 1), [outcome(1, 0)]);
        // And without the mailbox the transport carries its links alone again.
        drop(mailbox);
        link.send(vec![outcome(1, 1)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [outcome(1, 1)]);
    });
}

#[test]
fn a_transport_can_be_dropped_in_async_code_and_its_links_end() {
    over_sockets(|address| {
        let endpoint = serve(address, welcome(), eager());
        let transport = Transport::start(TransportOptions::default()).expect("a thread");
        let (postbox, mailbox) = transport.mailbox::<LinkEvent>();
        let stop = CancellationToken::new();
        let to = endpoint.server.address().clone();
        let link = transport.dial(to, hello(), eager(), &stop, move |event| {
            drop(postbox.post(event));
        });
        wait_link(&endpoint);
        let service = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        service.block_on(async move { drop(transport) });
        wait(&endpoint.events, |event| {
            matches!(event, ServerEvent::Down { .. }).then_some(())
        });
        assert_eq!(link.send(vec![outcome(1, 0)]), Err(SendError::Down));
        service.block_on(async move { drop(mailbox) });
    });
}

#[test]
fn an_address_that_never_answers_stops_at_once_when_told() {
    let target = dial(
        &"http://127.0.0.1:1".parse().expect("an address"),
        hello(),
        eager(),
    );
    wait(&target.events, |event| {
        matches!(event, LinkEvent::Down(_)).then_some(())
    });
    drop(target);
}
