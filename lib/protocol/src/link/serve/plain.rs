//! Links over Unix sockets.

use std::{io, sync::Arc};

use tokio::{net::UnixStream, time::timeout};
use tokio_util::task::TaskTracker;
use tonic::Status;

use super::{LATE, NAMELESS, Shared};
use crate::{
    address::{Incoming, Local, Socket},
    link::{Hello, TargetFrame, carrier::Failure, plain::Wire, polled::Visit, transport::FAREWELL},
};

/// Serves targets that come.
pub(super) async fn serve(mut incoming: Incoming, shared: Arc<Shared>) {
    let links = TaskTracker::new();
    while let Some(socket) = shared.stop.run_until_cancelled(incoming.accept()).await {
        if let Socket::Unix(socket) = socket {
            let polled = Arc::clone(&shared.polled);
            let shared = Arc::clone(&shared);
            links.spawn(polled.share(|visit| welcome(socket, visit, shared)));
        }
    }
    links.close();
    links.wait().await;
}

async fn welcome(socket: Local, visit: Visit, shared: Arc<Shared>) {
    let taken = match socket.into_stream() {
        Ok(stream) => take_in(stream, visit, &shared).await,
        Err(error) => Err(Failure::Lost(error.to_string())),
    };
    if let Err(failure) = taken {
        tracing::warn!(%failure, "a connection over a Unix socket makes no sense");
    }
}

/// The link with whoever has connected, from what is said first to its end.
async fn take_in(stream: UnixStream, visit: Visit, shared: &Shared) -> Result<(), Failure> {
    let introduction = introduce(stream, visit, shared.options.max_frame);
    let introduction = timeout(shared.options.dead_after, introduction);
    let Some(introduced) = shared.stop.run_until_cancelled(introduction).await else {
        return Ok(());
    };
    let introduced = introduced.map_err(|_| Failure::Lost(LATE.into()))?;
    let Some((mut wire, hello)) = introduced? else {
        return Ok(());
    };
    let admitted = match hello {
        Some((version, hello)) => shared.admit(version, hello),
        None => Err(Status::invalid_argument(NAMELESS)),
    };
    let (accepted, outgoing) = match admitted {
        Ok(admitted) => admitted,
        Err(status) => {
            farewell(wire.end(&Failure::from(&status))).await;
            return Ok(());
        }
    };
    let revoked = Arc::clone(&accepted.revoked);
    let mut frames = wire.carry(outgoing);
    accepted.run(shared, &mut frames).await;
    if let Some(reason) = revoked.get() {
        farewell(frames.end(&Failure::Lost(reason.clone()))).await;
    }
    Ok(())
}

/// What a target says of itself, if it is one; none: somebody only looked whether anyone listens.
async fn introduce(
    stream: UnixStream,
    visit: Visit,
    max_frame: usize,
) -> Result<Option<(Wire, Option<(u32, Hello)>)>, Failure> {
    let Some(mut wire) = Wire::accept(stream, max_frame, visit).await? else {
        return Ok(None);
    };
    let first: Option<TargetFrame> = wire.next().await?;
    Ok(Some((wire, first.and_then(|frame| frame.hello))))
}

/// Lets the last words leave, if the peer still takes them.
async fn farewell(words: impl Future<Output = io::Result<()>>) {
    let _ = timeout(FAREWELL, words).await;
}
