//! Several simulated targets on one endpoint, beside as many private endpoints that have the same
//! compute together.

use std::path::{Path, PathBuf};

use anyhow::Context;
use futures::future::try_join_all;
use serde_json::json;

use crate::{
    client::Answer,
    distant::{self, DraftArgs},
    prompts::simulated,
    report::Report,
    run::{Arm, PLAIN, Reference, SPECULATIVE, SSD, Work},
    stack::{Setup, Stack},
    stats::{Summary, arm_order, jain},
};

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct SharingArgs {
    /// Targets.
    #[arg(long, default_value_t = 4, value_parser = crate::some())]
    pub targets: usize,
    /// Streams of each target.
    #[arg(long, default_value_t = 1, value_parser = crate::some())]
    pub streams: usize,
    /// Policies.
    #[arg(long, value_delimiter = ',', default_value = "Speculative,SSD", value_parser = [PLAIN.policy, SPECULATIVE, SSD])]
    pub policies: Vec<String>,
    /// Lookaheads to choose from, for each side the best.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5,6", value_parser = clap::value_parser!(u32).range(1..))]
    pub lookaheads: Vec<u32>,
    /// Drafts.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Rounds; each measures both sides once.
    #[arg(long, default_value_t = 5, value_parser = crate::some())]
    pub rounds: usize,
}

const TOKENS: u32 = 256;
const COLUMNS: [&str; 8] = [
    "policy",
    "T",
    "private tok/s",
    "shared tok/s",
    "shared/private (lowest to highest)",
    "slowest shared/private (lowest to highest)",
    "Jain shared (lowest)",
    "Jain private",
];

/// Measures and publishes `sharing`.
pub async fn run(args: &SharingArgs, binary: PathBuf, results: &Path) -> anyhow::Result<()> {
    let draft = |slower| args.draft.simulated(slower);
    let whole = Setup::simulated(binary.clone(), &distant::target(), &draft(1));
    let part = Setup::simulated(binary, &distant::target(), &draft(args.targets as u64));
    let first = whole.start().await?;
    let follower = Setup {
        endpoint: first.draft().cloned(),
        ..whole
    };
    let (mut shared, mut private) = (vec![first], Vec::new());
    for number in 0..args.targets {
        private.push(part.start().await?);
        if number > 0 {
            shared.push(follower.start().await?);
        }
    }
    let mut report = report(args);
    let mut data = Vec::new();
    for policy in &args.policies {
        let policy = [PLAIN.policy, SPECULATIVE, SSD]
            .into_iter()
            .find(|known| known == policy)
            .with_context(|| format!("no policy is called {policy}"))?;
        for temperature in [0.0, 1.0] {
            let mut sides = [Side::new(&shared), Side::new(&private)];
            let mut reference = Reference::default();
            side_rates(&private, &PLAIN, temperature, args.streams, &mut reference).await?;
            for side in &mut sides {
                side.choose(args, policy, temperature, &mut reference)
                    .await?;
            }
            for round in 0..args.rounds {
                for place in arm_order(sides.len(), round) {
                    let side = &mut sides[place];
                    let arm = Arm::of(policy, side.lookahead);
                    let rates =
                        side_rates(side.stacks, &arm, temperature, args.streams, &mut reference)
                            .await?;
                    side.note(&rates);
                }
            }
            data.extend(publish(policy, temperature, &sides, &mut report));
        }
    }
    report.data = json!(data);
    report.publish(results)
}

fn report(args: &SharingArgs) -> Report {
    Report::new(
        "sharing",
        format!(
            "{} simulated targets (20 ms a step), {} stream(s) each of {TOKENS} tokens at the same time: all on one \
             endpoint, and each on an endpoint of its own whose steps take {} times as long. Separate processes, Unix \
             sockets. Lookaheads are the best of {:?} on each side. Medians of {} interleaved rounds; every stream's \
             tokens are checked to equal plain decoding's. Tokens/s of a target, mean over targets; those of the \
             slowest target on the shared endpoint over the mean of the private ones; Jain's index of their rates \
             on the shared endpoint.",
            args.targets, args.streams, args.targets, args.lookaheads, args.rounds
        ),
        &COLUMNS,
    )
}

/// One way to serve the targets.
struct Side<'a> {
    stacks: &'a [Stack],
    lookahead: u32,
    /// By round: mean rate of a target, that of the slowest one, and Jain's index.
    means: Vec<f64>,
    slowest: Vec<f64>,
    fairness: Vec<f64>,
}

impl<'a> Side<'a> {
    fn new(stacks: &'a [Stack]) -> Self {
        Self {
            stacks,
            lookahead: 0,
            means: Vec::new(),
            slowest: Vec::new(),
            fairness: Vec::new(),
        }
    }

    /// Finds the best lookahead.
    async fn choose(
        &mut self,
        args: &SharingArgs,
        policy: &'static str,
        temperature: f32,
        reference: &mut Reference,
    ) -> anyhow::Result<()> {
        let mut best = 0.0;
        for &lookahead in &args.lookaheads {
            let arm = Arm::of(policy, lookahead);
            let rates = side_rates(self.stacks, &arm, temperature, args.streams, reference).await?;
            let sum: f64 = rates.iter().sum();
            if sum > best {
                best = sum;
                self.lookahead = lookahead;
            }
        }
        Ok(())
    }

    fn note(&mut self, rates: &[f64]) {
        let sum: f64 = rates.iter().sum();
        self.means.push(sum / rates.len() as f64);
        let slowest = rates.iter().copied().min_by(f64::total_cmp);
        self.slowest.extend(slowest);
        self.fairness.push(jain(rates));
    }
}

/// Tokens per second of each target, all of them at the same time; of several streams together.
async fn side_rates(
    stacks: &[Stack],
    arm: &Arm,
    temperature: f32,
    streams: usize,
    reference: &mut Reference,
) -> anyhow::Result<Vec<f64>> {
    let prompts: Vec<_> = (0..stacks.len() * streams).map(simulated).collect();
    let work = Work {
        prompts: &prompts,
        tokens: TOKENS,
        temperature,
    };
    let answers = (0..prompts.len()).map(|number| {
        let client = stacks[number / streams].target_client();
        let ask = work.ask(number, arm);
        async move { client.complete(&ask).await }
    });
    let answers = try_join_all(answers).await?;
    let rates = answers.chunks(streams);
    let rates = rates
        .map(|answers| answers.iter().map(Answer::decode_rate).sum())
        .collect();
    for (number, answer) in answers.into_iter().enumerate() {
        reference.check(number, answer.ids, &arm.name())?;
    }
    Ok(rates)
}

fn publish(
    policy: &str,
    temperature: f32,
    sides: &[Side<'_>; 2],
    report: &mut Report,
) -> Option<serde_json::Value> {
    let [shared, private] = sides;
    let rates = [Summary::of(&shared.means)?, Summary::of(&private.means)?];
    let fairness = [
        Summary::of(&shared.fairness)?,
        Summary::of(&private.fairness)?,
    ];
    let ratio = Summary::ratio(&shared.means, &private.means)?;
    // A mean may rise at the cost of a single target.
    let slowest = Summary::ratio(&shared.slowest, &private.means)?;
    report.row([
        policy.to_owned(),
        format!("{temperature:.0}"),
        format!("{:.1} K={}", rates[1].median, private.lookahead),
        format!("{:.1} K={}", rates[0].median, shared.lookahead),
        ratio.span(),
        slowest.span(),
        format!("{:.4} ({:.4})", fairness[0].median, fairness[0].min),
        format!("{:.4}", fairness[1].median),
    ]);
    Some(json!({"policy": policy, "temperature": temperature,
        "shared": {"lookahead": shared.lookahead, "tok_s": rates[0], "jain": fairness[0]},
        "private": {"lookahead": private.lookahead, "tok_s": rates[1], "jain": fairness[1]},
        "shared_over_private": ratio, "slowest_shared_over_private": slowest}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_target_is_held_against_the_mean_of_the_private_ones() {
        let mut sides = [Side::new(&[]), Side::new(&[])];
        for (shared, private) in [([9.0, 3.0], [3.0, 5.0]), ([8.0, 4.0], [2.0, 2.0])] {
            sides[0].note(&shared);
            sides[1].note(&private);
        }
        let mut report = Report::computed("sharing", "", &COLUMNS);
        let data = publish(SSD, 0.0, &sides, &mut report).expect("rounds");
        let row = &report.rows[0];
        assert_eq!(row.len(), COLUMNS.len());
        let cell = |name: &str| {
            let place = COLUMNS.iter().position(|column| column.starts_with(name));
            place.map(|place| row[place].as_str())
        };
        assert_eq!(cell("shared/private"), Some("2.25 (1.50 to 3.00)"));
        assert_eq!(cell("slowest shared/private"), Some("1.38 (0.75 to 2.00)"));
        let least = &data["slowest_shared_over_private"]["min"];
        assert_eq!(least.as_f64(), Some(0.75));
    }
}
