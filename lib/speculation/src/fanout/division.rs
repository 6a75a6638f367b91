//! What each session is granted that has newly planned, beside those whose branches are under way.

use alloc::vec::Vec;

use super::{Bid, Budgets, Limit, Tenant};

/// Outcomes that a session which is alone drafts for, even if there seems to be no time: that is not
/// sure. Beside others it drafts for the likeliest one.
const FEWEST: u32 = 2;

/// A session that takes part in a division.
#[derive(Clone, Copy, Debug)]
pub struct Contender<'a> {
    /// What it would draft for.
    pub bid: Bid<'a>,
    /// Whether it is to be granted something, or only counts beside others.
    pub is_fresh: bool,
}

/// What a session was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Which of the contenders.
    pub contender: usize,
    /// Outcomes that there is time for.
    pub branches: u32,
    /// How many outcomes each step draws for; at least one in the first.
    pub widths: Vec<u32>,
    /// Whether there is time for any. Otherwise the widths are tried in hope.
    pub in_time: bool,
    /// Why not more.
    pub limit: Limit,
}

impl Budgets {
    /// Divides the time of steps of `most` rows, which take `step(rows)` seconds, among the contenders;
    /// what the fresh ones of them get.
    pub fn grant(
        &mut self,
        tenants: &[Tenant],
        contenders: &[Contender<'_>],
        most: u32,
        step: impl Fn(u32) -> f64,
    ) -> Vec<Division> {
        let bids: Vec<Bid<'_>> = contenders.iter().map(|one| one.bid).collect();
        let grants = self.divide(tenants, &bids, most, &step).to_vec();
        let least = if bids.len() == 1 { FEWEST } else { 1 };
        let fresh = contenders.iter().zip(grants).enumerate();
        fresh
            .filter(|(_, (contender, _))| contender.is_fresh)
            .map(|(contender, (_, grant))| {
                let mut widths = self.widths(&bids, contender, most, &step).to_vec();
                let in_time = !widths.is_empty();
                match widths.first_mut() {
                    Some(first) => *first = (*first).max(least),
                    None => widths.push(least),
                }
                Division {
                    contender,
                    branches: grant.branches,
                    widths,
                    in_time,
                    limit: grant.limit,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        TokenId,
        fanout::{Guess, Worth},
        guess::OutcomeKey,
    };

    const ALONE: [Tenant; 1] = [Tenant { weight: 1.0 }];

    fn guesses() -> Vec<Guess> {
        let guess = |token| Guess {
            key: OutcomeKey {
                accepted: 0,
                token: TokenId(token),
            },
            rank: 0,
            probability: 0.1,
        };
        (0..8).map(guess).collect()
    }

    /// A session with so many seconds, where a step takes one.
    fn contender(guesses: &[Guess], left: f64, is_fresh: bool) -> Contender<'_> {
        let worth = Worth {
            acceptance: 0.8,
            steps: 4,
            goes_on: 1.0,
            miss: 0.0,
        };
        let bid = Bid {
            tenant: 0,
            guesses,
            worth,
            left,
        };
        Contender { bid, is_fresh }
    }

    #[test]
    fn without_time_a_session_alone_drafts_for_two_and_beside_others_for_one() {
        let guesses = guesses();
        let late = contender(&guesses, 0.0, true);
        for (contenders, expected) in [(&[late][..], 2), (&[late, late][..], 1)] {
            let divided = Budgets::default().grant(&ALONE, contenders, 64, |_| 1.0);
            assert_eq!(divided.len(), contenders.len());
            for one in divided {
                assert_eq!((one.widths, one.in_time), ([expected].to_vec(), false));
            }
        }
    }

    #[test]
    fn only_who_has_newly_planned_is_granted_something() {
        let guesses = guesses();
        let contenders = [false, true, false].map(|fresh| contender(&guesses, 9.0, fresh));
        let divided = Budgets::default().grant(&ALONE, &contenders, 64, |_| 1.0);
        let granted = divided.iter().map(|one| (one.contender, one.in_time));
        assert_eq!(granted.collect::<Vec<_>>(), [(1, true)]);
        assert_eq!(divided[0].widths[0], 8, "{divided:?}");
    }
}
