//! Which model a service runs, and how.

mod simulated;

use std::{fs, path::PathBuf};

use clap::builder::RangedU64ValueParser;
use foretoken_artifacts::{
    GenerationConfig, ModelUri, Tokenizer,
    hub::{HubError, HubOptions},
    progress::{Bar, Progress},
};
use foretoken_engine::{
    isa::Isa,
    model::{CpuOptions, CpuRunner, KvSize, KvType, LoadError, WeightType},
    runner::ModelRunner,
};
use serde::{Deserialize, Serialize};

use crate::{failure::usage, report::Reporter};
pub(crate) use simulated::Simulated;

/// Entries of a simulated vocabulary that nobody says anything of.
const SIMULATED_VOCAB: usize = 4096;

/// MiB for keys and values unless somebody says otherwise, as the engine has it.
const KV_MIB: u64 = 512;

/// A model and how it is held. As flags, each overrides the file's value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ModelConfig {
    /// Model: a folder, file:///path, hf://owner/name or hf://owner/name@revision
    #[arg(long, value_name = "URI")]
    pub(crate) model: Option<String>,
    /// How weights are kept [default: bf16]
    #[arg(long)]
    pub(crate) dtype: Option<Dtype>,
    /// How keys and values are kept [default: f32 with f32 weights, else bf16]
    #[arg(long)]
    pub(crate) kv_dtype: Option<KvDtype>,
    /// Threads that compute [default: one per core]
    #[arg(long, value_parser = threads())]
    pub(crate) threads: Option<usize>,
    /// Cores the threads are bound to, in turn, such as 0,1 [default: unbound]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub(crate) cores: Vec<usize>,
    /// Memory for keys and values, in MiB [default: 512]
    #[arg(long, value_name = "MIB")]
    pub(crate) kv_mib: Option<u64>,
    /// A simulated model instead of weights, with the tokenizer of --model if there is one:
    /// vocab=4096,agreement=0.8,near=0.5,step-us=500,row-us=20
    #[arg(long, value_name = "SETTINGS")]
    pub(crate) simulated: Option<Simulated>,
}

/// How weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dtype {
    F32,
    Bf16,
    Int8,
}

impl Dtype {
    /// What drafts take unless somebody says otherwise. Rounding costs a draft a few guesses, never an
    /// output, and a step is as short as its weights are small.
    pub(crate) const OF_DRAFTS: Self = Self::Int8;
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum KvDtype {
    F32,
    Bf16,
}

/// A model ready to run, and the facts of its folder that services need.
pub(crate) struct Loaded {
    /// The model.
    pub(crate) runner: Box<dyn ModelRunner>,
    /// Most tokens of a sequence, if there is memory for their keys and values.
    pub(crate) longest: usize,
    /// Its folder; none if it is simulated.
    pub(crate) folder: Option<PathBuf>,
    /// Tokens that end an output.
    pub(crate) eos: Vec<u32>,
    /// Digest of its tokenizer; empty if it has none.
    pub(crate) tokenizer_digest: String,
}

impl ModelConfig {
    /// This configuration with what `flags` say instead.
    #[must_use]
    pub(crate) fn overridden_by(self, flags: Self) -> Self {
        let Self {
            model,
            dtype,
            kv_dtype,
            threads,
            cores,
            kv_mib,
            simulated,
        } = flags;
        Self {
            model: model.or(self.model),
            dtype: dtype.or(self.dtype),
            kv_dtype: kv_dtype.or(self.kv_dtype),
            threads: threads.or(self.threads),
            cores: if cores.is_empty() { self.cores } else { cores },
            kv_mib: kv_mib.or(self.kv_mib),
            simulated: simulated.or(self.simulated),
        }
    }

    /// Loads the model, after downloading it if need be.
    pub(crate) fn load(
        &self,
        runtime: &tokio::runtime::Runtime,
        reporter: Reporter,
    ) -> anyhow::Result<Loaded> {
        self.check()?;
        if let Some(simulated) = &self.simulated {
            return self.simulate(*simulated, runtime);
        }
        let Some(uri) = &self.model else {
            return Err(usage(
                "no model is given: use --model, or --simulated for none",
            ));
        };
        let folder = runtime.block_on(resolve(uri, Part::All))?;
        let options = self.cpu_options(reporter, uri)?;
        let runner = CpuRunner::load(&folder, &options).map_err(|error| match error {
            LoadError::Option {
                option: "kv",
                allowed,
                ..
            } => {
                let mib = self.kv_mib.unwrap_or(KV_MIB);
                usage(format!(
                    "--kv-mib (kvCacheMemory of its object) is {mib} MiB; it must be {allowed}"
                ))
            }
            LoadError::Option { .. } => usage(error.to_string()),
            error => anyhow::Error::new(error).context(format!("cannot load model {uri}")),
        })?;
        let generation = GenerationConfig::load(&folder)?;
        let (generation, tokenizer_digest) = if folder.join("tokenizer.json").exists() {
            let tokenizer = Tokenizer::load(&folder)?;
            let generation = generation.with_tokenizer(&tokenizer);
            (generation, tokenizer.digest().to_owned())
        } else {
            (generation, String::new())
        };
        Ok(Loaded {
            longest: runner.spec().max_positions,
            runner: Box::new(runner),
            folder: Some(folder),
            eos: generation.eos.iter().map(|token| token.0).collect(),
            tokenizer_digest,
        })
    }

    /// A model without weights. That of a folder has its tokenizer, so that routers can make text
    /// of what it says, and targets and drafts can tell whether they speak of the same tokens.
    fn simulate(
        &self,
        simulated: Simulated,
        runtime: &tokio::runtime::Runtime,
    ) -> anyhow::Result<Loaded> {
        let Some(uri) = &self.model else {
            let runner = simulated.runner(SIMULATED_VOCAB);
            return Ok(Loaded {
                longest: runner.info().max_positions,
                runner: Box::new(runner),
                folder: None,
                eos: Vec::new(),
                tokenizer_digest: String::new(),
            });
        };
        let folder = runtime.block_on(resolve(uri, Part::Text))?;
        let tokenizer = Tokenizer::load(&folder)?;
        let generation = GenerationConfig::load(&folder)?.with_tokenizer(&tokenizer);
        let runner = simulated.runner(tokenizer.vocab_size());
        Ok(Loaded {
            longest: runner.info().max_positions,
            runner: Box::new(runner),
            folder: Some(folder),
            eos: generation.eos.iter().map(|token| token.0).collect(),
            tokenizer_digest: tokenizer.digest().to_owned(),
        })
    }

    /// What can be refused before anything is downloaded or loaded.
    fn check(&self) -> anyhow::Result<()> {
        check_instructions()?;
        if self.kv_mib == Some(0) {
            return Err(usage("--kv-mib is 0; it must be at least 1"));
        }
        if let Some(simulated) = &self.simulated {
            simulated.check().map_err(usage)?;
        }
        let Some(allowed) = allowed_cores() else {
            return Ok(());
        };
        let known =
            |core: usize| allowed_ranges(&allowed).any(|(low, high)| (low..=high).contains(&core));
        match self.cores.iter().find(|&&core| !known(core)) {
            None => Ok(()),
            Some(core) => Err(usage(format!(
                "--cores has {core}; this process may use cores {allowed}"
            ))),
        }
    }

    fn cpu_options(&self, reporter: Reporter, name: &str) -> anyhow::Result<CpuOptions> {
        let Self {
            model: _,
            dtype,
            kv_dtype,
            threads,
            cores,
            kv_mib,
            simulated: _,
        } = self;
        let dtype = match dtype.unwrap_or(Dtype::Bf16) {
            Dtype::F32 => WeightType::F32,
            Dtype::Bf16 => WeightType::Bf16,
            Dtype::Int8 => WeightType::Int8,
        };
        let kv_dtype = match (kv_dtype, dtype) {
            (Some(KvDtype::F32), _) | (None, WeightType::F32) => KvType::F32,
            (Some(KvDtype::Bf16) | None, _) => KvType::Bf16,
        };
        let mut options = CpuOptions {
            dtype,
            kv_dtype,
            threads: *threads,
            cores: cores.clone(),
            progress: Some(reporter.loading(name)),
            ..CpuOptions::default()
        };
        if let Some(mib) = kv_mib {
            let bytes = mib
                .checked_mul(1 << 20)
                .ok_or_else(|| usage(format!("--kv-mib is {mib}; it must be what memory holds")))?;
            options.kv = KvSize::Bytes(bytes);
        }
        Ok(options)
    }
}

/// Memory for keys and values: any but none.
pub(crate) fn mib() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..)
}

/// As many threads as the engine takes.
pub(crate) fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1024)
}

/// Refuses instructions (`FORETOKEN_ISA`) that this machine lacks or nobody knows.
pub(crate) fn check_instructions() -> anyhow::Result<()> {
    let found = Isa::from_environment().map(drop);
    found.map_err(|error| usage(error.to_string()))
}

/// Cores that this process may run on, as Linux lists them, such as `0-3,8`; none elsewhere.
fn allowed_cores() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// The ranges of such a list, both ends included.
fn allowed_ranges(list: &str) -> impl Iterator<Item = (usize, usize)> {
    list.split(',').filter_map(|range| {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        Some((low.parse().ok()?, high.parse().ok()?))
    })
}

/// What is needed of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    All,
    /// All but weights: what turns text into tokens and back.
    Text,
}

/// The folder of a model, downloaded first if it lies on the hub.
pub(crate) async fn resolve(uri: &str, part: Part) -> anyhow::Result<PathBuf> {
    resolve_telling(uri, part, &Bar::default()).await
}

/// The same, telling `progress` how far a download is.
pub(crate) async fn resolve_telling(
    uri: &str,
    part: Part,
    progress: &dyn Progress,
) -> anyhow::Result<PathBuf> {
    let parsed: ModelUri = uri.parse().map_err(|error| usage(format!("{error}")))?;
    let options = HubOptions {
        without_weights: part == Part::Text,
        ..HubOptions::default()
    };
    let folder = parsed.resolve(&options, progress).await;
    folder.map_err(|error| match error {
        HubError::NoFolder { .. } => usage(error.to_string()),
        error => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_file_and_leave_the_rest() {
        let file = ModelConfig {
            model: Some("a".into()),
            threads: Some(1),
            cores: vec![3],
            ..ModelConfig::default()
        };
        let flags = ModelConfig {
            threads: Some(2),
            ..ModelConfig::default()
        };
        let merged = file.overridden_by(flags);
        assert_eq!(merged.model.as_deref(), Some("a"));
        assert_eq!(merged.threads, Some(2));
        assert_eq!(merged.cores, [3]);
    }

    #[test]
    fn keys_and_values_follow_f32_weights() {
        let kv = |dtype, kv_dtype| {
            let config = ModelConfig {
                dtype,
                kv_dtype,
                ..ModelConfig::default()
            };
            config.cpu_options(Reporter::Parent, "m").unwrap().kv_dtype
        };
        assert_eq!(kv(Some(Dtype::F32), None), KvType::F32);
        assert_eq!(kv(Some(Dtype::F32), Some(KvDtype::Bf16)), KvType::Bf16);
        assert_eq!(kv(None, None), KvType::Bf16);
        assert_eq!(kv(Some(Dtype::Int8), None), KvType::Bf16);
    }

    #[test]
    fn a_simulated_model_has_the_tokenizer_of_its_folder_and_needs_no_weights() {
        let folder = tempfile::tempdir().unwrap();
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/draft");
        for file in ["tokenizer.json", "generation_config.json"] {
            fs::copy(format!("{shipped}/{file}"), folder.path().join(file)).unwrap();
        }
        let config = ModelConfig {
            model: folder.path().to_str().map(str::to_owned),
            simulated: Some(Simulated::default()),
            ..ModelConfig::default()
        };
        let runtime = crate::child::small_runtime().unwrap();
        let loaded = config.load(&runtime, Reporter::Parent).unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        assert_eq!(loaded.runner.info().vocab_size, tokenizer.vocab_size());
        assert_eq!(loaded.tokenizer_digest, tokenizer.digest());
        assert_eq!(loaded.runner.info().path, "sim");
    }

    #[test]
    fn memory_that_is_not_there_is_refused_by_the_flag_that_asks_for_it() {
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/draft");
        let config = ModelConfig {
            model: Some(shipped.to_owned()),
            kv_mib: Some(1 << 40),
            ..ModelConfig::default()
        };
        let runtime = crate::child::small_runtime().unwrap();
        let refused = config.load(&runtime, Reporter::Parent).err().unwrap();
        let said = refused.to_string();
        assert!(
            said.starts_with("--kv-mib") && said.contains("1099511627776 MiB;"),
            "{said}"
        );
        assert!(refused.is::<crate::failure::UsageError>());
        assert_eq!(CpuOptions::default().kv, KvSize::Bytes(KV_MIB << 20));
    }

    #[test]
    fn cores_that_are_not_there_and_no_memory_are_refused_before_loading() {
        let cores = ModelConfig {
            cores: vec![99_999],
            ..ModelConfig::default()
        };
        if allowed_cores().is_some() {
            let message = cores.check().unwrap_err().to_string();
            assert!(message.starts_with("--cores has 99999;"), "{message}");
        }
        let memory = ModelConfig {
            kv_mib: Some(0),
            ..ModelConfig::default()
        };
        let message = memory.check().unwrap_err().to_string();
        assert_eq!(message, "--kv-mib is 0; it must be at least 1");
        let ranges: Vec<_> = allowed_ranges("0-3,8").collect();
        assert_eq!(ranges, [(0, 3), (8, 8)]);
    }
}
