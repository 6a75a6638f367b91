//! How many tokens a target decides in its time.

use core::time::Duration;

/// Weight that an observation keeps with each later one: about the last 50 steps count.
const MEMORY: f64 = 0.98;

/// Tokens a second that all sequences of a target together emit, over the latest steps.
///
/// It is what time on the engine is worth: a row that makes a step longer by `d` costs all who are
/// in it `pace * d` tokens. Work that brings more than that raises the pace, work that brings less
/// lowers it, so whoever decides by it comes to the highest pace there is (Dinkelbach 1967).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    tokens: f64,
    seconds: f64,
}

impl Pace {
    /// Takes in a step that decided so many tokens, so long after the one before.
    pub fn observe(&mut self, tokens: u32, took: Duration) {
        self.tokens = self.tokens * MEMORY + f64::from(tokens);
        self.seconds = self.seconds * MEMORY + took.as_secs_f64();
    }

    /// Tokens a second; 0 before anything is known.
    pub fn per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.tokens / self.seconds
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_steady_pace_is_found_and_an_old_one_forgotten() {
        let mut pace = Pace::default();
        assert!(pace.per_second() == 0.0);
        for _ in 0..400 {
            pace.observe(8, 2 * MS);
        }
        assert!((pace.per_second() - 4000.0).abs() < 1e-6);
        for _ in 0..400 {
            pace.observe(1, MS);
        }
        assert!((pace.per_second() - 1000.0).abs() < 10.0);
    }

    #[test]
    fn long_steps_count_by_their_time() {
        let mut pace = Pace::default();
        for _ in 0..400 {
            pace.observe(1, MS);
            pace.observe(1, 9 * MS);
        }
        assert!((pace.per_second() - 200.0).abs() < 20.0);
    }
}
