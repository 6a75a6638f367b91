//! Binding and running a router.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use foretoken_protocol::tls::{Role, Tls, TlsError};
use foretoken_registry::{Directory, Interest, OpenError, Registry};
use foretoken_telemetry::Tracer;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ConfigError, RouterConfig},
    http,
    keys::{Keys, KeysError},
    linger::Asked,
    metrics::Metrics,
    model::{Model, ModelError},
    server::{self, Patience},
    targets::Targets,
};

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) config: RouterConfig,
    pub(crate) models: Vec<Arc<Model>>,
    pub(crate) keys: Keys,
    /// Places for requests that are answered at the same time.
    pub(crate) places: Arc<Semaphore>,
    /// Requests that have come.
    pub(crate) asked: Asked,
    pub(crate) targets: Targets,
    pub(crate) metrics: Metrics,
    pub(crate) tracer: Tracer,
    /// When the router started, seconds since 1970.
    pub(crate) created: u64,
}

/// Why a router could not start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The configuration cannot be served.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    /// A model folder cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The registry of targets cannot be used.
    #[error(transparent)]
    Registry(#[from] OpenError),
    /// The files of API keys cannot be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", hint(source))]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another program has this port, choose another one",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
        _ => "",
    }
}

/// Why a router stopped by itself.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP server cannot take connections any more: {0}")]
pub struct RunError(#[from] io::Error);

/// A router that listens and is not yet serving.
pub struct Router {
    listener: TcpListener,
    address: SocketAddr,
    shared: Shared,
    registry: Option<Box<dyn Registry>>,
}

impl Router {
    /// Checks the configuration, loads the models' text sides and opens the port.
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn bind(config: RouterConfig) -> Result<Self, BindError> {
        config.check().map_err(BindError::Config)?;
        let keys = Keys::open(&config.api_keys, config.api_keys_from.as_deref())?;
        let tls = config.tls.as_ref();
        let tls = tls
            .map(|files| Tls::open(files, Role::Router))
            .transpose()?;
        let models = config
            .models
            .iter()
            .map(|model| Model::load(model).map(Arc::new));
        let models = models.collect::<Result<Vec<_>, _>>()?;
        let registry = match &config.registry {
            Some(registry) => Some(registry.open(Interest::Targets).await?),
            None => None,
        };
        let failed = |source| BindError::Listen {
            address: config.listen.clone(),
            source,
        };
        let listener =
            foretoken_protocol::address::listen(config.listen.as_str()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let tokenizers = models.iter().map(|model: &Arc<Model>| {
            let digest = model.tokenizer.digest().to_owned();
            (model.name.clone(), digest)
        });
        let tokenizers = tokenizers.collect();
        let places = config.max_requests.min(Semaphore::MAX_PERMITS);
        let metrics = Metrics::new();
        for model in &models {
            // Shown from the beginning, so that an alert on nothing being counted has something to see.
            metrics.of_model(&model.name);
        }
        let shared = Shared {
            config,
            models,
            places: Arc::new(Semaphore::new(places)),
            asked: Asked::default(),
            keys,
            targets: Targets::new(tokenizers, tls),
            metrics,
            tracer: Tracer::default(),
            created,
        };
        Ok(Self {
            listener,
            address,
            shared,
            registry,
        })
    }

    /// The same, with somebody to record what is done for requests.
    #[must_use]
    pub fn traced_by(mut self, tracer: Tracer) -> Self {
        self.shared.metrics.show(&tracer);
        self.shared.tracer = tracer;
        self
    }

    /// Where it listens; the port is real even if port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, lingers as configured while requests come, then takes no more connections
    /// and waits for open streams, at most the configured grace.
    ///
    /// # Errors
    /// If the listening socket fails.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let Self {
            listener,
            address,
            shared,
            registry,
        } = self;
        let shared = Arc::new(shared);
        // Streams in their grace may still need another target, so these end last.
        let background = CancellationToken::new();
        let _ended = background.clone().drop_guard();
        shared.targets.update(&shared.config.targets, None);
        let follow = registry.as_ref().map(|registry| registry.watch());
        let following = tokio::spawn(follow_directory(
            Arc::clone(&shared),
            follow,
            background.clone(),
        ));
        let probing = {
            let (shared, stop) = (Arc::clone(&shared), background.clone());
            tokio::spawn(async move { shared.targets.probe(shared.config.probe, stop).await })
        };
        tracing::info!(%address, "router is listening");
        let app = http::app(Arc::clone(&shared));
        let close = CancellationToken::new();
        let patience = Patience {
            head: shared.config.head,
            unread: shared.config.unread,
        };
        let server = server::serve(listener, app, patience, stop.clone(), close.clone());
        let grace = async {
            stop.cancelled().await;
            shared.asked.quiet(shared.config.linger).await;
            close.cancel();
            tokio::time::sleep(shared.config.grace).await;
        };
        let served = tokio::select! {
            served = server => served,
            () = grace => Ok(()),
        };
        background.cancel();
        for task in [following, probing] {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the router panicked");
            }
        }
        Ok(served?)
    }
}

/// Keeps the table of targets equal to the directory.
async fn follow_directory(
    shared: Arc<Shared>,
    directory: Option<watch::Receiver<Arc<Directory>>>,
    stop: CancellationToken,
) {
    let Some(mut directory) = directory else {
        return;
    };
    loop {
        let current = Arc::clone(&directory.borrow_and_update());
        shared
            .targets
            .update(&shared.config.targets, Some(&current));
        tokio::select! {
            () = stop.cancelled() => return,
            changed = directory.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}
