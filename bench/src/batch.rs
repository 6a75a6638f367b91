//! Several streams at once: adaptive speculation must never lose against plain decoding.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::bail;
use futures::{StreamExt, TryStreamExt};
use serde_json::json;

use crate::{
    client::{Ask, Client},
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
    /// Cores, and threads of the target.
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

const TOKENS: u32 = 128;
const POLICIES: [&str; 2] = ["Autoregressive", "Speculative"];

/// Measures and publishes `batch`.
pub async fn run(
    args: &BatchArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let prompts = prompts::gsm8k(&models.join("target"), args.prompts)?;
    let stack = Setup::shipped(binary, models, &args.dtype, args.threads)
        .start()
        .await?;
    let mut report = Report::new(
        "batch",
        format!(
            "Shipped pair in {}, {} cores for everything, {} prompts x {TOKENS} tokens over HTTP by so many streams at \
             once. All tokens over wall time, median of {} interleaved rounds after one warm-up; speculation is adaptive.",
            args.dtype,
            args.threads,
            prompts.len(),
            args.rounds
        ),
        &[
            "streams",
            "T",
            "plain tok/s",
            "speculative tok/s",
            "ratio",
            "lowest",
            "highest",
            "drafted a token",
        ],
    );
    let mut data = Vec::new();
    for &streams in &args.streams {
        for temperature in [0.0, 1.0] {
            let mut rates = [Vec::new(), Vec::new()];
            let mut drafted = Vec::new();
            for round in 0..=args.rounds {
                for arm in arm_order(POLICIES.len(), round) {
                    let run = measure(
                        &stack.client(),
                        &prompts,
                        streams,
                        temperature,
                        POLICIES[arm],
                    )
                    .await?;
                    if round > 0 {
                        rates[arm].push(run.rate);
                        if run.drafted > 0.0 {
                            drafted.push(run.drafted);
                        }
                    }
                }
            }
            let ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(s, p)| s / p).collect();
            let (Some(plain), Some(speculative), Some(ratio)) = (
                Summary::of(&rates[0]),
                Summary::of(&rates[1]),
                Summary::of(&ratios),
            ) else {
                bail!("no rounds were asked for");
            };
            let drafted = Summary::of(&drafted).map_or(0.0, |drafted| drafted.median);
            report.row([
                streams.to_string(),
                format!("{temperature:.0}"),
                format!("{:.0}", plain.median),
                format!("{:.0}", speculative.median),
                format!("{:.2}", ratio.median),
                format!("{:.2}", ratio.min),
                format!("{:.2}", ratio.max),
                format!("{drafted:.2}"),
            ]);
            data.push(
                json!({"streams": streams, "temperature": temperature, "plain_tok_s": plain,
                "speculative_tok_s": speculative, "ratio": ratio, "drafted_a_token": drafted}),
            );
        }
    }
    report.data = json!(data);
    report.publish(results)
}

/// What one arm did in one round.
struct Run {
    /// Tokens per second, all streams together.
    rate: f64,
    /// Tokens proposed for each one emitted.
    drafted: f64,
}

async fn measure(
    client: &Client,
    prompts: &[Vec<u32>],
    streams: usize,
    temperature: f64,
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
            async move { client.complete(&ask).await }
        })
        .buffer_unordered(streams)
        .try_fold((0_usize, 0_u32), |(tokens, drafted), answer| async move {
            Ok((tokens + answer.ids.len(), drafted + answer.drafted))
        });
    let (tokens, drafted) = answers.await?;
    Ok(Run {
        rate: tokens as f64 / start.elapsed().as_secs_f64(),
        drafted: f64::from(drafted) / tokens as f64,
    })
}
