//! Plots of the results, as SVG: `foretoken bench plots` reads `bench/results/*.json` and writes
//! `bench/plots/*.svg`.
//!
//! ```text
//! results/sim.json ──> simulated ──┐
//! results/verify_ratio.json, ──────┼──> Chart (numbers across) | Dots (names down) ──> plots/*.svg
//!   decode.json, batch.json ──> measured
//! ```
//!
//! Nothing is computed here but ratios; a result that is not there has no plot.

mod chart;
mod dots;
mod measured;
mod named;
mod simulated;

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context;
use plotters::{backend::SVGBackend, drawing::IntoDrawingArea, style::RGBColor};

use self::{chart::Chart, dots::Dots};

/// Colours that are told apart by everybody (Okabe and Ito 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

/// Those of arms, in their order; again from the first where there are more arms.
fn colours() -> impl Iterator<Item = RGBColor> {
    COLOURS.into_iter().cycle()
}

/// Arguments of `foretoken bench plots`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlotsArgs {
    /// Where plots are written
    #[arg(long, default_value = crate::OWN_RESULTS)]
    pub plots: PathBuf,
}

/// A plot.
enum Plot {
    Chart(Chart),
    Dots(Dots),
}

impl Plot {
    fn draw(&self, path: &Path) -> anyhow::Result<()> {
        let size = match self {
            Self::Chart(_) => Chart::size(),
            Self::Dots(dots) => dots.size(),
        };
        let root = SVGBackend::new(path, size).into_drawing_area();
        let drawn = match self {
            Self::Chart(chart) => chart.draw_on(&root),
            Self::Dots(dots) => dots.draw_on(&root),
        };
        let written = drawn.and_then(|()| root.present());
        written.map_err(|error| anyhow::anyhow!("{error}"))
    }
}

/// Results by name.
struct Results<'a> {
    folder: &'a Path,
}

impl Results<'_> {
    /// The data of a benchmark; none if it was not run.
    fn data(&self, name: &str) -> anyhow::Result<Option<serde_json::Value>> {
        let path = self.folder.join(format!("{name}.json"));
        let Ok(text) = fs::read_to_string(&path) else {
            return Ok(None);
        };
        let mut report: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result", path.display()))?;
        Ok(Some(report["data"].take()))
    }
}

/// Draws everything there are results for.
pub fn run(args: &PlotsArgs, results: &Path) -> anyhow::Result<()> {
    let folder = &args.plots;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let results = Results { folder: results };
    let mut plots = Vec::new();
    if let Some(data) = results.data("sim")? {
        let lines: Vec<_> = serde_json::from_value(data)?;
        plots.extend(simulated::plots(&lines));
    }
    if let Some(data) = results.data("verify_ratio")? {
        plots.push(("verify", measured::verify(serde_json::from_value(data)?)));
    }
    if let Some(data) = results.data("decode")? {
        let arms: Vec<_> = serde_json::from_value(data)?;
        plots.push(("decode", measured::decode(&arms)));
    }
    if let Some(data) = results.data("batch")? {
        let loads: Vec<_> = serde_json::from_value(data)?;
        plots.extend(measured::batch(&loads).map(|plot| ("batch", plot)));
    }
    for (name, plot) in plots {
        let path = folder.join(format!("{name}.svg"));
        plot.draw(&path)
            .with_context(|| format!("cannot draw {}", path.display()))?;
        writeln!(io::stdout(), "written to {}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_result_is_drawn_with_all_its_arms() {
        let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results"));
        let folder = tempfile::tempdir().expect("a folder");
        let args = PlotsArgs {
            plots: folder.path().to_owned(),
        };
        run(&args, results).expect("plots");
        for (name, words) in [
            ("sim-published", ["published", "HumanEval"]),
            ("sim-lookahead", ["SSD, ours, trees", "lookahead K"]),
            ("sim-batch", ["Speculative", "requests at once"]),
            ("sim-network", ["pull", "round trip in ms"]),
            ("sim-sharing", ["8 endpoints", "targets"]),
            ("verify", ["int8", "rows"]),
            ("decode", ["plain", "T = 1"]),
            ("batch", ["T = 0", "streams"]),
        ] {
            let svg = fs::read_to_string(folder.path().join(format!("{name}.svg")));
            let svg = svg.expect("a plot");
            for word in words {
                assert!(svg.contains(word), "{name} does not say {word}");
            }
        }
    }

    #[test]
    fn more_arms_than_colours_are_drawn_all_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let line = |arm: usize| {
            let points = vec![(1.0, arm as f64), (2.0, 1.0)];
            chart::Line {
                name: format!("arm {arm}"),
                points,
                ..chart::Line::default()
            }
        };
        let chart = Chart {
            marks: vec![1.0, 2.0],
            lines: (0..=COLOURS.len()).map(line).collect(),
            ..Chart::default()
        };
        let svg = folder.path().join("many.svg");
        Plot::Chart(chart).draw(&svg).expect("a plot");
        let svg = fs::read_to_string(svg).expect("a plot");
        for arm in 0..=COLOURS.len() {
            assert!(svg.contains(&format!("arm {arm}")), "arm {arm}");
        }
    }
}
