//! What others measured, and what follows from it.
//!
//! Everything the simulation is given stands here with its source; nothing is fitted to what it is
//! then held against. Sources:
//!
//! - *paper*: SSD, Kumar et al. 2026 (arXiv 2603.03251) and its repository: one H100 node, greedy,
//!   one request at a time, target on four GPUs, draft on a fifth.
//! - *log*: the test log that its authors published with an early version of the code (GSM8K).
//! - *reproduction*: an independent one of the 32B/0.6B pair with times of the parts of a round.
//! - *hardware*: data sheet of the H100 (SXM): 3.35 TB/s, 989 TFLOP/s in bf16; model cards.

use std::time::Duration;

use foretoken_speculation::{control::StepCost, theory};

use super::times::{StepTime, Times};

/// Reproduction: a plain decoding step.
const PLAIN_TOKENS_PER_SECOND: f64 = 97.4;
/// Reproduction, in ms: a verification; a round at K = 7, and how long the target waits in it.
const VERIFY: f64 = 11.45;
const ROUND_AT_7: f64 = 23.8;
const WAIT_AT_7: f64 = 11.36;
/// Reproduction, in ms: the endpoint's service of a request, its glue pass with what is prepared for
/// it, one step of all branches, and filling the table.
const SERVICE: f64 = 0.71;
const GLUE: f64 = 2.83;
const BRANCH_STEP: f64 = 2.54;
const FILL: f64 = 0.05;
/// Log: a round of one request at K = 6, the middle of 21 to 23 ms; one of sixteen.
const LOG_ROUND: f64 = 22.0;
const LOG_ROUND_OF_16: f64 = 44.0;
/// Hardware: bytes and operations a millisecond; of operations half the peak is assumed.
const BYTES: f64 = 3.35e9;
const OPERATIONS: f64 = 989e9 / 2.0;
/// Rows of a pass up to which the target's time is taken to be that of a verification.
const FEW_ROWS: u32 = 8;

/// A draft model.
#[derive(Clone, Copy, Debug)]
pub(super) struct DraftModel {
    layers: f64,
    parameters: f64,
}

/// Model cards: Qwen3-0.6B and Llama-3.2-1B.
pub(super) const QWEN_06B: DraftModel = DraftModel {
    layers: 28.0,
    parameters: 0.596e9,
};
pub(super) const LLAMA_1B: DraftModel = DraftModel {
    layers: 16.0,
    parameters: 1.236e9,
};

impl DraftModel {
    /// Time of a step that takes Qwen3-0.6B `measured` ms: reading the weights at the memory's
    /// speed, and the rest in proportion to the number of layers, because it is launches and host work.
    fn step(self, measured: f64) -> StepTime {
        let read = |model: Self| 2.0 * model.parameters / BYTES;
        let layer = (measured - read(QWEN_06B)) / QWEN_06B.layers;
        StepTime {
            base: ms(layer * self.layers + read(self)),
            row: ms(2.0 * self.parameters / OPERATIONS),
        }
    }
}

/// What speculative decoding of one dataset was published to reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dataset {
    pub(super) name: &'static str,
    /// Tokens a second: plain speculation, and ahead of verdicts.
    pub(super) speculative: f64,
    pub(super) ssd: f64,
}

/// A published setting: one pair on one machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    draft: DraftModel,
    /// Tokens a second of plain decoding.
    pub(super) plain: f64,
    /// Lookahead of plain speculation, and ahead of verdicts; guesses for each number of accepted
    /// tokens.
    pub(super) speculative_k: u32,
    pub(super) k: u32,
    pub(super) fan_out: u32,
}

const fn dataset(name: &'static str, speculative: f64, ssd: f64) -> Dataset {
    Dataset {
        name,
        speculative,
        ssd,
    }
}

/// Paper.
pub(super) const LLAMA: (Setting, [Dataset; 4]) = (
    Setting {
        name: "Llama 70B/1B, paper",
        draft: LLAMA_1B,
        plain: 54.7,
        speculative_k: 6,
        k: 7,
        fan_out: 3,
    },
    [
        dataset("HumanEval", 176.0, 283.0),
        dataset("UltraFeedback", 138.0, 215.0),
        dataset("Alpaca", 145.0, 224.0),
        dataset("GSM8K", 188.0, 301.0),
    ],
);

/// Paper; lookahead and fan-out are the log's.
pub(super) const QWEN: (Setting, [Dataset; 4]) = (
    Setting {
        name: "Qwen3 32B/0.6B, paper",
        draft: QWEN_06B,
        plain: 88.8,
        speculative_k: 4,
        k: 4,
        fan_out: 2,
    },
    [
        dataset("HumanEval", 146.0, 222.0),
        dataset("UltraFeedback", 122.0, 174.0),
        dataset("Alpaca", 127.0, 185.0),
        dataset("GSM8K", 152.0, 234.0),
    ],
);

/// Reproduction; the fan-out is the reference's default.
pub(super) const REPRODUCTION: Setting = Setting {
    name: "Qwen3 32B/0.6B, reproduction",
    draft: QWEN_06B,
    plain: PLAIN_TOKENS_PER_SECOND,
    speculative_k: 6,
    k: 4,
    fan_out: 3,
};
/// Its plain speculation, and its speeds by lookahead.
pub(super) const REPRODUCTION_SPECULATIVE: f64 = 141.4;
pub(super) const REPRODUCTION_SPEEDS: [(u32, f64); 4] =
    [(4, 210.9), (5, 193.6), (6, 175.3), (7, 158.6)];

/// Log: 70B/1B in batches. Tokens a second of one request are an input.
pub(super) const LOG: Setting = Setting {
    name: "Llama 70B/1B, authors' log",
    draft: LLAMA_1B,
    plain: 54.0,
    speculative_k: 6,
    k: 6,
    fan_out: 3,
};
pub(super) const LOG_SINGLE: f64 = 238.0;
/// Requests and tokens a second.
pub(super) const LOG_BATCHES: [(usize, f64); 4] =
    [(2, 409.0), (4, 681.0), (8, 1166.0), (16, 1900.0)];

impl Setting {
    /// Times, with `row` for each row of a target's pass beyond the first few.
    pub(super) fn times(&self, row: Duration) -> Times {
        let plain = 1e3 / self.plain;
        // The reproduction's verification with everything between two of them, beside its plain
        // step: what more there is is host work, the same for any model.
        let between = ROUND_AT_7 - WAIT_AT_7 - VERIFY;
        let more = VERIFY + between - 1e3 / PLAIN_TOKENS_PER_SECOND;
        let many = FEW_ROWS + 1000;
        let verification = ms(plain + more);
        Times {
            target: StepCost::new(vec![
                (1, ms(plain)),
                (2, verification),
                (FEW_ROWS, verification),
                (many, verification + row * 1000),
            ]),
            token: self.draft.step(BRANCH_STEP),
            glue: self.draft.step(GLUE),
            branch: self.draft.step(BRANCH_STEP),
            service: ms(SERVICE),
            fill: ms(FILL),
        }
    }

    /// The agreement at which plain speculation reaches `speed` tokens a second: its round is a
    /// verification and its lookahead's steps, so the speed gives tokens a round, and these the
    /// probability of acceptance.
    pub(super) fn agreement(&self, speed: f64) -> f64 {
        let times = self.times(Duration::ZERO);
        let k = self.speculative_k;
        let round = times.pass(k + 1) + (times.token.base + times.token.row) * k;
        agreement(speed * round.as_secs_f64(), k)
    }
}

/// Log: the agreement of its single request, from tokens a second and the round.
pub(super) fn log_agreement() -> f64 {
    agreement(LOG_SINGLE * LOG_ROUND / 1e3, LOG.k)
}

/// Log: what a row more takes, from the round of sixteen requests. In lock-step that is service,
/// verification, and a draft just in time if any of them missed, which one does with probability
/// `1 - h^16` for a hit rate of h.
pub(super) fn log_row(hit_rate: f64) -> Duration {
    let times = LOG.times(Duration::ZERO);
    let rows = 16 * (LOG.k + 1);
    let misses = 1.0 - hit_rate.powi(16);
    let token = times.token.base + times.token.row * 16;
    let known = times.service + times.pass(rows) + (token * LOG.k).mul_f64(misses);
    ms(LOG_ROUND_OF_16).saturating_sub(known) / (rows - FEW_ROWS)
}

/// The acceptance that emits `tokens` a round with lookahead `k` (Leviathan et al. 2023, eq. 1).
fn agreement(tokens: f64, k: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if theory::expected_tokens(middle, k) < tokens {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}
