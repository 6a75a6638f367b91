//! Metrics, registered as they are made.

use std::{
    borrow::Cow,
    sync::atomic::AtomicU64,
    time::{SystemTime, UNIX_EPOCH},
};

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
/// A counter of seconds, or of other fractions.
pub type Sum = Counter<f64, AtomicU64>;
/// Fractions of what has names of its own, under one label.
pub type NamedFraction = Family<[(&'static str, String); 1], Fraction>;
/// A counter with one label.
pub type Labelled = Family<Label, Counter>;
/// A counter of fractions with one label.
pub type LabelledSum = Family<Label, Sum>;
/// A histogram with one label.
pub type LabelledHistogram = Family<Label, Histogram, fn() -> Histogram>;
/// A counter for each of a few numbers.
pub type Numbered = Family<[(&'static str, u32); 1], Counter>;

/// A label and its value.
type Label = [(&'static str, &'static str); 1];

/// When a service began, by the name that Prometheus' own libraries give it.
pub const START: &str = "process_start_time_seconds";

/// Ranks and places: the first ones one by one.
const RANKS: [f64; 12] = [
    1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0,
];

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
        let mut meters = Self {
            registry: Registry::with_labels(labels.into_iter().map(owned)),
        };
        let help = "When the service began, in seconds since 1970";
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let began: Fraction = meters.add(START, help, Gauge::default());
        began.set(now.unwrap_or_default().as_secs_f64());
        meters
    }

    /// What only rises.
    pub fn counter(&mut self, name: &str, help: &str) -> Counter {
        self.add(name, help, Counter::default())
    }

    /// What only rises, counted apart by one label.
    pub fn labelled(&mut self, name: &str, help: &str) -> Labelled {
        self.add(name, help, Labelled::default())
    }

    /// What only rises, in fractions (of seconds, for example), counted apart by one label.
    pub fn labelled_sum(&mut self, name: &str, help: &str) -> LabelledSum {
        self.add(name, help, LabelledSum::default())
    }

    /// What only rises, counted apart by a small number.
    pub fn numbered(&mut self, name: &str, help: &str) -> Numbered {
        self.add(name, help, Numbered::default())
    }

    /// What rises and falls.
    pub fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.add(name, help, Gauge::default())
    }

    /// What moves between 0 and 1.
    pub fn fraction(&mut self, name: &str, help: &str) -> Fraction {
        self.add(name, help, Fraction::default())
    }

    /// What moves between 0 and 1, for each name apart.
    pub fn named_fraction(&mut self, name: &str, help: &str) -> NamedFraction {
        self.add(name, help, NamedFraction::default())
    }

    /// Times of steps and messages: from 20 us to 86 s.
    pub fn short_times(&mut self, name: &str, help: &str) -> Histogram {
        self.add(name, help, short_times())
    }

    /// The same, apart by one label.
    pub fn labelled_short_times(&mut self, name: &str, help: &str) -> LabelledHistogram {
        let family = LabelledHistogram::new_with_constructor(short_times);
        self.add(name, help, family)
    }

    /// Times of requests: from 0.5 ms to 70 minutes.
    pub fn long_times(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (0.0005, 2.0, 24))
    }

    /// Rows of steps: from 1 to 2048.
    pub fn rows(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (1.0, 2.0, 12))
    }

    /// Tokens of requests: from 1 to 131,072.
    pub fn tokens(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (1.0, 2.0, 18))
    }

    /// Ranks, from 1: the first ones one by one, up to 32.
    pub fn ranks(&mut self, name: &str, help: &str) -> Histogram {
        self.add(name, help, Histogram::new(RANKS))
    }

    /// Bytes of messages: from 32 to 70,000.
    pub fn bytes(&mut self, name: &str, help: &str) -> Histogram {
        self.histogram(name, help, (32.0, 1.5, 20))
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

fn short_times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_02, 1.8, 27))
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
        let shares = meters.named_fraction("shares", "Shares");
        shares
            .get_or_create_owned(&[("of", "x".to_owned())])
            .set(0.25);
        let ends = meters.labelled("ends", "Ends");
        ends.get_or_create(&[("reason", "stop")]).inc();
        meters.rows("rows", "Rows").observe(3.0);
        meters.ranks("ranks", "Ranks").observe(7.0);
        meters.bytes("bytes", "Bytes").observe(33.0);
        let sums = meters.labelled_sum("seconds", "Seconds");
        sums.get_or_create(&[("kind", "ahead")]).inc_by(0.25);
        let places = meters.numbered("places", "Places");
        places.get_or_create(&[("position", 2)]).inc();
        let times = meters.labelled_short_times("times", "Times");
        times.get_or_create(&[("source", "ahead")]).observe(0.5);
        let mut text = String::new();
        encode(&mut text, &meters.registry()).unwrap();
        let labels = r#"instance="t-0",path="cpu/avx2/bf16",model="0123456789ab""#;
        for line in [
            format!("steps_total{{{labels}}} 3"),
            format!("links{{{labels}}} 2"),
            format!("used{{{labels}}} 0.5"),
            format!(r#"shares{{{labels},of="x"}} 0.25"#),
            format!(r#"ends_total{{{labels},reason="stop"}} 1"#),
            format!(r#"rows_bucket{{{labels},le="4.0"}} 1"#),
            format!(r#"ranks_bucket{{{labels},le="8.0"}} 1"#),
            format!(r#"bytes_bucket{{{labels},le="48.0"}} 1"#),
            format!(r#"seconds_total{{{labels},kind="ahead"}} 0.25"#),
            format!(r#"places_total{{{labels},position="2"}} 1"#),
            format!(r#"times_sum{{{labels},source="ahead"}} 0.5"#),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
    }
}
