//! `foretoken generate`: one completion in this process, without services. How an engine is
//! checked from outside.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use foretoken_artifacts::{IncrementalDecoder, Tokenizer};
use foretoken_engine::batch::Engine;
use foretoken_speculation::{
    Seed, TokenId,
    fallback::OnMiss,
    policy::{Lookahead, Policy, SsdOptions},
    sampling::SamplingParams,
};
use foretoken_target::MAX_LOOKAHEAD;
use serde::Serialize;

mod decode;

use self::decode::{Decoding, Finish, Job};
use crate::{
    child,
    failure::usage,
    model::{Dtype, Loaded, ModelConfig},
    output::{print, remark},
    report::Reporter,
    shipped::Shipped,
};

/// Tokens of a window unless the user says otherwise.
const LOOKAHEAD: u32 = 5;

const MODEL_HELP: &str = "Model: a folder, file:///path, hf://owner/name or hf://owner/name@revision \
    [default: with neither this nor --simulated, the target of the small pair that comes with foretoken]";

/// Arguments of `foretoken generate`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("model", |arg| arg.help(MODEL_HELP)))]
#[command(mut_arg("dtype", |arg| {
    arg.help("How weights are kept [default: bf16; those of the draft: int8]")
}))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelConfig,
    /// Draft model: a folder, file:///path or hf://owner/name [default: with neither --model nor this,
    /// that of the small pair that comes with foretoken]
    #[arg(long, value_name = "URI")]
    draft: Option<String>,
    /// Autoregressive, Speculative or SSD [default: Speculative with a draft]
    #[arg(long)]
    policy: Option<PolicyName>,
    /// Tokens the draft proposes per round
    #[arg(long, value_name = "K", default_value_t = LOOKAHEAD)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_LOOKAHEAD)))]
    lookahead: u32,
    /// Prompt text; standard input if neither this nor --ids is given
    #[arg(conflicts_with = "ids")]
    prompt: Option<String>,
    /// The same as an option
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with_all = ["prompt", "ids"])]
    prompt_option: Option<String>,
    /// Prompt as token ids, such as 0,17,42; nothing is added to them
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        allow_hyphen_values = true
    )]
    ids: Vec<u32>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Most new tokens
    #[arg(
        long,
        value_name = "N",
        default_value_t = 128,
        allow_negative_numbers = true
    )]
    max_tokens: u32,
    /// Randomness: 0 takes the likeliest token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    temperature: f32,
    /// Keep the likeliest tokens that reach this probability together
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    top_p: f32,
    /// Keep this many likeliest tokens; 0 keeps all
    #[arg(
        long,
        value_name = "K",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    top_k: u32,
    /// Where the randomness comes from [default: drawn]
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Go on after an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,
}

/// The policies that a request can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
pub(crate) enum PolicyName {
    Autoregressive,
    Speculative,
    #[value(name = "SSD")]
    Ssd,
}

impl PolicyName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Autoregressive => "Autoregressive",
            Self::Speculative => "Speculative",
            Self::Ssd => "SSD",
        }
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Output {
    /// New tokens only.
    ids: Vec<u32>,
    /// Of each new token, under the model's distribution before temperature and truncation.
    logprobs: Vec<f32>,
    /// Text of the new tokens; none if the model has no tokenizer.
    text: Option<String>,
    finish_reason: &'static str,
    rounds: u32,
    drafted: u32,
    accepted: u32,
    /// Verdicts that a window had been drafted for, and those that none had; of `SSD` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    misses: Option<u32>,
    seed: i64,
    policy: &'static str,
}

/// Loads the models, decodes and prints.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let args = &args.clone().with_models()?;
    let policy = args.policy()?;
    let runtime = child::small_runtime()?;
    let target = args.model.load(&runtime, Reporter::Person)?;
    let draft = match (&args.draft, policy) {
        (Some(uri), Policy::Speculative(_) | Policy::Ssd(_)) => {
            let config = ModelConfig {
                model: Some(uri.clone()),
                dtype: args.model.dtype.or(Some(Dtype::OF_DRAFTS)),
                ..args.model.clone()
            };
            let draft = config.load(&runtime, Reporter::Person)?;
            check_pair(&target, &draft)?;
            Some(Engine::new(draft.runner))
        }
        (_, Policy::Autoregressive | Policy::Speculative(_) | Policy::Ssd(_)) => None,
    };
    let Loaded {
        runner,
        folder,
        eos,
        ..
    } = target;
    // All computing is on this thread, and both have the same cores.
    runner.bind_thread()?;
    let tokenizer = load_tokenizer(folder.as_deref())?;
    let job = Job {
        prompt: args.prompt_tokens(tokenizer.as_deref())?,
        sampling: SamplingParams {
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            ..SamplingParams::default()
        },
        seed: Seed(args.seed.unwrap_or_else(draw_seed) as u64),
        policy,
        max_tokens: args.max_tokens,
        stop: if args.ignore_eos {
            Vec::new()
        } else {
            eos.into_iter().map(TokenId).collect()
        },
    };
    let mut decoding = Decoding::new(job, Engine::new(runner), draft)?;
    let mut shown = tokenizer
        .clone()
        .filter(|_| !args.json)
        .map(|tokenizer| IncrementalDecoder::new(tokenizer, true));
    while let Some(tokens) = decoding.round()? {
        let Some(decoder) = &mut shown else { continue };
        let mut text = String::new();
        for token in tokens {
            decoder.push(*token, &mut text);
        }
        print(&text)?;
    }
    let mut text = String::new();
    match &mut shown {
        Some(decoder) => decoder.finish(&mut text),
        None if args.json => {
            text = serde_json::to_string(&output(&decoding, tokenizer.as_deref()))?;
        }
        None => text = join(decoding.tokens()),
    }
    print(&(text + "\n"))?;
    if let Some(reason) = decoding.refused() {
        remark(format_args!("not drafted to the end: {reason}"));
    }
    Ok(())
}

impl Args {
    /// The same, with the models that come with foretoken if none are named.
    fn with_models(mut self) -> anyhow::Result<Self> {
        if self.model.model.is_some() || self.model.simulated.is_some() {
            return Ok(self);
        }
        let shipped = Shipped::unpack()?;
        remark("no --model: this is the small pair of models that comes with foretoken");
        self.model.model = Some(shipped.target()?);
        self.draft = self.draft.map_or_else(|| shipped.draft(), Ok).map(Some)?;
        Ok(self)
    }

    fn policy(&self) -> anyhow::Result<Policy> {
        let speculative = Policy::Speculative(Lookahead::Fixed(self.lookahead));
        match (self.policy, &self.draft) {
            (Some(PolicyName::Autoregressive), _) | (None, None) => Ok(Policy::Autoregressive),
            (Some(PolicyName::Speculative) | None, Some(_)) => Ok(speculative),
            (Some(PolicyName::Ssd), Some(_)) => Ok(Policy::Ssd(SsdOptions {
                lookahead: Lookahead::Fixed(self.lookahead),
                // Here a draft just in time keeps nobody waiting.
                fallback: OnMiss::Remote,
                ..SsdOptions::default()
            })),
            (Some(name), None) => Err(usage(format!("--policy {} needs --draft", name.name()))),
        }
    }

    fn prompt_tokens(&self, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Vec<TokenId>> {
        if !self.ids.is_empty() {
            return Ok(self.ids.iter().copied().map(TokenId).collect());
        }
        let Some(tokenizer) = tokenizer else {
            return Err(usage(
                "the model has no tokenizer.json: give the prompt with --ids",
            ));
        };
        if let Some(text) = self.prompt.as_ref().or(self.prompt_option.as_ref()) {
            return Ok(tokenizer.encode(text, true)?);
        }
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        Ok(tokenizer.encode(&text, true)?)
    }
}

/// Refuses a draft whose tokens are not the target's, as services do. A model without a tokenizer does not
/// say what its tokens are.
fn check_pair(target: &Loaded, draft: &Loaded) -> anyhow::Result<()> {
    let [ours, theirs] = [target, draft].map(|model| model.runner.info().vocab_size);
    if ours != theirs {
        return Err(usage(format!(
            "the draft has a vocabulary of {theirs} and the target one of {ours}: choose a draft model with \
             the target's tokenizer"
        )));
    }
    let [ours, theirs] = [target, draft].map(|model| model.tokenizer_digest.as_str());
    if ours != theirs && !ours.is_empty() && !theirs.is_empty() {
        return Err(usage(format!(
            "the target's tokenizer is {ours}, the draft's {theirs}: choose a draft model with the target's \
             tokenizer"
        )));
    }
    Ok(())
}

fn load_tokenizer(folder: Option<&Path>) -> anyhow::Result<Option<Arc<Tokenizer>>> {
    match folder.filter(|folder| folder.join("tokenizer.json").exists()) {
        Some(folder) => Ok(Some(Arc::new(Tokenizer::load(folder)?))),
        None => Ok(None),
    }
}

fn output(decoding: &Decoding, tokenizer: Option<&Tokenizer>) -> Output {
    let stats = decoding.stats();
    let ahead = matches!(decoding.job().policy, Policy::Ssd(_));
    Output {
        ids: decoding.tokens().iter().map(|token| token.0).collect(),
        logprobs: decoding.logprobs().to_vec(),
        text: tokenizer.map(|tokenizer| tokenizer.decode(decoding.tokens(), true)),
        finish_reason: match decoding.finish() {
            Finish::Stop => "stop",
            Finish::Length => "length",
        },
        rounds: stats.rounds,
        drafted: stats.drafted,
        accepted: stats.accepted,
        hits: ahead.then_some(stats.hits),
        misses: ahead.then_some(stats.misses),
        // As it was given, and as the API has it.
        seed: decoding.job().seed.0 as i64,
        policy: decoding.job().policy.name(),
    }
}

fn join(tokens: &[TokenId]) -> String {
    tokens
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// A seed that differs from run to run: the standard library's keys are random. Of 53 bits, which a
/// JSON number carries everywhere.
fn draw_seed() -> i64 {
    (RandomState::new().build_hasher().finish() >> 11) as i64
}
