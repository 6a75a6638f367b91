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

/// `answer(k) = overhead + k * per_token`, fitted to the observed answers by least squares with
/// exponential forgetting. A first guess acts as a pair of observations, so that windows of a
/// single length, which cannot tell the two terms apart, leave their ratio as it was guessed.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerTime {
    guess: (f64, f64),
    weight: f64,
    k: f64,
    kk: f64,
    t: f64,
    kt: f64,
}

impl AnswerTime {
    /// Starts from a guess: the round trip and other fixed costs, and the time per token.
    pub fn new(overhead: Duration, per_token: Duration) -> Self {
        let guess = (overhead.as_secs_f64(), per_token.as_secs_f64());
        Self {
            guess,
            weight: 0.0,
            k: 0.0,
            kk: 0.0,
            t: 0.0,
            kt: 0.0,
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
        let (k, mut t) = (f64::from(tokens), took.as_secs_f64());
        if self.weight > 5.0 {
            // One answer held up by something else must not end speculation.
            t = t.min(4.0 * self.seconds(tokens).max(1e-6));
        }
        for sum in [
            &mut self.weight,
            &mut self.k,
            &mut self.kk,
            &mut self.t,
            &mut self.kt,
        ] {
            *sum *= MEMORY;
        }
        self.weight += 1.0;
        self.k += k;
        self.kk += k * k;
        self.t += t;
        self.kt += k * t;
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
        if self.weight <= 0.0 {
            return self.guess;
        }
        let mean = self.k / self.weight;
        // The guess, scaled to the observed level, at half and at one and a half times the mean.
        let guessed = (overhead + per_token * mean).max(1e-12);
        let scale = self.t / self.weight / guessed;
        let (mut w, mut sk, mut skk) = (self.weight, self.k, self.kk);
        let (mut st, mut skt) = (self.t, self.kt);
        for k in [0.5 * mean, 1.5 * mean] {
            let t = scale * (overhead + per_token * k);
            w += PRIOR_WEIGHT;
            sk += PRIOR_WEIGHT * k;
            skk += PRIOR_WEIGHT * k * k;
            st += PRIOR_WEIGHT * t;
            skt += PRIOR_WEIGHT * k * t;
        }
        let determinant = w * skk - sk * sk;
        let slope = ((w * skt - sk * st) / determinant).max(0.0);
        let intercept = (st - slope * sk) / w;
        if intercept < 0.0 {
            (0.0, st / sk)
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
