//! What a verification pass costs: m rows against one, and one row against the memory's speed.

use std::{hint::black_box, path::Path, time::Instant};

use foretoken_engine::{
    cpu::memory::Buffer,
    model::{CpuOptions, CpuRunner, KvSize, WeightType},
    runner::{Logits, ModelRunner, PAGE_TOKENS, PageIndex, SequenceRows, StepPlan, Tail},
};
use foretoken_speculation::TokenId;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    random_model::HUNDRED_MILLION,
    report::Report,
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct VerifyArgs {
    /// Threads of the engine.
    #[arg(long, default_value_t = 1, value_parser = crate::some())]
    pub threads: usize,
    /// Rounds; each measures every cell once.
    #[arg(long, default_value_t = 7, value_parser = crate::some())]
    pub rounds: usize,
    /// Model folder instead of a random model of about 100 million parameters.
    #[arg(long)]
    pub model: Option<std::path::PathBuf>,
}

/// A weight format in `verify_ratio.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Name of the engine's path.
    pub(crate) path: String,
    /// Rows of a pass, and the milliseconds that each number of them takes.
    pub(crate) rows: Vec<u32>,
    pub(crate) ms: Vec<Summary>,
    pub(crate) weight_bytes: usize,
    pub(crate) stream_gb_s: Summary,
}

const CONTEXT: usize = 256;
const ROWS: [u32; 7] = [1, 2, 4, 6, 8, 16, 32];
/// Places that memory is read in at once to see how fast it is; the fastest counts.
const PLACES: [usize; 3] = [1, 2, 4];
const DTYPES: [WeightType; 3] = [WeightType::F32, WeightType::Bf16, WeightType::Int8];

/// Measures and publishes `verify_ratio`.
pub fn run(args: &VerifyArgs, results: &Path) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let folder = if let Some(folder) = &args.model {
        folder.clone()
    } else {
        HUNDRED_MILLION.write(temporary.path())?;
        temporary.path().to_owned()
    };
    let mut report = Report::new(
        "verify_ratio",
        format!(
            "Milliseconds of one forward pass over m rows at context {CONTEXT}, logits for all rows, {} thread(s), \
             {} rounds interleaved after one warm-up round, medians of the rounds' best of three passes; in brackets the ratio to m = 1. Stream: bytes of \
             weights (and their scales) of a pass over its time, as a share of what the fastest of plain sums over the same number of bytes \
             reaches, in huge pages too, that read in one place, in two or in four at once.",
            args.threads, args.rounds,
        ),
        &[
            "path",
            "m=1",
            "m=2",
            "m=4",
            "m=6",
            "m=8",
            "m=16",
            "m=32",
            "stream GB/s",
            "m=1 GB/s",
            "share",
        ],
    );
    let mut data = Vec::new();
    for dtype in DTYPES {
        let mut subject = Subject::load(&folder, dtype, args.threads)?;
        let bytes = subject.runner.step_bytes();
        let (cells, stream) = subject.measure(args.rounds, bytes, args.threads)?;
        let base = cells[0].median;
        let rate = bytes as f64 / base / 1e6;
        let mut row = vec![subject.runner.info().path.clone()];
        row.extend(
            cells
                .iter()
                .map(|c| format!("{:.2} ({:.2})", c.median, c.median / base)),
        );
        row.extend([
            format!("{:.1}", stream.median),
            format!("{rate:.1}"),
            format!("{:.0} %", 100.0 * rate / stream.median),
        ]);
        report.row(row);
        data.push(Line {
            path: subject.runner.info().path.clone(),
            rows: ROWS.to_vec(),
            ms: cells,
            weight_bytes: bytes,
            stream_gb_s: stream,
        });
    }
    report.data = json!(data);
    report.publish(results)
}

struct Subject {
    runner: CpuRunner,
    plan: StepPlan,
    logits: Logits,
}

impl Subject {
    fn load(folder: &Path, dtype: WeightType, threads: usize) -> anyhow::Result<Self> {
        let options = CpuOptions {
            dtype,
            threads: Some(threads),
            kv: KvSize::Pages((CONTEXT + 64) / PAGE_TOKENS),
            max_rows: CONTEXT,
            ..CpuOptions::default()
        };
        let mut subject = Self {
            runner: CpuRunner::load(folder, &options)?,
            plan: StepPlan::default(),
            logits: Logits::default(),
        };
        subject.step(0, CONTEXT, false)?; // fills the context once
        Ok(subject)
    }

    fn step(&mut self, first: usize, rows: usize, wants: bool) -> anyhow::Result<f64> {
        let pages = (first + rows).div_ceil(PAGE_TOKENS);
        self.plan = StepPlan {
            tokens: (0..rows)
                .map(|i| TokenId(3 + (i as u32 * 37) % 900))
                .collect(),
            positions: (first..first + rows).map(|p| p as u32).collect(),
            wants_logits: vec![wants; rows],
            sequences: vec![SequenceRows {
                rows: rows as u32,
                first_slot: first as u32,
                pages: 0..pages,
                tail: Tail::Causal,
            }],
            pages: (0..pages as u32).map(PageIndex).collect(),
            ancestors: Vec::new(),
        };
        let start = Instant::now();
        self.runner.forward(&self.plan, &mut self.logits)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Median milliseconds per entry of [`ROWS`], and the machine's read speed in GB/s.
    fn measure(
        &mut self,
        rounds: usize,
        bytes: usize,
        threads: usize,
    ) -> anyhow::Result<(Vec<Summary>, Summary)> {
        // In pages as large as those of the weights.
        let words = Buffer::<i32>::zeroed(bytes / size_of::<i32>());
        let mut times = vec![Vec::new(); ROWS.len()];
        let mut rates = Vec::new();
        for round in 0..=rounds {
            let mut rate = 0.0_f64;
            for arm in arm_order(ROWS.len() + 1, round) {
                let Some(&rows) = ROWS.get(arm) else {
                    let rates = PLACES.map(|places| stream(&words, threads, places));
                    rate = rates.into_iter().fold(rate, f64::max);
                    continue;
                };
                // The best of three: what the machine can do, not what its neighbours did to it.
                let best = (0..3)
                    .map(|_| self.step(CONTEXT, rows as usize, true))
                    .collect::<Result<Vec<_>, _>>()?;
                if round > 0 {
                    times[arm].push(best.into_iter().fold(f64::INFINITY, f64::min));
                }
            }
            if round > 0 {
                rates.push(rate);
            }
        }
        let cells = times.iter().filter_map(|t| Summary::of(t)).collect();
        let rate =
            Summary::of(&rates).ok_or_else(|| anyhow::anyhow!("no rounds were asked for"))?;
        Ok((cells, rate))
    }
}

/// Reads `words` once with `threads` threads, each in so many places in turn; GB/s. Hardware fetches ahead
/// of each place by itself, so how many of them are fastest differs.
fn stream(words: &[i32], threads: usize, places: usize) -> f64 {
    /// Words that are read in a place before the next.
    const RUN: usize = 64;
    let sum = |part: &[i32]| {
        let mut lanes = [0_i32; RUN];
        let length = part.len() / places / RUN * RUN;
        for run in (0..length).step_by(RUN) {
            for place in 0..places {
                for (lane, word) in lanes.iter_mut().zip(&part[place * length + run..][..RUN]) {
                    *lane = lane.wrapping_add(*word);
                }
            }
        }
        lanes.iter().fold(0, |a: i32, b| a.wrapping_add(*b))
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let part = words.len().div_ceil(threads.max(1)).max(1);
        let mut parts = words.chunks(part);
        let own = parts.next().unwrap_or_default();
        let others: Vec<_> = parts
            .map(|p| scope.spawn(move || black_box(sum(p))))
            .collect();
        black_box(sum(own));
        for other in others {
            // A panicking sum is impossible; a lost one would only make the stream look slower.
            let _ = other.join();
        }
    });
    size_of_val(words) as f64 / start.elapsed().as_secs_f64() / 1e9
}
