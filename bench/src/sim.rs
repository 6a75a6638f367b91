//! The papers' scale, simulated: the product's own state machines in a discrete-event clock.
//!
//! ```text
//! Target: TargetSession, Controller, Chooser, Linger     Endpoint: DraftSession, Planners, Budgets
//!    └──── pass: Times::target(rows) ──── links: round trip ──── steps: Times::draft(rows) ────┘
//! ```
//!
//! No model of the policies is made: whether a verdict was drafted for, what is sent when, how many
//! tokens are sought, what is learned of a verdict, when a pass waits for windows, how many outcomes are
//! drafted for, whose rows an endpoint's step has and what happens after a miss is what `lib/speculation`
//! makes of what it saw until then in simulated time. What drives it is written here a second time,
//! without links, pages and faults: in which order a target asks (`target` and below; `worker` of
//! targets), and an endpoint (`endpoint` and below; `worker` of drafts). Given are the times of passes
//! and steps (`published`) and a pair of models without weights (`pair`).
//!
//! Nothing here depends on the machine it runs on; the same binary gives the same JSON.

pub(crate) mod arm;
mod arms;
mod clock;
mod endpoint;
mod lines;
mod pair;
mod published;
mod sweeps;
mod target;
mod times;
mod world;

use std::path::Path;

use clap::ValueEnum;

pub use self::lines::Line;
use self::{arms::Lab, lines::table};

/// Arguments of `foretoken bench sim`.
#[derive(Clone, Debug, clap::Args)]
pub struct SimArgs {
    /// Tokens of a simulation that are measured, over all its requests
    #[arg(long, default_value_t = 8192)]
    tokens: u64,
    /// Experiments to simulate; all of them unless named
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Experiment>,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experiment {
    Published,
    Lookahead,
    Batch,
    Network,
    Sharing,
    Temperature,
}

impl Experiment {
    fn run(self, lab: &Lab) -> anyhow::Result<Vec<Line>> {
        match self {
            Self::Published => sweeps::published(lab),
            Self::Lookahead => sweeps::reproduction(lab),
            Self::Batch => sweeps::batches(lab),
            Self::Network => sweeps::network(lab),
            Self::Sharing => sweeps::sharing(lab),
            Self::Temperature => sweeps::temperatures(lab),
        }
    }
}

/// Simulates everything and writes `sim.json`.
pub fn run(args: &SimArgs, results: &Path) -> anyhow::Result<()> {
    let experiments = if args.only.is_empty() {
        Experiment::value_variants()
    } else {
        &args.only
    };
    let lines = simulate(args.tokens, experiments)?;
    let method = format!(
        "Discrete-event simulation of the policies of lib/speculation with published times; at least {} \
         tokens measured a cell after a warm-up. Given: times of parts of a round, plain and speculative tokens/s, a \
         hit rate; marked as given where a published figure was used to set the simulation up. Everything else follows.",
        args.tokens
    );
    table(method, &lines)?.publish(results)
}

/// These experiments.
fn simulate(tokens: u64, experiments: &[Experiment]) -> anyhow::Result<Vec<Line>> {
    let lab = Lab::new(tokens)?;
    // They do not know of each other, and each is the same whenever it runs.
    let results = std::thread::scope(|scope| {
        let lab = &lab;
        let run = |&experiment: &Experiment| scope.spawn(move || experiment.run(lab));
        let running: Vec<_> = experiments.iter().map(run).collect();
        let ended = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.collect::<Vec<_>>()
    });
    let mut lines = Vec::new();
    for result in results {
        let result = result.map_err(|_| anyhow::anyhow!("a simulation stopped"))?;
        lines.extend(result?);
    }
    Ok(lines)
}

#[cfg(test)]
mod tests;
