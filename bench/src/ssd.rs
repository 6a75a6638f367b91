//! SSD on the shipped pair, beside `Speculative` and plain decoding: what it gains, how much of
//! what theory allows, and where the time goes.
//!
//! Both speculative arms have a core for the target and one for the draft; the cost-fair control is
//! plain decoding with both cores for the target. Lookaheads are chosen in a sweep before. Where
//! outputs are drawn, the arm of SSD's paper runs beside them with SSD's lookahead.

pub mod paper;
pub mod theory;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use self::{paper::Paper, theory::Theory};
use crate::{
    machine,
    prompts::Class,
    report::Report,
    run::{self, Arm, PLAIN, POLICIES, Reference, Tally, Work},
    stack::{Setup, Stack},
    stats::{Summary, arm_order},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct SsdArgs {
    /// Where prompts come from.
    #[arg(long, value_delimiter = ',', default_value = "gsm8k,bible")]
    pub classes: Vec<Class>,
    /// Temperatures.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    pub temperatures: Vec<f32>,
    /// How weights are kept.
    #[arg(long, default_value = "bf16", value_parser = crate::DTYPES)]
    pub dtype: String,
    /// Lookaheads to choose from, for each policy the best.
    #[arg(long, value_delimiter = ',', default_value = "2,3,4,5,6,7,10,15", value_parser = clap::value_parser!(u32).range(1..))]
    pub lookaheads: Vec<u32>,
    /// Largest lookahead of SSD where it is adaptive; none: as by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub most: Option<u32>,
    /// Outcomes that SSD drafts for in a round, at most.
    #[arg(long, default_value_t = 24)]
    pub budget: u32,
    /// Who looks verdicts up: the target (`Push`) or the endpoint (`Pull`).
    #[arg(long, default_value = "Push", value_parser = ["Push", "Pull"])]
    pub delivery: String,
    /// Microseconds that target and draft look for messages before they sleep, at most (`spin_seconds`);
    /// none: as by default.
    #[arg(long)]
    pub spin_us: Option<u64>,
    /// Rounds of the sweep over lookaheads, on a third of the prompts.
    #[arg(long, default_value_t = 2, value_parser = crate::some())]
    pub sweep: usize,
    /// Rounds; each measures every arm once on all prompts.
    #[arg(long, default_value_t = 5, value_parser = crate::some())]
    pub rounds: usize,
    /// Prompts of each class.
    #[arg(long, default_value_t = 24, value_parser = crate::some())]
    pub prompts: usize,
    /// Tokens that the paper's arm draws its proposals among, at most 256; the paper's own, among all.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub support: u32,
    /// Name of the result's file, and of the report.
    #[arg(long, default_value = "ssd")]
    pub name: String,
}

const TOKENS: u32 = 128;

impl SsdArgs {
    /// Target and draft on a core each.
    fn apart(&self, binary: PathBuf, models: &Path) -> Setup {
        let mut setup = Setup::apart(binary, models, &self.dtype);
        if let Some(spin) = self.spin() {
            for service in [&mut setup.service, &mut setup.draft_service] {
                service["spin_seconds"] = json!(spin.as_secs_f64());
            }
        }
        setup
    }

    fn spin(&self) -> Option<Duration> {
        self.spin_us.map(Duration::from_micros)
    }
}

/// Measures and publishes `ssd`.
pub async fn run(
    args: &SsdArgs,
    binary: PathBuf,
    models: &Path,
    results: &Path,
) -> anyhow::Result<()> {
    let mut apart = args.apart(binary, models);
    apart.service["ssd"] = json!({"budget": args.budget, "delivery": args.delivery});
    if let Some(most) = args.most {
        apart.service["ssd"]["lookahead"] = json!(format!("adaptive:{most}"));
    }
    let mut both = Setup {
        cores: "0-1".to_owned(),
        draft: None,
        ..apart.clone()
    };
    both.target_model["threads"] = json!(2);
    let draws = args
        .temperatures
        .iter()
        .any(|&temperature| temperature > 0.0);
    let paper = if draws {
        Some(paper::start(args, apart.binary.clone(), models).await?)
    } else {
        None
    };
    let mut report = report(args);
    machine::keep_to(&apart.draft_cores)?;
    let stacks = Stacks {
        paper,
        apart: apart.start().await?,
        both: both.start().await?,
    };
    let mut data = Vec::new();
    for &class in &args.classes {
        let prompts = class.load(&models.join("target"), args.prompts)?;
        for &temperature in &args.temperatures {
            let work = Work {
                prompts: &prompts,
                tokens: TOKENS,
                temperature,
            };
            let compared = compare(args, &stacks, &work).await?;
            compared.rows(class, temperature, &mut report);
            let mut json = compared.json();
            json["class"] = json!(class.name());
            json["temperature"] = json!(temperature);
            data.push(json);
        }
    }
    report.data = json!(data);
    report.publish(results)
}

/// Services with target and draft on a core each, and a target with both cores.
struct Stacks {
    apart: Stack,
    both: Stack,
    /// The first kind as SSD's paper speculates, if that is measured.
    paper: Option<Stack>,
}

fn report(args: &SsdArgs) -> Report {
    let spin = args.spin().map_or_else(String::new, |spin| {
        format!(" that look for messages for at most {spin:?} before they sleep")
    });
    Report::new(
        &args.name,
        format!(
            "Shipped pair, the target in {}, the draft in int8, its default; processes on a core each{}, a Unix socket between them, asked \
             without a router by a client on the draft's core, for whole answers, whose tokens may wait for later ones; \"plain, both cores\" has a target with two threads on both. {} prompts of each class x \
             {TOKENS} tokens, one at a time, end of sequence ignored. SSD drafts for up to {} outcomes (delivery: {}). Lookaheads are \
             the best of {:?} in a sweep of {} rounds on a third of the prompts; then {} interleaved rounds, each arm \
             after a warm-up request. Tokens/s after the first token, medians; ratios are medians of the rounds' own. \
             Every arm's tokens but the paper's are checked to equal plain decoding's. \"Bound\" is what Corollary 9 allows with the \
             times measured for Speculative with SSD's lookahead: every verdict a hit with a whole window behind it; \
             \"of bare\" is the share of the same with a bare verification as long as it is in SSD, where no wait for a window hides what it takes to hand tokens on; \
             \"adaptive\" is SSD with the lookahead that it chooses itself; \"windows\" is the part of a whole window that SSD verified. \"By lookahead\" are the hit rates of the sweep. \"The paper's arm\" is the hit rate (without first) of SSD with verification by \
             rejection, of proposals drawn among {} tokens, geometric fan-out and the paper's rule for misses, with the same lookahead and budget; the paper's own are .69 to .83. \"Hit round\" is over a bare verification of \
             the same rows (the step and what it decides, and what plain decoding needs besides), without what it waits for more of a \
             continuation, which is beside it in the same unit; \"Theorem 7\" is the predicted over the \
             measured time of SSD's rounds.",
            args.dtype,
            spin,
            args.prompts,
            args.budget,
            args.delivery,
            args.lookaheads,
            args.sweep,
            args.rounds,
            args.support
        ),
        &[
            "prompts",
            "T",
            "plain, both cores",
            "Speculative",
            "SSD",
            "SSD/Speculative (lowest to highest)",
            "bound",
            "share of it",
            "of bare",
            "SSD/plain, both cores",
            "adaptive/SSD",
            "hit rate (without first)",
            "by lookahead",
            "the paper's arm",
            "windows",
            "hit round",
            "waits for more",
            "bytes a round",
            "draft hidden",
            "Theorem 7",
        ],
    )
}

/// The arms after the sweep, with what came of them.
struct Compared {
    arms: Vec<(String, Arm)>,
    /// By arm, by round.
    rates: Vec<Vec<f64>>,
    tallies: Vec<Tally>,
    sweep: Vec<Swept>,
    paper: Paper,
}

/// Places of the arms: the lookahead of the fifth is adaptive, the last is Speculative with that of SSD.
const BOTH: usize = 0;
const ONE: usize = 1;
const SPECULATIVE: usize = 2;
const SSD: usize = 3;
const ADAPTIVE: usize = 4;
const SAME: usize = 5;

async fn compare(args: &SsdArgs, stacks: &Stacks, work: &Work<'_>) -> anyhow::Result<Compared> {
    let mut reference = Reference::default();
    run::measure(&stacks.both, &PLAIN, work, &mut reference).await?;
    let (best, sweep) = sweep(args, &stacks.apart, work, &mut reference).await?;
    let [speculative, ssd] = best;
    let adaptive = Arm {
        lookahead: None,
        ..ssd
    };
    let mut arms = vec![
        ("plain, both cores".to_owned(), PLAIN),
        ("plain, one core".to_owned(), PLAIN),
        (speculative.name(), speculative.clone()),
        (ssd.name(), ssd.clone()),
        ("SSD adaptive".to_owned(), adaptive),
    ];
    if speculative.lookahead != ssd.lookahead {
        let policy = speculative.policy;
        let same = Arm { policy, ..ssd };
        arms.push((same.name(), same));
    }
    let mut rates = vec![Vec::new(); arms.len()];
    let mut tallies = vec![Tally::default(); arms.len()];
    let mut paper = Paper::default();
    for round in 0..args.rounds {
        for arm in arm_order(arms.len(), round) {
            let stack = if arm == BOTH {
                &stacks.both
            } else {
                &stacks.apart
            };
            let tally = run::measure(stack, &arms[arm].1, work, &mut reference).await?;
            rates[arm].push(tally.rate());
            tallies[arm].add(&tally);
        }
        if let Some(stack) = stacks.paper.as_ref().filter(|_| work.temperature > 0.0) {
            paper.measure(stack, &arms[SSD].1, work).await?;
        }
    }
    Ok(Compared {
        arms,
        rates,
        tallies,
        sweep,
        paper,
    })
}

/// The best lookahead of each policy, and the rates of all.
async fn sweep(
    args: &SsdArgs,
    stack: &Stack,
    work: &Work<'_>,
    reference: &mut Reference,
) -> anyhow::Result<([Arm; 2], Vec<Swept>)> {
    let work = Work {
        prompts: &work.prompts[..work.prompts.len().div_ceil(3)],
        ..*work
    };
    let lookaheads = &args.lookaheads;
    let of = |policy| lookaheads.iter().map(move |&k| Arm::of(policy, k));
    let arms: Vec<Arm> = POLICIES.into_iter().flat_map(of).collect();
    let mut rates = vec![Vec::new(); arms.len()];
    let mut tallies = vec![Tally::default(); arms.len()];
    for round in 0..args.sweep.max(1) {
        for arm in arm_order(arms.len(), round) {
            let tally = run::measure(stack, &arms[arm], &work, reference).await?;
            rates[arm].push(tally.rate());
            tallies[arm].add(&tally);
        }
    }
    let medians = rates
        .iter()
        .map(|rates| Summary::of(rates).map_or(0.0, |s| s.median));
    let swept: Vec<(&Arm, f64)> = arms.iter().zip(medians).collect();
    let best = |policy| {
        let arms = swept.iter().filter(|(arm, _)| arm.policy == policy);
        let best = arms.max_by(|a, b| a.1.total_cmp(&b.1));
        best.map(|(arm, _)| (*arm).clone())
            .context("no lookahead to choose from")
    };
    let best = [best(POLICIES[0])?, best(POLICIES[1])?];
    let swept = swept
        .into_iter()
        .zip(&tallies)
        .map(|((arm, rate), tally)| Swept {
            arm: arm.name(),
            lookahead: arm.lookahead,
            tok_s: rate,
            hit_rate: (arm.policy == run::SSD).then(|| tally.hit_rate(false)),
        });
    Ok((best, swept.collect()))
}

/// An arm of the sweep.
#[derive(Clone, Debug, Serialize)]
struct Swept {
    arm: String,
    #[serde(skip)]
    lookahead: Option<u32>,
    tok_s: f64,
    /// Of those that draft ahead.
    hit_rate: Option<f64>,
}

impl Compared {
    fn rate(&self, arm: usize) -> Option<Summary> {
        Summary::of(&self.rates[arm])
    }

    /// Of two arms, round by round.
    fn ratio(&self, of: usize, to: usize) -> Option<Summary> {
        Summary::ratio(&self.rates[of], &self.rates[to])
    }

    fn theory(&self) -> Theory {
        let speculative = &self.tallies[SPECULATIVE];
        let same = self.tallies.get(SAME).unwrap_or(speculative);
        let lookahead = self.arms[SSD].1.lookahead.unwrap_or(0);
        let (plain, ssd) = (&self.tallies[ONE], &self.tallies[SSD]);
        Theory::of(plain, [speculative, same], ssd, lookahead)
    }

    /// Hit rates in the sweep, by lookahead.
    fn hit_rates(&self) -> String {
        let rate = |swept: &Swept| Some(format!("{}: {:.2}", swept.lookahead?, swept.hit_rate?));
        let rates: Vec<String> = self.sweep.iter().filter_map(rate).collect();
        rates.join(", ")
    }

    fn rows(&self, class: Class, temperature: f32, report: &mut Report) {
        let ratios = [(SSD, SPECULATIVE), (SSD, BOTH), (ADAPTIVE, SSD)];
        let [Some(outright), Some(fair), Some(adaptive)] =
            ratios.map(|(of, to)| self.ratio(of, to))
        else {
            return;
        };
        let rate = |arm: usize| {
            let name = &self.arms[arm].0;
            let k = name
                .split_once(' ')
                .filter(|_| arm > ONE)
                .map_or("", |(_, k)| k);
            let rate = self.rate(arm).map_or(0.0, |rate| rate.median);
            format!("{rate:.0} {k}").trim_end().to_owned()
        };
        let (theory, ssd) = (self.theory(), &self.tallies[SSD]);
        let share = |bound| format!("{:.0} %", 100.0 * outright.median / bound);
        report.row([
            class.name().to_owned(),
            format!("{temperature:.0}"),
            rate(BOTH),
            rate(SPECULATIVE),
            rate(SSD),
            outright.span(),
            format!("{:.2}", theory.bound),
            share(theory.bound),
            share(theory.bare_bound),
            fair.span(),
            adaptive.span(),
            format!("{:.3} ({:.3})", ssd.hit_rate(false), ssd.hit_rate(true)),
            self.hit_rates(),
            self.paper.cell(),
            format!("{:.0} %", 100.0 * theory.whole),
            format!("{:+.1} %", 100.0 * (theory.hit_round - 1.0)),
            format!("{:+.1} %", 100.0 * theory.lingered),
            format!("{:.0}", ssd.round_bytes()),
            format!("{:.0} %", 100.0 * ssd.hidden()),
            format!("{:.2}", theory.predicted / theory.measured),
        ]);
    }

    fn json(&self) -> Value {
        let arms = self.arms.iter().enumerate().map(|(arm, (name, _))| {
            json!({"arm": name, "tok_s": self.rate(arm), "means": self.tallies[arm].json()})
        });
        json!({
            "arms": arms.collect::<Vec<_>>(), "sweep": self.sweep, "theory": self.theory(),
            "paper": self.paper.json(),
            "ssd_over_speculative": self.ratio(SSD, SPECULATIVE),
            "ssd_over_plain_one_core": self.ratio(SSD, ONE), "adaptive_over_ssd": self.ratio(ADAPTIVE, SSD), "ssd_over_plain_both_cores": self.ratio(SSD, BOTH),
            "speculative_over_plain_both_cores": self.ratio(SPECULATIVE, BOTH),
        })
    }
}
