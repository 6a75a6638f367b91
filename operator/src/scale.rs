//! How many replicas a load asks for. Pure: figures in, a number out.
//!
//! As a `HorizontalPodAutoscaler` does it, so that nobody has to learn another way: replicas are
//! multiplied by what a metric is over what it should be, a tenth more or less is left alone, more
//! are made at once, and fewer when for five minutes never more were advised. Figures are the operator's
//! own, so a cluster needs no adapter of metrics.

use std::{collections::VecDeque, time::Duration};

use foretoken_crds::{deployment::TargetMetric, endpoint::DraftMetric, object::Scaling};

use crate::figures::{EndpointFigures, TargetLoad};

/// How often the number is thought about.
pub(crate) const PERIOD: Duration = Duration::from_secs(15);
/// For how long fewer must have been enough before there are fewer.
const CALM: Duration = Duration::from_secs(300);
/// What is left alone, as a part of what should be.
const TOLERANCE: f64 = 0.1;
/// Most replicas that are added at a time, unless doubling them is more.
const STEP: u32 = 4;
/// Most that one look makes of a pressure: times and lateness are not proportional to load.
const MOST: f64 = 2.0;

/// Milliseconds that requests should wait at most.
const WAIT: f64 = 100.0;
/// Share of places that should be taken at most.
const PLACES: f64 = 0.9;
/// Share of pages that should be in use at most.
const PAGES: f64 = 0.8;
/// Share of slots that should be in use at most.
const SLOTS: f64 = 0.75;
/// Share of what came about and was drafted for that should come too late at most.
const LATE: f64 = 0.05;
/// Share of the time in which drafts should work at most.
const BUSY: f64 = 0.7;
/// How long no request must have been given a place before that means anything: whoever has just begun
/// to listen has heard of none, and targets that are full of long answers give none for a while.
const STUCK: Duration = Duration::from_secs(30);
/// Least tokens that a share of late ones is taken from.
const ENOUGH: u64 = 200;

/// What a load asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Pressure {
    /// What is, over what should be: 1 is as it should be.
    pub ratio: f64,
    /// Replicas that have told of it.
    pub heard: u32,
    /// What is, for people.
    pub what: String,
}

/// What the figures of targets say; none if nobody has said anything.
pub fn of_targets(metric: TargetMetric, load: &TargetLoad) -> Option<Pressure> {
    let taken = share(load.running, load.places)?;
    let (ratio, what) = match metric {
        TargetMetric::PageUse => {
            let share = share(load.pages_in_use, load.pages)?;
            (share / PAGES, percent(share, "of the pages are in use"))
        }
        TargetMetric::QueueTime => {
            let none_admitted = load.admitted == 0 && load.waiting > 0;
            let is_stuck = none_admitted && load.over >= STUCK;
            let wait = if is_stuck {
                f64::INFINITY
            } else {
                load.waited_millis as f64 / load.admitted.max(1) as f64
            };
            let waits = if is_stuck {
                "requests wait and none gets a place".to_owned()
            } else if none_admitted {
                "requests wait, and of none that got a place was heard yet".to_owned()
            } else {
                format!("requests wait {wait:.0} ms for a place")
            };
            // Nobody waits before places are short: they say when fewer would do.
            let what = format!("{waits}, {}", percent(taken, "of the places are taken"));
            ((wait / WAIT).max(taken / PLACES), what)
        }
    };
    Some(Pressure {
        ratio,
        heard: load.heard,
        what,
    })
}

/// What the figures of drafts say; none if nobody has said anything.
pub fn of_drafts(metric: DraftMetric, figures: &EndpointFigures) -> Option<Pressure> {
    let used = share(figures.slots_in_use.into(), figures.slots.into())?;
    let (ratio, what) = match metric {
        DraftMetric::SlotUse => (used / SLOTS, percent(used, "of the slots are in use")),
        DraftMetric::Slack => {
            let busy = 1.0 - figures.slack?;
            (busy / BUSY, percent(busy, "of the time is worked in"))
        }
        DraftMetric::LateEntries => {
            let all = figures.timely_tokens + figures.late_tokens;
            let late = share(figures.late_tokens, all).filter(|_| all >= ENOUGH);
            // Few sessions are never late, and slots run out before anything is.
            let late = late.unwrap_or(0.0);
            let ratio = (late / LATE).max(used / PLACES);
            (
                ratio,
                percent(late, "of what was drafted for came too late"),
            )
        }
    };
    Some(Pressure {
        ratio,
        heard: figures.heard,
        what,
    })
}

/// A part of a whole that is something.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A share in words.
fn percent(share: f64, of: &str) -> String {
    format!("{:.0} % {of}", share * 100.0)
}

/// The number of replicas of one pool.
#[derive(Clone, Debug, Default)]
pub struct Scaler {
    /// What was advised of late, and when.
    advice: VecDeque<(Duration, u32)>,
}

impl Scaler {
    /// How many there should be at `now`, any clock that does not go back: `current` are wanted so
    /// far, none if the pool is new.
    pub fn replicas<M: Copy + Default>(
        &mut self,
        scaling: &Scaling<M>,
        current: Option<u32>,
        pressure: Option<&Pressure>,
        now: Duration,
    ) -> u32 {
        let (min, max) = (scaling.min.max(1), scaling.max.max(1));
        let Some(current) = current else { return min };
        let current = current.clamp(min, max);
        let advised = pressure.map_or(current, |pressure| advise(current, pressure));
        let advised = advised.clamp(min, max);
        // An operator that has just begun knows of no calm time.
        if self.advice.is_empty() {
            self.advice.push_back((now, current));
        }
        self.advice.push_back((now, advised));
        while self
            .advice
            .front()
            .is_some_and(|(at, _)| now.saturating_sub(*at) > CALM)
        {
            self.advice.pop_front();
        }
        if advised > current {
            return advised;
        }
        let most = self.advice.iter().map(|&(_, advised)| advised).max();
        most.unwrap_or(advised).min(current)
    }
}

/// How many would bring the pressure to 1. Who does not speak, yet or any more, counts as idle where more
/// are advised and as busy as it should be where fewer are.
fn advise(current: u32, pressure: &Pressure) -> u32 {
    let Pressure { ratio, heard, .. } = pressure;
    if (ratio - 1.0).abs() <= TOLERANCE {
        return current;
    }
    let busy = f64::from(*heard) * ratio.min(MOST);
    // Rounding errors do not make a replica.
    let whole = |wanted: f64| (wanted - 1e-9).ceil() as u32;
    if whole(busy) > current {
        return whole(busy).min(current.saturating_mul(2).max(current + STEP));
    }
    let silent = f64::from(current.saturating_sub(*heard));
    if (busy + silent) / f64::from(current) >= 1.0 - TOLERANCE {
        return current;
    }
    whole(busy + silent)
}

#[cfg(test)]
mod tests;
