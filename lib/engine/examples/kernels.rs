//! Times the linear layers and the attention of two models by number of rows.
//!
//! `cargo run --release -p foretoken-engine --example kernels -- [small|large] [threads] [isa]`
//!
//! Per path and weight format: the weight traffic of one row against a plain read of the same
//! number of bytes, and the time of m rows over that of one. Minimums of interleaved rounds.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use foretoken_engine::cpu::{
    Activations, AttentionArgs, AttentionScratch, Cpu, KvShape, KvStore, KvType, PackedLinear,
    SourceType, WeightType, WeightView,
};
use foretoken_engine::isa::Isa;
use foretoken_engine::runner::{PAGE_TOKENS, PageIndex, SequenceRows, StepPlan, Tail};

const ROWS: [usize; 8] = [1, 2, 4, 6, 8, 12, 16, 32];

/// Shapes of a Llama-like model.
struct Shapes {
    name: &'static str,
    hidden: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    ffn: usize,
    vocab: usize,
    rounds: usize,
}

const SMALL: Shapes = Shapes {
    name: "shipped target, 10 M",
    hidden: 320,
    layers: 8,
    heads: 5,
    kv_heads: 1,
    ffn: 896,
    vocab: 4096,
    rounds: 100,
};

const LARGE: Shapes = Shapes {
    name: "100 M",
    hidden: 768,
    layers: 12,
    heads: 12,
    kv_heads: 12,
    ffn: 2048,
    vocab: 32_000,
    rounds: 10,
};

impl Shapes {
    /// `[outputs, inputs]` of all linear layers in order.
    fn linears(&self) -> Vec<(usize, usize)> {
        let qkv = (self.heads + 2 * self.kv_heads) * 64;
        let layer = [
            (qkv, self.hidden),
            (self.hidden, self.heads * 64),
            (2 * self.ffn, self.hidden),
            (self.hidden, self.ffn),
        ];
        let mut all: Vec<_> = (0..self.layers).flat_map(|_| layer).collect();
        all.push((self.vocab, self.hidden));
        all
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).map_or(Ok(1), |n| n.parse())?;
    let paths = match arguments.get(2) {
        Some(name) => vec![name.parse::<Isa>()?.require()?],
        None => Isa::available()
            .into_iter()
            .filter(|isa| *isa != Isa::Portable)
            .collect(),
    };
    let models = match arguments.first().map(String::as_str) {
        Some("small") => vec![SMALL],
        Some("large") => vec![LARGE],
        _ => vec![SMALL, LARGE],
    };
    for shapes in &models {
        println!("{}, {threads} threads", shapes.name);
        for isa in &paths {
            let cpu = Cpu::new(*isa, threads, &[])?;
            for kind in [WeightType::F32, WeightType::Bf16, WeightType::Int8] {
                linears(&cpu, shapes, kind)?;
            }
            attention(&cpu, shapes);
        }
    }
    Ok(())
}

/// bf16 values in about -1..1, raw.
fn noise(n: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        half::bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..n).flat_map(|_| next().to_le_bytes()).collect()
}

fn linears(cpu: &Cpu, shapes: &Shapes, kind: WeightType) -> Result<(), Box<dyn Error>> {
    let mut layers = Vec::new();
    for (rows, cols) in shapes.linears() {
        let bytes = noise(rows * cols);
        let view = WeightView {
            source: SourceType::Bf16,
            bytes: &bytes,
            rows,
            cols,
        };
        layers.push(PackedLinear::pack(cpu.isa(), kind, &[view], None)?);
    }
    let bytes: usize = layers.iter().map(PackedLinear::bytes).sum();
    let stream_of = vec![1_u64; bytes / 8];
    let mut x = Activations::default();
    let mut y = vec![0.0; 32 * shapes.vocab.max(2 * shapes.ffn)];
    let mut best = [Duration::MAX; ROWS.len()];
    let mut stream = Duration::MAX;
    // Apart from the rest: a plain read in between would push the weights out of the cache.
    for _ in 0..shapes.rounds / 2 {
        stream = stream.min(time(|| read(cpu, &stream_of)));
    }
    for _ in 0..shapes.rounds {
        for (best, rows) in best.iter_mut().zip(ROWS) {
            *best = (*best).min(time(|| {
                for layer in &layers {
                    x.begin(rows, layer.inputs()).fill(0.5);
                    cpu.linear(layer, &mut x, &mut y[..rows * layer.outputs()]);
                }
            }));
        }
    }
    let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    print!(
        "  {:12} {:5} {:6.3} ms {:5.1} of {:5.1} GB/s ({:3.0} %) ",
        cpu.isa().name(),
        format!("{kind:?}").to_lowercase(),
        best[0].as_secs_f64() * 1e3,
        rate(best[0]),
        rate(stream),
        100.0 * stream.as_secs_f64() / best[0].as_secs_f64(),
    );
    for (best_m, rows) in best.iter().zip(ROWS).skip(1) {
        print!(
            "  {rows}: {:.2}",
            best_m.as_secs_f64() / best[0].as_secs_f64()
        );
    }
    println!();
    Ok(())
}

/// The second of two runs, so that what fits a cache is in it.
fn time(mut work: impl FnMut()) -> Duration {
    work();
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Reads everything once, as fast as a plain loop can.
fn read(cpu: &Cpu, data: &[u64]) {
    let tasks = cpu.pool().threads();
    cpu.pool().run(tasks, &|task| {
        let part = &data[data.len() * task / tasks..data.len() * (task + 1) / tasks];
        let mut sums = [0_u64; 64];
        for line in part.as_chunks::<64>().0 {
            for (sum, x) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(*x);
            }
        }
        black_box(sums);
    });
}

fn attention(cpu: &Cpu, shapes: &Shapes) {
    let context = 256;
    let pages = (context + 32) / PAGE_TOKENS;
    let shape = KvShape {
        layers: shapes.layers,
        pages,
        kv_heads: shapes.kv_heads,
        head_dim: 64,
    };
    let kv = KvStore::new(shape, KvType::Bf16);
    let width = shapes.heads * 64;
    let queries = vec![0.1; 32 * width];
    let mut out = vec![0.0; 32 * width];
    let mut scratch = AttentionScratch::default();
    let mut best = [Duration::MAX; ROWS.len()];
    for _ in 0..shapes.rounds {
        for (best, rows) in best.iter_mut().zip(ROWS) {
            let plan = StepPlan {
                sequences: vec![SequenceRows {
                    rows: rows as u32,
                    first_slot: context as u32,
                    pages: 0..pages,
                    tail: Tail::Causal,
                }],
                pages: (0..pages as u32).map(PageIndex).collect(),
                ..StepPlan::default()
            };
            *best = (*best).min(time(|| {
                for layer in 0..shapes.layers {
                    let args = AttentionArgs {
                        plan: &plan,
                        kv: &kv,
                        layer,
                        rows: &queries,
                        stride: width,
                        query: 0,
                        heads: shapes.heads,
                        scale: 0.125,
                        window: None,
                    };
                    cpu.attention(&args, &mut scratch, &mut out[..rows * width]);
                }
            }));
        }
    }
    print!("  {:12} attention at {context}, bf16", cpu.isa().name());
    for (best, rows) in best.iter().zip(ROWS) {
        print!("  {rows}: {:.3} ms", best.as_secs_f64() * 1e3);
    }
    println!();
}
