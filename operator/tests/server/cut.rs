//! Operators that are cut off at any moment, one after the other: what comes of them in the end is what
//! comes of one that is left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use foretoken_operator::{Made, object::APPLIED};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    EXAMPLE, SILENCE, TURN,
    chance::Chance,
    cluster::{Cluster, Operator},
    control_plane::ControlPlane,
};

/// Each is another course of lives.
const SEEDS: [u64; 2] = [26, 2026];
/// Time between two edits, where nobody is cut off and where somebody is.
const PAUSES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1500)];
/// Lives that are cut off after the last edit.
const LATE_LIVES: usize = 6;
/// A life: from one that has hardly seen anything to one that has done much.
const LIFE_MS: std::ops::Range<u64> = 50..2500;
/// How long it may take to come to the end state.
const PATIENCE: Duration = Duration::from_secs(90);

/// An endpoint that a deployment brings with it, and one that it shares.
const TEMPLATE: &str = "- template: {model: {uri: 'oci://story-draft:dev'}, replicas: 1}";
const REFERENCE: &str = "- {name: story, namespace: drafts}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_that_are_cut_off_at_any_moment_come_to_what_one_that_is_not_comes_to() {
    // Whoever counts goes first: here nothing is.
    sleep(SILENCE).await;
    drop(TURN.lock().await);
    let Some(control_plane) = ControlPlane::start() else {
        return;
    };
    let cluster = Cluster::connect(&control_plane).await;
    cluster.install_kinds().await;
    let operator = Operator::start_alone(&cluster);
    play(&cluster, PAUSES[0]).await;
    // The cluster takes along what was made for what went.
    for (namespace, gone) in [("tales", "own-2-draft"), ("chat", "brief-target")] {
        for kind in [Made::Deployment, Made::ConfigMap, Made::ServiceAccount] {
            cluster.is_gone(kind, namespace, gone).await;
        }
    }
    cluster.settles(SILENCE).await;
    let expected = state(&cluster).await;
    let made = |name: &str| expected.keys().filter(|key| key.ends_with(name)).count();
    assert_eq!(made("tales/own-target"), 6, "a deployment: {expected:#?}");
    assert_eq!(made("tales/own-2-draft"), 0, "its second endpoint went");
    assert_eq!(made("chat/brief-target"), 0, "another deployment went");
    clear(&cluster).await;
    operator.stop().await;
    for seed in SEEDS {
        let lives = async {
            let mut chance = Chance(seed);
            let mut late = None;
            let mut count = 0;
            while late.is_none_or(|late| count < late + LATE_LIVES) {
                let operator = Operator::start_alone(&cluster);
                sleep(Duration::from_millis(chance.within(LIFE_MS))).await;
                operator.cut_off().await;
                count += 1;
                if cluster.has_deployment("tales", "last").await {
                    late = late.or(Some(count));
                }
            }
            count
        };
        let (lives, ()) = tokio::join!(lives, play(&cluster, PAUSES[1]));
        eprintln!("seed {seed}: {lives} operators were cut off");
        let operator = Operator::start_alone(&cluster);
        let until = Instant::now() + PATIENCE;
        let mut found = state(&cluster).await;
        while found != expected && Instant::now() < until {
            sleep(Duration::from_millis(500)).await;
            found = state(&cluster).await;
        }
        assert_eq!(differences(&expected, &found), [""; 0], "seed {seed}");
        cluster.settles(SILENCE).await;
        let found = state(&cluster).await;
        assert_eq!(differences(&expected, &found), [""; 0], "seed {seed}");
        clear(&cluster).await;
        operator.stop().await;
    }
}

/// What users do meanwhile.
async fn play(cluster: &Cluster, pause: Duration) {
    let story = EXAMPLE.split("---\n").last().unwrap();
    let named = |name: &str| story.replace("name: story\n", &format!("name: {name}\n"));
    let with = |sources: &str| named("own").replace(REFERENCE, sources);
    let two = format!("{TEMPLATE}\n      {TEMPLATE}");
    let brief = named("brief").replace("namespace: tales", "namespace: chat");
    let pause = || sleep(pause);
    cluster.apply(EXAMPLE).await;
    pause().await;
    cluster.apply(&with(&two)).await;
    pause().await;
    cluster.apply(&brief).await;
    pause().await;
    let scale = json!({"spec": {"target": {"replicas": 3}}});
    cluster.patch_deployment("chat", &scale).await;
    pause().await;
    let grants = json!({"spec": {"slotsPerReplica": 32, "allowedNamespaces": {"from": "All", "selector": null}}});
    cluster.patch_endpoint("drafts", &grants).await;
    pause().await;
    cluster.delete_deployment("chat", "brief").await;
    let policy = json!({"spec": {"speculation": {"policy": {"type": "Autoregressive"}}}});
    cluster.patch_deployment("chat", &policy).await;
    pause().await;
    cluster.apply(&with(TEMPLATE)).await;
    pause().await;
    let policy =
        json!({"spec": {"speculation": {"policy": {"type": "SSD"}}, "target": {"replicas": 2}}});
    cluster.patch_deployment("chat", &policy).await;
    pause().await;
    cluster.apply(&named("last")).await;
}

/// Deletes all that users made, and waits until nothing is left of it.
async fn clear(cluster: &Cluster) {
    cluster.delete_all().await;
    cluster
        .wait("nothing to be left", async || {
            state(cluster).await.is_empty()
        })
        .await;
}

/// All that there is, by kind, namespace and name, but for what no two runs have in common.
async fn state(cluster: &Cluster) -> BTreeMap<String, Value> {
    let users = cluster.users_objects().await;
    let owners: BTreeSet<String> = users.iter().filter_map(ResourceExt::uid).collect();
    let mut state = BTreeMap::new();
    for object in users {
        let conditions = object.data["status"]["conditions"].as_array();
        let conditions = conditions.into_iter().flatten();
        let told = conditions.map(|one| json!([one["type"], one["status"], one["reason"]]));
        let seen = object.data["status"]["observedGeneration"].as_i64();
        let value = json!({
            "conditions": told.collect::<Value>(),
            "isSeen": seen == object.metadata.generation,
            "finalizers": object.finalizers(),
        });
        let kind = object.types.as_ref().map_or("", |types| &types.kind);
        state.insert(format!("{kind} {}", place(&object)), value);
    }
    for (kind, object) in cluster.all_made().await {
        if kind == Made::Secret && !object.name_any().ends_with("-tls") {
            continue;
        }
        state.insert(
            format!("{kind:?} of an operator {}", place(&object)),
            said(kind, &object, &owners),
        );
    }
    state
}

fn place(object: &DynamicObject) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// What an object that was made says that another run has to say too; `owners` are whom it may be made
/// for.
fn said(kind: Made, object: &DynamicObject, owners: &BTreeSet<String>) -> Value {
    let mut content = object.data.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
        if kind == Made::Secret {
            fields.remove("data");
        }
    }
    if kind == Made::Service && content["spec"]["clusterIP"] != "None" {
        content["spec"]["clusterIP"] = Value::Null;
        content["spec"]["clusterIPs"] = Value::Null;
    }
    let mut annotations = object.annotations().clone();
    for name in [
        APPLIED,
        "deployment.kubernetes.io/revision",
        "foretoken.io/certificate",
    ] {
        annotations.remove(name);
    }
    let owner = |owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
        let is_there = owners.contains(&owner.uid);
        json!([
            owner.kind,
            owner.name,
            if is_there { "there" } else { "gone" }
        ])
    };
    json!({
        "labels": object.labels(),
        "annotations": annotations,
        "owners": object.owner_references().iter().map(owner).collect::<Value>(),
        "content": content,
    })
}

/// What is in one and not so in the other.
fn differences(expected: &BTreeMap<String, Value>, found: &BTreeMap<String, Value>) -> Vec<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differ = keys
        .into_iter()
        .filter(|key| expected.get(*key) != found.get(*key));
    let said = |side: Option<&Value>| side.map_or("nothing".to_owned(), Value::to_string);
    differ
        .map(|key| {
            format!(
                "{key}: {} became {}",
                said(expected.get(key)),
                said(found.get(key))
            )
        })
        .collect()
}
