//! A naive Llama in f64, written from the papers, for options that no fixture has.

use foretoken_engine::spec::{ModelSpec, Positions};

use crate::checkpoint::Checkpoint;

struct Oracle<'a> {
    checkpoint: &'a Checkpoint,
    spec: ModelSpec,
}

/// Logits of every token of a text.
pub(crate) fn logits(checkpoint: &Checkpoint, text: &[u32]) -> Vec<Vec<f64>> {
    let config = checkpoint.config.to_string();
    let spec = ModelSpec::from_json("config.json".as_ref(), &config).unwrap();
    Oracle { checkpoint, spec }.run(text)
}

impl Oracle<'_> {
    fn run(&self, text: &[u32]) -> Vec<Vec<f64>> {
        let hidden = self.spec.hidden_size;
        let embedding = self.tensor("model.embed_tokens.weight").unwrap();
        let mut rows: Vec<Vec<f64>> = text
            .iter()
            .map(|token| embedding[*token as usize * hidden..][..hidden].to_vec())
            .collect();
        for layer in 0..self.spec.layers {
            self.layer(layer, &mut rows);
        }
        let head = if self.spec.tied_head {
            "model.embed_tokens"
        } else {
            "lm_head"
        };
        rows.iter()
            .map(|row| self.linear(head, &self.norm("model.norm", row)))
            .collect()
    }

    fn layer(&self, layer: usize, rows: &mut [Vec<f64>]) {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        let dim = self.spec.head_dim;
        let project = |row: &Vec<f64>, name: &str| {
            let normed = self.norm(&at("input_layernorm"), row);
            self.linear(&at(&format!("self_attn.{name}_proj")), &normed)
        };
        let rotated = |name: &str| -> Vec<Vec<f64>> {
            let rows = rows.iter().enumerate();
            rows.map(|(position, row)| {
                let mut all = project(row, name);
                for head in all.chunks_mut(dim) {
                    if self.spec.qk_norm {
                        let normed = self.norm(&at(&format!("self_attn.{name}_norm")), head);
                        head.copy_from_slice(&normed);
                    }
                    self.rotate(head, position);
                }
                all
            })
            .collect()
        };
        let (queries, keys) = (rotated("q"), rotated("k"));
        let values: Vec<Vec<f64>> = rows.iter().map(|row| project(row, "v")).collect();
        let group = self.spec.heads / self.spec.kv_heads;
        for (i, row) in rows.iter_mut().enumerate() {
            let first = self.spec.windows[layer].map_or(0, |w| (i + 1).saturating_sub(w));
            let mut attended = Vec::new();
            for head in 0..self.spec.heads {
                let kv = head / group * dim;
                let query = &queries[i][head * dim..][..dim];
                let score = |j: usize| dot(query, &keys[j][kv..][..dim]) / (dim as f64).sqrt();
                let weights: Vec<f64> = (first..=i).map(|j| score(j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                attended.extend((0..dim).map(|d| {
                    let terms = weights.iter().zip(first..);
                    terms.map(|(w, j)| w / sum * values[j][kv + d]).sum::<f64>()
                }));
            }
            add(row, &self.linear(&at("self_attn.o_proj"), &attended));
            let normed = self.norm(&at("post_attention_layernorm"), row);
            let gate = self.linear(&at("mlp.gate_proj"), &normed);
            let up = self.linear(&at("mlp.up_proj"), &normed);
            let inner: Vec<f64> = gate
                .iter()
                .zip(&up)
                .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                .collect();
            add(row, &self.linear(&at("mlp.down_proj"), &inner));
        }
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let Positions::Rope(rope) = &self.spec.positions else {
            return;
        };
        let half = head.len() / 2;
        for (i, frequency) in rope.frequencies().into_iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (sin, cos) = (sin * rope.attention_factor(), cos * rope.attention_factor());
            let (a, b) = (head[i], head[i + half]);
            (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }

    fn norm(&self, name: &str, row: &[f64]) -> Vec<f64> {
        // Every family here norms by root mean square, with this eps in all fixtures.
        let scale = (dot(row, row) / row.len() as f64 + 1e-5).sqrt().recip();
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
    }

    fn linear(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let weight = self.tensor(&format!("{name}.weight")).unwrap();
        let mut out: Vec<f64> = weight.chunks(row.len()).map(|w| dot(w, row)).collect();
        if let Some(bias) = self.tensor(&format!("{name}.bias")) {
            add(&mut out, &bias);
        }
        out
    }

    fn tensor(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.checkpoint.tensors.get(name)?;
        Some(tensor.values().into_iter().map(f64::from).collect())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &mut [f64], b: &[f64]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}
