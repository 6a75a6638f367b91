//! What services are told, from what objects say: the part that is the same on one machine
//! (`foretoken up`) and in a cluster (the operator).
//!
//! Not here: where services listen, how they find each other, where models lie. That is what
//! differs, so each adds its own to what these functions give.

use foretoken_crds::{
    SpecDecodeDeployment,
    deployment::{OnLoss, SpeculationSpec, Trees, Verification},
    endpoint::{EndpointSpec, Quota},
    object::{self, DataType, ModelSource},
    telemetry::{Otlp, TelemetrySpec},
};
use foretoken_draft::{DraftConfig, QuotaConfig};
use foretoken_router::RouterConfig;
use foretoken_speculation::policy::Policy;
use foretoken_target::{
    OnLossName, PolicyName, SsdConfig, TargetConfig, TreesName, VerificationConfig,
};

/// How the target of a profile with `device: sim` behaves, as `--simulated` says it: steps of 4 ms.
pub const SIMULATED_TARGET: &str = "step-us=4000,row-us=20";

/// How a draft of a profile with `device: sim` does: ten times as fast, in three contexts of four of
/// one mind with its target, and near it in half of the others.
pub const SIMULATED_DRAFT: &str = "agreement=0.75,near=0.5,step-us=400,row-us=5";

/// What `object` tells its targets: whose they are and how they speculate; all else has its
/// default. None if this version has no data path for the policy.
pub fn target(object: &SpecDecodeDeployment) -> Option<TargetConfig> {
    let mut config = TargetConfig {
        namespace: object::namespace(&object.metadata).to_owned(),
        deployment: object::name(&object.metadata).to_owned(),
        policy: PolicyName::Autoregressive,
        ..TargetConfig::default()
    };
    let Some(speculation) = &object.spec.speculation else {
        return Some(config);
    };
    let SpeculationSpec {
        policy,
        verification,
        support,
        endpoints: _,
        on_loss,
        trees,
    } = speculation;
    match policy.policy()? {
        Policy::Autoregressive => return Some(config),
        Policy::Speculative(lookahead) => {
            config.policy = PolicyName::Speculative;
            config.lookahead = lookahead.into();
        }
        Policy::Ssd(options) => {
            config.policy = PolicyName::Ssd;
            config.ssd = SsdConfig::from(options);
        }
    }
    config.verification = match verification {
        Verification::Coupled => VerificationConfig::Coupled,
        Verification::Rejection => VerificationConfig::Rejection {
            support: support.unwrap_or(foretoken_speculation::verify::Verification::SUPPORT),
        },
    };
    config.on_loss = match on_loss {
        OnLoss::Plain => OnLossName::Plain,
        OnLoss::Local => OnLossName::Local,
    };
    config.trees = match trees {
        Trees::Auto => TreesName::Auto,
        Trees::Never => TreesName::Off,
    };
    Some(config)
}

/// What `object` tells its routers: whose web pages may ask; all else has its default.
pub fn router(object: &SpecDecodeDeployment) -> RouterConfig {
    let spec = object.spec.router.as_ref();
    RouterConfig {
        allowed_origins: spec.map_or_else(Vec::new, |spec| spec.allowed_origins.clone()),
        ..RouterConfig::default()
    }
}

/// Variables of a service's environment that say where traces go, and which; none without
/// `telemetry`.
pub fn traces(telemetry: Option<&TelemetrySpec>) -> Vec<(&'static str, String)> {
    let Some(TelemetrySpec {
        otlp: Otlp { endpoint },
        sampling_ratio,
    }) = telemetry
    else {
        return Vec::new();
    };
    vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.clone()),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio".to_owned()),
        ("OTEL_TRACES_SAMPLER_ARG", sampling_ratio.to_string()),
    ]
}

/// What `spec` tells its drafts: how many sessions, and whose; all else has its default.
pub fn draft(spec: &EndpointSpec) -> DraftConfig {
    let defaults = DraftConfig::default();
    DraftConfig {
        max_sessions: spec
            .slots_per_replica
            .map_or(defaults.max_sessions, |slots| slots as usize),
        quotas: spec.quotas.iter().map(quota).collect(),
        ..defaults
    }
}

fn quota(quota: &Quota) -> QuotaConfig {
    let Quota {
        namespace,
        max_slots,
        weight,
    } = quota;
    QuotaConfig {
        namespace: namespace.clone(),
        max_slots: max_slots.map(|slots| slots as usize),
        weight: *weight,
    }
}

/// The model's address with its revision, as `foretoken-artifacts` understands both.
pub fn model_uri(model: &ModelSource) -> String {
    match &model.revision {
        Some(revision) => format!("{}@{revision}", model.uri),
        None => model.uri.clone(),
    }
}

/// The name by which services know a data type, in files and flags.
pub fn dtype(dtype: DataType) -> &'static str {
    match dtype {
        DataType::Bfloat16 => "bf16",
        DataType::Float32 => "f32",
        DataType::Int8 => "int8",
    }
}

#[cfg(test)]
mod tests {
    use foretoken_crds::{
        Manifest,
        deployment::DeploymentSpec,
        policy::{PolicySpec, PolicyType, SsdSpec},
    };
    use foretoken_target::LookaheadConfig;

    use super::*;

    fn deployment(kind: PolicyType) -> SpecDecodeDeployment {
        let speculation = SpeculationSpec {
            policy: PolicySpec {
                kind,
                ..PolicySpec::default()
            },
            on_loss: OnLoss::Local,
            trees: Trees::Auto,
            verification: Verification::Rejection,
            ..SpeculationSpec::default()
        };
        let spec = DeploymentSpec {
            speculation: Some(speculation),
            ..DeploymentSpec::default()
        };
        let mut object = SpecDecodeDeployment::new("story", spec);
        object.metadata.namespace = Some("chat".into());
        object
    }

    #[test]
    fn targets_are_told_whose_they_are_and_how_they_speculate() {
        let mut object = deployment(PolicyType::Ssd);
        if let Some(speculation) = &mut object.spec.speculation {
            speculation.policy.ssd = Some(SsdSpec {
                lookahead: 5,
                adaptive: false,
                budget: 7,
                ..SsdSpec::default()
            });
        }
        let config = target(&object).expect("served");
        assert_eq!(
            (config.namespace.as_str(), config.deployment.as_str()),
            ("chat", "story")
        );
        assert_eq!(config.policy, PolicyName::Ssd);
        assert_eq!(config.ssd.lookahead, LookaheadConfig::Fixed(5));
        assert_eq!(config.ssd.budget, 7);
        assert_eq!(config.on_loss, OnLossName::Local);
        assert_eq!(config.trees, TreesName::Auto);
        assert!(matches!(
            config.verification,
            VerificationConfig::Rejection { .. }
        ));
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn without_speculation_nothing_of_it_is_told() {
        let config = target(&deployment(PolicyType::Autoregressive)).expect("served");
        assert_eq!(config.policy, PolicyName::Autoregressive);
        assert_eq!(config.verification, VerificationConfig::Coupled);
        assert_eq!(target(&deployment(PolicyType::MirrorSd)), None);
    }

    #[test]
    fn routers_read_the_origins_that_the_api_takes_and_no_others() {
        let mut verdicts = [0, 0];
        for text in origins() {
            let object = serde_json::json!({
                "apiVersion": foretoken_crds::API_VERSION,
                "kind": "SpecDecodeDeployment",
                "metadata": {"name": "story"},
                "spec": {"model": {"uri": "/m"}, "router": {"allowedOrigins": [&text]}},
            });
            // JSON is YAML.
            let read = Manifest::parse(&object.to_string());
            let model = foretoken_router::ModelConfig {
                name: "story".into(),
                folder: "/m".into(),
            };
            let config = RouterConfig {
                allowed_origins: vec![text.clone()],
                models: vec![model],
                ..RouterConfig::default()
            };
            assert_eq!(read.is_ok(), config.check().is_ok(), "{text:?}");
            verdicts[usize::from(read.is_ok())] += 1;
            if let Ok(manifest) = read {
                let told = router(&manifest.deployments[0].object);
                assert_eq!(told.allowed_origins, [text]);
            }
        }
        assert!(verdicts.iter().all(|&count| count > 50), "{verdicts:?}");
    }

    /// What is an origin, and what is nearly one.
    fn origins() -> Vec<String> {
        let schemes = ["http", "https", "a+b-c.1", "1a", "-a", "HTTP", "h_p", ""];
        let hosts = [
            "h",
            "a.b-c.d_e",
            "127.0.0.1",
            "H",
            "[::1]",
            "[::80]",
            "[::1",
            "::1]",
            "[]",
            "[g]",
            "",
            "a b",
            "a@b",
            "*",
            "*.b",
            "a%62",
            "a!",
            "h/",
            "h/p",
            "h?q",
            "h#f",
            "\u{e9}",
            "h\n",
        ];
        let ports = [
            "", ":", ":1", ":80", ":443", ":080", ":0", ":65535", ":123456", ":x", ":1:2", ":80\n",
        ];
        let mut all: Vec<String> = ["*", "**", "null", "", "h", "h:1", "http:/h", "http:h", " *"]
            .map(str::to_owned)
            .into();
        for scheme in schemes {
            for host in hosts {
                all.extend(ports.map(|port| format!("{scheme}://{host}{port}")));
            }
        }
        all
    }

    #[test]
    fn drafts_are_told_their_slots_and_quotas() {
        let text = r#"{"model": {"uri": "hf://a/b", "revision": "v1"}, "slotsPerReplica": 8,
                       "quotas": [{"namespace": "chat", "maxSlots": 4, "weight": 3}]}"#;
        let spec: EndpointSpec = serde_json::from_str(text).expect("valid");
        let config = draft(&spec);
        assert_eq!(config.max_sessions, 8);
        let told = QuotaConfig {
            namespace: "chat".into(),
            max_slots: Some(4),
            weight: Some(3),
        };
        assert_eq!(config.quotas, [told]);
        assert_eq!(model_uri(&spec.model), "hf://a/b@v1");
        assert_eq!(dtype(spec.dtype), "int8");
    }
}
