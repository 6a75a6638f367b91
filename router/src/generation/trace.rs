//! What is recorded of a choice: a span for each target that is asked for it.

use foretoken_telemetry::{Span, attribute};

use super::Tally;

/// A target is asked; `losses` were lost before.
pub(super) fn begin(call: &Span, target: &str, losses: u32) {
    call.set("foretoken.target", target.to_owned());
    if losses > 0 {
        call.set("foretoken.replay", i64::from(losses));
    }
}

/// The choice is over: what it took, as `usage.foretoken` tells it.
pub(super) fn end(call: &Span, reason: &'static str, tally: &Tally) {
    call.finished(reason);
    if let Some(policy) = &tally.policy {
        call.set(attribute::POLICY, policy.clone());
    }
    for (name, count) in [
        (attribute::OUTPUT_TOKENS, tally.emitted),
        (attribute::CACHED, tally.cached_tokens),
        (attribute::ROUNDS, tally.rounds),
        (attribute::DRAFTED, tally.drafted),
        (attribute::ACCEPTED, tally.accepted),
        (attribute::HITS, tally.stats.hits),
        (attribute::MISSES, tally.stats.misses),
        (attribute::LATE, tally.stats.late),
    ] {
        call.set(name, i64::from(count));
    }
}
