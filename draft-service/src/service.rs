//! The service around the engine thread: sockets, and stopping.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use foretoken_engine::{
    batch::Engine,
    runner::{ModelRunner, RunnerInfo},
};
use foretoken_observation::{Observation, Observed};
use foretoken_protocol::{
    Address, Listener,
    link::{Limits, LinkOptions, LinkServer, Postbox, Transport, TransportOptions, Welcome},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ConfigError, DraftConfig},
    inbox::Message,
    metrics::Metrics,
    worker::Worker,
};

/// Why an endpoint cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The configuration contradicts itself.
    #[error("the endpoint's configuration is not valid")]
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
    listeners: Vec<Listener>,
    observation: Option<Observation>,
}

impl DraftService {
    /// Checks the configuration and binds its sockets. Needs no runtime.
    pub fn bind(config: DraftConfig, runner: Box<dyn ModelRunner>) -> Result<Self, BindError> {
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

    /// Serves until `stop`; then cuts all links (targets go on alone) and returns. Needs a tokio
    /// runtime, on whose threads nothing heavy happens.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let Self {
            config,
            runner,
            listeners,
            observation,
        } = self;
        let (metrics, registry) = Metrics::new(&config.instance, runner.info());
        let transport =
            Transport::start(TransportOptions { spin: config.spin }).map_err(RunError::Thread)?;
        // The engine thread moves the links' bytes while it waits for messages.
        let (postbox, inbox) = transport.mailbox();
        let postbox = StopOnDrop(postbox);
        let links = CancellationToken::new();
        let welcome = welcome(&config, runner.info());
        let servers = serve(listeners, &transport, &welcome, &links, &postbox.0)?;

        let ended = CancellationToken::new();
        let end = ended.clone().drop_guard();
        let thread = thread::Builder::new()
            .name("foretoken-draft".into())
            .spawn(move || {
                let _end = end;
                Worker::new(Engine::new(runner), servers, &config, metrics).run(&inbox);
            })
            .map_err(RunError::Thread)?;

        let ready = Arc::new(AtomicBool::new(true));
        let mut tasks = JoinSet::new();
        if let Some(observation) = observation {
            let observed = Observed {
                registry: Arc::new(registry),
                ready: Arc::clone(&ready),
            };
            tasks.spawn(observation.serve(observed, links.clone()));
        }
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = ended.cancelled() => Err(RunError::Engine),
            Some(done) = tasks.join_next() => {
                done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(RunError::Metrics)
            }
        };
        ready.store(false, Ordering::Relaxed);
        links.cancel();
        drop(postbox);
        ended.cancelled().await;
        if thread.join().is_err() {
            tracing::error!("the engine thread panicked");
        }
        while tasks.join_next().await.is_some() {}
        result
    }
}

/// Lets targets in on all listeners.
fn serve(
    listeners: Vec<Listener>,
    transport: &Transport,
    welcome: &Welcome,
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
            .serve(
                listener,
                welcome.clone(),
                LinkOptions::default(),
                links,
                on_event,
            )
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
