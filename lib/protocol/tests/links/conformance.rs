//! Whatever carries the messages and whatever happens to them, the output is that of plain
//! decoding, and with nothing in the way speculation works.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use foretoken_protocol::{
    Address,
    link::{
        DraftFrame, LinkEvent, LinkId, ServerEvent, TargetFrame, decode_draft_frame,
        decode_target_frame, encode_draft_frame, encode_target_frame,
    },
};
use foretoken_speculation::message::{ToDraft, ToTarget};

use crate::{
    carrier::{Endpoint, dial, eager, hello, over_sockets, serve, welcome},
    engines::{Output, PASS, plain, run_draft, run_target},
    faults::{Dice, Faults, Lossy},
    proxy::Proxy,
};

/// Sessions that share a link, greedy and sampled, drafted for after verdicts and ahead of them.
const SESSIONS: [u64; 6] = [1, 2, 3, 4, 5, 6];

const FAULTS: [Faults; 6] = [
    Faults {
        drop: 100,
        duplicate: 0,
        reorder: 0,
        delay: 0,
        harm: 0,
    },
    Faults {
        drop: 0,
        duplicate: 300,
        reorder: 0,
        delay: 0,
        harm: 0,
    },
    Faults {
        drop: 0,
        duplicate: 0,
        reorder: 500,
        delay: 0,
        harm: 0,
    },
    Faults {
        drop: 0,
        duplicate: 0,
        reorder: 0,
        delay: 200,
        harm: 0,
    },
    Faults {
        drop: 0,
        duplicate: 0,
        reorder: 0,
        delay: 0,
        harm: 100,
    },
    Faults {
        drop: 50,
        duplicate: 100,
        reorder: 200,
        delay: 100,
        harm: 50,
    },
];

/// Accepted tokens of a run under faults, at least, in the mean. Without any draft a run has one, by
/// guesses of the target's own; under faults 100 and more, and how many is for the machine's load too.
const STILL_ACCEPTED: u32 = 5;

/// A link without sockets: frames as bytes from one thread to the other. A frame that cannot be
/// read ends the link on both sides; it is up again at once.
struct Memory {
    to_target: Sender<LinkEvent>,
    to_draft: Sender<ServerEvent>,
    link: LinkId,
    dice: Dice,
}

impl Memory {
    fn connect(dice: Dice) -> (Arc<Mutex<Self>>, Receiver<LinkEvent>, Receiver<ServerEvent>) {
        let (to_target, target_events) = channel();
        let (to_draft, draft_events) = channel();
        let mut memory = Self {
            to_target,
            to_draft,
            link: LinkId(0),
            dice,
        };
        memory.up();
        (Arc::new(Mutex::new(memory)), target_events, draft_events)
    }

    fn up(&mut self) {
        self.link.0 += 1;
        drop(self.to_draft.send(ServerEvent::Up {
            link: self.link,
            hello: hello(),
        }));
        drop(self.to_target.send(LinkEvent::Up(welcome())));
    }

    fn lost(&mut self) {
        let reason = String::from("a frame could not be read");
        drop(self.to_draft.send(ServerEvent::Down {
            link: self.link,
            reason: reason.clone(),
        }));
        drop(self.to_target.send(LinkEvent::Down(reason)));
        self.up();
    }

    /// Cuts off the end of a frame.
    fn truncate(&mut self, bytes: BytesMut, harm: bool) -> Bytes {
        let keep = if harm {
            self.dice.roll() as usize % bytes.len()
        } else {
            bytes.len()
        };
        bytes.freeze().slice(..keep)
    }

    fn send_to_draft(&mut self, messages: Vec<ToDraft>, harm: bool) {
        let mut bytes = BytesMut::new();
        encode_target_frame(
            &TargetFrame {
                messages,
                ..TargetFrame::default()
            },
            &mut bytes,
        );
        match decode_target_frame(self.truncate(bytes, harm)) {
            Ok(frame) => {
                assert_eq!(frame.malformed, []);
                let event = ServerEvent::Messages {
                    link: self.link,
                    messages: frame.messages.into(),
                };
                drop(self.to_draft.send(event));
            }
            Err(_) => self.lost(),
        }
    }

    fn send_to_target(&mut self, link: LinkId, messages: Vec<ToTarget>, harm: bool) {
        if link != self.link {
            return;
        }
        let mut bytes = BytesMut::new();
        encode_draft_frame(
            &DraftFrame {
                messages,
                ..DraftFrame::default()
            },
            &mut bytes,
        );
        match decode_draft_frame(self.truncate(bytes, harm)) {
            Ok(frame) => {
                assert_eq!(frame.malformed, []);
                drop(
                    self.to_target
                        .send(LinkEvent::Messages(frame.messages.into())),
                );
            }
            Err(_) => self.lost(),
        }
    }
}

/// What speculation gained over all sessions.
#[derive(Debug, Default)]
struct Gain {
    /// Tokens that were accepted.
    accepted: u32,
    /// Verdicts that a window had been drafted for.
    hits: u32,
    /// Faults of the carrier.
    harms: u64,
}

/// Runs all sessions; their outputs are as they should be.
fn over_memory(faults: Faults, blur: f32, seed: u32, pass: Duration) -> Gain {
    let (memory, target_events, draft_events) = Memory::connect(Dice::new(seed + 2));
    let draft = {
        let memory = Arc::downgrade(&memory);
        let mut lossy = Lossy::new(faults, seed);
        thread::spawn(move || {
            let send = |link, messages| {
                let messages = lossy.pass(messages);
                let harm = lossy.harms();
                if let (Some(memory), false) = (memory.upgrade(), messages.is_empty()) {
                    let mut memory = memory.lock().expect("nobody panics");
                    memory.send_to_target(link, messages, harm);
                }
            };
            run_draft(blur, send, &draft_events);
        })
    };
    let mut lossy = Lossy::new(faults, seed + 1);
    let send = |messages| {
        let messages = lossy.pass(messages);
        let harm = lossy.harms();
        if !messages.is_empty() {
            memory
                .lock()
                .expect("nobody panics")
                .send_to_draft(messages, harm);
        }
    };
    let accepted = check(run_target(&SESSIONS, pass, send, &target_events));
    drop(memory);
    draft.join().expect("the draft ends by itself");
    accepted
}

/// How the ends of a link are joined.
#[derive(Clone, Copy, Debug)]
enum Joined {
    /// As services are: over Unix sockets through memory that both share.
    Directly,
    /// Through a proxy that harms the bytes. No file passes it, so all of them go over the socket.
    ByProxy,
}

/// Runs all sessions; their outputs are as they should be.
fn over_link(
    (address, joined): (&Address, Joined),
    faults: Faults,
    blur: f32,
    seed: u32,
    pass: Duration,
) -> Gain {
    let Endpoint {
        server,
        events,
        transport,
    } = serve(address, welcome(), eager());
    let proxy = match joined {
        Joined::Directly => None,
        Joined::ByProxy => Some(Proxy::start(server.address())),
    };
    let dialled = proxy.as_ref().map_or(server.address(), |it| &it.address);
    let target = dial(dialled, hello(), eager());
    let server = Arc::new(server);
    let draft = {
        let server = Arc::downgrade(&server);
        let mut lossy = Lossy::new(faults, seed);
        let reply = move |link, messages| {
            let messages = lossy.pass(messages);
            if let (Some(server), false) = (server.upgrade(), messages.is_empty()) {
                // A link that has gone takes nothing: its sessions are gone too.
                let _ = server.send(link, messages);
            }
        };
        thread::spawn(move || run_draft(blur, reply, &events))
    };
    let mut lossy = Lossy::new(faults, seed + 1);
    let mut dice = Dice::new(seed + 2);
    let send = |messages| {
        let messages = lossy.pass(messages);
        if lossy.harms()
            && let Some(proxy) = &proxy
        {
            let [bytes, corrupts, back] = [(); 3].map(|()| dice.roll());
            let orders = &proxy.orders;
            orders.harm_after(i64::from(bytes % 200), corrupts < 500, back < 500);
        }
        if !messages.is_empty() {
            let _ = target.link.send(messages);
        }
    };
    let mut gain = check(run_target(&SESSIONS, pass, send, &target.events));
    gain.harms = proxy.map_or(0, |proxy| proxy.orders.harms());
    drop((server, transport));
    draft.join().expect("the draft ends with its events");
    gain
}

/// Runs `test` with every kind of link.
fn over_carriers(test: impl Fn((&Address, Joined))) {
    for joined in [Joined::Directly, Joined::ByProxy] {
        over_sockets(|address| test((address, joined)));
    }
}

fn check(outputs: Vec<Output>) -> Gain {
    let mut gain = Gain::default();
    for ((tokens, stats), session) in outputs.into_iter().zip(SESSIONS) {
        assert_eq!(tokens, plain(session), "session {session}: {stats:?}");
        gain.accepted += stats.accepted;
        gain.hits += stats.ahead.hits;
    }
    gain
}

#[test]
fn with_nothing_in_the_way_speculation_works_over_every_carrier() {
    // Drafts that are in time on a busy machine need passes that are long enough.
    let passes = [PASS, 10 * PASS, 100 * PASS, 100 * PASS];
    let works = |run: &dyn Fn(Duration) -> Gain, carrier: &str| {
        let mut last = Gain::default();
        let gained = |&pass: &Duration| {
            last = run(pass);
            last.accepted > 200 && last.hits > 0
        };
        assert!(passes.iter().any(gained), "{last:?} {carrier}");
    };
    let without_faults = Faults::default();
    works(
        &|pass| over_memory(without_faults, 0.0, 1, pass),
        "in memory",
    );
    over_carriers(|carrier| {
        let run = |pass| over_link(carrier, without_faults, 0.0, 1, pass);
        works(&run, &format!("{carrier:?}"));
    });
}

#[test]
fn whatever_happens_in_memory_the_output_is_that_of_plain_decoding_and_drafts_still_help() {
    for faults in FAULTS {
        let gains = (0..10).map(|seed| over_memory(faults, 1.0, seed * 100, PASS).accepted);
        let accepted: u32 = gains.sum();
        assert!(accepted > 10 * STILL_ACCEPTED, "{accepted} with {faults:?}");
    }
}

#[test]
fn whatever_happens_to_a_link_the_output_is_that_of_plain_decoding_and_drafts_still_help() {
    over_carriers(|carrier| {
        let (mut accepted, mut harms) = (0, 0);
        for (seed, faults) in FAULTS.into_iter().enumerate() {
            let gain = over_link(carrier, faults, 1.0, seed as u32 * 100, PASS);
            accepted += gain.accepted;
            harms += gain.harms;
        }
        let least = FAULTS.len() as u32 * STILL_ACCEPTED;
        assert!(accepted > least, "{accepted} with {carrier:?}");
        let is_harmed = matches!(carrier.1, Joined::ByProxy);
        assert_eq!(harms > 0, is_harmed, "{harms} with {carrier:?}");
    });
}
