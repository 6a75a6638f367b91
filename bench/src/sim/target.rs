//! A simulated target: its requests, and when it verifies.

use std::{ops::Range, time::Duration};

use foretoken_speculation::{
    Seed, SessionId, TokenId,
    control::{Acceptance, Pace},
    fallback::Fallback,
    linger::{Linger, Wait},
    message::{ToDraft, ToTarget, TreeBudget},
    policy::{
        Patience,
        target::{Input, Next, TargetConfig, TargetSession, Verified},
    },
    sampling::{Sampler, SamplingParams, Scratch},
    verify::{self, Verification},
};

use super::{
    pair::{Context, Pair, Role, VOCAB},
    times::Times,
    world::Scenario,
};

/// Tokens of every prompt.
pub(super) const PROMPT: usize = 16;
/// No simulated message is ever lost, so nobody gives up waiting.
const FOREVER: Duration = Duration::from_secs(3600);

/// One request.
struct Row {
    session: TargetSession,
    sampler: Sampler,
    /// Rows of its part of the pass under way.
    rows: u32,
    /// Proposals in turn that the pass decided upon: those accepted, and one more if there was one.
    tried: u32,
    /// What the pass decided.
    tokens: Vec<TokenId>,
}

impl Row {
    /// Tokens that have come of what was drafted for the verdict, if that is not all.
    fn in_part(&self) -> Option<u32> {
        let drafted = self.session.drafted(&Verified {
            tokens: &self.tokens,
            accepted: self.tokens.len() as u32 - 1,
            ..Verified::default()
        });
        drafted
            .filter(|drafted| drafted.grows)
            .map(|drafted| drafted.tokens)
    }
}

/// A target with as many requests as its batch has rows; they go on without end.
pub(super) struct Target {
    rows: Vec<Row>,
    /// Passes begin when all requests can take part in them; otherwise as soon as one can.
    lock_step: bool,
    on_miss: Option<Fallback>,
    tree: Option<TreeBudget>,
    /// Whether verdicts wait for more of what was drafted for them.
    linger: Linger,
    waiting: Option<Waiting>,
    acceptance: Acceptance,
    pace: Pace,
    /// When consequences were last drawn.
    concluded: Option<Duration>,
    busy: bool,
    /// When the pass ended whose verdicts are still to be acted upon.
    decided_at: Option<Duration>,
    idle_since: Duration,
    pub(super) counts: Counts,
}

/// Verdicts wait.
struct Waiting {
    wait: Wait,
    since: Duration,
    until: Duration,
    /// Tokens that had come.
    came: u32,
}

/// What a target did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) tokens: u64,
    /// Verdicts.
    pub(super) rounds: u64,
    pub(super) passes: u64,
    /// Time in which the target waited for windows.
    pub(super) waited: Duration,
    /// Verdicts that something was drafted for, and others, both without the first ones.
    pub(super) hits: u64,
    pub(super) misses: u64,
}

impl Target {
    pub(super) fn new(
        ids: Range<usize>,
        scenario: &Scenario,
        sampling: &SamplingParams,
        max_len: usize,
    ) -> anyhow::Result<Self> {
        let row = |id: usize| {
            let id = id as u64;
            let tokens: Vec<TokenId> = (0..PROMPT as u64)
                .map(|i| TokenId(((id * 131 + i * 29 + id * i) % VOCAB as u64) as u32))
                .collect();
            let config = TargetConfig {
                session: SessionId(id),
                policy: scenario.policy,
                sampling: sampling.clone(),
                verification: Verification::Coupled,
                seed: Seed(id),
                prompt_len: PROMPT as u32,
                max_len,
                vocab_size: VOCAB as u32,
                patience: Patience::new(1.5, FOREVER, FOREVER, FOREVER),
                reopen_after: FOREVER,
                trace: None,
            };
            Ok(Row {
                sampler: Sampler::new(sampling.clone(), Seed(id), &tokens, PROMPT)?,
                session: TargetSession::new(config, tokens),
                rows: 0,
                tried: 0,
                tokens: Vec::new(),
            })
        };
        Ok(Self {
            rows: ids.map(row).collect::<anyhow::Result<_>>()?,
            lock_step: scenario.lock_step,
            on_miss: scenario.on_miss,
            tree: scenario.tree,
            linger: Linger::default(),
            waiting: None,
            acceptance: Acceptance::default(),
            pace: Pace::default(),
            concluded: None,
            busy: false,
            decided_at: None,
            idle_since: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    /// Binds all requests.
    pub(super) fn open(&mut self, now: Duration) -> Vec<ToDraft> {
        let rows = self.rows.iter_mut();
        rows.flat_map(|row| row.session.handle(now, Input::LinkUp).messages)
            .collect()
    }

    /// Takes in a message for one of its requests.
    pub(super) fn receive(&mut self, now: Duration, message: &ToTarget) -> Vec<ToDraft> {
        let id = match message {
            ToTarget::Opened { session, .. } | ToTarget::Refused { session, .. } => *session,
            ToTarget::Window(window) => window.session,
            ToTarget::Entries(entries) => entries.session,
            ToTarget::Resync(resync) => resync.session,
        };
        let row = self.rows.iter_mut().find(|row| row.session.id() == id);
        let effects = row.map(|row| row.session.handle(now, Input::Received(message)));
        effects.map_or_else(Vec::new, |effects| effects.messages)
    }

    /// Begins a pass if it is time for one; how long it takes.
    pub(super) fn begin(&mut self, now: Duration, times: &Times) -> Option<Duration> {
        if self.busy {
            return None;
        }
        let (mut rows, mut waits) = (0, false);
        for row in &mut self.rows {
            row.rows = match row.session.next(now) {
                Next::Verify(window) => window.len() as u32 + 1,
                Next::Wait { .. } | Next::Finished => 0,
            };
            waits |= row.rows == 0;
            rows += row.rows;
        }
        if rows == 0 || (self.lock_step && waits) {
            return None;
        }
        self.busy = true;
        self.counts.waited += now.saturating_sub(self.idle_since);
        self.counts.passes += 1;
        Some(times.pass(rows))
    }

    /// Ends the pass: decides.
    pub(super) fn decide(&mut self, now: Duration, pair: &Pair, scratch: &mut Scratch) {
        self.decided_at = Some(now);
        for row in self.rows.iter_mut().filter(|row| row.rows > 0) {
            let root = Context::of(row.session.tokens());
            let Next::Verify(proposals) = row.session.next(now) else {
                continue;
            };
            let mut contexts = vec![root];
            for (node, &token) in (1..).zip(proposals.tokens()) {
                contexts.push(contexts[proposals.parent(node) as usize].with(token));
            }
            let logits = pair.rows(Role::Target, &contexts);
            let verdict = verify::coupled_tree(&mut row.sampler, scratch, proposals, |node| {
                &logits[node as usize * VOCAB..][..VOCAB]
            });
            row.tokens = proposals.spelled(verdict.node);
            let more = proposals.children(verdict.node).next().is_some();
            row.tried = row.tokens.len() as u32 + u32::from(more);
            row.tokens.push(verdict.decided);
        }
    }

    /// Whether to wait for more of what was drafted for the verdicts, and until when.
    pub(super) fn lingers(&mut self, now: Duration) -> Option<Duration> {
        let rows = self.rows.iter().filter(|row| row.rows > 0);
        let coming: Vec<u32> = rows.filter_map(Row::in_part).collect();
        let came = coming.iter().sum();
        let mut wait = Wait::First;
        if let Some(waiting) = self.waiting.take() {
            let more = came != waiting.came;
            if !more && now < waiting.until {
                return Some(self.waiting.insert(waiting).until);
            }
            let waited = now.saturating_sub(waiting.since);
            self.linger.observe(waiting.wait, more, waited);
            if !more {
                return None;
            }
            wait = Wait::Next;
        }
        let chances = coming.iter().map(|&came| self.acceptance.chance(came));
        let chance = Some(chances.sum()).filter(|_| !coming.is_empty())?;
        let pace = self.pace.per_second();
        let until = now + self.linger.patience(wait, chance, pace)?;
        self.waiting = Some(Waiting {
            wait,
            since: now,
            until,
            came,
        });
        Some(until)
    }

    fn note_pace(&mut self, now: Duration) {
        let rows = self.rows.iter().filter(|row| row.rows > 0);
        let tokens: usize = rows.map(|row| row.tokens.len()).sum();
        if let Some(before) = self.concluded.replace(now) {
            self.pace.observe(tokens as u32, now.saturating_sub(before));
        }
    }

    /// Whether verdicts wait to be drawn consequences of.
    pub(super) fn is_decided(&self) -> bool {
        self.decided_at.is_some()
    }

    /// Draws the consequences of the verdicts; what to send.
    pub(super) fn conclude(&mut self, now: Duration) -> Vec<ToDraft> {
        self.busy = false;
        self.idle_since = self.decided_at.take().unwrap_or(now);
        self.note_pace(now);
        let mut messages = Vec::new();
        for row in self.rows.iter_mut().filter(|row| row.rows > 0) {
            let accepted = row.tokens.len() as u32 - 1;
            self.acceptance.observe(row.tried, accepted);
            let before = row.session.stats().ahead;
            let effects = row.session.handle(
                now,
                Input::Verified(Verified {
                    tokens: &row.tokens,
                    accepted,
                    fallback: self.on_miss,
                    tree: self.tree,
                    ..Verified::default()
                }),
            );
            let after = row.session.stats().ahead;
            if effects.lookup.is_some_and(|lookup| !lookup.first) {
                self.counts.hits += u64::from(after.hits - before.hits);
                self.counts.misses += u64::from(after.misses - before.misses);
            }
            self.counts.tokens += row.tokens.len() as u64;
            self.counts.rounds += 1;
            messages.extend(effects.messages);
        }
        messages
    }
}
