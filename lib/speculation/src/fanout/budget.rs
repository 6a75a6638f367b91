//! How many outcomes each session is drafted for, from the time there is.
//!
//! Branches of all sessions take a row each in every step, so more of them make every step longer:
//! more outcomes are drafted for, and fewer tokens of each are ready when the verdict comes. What is
//! not ready then is worth nothing. Of all numbers of rows, the one is taken that saves most tokens:
//!
//! ```text
//! depth(s, M) = min(K_s, left_s / step(M))                     tokens of a continuation in time
//! saved(s, d) = a + a^2 g + .. + a^d g^(d-1) - miss_s          what a hit emits more than a miss
//! value(M)    = max of sum over s, i < n_s of weight_s P(outcome i of s) saved(s, depth(s, M)),
//!               where the n_s add up to M                      by one heap over all sessions
//! ```
//!
//! with g the probability that a continuation goes on: what would follow may be too unlikely to be drafted.
//!
//! Rows of one tenant make the steps of all longer, and one with much time would have so many that
//! others, with little, had nothing ready. So with several tenants no number of rows is taken at which one
//! has less than with fewer rows, and less than its part of the endpoint, by weight, would bring it alone:
//!
//! ```text
//! alone_t = max over M of value(M) of t's own bids, where a step takes step(M) / share_t
//! fair(M) = value_t(M) >= min(alone_t, max over M' <= M of value_t(M'))   for all t
//! ```
//!
//! Within what is its own a session then drafts more tokens for likelier outcomes ([`Taper`]). One that
//! is alone has all the time.
//!
//! A miss that the endpoint answers at once is worth the window it gets, less the tokens that the
//! time until then is worth. So where drafting is cheap, short continuations save nothing, and few
//! outcomes to the end are better than many beginnings; where it is dear, any hit is better than
//! none.

use alloc::vec::Vec;

use super::{Claim, Guess, Limit, Shares, Taper, Tenant};
use crate::{message::Cutoff, theory::expected_tokens};

/// Part of the rows that tenants get by their weights alone.
const FAIR: f64 = 0.5;
/// Most depths that are tried for the time of one session.
const DEPTHS: u32 = 16;

/// What hits and misses of a session are worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// Probability that a drafted token is accepted given those before it.
    pub acceptance: f64,
    /// Tokens of a whole continuation.
    pub steps: u32,
    /// Probability that one goes on after its first token, and after each later one: what it would
    /// have next may be too unlikely to be drafted.
    pub goes_on: f64,
    /// Tokens that a miss gets of its fallback, less those that the time it takes is worth; at
    /// least 0.
    pub miss: f64,
}

impl Worth {
    /// The same where the window of a miss is drafted just in time: up to `steps` tokens, but none less
    /// likely than `cutoff` after the first, that take `seconds` of a session that otherwise emits `rate`
    /// tokens a second.
    #[must_use]
    pub fn with_remote_fallback(self, cutoff: Cutoff, seconds: f64, rate: f64) -> Self {
        let next = |chance: &f64| Some(chance * self.acceptance);
        let chances = core::iter::successors(Some(self.acceptance), next);
        let tokens = cutoff.tokens(chances.take(self.steps as usize));
        let saved = Self { miss: 0.0, ..self }.saved(tokens);
        Self {
            miss: (saved - rate * seconds).max(0.0),
            ..self
        }
    }

    /// Rows of the step that draws the token at `index` for so many outcomes: of those that go on as far.
    /// The first token is always drawn, from what is known without a row of its own.
    pub(super) fn rows(&self, index: usize, outcomes: u32) -> u32 {
        let go_on = libm::pow(self.goes_on, index.saturating_sub(1) as f64);
        (libm::round(f64::from(outcomes) * go_on) as u32).max(1)
    }

    /// Tokens that a hit emits more than a miss if `depth` tokens of its continuation are ready.
    pub fn saved(&self, depth: u32) -> f64 {
        // The first is there for sure, and each later one if the continuation goes on: the sum of
        // a^d g^(d-1).
        let goes_on = self.goes_on.clamp(1e-3, 1.0);
        let both = self.acceptance * goes_on;
        let accepted = (expected_tokens(both, depth.min(self.steps)) - 1.0) / goes_on;
        (accepted - self.miss).max(0.0)
    }
}

/// What a session would draft for.
#[derive(Clone, Copy, Debug)]
pub struct Bid<'a> {
    /// Index of its tenant.
    pub tenant: usize,
    /// Outcomes, likeliest first.
    pub guesses: &'a [Guess],
    /// What they are worth.
    pub worth: Worth,
    /// Seconds until nothing is of use any more; infinite if that is not known.
    pub left: f64,
}

impl Bid<'_> {
    /// Tokens that are ready in time if a step takes `step` seconds.
    fn depth(&self, step: f64) -> u32 {
        // Saturates: the time may be endless.
        let steps = libm::floor(self.left / step.max(1e-9)) as u32;
        steps.min(self.worth.steps)
    }
}

/// What a bid got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Outcomes to draft for: the first ones.
    pub branches: u32,
    /// Why not more.
    pub limit: Limit,
}

/// Divides rows of steps among sessions. Keeps its memory.
#[derive(Clone, Debug)]
pub struct Budgets {
    shares: Shares,
    /// Numbers of rows to try.
    rows: Vec<u32>,
    trial: Vec<u32>,
    /// Of each tenant: what its part of the endpoint would bring it alone, if it is not; what the rows last
    /// tried would, and the most that any have.
    alone: Vec<f64>,
    saved: Vec<f64>,
    peaks: Vec<f64>,
    grants: Vec<Grant>,
    taper: Taper,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            shares: Shares::new(FAIR),
            rows: Vec::new(),
            trial: Vec::new(),
            alone: Vec::new(),
            saved: Vec::new(),
            peaks: Vec::new(),
            grants: Vec::new(),
            taper: Taper::default(),
        }
    }
}

impl Budgets {
    /// Grants each bid a number of branches, `most` over all of them; `step(rows)` is what a step
    /// takes, in seconds, and rises.
    ///
    /// Several bids have one depth each at first. Depths fall by whole tokens as rows grow, so only
    /// the most rows for each depth are tried, those of the bids with least time, most, and the one
    /// between. What they make of what they get: [`Self::widths`].
    pub fn divide(
        &mut self,
        tenants: &[Tenant],
        bids: &[Bid<'_>],
        most: u32,
        step: impl Fn(u32) -> f64,
    ) -> &[Grant] {
        self.grants.clear();
        if let [bid] = bids {
            let grant = self.grant_all(tenants, bid, most, step);
            self.grants.push(grant);
            return &self.grants;
        }
        let asked: usize = bids.iter().map(|bid| bid.guesses.len()).sum();
        let most = most.min(u32::try_from(asked).unwrap_or(u32::MAX));
        self.find_alone(tenants, bids, most, &step);
        let mut claims = Vec::with_capacity(bids.len());
        let (best, _) = self.best(tenants, bids, most, &step, &mut claims);
        self.value(best, tenants, bids, &step, &mut claims);
        let all_rows = best == most && most > 0;
        let longer = step(best.saturating_add(1));
        let granted = self.trial.iter().zip(bids);
        let grants = granted.map(|(&branches, bid)| Grant {
            branches,
            limit: limit(branches, bid, longer, all_rows),
        });
        self.grants.extend(grants);
        self.find_weights(tenants, &claims);
        &self.grants
    }

    /// How many outcomes each step of this bid draws for, of those last divided with the same
    /// `bids` and `step`; in no step more than its part of `most` rows.
    pub fn widths(
        &mut self,
        bids: &[Bid<'_>],
        index: usize,
        most: u32,
        step: impl Fn(u32) -> f64,
    ) -> &[u32] {
        let (Some(bid), Some(grant)) = (bids.get(index), self.grants.get(index)) else {
            return &[];
        };
        if bids.len() == 1 {
            return self.taper.planned();
        }
        // Its part of each row, and of the time of all of them.
        let all: u32 = self.grants.iter().map(|grant| grant.branches).sum();
        let all = all.max(1);
        let part = f64::from(grant.branches) / f64::from(all);
        let row = step(all) / f64::from(all);
        // Not more steps than there is time for if each has a row of every session.
        let quickest = step(u32::try_from(bids.len()).unwrap_or(u32::MAX));
        let own = Bid {
            left: part * bid.left,
            worth: Worth {
                steps: bid.depth(quickest),
                ..bid.worth
            },
            ..*bid
        };
        let most = (part * f64::from(most)) as u32;
        self.taper.widths(&own, most, |rows| row * f64::from(rows))
    }

    /// For a bid that is alone.
    fn grant_all(
        &mut self,
        tenants: &[Tenant],
        bid: &Bid<'_>,
        most: u32,
        step: impl Fn(u32) -> f64,
    ) -> Grant {
        let tenant = tenants.get(bid.tenant);
        let has_weight = tenant.is_some_and(|tenant| tenant.weight > 0.0);
        let most = if has_weight { most } else { 0 };
        let widths = self.taper.widths(bid, most, step);
        let branches = widths.first().map_or(0, |&width| width);
        let whole = widths.len() == bid.worth.steps as usize && widths.last() == Some(&branches);
        let limit = if whole && branches as usize == bid.guesses.len() {
            Limit::Budget
        } else if branches == most && most > 0 {
            Limit::Rows
        } else {
            Limit::Time
        };
        Grant { branches, limit }
    }

    /// What each tenant would have alone, if there are several: nothing otherwise.
    fn find_alone(
        &mut self,
        tenants: &[Tenant],
        bids: &[Bid<'_>],
        most: u32,
        step: &impl Fn(u32) -> f64,
    ) {
        self.alone.clear();
        let bid_of = |tenant: usize| bids.iter().filter(move |bid| bid.tenant == tenant);
        let takes_part =
            |tenant: &usize| tenants[*tenant].weight > 0.0 && bid_of(*tenant).count() > 0;
        let present: Vec<usize> = (0..tenants.len()).filter(takes_part).collect();
        if present.len() < 2 {
            return;
        }
        let all: f64 = present.iter().map(|&tenant| tenants[tenant].weight).sum();
        let mut claims = Vec::with_capacity(bids.len());
        let mut alone = alloc::vec![0.0; tenants.len()];
        for tenant in present {
            let own: Vec<Bid<'_>> = bid_of(tenant).copied().collect();
            let slower = all / tenants[tenant].weight;
            let step = |rows| slower * step(rows);
            let (_, value) = self.best(tenants, &own, most, &step, &mut claims);
            alone[tenant] = value;
        }
        self.alone = alone;
    }

    /// The number of rows with the most value of those that are fair, and that value; none if none saves
    /// anything.
    fn best<'a>(
        &mut self,
        tenants: &[Tenant],
        bids: &[Bid<'a>],
        most: u32,
        step: &impl Fn(u32) -> f64,
        claims: &mut Vec<Claim<'a>>,
    ) -> (u32, f64) {
        self.list_rows(bids, most, step);
        self.peaks.clear();
        self.peaks.resize(tenants.len(), 0.0);
        let mut best = (0, 0.0);
        for index in 0..self.rows.len() {
            let rows = self.rows[index];
            let value = self.value(rows, tenants, bids, step, claims);
            if self.is_fair() && value > best.1 {
                best = (rows, value);
            }
        }
        best
    }

    /// Whether the rows last tried take nothing from a tenant that would be its own. Those before were fewer.
    fn is_fair(&mut self) -> bool {
        let saved = self.peaks.iter_mut().zip(&self.saved);
        saved.for_each(|(peak, &saved)| *peak = peak.max(saved));
        let own = self.alone.iter().zip(&self.peaks);
        let own = own.map(|(alone, &peak)| alone.min(peak));
        own.zip(&self.saved).all(|(own, &saved)| saved >= own)
    }

    fn list_rows(&mut self, bids: &[Bid<'_>], most: u32, step: &impl Fn(u32) -> f64) {
        self.rows.clear();
        // No deeper than there is time for if a step has one row.
        let quickest = step(1);
        let times = bids.iter().map(|bid| (bid.left, bid.depth(quickest)));
        let mut times: Vec<_> = times.collect();
        times.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let last = times.len().saturating_sub(1);
        for index in [0, last / 2, last] {
            let Some(&(left, deepest)) = times.get(index) else {
                return;
            };
            let tried = deepest.min(DEPTHS);
            for part in 1..=tried {
                let depth = (deepest * part).div_ceil(tried);
                let slowest = left / f64::from(depth);
                let fits = |&rows: &u32| step(rows) <= slowest;
                self.rows.extend(last_that(most, fits));
            }
        }
        self.rows.sort_unstable();
        self.rows.dedup();
    }

    /// Divides `rows` rows; what that saves, by weight.
    fn value<'a>(
        &mut self,
        rows: u32,
        tenants: &[Tenant],
        bids: &[Bid<'a>],
        step: &impl Fn(u32) -> f64,
        claims: &mut Vec<Claim<'a>>,
    ) -> f64 {
        let seconds = step(rows);
        claims.clear();
        claims.extend(bids.iter().map(|bid| Claim {
            tenant: bid.tenant,
            guesses: bid.guesses,
            saves: bid.worth.saved(bid.depth(seconds)),
            cost: 1,
        }));
        self.shares.allocate(rows, tenants, claims, &mut self.trial);
        self.saved.clear();
        self.saved.resize(tenants.len(), 0.0);
        for (claim, &branches) in claims.iter().zip(&self.trial) {
            let Some(saved) = self.saved.get_mut(claim.tenant) else {
                continue;
            };
            let likely = claim.guesses.iter().take(branches as usize);
            let hit: f64 = likely.map(|guess| guess.probability).sum();
            *saved += hit * claim.saves * tenants[claim.tenant].weight;
        }
        self.saved.iter().sum()
    }

    /// Names the bids whose next branch is worth more than one that another tenant got.
    fn find_weights(&mut self, tenants: &[Tenant], claims: &[Claim<'_>]) {
        let worth = |claim: &Claim<'_>, guess: usize| {
            claim.density(guess, tenants.get(claim.tenant)?.weight)
        };
        for (index, claim) in claims.iter().enumerate() {
            let own = self.grants[index];
            if !matches!(own.limit, Limit::Time | Limit::Worth) {
                continue;
            }
            let Some(next) = worth(claim, own.branches as usize) else {
                continue;
            };
            let outdone = claims.iter().zip(&self.grants).any(|(other, grant)| {
                let last = grant.branches.checked_sub(1);
                let last = last.and_then(|last| worth(other, last as usize));
                other.tenant != claim.tenant && last.is_some_and(|last| last < next)
            });
            if outdone {
                self.grants[index].limit = Limit::Weight;
            }
        }
    }
}

/// The last number from 1 to `most` that `fits`, if the first ones do and the others do not.
fn last_that(most: u32, fits: impl Fn(&u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(&middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    (low > 0).then_some(low)
}

/// Why a bid among several has no more: a step with one more row takes `longer` seconds.
fn limit(branches: u32, bid: &Bid<'_>, longer: f64, all_rows: bool) -> Limit {
    let steps = bid.worth.steps;
    if branches as usize >= bid.guesses.len() {
        Limit::Budget
    } else if all_rows {
        Limit::Rows
    } else if bid.depth(longer) < steps && bid.worth.saved(steps) > 0.0 {
        // Longer steps would leave less of its own ready, if anything is.
        Limit::Time
    } else {
        Limit::Worth
    }
}

#[cfg(test)]
mod tests;
