//! Which fallback serves a row, from what was learned.

use core::time::Duration;

use super::{Fallback, Offer, OnMiss, RowWorth, turnover};
use crate::{
    control::{AnswerTime, Controller, StepCost},
    message::Cutoff,
    policy::target::Source,
    tally::Tally,
    theory::{LockStep, Speculator},
};

/// Weight that an observation keeps with each later one of its kind: about the last 100 count.
const MEMORY: f64 = 0.99;
/// Observations that the first guess is worth.
const PRIOR_WEIGHT: f64 = 8.0;
/// First guess of the probability of a hit.
const PRIOR: f64 = 0.75;
/// Misses after which a fallback that was not taken is tried again.
const PROBE_AFTER: u32 = 64;
/// Further misses to wait for each token that the trial is expected to cost.
const PROBE_PAUSE: f64 = 50.0;
/// Trials after which a fallback is known (three, the first of which count a bit less): of so many
/// one may have been held up by anything.
const KNOWN_AFTER: f64 = 2.5;
/// Most tokens that the next of these may be expected to cost.
const TRIAL_COST: f64 = 8.0;

/// The fallbacks, in the order in which the first of equals is taken.
const ALL: [Fallback; 3] = [Fallback::Nothing, Fallback::Local, Fallback::Remote];

/// Decides what follows a miss, for the sessions that one endpoint serves alike.
///
/// It learns how likely a hit is after a round of each kind; what else it needs is measured
/// elsewhere and passed in. The best backup B is the one with the highest rate
///
/// ```text
/// g = (h E_A + (1 - h) E_B) / (h T_A + (1 - h) T_B),   h = p_B / (1 - p_A + p_B)
/// ```
///
/// (Theorem 7 of SSD, arXiv 2603.03251, in seconds), where rounds of kind X emit `E_X` tokens, take
/// `T_X`, and are followed by a hit with probability `p_X`; A are hits. A row that knows `g` and
/// what a hit is worth then takes what brings the most: see [`RowWorth`]. Rows of its own that make
/// the step longer cost as many tokens for each of the others in it.
#[derive(Clone, Debug, Default)]
pub struct Chooser {
    /// How often rounds of each kind were followed by a hit.
    ahead: Tally,
    fallbacks: [Tally; 3],
    /// Misses since each fallback was taken.
    idle: [u32; 3],
    /// How often each was, lately.
    taken: [f64; 3],
}

/// What a row faces if its verdict was not drafted for.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What steps of the target take.
    pub steps: &'a StepCost,
    /// What the endpoint takes for a window.
    pub answers: &'a AnswerTime,
    /// Windows that were drafted ahead.
    pub ahead: Expected,
    /// Those that are waited for.
    pub asked: Expected,
    /// Whether the endpoint has caught up with the sequence. One that has yet to read it answers
    /// when it has, which is no answer time that was ever seen.
    pub caught_up: bool,
    /// Rows of the step without proposals of this session, its one row included.
    pub rows: u32,
    /// Sessions that have rows in it, this one included.
    pub sessions: u32,
    /// Proposals of the target's host.
    pub local: u32,
    /// How many of them are expected to be accepted.
    pub local_accepted: f64,
}

/// What windows of an endpoint come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Tokens that they have on average: they may end early.
    pub length: f64,
    /// Tokens that rounds with them emit.
    pub tokens: f64,
}

/// A verdict that may turn out not to have been drafted for.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Rows of the next step without proposals of the session.
    pub rows: u32,
    /// Sessions that decode.
    pub sessions: u32,
    /// Most tokens of a window.
    pub lookahead: u32,
    /// How likely a token has to be for a window that is waited for, which ends before it.
    pub cutoff: Cutoff,
    /// Whether the endpoint has caught up with the session.
    pub caught_up: bool,
    /// Proposals of the target's host.
    pub local: u32,
    /// How many of them are expected to be accepted.
    pub local_accepted: f64,
}

impl Miss {
    /// What a session faces that has this miss, as far as is known.
    pub fn situation<'a>(self, steps: &'a StepCost, controller: &'a Controller) -> Situation<'a> {
        Situation {
            steps,
            answers: controller.answers(),
            ahead: controller.windows(self.lookahead, Cutoff::default()),
            asked: controller.windows(self.lookahead, self.cutoff),
            caught_up: self.caught_up,
            rows: self.rows,
            sessions: self.sessions,
            local: self.local,
            local_accepted: self.local_accepted,
        }
    }
}

/// What a kind of round comes to.
#[derive(Clone, Copy, Debug)]
struct Kind {
    tokens: f64,
    /// Seconds from verdict to verdict.
    seconds: f64,
    /// Seconds by which all others wait longer, together.
    others: f64,
    next_hit: f64,
}

impl Chooser {
    /// Takes in that a window from `source` was followed by a hit, or by a miss.
    pub fn observe(&mut self, source: Source, hit: bool) {
        let hits = match source {
            Source::Ahead { .. } => &mut self.ahead,
            Source::Fallback(taken) => {
                let counts = self.idle.iter_mut().zip(&mut self.taken);
                for ((idle, count), fallback) in counts.zip(ALL) {
                    let this = fallback == taken;
                    *idle = if this { 0 } else { idle.saturating_add(1) };
                    *count = *count * MEMORY + if this { 1.0 } else { 0.0 };
                }
                &mut self.fallbacks[place(taken)]
            }
        };
        hits.observe(hit, MEMORY);
    }

    /// What is to follow if the verdict was not drafted for; none if `rule` needs nobody to choose.
    pub fn choose(&self, rule: OnMiss, situation: &Situation<'_>) -> Option<Fallback> {
        match rule {
            OnMiss::Nothing | OnMiss::Local | OnMiss::Remote => None,
            OnMiss::Auto => Some(self.by_rate(situation)),
            OnMiss::LockStep => Some(self.in_lock_step(situation)),
        }
    }

    /// What follows misses, mixed as it was lately, for Theorem 7: in verifications of whole windows,
    /// given what hits are like. Windows that are asked for are drawn as those of hits are.
    pub fn backup(&self, situation: &Situation<'_>, primary: Speculator) -> Speculator {
        let verification = self.hit(situation).seconds.max(1e-9);
        let all: f64 = self.taken.iter().sum();
        let mut mixed = Speculator {
            tokens: 0.0,
            time: 0.0,
            next_hit: 0.0,
        };
        let kinds = self.kinds(situation).into_iter().zip(self.taken);
        for (fallback, (kind, taken)) in ALL.into_iter().zip(kinds) {
            let remote = fallback == Fallback::Remote;
            let share = if all > 0.0 {
                taken / all
            } else {
                f64::from(u8::from(remote))
            };
            let (tokens, next_hit) = if remote {
                (primary.tokens, primary.next_hit)
            } else {
                (kind.tokens, kind.next_hit)
            };
            mixed.tokens += share * tokens;
            mixed.time += share * (kind.seconds / verification - 1.0);
            mixed.next_hit += share * next_hit;
        }
        mixed
    }

    fn by_rate(&self, situation: &Situation<'_>) -> Fallback {
        let kinds = self.kinds(situation);
        let ahead = self.hit(situation);
        let available = ALL.into_iter().zip(kinds);
        let available = available.filter(|(fallback, _)| match fallback {
            Fallback::Nothing => true,
            Fallback::Local => situation.local > 0,
            Fallback::Remote => situation.caught_up,
        });
        let Some((rate, backup)) = available
            .clone()
            .map(|(_, kind)| (rate(ahead, kind), kind))
            .max_by(|a, b| a.0.total_cmp(&b.0))
        else {
            return Fallback::Nothing;
        };
        let cost = |kind: Kind| rate * (kind.seconds + kind.others);
        let gains = ahead.tokens - backup.tokens - cost(ahead) + cost(backup);
        let worth = RowWorth {
            rate,
            hit_value: gains / turnover(ahead.next_hit, backup.next_hit),
        };
        let least = kinds[place(Fallback::Nothing)].seconds;
        let offer = |(fallback, kind): (Fallback, Kind)| Offer {
            fallback,
            tokens: kind.tokens - 1.0,
            delay: Duration::try_from_secs_f64(kind.seconds - least + kind.others)
                .unwrap_or_default(),
            next_hit: kind.next_hit,
        };
        let mut offers = [Offer::nothing(0.0); ALL.len()];
        let mut count = 0;
        for (slot, kind) in offers.iter_mut().zip(available) {
            *slot = offer(kind);
            count += 1;
        }
        let offers = &offers[..count];
        let chosen = worth.choose(offers);
        self.probe(&worth, offers, chosen).unwrap_or(chosen)
    }

    /// A fallback to be tried although another is thought to be better: things change, and only
    /// who tries sees it. The more a trial is expected to cost the rarer it is. One that is not
    /// known yet is tried with the first misses, for what an endpoint takes is a guess until then.
    fn probe(&self, worth: &RowWorth, offers: &[Offer], chosen: Fallback) -> Option<Fallback> {
        let value = |offer: &Offer| worth.value(offer);
        let best = offers.iter().find(|offer| offer.fallback == chosen)?;
        let is_known = |offer: &Offer| self.fallbacks[place(offer.fallback)].tried() > KNOWN_AFTER;
        let due = offers.iter().find(|offer| {
            let loss = (value(best) - value(offer)).max(0.0);
            let pause = f64::from(PROBE_AFTER).max(PROBE_PAUSE * loss);
            let is_first = is_known(best) && !is_known(offer) && loss < TRIAL_COST;
            is_first || f64::from(self.idle[place(offer.fallback)]) >= pause
        });
        due.map(|offer| offer.fallback)
    }

    fn in_lock_step(&self, situation: &Situation<'_>) -> Fallback {
        let [nothing, local, _] = self.kinds(situation);
        let ahead = self.hit(situation);
        let (fallback, fast) = if situation.local > 0 {
            (Fallback::Local, local)
        } else {
            (Fallback::Nothing, nothing)
        };
        let rule = LockStep {
            primary_tokens: ahead.tokens,
            fast_tokens: fast.tokens,
            primary_time: situation.answers.mean_seconds(situation.asked.length) / ahead.seconds,
            primary_hit: ahead.next_hit,
            fast_hit: fast.next_hit,
        };
        if rule.waits(situation.sessions) {
            Fallback::Remote
        } else {
            fallback
        }
    }

    /// Rounds after hits.
    fn hit(&self, situation: &Situation<'_>) -> Kind {
        situation.kind(situation.ahead, 0.0, self.after_hits())
    }

    /// Probability of a hit after a hit.
    fn after_hits(&self) -> f64 {
        self.ahead.estimate(PRIOR, PRIOR_WEIGHT)
    }

    /// Rounds after misses, in the order of [`ALL`].
    fn kinds(&self, situation: &Situation<'_>) -> [Kind; 3] {
        let [nothing, locally, remote] = self.fallbacks;
        let [nothing, locally] = [nothing, locally].map(|hits| hits.estimate(PRIOR, PRIOR_WEIGHT));
        // Windows that are asked for are drafted as those of hits are.
        let remote = remote.estimate(self.after_hits(), PRIOR_WEIGHT);
        let none = Expected {
            length: 0.0,
            tokens: 1.0,
        };
        let local = Expected {
            length: f64::from(situation.local),
            tokens: 1.0 + situation.local_accepted,
        };
        [
            situation.kind(none, 0.0, nothing),
            situation.kind(local, 0.0, locally),
            situation.kind(situation.asked, situation.wait(), remote),
        ]
    }
}

impl Situation<'_> {
    fn kind(&self, windows: Expected, wait: f64, next_hit: f64) -> Kind {
        let step = self.steps.seconds(self.rows);
        let rows = f64::from(self.rows) + windows.length;
        let longer = self.steps.mean_seconds(rows);
        let others = f64::from(self.sessions.saturating_sub(1));
        Kind {
            tokens: windows.tokens,
            seconds: wait + longer,
            others: others * (longer - step),
            next_hit,
        }
    }

    /// Seconds until a window asked for now is verified: where other sessions go on, their step has
    /// to end first.
    fn wait(&self) -> f64 {
        let answer = self.answers.mean_seconds(self.asked.length);
        if self.sessions < 2 {
            return answer;
        }
        let step = self.steps.seconds(self.rows);
        libm::ceil(answer / step) * step
    }
}

fn place(fallback: Fallback) -> usize {
    match fallback {
        Fallback::Nothing => 0,
        Fallback::Local => 1,
        Fallback::Remote => 2,
    }
}

/// Tokens a second of hits and this backup.
fn rate(ahead: Kind, backup: Kind) -> f64 {
    let hit = (backup.next_hit / turnover(ahead.next_hit, backup.next_hit)).clamp(0.0, 1.0);
    let mix = |hits: f64, misses: f64| hit * hits + (1.0 - hit) * misses;
    mix(ahead.tokens, backup.tokens) / mix(ahead.seconds, backup.seconds).max(1e-9)
}

#[cfg(test)]
mod tests;
