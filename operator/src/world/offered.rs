//! Kinds of others' that a cluster may have or not: looked for now and then, and followed once they
//! are there.

use std::{future::Future, time::Duration};

use kube::{
    Api,
    api::{DynamicObject, ListParams},
    runtime::reflector::Store,
};
use tokio::{sync::watch, time::sleep};

use super::Live;

/// How often a kind is looked for.
const LOOK: Duration = Duration::from_secs(10);

/// Whether a cluster has a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Nobody has looked yet.
    Unknown,
    /// It does not.
    Absent,
    /// The operator may not know.
    Forbidden,
    /// It does.
    Present,
}

/// Tells whether the kind of `api` is there, for ever, and rings of every change; follows its objects,
/// which are `seen` then, once it is.
pub(super) async fn follow(
    api: Api<DynamicObject>,
    following: impl Future<Output = ()>,
    seen: Store<Live>,
    told: watch::Sender<Offer>,
    ring: impl Fn(),
) {
    let tell = |offer: Offer| {
        let is_news = told.send_if_modified(|known| std::mem::replace(known, offer) != offer);
        if is_news {
            tracing::info!(?offer, "LeaderWorkerSets of this cluster");
            ring();
        }
    };
    loop {
        match look(&api).await {
            Some(Offer::Present) => break,
            offer => offer.into_iter().for_each(tell),
        }
        sleep(LOOK).await;
    }
    let looking = async {
        // Before that, a set that is missing here may exist.
        if seen.wait_until_ready().await.is_err() {
            return;
        }
        loop {
            look(&api).await.into_iter().for_each(tell);
            sleep(LOOK).await;
        }
    };
    tokio::join!(following, looking);
}

/// Whether the kind is there; none if the API server does not answer.
async fn look(api: &Api<DynamicObject>) -> Option<Offer> {
    let params = ListParams::default().match_any().limit(1);
    match api.list_metadata(&params).await {
        Ok(_) => Some(Offer::Present),
        // Of a group that is not there the API server says so in words of its own.
        Err(kube::Error::Api(status)) if status.code == 404 => Some(Offer::Absent),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Some(Offer::Forbidden),
        Err(error) => {
            tracing::debug!(%error, "cannot tell whether there are LeaderWorkerSets");
            None
        }
    }
}
