//! What is to run, from what is asked for.

use std::path::Path;

use foretoken_crds::{
    AcceleratorProfile, Document, Manifest, Problem, SpecDecodeDeployment,
    deployment::OnLoss,
    memory::Memory,
    object::{self, Accelerator, DataType, ModelSource},
    reference::{self, Pool},
};
use foretoken_draft::DraftConfig;
use foretoken_router::RouterConfig;
use foretoken_speculation::policy::Policy;
use foretoken_target::TargetConfig;

use crate::model::Dtype;

/// A deployment on one machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// Name of the deployment.
    pub(super) name: String,
    /// Name that clients use for the model.
    pub(super) served_name: String,
    /// Whether requests are to bring keys.
    pub(super) asks_for_keys: bool,
    /// The model that decides.
    pub(super) target: Replicas,
    /// Who proposes.
    pub(super) policy: Policy,
    /// What happens without an endpoint.
    pub(super) on_loss: OnLoss,
    /// What targets are told that does not depend on where they run.
    pub(super) service: TargetConfig,
    /// What its router is told that does not depend on where it runs.
    pub(super) router: RouterConfig,
    /// Where its router and targets send traces: variables of their environment.
    pub(super) traces: Vec<(&'static str, String)>,
    /// Where drafts come from, best first.
    pub(super) drafts: Vec<Draft>,
}

/// Processes of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    /// Model, as `foretoken-artifacts` understands it.
    pub(super) uri: String,
    /// How weights are kept.
    pub(super) dtype: Dtype,
    /// MiB of keys and values of each, if somebody says.
    pub(super) kv_mib: Option<u64>,
    /// How many.
    pub(super) count: u32,
    /// Whether it is only said to compute: its profile has `device: sim`.
    pub(super) is_simulated: bool,
}

/// A pool of drafts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draft {
    /// Namespace of the endpoint.
    pub(super) namespace: String,
    /// Name of the endpoint.
    pub(super) name: String,
    /// Its processes.
    pub(super) replicas: Replicas,
    /// Share of sessions.
    pub(super) weight: u32,
    /// What drafts are told that does not depend on where they run.
    pub(super) service: DraftConfig,
    /// Where they send traces: variables of their environment.
    pub(super) traces: Vec<(&'static str, String)>,
}

impl Plan {
    /// The plan of the deployment called `name`, or of the only one. Paths of models start at
    /// `folder`.
    pub(super) fn new(
        manifest: &Manifest,
        folder: &Path,
        name: Option<&str>,
    ) -> Result<Self, Problem> {
        let document = choose(manifest, name)?;
        let Document { object, lines } = document;
        let spec = &object.spec;
        let count = spec.target.replicas.unwrap_or(1);
        if count == 0 {
            let message = "0 is not allowed on one machine: nothing would answer";
            return Err(lines.problem("spec.target.replicas", message));
        }
        let mut plan = Self {
            name: object::name(&object.metadata).to_owned(),
            served_name: object.served_name().to_owned(),
            asks_for_keys: (spec.router.as_ref()).is_some_and(|router| router.api_keys.is_some()),
            target: Replicas {
                uri: uri(&spec.model, folder),
                dtype: dtype(spec.target.dtype),
                kv_mib: spec.target.kv_cache_memory.map(Memory::mebibytes),
                count,
                is_simulated: is_simulated(manifest, spec.target.accelerator.as_ref()),
            },
            policy: Policy::Autoregressive,
            on_loss: OnLoss::default(),
            service: foretoken_configuration::target(object).unwrap_or_default(),
            router: foretoken_configuration::router(object),
            traces: foretoken_configuration::traces(spec.telemetry.as_ref()),
            drafts: Vec::new(),
        };
        let Some(speculation) = &spec.speculation else {
            return Ok(plan);
        };
        plan.policy = speculation
            .policy
            .policy()
            .unwrap_or(Policy::Autoregressive);
        if plan.policy == Policy::Autoregressive {
            return Ok(plan);
        }
        plan.on_loss = speculation.on_loss;
        let sources = speculation.endpoints.iter();
        let meant = sources.zip(reference::pools(manifest, object));
        for (index, (source, pools)) in meant.enumerate() {
            let field = format!("spec.speculation.endpoints[{index}]");
            let pools = pools.map_err(|error| lines.problem(field, error.to_string()))?;
            for pool in pools {
                plan.add(draft(manifest, pool, source.weight, folder));
            }
        }
        Ok(plan)
    }

    /// Adds a pool, unless it is there: several sources may mean one, and the first one counts.
    fn add(&mut self, draft: Draft) {
        let is_same =
            |known: &Draft| known.namespace == draft.namespace && known.name == draft.name;
        if !self.drafts.iter().any(is_same) {
            self.drafts.push(draft);
        }
    }

    /// What `draft` is called among the pools: its name, with its namespace where two have one name.
    pub(super) fn name_of(&self, draft: &Draft) -> String {
        let Draft {
            namespace, name, ..
        } = draft;
        match self
            .drafts
            .iter()
            .filter(|known| known.name == *name)
            .count()
        {
            0 | 1 => name.clone(),
            // No name of either has a dot.
            _ => format!("{namespace}.{name}"),
        }
    }

    /// All models, whose URIs are to be replaced by folders.
    pub(super) fn models_mut(&mut self) -> impl Iterator<Item = &mut Replicas> {
        let drafts = self.drafts.iter_mut().map(|draft| &mut draft.replicas);
        std::iter::once(&mut self.target).chain(drafts)
    }
}

/// The deployment called `name`, or the only one.
pub(super) fn choose<'a>(
    manifest: &'a Manifest,
    name: Option<&str>,
) -> Result<&'a Document<SpecDecodeDeployment>, Problem> {
    let no_place = |message: String| Problem {
        line: 0,
        field: String::new(),
        message,
    };
    let names: Vec<&str> = manifest
        .deployments
        .iter()
        .map(|document| object::name(&document.object.metadata))
        .collect();
    let listed = names.join(", ");
    match (name, manifest.deployments.as_slice()) {
        (_, []) => Err(no_place("the file has no SpecDecodeDeployment".into())),
        (None, [only]) => Ok(only),
        (None, _) => Err(no_place(format!(
            "several deployments: choose with --name among {listed}"
        ))),
        (Some(name), deployments) => deployments
            .iter()
            .find(|document| object::name(&document.object.metadata) == name)
            .ok_or_else(|| no_place(format!("no deployment {name:?}: the file has {listed}"))),
    }
}

fn draft(
    manifest: &Manifest,
    Pool {
        namespace,
        name,
        spec,
    }: Pool<'_>,
    weight: u32,
    folder: &Path,
) -> Draft {
    Draft {
        namespace,
        name,
        replicas: Replicas {
            uri: uri(&spec.model, folder),
            dtype: dtype(spec.dtype),
            kv_mib: spec.kv_cache_memory.map(Memory::mebibytes),
            count: spec.replicas.unwrap_or(1),
            is_simulated: is_simulated(manifest, spec.accelerator.as_ref()),
        },
        weight,
        service: foretoken_configuration::draft(spec),
        traces: foretoken_configuration::traces(spec.telemetry.as_ref()),
    }
}

fn is_simulated(manifest: &Manifest, asked: Option<&Accelerator>) -> bool {
    let profile = manifest.profile(asked);
    profile.is_some_and(AcceleratorProfile::is_simulated)
}

/// The model as `foretoken-artifacts` understands it; a relative path starts at `folder`.
pub(crate) fn uri(model: &ModelSource, folder: &Path) -> String {
    if model.is_local_path() {
        return folder.join(&model.uri).to_string_lossy().into_owned();
    }
    foretoken_configuration::model_uri(model)
}

fn dtype(dtype: DataType) -> Dtype {
    match dtype {
        DataType::Bfloat16 => Dtype::Bf16,
        DataType::Float32 => Dtype::F32,
        DataType::Int8 => Dtype::Int8,
    }
}

#[cfg(test)]
mod tests {
    use foretoken_draft::QuotaConfig;
    use foretoken_speculation::policy::Lookahead;
    use foretoken_target::{TreesName, VerificationConfig};

    use super::*;

    fn manifest(endpoints: &str, rest: &str) -> Manifest {
        let text = format!(
            "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: story, namespace: chat}}
spec:
  model: {{uri: ../models/target}}
  target: {{replicas: 2, dtype: int8, kvCacheMemory: 2Gi}}
  speculation:
    policy: {{type: Speculative, speculative: {{lookahead: 4, adaptive: false}}}}
    trees: Auto
    endpoints: {endpoints}
---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {{name: tiny, namespace: drafts, labels: {{size: tiny}}}}
spec:
  model: {{uri: \"hf://a/b\", revision: v1}}
  replicas: 3
  slotsPerReplica: 8
  kvCacheMemory: 100Mi
  quotas: [{{namespace: chat, maxSlots: 4, weight: 3}}]
  telemetry: {{otlp: {{endpoint: \"http://c:4317\"}}}}
{rest}"
        );
        Manifest::parse(&text).unwrap()
    }

    fn plan(endpoints: &str, rest: &str) -> Result<Plan, String> {
        let manifest = manifest(endpoints, rest);
        Plan::new(&manifest, Path::new("/etc/ft"), None).map_err(|problem| problem.to_string())
    }

    const ALL: &str = "  allowedNamespaces: {from: All}\n";

    #[test]
    fn a_reference_gives_a_pool_of_drafts() {
        let plan = plan("[{name: tiny, namespace: drafts, weight: 2}]", ALL).unwrap();
        assert_eq!(plan.served_name, "story");
        assert_eq!(plan.policy, Policy::Speculative(Lookahead::Fixed(4)));
        assert_eq!(plan.service.trees, TreesName::Auto);
        let target = Replicas {
            uri: "/etc/ft/../models/target".into(),
            dtype: Dtype::Int8,
            kv_mib: Some(2048),
            count: 2,
            is_simulated: false,
        };
        assert_eq!(plan.target, target);
        let replicas = Replicas {
            uri: "hf://a/b@v1".into(),
            // What a draft has if nobody says otherwise.
            dtype: Dtype::Int8,
            kv_mib: Some(100),
            count: 3,
            is_simulated: false,
        };
        let tiny = Draft {
            namespace: "drafts".into(),
            name: "tiny".into(),
            replicas,
            weight: 2,
            service: DraftConfig {
                max_sessions: 8,
                quotas: vec![QuotaConfig {
                    namespace: "chat".into(),
                    max_slots: Some(4),
                    weight: Some(3),
                }],
                ..DraftConfig::default()
            },
            traces: vec![
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317".to_owned()),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio".to_owned()),
                ("OTEL_TRACES_SAMPLER_ARG", "0.1".to_owned()),
            ],
        };
        assert_eq!(plan.drafts, [tiny]);
        assert_eq!(plan.traces, [], "the deployment says nothing of traces");
    }

    #[test]
    fn the_rule_of_verification_has_its_support() {
        let rule = |text: &str| {
            let text = format!(
                "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: a}}
spec:
  model: {{uri: /m}}
  speculation:
    policy: {{type: SSD}}
    endpoints: [{{template: {{model: {{uri: /d}}}}}}]
{text}"
            );
            let manifest = Manifest::parse(&text).unwrap();
            let plan = Plan::new(&manifest, Path::new("/"), None).unwrap();
            plan.service.verification
        };
        assert_eq!(rule(""), VerificationConfig::Coupled);
        let rejection = |support| VerificationConfig::Rejection { support };
        assert_eq!(rule("    verification: Rejection\n"), rejection(16));
        assert_eq!(
            rule("    verification: Rejection\n    support: 5\n"),
            rejection(5)
        );
    }

    #[test]
    fn a_selector_finds_by_labels() {
        let selected = plan(
            "[{namespace: drafts, selector: {matchLabels: {size: tiny}}}]",
            ALL,
        )
        .unwrap();
        assert_eq!(selected.drafts[0].name, "tiny");
    }

    #[test]
    fn every_template_brings_a_pool_of_its_own_called_as_in_a_cluster() {
        let template =
            |model: &str| format!("{{template: {{model: {{uri: \"file:///{model}\"}}}}}}");
        let reference = "{name: tiny, namespace: drafts}";
        let sources = format!(
            "[{}, {reference}, {}, {reference}, {}]",
            template("d"),
            template("e"),
            template("d")
        );
        let plan = plan(&sources, ALL).unwrap();
        let drafts = plan.drafts.iter();
        let found = drafts.map(|draft| (plan.name_of(draft), draft.replicas.uri.as_str()));
        assert_eq!(
            found.collect::<Vec<_>>(),
            [
                ("story".to_owned(), "file:///d"),
                ("tiny".to_owned(), "hf://a/b@v1"),
                ("story-2".to_owned(), "file:///e"),
                // Also where it says the same as another one: replicas beside those.
                ("story-3".to_owned(), "file:///d"),
            ]
        );
    }

    #[test]
    fn pools_of_one_name_in_two_namespaces_are_two() {
        let other = format!(
            "{ALL}---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {{name: tiny, namespace: chat}}
spec: {{model: {{uri: \"hf://a/c\"}}}}
"
        );
        let plan = plan("[{name: tiny}, {name: tiny, namespace: drafts}]", &other).unwrap();
        let names = plan.drafts.iter().map(|draft| plan.name_of(draft));
        assert_eq!(names.collect::<Vec<_>>(), ["chat.tiny", "drafts.tiny"]);
    }

    #[test]
    fn a_profile_of_the_file_says_what_is_simulated() {
        let text = "apiVersion: foretoken.io/v1alpha1
kind: AcceleratorProfile
metadata: {name: pretended}
spec: {device: sim}
---
apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: a}
spec:
  model: {uri: /m}
  target: {accelerator: {profile: pretended}}
  speculation:
    policy: {type: SSD}
    endpoints:
      - template: {model: {uri: /d}}
      - template: {model: {uri: /e}, accelerator: {profile: pretended}}
";
        let manifest = Manifest::parse(text).unwrap();
        let mut plan = Plan::new(&manifest, Path::new("/"), None).unwrap();
        let simulated = plan.models_mut().map(|model| model.is_simulated);
        assert_eq!(simulated.collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn what_is_missing_or_not_granted_is_said_with_its_line() {
        let missing = plan("[{name: other}]", ALL).unwrap_err();
        assert_eq!(
            missing,
            "line 10: spec.speculation.endpoints[0]: no SpeculationEndpoint chat/other in this file"
        );
        let closed = plan("[{name: tiny, namespace: drafts}]", "").unwrap_err();
        assert!(closed.contains("does not allow namespace chat"), "{closed}");
    }

    #[test]
    fn a_name_chooses_among_deployments() {
        let manifest = manifest("[{name: tiny, namespace: drafts}]", ALL);
        let error = Plan::new(&manifest, Path::new(""), Some("b")).unwrap_err();
        assert_eq!(error.to_string(), "no deployment \"b\": the file has story");
        assert!(Plan::new(&manifest, Path::new(""), Some("story")).is_ok());
        let none = Plan::new(&Manifest::default(), Path::new(""), None).unwrap_err();
        assert_eq!(none.to_string(), "the file has no SpecDecodeDeployment");
    }
}
