//! From the fields of a `config.json` to a [`ModelSpec`], family by family.
//!
//! Defaults are those of the transformers configuration classes, since files leave out what is
//! at its default.

use super::config::Config;
use super::rope::Rope;
use super::{Biases, Family, Mlp, ModelSpec, Norm, Positions, SpecError};

/// Architecture in `architectures`, `model_type`, family.
const KNOWN: [(&str, &str, Family); 4] = [
    ("LlamaForCausalLM", "llama", Family::Llama),
    ("MistralForCausalLM", "mistral", Family::Mistral),
    ("Qwen3ForCausalLM", "qwen3", Family::Qwen3),
    ("OPTForCausalLM", "opt", Family::Opt),
];

// Bounds far above any real model; they keep every product of two sizes within 64 bits.
const VOCAB: std::ops::RangeInclusive<usize> = 1..=1 << 24;
const WIDTH: std::ops::RangeInclusive<usize> = 1..=1 << 20;
const LAYERS: std::ops::RangeInclusive<usize> = 1..=1 << 12;
const HEADS: std::ops::RangeInclusive<usize> = 1..=1 << 12;
const POSITIONS: std::ops::RangeInclusive<usize> = 1..=1 << 28;

pub(super) fn spec(config: &Config) -> Result<ModelSpec, SpecError> {
    if config.value("quantization_config").is_some() {
        return Err(config.wrong(
            "quantization_config",
            "absent: give the unquantised checkpoint, weights are quantised at load",
        ));
    }
    match family(config)? {
        Family::Opt => opt(config),
        gated => llama_like(config, gated),
    }
}

fn family(config: &Config) -> Result<Family, SpecError> {
    let architecture = match config.value("architectures") {
        None => None,
        Some(list) => match list
            .as_array()
            .and_then(|l| l.first())
            .and_then(|a| a.as_str())
        {
            Some(name) => Some(name),
            None => return Err(config.wrong("architectures", "a list of one architecture's name")),
        },
    };
    let Some(found) = architecture.or(config.text("model_type")?) else {
        return Err(config.missing("architectures", &format!("one of {}", known())));
    };
    KNOWN
        .iter()
        .find(|(arch, kind, _)| found == *arch || (architecture.is_none() && found == *kind))
        .map(|&(_, _, family)| family)
        .ok_or_else(|| SpecError::UnknownArchitecture {
            file: config.file().to_owned(),
            found: found.chars().take(80).collect(),
            known: known(),
        })
}

fn known() -> String {
    KNOWN.map(|(arch, _, _)| arch).join(", ")
}

fn llama_like(config: &Config, family: Family) -> Result<ModelSpec, SpecError> {
    let hidden_size = config.required_whole("hidden_size", WIDTH)?;
    let layers = config.required_whole("num_hidden_layers", LAYERS)?;
    let heads = config.required_whole("num_attention_heads", HEADS)?;
    let kv_heads = kv_heads(config, family, heads)?;
    let head_dim = head_dim(config, family, hidden_size, heads)?;
    if config
        .text("hidden_act")?
        .is_some_and(|act| act != "silu" && act != "swish")
    {
        return Err(config.wrong("hidden_act", "\"silu\""));
    }
    let declared = config.required_whole("max_position_embeddings", POSITIONS)?;
    let rope = Rope::from_config(config, head_dim, declared)?;
    Ok(ModelSpec {
        family,
        vocab_size: config.required_whole("vocab_size", VOCAB)?,
        hidden_size,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn_size: config.required_whole("intermediate_size", WIDTH)?,
        max_positions: rope.reach(declared),
        norm: Norm::Rms {
            eps: config.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        },
        final_norm: true,
        positions: Positions::Rope(rope),
        mlp: Mlp::GatedSilu,
        biases: Biases {
            attention: config.flag("attention_bias", false)?,
            mlp: config.flag("mlp_bias", false)?,
        },
        qk_norm: family == Family::Qwen3,
        tied_head: config.flag("tie_word_embeddings", false)?,
        windows: windows(config, family, layers)?,
    })
}

fn kv_heads(config: &Config, family: Family, heads: usize) -> Result<usize, SpecError> {
    let default = match family {
        // The classes' defaults, which a file at its default leaves out; null means all heads.
        Family::Mistral if !config.mentions("num_key_value_heads") => 8,
        Family::Qwen3 if !config.mentions("num_key_value_heads") => 32,
        _ => heads,
    };
    let kv_heads = config
        .whole("num_key_value_heads", HEADS)?
        .unwrap_or(default);
    if !heads.is_multiple_of(kv_heads) {
        let allowed = format!("a divisor of `num_attention_heads` ({heads})");
        return Err(config.wrong("num_key_value_heads", &allowed));
    }
    Ok(kv_heads)
}

fn head_dim(
    config: &Config,
    family: Family,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, SpecError> {
    let given = config.whole("head_dim", 2..=1 << 12)?;
    let head_dim = match given {
        Some(dim) => dim,
        None if family == Family::Qwen3 && !config.mentions("head_dim") => 128,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let allowed = format!("a divisor of `hidden_size` ({hidden_size}) without `head_dim`");
            return Err(config.wrong("num_attention_heads", &allowed));
        }
    };
    if head_dim.is_multiple_of(2) {
        Ok(head_dim)
    } else if given.is_some() {
        Err(config.wrong("head_dim", "even, since rotation takes pairs"))
    } else {
        let allowed = format!("such that `hidden_size` ({hidden_size}) / heads is even");
        Err(config.wrong("num_attention_heads", &allowed))
    }
}

/// Which layers have a window, and how wide.
fn windows(
    config: &Config,
    family: Family,
    layers: usize,
) -> Result<Vec<Option<usize>>, SpecError> {
    let window = match family {
        Family::Mistral if !config.mentions("sliding_window") => Some(4096),
        Family::Mistral => config.whole("sliding_window", POSITIONS)?,
        Family::Qwen3 if config.flag("use_sliding_window", false)? => {
            let window = config.whole("sliding_window", POSITIONS)?;
            Some(window.unwrap_or(4096))
        }
        _ => None,
    };
    let slides: Vec<bool> = match config.value("layer_types") {
        None if family == Family::Qwen3 => {
            let first = config
                .whole("max_window_layers", 0..=1 << 12)?
                .unwrap_or(28);
            (0..layers).map(|i| i >= first).collect()
        }
        None => vec![true; layers],
        Some(value) => {
            let kinds = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let slides = kinds.iter().map(|kind| match kind.as_str() {
                Some("sliding_attention") => Some(true),
                Some("full_attention") => Some(false),
                _ => None,
            });
            slides
                .collect::<Option<Vec<bool>>>()
                .filter(|slides| slides.len() == layers)
                .ok_or_else(|| {
                    let what = "\"full_attention\" or \"sliding_attention\"";
                    config.wrong("layer_types", &format!("a list of {layers} times {what}"))
                })?
        }
    };
    if family == Family::Llama && config.value("layer_types").is_some() && slides.contains(&true) {
        return Err(config.wrong("layer_types", "all \"full_attention\" for LlamaForCausalLM"));
    }
    Ok(slides
        .into_iter()
        .map(|slides| window.filter(|_| slides))
        .collect())
}

fn opt(config: &Config) -> Result<ModelSpec, SpecError> {
    let hidden_size = config.required_whole("hidden_size", WIDTH)?;
    let layers = config.required_whole("num_hidden_layers", LAYERS)?;
    let heads = config.required_whole("num_attention_heads", HEADS)?;
    if !hidden_size.is_multiple_of(heads) {
        let allowed = format!("a divisor of `hidden_size` ({hidden_size})");
        return Err(config.wrong("num_attention_heads", &allowed));
    }
    if config
        .whole("word_embed_proj_dim", WIDTH)?
        .is_some_and(|dim| dim != hidden_size)
    {
        let allowed = format!("equal to `hidden_size` ({hidden_size}): projections are not known");
        return Err(config.wrong("word_embed_proj_dim", &allowed));
    }
    if !config.flag("do_layer_norm_before", true)? {
        return Err(config.wrong(
            "do_layer_norm_before",
            "true: norms after a block are not known",
        ));
    }
    if !config.flag("layer_norm_elementwise_affine", true)? {
        return Err(config.wrong("layer_norm_elementwise_affine", "true"));
    }
    if config
        .text("activation_function")?
        .is_some_and(|act| act != "relu")
    {
        return Err(config.wrong("activation_function", "\"relu\""));
    }
    let bias = config.flag("enable_bias", true)?;
    Ok(ModelSpec {
        family: Family::Opt,
        vocab_size: config.required_whole("vocab_size", VOCAB)?,
        hidden_size,
        layers,
        heads,
        kv_heads: heads,
        head_dim: hidden_size / heads,
        ffn_size: config.required_whole("ffn_dim", WIDTH)?,
        max_positions: config.required_whole("max_position_embeddings", POSITIONS)?,
        norm: Norm::Layer { eps: 1e-5 },
        final_norm: !config.flag("_remove_final_layer_norm", false)?,
        positions: Positions::Learned { offset: 2 },
        mlp: Mlp::Relu,
        biases: Biases {
            attention: bias,
            mlp: bias,
        },
        qk_norm: false,
        tied_head: config.flag("tie_word_embeddings", true)?,
        windows: vec![None; layers],
    })
}
