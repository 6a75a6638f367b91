//! Pods: what all of them have in common.

use std::{collections::BTreeMap, time::Duration};

use foretoken_crds::object::PodPatch;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::{ROUTER, TARGET, devices::Devices, model::ModelVolume};
use crate::{
    merge::merge,
    object::{CONFIGURATION, Owner},
    settings::Settings,
};

/// Whom processes run as: a number, since `runAsNonRoot` reads no names.
const USER: u32 = 65532;
/// How long a pod may take to go after it has drained.
const AFTER_DRAIN: Duration = Duration::from_secs(30);
/// How long a pod that was told to go still serves: until then nobody may have heard of it.
const HEARD: Duration = Duration::from_secs(5);
/// How long a model may take to load, in seconds.
const LOADING: u32 = 3600;
/// Volume with the token of a pod that has one.
const TOKEN: &str = "discovery";
/// Where clients of the API server look for it.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Who may read files of Secrets: the processes of the pod, by their group.
const SECRET_MODE: u32 = 0o440;
/// Where configurations are mounted.
pub(super) const CONFIGURATIONS: &str = "/etc/foretoken";

/// What pods of a component are made of.
pub(super) struct Pod<'a> {
    /// Whose they are.
    pub(super) owner: &'a Owner,
    /// `target`, `draft` or `router`: the command, the container and the component.
    pub(super) component: &'static str,
    /// Arguments after the command.
    pub(super) args: Vec<String>,
    /// Ports by name, the first one for probes.
    pub(super) ports: Vec<(&'static str, u16)>,
    /// The model.
    pub(super) model: ModelVolume,
    /// Devices, and how many of them.
    pub(super) devices: Devices<'a>,
    /// Config maps, and the folders of [`CONFIGURATIONS`] they are mounted at.
    pub(super) config_maps: Vec<(String, &'static str)>,
    /// Secrets, and the folders of [`CONFIGURATIONS`] they are mounted at.
    pub(super) secrets: Vec<(String, &'static str)>,
    /// Digest of what is only read when a pod starts.
    pub(super) digest: String,
    /// How long the service may take to drain.
    pub(super) drain: Duration,
    /// Whether it asks the API server who is ready, and so needs to say who it is.
    pub(super) discovers: bool,
    /// Where it sends traces: variables of its environment.
    pub(super) traces: Vec<(&'static str, String)>,
    /// Labels of its own.
    pub(super) marks: Vec<(&'static str, String)>,
    /// What the user adds.
    pub(super) patch: Option<&'a PodPatch>,
}

/// The Secret with the certificate of a component, if there is one.
pub(super) fn tls_secret(
    owner: &Owner,
    component: &str,
    settings: &Settings,
) -> Vec<(String, &'static str)> {
    let secret = (super::secret_name(owner, component), "tls");
    let used = settings.certificates.are_used();
    used.then_some(secret).into_iter().collect()
}

/// A patch that makes no pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} makes no pod: {reason}; correct it by `kubectl explain pod.spec`")]
pub struct PatchError {
    /// Where it stands in its object's spec.
    field: &'static str,
    reason: String,
}

impl Pod<'_> {
    /// The template of the pods.
    pub(super) fn template(&self, settings: &Settings) -> Result<Value, PatchError> {
        let mut labels = self.owner.labels(self.component);
        let marks = self.marks.iter();
        labels.extend(marks.map(|(key, value)| ((*key).to_owned(), value.clone())));
        let mut annotations: BTreeMap<String, String> =
            [(CONFIGURATION.to_owned(), self.digest.clone())].into();
        let name = format!("{}-{}", self.owner.name, self.component);
        let mut spec = json!({
            "serviceAccountName": name,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": (HEARD + self.drain + AFTER_DRAIN).as_secs(),
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [{
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": self.owner.selector(self.component)},
            }],
            "containers": [self.container(settings)],
            "volumes": self.volumes(),
        });
        if let Some(init) = &self.model.init {
            spec["initContainers"] = json!([init]);
        }
        self.devices.place(&name, &mut spec);
        if let Some(PodPatch {
            metadata,
            spec: patch,
        }) = self.patch
        {
            if let Some(metadata) = metadata {
                let is_ours = |key: &String| {
                    key.starts_with("foretoken.io/") || key.starts_with("app.kubernetes.io/")
                };
                let theirs = metadata.labels.iter().filter(|(key, _)| !is_ours(key));
                labels.extend(theirs.map(|(key, value)| (key.clone(), value.clone())));
                let theirs = metadata.annotations.iter();
                annotations.extend(theirs.map(|(key, value)| (key.clone(), value.clone())));
            }
            if let Some(patch) = patch {
                merge(&mut spec, patch);
            }
        }
        let template = json!({
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": spec,
        });
        match serde_json::from_value::<PodTemplateSpec>(template.clone()) {
            Ok(_) => Ok(template),
            Err(error) => Err(PatchError {
                field: match self.component {
                    TARGET => "target.template",
                    ROUTER => "router.template",
                    _ => "template",
                },
                reason: error.to_string(),
            }),
        }
    }

    fn container(&self, settings: &Settings) -> Value {
        let mut args = vec![self.component.to_owned()];
        args.extend(self.args.iter().cloned());
        let mut container = container(self.component, settings, &json!(args));
        let ports = self
            .ports
            .iter()
            .map(|(name, port)| json!({"name": name, "containerPort": port, "protocol": "TCP"}));
        container["ports"] = ports.collect();
        container["env"] = self.environment();
        let mounted = self.config_maps.iter().chain(&self.secrets);
        let mounts = mounted.map(|(_, folder)| {
            json!({"name": folder, "mountPath": format!("{CONFIGURATIONS}/{folder}"), "readOnly": true})
        });
        let token = json!({"name": TOKEN, "mountPath": TOKEN_FOLDER, "readOnly": true});
        let token = self.discovers.then_some(token);
        container["volumeMounts"] = mounts.chain(self.model.mount()).chain(token).collect();
        let probed = self.ports.first().map_or("", |(name, _)| name);
        let get = |path: &str| json!({"path": path, "port": probed});
        // A router whose targets are still loading is alive. One that has lost its last target keeps
        // requests until another comes: out of its Service, it would have them refused.
        let (alive, ready) = if self.component == ROUTER {
            ("/live", "/health")
        } else {
            ("/health", "/ready")
        };
        container["startupProbe"] = json!({
            "httpGet": get(alive), "periodSeconds": 1, "failureThreshold": LOADING,
        });
        container["readinessProbe"] = json!({
            "httpGet": get(ready), "periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": 2,
        });
        container["livenessProbe"] = json!({
            "httpGet": get(alive), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
        });
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": HEARD.as_secs()}}});
        container
    }

    fn environment(&self) -> Value {
        let of_pod = |(name, field): (&str, &str)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
        let name = of_pod(("POD_NAME", "metadata.name"));
        if self.traces.is_empty() {
            return json!([name]);
        }
        let rest = [
            ("POD_NAMESPACE", "metadata.namespace"),
            ("POD_UID", "metadata.uid"),
            ("NODE_NAME", "spec.nodeName"),
        ];
        let (owner, component) = (&self.owner.name, self.component);
        let resource = format!(
            "service.instance.id=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),\
             k8s.pod.name=$(POD_NAME),k8s.pod.uid=$(POD_UID),k8s.node.name=$(NODE_NAME),\
             k8s.deployment.name={owner}-{component},k8s.container.name={component}"
        );
        let resource = ("OTEL_RESOURCE_ATTRIBUTES", &resource);
        let traces = self.traces.iter().map(|(name, value)| (*name, value));
        let traces = traces.chain([resource]);
        [name]
            .into_iter()
            .chain(rest.map(of_pod))
            .chain(traces.map(|(name, value)| json!({"name": name, "value": value})))
            .collect()
    }

    fn volumes(&self) -> Value {
        let maps = self.config_maps.iter();
        let secrets = self.secrets.iter();
        maps.map(|(name, folder)| json!({"name": folder, "configMap": {"name": name}}))
            .chain(secrets.map(|(name, folder)| {
                json!({"name": folder, "secret": {"secretName": name, "defaultMode": SECRET_MODE}})
            }))
            .chain(self.model.volume.clone())
            .chain(self.discovers.then(token))
            .collect()
    }
}

/// What a pod shows the API server: a token of its service account, for the one container that mounts
/// it.
fn token() -> Value {
    let namespace = json!({"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}});
    json!({"name": TOKEN, "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]}})
}

/// A container of our image that may do nothing but what it is for.
pub(super) fn container(name: &str, settings: &Settings, args: &Value) -> Value {
    let mut container = json!({
        "name": name,
        "image": settings.image,
        "args": args,
        // What it says last tells why it ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        },
    });
    if let Some(policy) = &settings.image_pull_policy {
        container["imagePullPolicy"] = policy.as_str().into();
    }
    container
}
