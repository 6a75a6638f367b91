//! Whose rows come first in a step, where there are not enough for all.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng 1996): what a tenant wants begins where what it had
//! so far ends, counted in rows for its weight, and the earliest beginning goes first. Whoever comes
//! back begins where the others are, so nothing can be saved up; and many sessions, or one that begins
//! anew again and again, bring a tenant no more rows than one session brings another.

use foretoken_speculation::fanout::Tenant;

use super::tenants::TenantId;

/// What tenants have had.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// By tenant, at which rows for its weight what it wants next begins, if that is after `now`.
    begins: Vec<f64>,
    /// By tenant.
    weights: Vec<f64>,
    /// Where what was granted last began.
    now: f64,
}

impl Turns {
    /// From now on tenants have these shares.
    pub(super) fn weigh(&mut self, shares: &[Tenant]) {
        self.weights.clear();
        self.weights.extend(shares.iter().map(|share| share.weight));
        self.begins.resize(shares.len(), self.now);
    }

    /// Index of the one that goes first; of equals the first.
    pub(super) fn first(
        &self,
        wanting: impl IntoIterator<Item = Option<TenantId>>,
    ) -> Option<usize> {
        let begins = wanting.into_iter().map(|tenant| self.begin(tenant));
        let first = begins.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
        first.map(|(index, _)| index)
    }

    /// The tenant gets so many rows.
    pub(super) fn take(&mut self, tenant: Option<TenantId>, rows: usize) {
        self.now = self.begin(tenant);
        if let Some(TenantId(tenant)) = tenant
            && let (Some(begin), Some(weight)) =
                (self.begins.get_mut(tenant), self.weights.get(tenant))
        {
            *begin = self.now + rows as f64 / weight.max(f64::MIN_POSITIVE);
        }
    }

    fn begin(&self, tenant: Option<TenantId>) -> f64 {
        let begin = tenant.and_then(|TenantId(tenant)| self.begins.get(tenant));
        begin.map_or(self.now, |begin| begin.max(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that tenants with these weights get of `grants` grants, all wanting as many rows each time
    /// as `rows` says.
    fn served(turns: &mut Turns, weights: &[f64], rows: &[usize], grants: usize) -> Vec<usize> {
        let quota = u32::MAX;
        let shares = weights.iter().map(|&weight| Tenant { weight, quota });
        turns.weigh(&shares.collect::<Vec<_>>());
        let mut served = vec![0; rows.len()];
        for _ in 0..grants {
            let wanting = (0..rows.len()).map(|tenant| Some(TenantId(tenant)));
            let first = turns.first(wanting).expect("somebody wants rows");
            turns.take(Some(TenantId(first)), rows[first]);
            served[first] += rows[first];
        }
        served
    }

    #[test]
    fn rows_are_divided_by_weight_whatever_is_asked_for_at_a_time() {
        let had = served(&mut Turns::default(), &[1.0, 1.0, 3.0], &[64, 4, 16], 3000);
        let part = |tenant: usize| had[tenant] as f64 / had.iter().sum::<usize>() as f64;
        for (tenant, share) in [(0, 0.2), (1, 0.2), (2, 0.6)] {
            assert!((part(tenant) - share).abs() < 0.02, "{had:?}");
        }
    }

    #[test]
    fn whoever_was_away_has_saved_up_nothing() {
        let mut turns = Turns::default();
        served(&mut turns, &[1.0, 1.0], &[8], 1000);
        let had = served(&mut turns, &[1.0, 1.0], &[8, 8], 1000);
        assert!(had[0].abs_diff(had[1]) <= 16, "{had:?}");
    }

    #[test]
    fn many_sessions_of_one_tenant_wait_for_one_of_another() {
        let mut turns = Turns::default();
        let shares = [Tenant {
            weight: 1.0,
            quota: u32::MAX,
        }; 2];
        turns.weigh(&shares);
        let crowd = [0; 60].into_iter().chain([1]);
        let mut own = 0;
        for _ in 0..100 {
            let wanting = crowd.clone().map(|tenant| Some(TenantId(tenant)));
            let first = turns.first(wanting).expect("somebody wants rows");
            let tenant = usize::from(first == 60);
            own += tenant;
            turns.take(Some(TenantId(tenant)), 32);
        }
        assert_eq!(own, 50);
    }
}
