//! Verdicts that wait for more of what was drafted for them.

use std::{
    thread,
    time::{Duration, Instant},
};

use foretoken_protocol::{
    generate::GenerateRequest,
    link::{LinkEvent, Mailbox, Transport, TransportOptions},
};
use foretoken_speculation::{
    Round, TokenId,
    guess::OutcomeKey,
    message::{Entries, Outcome, ToDraft, ToTarget},
};

use super::rig::{Rig, plain, request, slow_language};
use crate::{
    config::{FallbackName, LookaheadConfig, PolicyName, SsdConfig, TargetConfig},
    inbox::{LinkKey, Message},
};

/// Of a step. Long, so that what is to come after it mostly does.
const STEP: Duration = Duration::from_millis(400);
/// Some time after a verification has ended, and less than its verdict waits.
const SOON: Duration = Duration::from_millis(470);
/// Most times that it is played: on a busy machine what is to come meanwhile may be early, or too late.
const TRIES: usize = 20;

/// A request of policy SSD that asks for nothing after a miss.
fn rig() -> Rig {
    let config = TargetConfig {
        policy: PolicyName::Ssd,
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(3),
            fallback: FallbackName::Nothing,
            ..SsdConfig::default()
        },
        ..TargetConfig::default()
    };
    let slow = slow_language(STEP, Duration::ZERO);
    let mut rig = Rig::in_real_time(config, slow, 1.0);
    rig.connect();
    rig
}

/// Turns until there is a verdict, and what the endpoint is told of it.
fn verdict(rig: &mut Rig, inbox: &Mailbox<Message>) -> Outcome {
    loop {
        rig.worker.turn(Some(inbox));
        for message in rig.sent() {
            match message {
                ToDraft::Outcome(outcome) => return outcome,
                ToDraft::Open(open) => {
                    let (session, epoch) = (open.session, open.epoch);
                    let opened = ToTarget::Opened { session, epoch };
                    rig.link(LinkEvent::Messages(vec![opened].into()));
                }
                ToDraft::Close { .. } => unreachable!("it goes on"),
            }
        }
    }
}

/// What an endpoint is told of a verdict, the second of whose two tokens comes soon after its step, and
/// these.
fn told_of_a_late_token(
    rig: &mut Rig,
    asked: &GenerateRequest,
    expected: &[TokenId],
) -> (Outcome, Vec<TokenId>) {
    let transport = Transport::start(TransportOptions::default()).expect("it starts");
    let (postbox, inbox) = transport.mailbox();
    let _output = rig.ask(asked.clone());
    // Some rounds, so that it is known what time is worth.
    let mut before = verdict(rig, &inbox);
    for _ in 0..2 {
        before = verdict(rig, &inbox);
    }
    assert_eq!((before.lingered, before.awaited), (Duration::ZERO, 0));
    let base_len = before.base_len + before.tokens.len() as u32;
    let at = base_len as usize - asked.tokens.len();
    let next = &expected[at..at + 3];
    let part = |before_it: u32, keys: Vec<OutcomeKey>, token: TokenId| {
        let entries = ToTarget::Entries(Entries {
            session: before.session,
            epoch: before.epoch,
            round: Round(before.round.0 + 1),
            base_len,
            before: before_it,
            keys,
            tokens: vec![token],
            ..Entries::default()
        });
        LinkEvent::Messages(vec![entries].into())
    };
    let key = OutcomeKey {
        accepted: 0,
        token: next[0],
    };
    rig.link(part(0, vec![key], next[1]));
    let late = part(1, Vec::new(), next[2]);
    let told = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(SOON);
            let message = Message::Link(LinkKey(1), late, Instant::now());
            assert!(postbox.post(message).is_ok(), "it listens");
        });
        verdict(rig, &inbox)
    });
    assert_eq!(told.tokens, next[..1]);
    (told, next[1..].to_vec())
}

#[test]
fn an_endpoint_is_told_how_many_tokens_its_verdict_waited_for() {
    let asked = request(3, 0.0, 60);
    let expected = plain(&asked);
    let mut tries = (0..TRIES).map(|_| told_of_a_late_token(&mut rig(), &asked, &expected));
    let waited = tries.find(|(told, _)| told.awaited > 0);
    let (told, tokens) = waited.expect("it came while it was waited for");
    let window = told.verifying.expect("it was drafted for");
    assert_eq!(window.tokens(), tokens);
    assert_eq!(told.awaited, 1);
    assert!(!told.lingered.is_zero() && told.elapsed >= STEP);
}

#[test]
fn a_wait_is_counted_for_its_step_once_and_for_no_request_that_waits_for_nothing() {
    let asked = request(3, 0.0, 60);
    let expected = plain(&asked);
    let mut tries = (0..TRIES).map(|_| {
        let mut rig = rig();
        let _beside = rig.ask(GenerateRequest {
            policy: Some("Autoregressive".into()),
            ..request(4, 0.0, 60)
        });
        let (told, _) = told_of_a_late_token(&mut rig, &asked, &expected);
        (rig, told)
    });
    let waited = tries.find(|(_, told)| !told.lingered.is_zero());
    let (rig, told) = waited.expect("it waited");
    let lingered = told.lingered.as_secs_f64();
    for of in ["step", "round"] {
        let shown = |what| rig.shown(&format!("foretoken_{of}_lingered_seconds_{what}"));
        let (count, sum) = (shown("count"), shown("sum"));
        assert!((count - 1.0).abs() < 1e-9, "{count} for each {of}");
        assert!((sum - lingered).abs() < 1e-9, "{sum} s, not {lingered}");
    }
}
