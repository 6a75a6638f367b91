//! How a deployment says which policy it wants.

use foretoken_speculation::{
    fallback::OnMiss,
    fanout, message,
    policy::{Lookahead, Policy, SsdOptions, draft::MAX_BRANCHES},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds::{MAX_LOOKAHEAD, rule};

/// A policy: its type, and at most the one block of parameters that belongs to the type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "!has(self.speculative) || self.type == 'Speculative'",
        ".speculative",
        "is only allowed with type Speculative",
    ),
    rule("!has(self.ssd) || self.type == 'SSD'", ".ssd", "is only allowed with type SSD"),
    rule(
        "!has(self.mirrorSD) || self.type == 'MirrorSD'",
        ".mirrorSD",
        "is only allowed with type MirrorSD",
    ),
    rule(
        "!has(self.specPipe) || self.type == 'SpecPipe'",
        ".specPipe",
        "is only allowed with type SpecPipe",
    ),
]))]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
}

/// Parameters of `Speculative`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpeculativeSpec {
    /// Most tokens in a window. Where verification is `Coupled` it ends before one that is not likely enough to be worth its time.
    #[serde(default = "default_lookahead")]
    #[schemars(range(min = 1, max = MAX_LOOKAHEAD))]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.delivery) || self.delivery != 'Pull' || !has(self.fallback) || \
     self.fallback in ['Auto', 'JustInTime']",
    ".fallback",
    "must be Auto or JustInTime with delivery Pull: only the endpoint knows what it prepared",
)]))]
pub struct SsdSpec {
    /// Most tokens in a window. Where verification is `Coupled` it ends before one that is not likely enough to be worth its time.
    #[serde(default = "ssd_lookahead")]
    #[schemars(range(min = 1, max = MAX_LOOKAHEAD))]
    pub lookahead: u32,
    /// Whether windows shrink, down to none, when shorter ones pay more.
    #[serde(default = "yes")]
    pub adaptive: bool,
    /// Verdicts that are prepared for in a round, at most.
    #[serde(default = "ssd_budget")]
    #[schemars(range(min = 1, max = MAX_BRANCHES))]
    pub budget: u32,
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

impl Default for SsdSpec {
    fn default() -> Self {
        Self {
            lookahead: ssd_lookahead(),
            adaptive: true,
            budget: ssd_budget(),
            fan_out: FanOut::default(),
            fallback: Fallback::default(),
            delivery: Delivery::default(),
        }
    }
}

fn ssd_lookahead() -> u32 {
    SsdOptions::default().lookahead.most()
}

fn ssd_budget() -> u32 {
    SsdOptions::default().budget
}

impl SsdSpec {
    fn options(self) -> SsdOptions {
        SsdOptions {
            lookahead: windows(self.lookahead, self.adaptive),
            budget: self.budget,
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

fn windows(lookahead: u32, adaptive: bool) -> Lookahead {
    if adaptive {
        Lookahead::Adaptive { max: lookahead }
    } else {
        Lookahead::Fixed(lookahead)
    }
}

/// How branches are spread over the outcomes of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Fallback {
    /// Whichever pays; where it does not, nothing is drafted ahead.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// The target: the endpoint sends what it prepares.
    #[default]
    Push,
    /// The endpoint, which is asked after each verdict: fewer bytes, a round trip more. Only with
    /// fallback `Auto` or `JustInTime`.
    Pull,
}

/// Parameters of `MirrorSD`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorSdSpec {
    /// Depth of the early exit as a fraction of the layers.
    #[serde(default = "early_exit")]
    #[schemars(length(min = 3, max = 9), extend("x-kubernetes-validations" = [rule(
        "self.matches('^[1-9][0-9]{0,3}/[1-9][0-9]{0,3}$') && \
         int(self.split('/')[0]) < int(self.split('/')[1])",
        "",
        "must be a fraction between 0 and 1, such as \"1/2\"",
    )]))]
    pub early_exit: String,
    /// Candidates sent from the early exit.
    #[serde(default = "top_k")]
    #[schemars(range(min = 1, max = 256))]
    pub top_k: u32,
    /// Tokens in a window.
    #[serde(default = "mirror_window")]
    #[schemars(range(min = 1, max = MAX_LOOKAHEAD))]
    pub window: u32,
    /// Speculative streams of the draft.
    #[serde(default = "streams")]
    #[schemars(range(min = 1, max = 16))]
    pub streams: u32,
}

fn early_exit() -> String {
    "1/2".to_owned()
}

fn top_k() -> u32 {
    8
}

fn mirror_window() -> u32 {
    7
}

fn streams() -> u32 {
    2
}

/// Parameters of `SpecPipe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpecPipeSpec {
    /// Nodes of each level.
    #[serde(default = "width")]
    #[schemars(range(min = 1, max = 1024))]
    pub width: u32,
    /// Children considered per node.
    #[serde(default = "candidates")]
    #[schemars(range(min = 1, max = 256))]
    pub candidates: u32,
}

fn width() -> u32 {
    64
}

fn candidates() -> u32 {
    16
}

impl PolicySpec {
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
            budget: 9,
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
    fn options_of_ssd_mean_what_they_are_called() {
        for (fan_out, means) in [
            (FanOut::Learned, fanout::FanOut::Learned),
            (FanOut::Geometric, fanout::FanOut::Geometric),
            (FanOut::Uniform, fanout::FanOut::Uniform),
        ] {
            let spec = SsdSpec {
                fan_out,
                ..SsdSpec::default()
            };
            assert_eq!(spec.options().fan_out, means);
        }
        for (fallback, means) in [
            (Fallback::Auto, OnMiss::Auto),
            (Fallback::JustInTime, OnMiss::Remote),
            (Fallback::Fast, OnMiss::Local),
            (Fallback::Nothing, OnMiss::Nothing),
        ] {
            let spec = SsdSpec {
                fallback,
                ..SsdSpec::default()
            };
            assert_eq!(spec.options().fallback, means);
        }
        for (delivery, means) in [
            (Delivery::Push, message::Delivery::Push),
            (Delivery::Pull, message::Delivery::Pull),
        ] {
            let spec = SsdSpec {
                delivery,
                ..SsdSpec::default()
            };
            assert_eq!(spec.options().delivery, means);
        }
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
