//! How often something held lately.

/// Times that something held, and was tried; the longer ago the less they count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    held: f64,
    tried: f64,
}

impl Tally {
    /// Takes in another time; the earlier ones keep this part of their weight.
    pub(crate) fn observe(&mut self, held: bool, memory: f64) {
        self.held = self.held * memory + if held { 1.0 } else { 0.0 };
        self.tried = self.tried * memory + 1.0;
    }

    /// How often it was tried lately.
    pub(crate) fn tried(self) -> f64 {
        self.tried
    }

    /// Probability that it holds, if that was thought to be `prior` and as many observations as
    /// `weight` say so.
    pub(crate) fn estimate(self, prior: f64, weight: f64) -> f64 {
        (self.held + weight * prior) / (self.tried + weight)
    }
}
