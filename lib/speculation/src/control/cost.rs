//! What a target step costs, by the number of its rows.

use alloc::vec::Vec;
use core::time::Duration;

/// Share of an observed deviation that is taken over.
const RATE: f64 = 0.02;

/// A measured table of step times, linear between its points and beyond the last two.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// (rows, seconds), by ascending rows.
    points: Vec<(f64, f64)>,
}

impl StepCost {
    /// The curve through these measurements; of several for the same number of rows the fastest
    /// counts (others were disturbed), and none takes longer than one of more rows. Without any, all
    /// steps cost the same.
    pub fn new(mut measured: Vec<(u32, Duration)>) -> Self {
        measured.sort_unstable();
        measured.dedup_by_key(|point| point.0);
        let mut fastest = Duration::MAX;
        for (_, took) in measured.iter_mut().rev() {
            fastest = fastest.min(*took);
            *took = fastest;
        }
        let point = |(rows, took): (u32, Duration)| (f64::from(rows), took.as_secs_f64());
        Self {
            points: measured.into_iter().map(point).collect(),
        }
    }

    /// Expected time of a step of `rows`, in seconds; above 0.
    pub fn seconds(&self, rows: u32) -> f64 {
        self.mean_seconds(f64::from(rows))
    }

    /// The same for steps of so many rows on average.
    pub fn mean_seconds(&self, rows: f64) -> f64 {
        let seconds = match self.segment(rows) {
            Some((i, along)) => {
                let (low, high) = (self.points[i].1, self.points[i + 1].1);
                low + (high - low) * along
            }
            None => self.points.first().map_or(1e-3, |point| point.1),
        };
        seconds.max(1e-9)
    }

    /// Takes in a step of `rows` that took this long: moves the points around it a little.
    pub fn observe(&mut self, rows: u32, took: Duration) {
        // A step that was held up by something else counts half as much again at most.
        let ratio = (took.as_secs_f64() / self.seconds(rows)).clamp(0.5, 1.5);
        let correct = |point: &mut (f64, f64), share: f64| {
            point.1 *= 1.0 + RATE * share.clamp(0.0, 1.0) * (ratio - 1.0);
        };
        match self.segment(f64::from(rows)) {
            Some((i, along)) => {
                correct(&mut self.points[i], 1.0 - along);
                correct(&mut self.points[i + 1], along);
            }
            None => self.points.iter_mut().for_each(|point| correct(point, 1.0)),
        }
    }

    /// The points that `rows` lies between (the outermost two if it is outside), and how far along,
    /// from 0 to 1 (above 1 beyond the last; 0 before the first).
    fn segment(&self, rows: f64) -> Option<(usize, f64)> {
        if self.points.len() < 2 {
            return None;
        }
        let after = self.points.partition_point(|point| point.0 <= rows);
        let i = after.saturating_sub(1).min(self.points.len() - 2);
        let (low, high) = (self.points[i].0, self.points[i + 1].0);
        Some((i, ((rows - low) / (high - low)).max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn the_curve_goes_through_its_points_and_is_linear_between_and_beyond() {
        let cost = StepCost::new(alloc::vec![
            (8, 400 * US),
            (1, 100 * US),
            (4, 160 * US),
            (4, 900 * US)
        ]);
        assert!(near(cost.seconds(0), 100e-6));
        assert!(near(cost.seconds(1), 100e-6));
        assert!(near(cost.seconds(2), 120e-6));
        assert!(near(cost.mean_seconds(2.5), 130e-6));
        assert!(near(cost.seconds(4), 160e-6));
        assert!(near(cost.seconds(6), 280e-6));
        assert!(near(cost.seconds(8), 400e-6));
        assert!(near(cost.seconds(16), 880e-6));
    }

    #[test]
    fn observed_steps_move_the_curve_to_them() {
        let mut cost = StepCost::new(alloc::vec![(1, 100 * US), (8, 200 * US)]);
        for _ in 0..400 {
            cost.observe(1, 150 * US);
            cost.observe(8, 150 * US);
        }
        assert!((cost.seconds(1) - 150e-6).abs() < 1e-6);
        assert!((cost.seconds(8) - 150e-6).abs() < 1e-6);
    }

    #[test]
    fn a_table_of_one_point_or_none_is_flat() {
        let one = StepCost::new(alloc::vec![(4, 100 * US)]);
        assert!(near(one.seconds(1), one.seconds(64)));
        let mut none = StepCost::new(Vec::new());
        none.observe(3, 5 * US);
        assert!(near(none.seconds(1), none.seconds(64)));
    }
}
