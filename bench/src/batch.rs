//! Several streams at once: speculation must never lose against plain decoding, nor SSD against
//! `Speculative`.
//!
//! Either all services share the cores, or target and draft have one each: that is where SSD is of
//! use.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::bail;
use futures::{StreamExt, TryStreamExt};
use serde_json::json;

use crate::{
    client::{Answer, Ask, Client},
    prompts,
    report::Report,
    stack::Setup,
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct BatchArgs {
    /// Numbers of streams.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    pub streams: Vec<usize>,
    /// Who has which cores.
    #[arg(long, value_delimiter = ',', default_value = "shared,apart")]
    pub layouts: Vec<Layout>,
    /// Cores, and threads of the target, where they are shared.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// How weights are kept.
    #[arg(long, default_value = "bf16")]
    pub dtype: String,
    /// Rounds; each measures both arms once per number of streams.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Prompts per measurement.
    #[arg(long, default_value_t = 32)]
    pub prompts: usize,
}

/// Who has which cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    /// All services have all cores.
    Shared,
    /// Target and router have one, the draft another.
    Apart,
}

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Apart => "apart",
        }
    }

    /// Policies to measure. SSD drafts all the time: sharing the target's cores it is no use.
    fn policies(self) -> &'static [&'static str] {
        match self {
            Self::Shared => &["Autoregressive", "Speculative"],
            Self::Apart => &["Autoregressive", "Speculative", "SSD"],
        }
    }
}

const TOKENS: u32 = 128;

/// Measures and publishes `batch`.
pub async fn run(
    args: &BatchArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let prompts = prompts::gsm8k(&models.join("target"), args.prompts)?;
    let mut report = Report::new(
        "batch",
        format!(
            "Shipped pair in {}, {} prompts x {TOKENS} tokens over HTTP by so many streams at once. Shared: {} cores for \
             everything; apart: one for target and router, one for the draft. All tokens over wall time, median of {} \
             interleaved rounds after one warm-up; lookaheads are the policies' own. Ratios are medians (lowest to \
             highest) of the rounds' own; every arm's tokens are checked to equal plain decoding's.",
            args.dtype,
            prompts.len(),
            args.threads,
            args.rounds
        ),
        &[
            "cores",
            "streams",
            "T",
            "plain tok/s",
            "Speculative tok/s",
            "SSD tok/s",
            "Speculative/plain",
            "SSD/plain",
            "SSD/Speculative",
            "drafted a token",
        ],
    );
    let mut data = Vec::new();
    for &layout in &args.layouts {
        let setup = match layout {
            Layout::Shared => Setup::shipped(binary.clone(), models, &args.dtype, args.threads),
            Layout::Apart => Setup {
                router: true,
                ..Setup::apart(binary.clone(), models, &args.dtype)
            },
        };
        let stack = setup.start().await?;
        let client = stack.client();
        for &streams in &args.streams {
            for temperature in [0.0, 1.0] {
                let mut cell = Cell::new(layout, streams, temperature);
                cell.measure(&client, &prompts, args.rounds).await?;
                data.extend(cell.publish(&mut report));
            }
        }
    }
    report.data = json!(data);
    report.publish(results)
}

/// All arms under one load.
struct Cell {
    layout: Layout,
    streams: usize,
    temperature: f32,
    /// By policy, by round.
    rates: Vec<Vec<f64>>,
    drafted: Vec<Vec<f64>>,
}

impl Cell {
    fn new(layout: Layout, streams: usize, temperature: f32) -> Self {
        let arms = layout.policies().len();
        Self {
            layout,
            streams,
            temperature,
            rates: vec![Vec::new(); arms],
            drafted: vec![Vec::new(); arms],
        }
    }

    async fn measure(
        &mut self,
        client: &Client,
        prompts: &[Vec<u32>],
        rounds: usize,
    ) -> anyhow::Result<()> {
        let policies = self.layout.policies();
        let mut reference = Vec::new();
        for round in 0..=rounds {
            for arm in arm_order(policies.len(), round) {
                let policy = policies[arm];
                let run = measure(client, prompts, self.streams, self.temperature, policy).await?;
                if reference.is_empty() {
                    reference.clone_from(&run.outputs);
                }
                if reference != run.outputs {
                    bail!("{policy} changed tokens with {} streams", self.streams);
                }
                if round > 0 {
                    self.rates[arm].push(run.rate);
                    self.drafted[arm].push(run.drafted);
                }
            }
        }
        Ok(())
    }

    /// Of two arms, round by round.
    fn ratio(&self, of: usize, to: usize) -> Option<Summary> {
        let (of, to) = (self.rates.get(of)?, self.rates.get(to)?);
        Summary::of(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    fn publish(&self, report: &mut Report) -> Option<serde_json::Value> {
        let rate = |arm: usize| {
            self.rates
                .get(arm)
                .and_then(|rates: &Vec<f64>| Summary::of(rates))
        };
        let drafted =
            |arm: usize| Summary::of(self.drafted.get(arm)?).map(|drafted| drafted.median);
        let ratios = [self.ratio(1, 0), self.ratio(2, 0), self.ratio(2, 1)];
        let mut cells = vec![
            self.layout.name().to_owned(),
            self.streams.to_string(),
            format!("{:.0}", self.temperature),
        ];
        let none = || "-".to_owned();
        for arm in 0..3 {
            cells.push(rate(arm).map_or_else(none, |rate| format!("{:.0}", rate.median)));
        }
        for ratio in ratios {
            let text = |r: Summary| format!("{:.2} ({:.2} to {:.2})", r.median, r.min, r.max);
            cells.push(ratio.map_or_else(none, text));
        }
        let of = |arm| drafted(arm).map(|drafted| format!("{drafted:.2}"));
        cells.push(
            [of(1), of(2)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(", "),
        );
        report.row(cells);
        Some(
            json!({"layout": self.layout.name(), "streams": self.streams, "temperature": self.temperature,
            "plain_tok_s": rate(0)?, "speculative_tok_s": rate(1), "ssd_tok_s": rate(2),
            "speculative_over_plain": ratios[0], "ssd_over_plain": ratios[1], "ssd_over_speculative": ratios[2],
            "drafted_a_token": {"speculative": drafted(1), "ssd": drafted(2)}}),
        )
    }
}

/// What one arm did in one round.
struct Run {
    /// Tokens per second, all streams together.
    rate: f64,
    /// Tokens proposed for each one emitted.
    drafted: f64,
    /// Tokens of each prompt.
    outputs: Vec<Vec<u32>>,
}

async fn measure(
    client: &Client,
    prompts: &[Vec<u32>],
    streams: usize,
    temperature: f32,
    policy: &str,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    let answers = futures::stream::iter(prompts.iter().enumerate())
        .map(|(i, ids)| {
            let policy = Some((policy, None));
            let ask = Ask {
                ids,
                max_tokens: TOKENS,
                temperature,
                seed: i as u64,
                policy,
            };
            async move { anyhow::Ok((i, client.complete(&ask).await?)) }
        })
        .buffer_unordered(streams)
        .try_collect();
    let mut answers: Vec<(usize, Answer)> = answers.await?;
    let elapsed = start.elapsed();
    answers.sort_by_key(|(i, _)| *i);
    let tokens: usize = answers.iter().map(|(_, answer)| answer.ids.len()).sum();
    let drafted: u32 = answers.iter().map(|(_, answer)| answer.drafted).sum();
    Ok(Run {
        rate: tokens as f64 / elapsed.as_secs_f64(),
        drafted: f64::from(drafted) / tokens as f64,
        outputs: answers.into_iter().map(|(_, answer)| answer.ids).collect(),
    })
}
