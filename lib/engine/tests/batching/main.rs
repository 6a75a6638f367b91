//! Whatever is opened, fed, forked, truncated, accepted from trees, closed, preempted or refused
//! for lack of pages: every row's logits are those of its own tokens computed alone, and every
//! request's tokens those of naive decoding.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where a step of it fails"
)]

mod reuse;
mod serving;
mod trial;

use std::path::Path;

use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize};
use foretoken_engine::runner::ModelRunner;
use foretoken_engine::sim::{SimOptions, SimRunner};
use proptest::prelude::*;

use trial::{Trial, ops};

fn simulated(pages: usize) -> Box<dyn ModelRunner> {
    let options = SimOptions {
        vocab_size: 32,
        pages,
        max_positions: 2048,
        max_rows: 2048,
        ..SimOptions::default()
    };
    Box::new(SimRunner::new(options))
}

fn on_cpu(model: &str, pages: usize) -> Box<dyn ModelRunner> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let options = CpuOptions {
        threads: Some(1),
        kv: KvSize::Pages(pages),
        max_rows: 256,
        ..CpuOptions::default()
    };
    Box::new(CpuRunner::load(&fixtures.join(model), &options).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_program_over_sequences_gives_the_logits_of_naive_decoding(
        ops in ops(),
        pages in 8..40_usize,
    ) {
        Trial::new(simulated(pages), simulated(256)).run(&ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn any_program_over_sequences_gives_the_logits_of_naive_decoding_on_the_cpu(
        ops in ops(),
        model in prop::sample::select(vec!["llama-gqa-tied", "mistral-swa", "qwen3", "opt"]),
        pages in 8..40_usize,
    ) {
        Trial::new(on_cpu(model, pages), on_cpu(model, 16)).run(&ops);
    }
}
