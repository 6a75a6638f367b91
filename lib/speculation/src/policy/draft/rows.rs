//! Whose rows make up a step, where there are not enough for all.
//!
//! What is urgent goes first, whoever wants it, as long as its tenant has not had more than a step
//! of rows above what another had who waits; then it is the other's turn. So windows come before
//! branches where both can be had in time, and a tenant that fills every step with urgent rows
//! leaves the others their part.

use alloc::{collections::VecDeque, vec::Vec};

use super::{BranchWork, Purpose, Wants, Work};
use crate::fanout::Turns;

/// Most tokens of a session that still counts as about to propose, if a step has as many rows.
const SHORT: usize = 33;
/// Tokens from which a session that nobody waits for is brought up to date.
const FOLLOW: usize = 32;

/// Why a session wants rows; what comes first is more urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// The few that a window is made of, whose target waits.
    Window,
    /// A window under verification is read, to draft for its outcomes.
    Ahead,
    /// A prompt, or a long catch-up: any part of it is of use.
    Long,
    /// Branches.
    Branches,
}

impl Work<'_> {
    /// So many rows of it, as wanted of a step that has `most`.
    pub fn demand(&self, session: usize, tenant: Option<usize>, rows: usize, most: usize) -> Grant {
        let short = rows <= SHORT.min(most);
        let urgency = match self.purpose {
            Purpose::Window if short => Urgency::Window,
            Purpose::Ahead if short || self.wants == Wants::All => Urgency::Ahead,
            Purpose::Window | Purpose::Ahead | Purpose::Follow => Urgency::Long,
        };
        Grant {
            session,
            tenant,
            rows,
            urgency,
            purpose: self.purpose,
        }
    }

    /// Whether so many rows of it are not worth a step: nobody waits for them.
    pub fn may_wait(&self, rows: usize) -> bool {
        self.purpose == Purpose::Follow && rows < FOLLOW
    }
}

impl BranchWork<'_> {
    /// Its rows, as wanted of a step.
    pub fn demand(&self, session: usize, tenant: Option<usize>) -> Grant {
        Grant {
            session,
            tenant,
            rows: self.rows(),
            urgency: Urgency::Branches,
            purpose: Purpose::Ahead,
        }
    }
}

/// What a session wants of a step, or gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Who, to the driver.
    pub session: usize,
    /// Whose session it is; none: nobody's with a share.
    pub tenant: Option<usize>,
    /// How many.
    pub rows: usize,
    /// How soon.
    urgency: Urgency,
    /// What for.
    pub purpose: Purpose,
}

impl Grant {
    /// Whether the rows are those of its session's branches.
    pub fn is_of_branches(&self) -> bool {
        self.urgency == Urgency::Branches
    }
}

/// Divides a step of so many rows, of which prompts may take `prefill_rows` while others want any. Prompts
/// may get a part of what they want; all others get that, or nothing.
pub fn divide(
    wanted: Vec<Grant>,
    rows: usize,
    prefill_rows: usize,
    turns: &mut Turns,
) -> Vec<Grant> {
    let mut grants = Vec::with_capacity(wanted.len());
    let is_long = |grant: &Grant| grant.urgency == Urgency::Long;
    let (mut left, mut prefill) = (rows, prefill_rows.min(rows));
    if wanted.iter().all(is_long) {
        prefill = rows;
    }
    let mut all_served = true;
    let mut queues = queues(wanted);
    turns.begin_step(queues.iter().map(|(tenant, _)| *tenant));
    while let Some(mut grant) = next(&mut queues, turns) {
        let wanted = grant.rows;
        if is_long(&grant) {
            grant.rows = wanted.min(prefill).min(left);
            prefill -= grant.rows;
        }
        // Everything else is of use only whole.
        let fits = (1..=left).contains(&grant.rows);
        all_served &= fits && grant.rows == wanted;
        if fits {
            left -= grant.rows;
            turns.take(grant.tenant, grant.rows);
            grants.push(grant);
        }
    }
    if all_served {
        turns.forgive();
    }
    grants
}

/// What a tenant wants, the most urgent first.
type Queue = (Option<usize>, VecDeque<Grant>);

fn queues(mut wanted: Vec<Grant>) -> Vec<Queue> {
    // Those that are equally urgent stay in their order.
    wanted.sort_by_key(|grant| grant.urgency);
    let mut queues: Vec<Queue> = Vec::new();
    for grant in wanted {
        let own = |(tenant, _): &&mut Queue| *tenant == grant.tenant;
        match queues.iter_mut().find(own) {
            Some((_, queue)) => queue.push_back(grant),
            None => queues.push((grant.tenant, [grant].into())),
        }
    }
    queues
}

/// Takes what goes next.
fn next(queues: &mut Vec<Queue>, turns: &Turns) -> Option<Grant> {
    queues.retain(|(_, queue)| !queue.is_empty());
    let heads = queues.iter().filter_map(|(_, queue)| queue.front());
    let first = turns.first(heads.map(|grant| (grant.tenant, grant.urgency)))?;
    queues[first].1.pop_front()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::fanout::Tenant;

    fn wants(tenant: usize, urgency: Urgency, rows: usize) -> Grant {
        Grant {
            session: 0,
            tenant: Some(tenant),
            rows,
            urgency,
            purpose: Purpose::Ahead,
        }
    }

    /// What tenants of equal weight get of a step of 64 rows, of which prompts may take 16.
    fn divided(turns: &mut Turns, wanted: &[Grant]) -> Vec<(usize, Urgency, usize)> {
        turns.weigh(&[Tenant { weight: 1.0 }; 2]);
        let grants = divide(wanted.to_vec(), 64, 16, turns);
        let tenant = |grant: &Grant| grant.tenant.unwrap_or(9);
        let told = grants
            .iter()
            .map(|grant| (tenant(grant), grant.urgency, grant.rows));
        told.collect()
    }

    use Urgency::{Ahead, Branches, Long, Window};

    #[test]
    fn a_tenant_alone_has_windows_first_and_branches_last_in_every_step() {
        let mut turns = Turns::new(64);
        let wanted = [
            wants(0, Branches, 40),
            wants(0, Long, 500),
            wants(0, Ahead, 30),
            wants(0, Window, 1),
            wants(0, Branches, 8),
            wants(0, Ahead, 30),
        ];
        for _ in 0..20 {
            let expected = [(0, Window, 1), (0, Ahead, 30), (0, Ahead, 30), (0, Long, 3)];
            assert_eq!(divided(&mut turns, &wanted), expected);
        }
        let without_windows = [wants(0, Branches, 40), wants(0, Long, 500)];
        let expected = [(0, Long, 16), (0, Branches, 40)];
        assert_eq!(divided(&mut turns, &without_windows), expected);
        let long = [wants(0, Long, 40), wants(0, Long, 500)];
        let expected = [(0, Long, 40), (0, Long, 24)];
        assert_eq!(divided(&mut turns, &long), expected);
    }

    #[test]
    fn between_tenants_windows_come_before_branches_while_both_have_their_part() {
        let mut turns = Turns::new(64);
        let of = |tenant| {
            [(Branches, 30), (Branches, 20), (Window, 2)].map(|(u, n)| wants(tenant, u, n))
        };
        let wanted: Vec<_> = (0..2).flat_map(of).collect();
        let mut had = [0, 0];
        for _ in 0..50 {
            let got = divided(&mut turns, &wanted);
            assert_eq!(got[..2], [(0, Window, 2), (1, Window, 2)]);
            for (tenant, _, rows) in got {
                had[tenant] += rows;
            }
        }
        assert!(had[0].abs_diff(had[1]) <= 64, "{had:?}");
    }

    #[test]
    fn branches_of_a_whole_step_have_their_turn_beside_windows_that_fill_it() {
        let mut turns = Turns::new(64);
        let mut wanted = vec![wants(0, Ahead, 32); 8];
        wanted.push(wants(1, Branches, 64));
        let got = (0..40).flat_map(|_| divided(&mut turns, &wanted));
        let own = got.filter(|&(tenant, ..)| tenant == 1).count();
        assert!((18..=20).contains(&own), "{own} of 40 steps");
    }
}
