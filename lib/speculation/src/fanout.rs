//! Which outcomes to draft for: how a budget of branches is spent.
//!
//! ```text
//! glue pass -> Candidates -> Planner::plan -> [Guess, likeliest first] -> Shares::allocate
//! verdict   -> Planner::observe                    over all sessions: how many of each
//! ```
//!
//! After a window of K tokens, each accepted with probability a, the outcome has k accepted tokens
//! with probability `a^k (1 - a)` (k < K) or `a^K`. With `h_k(F)` the probability that the decided
//! token is among the first F candidates of row k,
//!
//! ```text
//! p_hit = sum_{k<K} a^k (1-a) h_k(F_k) + a^K h_K(F_K)                (SSD, Theorem 12)
//! ```
//!
//! [`FanOut::Uniform`] spends evenly, [`FanOut::Geometric`] by the closed form of that theorem for
//! power-law `h`, [`FanOut::Learned`] on the likeliest outcomes of *this* round, by what was
//! learned of acceptance and ranks given the gaps between scores. All of them learn, so that any
//! guess comes with a probability.

mod budget;
mod division;
mod estimates;
mod geometric;
mod greedy;
mod limit;
mod planner;
#[cfg(test)]
mod samples;
mod shares;
mod taper;
mod turns;

pub use self::{
    budget::{Bid, Budgets, Grant, Worth},
    division::{Contender, Division},
    estimates::{Chances, Estimates, Prior},
    geometric::{Geometric, PowerLaw},
    greedy::{greedy, hit_rate, outcome_mass, uniform},
    limit::Limit,
    planner::{Guess, Planner},
    shares::{Claim, Shares, Tenant},
    taper::Taper,
    turns::Turns,
};

/// How the branches of a round are spread over outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FanOut {
    /// As many guesses after each number of accepted tokens.
    Uniform,
    /// By the closed form for power-law hit rates (SSD, Theorem 12).
    Geometric,
    /// On the likeliest outcomes by what was learned online.
    #[default]
    Learned,
}

impl FanOut {
    /// The name used in manifests and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "Uniform",
            Self::Geometric => "Geometric",
            Self::Learned => "Learned",
        }
    }
}
