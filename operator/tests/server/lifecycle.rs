//! What changes while others serve.

use foretoken_operator::Made;
use serde_json::json;

use crate::{SILENCE, cluster::Cluster};

pub(crate) async fn the_scale_subresource_scales(cluster: &Cluster) {
    for (plural, namespace, made) in [
        ("specdecodedeployments", "chat", "story-target"),
        ("speculationendpoints", "drafts", "story-draft"),
    ] {
        for replicas in [3, 1] {
            cluster.scale(plural, namespace, replicas).await;
            cluster
                .becomes(Made::Deployment, namespace, made, |deployment| {
                    deployment.data["spec"]["replicas"] == replicas
                })
                .await;
        }
    }
}

pub(crate) async fn a_draft_is_rolled_alone(cluster: &Cluster) {
    cluster.settles(SILENCE).await;
    let before = cluster.writes();
    let model = json!({"spec": {"model": {"uri": "oci://story-draft:next"}}});
    cluster.patch_endpoint("drafts", &model).await;
    cluster
        .becomes(Made::Deployment, "drafts", "story-draft", |deployment| {
            deployment.data.to_string().contains("story-draft:next")
        })
        .await;
    cluster.settles(SILENCE).await;
    let written = cluster.objects_written_since(before);
    assert_eq!(
        written,
        ["patch drafts/deployments/story-draft"],
        "no target starts anew"
    );
}
