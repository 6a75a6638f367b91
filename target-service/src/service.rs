//! The service around the engine thread: sockets, checks of what comes in, stopping.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
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
    link::{Hello, Link, LinkOptions, Transport, TransportOptions},
};
use foretoken_registry::{Directory, Registry as _, RegistryError, StaticRegistry};
use foretoken_speculation::{control::StepCost, message::ToDraft};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    check,
    config::{ConfigError, TargetConfig},
    http::{Observation, Observed},
    inbox::{Arrival, Inbox, LinkKey, Message},
    metrics::Metrics,
    warmup,
    worker::{Dial, Gauges, Outlet, Worker},
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
    /// The observation port is not to be had.
    #[error("cannot serve metrics on {address}")]
    Metrics {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
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
    /// The registry file cannot be used.
    #[error("the registry cannot be read")]
    Registry(#[from] RegistryError),
    /// The engine thread ended by itself; its message is in the log.
    #[error("the engine stopped working")]
    Engine,
}

/// A target with its sockets bound, not serving yet.
pub struct TargetService {
    config: TargetConfig,
    runner: Box<dyn ModelRunner>,
    listeners: Vec<Listener>,
    observation: Option<Observation>,
}

impl TargetService {
    /// Checks the configuration and binds its sockets. Needs no runtime.
    pub fn bind(config: TargetConfig, runner: Box<dyn ModelRunner>) -> Result<Self, BindError> {
        config.validate()?;
        let listeners = config
            .listen
            .iter()
            .map(Listener::bind)
            .collect::<Result<_, _>>()?;
        let observation = match &config.metrics_listen {
            None => None,
            Some(address) => {
                Some(
                    Observation::bind(address).map_err(|source| BindError::Metrics {
                        address: address.clone(),
                        source,
                    })?,
                )
            }
        };
        Ok(Self {
            config,
            runner,
            listeners,
            observation,
        })
    }

    /// Where it listens, in the order of the configuration, with real ports.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.listeners.iter().map(Listener::address)
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.observation.as_ref().map(Observation::address)
    }

    /// Serves until `stop`; then takes nothing new in, finishes what runs within the grace, and
    /// returns. Needs a tokio runtime, on whose threads nothing heavy happens.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let Self {
            config,
            runner,
            listeners,
            observation,
        } = self;
        let info = runner.info().clone();
        let (metrics, registry) = Metrics::new(&config.instance, &info);
        let gauges = Arc::new(Gauges::default());
        let ready = Arc::new(AtomicBool::new(false));
        let (sender, inbox) = Inbox::new(config.spin);
        let _stop_thread = StopOnDrop(sender.clone());
        let dialer = Dialer::start(&config, &info, sender.clone()).map_err(RunError::Thread)?;
        let directory = Endpoints::watch(&config)?;

        let (started, is_up) = oneshot::channel();
        let engine = EngineThread {
            config: config.clone(),
            runner,
            dialer,
            metrics,
            inbox,
        };
        let engine = engine
            .spawn(Arc::clone(&gauges), started)
            .map_err(RunError::Thread)?;

        let mut tasks = JoinSet::new();
        let end = CancellationToken::new();
        if let Some(observation) = observation {
            let observed = Observed {
                registry: Arc::new(registry),
                ready: Arc::clone(&ready),
            };
            let end = end.clone();
            tasks.spawn(async move {
                observation
                    .serve(observed, end)
                    .await
                    .map_err(RunError::Metrics)
            });
        }
        tasks.spawn(directory.follow(sender.clone(), end.clone()));
        // Nobody should be told to come before the model is warm.
        if is_up.await.is_err() {
            return Err(RunError::Engine);
        }
        ready.store(true, Ordering::Relaxed);
        let service = Arc::new(Front {
            config: config.clone(),
            info,
            gauges: Arc::clone(&gauges),
            inbox: sender.clone(),
        });
        let draining = CancellationToken::new();
        let mut servers = JoinSet::new();
        for listener in listeners {
            servers.spawn(serve_generate(
                listener,
                Arc::clone(&service),
                draining.clone(),
            ));
        }

        let ended = tokio::select! {
            () = stop.cancelled() => Ok(()),
            Some(ended) = tasks.join_next() => flatten(ended),
            Some(ended) = servers.join_next() => flatten(ended.map(|done| done.map_err(RunError::from))),
            () = engine.ended.cancelled() => Err(RunError::Engine),
        };
        ready.store(false, Ordering::Relaxed);
        gauges.draining.store(true, Ordering::Relaxed);
        draining.cancel();
        // The engine thread may be gone; then there is nothing to drain.
        let _ = sender.send(Message::Drain);
        if tokio::time::timeout(config.grace, engine.ended.cancelled())
            .await
            .is_err()
        {
            tracing::warn!("the grace is over; requests that still run are given up");
            let _ = sender.send(Message::Stop);
            engine.ended.cancelled().await;
        }
        if engine.thread.join().is_err() {
            tracing::error!("the engine thread panicked");
        }
        let farewell = async { while servers.join_next().await.is_some() {} };
        // Streams have ended with the engine; what is left is flushing them.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        end.cancel();
        while tasks.join_next().await.is_some() {}
        ended
    }
}

/// Ends the engine thread when the service's future ends or is dropped, in whatever way.
struct StopOnDrop(Sender<Message>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.0.send(Message::Stop);
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
    inbox: Sender<Message>,
}

impl GenerateService for Front {
    fn generate(&self, request: GenerateRequest, events: EventSender) -> Result<(), GenerateError> {
        let busy = || GenerateError::Busy {
            instance: self.config.instance.clone(),
        };
        if self.gauges.draining.load(Ordering::Relaxed) {
            return Err(busy());
        }
        let policy = check::request(&request, &self.config, &self.info)?;
        let arrival = Box::new(Arrival {
            request,
            policy,
            events,
            at: Instant::now(),
        });
        self.inbox
            .send(Message::Generate(arrival))
            .map_err(|_| busy())
    }

    fn info(&self) -> TargetInfo {
        TargetInfo {
            instance: self.config.instance.clone(),
            model_digest: self.info.model_digest.clone(),
            path: self.info.path.clone(),
            vocab_size: self.info.vocab_size as u32,
            max_positions: self.info.max_positions as u32,
            policy: self.config.default_policy().name().into(),
            load: self.gauges.load(),
        }
    }
}

/// What the engine thread starts with.
struct EngineThread {
    config: TargetConfig,
    runner: Box<dyn ModelRunner>,
    dialer: Dialer,
    metrics: Metrics,
    inbox: Inbox,
}

/// The running engine thread.
struct EngineHandle {
    /// Cancelled when the thread ends, however it comes about.
    ended: CancellationToken,
    thread: thread::JoinHandle<()>,
}

impl EngineThread {
    /// Starts the thread; `started` is told when it is warm.
    fn spawn(self, gauges: Arc<Gauges>, started: oneshot::Sender<()>) -> io::Result<EngineHandle> {
        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let thread = thread::Builder::new()
            .name("foretoken-target".into())
            .spawn(move || {
                let _end = end;
                let Self {
                    config,
                    runner,
                    dialer,
                    metrics,
                    inbox,
                } = self;
                let mut engine = Engine::new(runner);
                let steps = if config.warm_up {
                    warmup::measure(&mut engine)
                } else {
                    StepCost::new(Vec::new())
                };
                let worker = Worker::new(config, engine, Box::new(dialer), metrics, gauges, steps);
                // If nobody waits any more, the inbox will say so too.
                let _ = started.send(());
                worker.run(&inbox);
            })?;
        Ok(EngineHandle { ended, thread })
    }
}

/// Dials endpoints over the network.
struct Dialer {
    transport: Transport,
    hello: Hello,
    inbox: Sender<Message>,
    stop: CancellationToken,
}

impl Dialer {
    fn start(config: &TargetConfig, info: &RunnerInfo, inbox: Sender<Message>) -> io::Result<Self> {
        let transport = Transport::start(TransportOptions { spin: config.spin })?;
        let hello = Hello {
            instance: config.instance.clone(),
            model_digest: info.model_digest.clone(),
            tokenizer_digest: config.tokenizer_digest.clone(),
            vocab_size: info.vocab_size as u32,
            path: info.path.clone(),
        };
        Ok(Self {
            transport,
            hello,
            inbox,
            stop: CancellationToken::new(),
        })
    }
}

impl Dial for Dialer {
    fn dial(&self, link: LinkKey, address: &Address) -> Box<dyn Outlet> {
        let inbox = self.inbox.clone();
        let options = LinkOptions::default();
        let on_event = move |event| {
            // Without an engine thread nobody cares.
            let _ = inbox.send(Message::Link(link, event));
        };
        let hello = self.hello.clone();
        Box::new(
            self.transport
                .dial(address.clone(), hello, options, &self.stop, on_event),
        )
    }
}

impl Outlet for Link {
    fn send(&self, messages: Vec<ToDraft>) {
        // A lost link reports itself; sessions that missed messages are opened anew.
        if let Err(error) = Link::send(self, messages) {
            tracing::debug!(address = %self.address(), %error, "messages were not sent");
        }
    }
}

/// Where the list of endpoints comes from.
struct Endpoints {
    fixed: Vec<(String, Address)>,
    registry: Option<StaticRegistry>,
}

impl Endpoints {
    fn watch(config: &TargetConfig) -> Result<Self, RegistryError> {
        let fixed = config
            .endpoints
            .iter()
            .map(|e| (e.name.clone(), e.address.clone()))
            .collect();
        let registry = config
            .registry
            .as_ref()
            .map(StaticRegistry::open)
            .transpose()?;
        Ok(Self { fixed, registry })
    }

    /// Tells the engine thread of the endpoints now, and of every change until `end`.
    async fn follow(self, inbox: Sender<Message>, end: CancellationToken) -> Result<(), RunError> {
        let Some(registry) = self.registry else {
            let _ = inbox.send(Message::Endpoints(self.fixed));
            end.cancelled().await;
            return Ok(());
        };
        let mut directory = registry.watch();
        loop {
            let list = merge(&self.fixed, &directory.borrow_and_update());
            if inbox.send(Message::Endpoints(list)).is_err() {
                return Ok(());
            }
            tokio::select! {
                () = end.cancelled() => return Ok(()),
                changed = directory.changed() => if changed.is_err() {
                    end.cancelled().await;
                    return Ok(());
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
