//! What is simulated.

use std::time::Duration;

use super::{
    arm,
    arms::Lab,
    lines::Line,
    published::{
        self, LLAMA, LOG, LOG_BATCHES, LOG_SINGLE, QWEN, REPRODUCTION, REPRODUCTION_SPECULATIVE,
        REPRODUCTION_SPEEDS, Setting,
    },
    world::Scenario,
};

/// A case of which several arms are simulated.
struct Bench {
    experiment: &'static str,
    case: String,
    axis: &'static str,
    lines: Vec<Line>,
}

impl Bench {
    fn new(experiment: &'static str, case: impl Into<String>, axis: &'static str) -> Self {
        Self {
            experiment,
            case: case.into(),
            axis,
            lines: Vec::new(),
        }
    }

    /// Simulates an arm with this lookahead; without one its targets choose it.
    fn add(
        &mut self,
        arm: &'static str,
        (x, lookahead): (f64, Option<u32>),
        published: Published,
        scenario: &Scenario,
    ) -> anyhow::Result<()> {
        let figures = scenario.run()?;
        self.lines.push(Line {
            experiment: self.experiment.to_owned(),
            case: self.case.clone(),
            axis: self.axis.to_owned(),
            x,
            arm: arm.to_owned(),
            lookahead: lookahead.unwrap_or(figures.lookahead.round() as u32),
            speed: figures.speed(),
            published: published.figure,
            given: published.given,
            hit_rate: figures.hit_rate,
            tokens_per_round: figures.tokens_per_round,
            round_ms: figures.round_ms,
            wait_ms: figures.wait_ms,
            draft_busy: figures.draft_busy,
            fairness: figures.fairness(),
            shares: figures.shares(),
        });
        Ok(())
    }
}

/// What was published of an arm.
#[derive(Clone, Copy)]
struct Published {
    figure: Option<f64>,
    given: bool,
}

const NOTHING: Published = Published {
    figure: None,
    given: false,
};

fn shown(figure: f64) -> Published {
    Published {
        figure: Some(figure),
        given: false,
    }
}

fn given(figure: f64) -> Published {
    Published {
        figure: Some(figure),
        given: true,
    }
}

/// The paper's table: one request at a time, four datasets, two pairs.
pub(super) fn published(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (setting, datasets) in [LLAMA, QWEN] {
        for set in datasets {
            let case = lab.case(setting, setting.agreement(set.speculative));
            let name = format!("{}: {}", setting.name, set.name);
            let mut bench = Bench::new("published", name, "streams");
            let known = given(setting.plain);
            bench.add(arm::PLAIN, (1.0, Some(0)), known, &case.plain())?;
            let k = setting.speculative_k;
            let known = given(set.speculative);
            bench.add(
                arm::SPECULATIVE,
                (1.0, Some(k)),
                known,
                &case.speculative(k),
            )?;
            let (k, known) = (setting.k, shown(set.ssd));
            bench.add(arm::PAPER, (1.0, Some(k)), known, &case.reference(k))?;
            let (k, reference) = case.best_reference()?;
            bench.add(arm::PAPER_BEST, (1.0, Some(k)), NOTHING, &reference)?;
            bench.add(arm::OURS, (1.0, None), NOTHING, &case.ours())?;
            let (k, ours) = case.best_of_ours()?;
            bench.add(arm::OURS_BEST, (1.0, Some(k)), NOTHING, &ours)?;
            let trees = case.ours().with_trees();
            bench.add(arm::TREES, (1.0, None), NOTHING, &trees)?;
            lines.extend(bench.lines);
        }
    }
    Ok(lines)
}

/// The independent reproduction: what the lookahead does.
pub(super) fn reproduction(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let setting = REPRODUCTION;
    let case = lab.case(setting, setting.agreement(REPRODUCTION_SPECULATIVE));
    let mut bench = Bench::new("lookahead", setting.name, "K");
    let known = given(setting.plain);
    bench.add(arm::PLAIN, (0.0, Some(0)), known, &case.plain())?;
    for k in 1..=8 {
        let x = (f64::from(k), Some(k));
        let speculative = if k == setting.speculative_k {
            given(REPRODUCTION_SPECULATIVE)
        } else {
            NOTHING
        };
        bench.add(arm::SPECULATIVE, x, speculative, &case.speculative(k))?;
        let published = REPRODUCTION_SPEEDS.iter().find(|(known, _)| *known == k);
        let published = published.map_or(NOTHING, |(_, speed)| shown(*speed));
        bench.add(arm::PAPER, x, published, &case.reference(k))?;
        let mut ours = case.ours();
        ours.look_ahead(k);
        bench.add(arm::OURS, x, NOTHING, &ours)?;
        bench.add(arm::TREES, x, NOTHING, &ours.with_trees())?;
    }
    Ok(bench.lines)
}

/// The authors' log: several requests at once.
pub(super) fn batches(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let case = lab.case(LOG, published::log_agreement());
    let mut bench = Bench::new("batch", LOG.name, "streams");
    let single = [(1, LOG_SINGLE)];
    for (batch, speed) in single.into_iter().chain(LOG_BATCHES) {
        let at = |k| (batch as f64, k);
        // Of one follows how often the pair agrees, of sixteen what a row takes.
        let known = if [1, 16].contains(&batch) {
            given
        } else {
            shown
        };
        let batched = |scenario| case.batched(scenario, batch);
        let plain = batched(case.plain());
        bench.add(arm::PLAIN, at(Some(0)), NOTHING, &plain)?;
        let k = LOG.speculative_k;
        let speculative = batched(case.speculative(k));
        bench.add(arm::SPECULATIVE, at(Some(k)), NOTHING, &speculative)?;
        let reference = batched(case.reference(LOG.k));
        bench.add(arm::PAPER, at(Some(LOG.k)), known(speed), &reference)?;
        let ours = batched(case.ours());
        bench.add(arm::OURS, at(None), NOTHING, &ours)?;
        bench.add(arm::TREES, at(None), NOTHING, &ours.with_trees())?;
    }
    Ok(bench.lines)
}

/// Round trips between target and endpoint, pushed and asked for.
pub(super) fn network(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let (llama, sets) = LLAMA;
    let last = sets[sets.len() - 1];
    let cases: [(Setting, f64, &str); 2] = [
        (llama, last.speculative, last.name),
        (REPRODUCTION, REPRODUCTION_SPECULATIVE, "K as learned"),
    ];
    let mut lines = Vec::new();
    for (setting, speculative, data) in cases {
        let case = lab.case(setting, setting.agreement(speculative));
        let name = format!("{}: {data}", setting.name);
        let mut bench = Bench::new("network", name, "round trip ms");
        for micros in [0, 100, 500, 1000, 2000] {
            let round_trip = Duration::from_micros(micros);
            let at = |k| (micros as f64 / 1e3, k);
            let mut reference = case.reference(setting.k);
            reference.round_trip = round_trip;
            bench.add(arm::PAPER, at(Some(setting.k)), NOTHING, &reference)?;
            let mut ours = case.ours();
            ours.round_trip = round_trip;
            bench.add(arm::OURS, at(None), NOTHING, &ours)?;
            ours.pull();
            bench.add(arm::PULL, at(None), NOTHING, &ours)?;
        }
        lines.extend(bench.lines);
    }
    Ok(lines)
}

/// Targets that share endpoints, and targets each with an endpoint of its own that is slower by their
/// number, the same compute in all, which do with it what is fastest.
pub(super) fn sharing(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let (setting, sets) = LLAMA;
    let set = sets[sets.len() - 1];
    let mut case = lab.case(setting, setting.agreement(set.speculative));
    let name = |what: &str| format!("{}: {}, {what}", setting.name, set.name);
    let mut lines = Vec::new();
    for (endpoints, what) in [(1, "1 endpoint"), (2, "2 endpoints"), (8, "8 endpoints")] {
        let mut bench = Bench::new("sharing", name(what), "targets");
        for targets in [1, 4, 16, 64] {
            if targets >= endpoints {
                let shared = case.shared(case.ours(), targets, endpoints);
                bench.add(arm::OURS, (targets as f64, None), NOTHING, &shared)?;
            }
        }
        lines.extend(bench.lines);
    }
    let mut bench = Bench::new("sharing", name("1/N each"), "targets");
    for targets in [1, 4, 16, 64] {
        case.draft_slower_by(targets as u32);
        let own = case.shared(case.best()?, targets, targets);
        bench.add(arm::OWN, (targets as f64, None), NOTHING, &own)?;
    }
    lines.extend(bench.lines);
    Ok(lines)
}

/// Ours when tokens are sampled: the same pair, the log's times.
pub(super) fn temperatures(lab: &Lab) -> anyhow::Result<Vec<Line>> {
    let case = lab.case(LOG, published::log_agreement());
    let mut bench = Bench::new("temperature", LOG.name, "T");
    for x in [0.0, 0.7, 1.0] {
        let temperature = x as f32;
        let mut ours = case.ours();
        ours.temperature = temperature;
        bench.add(arm::OURS, (x, None), NOTHING, &ours)?;
        bench.add(arm::TREES, (x, None), NOTHING, &ours.with_trees())?;
        let k = LOG.speculative_k;
        let mut speculative = case.speculative(k);
        speculative.temperature = temperature;
        bench.add(arm::SPECULATIVE, (x, Some(k)), NOTHING, &speculative)?;
    }
    Ok(bench.lines)
}
