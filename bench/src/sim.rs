//! The papers' scale, simulated: the product's own state machines in a discrete-event clock.
//!
//! ```text
//! Target: TargetSession, Controller, Chooser, Linger     Endpoint: DraftSession, Planners, Budgets
//!    └──── pass: Times::target(rows) ──── links: round trip ──── steps: Times::draft(rows) ────┘
//! ```
//!
//! No model of the policies is made: whether a verdict was drafted for, what is sent when, how many
//! tokens are sought, how many outcomes are drafted for and what happens after a miss is what
//! `lib/speculation` makes of what it saw until then in simulated time. What services have beside that
//! and is pure is their own file (`gather`, `timing`); the rest, which only passes on what was seen, is
//! mirrored here in a few lines (`target/learned`, `target/meter`, `endpoint/outlook`,
//! `endpoint/session`). Given are the times of passes and steps (`published`) and a pair of models
//! without weights (`pair`).
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

pub use self::lines::Line;
use self::{arms::Lab, lines::table};

/// Arguments of `foretoken bench sim`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SimArgs {
    /// Tokens of a simulation that are measured, over all its requests
    #[arg(long, default_value_t = 8192)]
    tokens: u64,
}

/// Simulates everything and writes `sim.json`.
pub fn run(args: SimArgs, results: &Path) -> anyhow::Result<()> {
    let lines = simulate(args.tokens)?;
    let method = format!(
        "Discrete-event simulation of the policies of lib/speculation with published times; at least {} \
         tokens measured a cell after a warm-up. Given: times of parts of a round, plain and speculative tokens/s, a \
         hit rate; marked as given where a published figure was used to set the simulation up. Everything else follows.",
        args.tokens
    );
    table(method, &lines)?.publish(results)
}

/// All experiments.
fn simulate(tokens: u64) -> anyhow::Result<Vec<Line>> {
    let lab = Lab::new(tokens)?;
    let experiments = [
        sweeps::published,
        sweeps::reproduction,
        sweeps::batches,
        sweeps::network,
        sweeps::sharing,
        sweeps::temperatures,
    ];
    // They do not know of each other, and each is the same whenever it runs.
    let results = std::thread::scope(|scope| {
        let lab = &lab;
        let running = experiments.map(|experiment| scope.spawn(move || experiment(lab)));
        running.map(std::thread::ScopedJoinHandle::join)
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
