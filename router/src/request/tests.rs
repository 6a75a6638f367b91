use std::{path::PathBuf, sync::OnceLock, time::Duration};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{sampling::Limits, *};
use crate::config::ModelConfig;

/// Every field that is read.
const FIELDS: [&str; 45] = [
    "reasoning_effort",
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "echo",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "best_of",
    "logit_bias",
    "seed",
    "suffix",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_special_tokens",
    "return_token_ids",
    "return_tokens",
    "cache_prompt",
    "cache_salt",
    "foretoken",
    "response_format",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "modalities",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "use_beam_search",
];

const LIMITS: Limits = Limits {
    max_choices: 16,
    max_messages: 4,
    max_prompt_tokens: 0,
    max_stops: 4,
    max_logit_biases: 4,
    max_positions: 64,
};

fn model() -> Arc<Model> {
    static ONCE: OnceLock<Arc<Model>> = OnceLock::new();
    let load = || {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/target");
        Arc::new(
            Model::load(&ModelConfig {
                name: "tiny".into(),
                folder,
            })
            .expect("loads"),
        )
    };
    Arc::clone(ONCE.get_or_init(load))
}

/// Any JSON, with the numbers and words at which limits lie.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3_i64..5000).prop_map(Value::from),
        prop::sample::select(vec![-2.0, 0.0, 0.5, 1.0, 2.0, 100.0]).prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["user", "text", "role", "content", "none", "17"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        let key = prop_oneof![
            "[a-z]{0,4}",
            "[0-9]{1,5}",
            Just("role".to_owned()),
            Just("content".to_owned())
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[test]
fn the_effort_of_reasoning_is_told_to_the_template() {
    let told = |body: Value| {
        let fields = fields::Fields::new(body.as_object().expect("an object"));
        chat::variables(fields).map(|variables| json!(variables))
    };
    let own = json!({"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}});
    let both = json!({"reasoning_effort": "low", "a": 1});
    assert_eq!(told(own).expect("taken"), both);
    let twice =
        json!({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}});
    assert_eq!(told(twice).expect("taken")["reasoning_effort"], "high");
    assert_eq!(told(json!({})).expect("taken"), json!({}));
}

#[test]
fn calls_of_a_history_come_to_the_template_as_objects_and_may_stand_alone() {
    let call = |arguments: Value| {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        ]})
    };
    let read = |message: Value| {
        let body = json!({"messages": [message]});
        let fields = fields::Fields::new(body.as_object().expect("an object"));
        chat::messages(fields).map(|mut list| list[0].take())
    };
    for (given, expected) in [
        (json!("{\"a\": 1}"), json!({"a": 1})),
        (json!(""), json!({})),
        (json!(null), json!({})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!("no JSON"), json!("no JSON")),
        (json!("\"5\""), json!("\"5\"")),
    ] {
        let message = read(call(given)).expect("taken");
        let arguments = &message["tool_calls"][0]["function"]["arguments"];
        assert_eq!((&message["content"], arguments), (&json!(""), &expected));
    }
    let old = json!({"role": "assistant", "content": null, "function_call": {"name": "f"}});
    assert_eq!(read(old).expect("taken")["content"], "");
    let refusal =
        json!([{"type": "text", "text": "Sorry."}, {"type": "refusal", "refusal": "No."}]);
    let refused = json!({"role": "assistant", "content": refusal});
    assert_eq!(read(refused).expect("taken")["content"], "Sorry.\nNo.");
    // As clients send back what they were answered.
    let whole = json!({
        "role": "assistant", "content": "a", "tool_calls": null, "function_call": null, "refusal": null,
    });
    let sent = json!({"role": "assistant", "content": "a"});
    assert_eq!(read(whole).expect("taken"), sent);
    let whole = json!({"role": "assistant", "content": "a", "tool_calls": []});
    assert_eq!(read(whole).expect("taken"), sent);
    let nothing = json!({"role": "tool", "tool_call_id": "1", "content": null});
    assert_eq!(read(nothing).expect("taken")["content"], "");
    let converted = json!([{"type": "output_text", "text": "a"}, "b"]);
    let converted = json!({"role": "assistant", "content": converted});
    assert_eq!(read(converted).expect("taken")["content"], "a\nb");
    assert!(read(json!({"role": "user", "content": null})).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_fields_hold_the_request_is_taken_or_refused_and_never_panics(
        fields in prop::collection::vec((prop::sample::select(FIELDS.to_vec()), any_json()), 1..5),
    ) {
        let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        for (name, value) in fields {
            body[name] = value;
        }
        let body = body.as_object().expect("an object");
        for job in [completion::job(body, model(), LIMITS), chat::job(body, model(), LIMITS)] {
            match job {
                Ok(job) => {
                    prop_assert!(job.choices() >= 1 && job.choices() <= LIMITS.max_choices);
                    for index in 0..job.choices() {
                        let request = job.generate_request("id", index, Duration::ZERO);
                        let end = request.prompt_len as u32 + request.max_tokens;
                        prop_assert!(request.prompt_len >= 1 && request.max_tokens >= 1);
                        prop_assert!(end <= LIMITS.max_positions);
                        prop_assert!(request.tokens.iter().all(|t| t.0 < job.model.vocab_size()));
                        prop_assert!(request.sampling.temperature.is_finite());
                    }
                }
                Err(error) => {
                    prop_assert!(error.status.is_client_error());
                    prop_assert!(!error.message.is_empty());
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_an_object_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Err(error) = fields::parse_body(&bytes) {
            prop_assert_eq!(error.status.as_u16(), 400);
        }
    }
}
