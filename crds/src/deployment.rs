//! `SpecDecodeDeployment`: a model that is served, and how it speculates.
#![expect(
    clippy::duplicated_attributes,
    reason = "columns of one type repeat it, which the lint takes for one attribute said twice"
)]

use foretoken_speculation::proposal::Proposer;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{
        DOMAIN, LABEL, MAX_ITEMS, MAX_LABEL, MAX_PREFIXED, MAX_REPLICAS, MAX_TEXT, ORIGIN, rule,
    },
    endpoint::EndpointSpec,
    memory::{Memory, memory},
    object::{self, Accelerator, DataType, ModelSource, PodPatch, Scaling, Selector},
    policy::PolicySpec,
    status::DeploymentStatus,
    telemetry::TelemetrySpec,
};

impl SpecDecodeDeployment {
    /// Name that clients use for the model.
    pub fn served_name(&self) -> &str {
        let own = self.spec.model.served_name.as_deref();
        own.unwrap_or_else(|| object::name(&self.metadata))
    }

    /// The endpoints that it brings with it, by the names that they get in its namespace: its own,
    /// and that with a number from the second one on.
    pub fn templates(&self) -> Vec<(String, &EndpointSpec)> {
        let speculation = self.spec.speculation.as_ref();
        let sources = speculation.map_or(&[][..], |speculation| &speculation.endpoints[..]);
        let name = object::name(&self.metadata);
        let specs = sources.iter().filter_map(|source| source.template.as_ref());
        let numbered = specs.enumerate().map(|(index, spec)| match index {
            0 => (name.to_owned(), spec),
            _ => (format!("{name}-{}", index + 1), spec),
        });
        numbered.collect()
    }
}

/// What a deployment asks for.
#[derive(Clone, Debug, Default, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "foretoken.io",
    version = "v1alpha1",
    kind = "SpecDecodeDeployment",
    plural = "specdecodedeployments",
    shortname = "sdd",
    category = "foretoken",
    namespaced,
    doc = "A model that is served, and how it speculates. What speculates never changes a token.",
    status = "DeploymentStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.target.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Policy",
        type_ = "string",
        json_path = ".spec.speculation.policy.type",
        description = "What is asked for"
    ),
    printcolumn(
        name = "Targets",
        type_ = "string",
        json_path = ".status.targets",
        description = "Ready and wanted replicas of the target"
    ),
    printcolumn(
        name = "Speculation",
        type_ = "string",
        json_path = ".status.speculation.state",
        description = "Whether endpoints draft for it"
    ),
    printcolumn(
        name = "AccLen",
        type_ = "number",
        json_path = ".status.speculation.acceptanceLength",
        description = "Tokens that a round decides, as measured"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether a token can be served"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.speculation) || self.speculation.policy.type != 'SpecPipe' || \
     (has(self.target.parallelism) && self.target.parallelism.pipeline >= 2)",
    ".target.parallelism.pipeline",
    "must be at least 2 with policy SpecPipe",
)]))]
pub struct DeploymentSpec {
    /// The model that decides every token.
    pub model: ModelSource,
    /// Its replicas.
    #[serde(default)]
    pub target: TargetSpec,
    /// How it speculates; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationSpec>,
    /// Who speaks HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterSpec>,
    /// What its router and targets record of requests; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetrySpec>,
}

/// Replicas of the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.replicas) || !has(self.scaling)",
    ".scaling",
    "is not allowed beside replicas: choose one",
)]))]
pub struct TargetSpec {
    /// How many; absent: 1, unless `scaling` says. Where it is absent, an
    /// autoscaler of the cluster finds nothing to scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_REPLICAS))]
    pub replicas: Option<u32>,
    /// A number that follows the load, instead of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling<TargetMetric>>,
    /// How one replica is spread over devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<TargetParallelism>,
    /// What it runs on; absent: CPU cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// How weights are kept.
    #[serde(default)]
    pub dtype: DataType,
    /// What a replica has for keys and values, which bounds how long its requests may be, alone and
    /// all together; absent: `512Mi`. A container's limit of memory has to have room for it
    /// beside the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "memory")]
    pub kv_cache_memory: Option<Memory>,
    /// What is added to its pods in a cluster; the container is called `target`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodPatch>,
}

/// What the number of targets follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TargetMetric {
    /// How long requests wait to be admitted.
    #[default]
    QueueTime,
    /// Share of the key-value pages in use.
    PageUse,
}

/// Devices of one target replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetParallelism {
    /// Devices that share each layer.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub tensor: u32,
    /// Stages the layers are spread over.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub pipeline: u32,
}

impl Default for TargetParallelism {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
        }
    }
}

/// Serde's default of counts.
pub(crate) fn one() -> u32 {
    1
}

/// How a deployment speculates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "self.policy.type == 'Autoregressive' || self.onLoss == 'Local' || \
         (has(self.endpoints) && size(self.endpoints) > 0)",
        ".endpoints",
        "must name at least one endpoint, since the policy drafts; or set onLoss: Local",
    ),
    rule(
        "!has(self.support) || self.verification == 'Rejection'",
        ".support",
        "is only allowed with verification: Rejection, which draws proposals among so many tokens",
    ),
]))]
pub struct SpeculationSpec {
    /// Who proposes, and when the target verifies.
    pub policy: PolicySpec,
    /// The rule by which proposals are accepted.
    #[serde(default)]
    pub verification: Verification,
    /// With `Rejection`: likeliest tokens that a proposal is drawn among, and that are sent with
    /// it; absent: 16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = Proposer::MAX_SUPPORT))]
    pub support: Option<u32>,
    /// Where drafts come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_ITEMS))]
    pub endpoints: Vec<EndpointSource>,
    /// What happens while no endpoint answers; never an error.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// Whether a window may be a tree of tokens.
    #[serde(default)]
    pub trees: Trees,
}

/// Whether endpoints may propose trees of tokens: second choices beside a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Trees {
    /// Chains only. (`Off` would be a boolean to `kubectl`.)
    #[default]
    Never,
    /// Where their expected tokens are worth the time of their rows, and as long as rounds with them
    /// are not worse than rounds without.
    Auto,
}

/// The rule by which proposals are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Verification {
    /// A proposal is accepted if it is what the target samples with the request's own noise.
    #[default]
    Coupled,
    /// Leviathan et al. 2023: exact in distribution, needs the draft's probabilities.
    Rejection,
}

/// What a target does without an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnLoss {
    /// Decodes plainly.
    #[default]
    Plain,
    /// Proposes from the text so far, and from what was said before, as far as that pays.
    Local,
}

/// One source of drafts: exactly one of `name`, `selector`, `template`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "[has(self.name), has(self.selector), has(self.template)].filter(x, x).size() == 1",
        "",
        "must have exactly one of name, selector, template",
    ),
    rule(
        "!has(self.__namespace__) || !has(self.template)",
        ".namespace",
        "is not allowed beside template: it runs in the deployment's own",
    ),
]))]
pub struct EndpointSource {
    /// Name of a `SpeculationEndpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub name: Option<String>,
    /// Its namespace; absent: the deployment's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub namespace: Option<String>,
    /// Share of sessions among the sources.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// Endpoints with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// An endpoint of this deployment's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<EndpointSpec>,
}

/// The router of a deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.exposure) || !has(self.gateway)",
    ".gateway",
    "is not allowed beside exposure: choose one",
)]))]
pub struct RouterSpec {
    /// How many.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = MAX_REPLICAS))]
    pub replicas: u32,
    /// How it is reached in a cluster; absent, and without `gateway`: a Service inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Routes of the Gateway API, instead of `exposure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,
    /// Keys of which requests must bring one (`Authorization: Bearer KEY`); absent: none is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_keys: Option<ApiKeys>,
    /// Origins whose web pages may ask (CORS), as browsers send them, such as
    /// `https://chat.example.com`; `*`: all. Absent: only pages that the user's own machine serves
    /// (`localhost`, `127.0.0.1`, `[::1]`), which always may. With `foretoken up`, `--allowed-origin`
    /// takes their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "origins")]
    pub allowed_origins: Vec<String>,
    /// What is added to its pods in a cluster; the container is called `router`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodPatch>,
}

/// Schema of origins. Browsers leave out the port that goes without saying, so one that has it would
/// allow nobody.
fn origins(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_ITEMS,
        "items": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_TEXT,
            "pattern": ORIGIN,
            "x-kubernetes-validations": [rule(
                "!self.matches('^(http://.*:80|https://.*:443)$')",
                "",
                "must be without its scheme's own port (80 of http, 443 of https)",
            )],
        },
    })
}

/// Where API keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeys {
    /// A Secret of the deployment's namespace, whose every entry has keys, one on each line. Pods wait
    /// until it exists; changes are read within a minute or two. `foretoken up` takes keys as flags
    /// instead.
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = DOMAIN))]
    pub secret_name: String,
}

impl Default for RouterSpec {
    fn default() -> Self {
        Self {
            replicas: 1,
            exposure: None,
            gateway: None,
            api_keys: None,
            allowed_origins: Vec::new(),
            template: None,
        }
    }
}

/// Routes of the Gateway API to a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gateway {
    /// Gateways the routes are attached to.
    #[schemars(length(min = 1, max = 16))]
    pub parent_refs: Vec<GatewayReference>,
}

/// A gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayReference {
    /// Its name.
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = DOMAIN))]
    pub name: String,
    /// Its namespace; absent: the deployment's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub namespace: Option<String>,
    /// Its listener; absent: all that allow the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = DOMAIN))]
    pub section_name: Option<String>,
}

/// How a router is reached in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Type of its Service.
    #[serde(rename = "type", default)]
    pub kind: ExposureType,
}

/// Type of a router's Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExposureType {
    /// Inside the cluster only.
    #[default]
    ClusterIP,
    /// On a port of every node.
    NodePort,
    /// Behind the cloud's load balancer.
    LoadBalancer,
}
