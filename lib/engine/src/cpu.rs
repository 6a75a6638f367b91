//! Kernels for CPUs: linear layers, attention, norms, and the threads that run them.
//!
//! ```text
//! weights --pack once--> PackedLinear --+
//! Activations --------------------------+--> Cpu::linear --> rows
//! KvStore <--write_step-- rows --Cpu::attention--> Activations
//! ```
//!
//! Invariants: within one [`Isa`] path a row's result is the same in every bit whatever other
//! rows are computed with it, however many threads run and whatever pages its KV lies in. A call
//! allocates nothing once its buffers have grown to the largest step. Shapes are the caller's
//! duty: they are fixed at load, so a mismatch is a bug and panics before memory is touched.
//!
//! Not here: which operations make a model (`model`), which page is whose (`kv`).

#![expect(
    clippy::inline_always,
    reason = "vector code must be inlined into the function that enables its instructions"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "register tiles are walked by index, so that they unroll into registers"
)]

pub mod activations;
pub mod attention;
pub mod elementwise;
pub mod linear;
pub mod memory;
mod simd;
pub mod store;
pub mod threads;
mod tiles;

pub use activations::Activations;
pub use attention::{AttentionArgs, AttentionScratch};
pub use elementwise::{Activation, Embedding, Heads, RopeTable};
pub use linear::{PackError, PackedLinear, SourceType, WeightType, WeightView};
pub use store::{KvRows, KvShape, KvStore, KvType};
pub use threads::{Pool, PoolError};

use crate::isa::{Isa, IsaError};

/// A CPU as a device: an instruction path and the threads that use it.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    pool: Pool,
}

/// Why a CPU device could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The machine lacks the instructions asked for.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The worker threads could not be started as asked.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl Cpu {
    /// Starts `threads` threads, that of the caller of kernels included (so 1 starts none). With
    /// `cores` given, worker i is pinned to `cores[i % cores.len()]`; whoever calls kernels pins itself
    /// to the first with [`Pool::pin_caller`].
    ///
    /// # Errors
    /// If the machine lacks `isa`, a thread cannot be started or a core does not exist.
    pub fn new(isa: Isa, threads: usize, cores: &[usize]) -> Result<Self, CpuError> {
        Ok(Self {
            isa: isa.require()?,
            pool: Pool::new(threads, cores)?,
        })
    }

    /// The instruction path.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The worker threads.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

/// Whether this process may use AMX tiles.
#[cfg(target_arch = "x86_64")]
pub(crate) fn amx_is_granted() -> bool {
    tiles::is_granted()
}
