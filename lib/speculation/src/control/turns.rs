//! Two ways to speculate, in turn: which of them has more tokens a second.
//!
//! What a tree is worth is predicted from what rows cost and how likely tokens are. Neither is exact,
//! and that a verdict after a second choice is harder to foresee is not predicted at all. So both ways
//! are measured, in turn at first; then the better one has most of the turns.
//!
//! So it is with drafting ahead of verdicts: what an endpoint computes for outcomes is computed
//! beside the target, maybe on its cores, and a window that is asked for after a miss comes later.

use core::time::Duration;

/// Rounds of a session in a turn, and the first of them, which still verify what was asked for in the
/// turn before.
const TURN: u32 = 32;
const STALE: u32 = 4;
/// Rounds of each way that are enough to compare them: tokens of a round differ by half their mean,
/// so the rates are then known to 3 %.
const ENOUGH: f64 = 256.0;
/// Rounds of a way after which something is known of it.
const SOME: f64 = 64.0;
/// Rounds of a way after which those so far count half.
const HORIZON: f64 = 512.0;
/// One of so many turns is for the way that is not better.
const ASIDE: u32 = 16;
/// A round that was held up counts as so many usual ones at most, once as many are known.
const HELD_UP: f64 = 4.0;
const USUAL: f64 = 16.0;

/// What rounds of one way came to.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    rounds: f64,
    tokens: f64,
    seconds: f64,
}

impl Way {
    fn add(&mut self, tokens: u32, took: Duration) {
        let mut seconds = took.as_secs_f64();
        if self.rounds >= USUAL {
            seconds = seconds.min(HELD_UP * self.seconds / self.rounds);
        }
        self.rounds += 1.0;
        self.tokens += f64::from(tokens);
        self.seconds += seconds;
        if self.rounds >= HORIZON {
            self.rounds /= 2.0;
            self.tokens /= 2.0;
            self.seconds /= 2.0;
        }
    }

    /// Tokens a second of a session.
    fn rate(&self) -> f64 {
        self.tokens / self.seconds.max(1e-9)
    }
}

/// Whose turn it is.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// What the first way must be better by.
    margin: f64,
    is_first: bool,
    /// Whether this turn is for the way that is not preferred.
    is_aside: bool,
    /// Rounds of this turn, and since it began or something else changed.
    rounds: u32,
    settled: u32,
    /// Turns before this one.
    before: u32,
    first: Way,
    second: Way,
}

impl Turns {
    /// The first way begins, and is preferred if its rate is that of the other times `margin`.
    pub(super) fn new(margin: f64) -> Self {
        Self {
            margin,
            is_first: true,
            is_aside: false,
            rounds: 0,
            settled: 0,
            before: 0,
            first: Way::default(),
            second: Way::default(),
        }
    }

    /// Whether it is the first way's turn.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether it is the turn of the way that is not preferred; before one is, of the second.
    pub(super) fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// Goes on with the first way, whatever is known of the other.
    pub(super) fn keep_to_first(&mut self) {
        self.is_first = true;
        self.is_aside = false;
    }

    /// Something else is other than usual for now: nothing is learned until that is over and rounds are
    /// again what they were.
    pub(super) fn disturb(&mut self) {
        self.settled = 0;
    }

    /// Tokens a second of a session in the first way; none before something is known.
    pub(super) fn first_rate(&self) -> Option<f64> {
        (self.first.rounds >= SOME).then(|| self.first.rate())
    }

    /// Takes in a round of one of so many sessions.
    pub(super) fn observe(&mut self, tokens: u32, took: Duration, sessions: u32) {
        self.rounds += 1;
        self.settled += 1;
        if self.settled > STALE.saturating_mul(sessions) {
            let way = if self.is_first {
                &mut self.first
            } else {
                &mut self.second
            };
            way.add(tokens, took);
        }
        if self.rounds >= TURN.saturating_mul(sessions) {
            self.next();
        }
    }

    fn next(&mut self) {
        self.rounds = 0;
        self.settled = 0;
        self.before = self.before.wrapping_add(1);
        let few = self.first.rounds.min(self.second.rounds) < ENOUGH;
        if few {
            self.is_first = self.first.rounds < self.second.rounds;
            self.is_aside = !self.is_first;
        } else {
            let better = self.first.rate() > self.margin * self.second.rate();
            self.is_aside = self.before.is_multiple_of(ASIDE);
            self.is_first = better != self.is_aside;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::philox;

    /// Rounds of which trees had so many of 4,000, when they emit and take so much more than chains.
    fn with_trees(more_tokens: u32, longer: f64, sessions: u32) -> usize {
        let mut turns = Turns::new(1.01);
        let rounds = (0..4000_u32).filter(|&round| {
            let trees = turns.is_first();
            let [roll, held_up, ..] = philox([round, 0, 0, 0], [1, 2]);
            let tokens = 100 * (1 + roll % 5) + if trees { more_tokens } else { 0 };
            let mut seconds = if trees { 1e-3 * longer } else { 1e-3 };
            if held_up % 64 == 0 {
                seconds *= 20.0;
            }
            turns.observe(tokens, Duration::from_secs_f64(seconds), sessions);
            trees
        });
        rounds.count()
    }

    #[test]
    fn the_better_way_has_most_turns_and_chains_if_there_is_nothing_between_them() {
        for sessions in [1, 4] {
            let trees = [
                // 300 hundredths of a token a round, and 30 more.
                with_trees(30, 1.0, sessions),
                with_trees(30, 1.3, sessions),
                with_trees(0, 1.2, sessions),
            ];
            assert!(trees[0] > 3000, "{trees:?}");
            assert!(trees[1] < 1000 && trees[2] < 1000, "{trees:?}");
        }
    }

    #[test]
    fn the_other_way_is_tried_again_and_again() {
        let mut turns = Turns::new(1.01);
        let mut ways = [0; 2];
        for round in 0..25_000 {
            // Trees are worse at first and better later.
            let longer = if round < 5000 { 1.3 } else { 0.8 };
            let took = if turns.is_first() { longer } else { 1.0 };
            if round >= 20_000 {
                ways[usize::from(turns.is_first())] += 1;
            }
            turns.observe(3, Duration::from_secs_f64(1e-3 * took), 1);
        }
        assert!(ways[1] > 4000 && ways[0] > 100, "{ways:?}");
    }
}
