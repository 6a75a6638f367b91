//! A Llama of chosen size with random weights: for speed only, its text means nothing.

use std::{fs, io::Write, path::Path};

use anyhow::Context;
use serde_json::{Map, Value, json};

/// Shape of the model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Width.
    pub hidden: usize,
    /// Width of the feed-forward layers.
    pub ffn: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads of 64.
    pub heads: usize,
    /// Key and value heads of 64.
    pub kv_heads: usize,
    /// Entries of the vocabulary; embedding and head are tied.
    pub vocab: usize,
}

/// About 100 million parameters, 200 MB in bf16.
pub const HUNDRED_MILLION: Shape = Shape {
    hidden: 768,
    ffn: 2048,
    layers: 12,
    heads: 12,
    kv_heads: 4,
    vocab: 32_000,
};

const HEAD_DIM: usize = 64;

impl Shape {
    fn tensors(self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let (h, f, kv) = (self.hidden, self.ffn, self.kv_heads * HEAD_DIM);
        let layer = move |i: usize| {
            [
                ("self_attn.q_proj", vec![self.heads * HEAD_DIM, h]),
                ("self_attn.k_proj", vec![kv, h]),
                ("self_attn.v_proj", vec![kv, h]),
                ("self_attn.o_proj", vec![h, self.heads * HEAD_DIM]),
                ("mlp.gate_proj", vec![f, h]),
                ("mlp.up_proj", vec![f, h]),
                ("mlp.down_proj", vec![h, f]),
                ("input_layernorm", vec![h]),
                ("post_attention_layernorm", vec![h]),
            ]
            .map(|(name, shape)| (format!("model.layers.{i}.{name}.weight"), shape))
        };
        let ends = [
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab, h]),
            ("model.norm.weight".to_owned(), vec![h]),
        ];
        ends.into_iter().chain((0..self.layers).flat_map(layer))
    }

    /// Writes `config.json` and `model.safetensors` (bf16) into `folder`.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.ffn, "vocab_size": self.vocab,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": true,
            "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
        });
        fs::write(folder.join("config.json"), config.to_string())?;
        let mut header = Map::new();
        let mut offset = 0;
        for (name, shape) in self.tensors() {
            let end = offset + 2 * shape.iter().product::<usize>();
            let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]});
            header.insert(name, entry);
            offset = end;
        }
        let header = Value::Object(header).to_string();
        let path = folder.join("model.safetensors");
        let file = fs::File::create(&path).with_context(|| path.display().to_string())?;
        let mut out = std::io::BufWriter::new(file);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        let mut state = 1_u64;
        for (_, shape) in self.tensors() {
            let scale = if shape.len() == 1 {
                0.0
            } else {
                1.0 / (shape[1] as f32).sqrt()
            };
            for _ in 0..shape.iter().product() {
                // Knuth's MMIX generator; the top bits are random enough for weights.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let uniform = (state >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
                let value = if scale == 0.0 { 1.0 } else { uniform * scale };
                out.write_all(&((value.to_bits() >> 16) as u16).to_le_bytes())?;
            }
        }
        out.flush()?;
        Ok(())
    }
}
