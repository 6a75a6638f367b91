//! What a step of a model costs on this machine, against what streaming its weights costs.
//!
//! `cargo run --release -p foretoken-engine --example step -- models/target [threads] [context] [dtype]`
//!
//! For each number format: milliseconds of a step of m rows behind a context of 200 tokens, the
//! cost relative to one row, and the bandwidth at which the matrices went by, against reading the
//! same number of bytes and doing nothing with them. Times are the least of many repetitions.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize, WeightType};
use foretoken_engine::runner::{
    Logits, ModelRunner, PAGE_TOKENS, PageIndex, SequenceRows, StepPlan, Tail,
};
use foretoken_speculation::TokenId;

const ROWS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16];
const REPETITIONS: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("usage: step FOLDER [THREADS] [CONTEXT] [f32|bf16|int8]")?;
    let threads = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let context = arguments.next().map_or(Ok(200), |n| n.parse())?;
    let only = arguments.next();
    for (name, dtype) in [
        ("f32", WeightType::F32),
        ("bf16", WeightType::Bf16),
        ("int8", WeightType::Int8),
    ] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let options = CpuOptions {
            dtype,
            threads: Some(threads),
            kv: KvSize::Pages((context + 64usize).div_ceil(PAGE_TOKENS)),
            max_rows: 64,
            ..CpuOptions::default()
        };
        let mut runner = CpuRunner::load(Path::new(&folder), &options)?;
        report(&mut runner, context)?;
    }
    Ok(())
}

fn report(runner: &mut CpuRunner, context: usize) -> Result<(), Box<dyn std::error::Error>> {
    let mut logits = Logits::default();
    let mut done = 0;
    while done < context {
        let rows = (context - done).min(64);
        runner.forward(&plan(runner, done, rows), &mut logits)?;
        done += rows;
    }
    let bytes = runner.step_bytes();
    let stream = stream(bytes);
    let (megabytes, bound) = (bytes as f64 / 1e6, milliseconds(stream));
    println!(
        "{}: {megabytes:.1} MB, streamed by one thread in {bound:.3} ms",
        runner.info().path
    );
    let plans: Vec<StepPlan> = ROWS.iter().map(|m| plan(runner, context, *m)).collect();
    let mut least = [Duration::MAX; ROWS.len()];
    for _ in 0..REPETITIONS {
        // Interleaved, so that a disturbance of the machine meets all alike.
        for (plan, least) in plans.iter().zip(&mut least) {
            let start = Instant::now();
            runner.forward(plan, &mut logits)?;
            *least = start.elapsed().min(*least);
            black_box(&logits);
        }
    }
    for (m, time) in ROWS.iter().zip(&least) {
        let ms = milliseconds(*time);
        println!(
            "  m={m:<2} {ms:7.3} ms  {:5.2} x m=1  {:5.1} GB/s  {:4.0} % of the stream",
            ms / milliseconds(least[0]),
            bytes as f64 / 1e6 / ms,
            100.0 * bound / ms
        );
    }
    Ok(())
}

/// `rows` rows of a sequence that has `context` tokens.
fn plan(runner: &CpuRunner, context: usize, rows: usize) -> StepPlan {
    let vocab = runner.info().vocab_size;
    let pages = (context + rows).div_ceil(PAGE_TOKENS);
    StepPlan {
        tokens: (0..rows)
            .map(|i| TokenId(((context + i) * 7919 % vocab) as u32))
            .collect(),
        positions: (context..context + rows).map(|p| p as u32).collect(),
        wants_logits: vec![true; rows],
        sequences: vec![SequenceRows {
            rows: rows as u32,
            first_slot: context as u32,
            pages: 0..pages,
            tail: Tail::Causal,
        }],
        pages: (0..pages as u32).map(PageIndex).collect(),
        ancestors: Vec::new(),
    }
}

/// Least time to read that many bytes with plain vector adds.
fn stream(bytes: usize) -> Duration {
    let words = vec![1u64; bytes / 8];
    let pass = || {
        let start = Instant::now();
        let mut sums = [0u64; 64];
        for chunk in words.chunks_exact(64) {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum ^= word;
            }
        }
        black_box(sums);
        start.elapsed()
    };
    (0..50).map(|_| pass()).min().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
