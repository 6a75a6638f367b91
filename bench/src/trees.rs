//! What windows that may be trees bring: second choices beside a chain, where their rows are worth it.

use std::path::{Path, PathBuf};

use foretoken_speculation::verify::Verification;
use serde_json::{Value, json};

use crate::{
    distant::{self, DraftArgs},
    machine,
    prompts::{Class, simulated},
    report::Report,
    run::{self, Arm, PLAIN, POLICIES, Reference, Tally, Work},
    stack::{Setup, Stack},
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct TreesArgs {
    /// Temperatures.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub temperatures: Vec<f32>,
    /// How the shipped target's weights are kept.
    #[arg(long, value_delimiter = ',', default_value = "f32,bf16", value_parser = crate::DTYPES)]
    pub dtypes: Vec<String>,
    /// Lookahead of the shipped pair.
    #[arg(long, default_value_t = 4)]
    pub lookahead: u32,
    /// Lookahead of the simulated pair.
    #[arg(long, default_value_t = 5)]
    pub distant_lookahead: u32,
    /// Rules of verification; `Rejection` where proposals are drawn, so not at temperature 0.
    #[arg(long, value_delimiter = ',', default_value = "Coupled,Rejection", value_parser = ["Coupled", "Rejection"])]
    pub verifications: Vec<String>,
    /// Tokens that proposals are drawn among for `Rejection`, at most 256.
    #[arg(long, default_value_t = Verification::SUPPORT)]
    pub support: u32,
    /// Fractions of contexts in which a simulated draft agrees with its target.
    #[arg(long, value_delimiter = ',', default_value = "0.75,0.9")]
    pub agreements: Vec<f64>,
    /// Of the others, the fraction in which the target's choice is among the draft's next three.
    #[arg(long, default_value_t = 0.85)]
    pub near: f64,
    /// Rounds; each measures every arm once on all prompts.
    #[arg(long, default_value_t = 5, value_parser = crate::some())]
    pub rounds: usize,
    /// Prompts of each kind for the shipped pair; the simulated one has a quarter of them.
    #[arg(long, default_value_t = 12, value_parser = crate::some())]
    pub prompts: usize,
}

const TOKENS: u32 = 128;

/// Measures and publishes `trees`.
pub async fn run(
    args: &TreesArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let mut report = report(args);
    let mut data = Vec::new();
    let prompts: Vec<_> = (0..args.prompts.div_ceil(4)).map(simulated).collect();
    for &agreement in &args.agreements {
        let near = args.near;
        let draft = DraftArgs { agreement, near }.simulated(1);
        let setup = Setup::simulated(binary.clone(), &distant::target(), &draft);
        let name = format!("simulated, agreement {agreement}");
        let lookahead = args.distant_lookahead;
        data.extend(compare(args, &name, lookahead, &setup, &prompts, &mut report).await?);
    }
    for dtype in &args.dtypes {
        let near = Setup::apart(binary.clone(), models, dtype);
        machine::keep_to(&near.draft_cores)?;
        for class in [Class::Gsm8k, Class::Bible] {
            let prompts = class.load(&models.join("target"), args.prompts)?;
            let name = format!("{}, {dtype}", class.name());
            let lookahead = args.lookahead;
            data.extend(compare(args, &name, lookahead, &near, &prompts, &mut report).await?);
        }
    }
    report.data = json!(data);
    report.publish(results)
}

/// Compares services of this setup by each rule of verification.
async fn compare(
    args: &TreesArgs,
    prompts: &str,
    lookahead: u32,
    setup: &Setup,
    texts: &[Vec<u32>],
    report: &mut Report,
) -> anyhow::Result<Vec<Value>> {
    let mut data = Vec::new();
    for verification in &args.verifications {
        let draws = verification == "Rejection";
        let mut setup = setup.clone();
        if draws {
            setup.service["verification"] = json!({"Rejection": {"support": args.support}});
        }
        let pair = Pair {
            name: format!("{prompts}, {verification}"),
            draws,
            lookahead,
            stacks: [with(&setup, "Off").await?, with(&setup, "Auto").await?],
        };
        data.extend(pair.compare(args, texts, report).await?);
    }
    Ok(data)
}

/// Services whose `trees` is this.
async fn with(setup: &Setup, trees: &str) -> anyhow::Result<Stack> {
    let mut setup = setup.clone();
    setup.service["trees"] = json!(trees);
    setup.start().await
}

fn report(args: &TreesArgs) -> Report {
    Report::new(
        "trees",
        format!(
            "Targets whose `trees` is `Off` and `Auto`, both with the same kind of draft: a simulated pair (20 ms a \
             verification whatever its rows, a draft of 2.4 ms a step) and the shipped one (target and draft on a \
             core each, the client on the draft's), separate processes, one request of {TOKENS} tokens at a time. Medians of {} interleaved \
             rounds; every arm's tokens are checked to equal plain decoding's, but with verification by rejection (of proposals \
             drawn among {} tokens), whose tokens are samples of their own. A tree's size is its tokens.",
            args.rounds, args.support
        ),
        &[
            "prompts",
            "T",
            "arm",
            "chains tok/s",
            "trees tok/s",
            "trees/chains (lowest to highest)",
            "tokens a round",
            "hit rate",
            "windows that are trees",
            "tokens of each",
        ],
    )
}

/// The same services without trees and with them.
struct Pair {
    name: String,
    /// Whether tokens are samples of their own, which no reference has.
    draws: bool,
    lookahead: u32,
    stacks: [Stack; 2],
}

/// An arm without trees and with them.
#[derive(Default)]
struct Cell {
    rates: [Vec<f64>; 2],
    tallies: [Tally; 2],
}

impl Pair {
    async fn compare(
        &self,
        args: &TreesArgs,
        prompts: &[Vec<u32>],
        report: &mut Report,
    ) -> anyhow::Result<Vec<Value>> {
        let mut data = Vec::new();
        let temperatures = args.temperatures.iter().copied();
        for temperature in temperatures.filter(|&t| !self.draws || t > 0.0) {
            let work = Work {
                prompts,
                tokens: TOKENS,
                temperature,
            };
            let mut reference = Reference::default();
            if !self.draws {
                run::measure(&self.stacks[0], &PLAIN, &work, &mut reference).await?;
            }
            let arms = POLICIES.map(|policy| Arm::of(policy, self.lookahead));
            let mut cells = POLICIES.map(|_| Cell::default());
            for round in 0..args.rounds {
                for place in arm_order(arms.len() * self.stacks.len(), round) {
                    let (arm, side) = (place / self.stacks.len(), place % self.stacks.len());
                    let stack = &self.stacks[side];
                    if self.draws {
                        reference = Reference::default();
                    }
                    let tally = run::measure(stack, &arms[arm], &work, &mut reference).await?;
                    cells[arm].rates[side].push(tally.rate());
                    cells[arm].tallies[side].add(&tally);
                }
            }
            for (arm, cell) in arms.iter().zip(&cells) {
                data.extend(cell.publish(&self.name, temperature, arm, report));
            }
        }
        Ok(data)
    }
}

impl Cell {
    fn publish(
        &self,
        prompts: &str,
        temperature: f32,
        arm: &Arm,
        report: &mut Report,
    ) -> Option<Value> {
        let [chains, trees] = &self.tallies;
        let rates = [Summary::of(&self.rates[0])?, Summary::of(&self.rates[1])?];
        let ratio = Summary::ratio(&self.rates[1], &self.rates[0])?;
        let both = |figure: fn(&Tally) -> f64, digits: usize| {
            format!("{:.digits$}, {:.digits$}", figure(chains), figure(trees))
        };
        report.row([
            prompts.to_owned(),
            format!("{temperature:.0}"),
            arm.name(),
            format!("{:.1}", rates[0].median),
            format!("{:.1}", rates[1].median),
            ratio.span(),
            both(Tally::tokens_per_round, 2),
            both(|tally| tally.hit_rate(true), 3),
            format!("{:.0} %", 100.0 * trees.tree_share()),
            format!("{:.1}", trees.tree_size()),
        ]);
        Some(
            json!({"prompts": prompts, "temperature": temperature, "arm": arm.name(),
            "chains": {"tok_s": rates[0], "means": chains.json()},
            "trees": {"tok_s": rates[1], "means": trees.json(), "share": trees.tree_share(), "size": trees.tree_size()},
            "trees_over_chains": ratio}),
        )
    }
}
