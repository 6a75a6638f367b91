//! What makes a revision. Of an endpoint: what decides how well, and how soon, its drafts guess. Of a
//! deployment: what decides its tokens, and how soon.

use foretoken_crds::{
    SpecDecodeDeployment,
    endpoint::{DraftParallelism, EndpointSpec},
    memory::Memory,
    object::{Accelerator, DataType, ModelSource, PodPatch},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::object::digest;

/// Longest text that is kept: the API server bounds all annotations of an object together.
const MAX_TEXT: usize = 128 << 10;

/// A revision of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    model: ModelSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parallelism: Option<DraftParallelism>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accelerator: Option<Accelerator>,
    dtype: DataType,
    /// With the template, which has the limit that it must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kv_cache_memory: Option<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<PodPatch>,
}

impl Revision {
    /// The one that `spec` asks for.
    pub fn of(spec: &EndpointSpec) -> Self {
        Self {
            model: spec.model.clone(),
            parallelism: spec.parallelism,
            accelerator: spec.accelerator.clone(),
            dtype: spec.dtype,
            kv_cache_memory: spec.kv_cache_memory,
            template: spec.template.clone(),
        }
    }

    /// The one that was written as `text`, if it was.
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// It as a text; none if that would be too long to keep.
    pub fn text(&self) -> Option<String> {
        let text = json!(self).to_string();
        (text.len() <= MAX_TEXT).then_some(text)
    }

    /// Its digest: equal for equal revisions.
    pub fn digest(&self) -> String {
        digest(&json!(self))
    }

    /// `spec` with this revision instead of its own.
    #[must_use]
    pub fn instead_in(&self, spec: &EndpointSpec) -> EndpointSpec {
        let Self {
            model,
            parallelism,
            accelerator,
            dtype,
            kv_cache_memory,
            template,
        } = self.clone();
        EndpointSpec {
            model,
            parallelism,
            accelerator,
            dtype,
            kv_cache_memory,
            template,
            ..spec.clone()
        }
    }
}

/// Digest of the revision that `deployment` asks for: its model and how that is spread and kept, and not
/// what clients call it.
pub fn of_targets(deployment: &SpecDecodeDeployment) -> String {
    let spec = &deployment.spec;
    let parallelism = spec.target.parallelism.unwrap_or_default();
    digest(&json!({
        "uri": spec.model.uri,
        "revision": spec.model.revision,
        "parallelism": parallelism,
        "dtype": spec.target.dtype,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_of_targets_is_their_model_and_how_it_is_spread_and_kept() {
        let of = |model: &str, target: &str| {
            let text = format!(
                r#"{{"apiVersion": "foretoken.io/v1alpha1", "kind": "SpecDecodeDeployment", "metadata": {{}},
                    "spec": {{"model": {{"uri": "hf://a/b"{model}}}, "target": {{{target}}}}}}}"#
            );
            of_targets(&serde_json::from_str(&text).expect("valid"))
        };
        let first = of("", "");
        assert_eq!(of(r#", "servedName": "x""#, r#""replicas": 3"#), first);
        assert_eq!(of("", r#""parallelism": {"tensor": 1}"#), first);
        for other in [
            of(r#", "revision": "v1""#, ""),
            of("", r#""parallelism": {"tensor": 2}"#),
            of("", r#""dtype": "int8""#),
        ] {
            assert_ne!(other, first);
        }
    }

    fn spec(text: &str) -> EndpointSpec {
        serde_json::from_str(text).expect("valid")
    }

    #[test]
    fn a_revision_is_what_decides_how_drafts_guess_and_nothing_else() {
        let first = spec(r#"{"model": {"uri": "oci://a"}, "replicas": 1}"#);
        let same = spec(r#"{"model": {"uri": "oci://a"}, "replicas": 3, "slotsPerReplica": 4}"#);
        assert_eq!(Revision::of(&first).digest(), Revision::of(&same).digest());
        for other in [
            r#"{"model": {"uri": "oci://b"}}"#,
            r#"{"model": {"uri": "oci://a"}, "dtype": "float32"}"#,
            r#"{"model": {"uri": "oci://a"}, "kvCacheMemory": "1Gi"}"#,
            r#"{"model": {"uri": "oci://a"}, "template": {"spec": {"hostNetwork": false}}}"#,
        ] {
            assert_ne!(
                Revision::of(&first).digest(),
                Revision::of(&spec(other)).digest()
            );
        }
    }

    #[test]
    fn what_is_kept_as_text_makes_the_same_pods_again() {
        let old = spec(
            r#"{"model": {"uri": "oci://a"}, "dtype": "bfloat16", "kvCacheMemory": "64Mi",
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"x": [1, {"y": null}]}}}"#,
        );
        let text = Revision::of(&old).text().expect("short");
        let kept = Revision::read(&text).expect("whole");
        assert_eq!(kept, Revision::of(&old));
        let new = spec(r#"{"model": {"uri": "oci://b"}, "replicas": 7}"#);
        let both = kept.instead_in(&new);
        assert_eq!((both.replicas, &both.model), (Some(7), &old.model));
        assert_eq!(Revision::of(&both), kept);
        assert_eq!(Revision::read("{"), None);
    }
}
