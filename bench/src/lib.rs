//! Benchmarks of Foretoken that anyone can run again.
//!
//! Every one runs its arms interleaved in one go and reports medians, spreads and ratios, as a
//! table and as JSON under `bench/results`. Those that start the product start it as a user does:
//! router, target and draft are processes of the `foretoken` executable.

pub mod batch;
pub mod client;
pub mod decode;
pub mod distant;
pub mod machine;
pub mod metrics;
pub mod plots;
pub mod prompts;
pub mod protocol;
pub mod random_model;
pub mod relay;
pub mod report;
pub mod router;
pub mod run;
pub mod sharing;
pub mod sim;
pub mod ssd;
pub mod stack;
pub mod stats;
pub mod target;
pub mod trees;
pub mod verify;

use std::path::PathBuf;

/// Arguments of `foretoken bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    what: What,
    /// Folder with the models `target` and `draft`
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../models"))]
    models: PathBuf,
    /// Where results are written
    #[arg(long, global = true, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    results: PathBuf,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Tokens per second of the shipped pair, plain and speculative
    Decode(decode::DecodeArgs),
    /// SSD beside Speculative and plain decoding on the shipped pair, with what theory says
    Ssd(ssd::SsdArgs),
    /// SSD on a simulated pair with an accelerator's times, and a longer link
    Distant(distant::DistantArgs),
    /// Windows that may be trees beside windows that are chains
    Trees(trees::TreesArgs),
    /// Several simulated targets on one endpoint, beside private ones
    Sharing(sharing::SharingArgs),
    /// 1 to 16 streams at once: adaptive speculation beside plain decoding
    Batch(batch::BatchArgs),
    /// Cost of verifying m rows, and the share of the memory's speed that one row reaches
    Verify(verify::VerifyArgs),
    /// Time the protocol adds to a round
    Protocol(protocol::ProtocolArgs),
    /// Time the router adds to a token
    Router(router::RouterArgs),
    /// The papers' machines, simulated: published beside predicted, and what ours would do there
    Sim(sim::SimArgs),
    /// Draws the results
    Plots(plots::PlotsArgs),
}

/// Runs the benchmark asked for, with services from the running executable.
pub async fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let binary = std::env::current_exe()?;
    let (models, results) = (&args.models, &args.results);
    match &args.what {
        What::Decode(decode) => decode::run(decode, binary, models, results).await,
        What::Ssd(ssd) => ssd::run(ssd, binary, models, results).await,
        What::Distant(distant) => distant::run(distant, binary, results).await,
        What::Trees(trees) => trees::run(trees, binary, models, results).await,
        What::Sharing(sharing) => sharing::run(sharing, binary, results).await,
        What::Batch(batch) => batch::run(batch, binary, models, results).await,
        What::Verify(verify) => verify::run(verify, results),
        What::Protocol(protocol) => {
            // Its engines drive runtimes of their own, which cannot be done from inside of one.
            let (protocol, results) = (*protocol, results.clone());
            tokio::task::spawn_blocking(move || protocol::run(protocol, &results)).await?
        }
        What::Router(router) => router::run(router, binary, models, results).await,
        What::Sim(sim) => sim::run(sim, results),
        What::Plots(plots) => plots::run(plots, results),
    }
}
