//! Which tokens are worth proposing.

use super::{Controller, Load};
use crate::{
    fallback::Expected,
    message::{Cutoff, Cutoffs, Rise},
};

/// By how much dearer the rows of later tokens have to be for two prices to stand for them instead of one:
/// times of steps are measured, and so are never quite even.
const DEARER: f64 = 1.25;

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
    ///
    /// Rows become dearer where an accelerator has all it can do, so those of the first tokens have
    /// one price and the others theirs.
    pub fn cutoffs(&self, lookahead: u32, load: Load) -> Cutoffs {
        if lookahead == 0 {
            return Cutoffs::default();
        }
        let (_, token) = self.answers.fit();
        let pace = self.pace(lookahead, load);
        let (row, dearer) = priced(lookahead, self.steps_by_tokens(lookahead, load));
        let rise = dearer.map(|(after, more)| Rise::new(after, pace * more));
        Cutoffs::new(pace * (row + token), pace * row, rise.unwrap_or_default())
    }

    /// Tokens a second and session that are emitted at least, with windows of up to `lookahead` tokens or
    /// without.
    pub(super) fn pace(&self, lookahead: u32, load: Load) -> f64 {
        self.goodput(lookahead, load).max(self.goodput(0, load))
    }

    /// What the steps of all sessions of `load` take whose windows have so many tokens, by those of one
    /// session beside others with such of up to `lookahead`: seconds.
    fn steps_by_tokens(&self, lookahead: u32, load: Load) -> impl Fn(u32) -> f64 {
        let sessions = f64::from(load.sessions.max(1));
        let others = (sessions - 1.0) * (1.0 + self.rows(lookahead)) + f64::from(load.other_rows);
        move |tokens| sessions * self.steps.mean_seconds(others + 1.0 + f64::from(tokens))
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

/// One price for the rows of a window's tokens, of which so many cost `step`; and where the later are
/// dearer, after how many tokens, and by how much: the two prices that are closest to theirs. That there are
/// rows at all may cost more than how many; the first token, which is always there, has a share of that like
/// all others. Without, none of them would cost anything on a paper's machine, and its slow draft made fewer
/// continuations, all of them long.
pub(super) fn priced(tokens: u32, step: impl Fn(u32) -> f64) -> (f64, Option<(u32, f64)>) {
    let (none, all) = (step(0), step(tokens));
    let splits = (1..tokens).map(|split| {
        let some = step(split);
        let (few, more) = (f64::from(split), f64::from(tokens - split));
        let (cheap, dear) = ((some - none) / few, (all - some) / more);
        // What it explains of the squares of differences: the more, the closer the two prices are.
        let explained = few * more * (dear - cheap) * (dear - cheap);
        (split, cheap, dear, explained)
    });
    let bends = splits.filter(|&(_, cheap, dear, _)| dear > DEARER * cheap);
    let best = bends.max_by(|one, other| one.3.total_cmp(&other.3));
    let mean = (all - none) / f64::from(tokens.max(1));
    best.map_or((mean, None), |(split, cheap, dear, _)| {
        (cheap, Some((split, dear - cheap)))
    })
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
                    assert!((cutoff.at(1) - exact.min(1.0)).abs() < 1e-4, "{exact}");
                };
                close(cutoffs.of_entries(), pace * row);
                close(cutoffs.of_window(), pace * (row + 30e-6));
                assert_eq!(cutoffs.rise, Rise::default());
            }
        }
    }

    #[test]
    fn tokens_have_to_be_likelier_where_rows_are_dearer() {
        // 0.05 ms a row up to six, 0.19 from there on.
        let ms =
            |rows: u32| 1.0 + 0.05 * f64::from(rows.min(6)) + 0.19 * f64::from(rows.max(6) - 6);
        let steps =
            [1, 2, 4, 6, 8, 16, 32].map(|rows| (rows, Duration::from_secs_f64(1e-3 * ms(rows))));
        let answers = AnswerTime::new(50 * US, 30 * US);
        let config = ControlConfig::of(Drafting::Ahead, 15);
        let controller = Controller::new(config, StepCost::new(steps.to_vec()), answers);
        for lookahead in [7, 8, 15] {
            let pace = controller.goodput(lookahead, Load::of(1));
            let cutoffs = controller.cutoffs(lookahead, Load::of(1));
            for (cutoff, token) in [(cutoffs.of_entries(), 0.0), (cutoffs.of_window(), 0.03)] {
                // The sixth row is that of the fifth token.
                for (index, row) in [(1, 0.05), (4, 0.05), (5, 0.19), (14, 0.19)] {
                    let exact = pace * 1e-3 * (row + token);
                    let found = cutoff.at(index);
                    assert!(
                        (found - exact).abs() < 2e-4,
                        "{index} of {lookahead}: {found} {exact}"
                    );
                }
            }
        }
        // Among many rows all are dear, and few tokens have cheap ones only.
        for (lookahead, load) in [(15, Load::of(4)), (5, Load::of(1)), (1, Load::of(1))] {
            let cutoffs = controller.cutoffs(lookahead, load);
            assert_eq!(cutoffs.rise, Rise::default(), "{lookahead} {load:?}");
        }
    }

    #[test]
    fn rows_have_two_prices_only_where_later_ones_are_clearly_dearer() {
        let priced = |rows: &[f64]| {
            let step = |tokens: u32| rows[..tokens as usize].iter().sum();
            super::priced(rows.len() as u32, step)
        };
        let rise = |rows: &[f64]| priced(rows).1;
        assert_eq!(rise(&[]), None);
        assert_eq!(rise(&[2.0]), None);
        assert_eq!(rise(&[2.0, 2.4, 1.8, 2.4]), None);
        assert_eq!(rise(&[2.0, 2.0, 1.0]), None);
        assert_eq!(priced(&[2.0, 1.0]), (1.5, None));
        assert_eq!(priced(&[1.0, 3.0, 3.0]), (1.0, Some((1, 2.0))));
        assert_eq!(
            priced(&[1.0, 1.0, 5.0, 1.0, 5.0, 5.0, 5.0]),
            (2.0, Some((4, 3.0)))
        );
        assert_eq!(priced(&[0.0, 0.0, 1.0]), (0.0, Some((2, 1.0))));
        // The first makes all of them dear.
        assert_eq!(priced(&[5.0, 1.0, 1.0, 1.0]), (2.0, None));
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
        let found = |k, cutoff| controller.windows(k, Cutoff::new(cutoff, Rise::default()));
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
