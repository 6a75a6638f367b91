//! Two ends of a link, however they are joined.

use std::{
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use foretoken_protocol::{
    Address, Listener,
    link::{
        Hello, Link, LinkEvent, LinkOptions, LinkServer, ServerEvent, Terms, Transport,
        TransportOptions, Welcome,
    },
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::proxy::Proxy;

/// Far longer than anything takes: what has not happened by then does not happen.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A target's end.
pub(crate) struct Target {
    pub(crate) link: Link,
    pub(crate) events: Receiver<LinkEvent>,
    pub(crate) stop: CancellationToken,
    // Last: links end before the thread that carries them.
    _transport: Transport,
}

/// An endpoint's end.
pub(crate) struct Endpoint {
    pub(crate) server: LinkServer,
    pub(crate) events: Receiver<ServerEvent>,
    pub(crate) transport: Transport,
}

pub(crate) fn hello() -> Hello {
    Hello {
        instance: "target-0".into(),
        tokenizer_digest: "tokenizer".into(),
        vocab_size: 12,
        ..Hello::default()
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        instance: "draft-0".into(),
        tokenizer_digest: "tokenizer".into(),
        vocab_size: 12,
        ..Welcome::default()
    }
}

/// Comes back soon after a loss; gives up on a silent peer only after seconds, so that a busy
/// machine is not taken for a dead one.
pub(crate) fn eager() -> LinkOptions {
    LinkOptions {
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        dead_after: Duration::from_secs(10),
        suspect_after: Duration::from_secs(5),
        ..LinkOptions::default()
    }
}

pub(crate) fn dial(address: &Address, hello: Hello, options: LinkOptions) -> Target {
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let stop = CancellationToken::new();
    let (sender, events) = channel();
    let on_event = move |event| drop(sender.send(event));
    let link = transport.dial(address.clone(), hello, options, &stop, on_event);
    Target {
        link,
        events,
        stop,
        _transport: transport,
    }
}

pub(crate) fn serve(address: &Address, welcome: Welcome, options: LinkOptions) -> Endpoint {
    serve_on(address, Terms::new(welcome, options))
}

pub(crate) fn serve_on(address: &Address, terms: Terms) -> Endpoint {
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let listener = Listener::bind(address).expect("binds");
    let (sender, events) = channel();
    let on_event = move |event| drop(sender.send(event));
    let stop = CancellationToken::new();
    let server = transport
        .serve(listener, terms, &stop, on_event)
        .expect("serves");
    Endpoint {
        server,
        events,
        transport,
    }
}

/// A link through a proxy, which is not yet up.
pub(crate) fn through_proxy(address: &Address, options: LinkOptions) -> (Endpoint, Proxy, Target) {
    let endpoint = serve(address, welcome(), options);
    let proxy = Proxy::start(endpoint.server.address());
    let target = dial(&proxy.address, hello(), options);
    (endpoint, proxy, target)
}

/// Runs `test` with an address of each kind.
pub(crate) fn over_sockets(test: impl Fn(&Address)) {
    let folder = TempDir::new().expect("a folder");
    test(&Address::loopback(0));
    test(&Address::Unix(folder.path().join("link")));
}

/// Waits for an event that `pick` takes, ignoring others.
pub(crate) fn wait<E: std::fmt::Debug, T>(
    events: &Receiver<E>,
    mut pick: impl FnMut(E) -> Option<T>,
) -> T {
    loop {
        let event = events.recv_timeout(LONG).expect("the event comes");
        if let Some(picked) = pick(event) {
            return picked;
        }
    }
}

/// Waits until the target's link is up.
pub(crate) fn wait_up(target: &Target) -> Welcome {
    wait(&target.events, |event| match event {
        LinkEvent::Up(welcome) => Some(welcome),
        _ => None,
    })
}
