//! What the protocol adds to a round: an outcome from one engine thread to another and the window
//! it is answered with back, over a real link, with engines that do nothing.
//!
//! The engines wait at mailboxes and so move the links' bytes themselves, and look for messages before
//! they sleep, as those of services do by default. `unix-sleep` and `tcp-sleep` sleep at once,
//! `unix-thread` and `tcp-thread` leave the bytes to the transports' threads. `channel` passes the same
//! messages between the same threads without a link: what any exchange between threads costs here.

use std::{
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use foretoken_protocol::{
    Address, Listener,
    link::{
        Hello, Link, LinkEvent, LinkOptions, LinkServer, Mailbox, Postbox, Received, ServerEvent,
        Terms, Transport, TransportOptions, Welcome,
    },
};
use foretoken_speculation::{
    Epoch, Round, SessionId, TokenId,
    message::{Outcome, ToDraft, ToTarget, Window},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    report::Report,
    stats::{arm_order, percentile},
};

/// Round trips per arm and block.
const BLOCK: usize = 200;

/// Tokens of a window.
const WINDOW: u32 = 7;

/// What to measure.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ProtocolArgs {
    /// Blocks of 200 round trips per arm, after one warm-up block.
    #[arg(long, default_value_t = 50, value_parser = crate::some())]
    pub blocks: usize,
}

const ARMS: [&str; 7] = [
    "channel",
    "unix",
    "tcp",
    "unix-sleep",
    "tcp-sleep",
    "unix-thread",
    "tcp-thread",
];

/// Measures and publishes `protocol`.
pub fn run(args: ProtocolArgs, results: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut arms = ARMS
        .iter()
        .map(|name| match name.split('-').next() {
            Some("unix") => Arm::link(name, &Address::Unix(folder.path().join(name))),
            Some("tcp") => Arm::link(name, &Address::loopback(0)),
            _ => Arm::channel(name),
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    for block in 0..=args.blocks {
        for arm in arm_order(ARMS.len(), block) {
            let times = arms[arm].block()?;
            if block > 0 {
                arms[arm].times.extend(times);
            }
        }
    }
    let mut report = Report::new(
        "protocol",
        format!(
            "Outcome to window, engine thread to engine thread, in microseconds: {} interleaved blocks of {BLOCK} round \
             trips of a window of {WINDOW} tokens, one session; but in the arms \"sleep\" and \"thread\" engines look for \
             messages for at most {:?} before they sleep.",
            args.blocks,
            TransportOptions::default().spin
        ),
        &["arm", "p10", "p50", "p90", "p99"],
    );
    let mut data = Vec::new();
    for arm in &mut arms {
        arm.times.sort_by(f64::total_cmp);
        let figures = [0.1, 0.5, 0.9, 0.99].map(|share| percentile(&arm.times, share));
        let cells = figures.iter().map(|f| format!("{f:.1}"));
        report.row(std::iter::once(arm.name.to_owned()).chain(cells));
        data.push(json!({"arm": arm.name, "us_p10_p50_p90_p99": figures}));
    }
    report.data = json!(data);
    report.publish(results)
}

/// One way to get messages to the other engine and back.
struct Arm {
    name: &'static str,
    times: Vec<f64>,
    round: u32,
    way: Way,
    windows: Inbox<Received<ToTarget>>,
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
    fn link(name: &'static str, address: &Address) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let options = LinkOptions::default();
        let mut behaviour = TransportOptions::default();
        if name.ends_with("-sleep") {
            behaviour.spin = Duration::ZERO;
        }
        let transports = [
            Transport::start(behaviour.clone())?,
            Transport::start(behaviour)?,
        ];
        let mailbox = !name.ends_with("-thread");
        let (events, mut incoming) = Inbox::new(&transports[0], mailbox);
        let server = transports[0].serve(
            Listener::bind(address)?,
            Terms::new(Welcome::default(), options),
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

    fn channel(name: &'static str) -> anyhow::Result<Self> {
        let (outcomes, incoming) = channel::<Vec<ToDraft>>();
        let (sender, windows) = channel();
        let engine = thread::Builder::new().spawn(move || {
            while let Ok(messages) = incoming.recv() {
                let answers: Vec<_> = messages.iter().filter_map(answer).collect();
                if sender.send(answers.into()).is_err() {
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

    fn block(&mut self) -> anyhow::Result<Vec<f64>> {
        let mut times = Vec::with_capacity(BLOCK);
        for _ in 0..BLOCK {
            self.round += 1;
            let begun = Instant::now();
            let messages = vec![outcome(self.round)];
            match &self.way {
                Way::Link { link, .. } => link.send(messages)?,
                Way::Channel(outcomes) => outcomes.send(messages)?,
            }
            let answer = self.windows.recv().context("no answer")?;
            times.push(begun.elapsed().as_secs_f64() * 1e6);
            match &answer[..] {
                [ToTarget::Window(window)] if window.round.0 == self.round + 1 => {}
                other => bail!("unexpected answer {other:?}"),
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
            ServerEvent::Up { .. }
            | ServerEvent::Malformed { .. }
            | ServerEvent::Refused { .. } => {}
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
        ..Outcome::default()
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
        proposals: (0..outcome.lookahead)
            .map(TokenId)
            .collect::<Vec<_>>()
            .into(),
        ..Window::default()
    }))
}
