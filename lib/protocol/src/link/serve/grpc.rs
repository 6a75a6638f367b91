//! Links over TCP: streams of gRPC.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{LATE, NAMELESS, Shared};
use crate::{
    address::Incoming,
    link::{
        Consumer, DraftFrame, TargetFrame,
        queue::Outgoing,
        transport::{FAREWELL, WINDOW},
    },
    tls::{Peer, Role, ServiceName},
    wire::proto::speculation::v1::speculation_server::{Speculation, SpeculationServer},
};

/// Most streams of one connection: a target needs one, and one more while it dials again.
const MAX_STREAMS: u32 = 8;

/// Serves targets that come.
pub(super) async fn serve(incoming: Incoming, shared: Arc<Shared>) {
    let stop = shared.stop.clone();
    let service = SpeculationServer::new(Acceptor {
        shared: Arc::clone(&shared),
    })
    .max_decoding_message_size(shared.options.max_frame);
    let sockets = stream::unfold(incoming, |mut incoming| async {
        let socket = incoming.accept().await;
        Some((Ok::<_, io::Error>(socket), incoming))
    });
    let serving = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        // Beats watch established links; this ends connections that never became one.
        .http2_keepalive_interval(Some(Duration::from_secs(1)))
        .http2_keepalive_timeout(Some(shared.options.dead_after))
        .max_concurrent_streams(Some(MAX_STREAMS))
        .add_service(service)
        .serve_with_incoming_shutdown(sockets.boxed(), stop.cancelled());
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "links are no longer accepted");
        },
        () = async { stop.cancelled().await; sleep(FAREWELL).await } => {}
    }
}

struct Acceptor {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl Speculation for Acceptor {
    type LinkStream = Replies;

    async fn link(
        &self,
        request: Request<Streaming<TargetFrame>>,
    ) -> Result<Response<Replies>, Status> {
        let shared = &self.shared;
        let target = shared.who(&request)?;
        let mut frames = request.into_inner();
        let first = timeout(shared.options.dead_after, frames.message())
            .await
            .map_err(|_| Status::deadline_exceeded(LATE))?;
        let Some((version, mut hello)) = first?.and_then(|frame| frame.hello) else {
            return Err(Status::invalid_argument(NAMELESS));
        };
        if let Some(ServiceName {
            namespace, name, ..
        }) = target
        {
            // Whatever it says of itself.
            hello.consumer = Consumer {
                namespace,
                deployment: name,
            };
        }
        let (accepted, outgoing) = shared.admit(version, hello)?;
        let replies = Replies {
            frames: outgoing,
            farewell: Some(Arc::clone(&accepted.revoked)),
        };
        let shared = Arc::clone(shared);
        let other = shared.polled.other();
        tokio::spawn(async move {
            accepted.run(&shared, &mut frames).await;
            drop(other);
        });
        Ok(Response::new(replies))
    }
}

impl Shared {
    /// Who dials: a target with a certificate, or none where nobody has to show one.
    fn who<T>(&self, request: &Request<T>) -> Result<Option<ServiceName>, Status> {
        let Some(us) = &self.name else {
            return Ok(None);
        };
        let peer = request.extensions().get::<Peer>();
        let Some(Peer(Some(peer))) = peer.cloned() else {
            let message = format!("{us} serves targets with a certificate only");
            return Err(Status::unauthenticated(message));
        };
        if peer.role != Role::Target {
            let reason = format!("{us} serves targets only, and this is {peer}");
            return Err(self.refuse(peer.to_string(), reason));
        }
        Ok(Some(peer))
    }
}

/// What an endpoint sends over one link.
struct Replies {
    frames: Outgoing<DraftFrame>,
    /// Why its target may not use the endpoint any more, to be said once.
    farewell: Option<Arc<OnceLock<String>>>,
}

impl Stream for Replies {
    type Item = Result<DraftFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.frames).poll_next(cx));
        Poll::Ready(match next {
            Some(frame) => Some(Ok(frame)),
            None => self.farewell.take().and_then(|revoked| {
                let reason = revoked.get()?;
                Some(Err(Status::permission_denied(reason)))
            }),
        })
    }
}
