//! Where traces go, and which: the standard variables of the environment.
//!
//! <https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>. A value
//! that makes no sense is warned of and left, as the standard asks: traces never keep a service
//! from starting. Headers (`OTEL_EXPORTER_OTLP_HEADERS`) are read by the exporter itself.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, trace::Sampler};

/// Most spans that wait to be sent.
const QUEUE: usize = 4096;
/// How long spans are gathered before they are sent.
const GATHER: Duration = Duration::from_secs(1);
/// How long a collector may take for what it is sent at once, by the standard.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which requests are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Share of traces that begin here which are recorded, 0 to 1. By the trace's name, so that
    /// all services that see it agree.
    pub ratio: f64,
    /// Whether a caller who says whether its trace is recorded is followed.
    pub follows_caller: bool,
}

/// Where a service's traces go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where a collector takes OTLP over gRPC: `http://host:4317`.
    pub endpoint: String,
    /// Which requests are recorded.
    pub sampling: Sampling,
    /// What the service says of itself, by name; later ones win.
    pub attributes: Vec<(String, String)>,
    /// Most spans that wait to be sent.
    pub queue: usize,
    /// How long spans are gathered before they are sent.
    pub gather: Duration,
    /// How long the collector may take for what it is sent at once.
    pub patience: Duration,
}

impl Settings {
    /// Everything about `endpoint` as it is unless somebody says otherwise, for the service called
    /// `service` (`router`, `target` or `draft`) and its replica called `instance`.
    pub fn new(endpoint: &str, service: &str, instance: &str) -> Self {
        let attribute = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Self {
            endpoint: endpoint.to_owned(),
            sampling: Sampling {
                ratio: 1.0,
                follows_caller: true,
            },
            attributes: vec![
                attribute("service.name", &format!("foretoken-{service}")),
                attribute("service.instance.id", instance),
                attribute("service.version", env!("CARGO_PKG_VERSION")),
            ],
            queue: QUEUE,
            gather: GATHER,
            patience: PATIENCE,
        }
    }

    /// What the environment says, `variable` being its reader. None if it names no collector, or
    /// says that nothing is to be sent.
    pub fn from_environment(
        service: &str,
        instance: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let variable = |name: &str| {
            let value = variable(name)?;
            let value = value.trim();
            (!value.is_empty()).then(|| value.to_owned())
        };
        let is = |name, wanted: &str| {
            variable(name).is_some_and(|value| value.eq_ignore_ascii_case(wanted))
        };
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return None;
        }
        let of_signal = |name: &str| {
            variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
                .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let endpoint = of_signal("ENDPOINT")?;
        if let Some(protocol) = of_signal("PROTOCOL").filter(|protocol| protocol != "grpc") {
            tracing::warn!(
                protocol,
                "traces are sent over gRPC only: give a collector's gRPC port (4317) and \
                 OTEL_EXPORTER_OTLP_PROTOCOL=grpc; no traces are sent"
            );
            return None;
        }
        let mut settings = Self::new(&endpoint, service, instance);
        if let Some(name) = variable("OTEL_TRACES_SAMPLER") {
            let argument = variable("OTEL_TRACES_SAMPLER_ARG");
            settings.sampling = sampling(&name, argument.as_deref()).unwrap_or_else(|| {
                tracing::warn!(
                    sampler = name,
                    argument,
                    "unknown sampler; all traces are recorded"
                );
                settings.sampling
            });
        }
        let given = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let pairs = given.split(',').filter_map(|pair| pair.split_once('='));
        let pairs = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        settings.attributes.extend(pairs);
        if let Some(name) = variable("OTEL_SERVICE_NAME") {
            settings.attributes.push(("service.name".into(), name));
        }
        let number = |value: Option<String>| value?.parse::<u64>().ok().filter(|&n| n > 0);
        if let Some(spans) = number(variable("OTEL_BSP_MAX_QUEUE_SIZE")) {
            settings.queue = spans.min(1 << 20) as usize;
        }
        if let Some(milliseconds) = number(variable("OTEL_BSP_SCHEDULE_DELAY")) {
            settings.gather = Duration::from_millis(milliseconds);
        }
        if let Some(milliseconds) = number(of_signal("TIMEOUT")) {
            settings.patience = Duration::from_millis(milliseconds);
        }
        Some(settings)
    }

    pub(crate) fn sampler(&self) -> Sampler {
        let Sampling {
            ratio,
            follows_caller,
        } = self.sampling;
        let root = Sampler::TraceIdRatioBased(ratio);
        if follows_caller {
            Sampler::ParentBased(Box::new(root))
        } else {
            root
        }
    }

    pub(crate) fn resource(&self) -> Resource {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
        Resource::builder_empty()
            .with_attributes(attributes)
            .build()
    }
}

/// The sampler of this name; none if there is no such.
fn sampling(name: &str, argument: Option<&str>) -> Option<Sampling> {
    let (name, follows_caller) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name, false),
    };
    let ratio = match name {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => argument.map_or(Some(1.0), |ratio| ratio.parse().ok())?,
        _ => return None,
    };
    (0.0..=1.0).contains(&ratio).then_some(Sampling {
        ratio,
        follows_caller,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Settings> {
        let variable = |name: &str| {
            let mut variables = variables.iter();
            let found = variables.find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment("target", "t-0", variable)
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");

    #[test]
    fn without_a_collector_nothing_is_sent() {
        for variables in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
            &[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
        ] {
            assert_eq!(read(variables), None, "{variables:?}");
        }
    }

    #[test]
    fn a_collector_is_enough_and_that_of_traces_comes_first() {
        let settings = read(&[ENDPOINT]).unwrap();
        assert_eq!(settings, Settings::new("http://c:4317", "target", "t-0"));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317");
        assert_eq!(read(&[ENDPOINT, own]).unwrap().endpoint, own.1);
    }

    #[test]
    fn samplers_have_their_standard_names() {
        let sampling = |name, ratio| {
            let variables = [
                ENDPOINT,
                ("OTEL_TRACES_SAMPLER", name),
                ("OTEL_TRACES_SAMPLER_ARG", ratio),
            ];
            let Sampling {
                ratio,
                follows_caller,
            } = read(&variables).unwrap().sampling;
            (ratio, follows_caller)
        };
        assert_eq!(sampling("always_on", ""), (1.0, false));
        assert_eq!(sampling("parentbased_always_off", ""), (0.0, true));
        assert_eq!(sampling("traceidratio", "0.25"), (0.25, false));
        assert_eq!(sampling("parentbased_traceidratio", "0.25"), (0.25, true));
        assert_eq!(sampling("parentbased_traceidratio", ""), (1.0, true));
        for (name, ratio) in [
            ("jaeger_remote", ""),
            ("traceidratio", "2"),
            ("traceidratio", "x"),
        ] {
            assert_eq!(sampling(name, ratio), (1.0, true), "{name} {ratio}");
        }
    }

    #[test]
    fn what_the_environment_says_of_the_service_wins() {
        let settings = read(&[
            ENDPOINT,
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "k8s.pod.name=p-1, service.name=a,junk",
            ),
            ("OTEL_SERVICE_NAME", "b"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        ]);
        let settings = settings.unwrap();
        let resource = settings.resource();
        let of = |name: &str| resource.get(&name.to_owned().into()).map(|v| v.to_string());
        assert_eq!(of("service.name").as_deref(), Some("b"));
        assert_eq!(of("k8s.pod.name").as_deref(), Some("p-1"));
        assert_eq!(of("service.instance.id").as_deref(), Some("t-0"));
        assert_eq!((settings.queue, settings.gather.as_millis()), (16, 20));
        let limits = [
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "30000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "15000"),
        ];
        for (given, seconds) in [(1, 10), (2, 30), (3, 15)] {
            let settings = read(&limits[..given]).unwrap();
            assert_eq!(settings.patience, Duration::from_secs(seconds));
        }
    }
}
