//! Plots of what was measured on this machine.

use serde::Deserialize;

use super::{
    Plot,
    chart::{Chart, Line},
    dots::{Arm, Dots},
};

/// What several measurements of a figure came to.
#[derive(Clone, Copy, Deserialize)]
pub(super) struct Range {
    min: f64,
    median: f64,
    max: f64,
}

/// A weight format of `verify_ratio.json`.
#[derive(Deserialize)]
pub(super) struct Verify {
    path: String,
    rows: Vec<u32>,
    ms: Vec<Range>,
}

/// An arm of `decode.json`.
#[derive(Deserialize)]
pub(super) struct Decode {
    dtype: String,
    policy: String,
    temperature: f64,
    threads: u32,
    #[serde(rename = "decode_tok_s")]
    speed: Range,
}

/// A cell of `batch.json`.
#[derive(Deserialize)]
pub(super) struct Batch {
    streams: u32,
    temperature: f64,
    ratio: Range,
}

pub(super) fn verify(formats: Vec<Verify>) -> Plot {
    let marks = formats.first().map_or(Vec::new(), |format| {
        format.rows.iter().map(|&rows| f64::from(rows)).collect()
    });
    let line = |format: Verify| {
        let one = format.ms.first().map_or(1.0, |ms| ms.median);
        let name = format.path.split('/').next_back().unwrap_or_default();
        let rows = format.rows.iter().map(|&rows| f64::from(rows));
        Line {
            name: name.split('-').next().unwrap_or_default().to_owned(),
            points: rows
                .zip(&format.ms)
                .map(|(rows, ms)| (rows, ms.median / one))
                .collect(),
            ranges: format
                .ms
                .iter()
                .map(|ms| (ms.min / one, ms.max / one))
                .collect(),
            bare: false,
        }
    };
    Plot::Chart(Chart {
        title: "Verification, 100 M parameters, one core".to_owned(),
        across: "rows of a pass",
        up: "time over that of one row",
        marks,
        even: true,
        lines: formats.into_iter().map(line).collect(),
        ..Chart::default()
    })
}

pub(super) fn decode(arms: &[Decode]) -> Plot {
    let row = |arm: &Decode| {
        let cores = if arm.threads == 1 { "core" } else { "cores" };
        format!(
            "{} {cores}, {}, T = {}",
            arm.threads, arm.dtype, arm.temperature
        )
    };
    let (mut rows, mut policies): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for arm in arms {
        if !rows.contains(&row(arm)) {
            rows.push(row(arm));
        }
        if !policies.contains(&arm.policy) {
            policies.push(arm.policy.clone());
        }
    }
    let values = |policy: &String| {
        let value = |name: &String| {
            let mut arms = arms.iter();
            let arm = arms.find(|arm| row(arm) == *name && arm.policy == *policy);
            arm.map(|arm| arm.speed.median)
        };
        rows.iter().map(value).collect()
    };
    let dots = policies.iter().map(|policy| Arm {
        name: policy.clone(),
        values: values(policy),
        bare: policy == "plain",
    });
    Plot::Dots(Dots {
        title: "Shipped pair over HTTP, one request at a time".to_owned(),
        across: "tokens/s after the first",
        arms: dots.collect(),
        rows,
    })
}

pub(super) fn batch(cells: &[Batch]) -> Plot {
    let mut temperatures: Vec<f64> = cells.iter().map(|cell| cell.temperature).collect();
    temperatures.sort_by(f64::total_cmp);
    temperatures.dedup();
    let mut marks: Vec<f64> = cells.iter().map(|cell| f64::from(cell.streams)).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let line = |temperature: f64| {
        let own = cells.iter();
        let own = own.filter(|cell| cell.temperature.total_cmp(&temperature).is_eq());
        Line {
            name: format!("T = {temperature}"),
            points: own
                .clone()
                .map(|cell| (f64::from(cell.streams), cell.ratio.median))
                .collect(),
            ranges: own.map(|cell| (cell.ratio.min, cell.ratio.max)).collect(),
            bare: false,
        }
    };
    Plot::Chart(Chart {
        title: "Shipped pair, adaptive speculation on the same two cores".to_owned(),
        across: "streams at once",
        up: "tokens/s over plain decoding's",
        marks,
        even: true,
        lines: temperatures.into_iter().map(line).collect(),
        ..Chart::default()
    })
}
