//! Tokens per second of the shipped pair: plain decoding beside speculation, same processes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    client::Client,
    prompts,
    report::Report,
    run::{self, Reference, SPECULATIVE, Tally, Work},
    stack::Setup,
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct DecodeArgs {
    /// Cores, and threads of the target.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = crate::some())]
    pub threads: Vec<usize>,
    /// How weights are kept.
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16,int8", value_parser = crate::DTYPES)]
    pub dtypes: Vec<String>,
    /// Lookaheads to try; the adaptive one is always measured too.
    #[arg(long, value_delimiter = ',', default_value = "3,5,7", value_parser = clap::value_parser!(u32).range(1..))]
    pub lookaheads: Vec<u32>,
    /// Rounds; each measures every arm once on all prompts.
    #[arg(long, default_value_t = 3, value_parser = crate::some())]
    pub rounds: usize,
    /// Prompts of GSM8K's test split.
    #[arg(long, default_value_t = 24, value_parser = crate::some())]
    pub prompts: usize,
}

const TOKENS: u32 = 128;

/// Prompts that an arm has before the next one's turn: other machines' loads change from second to second, and
/// every arm should have its share of each.
const BLOCK: usize = 6;

/// The name of plain decoding.
pub(crate) const PLAIN: &str = "plain";

/// An arm in `decode.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) threads: usize,
    pub(crate) dtype: String,
    pub(crate) temperature: f32,
    pub(crate) policy: String,
    pub(crate) decode_tok_s: Summary,
    pub(crate) wall_tok_s: Summary,
    /// Tokens that a pass of the target decides.
    pub(crate) per_pass: f64,
}

impl Line {
    /// A row of the table, beside the rate of plain decoding.
    fn cells(&self, plain: &Summary) -> [String; 9] {
        let rate = self.decode_tok_s;
        [
            self.threads.to_string(),
            self.dtype.clone(),
            format!("{:.0}", self.temperature),
            self.policy.clone(),
            format!("{:.0}", rate.median),
            format!("{:.0} %", 100.0 * rate.half_spread()),
            format!("{:.0}", self.wall_tok_s.median),
            format!("{:.2}", self.per_pass),
            format!("{:.2}", rate.median / plain.median),
        ]
    }
}

/// Measures and publishes `decode`.
pub async fn run(
    args: &DecodeArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let prompts = prompts::gsm8k(&models.join("target"), args.prompts)?;
    let mut report = Report::new(
        "decode",
        format!(
            "Shipped pair over HTTP: router, target and draft are separate processes that share the cores named; Unix \
             sockets between them. The draft's weights are int8, its default. {} GSM8K prompts x {TOKENS} tokens, \
             one client, end of sequence ignored, no prefix reuse. Tokens/s after the first token, median of {} rounds, in each of which the arms take turns of {BLOCK} prompts, each turn after a warm-up request; \
             every arm's tokens are checked to equal plain decoding's.",
            prompts.len(),
            args.rounds
        ),
        &[
            "cores",
            "weights",
            "T",
            "policy",
            "decode tok/s",
            "+-",
            "wall tok/s",
            "tokens per pass",
            "over plain",
        ],
    );
    let mut data = Vec::new();
    for &threads in &args.threads {
        for dtype in &args.dtypes {
            let setup = Setup::shipped(binary.clone(), models, dtype, threads);
            let stack = setup.start().await?;
            for temperature in [0.0, 1.0] {
                let work = Work {
                    prompts: &prompts,
                    tokens: TOKENS,
                    temperature,
                };
                let arms = measure(&stack.client(), args, &work).await?;
                let lines = arms.iter().filter_map(|arm| {
                    Some(Line {
                        threads,
                        dtype: dtype.clone(),
                        temperature,
                        policy: arm.name.clone(),
                        decode_tok_s: Summary::of(&arm.decode)?,
                        wall_tok_s: Summary::of(&arm.wall)?,
                        per_pass: arm.all.tokens_per_round(),
                    })
                });
                let lines: Vec<Line> = lines.collect();
                for line in &lines {
                    report.row(line.cells(&lines[0].decode_tok_s));
                }
                data.extend(lines);
            }
        }
    }
    report.data = json!(data);
    report.publish(results)
}

/// One arm: what it does, and what came of it by round.
struct Arm {
    name: String,
    does: run::Arm,
    decode: Vec<f64>,
    wall: Vec<f64>,
    /// Sums over all rounds.
    all: Tally,
}

impl Arm {
    fn new(name: impl Into<String>, does: run::Arm) -> Self {
        Self {
            name: name.into(),
            does,
            decode: Vec::new(),
            wall: Vec::new(),
            all: Tally::default(),
        }
    }
}

async fn measure(client: &Client, args: &DecodeArgs, work: &Work<'_>) -> anyhow::Result<Vec<Arm>> {
    let fixed = args.lookaheads.iter().map(|&k| {
        let arm = run::Arm::of(SPECULATIVE, k);
        Arm::new(arm.name(), arm)
    });
    let adaptive = run::Arm {
        policy: SPECULATIVE,
        lookahead: None,
    };
    let mut arms = vec![Arm::new(PLAIN, run::PLAIN)];
    arms.extend(fixed);
    arms.push(Arm::new("Speculative adaptive", adaptive));
    let mut reference = Reference::default();
    let count = work.prompts.len();
    for round in 0..args.rounds {
        let mut tallies = vec![Tally::default(); arms.len()];
        for (turn, first) in (0..count).step_by(BLOCK).enumerate() {
            // Round 0 starts with plain decoding, whose tokens are what all others must give; the others rotate
            // from turn to turn, each by another step.
            for place in arm_order(arms.len(), round * (turn + 1)) {
                let arm = &mut arms[place];
                client.complete(&work.ask(0, &arm.does)).await?;
                for index in first..count.min(first + BLOCK) {
                    let answer = client.complete(&work.ask(index, &arm.does)).await?;
                    tallies[place].note(&answer);
                    arm.all.note(&answer);
                    reference.check(index, answer.ids, &arm.name)?;
                }
            }
        }
        for (arm, tally) in arms.iter_mut().zip(&tallies) {
            arm.decode.push(tally.rate());
            arm.wall.push(tally.wall_rate());
        }
    }
    Ok(arms)
}
