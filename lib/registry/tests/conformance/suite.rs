//! The suite. Each scenario has a backend of its own, and writes only through it.

use std::{fmt::Debug, sync::Arc, time::Duration};

use foretoken_protocol::{Address, tls::Served};
use foretoken_registry::{Directory, EndpointEntry, Health, Registry, TargetEntry};
use tokio::{sync::watch, time::timeout};

use crate::log::Log;

/// How long something may take to become so.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long something that must not happen is waited for.
const SILENCE: Duration = Duration::from_millis(600);

/// A backend and the source it reads.
pub(crate) trait Backend {
    /// Makes the source say `directory`, and nothing else.
    async fn write(&mut self, directory: &Directory);

    /// A registry that reads the source.
    async fn open(&self) -> Box<dyn Registry>;

    /// What a registry calls what was written.
    fn called(&self, directory: &Directory) -> Directory {
        directory.clone()
    }

    /// Writes what no registry can read.
    async fn spoil(&mut self);

    /// What the log names when that happens.
    fn culprit(&self) -> String;

    /// Makes the source unreachable.
    async fn leave(&mut self);

    /// Makes it reachable again, saying `directory`.
    async fn come_back(&mut self, directory: &Directory);
}

/// Runs all scenarios, each with a backend that `make` gives.
pub(crate) async fn conforms<B: Backend>(make: impl AsyncFn() -> B) {
    what_was_there_before_is_found(make().await).await;
    whoever_joins_leaves_or_changes_is_heard_of(make().await).await;
    nobody_is_a_directory_too(make().await).await;
    a_storm_of_changes_ends_in_the_last_state(make().await).await;
    bad_data_keeps_the_last_good_directory(make().await).await;
    what_was_known_outlives_the_source(make().await).await;
    a_follower_that_does_not_look_holds_nobody_up(make().await).await;
}

/// A target at an address of its own.
fn target(name: &str, model: &str) -> TargetEntry {
    TargetEntry {
        name: name.into(),
        model: model.into(),
        address: address(name, 7000),
        serves: None,
    }
}

/// An endpoint at an address of its own.
fn endpoint(name: &str, weight: u32) -> EndpointEntry {
    EndpointEntry {
        name: name.into(),
        address: address(name, 7100),
        weight,
        serves: Some(Served::new("drafts", name).expect("a name")),
    }
}

fn address(name: &str, port: u16) -> Address {
    let last = name
        .bytes()
        .fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let host = format!("10.0.0.{last}");
    Address::Tcp { host, port }
}

fn directory(targets: &[TargetEntry], endpoints: &[EndpointEntry]) -> Directory {
    Directory {
        targets: targets.to_vec(),
        endpoints: endpoints.to_vec(),
        ..Directory::default()
    }
}

fn some() -> Directory {
    directory(&[target("t", "m")], &[endpoint("d", 3)])
}

/// The same, whatever the order of entries.
fn sorted(directory: &Directory) -> Directory {
    let mut directory = directory.clone();
    directory.targets.sort_by(|a, b| a.name.cmp(&b.name));
    directory.endpoints.sort_by(|a, b| a.name.cmp(&b.name));
    directory
}

/// Waits until what is watched is `so`.
pub(crate) async fn becomes<T: Clone + Debug>(
    watch: &mut watch::Receiver<T>,
    what: &str,
    so: impl Fn(&T) -> bool,
) {
    let found = timeout(PATIENCE, watch.wait_for(|now| so(now))).await;
    let found = found.map(|found| found.map(|_| ()));
    assert!(
        matches!(found, Ok(Ok(()))),
        "not {what}: {:?}",
        watch.borrow()
    );
}

async fn reads(backend: &impl Backend, registry: &dyn Registry, wanted: &Directory) {
    let wanted = sorted(&backend.called(wanted));
    becomes(&mut registry.watch(), &format!("{wanted:?}"), |now| {
        sorted(now) == wanted
    })
    .await;
}

async fn is_current(registry: &dyn Registry) {
    becomes(&mut registry.health(), "current", |now| {
        *now == Health::Current
    })
    .await;
}

async fn is_stale(registry: &dyn Registry) {
    becomes(&mut registry.health(), "stale", |now| {
        matches!(now, Health::Stale { .. })
    })
    .await;
}

async fn what_was_there_before_is_found(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    reads(&backend, &*registry, &some()).await;
    is_current(&*registry).await;
    let registry = backend.open().await;
    reads(&backend, &*registry, &some()).await;
}

async fn whoever_joins_leaves_or_changes_is_heard_of(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    reads(&backend, &*registry, &some()).await;
    let others = directory(
        &[target("t", "m"), target("u", "m")],
        &[endpoint("d", 3), endpoint("e", 1)],
    );
    let heavier = directory(
        &[target("t", "m"), target("u", "m")],
        &[endpoint("d", 5), endpoint("e", 1)],
    );
    let remodelled = directory(
        &[target("t", "other"), target("u", "m")],
        &[endpoint("d", 5), endpoint("e", 0)],
    );
    let fewer = directory(&[target("u", "m")], &[endpoint("d", 5)]);
    for next in [&others, &heavier, &remodelled, &fewer, &some()] {
        backend.write(next).await;
        reads(&backend, &*registry, next).await;
    }
    is_current(&*registry).await;
}

async fn nobody_is_a_directory_too(mut backend: impl Backend) {
    backend.write(&Directory::default()).await;
    let registry = backend.open().await;
    is_current(&*registry).await;
    assert_eq!(**registry.watch().borrow(), Directory::default());
    backend.write(&some()).await;
    reads(&backend, &*registry, &some()).await;
    backend.write(&Directory::default()).await;
    reads(&backend, &*registry, &Directory::default()).await;
}

async fn a_storm_of_changes_ends_in_the_last_state(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    for round in 0..40 {
        let others = ["t", "u", "v", "w"];
        let targets = others.iter().take(round % 5);
        let targets: Vec<_> = targets.map(|name| target(name, "m")).collect();
        let weight = u32::try_from(round).unwrap();
        backend
            .write(&directory(&targets, &[endpoint("d", weight)]))
            .await;
    }
    let last = directory(&[target("last", "m")], &[endpoint("d", 1)]);
    backend.write(&last).await;
    reads(&backend, &*registry, &last).await;
    tokio::time::sleep(SILENCE).await;
    reads(&backend, &*registry, &last).await;
}

async fn bad_data_keeps_the_last_good_directory(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    reads(&backend, &*registry, &some()).await;
    let log = Log::listen();
    backend.spoil().await;
    let culprit = backend.culprit();
    let mut said = String::new();
    let told = async {
        while !said.contains(&culprit) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            said += &log.take();
        }
    };
    let told = timeout(PATIENCE, told).await;
    assert!(told.is_ok(), "nobody is told of {culprit}: {said}");
    tokio::time::sleep(SILENCE).await;
    assert_eq!(log.take(), "", "and once is enough");
    reads(&backend, &*registry, &some()).await;
    let next = directory(&[target("u", "m")], &[endpoint("d", 1)]);
    backend.write(&next).await;
    reads(&backend, &*registry, &next).await;
    is_current(&*registry).await;
}

async fn what_was_known_outlives_the_source(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    reads(&backend, &*registry, &some()).await;
    let log = Log::listen();
    let next = directory(&[target("u", "m")], &[endpoint("e", 2)]);
    for next in [next, some()] {
        let before = registry.watch().borrow().clone();
        backend.leave().await;
        is_stale(&*registry).await;
        let said = log.take();
        assert!(said.contains("what was last known stays"), "{said}");
        tokio::time::sleep(SILENCE).await;
        assert_eq!(*registry.watch().borrow(), before);
        backend.come_back(&next).await;
        reads(&backend, &*registry, &next).await;
        is_current(&*registry).await;
    }
}

async fn a_follower_that_does_not_look_holds_nobody_up(mut backend: impl Backend) {
    backend.write(&some()).await;
    let registry = backend.open().await;
    let asleep = registry.watch();
    let seen = Arc::clone(&asleep.borrow());
    for weight in 0..5 {
        let next = directory(&[], &[endpoint("d", weight)]);
        backend.write(&next).await;
        reads(&backend, &*registry, &next).await;
    }
    assert_ne!(*asleep.borrow(), seen, "it finds the latest when it looks");
}
