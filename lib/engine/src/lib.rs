//! Language models on CPUs: weights, KV pages, kernels, batching, and a simulated model.
//!
//! ```text
//! folder --spec--> ModelSpec --load--> CpuRunner ---+
//!                                                    +--> ModelRunner <-- batch::Engine <-- services
//!                                      SimRunner ---+
//! ```
//!
//! Invariant: within one ISA path, the logits of a token depend on the tokens it attends to and
//! on nothing else: not on the number of rows, the batch around them, page layout, prefix reuse,
//! chunking of the prefill or the branch they were computed in.
//!
//! Not here: tokenizers and downloads (`foretoken-artifacts`), sampling (`foretoken-speculation`,
//! whose noise `sampling` compiles for wider vectors).

pub mod batch;
pub mod cpu;
pub mod isa;
pub mod kv;
pub mod model;
pub mod runner;
pub mod sampling;
pub mod schedule;
pub mod sim;
pub mod spec;
pub mod weights;
