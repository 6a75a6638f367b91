//! The router's side.

use std::{
    fmt, io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::Stream;
use hyper_util::rt::TokioIo;
use tonic::{
    Request, Status, Streaming,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use super::{GenerateError, GenerateEvent, GenerateRequest, TRACEPARENT, TargetInfo};
use crate::{
    Address, Callee,
    address::Socket,
    tls::{Role, Tls},
    wire::{
        Wire,
        proto::generation::v1::{self as proto, generation_client::GenerationClient},
    },
};

/// How long a connection may take, and an `info` call.
const PATIENCE: Duration = Duration::from_secs(2);

/// A target that does not answer a ping this long is lost. Pings are answered by the target's
/// I/O threads, so a long step does not count.
const PING_EVERY: Duration = Duration::from_millis(500);
const PING_PATIENCE: Duration = Duration::from_millis(1500);

/// How far one answer may run ahead of its reader.
const STREAM_WINDOW: u32 = 256 << 10;
/// HTTP/2's largest: answers that nobody reads must never use up what others, and probes, need.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Largest message of a target: log-probabilities of a long prompt are the largest.
const MAX_MESSAGE: usize = 256 << 20;

/// Speaks to one target. Connects when first used and again after a loss; clones share the
/// connection.
#[derive(Clone)]
pub struct GenerateClient {
    instance: String,
    callee: Callee,
    tls: Option<Tls>,
    client: Arc<OnceLock<GenerationClient<Channel>>>,
}

impl fmt::Debug for GenerateClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateClient")
            .field("instance", &self.instance)
            .field("address", &self.callee.address)
            .finish_non_exhaustive()
    }
}

impl GenerateClient {
    /// A client of the target called `instance` (the name errors carry). Connects lazily, on the
    /// runtime that makes the first call.
    pub fn new(instance: impl Into<String>, callee: impl Into<Callee>) -> Self {
        Self {
            instance: instance.into(),
            callee: callee.into(),
            tls: None,
            client: Arc::default(),
        }
    }

    /// The same, showing a certificate over TCP and asking for one of the target. To be called before
    /// the first request.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Starts a completion. Errors before the first event may come from the call or from the
    /// stream's first item.
    pub async fn generate(
        &self,
        request: GenerateRequest,
    ) -> Result<GenerateStream, GenerateError> {
        let mut call = Request::new(request.to_proto());
        if let Some(trace) = request.trace
            && let Ok(value) = trace.to_string().parse()
        {
            call.metadata_mut().insert(TRACEPARENT, value);
        }
        let response = self.client().generate(call).await;
        let events = response.map_err(|status| self.error(&status))?.into_inner();
        Ok(GenerateStream {
            instance: self.instance.clone(),
            events: Some(events),
        })
    }

    /// What the target is and how busy. Also how a router checks health: a target that does not
    /// answer within two seconds is [`GenerateError::Lost`].
    pub async fn info(&self) -> Result<TargetInfo, GenerateError> {
        let answer = tokio::time::timeout(PATIENCE, self.client().info(proto::InfoRequest {}))
            .await
            .map_err(|_| self.lost(format!("no answer within {} s", PATIENCE.as_secs())))?;
        let info = answer.map_err(|status| self.error(&status))?.into_inner();
        TargetInfo::from_proto(info).map_err(|error| self.lost(error.to_string()))
    }

    /// Name of the target.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.callee.address
    }

    fn client(&self) -> GenerationClient<Channel> {
        self.client
            .get_or_init(|| connect_lazily(self.callee.clone(), self.tls.clone()))
            .clone()
    }

    fn error(&self, status: &Status) -> GenerateError {
        GenerateError::of_status(&self.instance, status)
    }

    fn lost(&self, cause: String) -> GenerateError {
        GenerateError::Lost {
            instance: self.instance.clone(),
            cause,
        }
    }
}

fn connect_lazily(callee: Callee, tls: Option<Tls>) -> GenerationClient<Channel> {
    let connector = service_fn(move |_| {
        let (callee, tls) = (callee.clone(), tls.clone());
        async move {
            let connect = Socket::connect(&callee, tls.as_ref(), Role::Target);
            let connect = tokio::time::timeout(PATIENCE, connect);
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            Ok::<_, io::Error>(TokioIo::new(connect.await.map_err(late)??))
        }
    });
    // The name only fills a header: the connector knows where to go.
    let channel = Endpoint::from_static("http://target")
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // Answers to requests that were given up may still come, any number of them: a limit, which
        // is for the life of a connection, would end the others.
        .http2_max_local_error_reset_streams(None)
        .connect_with_connector_lazy(connector);
    GenerationClient::new(channel).max_decoding_message_size(MAX_MESSAGE)
}

/// The answer to a request; dropping it cancels the request. After `Finished` or an error it ends.
pub struct GenerateStream {
    instance: String,
    events: Option<Streaming<proto::GenerateEvent>>,
}

impl fmt::Debug for GenerateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateStream")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl Stream for GenerateStream {
    type Item = Result<GenerateEvent, GenerateError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(events) = self.events.as_mut() else {
            return Poll::Ready(None);
        };
        let lost = |instance: &str, cause: String| GenerateError::Lost {
            instance: instance.into(),
            cause,
        };
        let item = match ready!(Pin::new(events).poll_next(cx)) {
            Some(Ok(event)) => GenerateEvent::from_proto(event)
                .map_err(|error| lost(&self.instance, error.to_string())),
            Some(Err(status)) => Err(GenerateError::of_status(&self.instance, &status)),
            None => Err(lost(&self.instance, "the answer broke off".into())),
        };
        if !matches!(
            item,
            Ok(GenerateEvent::Started { .. } | GenerateEvent::Tokens(_))
        ) {
            self.events = None;
        }
        Poll::Ready(Some(item))
    }
}
