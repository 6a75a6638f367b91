//! One budget of draft tokens over the sessions of many tenants.
//!
//! Branches of all sessions are decoded together, so what one session does not get another does.
//! A part of the budget goes round by round to the tenant that has least for its weight (max-min
//! fairness by progressive filling), which takes its own best branch with it; the rest goes to the
//! branches with the most value for a draft token, whosever they are: probability of the outcome
//! times tokens saved times the tenant's weight.

use alloc::{collections::BinaryHeap, vec::Vec};
use core::cmp::Ordering;

use super::Guess;

/// Who shares an endpoint: a target deployment, for example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// How much of the budget it should have, relative to the others. Unless positive, it gets nothing.
    pub weight: f64,
}

/// What a session could use.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Index of its tenant. Claims of tenants that do not exist get nothing.
    pub tenant: usize,
    /// Outcomes to build branches for, likeliest first.
    pub guesses: &'a [Guess],
    /// Expected tokens that a hit emits more than a miss.
    pub saves: f64,
    /// Draft tokens of one branch, at least 1.
    pub cost: u32,
}

impl Claim<'_> {
    /// What the branch for a guess is worth to a tenant of this weight, per draft token.
    pub(super) fn density(&self, guess: usize, weight: f64) -> Option<f64> {
        let saves = self.guesses.get(guess)?.probability * self.saves;
        let density = saves * weight / f64::from(self.cost);
        (density > 0.0).then_some(density)
    }
}

/// Divides budgets. Keeps its memory from round to round.
#[derive(Clone, Debug)]
pub struct Shares {
    fair: f64,
    /// Of each tenant: the next branch of each of its sessions.
    offers: Vec<BinaryHeap<Offer>>,
    /// The tenants that may take a branch; the value is what they have for their weight, negative.
    turns: BinaryHeap<Offer>,
    all: BinaryHeap<Offer>,
    used: Vec<u32>,
}

/// The next branch of a claim, or the next turn of a tenant. The highest value comes first, among
/// equals the lowest index.
#[derive(Clone, Copy, Debug)]
struct Offer {
    value: f64,
    index: usize,
}

impl Shares {
    /// Divides this part of each budget, from 0 to 1, fairly, and the rest by value.
    pub fn new(fair: f64) -> Self {
        Self {
            fair: fair.clamp(0.0, 1.0),
            offers: Vec::new(),
            turns: BinaryHeap::new(),
            all: BinaryHeap::new(),
            used: Vec::new(),
        }
    }

    /// Divides `budget` draft tokens: `grants` becomes the number of branches of each claim, which
    /// are those of its first guesses. Ties go to the tenant or claim that comes first. Takes
    /// O((branches + claims) log claims).
    pub fn allocate(
        &mut self,
        budget: u32,
        tenants: &[Tenant],
        claims: &[Claim<'_>],
        grants: &mut Vec<u32>,
    ) {
        grants.clear();
        grants.resize(claims.len(), 0);
        self.start(tenants, claims);
        let fair = libm::round(f64::from(budget) * self.fair) as u32;
        let mut left = budget;
        while budget - left < fair {
            let Some(Offer { index: tenant, .. }) = self.turns.pop() else {
                break;
            };
            // A tenant leaves the round when it wants nothing more, or nothing that fits.
            if let Some(offer) = self.offers[tenant].pop() {
                self.grant(offer, &mut left, tenants, claims, grants);
                self.enter(tenant, tenants);
            }
        }
        for offers in &mut self.offers {
            self.all.append(offers);
        }
        while let Some(offer) = self.all.pop() {
            self.grant(offer, &mut left, tenants, claims, grants);
            self.all
                .append(&mut self.offers[claims[offer.index].tenant]);
        }
    }

    /// Draft tokens that each tenant got in the last division.
    pub fn used(&self) -> &[u32] {
        &self.used
    }

    fn start(&mut self, tenants: &[Tenant], claims: &[Claim<'_>]) {
        self.turns.clear();
        self.all.clear();
        self.offers.iter_mut().for_each(BinaryHeap::clear);
        self.offers.resize_with(tenants.len(), BinaryHeap::new);
        self.used.clear();
        self.used.resize(tenants.len(), 0);
        for (index, claim) in claims.iter().enumerate() {
            if claim.tenant < tenants.len() && claim.cost > 0 {
                self.offer(index, 0, tenants, claims);
            }
        }
        (0..tenants.len()).for_each(|tenant| self.enter(tenant, tenants));
    }

    /// Gives a branch, if there is room for it in what is `left`, and puts the session's next one on
    /// offer.
    fn grant(
        &mut self,
        offer: Offer,
        left: &mut u32,
        tenants: &[Tenant],
        claims: &[Claim<'_>],
        grants: &mut [u32],
    ) {
        let claim = &claims[offer.index];
        if claim.cost > *left {
            return;
        }
        *left -= claim.cost;
        self.used[claim.tenant] += claim.cost;
        grants[offer.index] += 1;
        self.offer(offer.index, grants[offer.index] as usize, tenants, claims);
    }

    fn offer(&mut self, index: usize, guess: usize, tenants: &[Tenant], claims: &[Claim<'_>]) {
        let claim = &claims[index];
        if let Some(value) = claim.density(guess, tenants[claim.tenant].weight) {
            self.offers[claim.tenant].push(Offer { value, index });
        }
    }

    fn enter(&mut self, tenant: usize, tenants: &[Tenant]) {
        if !self.offers[tenant].is_empty() {
            let has = f64::from(self.used[tenant]) / tenants[tenant].weight;
            self.turns.push(Offer {
                value: -has,
                index: tenant,
            });
        }
    }
}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.value
            .total_cmp(&other.value)
            .then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Offer {}

#[cfg(test)]
mod tests;
