//! Measures what the protocol adds to a round: an outcome from one engine thread to another, and
//! the window it is answered with back, over a real link.
//!
//! ```text
//! cargo run --release -p foretoken-protocol --example round_trip -- [ARM]..
//! ```
//!
//! The engines wait at mailboxes and so move the links' bytes themselves; `unix-thread` and
//! `tcp-thread` leave that to the transports' threads. The arms run interleaved, in blocks, so that what else the machine does hits all alike.
//! `channel` passes the same messages between the same threads without a link: what any exchange
//! between threads costs here.

use std::{
    error::Error,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use foretoken_protocol::{
    Address, Listener,
    link::{
        Hello, Link, LinkEvent, LinkOptions, LinkServer, Mailbox, Postbox, ServerEvent, Transport,
        TransportOptions, Welcome,
    },
};
use foretoken_speculation::{
    Epoch, Round, SessionId, TokenId,
    message::{Outcome, ToDraft, ToTarget, Window},
};
use tokio_util::sync::CancellationToken;

/// Round trips per arm and block, and blocks.
const BLOCK: usize = 200;
const BLOCKS: usize = 50;

/// Tokens of a window.
const WINDOW: u32 = 7;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = ["unix", "tcp", "unix-thread", "tcp-thread", "channel"]
            .map(String::from)
            .to_vec();
    }
    let spin = std::env::var("SPIN_US")
        .ok()
        .and_then(|us| us.parse().ok())
        .unwrap_or(0);
    let spin = Duration::from_micros(spin);
    let folder = std::env::temp_dir().join(format!("foretoken-round-trip-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut arms = Vec::new();
    for name in names {
        arms.push(match name.as_str() {
            "unix" | "unix-thread" => {
                let socket = Address::Unix(folder.join(&name));
                Arm::link(name, &socket, spin)?
            }
            "tcp" | "tcp-thread" => Arm::link(name, &Address::loopback(0), spin)?,
            "channel" => Arm::channel(name)?,
            other => return Err(format!("no arm {other:?}; arms are unix, tcp, channel").into()),
        });
    }
    for block in 0..=BLOCKS {
        for arm in &mut arms {
            let times = arm.block()?;
            // The first block warms up.
            if block > 0 {
                arm.times.extend(times);
            }
        }
    }
    for arm in &mut arms {
        arm.times.sort_unstable();
        let at = |share: f64| arm.times[((arm.times.len() - 1) as f64 * share) as usize];
        println!(
            "{:12} n {} p10 {:?} p50 {:?} p90 {:?} p99 {:?}",
            arm.name,
            arm.times.len(),
            at(0.1),
            at(0.5),
            at(0.9),
            at(0.99),
        );
    }
    drop(arms);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// One way to get messages to the other engine and back.
struct Arm {
    name: String,
    times: Vec<Duration>,
    round: u32,
    way: Way,
    windows: Inbox<Vec<ToTarget>>,
    _engine: JoinHandle<()>,
}

/// Where an engine waits.
enum Inbox<T> {
    Mailbox(Mailbox<T>),
    Channel(Receiver<T>),
}

/// Where its events are put.
#[derive(Clone)]
enum Outbox<T> {
    Postbox(Postbox<T>),
    Channel(Sender<T>),
}

impl<T> Inbox<T> {
    fn new(transport: &Transport, mailbox: bool) -> (Outbox<T>, Self) {
        if mailbox {
            let (postbox, mailbox) = transport.mailbox();
            (Outbox::Postbox(postbox), Self::Mailbox(mailbox))
        } else {
            let (sender, receiver) = channel();
            (Outbox::Channel(sender), Self::Channel(receiver))
        }
    }

    fn recv(&mut self) -> Option<T> {
        let patience = Duration::from_secs(5);
        match self {
            Self::Mailbox(mailbox) => mailbox.recv_timeout(patience),
            Self::Channel(receiver) => receiver.recv_timeout(patience).ok(),
        }
    }
}

impl<T> Outbox<T> {
    fn send(&self, item: T) {
        match self {
            Self::Postbox(postbox) => drop(postbox.post(item)),
            Self::Channel(sender) => drop(sender.send(item)),
        }
    }
}

enum Way {
    Link {
        link: Link,
        _transports: [Transport; 2],
    },
    Channel(Sender<Vec<ToDraft>>),
}

impl Arm {
    fn link(name: String, address: &Address, spin: Duration) -> Result<Self, Failure> {
        let stop = CancellationToken::new();
        let options = LinkOptions::default();
        let transports = [
            Transport::start(TransportOptions { spin })?,
            Transport::start(TransportOptions { spin })?,
        ];
        let mailbox = !name.ends_with("-thread");
        let (events, mut incoming) = Inbox::new(&transports[0], mailbox);
        let server = transports[0].serve(
            Listener::bind(address)?,
            Welcome::default(),
            options,
            &stop,
            move |event| events.send(event),
        )?;
        let address = server.address().clone();
        let engine = thread::spawn(move || draft_engine(&server, &mut incoming));
        let (up, is_up) = channel();
        let (sender, windows) = Inbox::new(&transports[1], mailbox);
        let link =
            transports[1].dial(
                address,
                Hello::default(),
                options,
                &stop,
                move |event| match event {
                    LinkEvent::Messages(messages) => sender.send(messages),
                    LinkEvent::Up(_) => drop(up.send(())),
                    other => eprintln!("{other:?}"),
                },
            );
        is_up.recv_timeout(Duration::from_secs(5))?;
        let way = Way::Link {
            link,
            _transports: transports,
        };
        Ok(Self {
            name,
            times: Vec::new(),
            round: 0,
            way,
            windows,
            _engine: engine,
        })
    }

    fn channel(name: String) -> Result<Self, Failure> {
        let (outcomes, incoming) = channel::<Vec<ToDraft>>();
        let (sender, windows) = channel();
        let engine = thread::Builder::new().spawn(move || {
            while let Ok(messages) = incoming.recv() {
                if sender
                    .send(messages.iter().filter_map(answer).collect())
                    .is_err()
                {
                    return;
                }
            }
        })?;
        let way = Way::Channel(outcomes);
        let windows = Inbox::Channel(windows);
        Ok(Self {
            name,
            times: Vec::new(),
            round: 0,
            way,
            windows,
            _engine: engine,
        })
    }

    fn block(&mut self) -> Result<Vec<Duration>, Failure> {
        let mut times = Vec::with_capacity(BLOCK);
        for _ in 0..BLOCK {
            self.round += 1;
            let begun = Instant::now();
            let messages = vec![outcome(self.round)];
            match &self.way {
                Way::Link { link, .. } => link.send(messages)?,
                Way::Channel(outcomes) => outcomes.send(messages)?,
            }
            let answer = self.windows.recv().ok_or("no answer")?;
            times.push(begun.elapsed());
            match answer.as_slice() {
                [ToTarget::Window(window)] if window.round.0 == self.round + 1 => {}
                other => return Err(format!("unexpected answer {other:?}").into()),
            }
        }
        Ok(times)
    }
}

fn draft_engine(server: &LinkServer, incoming: &mut Inbox<ServerEvent>) {
    while let Some(event) = incoming.recv() {
        match event {
            ServerEvent::Messages { link, messages } => {
                let answers = messages.iter().filter_map(answer).collect();
                if server.send(link, answers).is_err() {
                    return;
                }
            }
            ServerEvent::Down { .. } => return,
            ServerEvent::Up { .. } | ServerEvent::Malformed { .. } => {}
        }
    }
}

fn outcome(round: u32) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(1),
        epoch: Epoch(1),
        round: Round(round),
        base_len: round * 4,
        tokens: (0..4).map(TokenId).collect(),
        lookahead: WINDOW,
    })
}

fn answer(message: &ToDraft) -> Option<ToTarget> {
    let ToDraft::Outcome(outcome) = message else {
        return None;
    };
    Some(ToTarget::Window(Window {
        session: outcome.session,
        epoch: outcome.epoch,
        round: outcome.round.next(),
        base_len: outcome.base_len + outcome.tokens.len() as u32,
        tokens: (0..outcome.lookahead).map(TokenId).collect(),
        q: Vec::new(),
    }))
}
