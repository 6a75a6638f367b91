//! How a pod comes by its model.

use foretoken_crds::object::ModelSource;
use serde_json::{Value, json};

use super::{METRICS, http_everywhere};
use crate::{build::pod, settings::Settings, status::MODEL};

/// Where volumes with models are mounted.
const VOLUME: &str = "/models";
/// Secret with a token of the hub, in the pod's namespace; it need not exist.
const TOKEN_SECRET: &str = "foretoken-hub-token";

/// A model as pods see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelVolume {
    /// Its folder, in every container.
    pub(super) folder: String,
    /// The volume it lies in; none: it is in the image.
    pub(super) volume: Option<Value>,
    /// What brings it there before anything else starts.
    pub(super) init: Option<Value>,
}

impl ModelVolume {
    /// How a pod comes by `model`; only if it `computes` it needs its weights.
    pub(super) fn new(model: &ModelSource, computes: bool, settings: &Settings) -> Self {
        let uri = model.uri.as_str();
        let (scheme, rest) = uri.split_once("://").unwrap_or(("file", uri));
        match scheme {
            "pvc" => {
                let (claim, path) = rest.split_once('/').unwrap_or((rest, ""));
                Self {
                    folder: format!("{VOLUME}/{path}"),
                    volume: Some(json!({
                        "name": "model",
                        "persistentVolumeClaim": {"claimName": claim, "readOnly": true},
                    })),
                    init: None,
                }
            }
            "oci" => {
                let mut image = json!({"reference": rest});
                if let Some(policy) = &settings.image_pull_policy {
                    image["pullPolicy"] = policy.as_str().into();
                }
                Self {
                    folder: VOLUME.to_owned(),
                    volume: Some(json!({"name": "model", "image": image})),
                    init: None,
                }
            }
            "hf" => Self {
                folder: format!("{VOLUME}/model"),
                volume: Some(json!({"name": "model", "emptyDir": {}})),
                init: Some(download(model, computes, settings)),
            },
            _ => Self {
                folder: rest.to_owned(),
                volume: None,
                init: None,
            },
        }
    }

    /// How containers that serve mount it.
    pub(super) fn mount(&self) -> Option<Value> {
        let mount = json!({"name": "model", "mountPath": VOLUME, "readOnly": true});
        self.volume.is_some().then_some(mount)
    }
}

/// The container that downloads a model of the hub.
fn download(model: &ModelSource, computes: bool, settings: &Settings) -> Value {
    let uri = foretoken_configuration::model_uri(model);
    let mut args = vec![
        "fetch".to_owned(),
        uri,
        format!("--link={VOLUME}/model"),
        format!("--observe={}", http_everywhere(METRICS)),
    ];
    if !computes {
        args.push("--without-weights".to_owned());
    }
    let mut container = pod::container(MODEL, settings, &json!(args));
    let mut environment = vec![
        json!({"name": "HF_HOME", "value": format!("{VOLUME}/hub")}),
        json!({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {
            "name": TOKEN_SECRET, "key": "token", "optional": true,
        }}}),
    ];
    if let Some(endpoint) = &settings.hub_endpoint {
        environment.push(json!({"name": "HF_ENDPOINT", "value": endpoint}));
    }
    container["env"] = environment.into();
    container["volumeMounts"] = json!([{"name": "model", "mountPath": VOLUME}]);
    container
}
