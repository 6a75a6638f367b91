//! How a deployment says which policy it wants.

use foretoken_speculation::{
    fallback::OnMiss,
    fanout, message,
    policy::{Lookahead, Policy, SsdOptions},
};
use serde::{Deserialize, Serialize};

/// A policy: its type, and at most the one block of parameters that belongs to the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySpec {
    /// Which policy.
    #[serde(rename = "type")]
    pub kind: PolicyType,
    /// Parameters of `Speculative`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculative: Option<SpeculativeSpec>,
    /// Parameters of `SSD`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssd: Option<SsdSpec>,
    /// Parameters of `MirrorSD`.
    #[serde(default, rename = "mirrorSD", skip_serializing_if = "Option::is_none")]
    pub mirror_sd: Option<MirrorSdSpec>,
    /// Parameters of `SpecPipe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_pipe: Option<SpecPipeSpec>,
}

/// Names of policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyType {
    /// One token a step: the baseline.
    #[default]
    Autoregressive,
    /// The draft proposes a window after each verdict.
    Speculative,
    /// The draft prepares the next window for likely verdicts (SSD, arXiv 2603.03251).
    #[serde(rename = "SSD")]
    Ssd,
    /// The draft starts from the target's early exit (Mirror-SD, arXiv 2510.13161).
    #[serde(rename = "MirrorSD")]
    MirrorSd,
    /// The draft grows a tree that a pipeline consumes level by level (arXiv 2504.04104).
    SpecPipe,
    /// Whichever pays under the load at hand.
    Auto,
}

impl PolicyType {
    /// The name used in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoregressive => "Autoregressive",
            Self::Speculative => "Speculative",
            Self::Ssd => "SSD",
            Self::MirrorSd => "MirrorSD",
            Self::SpecPipe => "SpecPipe",
            Self::Auto => "Auto",
        }
    }

    /// Whether it drafts at all.
    pub fn needs_endpoints(self) -> bool {
        !matches!(self, Self::Autoregressive)
    }
}

/// Parameters of `Speculative`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeculativeSpec {
    /// Tokens in a window; the upper bound if `adaptive`.
    #[serde(default = "default_lookahead")]
    pub lookahead: u32,
    /// Whether windows shrink, down to none, when shorter ones pay more.
    #[serde(default = "yes")]
    pub adaptive: bool,
}

impl Default for SpeculativeSpec {
    fn default() -> Self {
        Self {
            lookahead: default_lookahead(),
            adaptive: true,
        }
    }
}

fn default_lookahead() -> u32 {
    8
}

fn yes() -> bool {
    true
}

/// Parameters of `SSD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SsdSpec {
    /// Tokens in a window; the upper bound if `adaptive`.
    #[serde(default = "default_lookahead")]
    pub lookahead: u32,
    /// Whether windows shrink, down to none, when shorter ones pay more.
    #[serde(default = "yes")]
    pub adaptive: bool,
    /// Branches prepared per round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<u32>,
    /// How the budget is spread over outcomes.
    #[serde(default)]
    pub fan_out: FanOut,
    /// What happens on a miss.
    #[serde(default)]
    pub fallback: Fallback,
    /// Who looks outcomes up.
    #[serde(default)]
    pub delivery: Delivery,
}

impl SsdSpec {
    fn options(self) -> SsdOptions {
        let defaults = SsdOptions::default();
        SsdOptions {
            lookahead: windows(self.lookahead, self.adaptive),
            budget: self.budget.unwrap_or(defaults.budget),
            fan_out: match self.fan_out {
                FanOut::Learned => fanout::FanOut::Learned,
                FanOut::Geometric => fanout::FanOut::Geometric,
                FanOut::Uniform => fanout::FanOut::Uniform,
            },
            fallback: match self.fallback {
                Fallback::Auto => OnMiss::Auto,
                Fallback::JustInTime => OnMiss::Remote,
                Fallback::Fast => OnMiss::Local,
                Fallback::Nothing => OnMiss::Nothing,
            },
            delivery: match self.delivery {
                Delivery::Push => message::Delivery::Push,
                Delivery::Pull => message::Delivery::Pull,
            },
        }
    }
}

impl Default for SsdSpec {
    fn default() -> Self {
        Self {
            lookahead: default_lookahead(),
            adaptive: true,
            budget: None,
            fan_out: FanOut::default(),
            fallback: Fallback::default(),
            delivery: Delivery::default(),
        }
    }
}

fn windows(lookahead: u32, adaptive: bool) -> Lookahead {
    if adaptive {
        Lookahead::Adaptive { max: lookahead }
    } else {
        Lookahead::Fixed(lookahead)
    }
}

/// How branches are spread over the outcomes of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FanOut {
    /// By what was seen.
    #[default]
    Learned,
    /// SSD, Theorem 12.
    Geometric,
    /// The same for every accepted length.
    Uniform,
}

/// What a target does when the outcome was not prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    /// Whichever pays.
    #[default]
    Auto,
    /// Waits for a window drafted just in time.
    JustInTime,
    /// Takes a fast local source.
    Fast,
    /// Decides one token.
    Nothing,
}

/// Who looks outcomes up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// The target: the endpoint sends what it prepares.
    #[default]
    Push,
    /// The endpoint.
    Pull,
}

/// Parameters of `MirrorSD`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MirrorSdSpec {
    /// Depth of the early exit as a fraction of the layers, such as `1/2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_exit: Option<String>,
    /// Candidates sent from the early exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Tokens in a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Speculative streams of the draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
}

/// Parameters of `SpecPipe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecPipeSpec {
    /// Nodes of each level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Children considered per node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<u32>,
}

impl PolicySpec {
    /// Names of the parameter blocks that are present.
    pub fn blocks(&self) -> Vec<&'static str> {
        let present = [
            ("speculative", self.speculative.is_some()),
            ("ssd", self.ssd.is_some()),
            ("mirrorSD", self.mirror_sd.is_some()),
            ("specPipe", self.spec_pipe.is_some()),
        ];
        present
            .into_iter()
            .filter(|(_, is_present)| *is_present)
            .map(|(name, _)| name)
            .collect()
    }

    /// Name of the block that belongs to the type.
    pub fn own_block(&self) -> Option<&'static str> {
        match self.kind {
            PolicyType::Autoregressive | PolicyType::Auto => None,
            PolicyType::Speculative => Some("speculative"),
            PolicyType::Ssd => Some("ssd"),
            PolicyType::MirrorSd => Some("mirrorSD"),
            PolicyType::SpecPipe => Some("specPipe"),
        }
    }

    /// The policy as the services run it; none if this version does not serve it.
    pub fn policy(&self) -> Option<Policy> {
        match self.kind {
            PolicyType::Autoregressive => Some(Policy::Autoregressive),
            PolicyType::Speculative => {
                let SpeculativeSpec {
                    lookahead,
                    adaptive,
                } = self.speculative.unwrap_or_default();
                Some(Policy::Speculative(windows(lookahead, adaptive)))
            }
            PolicyType::Ssd => Some(Policy::Ssd(self.ssd.unwrap_or_default().options())),
            PolicyType::MirrorSd | PolicyType::SpecPipe | PolicyType::Auto => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculative_without_a_block_adapts_up_to_the_default() {
        let spec = PolicySpec {
            kind: PolicyType::Speculative,
            ..PolicySpec::default()
        };
        assert_eq!(
            spec.policy(),
            Some(Policy::Speculative(Lookahead::Adaptive { max: 8 }))
        );
    }

    #[test]
    fn a_fixed_lookahead_stays_fixed() {
        let speculative = Some(SpeculativeSpec {
            lookahead: 5,
            adaptive: false,
        });
        let spec = PolicySpec {
            kind: PolicyType::Speculative,
            speculative,
            ..PolicySpec::default()
        };
        assert_eq!(
            spec.policy(),
            Some(Policy::Speculative(Lookahead::Fixed(5)))
        );
    }

    #[test]
    fn ssd_takes_its_block() {
        let ssd = Some(SsdSpec {
            lookahead: 7,
            adaptive: false,
            budget: Some(9),
            fan_out: FanOut::Uniform,
            fallback: Fallback::Fast,
            delivery: Delivery::Pull,
        });
        let spec = PolicySpec {
            kind: PolicyType::Ssd,
            ssd,
            ..PolicySpec::default()
        };
        let options = SsdOptions {
            lookahead: Lookahead::Fixed(7),
            budget: 9,
            fan_out: fanout::FanOut::Uniform,
            fallback: OnMiss::Local,
            delivery: message::Delivery::Pull,
        };
        assert_eq!(spec.policy(), Some(Policy::Ssd(options)));
    }

    #[test]
    fn policies_of_the_api_that_are_not_served_have_no_policy() {
        for kind in [PolicyType::MirrorSd, PolicyType::SpecPipe, PolicyType::Auto] {
            let spec = PolicySpec {
                kind,
                ..PolicySpec::default()
            };
            assert_eq!(spec.policy(), None, "{}", kind.name());
        }
    }
}
