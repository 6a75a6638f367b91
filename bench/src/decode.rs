//! Tokens per second of the shipped pair: plain decoding beside speculation, same processes.

use std::path::{Path, PathBuf};

use anyhow::bail;
use serde::{Deserialize, Serialize};
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
pub struct DecodeArgs {
    /// Cores, and threads of the target.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub threads: Vec<usize>,
    /// How weights are kept.
    #[arg(long, value_delimiter = ',', default_value = "bf16,int8")]
    pub dtypes: Vec<String>,
    /// Lookaheads to try; the adaptive one is always measured too.
    #[arg(long, value_delimiter = ',', default_value = "3,5,7")]
    pub lookaheads: Vec<u32>,
    /// Rounds; each measures every arm once on all prompts.
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// Prompts of GSM8K's test split.
    #[arg(long, default_value_t = 24)]
    pub prompts: usize,
}

const TOKENS: u32 = 128;

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
             sockets between them. The draft's weights are int8, its default. {} GSM8K prompts x {TOKENS} tokens, one client, end of sequence ignored, no prefix \
             reuse. Tokens/s after the first token, median of {} interleaved rounds (after a warm-up request per arm); \
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
                let arms = measure(&stack.client(), args, &prompts, temperature).await?;
                let plain = arms[0].decode.median;
                for arm in arms {
                    report.row([
                        threads.to_string(),
                        dtype.clone(),
                        format!("{temperature:.0}"),
                        arm.name.clone(),
                        format!("{:.0}", arm.decode.median),
                        format!("{:.0} %", 100.0 * arm.decode.half_spread()),
                        format!("{:.0}", arm.wall.median),
                        format!("{:.2}", arm.per_pass),
                        format!("{:.2}", arm.decode.median / plain),
                    ]);
                    data.push(Line {
                        threads,
                        dtype: dtype.clone(),
                        temperature,
                        policy: arm.name,
                        decode_tok_s: arm.decode,
                        wall_tok_s: arm.wall,
                        per_pass: arm.per_pass,
                    });
                }
            }
        }
    }
    report.data = json!(data);
    report.publish(results)
}

struct Arm {
    name: String,
    decode: Summary,
    wall: Summary,
    per_pass: f64,
}

async fn measure(
    client: &Client,
    args: &DecodeArgs,
    prompts: &[Vec<u32>],
    temperature: f32,
) -> anyhow::Result<Vec<Arm>> {
    let mut policies = vec![(PLAIN.to_owned(), ("Autoregressive", None))];
    for &k in &args.lookaheads {
        policies.push((format!("Speculative K={k}"), ("Speculative", Some(k))));
    }
    policies.push(("Speculative adaptive".to_owned(), ("Speculative", None)));
    let mut decode = vec![Vec::new(); policies.len()];
    let mut wall = vec![Vec::new(); policies.len()];
    let mut passes = vec![(0_usize, 0_u32); policies.len()];
    let mut reference: Vec<Vec<u32>> = Vec::new();
    for round in 0..args.rounds {
        // Round 0 starts with plain decoding, whose tokens are what all others must give.
        for arm in arm_order(policies.len(), round) {
            let ask = |ids| Ask {
                ids,
                max_tokens: TOKENS,
                temperature,
                seed: 7,
                policy: Some(policies[arm].1),
            };
            client.complete(&ask(&prompts[0])).await?;
            let mut answers: Vec<Answer> = Vec::new();
            for ids in prompts {
                answers.push(client.complete(&ask(ids)).await?);
            }
            if reference.is_empty() {
                reference = answers.iter().map(|a| a.ids.clone()).collect();
            }
            if let Some(i) = answers
                .iter()
                .zip(&reference)
                .position(|(a, r)| a.ids != *r)
            {
                bail!(
                    "{} changed the tokens of prompt {i} at temperature {temperature}",
                    policies[arm].0
                );
            }
            let tokens: usize = answers.iter().map(|a| a.ids.len()).sum();
            let decode_s: f64 = answers.iter().map(|a| a.decode.as_secs_f64()).sum();
            let wall_s: f64 = answers.iter().map(|a| a.wall.as_secs_f64()).sum();
            decode[arm].push((tokens - answers.len()) as f64 / decode_s);
            wall[arm].push(tokens as f64 / wall_s);
            let rounds: u32 = answers.iter().map(|a| a.rounds).sum();
            passes[arm] = (tokens - answers.len(), rounds);
        }
    }
    let arms = policies
        .into_iter()
        .enumerate()
        .filter_map(|(i, (name, _))| {
            let (tokens, rounds) = passes[i];
            let per_pass = tokens as f64 / f64::from(rounds.max(1));
            Some(Arm {
                name,
                decode: Summary::of(&decode[i])?,
                wall: Summary::of(&wall[i])?,
                per_pass,
            })
        });
    Ok(arms.collect())
}
