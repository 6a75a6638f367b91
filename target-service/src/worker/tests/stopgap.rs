//! What this host proposes changes no token, and is proposed while it pays.

mod waiting;

use std::time::Duration;

use foretoken_engine::sim::SimOptions;
use foretoken_protocol::{
    generate::{GenerateEvent, GenerateRequest},
    link::LinkEvent,
};
use foretoken_speculation::{TokenId, local::Origin};

use super::{
    endpoint::MiniEndpoint,
    rig::{Fault, Output, Rig, language, plain, request, slow_language},
};
use crate::config::{
    FallbackName, LookaheadConfig, OnLossName, PolicyName, SsdConfig, TargetConfig,
};

fn standing_in(policy: PolicyName) -> TargetConfig {
    TargetConfig {
        policy,
        on_loss: OnLossName::Local,
        lookahead: LookaheadConfig::Fixed(4),
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(4),
            ..SsdConfig::default()
        },
        patience: Duration::from_millis(3),
        ..TargetConfig::default()
    }
}

/// A request whose text is mostly made of two tokens.
fn monotonous(seed: u64, temperature: f32, max_tokens: u32) -> GenerateRequest {
    let mut request = request(seed, temperature, max_tokens);
    request.sampling.logit_bias = vec![(TokenId(3), 12.0), (TokenId(9), 9.0)];
    request
}

fn one(rig: &mut Rig, request: GenerateRequest) -> Output {
    let mut output = rig.ask(request);
    rig.run(std::slice::from_mut(&mut output));
    output
}

fn proposed(rig: &Rig, origin: Origin) -> u64 {
    rig.worker.metrics.local_proposed(origin).get()
}

#[test]
fn without_any_endpoint_the_host_proposes_and_changes_no_token() {
    let mut accepted = 0;
    for (policy, lookahead) in [
        (PolicyName::Speculative, LookaheadConfig::Fixed(4)),
        (
            PolicyName::Speculative,
            LookaheadConfig::Adaptive { max: 6 },
        ),
        (PolicyName::Ssd, LookaheadConfig::Fixed(4)),
    ] {
        let config = TargetConfig {
            lookahead,
            ..standing_in(policy)
        };
        let mut rig = Rig::new(config, language(), 1.0);
        for seed in 0..9 {
            let temperature = [0.0, 0.7, 1.3][seed as usize % 3];
            let mut asked = if seed < 6 {
                monotonous(seed, temperature, 60)
            } else {
                request(seed, temperature, 60)
            };
            if seed % 2 == 1 {
                asked.sampling.repetition_penalty = 1.1;
                asked.sampling.presence_penalty = 0.3;
                asked.sampling.frequency_penalty = 0.2;
            }
            let output = one(&mut rig, asked.clone());
            assert_eq!(output.tokens, plain(&asked), "{asked:?}");
            let stats = output.stats();
            assert_eq!(stats.accepted + stats.rounds + 1, 60);
            accepted += stats.accepted;
        }
        assert!(proposed(&rig, Origin::Recycled) > 0);
        assert!(proposed(&rig, Origin::Suffix(2)) > 0);
        rig.assert_idle();
    }
    assert!(accepted > 300, "it was hardly of use: {accepted}");
}

#[test]
fn nothing_is_proposed_unless_that_is_wanted() {
    let config = TargetConfig {
        on_loss: OnLossName::Plain,
        ..standing_in(PolicyName::Speculative)
    };
    let mut rig = Rig::new(config, language(), 1.0);
    assert_eq!(one(&mut rig, monotonous(1, 0.0, 40)).stats().drafted, 0);
    let mut rig = Rig::new(standing_in(PolicyName::Speculative), language(), 1.0);
    let mut asked = monotonous(1, 0.0, 40);
    asked.policy = Some("Autoregressive".into());
    assert_eq!(one(&mut rig, asked).stats().drafted, 0);
    assert!(one(&mut rig, monotonous(1, 0.0, 40)).stats().drafted > 20);
}

#[test]
fn a_lost_endpoint_is_stood_in_for_until_it_comes_back() {
    for policy in [PolicyName::Speculative, PolicyName::Ssd] {
        let mut rig = Rig::new(standing_in(policy), language(), 0.8);
        rig.connect();
        let asked = monotonous(2, 1.0, 400);
        let mut output = rig.ask(asked.clone());
        let mut read = |rig: &mut Rig, tokens: usize| {
            while output.tokens.len() < tokens {
                rig.turn();
                output.collect();
            }
            let all = [Origin::Recycled, Origin::Suffix(2)];
            all.map(|origin| proposed(rig, origin)).iter().sum::<u64>()
        };
        let before = read(&mut rig, 60);
        rig.endpoint.restart();
        rig.link(LinkEvent::Down("gone".into()));
        let alone = read(&mut rig, 200);
        assert!(alone > before + 20, "{before} {alone}");
        rig.connect();
        let back = read(&mut rig, 260);
        if policy == PolicyName::Speculative {
            assert_eq!(before, 0, "the endpoint drafts");
            let late = read(&mut rig, 390);
            assert_eq!(back, late, "it drafts again");
        }
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(output.tokens, plain(&asked));
        assert_eq!(output.stats().hits > 0, policy == PolicyName::Ssd);
        rig.assert_idle();
    }
}

#[test]
fn an_endpoint_that_keeps_silent_is_stood_in_for_while_it_is_left_in_peace() {
    let mut rig = Rig::new(standing_in(PolicyName::Speculative), language(), 0.8);
    rig.connect();
    rig.fault = Fault::Silent;
    let asked = monotonous(3, 0.7, 80);
    let output = one(&mut rig, asked.clone());
    assert_eq!(output.tokens, plain(&asked));
    assert!(output.stats().accepted > 20, "{:?}", output.stats());
}

#[test]
fn whatever_follows_a_miss_no_token_changes() {
    for fallback in [
        FallbackName::Nothing,
        FallbackName::Local,
        FallbackName::Remote,
        FallbackName::Auto,
        FallbackName::LockStep,
    ] {
        let mut config = standing_in(PolicyName::Ssd);
        config.ssd.fallback = fallback;
        let mut rig = Rig::new(config, language(), 0.6);
        rig.connect();
        let asked: Vec<_> = (0..6)
            .map(|seed| monotonous(seed, [0.0, 0.7, 1.3][seed as usize % 3], 60))
            .collect();
        let mut outputs: Vec<_> = asked.iter().map(|asked| rig.ask(asked.clone())).collect();
        rig.run(&mut outputs);
        for (asked, output) in asked.iter().zip(&outputs) {
            assert_eq!(output.tokens, plain(asked), "{fallback:?} {asked:?}");
            let stats = output.stats();
            assert!(stats.hits > 0 && stats.misses > 0, "{fallback:?} {stats:?}");
        }
        let local = outputs.iter().map(|output| output.stats().ahead.local);
        let local: u32 = local.sum();
        match fallback {
            FallbackName::Nothing | FallbackName::Remote => assert_eq!(local, 0),
            FallbackName::Local | FallbackName::Auto => assert!(local > 0, "{fallback:?}"),
            // That depends on times: see below.
            FallbackName::LockStep => {}
        }
        rig.assert_idle();
        assert_eq!(rig.endpoint.pages(), 0);
    }
}

/// A target whose steps take so long that its endpoint, which is right as often as told, takes no time
/// beside them, and for which it waits.
fn slow(step: Duration, config: TargetConfig, agreement: f64) -> Rig {
    let steps = slow_language(step, Duration::ZERO);
    let config = TargetConfig {
        patience: Duration::from_secs(1),
        ..config
    };
    let mut rig = Rig::new(config, steps, agreement);
    rig.endpoint = MiniEndpoint::new(&language(), agreement);
    rig.connect();
    rig
}

/// What followed the misses of so many requests at once by the rule for rows in lock-step: proposals of
/// this host, and requests for a window.
fn in_lock_step(sessions: u64) -> (u32, u32) {
    let mut config = standing_in(PolicyName::Ssd);
    config.ssd.fallback = FallbackName::LockStep;
    let mut rig = slow(Duration::from_millis(20), config, 0.8);
    let asked = (0..sessions).map(|seed| request(seed + 1, 0.0, 40));
    let mut outputs: Vec<_> = asked.map(|asked| rig.ask(asked)).collect();
    rig.run(&mut outputs);
    let counts = outputs.iter().map(|output| {
        let stats = output.stats();
        assert!(stats.hits > 0 && stats.misses > 1, "{stats:?}");
        (stats.ahead.local, stats.ahead.remote)
    });
    counts.fold((0, 0), |all, own| (all.0 + own.0, all.1 + own.1))
}

#[test]
fn in_lock_step_one_request_waits_for_its_endpoint_and_many_never_do() {
    // With misses as frequent as here the rule's b* is about 2.
    let (local, remote) = in_lock_step(1);
    assert!(remote > 2 * local, "{remote} waits, {local} not");
    let (local, remote) = in_lock_step(8);
    assert!(remote == 0 && local > 8, "{remote} waits, {local} not");
}

#[test]
fn where_a_row_costs_a_step_what_is_seldom_right_is_not_proposed() {
    let drafted = |language: SimOptions| {
        let mut rig = Rig::new(standing_in(PolicyName::Speculative), language, 1.0);
        // Two equally likely tokens.
        let mut asked = request(4, 1.0, 60);
        asked.sampling.logit_bias = vec![(TokenId(3), 12.0), (TokenId(9), 12.0)];
        one(&mut rig, asked).stats().drafted
    };
    let per_row = Duration::from_millis(2);
    let dear = drafted(slow_language(Duration::ZERO, per_row));
    let cheap = drafted(slow_language(per_row, Duration::ZERO));
    assert!(cheap > 40 && dear * 3 < cheap, "{cheap} {dear}");
}

#[test]
fn what_was_said_under_one_salt_is_not_proposed_under_another() {
    // The first token is not in the prompt, so that only the table can know what follows it.
    let asked = (0..50).map(|seed| request(seed, 1.0, 3));
    let asked = asked
        .clone()
        .find(|asked| !asked.tokens.contains(&plain(asked)[0]));
    let asked = asked.expect("most prompts are like that");
    for (salt, known) in [(Some("a"), true), (Some("b"), false), (None, false)] {
        let mut rig = Rig::new(standing_in(PolicyName::Speculative), language(), 1.0);
        let mut first = asked.clone();
        first.cache_salt = Some("a".into());
        one(&mut rig, first);
        let mut second = asked.clone();
        (second.cache_salt, second.max_tokens) = (salt.map(str::to_owned), 8);
        let output = one(&mut rig, second);
        let rounds = output.pieces.iter().filter_map(|piece| match piece {
            GenerateEvent::Tokens(round) => Some(round.drafted > 0),
            GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => None,
        });
        // The first round is the prompt's.
        assert_eq!(rounds.clone().nth(1), Some(known), "{salt:?}");
    }
}

#[test]
fn time_in_which_nobody_is_served_does_not_make_tokens_seem_slow() {
    let mut rig = slow(Duration::from_millis(2), standing_in(PolicyName::Ssd), 0.8);
    one(&mut rig, request(1, 0.0, 100));
    let pace = rig.worker.stopgap.pace();
    // Its client goes away, so that it does not end by itself.
    let mut left = rig.ask(request(2, 0.0, 100));
    while left.tokens.len() < 50 {
        rig.turn();
        left.collect();
    }
    drop(left);
    rig.turn();
    rig.assert_idle();
    rig.pass(Duration::from_secs(3600));
    one(&mut rig, request(3, 0.0, 20));
    let after = rig.worker.stopgap.pace();
    assert!(after > pace / 2.0, "{pace} tokens a second, then {after}");
}
