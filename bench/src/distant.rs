//! SSD on a simulated pair with times as on the accelerators of its paper, in real services: what it
//! gains over `Speculative`, what a hit costs, and what a longer link changes.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    prompts::simulated,
    report::Report,
    run::{self, Arm, PLAIN, POLICIES, Reference, Tally, Work},
    stack::{Setup, Stack},
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct DistantArgs {
    /// Temperatures.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub temperatures: Vec<f32>,
    /// What the link adds each way, in microseconds.
    #[arg(long, value_delimiter = ',', default_value = "0,50,250,500,1000")]
    pub delays_us: Vec<u64>,
    /// Lookaheads to choose from, for each policy the best without delay.
    #[arg(long, value_delimiter = ',', default_value = "4,5,6,7", value_parser = clap::value_parser!(u32).range(1..))]
    pub lookaheads: Vec<u32>,
    /// Draft.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Rounds; each measures every arm once on all prompts.
    #[arg(long, default_value_t = 3, value_parser = crate::some())]
    pub rounds: usize,
    /// Prompts.
    #[arg(long, default_value_t = 3, value_parser = crate::some())]
    pub prompts: usize,
}

/// How well a simulated draft knows its target.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DraftArgs {
    /// Fraction of contexts in which the draft agrees with the target.
    #[arg(long, default_value_t = 0.9)]
    pub agreement: f64,
    /// Of the others, the fraction in which the target's choice is among the draft's next three.
    #[arg(long, default_value_t = 0.85)]
    pub near: f64,
}

impl DraftArgs {
    /// What a draft is told whose steps take `slower` times as long as here.
    pub(crate) fn simulated(self, slower: u64) -> Value {
        json!({"agreement": self.agreement, "near": self.near,
            "step_us": STEP_US * slower, "row_us": ROW_US * slower})
    }
}

const TOKENS: u32 = 128;
/// A verification, in microseconds.
const VERIFICATION_US: u64 = 20_000;
/// A step of the draft and each of its rows: 0.13 of a verification, what a branch step of a 1 B
/// draft takes beside that of a 70 B target on four times the hardware (2.5 ms and 18 to 20).
const STEP_US: u64 = 2_400;
const ROW_US: u64 = 8;

/// What a target is told.
pub(crate) fn target() -> Value {
    json!({"step_us": VERIFICATION_US})
}

/// Measures and publishes `distant`.
pub async fn run(args: &DistantArgs, binary: PathBuf, results: &Path) -> anyhow::Result<()> {
    let setup = Setup::simulated(binary, &target(), &args.draft.simulated(1));
    let mut stacks = Vec::new();
    for &delay in &args.delays_us {
        let relay = Some(Duration::from_micros(delay));
        let setup = Setup {
            relay,
            ..setup.clone()
        };
        stacks.push((delay, setup.start().await?));
    }
    let mut report = report(args);
    let mut data = Vec::new();
    let prompts: Vec<_> = (0..args.prompts).map(simulated).collect();
    for &temperature in &args.temperatures {
        let work = Work {
            prompts: &prompts,
            tokens: TOKENS,
            temperature,
        };
        data.extend(compare(args, &stacks, &work, &mut report).await?);
    }
    report.data = json!(data);
    report.publish(results)
}

fn report(args: &DistantArgs) -> Report {
    Report::new(
        "distant",
        format!(
            "Simulated target (20 ms a step) and draft ({STEP_US} us a step and {ROW_US} a row, agreement {}, near in {} \
             of the rest) as separate processes; a relay delays every byte of their Unix socket each way. {} prompts x \
             {TOKENS} tokens, one at a time. Lookaheads are the best of {:?} without delay. Medians of {} interleaved \
             rounds, each arm after a warm-up request; every arm's tokens are checked to equal plain decoding's. A hit \
             round is over a bare verification of the same rows (the step, and what plain decoding needs besides), without \
             what it waits for more of a continuation, which is beside it in the same unit; bytes \
             on the wire are all that passed the relay.",
            args.draft.agreement, args.draft.near, args.prompts, args.lookaheads, args.rounds
        ),
        &[
            "T",
            "added each way, ms",
            "Speculative tok/s",
            "SSD tok/s",
            "SSD/Speculative (lowest to highest)",
            "hit rate (without first)",
            "hit round, ms",
            "over bare",
            "waits for more",
            "bytes a round",
            "on the wire",
            "draft hidden",
        ],
    )
}

async fn compare(
    args: &DistantArgs,
    stacks: &[(u64, Stack)],
    work: &Work<'_>,
    report: &mut Report,
) -> anyhow::Result<Vec<Value>> {
    let (_, near) = stacks.first().context("no delay to measure")?;
    let mut reference = Reference::default();
    let plain = run::measure(near, &PLAIN, work, &mut reference).await?;
    let mut best = Vec::new();
    for policy in POLICIES {
        best.push(best_lookahead(args, near, work, policy, &mut reference).await?);
    }
    let mut cells: Vec<Cell> = stacks.iter().map(|_| Cell::default()).collect();
    for round in 0..args.rounds {
        for place in arm_order(stacks.len() * best.len(), round) {
            let (place, arm) = (place / best.len(), place % best.len());
            let stack = &stacks[place].1;
            let before = passed(stack);
            let tally = run::measure(stack, &best[arm], work, &mut reference).await?;
            cells[place].rates[arm].push(tally.rate());
            if arm == 1 {
                cells[place].ssd.add(&tally);
                cells[place].bytes += passed(stack) - before;
            } else {
                cells[place].speculative.add(&tally);
            }
        }
    }
    let mut data = Vec::new();
    for ((delay, _), cell) in stacks.iter().zip(&cells) {
        data.extend(cell.publish(work.temperature, *delay, &best, &plain, report));
    }
    Ok(data)
}

async fn best_lookahead(
    args: &DistantArgs,
    stack: &Stack,
    work: &Work<'_>,
    policy: &'static str,
    reference: &mut Reference,
) -> anyhow::Result<Arm> {
    let work = Work {
        prompts: &work.prompts[..work.prompts.len().min(2)],
        ..*work
    };
    let mut best: Option<(f64, Arm)> = None;
    for &lookahead in &args.lookaheads {
        let arm = Arm::of(policy, lookahead);
        let rate = run::measure(stack, &arm, &work, reference).await?.rate();
        if best.as_ref().is_none_or(|(known, _)| rate > *known) {
            best = Some((rate, arm));
        }
    }
    best.map(|(_, arm)| arm)
        .context("no lookahead to choose from")
}

/// All bytes that have passed a stack's relay.
fn passed(stack: &Stack) -> f64 {
    stack.passed().map_or(0.0, |passed| {
        let (up, down) = passed.both();
        (up + down) as f64
    })
}

/// One link and temperature.
#[derive(Default)]
struct Cell {
    /// Of `Speculative` and SSD, by round.
    rates: [Vec<f64>; 2],
    speculative: Tally,
    ssd: Tally,
    /// That passed while SSD was measured, its warm-up requests included.
    bytes: f64,
}

impl Cell {
    fn publish(
        &self,
        temperature: f32,
        delay: u64,
        best: &[Arm],
        plain: &Tally,
        report: &mut Report,
    ) -> Option<Value> {
        let rates = [Summary::of(&self.rates[0])?, Summary::of(&self.rates[1])?];
        let ratio = Summary::ratio(&self.rates[1], &self.rates[0])?;
        let (hit_round, verification) = self.ssd.hit_round(plain);
        let over_bare = hit_round / verification - 1.0;
        let lingered = self.ssd.lingered() / verification;
        // A warm-up request comes with each measurement of all prompts.
        let messages = self.ssd.round_bytes();
        let wire = self.bytes / self.ssd.all_rounds(rates[1].n);
        let rate = |arm: usize| {
            let lookahead = best[arm].lookahead.unwrap_or(0);
            format!("{:.1} K={lookahead}", rates[arm].median)
        };
        report.row([
            format!("{temperature:.0}"),
            format!("{:.2}", delay as f64 / 1e3),
            rate(0),
            rate(1),
            ratio.span(),
            format!(
                "{:.3} ({:.3})",
                self.ssd.hit_rate(false),
                self.ssd.hit_rate(true)
            ),
            format!("{:.2}", hit_round * 1e3),
            format!("{:+.2} %", 100.0 * over_bare),
            format!("{:+.2} %", 100.0 * lingered),
            format!("{messages:.0}"),
            format!("{wire:.0}"),
            format!("{:.0} %", 100.0 * self.ssd.hidden()),
        ]);
        Some(
            json!({"temperature": temperature, "delay_us": delay, "plain": plain.json(),
            "speculative": {"arm": best[0].name(), "tok_s": rates[0], "means": self.speculative.json()},
            "ssd": {"arm": best[1].name(), "tok_s": rates[1], "means": self.ssd.json()},
            "ssd_over_speculative": ratio, "hit_round_over_bare": over_bare,
            "lingered_over_bare": lingered, "wire_bytes_per_round": wire}),
        )
    }
}
