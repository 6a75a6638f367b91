//! What a simulated model is told to be.

use std::{str::FromStr, time::Duration};

use foretoken_engine::sim::{Latency, Role, SimOptions, SimRunner};
use serde::{Deserialize, Serialize};

/// Fewest entries that a simulated vocabulary has.
const MIN_SIMULATED_VOCAB: usize = 16;

/// A model without weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Simulated {
    /// The language; a target and its draft share one.
    pub(crate) language: u64,
    /// Entries of the vocabulary; without, those of the model's tokenizer, or 4096 if there is no
    /// model.
    pub(crate) vocab: Option<usize>,
    /// For a draft: the fraction of contexts in which it agrees with the target.
    pub(crate) agreement: Option<f64>,
    /// Of the other contexts, the fraction in which the target's likeliest token is among its four.
    pub(crate) near: f64,
    /// Time of every step, in microseconds.
    pub(crate) step_us: u64,
    /// Time of every row, in microseconds.
    pub(crate) row_us: u64,
    /// Longest sequence.
    pub(crate) positions: usize,
}

impl Default for Simulated {
    fn default() -> Self {
        Self {
            language: 0,
            vocab: None,
            agreement: None,
            near: 0.0,
            step_us: 0,
            row_us: 0,
            positions: 4096,
        }
    }
}

impl FromStr for Simulated {
    type Err = String;

    /// Comma-separated `name=value`; names left out keep their defaults.
    fn from_str(text: &str) -> Result<Self, String> {
        fn parse<T: FromStr>(name: &str, value: &str, allowed: &str) -> Result<T, String> {
            value
                .parse()
                .map_err(|_| format!("{name} is {value:?}; it must be {allowed}"))
        }
        const WHOLE: &str = "a whole number";
        const SHARE: &str = "a number from 0 to 1";
        let mut simulated = Self::default();
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            match name {
                "language" => simulated.language = parse(name, value, WHOLE)?,
                "vocab" => simulated.vocab = Some(parse(name, value, WHOLE)?),
                "agreement" => simulated.agreement = Some(parse(name, value, SHARE)?),
                "near" => simulated.near = parse(name, value, SHARE)?,
                "step-us" => simulated.step_us = parse(name, value, WHOLE)?,
                "row-us" => simulated.row_us = parse(name, value, WHOLE)?,
                "positions" => simulated.positions = parse(name, value, WHOLE)?,
                _ => {
                    return Err(format!(
                        "unknown setting {name:?}; known are language, vocab, agreement, near, \
                         step-us, row-us, positions"
                    ));
                }
            }
        }
        simulated.check()?;
        Ok(simulated)
    }
}

impl Simulated {
    /// Names the setting that is wrong, its value, and what it must be.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self {
            vocab,
            agreement,
            near,
            positions,
            ..
        } = self;
        for (name, share) in [("agreement", agreement.unwrap_or(0.0)), ("near", *near)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!(
                    "{name} is {share}; it must be a number from 0 to 1"
                ));
            }
        }
        if let Some(vocab) = vocab.filter(|vocab| *vocab < MIN_SIMULATED_VOCAB) {
            return Err(format!(
                "vocab is {vocab}; it must be at least {MIN_SIMULATED_VOCAB}"
            ));
        }
        if *positions == 0 {
            return Err("positions is 0; it must be at least 1".into());
        }
        Ok(())
    }

    /// The model, with a vocabulary of `size` unless another is said.
    pub(super) fn runner(self, size: usize) -> SimRunner {
        let Self {
            language,
            vocab,
            agreement,
            near,
            step_us,
            row_us,
            positions,
        } = self;
        SimRunner::new(SimOptions {
            language,
            vocab_size: vocab.unwrap_or(size),
            role: agreement.map_or(Role::Target, |agreement| Role::Draft { agreement }),
            near,
            max_positions: positions,
            latency: Latency {
                base: Duration::from_micros(step_us),
                per_row: Duration::from_micros(row_us),
                ..Latency::default()
            },
            ..SimOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_settings_are_named_when_they_are_wrong() {
        let good: Simulated = "agreement=0.5,step-us=10".parse().unwrap();
        assert_eq!(
            good,
            Simulated {
                agreement: Some(0.5),
                step_us: 10,
                ..Simulated::default()
            }
        );
        let message = "agreement=2".parse::<Simulated>().unwrap_err();
        assert_eq!(message, "agreement is 2; it must be a number from 0 to 1");
        assert!(
            "speed=1"
                .parse::<Simulated>()
                .unwrap_err()
                .contains("known are")
        );
        let message = "vocab=0".parse::<Simulated>().unwrap_err();
        assert_eq!(message, "vocab is 0; it must be at least 16");
    }

    #[test]
    fn what_profiles_say_of_simulated_models_is_understood() {
        let target: Simulated = foretoken_configuration::SIMULATED_TARGET.parse().unwrap();
        assert_eq!((target.agreement, target.vocab), (None, None));
        let draft: Simulated = foretoken_configuration::SIMULATED_DRAFT.parse().unwrap();
        assert!(draft.agreement.is_some());
        assert!(draft.step_us < target.step_us, "a draft is faster");
    }
}
