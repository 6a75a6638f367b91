//! Names down, numbers across: a dot for each arm.

use plotters::{coord::Shift, prelude::*};

use super::{
    chart::{FONT, Key, LEGEND, WIDTH, draw_legend},
    colours,
    named::NamedAxis,
};

/// Pixels down: of a name, and of everything but the names.
const ROW: u32 = 24;
const REST: u32 = 100;

/// Named rows with a number for each arm.
pub(super) struct Dots {
    pub(super) title: String,
    pub(super) across: &'static str,
    pub(super) rows: Vec<String>,
    pub(super) arms: Vec<Arm>,
}

/// One arm: numbers by row.
pub(super) struct Arm {
    pub(super) name: String,
    pub(super) values: Vec<Option<f64>>,
    /// A ring, for what was published.
    pub(super) bare: bool,
}

impl Dots {
    /// Pixels across and down.
    pub(super) fn size(&self) -> (u32, u32) {
        (WIDTH, REST + ROW * self.rows.len() as u32)
    }

    pub(super) fn draw_on<DB: DrawingBackend>(
        &self,
        root: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        root.fill(&WHITE)?;
        let (plane, legend) = root.split_horizontally(LEGEND);
        let count = self.rows.len() as f64;
        let values = self.arms.iter().flat_map(|arm| arm.values.iter().flatten());
        let top = values.copied().fold(0.0, f64::max);
        // The first row is at the top.
        let place = |row: usize| count - 1.0 - row as f64;
        let names = self.rows.iter().enumerate();
        let down = NamedAxis {
            range: -0.6..count - 0.4,
            names: names
                .map(|(row, name)| (place(row), name.clone()))
                .collect(),
        };
        let mut chart = ChartBuilder::on(&plane)
            .caption(&self.title, (FONT, 16))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(210)
            .build_cartesian_2d(0.0..top * 1.04, down)?;
        chart
            .configure_mesh()
            .x_desc(self.across)
            .x_label_formatter(&f64::to_string)
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (arm, colour) in self.arms.iter().zip(colours()) {
            let points = arm.values.iter().enumerate();
            let points = points.filter_map(|(row, value)| Some(((*value)?, place(row))));
            chart.draw_series(points.map(|point| arm.key().mark(point, colour)))?;
        }
        let names = self.arms.iter().map(|arm| (&arm.name[..], arm.key()));
        draw_legend(&legend, names)
    }
}

impl Arm {
    fn key(&self) -> Key {
        if self.bare { Key::Ring } else { Key::Dot }
    }
}
