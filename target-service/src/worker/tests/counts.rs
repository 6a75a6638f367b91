//! What is counted of requests, however they end.

use std::time::Duration;

use foretoken_engine::schedule::RequestId;
use foretoken_protocol::generate::GenerateError;

use super::rig::{Rig, language, request};
use crate::{
    config::{LookaheadConfig, PolicyName, TargetConfig},
    inbox::{LinkKey, Message},
};

fn rig(config: TargetConfig) -> Rig {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..config
    };
    let mut rig = Rig::new(config, language(), 0.9);
    rig.connect();
    rig
}

/// How many requests each of these histograms has.
fn measured(rig: &Rig) -> [u64; 6] {
    [
        "e2e_request_latency_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_time_per_output_token_seconds",
    ]
    .map(|name| rig.counted(&format!("vllm:{name}_count")))
}

#[test]
fn what_is_cancelled_after_it_has_begun_is_measured_like_what_ends_by_itself() {
    let mut rig = rig(TargetConfig {
        max_running: 1,
        ..TargetConfig::default()
    });
    // Like one that has come to a stop string, which the router knows.
    let mut stopped = rig.ask(request(1, 1.0, 500));
    let waits = rig.ask(request(2, 1.0, 500));
    rig.until(&mut stopped, 30);
    let emitted = rig.counted("vllm:generation_tokens_total");
    drop(waits);
    rig.pass(crate::worker::SWEEP);
    rig.turn();
    assert_eq!(measured(&rig), [0; 6], "it has not begun");
    rig.until(&mut stopped, 60);
    drop(stopped);
    rig.pass(Duration::from_secs(60));
    rig.turn();
    assert_eq!(measured(&rig), [1; 6]);
    for name in ["e2e_request_latency", "request_decode_time"] {
        let seconds = rig.shown(&format!("vllm:{name}_seconds_sum"));
        assert!(seconds < 60.0, "{name} goes on after the last token");
    }
    assert_eq!(rig.counted("vllm:request_success_total"), 2);
    let all = rig.counted("vllm:request_generation_tokens_sum");
    assert!(all >= 60 && emitted < all, "{emitted}, then {all}");
    assert_eq!(all, rig.counted("vllm:generation_tokens_total"));
    rig.assert_idle();
}

#[test]
fn a_request_without_a_token_has_no_first_one() {
    let mut rig = rig(TargetConfig::default());
    let mut none = request(3, 1.0, 0);
    none.prompt_logprobs = true;
    for (asked, tokens) in [(none, 0), (request(3, 1.0, 1), 1)] {
        let mut output = rig.ask(asked);
        rig.run(std::slice::from_mut(&mut output));
        for name in ["time_to_first_token", "request_prefill_time"] {
            let count = rig.counted(&format!("vllm:{name}_seconds_count"));
            assert_eq!(count, tokens, "{name}");
        }
    }
    assert_eq!(rig.counted("vllm:e2e_request_latency_seconds_count"), 2);
}

#[test]
fn an_answer_tells_the_bytes_of_all_messages_about_it() {
    for policy in [PolicyName::Speculative, PolicyName::Ssd] {
        let mut rig = rig(TargetConfig {
            policy,
            ..TargetConfig::default()
        });
        let mut output = rig.ask(request(1, 1.0, 60));
        rig.until(&mut output, 10);
        // Of the next verdict it says that it does not know the session.
        rig.endpoint.restart();
        rig.until(&mut output, 20);
        rig.worker.let_go(RequestId(1));
        assert!(rig.worker.bind_running(LinkKey(1), RequestId(1)));
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(rig.opens, 3);
        assert_eq!(output.stats().bytes, rig.bytes, "{policy:?}");
    }
}

#[test]
fn requests_that_a_target_gives_up_are_counted() {
    let mut rig = rig(TargetConfig::default());
    let mut outputs: Vec<_> = (0..3)
        .map(|seed| rig.ask(request(seed, 1.0, 500)))
        .collect();
    rig.until(&mut outputs[0], 10);
    assert_eq!(rig.counted("foretoken_requests_lost_total"), 0);
    rig.worker.take(Message::Stop);
    assert_eq!(rig.counted("foretoken_requests_lost_total"), 3);
    for output in &mut outputs {
        assert!(output.collect());
        assert!(matches!(output.end, Some(Err(GenerateError::Lost { .. }))));
    }
}
