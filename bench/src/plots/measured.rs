//! Plots of what was measured on this machine.

use super::{
    Plot,
    chart::{Chart, Line},
    dots::{Arm, Dots},
};
use crate::{
    batch::{self, Layout},
    decode, verify,
};

/// `verify_ratio.json`.
pub(super) fn verify(formats: Vec<verify::Line>) -> Plot {
    let marks = formats.first().map_or(Vec::new(), |format| {
        format.rows.iter().map(|&rows| f64::from(rows)).collect()
    });
    let line = |format: verify::Line| {
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

/// `decode.json`.
pub(super) fn decode(arms: &[decode::Line]) -> Plot {
    let row = |arm: &decode::Line| {
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
            arm.map(|arm| arm.decode_tok_s.median)
        };
        rows.iter().map(value).collect()
    };
    let dots = policies.iter().map(|policy| Arm {
        name: policy.clone(),
        values: values(policy),
        bare: policy == decode::PLAIN,
    });
    Plot::Dots(Dots {
        title: "Shipped pair over HTTP, one request at a time".to_owned(),
        across: "tokens/s after the first",
        arms: dots.collect(),
        rows,
    })
}

/// `batch.json`, as far as all services share the cores; none if they never do.
pub(super) fn batch(loads: &[batch::Line]) -> Option<Plot> {
    let shared = loads.iter().filter(|load| load.layout == Layout::Shared);
    let cells: Vec<_> = shared
        .filter_map(|load| Some((load.temperature, load.streams, load.speculative_over_plain?)))
        .collect();
    let mut temperatures: Vec<f32> = cells.iter().map(|cell| cell.0).collect();
    temperatures.sort_by(f32::total_cmp);
    temperatures.dedup();
    let mut marks: Vec<u32> = cells.iter().map(|cell| cell.1).collect();
    marks.sort_unstable();
    marks.dedup();
    let line = |temperature: f32| {
        let own = cells.iter();
        let own = own.filter(|cell| cell.0.total_cmp(&temperature).is_eq());
        Line {
            name: format!("T = {temperature}"),
            points: own
                .clone()
                .map(|(_, streams, ratio)| (f64::from(*streams), ratio.median))
                .collect(),
            ranges: own.map(|(.., ratio)| (ratio.min, ratio.max)).collect(),
            bare: false,
        }
    };
    (!cells.is_empty()).then(|| {
        Plot::Chart(Chart {
            title: "Shipped pair, adaptive speculation on the same two cores".to_owned(),
            across: "streams at once",
            up: "tokens/s over plain decoding's",
            marks: marks.into_iter().map(f64::from).collect(),
            even: true,
            lines: temperatures.into_iter().map(line).collect(),
            ..Chart::default()
        })
    })
}
