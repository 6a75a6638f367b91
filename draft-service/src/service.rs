//! The service around the engine thread: sockets, and stopping.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use foretoken_engine::{
    batch::Engine,
    runner::{ModelRunner, RunnerInfo},
};
use foretoken_protocol::{
    Address, Listener,
    link::{
        Limits, LinkOptions, LinkServer, Mailbox, Postbox, Terms, Transport, TransportOptions,
        Welcome,
    },
    tls::{Role, Tls, TlsError},
};
use foretoken_registry::{AnnounceError, Announced, Announcement, EndpointEntry};
use foretoken_service::{
    config::OutOfRange,
    observation::{self, Observation, Observed},
    report::{Board, ModelReport},
    rounds::Feed,
};
use foretoken_telemetry::Tracer;
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    config::DraftConfig,
    grants::{GrantsError, GrantsFile},
    inbox::Message,
    metrics::Metrics,
    warmup,
    worker::Worker,
};

/// Why an endpoint cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The configuration contradicts itself.
    #[error("the endpoint's configuration is not valid")]
    Config(#[from] OutOfRange),
    /// An address to serve on is not to be had.
    #[error(transparent)]
    Listen(#[from] foretoken_protocol::BindError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The file of grants cannot be used.
    #[error(transparent)]
    Grants(#[from] GrantsError),
    /// The observation port is not to be had.
    #[error(transparent)]
    Metrics(#[from] observation::BindError),
}

/// Why an endpoint stopped without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A socket could not be served.
    #[error("cannot serve {address}")]
    Serve {
        /// Where.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// The observation port failed.
    #[error("serving metrics failed")]
    Metrics(#[source] io::Error),
    /// The endpoint cannot be made known.
    #[error("the endpoint cannot be announced")]
    Announce(#[from] AnnounceError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The engine thread ended by itself; its message is in the log.
    #[error("the engine stopped working")]
    Engine,
}

/// An endpoint with its sockets bound, not serving yet.
pub struct DraftService {
    config: DraftConfig,
    runner: Box<dyn ModelRunner>,
    grants: Option<GrantsFile>,
    listeners: Vec<Listener>,
    observation: Option<Observation>,
    tracer: Tracer,
}

impl DraftService {
    /// Checks the configuration and binds its sockets. Needs no runtime.
    pub fn bind(config: DraftConfig, runner: Box<dyn ModelRunner>) -> Result<Self, BindError> {
        config.validate()?;
        let tls = config.tls.as_ref();
        let tls = tls.map(|files| Tls::open(files, Role::Draft)).transpose()?;
        let grants = config.grants.clone().map(GrantsFile::open).transpose()?;
        let listeners = Listener::bind_all(&config.listen, tls.as_ref())?;
        let observation = config
            .metrics_listen
            .as_deref()
            .map(Observation::bind)
            .transpose()?;
        Ok(Self {
            config,
            runner,
            grants,
            listeners,
            observation,
            tracer: Tracer::default(),
        })
    }

    /// The same, with somebody to record what is done for requests.
    #[must_use]
    pub fn traced_by(mut self, tracer: Tracer) -> Self {
        self.tracer = tracer;
        self
    }

    /// Where it listens, in the order of the configuration, with real ports.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.listeners.iter().map(Listener::address)
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.observation.as_ref().map(Observation::address)
    }

    /// Serves until `stop`; then takes no new sessions, lets open ones go on for the grace, cuts all
    /// links (targets go on without) and returns. Needs a tokio runtime, on whose threads nothing
    /// heavy happens.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let Self {
            config,
            runner,
            grants,
            listeners,
            observation,
            tracer,
        } = self;
        let (metrics, mut registry) = Metrics::new(&config.instance, runner.info());
        tracer.register(&mut registry);
        let options = TransportOptions {
            spin: config.spin,
            tls: None,
        };
        let transport = Transport::start(options).map_err(RunError::Thread)?;
        // The engine thread moves the links' bytes while it waits for messages.
        let (postbox, inbox) = transport.mailbox();
        let postbox = StopOnDrop(postbox);
        let links = CancellationToken::new();
        let ready = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        // What users say is not in what an endpoint tells.
        let feed = Feed::new("draft", &config.instance, false);
        let board = board(&config, runner.info());
        if let Some(observation) = observation {
            let observed = Observed {
                registry: Arc::new(registry),
                ready: Arc::clone(&ready),
                board: board.clone(),
                feed: feed.clone(),
            };
            tasks.spawn(observation.serve(observed, links.clone()));
        }
        let mut terms = Terms::new(welcome(&config, runner.info()), LinkOptions::default());
        if let Some(grants) = grants {
            terms = terms.granted_to(grants.watch());
            tasks.spawn(grants.follow(links.clone()));
        }
        let shown = Shown {
            metrics,
            feed,
            board,
            tracer,
        };
        let announce = announcing(&config, listeners.first().map(Listener::address));
        let mut announcement = None;
        let (engine, warm) = EngineThread::spawn(config, runner, shown, inbox)?;
        let open = async {
            // Nobody should be told to come before the model is warm.
            if warm.await.is_err() {
                return Err(RunError::Engine);
            }
            let servers = serve(listeners, &transport, &terms, &links, &postbox.0)?;
            // A thread that has ended since is noticed below.
            let _ = engine.servers.send(servers);
            ready.store(true, Ordering::Relaxed);
            announcement = announce()?;
            std::future::pending().await
        };
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            result = open => result,
            () = engine.ended.cancelled() => Err(RunError::Engine),
            Some(done) = tasks.join_next() => {
                done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(RunError::Metrics)
            }
        };
        ready.store(false, Ordering::Relaxed);
        if let Some(announcement) = announcement {
            announcement.withdraw().await;
        }
        // A thread that has ended has nothing to drain.
        let _ = postbox.0.post(Message::Drain);
        engine.end().await;
        links.cancel();
        while tasks.join_next().await.is_some() {}
        result
    }
}

/// Where the engine thread shows what it does.
struct Shown {
    metrics: Metrics,
    feed: Feed,
    board: Board,
    tracer: Tracer,
}

/// Makes an endpoint that listens at `first` known, once it may be dialled; none if it is not to be.
fn announcing(
    config: &DraftConfig,
    first: Option<&Address>,
) -> impl FnOnce() -> Result<Option<Announcement>, AnnounceError> + use<> {
    let announce = config.announce.clone().zip(config.registry.clone());
    let address = announce
        .as_ref()
        .and_then(|(announce, _)| announce.address.clone());
    let (name, address) = (config.instance.clone(), address.or_else(|| first.cloned()));
    move || {
        let (Some((announce, registry)), Some(address)) = (announce, address) else {
            return Ok(None);
        };
        let entry = EndpointEntry {
            name,
            address,
            weight: announce.weight,
            serves: None,
        };
        let announced = registry.announce(Announced::Endpoint(entry), announce.lease);
        announced.map(Some)
    }
}

/// The running engine thread.
struct EngineThread {
    /// Takes the open listeners, once the engine is warm.
    servers: mpsc::Sender<Vec<LinkServer>>,
    /// Cancelled when the thread ends, however it comes about.
    ended: CancellationToken,
    thread: thread::JoinHandle<()>,
}

impl EngineThread {
    /// Starts the thread. The receiver tells when the engine is warm.
    fn spawn(
        config: DraftConfig,
        runner: Box<dyn ModelRunner>,
        shown: Shown,
        inbox: Mailbox<Message>,
    ) -> Result<(Self, oneshot::Receiver<()>), RunError> {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let (is_warm, warm) = oneshot::channel();
        let (servers, open) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("foretoken-draft".into())
            .spawn(move || {
                let _end = end;
                if let Err(error) = runner.bind_thread() {
                    return tracing::error!(%error, "the engine thread cannot start");
                }
                let mut engine = Engine::new(runner);
                let warm_up = || warmup::measure(&mut engine, config.prefill_rows);
                let steps = config.warm_up.then(warm_up).flatten();
                // If nobody waits any more, there will be no listeners either.
                let _ = is_warm.send(());
                if let Ok(servers) = open.recv() {
                    let Shown {
                        metrics,
                        feed,
                        board,
                        tracer,
                    } = shown;
                    let worker = Worker::new(engine, servers, &config, metrics);
                    let mut worker = worker.telling(feed).showing(board).traced_by(tracer);
                    if let Some(steps) = steps {
                        worker = worker.costing(steps);
                    }
                    worker.run(&inbox);
                }
            })
            .map_err(RunError::Thread)?;
        let engine = Self {
            servers,
            ended,
            thread,
        };
        Ok((engine, warm))
    }

    /// Waits for the end of a thread that was told to drain.
    async fn end(self) {
        let Self {
            servers,
            ended,
            thread,
        } = self;
        // Should it still wait for listeners.
        drop(servers);
        ended.cancelled().await;
        if thread.join().is_err() {
            tracing::error!("the engine thread panicked");
        }
    }
}

/// Lets targets in on all listeners.
fn serve(
    listeners: Vec<Listener>,
    transport: &Transport,
    terms: &Terms,
    links: &CancellationToken,
    inbox: &Postbox<Message>,
) -> Result<Vec<LinkServer>, RunError> {
    let listen = |(index, listener): (usize, Listener)| {
        let address = listener.address().clone();
        let inbox = inbox.clone();
        let on_event = move |event| {
            // Without an engine thread nobody cares.
            let _ = inbox.post(Message::Link(index, event));
        };
        transport
            .serve(listener, terms.clone(), links, on_event)
            .map_err(|source| RunError::Serve { address, source })
    };
    listeners.into_iter().enumerate().map(listen).collect()
}

/// Ends the engine thread when the service's future ends or is dropped, in whatever way.
struct StopOnDrop(Postbox<Message>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.0.post(Message::Stop);
    }
}

/// What whoever asks is told.
fn board(config: &DraftConfig, info: &RunnerInfo) -> Board {
    let model = ModelReport {
        digest: info.model_digest.clone(),
        tokenizer: config.tokenizer_digest.clone(),
        vocabulary: info.vocab_size as u32,
        path: info.path.clone(),
    };
    Board::new(&config.instance, model)
}

/// What targets are told when they dial.
fn welcome(config: &DraftConfig, info: &RunnerInfo) -> Welcome {
    Welcome {
        instance: config.instance.clone(),
        model_digest: info.model_digest.clone(),
        tokenizer_digest: config.tokenizer_digest.clone(),
        vocab_size: info.vocab_size as u32,
        path: info.path.clone(),
        limits: Limits {
            slots: config.max_sessions as u32,
            max_positions: info.max_positions as u32,
            ..Limits::default()
        },
    }
}
