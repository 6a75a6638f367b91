//! Lines over numbers, with the legend beside them.

use plotters::{
    coord::Shift,
    prelude::*,
    style::{FontFamily, TextStyle},
};

use super::{colours, named::NamedAxis};

/// Width of a plot, where its legend begins, and height of a chart, in pixels.
pub(super) const WIDTH: u32 = 840;
pub(super) const LEGEND: u32 = 610;
const HEIGHT: u32 = 400;
/// Of all text.
pub(super) const FONT: &str = "sans-serif";

/// Lines in a plane.
#[derive(Default)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) across: &'static str,
    pub(super) up: &'static str,
    /// Marks on the axis across. Evenly spaced if `even`, else where they are.
    pub(super) marks: Vec<f64>,
    pub(super) even: bool,
    /// Where the axis up begins; at 0 unless said otherwise.
    pub(super) from: f64,
    pub(super) lines: Vec<Line>,
}

/// One line.
#[derive(Default)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// Lowest and highest of what was measured, by point; may be empty.
    pub(super) ranges: Vec<(f64, f64)>,
    /// Points only, for what was published.
    pub(super) bare: bool,
}

impl Chart {
    /// Pixels across and down.
    pub(super) fn size() -> (u32, u32) {
        (WIDTH, HEIGHT)
    }

    pub(super) fn draw_on<DB: DrawingBackend>(
        &self,
        root: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        root.fill(&WHITE)?;
        let (plane, legend) = root.split_horizontally(LEGEND);
        let names: Vec<_> = self
            .marks
            .iter()
            .map(|&x| (self.place(x), x.to_string()))
            .collect();
        let (first, last) = match &names[..] {
            [first, .., last] => (first.0, last.0),
            _ => (0.0, 1.0),
        };
        let margin = (last - first) * 0.05;
        let across = NamedAxis {
            range: first - margin..last + margin,
            names,
        };
        let top = self.lines.iter().flat_map(Line::tops).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(&plane)
            .caption(&self.title, (FONT, 16))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(across, self.from..top + (top - self.from) * 0.06)?;
        chart
            .configure_mesh()
            .x_desc(self.across)
            .y_desc(self.up)
            .y_label_formatter(&f64::to_string)
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (line, colour) in self.lines.iter().zip(colours()) {
            let points: Vec<_> = line
                .points
                .iter()
                .map(|&(x, y)| (self.place(x), y))
                .collect();
            if !line.bare {
                let path = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
                chart.draw_series(path)?;
            }
            let spans = points.iter().zip(&line.ranges);
            chart.draw_series(spans.map(|(&(x, _), &(low, high))| {
                PathElement::new(vec![(x, low), (x, high)], colour.stroke_width(1))
            }))?;
            let marks = points.into_iter();
            chart.draw_series(marks.map(|point| line.key().mark(point, colour)))?;
        }
        let names = self.lines.iter().map(|line| (&line.name[..], line.key()));
        draw_legend(&legend, names)
    }

    /// Where a number is on the axis across.
    fn place(&self, x: f64) -> f64 {
        let mark = self.marks.iter().position(|&mark| (mark - x).abs() < 1e-9);
        match mark {
            Some(mark) if self.even => mark as f64,
            _ => x,
        }
    }
}

impl Line {
    fn key(&self) -> Key {
        if self.bare { Key::Ring } else { Key::Line }
    }

    fn tops(&self) -> impl Iterator<Item = f64> {
        let points = self.points.iter().map(|point| point.1);
        points.chain(self.ranges.iter().map(|range| range.1))
    }
}

/// What stands for an arm.
#[derive(Clone, Copy)]
pub(super) enum Key {
    /// A line with dots.
    Line,
    /// A dot.
    Dot,
    /// A ring.
    Ring,
}

impl Key {
    /// The dot or ring.
    pub(super) fn mark<At>(self, at: At, colour: RGBColor) -> Circle<At, i32> {
        match self {
            Self::Line => Circle::new(at, 3, colour.filled()),
            Self::Dot => Circle::new(at, 4, colour.filled()),
            Self::Ring => Circle::new(at, 6, colour.stroke_width(2)),
        }
    }
}

/// Names of the arms, below each other.
pub(super) fn draw_legend<'a, DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    names: impl Iterator<Item = (&'a str, Key)>,
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let text = TextStyle::from((FontFamily::SansSerif, 13).into_font());
    for (i, ((name, key), colour)) in names.zip(colours()).enumerate() {
        let y = 56 + 24 * i as i32;
        if matches!(key, Key::Line) {
            let stroke = colour.stroke_width(2);
            area.draw(&PathElement::new(vec![(8, y), (30, y)], stroke))?;
        }
        area.draw(&key.mark((19, y), colour))?;
        area.draw(&Text::new(name.to_owned(), (38, y - 7), text.clone()))?;
    }
    Ok(())
}
