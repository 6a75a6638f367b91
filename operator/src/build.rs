//! What is wanted in a cluster, from what objects say. Pure: nothing here asks anybody.
//!
//! ```text
//! SpeculationEndpoint ──> NAME-draft: ServiceAccount, ConfigMap, Service, NetworkPolicy, PodDisruptionBudget, Deployment
//! SpecDecodeDeployment ─> NAME-target, NAME-router: the same of each
//!                         NAME-router: Role, RoleBinding
//!                         NAME-registry: ConfigMap with who exists
//!                         NAME, NAME-2 ..: SpeculationEndpoints of its templates
//! profile with a claim ──> ResourceClaimTemplate of NAME-draft, NAME-target
//! ```
//!
//! One pod is one replica, but for targets that span pods: these are groups of a `LeaderWorkerSet`
//! (`NAME-group`, with a `NetworkPolicy` `NAME-worker`) instead of pods of a Deployment. The registry
//! names headless Services: targets resolve the names of endpoints, and routers ask the API server
//! which targets are ready behind theirs; it is read again when it changes, and no pod restarts for it.
//! All else that services are told is read when they start, so its digest is part of the pods.

mod deployment;
mod devices;
mod endpoint;
mod group;
mod model;
mod pod;

use foretoken_protocol::{
    Address,
    tls::{Role, ServiceName, TlsFiles},
};
use k8s_openapi::jiff::SignedDuration;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    authority::LEAF_LIFE,
    object::{Made, Object, Owner},
    settings::{Certificates, Issuer, Settings},
};

pub use deployment::{Given, deployment, url};
pub(crate) use endpoint::access;
pub use endpoint::{Canary, GivenToEndpoint, endpoint};
pub(crate) use group::{LONGEST_NAME, name as group_name};
pub use pod::PatchError;

/// Port on which targets answer routers.
const GENERATE: u16 = 7000;
/// Port on which endpoints answer targets.
const LINK: u16 = 7100;
/// Port of metrics, health and rounds.
pub(crate) const METRICS: u16 = 9100;
/// Port of the HTTP API.
const HTTP: u16 = 8000;
/// File of a service's configuration.
const FILE: &str = "service.json";
/// File that says who may use an endpoint.
const GRANTS: &str = "grants.json";
/// Label of the `ConfigMap` with who exists, in place of a component's.
const WHO_EXISTS: &str = "registry";
/// Label of the `ConfigMap` with who may use an endpoint.
const WHO_MAY: &str = "grants";
/// File that says who exists.
const REGISTRY: &str = "registry.json";

/// Group of the API that says who may do what.
const RBAC: &str = "rbac.authorization.k8s.io";

/// Every address of a pod, of IPv4 and of IPv6.
const EVERYWHERE: &str = "::";

/// Component of targets; of those that span pods, of their leaders.
pub const TARGET: &str = "target";
/// Component of the other pods of a target that spans several.
pub const WORKER: &str = "worker";
/// Component of routers.
pub const ROUTER: &str = "router";
/// Component of drafts.
pub const DRAFT: &str = "draft";

/// `port` of every address of a pod.
fn everywhere(port: u16) -> Address {
    Address::Tcp {
        host: EVERYWHERE.into(),
        port,
    }
}

/// The same for HTTP, as `HOST:PORT`.
fn http_everywhere(port: u16) -> String {
    format!("[{EVERYWHERE}]:{port}")
}

/// Where pods find the Service called `name`. Resolvers of pods complete it by the cluster's domain.
fn service_address(name: &str, namespace: &str, port: u16) -> Address {
    Address::Tcp {
        host: format!("{name}.{namespace}.svc"),
        port,
    }
}

/// Whether pods read `object` again while they run; they start anew with what they read at their start.
pub(crate) fn is_read_again(object: &Object) -> bool {
    object.kind == Made::ConfigMap && [WHO_EXISTS, WHO_MAY].contains(&object.component.as_str())
}

/// Name of the Secret with the certificate of a component.
pub fn secret_name(owner: &Owner, component: &str) -> String {
    format!("{}-{component}-tls", owner.name)
}

/// Whom the pods of a component are, in their certificates.
pub fn identity(owner: &Owner, component: &str) -> String {
    let role = match component {
        DRAFT => Role::Draft,
        ROUTER => Role::Router,
        _ => Role::Target,
    };
    let service = ServiceName {
        namespace: owner.namespace.clone(),
        role,
        name: owner.name.clone(),
    };
    service.to_string()
}

/// Files of the certificate of a pod.
fn tls(settings: &Settings) -> Option<TlsFiles> {
    let file = |name: &str| format!("{}/tls/{name}", pod::CONFIGURATIONS).into();
    settings.certificates.are_used().then(|| TlsFiles {
        certificate: file("tls.crt"),
        key: file("tls.key"),
        ca: file("ca.crt"),
    })
}

/// Text of a file.
fn file(value: &impl Serialize) -> String {
    // Numbers, texts and maps with texts as keys: JSON can say all of it.
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// What the user's object decides, which no change of a default may replace.
const DECIDED: [&str; 6] = [
    "policy",
    "lookahead",
    "ssd",
    "verification",
    "on_loss",
    "trees",
];

/// What of `config` is decided or not the default: all else is left to the image that runs, and a new
/// one with more to configure starts no pod anew.
fn told<T: Serialize + Default>(config: &T) -> Value {
    let value = |config: &T| serde_json::to_value(config).unwrap_or_default();
    let defaults = value(&T::default());
    let mut told = value(config);
    if let Value::Object(fields) = &mut told {
        fields.retain(|name, value| {
            DECIDED.contains(&name.as_str()) || defaults.get(name) != Some(value)
        });
    }
    told
}

/// Objects that each component has one of.
struct Component<'a> {
    owner: &'a Owner,
    /// `target`, `draft` or `router`.
    component: &'static str,
}

impl Component<'_> {
    fn name(&self) -> String {
        format!("{}-{}", self.owner.name, self.component)
    }

    fn object(&self, kind: Made, content: &Value) -> Object {
        self.owner
            .object(kind, self.component, &self.name(), content)
    }

    fn service_account(&self) -> Object {
        let content = json!({"automountServiceAccountToken": false});
        self.object(Made::ServiceAccount, &content)
    }

    /// What whoever finds others by the cluster may ask it: who is ready behind the Services of its own
    /// namespace, and nothing else.
    fn discovery(&self) -> [Object; 2] {
        let name = self.name();
        let rules = json!({"rules": [{
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }]});
        let binding = json!({
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{
                "kind": "ServiceAccount",
                "name": name,
                "namespace": self.owner.namespace,
            }],
        });
        [
            self.object(Made::Role, &rules),
            self.object(Made::RoleBinding, &binding),
        ]
    }

    fn config_map(&self, text: &str) -> Object {
        self.object(Made::ConfigMap, &json!({"data": {FILE: text}}))
    }

    /// What cert-manager is asked for, if it is to be.
    fn certificate(&self, settings: &Settings) -> Option<Object> {
        let Certificates::CertManager(Issuer { kind, name }) = &settings.certificates else {
            return None;
        };
        let hours = |life: SignedDuration| format!("{}h0m0s", life.as_hours());
        let content = json!({"spec": {
            "secretName": secret_name(self.owner, self.component),
            // As the operator's own have them, which may take its place.
            "secretTemplate": {"labels": self.owner.labels(self.component)},
            "uris": [identity(self.owner, self.component)],
            "usages": ["digital signature", "server auth", "client auth"],
            "duration": hours(LEAF_LIFE),
            "renewBefore": hours(LEAF_LIFE / 3),
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "issuerRef": {"group": "cert-manager.io", "kind": kind, "name": name},
        }});
        Some(self.object(Made::Certificate, &content))
    }

    /// A Service whose name stands for every ready pod, one address each.
    fn headless(&self, ports: &[(&str, u16)]) -> Object {
        let content = json!({"spec": {
            "clusterIP": "None",
            "selector": self.owner.selector(self.component),
            "ports": service_ports(ports),
        }});
        self.object(Made::Service, &content)
    }

    /// One pod at a time may be evicted, and any that serves nobody: a node is drained of those too.
    fn disruption_budget(&self) -> Object {
        let content = json!({"spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": self.owner.selector(self.component)},
        }});
        self.object(Made::PodDisruptionBudget, &content)
    }

    /// Who may dial `port`, all if nobody is named, besides metrics, which all of the cluster may
    /// read.
    fn network_policy(&self, port: u16, from: Option<&Value>) -> Object {
        let ports = |port: u16| json!([{"protocol": "TCP", "port": port}]);
        let ingress = match from {
            Some(from) => json!([{"ports": ports(port), "from": from}, {"ports": ports(METRICS)}]),
            None => json!([{"ports": ports(port)}]),
        };
        let content = json!({"spec": {
            "podSelector": {"matchLabels": self.owner.selector(self.component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }});
        self.object(Made::NetworkPolicy, &content)
    }

    /// `replicas` pods; `scarce`: there may be no devices for one more.
    fn deployment(&self, replicas: u32, template: &Value, scarce: bool) -> Object {
        // A pod more than wanted needs devices that may not be there.
        let (surge, unavailable) = if scarce { (0, 1) } else { (1, 0) };
        let content = json!({"spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": self.owner.selector(self.component)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
            },
            "template": template,
        }});
        self.object(Made::Deployment, &content)
    }
}

fn service_ports(ports: &[(&str, u16)]) -> Value {
    let port = |(name, port): &(&str, u16)| json!({"name": name, "port": port, "targetPort": name, "protocol": "TCP"});
    ports.iter().map(port).collect()
}
