//! What is told of endpoints to whoever asks how the target is doing.

use foretoken_service::report::{EndpointReport, LinkState};

use super::{Endpoint, Endpoints};
use crate::inbox::LinkKey;

impl Endpoints {
    /// Takes in whether a verdict that could have been drafted for had been.
    pub(in crate::worker) fn observe_lookup(&mut self, link: LinkKey, hit: bool) {
        if let Some(endpoint) = self.find(link) {
            endpoint.rounds.note_lookup(hit);
        }
    }

    /// All of them, for whoever asks how this target is doing.
    pub(in crate::worker) fn told(&self) -> Vec<EndpointReport> {
        self.list.iter().map(Endpoint::told).collect()
    }
}

/// What is told of an endpoint that is up and says nothing.
const MUTE: &str = "it is connected and says nothing";

impl Endpoint {
    fn told(&self) -> EndpointReport {
        let link = match (self.up, self.refused, &self.trouble) {
            (true, _, _) => LinkState::Up,
            (false, true, _) => LinkState::Refused,
            (false, false, Some(_)) => LinkState::Down,
            (false, false, None) => LinkState::Dialling,
        };
        let (instance, model) = self.said.clone();
        let mute = self.hearing.is_mute().then(|| MUTE.to_owned());
        EndpointReport {
            name: self.name.clone(),
            link,
            trouble: self.trouble.clone().or(mute),
            instance,
            model,
            rounds: self.rounds,
        }
    }
}
