//! What a controller learns from a verdict and the round that ended with it.

use core::time::Duration;

use super::{Controller, Drafting};
use crate::policy::target::Sought;

/// A verdict and the round that ended with it.
#[derive(Clone, Copy, Debug)]
pub struct Lesson {
    /// Most tokens of the window that follow each other.
    pub drafted: u32,
    /// Those that were held against the target's choice, one after the other.
    pub tried: u32,
    /// Whether the window had more, for which the step or the output had no room.
    pub clipped: bool,
    /// How many were accepted.
    pub accepted: u32,
    /// Whether the window was of the target's own host.
    pub own: bool,
    /// Rows of the step.
    pub rows: u32,
    /// Whether the step took what such steps always take, if nothing was sought for the round.
    pub typical: bool,
    /// Requests that are being served.
    pub sessions: u32,
    /// What was sought for the round, and how long it took from verdict to verdict; none if that is
    /// not known whole.
    pub round: Option<(Sought, Duration)>,
}

impl Lesson {
    /// The round, if its time is that of its window and its step.
    pub fn timed(&self) -> Option<(Sought, Duration)> {
        self.round.filter(|(sought, _)| sought.is_timed())
    }
}

impl Controller {
    /// Takes in what a window of an endpoint came to.
    pub fn observe_window(&mut self, lesson: &Lesson) {
        // Where it did not end of itself, nothing is known of what might have followed.
        let whole = lesson.round.map(|(sought, _)| sought);
        let whole = whole.filter(|sought| sought.ended && !lesson.clipped);
        // A second choice has nothing after it. Were that as unknown as what follows the end of a chain,
        // deep trees would look better than they are.
        let followed = (lesson.accepted + 1).min(lesson.drafted);
        let sought = whole.map_or(lesson.tried.max(followed), |sought| sought.tokens);
        self.observe_round(sought, lesson.drafted, lesson.accepted);
    }

    /// Takes in what a round of a session brought, how long it took, and how much of its window was
    /// there, whoever proposed.
    pub fn observe_time(&mut self, lesson: &Lesson) {
        let Some((sought, took)) = lesson.timed() else {
            return;
        };
        if sought.tokens > 0 {
            let sessions = lesson.sessions.max(1);
            let tokens = lesson.accepted + 1;
            let others = lesson.rows.saturating_sub(lesson.drafted);
            let open = self.config.may_refrain;
            let waiting = open.then(|| self.waiting_rate(sought.tokens, others));
            self.ways.observe(tokens, took, sessions, waiting);
        }
        // A window of the target's own host that came in the place of one waited for says nothing about
        // waiting.
        let is_news = !lesson.own || self.config.drafting == Drafting::Ahead;
        let is_usual = if sought.tokens > 0 {
            sought.is_in_a_row()
        } else {
            lesson.typical
        };
        // Where nothing is drafted ahead rounds wait for windows, which is not what is decided about here.
        let is_own_way = sought.ahead || sought.tokens == 0 || !self.refrains();
        if is_news && is_usual && is_own_way {
            self.observe_turn(sought.tokens, lesson.rows, took);
        }
        // Of what is waited for, too, there may be nothing: a window without a token, or none in time.
        if sought.tokens > 0 && is_own_way {
            let found = if lesson.own { 0 } else { lesson.drafted };
            // What there was no room for may have been there.
            let most = if lesson.clipped { found } else { sought.tokens };
            self.observe_coverage(most, found, sought.ended && found > 0);
        }
    }

    /// Tokens a second of a session whose every round waits for a window of up to `k` tokens, in steps of
    /// so many rows besides.
    fn waiting_rate(&self, k: u32, other_rows: u32) -> f64 {
        let rows = f64::from(other_rows) + self.length(k);
        let seconds = self.steps.mean_seconds(rows) + self.window_seconds(k);
        self.acceptance.expected(k) / seconds
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;
    use crate::{
        control::{AnswerTime, ControlConfig, StepCost},
        fallback::Fallback,
        policy::target::{Course, Source},
    };

    fn controller() -> Controller {
        of(ControlConfig {
            trees: true,
            may_refrain: true,
            ..ControlConfig::of(Drafting::Ahead, 6)
        })
    }

    fn of(config: ControlConfig) -> Controller {
        let steps = StepCost::new(std::vec![(1, Duration::from_millis(1))]);
        let answers = AnswerTime::beside(&steps);
        Controller::new(config, steps, answers)
    }

    /// Three of six tokens that were sought were there, and all were accepted.
    fn lesson(course: Course) -> Lesson {
        let sought = Sought {
            tokens: 6,
            ahead: true,
            ended: true,
            source: Source::Fallback(Fallback::Remote),
            course,
        };
        Lesson {
            drafted: 3,
            tried: 3,
            clipped: false,
            accepted: 3,
            own: false,
            rows: 4,
            typical: true,
            sessions: 1,
            round: Some((sought, Duration::from_millis(2))),
        }
    }

    /// Takes in that it emitted four tokens.
    fn emits(controller: &mut Controller, took: Duration) {
        let waiting = controller.waiting_rate(6, 1);
        controller.ways.observe(4, took, 1, Some(waiting));
    }

    /// What a controller knows after that.
    fn known(learn: impl Fn(&mut Controller)) -> std::string::String {
        let mut controller = controller();
        learn(&mut controller);
        format!("{controller:?}")
    }

    #[test]
    fn what_might_have_followed_is_known_of_windows_that_ended_of_themselves() {
        let whole = lesson(Course::InARow);
        let clipped = Lesson {
            clipped: true,
            ..whole
        };
        let cut = Lesson {
            round: whole.round.map(|(sought, took)| {
                let ended = false;
                (Sought { ended, ..sought }, took)
            }),
            ..whole
        };
        let unknown = Lesson {
            round: None,
            ..whole
        };
        for (lesson, sought) in [(whole, 6), (clipped, 3), (cut, 3), (unknown, 3)] {
            assert_eq!(
                known(|controller| controller.observe_window(&lesson)),
                known(|controller| controller.observe_round(sought, 3, 3)),
                "{lesson:?}"
            );
        }
    }

    #[test]
    fn nothing_follows_a_second_choice_where_the_chain_beside_it_goes_on() {
        // The last token that was accepted: a second choice, the chain's second, and its last.
        for (tried, accepted, drafted, sought) in [(2, 2, 5, 3), (3, 2, 5, 3), (5, 5, 5, 5)] {
            let lesson = Lesson {
                drafted,
                tried,
                accepted,
                round: None,
                ..lesson(Course::InARow)
            };
            assert_eq!(
                known(|controller| controller.observe_window(&lesson)),
                known(|controller| controller.observe_round(sought, drafted, accepted)),
                "{lesson:?}"
            );
        }
    }

    #[test]
    fn a_window_that_was_waited_for_in_vain_brings_nothing() {
        let mut controller = of(ControlConfig::of(Drafting::InTurn, 6));
        let whole = lesson(Course::InARow);
        for round in 0..400 {
            let came = if round % 2 == 0 { 3 } else { 0 };
            let asked = Lesson {
                drafted: came,
                tried: came,
                accepted: came,
                rows: 1 + came,
                round: whole.round.map(|(sought, took)| {
                    let (tokens, ahead) = (3, false);
                    let sought = Sought {
                        tokens,
                        ahead,
                        ..sought
                    };
                    (sought, took)
                }),
                ..whole
            };
            controller.observe_window(&asked);
            controller.observe_time(&asked);
        }
        let expected = controller.expected(3);
        assert!((expected - 2.5).abs() < 0.3, "{expected}");
        assert!((controller.rows(3) - 1.5).abs() < 0.3);
    }

    #[test]
    fn how_long_a_round_took_counts_if_it_was_a_usual_one() {
        let took = Duration::from_millis(2);
        let emits = |controller: &mut Controller| emits(controller, took);
        let covers = |controller: &mut Controller| controller.observe_coverage(6, 3, true);
        let anew = lesson(Course::Anew);
        let in_a_row = lesson(Course::InARow);
        let interrupted = lesson(Course::Interrupted);
        let learn = |lesson| known(|controller| controller.observe_time(&lesson));
        assert_eq!(learn(interrupted), known(|_| {}));
        assert_eq!(
            learn(anew),
            known(|controller| {
                emits(controller);
                covers(controller);
            })
        );
        assert_eq!(
            learn(in_a_row),
            known(|controller| {
                emits(controller);
                controller.observe_turn(6, 4, took);
                covers(controller);
            })
        );
    }

    #[test]
    fn a_window_of_the_targets_own_is_missing_of_what_was_to_be_drafted_ahead() {
        let own = Lesson {
            own: true,
            ..lesson(Course::Anew)
        };
        let took = Duration::from_millis(2);
        assert_eq!(
            known(|controller| controller.observe_time(&own)),
            known(|controller| {
                emits(controller, took);
                controller.observe_coverage(6, 0, false);
            })
        );
    }
}
