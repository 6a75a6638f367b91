//! What a target step costs, by the number of its rows.

use alloc::vec::Vec;
use core::time::Duration;

/// Share of an observed deviation that is taken over.
const RATE: f64 = 0.02;
/// Share of a correction that other numbers of rows get, too: contexts that have become longer, or a
/// host that has become slower, concern all steps.
const COMMON: f64 = 0.5;

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

    /// The same for steps of so many rows on average, in seconds.
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

    /// Expected time of a step of `rows`, an hour at most.
    pub fn time(&self, rows: u32) -> Duration {
        Duration::from_secs_f64(self.seconds(rows).min(3600.0))
    }

    /// Takes in a step of `rows` that took this long, where steps of other rows may be of another kind:
    /// moves the points around it a little.
    pub fn observe(&mut self, rows: u32, took: Duration) {
        self.correct(rows, took, 0.0);
    }

    /// The same where all steps are of one kind: moves the other points too, less, and none past one of
    /// more rows.
    pub fn observe_alike(&mut self, rows: u32, took: Duration) {
        let nearest = self.correct(rows, took, COMMON);
        self.put_in_order(nearest);
    }

    /// Corrects the points around `rows`, and the others by this share of it; the index of the nearest.
    fn correct(&mut self, rows: u32, took: Duration, others: f64) -> usize {
        let expected = self.seconds(rows);
        // A step that was held up by something else counts half as much again at most.
        let ratio = (took.as_secs_f64() / expected).clamp(0.5, 1.5);
        let (near, along) = self.segment(f64::from(rows)).unwrap_or((0, 0.0));
        let along = along.min(1.0);
        for (i, point) in self.points.iter_mut().enumerate() {
            let share = if i == near {
                1.0 - along
            } else if i == near + 1 {
                along
            } else {
                0.0
            };
            // By as many seconds as there, for what others have in common is added; of short ones no
            // more than their part.
            let common = others * (1.0 - share) * (expected / point.1).min(1.0);
            point.1 *= 1.0 + RATE * (share + common) * (ratio - 1.0);
        }
        near + usize::from(along > 0.5)
    }

    /// Moves whoever takes longer than one of more rows, but not the point of this index.
    fn put_in_order(&mut self, nearest: usize) {
        let nearest = nearest.min(self.points.len());
        let (before, after) = self.points.split_at_mut(nearest);
        let mut most = after.first().map_or(f64::INFINITY, |point| point.1);
        for point in before.iter_mut().rev() {
            most = most.min(point.1);
            point.1 = most;
        }
        let mut least = 0.0_f64;
        for point in after {
            least = least.max(point.1);
            point.1 = least;
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
    fn more_rows_never_cost_less_whatever_is_observed() {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        // 0.2 ms a row, and 0.4 ms for what has been said in each of 32 sessions.
        let bare = |rows: u32| 10.0 + 0.2 * f64::from(rows);
        let table = [1, 2, 4, 8, 16, 32, 64, 128, 256].map(|rows| (rows, ms(bare(rows))));
        let mut cost = StepCost::new(table.to_vec());
        let grows = |cost: &StepCost| {
            for (few, more) in table.iter().zip(&table[1..]) {
                assert!(cost.seconds(few.0) <= cost.seconds(more.0), "{cost:?}");
            }
        };
        for _ in 0..2000 {
            cost.observe_alike(32, ms(bare(32) + 12.8));
            grows(&cost);
        }
        assert!((cost.seconds(32) - 29.2e-3).abs() < 1e-4);
        assert!(cost.seconds(64) > 0.8 * 35.6e-3, "{cost:?}");
        // Then rows are as cheap as they can be, and few ones are as dear as many.
        for _ in 0..2000 {
            cost.observe_alike(128, ms(10.0));
            grows(&cost);
            cost.observe_alike(1, ms(60.0));
            grows(&cost);
        }
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
