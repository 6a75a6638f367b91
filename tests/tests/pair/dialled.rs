//! A target's end of a link, moved by hand.

use std::sync::mpsc::{Receiver, channel};

use foretoken_protocol::{
    Address,
    link::{Consumer, Hello, Link, LinkEvent, LinkOptions, Transport, TransportOptions},
};
use tokio_util::sync::CancellationToken;

use super::rig::PATIENT;

pub(super) struct Dialled {
    pub(super) link: Link,
    events: Receiver<LinkEvent>,
    _transport: Transport,
}

impl Dialled {
    /// A link to the endpoint at `address` that is up.
    pub(super) fn new(address: &Address, consumer: Consumer) -> Self {
        let transport = Transport::start(TransportOptions::default()).expect("a thread");
        let hello = Hello {
            instance: "by hand".into(),
            vocab_size: 128,
            consumer,
            ..Hello::default()
        };
        let (sender, events) = channel();
        let on_event = move |event| drop(sender.send(event));
        let stop = CancellationToken::new();
        let options = LinkOptions::default();
        let link = transport.dial(address.clone(), hello, options, &stop, on_event);
        let dialled = Self {
            link,
            events,
            _transport: transport,
        };
        dialled.wait("Up", |event| {
            matches!(event, LinkEvent::Up(_)).then_some(())
        });
        dialled
    }

    /// The next event that `pick` takes.
    pub(super) fn wait<T>(&self, what: &str, mut pick: impl FnMut(LinkEvent) -> Option<T>) -> T {
        loop {
            let event = self.events.recv_timeout(PATIENT).ok();
            let event = event.unwrap_or_else(|| panic!("waited in vain: {what}"));
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    }
}
