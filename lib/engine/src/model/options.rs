//! How a model is to be held and run on the CPU.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::LoadError;
use crate::cpu::{KvType, WeightType};
use crate::isa::Isa;

/// Size of the KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvSize {
    /// Pages of [`crate::runner::PAGE_TOKENS`] tokens.
    Pages(usize),
    /// Bytes; as many pages as fit, at least one.
    Bytes(u64),
}

/// How far a load has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights packed.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// Called with every advance of a load, on the loading thread.
pub type Progress = Arc<dyn Fn(LoadProgress) + Send + Sync>;

/// How a model is to be held and run.
#[derive(Clone)]
pub struct CpuOptions {
    /// Weights.
    pub dtype: WeightType,
    /// Keys and values.
    pub kv_dtype: KvType,
    /// Threads that compute, the caller's included; `None` is one per core of `cores`, or of the
    /// machine.
    pub threads: Option<usize>,
    /// Cores the threads are bound to, in order; empty binds none. The first is meant for the
    /// thread that calls `forward`, which binds itself with
    /// [`bind_thread`](crate::runner::ModelRunner::bind_thread).
    pub cores: Vec<usize>,
    /// Instruction path; `None` is what `FORETOKEN_ISA` names, or the best the machine has.
    pub isa: Option<Isa>,
    /// Size of the KV pool.
    pub kv: KvSize,
    /// Most rows a step may have.
    pub max_rows: usize,
    /// Told how far a load has come.
    pub progress: Option<Progress>,
}

impl Default for CpuOptions {
    /// bf16 weights and KV, all cores, 512 MiB of KV, 256 rows a step.
    fn default() -> Self {
        Self {
            dtype: WeightType::Bf16,
            kv_dtype: KvType::Bf16,
            threads: None,
            cores: Vec::new(),
            isa: None,
            kv: KvSize::Bytes(512 << 20),
            max_rows: 256,
            progress: None,
        }
    }
}

impl fmt::Debug for CpuOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuOptions")
            .field("dtype", &self.dtype)
            .field("kv_dtype", &self.kv_dtype)
            .field("threads", &self.threads)
            .field("cores", &self.cores)
            .field("isa", &self.isa)
            .field("kv", &self.kv)
            .field("max_rows", &self.max_rows)
            .finish_non_exhaustive()
    }
}

impl CpuOptions {
    /// Refuses what no machine can satisfy.
    pub(super) fn check(&self, folder: &Path) -> Result<(), LoadError> {
        let refuse = |option, value: String, allowed: &str| {
            let allowed = allowed.to_owned();
            Err(LoadError::Option {
                folder: folder.to_owned(),
                option,
                value,
                allowed,
            })
        };
        if !(1..=MAX_ROWS).contains(&self.max_rows) {
            return refuse("max_rows", self.max_rows.to_string(), "from 1 to 65536");
        }
        if self
            .threads
            .is_some_and(|n| !(1..=MAX_THREADS).contains(&n))
        {
            let value = self.threads.unwrap_or_default().to_string();
            return refuse("threads", value, "from 1 to 1024");
        }
        if self.kv == KvSize::Pages(0) {
            return refuse("kv", "0 pages".to_owned(), "at least one page");
        }
        Ok(())
    }
}

const MAX_ROWS: usize = 1 << 16;
const MAX_THREADS: usize = 1 << 10;

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for WeightType {
    type Err = UnknownType;

    fn from_str(name: &str) -> Result<Self, UnknownType> {
        [Self::F32, Self::Bf16, Self::Int8]
            .into_iter()
            .find(|kind| kind.to_string() == name)
            .ok_or_else(|| UnknownType {
                name: name.to_owned(),
                known: "f32, bf16, int8",
            })
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for KvType {
    type Err = UnknownType;

    fn from_str(name: &str) -> Result<Self, UnknownType> {
        [Self::F32, Self::Bf16]
            .into_iter()
            .find(|kind| kind.to_string() == name)
            .ok_or_else(|| UnknownType {
                name: name.to_owned(),
                known: "f32, bf16",
            })
    }
}

/// A name that stands for no number format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not known, it must be one of {known}")]
pub struct UnknownType {
    /// What was given.
    pub name: String,
    /// What may be given.
    pub known: &'static str,
}
