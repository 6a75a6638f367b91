//! Where services send what they record of requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{COLLECTOR, MAX_TEXT},
    object::plainly,
};

/// What services record of requests, and where it goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TelemetrySpec {
    /// A collector of OpenTelemetry, which is sent traces.
    pub otlp: Otlp,
    /// Share of the requests that are recorded, 0 to 1. A caller who says whether its trace is
    /// recorded (`traceparent`) is followed whatever the share.
    #[serde(default = "tenth", serialize_with = "plainly")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub sampling_ratio: f64,
}

/// A collector that takes OTLP over gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Otlp {
    /// Its address, `http://HOST:PORT`; the port is usually 4317.
    #[schemars(length(min = 1, max = MAX_TEXT), regex(pattern = COLLECTOR))]
    pub endpoint: String,
}

fn tenth() -> f64 {
    0.1
}
