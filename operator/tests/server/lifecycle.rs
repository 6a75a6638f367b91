//! What changes while others serve.

use foretoken_operator::Made;

use crate::cluster::Cluster;

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
