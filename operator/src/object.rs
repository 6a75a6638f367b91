//! Objects that the operator makes, as values, and how they are told to be its own.

use std::collections::BTreeMap;

use foretoken_crds::Kind;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
        resource::v1::ResourceClaimTemplate,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::ApiResource;
use serde_json::{Value, json};

/// Who makes the objects: value of [`MANAGED_BY`], and the field manager.
pub const OPERATOR: &str = "foretoken-operator";
/// Label of everything that the operator makes.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label that tells router, target and draft apart.
pub const COMPONENT: &str = "app.kubernetes.io/component";
/// Label with the name of the `SpecDecodeDeployment` that an object is for.
pub const OF_DEPLOYMENT: &str = "foretoken.io/deployment";
/// Label with the name of the `SpeculationEndpoint` that an object is for.
pub const OF_ENDPOINT: &str = "foretoken.io/endpoint";
/// Label of targets and drafts with the digest of their revision.
pub const REVISION: &str = "foretoken.io/revision";
/// Label of what a revision is tried with; its value is [`CANARY`].
pub const TRACK: &str = "foretoken.io/track";
/// Value of [`TRACK`], and the end of the name of a Deployment.
pub const CANARY: &str = "canary";
/// Annotation of a Deployment of drafts with the revision that they have.
pub const MADE_OF: &str = "foretoken.io/made-of";
/// Annotation with the digest of what was applied.
pub const APPLIED: &str = "foretoken.io/applied";
/// Finalizer of endpoints that are used: it keeps one that is deleted until its targets have heard.
pub const FINALIZER: &str = "foretoken.io/drain";
/// Annotation of pods with the digest of the configuration they were started with.
pub const CONFIGURATION: &str = "foretoken.io/configuration";

/// Kinds of the objects that the operator makes, in the order in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Made {
    /// Whom pods are.
    ServiceAccount,
    /// What they may ask the API server.
    Role,
    /// That they may.
    RoleBinding,
    /// What services are told.
    ConfigMap,
    /// Where services are found.
    Service,
    /// Who may dial them.
    NetworkPolicy,
    /// Who they are to each other. Asked for by name, never watched.
    Secret,
    /// The same of cert-manager.
    Certificate,
    /// How many may be evicted at once.
    PodDisruptionBudget,
    /// Which devices pods claim. Not followed: nothing computes on devices yet, so that nothing which
    /// wants one is accepted.
    ResourceClaimTemplate,
    /// An endpoint that a deployment brings with it.
    SpeculationEndpoint,
    /// The pods.
    Deployment,
    /// The pods, where a target spans several. A cluster may not have the kind.
    LeaderWorkerSet,
}

impl Made {
    /// All that are followed by watches, certificates only if they are made at all, and
    /// `LeaderWorkerSets` only if there are any.
    pub const ALL: [Self; 11] = [
        Self::ServiceAccount,
        Self::Role,
        Self::RoleBinding,
        Self::ConfigMap,
        Self::Service,
        Self::NetworkPolicy,
        Self::Certificate,
        Self::PodDisruptionBudget,
        Self::SpeculationEndpoint,
        Self::Deployment,
        Self::LeaderWorkerSet,
    ];

    /// Where the API server has them.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::Role => ApiResource::erase::<Role>(&()),
            Self::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Self::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Self::Service => ApiResource::erase::<Service>(&()),
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
            Self::Certificate => ApiResource {
                group: "cert-manager.io".to_owned(),
                version: "v1".to_owned(),
                api_version: "cert-manager.io/v1".to_owned(),
                kind: "Certificate".to_owned(),
                plural: "certificates".to_owned(),
            },
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::ResourceClaimTemplate => ApiResource::erase::<ResourceClaimTemplate>(&()),
            Self::SpeculationEndpoint => {
                ApiResource::erase::<foretoken_crds::SpeculationEndpoint>(&())
            }
            Self::Deployment => ApiResource::erase::<Deployment>(&()),
            Self::LeaderWorkerSet => ApiResource {
                group: "leaderworkerset.x-k8s.io".to_owned(),
                version: "v1".to_owned(),
                api_version: "leaderworkerset.x-k8s.io/v1".to_owned(),
                kind: "LeaderWorkerSet".to_owned(),
                plural: "leaderworkersets".to_owned(),
            },
        }
    }

    /// Whether it makes pods.
    pub fn makes_pods(self) -> bool {
        matches!(self, Self::Deployment | Self::LeaderWorkerSet)
    }
}

/// An object as it is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// What it is.
    pub kind: Made,
    /// Its namespace.
    pub namespace: String,
    /// Its name, unique among those of its kind and namespace.
    pub name: String,
    /// What of its owner it belongs to, as its label [`COMPONENT`] says.
    pub component: String,
    /// All of it, as it is applied.
    pub body: Value,
}

/// Whose objects are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Kind of the owner.
    pub kind: Kind,
    /// Its namespace, and that of all its objects.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from an earlier one of the same name.
    pub uid: String,
}

impl Owner {
    /// The owner that an object of `kind` with `metadata` is.
    pub fn new(kind: Kind, metadata: &ObjectMeta) -> Self {
        Self {
            kind,
            namespace: foretoken_crds::object::namespace(metadata).to_owned(),
            name: foretoken_crds::object::name(metadata).to_owned(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// Its namespace and name.
    pub fn named(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Label that its objects have, with its name as the value.
    pub fn label(&self) -> &'static str {
        match self.kind {
            Kind::SpecDecodeDeployment => OF_DEPLOYMENT,
            Kind::SpeculationEndpoint | Kind::AcceleratorProfile => OF_ENDPOINT,
        }
    }

    /// Labels by which the pods of `component` are found.
    pub fn selector(&self, component: &str) -> BTreeMap<String, String> {
        [
            (COMPONENT.to_owned(), component.to_owned()),
            (self.label().to_owned(), self.name.clone()),
        ]
        .into()
    }

    /// The same as the text that autoscalers and `kubectl` read.
    pub fn selector_text(&self, component: &str) -> String {
        let pairs = self.selector(component);
        let pairs: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.join(",")
    }

    /// Labels of every object of `component`.
    pub fn labels(&self, component: &str) -> BTreeMap<String, String> {
        let mut labels = self.selector(component);
        for (key, value) in [
            ("app.kubernetes.io/name", "foretoken"),
            ("app.kubernetes.io/part-of", "foretoken"),
            ("app.kubernetes.io/instance", &self.name),
            (MANAGED_BY, OPERATOR),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        labels
    }

    /// An object of `component` called `name`, with `content` beside its metadata.
    pub fn object(&self, kind: Made, component: &str, name: &str, content: &Value) -> Object {
        let ApiResource {
            api_version,
            kind: kind_name,
            ..
        } = kind.resource();
        let mut body = json!({
            "apiVersion": api_version,
            "kind": kind_name,
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "labels": self.labels(component),
                "ownerReferences": [{
                    "apiVersion": foretoken_crds::API_VERSION,
                    "kind": self.kind.name(),
                    "name": self.name,
                    "uid": self.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
        });
        if let (Some(body), Some(content)) = (body.as_object_mut(), content.as_object()) {
            for (key, value) in content {
                body.insert(key.clone(), value.clone());
            }
        }
        let digest = digest(&body);
        body["metadata"]["annotations"] = json!({ APPLIED: digest });
        Object {
            kind,
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            component: component.to_owned(),
            body,
        }
    }
}

/// A digest of `value`, short enough for an annotation. Maps have one order, so equal values have
/// equal digests.
pub fn digest(value: &Value) -> String {
    let hash = blake3::hash(value.to_string().as_bytes()).to_hex();
    hash.as_str()[..16].to_owned()
}
