//! Results: a line for each simulation.

use serde::{Deserialize, Serialize};

use crate::report::Report;

/// One simulation and what was published of its like.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Which question it belongs to.
    pub experiment: String,
    /// Whose times, and which data.
    pub case: String,
    /// What is swept, in words.
    pub axis: String,
    /// Its value.
    pub x: f64,
    /// Who decodes how.
    pub arm: String,
    /// Its lookahead.
    pub lookahead: u32,
    /// Tokens a second, of all targets.
    pub speed: f64,
    /// The published figure.
    pub published: Option<f64>,
    /// Whether the published figure was used to set the simulation up: then it shows nothing.
    pub given: bool,
    /// Share of verdicts that were drafted for ahead.
    pub hit_rate: f64,
    /// Tokens a verdict emits.
    pub tokens_per_round: f64,
    /// Milliseconds from verdict to verdict.
    pub round_ms: f64,
    /// Those of it in which the target waits.
    pub wait_ms: f64,
    /// Share of the time in which endpoints work.
    pub draft_busy: f64,
    /// Jain's index over targets.
    pub fairness: f64,
    /// The same of the outcomes that endpoints granted to each while others bid too; none where nobody
    /// shared.
    pub shares: Option<f64>,
}

/// The lines as a table.
pub(super) fn table(method: String, lines: &[Line]) -> anyhow::Result<Report> {
    let columns = [
        "experiment",
        "case",
        "arm",
        "K",
        "swept",
        "tok/s",
        "published",
        "off by",
        "hit rate",
        "tokens/round",
        "round ms",
        "wait ms",
    ];
    let mut report = Report::computed("sim", method, &columns);
    for line in lines {
        let published = line.published.map_or(String::new(), |p| format!("{p:.1}"));
        let off = match line.published {
            Some(_) if line.given => "given".to_owned(),
            Some(published) => format!("{:+.1} %", (line.speed / published - 1.0) * 100.0),
            None => String::new(),
        };
        report.row([
            line.experiment.clone(),
            line.case.clone(),
            line.arm.clone(),
            line.lookahead.to_string(),
            format!("{} {}", line.axis, line.x),
            format!("{:.1}", line.speed),
            published,
            off,
            format!("{:.3}", line.hit_rate),
            format!("{:.2}", line.tokens_per_round),
            format!("{:.2}", line.round_ms),
            format!("{:.2}", line.wait_ms),
        ]);
    }
    report.data = serde_json::to_value(lines)?;
    Ok(report)
}
