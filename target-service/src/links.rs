//! What became of the links to endpoints, for whoever runs the service.

use foretoken_protocol::{Address, link::LinkEvent};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::inbox::LinkKey;

/// The link to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Where the endpoint is.
    pub address: Address,
    /// What became of the link.
    pub state: LinkState,
}

/// What became of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Nothing has been heard yet.
    Dialling,
    /// Sessions can be opened.
    Up,
    /// It cannot be reached, or was lost; it is dialled again.
    Down(String),
    /// The two do not go together: another vocabulary, tokenizer or protocol version.
    Refused(String),
}

/// The links as they are now.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkBoard(watch::Sender<Vec<(LinkKey, LinkReport)>>);

/// Shows a target's links as they change.
#[derive(Clone, Debug)]
pub struct LinkWatch(watch::Receiver<Vec<(LinkKey, LinkReport)>>);

impl LinkBoard {
    /// A link that is dialled from now on.
    pub(crate) fn add(&self, link: LinkKey, address: Address) {
        let state = LinkState::Dialling;
        self.0
            .send_modify(|links| links.push((link, LinkReport { address, state })));
    }

    /// A link that nobody wants any more.
    pub(crate) fn remove(&self, link: LinkKey) {
        self.0
            .send_modify(|links| links.retain(|(key, _)| *key != link));
    }

    /// Takes in what a link said; most of it is not about the link itself.
    pub(crate) fn note(&self, link: LinkKey, event: &LinkEvent) {
        let state = match event {
            LinkEvent::Up(_) => LinkState::Up,
            LinkEvent::Down(reason) => LinkState::Down(reason.clone()),
            LinkEvent::Incompatible(reason) => LinkState::Refused(reason.clone()),
            LinkEvent::Messages(_)
            | LinkEvent::Load(_)
            | LinkEvent::Malformed(_)
            | LinkEvent::Suspect(_) => return,
        };
        self.0.send_if_modified(|links| {
            let Some((_, report)) = links.iter_mut().find(|(key, _)| *key == link) else {
                return false;
            };
            let is_news = report.state != state;
            report.state = state;
            is_news
        });
    }

    pub(crate) fn watch(&self) -> LinkWatch {
        LinkWatch(self.0.subscribe())
    }
}

impl LinkWatch {
    /// The links now.
    pub fn now(&mut self) -> Vec<LinkReport> {
        let links = self.0.borrow_and_update();
        links.iter().map(|(_, report)| report.clone()).collect()
    }

    /// Waits for a change since the last look; false once the service is gone.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use foretoken_protocol::link::{LoadReport, Welcome};

    use super::*;

    #[test]
    fn the_latest_word_of_every_link_is_shown_until_it_is_dropped() {
        let board = LinkBoard::default();
        let mut watch = board.watch();
        board.add(LinkKey(1), Address::loopback(1));
        board.add(LinkKey(2), Address::loopback(2));
        board.note(LinkKey(1), &LinkEvent::Down("nobody there".into()));
        board.note(LinkKey(1), &LinkEvent::Incompatible("other words".into()));
        board.note(LinkKey(1), &LinkEvent::Load(LoadReport::default()));
        board.note(LinkKey(3), &LinkEvent::Up(Welcome::default()));
        let states = |watch: &mut LinkWatch| -> Vec<_> {
            watch.now().into_iter().map(|link| link.state).collect()
        };
        let refused = LinkState::Refused("other words".into());
        assert_eq!(states(&mut watch), [refused, LinkState::Dialling]);
        board.remove(LinkKey(1));
        assert_eq!(states(&mut watch), [LinkState::Dialling]);
    }
}
