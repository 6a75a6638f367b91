//! The target's side.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use foretoken_speculation::TraceContext;
use futures::{Stream, StreamExt, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};

use super::{EventReceiver, EventSender, GenerateError, GenerateRequest, TRACEPARENT, TargetInfo};
use crate::{
    Address, Listener,
    tls::{Peer, Role, ServiceName, Tls},
    wire::{
        Wire,
        proto::generation::v1::{
            self as proto,
            generation_server::{Generation, GenerationServer},
        },
    },
};

/// A router that does not answer a ping this long is gone, and its requests are cancelled.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_PATIENCE: Duration = Duration::from_secs(2);

/// Most requests of one connection at a time.
const MAX_STREAMS: u32 = 16_384;

/// Largest request: a prompt of four million tokens.
const MAX_REQUEST: usize = 16 << 20;

/// What a target does with requests.
pub trait GenerateService: Send + Sync + 'static {
    /// Takes a request in. Returns at once; everything that follows goes through `events`, whose
    /// drop without `Finished` tells the router that the target was lost. An error here, or one
    /// sent by [`EventSender::fail`], ends the request.
    fn generate(&self, request: GenerateRequest, events: EventSender) -> Result<(), GenerateError>;

    /// What this target is and how busy.
    fn info(&self) -> TargetInfo;
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be handed to the runtime.
    #[error("cannot serve on {address}")]
    Listen {
        /// Where.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// The server failed.
    #[error("the server failed")]
    Transport(#[source] tonic::transport::Error),
}

/// Serves requests until `stop`; then accepts no more and returns when those that run have ended.
/// To end them too, drop the returned future.
pub async fn serve_generate(
    listener: Listener,
    service: Arc<impl GenerateService>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let address = listener.address().clone();
    let answers = Answers {
        service,
        name: listener.tls().map(Tls::name),
    };
    let incoming = listener
        .incoming()
        .map_err(|source| ServeError::Listen { address, source })?;
    let sockets = stream::unfold(incoming, |mut incoming| async {
        let socket = incoming.accept().await;
        Some((Ok::<_, io::Error>(socket), incoming))
    });
    Server::builder()
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_PATIENCE))
        .max_concurrent_streams(Some(MAX_STREAMS))
        // A router's users go away when they like: that is no flood that would end the connection,
        // and with it everybody else's requests.
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        .http2_max_local_error_reset_streams(Some(usize::MAX))
        .add_service(GenerationServer::new(answers).max_decoding_message_size(MAX_REQUEST))
        .serve_with_incoming_shutdown(sockets.boxed(), stop.cancelled_owned())
        .await
        .map_err(ServeError::Transport)
}

struct Answers<S> {
    service: Arc<S>,
    /// Who this target is, where routers have to show who they are.
    name: Option<ServiceName>,
}

impl<S> Answers<S> {
    /// Whether whoever made `request` may: a router of the same namespace.
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(us) = &self.name else { return Ok(()) };
        let peer = request.extensions().get::<Peer>();
        let Some(Peer(Some(peer))) = peer else {
            let message = format!("{us} answers routers with a certificate only");
            return Err(Status::unauthenticated(message));
        };
        if peer.role != Role::Router {
            let message = format!("{us} answers routers only, and this is {peer}");
            return Err(Status::permission_denied(message));
        }
        if peer.namespace != us.namespace {
            let message = format!("{us} answers routers of its namespace only, and this is {peer}");
            return Err(Status::permission_denied(message));
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl<S: GenerateService> Generation for Answers<S> {
    type GenerateStream = Events;

    async fn generate(
        &self,
        request: Request<proto::GenerateRequest>,
    ) -> Result<Response<Events>, Status> {
        self.check(&request)?;
        let trace = request.metadata().get(TRACEPARENT);
        let trace = trace.and_then(|value| TraceContext::parse(value.to_str().ok()?));
        let mut request = GenerateRequest::from_proto(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        request.trace = trace;
        let (sender, events) = EventSender::channel();
        self.service.generate(request, sender)?;
        Ok(Response::new(Events(events)))
    }

    async fn info(
        &self,
        request: Request<proto::InfoRequest>,
    ) -> Result<Response<proto::TargetInfo>, Status> {
        self.check(&request)?;
        Ok(Response::new(self.service.info().to_proto()))
    }
}

/// The events of one request. Dropped by the server when the router cancels or goes away, which
/// closes the [`EventSender`].
struct Events(EventReceiver);

impl Stream for Events {
    type Item = Result<proto::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(cx).map(|event| {
            event.map(|event| event.map(|event| event.to_proto()).map_err(Status::from))
        })
    }
}
