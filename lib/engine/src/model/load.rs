//! From a folder's tensors to packed layers.

use super::layers::{HeadNorms, Layer, Layers, NormWeights};
use super::{CpuOptions, LoadError, LoadProgress};
use crate::cpu::{Embedding, PackedLinear, WeightView, memory::Region};
use crate::isa::Isa;
use crate::spec::{Mlp, ModelSpec, Names, Norm, Positions};
use crate::weights::Weights;

/// Reads and packs every tensor that `spec` asks for.
pub(super) fn layers(
    spec: &ModelSpec,
    weights: &Weights,
    isa: Isa,
    options: &CpuOptions,
) -> Result<Layers, LoadError> {
    let names = spec.names();
    let embedding = |prefix: &str| format!("{prefix}{}.weight", names.embedding);
    // Without any embedding, the message asks for the usual name of it.
    let prefixes = names.prefixes;
    let prefix = prefixes
        .iter()
        .find(|p| weights.contains(&embedding(p)))
        .unwrap_or(&prefixes[0]);
    let mut loader = Loader {
        spec,
        names,
        weights,
        prefix,
        isa,
        options,
        region: Region::default(),
        progress: LoadProgress {
            done: 0,
            total: weights.bytes(),
        },
    };
    let layers = loader.all()?;
    loader.finish();
    Ok(layers)
}

struct Loader<'a> {
    spec: &'a ModelSpec,
    names: Names,
    weights: &'a Weights,
    prefix: &'a str,
    isa: Isa,
    options: &'a CpuOptions,
    /// Where layers are packed to, first to last.
    region: Region,
    progress: LoadProgress,
}

/// A matrix of the checkpoint: name without `.weight`, and rows.
struct Part {
    name: String,
    rows: usize,
}

impl<'a> Loader<'a> {
    fn all(&mut self) -> Result<Layers, LoadError> {
        let spec = self.spec;
        let hidden = spec.hidden_size;
        let embedding_name = format!("{}{}", self.prefix, self.names.embedding);
        let positions = match spec.positions {
            Positions::Rope(_) => None,
            Positions::Learned { offset } => {
                let name = format!("{}{}", self.prefix, self.names.positions);
                Some(self.table(&name, spec.max_positions + offset)?)
            }
        };
        let embedding = self.table(&embedding_name, spec.vocab_size)?;
        let stack = (0..spec.layers)
            .map(|i| self.layer(i))
            .collect::<Result<_, _>>()?;
        let final_norm = if spec.final_norm {
            Some(self.norm(&format!("{}{}", self.prefix, self.names.final_norm))?)
        } else {
            None
        };
        let name = if spec.tied_head {
            embedding_name
        } else {
            self.names.head.to_owned()
        };
        let head = self.linear(
            &[Part {
                name,
                rows: spec.vocab_size,
            }],
            hidden,
            false,
        )?;
        Ok(Layers {
            embedding,
            positions,
            stack,
            final_norm,
            head,
        })
    }

    fn layer(&mut self, i: usize) -> Result<Layer, LoadError> {
        let (spec, names) = (self.spec, self.names);
        let at = |name: &str| format!("{}layers.{i}.{name}", self.prefix);
        let part = |name: &str, rows| Part {
            name: at(name),
            rows,
        };
        let qkv = [
            part(names.query, spec.query_width()),
            part(names.key, spec.kv_width()),
            part(names.value, spec.kv_width()),
        ];
        let output = [part(names.output, spec.hidden_size)];
        let up = match spec.mlp {
            Mlp::GatedSilu => {
                vec![
                    part(names.gate, spec.ffn_size),
                    part(names.up, spec.ffn_size),
                ]
            }
            Mlp::Relu => vec![part(names.up, spec.ffn_size)],
        };
        let down = [part(names.down, spec.hidden_size)];
        let (attention_norm, mlp_norm) = (at(names.attention_norm), at(names.mlp_norm));
        let (query_norm, key_norm) = (at(names.query_norm), at(names.key_norm));
        let head_norms = if spec.qk_norm {
            let query = self.vector(&format!("{query_norm}.weight"), spec.head_dim)?;
            let key = self.vector(&format!("{key_norm}.weight"), spec.head_dim)?;
            Some(HeadNorms { query, key })
        } else {
            None
        };
        Ok(Layer {
            attention_norm: self.norm(&attention_norm)?,
            qkv: self.linear(&qkv, spec.hidden_size, spec.biases.attention)?,
            head_norms,
            output: self.linear(&output, spec.query_width(), spec.biases.attention)?,
            mlp_norm: self.norm(&mlp_norm)?,
            up: self.linear(&up, spec.hidden_size, spec.biases.mlp)?,
            down: self.linear(&down, spec.ffn_size, spec.biases.mlp)?,
        })
    }

    /// Packs matrices one below the other, with their biases.
    fn linear(
        &mut self,
        parts: &[Part],
        cols: usize,
        biased: bool,
    ) -> Result<PackedLinear, LoadError> {
        let mut views = Vec::with_capacity(parts.len());
        let mut bias = Vec::new();
        for Part { name, rows } in parts {
            views.push(self.view(&format!("{name}.weight"), *rows, cols)?);
            if biased {
                bias.extend(self.vector(&format!("{name}.bias"), *rows)?);
            }
        }
        let bias = biased.then_some(bias.as_slice());
        let packed =
            PackedLinear::pack(&mut self.region, self.isa, self.options.dtype, &views, bias)
                .map_err(|source| self.pack_error(&parts[0].name, source))?;
        self.advance(views.iter().map(|view| view.bytes.len()).sum());
        Ok(packed)
    }

    fn table(&mut self, name: &str, rows: usize) -> Result<Embedding, LoadError> {
        let view = self.view(&format!("{name}.weight"), rows, self.spec.hidden_size)?;
        // A tied table is packed again as the head, and counted there.
        if !self.spec.tied_head || !name.ends_with(self.names.embedding) {
            self.advance(view.bytes.len());
        }
        Embedding::new(&view).map_err(|source| self.pack_error(name, source))
    }

    fn norm(&mut self, name: &str) -> Result<NormWeights, LoadError> {
        let weight = self.vector(&format!("{name}.weight"), self.spec.hidden_size)?;
        let bias = match self.spec.norm {
            Norm::Rms { .. } => Vec::new(),
            Norm::Layer { .. } => self.vector(&format!("{name}.bias"), self.spec.hidden_size)?,
        };
        Ok(NormWeights { weight, bias })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>, LoadError> {
        let tensor = self.weights.tensor(name, &[len])?;
        let values = tensor.to_f32(name)?;
        self.advance(tensor.bytes().len());
        Ok(values)
    }

    fn view(&self, name: &str, rows: usize, cols: usize) -> Result<WeightView<'a>, LoadError> {
        let tensor = self.weights.tensor(name, &[rows, cols])?;
        Ok(WeightView {
            source: tensor.numbers(name)?,
            bytes: tensor.bytes(),
            rows,
            cols,
        })
    }

    fn pack_error(&self, name: &str, source: crate::cpu::PackError) -> LoadError {
        LoadError::Pack {
            files: self.weights.files(),
            tensor: format!("{name}.weight"),
            source,
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.progress.done = (self.progress.done + bytes as u64).min(self.progress.total);
        self.report();
    }

    /// Tensors that the model does not use were never counted.
    fn finish(&mut self) {
        self.progress.done = self.progress.total;
        self.report();
    }

    fn report(&self) {
        if let Some(progress) = &self.options.progress {
            progress(self.progress);
        }
    }
}
