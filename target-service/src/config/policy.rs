//! How requests are speculated on: the names and parameters of policies, and what they become.

use foretoken_speculation::{
    fallback::OnMiss, fanout::FanOut, message::Delivery, policy::SsdOptions, verify::Verification,
};
use serde::{Deserialize, Serialize};

use super::LookaheadConfig;

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyName {
    /// One token a step.
    Autoregressive,
    /// A draft proposes a window after each verdict.
    Speculative,
    /// A draft prepares windows for likely verdicts while the target verifies.
    #[serde(rename = "SSD")]
    Ssd,
}

impl PolicyName {
    /// Every name that requests may use.
    pub const ALL: [&'static str; 3] = ["Autoregressive", "Speculative", "SSD"];

    /// The policy of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "Autoregressive" => Some(Self::Autoregressive),
            "Speculative" => Some(Self::Speculative),
            "SSD" => Some(Self::Ssd),
            _ => None,
        }
    }
}

/// Whether windows may be trees of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TreesName {
    /// Chains only.
    Off,
    /// Where their expected tokens are worth the time of their rows.
    Auto,
}

/// Parameters of `SSD` (arXiv 2603.03251).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SsdConfig {
    /// Tokens of a window, and of what is prepared for an outcome. Default: as many as pay, up to 15.
    pub lookahead: LookaheadConfig,
    /// Outcomes that are prepared for in a round, at most. Default 24.
    pub budget: u32,
    /// How they are spread over outcomes. Default `Learned`.
    pub fan_out: FanOutName,
    /// What is verified after a verdict that nothing was prepared for. Default `Auto`.
    pub fallback: FallbackName,
    /// Who looks verdicts up. Default `Push`.
    pub delivery: DeliveryName,
}

impl Default for SsdConfig {
    fn default() -> Self {
        SsdOptions::default().into()
    }
}

impl From<SsdConfig> for SsdOptions {
    fn from(config: SsdConfig) -> Self {
        Self {
            lookahead: config.lookahead.into(),
            budget: config.budget,
            fan_out: match config.fan_out {
                FanOutName::Learned => FanOut::Learned,
                FanOutName::Geometric => FanOut::Geometric,
                FanOutName::Uniform => FanOut::Uniform,
            },
            fallback: match config.fallback {
                FallbackName::Nothing => OnMiss::Nothing,
                FallbackName::Local => OnMiss::Local,
                FallbackName::Remote => OnMiss::Remote,
                FallbackName::Auto => OnMiss::Auto,
                FallbackName::LockStep => OnMiss::LockStep,
            },
            delivery: match config.delivery {
                DeliveryName::Push => Delivery::Push,
                DeliveryName::Pull => Delivery::Pull,
            },
        }
    }
}

impl From<SsdOptions> for SsdConfig {
    fn from(options: SsdOptions) -> Self {
        Self {
            lookahead: options.lookahead.into(),
            budget: options.budget,
            fan_out: match options.fan_out {
                FanOut::Learned => FanOutName::Learned,
                FanOut::Geometric => FanOutName::Geometric,
                FanOut::Uniform => FanOutName::Uniform,
            },
            fallback: match options.fallback {
                OnMiss::Nothing => FallbackName::Nothing,
                OnMiss::Local => FallbackName::Local,
                OnMiss::Remote => FallbackName::Remote,
                OnMiss::Auto => FallbackName::Auto,
                OnMiss::LockStep => FallbackName::LockStep,
            },
            delivery: match options.delivery {
                Delivery::Push => DeliveryName::Push,
                Delivery::Pull => DeliveryName::Pull,
            },
        }
    }
}

/// How outcomes to prepare for are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FanOutName {
    /// By what was seen of verdicts.
    Learned,
    /// SSD, Theorem 12.
    Geometric,
    /// The same number for every accepted length.
    Uniform,
}

/// What is verified after a verdict that nothing was prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FallbackName {
    /// Nothing: one token is decided.
    Nothing,
    /// What followed where the request said the same before.
    Local,
    /// A window that the endpoint drafts just in time.
    Remote,
    /// For each row whichever of these brings the most tokens for its time.
    Auto,
    /// The rule for rows in lock-step, by their number (SSD, Theorem 17); for comparisons.
    LockStep,
}

/// What a request does while no endpoint serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLossName {
    /// One token a step.
    Plain,
    /// What this host proposes, as far as that pays: what followed where the request said the same
    /// before, or what was last said after the same token.
    Local,
}

/// Who looks verdicts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeliveryName {
    /// The target: the endpoint sends what it prepares.
    Push,
    /// The endpoint.
    Pull,
}

/// The rules by which proposals are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum VerificationConfig {
    /// A proposal is accepted if it is what the target draws with the request's own noise: output
    /// is that of plain decoding, byte for byte.
    #[default]
    Coupled,
    /// By the ratio of probabilities: output has the target's distribution, if endpoints draw
    /// their proposals from what they say.
    Rejection {
        /// Likeliest tokens that a proposal is drawn among, and that are sent with it. More accept
        /// better and take more bytes. Default 16.
        #[serde(default = "default_support")]
        support: u32,
    },
}

fn default_support() -> u32 {
    Verification::SUPPORT
}

impl From<VerificationConfig> for Verification {
    fn from(config: VerificationConfig) -> Self {
        match config {
            VerificationConfig::Coupled => Self::Coupled,
            VerificationConfig::Rejection { support } => Self::Rejection { support },
        }
    }
}
