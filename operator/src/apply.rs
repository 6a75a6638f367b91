//! Brings what the cluster has to what is wanted: writes what differs, deletes what is not wanted
//! any more, and nothing else.

mod difference;

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use kube::{
    Api, Client, ResourceExt as _,
    api::{
        DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions,
        ValidationDirective,
    },
};
use serde_json::{Value, json};

use crate::{
    build,
    failure::Failure,
    object::{APPLIED, Made, OPERATOR, Object, Owner},
    world::{Live, World},
};
use difference::{differences, surplus};

/// Most objects of one owner that are written at once.
const AT_ONCE: usize = 6;

/// A version that no object ever has: servers make an object that says it if there is none of that name,
/// and refuse it if there is one.
const NEVER: &str = "1";

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Objects that were made or changed.
    pub(crate) applied: usize,
    /// Objects that were deleted.
    pub(crate) pruned: usize,
    /// What somebody else had changed, and where.
    pub(crate) undone: Vec<String>,
    /// Whether something that pods read again while they run has another content.
    pub(crate) is_remounted: bool,
    /// Components whose pods are another number or others now, which no watch may have shown yet.
    pub(crate) rolling: Vec<String>,
}

impl Written {
    /// Counts what became of an object.
    fn note(&mut self, object: &Object, brought: Brought) {
        let is_changed = matches!(brought, Brought::Changed | Brought::Undone(_));
        self.is_remounted |= is_changed && build::is_read_again(object);
        let is_written = brought != Brought::Current;
        self.applied += usize::from(is_written);
        if is_written && object.kind.makes_pods() {
            self.rolling.push(object.component.clone());
        }
        if let Brought::Undone(what) = brought {
            self.undone.push(what);
        }
    }
}

/// Makes what was made for `owner` what is `wanted`. What was `written` is told also if it fails.
pub(crate) async fn apply(
    client: &Client,
    world: &World,
    owner: &Owner,
    wanted: &[Object],
    written: &mut Written,
) -> Result<(), Failure> {
    apply_some(client, world, owner, wanted, written).await?;
    for kind in Made::ALL {
        for live in world.made_for(kind, owner) {
            let is_wanted = |object: &Object| object.kind == kind && object.name == live.name;
            if !wanted.iter().any(is_wanted) && !live.is_leaving {
                delete(client, kind, &live).await?;
                written.pruned += 1;
            }
        }
    }
    Ok(())
}

/// Brings what is `wanted` of what is made for `owner`, and leaves the rest as it is.
pub(crate) async fn apply_some(
    client: &Client,
    world: &World,
    owner: &Owner,
    wanted: &[Object],
    written: &mut Written,
) -> Result<(), Failure> {
    let is_new = world.is_new(owner);
    let mut sent = Vec::new();
    // Pods come last: what they need is there then.
    let (pods, others): (Vec<&Object>, Vec<&Object>) =
        wanted.iter().partition(|object| object.kind.makes_pods());
    for objects in others.chunks(AT_ONCE).chain(pods.chunks(AT_ONCE)) {
        let mut all: Vec<BoxFuture<'_, _>> = Vec::new();
        for object in objects {
            let before = world.made(object);
            all.push(Box::pin(async move {
                let brought = bring(client, before.as_deref(), (owner, is_new), object).await;
                (*object, before, brought)
            }));
        }
        let mut failed = Ok(());
        for (object, before, brought) in join_all(all).await {
            match brought {
                Ok(brought) => {
                    if brought != Brought::Current {
                        sent.push(Sent { object, before });
                    }
                    written.note(object, brought);
                }
                Err(failure) => failed = failed.and(Err(failure)),
            }
        }
        failed?;
    }
    // Whoever looks at `owner` next would write again what is not seen yet.
    if !sent.is_empty() {
        world
            .wait_for(|| sent.iter().all(|sent| sent.is_seen(world)))
            .await;
    }
    Ok(())
}

/// An object that was just written.
struct Sent<'a> {
    object: &'a Object,
    /// As it was seen before.
    before: Option<Arc<Live>>,
}

impl Sent<'_> {
    /// Whether it is seen as it was written.
    fn is_seen(&self, world: &World) -> bool {
        let now = world.made(self.object);
        let news = now.filter(|now| {
            let before = self.before.as_ref();
            before.is_none_or(|before| !Arc::ptr_eq(before, now))
        });
        news.is_some_and(|live| live.applied() == digest(self.object))
    }
}

/// What became of one object.
#[derive(Debug, PartialEq, Eq)]
enum Brought {
    Current,
    Made,
    Changed,
    Undone(String),
}

/// Brings one object, which is seen as `live`, to what is wanted.
async fn bring(
    client: &Client,
    live: Option<&Live>,
    (owner, is_new): (&Owner, bool),
    object: &Object,
) -> Result<Brought, Failure> {
    let Some(live) = live else {
        // Of one that had nothing before, names are free as a rule, and need not be asked for.
        let is_made = is_new && create(client, object).await?;
        if !is_made {
            check_name(client, owner, object).await?;
            write(client, object).await?;
        }
        return Ok(Brought::Made);
    };
    if !live.is_for(owner) {
        return Err(taken(object));
    }
    match compare(live, object) {
        Compared::Same => Ok(Brought::Current),
        Compared::Older => {
            write(client, object).await?;
            Ok(Brought::Changed)
        }
        Compared::Edited(mut fields) => {
            let mut applied = json!(write(client, object).await?);
            for field in &fields {
                if let Some(without) = surplus(&applied, object, field) {
                    applied = json!(replace(client, object, &without).await?);
                }
            }
            // Some are only spelt differently, and still are: `cpu: 2` is kept as "2". And to some somebody
            // adds whatever is written, as webhooks do.
            let left = differences(&applied, object);
            fields.retain(|field| !left.contains(field));
            if fields.is_empty() {
                live.is_as_applied();
                return Ok(Brought::Current);
            }
            let fields = fields.join(", ");
            tracing::info!(object = object.name, fields, "somebody else had changed it");
            let Object { kind, name, .. } = object;
            Ok(Brought::Undone(format!("{kind:?} {name} at {fields}")))
        }
    }
}

/// Digest of what is `wanted`, as the object itself says it.
fn digest(wanted: &Object) -> Option<&str> {
    let annotations = wanted.body.pointer("/metadata/annotations")?;
    annotations.get(APPLIED).and_then(Value::as_str)
}

/// How an object that is there compares with what is wanted.
enum Compared {
    /// It is that.
    Same,
    /// It was made of something else.
    Older,
    /// It was that, and these fields are not what they were.
    Edited(Vec<String>),
}

/// Compares `live` with what is `wanted`.
fn compare(live: &Live, wanted: &Object) -> Compared {
    if live.applied() != digest(wanted) {
        return Compared::Older;
    }
    let Some(said) = live.unread() else {
        return Compared::Same;
    };
    let fields = differences(&said, wanted);
    if fields.is_empty() {
        live.is_as_applied();
        return Compared::Same;
    }
    Compared::Edited(fields)
}

fn api(client: &Client, kind: Made, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &kind.resource())
}

/// Whether the name is free, or the object's that bears it.
async fn check_name(client: &Client, owner: &Owner, object: &Object) -> Result<(), Failure> {
    let Object {
        kind,
        namespace,
        name,
        ..
    } = object;
    // By a list, which the operator may ask for anyway.
    let its_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = api(client, *kind, namespace).list_metadata(&its_name).await;
    let found = found.map_err(|source| Failure::Api {
        what: format!("look for {kind:?} {namespace}/{name}"),
        source,
    })?;
    let mut others = found.iter();
    if others.all(|found| found.labels().get(owner.label()) == Some(&owner.name)) {
        return Ok(());
    }
    Err(taken(object))
}

/// The name of `object` is that of somebody else's.
fn taken(object: &Object) -> Failure {
    Failure::NameTaken {
        kind: object.kind,
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    }
}

/// Makes `object`, unless there is one of that name; tells whether it did.
pub(crate) async fn create(client: &Client, object: &Object) -> Result<bool, Failure> {
    let mut body = object.body.clone();
    body["metadata"]["resourceVersion"] = NEVER.into();
    match send(client, object, &body).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(false),
        Err(source) => Err(not_applied(object, source)),
    }
}

/// Writes `object`, whatever is there; what it is then.
pub(crate) async fn write(client: &Client, object: &Object) -> Result<DynamicObject, Failure> {
    let sent = send(client, object, &object.body).await;
    sent.map_err(|source| not_applied(object, source))
}

/// Writes these fields of `object`, whole lists of them: of most lists applying leaves what somebody else
/// has added. What it is then.
async fn replace(
    client: &Client,
    object: &Object,
    fields: &Value,
) -> Result<DynamicObject, Failure> {
    let params = PatchParams {
        field_manager: Some(OPERATOR.to_owned()),
        ..PatchParams::default()
    };
    let api = api(client, object.kind, &object.namespace);
    let replaced = api
        .patch(&object.name, &params, &Patch::Merge(fields))
        .await;
    replaced.map_err(|source| not_applied(object, source))
}

fn not_applied(object: &Object, source: kube::Error) -> Failure {
    let Object {
        kind,
        namespace,
        name,
        ..
    } = object;
    Failure::Api {
        what: format!("apply {kind:?} {namespace}/{name}"),
        source,
    }
}

async fn send(
    client: &Client,
    object: &Object,
    body: &Value,
) -> Result<DynamicObject, kube::Error> {
    let Object {
        kind,
        namespace,
        name,
        ..
    } = object;
    // Fields that somebody else took are taken back: the user edits the object they are made from.
    let mut params = PatchParams::apply(OPERATOR).force();
    params.field_validation = Some(ValidationDirective::Strict);
    let api = api(client, *kind, namespace);
    let applied = api.patch(name, &params, &Patch::Apply(body)).await?;
    tracing::debug!(?kind, namespace, name, "applied");
    Ok(applied)
}

async fn delete(client: &Client, kind: Made, live: &Live) -> Result<(), Failure> {
    let (name, namespace) = (&live.name, &live.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: live.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match api(client, kind, namespace).delete(name, &params).await {
        Ok(_) => {
            tracing::info!(?kind, namespace, name, "deleted: not wanted any more");
            Ok(())
        }
        // Somebody else was faster; what is there now was never ours to delete.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(source) => Err(Failure::Api {
            what: format!("delete {kind:?} {namespace}/{name}"),
            source,
        }),
    }
}
