//! The arm of SSD's paper (arXiv 2603.03251): verification by rejection, geometric fan-out, its rule for
//! misses, at temperature 1.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::SsdArgs;
use crate::{
    run::{self, Arm, Reference, Tally, Work},
    stack::Stack,
    stats::Summary,
};

/// Hit rates of the paper's pairs at temperature 1, the lowest and the highest.
const PUBLISHED: [f64; 2] = [0.69, 0.83];

/// The services of the arm: as those of SSD but for how proposals are guessed and verified, and what
/// follows a miss.
pub async fn start(args: &SsdArgs, binary: PathBuf, models: &Path) -> anyhow::Result<Stack> {
    let mut setup = args.apart(binary, models);
    setup.service["ssd"] =
        json!({"budget": args.budget, "fan_out": "Geometric", "fallback": "LockStep"});
    setup.service["verification"] = json!({"Rejection": {"support": args.support}});
    setup.start().await
}

/// What came of the arm.
#[derive(Debug, Default)]
pub struct Paper {
    rates: Vec<f64>,
    tally: Tally,
}

impl Paper {
    /// Measures `arm` once on all prompts. Its tokens are samples of their own.
    pub async fn measure(
        &mut self,
        stack: &Stack,
        arm: &Arm,
        work: &Work<'_>,
    ) -> anyhow::Result<()> {
        let tally = run::measure(stack, arm, work, &mut Reference::default()).await?;
        self.rates.push(tally.rate());
        self.tally.add(&tally);
        Ok(())
    }

    /// Its hit rate, all of it and without first rounds; a dash if it was not measured.
    pub fn cell(&self) -> String {
        if self.rates.is_empty() {
            return "-".to_owned();
        }
        let (all, later) = (self.tally.hit_rate(false), self.tally.hit_rate(true));
        format!("{all:.3} ({later:.3})")
    }

    /// The same, speed and means, beside what was published; null if it was not measured.
    pub fn json(&self) -> Value {
        if self.rates.is_empty() {
            return Value::Null;
        }
        json!({
            "tok_s": Summary::of(&self.rates), "means": self.tally.json(),
            "published_hit_rates": PUBLISHED,
        })
    }
}
