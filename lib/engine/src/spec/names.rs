//! How each family names its tensors.

use super::Family;

/// Tensor names of a family, without prefix and, for layers, after `layers.N.`. `.weight` or
/// `.bias` follows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// Prefixes the family is saved with: from the whole model and from its body alone.
    pub prefixes: &'static [&'static str],
    /// Token embedding.
    pub embedding: &'static str,
    /// Learned positions, where the family has them.
    pub positions: &'static str,
    /// Norm after the last layer.
    pub final_norm: &'static str,
    /// The head; never prefixed.
    pub head: &'static str,
    /// Norm in front of attention.
    pub attention_norm: &'static str,
    /// Norm in front of the MLP.
    pub mlp_norm: &'static str,
    /// Query projection.
    pub query: &'static str,
    /// Key projection.
    pub key: &'static str,
    /// Value projection.
    pub value: &'static str,
    /// Output projection.
    pub output: &'static str,
    /// Norm of query heads, where the family has one.
    pub query_norm: &'static str,
    /// Norm of key heads, where the family has one.
    pub key_norm: &'static str,
    /// Gate of the MLP, where the family has one.
    pub gate: &'static str,
    /// First matrix of the MLP.
    pub up: &'static str,
    /// Last matrix of the MLP.
    pub down: &'static str,
}

const LLAMA: Names = Names {
    prefixes: &["model.", ""],
    embedding: "embed_tokens",
    positions: "embed_positions",
    final_norm: "norm",
    head: "lm_head",
    attention_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    output: "self_attn.o_proj",
    query_norm: "self_attn.q_norm",
    key_norm: "self_attn.k_norm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
};

const OPT: Names = Names {
    prefixes: &["model.decoder.", "decoder.", ""],
    final_norm: "final_layer_norm",
    attention_norm: "self_attn_layer_norm",
    mlp_norm: "final_layer_norm",
    output: "self_attn.out_proj",
    up: "fc1",
    down: "fc2",
    ..LLAMA
};

impl Names {
    /// The names of a family.
    pub fn of(family: Family) -> Self {
        match family {
            Family::Llama | Family::Mistral | Family::Qwen3 => LLAMA,
            Family::Opt => OPT,
        }
    }
}
