//! Names that stand for several: one target or endpoint at each address that a name resolves to,
//! as the headless Services of a cluster have it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use foretoken_protocol::Address;
use tokio::{net::lookup_host, task::JoinSet, time::timeout};

use crate::{Directory, EndpointEntry, Pools, TargetEntry};

/// How long names may take to be resolved.
const PATIENCE: Duration = Duration::from_secs(5);

/// What names were last resolved to.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    known: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Names that cannot be resolved now, and why.
    failed: BTreeMap<String, String>,
    /// Those that are being looked up.
    asked: BTreeSet<String>,
    lookups: JoinSet<(String, Found)>,
}

/// What came of looking a name up.
type Found = Result<BTreeSet<IpAddr>, String>;

impl Resolution {
    /// Pools are not what they were `before`, and are to be looked up: one that has another host stands for what it
    /// stood for until something has come of that.
    pub(crate) fn carry_over(&mut self, before: &Pools, pools: &Pools) {
        let old: BTreeMap<&str, String> = named_hosts(before).collect();
        for (name, host) in named_hosts(pools) {
            let known = old.get(name).and_then(|old| self.known.get(old)).cloned();
            if let Some(known) = known {
                self.known.entry(host).or_insert(known);
            }
        }
    }

    /// Looks the names of `pools` up anew, but for those that are being looked up; [`Self::next`] has what comes of
    /// it. One that cannot be resolved keeps what it had: who answers for names may be away, and who is gone
    /// is found out by dialling. The log has each change of that once.
    pub(crate) fn refresh(&mut self, pools: &Pools) {
        let names: BTreeSet<String> = hosts(pools).collect();
        self.known.retain(|name, _| names.contains(name));
        self.failed.retain(|name, _| names.contains(name));
        for name in names {
            if self.asked.insert(name.clone()) {
                self.lookups.spawn(look_up(name));
            }
        }
    }

    /// Waits until something has come of a name, however long the others take; forever if there is none. Loses
    /// nothing if it is given up.
    pub(crate) async fn next(&mut self) {
        match self.lookups.join_next().await {
            Some(Ok((name, found))) => {
                self.asked.remove(&name);
                self.learn(name, found);
            }
            // Nothing in them panics, and nobody ends them.
            Some(Err(_)) => {}
            None => std::future::pending().await,
        }
    }

    /// Takes in what came of looking `name` up, and says whether anybody was told.
    fn learn(&mut self, name: String, found: Found) -> bool {
        match found {
            Ok(addresses) => {
                let has_failed = self.failed.remove(&name).is_some();
                if has_failed {
                    tracing::info!(name, "the name of a pool can be resolved again");
                }
                self.known.insert(name, addresses);
                has_failed
            }
            Err(why) if self.failed.get(&name) == Some(&why) => false,
            Err(why) => {
                tracing::warn!(
                    name,
                    why,
                    "the name of a pool cannot be resolved; what it last stood for stays in use"
                );
                self.failed.insert(name, why);
                true
            }
        }
    }

    /// `directory` with one entry for each address that a pool's name stands for, and no pools.
    pub(crate) fn expand(&self, directory: &Directory) -> Directory {
        expand(directory, |host| {
            self.known
                .get(host)
                .into_iter()
                .flatten()
                .copied()
                .collect()
        })
    }
}

async fn look_up(name: String) -> (String, Found) {
    // The port is only there because the system asks for one.
    let found = match timeout(PATIENCE, lookup_host((name.as_str(), 0))).await {
        Ok(Ok(found)) => Ok(found.map(|address| address.ip()).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    };
    (name, found)
}

/// `directory` with one entry for each of the addresses that `found` has for a pool's host, and no
/// pools.
pub(crate) fn expand(directory: &Directory, found: impl Fn(&str) -> BTreeSet<IpAddr>) -> Directory {
    let Directory {
        targets,
        endpoints,
        pools,
    } = directory;
    let mut expanded = Directory {
        targets: targets.clone(),
        endpoints: endpoints.clone(),
        pools: Pools::default(),
    };
    for pool in &pools.targets {
        for (name, address) in each(&pool.name, &pool.address, &found) {
            expanded.targets.push(TargetEntry {
                name,
                address,
                ..pool.clone()
            });
        }
    }
    for pool in &pools.endpoints {
        for (name, address) in each(&pool.name, &pool.address, &found) {
            expanded.endpoints.push(EndpointEntry {
                name,
                address,
                ..pool.clone()
            });
        }
    }
    expanded
}

/// Name and address of each that `address` stands for.
fn each(
    name: &str,
    address: &Address,
    found: impl Fn(&str) -> BTreeSet<IpAddr>,
) -> Vec<(String, Address)> {
    let Address::Tcp { host, port } = address else {
        // A socket is one.
        return vec![(name.to_owned(), address.clone())];
    };
    let one = |ip: IpAddr| {
        let host = ip.to_string();
        let address = Address::Tcp { host, port: *port };
        (format!("{name}@{ip}"), address)
    };
    found(host).into_iter().map(one).collect()
}

/// Names that have to be resolved.
pub(crate) fn hosts(pools: &Pools) -> impl Iterator<Item = String> {
    named_hosts(pools).map(|(_, host)| host)
}

/// The same beside the names of their pools.
fn named_hosts(pools: &Pools) -> impl Iterator<Item = (&str, String)> {
    let targets = pools.targets.iter().map(|pool| (&pool.name, &pool.address));
    let endpoints = pools
        .endpoints
        .iter()
        .map(|pool| (&pool.name, &pool.address));
    targets
        .chain(endpoints)
        .filter_map(|(name, address)| match address {
            Address::Tcp { host, .. } => Some((name.as_str(), host.clone())),
            Address::Unix(_) => None,
        })
}

#[cfg(test)]
mod tests {
    use foretoken_protocol::tls::Served;

    use super::*;

    fn directory() -> Directory {
        let address: Address = "http://drafts.test:7100".parse().expect("address");
        let pool = EndpointEntry {
            name: "drafts/story".into(),
            address,
            weight: 3,
            serves: Some(Served::new("drafts", "story").expect("names")),
        };
        Directory {
            pools: Pools {
                endpoints: vec![pool],
                ..Pools::default()
            },
            ..Directory::default()
        }
    }

    #[test]
    fn a_pool_has_one_entry_for_each_address_of_its_name() {
        let mut resolution = Resolution::default();
        assert_eq!(resolution.expand(&directory()), Directory::default());
        let addresses = ["10.0.0.2", "10.0.0.1", "fd00::1"];
        let addresses = addresses.map(|ip| ip.parse().expect("an address")).into();
        resolution.known.insert("drafts.test".into(), addresses);
        let expanded = resolution.expand(&directory()).endpoints;
        let said = expanded
            .iter()
            .map(|entry| format!("{} {} {}", entry.name, entry.address, entry.weight));
        assert_eq!(
            said.collect::<Vec<_>>(),
            [
                "drafts/story@10.0.0.1 http://10.0.0.1:7100 3",
                "drafts/story@10.0.0.2 http://10.0.0.2:7100 3",
                "drafts/story@fd00::1 http://[fd00::1]:7100 3",
            ]
        );
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_resolved_keeps_what_it_had() {
        let mut resolution = Resolution::default();
        let ip: IpAddr = "10.0.0.1".parse().expect("an address");
        // Names under `invalid` never exist (RFC 6761).
        resolution
            .known
            .insert("drafts.invalid".into(), [ip].into());
        resolution
            .known
            .insert("others.invalid".into(), [ip].into());
        let mut pools = directory().pools;
        pools.endpoints[0].address = "http://drafts.invalid:1".parse().expect("address");
        resolution.refresh(&pools);
        resolution.next().await;
        let known: Vec<_> = resolution.known.keys().collect();
        assert_eq!(
            known,
            ["drafts.invalid"],
            "and what nobody names is forgotten"
        );
        assert_eq!(resolution.known["drafts.invalid"], [ip].into());
        let failed: Vec<_> = resolution.failed.keys().collect();
        assert_eq!(failed, ["drafts.invalid"]);
        resolution.refresh(&Pools::default());
        assert!(resolution.failed.is_empty());
    }

    #[tokio::test]
    async fn a_name_of_which_nothing_comes_holds_up_no_other() {
        let mut resolution = Resolution::default();
        resolution.asked.insert("drafts.test".into());
        resolution.lookups.spawn(std::future::pending());
        let mut pools = directory().pools;
        let mut other = pools.endpoints[0].clone();
        other.address = "http://127.0.0.1:1".parse().expect("address");
        pools.endpoints.push(other);
        for _ in 0..2 {
            resolution.known.clear();
            resolution.refresh(&pools);
            resolution.next().await;
            let known: Vec<_> = resolution.known.keys().collect();
            assert_eq!(known, ["127.0.0.1"]);
            assert_eq!(resolution.lookups.len(), 1, "it is asked for once");
        }
    }

    #[test]
    fn a_pool_with_another_host_stands_for_what_it_stood_for_until_that_is_known() {
        let mut resolution = Resolution::default();
        let ip: IpAddr = "10.0.0.1".parse().expect("an address");
        resolution.known.insert("drafts.test".into(), [ip].into());
        let mut moved = directory();
        moved.pools.endpoints[0].address = "http://others.test:7200".parse().expect("address");
        resolution.carry_over(&directory().pools, &moved.pools);
        let expanded = resolution.expand(&moved).endpoints;
        let said: Vec<_> = expanded.iter().map(|one| one.address.to_string()).collect();
        assert_eq!(said, ["http://10.0.0.1:7200"]);
        // What has come of it counts.
        let other: IpAddr = "10.0.0.2".parse().expect("an address");
        resolution.learn("others.test".into(), Ok([other].into()));
        resolution.carry_over(&directory().pools, &moved.pools);
        assert_eq!(resolution.known["others.test"], [other].into());
    }

    #[test]
    fn each_change_of_what_comes_of_a_name_is_told_once() {
        let mut resolution = Resolution::default();
        let ip: IpAddr = "10.0.0.1".parse().expect("an address");
        let found = || Ok([ip].into());
        let lost = |why: &str| Err(why.to_owned());
        for (outcome, is_told) in [
            (found(), false),
            (lost("unknown"), true),
            (lost("unknown"), false),
            (lost("no answer"), true),
            (found(), true),
            (found(), false),
            (lost("no answer"), true),
        ] {
            let said = format!("{outcome:?}");
            let told = resolution.learn("drafts.test".into(), outcome);
            assert_eq!(told, is_told, "{said}");
            assert_eq!(resolution.known["drafts.test"], [ip].into());
        }
    }
}
