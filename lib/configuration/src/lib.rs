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
