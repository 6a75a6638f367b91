//! Which instructions the kernels may use.
//!
//! One path is chosen when a model is loaded and never changes while it runs, because results of
//! different paths differ in their last bits. [`Isa::from_environment`] takes the best one, or the
//! one named by `FORETOKEN_ISA`.

use std::{env, fmt, str::FromStr};

/// Environment variable that forces a path, for tests and comparisons.
pub const ISA_VARIABLE: &str = "FORETOKEN_ISA";

/// An instruction path, from the least to the most capable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, any processor.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 with VNNI: int8 weights by `vpdpbusd`.
    Avx512Vnni,
    /// AVX-512 with VNNI and BF16: bf16 weights by `vdpbf16ps`, activations rounded to bf16.
    Avx512Bf16,
    /// AMX tiles for bf16 and int8 weights, everything else as [`Isa::Avx512Bf16`].
    Amx,
}

/// Why a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name is not one of [`Isa::ALL`].
    #[error("unknown instruction path {name:?}, use one of {}", names(&Isa::ALL))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// This machine lacks the instructions.
    #[error("this machine has no {wanted}, it can run {}", names(&Isa::available()))]
    Unsupported {
        /// What was asked for.
        wanted: Isa,
    },
    /// The environment variable asks for such a path.
    #[error("{}: {problem}", ISA_VARIABLE)]
    Variable {
        /// What is wrong with it.
        problem: Box<Self>,
    },
}

impl Isa {
    /// All paths, from the least to the most capable.
    pub const ALL: [Self; 6] = [
        Self::Portable,
        Self::Avx2,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
    ];

    /// The path named by `FORETOKEN_ISA`, or else the most capable one of this machine.
    ///
    /// # Errors
    /// If the variable names no path, or one that this machine lacks.
    pub fn from_environment() -> Result<Self, IsaError> {
        let name = env::var_os(ISA_VARIABLE).unwrap_or_default();
        if name.is_empty() {
            return Ok(Self::best());
        }
        let named = name.to_string_lossy().parse().and_then(Self::require);
        named.map_err(|problem| IsaError::Variable {
            problem: Box::new(problem),
        })
    }

    /// The most capable path of this machine.
    pub fn best() -> Self {
        Self::available()
            .into_iter()
            .next_back()
            .unwrap_or(Self::Portable)
    }

    /// All paths that this machine can run, from the least to the most capable.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_supported())
            .collect()
    }

    /// This path if the machine can run it.
    ///
    /// # Errors
    /// If the machine lacks the instructions.
    pub fn require(self) -> Result<Self, IsaError> {
        if self.is_supported() {
            Ok(self)
        } else {
            Err(IsaError::Unsupported { wanted: self })
        }
    }

    /// Name for reports and for `FORETOKEN_ISA`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512-vnni",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }

    /// Whether this machine can run the path.
    #[cfg(target_arch = "x86_64")]
    pub fn is_supported(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let bf16 = vnni && is_x86_feature_detected!("avx512bf16");
        match self {
            Self::Portable => true,
            Self::Avx2 => avx2,
            Self::Avx512 => avx512,
            Self::Avx512Vnni => vnni,
            Self::Avx512Bf16 => bf16,
            Self::Amx => bf16 && crate::cpu::amx_is_granted(),
        }
    }

    /// Whether this machine can run the path.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_supported(self) -> bool {
        matches!(self, Self::Portable)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Self, IsaError> {
        Self::ALL
            .into_iter()
            .find(|isa| isa.name() == name.to_ascii_lowercase())
            .ok_or_else(|| IsaError::Unknown {
                name: name.to_owned(),
            })
    }
}

fn names(paths: &[Isa]) -> String {
    paths
        .iter()
        .map(|isa| isa.name())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_found_by_its_name() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse(), Ok(isa));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let message = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(
            message.contains("sse9") && message.contains("avx512-vnni"),
            "{message}"
        );
    }

    #[test]
    fn portable_runs_everywhere_and_best_is_available() {
        assert!(Isa::available().contains(&Isa::Portable));
        assert!(Isa::best().require().is_ok());
    }

    #[test]
    fn a_path_that_the_machine_lacks_is_refused_with_those_it_has() {
        let available = Isa::available();
        for isa in Isa::ALL {
            match isa.require() {
                Ok(granted) => assert!(granted == isa && available.contains(&isa)),
                Err(error) => {
                    let message = error.to_string();
                    assert!(!available.contains(&isa));
                    assert!(message.contains(isa.name()) && message.contains("portable"));
                }
            }
        }
    }
}
