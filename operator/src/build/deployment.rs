//! The objects of a `SpecDecodeDeployment`.

use std::{path::PathBuf, time::Duration};

use foretoken_configuration::SIMULATED_TARGET;
use foretoken_crds::{AcceleratorProfile, Kind, SpecDecodeDeployment, deployment::ExposureType};
use foretoken_protocol::tls::Served;
use foretoken_registry::{Directory, EndpointEntry, Pools, RegistryConfig, TargetEntry};
use foretoken_router::{ModelConfig, RouterConfig};
use foretoken_target::TargetConfig;
use serde_json::{Value, json};

use super::{
    Component, FILE, GENERATE, HTTP, LINK, METRICS, PatchError, REGISTRY, ROUTER, TARGET,
    WHO_EXISTS,
    devices::Devices,
    everywhere, file, group, http_everywhere,
    model::ModelVolume,
    pod::{CONFIGURATIONS, Pod, tls_secret},
    service_address, service_ports, told,
};
use crate::{
    object::{Made, Object, Owner, REVISION, digest},
    resolve::Found,
    revision,
    settings::Settings,
    shape::Shape,
};

/// Folder of [`CONFIGURATIONS`] with the files of API keys.
const KEYS: &str = "api-keys";

/// How long a router that is told to go serves those who find no other, while the one that takes its
/// place starts.
const LINGER: Duration = Duration::from_secs(60);

/// What was looked up for a deployment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// The profile that its target names.
    pub profile: Option<&'a AcceleratorProfile>,
    /// The endpoints it means and may use.
    pub endpoints: &'a [Found],
    /// How many targets there should be, if that follows the load.
    pub targets: Option<u32>,
}

/// The objects that `deployment` wants. Its policy has a data path: see [`crate::accept`].
///
/// # Errors
/// A template of it makes no pod.
pub fn deployment(
    deployment: &SpecDecodeDeployment,
    given: Given<'_>,
    settings: &Settings,
) -> Result<Vec<Object>, PatchError> {
    let owner = Owner::new(Kind::SpecDecodeDeployment, &deployment.metadata);
    let build = Build {
        deployment,
        given,
        settings,
        owner: &owner,
    };
    let mut objects = vec![build.registry()];
    objects.extend(build.target()?);
    objects.extend(build.router()?);
    let inline = deployment.templates().into_iter();
    objects.extend(inline.map(|(name, spec)| {
        owner.object(
            Made::SpeculationEndpoint,
            super::DRAFT,
            &name,
            &json!({"spec": spec}),
        )
    }));
    Ok(objects)
}

struct Build<'a> {
    deployment: &'a SpecDecodeDeployment,
    given: Given<'a>,
    settings: &'a Settings,
    owner: &'a Owner,
}

impl Build<'_> {
    fn component(&self, component: &'static str) -> Component<'_> {
        Component {
            owner: self.owner,
            component,
        }
    }

    fn traces(&self) -> Vec<(&'static str, String)> {
        foretoken_configuration::traces(self.deployment.spec.telemetry.as_ref())
    }

    fn registry_name(&self) -> String {
        format!("{}-registry", self.owner.name)
    }

    /// Who exists, for routers and targets.
    fn registry(&self) -> Object {
        let namespace = &self.owner.namespace;
        let name = self.component(TARGET).name();
        let target = TargetEntry {
            address: service_address(&name, namespace, GENERATE),
            name,
            model: self.deployment.served_name().to_owned(),
            serves: Served::new(namespace, &self.owner.name).ok(),
        };
        let endpoint = |found: &Found| {
            let Found {
                namespace,
                name,
                weight,
            } = found;
            EndpointEntry {
                name: format!("{namespace}/{name}"),
                address: service_address(&format!("{name}-{}", super::DRAFT), namespace, LINK),
                weight: *weight,
                serves: Served::new(namespace, name).ok(),
            }
        };
        let directory = Directory {
            pools: Pools {
                targets: vec![target],
                endpoints: self.given.endpoints.iter().map(endpoint).collect(),
            },
            ..Directory::default()
        };
        let content = json!({"data": {REGISTRY: file(&directory)}});
        self.owner
            .object(Made::ConfigMap, WHO_EXISTS, &self.registry_name(), &content)
    }

    fn target(&self) -> Result<Vec<Object>, PatchError> {
        let spec = &self.deployment.spec.target;
        let target = self.component(TARGET);
        let config = TargetConfig {
            listen: vec![everywhere(GENERATE)],
            tls: super::tls(self.settings),
            metrics_listen: Some(http_everywhere(METRICS)),
            registry: Some(RegistryConfig::Static(registry_file())),
            ..foretoken_configuration::target(self.deployment).unwrap_or_default()
        };
        let text = file(&json!({"service": told(&config)}));
        let shape = Shape::of(spec, self.given.profile);
        let devices = Devices {
            accelerator: spec.accelerator.as_ref(),
            profile: self.given.profile,
            count: shape.devices,
            pods: shape.pods,
        };
        let source = &self.deployment.spec.model;
        let model = ModelVolume::new(source, !devices.are_simulated(), self.settings);
        let mut args =
            devices.arguments(&model, spec.dtype, spec.kv_cache_memory, SIMULATED_TARGET);
        if shape.spans_pods() {
            args.extend(group::arguments(shape));
        }
        let pod = Pod {
            owner: self.owner,
            component: TARGET,
            args,
            ports: vec![("metrics", METRICS), ("generate", GENERATE)],
            model,
            devices,
            config_maps: vec![
                (target.name(), "service"),
                (self.registry_name(), "registry"),
            ],
            secrets: tls_secret(self.owner, TARGET, self.settings),
            digest: digest(&Value::from(text.as_str())),
            drain: config.grace,
            discovers: false,
            traces: self.traces(),
            marks: vec![(REVISION, revision::of_targets(self.deployment))],
            patch: spec.template.as_ref(),
        };
        let routers = json!([{
            "podSelector": {"matchLabels": self.owner.selector(ROUTER)},
        }]);
        let template = pod.template(self.settings)?;
        let mut objects = vec![
            target.service_account(),
            target.config_map(&text),
            target.headless(&[("generate", GENERATE), ("metrics", METRICS)]),
            target.network_policy(GENERATE, Some(&routers)),
        ];
        objects.extend(target.certificate(self.settings));
        objects.extend(devices.claim_template(&target));
        let replicas = self.given.targets.or(spec.replicas).unwrap_or(1);
        let scarce = devices.are_scarce();
        if shape.spans_pods() {
            objects.push(group::disruption_budget(&target));
            objects.push(group::network_policy(self.owner));
            objects.push(group::set(&target, replicas, shape, &template, scarce));
        } else {
            objects.push(target.disruption_budget());
            objects.push(target.deployment(replicas, &template, scarce));
        }
        Ok(objects)
    }

    fn router(&self) -> Result<Vec<Object>, PatchError> {
        let spec = self.deployment.spec.router.clone().unwrap_or_default();
        let router = self.component(ROUTER);
        let model = ModelVolume::new(&self.deployment.spec.model, false, self.settings);
        let keys = spec.api_keys.as_ref();
        let config = RouterConfig {
            tls: super::tls(self.settings),
            api_keys_from: keys.map(|_| format!("{CONFIGURATIONS}/{KEYS}").into()),
            listen: http_everywhere(HTTP),
            models: vec![ModelConfig {
                name: self.deployment.served_name().to_owned(),
                folder: model.folder.clone().into(),
            }],
            // Whoever is told late of a pod that goes sends it requests in vain.
            registry: Some(RegistryConfig::Kubernetes(registry_file())),
            linger: LINGER,
            ..foretoken_configuration::router(self.deployment)
        };
        let text = file(&told(&config));
        let mut secrets = tls_secret(self.owner, ROUTER, self.settings);
        secrets.extend(keys.map(|keys| (keys.secret_name.clone(), KEYS)));
        let pod = Pod {
            owner: self.owner,
            component: ROUTER,
            args: vec![format!("--config={CONFIGURATIONS}/service/{FILE}")],
            ports: vec![("http", HTTP)],
            model,
            devices: Devices::default(),
            config_maps: vec![
                (router.name(), "service"),
                (self.registry_name(), "registry"),
            ],
            secrets,
            digest: digest(&Value::from(text.as_str())),
            drain: config.linger + config.grace,
            discovers: true,
            traces: self.traces(),
            marks: Vec::new(),
            patch: spec.template.as_ref(),
        };
        let exposure = spec.exposure.unwrap_or_default();
        let kind = match exposure.kind {
            ExposureType::ClusterIP => "ClusterIP",
            ExposureType::NodePort => "NodePort",
            ExposureType::LoadBalancer => "LoadBalancer",
        };
        let service = json!({"spec": {
            "type": kind,
            "selector": self.owner.selector(ROUTER),
            "ports": service_ports(&[("http", HTTP)]),
        }});
        let template = pod.template(self.settings)?;
        let [role, binding] = router.discovery();
        let mut objects = vec![
            router.service_account(),
            role,
            binding,
            router.config_map(&text),
            router.object(Made::Service, &service),
            // Whom it serves is for its API keys to say.
            router.network_policy(HTTP, None),
            router.disruption_budget(),
        ];
        objects.extend(router.certificate(self.settings));
        objects.push(router.deployment(spec.replicas, &template, false));
        Ok(objects)
    }
}

/// Where pods read who exists.
fn registry_file() -> PathBuf {
    format!("{CONFIGURATIONS}/registry/{REGISTRY}").into()
}

/// Where clients inside the cluster reach the router of `deployment`.
pub fn url(deployment: &SpecDecodeDeployment) -> String {
    let owner = Owner::new(Kind::SpecDecodeDeployment, &deployment.metadata);
    let name = format!("{}-{ROUTER}", owner.name);
    service_address(&name, &owner.namespace, HTTP).to_string()
}
