use std::path::Path;

use serde_json::{Value, json};

use super::{Family, Mlp, ModelSpec, Norm, Positions, Rope, RopeScaling, SpecError};

fn read(config: &Value) -> Result<ModelSpec, SpecError> {
    ModelSpec::from_json(Path::new("some/config.json"), &config.to_string())
}

/// `base` with `changes` on top; null takes a field away.
fn with(mut base: Value, changes: &Value) -> Value {
    let fields = base.as_object_mut().unwrap();
    for (field, value) in changes.as_object().unwrap() {
        if value.is_null() {
            fields.remove(field);
        } else {
            fields.insert(field.clone(), value.clone());
        }
    }
    base
}

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 384,
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5
    })
}

fn opt() -> Value {
    json!({
        "architectures": ["OPTForCausalLM"], "vocab_size": 384, "hidden_size": 64, "ffn_dim": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256,
        "word_embed_proj_dim": 64
    })
}

#[track_caller]
fn assert_refused(config: &Value, words: &[&str]) {
    let message = read(config).unwrap_err().to_string();
    for word in ["some/config.json"].iter().chain(words) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn both_generations_of_the_file_describe_the_same_model() {
    let older = read(&llama()).unwrap();
    let newer = json!({"rope_theta": null, "head_dim": 16, "dtype": "bfloat16",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}});
    assert_eq!(older, read(&with(llama(), &newer)).unwrap());
    let rope = Rope {
        theta: 5e5,
        head_dim: 16,
        scaling: RopeScaling::None,
    };
    assert_eq!(older.positions, Positions::Rope(rope));
    assert_eq!(older.family, Family::Llama);
    assert_eq!((older.query_width(), older.kv_width()), (64, 32));
}

#[test]
fn of_a_file_that_serves_both_generations_the_older_counts_if_it_says_anything() {
    let rope = |older: Value, newer: Value| {
        let both = json!({"rope_scaling": older, "rope_parameters": newer, "rope_theta": null});
        let Positions::Rope(rope) = read(&with(llama(), &both)).unwrap().positions else {
            panic!("llama rotates")
        };
        (rope.theta, rope.scaling)
    };
    let newer = json!({"rope_type": "default", "rope_theta": 3e4});
    let nothing = [Value::Null, json!({})];
    for older in nothing {
        let read = rope(older, newer.clone());
        assert_eq!(read, (3e4, RopeScaling::None));
    }
    let linear = json!({"type": "linear", "factor": 4});
    let scaled = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(rope(linear, newer), (3e4, scaled.clone()));
    let own = json!({"type": "linear", "factor": 4, "rope_theta": 2e4});
    assert_eq!(rope(own, json!({})), (2e4, scaled));
}

#[test]
fn a_linear_scaling_reaches_so_much_further() {
    let scaled = |factor: f64| {
        let scaling = json!({"rope_scaling": {"type": "linear", "factor": factor},
            "max_position_embeddings": 4096});
        read(&with(llama(), &scaling)).unwrap().max_positions
    };
    assert_eq!(scaled(4.0), 16_384);
    assert_eq!(scaled(0.5), 4096, "not less than the file says");
    assert_eq!(scaled(1e30), 1 << 28);
}

#[test]
fn fields_left_out_take_the_families_defaults() {
    let spec = read(&with(
        llama(),
        &json!({"rms_norm_eps": null, "num_key_value_heads": null}),
    ));
    let spec = spec.unwrap();
    assert_eq!(spec.norm, Norm::Rms { eps: 1e-6 });
    assert_eq!(
        (spec.kv_heads, spec.head_dim, spec.tied_head),
        (4, 16, false)
    );

    let mistral = with(llama(), &json!({"architectures": ["MistralForCausalLM"]}));
    assert_eq!(read(&mistral).unwrap().windows, [Some(4096); 3]);
    let mut null = mistral.clone();
    null["sliding_window"] = Value::Null;
    assert_eq!(read(&null).unwrap().windows, [None; 3]);
    let narrow = with(mistral, &json!({"sliding_window": 16}));
    assert_eq!(read(&narrow).unwrap().windows, [Some(16); 3]);

    let spec = read(&opt()).unwrap();
    assert!(spec.tied_head && spec.biases.attention && spec.biases.mlp && spec.final_norm);
    assert_eq!(spec.positions, Positions::Learned { offset: 2 });
    assert_eq!(
        (spec.norm, spec.mlp),
        (Norm::Layer { eps: 1e-5 }, Mlp::Relu)
    );
}

#[test]
fn qwen3_slides_only_in_the_layers_and_when_it_says_so() {
    let qwen = json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 32,
        "sliding_window": 8, "max_window_layers": 2});
    let base = with(llama(), &qwen);
    let spec = read(&base).unwrap();
    assert!(spec.qk_norm);
    assert_eq!((spec.head_dim, spec.query_width()), (32, 128));
    assert_eq!(spec.windows, [None; 3]);
    let slides = with(base, &json!({"use_sliding_window": true}));
    assert_eq!(read(&slides).unwrap().windows, [None, None, Some(8)]);
    let types = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]});
    assert_eq!(
        read(&with(slides, &types)).unwrap().windows,
        [Some(8), None, None]
    );
}

#[test]
fn an_unknown_architecture_is_answered_with_the_known_ones() {
    for (found, config) in [
        (
            "GPT2LMHeadModel",
            json!({"architectures": ["GPT2LMHeadModel"]}),
        ),
        ("gpt2", json!({"architectures": null, "model_type": "gpt2"})),
    ] {
        let known = [
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "Qwen3ForCausalLM",
            "OPTForCausalLM",
        ];
        assert_refused(
            &with(llama(), &config),
            &[&[found], known.as_slice()].concat(),
        );
    }
    assert_refused(
        &json!({}),
        &["`architectures` is missing", "LlamaForCausalLM"],
    );
    let by_type = with(llama(), &json!({"architectures": null}));
    assert_eq!(read(&by_type).unwrap().family, Family::Llama);
}

#[test]
fn every_mistake_names_field_value_and_what_is_allowed() {
    for (change, words) in [
        (
            json!({"hidden_size": null}),
            ["`hidden_size` is missing", "whole number"],
        ),
        (
            json!({"hidden_size": "64"}),
            ["`hidden_size` is \"64\"", "whole number"],
        ),
        (
            json!({"hidden_size": -1}),
            ["`hidden_size` is -1", "whole number"],
        ),
        (json!({"vocab_size": 0}), ["`vocab_size` is 0", "from 1 to"]),
        (
            json!({"vocab_size": 1e30}),
            ["`vocab_size` is 1e", "from 1 to"],
        ),
        (
            json!({"num_attention_heads": 5, "num_key_value_heads": 5}),
            ["`num_attention_heads` is 5", "divisor"],
        ),
        (
            json!({"num_key_value_heads": 3}),
            ["`num_key_value_heads` is 3", "divisor"],
        ),
        (json!({"head_dim": 15}), ["`head_dim` is 15", "even"]),
        (
            json!({"rms_norm_eps": 0}),
            ["`rms_norm_eps` is 0", "above 0"],
        ),
        (
            json!({"hidden_act": "gelu"}),
            ["`hidden_act` is \"gelu\"", "silu"],
        ),
        (
            json!({"tie_word_embeddings": 1}),
            ["`tie_word_embeddings` is 1", "true or false"],
        ),
        (
            json!({"architectures": "Llama"}),
            ["`architectures` is \"Llama\"", "a list"],
        ),
        (
            json!({"layer_types": ["full_attention"]}),
            ["`layer_types`", "a list of 3"],
        ),
        (
            json!({"quantization_config": {"bits": 4}}),
            ["`quantization_config`", "unquantised"],
        ),
        (
            json!({"rope_scaling": "yarn"}),
            ["`rope_scaling` is \"yarn\"", "object"],
        ),
        (
            json!({"partial_rotary_factor": 0.5}),
            ["`partial_rotary_factor` is 0.5", "1"],
        ),
    ] {
        assert_refused(&with(llama(), &change), &words);
    }
}

#[test]
fn every_mistake_of_a_rope_scaling_is_named_with_its_path() {
    let rope = |parameters: Value| json!({ "rope_parameters": parameters });
    for (change, words) in [
        (
            rope(json!({"rope_type": "dynamic"})),
            ["`rope_parameters.rope_type`", "\"yarn\""],
        ),
        (
            rope(json!({"rope_type": "linear"})),
            ["`rope_parameters.factor` is missing", "above 0"],
        ),
        (
            rope(json!({"rope_type": "linear", "factor": 0})),
            ["`rope_parameters.factor` is 0", "0"],
        ),
        (
            rope(
                json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}),
            ),
            [
                "`rope_parameters.high_freq_factor` is 4",
                "above `low_freq_factor`",
            ],
        ),
    ] {
        assert_refused(&with(llama(), &change), &words);
    }
}

#[test]
fn every_mistake_of_an_opt_is_named() {
    for (change, words) in [
        (
            json!({"word_embed_proj_dim": 32}),
            ["`word_embed_proj_dim` is 32", "`hidden_size` (64)"],
        ),
        (
            json!({"do_layer_norm_before": false}),
            ["`do_layer_norm_before` is false", "true"],
        ),
        (
            json!({"activation_function": "gelu"}),
            ["`activation_function`", "relu"],
        ),
    ] {
        assert_refused(&with(opt(), &change), &words);
    }
}

#[test]
fn a_text_that_is_no_object_says_where_it_goes_wrong() {
    let error = ModelSpec::from_json(Path::new("c.json"), "{\"a\": 1,\n}").unwrap_err();
    assert!(
        error.to_string().starts_with("c.json is not a JSON object"),
        "{error}"
    );
    assert!(error.to_string().contains("line 2"), "{error}");
    assert!(ModelSpec::from_json(Path::new("c.json"), "[]").is_err());
}

#[track_caller]
fn assert_frequencies(rope: &Rope, wanted: &[f64]) {
    let found = rope.frequencies();
    assert_eq!(found.len(), wanted.len());
    for (a, b) in found.iter().zip(wanted) {
        assert!((a - b).abs() <= 1e-11 * b, "{found:?} for {wanted:?}");
    }
}

/// Wanted values computed apart, from the formulas of the papers.
#[test]
fn scaled_frequencies_are_those_of_the_papers() {
    let factor = 2.5;
    assert_frequencies(
        &Rope {
            theta: 1e4,
            head_dim: 8,
            scaling: RopeScaling::Linear { factor },
        },
        &[0.4, 0.04, 0.004, 0.0004],
    );
    let (low_freq_factor, high_freq_factor, original) = (1.0, 4.0, 8192.0);
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor,
        high_freq_factor,
        original,
    };
    assert_frequencies(
        &Rope {
            theta: 5e5,
            head_dim: 16,
            scaling: llama3,
        },
        &[
            1.0,
            0.193_922_744_749,
            0.037_606_030_930_9,
            0.007_292_664_737_22,
            0.000_524_846_160_993,
            3.428_102_195_95e-5,
            6.647_869_871_18e-6,
            1.289_173_172_15e-6,
        ],
    );
}

#[test]
fn yarn_blends_scales_and_reaches_further() {
    let parameters = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6,
        "original_max_position_embeddings": 32768});
    let change = json!({"rope_parameters": parameters, "max_position_embeddings": 40960});
    let spec = read(&with(llama(), &change)).unwrap();
    assert_eq!(spec.max_positions, 131_072);
    let Positions::Rope(rope) = &spec.positions else {
        panic!("llama rotates")
    };
    assert!((rope.attention_factor() - 1.138_629_436_11).abs() < 1e-11);
    assert_frequencies(
        rope,
        &[
            1.0,
            0.177_827_941_004,
            0.031_622_776_601_7,
            0.004_217_559_938_93,
            0.0005,
            4.445_698_525_1e-5,
            7.905_694_150_42e-6,
            1.405_853_312_98e-6,
        ],
    );
}
