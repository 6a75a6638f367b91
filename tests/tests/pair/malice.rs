//! Targets that do what they want: they harm themselves, and nobody else notices.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use foretoken_draft::DraftConfig;
use foretoken_engine::sim::Role;
use foretoken_protocol::{
    Address,
    link::{Consumer, Link, LinkEvent, SendError},
};
use foretoken_speculation::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    fanout::FanOut,
    message::{
        Branching, Cutoff, Cutoffs, Delivery, Entries, Open, Outcome, Rise, ToDraft, ToTarget,
        TreeBudget,
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

/// Rounds of a session that decides at once, beside an attack.
const HURRIED: usize = 31;
/// Rounds that somebody has meanwhile who is alone, for each of them, at most.
const MOST_MEANWHILE: u32 = 15;
/// Rounds after which he opens another session: none may get longer than a model reads.
const LONG_ENOUGH: u32 = 100;

/// An outcome, and its continuation.
type Entry = ((u32, TokenId), Vec<TokenId>);
/// What is drafted for a round: its outcomes, likeliest first.
pub(super) type Drafted = Vec<Entry>;

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
    let mut session = Session::open(target, 1);
    let mut all = Vec::new();
    while session.round < ROUNDS {
        let begun = Instant::now();
        between(session.round);
        let drafted = session.drafted();
        thread::sleep(VERIFICATION.saturating_sub(begun.elapsed()));
        session.decide(drafted[verdict(&drafted)].clone());
        all.push(drafted);
    }
    session.close();
    all
}

/// Rounds of honest sessions that decide as soon as anything is drafted, until it is `over`; counts them.
fn hurry(target: &Dialled, rounds: &AtomicU32, over: &AtomicBool) {
    for session in 1.. {
        let mut session = Session::open(target, session);
        while session.round < LONG_ENOUGH {
            if over.load(Ordering::Relaxed) {
                return session.close();
            }
            session.hurry();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        session.close();
    }
}

/// An honest session of a target, round after round.
struct Session<'a> {
    target: &'a Dialled,
    id: u64,
    tokens: Vec<TokenId>,
    window: Vec<TokenId>,
    round: u32,
}

impl<'a> Session<'a> {
    fn open(target: &'a Dialled, id: u64) -> Self {
        let tokens = prompt(20, 3);
        let opens = open(id, tokens.clone(), OUTCOMES, K);
        target.send(opens).expect("it is up");
        Self {
            target,
            id,
            tokens,
            window: Vec::new(),
            round: 0,
        }
    }

    /// What is drafted for this round.
    fn drafted(&self) -> Drafted {
        self.target.entries(self.id, self.round)
    }

    /// Decides for an outcome, and verifies what was drafted for it.
    fn decide(&mut self, ((accepted, token), next): Entry) {
        let mut emitted = std::mem::replace(&mut self.window, next.clone());
        emitted.truncate(accepted as usize);
        emitted.push(token);
        let outcome = Outcome {
            session: SessionId(self.id),
            epoch: Epoch(1),
            round: Round(self.round),
            base_len: self.tokens.len() as u32,
            tokens: emitted.clone(),
            lookahead: K,
            verifying: Some(next.into()),
            branches: OUTCOMES,
            ..Outcome::default()
        };
        self.tokens.extend(emitted);
        self.round += 1;
        let sent = self.target.send(ToDraft::Outcome(outcome));
        sent.expect("it is up");
    }

    /// Decides for the likeliest outcome as soon as it is drafted for.
    fn hurry(&mut self) {
        let likeliest = self.drafted().swap_remove(0);
        self.decide(likeliest);
    }

    fn close(self) {
        let (session, epoch) = (SessionId(self.id), Epoch(1));
        let closes = ToDraft::Close { session, epoch };
        self.target.send(closes).expect("it is up");
    }
}

/// A target that does nothing but harm until it is told that it is `over`. Once it is under way it says
/// that it has `begun`.
pub(super) type Attack = fn(attacker: &Link, begun: &Sender<()>, over: &AtomicBool);

/// That a target is served beside one that attacks. How fast depends on the machine and on all that it
/// does meanwhile, so what is counted is how many rounds another target has in the same time, at an
/// endpoint that nobody attacks. The middle one counts: something else may keep any single round.
pub(super) async fn assert_served_beside(attack: Attack, config: &DraftConfig) {
    let mut counted = Vec::new();
    while counted.len() < 3 {
        let mut meanwhile = rounds_meanwhile(attack, config).await;
        meanwhile.sort_unstable();
        if meanwhile[HURRIED / 2] < MOST_MEANWHILE {
            return;
        }
        counted.push(meanwhile);
    }
    assert_eq!(counted, [[0; HURRIED]; 0], "rounds alone for each beside");
}

/// For each round of a target beside an attack, rounds that one has meanwhile at an endpoint of its own.
async fn rounds_meanwhile(attack: Attack, config: &DraftConfig) -> [u32; HURRIED] {
    let folder = tempfile::tempdir().expect("a folder");
    let addresses = ["loud", "quiet"].map(|name| socket(&folder, name));
    let endpoints = addresses.clone().map(|address| {
        let config = DraftConfig {
            listen: vec![address],
            ..config.clone()
        };
        observed_draft(config, runner(sim(Role::Draft { agreement: 0.9 })))
    });
    let counted = tokio::task::spawn_blocking(move || {
        let [loud, quiet] = &addresses;
        let attacker = dial(loud, "attacker");
        let (beside, alone) = (dial(loud, "honest"), dial(quiet, "honest"));
        let (link, over, rounds) = (&attacker.link, &AtomicBool::new(false), &AtomicU32::new(0));
        let (begins, begun) = channel();
        thread::scope(|scope| {
            scope.spawn(move || attack(link, &begins, over));
            begun.recv().expect("it says when it has begun");
            // Somebody with time for many outcomes is served too.
            serve_honestly(&dial(loud, "patient"), &mut |_| {});
            scope.spawn(move || hurry(&alone, rounds, over));
            let served = scope.spawn(move || {
                let mut session = Session::open(&beside, 1);
                let counted = [(); HURRIED].map(|()| {
                    let before = rounds.load(Ordering::Relaxed);
                    session.hurry();
                    rounds.load(Ordering::Relaxed) - before
                });
                session.close();
                counted
            });
            let served = served.join();
            over.store(true, Ordering::Relaxed);
            served.expect("every round had its entries")
        })
    });
    let counted = counted.await.expect("every round had its entries");
    for (endpoint, port) in endpoints {
        leaves_nothing(port).await;
        endpoint.end().await;
    }
    counted
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
    let likely = [f64::NAN, f64::NEG_INFINITY, 0.0, 1e-300, f64::INFINITY];
    let nodes = [u32::MAX, 0, MOST];
    let parts = [0, u32::MAX, 10_000][which as usize % 3];
    let rise = Rise {
        after: parts % 7,
        parts,
    };
    let tree = TreeBudget {
        nodes: nodes[which as usize % 3],
        cutoff: Cutoff::new(likely[which as usize % 5], rise),
    };
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
            window: [parts, 0][which as usize % 2],
            entries: parts,
            rise: Rise {
                after: which % 2,
                parts,
            },
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

/// Sends as much as a link carries.
fn never_stop(attacker: &Link, begun: &Sender<()>, over: &AtomicBool) {
    let mut sent = 0_u64;
    let started = Instant::now();
    while !over.load(Ordering::Relaxed) && started.elapsed() < PATIENT {
        let verdict = Outcome {
            session: SessionId(sent),
            ..Outcome::default()
        };
        sent += u64::from(attacker.send(vec![ToDraft::Outcome(verdict)]).is_ok());
        if sent == 1_000 {
            let _ = begun.send(());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_never_stops_sending_keeps_nobody_from_being_served() {
    let config = config(&Address::loopback(0), Duration::from_secs(3600));
    assert_served_beside(never_stop, &config).await;
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
