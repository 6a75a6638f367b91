//! The objects of a `SpeculationEndpoint`.

use foretoken_configuration::SIMULATED_DRAFT;
use foretoken_crds::{
    AcceleratorProfile, Kind, SpeculationEndpoint,
    endpoint::{AllowedNamespaces, NamespacesFrom},
};
use foretoken_draft::DraftConfig;
use foretoken_protocol::link::Grants;
use serde_json::{Value, json};

use super::{
    Component, DRAFT, FILE, GRANTS, LINK, METRICS, PatchError, everywhere, file,
    model::ModelVolume,
    pod::{CONFIGURATIONS, Devices, Pod, tls_secret},
    told,
};
use crate::{
    object::{COMPONENT, Made, Object, Owner, digest},
    settings::Settings,
};

/// What was looked up for an endpoint.
#[derive(Clone, Debug)]
pub struct GivenToEndpoint<'a> {
    /// The profile that it names.
    pub profile: Option<&'a AcceleratorProfile>,
    /// Who may use it.
    pub grants: Grants,
    /// How many drafts there should be, if that follows the load.
    pub drafts: Option<u32>,
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
    let profile = given.profile;
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
        metrics_listen: Some(format!("0.0.0.0:{METRICS}")),
        ..foretoken_configuration::draft(spec)
    };
    let text = file(&json!({"service": told(&config)}));
    let devices = Devices {
        accelerator: spec.accelerator.as_ref(),
        profile,
        count: spec.parallelism.map_or(1, |parallelism| parallelism.tracks),
    };
    let model = ModelVolume::new(&spec.model, !devices.are_simulated(), settings);
    let mut args = vec![
        format!("--config={CONFIGURATIONS}/service/{FILE}"),
        format!("--model={}", model.folder),
        format!("--dtype={}", foretoken_configuration::dtype(spec.dtype)),
        "--instance=$(POD_NAME)".to_owned(),
    ];
    if devices.are_simulated() {
        args.push(format!("--simulated={SIMULATED_DRAFT}"));
    }
    // Read again when it changes, so it is no part of what pods are started with.
    let granted_name = format!("{}-grants", owner.name);
    let grants = json!({"data": {GRANTS: file(&given.grants)}});
    let grants = owner.object(Made::ConfigMap, "grants", &granted_name, &grants);
    let pod = Pod {
        owner: &owner,
        component: DRAFT,
        args,
        ports: vec![("metrics", METRICS), ("link", LINK)],
        model,
        devices,
        config_maps: vec![(draft.name(), "service"), (granted_name.clone(), "grants")],
        secrets: tls_secret(&owner, DRAFT, settings),
        digest: digest(&Value::from(text.as_str())),
        drain: config.grace,
        discovers: false,
        traces: foretoken_configuration::traces(spec.telemetry.as_ref()),
        patch: spec.template.as_ref(),
    };
    let template = pod.template(settings)?;
    let replicas = given.drafts.or(spec.replicas).unwrap_or(1);
    let mut objects = vec![
        draft.service_account(),
        draft.config_map(&text),
        grants,
        draft.headless(&[("link", LINK), ("metrics", METRICS)]),
        draft.network_policy(LINK, Some(&granted(spec.allowed_namespaces.as_ref()))),
        draft.disruption_budget(),
    ];
    objects.extend(draft.certificate(settings));
    objects.push(draft.deployment(replicas, &template, devices.are_scarce()));
    Ok(objects)
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
