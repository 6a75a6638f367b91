use proptest::{collection::vec, option, prelude::*};
use prost::Message as _;

use super::*;

fn request() -> GenerateRequest {
    GenerateRequest {
        request_id: "r-1".into(),
        owner: 1 << 63,
        tokens: (0..9).map(TokenId).collect(),
        prompt_len: 7,
        sampling: SamplingParams {
            temperature: 0.5,
            ..SamplingParams::default()
        },
        seed: Seed(u64::MAX),
        max_tokens: 100,
        ignore_eos: true,
        stop_token_ids: vec![TokenId(3)],
        logprobs: Some(0),
        prompt_logprobs: true,
        policy: Some("Speculative".into()),
        lookahead: Some(0),
        cache_prompt: true,
        cache_salt: Some("a secret".into()),
        endpoints: vec!["a".into(), "b".into()],
        tell_stats: true,
        hold: Duration::from_micros(1500),
        trace: None,
    }
}

#[test]
fn a_request_survives_the_wire() {
    for request in [
        request(),
        GenerateRequest {
            logprobs: None,
            policy: None,
            lookahead: None,
            cache_salt: None,
            ..request()
        },
    ] {
        assert_eq!(GenerateRequest::from_proto(request.to_proto()), Ok(request));
    }
}

#[test]
fn a_bad_request_is_refused_with_the_field() {
    for (change, field) in [
        (
            GenerateRequest {
                prompt_len: 10,
                ..request()
            },
            "prompt_len",
        ),
        (
            GenerateRequest {
                logprobs: Some(5000),
                ..request()
            },
            "logprobs",
        ),
        (
            GenerateRequest {
                endpoints: vec![String::new(); 100],
                ..request()
            },
            "endpoints",
        ),
        (
            GenerateRequest {
                request_id: "x".repeat(9999),
                ..request()
            },
            "request_id",
        ),
    ] {
        let error = GenerateRequest::from_proto(change.to_proto())
            .expect_err(field)
            .to_string();
        assert!(error.contains(field), "{error}");
    }
    let mut torn = request().to_proto();
    torn.tokens.truncate(7);
    assert!(matches!(
        GenerateRequest::from_proto(torn),
        Err(ValueError::Torn { .. })
    ));
}

fn logprobs() -> impl Strategy<Value = TokenLogprobs> {
    let top = vec((any::<u32>().prop_map(TokenId), -50.0_f32..0.0), 0..4);
    (-50.0_f32..0.0, any::<u32>(), top).prop_map(|(logprob, rank, top)| TokenLogprobs {
        logprob,
        rank,
        top,
    })
}

/// Any statistics.
fn stats() -> impl Strategy<Value = GenerationStats> {
    let some = (option::of(any::<u32>()), any::<[u32; 6]>(), any::<u64>());
    some.prop_map(
        |(c, [rounds, drafted, accepted, cached_tokens, hits, misses], nanos)| {
            let ahead = AheadStats {
                first_hits: hits / 3,
                first_misses: misses / 3,
                alone: misses / 5,
                local: misses / 7,
                remote: misses / 9,
                received: nanos / 5,
                used: nanos / 7,
                late: nanos / 11,
                placed: hits / 5,
                places: nanos / 13,
            };
            let bounds = |count: u32| [3, 5, 7, 9, 11, 13].map(|part| count / part);
            let endpoint = EndpointStats {
                judged: hits / 2,
                ranked: hits / 4,
                ranks: nanos / 31,
                ahead: Duration::from_nanos(nanos / 37),
                awaited: Duration::from_nanos(nanos / 41),
                limits: BoundCounts::by_place(bounds(misses)),
            };
            let measured = RoundStats {
                bytes: nanos / 17,
                weighed: rounds / 17,
                hit: Duration::from_nanos(nanos / 19),
                hit_verification: Duration::from_nanos(nanos / 23),
                awaited: Duration::from_nanos(nanos / 29),
                limits: BoundCounts::by_place(bounds(rounds)),
            };
            GenerationStats {
                rounds,
                drafted,
                accepted,
                hits,
                misses,
                late: rounds / 3,
                bytes: nanos / 3,
                ahead,
                measured,
                endpoint,
                saguaro_c: c.map(|c| c as f32 / u32::MAX as f32),
                cached_tokens,
                policy: "p".into(),
                prefill: Duration::from_nanos(nanos),
                decode: Duration::from_nanos(nanos / 2),
            }
        },
    )
}

fn event() -> impl Strategy<Value = GenerateEvent> {
    let started =
        (any::<u32>(), vec(logprobs(), 0..3)).prop_map(|(cached_tokens, prompt_logprobs)| {
            GenerateEvent::Started {
                cached_tokens,
                prompt_logprobs,
                policy: "p".into(),
                verification: "v".into(),
            }
        });
    let plain = vec((any::<u32>(), any::<bool>(), Just(None)), 0..9);
    let detailed = vec(
        (any::<u32>(), any::<bool>(), logprobs().prop_map(Some)),
        0..4,
    );
    let so_far = option::of(stats());
    let tokens = (any::<u32>(), prop_oneof![plain, detailed], so_far);
    let tokens = tokens.prop_map(|(drafted, tokens, stats)| {
        let emitted = |(token, accepted, logprobs)| EmittedToken {
            token: TokenId(token),
            accepted,
            logprobs,
        };
        GenerateEvent::Tokens(Round {
            drafted,
            tokens: tokens.into_iter().map(emitted).collect(),
            stats: stats.map(Box::new),
        })
    });
    let stop = option::of(any::<u32>());
    let finished = (stop, stats()).prop_map(|(stop, stats)| GenerateEvent::Finished {
        reason: stop.map_or(FinishReason::Length, |token| {
            FinishReason::Stop(TokenId(token))
        }),
        stats: Box::new(stats),
    });
    prop_oneof![started, tokens, finished]
}

proptest! {
    #[test]
    fn an_event_survives_the_wire(event in event()) {
        let bytes = event.to_proto().encode_to_vec();
        let proto = proto::GenerateEvent::decode(bytes.as_slice()).expect("is protobuf");
        prop_assert_eq!(GenerateEvent::from_proto(proto), Ok(event));
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(event) = proto::GenerateEvent::decode(bytes.as_slice()) {
            let _ = GenerateEvent::from_proto(event);
        }
        if let Ok(request) = proto::GenerateRequest::decode(bytes.as_slice()) {
            let _ = GenerateRequest::from_proto(request);
        }
    }
}

#[test]
fn errors_keep_their_meaning_across_the_wire() {
    let instance = || "target-0".to_string();
    for error in [
        GenerateError::Invalid("top_p is 7".into()),
        GenerateError::Busy {
            instance: instance(),
        },
    ] {
        let status = Status::from(error.clone());
        assert_eq!(GenerateError::of_status("target-0", &status), error);
    }
    let lost = GenerateError::Lost {
        instance: instance(),
        cause: "the engine failed".into(),
    };
    let back = GenerateError::of_status("target-0", &Status::from(lost));
    assert!(back.replayable());
    assert!(back.to_string().contains("the engine failed"), "{back}");
    let foreign = GenerateError::of_status("target-0", &Status::internal("h2"));
    assert!(matches!(foreign, GenerateError::Lost { .. }));
}
