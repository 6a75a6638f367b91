//! Certificates of services in a cluster: the Secret of the authority, and one for each component.
//!
//! ```text
//! Secret foretoken-ca (operator's namespace) ──> Authority ── renewal ──> Secret NAME-COMPONENT-tls
//! ```
//!
//! Secrets are asked for by name and neither listed nor watched, so that an operator needs no right to
//! see which there are. What was seen is remembered for a while; somebody who edits one finds it put
//! back within minutes, not at once.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    apply,
    authority::{Authority, Ca, Change, Leaf, Renewal, issue, renewal},
    failure::Failure,
    object::{MANAGED_BY, Made, OPERATOR, Object, Owner, digest},
};

/// Name of the Secret of the authority.
pub(crate) const AUTHORITY: &str = "foretoken-ca";
/// Annotation of its Secret by which people ask for a successor.
const SUCCEED: &str = "foretoken.io/succeed";
/// Annotation with what is known of a certificate.
const FACTS: &str = "foretoken.io/certificate";
/// How long what was seen of a Secret is believed.
const BELIEVED: Duration = Duration::from_secs(300);

/// Entries of a leaf's Secret.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";

/// What a leaf's Secret says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    /// When its CA was made, seconds since 1970.
    issuer: i64,
    /// When it was issued.
    issued: i64,
    /// Whose it is.
    name: String,
    /// Digest of certificate and key, to see whether somebody has changed them.
    digest: String,
}

/// The certificates of a cluster.
pub(crate) struct Certificates {
    /// Where the authority's Secret is.
    namespace: String,
    authority: Mutex<Option<(Instant, Authority)>>,
    seen: Mutex<HashMap<Whose, (Instant, Leaf)>>,
}

/// Whose leaf it is: uid of the owner, with whom it goes, and namespace and name of its Secret.
type Whose = (String, String, String);

/// A service that needs a certificate.
pub(crate) struct Service<'a> {
    /// Whose object it serves.
    pub(crate) owner: &'a Owner,
    /// `target`, `draft` or `router`.
    pub(crate) component: &'static str,
}

impl Service<'_> {
    /// Name of its Secret.
    fn secret(&self) -> String {
        crate::build::secret_name(self.owner, self.component)
    }
}

impl Certificates {
    /// Certificates of an authority whose Secret is in `namespace`.
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            authority: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Sees to it that `service` has a good certificate at `now`; tells whether anything was written.
    /// Of one that `is_new` none is expected.
    pub(crate) async fn ensure(
        &self,
        client: &Client,
        service: &Service<'_>,
        now: Timestamp,
        is_new: bool,
    ) -> Result<bool, Failure> {
        // As Secrets tell times.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let authority = self.authority(client, now).await?;
        let name = crate::build::identity(service.owner, service.component);
        let Owner { namespace, uid, .. } = service.owner;
        let key = (uid.clone(), namespace.clone(), service.secret());
        let seen = self.seen.lock().await.get(&key).cloned();
        if let Some((at, leaf)) = seen
            && at.elapsed() < BELIEVED
            && renewal(Some(&leaf), &name, &authority, now) == Renewal::Keep
        {
            return Ok(false);
        }
        let live = if is_new {
            None
        } else {
            self.leaf(client, service).await?
        };
        let leaf = live.as_ref().map(|(leaf, _)| leaf);
        let plan = renewal(leaf, &name, &authority, now);
        let (leaf, pair) = match (plan, live) {
            (Renewal::Keep, Some((leaf, _))) => {
                self.remember(key, leaf).await;
                return Ok(false);
            }
            (Renewal::Trust, Some((leaf, pair))) => {
                let bundle = authority.bundle();
                (Leaf { bundle, ..leaf }, pair)
            }
            _ => {
                // Planning has made one if there was none.
                let signer = authority
                    .signer(now)
                    .ok_or_else(|| self.broken("it is empty"))?;
                let pair = issue::leaf(&name, signer, now)?;
                let leaf = Leaf {
                    issuer: signer.made,
                    issued: now,
                    name,
                    bundle: authority.bundle(),
                };
                (leaf, pair)
            }
        };
        let object = secret(service, &leaf, &pair);
        if !is_new {
            apply::write(client, &object).await?;
        } else if !apply::create(client, &object).await? {
            return Box::pin(self.ensure(client, service, now, false)).await;
        }
        let (_, namespace, secret) = &key;
        tracing::info!(namespace, secret, ?plan, "certificate written");
        self.remember(key, leaf).await;
        Ok(true)
    }

    async fn remember(&self, key: Whose, leaf: Leaf) {
        let mut seen = self.seen.lock().await;
        // What is not believed any more would be asked for again, or nobody needs it any more.
        seen.retain(|_, (at, _)| at.elapsed() < BELIEVED);
        seen.insert(key, (Instant::now(), leaf));
    }

    /// The certificate that a service has, and its key; none if it has none that is of use.
    async fn leaf(
        &self,
        client: &Client,
        service: &Service<'_>,
    ) -> Result<Option<(Leaf, [String; 2])>, Failure> {
        let (namespace, name) = (&service.owner.namespace, service.secret());
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let found = api.get_opt(&name).await.map_err(|source| Failure::Api {
            what: format!("read Secret {namespace}/{name}"),
            source,
        })?;
        let Some(found) = found else { return Ok(None) };
        let label = service.owner.label();
        if found.labels().get(label) != Some(&service.owner.name) {
            return Err(Failure::NameTaken {
                kind: Made::Secret,
                namespace: namespace.clone(),
                name,
            });
        }
        // One of an earlier owner of the name goes with that.
        let mut owners = found.owner_references().iter();
        let is_its = owners.any(|owner| owner.uid == service.owner.uid);
        Ok(if is_its { read_leaf(&found) } else { None })
    }

    /// The authority as it should be at `now`.
    async fn authority(&self, client: &Client, now: Timestamp) -> Result<Authority, Failure> {
        let mut known = self.authority.lock().await;
        if let Some((at, authority)) = &*known
            && at.elapsed() < BELIEVED
            && authority.plan(now).is_none()
        {
            return Ok(authority.clone());
        }
        let api: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let failed = |what: &str, source| Failure::Api {
            what: format!("{what} Secret {}/{AUTHORITY}", self.namespace),
            source,
        };
        let found = api.get_opt(AUTHORITY).await;
        let found = found.map_err(|source| failed("read", source))?;
        let mut authority = match &found {
            Some(secret) => read_authority(secret).map_err(|problem| self.broken(&problem))?,
            None => Authority::default(),
        };
        let is_asked = |secret: &Secret| secret.annotations().contains_key(SUCCEED);
        let change = if found.as_ref().is_some_and(is_asked) {
            Some(authority.plan_succession(now))
        } else {
            authority.plan(now)
        };
        if let Some(change) = change {
            carry_out(&mut authority, &change, now)?;
            let text = authority_secret(&authority, found.as_ref());
            let written = if found.is_some() {
                let params = PatchParams {
                    field_manager: Some(OPERATOR.to_owned()),
                    ..PatchParams::default()
                };
                api.patch(AUTHORITY, &params, &Patch::Merge(&text)).await
            } else {
                // Somebody who made one in the meantime wins: this look fails, and the next finds it.
                let secret = serde_json::from_value(text);
                let secret = secret.map_err(|error| self.broken(&error.to_string()))?;
                api.create(&PostParams::default(), &secret).await
            };
            written.map_err(|source| failed("write", source))?;
            tracing::info!(
                secret = format!("{}/{AUTHORITY}", self.namespace),
                authorities = authority.0.len(),
                "the authority was written"
            );
        }
        *known = Some((Instant::now(), authority.clone()));
        Ok(authority)
    }

    fn broken(&self, problem: &str) -> Failure {
        Failure::Authority {
            namespace: self.namespace.clone(),
            problem: problem.to_owned(),
        }
    }
}

fn carry_out(authority: &mut Authority, change: &Change, now: Timestamp) -> Result<(), Failure> {
    let Change { make, drop_before } = change;
    if let Some(made) = drop_before {
        authority.0.retain(|ca| ca.made >= *made);
    }
    if *make {
        authority.0.push(issue::ca(now)?);
    }
    Ok(())
}

/// The CAs that a Secret has: `SECONDS.crt` and `SECONDS.key` for each, by when it was made.
fn read_authority(secret: &Secret) -> Result<Authority, String> {
    let data = secret.data.as_ref();
    let mut cas = Vec::new();
    for (name, certificate) in data.into_iter().flatten() {
        let Some(made) = name.strip_suffix(".crt") else {
            continue;
        };
        let Ok(seconds) = made.parse() else { continue };
        let text = |bytes: &ByteString| String::from_utf8(bytes.0.clone());
        let key = data.and_then(|data| data.get(&format!("{made}.key")));
        let key = key.ok_or_else(|| format!("{made}.key is missing"))?;
        cas.push(Ca {
            made: Timestamp::from_second(seconds).map_err(|error| error.to_string())?,
            certificate: text(certificate).map_err(|error| error.to_string())?,
            key: text(key).map_err(|error| error.to_string())?,
        });
    }
    cas.sort_by_key(|ca| ca.made);
    Ok(Authority(cas))
}

/// The Secret of `authority`, in place of what was `found`.
fn authority_secret(authority: &Authority, found: Option<&Secret>) -> Value {
    let mut data = BTreeMap::new();
    // What was there and is not any more is taken away.
    let before = found.and_then(|secret| secret.data.as_ref());
    for name in before.into_iter().flat_map(BTreeMap::keys) {
        data.insert(name.clone(), Value::Null);
    }
    // What was asked for is done.
    let annotations = found.map(|_| json!({SUCCEED: null}));
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    for ca in &authority.0 {
        let made = ca.made.as_second();
        data.insert(format!("{made}.crt"), bytes(&ca.certificate));
        data.insert(format!("{made}.key"), bytes(&ca.key));
    }
    data.insert(BUNDLE.to_owned(), bytes(&authority.bundle()));
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": AUTHORITY,
            "labels": {MANAGED_BY: OPERATOR},
            "annotations": annotations.unwrap_or_else(|| json!({})),
            // Nobody's change in between is lost.
            "resourceVersion": found.and_then(|secret| secret.metadata.resource_version.clone()),
        },
        "data": data,
    })
}

/// What a leaf's Secret has; none if it is not what was written.
fn read_leaf(secret: &Secret) -> Option<(Leaf, [String; 2])> {
    let facts = secret.annotations().get(FACTS)?;
    let facts: Facts = serde_json::from_str(facts).ok()?;
    let data = secret.data.as_ref()?;
    let text = |name: &str| String::from_utf8(data.get(name)?.0.clone()).ok();
    let pair = [text(CERTIFICATE)?, text(KEY)?];
    if facts.digest != digest(&json!(pair)) {
        return None;
    }
    let leaf = Leaf {
        issuer: Timestamp::from_second(facts.issuer).ok()?,
        issued: Timestamp::from_second(facts.issued).ok()?,
        name: facts.name,
        bundle: text(BUNDLE).unwrap_or_default(),
    };
    Some((leaf, pair))
}

/// The Secret of a leaf.
fn secret(service: &Service<'_>, leaf: &Leaf, pair: &[String; 2]) -> Object {
    let facts = Facts {
        issuer: leaf.issuer.as_second(),
        issued: leaf.issued.as_second(),
        name: leaf.name.clone(),
        digest: digest(&json!(pair)),
    };
    let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
    let [certificate, key] = pair;
    let content = json!({
        "type": "kubernetes.io/tls",
        "data": {CERTIFICATE: bytes(certificate), KEY: bytes(key), BUNDLE: bytes(&leaf.bundle)},
    });
    let Service { owner, component } = service;
    let mut object = owner.object(Made::Secret, component, &service.secret(), &content);
    // Numbers and texts: JSON can say all of it.
    let facts = serde_json::to_string(&facts).unwrap_or_default();
    object.body["metadata"]["annotations"][FACTS] = facts.into();
    object
}

#[cfg(test)]
mod tests {
    use foretoken_crds::Kind;
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).expect("a time")
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut authority = Authority::default();
        let first = authority.plan(now()).expect("there is none");
        carry_out(&mut authority, &first, now()).expect("made");
        let later = now() + SignedDuration::from_hours(300 * 24);
        let second = authority.plan(later).expect("it is old");
        let secret: Secret =
            serde_json::from_value(authority_secret(&authority, None)).expect("one");
        assert_eq!(read_authority(&secret), Ok(authority.clone()));
        carry_out(&mut authority, &second, later).expect("made");
        let mut patch = authority_secret(&authority, Some(&secret));
        let asked = patch["metadata"]["annotations"].take();
        assert_eq!(asked, json!({SUCCEED: null}), "it is asked for once");
        let secret: Secret = serde_json::from_value(patch).expect("one");
        assert_eq!(read_authority(&secret).expect("whole").0.len(), 2);

        let owner = Owner {
            kind: Kind::SpecDecodeDeployment,
            namespace: "chat".into(),
            name: "story".into(),
            uid: "1".into(),
        };
        let service = Service {
            owner: &owner,
            component: "target",
        };
        let name = crate::build::identity(&owner, "target");
        let pair = issue::leaf(&name, &authority.0[0], later).expect("issued");
        let leaf = Leaf {
            issuer: now(),
            issued: later,
            name,
            bundle: authority.bundle(),
        };
        let object = super::secret(&service, &leaf, &pair);
        assert_eq!(object.name, "story-target-tls");
        let mut live: Secret = serde_json::from_value(object.body).expect("a Secret");
        assert_eq!(read_leaf(&live), Some((leaf, pair)));
        if let Some(data) = &mut live.data {
            data.insert(KEY.into(), ByteString(b"edited".to_vec()));
        }
        assert_eq!(read_leaf(&live), None, "it is issued anew");
    }
}
