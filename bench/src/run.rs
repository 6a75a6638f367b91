//! An arm measured: what its client saw, and what both services counted meanwhile.

use std::time::Duration;

use anyhow::bail;
use serde_json::{Value, json};

use crate::{
    client::{Answer, Ask},
    metrics::Counts,
    stack::Stack,
};

/// A policy and its lookahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Name of the policy, as requests give it.
    pub policy: &'static str,
    /// Tokens of a window; none: the policy's own.
    pub lookahead: Option<u32>,
}

/// Names of the policies that speculate, as requests give them.
pub const SPECULATIVE: &str = "Speculative";
/// Ahead of verdicts.
pub const SSD: &str = "SSD";
/// Both, in the order of tables.
pub const POLICIES: [&str; 2] = [SPECULATIVE, SSD];

/// Plain decoding.
pub const PLAIN: Arm = Arm {
    policy: "Autoregressive",
    lookahead: None,
};

impl Arm {
    /// `policy` with windows of `lookahead` tokens.
    pub fn of(policy: &'static str, lookahead: u32) -> Self {
        Self {
            policy,
            lookahead: Some(lookahead),
        }
    }

    /// The name in tables.
    pub fn name(&self) -> String {
        match self.lookahead {
            Some(k) => format!("{} K={k}", self.policy),
            None if self.policy == PLAIN.policy => "plain".to_owned(),
            None => self.policy.to_owned(),
        }
    }
}

/// What every arm of a comparison is asked.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Prompts, one after the other.
    pub prompts: &'a [Vec<u32>],
    /// Tokens to generate for each.
    pub tokens: u32,
    /// Sampling temperature.
    pub temperature: f32,
}

impl Work<'_> {
    /// What is asked of prompt `index`.
    pub fn ask(&self, index: usize, arm: &Arm) -> Ask<'_> {
        Ask {
            ids: &self.prompts[index],
            max_tokens: self.tokens,
            temperature: self.temperature,
            seed: 7,
            policy: Some((arm.policy, arm.lookahead)),
        }
    }
}

/// The tokens of every prompt, which no arm may change: those of the first arm to be noted.
#[derive(Clone, Debug, Default)]
pub struct Reference(Vec<Vec<u32>>);

impl Reference {
    /// Notes the tokens of prompt `index`, or holds them against those noted. `who` is named in the
    /// error.
    pub fn check(&mut self, index: usize, ids: Vec<u32>, who: &str) -> anyhow::Result<()> {
        match self.0.get(index) {
            Some(wanted) if *wanted == ids => {}
            Some(_) => bail!("{who} changed the tokens of prompt {index}"),
            None => self.0.push(ids),
        }
        Ok(())
    }
}

/// Sums over the requests of one or more measurements.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    answers: usize,
    tokens: usize,
    rounds: u32,
    drafted: u32,
    accepted: u32,
    decode: Duration,
    wall: Duration,
    target: Counts,
    draft: Counts,
}

/// Measures `arm` on all prompts, one request after the other, after a warm-up request. The tokens
/// must be those of `reference`.
pub async fn measure(
    stack: &Stack,
    arm: &Arm,
    work: &Work<'_>,
    reference: &mut Reference,
) -> anyhow::Result<Tally> {
    let client = stack.target_client();
    client.complete(&work.ask(0, arm)).await?;
    let before = (stack.counts("target").await?, stack.counts("draft").await?);
    let mut tally = Tally::default();
    for index in 0..work.prompts.len() {
        let answer = client.complete(&work.ask(index, arm)).await?;
        tally.note(&answer);
        reference.check(index, answer.ids, &arm.name())?;
    }
    tally.target = stack.counts("target").await?.since(&before.0);
    tally.draft = stack.counts("draft").await?.since(&before.1);
    Ok(tally)
}

impl Tally {
    /// Adds a request.
    pub fn note(&mut self, answer: &Answer) {
        self.answers += 1;
        self.tokens += answer.ids.len();
        self.rounds += answer.rounds;
        self.drafted += answer.drafted;
        self.accepted += answer.accepted;
        self.decode += answer.decode;
        self.wall += answer.wall;
    }

    /// Adds another measurement of the same arm.
    pub fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.tokens += other.tokens;
        self.rounds += other.rounds;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.decode += other.decode;
        self.wall += other.wall;
        self.target.add(&other.target);
        self.draft.add(&other.draft);
    }

    /// Tokens per second after the first of each answer.
    pub fn rate(&self) -> f64 {
        self.later_tokens() / self.decode.as_secs_f64()
    }

    /// All tokens per second, from requests out to replies in.
    pub fn wall_rate(&self) -> f64 {
        self.tokens as f64 / self.wall.as_secs_f64()
    }

    /// Tokens of a round, the decided one included.
    pub fn tokens_per_round(&self) -> f64 {
        self.later_tokens() / self.rounds()
    }

    /// Tokens proposed in a round.
    pub fn drafted_per_round(&self) -> f64 {
        f64::from(self.drafted) / self.rounds()
    }

    /// Seconds of a round.
    pub fn round(&self) -> f64 {
        self.decode.as_secs_f64() / self.rounds()
    }

    /// Seconds of a round in which the target waited for a window.
    pub fn wait(&self) -> f64 {
        self.target.sum("foretoken_draft_seconds_sum", "") / self.rounds()
    }

    /// Share of verdicts that a window had been drafted for; without those of first rounds if
    /// `steady`.
    pub fn hit_rate(&self, steady: bool) -> f64 {
        let label = if steady { "round=\"later\"" } else { "" };
        let hits = self.target.sum("foretoken_hits_total", label);
        hits / (hits + self.target.sum("foretoken_misses_total", label))
    }

    /// Share of verdicts after which the endpoint was asked for a window.
    pub fn asked_rate(&self) -> f64 {
        let lookups = |label| self.target.sum("foretoken_lookups_total", label);
        lookups("source=\"remote\"") / lookups("")
    }

    /// Mean seconds of the rounds whose window came from `source`, and of these the seconds that
    /// were not spent in the step that verified.
    pub fn rounds_of(&self, source: &str) -> (f64, f64) {
        let label = format!("source=\"{source}\"");
        let mean = |name| self.target.mean(name, &label);
        (
            mean("foretoken_round_seconds"),
            mean("foretoken_round_extra_seconds"),
        )
    }

    /// Mean seconds of the rounds whose window was drafted ahead, without those that they waited for
    /// more of what was drafted; and of a bare verification of the same rows: their steps, with
    /// what they decide, and what a round of `plain` decoding needs besides its step.
    pub fn hit_round(&self, plain: &Self) -> (f64, f64) {
        let (round, extra) = self.rounds_of("ahead");
        let (_, besides) = plain.rounds_of("none");
        (round - self.lingered(), round - extra + besides)
    }

    /// Mean seconds of the same rounds that were spent waiting for more of what was drafted.
    pub fn lingered(&self) -> f64 {
        let label = "source=\"ahead\"";
        let lingered = self
            .target
            .sum("foretoken_round_lingered_seconds_sum", label);
        let rounds = self.target.sum("foretoken_round_seconds_count", label);
        lingered / rounds.max(1.0)
    }

    /// Bytes of a round's messages, both ways.
    pub fn round_bytes(&self) -> f64 {
        self.target.mean("foretoken_round_bytes", "")
    }

    /// Share of the draft's time that no target waited for: neither for a window, nor with a verdict for
    /// more of a continuation. 0 if they waited for longer than it drafted.
    pub fn hidden(&self) -> f64 {
        let spent = |label| self.draft.sum("foretoken_draft_time_seconds_total", label);
        let awaited = spent("purpose=\"awaited\"");
        let lingered = self.target.sum("foretoken_step_lingered_seconds_sum", "");
        let waits = (awaited + lingered) / (awaited + spent("purpose=\"ahead\""));
        // No number, if it drafted nothing, stays none.
        (1.0 - waits).clamp(0.0, 1.0)
    }

    /// Share of the time in which the draft computed.
    pub fn draft_busy(&self) -> f64 {
        self.draft.sum("foretoken_step_seconds_sum", "") / self.decode.as_secs_f64()
    }

    /// Outcomes that a verification was drafted for.
    pub fn outcomes(&self) -> f64 {
        self.draft.mean("foretoken_build_outcomes", "")
    }

    /// Share of the rounds whose window was a tree.
    pub fn tree_share(&self) -> f64 {
        self.target.sum("foretoken_tree_windows_total", "") / self.rounds()
    }

    /// Tokens of a window that was a tree.
    pub fn tree_size(&self) -> f64 {
        let trees = self.target.sum("foretoken_tree_windows_total", "");
        self.target.sum("foretoken_tree_nodes_total", "") / trees.max(1.0)
    }

    /// Rounds, with those of a warm-up request like the others for each of `measurements`.
    pub fn all_rounds(&self, measurements: usize) -> f64 {
        let warm_up = measurements as f64 / self.answers.max(1) as f64;
        self.rounds() * (1.0 + warm_up)
    }

    /// Everything that tables may leave out.
    pub fn json(&self) -> Value {
        let of = |source| {
            let (round, extra) = self.rounds_of(source);
            json!({"round_us": round * 1e6, "extra_us": extra * 1e6})
        };
        json!({
            "tok_s": self.rate(), "tokens_per_round": self.tokens_per_round(), "round_us": self.round() * 1e6,
            "wait_us": self.wait() * 1e6, "drafted": self.drafted, "accepted": self.accepted,
            "hit_rate": self.hit_rate(false), "hit_rate_without_first": self.hit_rate(true),
            "round_bytes": self.round_bytes(), "draft_hidden": self.hidden(), "draft_busy": self.draft_busy(),
            "outcomes_drafted_for": self.outcomes(), "lingered_us": self.lingered() * 1e6,
            "rounds_of": {"ahead": of("ahead"), "remote": of("remote"), "local": of("local"), "none": of("none")},
        })
    }

    fn later_tokens(&self) -> f64 {
        (self.tokens - self.answers) as f64
    }

    fn rounds(&self) -> f64 {
        f64::from(self.rounds.max(1))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One answer of so many tokens after the first, in so many rounds and seconds, with what the target
    /// and the draft counted.
    pub(crate) fn tally(
        (tokens, rounds, seconds): (usize, u32, f64),
        [target, draft]: [&str; 2],
    ) -> Tally {
        let counts = |text: &str| Counts::parse(text).expect("series");
        Tally {
            answers: 1,
            tokens: tokens + 1,
            rounds,
            drafted: 3 * rounds,
            decode: Duration::from_secs_f64(seconds),
            target: counts(target),
            draft: counts(draft),
            ..Tally::default()
        }
    }

    #[test]
    fn draft_time_is_hidden_that_no_target_waits_for() {
        // Of 16 requests in each step.
        let target = "foretoken_round_lingered_seconds_sum{source=\"ahead\"} 0.8\n\
            foretoken_step_lingered_seconds_sum{} 0.05\n";
        let draft = |awaited| {
            format!(
                "foretoken_draft_time_seconds_total{{purpose=\"awaited\"}} {awaited}\n\
                 foretoken_draft_time_seconds_total{{purpose=\"ahead\"}} 0.9\n"
            )
        };
        for (awaited, hidden) in [
            (0.1, 0.85),
            (3.0, 1.0 - 3.05 / 3.9),
            (0.0, 1.0 - 0.05 / 0.9),
        ] {
            let tally = tally((100, 50, 1.0), [target, &draft(awaited)]);
            assert!((tally.hidden() - hidden).abs() < 1e-12, "{awaited}");
        }
        let all_awaited = "foretoken_draft_time_seconds_total{purpose=\"awaited\"} 1\n";
        assert!(tally((100, 50, 1.0), [target, all_awaited]).hidden() == 0.0);
    }

    #[test]
    fn hits_are_told_with_and_without_first_rounds() {
        let target = "foretoken_hits_total{round=\"first\"} 1\nforetoken_hits_total{round=\"later\"} 9\n\
            foretoken_misses_total{round=\"first\"} 3\nforetoken_misses_total{round=\"later\"} 1\n\
            foretoken_round_bytes_sum{} 7000\nforetoken_round_bytes_count{} 14\n";
        let tally = tally((100, 50, 1.0), [target, ""]);
        assert!((tally.hit_rate(false) - 10.0 / 14.0).abs() < 1e-12);
        assert!((tally.hit_rate(true) - 0.9).abs() < 1e-12);
        assert!((tally.round_bytes() - 500.0).abs() < 1e-12);
    }

    #[test]
    fn tokens_are_held_against_those_noted_first() {
        let mut reference = Reference::default();
        for (index, ids) in [(0, vec![1, 2]), (1, vec![3]), (0, vec![1, 2])] {
            reference.check(index, ids, "plain").expect("the same");
        }
        let error = reference.check(1, vec![3, 4], "SSD").expect_err("changed");
        assert_eq!(error.to_string(), "SSD changed the tokens of prompt 1");
    }
}
