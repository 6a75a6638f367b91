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
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    fanout::FanOut,
    message::{
        Branching, Cutoff, Cutoffs, Delivery, Entries, Open, Outcome, ToDraft, ToTarget, TreeBudget,
    },
    saguaro::Saguaro,
    sampling::SamplingParams,
    verify::Verification,
};

use super::{dialled::Dialled, metrics::Scrape, rig::*};

pub(super) const K: u32 = 3;
/// Outcomes that an honest target asks for.
const OUTCOMES: u32 = 8;
/// Rounds of an honest session.
pub(super) const ROUNDS: u32 = 12;
/// How long its target verifies, at least.
const VERIFICATION: Duration = Duration::from_millis(50);
const SLOTS: usize = 8;
/// Tokens that no request names: as many as a frame has room for.
const MANY: usize = 500_000;
/// The most that a message may ask for.
pub(super) const MOST: u32 = 4096;

/// What is drafted for a round: its outcomes, likeliest first, and the continuation of each.
pub(super) type Drafted = Vec<((u32, TokenId), Vec<TokenId>)>;

/// A target of this deployment.
pub(super) fn dial(address: &Address, deployment: &str) -> Dialled {
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

    /// What is drafted for a round, to the end: there is always time for that, if not for every outcome.
    fn entries(&self, session: u64, round: u32) -> Drafted {
        let mut drafted = Drafted::new();
        let mut columns = 0;
        self.wait("entries", |event| {
            let LinkEvent::Messages(messages) = event else {
                return None;
            };
            for message in messages {
                match message {
                    ToTarget::Entries(part)
                        if part.session.0 == session && part.round.0 == round =>
                    {
                        assert_eq!(part.before, columns, "something is missing");
                        columns += take(&part, &mut drafted);
                    }
                    ToTarget::Refused { reason, .. } => panic!("an honest session: {reason}"),
                    ToTarget::Resync(_) => panic!("nothing was lost"),
                    _ => {}
                }
            }
            (columns >= K).then_some(())
        });
        drafted
    }
}

/// Takes in a part of what is drafted for a round; how many columns it has.
fn take(part: &Entries, drafted: &mut Drafted) -> u32 {
    for key in &part.keys {
        drafted.push(((key.accepted, key.token), Vec::new()));
    }
    let width = part.tokens.len().min(drafted.len());
    for (i, &token) in part.tokens.iter().enumerate() {
        drafted[i % width].1.push(token);
    }
    (part.tokens.len() / width) as u32
}

pub(super) fn open(session: u64, tokens: Vec<TokenId>, branches: u32, lookahead: u32) -> ToDraft {
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

pub(super) fn prompt(len: u32, start: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((start + 5 * i) % 128)).collect()
}

/// An honest target: each verdict is the likeliest outcome. All it was sent.
pub(super) fn serve_honestly(target: &Dialled, between: &mut dyn FnMut(u32)) -> Vec<Drafted> {
    // For how many outcomes there is time may differ; the likeliest is always among them.
    serve(target, between, |_| 0)
}

/// A target that says after each round that the least likely outcome came about, which spoils what is
/// learned from it.
fn lie(target: &Dialled) {
    serve(target, &mut |_| {}, |drafted| drafted.len() - 1);
}

/// Rounds of a session whose verdicts are the outcomes at these places. All it was sent.
fn serve(
    target: &Dialled,
    between: &mut dyn FnMut(u32),
    verdict: fn(&Drafted) -> usize,
) -> Vec<Drafted> {
    let mut tokens = prompt(20, 3);
    let opens = open(1, tokens.clone(), OUTCOMES, K);
    target.send(opens).expect("it is up");
    let (mut all, mut window) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let begun = Instant::now();
        between(round);
        let drafted = target.entries(1, round);
        thread::sleep(VERIFICATION.saturating_sub(begun.elapsed()));
        let ((accepted, token), next) = drafted[verdict(&drafted)].clone();
        let mut emitted: Vec<TokenId> = window;
        emitted.truncate(accepted as usize);
        emitted.push(token);
        all.push(drafted);
        let outcome = Outcome {
            session: SessionId(1),
            epoch: Epoch(1),
            round: Round(round),
            base_len: tokens.len() as u32,
            tokens: emitted.clone(),
            lookahead: K,
            verifying: Some(next.clone().into()),
            branches: OUTCOMES,
            ..Outcome::default()
        };
        tokens.extend(emitted);
        window = next;
        target.send(ToDraft::Outcome(outcome)).expect("it is up");
    }
    let (session, epoch) = (SessionId(1), Epoch(1));
    target
        .send(ToDraft::Close { session, epoch })
        .expect("it is up");
    all
}

/// That somebody gets of each outcome what he gets alone; how many outcomes those are, alone and beside others.
fn assert_as_alone(alone: &[Drafted], beside: &[Drafted]) -> [usize; 2] {
    assert_eq!(alone.len(), beside.len());
    for (round, (alone, beside)) in alone.iter().zip(beside).enumerate() {
        for ((own, tokens), (key, drafted)) in alone.iter().zip(beside) {
            assert_eq!(own, key, "an outcome of round {round}");
            let both = tokens.len().min(drafted.len());
            assert_eq!(tokens[..both], drafted[..both], "{key:?} of round {round}");
        }
    }
    [alone, beside].map(|all| all.iter().map(Vec::len).sum())
}

/// One of the things that a target should not do.
fn harm(attacker: &Dialled, round: u32) {
    for i in 0..40 {
        let id = u64::from(1000 * round + i);
        // Those of the round before make room, or all of these would only be turned away.
        if let Some(before) = id.checked_sub(1000) {
            let (session, epoch) = (SessionId(before), Epoch(1));
            let _ = attacker.send(ToDraft::Close { session, epoch });
        }
        // Floods of opens, with enormous budgets; some are too much to be understood.
        let much = if i % 4 == 0 { u32::MAX } else { MOST };
        let mut opens = open(id, prompt(60 + i, i), much, much);
        if let ToDraft::Open(open) = &mut opens {
            (open.sampling, open.verification) = odd(i);
            if i == 1 {
                // Each of its rows would take as long as others' steps.
                open.sampling.logit_bias = vec![(TokenId(7), 1e-3); MANY];
            }
        }
        let _ = attacker.send(opens);
        // Verdicts that follow, and say what cannot be. Where there are none, all that was asked for is
        // drafted.
        let verdicts = if i % 3 == 2 { 0 } else { 4 };
        for at in 0..verdicts {
            let _ = attacker.send(ToDraft::Outcome(Outcome {
                session: SessionId(id),
                epoch: Epoch(1),
                round: Round(at),
                base_len: 60 + i + at,
                tokens: prompt(1, i),
                lookahead: MOST,
                branches: MOST,
                ..impossible(i + at)
            }));
        }
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
                ..impossible(i)
            }));
        }
    }
}

/// How sessions sample and verify that should not: some cannot at all.
fn odd(which: u32) -> (SamplingParams, Verification) {
    let temperature = [1.0, f32::MAX, f32::MIN_POSITIVE, 0.0, 1.0, f32::NAN, -1.0];
    let sampling = SamplingParams {
        temperature: temperature[which as usize % 7],
        ..SamplingParams::default()
    };
    let verification = match which % 3 {
        0 => Verification::Rejection { support: u32::MAX },
        _ => Verification::Coupled,
    };
    (sampling, verification)
}

/// Figures of a verdict that no target has.
fn impossible(which: u32) -> Outcome {
    let longest = Duration::from_micros(u32::MAX.into());
    let (elapsed, lingered, awaited) = match which % 4 {
        0 => (longest, longest, u32::MAX),
        // It waited for longer than there was time.
        1 => (Duration::from_micros(1), longest, u32::MAX),
        2 => (longest, Duration::ZERO, 0),
        _ => (Duration::ZERO, longest, 1),
    };
    let row_cost = [f64::NAN, f64::NEG_INFINITY, 0.0, 1e-300, f64::INFINITY];
    let nodes = [u32::MAX, 0, MOST];
    let tree = TreeBudget::new(nodes[which as usize % 3], row_cost[which as usize % 5]);
    let parts = [0, u32::MAX, 10_000][which as usize % 3];
    let cutoff = [Cutoff { parts }, Cutoff::new(f64::NAN)][which as usize % 2];
    let window = match which % 3 {
        0 => Some(Proposals::new()),
        // Nothing but second choices.
        1 => Proposals::with_parents(prompt(64, which), &[0; 64]).ok(),
        _ => None,
    };
    Outcome {
        verifying: window,
        tree: Some(tree).filter(|_| !which.is_multiple_of(4)),
        cutoffs: Cutoffs {
            window: cutoff,
            entries: Cutoff { parts },
        },
        saguaro: Saguaro::new(MOST, u32::MAX),
        lingered,
        awaited,
        elapsed,
        ..Outcome::default()
    }
}

pub(super) fn config(address: &Address, lease: Duration) -> DraftConfig {
    DraftConfig {
        listen: vec![address.clone()],
        max_sessions: SLOTS,
        lease,
        metrics_listen: Some("127.0.0.1:0".into()),
        ..DraftConfig::default()
    }
}

/// An endpoint that grants leases of this length, and where it tells its metrics.
fn endpoint(address: &Address, lease: Duration) -> (Running<foretoken_draft::RunError>, u16) {
    let runner = runner(sim(Role::Draft { agreement: 0.9 }));
    observed_draft(config(address, lease), runner)
}

/// Waits until an endpoint holds no session and no page any more.
pub(super) async fn leaves_nothing(port: u16) {
    let held = async {
        loop {
            let seen = Scrape::of(port).await;
            let held = ["foretoken_sessions", "vllm:kv_cache_usage_perc"];
            if held.iter().all(|name| seen.shown(name) == 0.0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENT, held)
        .await
        .expect("all pages are given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_honest_target_gets_is_the_same_beside_one_that_does_all_it_should_not() {
    let enough = |[most, got]: [usize; 2]| most > 4 * ROUNDS as usize && 2 * got >= most;
    // For how many outcomes there is time depends on what else this machine does meanwhile.
    let mut served = Vec::new();
    while served.len() < 3 {
        let outcomes = outcomes_alone_and_beside().await;
        if enough(outcomes) {
            return;
        }
        served.push(outcomes);
    }
    assert_eq!(served, [[0; 2]; 0], "outcomes alone, and beside the other");
}

async fn outcomes_alone_and_beside() -> [usize; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let mut served = Vec::new();
    for name in ["quiet", "loud"] {
        let address = socket(&folder, name);
        let (endpoint, port) = endpoint(&address, Duration::from_secs(3600));
        let got = tokio::task::spawn_blocking(move || {
            let attacker = dial(&address, "attacker");
            if name == "loud" {
                lie(&attacker);
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
        leaves_nothing(port).await;
        endpoint.end().await;
    }
    assert_as_alone(&served[0], &served[1])
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_whose_rows_would_take_long_are_refused_for_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = endpoint(&address, Duration::from_secs(3600));
    let refused = tokio::task::spawn_blocking(move || {
        let attacker = dial(&address, "attacker");
        let mut opens = open(1, prompt(20, 3), OUTCOMES, K);
        if let ToDraft::Open(open) = &mut opens {
            open.sampling.banned_until_min = vec![TokenId(7); MANY];
            open.sampling.min_tokens = u32::MAX;
        }
        attacker.send(opens).expect("it is up");
        attacker.wait("a refusal", |event| {
            let LinkEvent::Messages(messages) = event else {
                return None;
            };
            messages.into_iter().find_map(|message| match message {
                ToTarget::Refused { reason, retry, .. } => Some((reason, retry)),
                _ => None,
            })
        })
    });
    let (reason, retry) = refused.await.expect("it is answered");
    assert!(reason.contains("500000 tokens") && !retry, "{reason}");
    leaves_nothing(port).await;
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_never_stops_sending_keeps_nobody_from_being_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = endpoint(&address, Duration::from_secs(3600));
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
    let rounds = served.await.expect("every round had its entries");
    assert_eq!(rounds, ROUNDS as usize);
    leaves_nothing(port).await;
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_never_closed_end_with_their_lease_and_leave_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = endpoint(&address, Duration::from_secs(3));
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
            (opened >= SLOTS && expired == opened).then_some(())
        });
        assert_eq!(opened, SLOTS, "the others were refused");
        let honest = dial(&address, "honest");
        // There may be no time for both now and then.
        let has_both = (1..=SLOTS as u64).any(|session| {
            let opens = open(session, prompt(20, 3), 2, K);
            honest.send(opens).expect("it is up");
            honest.entries(session, 0).len() == 2
        });
        (has_both, attacker, honest)
    });
    // The links go on: they are not what gives anything back.
    let (has_both, _attacker, _honest) = ended.await.expect("the slots are free again");
    assert!(has_both, "two outcomes are drafted for");
    leaves_nothing(port).await;
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_closes_or_hangs_up_amid_what_is_drafted_ahead_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = endpoint(&address, Duration::from_secs(3600));
    for hangs_up in [false, true] {
        let address = address.clone();
        let left = tokio::task::spawn_blocking(move || {
            let attacker = dial(&address, "attacker");
            for session in 0..SLOTS as u64 {
                let message = open(session, prompt(60, session as u32), MOST, MOST);
                attacker.send(message).expect("it is up");
            }
            // Most of it is still to be drafted.
            attacker.wait("a column", |event| {
                let LinkEvent::Messages(messages) = event else {
                    return None;
                };
                let mut messages = messages.into_iter();
                messages.find(|message| matches!(message, ToTarget::Entries(_)))
            });
            if hangs_up {
                return None;
            }
            for session in (0..SLOTS as u64).map(SessionId) {
                let epoch = Epoch(1);
                let close = ToDraft::Close { session, epoch };
                attacker.send(close).expect("it is up");
            }
            Some(attacker)
        });
        let _link = left.await.expect("it is drafted for");
        leaves_nothing(port).await;
    }
    endpoint.end().await;
}
