//! A model on the CPU: weights packed once, one loop over layers for every family.
//!
//! ```text
//! folder --spec--> ModelSpec --weights--> tensors --load--> Layers --forward--> logits
//! ```
//!
//! Every buffer is made at load for `max_rows` rows, so a step allocates nothing.
//!
//! Not here: reading files (`spec`, `weights`), kernels (`cpu`), sequences (`batch`).

mod check;
mod forward;
mod layers;
mod load;
pub mod options;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

use forward::{Step, StepBuffers};
use layers::Layers;
pub use options::{CpuOptions, KvSize, LoadProgress, Progress, UnknownType};

use crate::cpu::{Cpu, CpuError, KvShape, KvStore, PackError, RopeTable};
pub use crate::cpu::{KvType, WeightType};
use crate::isa::Isa;
use crate::runner::{
    Logits, ModelRunner, PAGE_TOKENS, PageCopy, RunnerError, RunnerInfo, SlotMove, StepPlan,
};
use crate::spec::{ModelSpec, Positions, SpecError};
use crate::weights::{Weights, WeightsError};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json` describes no model that can be run.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The weights are missing, damaged or do not fit `config.json`.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The CPU cannot be used as asked.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// A tensor cannot be brought into the kernels' layout.
    #[error("{files}: cannot pack tensor {tensor}")]
    Pack {
        /// The file or files.
        files: String,
        /// The first tensor of the layer.
        tensor: String,
        /// Why not.
        source: PackError,
    },
    /// An option that cannot be satisfied.
    #[error("{folder}: option `{option}` is {value}, it must be {allowed}")]
    Option {
        /// The model folder.
        folder: PathBuf,
        /// Name of the field of [`CpuOptions`].
        option: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        allowed: String,
    },
}

/// A model whose weights, KV pages and buffers are in this process's memory.
#[derive(Debug)]
pub struct CpuRunner {
    info: RunnerInfo,
    spec: ModelSpec,
    cpu: Cpu,
    layers: Layers,
    rope: Option<RopeTable>,
    kv: KvStore,
    buffers: StepBuffers,
}

impl CpuRunner {
    /// Loads a Hugging Face model folder: `config.json` and `model.safetensors`, or shards with
    /// `model.safetensors.index.json`. The files are not needed afterwards.
    ///
    /// # Errors
    /// [`LoadError`], naming the file and the field, tensor or option.
    pub fn load(folder: &Path, options: &CpuOptions) -> Result<Self, LoadError> {
        options.check(folder)?;
        let config = folder.join("config.json");
        let spec = ModelSpec::from_folder(folder)?;
        if !spec.head_dim.is_multiple_of(8) {
            return Err(SpecError::Field {
                file: config,
                field: "head_dim".to_owned(),
                value: spec.head_dim.to_string(),
                allowed: "a multiple of 8 on CPUs".to_owned(),
            }
            .into());
        }
        let isa = options.isa.map_or_else(Isa::from_environment, Isa::require);
        let isa = isa.map_err(CpuError::from)?;
        let cpu = Cpu::new(isa, threads(options), &options.cores)?;
        let weights = Weights::open(folder)?;
        let config = std::fs::read(&config).map_err(|source| SpecError::Unreadable {
            file: config,
            source,
        })?;
        let model_digest = weights.digest(&config);
        let layers = load::layers(&spec, &weights, isa, options)?;
        let tiles = if cpu.attends_by_tiles(options.kv_dtype, spec.head_dim) {
            "-tiles"
        } else {
            ""
        };
        let kv = kv_store(folder, &spec, options)?;
        let pages = kv.shape().pages;
        let max_positions = spec.max_positions.min(pages.saturating_mul(PAGE_TOKENS));
        let info = RunnerInfo {
            vocab_size: spec.vocab_size,
            max_positions,
            pages,
            max_rows: options.max_rows,
            model_digest,
            path: format!("cpu/{isa}/{}-kv-{}{tiles}", options.dtype, options.kv_dtype),
        };
        let rope = rope_table(&spec, max_positions);
        let buffers = StepBuffers::new(&spec, options.max_rows);
        Ok(Self {
            info,
            spec,
            cpu,
            layers,
            rope,
            kv,
            buffers,
        })
    }

    /// The model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The device.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Bytes of weights that one step reads at least.
    pub fn step_bytes(&self) -> usize {
        self.layers.step_bytes()
    }
}

impl ModelRunner for CpuRunner {
    fn info(&self) -> &RunnerInfo {
        &self.info
    }

    fn bind_thread(&self) -> Result<(), RunnerError> {
        Ok(self.cpu.pool().pin_caller()?)
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        check::step(plan, &self.info)?;
        let Self {
            spec,
            cpu,
            layers,
            rope,
            kv,
            buffers,
            ..
        } = self;
        let step = Step {
            cpu,
            spec,
            layers,
            rope: rope.as_ref(),
            plan,
        };
        step.run(kv, buffers, logits);
        Ok(())
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        self.kv.copy_pages(copies);
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        self.kv.move_slots(moves);
    }
}

fn threads(options: &CpuOptions) -> usize {
    options
        .threads
        .unwrap_or_else(|| match options.cores.len() {
            0 => thread::available_parallelism().map_or(1, NonZero::get),
            cores => cores,
        })
}

/// Cosines and sines of every position that can occur, if the model rotates.
fn rope_table(spec: &ModelSpec, positions: usize) -> Option<RopeTable> {
    let Positions::Rope(rope) = &spec.positions else {
        return None;
    };
    let frequencies: Vec<f32> = rope.frequencies().iter().map(|f| *f as f32).collect();
    Some(RopeTable::new(
        &frequencies,
        positions,
        rope.attention_factor() as f32,
    ))
}

/// The KV pool, after asking whether the system would give that much memory: the allocation
/// itself can only end the process.
fn kv_store(folder: &Path, spec: &ModelSpec, options: &CpuOptions) -> Result<KvStore, LoadError> {
    let mut shape = KvShape {
        layers: spec.layers,
        pages: 1,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
    };
    let page_bytes = shape.page_bytes(options.kv_dtype);
    shape.pages = match options.kv {
        KvSize::Pages(pages) => pages,
        KvSize::Bytes(bytes) => {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            (bytes / page_bytes).clamp(1, u32::MAX as usize)
        }
    };
    let given = u32::try_from(shape.pages)
        .ok()
        .and_then(|pages| page_bytes.checked_mul(pages as usize))
        .is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if !given {
        return Err(LoadError::Option {
            folder: folder.to_owned(),
            option: "kv",
            value: format!("{} pages of {page_bytes} bytes", shape.pages),
            allowed: "what fits this machine's memory".to_owned(),
        });
    }
    Ok(KvStore::new(shape, options.kv_dtype))
}
