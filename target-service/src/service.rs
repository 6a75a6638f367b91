//! The service around the engine thread: sockets, checks of what comes in, stopping.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use foretoken_engine::{
    batch::Engine,
    runner::{ModelRunner, RunnerInfo},
};
use foretoken_protocol::{
    Address, Listener,
    generate::{
        EventSender, GenerateError, GenerateRequest, GenerateService, ServeError, TargetInfo,
        serve_generate,
    },
    link::{Mailbox, Postbox, Transport, TransportOptions},
    tls::{Role, Tls, TlsError},
};
use foretoken_registry::{AnnounceError, Announced, OpenError, TargetEntry};
use foretoken_service::{
    observation::{self, Observation, Observed},
    report::{Board, ModelReport},
    rounds::Feed,
};
use foretoken_speculation::control::StepCost;
use foretoken_telemetry::{SpanKind, Tracer};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    check,
    config::{ConfigError, TargetConfig},
    dial::Dialer,
    directory::EndpointList,
    inbox::{Arrival, Message},
    links::{LinkBoard, LinkWatch},
    metrics::Metrics,
    recording::Recording,
    warmup,
    worker::{Gauges, Worker},
};

/// Why a target cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The configuration contradicts itself.
    #[error("the target's configuration is not valid")]
    Config(#[from] ConfigError),
    /// An address to serve on is not to be had.
    #[error(transparent)]
    Listen(#[from] foretoken_protocol::BindError),
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The observation port is not to be had.
    #[error(transparent)]
    Metrics(#[from] observation::BindError),
}

/// Why a target stopped without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Serving requests failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The observation port failed.
    #[error("serving metrics failed")]
    Metrics(#[source] io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The registry cannot be used.
    #[error("the registry cannot be used")]
    Registry(#[from] OpenError),
    /// The target cannot be made known.
    #[error("the target cannot be announced")]
    Announce(#[from] AnnounceError),
    /// The engine thread ended by itself; its message is in the log.
    #[error("the engine stopped working")]
    Engine,
}

/// A target with its sockets bound, not serving yet.
pub struct TargetService {
    config: TargetConfig,
    runner: Box<dyn ModelRunner>,
    tls: Option<Tls>,
    listeners: Vec<Listener>,
    observation: Option<Observation>,
    links: LinkBoard,
    tracer: Tracer,
}

impl TargetService {
    /// Checks the configuration and binds its sockets. Needs no runtime.
    pub fn bind(config: TargetConfig, runner: Box<dyn ModelRunner>) -> Result<Self, BindError> {
        config.validate()?;
        let tls = config.tls.as_ref();
        let tls = tls
            .map(|files| Tls::open(files, Role::Target))
            .transpose()?;
        let listeners = Listener::bind_all(&config.listen, tls.as_ref())?;
        let observation = config
            .metrics_listen
            .as_deref()
            .map(Observation::bind)
            .transpose()?;
        Ok(Self {
            config,
            runner,
            tls,
            listeners,
            observation,
            links: LinkBoard::default(),
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

    /// What becomes of the links to endpoints.
    pub fn links(&self) -> LinkWatch {
        self.links.watch()
    }

    /// Serves until `stop`; then takes nothing new in, finishes what runs within the grace, and
    /// returns. Needs a tokio runtime, on whose threads nothing heavy happens.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), RunError> {
        let listeners = std::mem::take(&mut self.listeners);
        let endpoints = EndpointList::watch(&self.config).await?;
        let first = listeners.first().map(Listener::address);
        let announced = announced(&self.config, first);
        let registry = self.config.registry.clone();
        let (mut serving, is_up) = Serving::start(self, endpoints)?;
        // Nobody should be told to come before the model is warm.
        if is_up.await.is_err() {
            return Err(RunError::Engine);
        }
        serving.open(listeners);
        let announcement = match registry.zip(announced) {
            Some((registry, (who, lease))) => Some(registry.announce(who, lease)?),
            None => None,
        };
        let ended = serving.until(&stop).await;
        if let Some(announcement) = announcement {
            announcement.withdraw().await;
        }
        serving.drain().await;
        ended
    }
}

/// What routers are told of a target that listens at `first`, and how long it is missed before it is
/// taken for dead.
fn announced(config: &TargetConfig, first: Option<&Address>) -> Option<(Announced, Duration)> {
    let announce = config.announce.clone()?;
    let entry = TargetEntry {
        name: config.instance.clone(),
        model: announce.model,
        address: announce.address.or_else(|| first.cloned())?,
        serves: None,
    };
    Some((Announced::Target(entry), announce.lease))
}

/// A target that serves.
struct Serving {
    front: Arc<Front>,
    ready: Arc<AtomicBool>,
    engine: EngineHandle,
    /// The observation port and the list of endpoints.
    tasks: JoinSet<Result<(), RunError>>,
    end: CancellationToken,
    /// What routers talk to.
    servers: JoinSet<Result<(), ServeError>>,
    draining: CancellationToken,
    inbox: StopOnDrop,
}

impl Serving {
    /// Starts the engine thread and everything that does not serve requests. The receiver tells
    /// when the engine is warm.
    fn start(
        service: TargetService,
        endpoints: EndpointList,
    ) -> Result<(Self, oneshot::Receiver<()>), RunError> {
        let TargetService {
            config,
            runner,
            tls,
            listeners: _,
            observation,
            links,
            tracer,
        } = service;
        let info = runner.info().clone();
        let (metrics, mut registry) = Metrics::new(&config.instance, &info);
        tracer.register(&mut registry);
        let gauges = Arc::new(Gauges::default());
        let ready = Arc::new(AtomicBool::new(false));
        let options = TransportOptions {
            spin: config.spin,
            tls,
        };
        let transport = Transport::start(options).map_err(RunError::Thread)?;
        // The engine thread moves the links' bytes while it waits for messages.
        let (postbox, inbox) = transport.mailbox();
        let dialer = Dialer::new(transport, &config, &info, postbox.clone(), links);

        let mut tasks = JoinSet::new();
        let end = CancellationToken::new();
        let feed = Feed::new("target", &config.instance, config.observe_tokens);
        let board = board(&config, &info);
        if let Some(observation) = observation {
            let observed = Observed {
                registry: Arc::new(registry),
                ready: Arc::clone(&ready),
                board: board.clone(),
                feed: feed.clone(),
            };
            let served = observation.serve(observed, end.clone());
            tasks.spawn(async { served.await.map_err(RunError::Metrics) });
        }
        let following = endpoints.follow(postbox.clone(), end.clone());
        tasks.spawn(async {
            following.await;
            Ok(())
        });

        let front = Arc::new(Front {
            config,
            info,
            gauges,
            inbox: postbox.clone(),
            tracer,
        });
        let (started, is_up) = oneshot::channel();
        let engine = EngineThread {
            runner,
            dialer,
            metrics,
            feed,
            board,
            inbox,
        };
        let engine = engine.spawn(&front, started).map_err(RunError::Thread)?;
        let serving = Self {
            front,
            ready,
            engine,
            tasks,
            end,
            servers: JoinSet::new(),
            draining: CancellationToken::new(),
            inbox: StopOnDrop(postbox),
        };
        Ok((serving, is_up))
    }

    /// Lets routers in.
    fn open(&mut self, listeners: Vec<Listener>) {
        for listener in listeners {
            let served = serve_generate(listener, Arc::clone(&self.front), self.draining.clone());
            self.servers.spawn(served);
        }
        self.ready.store(true, Ordering::Relaxed);
    }

    /// Waits for `stop`, or for the end of something that should not end.
    async fn until(&mut self, stop: &CancellationToken) -> Result<(), RunError> {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            Some(ended) = self.tasks.join_next() => flatten(ended),
            Some(ended) = self.servers.join_next() => {
                flatten(ended.map(|served| served.map_err(RunError::from)))
            }
            () = self.engine.ended.cancelled() => Err(RunError::Engine),
        }
    }

    /// Finishes what runs, or gives it up once the grace is over.
    async fn drain(mut self) {
        self.ready.store(false, Ordering::Relaxed);
        self.front.gauges.draining.store(true, Ordering::Relaxed);
        self.draining.cancel();
        // The engine thread may be gone; then there is nothing to drain.
        let _ = self.inbox.0.post(Message::Drain);
        let (grace, ended) = (self.front.config.grace, &self.engine.ended);
        if tokio::time::timeout(grace, ended.cancelled())
            .await
            .is_err()
        {
            tracing::warn!("the grace is over; requests that still run are given up");
            let _ = self.inbox.0.post(Message::Stop);
            ended.cancelled().await;
        }
        if self.engine.thread.join().is_err() {
            tracing::error!("the engine thread panicked");
        }
        // Streams have ended with the engine; what is left is flushing them.
        let farewell = async { while self.servers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        self.end.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// What whoever asks is told.
fn board(config: &TargetConfig, info: &RunnerInfo) -> Board {
    let model = ModelReport {
        digest: info.model_digest.clone(),
        tokenizer: config.tokenizer_digest.clone(),
        vocabulary: info.vocab_size as u32,
        path: info.path.clone(),
    };
    Board::new(&config.instance, model)
}

/// Ends the engine thread when the service's future ends or is dropped, in whatever way.
struct StopOnDrop(Postbox<Message>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.0.post(Message::Stop);
    }
}

/// How long sockets may take to close once all requests have ended.
const FAREWELL: Duration = Duration::from_secs(2);

fn flatten<E>(joined: Result<Result<(), RunError>, E>) -> Result<(), RunError> {
    // A task that panicked has reported it; the service cannot go on without it.
    joined.unwrap_or(Err(RunError::Engine))
}

/// What routers talk to: checks requests and passes them on.
struct Front {
    config: TargetConfig,
    info: RunnerInfo,
    gauges: Arc<Gauges>,
    inbox: Postbox<Message>,
    tracer: Tracer,
}

impl GenerateService for Front {
    fn generate(
        &self,
        mut request: GenerateRequest,
        events: EventSender,
    ) -> Result<(), GenerateError> {
        let busy = || GenerateError::Busy {
            instance: self.config.instance.clone(),
        };
        if self.gauges.draining.load(Ordering::Relaxed) {
            return Err(busy());
        }
        let policy = check::request(&request, &self.config, &self.info)?;
        let at = Instant::now();
        let trace = self
            .tracer
            .begin("generate", SpanKind::Server, request.trace, at);
        request.trace = trace.context();
        let recording = trace.into_span().map(|span| Recording::new(span, at));
        let arrival = Box::new(Arrival {
            request,
            policy,
            events,
            at,
            recording,
        });
        self.inbox
            .post(Message::Generate(arrival))
            .map_err(|_| busy())
    }

    fn info(&self) -> TargetInfo {
        TargetInfo {
            instance: self.config.instance.clone(),
            model_digest: self.info.model_digest.clone(),
            path: self.info.path.clone(),
            tokenizer_digest: self.config.tokenizer_digest.clone(),
            vocab_size: self.info.vocab_size as u32,
            max_positions: self.info.max_positions as u32,
            policy: self.config.default_policy().name().into(),
            load: self.gauges.load(),
        }
    }
}

/// What the engine thread starts with.
struct EngineThread {
    runner: Box<dyn ModelRunner>,
    dialer: Dialer,
    metrics: Metrics,
    feed: Feed,
    board: Board,
    inbox: Mailbox<Message>,
}

/// The running engine thread.
struct EngineHandle {
    /// Cancelled when the thread ends, however it comes about.
    ended: CancellationToken,
    thread: thread::JoinHandle<()>,
}

impl EngineThread {
    /// Starts the thread; `started` is told when it is warm.
    fn spawn(self, front: &Front, started: oneshot::Sender<()>) -> io::Result<EngineHandle> {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let (config, gauges) = (front.config.clone(), Arc::clone(&front.gauges));
        let thread = thread::Builder::new()
            .name("foretoken-target".into())
            .spawn(move || {
                let _end = end;
                let Self {
                    runner,
                    dialer,
                    metrics,
                    feed,
                    board,
                    inbox,
                } = self;
                if let Err(error) = runner.bind_thread() {
                    return tracing::error!(%error, "the engine thread cannot start");
                }
                let mut engine = Engine::new(runner);
                let steps = if config.warm_up {
                    warmup::measure(&mut engine)
                } else {
                    StepCost::new(Vec::new())
                };
                let worker = Worker::new(config, engine, Box::new(dialer), metrics, gauges, steps);
                // If nobody waits any more, the inbox will say so too.
                let _ = started.send(());
                worker.telling(feed).showing(board).run(&inbox);
            })?;
        Ok(EngineHandle { ended, thread })
    }
}
