//! What services count of themselves: their `/metrics`, read before and after a measurement.

use std::collections::BTreeMap;

use anyhow::Context;

/// The value of every series at one moment, or what was added between two.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts(BTreeMap<String, f64>);

impl Counts {
    /// Reads the text of `/metrics`: a series and its value a line.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').context("a series without a value")?;
            Ok((name.to_owned(), value.parse()?))
        });
        Ok(Self(series.collect::<anyhow::Result<_>>()?))
    }

    /// What was added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let old = |name| before.0.get(name).copied().unwrap_or(0.0);
        let added = self
            .0
            .iter()
            .map(|(name, now)| (name.clone(), now - old(name)));
        Self(added.collect())
    }

    /// What several measurements added together.
    pub fn add(&mut self, other: &Self) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_insert(0.0) += value;
        }
    }

    /// The sum over all series of this metric that have this label; an empty one: over all.
    pub fn sum(&self, metric: &str, label: &str) -> f64 {
        let of = |series: &str| {
            let labels = series.strip_prefix(metric)?;
            let labels = labels
                .strip_prefix('{')
                .or(labels.is_empty().then_some(""))?;
            labels.contains(label).then_some(())
        };
        let found = self.0.iter().filter(|(series, _)| of(series).is_some());
        found.map(|(_, value)| value).sum()
    }

    /// Mean of a histogram's values; 0 if there were none.
    pub fn mean(&self, histogram: &str, label: &str) -> f64 {
        let count = self.sum(&format!("{histogram}_count"), label);
        if count > 0.0 {
            self.sum(&format!("{histogram}_sum"), label) / count
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "# TYPE hits counter\nhits_total{instance=\"t\",round=\"later\"} 2\nup 1\n";
    const AFTER: &str = "hits_total{instance=\"t\",round=\"first\"} 1\n\
        hits_total{instance=\"t\",round=\"later\"} 7\nhits_total_more{} 50\nup 1\n\
        took_sum{source=\"ahead\"} 0.5\ntook_count{source=\"ahead\"} 2\n";

    #[test]
    fn what_was_added_is_told_by_metric_and_label() {
        let added = Counts::parse(AFTER)
            .expect("text")
            .since(&Counts::parse(BEFORE).expect("text"));
        let near = |seen: f64, wanted: f64| assert!((seen - wanted).abs() < 1e-12, "{seen}");
        near(added.sum("hits_total", "round=\"later\""), 5.0);
        near(added.sum("hits_total", ""), 6.0);
        near(added.sum("up", ""), 0.0);
        near(added.mean("took", "source=\"ahead\""), 0.25);
        near(added.mean("took", "source=\"none\""), 0.0);
        let mut twice = added.clone();
        twice.add(&added);
        near(twice.sum("hits_total", ""), 12.0);
    }

    #[test]
    fn a_line_that_is_no_series_is_an_error() {
        assert!(Counts::parse("nothing").is_err());
        assert!(Counts::parse("name value").is_err());
    }
}
