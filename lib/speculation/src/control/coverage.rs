//! How much of what is drafted ahead is there when it is to be verified.

use alloc::vec::Vec;

use super::{Choice, Controller, Drafting, Limit};

/// Share of a new observation in what is known.
const WEIGHT: f64 = 1.0 / 16.0;
/// Share of what is known that is lost in a round without news of it: after some thousands of them it
/// counts for nothing, so a load that has passed is forgotten.
const FORGET: f64 = 0.001;

/// Share of the verdicts that find anything drafted for them to which a token has to be there in time for
/// as many to be asked for.
const IN_TIME: f64 = 0.25;

impl Controller {
    /// The choice without tokens that an endpoint seldom gets to, if it drafts ahead. It would begin with
    /// them, and in the middle of a step it takes in no verdict: the next round has half a step less on
    /// average. Those left out are tried again after some hundred rounds (see [`FORGET`]).
    pub(super) fn in_time(&self, choice: Choice) -> Choice {
        if self.config.drafting == Drafting::InTurn {
            return choice;
        }
        let least = IN_TIME * self.coverage.at(0);
        let reached = (0..choice.lookahead as usize).take_while(|&i| self.coverage.at(i) >= least);
        let lookahead = reached.count() as u32;
        if lookahead == choice.lookahead {
            choice
        } else {
            Choice {
                lookahead,
                limit: Limit::Answer,
            }
        }
    }
}

/// The probability that a verdict finds the i-th token of what was to be drafted for it.
///
/// A miss finds none, a continuation that is not done in time has its first tokens. So what is seen of
/// long continuations says what there would be of shorter ones: as many of the first tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Coverage {
    positions: Vec<f64>,
}

impl Coverage {
    /// Takes in, as this `part` of a round, that `found` tokens were there of up to `sought`. If there
    /// were to be no more of them (it has `ended`), nothing is known of what would have followed;
    /// otherwise as much as it is likely that there would have been more. That there is a token at a
    /// position has the probability `reached`.
    pub(super) fn observe(
        &mut self,
        sought: u32,
        found: u32,
        ended: bool,
        part: f64,
        reached: impl Iterator<Item = f64>,
    ) {
        let (sought, found) = (sought as usize, found as usize);
        if self.positions.len() < sought {
            self.positions.resize(sought, self.at(sought));
        }
        let positions = self.positions[..sought].iter_mut().zip(reached);
        let mut had = 1.0;
        for (position, (there, reached)) in positions.enumerate() {
            if position < found {
                had = reached;
                *there += WEIGHT * part * (1.0 - *there);
            } else if !ended && had > 0.0 {
                *there -= WEIGHT * part * (reached / had) * *there;
            }
        }
        let Some(&last) = self.positions[..sought].last() else {
            return;
        };
        for there in &mut self.positions[sought..] {
            *there += FORGET * part * (last - *there);
        }
    }

    /// Nothing was sought in this part of a round.
    pub(super) fn fade(&mut self, part: f64) {
        for there in &mut self.positions {
            *there += FORGET * part * (1.0 - *there);
        }
    }

    /// Probability that the token at this position is there. One that was never sought is like the last
    /// that was.
    pub(super) fn at(&self, position: usize) -> f64 {
        let known = self.positions.get(position).or(self.positions.last());
        known.copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::control::{AnswerTime, ControlConfig, StepCost};

    /// What is chosen where so many of 15 tokens are there in time, but for every eighth verdict, of
    /// which nothing is; and how often each lookahead is in the rounds after that.
    fn chosen(drafting: Drafting, in_time: u32) -> [u32; 16] {
        let steps = StepCost::new(vec![]);
        let answers = AnswerTime::beside(&steps);
        let mut controller = Controller::new(ControlConfig::of(drafting, 15), steps, answers);
        let mut often = [0; 16];
        for round in 0..5000 {
            let whole = Choice {
                lookahead: 15,
                limit: Limit::Maximum,
            };
            let choice = controller.in_time(whole);
            let reason = if choice == whole {
                Limit::Maximum
            } else {
                Limit::Answer
            };
            assert_eq!(choice.limit, reason);
            let lookahead = choice.lookahead;
            if round >= 1000 {
                often[lookahead as usize] += 1;
            }
            let found = if round % 8 == 0 {
                0
            } else {
                in_time.min(lookahead)
            };
            controller.observe_coverage(lookahead, found, found == lookahead);
        }
        often
    }

    #[test]
    fn no_more_is_asked_for_than_is_there_in_time_but_for_a_trial_now_and_then() {
        let often = chosen(Drafting::Ahead, 6);
        assert!(often[6] > 3000 && often[15] > 20, "{often:?}");
        assert_eq!(often[6] + often[15], 4000, "{often:?}");
        assert_eq!(chosen(Drafting::Ahead, 15)[15], 4000);
    }

    #[test]
    fn what_is_waited_for_is_there_in_time() {
        assert_eq!(chosen(Drafting::InTurn, 6)[15], 4000);
    }

    /// Of windows that never end.
    fn endless() -> impl Iterator<Item = f64> {
        core::iter::repeat(1.0)
    }

    #[test]
    fn what_is_late_of_long_continuations_is_not_missing_of_short_ones() {
        let mut coverage = Coverage::default();
        // Three of eight tokens are there, but for every eighth verdict, which finds nothing.
        for i in 0..2000 {
            let found = if i % 8 == 0 { 0 } else { 3 };
            coverage.observe(8, found, false, 1.0, endless());
        }
        for position in 0..3 {
            assert!((coverage.at(position) - 0.875).abs() < 0.05);
        }
        assert!((3..9).all(|position| coverage.at(position) < 0.01));
    }

    #[test]
    fn what_has_ended_says_nothing_of_what_would_have_followed() {
        let mut coverage = Coverage::default();
        (0..200).for_each(|_| coverage.observe(4, 1, false, 1.0, endless()));
        let before = coverage.clone();
        (0..200).for_each(|_| coverage.observe(4, 2, true, 1.0, endless()));
        assert!(coverage.at(1) > 0.99);
        assert!((coverage.at(2) - before.at(2)).abs() < 1e-12);
    }

    #[test]
    fn what_there_would_hardly_have_been_is_hardly_missing() {
        let there = |goes_on: f64| {
            let mut coverage = Coverage::default();
            for i in 0..4000 {
                let reached = [1.0, 1.0, goes_on, goes_on].into_iter();
                let found = if i % 2 == 0 { 2 } else { 4 };
                coverage.observe(4, found, false, 1.0, reached);
            }
            coverage.at(3)
        };
        assert!((there(1.0) - 0.5).abs() < 0.05);
        assert!(there(0.1) > 0.85);
    }

    #[test]
    fn positions_that_are_not_sought_any_more_become_like_the_last_one_that_is() {
        let mut coverage = Coverage::default();
        (0..200).for_each(|_| coverage.observe(4, 1, false, 1.0, endless()));
        (0..5000).for_each(|_| coverage.observe(2, 2, false, 1.0, endless()));
        assert!(coverage.at(3) > 0.95);
    }
}
