//! Targets that do what they want: they harm themselves, and nobody else notices.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use foretoken_draft::DraftConfig;
use foretoken_engine::sim::Role;
use foretoken_protocol::{
    Address,
    link::{Consumer, LinkEvent, SendError},
};
use foretoken_speculation::{
    Epoch, Round, Seed, SessionId, TokenId,
    fanout::FanOut,
    message::{Branching, Delivery, Entries, Open, Outcome, ToDraft, ToTarget},
    sampling::SamplingParams,
};

use super::{dialled::Dialled, rig::*};

const K: u32 = 3;
const SLOTS: usize = 8;
/// The most that a message may ask for.
const MOST: u32 = 4096;

/// A target of this deployment.
fn dial(address: &Address, deployment: &str) -> Dialled {
    let (namespace, deployment) = ("test".into(), deployment.into());
    let consumer = Consumer {
        namespace,
        deployment,
    };
    Dialled::new(address, consumer)
}

impl Dialled {
    /// Sends; a link that carries no more is as good.
    fn send(&self, message: ToDraft) -> Result<(), SendError> {
        self.link.send(vec![message])
    }

    /// The outcomes of a round that are drafted for, each with the first token of its continuation:
    /// there is always time for that.
    fn entries(&self, session: u64, round: u32) -> Vec<((u32, TokenId), TokenId)> {
        let mut first: Option<Entries> = None;
        self.wait("entries", |event| {
            let LinkEvent::Messages(messages) = event else {
                return None;
            };
            for message in messages {
                match message {
                    ToTarget::Entries(part)
                        if part.session.0 == session && part.round.0 == round =>
                    {
                        first.get_or_insert(part);
                    }
                    ToTarget::Refused { reason, .. } => panic!("an honest session: {reason}"),
                    ToTarget::Resync(_) => panic!("nothing was lost"),
                    _ => {}
                }
            }
            first.is_some().then_some(())
        });
        let first = first.expect("it was waited for");
        assert_eq!(first.before, 0);
        let keys = first.keys.iter().zip(&first.tokens);
        keys.map(|(key, &token)| ((key.accepted, key.token), token))
            .collect()
    }
}

fn open(session: u64, tokens: Vec<TokenId>, branches: u32, lookahead: u32) -> ToDraft {
    ToDraft::Open(Open {
        session: SessionId(session),
        epoch: Epoch(1),
        sampling: SamplingParams::default(),
        seed: Seed(session),
        prompt_len: tokens.len() as u32,
        tokens,
        branching: Some(Branching {
            lookahead,
            branches,
            fan_out: FanOut::Learned,
            delivery: Delivery::Push,
        }),
        ..Open::default()
    })
}

fn prompt(len: u32, start: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((start + 5 * i) % 128)).collect()
}

/// An honest target: rounds of a session, each verdict the likeliest outcome. All it was sent.
fn serve_honestly(
    target: &Dialled,
    between: &mut dyn FnMut(u32),
) -> Vec<((u32, TokenId), TokenId)> {
    let mut tokens = prompt(20, 3);
    target
        .send(open(1, tokens.clone(), 2, K))
        .expect("it is up");
    let mut best = Vec::new();
    for round in 0..12 {
        between(round);
        let entries = target.entries(1, round);
        // How many outcomes there is time for may differ; the likeliest is always among them.
        let ((accepted, token), proposed) = entries[0];
        let before = best.last().map(|&(_, proposed)| proposed);
        let mut emitted: Vec<_> = before.into_iter().take(accepted as usize).collect();
        emitted.push(token);
        best.push(entries[0]);
        let verdict = Outcome {
            session: SessionId(1),
            epoch: Epoch(1),
            round: Round(round),
            base_len: tokens.len() as u32,
            tokens: emitted.clone(),
            lookahead: K,
            verifying: Some([proposed].as_slice().into()),
            branches: 2,
            ..Outcome::default()
        };
        tokens.extend(emitted);
        target.send(ToDraft::Outcome(verdict)).expect("it is up");
    }
    let (session, epoch) = (SessionId(1), Epoch(1));
    target
        .send(ToDraft::Close { session, epoch })
        .expect("it is up");
    best
}

/// One of the things that a target should not do.
fn harm(attacker: &Dialled, round: u32) {
    for i in 0..40 {
        let id = u64::from(1000 * round + i);
        // Floods of opens, never closed, with enormous budgets; some are too much to be understood.
        let much = if i % 4 == 0 { u32::MAX } else { MOST };
        let _ = attacker.send(open(id, prompt(60 + i, i), much, much));
        // Verdicts of wrong epochs and rounds, on sessions that are there and on others.
        for (epoch, at, window) in [(9, 0, 0), (1, 77, 3), (1, 0, 4000), (0, u32::MAX, 1)] {
            let _ = attacker.send(ToDraft::Outcome(Outcome {
                session: SessionId(id - u64::from(i % 3)),
                epoch: Epoch(epoch),
                round: Round(at),
                base_len: 60 + i,
                tokens: prompt(1, i),
                lookahead: much,
                verifying: Some(prompt(window, 1).into()),
                branches: much,
                ..Outcome::default()
            }));
        }
    }
}

fn config(address: &Address, lease: Duration) -> DraftConfig {
    DraftConfig {
        listen: vec![address.clone()],
        max_sessions: SLOTS,
        lease,
        ..DraftConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_honest_target_gets_is_the_same_beside_one_that_does_all_it_should_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut served = Vec::new();
    for name in ["quiet", "loud"] {
        let address = socket(&folder, name);
        let endpoint = draft_of(
            config(&address, Duration::from_secs(3600)),
            runner(sim(Role::Draft { agreement: 0.9 })),
        );
        let got = tokio::task::spawn_blocking(move || {
            let attacker = dial(&address, "attacker");
            if name == "loud" {
                // All slots are taken before the honest one comes.
                harm(&attacker, 0);
            }
            let honest = dial(&address, "honest");
            let attack = &mut |round| {
                if name == "loud" {
                    harm(&attacker, round + 1);
                }
            };
            serve_honestly(&honest, attack)
        });
        served.push(got.await.expect("every round had its entries"));
        endpoint.end().await;
    }
    assert_eq!(served[0], served[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_never_stops_sending_keeps_nobody_from_being_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft_of(
        config(&address, Duration::from_secs(3600)),
        runner(sim(Role::Draft { agreement: 0.9 })),
    );
    let served = tokio::task::spawn_blocking(move || {
        let attacker = dial(&address, "attacker");
        let honest = dial(&address, "honest");
        let (link, over, begun) = (&attacker.link, AtomicBool::new(false), Instant::now());
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let mut sent = 0_u64;
                while !over.load(Ordering::Relaxed) && begun.elapsed() < PATIENT {
                    let verdict = Outcome {
                        session: SessionId(sent),
                        ..Outcome::default()
                    };
                    sent += u64::from(link.send(vec![ToDraft::Outcome(verdict)]).is_ok());
                }
                sent
            });
            let entries = serve_honestly(&honest, &mut |_| {});
            over.store(true, Ordering::Relaxed);
            let sent = flood.join().expect("it only sends");
            assert!(sent > 1_000, "no flood: {sent} messages");
            entries.len()
        })
    });
    assert_eq!(served.await.expect("every round had its entries"), 12);
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_never_closed_end_with_their_lease_and_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft_of(
        config(&address, Duration::from_millis(200)),
        runner(sim(Role::Draft { agreement: 0.9 })),
    );
    let ended = tokio::task::spawn_blocking(move || {
        let attacker = dial(&address, "attacker");
        for session in 0..20 {
            let message = open(session, prompt(60, session as u32), MOST, MOST);
            attacker.send(message).expect("it is up");
        }
        let (mut opened, mut expired) = (0, 0);
        attacker.wait("the ends of all leases", |event| {
            let LinkEvent::Messages(messages) = event else {
                return None;
            };
            for message in messages {
                match message {
                    ToTarget::Opened { .. } => opened += 1,
                    ToTarget::Refused { reason, .. } if reason.contains("lease") => expired += 1,
                    _ => {}
                }
            }
            (opened > 0 && expired == opened).then_some(())
        });
        assert_eq!(opened, SLOTS, "the others were refused");
        let honest = dial(&address, "honest");
        honest.send(open(1, prompt(20, 3), 2, K)).expect("it is up");
        honest.entries(1, 0).len()
    });
    assert_eq!(ended.await.expect("the slots are free again"), 2);
    endpoint.end().await;
}
