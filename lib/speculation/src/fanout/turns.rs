//! Whose rows come first in a step, where there are not enough for all.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng 1996): what a tenant wants begins where what it had
//! so far ends, counted in rows for its weight. Whoever comes back begins where the others are, so
//! nothing can be saved up; and many sessions, or one that begins anew again and again, bring a
//! tenant no more rows than one session brings another.
//!
//! What is more urgent need not begin first to go first, if it begins at most a step of its tenant's
//! rows after the earliest: it is lent them, and the rows of later steps pay for it.

use alloc::vec::Vec;

use super::Tenant;

/// Most steps of rows by which tenants count as apart. A tenant can only fall further behind where
/// others had rows that it could not use.
const APART: f64 = 2.0;

/// What tenants have had.
#[derive(Clone, Debug)]
pub struct Turns {
    /// Rows of a step.
    step: f64,
    /// By tenant, at which rows for its weight what it wants next begins, if that is after `now`.
    begins: Vec<f64>,
    /// By tenant.
    weights: Vec<f64>,
    /// Where the earliest begins of those that wanted something last, and whoever comes back.
    now: f64,
}

impl Turns {
    /// Nobody has had anything yet of steps of `step` rows.
    pub fn new(step: usize) -> Self {
        Self {
            step: step as f64,
            begins: Vec::new(),
            weights: Vec::new(),
            now: 0.0,
        }
    }

    /// From now on tenants, by index, have these shares.
    pub fn weigh(&mut self, shares: &[Tenant]) {
        self.weights.clear();
        self.weights.extend(shares.iter().map(|share| share.weight));
        self.begins.resize(shares.len(), self.now);
    }

    /// The tenant gets so many rows; none: nobody's, which count for nobody.
    pub fn take(&mut self, tenant: Option<usize>, rows: usize) {
        let end = self.begin(tenant) + self.part(tenant, rows as f64);
        if let Some(begin) = tenant.and_then(|tenant| self.begins.get_mut(tenant)) {
            *begin = end;
        }
    }

    /// A step is to be divided among these tenants.
    pub fn begin_step(&mut self, wanting: impl Iterator<Item = Option<usize>>) {
        let begins = wanting.map(|tenant| self.begin(tenant));
        self.now = begins.min_by(f64::total_cmp).unwrap_or(self.now);
        for tenant in 0..self.begins.len() {
            let most = self.now + self.part(Some(tenant), APART * self.step);
            self.begins[tenant] = self.begins[tenant].min(most);
        }
    }

    /// Everybody got all that was wanted of a step, so nobody had anything at another's cost.
    pub fn forgive(&mut self) {
        self.begins.fill(self.now);
    }

    /// Index of the one that goes first of tenants that want something so urgently (less is more); of
    /// equals the one whose turn it is, and then the first.
    pub fn first<U: Ord>(
        &self,
        wanting: impl Iterator<Item = (Option<usize>, U)> + Clone,
    ) -> Option<usize> {
        let begins = wanting.clone().map(|(tenant, _)| self.begin(tenant));
        let earliest = begins.min_by(f64::total_cmp)?;
        let in_time = |tenant| self.begin(tenant) <= earliest + self.part(tenant, self.step);
        let wanting = wanting.enumerate();
        let wanting = wanting.filter(|(_, (tenant, _))| in_time(*tenant));
        let first = wanting.min_by(|(_, (a, urgent)), (_, (b, other))| {
            let by_turn = || self.begin(*a).total_cmp(&self.begin(*b));
            urgent.cmp(other).then_with(by_turn)
        });
        first.map(|(index, _)| index)
    }

    fn begin(&self, tenant: Option<usize>) -> f64 {
        let begin = tenant.and_then(|tenant| self.begins.get(tenant));
        begin.map_or(self.now, |begin| begin.max(self.now))
    }

    /// So many rows for the weight of the tenant.
    fn part(&self, tenant: Option<usize>, rows: f64) -> f64 {
        let weight = tenant.and_then(|tenant| self.weights.get(tenant));
        weight.map_or(0.0, |weight| rows / weight.max(f64::MIN_POSITIVE))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// Rows that tenants with these weights get of `grants` grants, all wanting as many rows each time
    /// as `rows` says.
    fn served(turns: &mut Turns, weights: &[f64], rows: &[usize], grants: usize) -> Vec<usize> {
        let shares = weights.iter().map(|&weight| Tenant { weight });
        turns.weigh(&shares.collect::<Vec<_>>());
        let mut served = vec![0; rows.len()];
        for _ in 0..grants {
            let wanting = (0..rows.len()).map(Some);
            let equal = wanting.clone().map(|tenant| (tenant, ()));
            turns.begin_step(wanting);
            let first = turns.first(equal).expect("somebody wants rows");
            turns.take(Some(first), rows[first]);
            served[first] += rows[first];
        }
        served
    }

    #[test]
    fn rows_are_divided_by_weight_whatever_is_asked_for_at_a_time() {
        let had = served(&mut Turns::new(64), &[1.0, 1.0, 3.0], &[64, 4, 16], 3000);
        let part = |tenant: usize| had[tenant] as f64 / had.iter().sum::<usize>() as f64;
        for (tenant, share) in [(0, 0.2), (1, 0.2), (2, 0.6)] {
            assert!((part(tenant) - share).abs() < 0.02, "{had:?}");
        }
    }

    #[test]
    fn whoever_was_away_has_saved_up_nothing() {
        let mut turns = Turns::new(64);
        served(&mut turns, &[1.0, 1.0], &[8], 1000);
        let had = served(&mut turns, &[1.0, 1.0], &[8, 8], 1000);
        assert!(had[0].abs_diff(had[1]) <= 16, "{had:?}");
    }

    #[test]
    fn many_sessions_of_one_tenant_wait_for_one_of_another() {
        let mut turns = Turns::new(64);
        turns.weigh(&[Tenant { weight: 1.0 }; 2]);
        let crowd = [0; 60].into_iter().chain([1]);
        let mut own = 0;
        for _ in 0..100 {
            let wanting = crowd.clone().map(Some);
            let equal = wanting.clone().map(|tenant| (tenant, ()));
            turns.begin_step(wanting);
            let first = turns.first(equal).expect("somebody wants rows");
            let tenant = usize::from(first == 60);
            own += tenant;
            turns.take(Some(tenant), 32);
        }
        assert_eq!(own, 50);
    }

    /// Who gets rows of eight, one after the other, of two tenants of which the first is always the
    /// more urgent.
    fn urgent_beside_patient(turns: &mut Turns, weights: [f64; 2], grants: usize) -> Vec<usize> {
        turns.weigh(&weights.map(|weight| Tenant { weight }));
        let both = [0, 1].map(Some);
        let serve = |_| {
            turns.begin_step(both.into_iter());
            let first = turns.first(both.into_iter().zip([0, 1])).expect("both do");
            turns.take(both[first], 8);
            first
        };
        (0..grants).map(serve).collect()
    }

    #[test]
    fn what_is_urgent_goes_first_until_its_tenant_has_had_a_step_more_than_another() {
        for (weights, share) in [([1.0, 1.0], 0.5), ([3.0, 1.0], 0.75)] {
            let served = urgent_beside_patient(&mut Turns::new(64), weights, 1000);
            let lent = served.iter().position(|&tenant| tenant == 1);
            assert_eq!(lent, Some(9), "a step's rows, and what is then under way");
            let urgent = served.iter().filter(|&&tenant| tenant == 0).count();
            let most = share * 1000.0 + 10.0;
            assert!((most - 10.0..=most).contains(&(urgent as f64)), "{urgent}");
        }
    }

    #[test]
    fn nothing_is_owed_for_rows_that_nobody_else_wanted() {
        let mut turns = Turns::new(64);
        turns.weigh(&[Tenant { weight: 1.0 }; 2]);
        let [busy, other] = [0, 1].map(Some);
        for _ in 0..100 {
            turns.begin_step([busy].into_iter());
            turns.take(busy, 64);
        }
        turns.forgive();
        let both = [(other, 1), (busy, 0)].into_iter();
        turns.begin_step([busy, other].into_iter());
        assert_eq!(turns.first(both.clone()), Some(1));
        // Somebody who can use a row of each step only is not owed the others for ever.
        for _ in 0..100 {
            turns.take(busy, 63);
            turns.take(other, 1);
            turns.begin_step([busy, other].into_iter());
        }
        let mut own = 0;
        while turns.first(both.clone()) == Some(0) {
            turns.take(other, 1);
            own += 1;
        }
        assert!((1..=128).contains(&own), "{own}");
    }
}
