//! Whether an operator works in a cluster: it knows our kinds, and somebody keeps the lease.

use std::time::Duration;

use foretoken_crds::{AcceleratorProfile, Kind, SpecDecodeDeployment, SpeculationEndpoint};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt as _};
use tokio::time::{Instant, sleep};

use crate::{
    object::OPERATOR,
    operate::{OperateError, check_kind, connect},
};

/// How long an operator may take to renew its lease: one that died is succeeded within this.
const PATIENCE: Duration = Duration::from_secs(45);
/// How often the lease is looked at.
const PERIOD: Duration = Duration::from_millis(500);

/// Waits until an operator is seen to work; answers its identity. `namespace` is that of the lease;
/// none: the one the process runs in, or that of the kubeconfig.
///
/// # Errors
/// The cluster cannot be asked, does not know our kinds, or nobody renewed the lease for 45 seconds.
pub async fn verify(namespace: Option<&str>) -> Result<String, OperateError> {
    let client = connect().await?;
    check_kind::<SpecDecodeDeployment>(&client, Kind::SpecDecodeDeployment).await?;
    check_kind::<SpeculationEndpoint>(&client, Kind::SpeculationEndpoint).await?;
    check_kind::<AcceleratorProfile>(&client, Kind::AcceleratorProfile).await?;
    let namespace = namespace.unwrap_or_else(|| client.default_namespace());
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    seen_renewed(&api).await.ok_or_else(|| {
        let lease = format!("{namespace}/{OPERATOR}");
        OperateError::Idle(lease)
    })
}

/// Who renewed the lease while it was looked at: a record alone may be of one that is gone.
async fn seen_renewed(api: &Api<Lease>) -> Option<String> {
    let until = Instant::now() + PATIENCE;
    let mut first = None;
    while Instant::now() < until {
        match api.get_opt(OPERATOR).await {
            Ok(Some(lease)) => {
                let version = lease.resource_version();
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                let holder = holder.filter(|holder| !holder.is_empty());
                let now = holder.map(|holder| (version, holder));
                if let (Some(before), Some(now)) = (&first, &now)
                    && before != now
                {
                    return Some(now.1.clone());
                }
                first = first.or(now);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the lease cannot be read"),
        }
        sleep(PERIOD).await;
    }
    None
}
