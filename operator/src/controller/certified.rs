//! Certificates that cert-manager is asked for and has not issued.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::Context;
use crate::{
    Owner,
    object::Made,
    status::{Trouble, Workload},
    world::{self, KnownPod},
};

/// How long an issuer may take before people are told.
const USUAL: Duration = Duration::from_secs(10);

impl Context {
    /// Adds to what a component of `owner` says what its `pods` are troubled by, or its certificate.
    pub(super) fn troubled<'a>(
        &self,
        workload: &mut Workload,
        (owner, component): (&Owner, &str),
        pods: impl IntoIterator<Item = &'a Arc<KnownPod>>,
    ) {
        // Without a certificate pods wait for their volumes, and say nothing.
        let uncertified = || {
            let (since, trouble) = self.unissued(owner, component)?;
            (since.elapsed() >= USUAL).then_some(trouble)
        };
        let trouble = world::trouble(pods).or_else(uncertified);
        workload.trouble = trouble.or(workload.trouble.take());
    }

    /// When it is time to tell of certificates of `owner` that are not issued by then.
    pub(super) fn uncertified_in(&self, owner: &Owner, components: &[&str]) -> Option<Duration> {
        let components = components.iter();
        let unissued = components.filter_map(|component| self.unissued(owner, component));
        unissued
            .filter_map(|(since, _)| USUAL.checked_sub(since.elapsed()))
            .min()
    }

    /// Since when the certificate of a component was seen not to be issued, and what to say of it.
    fn unissued(&self, owner: &Owner, component: &str) -> Option<(Instant, Trouble)> {
        let name = format!("{}-{component}", owner.name);
        let live = self
            .world
            .made_called(Made::Certificate, &owner.namespace, &name)?;
        live.unissued.as_deref().cloned()
    }
}
