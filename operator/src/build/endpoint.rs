//! The objects of a `SpeculationEndpoint`.

use foretoken_crds::{
    AcceleratorProfile, Kind, SpeculationEndpoint,
    endpoint::{AllowedNamespaces, NamespacesFrom},
};
use foretoken_draft::DraftConfig;
use serde_json::{Value, json};

use super::{
    Component, DRAFT, FILE, LINK, METRICS, PatchError, everywhere, file,
    model::ModelVolume,
    pod::{CONFIGURATIONS, Devices, Pod},
    told,
};
use crate::{
    object::{COMPONENT, Object, Owner, digest},
    settings::Settings,
};

/// The objects that `endpoint` wants, its pods with what `profile` says of their devices.
///
/// # Errors
/// Its template makes no pod.
pub fn endpoint(
    endpoint: &SpeculationEndpoint,
    profile: Option<&AcceleratorProfile>,
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
        metrics_listen: Some(format!("0.0.0.0:{METRICS}")),
        ..foretoken_configuration::draft(spec)
    };
    let text = file(&json!({"service": told(&config)}));
    let model = ModelVolume::new(&spec.model, settings);
    let devices = Devices {
        accelerator: spec.accelerator.as_ref(),
        profile,
        count: spec.parallelism.map_or(1, |parallelism| parallelism.tracks),
    };
    let pod = Pod {
        owner: &owner,
        component: DRAFT,
        args: vec![
            format!("--config={CONFIGURATIONS}/service/{FILE}"),
            format!("--model={}", model.folder),
            format!("--dtype={}", foretoken_configuration::dtype(spec.dtype)),
            "--instance=$(POD_NAME)".to_owned(),
        ],
        ports: vec![("metrics", METRICS), ("link", LINK)],
        model,
        devices,
        config_maps: vec![(draft.name(), "service")],
        digest: digest(&Value::from(text.as_str())),
        drain: config.grace,
        discovers: false,
        traces: foretoken_configuration::traces(spec.telemetry.as_ref()),
        patch: spec.template.as_ref(),
    };
    let template = pod.template(settings)?;
    let replicas = spec.replicas.unwrap_or(1);
    Ok(vec![
        draft.service_account(),
        draft.config_map(&text),
        draft.headless(&[("link", LINK), ("metrics", METRICS)]),
        draft.network_policy(LINK, Some(&granted(spec.allowed_namespaces.as_ref()))),
        draft.disruption_budget(),
        draft.deployment(replicas, &template, devices.are_scarce()),
    ])
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
