//! What the router adds: the same simulated target asked directly and through HTTP.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::bail;
use foretoken_protocol::generate::{GenerateClient, GenerateEvent};
use futures::{StreamExt, future::try_join_all};
use serde_json::json;

use crate::{
    client::Ask,
    prompts::simulated,
    report::Report,
    stack::{Setup, Stack},
    stats::percentile,
    target,
};

/// Requests of each stream, one after the other.
const EACH: usize = 2;

/// Multiples of it, without their whole parts, lie evenly between 0 and 1 however many there are.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct RouterArgs {
    /// Streams at once.
    #[arg(long, default_value_t = 64, value_parser = crate::some())]
    pub streams: usize,
    /// Tokens per stream.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Step time of the simulated target, in microseconds.
    #[arg(long, default_value_t = 20_000)]
    pub step_us: u64,
    /// Rounds; each measures both arms once.
    #[arg(long, default_value_t = 4, value_parser = crate::some())]
    pub rounds: usize,
}

/// Measures and publishes `router`.
pub async fn run(
    args: &RouterArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let setup = Setup {
        target_model: json!({"simulated": {"vocab": 4096, "step_us": args.step_us}}),
        draft: None,
        service: json!({"policy": "Autoregressive", "prefix_cache": false, "max_running": 2 * args.streams}),
        cores: String::new(),
        tcp: true,
        ..Setup::shipped(binary, models, "bf16", 1)
    };
    let stack = setup.start().await?;
    let mut report = Report::new(
        "router",
        format!(
            "{} streams at once of {} tokens each, begun evenly over the time of one, each followed by another; each \
             request begins another part of a step late; simulated target with steps of {} us: asked by gRPC directly, and through the router's HTTP and SSE. {} interleaved \
             rounds after one warm-up; the client shares the cores. Milliseconds.",
            args.streams, args.tokens, args.step_us, args.rounds
        ),
        &[
            "arm",
            "TTFT p50",
            "TTFT p99",
            "between tokens p50",
            "between tokens p99",
            "router CPU ms per 1,000 tokens",
        ],
    );
    let mut direct = Arrivals::default();
    let mut routed = Arrivals::default();
    let mut cpu = Duration::ZERO;
    for round in 0..=args.rounds {
        let straight = ask_target(&stack, args).await?;
        let before = stack.cpu_time("router")?;
        let through = ask_router(&stack, args).await?;
        let spent = stack.cpu_time("router")?.saturating_sub(before);
        if round > 0 {
            direct.add(&straight);
            routed.add(&through);
            cpu += spent;
        }
    }
    let tokens = args.rounds * args.streams * EACH * args.tokens as usize;
    let per_thousand = cpu.as_secs_f64() * 1e3 / (tokens as f64 / 1e3);
    let (direct, routed) = (direct.figures(), routed.figures());
    let cells = |name: &str, f: &[f64; 4], cpu: String| {
        let mut row = vec![name.to_owned()];
        row.extend(f.iter().map(|x| format!("{x:.2}")));
        row.push(cpu);
        row
    };
    report.row(cells("gRPC to the target", &direct, "-".to_owned()));
    report.row(cells(
        "HTTP through the router",
        &routed,
        format!("{per_thousand:.1}"),
    ));
    let added: [f64; 4] = std::array::from_fn(|i| routed[i] - direct[i]);
    report.row(cells("added", &added, String::new()));
    report.data = json!({"direct_ms": direct, "routed_ms": routed, "added_ms": added,
        "router_cpu_ms_per_1000_tokens": per_thousand, "streams": args.streams});
    report.publish(results)
}

/// When things arrived, in milliseconds.
#[derive(Default)]
struct Arrivals {
    first: Vec<f64>,
    between: Vec<f64>,
}

impl Arrivals {
    /// `streams`: for each, the time from the request to each arrival.
    fn add(&mut self, streams: &[Vec<Duration>]) {
        for stream in streams {
            let ms: Vec<f64> = stream.iter().map(|d| d.as_secs_f64() * 1e3).collect();
            self.first.extend(ms.first());
            self.between.extend(ms.windows(2).map(|w| w[1] - w[0]));
        }
    }

    /// TTFT p50 and p99, time between tokens p50 and p99.
    fn figures(&mut self) -> [f64; 4] {
        self.first.sort_by(f64::total_cmp);
        self.between.sort_by(f64::total_cmp);
        let (first, between) = (&self.first, &self.between);
        [
            percentile(first, 0.5),
            percentile(first, 0.99),
            percentile(between, 0.5),
            percentile(between, 0.99),
        ]
    }
}

/// What both arms are asked: prompt `ids`.
fn ask<'a>(ids: &'a [u32], args: &RouterArgs) -> Ask<'a> {
    Ask {
        ids,
        max_tokens: args.tokens,
        temperature: 0.0,
        seed: 1,
        policy: None,
    }
}

/// How late request `number` begins: a part of a `step`, another one for each. First tokens come at the
/// ends of steps. Whoever begins right after one has most of a step for what is on the way, so that no
/// delay would show; with beginnings all over the step the median is later by as much as a delay takes.
fn phase(number: usize, step: Duration) -> Duration {
    step.mul_f64((number as f64 * GOLDEN).fract())
}

/// Has all streams `ask`, and answers when their tokens came. Who begins together waits for the same
/// step, and a moment's delay would look like a whole one: beginnings are spread instead.
async fn spread<F>(
    args: &RouterArgs,
    ask: impl Fn(usize) -> F,
) -> anyhow::Result<Vec<Vec<Duration>>>
where
    F: Future<Output = anyhow::Result<Vec<Duration>>>,
{
    let step = Duration::from_micros(args.step_us);
    let all = step * args.tokens;
    let streams = (0..args.streams).map(|stream| {
        let ask = &ask;
        async move {
            tokio::time::sleep(all * stream as u32 / args.streams as u32).await;
            let mut arrivals = Vec::new();
            for turn in 0..EACH {
                let number = turn * args.streams + stream;
                tokio::time::sleep(phase(number, step)).await;
                arrivals.push(ask(number).await?);
            }
            anyhow::Ok(arrivals)
        }
    });
    Ok(try_join_all(streams).await?.concat())
}

async fn ask_router(stack: &Stack, args: &RouterArgs) -> anyhow::Result<Vec<Vec<Duration>>> {
    let client = stack.client();
    spread(args, |prompt| {
        let client = client.clone();
        async move { client.stream(&ask(&simulated(prompt), args)).await }
    })
    .await
}

async fn ask_target(stack: &Stack, args: &RouterArgs) -> anyhow::Result<Vec<Vec<Duration>>> {
    let client = GenerateClient::new("target", stack.target().clone());
    spread(args, |prompt| {
        let client = client.clone();
        async move {
            let request = target::request(&ask(&simulated(prompt), args));
            let start = Instant::now();
            let mut arrivals = Vec::new();
            let mut events = client.generate(request).await?;
            while let Some(event) = events.next().await {
                match event? {
                    GenerateEvent::Tokens(_) => arrivals.push(start.elapsed()),
                    GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => {}
                }
            }
            if arrivals.is_empty() {
                bail!("prompt {prompt} got no tokens");
            }
            Ok(arrivals)
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_of_less_than_a_step_shows_at_the_median() {
        let step = Duration::from_millis(20);
        let median = |delay: Duration| {
            let mut arrivals = Arrivals::default();
            for number in 0..128 {
                let begun = phase(number, step);
                // It takes part in the step that begins next, and has a token when that ends.
                let taken = (begun + delay).div_duration_f64(step).floor() + 1.0;
                arrivals.add(&[vec![step.mul_f64(taken + 1.0).saturating_sub(begun)]]);
            }
            arrivals.figures()[0]
        };
        for delay in [1.0, 3.0, 9.0] {
            let seen = median(Duration::from_secs_f64(delay / 1e3)) - median(Duration::ZERO);
            assert!((seen - delay).abs() < 0.5, "{delay} ms seen as {seen}");
        }
    }
}
