//! Keeps a directory equal to what etcd has.

use super::{
    api::{ResponseHeader, WatchResponse, event::EventType},
    config::EtcdConfig,
    entries::{BadEntry, Entries},
    session::{Session, SessionError},
};
use crate::{backoff::Backoff, publication::Publisher};

/// What is known, and as of when.
struct Known {
    entries: Entries,
    /// Cluster and revision; none: all has to be listed.
    at: Option<(u64, i64)>,
}

/// Follows etcd for ever.
pub(super) async fn follow(config: EtcdConfig, publisher: Publisher) {
    let mut backoff = Backoff::default();
    let mut known = Known {
        entries: Entries::new(config.prefix.clone()),
        at: None,
    };
    for endpoint in config.endpoints.iter().cycle() {
        let Err(error) = attend(&config, endpoint, &mut known, &publisher, &mut backoff).await;
        match error {
            SessionError::Compacted { .. } | SessionError::Other { .. } => {
                tracing::info!(registry = %config, reason = %error, "listing all keys again");
                known.at = None;
            }
            SessionError::Config(_)
            | SessionError::Connect { .. }
            | SessionError::Refused { .. }
            | SessionError::Silent { .. }
            | SessionError::Cancelled { .. } => publisher.stale(error.to_string()),
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// Follows one member as long as it goes.
async fn attend(
    config: &EtcdConfig,
    endpoint: &str,
    known: &mut Known,
    publisher: &Publisher,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, SessionError> {
    let session = Session::connect(config, endpoint).await?;
    let (cluster, revision) = match known.at {
        Some(at) => at,
        None => list(&session, config, known, publisher).await?,
    };
    let mut watching = session.watch(&config.prefix, revision + 1).await?;
    loop {
        let answer = watching.next().await?;
        let header = answer.header.unwrap_or_default();
        if header.cluster_id != cluster || header.revision < revision {
            let endpoint = endpoint.to_owned();
            return Err(SessionError::Other { endpoint });
        }
        known.take_in(answer);
        publisher.publish(known.entries.directory());
        publisher.current();
        backoff.reset();
    }
}

async fn list(
    session: &Session,
    config: &EtcdConfig,
    known: &mut Known,
    publisher: &Publisher,
) -> Result<(u64, i64), SessionError> {
    let answer = session.list(&config.prefix).await?;
    let keys = answer.kvs.into_iter();
    let bad = known
        .entries
        .replace(keys.map(|kv| (kv.key, kv.value, kv.mod_revision)));
    bad.iter().for_each(complain);
    publisher.publish(known.entries.directory());
    publisher.current();
    let ResponseHeader {
        cluster_id,
        revision,
    } = answer.header.unwrap_or_default();
    known.at = Some((cluster_id, revision));
    Ok((cluster_id, revision))
}

impl Known {
    fn take_in(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let kind = event.r#type();
            let Some(kv) = event.kv else { continue };
            match kind {
                EventType::Put => {
                    let put = self.entries.put(&kv.key, &kv.value, kv.mod_revision);
                    if let Err(bad) = put {
                        complain(&bad);
                    }
                }
                EventType::Delete => self.entries.delete(&kv.key),
            }
            self.reached(kv.mod_revision);
        }
    }

    /// All up to `revision` is known.
    fn reached(&mut self, revision: i64) {
        if let Some((_, at)) = &mut self.at {
            *at = revision.max(*at);
        }
    }
}

fn complain(bad: &BadEntry) {
    tracing::warn!(reason = %bad, "what was known of it before stays in use");
}
