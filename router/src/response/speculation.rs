//! `usage.foretoken`: how speculation went, as `docs/metrics.md` lists it.
//!
//! Counts are sums over choices; rates and means are made of these, so that a long choice weighs more
//! than a short one. What cannot be told, since nothing of it happened, is null or left out.

use std::time::Duration;

use foretoken_protocol::generate::{AheadStats, EndpointStats, GenerationStats};
use foretoken_speculation::bounds::{Bound, BoundCounts};
use serde_json::{Map, Value, json};

use crate::{generation::Tally, request::Job};

/// What speculation did, over all choices and all targets that served them.
pub(super) fn speculation(job: &Job, tallies: &[&Tally]) -> Value {
    let rounds: u32 = tallies.iter().map(|tally| tally.rounds).sum();
    let accepted: u32 = tallies.iter().map(|tally| tally.accepted).sum();
    let drafted: u32 = tallies.iter().map(|tally| tally.drafted).sum();
    let all = Sums(tallies.iter().map(|tally| &tally.stats).collect());
    let acceptance_length = (rounds > 0).then(|| 1.0 + f64::from(accepted) / f64::from(rounds));
    let served = tallies.iter().find_map(|tally| tally.policy.clone());
    let rule = tallies.iter().find_map(|tally| tally.verification.clone());
    let mut told = json!({
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "hits": all.of(|s| s.hits.into()),
        "misses": all.of(|s| s.misses.into()),
        "late": all.of(|s| s.late.into()),
        "bytes": all.of(|s| s.bytes),
        "acceptance_length": acceptance_length,
        // Two's complement, so that a negative seed comes back as it was given.
        "seed": job.seed.0 as i64,
        "policy": served.or_else(|| job.policy.clone()),
        "verification": rule,
    });
    tell_rounds(&all, &mut told);
    // Only of choices for which something was to be drafted ahead.
    if all.0.iter().any(|stats| is_ahead(stats)) {
        told["ahead"] = ahead(&all);
    }
    told
}

/// What targets counted, of all choices.
struct Sums<'a>(Vec<&'a GenerationStats>);

impl Sums<'_> {
    fn of(&self, field: fn(&GenerationStats) -> u64) -> u64 {
        self.0.iter().map(|stats| field(stats)).sum()
    }

    fn time(&self, field: fn(&GenerationStats) -> Duration) -> Duration {
        self.0.iter().map(|stats| field(stats)).sum()
    }

    /// How often each bound was one, by name; without those that never were.
    fn bounds<B: Bound>(
        &self,
        field: fn(&GenerationStats) -> &BoundCounts<B>,
    ) -> Map<String, Value> {
        let mut sums = BoundCounts::default();
        self.0.iter().for_each(|stats| sums.merge(field(stats)));
        let counted = sums.counts().filter(|&(_, times)| times > 0);
        counted
            .map(|(bound, times)| (bound.name().to_owned(), json!(times)))
            .collect()
    }
}

/// What was measured of rounds, as far as there is anything.
fn tell_rounds(all: &Sums<'_>, told: &mut Value) {
    let bytes = all.of(|s| s.measured.bytes);
    if let Some(mean) = part(bytes, all.of(|s| s.measured.weighed.into())) {
        told["bytes_per_round"] = json!(mean);
    }
    let awaited = all.time(|s| s.measured.awaited);
    if !awaited.is_zero() {
        told["awaited_ms"] = json!(awaited.as_secs_f64() * 1e3);
    }
    let limits = all.bounds(|s| &s.measured.limits);
    if !limits.is_empty() {
        told["lookahead_limits"] = Value::Object(limits);
    }
}

/// How drafting ahead went.
fn ahead(all: &Sums<'_>) -> Value {
    let (hits, misses) = (all.of(|s| s.hits.into()), all.of(|s| s.misses.into()));
    let first_hits = all.of(|s| s.ahead.first_hits.into());
    let first_misses = all.of(|s| s.ahead.first_misses.into());
    let (received, late) = (all.of(|s| s.ahead.received), all.of(|s| s.ahead.late));
    let hit = all.time(|s| s.measured.hit).as_secs_f64();
    let verification = all.time(|s| s.measured.hit_verification).as_secs_f64();
    let mut told = json!({
        "hit_rate": rate(hits, misses),
        // An endpoint has little time to prepare for the first verdict.
        "later_hit_rate": rate(
            hits.saturating_sub(first_hits),
            misses.saturating_sub(first_misses),
        ),
        "hit_place": part(all.of(|s| s.ahead.places), all.of(|s| s.ahead.placed.into())),
        "hit_round_extra": (verification > 0.0).then(|| hit / verification - 1.0),
        "fallbacks": {
            "none": all.of(|s| s.ahead.alone.into()),
            "local": all.of(|s| s.ahead.local.into()),
            "remote": all.of(|s| s.ahead.remote.into()),
        },
        "tokens_pushed": received + late,
        "tokens_received": received,
        "tokens_used": all.of(|s| s.ahead.used),
        "tokens_late": late,
    });
    tell_endpoint(all, &mut told);
    if let Some(c) = all.0.iter().find_map(|stats| stats.saguaro_c) {
        told["saguaro_c"] = json!((f64::from(c) * 1000.0).round() / 1000.0);
    }
    told
}

/// What endpoints said of their work, as far as they said anything.
fn tell_endpoint(all: &Sums<'_>, told: &mut Value) {
    let said = |stats: &&GenerationStats| stats.endpoint != EndpointStats::default();
    if !all.0.iter().any(said) {
        return;
    }
    let ms = |time: Duration| json!(time.as_secs_f64() * 1e3);
    let ahead = all.time(|s| s.endpoint.ahead);
    let awaited = all.time(|s| s.endpoint.awaited);
    let whole = (ahead + awaited).as_secs_f64();
    told["verdict_rank"] = json!(part(
        all.of(|s| s.endpoint.ranks),
        all.of(|s| s.endpoint.ranked.into())
    ));
    told["verdicts_judged"] = json!(all.of(|s| s.endpoint.judged.into()));
    told["verdicts_ranked"] = json!(all.of(|s| s.endpoint.ranked.into()));
    told["draft_ahead_ms"] = ms(ahead);
    told["draft_awaited_ms"] = ms(awaited);
    told["draft_hidden"] = json!((whole > 0.0).then(|| ahead.as_secs_f64() / whole));
    told["build_limits"] = Value::Object(all.bounds(|s| &s.endpoint.limits));
}

fn is_ahead(stats: &GenerationStats) -> bool {
    let GenerationStats {
        hits,
        misses,
        ahead,
        endpoint,
        ..
    } = stats;
    (*hits, *misses, *ahead) != (0, 0, AheadStats::default())
        || *endpoint != EndpointStats::default()
}

fn rate(hits: u64, misses: u64) -> Option<f64> {
    part(hits, hits + misses)
}

fn part(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
