//! Plots of the simulation.

use super::{
    Plot,
    chart::{Chart, Line},
    dots::{Arm, Dots},
};
use crate::sim::{self, arm};

/// All of them, with their names.
pub(super) fn plots(lines: &[sim::Line]) -> Vec<(&'static str, Plot)> {
    let of = |experiment: &str| -> Vec<sim::Line> {
        let lines = lines.iter();
        lines
            .filter(|line| line.experiment == experiment)
            .cloned()
            .collect()
    };
    vec![
        ("sim-published", published(&of("published"))),
        ("sim-lookahead", lookahead(&of("lookahead"))),
        ("sim-batch", batch(&of("batch"))),
        ("sim-network", network(&of("network"))),
        ("sim-sharing", sharing(&of("sharing"))),
    ]
}

fn published(lines: &[sim::Line]) -> Plot {
    let mut cases: Vec<&str> = lines.iter().map(|line| &line.case[..]).collect();
    cases.dedup();
    let values = |name: &str, value: fn(&sim::Line) -> Option<f64>| {
        let line = |case: &&str| {
            let mut lines = lines.iter();
            lines.find(|line| line.case == **case && line.arm == name)
        };
        cases.iter().map(|case| value(line(case)?)).collect()
    };
    let simulated = |name: &str, what: &str| Arm {
        name: what.to_owned(),
        values: values(name, |line| Some(line.speed)),
        bare: false,
    };
    Plot::Dots(Dots {
        title: "One request at a time, greedy: published and simulated".to_owned(),
        across: "tokens/s",
        rows: cases
            .iter()
            .map(|case| case.replace(", paper", ""))
            .collect(),
        arms: vec![
            Arm {
                name: "SSD, published".to_owned(),
                values: values(arm::PAPER, |line| line.published),
                bare: true,
            },
            simulated(arm::PAPER, "SSD as published"),
            simulated(arm::OURS, "SSD, ours"),
            simulated(arm::TREES, "SSD, ours, trees"),
            simulated(arm::SPECULATIVE, "Speculative (given)"),
            simulated(arm::PLAIN, "plain (given)"),
        ],
    })
}

/// A line for each arm.
fn arms(lines: &[sim::Line], names: &[&str], value: impl Fn(&sim::Line) -> f64) -> Vec<Line> {
    names
        .iter()
        .map(|name| Line {
            name: (*name).to_owned(),
            points: lines
                .iter()
                .filter(|line| line.arm == *name)
                .map(|line| (line.x, value(line)))
                .collect(),
            ..Line::default()
        })
        .collect()
}

/// Rings for what was published of the paper's SSD, divided by `share`.
fn rings(lines: &[sim::Line], name: &str, share: impl Fn(&sim::Line) -> f64) -> Line {
    let known = lines.iter().filter(|line| line.arm == arm::PAPER);
    Line {
        name: name.to_owned(),
        points: known
            .filter_map(|line| Some((line.x, line.published? / share(line))))
            .collect(),
        bare: true,
        ..Line::default()
    }
}

fn lookahead(lines: &[sim::Line]) -> Plot {
    let names = [arm::SPECULATIVE, arm::PAPER, arm::OURS, arm::TREES];
    let mut drawn = arms(lines, &names, |line| line.speed);
    drawn.push(rings(lines, "SSD, reproduction", |_| 1.0));
    Plot::Chart(Chart {
        title: "32B/0.6B at the reproduction's times: the price of a long window".to_owned(),
        across: "lookahead K",
        up: "tokens/s",
        marks: (1..=8).map(f64::from).collect(),
        lines: drawn,
        ..Chart::default()
    })
}

fn batch(lines: &[sim::Line]) -> Plot {
    let names = [
        arm::PLAIN,
        arm::SPECULATIVE,
        arm::PAPER,
        arm::OURS,
        arm::TREES,
    ];
    let mut drawn = arms(lines, &names, |line| line.speed / line.x);
    drawn.push(rings(lines, "SSD, authors' log", |line| line.x));
    Plot::Chart(Chart {
        title: "70B/1B: requests at once".to_owned(),
        across: "requests at once",
        up: "tokens/s of each request",
        marks: vec![1.0, 2.0, 4.0, 8.0, 16.0],
        even: true,
        lines: drawn,
        ..Chart::default()
    })
}

fn network(lines: &[sim::Line]) -> Plot {
    let mut cases: Vec<&str> = lines.iter().map(|line| &line.case[..]).collect();
    cases.dedup();
    let mut drawn = Vec::new();
    for case in cases {
        let own: Vec<_> = lines.iter().filter(|l| l.case == case).cloned().collect();
        let pair = case.split(',').next().unwrap_or(case);
        for mut line in arms(&own, &[arm::OURS, arm::PULL, arm::PAPER], |line| line.speed) {
            line.name = format!("{pair}: {}", line.name.replace("SSD, ", ""));
            drawn.push(line);
        }
    }
    Plot::Chart(Chart {
        title: "One request, endpoint across a network".to_owned(),
        across: "round trip in ms",
        up: "tokens/s",
        marks: vec![0.0, 0.1, 0.5, 1.0, 2.0],
        lines: drawn,
        ..Chart::default()
    })
}

fn sharing(lines: &[sim::Line]) -> Plot {
    let alone = lines.iter().find(|line| line.arm == arm::OURS);
    let alone = alone.map_or(1.0, |line| line.speed / line.x);
    let relative = |line: &sim::Line| line.speed / line.x / alone;
    let mut drawn = Vec::new();
    for name in ["1 endpoint", "2 endpoints", "8 endpoints"] {
        let own = lines.iter().filter(|line| line.case.ends_with(name));
        let own: Vec<_> = own.cloned().collect();
        for mut line in arms(&own, &[arm::OURS], relative) {
            name.clone_into(&mut line.name);
            drawn.push(line);
        }
    }
    let mut own = arms(lines, &[arm::OWN], relative);
    for line in &mut own {
        "own, 1/N as fast".clone_into(&mut line.name);
    }
    drawn.extend(own);
    Plot::Chart(Chart {
        title: "70B/1B, GSM8K: N targets share endpoints".to_owned(),
        across: "targets N",
        up: "speed of a target over one with its own",
        marks: vec![1.0, 4.0, 16.0, 64.0],
        even: true,
        lines: drawn,
        ..Chart::default()
    })
}
