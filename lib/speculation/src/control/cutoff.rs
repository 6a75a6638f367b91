//! Which tokens are worth proposing.

use super::{Controller, Load};
use crate::{
    fallback::Expected,
    message::{Cutoff, Cutoffs},
};

impl Controller {
    /// How likely tokens have to be to be proposed in windows of up to `lookahead` tokens, of each
    /// session of `load`. A token is worth proposing iff its chance is more than what could be emitted
    /// in the time that it takes (Charnov 1976, as in [`fallback`](crate::fallback)): its row of a step,
    /// and if it is waited for, its drafting.
    ///
    /// ```text
    /// P(it and all before it are accepted) > E(K) / T(K) * (d step / d row + d answer / d token)
    /// ```
    ///
    /// With the rate that this leads to instead of the present one, it is the rule with the most
    /// tokens a second (Dinkelbach 1967); present rates approach it round by round.
    pub fn cutoffs(&self, lookahead: u32, load: Load) -> Cutoffs {
        if lookahead == 0 {
            return Cutoffs::default();
        }
        let sessions = load.sessions.max(1);
        let rows = |k: u32| {
            sessions
                .saturating_mul(1 + k)
                .saturating_add(load.other_rows)
        };
        let added = self.steps.seconds(rows(lookahead)) - self.steps.seconds(rows(0));
        let row = added / f64::from(lookahead);
        let (_, token) = self.answers.fit();
        let pace = self.goodput(lookahead, load).max(self.goodput(0, load));
        Cutoffs {
            window: Cutoff::new(pace * (row + token)),
            entries: Cutoff::new(pace * row),
        }
    }

    /// What windows of up to `k` tokens come to that end before tokens less likely than this.
    pub fn windows(&self, k: u32, cutoff: Cutoff) -> Expected {
        let tokens = cutoff.tokens(self.acceptance.reached().take(k as usize));
        Expected {
            length: self.length(tokens),
            tokens: self.acceptance.expected(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::{AnswerTime, ControlConfig, Drafting, StepCost};
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// Steps of 1 ms, a tenth of that more for each further row.
    fn controller(drafting: Drafting) -> Controller {
        let steps = [1, 2, 64].map(|rows| (rows, 1000 * US + (rows - 1) * 100 * US));
        let config = ControlConfig::of(drafting, 8);
        let answers = AnswerTime::new(50 * US, 30 * US);
        Controller::new(config, StepCost::new(steps.to_vec()), answers)
    }

    #[test]
    fn a_token_has_to_be_worth_its_row_and_its_drafting() {
        for drafting in [Drafting::InTurn, Drafting::Ahead] {
            let controller = controller(drafting);
            for (lookahead, sessions) in [(1, 1), (5, 1), (5, 4)] {
                let load = Load::of(sessions);
                let cutoffs = controller.cutoffs(lookahead, load);
                // A row of each session makes the step of all longer.
                let row = 100e-6 * f64::from(sessions);
                let pace = controller.goodput(lookahead, load);
                let close = |cutoff: Cutoff, exact: f64| {
                    assert!(
                        (cutoff.probability() - exact.min(1.0)).abs() < 1e-4,
                        "{exact}"
                    );
                };
                close(cutoffs.entries, pace * row);
                close(cutoffs.window, pace * (row + 30e-6));
            }
        }
    }

    #[test]
    fn nothing_is_cut_where_nothing_is_asked_for_or_rows_and_drafting_are_free() {
        let cutoffs = controller(Drafting::InTurn).cutoffs(0, Load::of(1));
        assert_eq!(cutoffs, Cutoffs::default());
        let answers = AnswerTime::new(50 * US, Duration::ZERO);
        let steps = StepCost::new([(1, 1000 * US), (64, 1000 * US)].to_vec());
        let free = Controller::new(ControlConfig::default(), steps, answers);
        assert_eq!(free.cutoffs(5, Load::of(1)), Cutoffs::default());
    }

    #[test]
    fn windows_that_end_early_bring_what_they_bring_for_the_rows_that_they_have() {
        // Of six tokens one or two are proposed, and all accepted every other time.
        for twos in [0, 5, 10] {
            let mut controller = controller(Drafting::InTurn);
            for i in 0..4000 {
                let drafted = if i % 10 < twos { 2 } else { 1 };
                let accepted = if i / 10 % 2 == 0 { drafted } else { 0 };
                controller.observe_round(6, drafted, accepted);
            }
            let length = 1.0 + f64::from(twos) / 10.0;
            assert!((controller.length(6) - length).abs() < 0.05);
            let (six, two) = (
                controller.goodput(6, Load::of(1)),
                controller.goodput(2, Load::of(1)),
            );
            let exact = (1.0 + 0.5 * length) / (1050e-6 + length * 130e-6);
            assert!((six / exact - 1.0).abs() < 0.03, "{six} {exact}");
            // No more is expected of asking for more, and no less.
            assert!((six / two - 1.0).abs() < 0.02, "{six} {two}");
        }
    }

    #[test]
    fn windows_that_are_waited_for_end_before_what_is_not_worth_it() {
        let mut controller = controller(Drafting::Ahead);
        // Each token is accepted every other time.
        for round in 1..4000_u32 {
            controller.observe_round(8, 8, round.trailing_zeros().min(8));
        }
        let found = |k, cutoff| controller.windows(k, Cutoff::new(cutoff));
        for (k, cutoff, length, tokens) in [
            (8, 0.0, 8.0, 2.0),
            (8, 0.2, 2.0, 1.75),
            (1, 0.2, 1.0, 1.5),
            // The first one is always proposed.
            (8, 0.9, 1.0, 1.5),
            (0, 0.2, 0.0, 1.0),
        ] {
            let windows = found(k, cutoff);
            let near =
                (windows.length - length).abs() < 1e-9 && (windows.tokens - tokens).abs() < 0.1;
            assert!(near, "{windows:?} of {k} from {cutoff}");
        }
    }

    #[test]
    fn windows_drafted_ahead_are_there_if_all_that_is_worth_it_is() {
        let mut controller = controller(Drafting::Ahead);
        for i in 0..4000 {
            let tokens = if i % 2 == 0 { 2 } else { 6 };
            controller.observe_round(6, tokens, tokens);
            controller.observe_coverage(6, tokens, true);
        }
        assert!(controller.covered(6) > 0.97);
    }
}
