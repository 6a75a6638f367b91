//! Who shares the endpoint, and how much of it is whose.
//!
//! A tenant is a deployment; a target that names none is one by itself. Weights and slots are given
//! to namespaces (see [`QuotaConfig`]); a namespace without an entry has as many equal shares as
//! tenants.
//!
//! Slots and pages are for whoever comes while there are enough. Once there are not, shares are
//! max-min fair: a tenant that has less for its weight than another gets what the other has more
//! than it, a session at a time, so that a flood of sessions drives out only itself (`room`).

use std::collections::HashMap;

use foretoken_engine::kv::Salt;
use foretoken_protocol::link::{Consumer, LinkId};
use foretoken_service::report::ConsumerReport;
use foretoken_speculation::fanout::Tenant;

use crate::config::QuotaConfig;

/// Index of a tenant; used again once all its links are down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantId(pub(super) usize);

/// All tenants with a link.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    quotas: Vec<QuotaConfig>,
    list: Vec<Tenancy>,
    by_link: HashMap<LinkId, TenantId>,
}

#[derive(Debug)]
struct Tenancy {
    consumer: Consumer,
    links: usize,
}

/// What tenants hold of something that can run out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings(Vec<usize>);

impl Holdings {
    pub(super) fn add(&mut self, tenant: TenantId, amount: usize) {
        if self.0.len() <= tenant.0 {
            self.0.resize(tenant.0 + 1, 0);
        }
        self.0[tenant.0] += amount;
    }

    /// The tenant has so much less of it now; it had no less than that.
    pub(super) fn take(&mut self, tenant: TenantId, amount: usize) {
        if let Some(held) = self.0.get_mut(tenant.0) {
            *held = held.saturating_sub(amount);
        }
    }

    pub(super) fn of(&self, tenant: TenantId) -> usize {
        self.0.get(tenant.0).copied().unwrap_or(0)
    }
}

impl Tenants {
    pub(super) fn new(quotas: Vec<QuotaConfig>) -> Self {
        Self {
            quotas,
            ..Self::default()
        }
    }

    /// A target of `consumer` has dialled.
    pub(super) fn join(&mut self, link: LinkId, consumer: Consumer) {
        let named = !consumer.deployment.is_empty();
        let same = |tenancy: &Tenancy| named && tenancy.links > 0 && tenancy.consumer == consumer;
        let free = |tenancy: &Tenancy| tenancy.links == 0;
        let known = self.list.iter().position(same);
        let index = known.or_else(|| self.list.iter().position(free));
        let index = index.unwrap_or_else(|| {
            self.list.push(Tenancy {
                consumer: Consumer::default(),
                links: 0,
            });
            self.list.len() - 1
        });
        self.list[index].consumer = consumer;
        self.list[index].links += 1;
        self.by_link.insert(link, TenantId(index));
    }

    /// The link is down.
    pub(super) fn leave(&mut self, link: LinkId) {
        if let Some(tenant) = self.by_link.remove(&link) {
            self.list[tenant.0].links -= 1;
        }
    }

    /// Whose link it is.
    pub(super) fn of(&self, link: LinkId) -> Option<TenantId> {
        self.by_link.get(&link).copied()
    }

    /// Under which salt the prefixes of a session are kept: one of its tenant's own, so that nobody can
    /// tell from the time of an answer what another has asked. Those who give no name share one.
    pub(super) fn salt(&self, link: LinkId, own: [u8; 32]) -> Salt {
        let tenancy = self.of(link).map(|tenant| &self.list[tenant.0]);
        let owner = tenancy.map_or(["", ""], |tenancy| {
            let Consumer {
                namespace,
                deployment,
            } = &tenancy.consumer;
            [namespace, deployment]
        });
        Salt::owned(owner, own)
    }

    /// All of them by name, with their links and what they hold of the `sessions`.
    pub(super) fn told(&self, sessions: &Holdings) -> Vec<ConsumerReport> {
        let connected = self.list.iter().enumerate().filter(|(_, t)| t.links > 0);
        let mut told: Vec<_> = connected
            .map(|(index, tenancy)| ConsumerReport {
                namespace: tenancy.consumer.namespace.clone(),
                deployment: tenancy.consumer.deployment.clone(),
                links: tenancy.links as u32,
                slots: sessions.of(TenantId(index)) as u32,
            })
            .collect();
        told.sort_by(|a, b| (&a.namespace, &a.deployment).cmp(&(&b.namespace, &b.deployment)));
        told
    }

    /// The tenant's part relative to the others': the weight of its namespace, which its tenants
    /// with a session share, or 1.
    pub(super) fn weight(&self, tenant: TenantId, sessions: &Holdings) -> f64 {
        let Some(weight) = self.quota(tenant).and_then(|quota| quota.weight) else {
            return 1.0;
        };
        let own = &self.list[tenant.0].consumer.namespace;
        let siblings = (0..self.list.len())
            .filter(|&other| other == tenant.0 || sessions.of(TenantId(other)) > 0)
            .filter(|&other| self.list[other].consumer.namespace == *own);
        f64::from(weight) / siblings.count() as f64
    }

    /// The weights of all tenants, by index.
    pub(super) fn shares(&self, sessions: &Holdings) -> Vec<Tenant> {
        let share = |tenant| Tenant {
            weight: self.weight(TenantId(tenant), sessions),
        };
        (0..self.list.len()).map(share).collect()
    }

    /// The quota that the tenant has used up, if any.
    pub(super) fn spent(&self, tenant: TenantId, sessions: &Holdings) -> Option<&QuotaConfig> {
        let quota = self.quota(tenant)?;
        let held: usize = (0..self.list.len())
            .filter(|&other| self.list[other].consumer.namespace == quota.namespace)
            .map(|other| sessions.of(TenantId(other)))
            .sum();
        (held >= quota.max_slots?).then_some(quota)
    }

    /// Who has to give a slot to `asker`, all of them being taken: the tenant with most for its
    /// weight, if it still has no less than the asker afterwards.
    pub(super) fn gives_way(&self, asker: TenantId, sessions: &Holdings) -> Option<TenantId> {
        let part = |tenant, more| self.part(tenant, sessions, more, sessions);
        let richest = self.richest(asker, sessions, sessions)?;
        (part(richest, -1.0) >= part(asker, 1.0)).then_some(richest)
    }

    /// Who has to give pages to a session of `asker` that takes so many, there being too few: the
    /// tenant with most pages for its weight, if it has more than the asker would have. What it
    /// gives it cannot take back the same way.
    pub(super) fn gives_pages(
        &self,
        asker: TenantId,
        more: usize,
        pages: &Holdings,
        sessions: &Holdings,
    ) -> Option<TenantId> {
        let part = |tenant, more| self.part(tenant, pages, more, sessions);
        let richest = self.richest(asker, pages, sessions)?;
        (part(richest, 0.0) > part(asker, more as f64)).then_some(richest)
    }

    /// The other tenant that holds most for its weight, if any holds something.
    fn richest(&self, asker: TenantId, held: &Holdings, sessions: &Holdings) -> Option<TenantId> {
        let part = |tenant| self.part(tenant, held, 0.0, sessions);
        (0..self.list.len())
            .map(TenantId)
            .filter(|&tenant| tenant != asker && held.of(tenant) > 0)
            .max_by(|&a, &b| part(a).total_cmp(&part(b)))
    }

    /// What the tenant holds for its weight, with so much more.
    pub(super) fn part(
        &self,
        tenant: TenantId,
        held: &Holdings,
        more: f64,
        sessions: &Holdings,
    ) -> f64 {
        (held.of(tenant) as f64 + more) / self.weight(tenant, sessions)
    }

    /// Tenants that have their share, or more, of something that has run out and of which there is
    /// `all`; at least the one with most for its weight.
    pub(super) fn rich(&self, held: &Holdings, sessions: &Holdings, all: usize) -> Vec<TenantId> {
        let level = self.level(held, sessions, all);
        let part = |tenant: &TenantId| self.part(*tenant, held, 0.0, sessions);
        // Parts of a weight do not add up to it exactly, and of equals one has to have its share.
        let is_rich = |tenant: &TenantId| part(tenant) >= level * (1.0 - 1e-9);
        let tenants = (0..self.list.len()).map(TenantId);
        tenants
            .filter(|&tenant| held.of(tenant) > 0)
            .filter(is_rich)
            .collect()
    }

    /// What each may have for its weight, if it wants so much: who wants less leaves the rest to the
    /// others. No more than the one with most, should there be enough for all.
    fn level(&self, wanted: &Holdings, sessions: &Holdings, all: usize) -> f64 {
        let tenants = (0..self.list.len()).map(TenantId);
        let mut parts: Vec<(f64, f64)> = tenants
            .filter(|&tenant| wanted.of(tenant) > 0)
            .map(|tenant| {
                let part = self.part(tenant, wanted, 0.0, sessions);
                (part, self.weight(tenant, sessions))
            })
            .collect();
        parts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut left = all as f64;
        let mut weights: f64 = parts.iter().map(|&(_, weight)| weight).sum();
        for &(part, weight) in &parts {
            if part * weights >= left {
                return left / weights;
            }
            left -= part * weight;
            weights -= weight;
        }
        parts.last().map_or(0.0, |&(part, _)| part)
    }

    fn quota(&self, tenant: TenantId) -> Option<&QuotaConfig> {
        let namespace = &self.list[tenant.0].consumer.namespace;
        self.quotas
            .iter()
            .find(|quota| quota.namespace == *namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(namespace: &str, max_slots: Option<usize>, weight: Option<u32>) -> QuotaConfig {
        QuotaConfig {
            namespace: namespace.into(),
            max_slots,
            weight,
        }
    }

    /// Links 0, 1, 2.. of these deployments.
    fn tenants(quotas: Vec<QuotaConfig>, consumers: &[(&str, &str)]) -> Tenants {
        let mut tenants = Tenants::new(quotas);
        for (link, &(namespace, deployment)) in (0..).zip(consumers) {
            let (namespace, deployment) = (namespace.into(), deployment.into());
            let consumer = Consumer {
                namespace,
                deployment,
            };
            tenants.join(LinkId(link), consumer);
        }
        tenants
    }

    fn holdings(held: &[usize]) -> Holdings {
        Holdings(held.to_vec())
    }

    #[test]
    fn links_of_a_deployment_are_one_tenant_and_nameless_ones_stand_alone() {
        let consumers = [("a", "x"), ("a", "x"), ("b", "x"), ("", ""), ("", "")];
        let mut tenants = tenants(Vec::new(), &consumers);
        let of: Vec<_> = (0..5).map(|link| tenants.of(LinkId(link))).collect();
        assert_eq!(of, [0, 0, 1, 2, 3].map(|index| Some(TenantId(index))));
        tenants.leave(LinkId(3));
        tenants.leave(LinkId(0));
        assert_eq!(tenants.of(LinkId(3)), None);
        tenants.join(LinkId(9), Consumer::default());
        assert_eq!(
            tenants.of(LinkId(9)),
            Some(TenantId(2)),
            "its place is free"
        );
        assert_eq!(tenants.of(LinkId(1)), Some(TenantId(0)), "one link is left");
    }

    #[test]
    fn who_is_connected_is_told_by_name_with_what_it_holds() {
        let mut tenants = tenants(
            Vec::new(),
            &[("b", "x"), ("a", "y"), ("a", "y"), ("c", "z")],
        );
        tenants.leave(LinkId(3));
        let told = tenants.told(&holdings(&[3, 1]));
        let told: Vec<_> = told
            .iter()
            .map(|one| {
                (
                    one.namespace.as_str(),
                    one.deployment.as_str(),
                    one.links,
                    one.slots,
                )
            })
            .collect();
        assert_eq!(told, [("a", "y", 2, 1), ("b", "x", 1, 3)]);
    }

    #[test]
    fn the_tenants_of_a_namespace_share_its_weight_and_its_slots() {
        let quotas = vec![quota("a", Some(5), Some(6)), quota("b", None, None)];
        let tenants = tenants(quotas, &[("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")]);
        let sessions = holdings(&[3, 1, 9, 9]);
        let weight = |tenant, sessions| tenants.weight(TenantId(tenant), sessions);
        for (tenant, expected) in [(0, 3.0), (1, 3.0), (2, 1.0), (3, 1.0)] {
            assert!((weight(tenant, &sessions) - expected).abs() < 1e-12);
        }
        let alone = weight(0, &holdings(&[3, 0, 9, 9]));
        assert!((alone - 6.0).abs() < 1e-12);
        assert_eq!(tenants.spent(TenantId(0), &sessions), None);
        let spent = tenants.spent(TenantId(1), &holdings(&[4, 1, 9, 9]));
        assert_eq!(spent, Some(&quota("a", Some(5), Some(6))));
        assert_eq!(tenants.spent(TenantId(2), &sessions), None);
    }

    #[test]
    fn slots_go_from_the_richest_until_it_would_be_the_poorer() {
        let quotas = vec![quota("big", None, Some(3))];
        let tenants = tenants(quotas, &[("big", "x"), ("s", "x"), ("s", "y")]);
        let gives = |asker, held: &[usize]| tenants.gives_way(TenantId(asker), &holdings(held));
        assert_eq!(
            gives(1, &[9, 0, 2]),
            Some(TenantId(0)),
            "the others have 3 and 2"
        );
        assert_eq!(gives(1, &[6, 0, 6]), Some(TenantId(2)));
        assert_eq!(
            gives(1, &[6, 2, 3]),
            None,
            "an exchange would turn it round"
        );
        assert_eq!(gives(1, &[12, 2, 3]), Some(TenantId(0)));
        assert_eq!(
            gives(1, &[0, 12, 0]),
            None,
            "from oneself there is nothing to have"
        );
    }

    #[test]
    fn who_has_less_than_a_share_keeps_it() {
        let tenants = tenants(
            vec![quota("big", None, Some(2))],
            &[("big", "x"), ("s", "x"), ("s", "y")],
        );
        let sessions = holdings(&[1, 1, 1]);
        let rich = |held: [usize; 3], all| -> Vec<usize> {
            let rich = tenants.rich(&holdings(&held), &sessions, all);
            rich.into_iter().map(|tenant| tenant.0).collect()
        };
        assert_eq!(rich([20, 10, 0], 30), [0, 1]);
        assert_eq!(rich([19, 11, 0], 30), [1]);
        assert_eq!(rich([30, 0, 0], 30), [0]);
        // What one leaves is the others' by their weights.
        assert_eq!(rich([23, 11, 7], 40), [0, 1]);
        assert_eq!(rich([23, 10, 7], 39), [0]);
        assert_eq!(rich([21, 13, 7], 40), [1]);
        assert_eq!(rich([9, 9, 9], 12), [0, 1, 2]);
        assert_eq!(rich([9, 5, 1], 40), [1], "there is enough");
    }
}
