//! Kubernetes: who is ready behind the Services that a file names.
//!
//! ```text
//! file: pools of http://SERVICE.NAMESPACE.svc:PORT ──> one watch each of EndpointSlices
//! EndpointSlices ──ready, not terminating──> one entry for each address
//! ```
//!
//! The file is the one that the static backend reads, and both make the same entries of it; this one
//! asks nobody for names, and hears of a pod when the cluster does. It reads `EndpointSlices` of the
//! namespaces that are named, and nothing else: `list` and `watch` of `endpointslices` in
//! `discovery.k8s.io`.

mod slices;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, Config,
    runtime::watcher::{self, Event, watcher},
};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle, JoinSet},
    time::Instant,
};

use self::slices::Service;
use crate::{
    Directory, Health, Interest, Registry, RegistryError,
    backoff::{Backoff, LONGEST},
    file::{File, looks},
    publication::{Publication, Publisher},
    resolution::{self, expand},
};

/// After how many seconds the API server is to end a watch, which goes on where it was: so much later
/// at most silence is taken for absence.
const WATCH_SECONDS: u32 = 20;
/// How long the API server may be silent while it is watched.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// How long the API server may take to be connected to.
const CONNECT: Duration = Duration::from_secs(3);
/// What an API server says when it has forgotten since when it is asked.
const GONE: u16 = 410;
/// What the watches may have found out before it is looked at.
const NEWS: usize = 256;

/// Why a cluster cannot be asked who is ready.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] RegistryError),
    /// A name that is no Service.
    #[error("{}: {host:?} is no Service; write SERVICE.NAMESPACE.svc", path.display())]
    Host {
        /// The file.
        path: PathBuf,
        /// The name.
        host: String,
    },
    /// No cluster is known.
    #[error(
        "no cluster is configured: set KUBECONFIG, or run in a pod with a service account: {0}"
    )]
    Cluster(String),
}

/// A directory of whoever is ready behind the Services that a file names.
#[derive(Debug)]
pub struct KubernetesRegistry {
    publication: Publication,
    follow: JoinHandle<()>,
}

impl KubernetesRegistry {
    /// Follows the Services of `interest` that `path` names, in the cluster that the environment names: that of
    /// `KUBECONFIG`, or of the pod's service account. That the API server does not answer yet is no
    /// error: it is asked until it does.
    pub async fn open(path: PathBuf, interest: Interest) -> Result<Self, KubernetesError> {
        let wrong = |error: &dyn std::fmt::Display| KubernetesError::Cluster(error.to_string());
        let mut config = Config::infer().await.map_err(|error| wrong(&error))?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
        let client = Client::try_from(config).map_err(|error| wrong(&error))?;
        Self::open_in(client, path, interest)
    }

    /// The same in the cluster of `client`, on the current tokio runtime.
    pub fn open_in(
        client: Client,
        path: PathBuf,
        interest: Interest,
    ) -> Result<Self, KubernetesError> {
        let (file, listed) = File::open(path.clone(), interest)?;
        check(&path, &listed)?;
        let source = path.display().to_string();
        let first = expand(&listed, |_| BTreeSet::new());
        let (publisher, publication) = Publisher::new(source, first, Health::Unknown);
        let (news, heard) = mpsc::channel(NEWS);
        let following = Following {
            path,
            listed,
            client,
            publisher,
            news,
            services: BTreeMap::new(),
            watches: JoinSet::new(),
            broken: None,
        };
        let follow = tokio::spawn(following.run(file, heard));
        Ok(Self {
            publication,
            follow,
        })
    }
}

impl Registry for KubernetesRegistry {
    fn watch(&self) -> watch::Receiver<Arc<Directory>> {
        self.publication.watch()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.publication.health()
    }
}

impl Drop for KubernetesRegistry {
    fn drop(&mut self) {
        self.follow.abort();
    }
}

/// Whether all names of `listed` are Services.
fn check(path: &Path, listed: &Directory) -> Result<(), KubernetesError> {
    let wrong = resolution::hosts(&listed.pools).find(|host| Service::parse(host).is_none());
    match wrong {
        Some(host) => Err(KubernetesError::Host {
            path: path.into(),
            host,
        }),
        None => Ok(()),
    }
}

/// What a watch found out.
enum News {
    Event(Box<Event<EndpointSlice>>),
    Trouble(String),
}

/// What is known of a Service.
struct Known {
    watch: AbortHandle,
    slices: BTreeMap<String, EndpointSlice>,
    /// Those of a list that has not ended yet.
    listing: Option<BTreeMap<String, EndpointSlice>>,
    /// Whether a list has ever ended.
    seen: bool,
    /// Why it cannot be watched now.
    trouble: Option<String>,
}

struct Following {
    path: PathBuf,
    listed: Directory,
    client: Client,
    publisher: Publisher,
    news: mpsc::Sender<(Service, News)>,
    services: BTreeMap<Service, Known>,
    watches: JoinSet<()>,
    /// Why the file cannot be used now.
    broken: Option<String>,
}

impl Following {
    async fn run(mut self, mut file: File, mut heard: mpsc::Receiver<(Service, News)>) {
        let mut timer = looks();
        self.watch_what_is_listed();
        self.tell();
        loop {
            tokio::select! {
                _ = timer.tick() => match file.look() {
                    Some(look) => self.read(look),
                    None => continue,
                },
                Some((service, news)) = heard.recv() => {
                    self.hear(&service, news);
                    while let Ok((service, news)) = heard.try_recv() {
                        self.hear(&service, news);
                    }
                }
            }
            self.tell();
        }
    }

    fn read(&mut self, look: Result<Directory, RegistryError>) {
        let look = look.map_err(KubernetesError::from);
        match look.and_then(|listed| check(&self.path, &listed).map(|()| listed)) {
            Ok(listed) => {
                self.listed = listed;
                self.broken = None;
                self.watch_what_is_listed();
            }
            Err(error) => self.broken = Some(crate::in_full(&error)),
        }
    }

    /// Watches what is named and not watched yet, and ends what is watched in vain.
    fn watch_what_is_listed(&mut self) {
        let hosts = resolution::hosts(&self.listed.pools);
        let wanted: BTreeSet<Service> = hosts.filter_map(|host| Service::parse(&host)).collect();
        self.services.retain(|service, known| {
            let is_wanted = wanted.contains(service);
            if !is_wanted {
                known.watch.abort();
            }
            is_wanted
        });
        for service in wanted {
            if self.services.contains_key(&service) {
                continue;
            }
            let watch = follow(self.client.clone(), service.clone(), self.news.clone());
            let known = Known {
                watch: self.watches.spawn(watch),
                slices: BTreeMap::new(),
                listing: None,
                seen: false,
                trouble: None,
            };
            self.services.insert(service, known);
        }
        // Those that were ended have nothing to say.
        while self.watches.try_join_next().is_some() {}
    }

    fn hear(&mut self, service: &Service, news: News) {
        // It may have been unlisted meanwhile.
        if let Some(known) = self.services.get_mut(service) {
            match news {
                News::Event(event) => known.take_in(*event),
                News::Trouble(why) => known.trouble = Some(why),
            }
        }
    }

    /// Tells followers how things are.
    fn tell(&self) {
        let found = |host: &str| {
            let service = Service::parse(host);
            let known = service.and_then(|service| self.services.get(&service));
            known.map_or_else(BTreeSet::new, |known| slices::ready(known.slices.values()))
        };
        self.publisher.publish(expand(&self.listed, found));
        let troubles = self.services.iter().filter_map(|(service, known)| {
            let why = known.trouble.as_ref()?;
            Some(format!("{service}: {why}"))
        });
        let troubles: Vec<String> = self.broken.iter().cloned().chain(troubles).collect();
        if !troubles.is_empty() {
            self.publisher.stale(troubles.join("; "));
        } else if self.services.values().all(|known| known.seen) {
            self.publisher.current();
        }
    }
}

impl Known {
    fn take_in(&mut self, event: Event<EndpointSlice>) {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => self.listing = Some(BTreeMap::new()),
            Event::InitApply(slice) => {
                let listing = self.listing.get_or_insert_default();
                listing.insert(name(&slice), slice);
            }
            Event::InitDone => {
                self.slices = self.listing.take().unwrap_or_default();
                self.seen = true;
                self.trouble = None;
            }
            Event::Apply(slice) => {
                self.slices.insert(name(&slice), slice);
                self.trouble = None;
            }
            Event::Delete(slice) => {
                self.slices.remove(&name(&slice));
                self.trouble = None;
            }
        }
    }
}

/// Watches the slices of one Service for ever. After a failure they are listed again: only that tells
/// that all is known.
async fn follow(client: Client, service: Service, news: mpsc::Sender<(Service, News)>) {
    let slices: Api<EndpointSlice> = Api::namespaced(client, &service.namespace);
    let config = watcher::Config::default()
        .labels(&service.selector())
        .timeout(WATCH_SECONDS);
    let mut backoff = Backoff::default();
    loop {
        let mut listed: Option<Instant> = None;
        let mut events = pin!(watcher(slices.clone(), config.clone()));
        while let Some(event) = events.next().await {
            let said = match event {
                Ok(event) => {
                    match event {
                        // The first is said before anybody was asked.
                        Event::Init | Event::InitApply(_) => {}
                        // The watch that follows may fail at once.
                        Event::InitDone => listed = Some(Instant::now()),
                        Event::Apply(_) | Event::Delete(_) => backoff.reset(),
                    }
                    News::Event(Box::new(event))
                }
                Err(watcher::Error::WatchError(status)) if status.code == GONE => break,
                Err(error) => News::Trouble(crate::in_full(&error)),
            };
            let is_over = matches!(said, News::Trouble(_));
            if news.send((service.clone(), said)).await.is_err() {
                return;
            }
            if is_over {
                break;
            }
        }
        // A watch may last without having anything to say.
        if listed.is_some_and(|listed| listed.elapsed() > LONGEST) {
            backoff.reset();
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}
