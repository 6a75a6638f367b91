//! An axis with names at given places.

use std::ops::Range;

use plotters::coord::{
    ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    types::RangedCoordf64,
};

/// Names by place, and from where to where the axis goes.
pub(super) struct NamedAxis {
    pub(super) range: Range<f64>,
    pub(super) names: Vec<(f64, String)>,
}

impl Ranged for NamedAxis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.names.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for NamedAxis {
    fn format_ext(&self, value: &f64) -> String {
        let known = self
            .names
            .iter()
            .find(|(place, _)| (place - value).abs() < 1e-9);
        known.map_or(String::new(), |(_, name)| name.clone())
    }
}
