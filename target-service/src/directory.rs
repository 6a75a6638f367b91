//! Where the list of endpoints comes from: the configuration, and a registry.

use std::collections::HashMap;

use foretoken_protocol::{Callee, link::Postbox};
use foretoken_registry::{Directory, EndpointEntry, Interest, OpenError, Registry};
use tokio_util::sync::CancellationToken;

use crate::{
    config::TargetConfig,
    inbox::{Message, Source},
};

/// The list of endpoints, kept up to date.
pub(crate) struct EndpointList {
    fixed: Vec<Source>,
    registry: Option<Box<dyn Registry>>,
}

impl EndpointList {
    /// Opens the registry, if there is one.
    pub(crate) async fn watch(config: &TargetConfig) -> Result<Self, OpenError> {
        let fixed = config
            .endpoints
            .iter()
            .map(|e| Source {
                name: e.name.clone(),
                callee: e.address.clone().into(),
                share: None,
            })
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
/// known name is left out. Replicas divide the weight of their pool.
fn merge(fixed: &[Source], directory: &Directory) -> Vec<Source> {
    let mut found: Vec<_> = directory
        .endpoints
        .iter()
        .filter(|entry| entry.weight > 0 && fixed.iter().all(|one| one.name != entry.name))
        .collect();
    found.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name)));
    let mut replicas: HashMap<&str, u32> = HashMap::new();
    for entry in &found {
        *replicas.entry(pool(entry)).or_default() += 1;
    }
    let found = found.into_iter().map(|entry| Source {
        name: entry.name.clone(),
        callee: Callee {
            address: entry.address.clone(),
            serves: entry.serves.clone(),
        },
        share: Some(f64::from(entry.weight) / f64::from(replicas[pool(entry)])),
    });
    fixed.iter().cloned().chain(found).collect()
}

/// What replicas have in common: the name before `@`.
fn pool(entry: &EndpointEntry) -> &str {
    let name = entry.name.as_str();
    name.split_once('@').map_or(name, |(pool, _)| pool)
}

#[cfg(test)]
mod tests {
    use foretoken_protocol::Address;

    use super::*;

    #[test]
    fn fixed_endpoints_come_first_and_directory_entries_by_weight() {
        let entry = |name: &str, port, weight| EndpointEntry {
            name: name.into(),
            address: Address::loopback(port),
            weight,
            serves: None,
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
        let fixed = Source {
            name: "fixed".into(),
            callee: Address::loopback(1).into(),
            share: None,
        };
        let merged = merge(std::slice::from_ref(&fixed), &directory);
        let names: Vec<_> = merged.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["fixed", "heavy", "light"]);
        assert_eq!(merged[0], fixed);
    }

    #[test]
    fn replicas_divide_the_weight_of_their_pool() {
        let entry = |name: &str, weight| EndpointEntry {
            name: name.into(),
            address: Address::loopback(1),
            weight,
            serves: None,
        };
        let directory = Directory {
            endpoints: vec![entry("a/b@1", 3), entry("a/b@2", 3), entry("a/c@1", 3)],
            ..Directory::default()
        };
        let shares = merge(&[], &directory).into_iter().map(|one| one.share);
        let shares: Vec<_> = shares.collect();
        assert_eq!(shares, [Some(1.5), Some(1.5), Some(3.0)]);
    }
}
