//! The operator as a process: connects, waits for its turn, works until it is told to stop.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foretoken_crds::{AcceleratorProfile, Kind, SpecDecodeDeployment, SpeculationEndpoint};
use kube::{
    Api, Client, Config, Resource,
    api::{DynamicObject, ListParams},
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::{
    controller,
    election::{Candidate, Lost},
    object::{Made, OPERATOR},
    settings::{Certificates, Settings},
};

/// Header by which API servers note who asks.
const USER_AGENT: &str = "user-agent";
/// How long the API server may be silent: a bit longer than it leaves a watch open (290 s). One that
/// goes without a word, behind a balancer, would never be noticed.
const SILENCE: Duration = Duration::from_secs(300);

/// How an operator is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it makes.
    pub settings: Settings,
    /// Among whom it is chosen; none: it is the only one. Its namespace is also where the authority's
    /// Secret is.
    pub election: Option<Election>,
    /// Set once the cluster was reached and knows our kinds: the operator works, or would if the one
    /// that does ended.
    pub ready: Arc<AtomicBool>,
}

/// Among whom an operator is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the lease; none: the one the process runs in, or that of the kubeconfig.
    pub namespace: Option<String>,
    /// What tells this process from the others, such as the name of its pod.
    pub identity: String,
}

/// Why an operator ends.
#[derive(Debug, thiserror::Error)]
pub enum OperateError {
    /// No cluster is known.
    #[error(
        "no cluster is configured: set KUBECONFIG, or run in a pod with a service account: {0}"
    )]
    Configuration(String),
    /// The cluster does not answer.
    #[error("cannot reach the API server")]
    Unreachable(#[source] kube::Error),
    /// Our kinds are not known there.
    #[error(
        "the cluster does not know {0}: install the definitions with `foretoken crd | kubectl apply \
         --server-side -f -`"
    )]
    NotInstalled(&'static str),
    /// cert-manager is asked for and not there.
    #[error(
        "the cluster does not know Certificates of cert-manager: install cert-manager, or let the \
         operator make certificates itself (--certificates=own)"
    )]
    NoCertManager,
    /// The account may not read our kinds.
    #[error("the account of this operator may not list {0}: give it a ClusterRole that allows it")]
    Forbidden(&'static str),
    /// Somebody else works now.
    #[error("{0}; it may be started again")]
    LeaseLost(String),
    /// Nobody works.
    #[error(
        "no operator renews the lease {0}: look at its pods and their logs, and at its rights with \
         `kubectl auth can-i --as`"
    )]
    Idle(String),
    /// An endpoint keeps the operator's finalizer.
    #[error("cannot take the finalizer foretoken.io/drain off SpeculationEndpoint {endpoint}")]
    NotReleased {
        /// Its namespace and name.
        endpoint: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// Endpoints got the finalizer again and again.
    #[error(
        "endpoints get the finalizer foretoken.io/drain again: an operator works still; stop it first"
    )]
    HeldAgain,
    /// What works does not end by itself.
    #[error("the watches ended: start it again")]
    Ended,
}

/// Runs until `stop`, in the cluster that the environment names.
pub async fn operate(options: Options, stop: CancellationToken) -> Result<(), OperateError> {
    operate_on(connect().await?, options, stop).await
}

/// A client of the cluster that the environment names.
pub(crate) async fn connect() -> Result<Client, OperateError> {
    let wrong = |error: &dyn std::fmt::Display| OperateError::Configuration(error.to_string());
    let mut config = Config::infer().await.map_err(|error| wrong(&error))?;
    config.read_timeout = Some(SILENCE);
    let agent = (USER_AGENT.parse(), OPERATOR.parse());
    if let (Ok(name), Ok(value)) = agent {
        config.headers.push((name, value));
    }
    Client::try_from(config).map_err(|error| wrong(&error))
}

/// Runs until `stop`, in the cluster of `client`.
pub async fn operate_on(
    client: Client,
    options: Options,
    stop: CancellationToken,
) -> Result<(), OperateError> {
    let Options {
        settings,
        election,
        ready,
    } = options;
    check_kind::<SpecDecodeDeployment>(&client, Kind::SpecDecodeDeployment).await?;
    check_kind::<SpeculationEndpoint>(&client, Kind::SpeculationEndpoint).await?;
    check_kind::<AcceleratorProfile>(&client, Kind::AcceleratorProfile).await?;
    if matches!(settings.certificates, Certificates::CertManager(_)) {
        check_cert_manager(&client).await?;
    }
    ready.store(true, Ordering::Relaxed);
    let named = election
        .as_ref()
        .and_then(|election| election.namespace.clone());
    let namespace = named.unwrap_or_else(|| client.default_namespace().to_owned());
    let work = |client: Client| {
        tracing::info!("working");
        controller::run(client, settings, &namespace, stop.clone())
    };
    let Some(Election { identity, .. }) = election else {
        work(client).await;
        return ended(&stop);
    };
    let candidate = Candidate::new(&client, &namespace, OPERATOR, &identity);
    let Some(taken) = candidate.acquire(&stop).await else {
        // What was not answered may have been written.
        candidate.release().await;
        return Ok(());
    };
    tracing::info!(
        lease = format!("{namespace}/{OPERATOR}"),
        identity,
        "chosen"
    );
    // Losing the lease drops the work where it stands: from then on nothing more is written.
    let lost: Option<Lost> = tokio::select! {
        lost = candidate.hold(taken) => Some(lost),
        () = work(client) => None,
    };
    if let Some(lost) = lost {
        return Err(OperateError::LeaseLost(lost.to_string()));
    }
    candidate.release().await;
    ended(&stop)
}

fn ended(stop: &CancellationToken) -> Result<(), OperateError> {
    if stop.is_cancelled() {
        Ok(())
    } else {
        Err(OperateError::Ended)
    }
}

/// Whether cert-manager is there.
async fn check_cert_manager(client: &Client) -> Result<(), OperateError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &Made::Certificate.resource());
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(OperateError::NoCertManager),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            Err(OperateError::Forbidden("Certificate"))
        }
        Err(error) => Err(OperateError::Unreachable(error)),
    }
}

/// Whether the cluster knows a kind, and shows its objects: without, a watch would wait for ever.
pub(crate) async fn check_kind<K>(client: &Client, kind: Kind) -> Result<(), OperateError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => Ok(()),
        // Of a group that is not there the API server says so in words of its own.
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Err(OperateError::NotInstalled(kind.name()))
        }
        Err(kube::Error::Api(status)) if status.is_forbidden() => {
            Err(OperateError::Forbidden(kind.name()))
        }
        Err(error) => Err(OperateError::Unreachable(error)),
    }
}
