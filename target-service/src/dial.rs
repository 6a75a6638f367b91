//! Reaching endpoints over the network.

use std::time::Instant;

use foretoken_engine::runner::RunnerInfo;
use foretoken_protocol::{
    Address,
    link::{Hello, Link, LinkOptions, Postbox, Transport},
};
use foretoken_speculation::message::ToDraft;
use tokio_util::sync::CancellationToken;

use crate::{
    config::TargetConfig,
    inbox::{LinkKey, Message},
    worker::{Dial, Outlet},
};

/// Dials endpoints over the network.
pub(crate) struct Dialer {
    transport: Transport,
    hello: Hello,
    inbox: Postbox<Message>,
    stop: CancellationToken,
}

impl Dialer {
    /// Dials by `transport` and reports to `inbox`.
    pub(crate) fn new(
        transport: Transport,
        config: &TargetConfig,
        info: &RunnerInfo,
        inbox: Postbox<Message>,
    ) -> Self {
        let hello = Hello {
            instance: config.instance.clone(),
            model_digest: info.model_digest.clone(),
            tokenizer_digest: config.tokenizer_digest.clone(),
            vocab_size: info.vocab_size as u32,
            path: info.path.clone(),
        };
        Self {
            transport,
            hello,
            inbox,
            stop: CancellationToken::new(),
        }
    }
}

impl Dial for Dialer {
    fn dial(&self, link: LinkKey, address: &Address) -> Box<dyn Outlet> {
        let inbox = self.inbox.clone();
        let options = LinkOptions::default();
        let on_event = move |event| {
            // Without an engine thread nobody cares.
            let _ = inbox.post(Message::Link(link, event, Instant::now()));
        };
        let hello = self.hello.clone();
        Box::new(
            self.transport
                .dial(address.clone(), hello, options, &self.stop, on_event),
        )
    }
}

impl Outlet for Link {
    fn send(&self, messages: Vec<ToDraft>) {
        // A lost link reports itself; sessions that missed messages are opened anew.
        if let Err(error) = Link::send(self, messages) {
            tracing::debug!(address = %self.address(), %error, "messages were not sent");
        }
    }
}
