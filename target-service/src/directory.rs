//! Where the list of endpoints comes from: the configuration, and a registry.

use foretoken_protocol::{Address, link::Postbox};
use foretoken_registry::{Directory, Interest, OpenError, Registry};
use tokio_util::sync::CancellationToken;

use crate::{config::TargetConfig, inbox::Message};

/// The list of endpoints, kept up to date.
pub(crate) struct EndpointList {
    fixed: Vec<(String, Address)>,
    registry: Option<Box<dyn Registry>>,
}

impl EndpointList {
    /// Opens the registry, if there is one.
    pub(crate) async fn watch(config: &TargetConfig) -> Result<Self, OpenError> {
        let fixed = config
            .endpoints
            .iter()
            .map(|e| (e.name.clone(), e.address.clone()))
            .collect();
        let registry = match &config.registry {
            Some(registry) => Some(registry.open(Interest::Endpoints).await?),
            None => None,
        };
        Ok(Self { fixed, registry })
    }

    /// Tells the engine thread of the endpoints now, and of every change until `end`.
    pub(crate) async fn follow(self, inbox: Postbox<Message>, end: CancellationToken) {
        let Some(registry) = self.registry else {
            let _ = inbox.post(Message::Endpoints(self.fixed));
            end.cancelled().await;
            return;
        };
        let mut directory = registry.watch();
        loop {
            let list = merge(&self.fixed, &directory.borrow_and_update());
            if inbox.post(Message::Endpoints(list)).is_err() {
                return;
            }
            tokio::select! {
                () = end.cancelled() => return,
                changed = directory.changed() => if changed.is_err() {
                    end.cancelled().await;
                    return;
                },
            }
        }
    }
}

/// The fixed endpoints, then those of the directory by descending weight; one of weight 0 or of a
/// known name is left out.
fn merge(fixed: &[(String, Address)], directory: &Directory) -> Vec<(String, Address)> {
    let mut found: Vec<_> = directory
        .endpoints
        .iter()
        .filter(|entry| entry.weight > 0 && fixed.iter().all(|(name, _)| *name != entry.name))
        .collect();
    found.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name)));
    let found = found
        .into_iter()
        .map(|entry| (entry.name.clone(), entry.address.clone()));
    fixed.iter().cloned().chain(found).collect()
}

#[cfg(test)]
mod tests {
    use foretoken_registry::EndpointEntry;

    use super::*;

    #[test]
    fn fixed_endpoints_come_first_and_directory_entries_by_weight() {
        let entry = |name: &str, port, weight| EndpointEntry {
            name: name.into(),
            address: Address::loopback(port),
            weight,
        };
        let endpoints = vec![
            entry("light", 2, 1),
            entry("off", 3, 0),
            entry("heavy", 4, 5),
            entry("fixed", 5, 9),
        ];
        let directory = Directory {
            endpoints,
            ..Directory::default()
        };
        let merged = merge(&[("fixed".into(), Address::loopback(1))], &directory);
        let names: Vec<_> = merged.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["fixed", "heavy", "light"]);
        assert_eq!(merged[0].1, Address::loopback(1));
    }
}
