//! What is wanted for given objects, compared with files that people read and review.
//!
//! `UPDATE_GOLDEN=1 cargo test -p foretoken-operator --test golden` writes them again.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use foretoken_crds::{AcceleratorProfile, Manifest, object::Accelerator};
use foretoken_operator::{
    Certificates, Issuer, Made, Object, Settings,
    build::{self, Canary, Given, GivenToEndpoint},
    resolve::{self, Known},
};
use foretoken_router::RouterConfig;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, PodTemplateSpec, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
        resource::v1::ResourceClaimTemplate,
    },
    serde::{Serialize, de::DeserializeOwned},
};
use serde_json::Value;

fn settings() -> Settings {
    Settings {
        image: "foretoken:1".into(),
        image_pull_policy: Some("IfNotPresent".into()),
        hub_endpoint: None,
        certificates: Certificates::Own,
    }
}

/// Labels of the namespaces that there are.
fn namespaces() -> BTreeMap<String, BTreeMap<String, String>> {
    let labels = |shared: bool| {
        let label = ("drafts".to_owned(), "shared".to_owned());
        shared.then_some(label).into_iter().collect()
    };
    [("chat", true), ("tales", true), ("other", false)]
        .map(|(name, shared)| (name.to_owned(), labels(shared)))
        .into()
}

/// The objects that are wanted for those of a manifest.
fn wanted(text: &str, settings: &Settings) -> Vec<Object> {
    let manifest = Manifest::parse(text).unwrap();
    let profiles: Vec<AcceleratorProfile> =
        manifest.profiles.iter().map(|d| d.object.clone()).collect();
    let profile = |asked: Option<&Accelerator>| {
        let named = asked.and_then(|accelerator| accelerator.profile.as_deref());
        profiles
            .iter()
            .find(|profile| profile.metadata.name.as_deref() == named)
    };
    let mut endpoints: Vec<_> = manifest.endpoints.into_iter().map(|d| d.object).collect();
    let mut objects = Vec::new();
    for (index, endpoint) in endpoints.iter_mut().enumerate() {
        endpoint.metadata.uid = Some(format!("endpoint-{index}"));
        let profile = profile(endpoint.spec.accelerator.as_ref());
        let all = namespaces();
        let all = all.iter().map(|(name, labels)| (name.clone(), labels));
        let given = GivenToEndpoint {
            profile,
            grants: resolve::granted(endpoint, all),
            drafts: None,
            canary: None,
        };
        objects.extend(build::endpoint(endpoint, &given, settings).unwrap());
    }
    let endpoints: Vec<_> = endpoints.into_iter().map(Arc::new).collect();
    let labels = [("drafts".to_owned(), "shared".to_owned())];
    let known = Known {
        endpoints: &endpoints,
        labels: &labels.into(),
    };
    for (index, document) in manifest.deployments.into_iter().enumerate() {
        let mut deployment = document.object;
        deployment.metadata.uid = Some(format!("deployment-{index}"));
        let resolved = resolve::resolve(&deployment, &known);
        assert_eq!(resolved.problems, [], "endpoints resolve");
        let given = Given {
            profile: profile(deployment.spec.target.accelerator.as_ref()),
            endpoints: &resolved.found,
            targets: None,
        };
        objects.extend(build::deployment(&deployment, given, settings).unwrap());
    }
    objects
}

fn compare(input: &Path, golden: &str) {
    compare_with(input, golden, &settings());
}

fn compare_with(input: &Path, golden: &str, settings: &Settings) {
    let objects = wanted(&fs::read_to_string(input).unwrap(), settings);
    objects.iter().for_each(is_sound);
    let documents: Vec<String> = objects
        .iter()
        .map(|object| serde_saphyr::to_string(&object.body).unwrap())
        .collect();
    let text = documents.join("---\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(golden);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let place = known.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        known == text,
        "{golden} differs from line {}: see the top of this file",
        place.map_or(0, |line| line + 1)
    );
}

/// Kubernetes knows every field, and would not say it in another way.
fn is_sound(object: &Object) {
    fn same<T: Serialize + DeserializeOwned>(body: &Value) {
        let known: T = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(&serde_json::to_value(known).unwrap(), body);
    }
    let body = &object.body;
    match object.kind {
        Made::ServiceAccount => same::<ServiceAccount>(body),
        Made::Role => same::<Role>(body),
        Made::RoleBinding => same::<RoleBinding>(body),
        Made::ConfigMap => same::<ConfigMap>(body),
        Made::Service => same::<Service>(body),
        Made::NetworkPolicy => same::<NetworkPolicy>(body),
        Made::PodDisruptionBudget => same::<PodDisruptionBudget>(body),
        Made::ResourceClaimTemplate => same::<ResourceClaimTemplate>(body),
        Made::SpeculationEndpoint => same::<foretoken_crds::SpeculationEndpoint>(body),
        Made::Deployment => same::<Deployment>(body),
        // Kubernetes itself does not know these.
        Made::Certificate => assert_eq!(body["apiVersion"], "cert-manager.io/v1"),
        Made::LeaderWorkerSet => {
            let template = &body["spec"]["leaderWorkerTemplate"];
            for pod in ["leaderTemplate", "workerTemplate"] {
                same::<PodTemplateSpec>(&template[pod]);
            }
        }
        Made::Secret => unreachable!("Secrets are no part of what is wanted of an object alone"),
    }
}

#[test]
fn a_pool_of_drafts_is_shared_by_two_deployments() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shared-endpoint.yaml");
    compare(&example, "shared-endpoint.yaml");
}

#[test]
fn profiles_volumes_templates_and_exposure_change_what_is_wanted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    compare(&folder.join("devices.in.yaml"), "devices.yaml");
    compare(&folder.join("claims.in.yaml"), "claims.yaml");
    compare(&folder.join("groups.in.yaml"), "groups.yaml");
    compare(&folder.join("allocation.in.yaml"), "allocation.yaml");
}

#[test]
fn a_template_that_makes_no_pod_is_named() {
    for part in ["target", "router"] {
        let text = format!(
            "apiVersion: foretoken.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {{name: story}}\n\
             spec: {{model: {{uri: \"hf://a/b\"}}, {part}: {{template: {{spec: {{containers: 3}}}}}}}}\n"
        );
        let manifest = Manifest::parse(&text).unwrap();
        let object = &manifest.deployments[0].object;
        let refused = build::deployment(object, Given::default(), &settings()).unwrap_err();
        let start = format!("{part}.template makes no pod: ");
        assert!(refused.to_string().starts_with(&start), "{refused}");
    }
}

#[test]
fn a_revision_is_tried_by_one_more_deployment_and_nothing_else_changes() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/shared-endpoint.yaml");
    let manifest = Manifest::parse(&fs::read_to_string(example).unwrap()).unwrap();
    let endpoint = &manifest.endpoints[0].object;
    let mut tried = endpoint.spec.clone();
    tried.model.uri = "oci://story-draft:next".into();
    let mut given = GivenToEndpoint {
        profile: None,
        grants: resolve::granted(endpoint, std::iter::empty()),
        drafts: None,
        canary: None,
    };
    let mut without = build::endpoint(endpoint, &given, &settings()).unwrap();
    given.canary = Some(Canary {
        spec: &tried,
        profile: None,
        replicas: 2,
    });
    let mut with = build::endpoint(endpoint, &given, &settings()).unwrap();
    let canary = with.pop().unwrap();
    is_sound(&canary);
    assert_eq!(with, without);

    let serving = without.pop().unwrap().body;
    assert_eq!(canary.name, "story-draft-canary");
    let labels = |object: &Value| object["spec"]["template"]["metadata"]["labels"].clone();
    let (old, new) = (labels(&serving), labels(&canary.body));
    let revision = "foretoken.io/revision";
    assert_ne!(old[revision], new[revision]);
    assert_eq!(new["foretoken.io/track"], "canary");
    let selector = &canary.body["spec"]["selector"]["matchLabels"];
    assert_eq!(
        selector["foretoken.io/track"], "canary",
        "no pod is of both"
    );
    assert_eq!(selector[revision], Value::Null, "it cannot be changed");
    let theirs = serving["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    let is_found = |(key, value): (&String, &Value)| new[key.as_str()] == *value;
    assert!(theirs.iter().all(is_found), "it is found where the pool is");
    assert_eq!(canary.body["spec"]["replicas"], 2);
    let pods = |object: &Value| object["spec"]["template"]["spec"].to_string();
    let expected = pods(&serving).replace("story-draft:dev", "story-draft:next");
    assert_eq!(pods(&canary.body), expected);
}

#[test]
fn certificates_are_asked_of_cert_manager_or_of_nobody() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let issuer = Issuer {
        kind: "ClusterIssuer".into(),
        name: "internal".into(),
    };
    let with = |certificates| Settings {
        certificates,
        ..settings()
    };
    let input = folder.join("claims.in.yaml");
    let cert_manager = with(Certificates::CertManager(issuer));
    compare_with(&input, "cert-manager.yaml", &cert_manager);
    let off = wanted(
        &fs::read_to_string(input).unwrap(),
        &with(Certificates::Off),
    );
    assert!(
        off.iter()
            .all(|object| !object.body.to_string().contains("tls"))
    );
}

#[test]
fn a_router_is_told_whose_pages_may_ask_and_starts_anew() {
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/devices.in.yaml"),
    )
    .unwrap();
    let named = "https://chat.example.com";
    assert!(text.contains(named), "what is changed is there");
    let of = |text: &str| {
        let objects = wanted(text, &settings());
        let find = |kind, name: &str| {
            let mut found = objects.iter().filter(|object| object.kind == kind);
            found
                .find(|object| object.name == name)
                .unwrap()
                .body
                .clone()
        };
        let pods = ["qwen-router", "qwen-target"].map(|name| {
            let deployment = find(Made::Deployment, name);
            deployment["spec"]["template"]["metadata"]["annotations"].clone()
        });
        let data = find(Made::ConfigMap, "qwen-router")["data"].clone();
        let files: BTreeMap<String, String> = serde_json::from_value(data).unwrap();
        let config: RouterConfig = serde_json::from_str(&files["service.json"]).unwrap();
        assert_eq!(config.check(), Ok(()));
        (config.allowed_origins, pods)
    };
    let (before, [router, target]) = of(&text);
    let (after, [new_router, new_target]) = of(&text.replace(named, "*"));
    assert_eq!(
        (before, after),
        (vec![named.to_owned()], vec!["*".to_owned()])
    );
    assert_ne!(router, new_router);
    assert_eq!(target, new_target);
}

#[test]
fn everything_has_a_digest_that_changes_with_it() {
    let text = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/claims.in.yaml"),
    )
    .unwrap();
    let before = wanted(&text, &settings());
    let after = wanted(&text.replace("replicas: 3", "replicas: 4"), &settings());
    let changed: Vec<Made> = before
        .iter()
        .zip(&after)
        .filter(|(a, b)| a.body["metadata"]["annotations"] != b.body["metadata"]["annotations"])
        .map(|(a, _)| a.kind)
        .collect();
    assert_eq!(changed, [Made::Deployment]);
}
