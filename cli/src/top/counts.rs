//! What is counted of speculation, by services in their metrics or round by round of one session.

use std::collections::BTreeMap;

use foretoken_service::rounds::{Build, Round};

use super::scrape::Totals;

/// Counts of some services over some time, or of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Tokens emitted.
    pub(super) tokens: f64,
    /// Windows verified, and their accepted tokens.
    pub(super) windows: f64,
    pub(super) accepted: f64,
    /// Verdicts that were drafted for in time or not: the first of each binding, and all.
    pub(super) first_hits: f64,
    pub(super) first_misses: f64,
    pub(super) hits: f64,
    pub(super) misses: f64,
    /// Places of hits among the outcomes drafted for.
    pub(super) places: Mean,
    /// Ranks of decided tokens among candidates, and how many were not among them.
    pub(super) ranks: Mean,
    pub(super) unranked: f64,
    /// Outcomes of builds.
    pub(super) outcomes: Mean,
    /// Bytes of rounds.
    pub(super) bytes: Mean,
    /// Seconds of draft steps by whether a target waited for them, for a window or with a verdict.
    pub(super) ahead: f64,
    pub(super) awaited: f64,
    /// Seconds of rounds that hit, and of that beside the steps that verified.
    pub(super) hit: f64,
    pub(super) hit_extra: f64,
    /// Windows that did not come in time.
    pub(super) late: f64,
    pub(super) entries: EntryTokens,
    pub(super) sources: BTreeMap<String, f64>,
    pub(super) lookahead_limits: BTreeMap<String, f64>,
    pub(super) build_limits: BTreeMap<String, f64>,
}

/// A sum, and of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mean {
    sum: f64,
    count: f64,
}

/// Tokens drafted ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EntryTokens {
    /// Sent by endpoints.
    pub(super) pushed: f64,
    /// Come to targets in time.
    pub(super) received: f64,
    /// Of these, in windows.
    pub(super) used: f64,
    /// Come too late.
    pub(super) late: f64,
}

impl Counts {
    /// What targets and drafts say in their metrics.
    pub(super) fn of(targets: &Totals, drafts: &Totals) -> Self {
        let both = |name: &str| (targets.of(name, "round=first"), targets.sum(name));
        let (first_hits, hits) = both("foretoken_hits_total");
        let (first_misses, misses) = both("foretoken_misses_total");
        let spent = |purpose| drafts.of("foretoken_draft_time_seconds_total", purpose);
        let ahead = spent("purpose=ahead");
        // Nothing is ahead of a verdict that waits for it.
        let lingered = targets
            .sum("foretoken_step_lingered_seconds_sum")
            .min(ahead);
        let fate = |fate| targets.of("foretoken_entry_tokens_total", fate);
        Self {
            tokens: targets.sum("vllm:generation_tokens_total"),
            windows: targets.sum("vllm:spec_decode_num_drafts_total"),
            accepted: targets.sum("vllm:spec_decode_num_accepted_tokens_total"),
            first_hits,
            first_misses,
            hits,
            misses,
            places: Mean::of(targets, "foretoken_hit_place"),
            ranks: Mean::of(drafts, "foretoken_verdict_rank"),
            unranked: drafts.sum("foretoken_verdicts_unranked_total"),
            outcomes: Mean::of(drafts, "foretoken_build_outcomes"),
            bytes: Mean::of(targets, "foretoken_round_bytes"),
            ahead: ahead - lingered,
            awaited: spent("purpose=awaited") + lingered,
            hit: targets.of("foretoken_round_seconds_sum", "source=ahead"),
            hit_extra: targets.of("foretoken_round_extra_seconds_sum", "source=ahead"),
            late: targets.sum("foretoken_windows_late_total"),
            entries: EntryTokens {
                pushed: drafts.sum("foretoken_entry_tokens_total"),
                received: fate("fate=received"),
                used: fate("fate=used"),
                late: fate("fate=late"),
            },
            sources: by(targets, "foretoken_lookups_total"),
            lookahead_limits: by(targets, "foretoken_lookahead_limits_total"),
            build_limits: by(drafts, "foretoken_build_limits_total"),
        }
    }

    /// Adds a round of a session; `before` is the one that was told before it.
    pub(super) fn add_round(&mut self, round: &Round, before: Option<&Round>) {
        self.tokens += f64::from(round.emitted);
        if round.window > 0 {
            self.windows += 1.0;
            self.accepted += f64::from(round.accepted);
        }
        if let Some(hit) = round.hit {
            self.add_verdict(hit, round.first);
        }
        if let Some(before) = before
            && let Some(hit) = looked_up_there(before, round)
        {
            self.add_verdict(hit, is_of_prompt(before));
        }
        if let Some(place) = round.place {
            self.places.add(place.into());
        }
        self.late += f64::from(u8::from(round.late));
        self.entries.received += f64::from(round.received);
        self.entries.used += f64::from(round.used);
        self.entries.late += f64::from(round.late_tokens);
        if let Some(limit) = &round.limit {
            count(&mut self.lookahead_limits, limit);
        }
        // The verdict on a prompt ends no round.
        let Some(took) = round.took_us else { return };
        count(&mut self.sources, &round.source);
        if round.bytes > 0 {
            self.bytes.add(round.bytes.into());
        }
        if round.source == "ahead" {
            let extra = took.saturating_sub(round.verification_us);
            self.hit += took as f64 / 1e6;
            self.hit_extra += extra as f64 / 1e6;
        }
    }

    /// Adds a verdict that was drafted for in time or not.
    fn add_verdict(&mut self, hit: bool, first: bool) {
        let (all, of_first) = if hit {
            (&mut self.hits, &mut self.first_hits)
        } else {
            (&mut self.misses, &mut self.first_misses)
        };
        *all += 1.0;
        *of_first += f64::from(u8::from(first));
    }

    /// Adds what an endpoint did for a verdict on a session.
    pub(super) fn add_build(&mut self, build: &Build) {
        if build.outcomes > 0 {
            self.outcomes.add(build.outcomes.into());
        }
        match build.rank {
            Some(rank) => self.ranks.add(rank.into()),
            None => self.unranked += f64::from(build.judged),
        }
        self.ahead += build.ahead_us as f64 / 1e6;
        self.awaited += build.awaited_us as f64 / 1e6;
        self.entries.pushed += f64::from(build.pushed);
        if let Some(limit) = &build.limit {
            count(&mut self.build_limits, limit);
        }
    }
}

impl Mean {
    fn of(totals: &Totals, name: &str) -> Self {
        Self {
            sum: totals.sum(&format!("{name}_sum")),
            count: totals.sum(&format!("{name}_count")),
        }
    }

    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    /// How many there are.
    pub(super) fn count(self) -> f64 {
        self.count
    }

    /// The mean; none of nothing.
    pub(super) fn get(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

/// Whether the verdict of the round `before` had been drafted for, where the endpoint looked it up
/// (`delivery: Pull`): only its window tells, so it is said of the round that verified that. None if it
/// was said before, or if nothing was to be drafted: after a round that sought nothing, but that of the
/// prompt, nothing is.
fn looked_up_there(before: &Round, round: &Round) -> Option<bool> {
    let follows = before.round.checked_add(1) == Some(round.round);
    let sought = before.source != "none" || is_of_prompt(before);
    if round.policy != "SSD" || before.hit.is_some() || !(follows && sought) {
        return None;
    }
    match (&*round.source, round.place) {
        ("ahead", Some(_)) => Some(true),
        ("remote", _) => Some(false),
        // The rest of a window that was not verified whole, or what needed no endpoint.
        _ => None,
    }
}

/// Whether it is the verdict on a prompt, the first of its session.
fn is_of_prompt(round: &Round) -> bool {
    round.round == 1
}

fn by(totals: &Totals, name: &str) -> BTreeMap<String, f64> {
    let counted = totals.by(name).filter(|(_, value)| *value > 0.0);
    counted
        .map(|(label, value)| (label.to_owned(), value))
        .collect()
}

fn count(counts: &mut BTreeMap<String, f64>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count += 1.0;
    } else {
        counts.insert(name.to_owned(), 1.0);
    }
}
