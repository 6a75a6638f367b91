//! A request that runs, as its rounds tell it.

use std::{
    cmp::Reverse,
    collections::VecDeque,
    time::{Duration, Instant},
};

use foretoken_service::rounds::{Build, Round};
use serde::Serialize;

use super::{counts::Counts, figures::Figures};

/// Rounds of a session that are kept.
pub(super) const RECENT: usize = 32;
/// How long a session that has ended is shown.
pub(super) const FAREWELL: Duration = Duration::from_secs(2);
/// How long a session may be silent before it is not shown any more.
const SILENCE: Duration = Duration::from_secs(15);

/// What is known of a session.
#[derive(Debug)]
pub(super) struct Session {
    policy: String,
    rounds: u32,
    counts: Counts,
    recent: VecDeque<Bar>,
    latest: Option<Round>,
    began: Instant,
    pub(super) heard: Instant,
    pub(super) ended: Option<String>,
}

/// One round, as it is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Bar {
    /// Tokens accepted.
    pub(super) accepted: u32,
    /// Tokens of the window.
    pub(super) window: u32,
    /// Where it came from.
    pub(super) source: String,
}

/// A request that runs, as it is shown.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SessionView {
    /// Name of its target.
    pub(super) target: String,
    pub(super) session: u64,
    pub(super) policy: String,
    /// Rounds and tokens since it was first heard of, which may be long after it began.
    pub(super) rounds: u32,
    pub(super) tokens: u64,
    /// Share of its windows that had been drafted ahead.
    pub(super) ahead_share: Option<f64>,
    /// Milliseconds of the latest round.
    pub(super) round_ms: Option<f64>,
    /// Why it ended, if it has.
    pub(super) ended: Option<String>,
    /// The same figures as of all requests, since it was first heard of.
    pub(super) figures: Figures,
    /// The latest rounds, the last one last.
    pub(super) recent: Vec<Bar>,
}

impl Session {
    /// One that `policy` serves, heard of now.
    pub(super) fn new(policy: &str, now: Instant) -> Self {
        Self {
            policy: policy.to_owned(),
            rounds: 0,
            counts: Counts::default(),
            recent: VecDeque::with_capacity(RECENT),
            latest: None,
            began: now,
            heard: now,
            ended: None,
        }
    }

    /// Whether a round can be a later one of it.
    pub(super) fn may_go_on(&self, round: &Round) -> bool {
        let latest = self.latest.as_ref();
        latest.is_none_or(|latest| round.round > latest.round && round.at_ms >= latest.at_ms)
    }

    /// Takes in a round.
    pub(super) fn note_round(&mut self, round: Round, now: Instant) {
        self.counts.add_round(&round, self.latest.as_ref());
        self.heard = now;
        self.rounds += 1;
        self.ended = round.ended.as_deref().map(str::to_owned);
        // The verdict on a prompt has no window.
        if round.took_us.is_some() {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(Bar {
                accepted: round.accepted,
                window: round.window,
                source: round.source.clone().into_owned(),
            });
        }
        self.latest = Some(round);
    }

    /// Takes in what an endpoint did for it.
    pub(super) fn note_build(&mut self, build: &Build) {
        self.counts.add_build(build);
    }

    /// Where it stands among others: those that run, then those that ended last.
    pub(super) fn place(&self) -> Option<Reverse<Instant>> {
        self.ended.is_some().then_some(Reverse(self.heard))
    }

    /// Whether it is still to be shown.
    pub(super) fn is_shown(&self, now: Instant) -> bool {
        let silent = now.saturating_duration_since(self.heard);
        let most = if self.ended.is_some() {
            FAREWELL
        } else {
            SILENCE
        };
        silent < most
    }

    /// How it is shown, as the one of this number on `target`.
    pub(super) fn view(&self, target: String, session: u64) -> SessionView {
        let lasted = self.heard.saturating_duration_since(self.began);
        let figures = Figures::of(&self.counts, lasted.as_secs_f64());
        let ahead = figures.sources.get("ahead").copied();
        let took = self.latest.as_ref().and_then(|round| round.took_us);
        SessionView {
            target,
            session,
            policy: self.policy.clone(),
            rounds: self.rounds,
            tokens: self.counts.tokens as u64,
            ahead_share: (!figures.sources.is_empty()).then(|| ahead.unwrap_or(0.0)),
            round_ms: took.map(|took| took as f64 / 1e3),
            ended: self.ended.clone(),
            figures,
            recent: self.recent.iter().cloned().collect(),
        }
    }
}
