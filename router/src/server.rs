//! Connections: taking them, how long clients may be silent, ending them.
//!
//! A head that does not come in time, a connection that is idle as long, and a client that takes
//! nothing of what waits for it are hung up on. A head
//! that is too large gets an answer that says so, up to what a connection has room for; beyond that a
//! bare 431. Bodies have limits of their own, where they are read.

use std::{io, pin::pin, time::Duration};

use axum::Router;
use hyper::{
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

/// Most header fields of a request.
pub(crate) const MAX_FIELDS: usize = 100;
/// Most bytes of them.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// Most fields and bytes that are read to be told that they are too many.
const MOST_FIELDS: usize = 4 * MAX_FIELDS;
const MOST_HEAD: usize = 4 * MAX_HEAD;

/// How long a connection that is new when the router stops may take to ask what it came for.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Wait after the system had no room for another connection.
const PAUSE: Duration = Duration::from_secs(1);

/// How long clients may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until the head of a request is there.
    pub(crate) head: Duration,
    /// While something waits to be read by them.
    pub(crate) unread: Duration,
}

/// Serves `app`; from `stop` on, each connection ends with its answer. Once `close` is said, takes no
/// more connections and waits for the last answer. Dropping the future ends all connections.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    patience: Patience,
    stop: CancellationToken,
    close: CancellationToken,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = close.cancelled() => break,
            stream = accept(&listener) => {
                let served = connection(stream?, app.clone(), patience, stop.clone());
                connections.spawn(served);
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// The next connection. One that breaks before it is taken, and a lack of files or memory, concern
/// the listener no further; everything else is its end.
async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    /// `ENFILE`, `EMFILE`, `ENOMEM`, `ENOBUFS` of Linux.
    const NO_ROOM: [i32; 4] = [23, 24, 12, 105];
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => match (error.kind(), error.raw_os_error()) {
                (ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted, _) => {}
                (_, Some(code)) if NO_ROOM.contains(&code) => {
                    tracing::warn!(%error, "cannot take a connection; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                _ => return Err(error),
            },
        }
    }
}

async fn connection(stream: TcpStream, app: Router, patience: Patience, stop: CancellationToken) {
    // Without it small chunks wait for acknowledgements, tens of milliseconds each.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(patience.unread));
    let asked = CancellationToken::new();
    let service = TowerToHyperService::new(app);
    let service = service_fn(|request| {
        asked.cancel();
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
        .max_headers(MOST_FIELDS)
        .max_buf_size(MOST_HEAD)
        .serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut connection = pin!(connection);
    let last_call = async {
        stop.cancelled().await;
        let _ = timeout(LAST_CALL, asked.cancelled()).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = last_call => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}
