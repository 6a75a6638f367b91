//! Watches that are late, as on a busy machine, but every time.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::{
    Request,
    body::{Body as HttpBody, Bytes, Frame},
};
use kube::{Client, Error, client::Body};
use tokio::time::{Sleep, sleep};
use tower::service_fn;

/// How late.
const BY: Duration = Duration::from_millis(500);

/// The same client, but that watches of Deployments show what changed later than others do.
pub(super) fn with_late_deployments(client: Client) -> Client {
    let late = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let uri = request.uri();
            let is_watched = uri.query().is_some_and(|query| query.contains("watch="));
            let is_late = is_watched && uri.path().ends_with("/deployments");
            let answer = client.send(request).await?;
            let body = |body| Watched {
                body,
                held: None,
                flows: false,
                is_late,
            };
            Ok::<_, Error>(answer.map(body))
        }
    });
    Client::new(late, "default")
}

/// A body of which what comes after a pause comes late, if it is, and with it all that has come by then.
struct Watched {
    body: Body,
    held: Option<(Frame<Bytes>, Pin<Box<Sleep>>)>,
    /// Whether there was no pause since something came.
    flows: bool,
    is_late: bool,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.held.is_none() {
            let polled = Pin::new(&mut self.body).poll_frame(context)?;
            self.flows &= polled.is_ready();
            match ready!(polled) {
                Some(frame) if self.is_late && !self.flows => {
                    self.held = Some((frame, Box::pin(sleep(BY))));
                }
                frame => return Poll::Ready(frame.map(Ok)),
            }
        }
        if let Some((_, until)) = &mut self.held {
            ready!(until.as_mut().poll(context));
        }
        self.flows = true;
        Poll::Ready(self.held.take().map(|(frame, _)| Ok(frame)))
    }
}
