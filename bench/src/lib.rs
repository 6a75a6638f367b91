//! Benchmarks of Foretoken that anyone can run again.
//!
//! Every one runs its arms interleaved in one go and reports medians, spreads and ratios, as a
//! table and as JSON. Those that start the product start it as a user does:
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

use clap::builder::RangedU64ValueParser;

/// How weights can be kept, as services are told.
pub(crate) const DTYPES: [&str; 3] = ["f32", "bf16", "int8"];

/// Results of whoever measures for themselves, where they are: in the source tree a folder that git ignores,
/// apart from what was published.
const OWN_RESULTS: &str = "target/bench";

/// How many of something: none would measure nothing.
pub(crate) fn some() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1_000_000)
}

/// Arguments of `foretoken bench`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    what: What,
    /// Folder with the models `target` and `draft` [default: the small pair that comes with foretoken]
    #[arg(long, global = true)]
    models: Option<PathBuf>,
    /// Where results are written. `make bench` writes to bench/results, where those lie that were
    /// published
    #[arg(long, global = true, default_value = OWN_RESULTS)]
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

/// Runs the benchmark asked for, with services from the running executable, and with the models of
/// the folder that `shipped` gives where no other is named.
pub async fn run(
    args: &BenchArgs,
    shipped: impl FnOnce() -> anyhow::Result<PathBuf>,
) -> anyhow::Result<()> {
    let binary = std::env::current_exe()?;
    let results = &args.results;
    let models = || args.models.clone().map_or_else(shipped, Ok);
    match &args.what {
        What::Decode(decode) => decode::run(decode, binary, &models()?, results).await,
        What::Ssd(ssd) => ssd::run(ssd, binary, &models()?, results).await,
        What::Distant(distant) => distant::run(distant, binary, results).await,
        What::Trees(trees) => trees::run(trees, binary, &models()?, results).await,
        What::Sharing(sharing) => sharing::run(sharing, binary, results).await,
        What::Batch(batch) => batch::run(batch, binary, &models()?, results).await,
        What::Verify(verify) => verify::run(verify, results),
        What::Protocol(protocol) => {
            // Its engines drive runtimes of their own, which cannot be done from inside of one.
            let (protocol, results) = (*protocol, results.clone());
            tokio::task::spawn_blocking(move || protocol::run(protocol, &results)).await?
        }
        What::Router(router) => router::run(router, binary, &models()?, results).await,
        What::Sim(sim) => sim::run(sim, results),
        What::Plots(plots) => plots::run(plots, results),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, error::ErrorKind};

    use super::*;

    fn refused(arguments: &[&str]) -> Option<(ErrorKind, String)> {
        let bench = BenchArgs::augment_args(Command::new("bench"));
        let all = [&["bench"], arguments].concat();
        let refused = bench.try_get_matches_from(all).err();
        refused.map(|error| (error.kind(), error.to_string()))
    }

    #[test]
    fn what_would_measure_nothing_is_refused_before_anything_is_written() {
        for arguments in [
            ["decode", "--prompts", "0"],
            ["decode", "--rounds", "0"],
            ["decode", "--threads", "1,0"],
            ["ssd", "--prompts", "0"],
            ["distant", "--prompts", "0"],
            ["trees", "--rounds", "0"],
            ["sharing", "--targets", "0"],
            ["batch", "--streams", "1,0"],
            ["verify", "--rounds", "0"],
            ["protocol", "--blocks", "0"],
            ["router", "--tokens", "0"],
        ] {
            let (kind, said) = refused(&arguments).unwrap();
            assert_eq!(kind, ErrorKind::ValueValidation, "{arguments:?}: {said}");
            assert!(said.contains(arguments[1]), "{arguments:?}: {said}");
        }
        assert_eq!(refused(&["decode", "--prompts", "1"]), None);
    }

    #[test]
    fn weights_that_nobody_knows_are_refused_with_those_there_are() {
        for what in [
            ["decode", "--dtypes"],
            ["trees", "--dtypes"],
            ["ssd", "--dtype"],
            ["batch", "--dtype"],
        ] {
            let (kind, said) = refused(&[what[0], what[1], "bfloat16"]).unwrap();
            assert_eq!(kind, ErrorKind::InvalidValue, "{what:?}: {said}");
            assert!(said.contains("f32, bf16, int8"), "{what:?}: {said}");
        }
    }

    #[test]
    fn results_of_ones_own_do_not_replace_what_was_published() {
        let ignored =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../.gitignore"));
        assert!(ignored.unwrap().lines().any(|line| line == "/target/"));
        assert!(OWN_RESULTS.starts_with("target/"));
    }
}
