//! Who may use an endpoint.

use foretoken_crds::status::condition::{ACCEPTED, ENDPOINTS_RESOLVED};
use foretoken_operator::Made;
use serde_json::{Value, json};

use crate::cluster::Cluster;

pub(crate) async fn are_needed(cluster: &Cluster) {
    let granted = async |words: &'static str| {
        cluster
            .becomes(Made::ConfigMap, "drafts", "story-grants", |map| {
                let text = map.data["data"]["grants.json"].to_string();
                text.split_whitespace().collect::<String>().contains(words)
            })
            .await;
    };
    granted(r#"[\n\"chat\",\n\"drafts\",\n\"tales\"\n]"#).await;
    let runs_on = async |profile: Value, is_accepted: &str| {
        let accelerator = json!({"spec": {"accelerator": profile}});
        cluster.patch_endpoint("drafts", &accelerator).await;
        cluster.endpoint_is("drafts", ACCEPTED, is_accepted).await;
    };
    // Grants are taken away from an endpoint that cannot be as it is asked to as well.
    runs_on(json!({"profile": "nowhere"}), "False ProfileNotFound").await;
    cluster.label_namespace("tales", &json!(null)).await;
    granted(r#"[\n\"chat\",\n\"drafts\"\n]"#).await;
    cluster
        .endpoint_is("drafts", ACCEPTED, "False ProfileNotFound")
        .await;
    runs_on(json!(null), "True Accepted").await;
    cluster
        .deployment_is("tales", ENDPOINTS_RESOLVED, "False NotGranted")
        .await;
    cluster
        .becomes(Made::ConfigMap, "tales", "story-registry", |map| {
            !map.data.to_string().contains("story-draft")
        })
        .await;
    cluster.pods_are_looked_at("tales", "target").await;
    cluster.pods_are_looked_at("drafts", "draft").await;
    cluster.label_namespace("tales", &json!("shared")).await;
    cluster
        .deployment_is("tales", ENDPOINTS_RESOLVED, "True Resolved")
        .await;
}
