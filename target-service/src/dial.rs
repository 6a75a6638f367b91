//! Reaching endpoints over the network.

use std::time::Instant;

use foretoken_engine::runner::RunnerInfo;
use foretoken_protocol::{
    Callee,
    link::{Consumer, Hello, Link, LinkOptions, Postbox, Transport},
};
use foretoken_speculation::message::ToDraft;
use tokio_util::sync::CancellationToken;

use crate::{
    config::TargetConfig,
    inbox::{LinkKey, Message},
    links::LinkBoard,
    worker::{Dial, Outlet},
};

/// Dials endpoints over the network.
pub(crate) struct Dialer {
    transport: Transport,
    hello: Hello,
    inbox: Postbox<Message>,
    board: LinkBoard,
    stop: CancellationToken,
}

impl Dialer {
    /// Dials by `transport` and reports to `inbox`; `board` shows what became of the links.
    pub(crate) fn new(
        transport: Transport,
        config: &TargetConfig,
        info: &RunnerInfo,
        inbox: Postbox<Message>,
        board: LinkBoard,
    ) -> Self {
        let hello = Hello {
            instance: config.instance.clone(),
            model_digest: info.model_digest.clone(),
            tokenizer_digest: config.tokenizer_digest.clone(),
            vocab_size: info.vocab_size as u32,
            path: info.path.clone(),
            consumer: Consumer {
                namespace: config.namespace.clone(),
                deployment: config.deployment.clone(),
            },
            accounts: true,
            late_entries: true,
        };
        Self {
            transport,
            hello,
            inbox,
            board,
            stop: CancellationToken::new(),
        }
    }
}

impl Dial for Dialer {
    fn dial(&self, key: LinkKey, callee: &Callee) -> Box<dyn Outlet> {
        let (inbox, board) = (self.inbox.clone(), self.board.clone());
        board.add(key, callee.address.clone());
        let options = LinkOptions::default();
        let on_event = move |event| {
            board.note(key, &event);
            // Without an engine thread nobody cares.
            let _ = inbox.post(Message::Link(key, event, Instant::now()));
        };
        let hello = self.hello.clone();
        let link = self
            .transport
            .dial(callee.clone(), hello, options, &self.stop, on_event);
        let board = self.board.clone();
        Box::new(Dialled { key, link, board })
    }
}

/// A link, on the board as long as it is kept.
struct Dialled {
    key: LinkKey,
    link: Link,
    board: LinkBoard,
}

impl Outlet for Dialled {
    fn send(&self, up: u64, messages: Vec<ToDraft>) {
        // A lost link reports itself; sessions that missed messages are opened anew.
        if let Err(error) = self.link.send_over(up, messages) {
            tracing::debug!(address = %self.link.address(), %error, "messages were not sent");
        }
    }
}

impl Drop for Dialled {
    fn drop(&mut self) {
        self.board.remove(self.key);
    }
}
