//! Several streams at once: speculation must never lose against plain decoding, nor SSD against
//! `Speculative`.
//!
//! Either all services share the cores, or target and draft have one each: that is where SSD is of
//! use.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    client::{Answer, Ask, Client},
    prompts,
    report::Report,
    run::{PLAIN, Reference, SPECULATIVE, SSD},
    stack::Setup,
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct BatchArgs {
    /// Numbers of streams.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..))]
    pub streams: Vec<u32>,
    /// Who has which cores.
    #[arg(long, value_delimiter = ',', default_value = "shared,apart")]
    pub layouts: Vec<Layout>,
    /// Cores, and threads of the target, where they are shared.
    #[arg(long, default_value_t = 2, value_parser = crate::some())]
    pub threads: usize,
    /// How weights are kept.
    #[arg(long, default_value = "bf16", value_parser = crate::DTYPES)]
    pub dtype: String,
    /// Rounds; each measures all arms once per number of streams.
    #[arg(long, default_value_t = 5, value_parser = crate::some())]
    pub rounds: usize,
    /// Prompts.
    #[arg(long, default_value_t = 32, value_parser = crate::some())]
    pub prompts: usize,
    /// Requests of each stream in a measurement, at least: prompts are asked again, with other seeds.
    #[arg(long, default_value_t = 8, value_parser = crate::some())]
    pub requests: usize,
}

/// Who has which cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// All services have all cores.
    #[default]
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

    /// Policies to measure, each at the place that its constant says. SSD drafts all the time:
    /// sharing the target's cores it is no use.
    fn policies(self) -> &'static [&'static str] {
        const ARMS: [&str; 4] = [PLAIN.policy, PLAIN.policy, SPECULATIVE, SSD];
        match self {
            Self::Shared => &ARMS[..=SPECULATIVE_ARM],
            Self::Apart => &ARMS[..=SSD_ARM],
        }
    }
}

/// Places of the arms. Plain decoding is measured twice: what its two arms differ by is what the
/// machine does, and no policy.
const PLAIN_ARM: usize = 0;
const AGAIN_ARM: usize = 1;
const SPECULATIVE_ARM: usize = 2;
const SSD_ARM: usize = 3;

/// A load in `batch.json`: what came of all arms.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    /// Results from before there was a choice have none: theirs was the first.
    #[serde(default)]
    pub(crate) layout: Layout,
    pub(crate) streams: u32,
    pub(crate) temperature: f32,
    pub(crate) plain_tok_s: Summary,
    pub(crate) speculative_tok_s: Option<Summary>,
    pub(crate) ssd_tok_s: Option<Summary>,
    /// What two arms that do the same differ by; early results have none.
    pub(crate) plain_over_plain: Option<Summary>,
    #[serde(alias = "ratio")]
    pub(crate) speculative_over_plain: Option<Summary>,
    pub(crate) ssd_over_plain: Option<Summary>,
    pub(crate) ssd_over_speculative: Option<Summary>,
    /// Not read: nothing is drawn of it, and early results have it of one policy only.
    #[serde(skip_deserializing)]
    pub(crate) drafted_a_token: Drafted,
}

/// Tokens proposed for each one emitted.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Drafted {
    pub(crate) speculative: Option<f64>,
    pub(crate) ssd: Option<f64>,
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
            "Shipped pair, the target in {}, the draft in int8, its default; {} prompts x {TOKENS} tokens over HTTP by so many streams at once, {} requests of each at least. Shared: {} cores for \
             everything; apart: one for target and router, one for the draft. All tokens over wall time, median of {} \
             interleaved rounds after one warm-up; lookaheads are the policies' own. Ratios are medians (lowest to \
             highest) of the rounds' own; plain decoding is measured twice a round, and its ratio to itself is \
             what the machine does. Every arm's tokens are checked to equal plain decoding's.",
            args.dtype,
            prompts.len(),
            args.requests,
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
            "plain/plain",
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
                let requests = prompts.len().max(args.requests * streams as usize);
                let all: Vec<_> = prompts.iter().cycle().take(requests).collect();
                cell.measure(&client, &all, args.rounds).await?;
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
    streams: u32,
    temperature: f32,
    /// By policy, by round.
    rates: Vec<Vec<f64>>,
    drafted: Vec<Vec<f64>>,
}

impl Cell {
    fn new(layout: Layout, streams: u32, temperature: f32) -> Self {
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
        prompts: &[&Vec<u32>],
        rounds: usize,
    ) -> anyhow::Result<()> {
        let policies = self.layout.policies();
        let mut reference = Reference::default();
        for round in 0..=rounds {
            for arm in arm_order(policies.len(), round) {
                let policy = policies[arm];
                let run = measure(client, prompts, self.streams, self.temperature, policy).await?;
                let who = format!("{policy} with {} streams", self.streams);
                for (index, ids) in run.outputs.into_iter().enumerate() {
                    reference.check(index, ids, &who)?;
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
        Summary::ratio(self.rates.get(of)?, self.rates.get(to)?)
    }

    fn rate(&self, arm: usize) -> Option<Summary> {
        Summary::of(self.rates.get(arm)?)
    }

    fn drafted(&self, arm: usize) -> Option<f64> {
        Summary::of(self.drafted.get(arm)?).map(|drafted| drafted.median)
    }

    fn publish(&self, report: &mut Report) -> Option<Line> {
        let line = Line {
            layout: self.layout,
            streams: self.streams,
            temperature: self.temperature,
            plain_tok_s: self.rate(PLAIN_ARM)?,
            speculative_tok_s: self.rate(SPECULATIVE_ARM),
            ssd_tok_s: self.rate(SSD_ARM),
            plain_over_plain: self.ratio(AGAIN_ARM, PLAIN_ARM),
            speculative_over_plain: self.ratio(SPECULATIVE_ARM, PLAIN_ARM),
            ssd_over_plain: self.ratio(SSD_ARM, PLAIN_ARM),
            ssd_over_speculative: self.ratio(SSD_ARM, SPECULATIVE_ARM),
            drafted_a_token: Drafted {
                speculative: self.drafted(SPECULATIVE_ARM),
                ssd: self.drafted(SSD_ARM),
            },
        };
        report.row(line.cells());
        Some(line)
    }
}

impl Line {
    /// As a row of the table.
    fn cells(&self) -> Vec<String> {
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let rates = [
            Some(self.plain_tok_s),
            self.speculative_tok_s,
            self.ssd_tok_s,
        ];
        let ratios = [
            self.plain_over_plain,
            self.speculative_over_plain,
            self.ssd_over_plain,
            self.ssd_over_speculative,
        ];
        let drafted = [self.drafted_a_token.speculative, self.drafted_a_token.ssd];
        let mut cells = vec![
            self.layout.name().to_owned(),
            self.streams.to_string(),
            format!("{:.0}", self.temperature),
        ];
        cells.extend(rates.map(|rate| cell(rate.map(|rate| format!("{:.0}", rate.median)))));
        cells.extend(ratios.map(|ratio| cell(ratio.map(|ratio| ratio.span()))));
        let drafted = drafted.into_iter().flatten();
        let drafted: Vec<String> = drafted.map(|drafted| format!("{drafted:.2}")).collect();
        cells.push(drafted.join(", "));
        cells
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
    prompts: &[&Vec<u32>],
    streams: u32,
    temperature: f32,
    policy: &str,
) -> anyhow::Result<Run> {
    let start = Instant::now();
    let answers = futures::stream::iter(prompts.iter().enumerate())
        .map(|(i, &ids)| {
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
        .buffer_unordered(streams as usize)
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::plots::{self, PlotsArgs};

    /// Plots that are drawn of this as `batch.json`.
    fn drawn(data: serde_json::Value) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut report = Report::computed("batch", "", &[]);
        report.data = data;
        report.publish(folder.path()).expect("a result");
        let plots = folder.path().to_owned();
        plots::run(&PlotsArgs { plots }, folder.path()).expect("plots");
        fs::read_to_string(folder.path().join("batch.svg")).ok()
    }

    /// Two rounds of a load: plain decoding, a tenth slower, twice and three times as fast, and as
    /// fast as that.
    fn measured(layout: Layout, temperature: f32) -> Line {
        let mut cell = Cell::new(layout, 4, temperature);
        let rates = [
            vec![100.0, 100.0],
            vec![90.0, 90.0],
            vec![200.0, 300.0],
            vec![200.0, 300.0],
        ];
        let arms = cell.rates.len();
        cell.rates = rates.into_iter().take(arms).collect();
        cell.drafted = vec![vec![1.0, 1.5]; arms];
        let mut report = Report::computed("batch", "", &[]);
        cell.publish(&mut report).expect("rounds")
    }

    #[test]
    fn what_was_measured_is_drawn_where_all_share_the_cores() {
        let lines = [measured(Layout::Shared, 1.0), measured(Layout::Apart, 0.0)];
        let svg = drawn(json!(lines)).expect("a plot");
        assert!(svg.contains("T = 1") && !svg.contains("T = 0"));
        assert_eq!(drawn(json!(lines[1..])), None);
        let read: Line = serde_json::from_value(json!(lines[1])).expect("a load");
        let ratio = |of: Option<Summary>| of.map(|ratio| ratio.median);
        assert_eq!(read.layout, Layout::Apart);
        assert_eq!(ratio(read.plain_over_plain), Some(0.9));
        assert_eq!(ratio(read.speculative_over_plain), Some(2.5));
        assert_eq!(ratio(read.ssd_over_speculative), Some(1.0));
    }

    #[test]
    fn early_results_are_drawn_as_of_shared_cores() {
        let figure = json!({"min": 0.5, "median": 1.0, "max": 1.5, "n": 2});
        let line = json!({"streams": 2, "temperature": 1.0, "drafted_a_token": 1.25,
            "plain_tok_s": figure, "speculative_tok_s": figure, "ratio": figure});
        assert!(drawn(json!([line])).expect("a plot").contains("T = 1"));
    }
}
