//! Windows that are trees of tokens that were drawn.

use foretoken_target::TreesName;

use super::*;

/// A verification takes time, rows take none: trees pay.
fn cheap_rows() -> SimOptions {
    let mut options = instant(Role::Target);
    options.latency.base = Duration::from_millis(6);
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_trees_follow_the_targets_law_and_endpoints_that_are_killed_do_not_change_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let start = || draft(&address, runner(instant(Role::Draft { agreement: 0.4 })));
    let mut endpoint = start();
    let config = rejecting(TargetConfig {
        trees: TreesName::Auto,
        // Without measured costs rows are thought to be free, so that trees are made.
        warm_up: false,
        ..with_endpoint(&address)
    });
    let (client, target, port) = observed_target(config, runner(cheap_rows()));
    warm(&client).await;
    for policy in ["Speculative", "SSD"] {
        let verified = async || {
            let figures = Scrape::of(port).await;
            figures.shown("foretoken_tree_windows_total")
        };
        let (before, mut tally) = (verified().await, Tally::default());
        let mut trees = 0.0;
        // Where other work makes rounds with trees look slower, they have one turn in sixteen: it takes more
        // draws, and an endpoint is killed after each.
        for first in draws(800).flatten().step_by(100) {
            let asked = (first..first + 100).map(|seed| sampled(seed, policy));
            tally.fill(&client, asked).await;
            trees = verified().await - before;
            if trees > 1_000.0 {
                break;
            }
            endpoint.kill().await;
            endpoint = start();
        }
        let found = tally.chi_square();
        assert!(found < MOST, "{found} {:?} with {policy}", tally.pairs);
        assert!(trees > 1_000.0, "{trees} trees with {policy}");
    }
    target.end().await;
    endpoint.end().await;
}
