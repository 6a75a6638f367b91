//! Metrics, read back from their text.

use std::{collections::BTreeMap, fmt::Write as _};

/// Labels that every metric of a service has: they say whose it is, not what.
const OF_SERVICE: [&str; 4] = ["instance", "path", "model", "model_name"];

/// The values of one service or of several, added up: by name, then by the labels of the metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals(BTreeMap<String, BTreeMap<String, f64>>);

impl Totals {
    /// Reads what Prometheus would. Buckets of histograms and lines that make no sense are left
    /// out.
    pub(super) fn parse(text: &str) -> Self {
        let mut totals = Self::default();
        for line in text.lines() {
            if let Some((name, labels, value)) = sample(line) {
                totals.add(name, labels, value);
            }
        }
        totals
    }

    /// Adds those of another service.
    pub(super) fn join(&mut self, other: &Self) {
        for (name, series) in &other.0 {
            for (labels, value) in series {
                self.add(name, labels.clone(), *value);
            }
        }
    }

    /// What has been counted since `before`. A service that was started again counts from 0.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut left = self.clone();
        for (name, series) in &mut left.0 {
            let Some(known) = before.0.get(name) else {
                continue;
            };
            for (labels, value) in series {
                let before = known.get(labels).copied().unwrap_or(0.0);
                if before <= *value {
                    *value -= before;
                }
            }
        }
        left
    }

    /// A value over all its labels; 0 if it was never counted.
    pub(super) fn sum(&self, name: &str) -> f64 {
        let series = self.0.get(name);
        // An empty sum of floats is -0.
        series.map_or(0.0, |series| series.values().sum::<f64>() + 0.0)
    }

    /// A value with one label, written `label=value`.
    pub(super) fn of(&self, name: &str, labels: &str) -> f64 {
        let series = self.0.get(name);
        let value = series.and_then(|series| series.get(labels));
        value.copied().unwrap_or(0.0)
    }

    /// The values of a metric with one label, by the value of that.
    pub(super) fn by(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        let series = self.0.get(name).into_iter().flatten();
        series.map(|(labels, value)| {
            let label = labels.split_once('=').map_or("", |(_, label)| label);
            (label, *value)
        })
    }

    /// Whether it is there at all.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn add(&mut self, name: &str, labels: String, value: f64) {
        let series = self.0.entry(name.to_owned()).or_default();
        *series.entry(labels).or_insert(0.0) += value;
    }
}

/// Name, own labels and value of a line.
fn sample(line: &str) -> Option<(&str, String, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (name, labels, value) = if let Some((name, rest)) = line.split_once('{') {
        let (labels, value) = rest.rsplit_once('}')?;
        (name, labels, value)
    } else {
        let (name, value) = line.split_once(' ')?;
        (name, "", value)
    };
    if name.ends_with("_bucket") {
        return None;
    }
    let value = value.split_whitespace().next()?.parse().ok()?;
    let mut own = String::new();
    let mut rest = labels;
    while let Some((label, tail)) = rest.split_once("=\"") {
        let end = closing_quote(tail)?;
        if !OF_SERVICE.contains(&label) {
            let comma = if own.is_empty() { "" } else { "," };
            let _ = write!(own, "{comma}{label}={}", &tail[..end]);
        }
        rest = tail[end + 1..].trim_start_matches(',');
    }
    Some((name, own, value))
}

/// Where a quoted value ends; a backslash quotes what follows it.
fn closing_quote(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.char_indices().find_map(|(at, letter)| {
        let closes = letter == '"' && !quoted;
        quoted = letter == '\\' && !quoted;
        closes.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP hits Hits.
# TYPE hits counter
hits_total{instance="t,\"0\"",path="sim",model="0",round="first"} 2
hits_total{instance="t,\"0\"",path="sim",model="0",round="later"} 5
seconds_bucket{instance="t",le="0.1"} 3
seconds_sum{instance="t"} 0.25
plain 7
nonsense
also{nonsense="
# EOF
"#;

    #[test]
    fn values_are_found_by_name_and_own_label() {
        let totals = Totals::parse(TEXT);
        let sum = |name: &str| format!("{}", totals.sum(name));
        assert_eq!(sum("hits_total"), "7");
        assert_eq!(totals.of("hits_total", "round=first") as u32, 2);
        let by: Vec<_> = totals.by("hits_total").collect();
        assert_eq!(by, [("first", 2.0), ("later", 5.0)]);
        assert_eq!(sum("seconds_sum"), "0.25");
        assert_eq!(sum("plain"), "7");
        assert!(!totals.has("seconds_bucket") && !totals.has("also"));
        assert_eq!(sum("nothing"), "0");
    }

    #[test]
    fn services_add_up_and_one_started_again_counts_from_nothing() {
        let mut totals = Totals::parse("a 5\nb 1");
        totals.join(&Totals::parse("a 2\nc 4"));
        assert_eq!((totals.sum("a"), totals.sum("c")), (7.0, 4.0));
        let since = totals.since(&Totals::parse("a 3\nb 9"));
        assert_eq!((since.sum("a"), since.sum("b")), (4.0, 1.0));
    }
}
