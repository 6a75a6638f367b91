//! What rounds are expected to come to, by their lookahead: the formulas of [`control`](super).

use super::{Controller, Drafting, Limit, Load, table::Table};

/// What rounds of one lookahead have on average.
#[derive(Clone, Copy, Debug)]
struct Means {
    /// Tokens that they emit.
    emitted: f64,
    /// Proposals that are there when they verify.
    rows: f64,
    /// Tokens that their windows have, whether or not those are there in time.
    drafted: f64,
}

impl Means {
    const PLAIN: Self = Self {
        emitted: 1.0,
        rows: 0.0,
        drafted: 0.0,
    };
}

impl Controller {
    /// Expected tokens per second and session with lookahead `k` under `load`.
    pub fn goodput(&self, k: u32, load: Load) -> f64 {
        self.goodput_of(k, self.means(k), load, self.rest.under(load))
    }

    /// Tokens that windows of up to `k` have on average, if they are there.
    pub fn length(&self, k: u32) -> f64 {
        self.means(k).drafted
    }

    /// What an endpoint takes for a window of up to `k` tokens, in seconds.
    pub fn window_seconds(&self, k: u32) -> f64 {
        self.answers.mean_seconds(self.length(k))
    }

    /// The lookahead of at least `least` with the highest goodput. It is asked for in every round, while
    /// nothing else goes on: one walk over the positions is enough for all lookaheads.
    pub(super) fn best(&self, least: u32, load: Load) -> u32 {
        let rest = self.rest.under(load);
        let lookaheads = (0..=self.config.max.max(least)).zip(self.by_lookahead());
        let mut best = (least, f64::NEG_INFINITY);
        for (k, means) in lookaheads.skip(least as usize) {
            let goodput = self.goodput_of(k, means, load, rest);
            if goodput > best.1 {
                best = (k, goodput);
            }
        }
        best.0
    }

    /// Why not `k + 1`: what one more token brings, in time at the present pace, against what it
    /// costs in each respect. Acceptance is to blame if it is less than even and the token would
    /// pay if it were certain.
    pub(super) fn limit(&self, k: u32, load: Load) -> Limit {
        if k >= self.config.max {
            return Limit::Maximum;
        }
        let (now, more) = (self.means(k), self.means(k + 1));
        let pace = 1.0 / self.goodput_of(k, now, load, self.rest.under(load));
        let brings = (more.emitted - now.emitted) * pace;
        let accepted = self.acceptance.by_position().nth(k as usize).unwrap_or(1.0);
        let step = self.step_of(more, load) - self.step_of(now, load);
        let answer = self.answer_of(more) - self.answer_of(now);
        let pays_if_certain = brings / accepted > step + answer;
        if accepted < 0.5 && pays_if_certain {
            Limit::Acceptance
        } else if answer >= step {
            Limit::Answer
        } else {
            Limit::Step
        }
    }

    /// Expected seconds of a round with lookahead `k` under `load`.
    pub(super) fn seconds(&self, k: u32, load: Load) -> f64 {
        self.seconds_of(k, self.means(k), load, self.rest.under(load))
    }

    /// Expected tokens of a round with lookahead `k`.
    #[cfg(test)]
    pub(super) fn expected(&self, k: u32) -> f64 {
        self.means(k).emitted
    }

    /// Proposals of a round with lookahead `k`, on average.
    pub(super) fn rows(&self, k: u32) -> f64 {
        self.means(k).rows
    }

    /// Share of the tokens of windows of up to `k` that is there when they are to be verified.
    #[cfg(test)]
    pub(super) fn covered(&self, k: u32) -> f64 {
        let Means { rows, drafted, .. } = self.means(k);
        rows / drafted
    }

    /// What is waited for a window of up to `k` tokens.
    pub(super) fn answer_seconds(&self, k: u32) -> f64 {
        self.answer_of(self.means(k))
    }

    /// What a step takes in which sessions have lookahead `k`.
    #[cfg(test)]
    pub(super) fn step_seconds(&self, k: u32, load: Load) -> f64 {
        self.step_of(self.means(k), load)
    }

    fn goodput_of(&self, k: u32, means: Means, load: Load, rest: &Table) -> f64 {
        means.emitted / self.seconds_of(k, means, load, rest)
    }

    fn seconds_of(&self, k: u32, means: Means, load: Load, rest: &Table) -> f64 {
        let step = self.step_of(means, load);
        (step + self.answer_of(means) + rest.nearest(k)).max(step)
    }

    fn step_of(&self, means: Means, load: Load) -> f64 {
        let sessions = f64::from(load.sessions.max(1));
        let rows = sessions * (1.0 + means.rows);
        self.steps.mean_seconds(rows + f64::from(load.other_rows))
    }

    fn answer_of(&self, means: Means) -> f64 {
        match self.config.drafting {
            Drafting::InTurn => self.answers.mean_seconds(means.drafted),
            Drafting::Ahead => 0.0,
        }
    }

    fn means(&self, k: u32) -> Means {
        self.by_lookahead().nth(k as usize).unwrap_or(Means::PLAIN)
    }

    /// The means of lookaheads 0, 1, ..; without end.
    fn by_lookahead(&self) -> impl Iterator<Item = Means> {
        let positions = self.acceptance.reached().zip(self.lengths.reached());
        let further =
            positions
                .enumerate()
                .scan(Means::PLAIN, |means, (position, (accepted, drafted))| {
                    let there = self.coverage.at(position);
                    means.emitted += there * accepted;
                    means.rows += there * drafted;
                    means.drafted += drafted;
                    Some(*means)
                });
        core::iter::once(Means::PLAIN).chain(further)
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::control::{AnswerTime, ControlConfig, StepCost};

    #[test]
    fn windows_are_as_long_as_they_are_however_little_of_them_is_there_in_time() {
        let steps = StepCost::new(vec![]);
        let answers = AnswerTime::beside(&steps);
        let config = ControlConfig::of(Drafting::Ahead, 6);
        let mut controller = Controller::new(config, steps, answers);
        // Of up to six tokens a window has four, of which two are there, and accepted.
        for _ in 0..2000 {
            controller.observe_round(6, 4, 2);
            controller.observe_coverage(6, 2, false);
        }
        for (k, length, rows, emitted) in
            [(0, 0.0, 0.0, 1.0), (1, 1.0, 1.0, 2.0), (6, 4.0, 2.0, 3.0)]
        {
            let found = [
                controller.length(k),
                controller.rows(k),
                controller.expected(k),
            ];
            let near = |(found, exact): (f64, f64)| (found - exact).abs() < 0.1;
            assert!(
                found.into_iter().zip([length, rows, emitted]).all(near),
                "{k}: {found:?}"
            );
        }
    }
}
