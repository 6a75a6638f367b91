//! How many replicas pools have whose number follows the load.

use std::sync::PoisonError;

use foretoken_crds::object::Scaling;
use kube::Resource;

use super::{Context, key};
use crate::{scale::Pressure, status::Change};

/// A pool of `component`s whose number follows the load.
pub(super) struct Pool<'a, M: Copy + Default> {
    pub(super) component: &'static str,
    pub(super) scaling: &'a Scaling<M>,
    /// How many are wanted so far; none if the pool is new.
    pub(super) current: Option<u32>,
    pub(super) pressure: Option<Pressure>,
}

impl Context {
    /// How many replicas `pool`, which is of `object`, should have; people are told when that is
    /// news.
    pub(super) async fn scaled<K, M>(&self, object: &K, pool: Pool<'_, M>) -> u32
    where
        K: Resource<DynamicType = ()>,
        M: Copy + Default,
    {
        let Pool {
            component,
            scaling,
            current,
            pressure,
        } = pool;
        let replicas = {
            let mut scalers = self.scalers.lock().unwrap_or_else(PoisonError::into_inner);
            let scaler = scalers.entry(key(object)).or_default();
            let now = self.began.elapsed();
            scaler.replicas(scaling, current, pressure.as_ref(), now)
        };
        if let Some(current) = current.filter(|current| *current != replicas) {
            let what = pressure.map_or_else(String::new, |pressure| format!(": {}", pressure.what));
            let change = Change {
                is_warning: false,
                reason: "Scaled".to_owned(),
                note: format!("from {current} to {replicas} {component}s{what}"),
            };
            self.announce(object, vec![change]).await;
        }
        replicas
    }

    /// Forgets what was advised for an object that goes.
    pub(super) fn forget_advice<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut scalers = self.scalers.lock().unwrap_or_else(PoisonError::into_inner);
        scalers.remove(&key(object));
    }
}
