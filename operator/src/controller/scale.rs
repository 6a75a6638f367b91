//! How many replicas pools have whose number follows the load.

use std::sync::PoisonError;

use foretoken_crds::object::Scaling;
use kube::Resource;

use super::{Brought, Context, key};
use crate::{scale::Pressure, status::Change};

/// A pool of `component`s whose number follows the load.
pub(super) struct Pool<'a, M: Copy + Default> {
    pub(super) component: &'static str,
    pub(super) scaling: &'a Scaling<M>,
    /// How many are wanted so far; none if the pool is new.
    pub(super) current: Option<u32>,
    pub(super) pressure: Option<Pressure>,
}

/// How many replicas a pool should have.
pub(super) struct Advice {
    pub(super) replicas: u32,
    /// What people are told once it has them: of which component, from how many and why.
    news: Option<(&'static str, String)>,
}

impl Advice {
    /// As many as there are to be for another reason than the load.
    pub(super) fn of(replicas: u32) -> Self {
        Self {
            replicas,
            news: None,
        }
    }

    /// What people are told, what was wanted being `brought`: of what is not carried out the same is
    /// advised at each look.
    fn news(self, brought: &Brought) -> Option<Change> {
        let (component, note) = self.news?;
        brought.rolls(component).then(|| Change {
            is_warning: false,
            reason: "Scaled".to_owned(),
            note,
        })
    }
}

impl Context {
    /// How many replicas `pool`, which is of `object`, should have.
    pub(super) fn scaled<K, M>(&self, object: &K, pool: Pool<'_, M>) -> Advice
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
        let before = current.filter(|current| *current != replicas);
        let news = before.map(|before| {
            let what = pressure.map_or_else(String::new, |pressure| format!(": {}", pressure.what));
            let note = format!("from {before} to {replicas} {component}s{what}");
            (component, note)
        });
        Advice { replicas, news }
    }

    /// Tells people of a pool that has another number of replicas now.
    pub(super) async fn announce_scaled<K>(
        &self,
        object: &K,
        advice: Option<Advice>,
        brought: &Brought,
    ) where
        K: Resource<DynamicType = ()>,
    {
        let news = advice.and_then(|advice| advice.news(brought));
        self.announce(object, news.into_iter().collect()).await;
    }

    /// Forgets what was advised for an object that goes.
    pub(super) fn forget_advice<K: Resource<DynamicType = ()>>(&self, object: &K) {
        let mut scalers = self.scalers.lock().unwrap_or_else(PoisonError::into_inner);
        scalers.remove(&key(object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_told_to_be_scaled_when_it_is() {
        let news = |rolling: &[&str]| {
            let advice = Advice {
                replicas: 4,
                news: Some(("target", "from 2 to 4 targets".into())),
            };
            let brought = Brought {
                rolling: rolling.iter().map(|one| (*one).to_owned()).collect(),
                ..Brought::default()
            };
            advice.news(&brought).map(|change| change.note)
        };
        assert_eq!(news(&[]), None, "it is not accepted, or failed");
        assert_eq!(news(&["router"]), None);
        let told = news(&["router", "target"]);
        assert_eq!(told.as_deref(), Some("from 2 to 4 targets"));
    }
}
