//! Engines that only pass by their mailboxes, and engines that wait there, in every order.

use std::{
    thread,
    time::{Duration, Instant},
};

use foretoken_protocol::{
    Address, Listener,
    link::{
        Link, LinkEvent, LinkOptions, LinkServer, Mailbox, SendError, ServerEvent, Terms,
        Transport, TransportOptions,
    },
};
use foretoken_speculation::message::ToDraft;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    behaviour::{outcome, wait_link, window},
    carrier::{LONG, eager, hello, over_sockets, serve, welcome},
};

/// Round trips of a test.
const ROUNDS: u32 = 2000;

/// How an engine finds out that something has come.
#[derive(Clone, Copy)]
enum Habit {
    /// It comes by until there is something.
    Passes,
    /// It comes by a few times and waits then.
    Tires(u32),
}

/// Habits that look as if they came by chance, and are the same every time.
fn habits(mut state: u64) -> impl FnMut() -> Habit {
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        match (state >> 40) % 8 {
            0 => Habit::Passes,
            looks => Habit::Tires(looks as u32 - 1),
        }
    }
}

/// Nothing but messages wakes anybody.
fn silent() -> LinkOptions {
    let never = Duration::from_secs(3600);
    LinkOptions {
        beat: never,
        suspect_after: never,
        dead_after: never,
        ..eager()
    }
}

impl Habit {
    fn next<T>(self, mailbox: &Mailbox<T>) -> T {
        let looks = match self {
            Self::Passes => u32::MAX,
            Self::Tires(looks) => looks,
        };
        for _ in 0..looks {
            if let Some(item) = mailbox.try_recv() {
                return item;
            }
            // The other engine may have no other core.
            thread::yield_now();
        }
        mailbox.recv_timeout(LONG).expect("it is woken in time")
    }
}

/// An endpoint's engine that answers every outcome, until its link ends.
fn answer(mailbox: &Mailbox<ServerEvent>, server: &LinkServer, mut habit: impl FnMut() -> Habit) {
    loop {
        match habit().next(mailbox) {
            ServerEvent::Messages { link, messages } => {
                let rounds = messages.iter().map(|message| match message {
                    ToDraft::Outcome(outcome) => outcome.round.0,
                    other => unreachable!("{other:?}"),
                });
                let windows = rounds.map(|round| window(1, round)).collect();
                server.send(link, windows).expect("is up");
                mailbox.send();
            }
            ServerEvent::Up { .. } => {}
            ServerEvent::Down { .. } => return,
            other => unreachable!("{other:?}"),
        }
    }
}

/// A target's engine that awaits the answer to every outcome.
fn ask(mailbox: &Mailbox<LinkEvent>, link: &Link, mut habit: impl FnMut() -> Habit) {
    let up = mailbox.recv_timeout(LONG);
    assert!(matches!(up, Some(LinkEvent::Up(_))), "{up:?}");
    for round in 0..ROUNDS {
        link.send(vec![outcome(1, round)]).expect("is up");
        mailbox.send();
        match habit().next(mailbox) {
            LinkEvent::Messages(messages) => assert_eq!(*messages, [window(1, round)]),
            other => unreachable!("{other:?}"),
        }
    }
}

#[test]
fn whatever_engines_do_meanwhile_every_message_comes_and_wakes_whoever_waits() {
    every_message_comes(Duration::ZERO);
}

#[test]
fn every_message_comes_to_engines_that_look_before_they_sleep() {
    // Some are found by a look, some come right before sleep.
    every_message_comes(Duration::from_micros(20));
}

fn every_message_comes(spin: Duration) {
    let start = || Transport::start(TransportOptions { spin, tls: None }).expect("a thread");
    over_sockets(|address| {
        let served = start();
        let (postbox, mailbox) = served.mailbox();
        let stop = CancellationToken::new();
        let listener = Listener::bind(address).expect("binds");
        let server = served
            .serve(
                listener,
                Terms::new(welcome(), silent()),
                &stop,
                move |event| {
                    drop(postbox.post(event));
                },
            )
            .expect("serves");
        let to = server.address().clone();
        let endpoint = thread::spawn(move || answer(&mailbox, &server, habits(1)));
        {
            let dialled = start();
            let (postbox, mailbox) = dialled.mailbox();
            let link = dialled.dial(to, hello(), silent(), &stop, move |event| {
                drop(postbox.post(event));
            });
            ask(&mailbox, &link, habits(2));
        }
        endpoint.join().expect("it was told that its target went");
    });
}

#[test]
fn what_panics_in_a_visit_ends_its_link_and_no_engine() {
    let folder = TempDir::new().expect("a folder");
    let address = Address::Unix(folder.path().join("link"));
    let endpoint = serve(&address, welcome(), eager());
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let (postbox, mailbox) = transport.mailbox::<LinkEvent>();
    let stop = CancellationToken::new();
    let other = postbox.clone();
    let link = transport.dial(address.clone(), hello(), eager(), &stop, move |event| {
        assert!(!matches!(event, LinkEvent::Messages(_)), "as is tried here");
        drop(postbox.post(event));
    });
    let up = mailbox.recv_timeout(LONG);
    assert!(matches!(up, Some(LinkEvent::Up(_))), "{up:?}");
    let peer = wait_link(&endpoint);
    endpoint
        .server
        .send(peer, vec![window(1, 0)])
        .expect("is up");
    // The engine goes on until it sees that the link is down.
    let begun = Instant::now();
    while link.send(Vec::new()) != Err(SendError::Down) {
        assert_eq!(mailbox.try_recv(), None);
        assert!(begun.elapsed() < LONG, "nothing panicked");
        thread::yield_now();
    }
    // Other links of the same transport come and go.
    let _link = transport.dial(address.clone(), hello(), eager(), &stop, move |event| {
        drop(other.post(event));
    });
    let up = mailbox.recv_timeout(LONG);
    assert!(matches!(up, Some(LinkEvent::Up(_))), "{up:?}");
}
