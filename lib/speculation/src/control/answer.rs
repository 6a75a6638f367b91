//! How long an endpoint takes for a window, by its length.

use core::time::Duration;

use super::StepCost;

/// Weight that an observation keeps with each later one: about the last 50 count.
const MEMORY: f64 = 0.98;
/// First guess of an answer's fixed part, without anything measured.
const OVERHEAD: Duration = Duration::from_micros(150);
/// The same of drafting: tokens in the time of a target's step of one row.
const TOKENS: u32 = 8;
/// Observations that the first guess is worth.
const PRIOR_WEIGHT: f64 = 2.0;
/// First answers, none of which counts as longer than their median.
const FIRST: usize = 5;
/// How much longer than expected a later one may count as.
const HELD_UP: f64 = 4.0;

/// `answer(k) = overhead + k * per_token`, fitted to the observed answers by least squares with
/// exponential forgetting. A first guess acts as a pair of observations, so that windows of a
/// single length, which cannot tell the two terms apart, leave their ratio as it was guessed.
///
/// One answer that something else holds up must not end speculation, least of all the first, which
/// is the likeliest: an endpoint that seems slow is not asked again for long, while one that seems
/// quick is, and is then known.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerTime {
    guess: (f64, f64),
    /// Tokens and seconds of the first answers.
    first: [(f64, f64); FIRST],
    seen: usize,
    sums: Sums,
}

/// Sums over answers of `k` tokens in `t` seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    weight: f64,
    k: f64,
    kk: f64,
    t: f64,
    kt: f64,
}

impl Sums {
    fn add(&mut self, k: f64, t: f64, weight: f64) {
        self.weight += weight;
        self.k += weight * k;
        self.kk += weight * k * k;
        self.t += weight * t;
        self.kt += weight * k * t;
    }

    fn forget(&mut self) {
        let Self {
            weight,
            k,
            kk,
            t,
            kt,
        } = self;
        for sum in [weight, k, kk, t, kt] {
            *sum *= MEMORY;
        }
    }
}

impl AnswerTime {
    /// Starts from a guess: the round trip and other fixed costs, and the time per token.
    pub fn new(overhead: Duration, per_token: Duration) -> Self {
        Self {
            guess: (overhead.as_secs_f64(), per_token.as_secs_f64()),
            first: [(0.0, 0.0); FIRST],
            seen: 0,
            sums: Sums::default(),
        }
    }

    /// Starts from what is usual beside a target of these steps.
    pub fn beside(steps: &StepCost) -> Self {
        Self::new(OVERHEAD, steps.time(1) / TOKENS)
    }

    /// Takes in a window of `tokens` that took this long. Empty windows say nothing.
    pub fn observe(&mut self, tokens: u32, took: Duration) {
        if tokens == 0 {
            return;
        }
        let (k, t) = (f64::from(tokens), took.as_secs_f64());
        if let Some(next) = self.first.get_mut(self.seen) {
            *next = (k, t);
            self.seen += 1;
            self.sums = self.of_first();
        } else {
            let t = t.min(HELD_UP * self.mean_seconds(k).max(1e-6));
            self.sums.forget();
            self.sums.add(k, t, 1.0);
        }
    }

    /// What the first answers come to, with those that took longer than the median cut to it.
    fn of_first(&self) -> Sums {
        let first = &self.first[..self.seen];
        let mut ratios = [0.0; FIRST];
        for (ratio, (k, t)) in ratios.iter_mut().zip(first) {
            *ratio = t / self.guessed(*k);
        }
        let ratios = &mut ratios[..self.seen];
        ratios.sort_unstable_by(f64::total_cmp);
        let median = ratios[(self.seen - 1) / 2];
        let mut sums = Sums::default();
        for (k, t) in first {
            sums.forget();
            sums.add(*k, t.min(median * self.guessed(*k)), 1.0);
        }
        sums
    }

    /// Seconds that a window of `k` tokens was thought to take.
    fn guessed(&self, k: f64) -> f64 {
        (self.guess.0 + self.guess.1 * k).max(1e-12)
    }

    /// Expected time for a window of `k` tokens, in seconds; 0 for none.
    pub fn seconds(&self, k: u32) -> f64 {
        self.mean_seconds(f64::from(k))
    }

    /// The same for windows of `tokens` tokens on average.
    pub fn mean_seconds(&self, tokens: f64) -> f64 {
        if tokens <= 0.0 {
            return 0.0;
        }
        let (overhead, per_token) = self.fit();
        (overhead + per_token * tokens).max(0.0)
    }

    /// Overhead and time per token, in seconds; neither is negative.
    pub fn fit(&self) -> (f64, f64) {
        let (overhead, per_token) = self.guess;
        if self.seen == 0 {
            return self.guess;
        }
        let mut sums = self.sums;
        let mean = sums.k / sums.weight;
        // The guess, scaled to the observed level, at half and at one and a half times the mean.
        let scale = sums.t / sums.weight / self.guessed(mean);
        for k in [0.5 * mean, 1.5 * mean] {
            let t = scale * (overhead + per_token * k);
            sums.add(k, t, PRIOR_WEIGHT);
        }
        let Sums {
            weight,
            k,
            kk,
            t,
            kt,
        } = sums;
        let slope = ((weight * kt - k * t) / (weight * kk - k * k)).max(0.0);
        let intercept = (t - slope * k) / weight;
        if intercept < 0.0 {
            (0.0, t / k)
        } else {
            (intercept, slope)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_guess_holds_until_something_is_seen() {
        let answers = AnswerTime::new(100 * US, 50 * US);
        assert!((answers.seconds(4) - 300e-6).abs() < 1e-12);
        assert!(answers.seconds(0) == 0.0);
    }

    #[test]
    fn of_the_first_answers_those_that_are_held_up_say_nothing() {
        for held_up in [[0, 9], [1, 9], [0, 3], [2, 3]] {
            let mut answers = AnswerTime::new(100 * US, 100 * US);
            for i in 0..5 {
                let slow = held_up.contains(&i);
                answers.observe(4, if slow { 3000 * US } else { 400 * US });
                let known = i >= 2 && (held_up[1] > i || i >= 4);
                assert!(!known || (answers.seconds(4) - 400e-6).abs() < 1e-9);
            }
        }
        // Slow ones are believed.
        let mut answers = AnswerTime::new(100 * US, 100 * US);
        (0..3).for_each(|_| answers.observe(4, 3000 * US));
        assert!((answers.seconds(4) - 3000e-6).abs() < 1e-9);
    }

    #[test]
    fn windows_of_several_lengths_reveal_overhead_and_time_per_token() {
        let mut answers = AnswerTime::new(1000 * US, 1000 * US);
        for i in 0..500 {
            let k = 1 + i % 8;
            answers.observe(k, 200 * US + k * 30 * US);
        }
        let (overhead, per_token) = answers.fit();
        assert!((overhead - 200e-6).abs() < 60e-6, "{overhead}");
        assert!((per_token - 30e-6).abs() < 12e-6, "{per_token}");
    }

    #[test]
    fn windows_of_one_length_scale_the_guess() {
        let mut answers = AnswerTime::new(100 * US, 100 * US);
        (0..200).for_each(|_| answers.observe(4, 1000 * US));
        assert!((answers.seconds(4) - 1000e-6).abs() < 1e-9);
        let (overhead, per_token) = answers.fit();
        assert!((overhead / per_token - 1.0).abs() < 1e-6);
    }

    #[test]
    fn neither_term_is_ever_negative() {
        let mut answers = AnswerTime::new(Duration::ZERO, Duration::ZERO);
        answers.observe(1, 500 * US);
        answers.observe(8, Duration::ZERO);
        let (overhead, per_token) = answers.fit();
        assert!(overhead >= 0.0 && per_token >= 0.0);
    }
}
