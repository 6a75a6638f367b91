//! What links to endpoints say, but for what concerns a session.
//!
//! A lost link is dialled again by itself, for ever. Both the log and a metric tell of what changes:
//! an attempt that fails for a reason known already is told of by neither, but one that is refused
//! is counted each time.

use std::time::Instant;

use foretoken_protocol::link::{LinkEvent, Welcome};

use super::{Worker, endpoints::Slots};
use crate::inbox::LinkKey;

impl Worker {
    /// Takes in what a link said at that time.
    pub(super) fn link_event(&mut self, link: LinkKey, event: LinkEvent, at: Instant) {
        match event {
            LinkEvent::Up(welcome) => self.link_up(link, &welcome),
            LinkEvent::Messages(messages) => {
                for message in messages {
                    self.receive(link, &message, at);
                }
                self.heard(link);
            }
            LinkEvent::Load(load) => {
                let Some(endpoint) = self.endpoints.find(link) else {
                    return;
                };
                if endpoint.slots.report(load) {
                    for request in self.requests.values_mut() {
                        request.refused.forget_for_now(link);
                    }
                    self.bind_into_room(link);
                }
            }
            LinkEvent::Malformed(malformed) => {
                if let Some(endpoint) = self.endpoints.find(link) {
                    endpoint.complaints.log(&endpoint.name, &malformed, at);
                }
                for malformed in malformed {
                    self.metrics.malformed.inc();
                    if let Some(session) = malformed.session {
                        self.turn_away(link, session.0);
                    }
                }
            }
            LinkEvent::Suspect(suspect) => {
                if let Some(endpoint) = self.endpoints.find(link) {
                    endpoint.suspect = suspect;
                }
            }
            LinkEvent::Down(reason) => self.link_down(link, reason, false),
            LinkEvent::Incompatible(reason) => self.link_down(link, reason, true),
        }
        self.endpoints.flush();
    }

    fn link_up(&mut self, link: LinkKey, welcome: &Welcome) {
        let Some(endpoint) = self.endpoints.find(link) else {
            return;
        };
        endpoint.up = true;
        endpoint.ups += 1;
        endpoint.trouble = None;
        endpoint.refused = false;
        endpoint.said = (welcome.instance.clone(), welcome.model_digest.clone());
        endpoint.suspect = false;
        endpoint.hearing.heard();
        endpoint.positions = welcome.limits.max_positions as usize;
        endpoint.slots = Slots::new(welcome.limits.slots);
        tracing::info!(endpoint = %endpoint.name, instance = %welcome.instance, "endpoint connected");
        self.count_links();
        // It may have been replaced by one that wants what the old one refused.
        for request in self.requests.values_mut() {
            request.refused.forget(link);
        }
        self.bind_unbound();
    }

    /// An endpoint was lost, cannot be reached, or refused this target. It is dialled again and
    /// again; the log has a line when something changes.
    fn link_down(&mut self, link: LinkKey, reason: String, refused: bool) {
        let Some(endpoint) = self.endpoints.find(link) else {
            return;
        };
        let name = &endpoint.name;
        let is_news = endpoint.trouble.as_ref() != Some(&reason);
        let failure = match (endpoint.up, refused) {
            (_, true) => "refused",
            (true, false) => "lost",
            (false, false) => "unreachable",
        };
        self.metrics.link_failed(failure);
        if is_news && refused {
            tracing::warn!(endpoint = %name, %reason, "endpoint does not match this target");
        } else if is_news && endpoint.up {
            tracing::info!(endpoint = %name, %reason, "endpoint lost");
        } else if is_news && !endpoint.was_ever_up() {
            // It begins, as a rule, while its endpoint loads a model.
            tracing::info!(endpoint = %name, %reason, "endpoint is not there yet");
        } else if is_news {
            tracing::warn!(endpoint = %name, %reason, "endpoint cannot be reached");
        }
        endpoint.trouble = Some(reason);
        endpoint.refused = refused;
        endpoint.up = false;
        endpoint.outgoing.clear();
        self.count_links();
        self.unbind(link);
    }

    /// An endpoint has said something. If it had been given up, whoever has none is bound to it.
    fn heard(&mut self, link: LinkKey) {
        if let Some(endpoint) = self.endpoints.find(link)
            && endpoint.hearing.heard()
        {
            tracing::info!(endpoint = %endpoint.name, "endpoint answers again");
            self.bind_unbound();
        }
    }

    pub(super) fn count_links(&self) {
        let list = self.endpoints.list.iter();
        let up = list.filter(|endpoint| endpoint.up).count();
        self.metrics.links_up.set(up as i64);
    }
}
