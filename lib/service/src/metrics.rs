//! Metrics, registered as they are made.

use std::{borrow::Cow, sync::atomic::AtomicU64};

use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Metric, Registry},
};

/// A gauge of fractions.
pub type Fraction = Gauge<f64, AtomicU64>;
/// A counter with one label.
pub type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// Makes the metrics of one service. Each carries the labels `instance`, `path` (the arithmetic
/// path) and `model` (the first 12 digits of the model's digest).
///
/// Counters get their `_total` when they are shown.
#[derive(Debug)]
pub struct Meters {
    registry: Registry,
}

impl Meters {
    /// No metrics yet.
    pub fn new(instance: &str, path: &str, model_digest: &str) -> Self {
        let digest: String = model_digest.chars().take(12).collect();
        let labels = [
            ("instance", instance),
            ("path", path),
            ("model", digest.as_str()),
        ];
        let owned = |(key, value): (_, &str)| (Cow::Borrowed(key), Cow::Owned(value.to_owned()));
        Self {
            registry: Registry::with_labels(labels.into_iter().map(owned)),
        }
    }

    /// What only rises.
    pub fn counter(&mut self, name: &str, help: &str) -> Counter {
        self.add(name, help, Counter::default())
    }

    /// What only rises, counted apart by one label.
    pub fn labelled(&mut self, name: &str, help: &str) -> Labelled {
        self.add(name, help, Labelled::default())
    }

    /// What rises and falls.
    pub fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.add(name, help, Gauge::default())
    }

    /// What moves between 0 and 1.
    pub fn fraction(&mut self, name: &str, help: &str) -> Fraction {
        self.add(name, help, Fraction::default())
    }

    /// Times of steps and messages: from 20 us to 1 s.
    pub fn short_times(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (0.000_02, 1.6, 24))
    }

    /// Times of requests: from 0.5 ms to 65 s.
    pub fn long_times(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (0.0005, 2.0, 18))
    }

    /// Rows of steps: from 1 to 2048.
    pub fn rows(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (1.0, 2.0, 12))
    }

    /// All that was made, to be shown.
    pub fn registry(self) -> Registry {
        self.registry
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: (f64, f64, u16)) -> Histogram {
        let (first, factor, number) = buckets;
        let buckets = exponential_buckets(first, factor, number);
        self.add(name, help, Histogram::new(buckets))
    }

    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(name, help, metric.clone());
        metric
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn what_is_counted_is_shown_with_the_labels_of_the_service() {
        let mut meters = Meters::new("t-0", "cpu/avx2/bf16", "0123456789abcdef");
        meters.counter("steps", "Steps").inc_by(3);
        meters.gauge("links", "Links").set(2);
        meters.fraction("used", "Used").set(0.5);
        let ends = meters.labelled("ends", "Ends");
        ends.get_or_create(&[("reason", "stop")]).inc();
        meters.rows("rows", "Rows").observe(3.0);
        let mut text = String::new();
        encode(&mut text, &meters.registry()).unwrap();
        let labels = r#"instance="t-0",path="cpu/avx2/bf16",model="0123456789ab""#;
        for line in [
            format!("steps_total{{{labels}}} 3"),
            format!("links{{{labels}}} 2"),
            format!("used{{{labels}}} 0.5"),
            format!(r#"ends_total{{{labels},reason="stop"}} 1"#),
            format!(r#"rows_bucket{{{labels},le="4.0"}} 1"#),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
    }
}
