//! What services say of themselves comes into statuses, and what stays the same is not written.

use std::time::Duration;

use foretoken_crds::status::{
    Consumer,
    condition::{ACCEPTED, ENDPOINTS_COMPATIBLE, SPECULATION_ACTIVE},
};
use foretoken_operator::Made;
use foretoken_service::report::{
    ConsumerReport, DraftReport, EndpointReport, LinkState, LoadReport, ModelReport, Report,
    Rounds, TargetReport,
};
use serde_json::json;

use crate::{cluster::Cluster, service::Service};

/// Longer than the pause between two questions.
const ASKED_TWICE: Duration = Duration::from_secs(7);

fn draft() -> Report {
    let consumer = |namespace: &str, slots| ConsumerReport {
        namespace: namespace.into(),
        deployment: "story".into(),
        links: 1,
        slots,
    };
    Report {
        version: 1,
        ready: true,
        model: ModelReport {
            tokenizer: "0123abcd".into(),
            ..ModelReport::default()
        },
        draft: Some(DraftReport {
            slots: 64,
            slots_in_use: 3,
            up_seconds: 100.0,
            consumers: vec![consumer("chat", 3), consumer("tales", 0)],
            ..DraftReport::default()
        }),
        ..Report::default()
    }
}

fn target(link: LinkState, trouble: Option<&str>, rounds: Rounds) -> Report {
    let endpoint = EndpointReport {
        name: "drafts/story@127.0.0.1".into(),
        link,
        trouble: trouble.map(str::to_owned),
        instance: "story-draft-0".into(),
        model: "m".into(),
        rounds,
    };
    Report {
        version: 1,
        ready: true,
        target: Some(TargetReport {
            endpoints: vec![endpoint],
            ..TargetReport::default()
        }),
        ..Report::default()
    }
}

pub(crate) async fn what_services_say_is_told(cluster: &Cluster) {
    let drafts = Service::start(0, draft()).await;
    let targets = Service::start(1, target(LinkState::Up, None, Rounds::default())).await;
    cluster
        .give_address("drafts", "draft", drafts.address)
        .await;
    cluster
        .give_address("chat", "target", targets.address)
        .await;
    cluster
        .deployment_is("chat", ENDPOINTS_COMPATIBLE, "True Compatible")
        .await;
    cluster
        .deployment_is("chat", SPECULATION_ACTIVE, "True Drafting")
        .await;
    let consumer = |namespace: &str, slots| Consumer {
        namespace: namespace.into(),
        name: "story".into(),
        slots,
    };
    let both = [consumer("chat", 3), consumer("tales", 0)];
    cluster
        .endpoint_status("drafts", |status| {
            status.slots_in_use == Some(3)
                && status.tokenizer_digest.as_deref() == Some("0123abcd")
                && status.consumers == both
        })
        .await;

    let rounds = Rounds {
        windows: 1000,
        accepted: 2500,
        hits: 800,
        misses: 200,
    };
    targets.says(target(LinkState::Up, None, rounds));
    cluster
        .status_of("chat", |status| {
            let told = status.speculation.clone().unwrap_or_default();
            (told.acceptance_length, told.hit_rate) == (Some(3.5), Some(0.8))
        })
        .await;
    cluster
        .endpoint_status("drafts", |status| status.hit_rate == Some(0.8))
        .await;

    cluster.settles(ASKED_TWICE).await;
    let before = cluster.writes();
    tokio::time::sleep(ASKED_TWICE).await;
    assert_eq!(cluster.writes_since(before), [""; 0], "the same is said");

    let why = "the target's tokenizer is a, the endpoint's b: choose a draft model with the \
               target's tokenizer";
    targets.says(target(LinkState::Refused, Some(why), rounds));
    cluster
        .deployment_is("chat", ENDPOINTS_COMPATIBLE, "False Incompatible")
        .await;
    cluster
        .deployment_is("chat", SPECULATION_ACTIVE, "False NoneCompatible")
        .await;
    let message = cluster.message("chat", ENDPOINTS_COMPATIBLE).await;
    assert!(
        message.starts_with("drafts/story: the target's tokenizer is a"),
        "{message}"
    );
    assert!(message.contains("choose a draft model"), "{message}");
    cluster.has_event("chat", "Incompatible").await;
    targets.says(target(LinkState::Up, None, rounds));
    cluster
        .deployment_is("chat", SPECULATION_ACTIVE, "True Drafting")
        .await;
    // Those who are not there any more say nothing.
    drop((drafts, targets));
    tokio::time::sleep(ASKED_TWICE).await;
    let status = cluster.deployment("chat").await.status.unwrap_or_default();
    assert_eq!(
        status.speculation.unwrap_or_default().acceptance_length,
        Some(3.5)
    );
}

pub(crate) async fn the_number_of_targets_follows_the_load(cluster: &Cluster) {
    let using = |pages_in_use| Report {
        target: Some(TargetReport {
            load: Some(LoadReport {
                places: 8,
                pages: 100,
                pages_in_use,
                ..LoadReport::default()
            }),
            ..TargetReport::default()
        }),
        ..target(LinkState::Up, None, Rounds::default())
    };
    let targets = Service::start(1, using(100)).await;
    cluster
        .give_address("chat", "target", targets.address)
        .await;
    let scaling = json!({"min": 1, "max": 4, "metric": "PageUse"});
    let follows = json!({"spec": {"target": {"replicas": null, "scaling": scaling}}});
    cluster.patch_deployment("chat", &follows).await;
    let has = async |replicas: u32| {
        let made = |made: &kube::api::DynamicObject| made.data["spec"]["replicas"] == replicas;
        cluster
            .becomes(Made::Deployment, "chat", "story-target", made)
            .await;
    };
    has(2).await;
    cluster
        .has_note("chat", "Scaled", "from 1 to 2 targets: ")
        .await;

    // Of what is not accepted nothing is scaled, and nothing told.
    let told = cluster.notes("chat", "Scaled").await;
    let scaling = json!({"min": 3, "max": 4, "metric": "PageUse"});
    let policy = |kind: &str| json!({"policy": {"type": kind}});
    let more = json!({"spec": {"target": {"scaling": scaling}, "speculation": policy("MirrorSD")}});
    cluster.patch_deployment("chat", &more).await;
    cluster
        .deployment_is("chat", ACCEPTED, "False PolicyNotServed")
        .await;
    assert_eq!(cluster.notes("chat", "Scaled").await, told);
    let served = json!({"spec": {"speculation": policy("SSD")}});
    cluster.patch_deployment("chat", &served).await;
    has(3).await;
    cluster
        .has_note("chat", "Scaled", "from 2 to 3 targets")
        .await;

    // Fewer would be enough, and calm has not lasted yet.
    targets.says(using(10));
    tokio::time::sleep(ASKED_TWICE).await;
    has(3).await;
    let one = json!({"spec": {"target": {"replicas": 1, "scaling": null}}});
    cluster.patch_deployment("chat", &one).await;
    has(1).await;
}
