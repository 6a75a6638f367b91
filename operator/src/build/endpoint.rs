//! The objects of a `SpeculationEndpoint`.

use foretoken_configuration::SIMULATED_DRAFT;
use foretoken_crds::{
    AcceleratorProfile, Kind, SpeculationEndpoint,
    endpoint::{AllowedNamespaces, EndpointSpec, NamespacesFrom},
};
use foretoken_draft::DraftConfig;
use foretoken_protocol::link::Grants;
use serde_json::{Value, json};

use super::{
    Component, DRAFT, GRANTS, LINK, METRICS, PatchError, WHO_MAY,
    devices::Devices,
    everywhere, file, http_everywhere,
    model::ModelVolume,
    pod::{CONFIGURATIONS, Pod, tls_secret},
    told,
};
use crate::{
    object::{CANARY, COMPONENT, MADE_OF, Made, Object, Owner, REVISION, TRACK, digest},
    revision::Revision,
    settings::Settings,
};

/// What was looked up for an endpoint.
#[derive(Clone, Debug)]
pub struct GivenToEndpoint<'a> {
    /// The profile that it names.
    pub profile: Option<&'a AcceleratorProfile>,
    /// Who may use it.
    pub grants: Grants,
    /// How many drafts have what the spec says, if that is not what it says.
    pub drafts: Option<u32>,
    /// What is tried beside them.
    pub canary: Option<Canary<'a>>,
}

/// Another revision that is tried.
#[derive(Clone, Debug)]
pub struct Canary<'a> {
    /// The spec with it.
    pub spec: &'a EndpointSpec,
    /// The profile that it names.
    pub profile: Option<&'a AcceleratorProfile>,
    /// How many pods have it.
    pub replicas: u32,
}

/// The objects that `endpoint` wants.
///
/// # Errors
/// Its template makes no pod.
pub fn endpoint(
    endpoint: &SpeculationEndpoint,
    given: &GivenToEndpoint<'_>,
    settings: &Settings,
) -> Result<Vec<Object>, PatchError> {
    let spec = &endpoint.spec;
    let owner = Owner::new(Kind::SpeculationEndpoint, &endpoint.metadata);
    let draft = Component {
        owner: &owner,
        component: DRAFT,
    };
    let config = DraftConfig {
        listen: vec![everywhere(LINK)],
        tls: super::tls(settings),
        grants: Some(format!("{CONFIGURATIONS}/grants/{GRANTS}").into()),
        metrics_listen: Some(http_everywhere(METRICS)),
        ..foretoken_configuration::draft(spec)
    };
    let text = file(&json!({"service": told(&config)}));
    let [grants, guard] = access(endpoint, &given.grants);
    let pods = Pods {
        draft: &draft,
        mounted: [(draft.name(), "service"), (grants.name.clone(), "grants")],
        digest: digest(&Value::from(text.as_str())),
        config: &config,
        settings,
    };
    let replicas = given.drafts.or(spec.replicas).unwrap_or(1);
    let deployment = pods.deployment(spec, given.profile, replicas)?;
    let canary = given.canary.as_ref();
    let canary = canary.map(|canary| pods.canary(canary)).transpose()?;
    let mut objects = vec![
        draft.service_account(),
        draft.config_map(&text),
        grants,
        draft.headless(&[("link", LINK), ("metrics", METRICS)]),
        guard,
        draft.disruption_budget(),
    ];
    objects.extend(draft.certificate(settings));
    let both = [
        Some((spec, given.profile)),
        given
            .canary
            .as_ref()
            .map(|tried| (tried.spec, tried.profile)),
    ];
    for (spec, profile) in both.into_iter().flatten() {
        let claims = devices(spec, profile).claim_template(&draft);
        objects.extend(claims.filter(|claims| !objects.contains(claims)));
    }
    objects.push(deployment);
    objects.extend(canary);
    Ok(objects)
}

/// What holds targets to `grants`, and the network to what `endpoint` allows.
pub(crate) fn access(endpoint: &SpeculationEndpoint, grants: &Grants) -> [Object; 2] {
    let owner = Owner::new(Kind::SpeculationEndpoint, &endpoint.metadata);
    let draft = Component {
        owner: &owner,
        component: DRAFT,
    };
    // Read again when it changes, so it is no part of what pods are started with.
    let name = format!("{}-grants", owner.name);
    let text = json!({"data": {GRANTS: file(grants)}});
    let from = granted(endpoint.spec.allowed_namespaces.as_ref());
    [
        owner.object(Made::ConfigMap, WHO_MAY, &name, &text),
        draft.network_policy(LINK, Some(&from)),
    ]
}

/// What pods of all revisions have in common.
struct Pods<'a> {
    draft: &'a Component<'a>,
    mounted: [(String, &'static str); 2],
    digest: String,
    config: &'a DraftConfig,
    settings: &'a Settings,
}

impl Pods<'_> {
    /// `replicas` pods with the revision that `spec` asks for, which is noted at their Deployment: it
    /// is what they are made of again while another one is tried.
    fn deployment(
        &self,
        spec: &EndpointSpec,
        profile: Option<&AcceleratorProfile>,
        replicas: u32,
    ) -> Result<Object, PatchError> {
        let revision = Revision::of(spec);
        let marks = vec![(REVISION, revision.digest())];
        let (template, scarce) = self.template(spec, profile, marks)?;
        let mut object = self.draft.deployment(replicas, &template, scarce);
        if let Some(text) = revision.text() {
            object.body["metadata"]["annotations"][MADE_OF] = text.into();
        }
        Ok(object)
    }

    /// The same beside it. Other objects of the pool mean its pods too.
    fn canary(&self, canary: &Canary<'_>) -> Result<Object, PatchError> {
        let Canary {
            spec,
            profile,
            replicas,
        } = canary;
        let revision = Revision::of(spec).digest();
        let marks = vec![(REVISION, revision.clone()), (TRACK, CANARY.to_owned())];
        let (template, scarce) = self.template(spec, *profile, marks)?;
        let Component { owner, component } = *self.draft;
        let mut content = self.draft.deployment(*replicas, &template, scarce).body["spec"].take();
        // Pods of both are told apart, since neither may take the other's for its own.
        content["selector"]["matchLabels"][TRACK] = CANARY.into();
        let name = format!("{}-{CANARY}", self.draft.name());
        let content = json!({"spec": content});
        let mut object = owner.object(Made::Deployment, component, &name, &content);
        object.body["metadata"]["annotations"][MADE_OF] = revision.into();
        Ok(object)
    }

    /// Pods of a revision, and whether there may be no devices for more of them.
    fn template(
        &self,
        spec: &EndpointSpec,
        profile: Option<&AcceleratorProfile>,
        marks: Vec<(&'static str, String)>,
    ) -> Result<(Value, bool), PatchError> {
        let devices = devices(spec, profile);
        let model = ModelVolume::new(&spec.model, !devices.are_simulated(), self.settings);
        let args = devices.arguments(&model, spec.dtype, spec.kv_cache_memory, SIMULATED_DRAFT);
        let pod = Pod {
            owner: self.draft.owner,
            component: DRAFT,
            args,
            ports: vec![("metrics", METRICS), ("link", LINK)],
            model,
            devices,
            config_maps: self.mounted.to_vec(),
            secrets: tls_secret(self.draft.owner, DRAFT, self.settings),
            digest: self.digest.clone(),
            drain: self.config.grace,
            discovers: false,
            traces: foretoken_configuration::traces(spec.telemetry.as_ref()),
            marks,
            patch: spec.template.as_ref(),
        };
        Ok((pod.template(self.settings)?, devices.are_scarce()))
    }
}

/// Devices of a pod with what `spec` asks for.
fn devices<'a>(spec: &'a EndpointSpec, profile: Option<&'a AcceleratorProfile>) -> Devices<'a> {
    Devices {
        accelerator: spec.accelerator.as_ref(),
        profile,
        count: spec.parallelism.map_or(1, |parallelism| parallelism.tracks),
        pods: 1,
    }
}

/// Pods that may dial an endpoint: targets of the namespaces that it grants itself to.
fn granted(allowed: Option<&AllowedNamespaces>) -> Value {
    let targets = json!({"matchLabels": {COMPONENT: super::TARGET}});
    // Without a selector of namespaces, the policy's own is meant.
    let own = json!({"podSelector": targets});
    match allowed {
        Some(AllowedNamespaces {
            from: NamespacesFrom::All,
            ..
        }) => json!([{"namespaceSelector": {}, "podSelector": targets}]),
        Some(AllowedNamespaces {
            from: NamespacesFrom::Selector,
            selector: Some(selector),
        }) => {
            let labels = json!({"matchLabels": selector.match_labels});
            json!([own, {"namespaceSelector": labels, "podSelector": targets}])
        }
        Some(_) | None => json!([own]),
    }
}
