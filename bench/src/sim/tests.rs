//! What the simulation promises.
use std::time::Duration;

use super::{
    SimArgs,
    arms::Lab,
    lines::Line,
    published::{LLAMA, LOG, QWEN},
};

/// The committed results.
fn committed() -> Vec<Line> {
    let text = include_str!("../../results/sim.json");
    let mut report: serde_json::Value = serde_json::from_str(text).expect("it runs");
    serde_json::from_value(report["data"].take()).expect("it runs")
}

/// Tokens that the committed results are of.
fn tokens() -> u64 {
    use clap::{Args, FromArgMatches};
    let command = SimArgs::augment_args(clap::Command::new("sim"));
    let matches = command.get_matches_from(["sim"]);
    SimArgs::from_arg_matches(&matches).expect("it runs").tokens
}

#[test]
fn published_figures_that_were_not_given_are_reproduced() {
    let mut shown = [0; 3];
    for line in committed() {
        let Some(published) = line.published else {
            continue;
        };
        let (kind, bound) = match (&line.experiment[..], line.given) {
            // Plain and speculative speeds are what the agreement of the pair is made from.
            (_, true) => (0, 0.06),
            ("published", false) => (1, 0.05),
            (_, false) => (2, 0.12),
        };
        let off = (line.speed / published - 1.0).abs();
        assert!(off < bound, "{} {}: {off}", line.case, line.arm);
        shown[kind] += 1;
    }
    assert_eq!(shown, [19, 8, 8]);
}

#[test]
fn the_committed_results_are_what_the_state_machines_do_today() {
    let lab = Lab::new(tokens()).expect("it runs");
    let (setting, sets) = QWEN;
    let case = lab.case(setting, setting.agreement(sets[0].speculative));
    let (_, ours) = case.ours_for(1, Duration::ZERO);
    for (arm, scenario) in [
        (super::arm::PAPER, case.reference(setting.k)),
        (super::arm::TREES, case.with_trees(ours.clone())),
        (super::arm::OURS, ours),
    ] {
        let speed = scenario.run().expect("it runs").speed();
        let lines = committed();
        let of = |line: &&Line| line.arm == arm && line.case.contains("Qwen3 32B/0.6B, paper");
        let known = lines.iter().find(of).expect("it runs").speed;
        // Logarithms of another platform may differ in their last bits.
        let off = (speed / known - 1.0).abs();
        assert!(
            off < 2e-3,
            "{arm}: {speed}, was {known}: `foretoken bench sim`"
        );
    }
}

#[test]
fn plain_decoding_is_as_fast_as_published_and_alone_with_its_endpoint() {
    let lab = Lab::new(256).expect("it runs");
    let (setting, _) = LLAMA;
    let figures = lab.case(setting, 0.9).plain().run().expect("it runs");
    assert!((figures.speed() - setting.plain).abs() < 1e-3);
    assert!(figures.draft_busy < 1e-9 && figures.wait_ms < 1e-9);
}

#[test]
fn a_round_trip_is_lost_by_a_target_that_asks_and_hidden_from_one_that_is_pushed_to() {
    let lab = Lab::new(1024).expect("it runs");
    let case = lab.case(LOG, 0.9);
    let round = |pull: bool, micros| {
        let mut scenario = case.ours(4);
        scenario.round_trip = Duration::from_micros(micros);
        if pull {
            scenario.pull();
        }
        scenario.run().expect("it runs").round_ms
    };
    let (asked, pushed) = (
        round(true, 2000) - round(true, 0),
        round(false, 2000) - round(false, 0),
    );
    assert!((1.9..2.1).contains(&asked), "{asked}");
    // Those that miss ask, too.
    assert!((0.0..0.4).contains(&pushed), "{pushed}");
}

#[test]
fn targets_that_share_an_endpoint_are_served_alike() {
    let lab = Lab::new(1024).expect("it runs");
    let case = lab.case(LOG, 0.9);
    let figures = case.shared(case.ours(6), 4, 1).run().expect("it runs");
    assert_eq!(figures.speeds.len(), 4);
    assert!(figures.fairness() > 0.98, "{:?}", figures.speeds);
    let alone = case.shared(case.ours(6), 1, 1).run().expect("it runs");
    assert!(figures.speed() > 2.5 * alone.speed());
}

#[test]
fn trees_are_worth_a_tenth_of_the_papers_speed_for_every_pair_and_dataset() {
    let lines = committed();
    let published = || lines.iter().filter(|line| line.experiment == "published");
    let mut cells = 0;
    for trees in published().filter(|line| line.arm == super::arm::TREES) {
        let of = |arm: &str| {
            let same = published().find(|line| line.case == trees.case && line.arm == arm);
            trees.speed / same.expect("it was simulated").speed
        };
        let (over_paper, over_chains) = (of(super::arm::PAPER), of(super::arm::OURS));
        assert!(over_paper > 1.10, "{}: {over_paper}", trees.case);
        assert!(over_chains > 1.02, "{}: {over_chains}", trees.case);
        cells += 1;
    }
    assert_eq!(cells, 8);
}
