//! Rotary position embeddings (Su et al. 2021, arXiv 2104.09864) and their scalings to longer
//! contexts: linear (Chen et al. 2023, arXiv 2306.15595), Llama 3's, and `YaRN` (Peng et al. 2023,
//! arXiv 2309.00071).

use std::f64::consts::PI;

use super::SpecError;
use super::config::Config;

/// Bound of what a scaling can claim to reach.
const MAX_POSITIONS: usize = 1 << 28;

/// Frequencies of the rotation, as parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the geometric row of wave lengths.
    pub theta: f64,
    /// Values per head; half as many frequencies.
    pub head_dim: usize,
    /// How frequencies are changed for long contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Long waves divided by a factor, short ones kept, a linear blend between.
    Llama3 {
        /// The divisor of long waves.
        factor: f64,
        /// Waves longer than `original / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Waves shorter than `original / high_freq_factor` are short.
        high_freq_factor: f64,
        /// Context of the training before scaling, in tokens.
        original: f64,
    },
    /// The same idea, blended over dimensions, with a factor on queries and keys.
    Yarn {
        /// The divisor of long waves.
        factor: f64,
        /// Context of the training before scaling, in tokens.
        original: f64,
        /// Rotations within `original` above which a dimension is kept.
        beta_fast: f64,
        /// Rotations within `original` below which a dimension is divided.
        beta_slow: f64,
        /// Whether the bounds of the blend are rounded outwards to whole dimensions.
        truncate: bool,
        /// Multiplies cosine and sine.
        attention_factor: f64,
    },
}

impl Rope {
    /// Reads `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5).
    ///
    /// # Errors
    /// If a parameter is missing or out of range.
    pub fn from_config(
        config: &Config,
        head_dim: usize,
        max_positions: usize,
    ) -> Result<Self, SpecError> {
        // Files written for both readers hold both forms. The older one wins if it says anything, as in
        // transformers 5: it is what people add to a file to reach further. A base that only the newer
        // one names is the model's all the same, where transformers 5 would fall back to 10,000.
        let older = config.object("rope_scaling")?;
        let newer = config.object("rope_parameters")?;
        let older = older.filter(|scaling| !scaling.is_empty());
        let scaling = older.as_ref().or(newer.as_ref());
        let mut theta = None;
        for holder in [scaling, Some(config), newer.as_ref()]
            .into_iter()
            .flatten()
        {
            theta = theta.or(holder.positive("rope_theta")?);
        }
        let theta = theta.unwrap_or(10_000.0);
        for holder in [Some(config), scaling].into_iter().flatten() {
            if holder
                .positive("partial_rotary_factor")?
                .is_some_and(|f| !(1.0..=1.0).contains(&f))
            {
                return Err(holder.wrong("partial_rotary_factor", "1: all of a head rotates"));
            }
        }
        let scaling = match scaling {
            None => RopeScaling::None,
            Some(parameters) => scaling_from(config, parameters, max_positions)?,
        };
        Ok(Self {
            theta,
            head_dim,
            scaling,
        })
    }

    /// Positions the model reaches when the file declares `declared`: `max_position_embeddings` is
    /// not raised for a linear scaling, and often not for `YaRN`.
    pub fn reach(&self, declared: usize) -> usize {
        let scaled = match self.scaling {
            RopeScaling::Linear { factor } => factor * declared as f64,
            RopeScaling::Yarn {
                factor, original, ..
            } => factor * original,
            RopeScaling::None | RopeScaling::Llama3 { .. } => 0.0,
        };
        declared.max((scaled as usize).min(MAX_POSITIONS))
    }

    /// Multiplies cosine and sine (1 but for `YaRN`).
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn {
                attention_factor, ..
            } => attention_factor,
            _ => 1.0,
        }
    }

    /// Radians per position of each pair of values, `head_dim / 2` of them.
    pub fn frequencies(&self) -> Vec<f64> {
        let half = self.head_dim / 2;
        let plain = |i: usize| self.theta.powf(-2.0 * i as f64 / self.head_dim as f64);
        match self.scaling {
            RopeScaling::None => (0..half).map(plain).collect(),
            RopeScaling::Linear { factor } => (0..half).map(|i| plain(i) / factor).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original,
            } => {
                let blend = |f: f64| {
                    let turns = original * f / (2.0 * PI);
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    let kept = kept.clamp(0.0, 1.0);
                    (1.0 - kept) * f / factor + kept * f
                };
                (0..half).map(|i| blend(plain(i))).collect()
            }
            RopeScaling::Yarn {
                factor,
                original,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                // The dimension that turns `rotations` times within the original context.
                let dimension = |rotations: f64| {
                    self.head_dim as f64 * (original / (rotations * 2.0 * PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let high = high.min(self.head_dim as f64 - 1.0);
                // Equal bounds make a step; the width only has to be above zero.
                let width = (high - low).max(1e-3);
                let blend = |i: usize| {
                    let divided = ((i as f64 - low) / width).clamp(0.0, 1.0);
                    plain(i) / factor * divided + plain(i) * (1.0 - divided)
                };
                (0..half).map(blend).collect()
            }
        }
    }
}

fn scaling_from(
    config: &Config,
    parameters: &Config,
    max_positions: usize,
) -> Result<RopeScaling, SpecError> {
    let kind = if parameters.value("rope_type").is_some() {
        "rope_type"
    } else {
        "type"
    };
    let field = "original_max_position_embeddings";
    let original = parameters.positive(field)?.or(config.positive(field)?);
    let original = original.unwrap_or(max_positions as f64);
    match parameters.text(kind)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: parameters.required_positive("factor")?,
        }),
        "llama3" => {
            let low_freq_factor = parameters.required_positive("low_freq_factor")?;
            let high_freq_factor = parameters.required_positive("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                let allowed = format!("above `low_freq_factor` ({low_freq_factor})");
                return Err(parameters.wrong("high_freq_factor", &allowed));
            }
            let factor = parameters.required_positive("factor")?;
            Ok(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original,
            })
        }
        "yarn" => yarn(parameters, original, max_positions),
        _ => Err(parameters.wrong(kind, "\"default\", \"linear\", \"llama3\" or \"yarn\"")),
    }
}

fn yarn(
    parameters: &Config,
    original: f64,
    max_positions: usize,
) -> Result<RopeScaling, SpecError> {
    let factor = parameters
        .positive("factor")?
        .unwrap_or(max_positions as f64 / original);
    // The paper's section 3.4: sqrt(1/t) = 0.1 ln(s) + 1, here on queries and keys.
    let magnitude = |weight: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * weight * factor.ln() + 1.0
        }
    };
    let weights = (
        parameters.positive("mscale")?,
        parameters.positive("mscale_all_dim")?,
    );
    let attention_factor = match (parameters.positive("attention_factor")?, weights) {
        (Some(factor), _) => factor,
        (None, (Some(weight), Some(all))) => magnitude(weight) / magnitude(all),
        (None, _) => magnitude(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original,
        beta_fast: parameters.positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: parameters.positive("beta_slow")?.unwrap_or(1.0),
        truncate: parameters.flag("truncate", true)?,
        attention_factor,
    })
}
