//! Calls to one member of etcd.

use std::{future::Future, time::Duration};

use futures::channel::mpsc;
use tokio::time::timeout;
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use super::{
    api::{
        AuthenticateRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest,
        LeaseKeepAliveResponse, LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse,
        WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
        auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient,
        watch_client::WatchClient, watch_request::RequestUnion,
    },
    config::{EtcdConfig, EtcdConfigError},
};

/// How long etcd may take to answer, and how long a stream may be silent that is asked for signs of
/// life.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How often a stream is asked for a sign of life.
pub(super) const PULSE: Duration = Duration::from_secs(1);

/// Why a session is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    #[error("cannot connect to {endpoint}: {why}")]
    Connect { endpoint: String, why: String },
    #[error("{endpoint} refused to {what}: {}", status.message())]
    Refused {
        endpoint: String,
        what: &'static str,
        status: Box<Status>,
    },
    #[error("{endpoint} does not answer")]
    Silent { endpoint: String },
    #[error("{endpoint} ended the watch: {why}")]
    Cancelled { endpoint: String, why: String },
    /// What was asked for has been compacted away: all has to be listed again.
    #[error("{endpoint} has compacted what was asked for")]
    Compacted { endpoint: String },
    /// It is another etcd than the one that was asked before, or has lost something since.
    #[error("{endpoint} does not have what etcd had before")]
    Other { endpoint: String },
}

/// A connection to one member, as whoever the configuration says.
#[derive(Clone, Debug)]
pub(super) struct Session {
    endpoint: String,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
}

/// A watch, and where to ask it for signs of life.
#[derive(Debug)]
pub(super) struct Watching {
    endpoint: String,
    asking: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

/// A lease that is kept alive.
#[derive(Debug)]
pub(super) struct KeptAlive {
    endpoint: String,
    lease: i64,
    asking: mpsc::Sender<LeaseKeepAliveRequest>,
    answers: Streaming<LeaseKeepAliveResponse>,
}

impl Session {
    /// Connects to `endpoint` and says who we are.
    pub(super) async fn connect(config: &EtcdConfig, endpoint: &str) -> Result<Self, SessionError> {
        let dialled = config.endpoint(endpoint)?.connect_timeout(PATIENCE);
        let endpoint = endpoint.to_owned();
        let connected = match timeout(PATIENCE, dialled.connect()).await {
            Ok(connected) => connected.map_err(|error| crate::in_full(&error)),
            Err(_) => Err("it does not answer".to_owned()),
        };
        let channel = match connected {
            Ok(channel) => channel,
            Err(why) => return Err(SessionError::Connect { endpoint, why }),
        };
        let mut session = Self {
            endpoint,
            channel,
            token: None,
        };
        if let Some((name, password)) = config.credentials()? {
            let mut client = AuthClient::new(session.channel.clone());
            let request = session.request(AuthenticateRequest { name, password });
            let answer = session
                .ask("let us in", client.authenticate(request))
                .await?;
            let token = answer.token.parse().map_err(|_| SessionError::Connect {
                endpoint: session.endpoint.clone(),
                why: "its token is none".to_owned(),
            })?;
            session.token = Some(token);
        }
        Ok(session)
    }

    /// All keys that begin with `prefix`, as of one revision.
    pub(super) async fn list(&self, prefix: &str) -> Result<RangeResponse, SessionError> {
        let mut client = KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let request = self.request(RangeRequest {
            key: start_of(prefix),
            range_end: end_of(prefix),
        });
        self.ask("list keys", client.range(request)).await
    }

    /// What a key says, and what holds it; none if it is not there.
    pub(super) async fn get(&self, key: &str) -> Result<Option<KeyValue>, SessionError> {
        let mut client = KvClient::new(self.channel.clone());
        let request = self.request(RangeRequest {
            key: key.into(),
            range_end: Vec::new(),
        });
        let found = self.ask("read a key", client.range(request)).await?;
        Ok(found.kvs.into_iter().next())
    }

    /// What becomes of keys that begin with `prefix`, from `revision` on.
    pub(super) async fn watch(
        &self,
        prefix: &str,
        revision: i64,
    ) -> Result<Watching, SessionError> {
        let create = WatchCreateRequest {
            key: start_of(prefix),
            range_end: end_of(prefix),
            start_revision: revision,
        };
        let (mut asking, asked) = mpsc::channel(4);
        // There is room for the first.
        let _ = asking.try_send(watch_request(RequestUnion::CreateRequest(create)));
        let mut client =
            WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut request = self.request(asked);
        // A member that has lost the others says so, and does not keep quiet.
        let yes = MetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        let answers = self.ask("watch keys", client.watch(request)).await?;
        Ok(Watching {
            endpoint: self.endpoint.clone(),
            asking,
            answers,
        })
    }

    /// A lease of that many seconds.
    pub(super) async fn grant(&self, seconds: i64) -> Result<i64, SessionError> {
        let mut client = LeaseClient::new(self.channel.clone());
        let request = self.request(LeaseGrantRequest { ttl: seconds });
        let answer = self
            .ask("grant a lease", client.lease_grant(request))
            .await?;
        Ok(answer.id)
    }

    /// Writes a key that goes when the lease does.
    pub(super) async fn put(
        &self,
        key: String,
        value: Vec<u8>,
        lease: i64,
    ) -> Result<(), SessionError> {
        let mut client = KvClient::new(self.channel.clone());
        let request = self.request(PutRequest {
            key: key.into_bytes(),
            value,
            lease,
        });
        self.ask("write a key", client.put(request)).await?;
        Ok(())
    }

    /// Ends a lease, and all keys that it holds.
    pub(super) async fn revoke(&self, lease: i64) -> Result<(), SessionError> {
        let mut client = LeaseClient::new(self.channel.clone());
        let request = self.request(LeaseRevokeRequest { id: lease });
        self.ask("end a lease", client.lease_revoke(request))
            .await?;
        Ok(())
    }

    /// Keeps a lease alive.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<KeptAlive, SessionError> {
        let (mut asking, asked) = mpsc::channel(4);
        // The answer comes with the first request; there is room for it.
        let _ = asking.try_send(LeaseKeepAliveRequest { id: lease });
        let mut client = LeaseClient::new(self.channel.clone());
        let request = self.request(asked);
        let kept = self.ask("keep a lease", client.lease_keep_alive(request));
        let answers = kept.await?;
        Ok(KeptAlive {
            endpoint: self.endpoint.clone(),
            lease,
            asking,
            answers,
        })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    async fn ask<T>(
        &self,
        what: &'static str,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, SessionError> {
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(SessionError::Refused {
                endpoint: self.endpoint.clone(),
                what,
                status: Box::new(status),
            }),
            Err(_) => Err(SessionError::Silent {
                endpoint: self.endpoint.clone(),
            }),
        }
    }
}

impl Watching {
    /// The next answer. A member that gives no sign of life is given up.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, SessionError> {
        let answer = self.hear().await?;
        let endpoint = self.endpoint.clone();
        if answer.compact_revision != 0 {
            return Err(SessionError::Compacted { endpoint });
        }
        if answer.canceled {
            let why = answer.cancel_reason;
            return Err(SessionError::Cancelled { endpoint, why });
        }
        Ok(answer)
    }

    async fn hear(&mut self) -> Result<WatchResponse, SessionError> {
        let waits = PATIENCE.as_secs() / PULSE.as_secs();
        for _ in 0..waits {
            let endpoint = self.endpoint.clone();
            match timeout(PULSE, self.answers.message()).await {
                Ok(Ok(Some(answer))) => return Ok(answer),
                Ok(Ok(None)) => {
                    let why = "the connection was closed".to_owned();
                    return Err(SessionError::Cancelled { endpoint, why });
                }
                Ok(Err(status)) => {
                    let what = "go on with the watch";
                    let status = Box::new(status);
                    return Err(SessionError::Refused {
                        endpoint,
                        what,
                        status,
                    });
                }
                // Should there be no room, there are questions already.
                Err(_) => {
                    let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                    let _ = self.asking.try_send(watch_request(progress));
                }
            }
        }
        let endpoint = self.endpoint.clone();
        Err(SessionError::Silent { endpoint })
    }
}

impl KeptAlive {
    /// How many seconds the lease has left, which is what it was granted; 0: it has run out.
    pub(super) async fn left(&mut self) -> Result<i64, SessionError> {
        let endpoint = self.endpoint.clone();
        match timeout(PATIENCE, self.answers.message()).await {
            Ok(Ok(Some(answer))) => Ok(answer.ttl),
            Ok(Ok(None)) => Err(SessionError::Cancelled {
                endpoint,
                why: "the connection was closed".to_owned(),
            }),
            Ok(Err(status)) => Err(SessionError::Refused {
                endpoint,
                what: "keep a lease",
                status: Box::new(status),
            }),
            Err(_) => Err(SessionError::Silent { endpoint }),
        }
    }

    /// Asks for more time.
    pub(super) fn prolong(&mut self) {
        // Should there be no room, there are questions already.
        let _ = self
            .asking
            .try_send(LeaseKeepAliveRequest { id: self.lease });
    }
}

fn watch_request(request: RequestUnion) -> WatchRequest {
    WatchRequest {
        request_union: Some(request),
    }
}

/// The first key that begins with `prefix`: no key is empty.
fn start_of(prefix: &str) -> Vec<u8> {
    match prefix {
        "" => vec![0],
        prefix => prefix.into(),
    }
}

/// The first key after all that begin with `prefix`, as etcd wants ranges.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Every key.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_all_keys_with_the_prefix() {
        assert_eq!(start_of("foretoken/"), b"foretoken/");
        assert_eq!(end_of("foretoken/"), b"foretoken0");
        assert_eq!((start_of(""), end_of("")), (vec![0], vec![0]), "all keys");
    }
}
