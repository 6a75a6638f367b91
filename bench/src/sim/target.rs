//! A simulated target: its requests, and when it verifies.
//!
//! ```text
//! begin: gather, pass ──> decide ──> linger ──> conclude: suggest, advise, learn ──> messages
//! ```

mod learned;
mod meter;

use std::{ops::Range, time::Duration};

use foretoken_speculation::{
    Seed, SessionId, TokenId,
    control::Lesson,
    gather::{self, Ready},
    linger::Wait,
    message::{Keyed as _, ToDraft, ToTarget},
    policy::{
        Patience,
        target::{Drafted, Input, Next, TargetConfig, TargetSession, Verified},
    },
    sampling::{Sampler, SamplingParams, Scratch},
    verify::{self, Verification},
};

use self::{learned::Learned, meter::Meter};
use super::{
    pair::{Context, Pair, Role, VOCAB},
    times::Times,
    world::{Conduct, Scenario},
};

/// Tokens of every prompt.
pub(super) const PROMPT: usize = 16;
/// No simulated message is ever lost, so nobody gives up waiting.
const FOREVER: Duration = Duration::from_secs(3600);
/// Least wait for others, since a window that is due now may come a moment later.
const MOMENT: Duration = Duration::from_micros(1);

/// One request.
struct Row {
    session: TargetSession,
    sampler: Sampler,
    meter: Meter,
    /// Rows of its part of the pass under way.
    rows: u32,
    /// Most proposals of the pass that follow each other, and those that it tried in turn.
    height: u32,
    tried: u32,
    /// What the pass decided, and the tokens that were there of what was drafted for that.
    tokens: Vec<TokenId>,
    had: u32,
}

impl Row {
    /// What has come of what was drafted for the verdict.
    fn drafted(&self) -> Option<Drafted> {
        self.session.drafted(&Verified {
            tokens: &self.tokens,
            accepted: self.tokens.len() as u32 - 1,
            ..Verified::default()
        })
    }

    /// Tokens of it, if that is not all.
    fn in_part(&self) -> Option<u32> {
        let growing = self.drafted().filter(|drafted| drafted.grows);
        growing.map(|drafted| drafted.tokens)
    }

    /// Tokens of it.
    fn came(&self) -> u32 {
        self.drafted().map_or(0, |drafted| drafted.tokens)
    }
}

/// What a target does now.
pub(super) enum Begin {
    /// A pass of this length.
    Pass(Duration),
    /// It waits, for that long at most.
    Wait(Duration),
    Nothing,
}

/// A target with as many requests as its batch has rows; they go on without end.
pub(super) struct Target {
    rows: Vec<Row>,
    /// What it has learned; none: it does as it was told, in lock-step.
    learned: Option<Learned>,
    waiting: Option<Waiting>,
    busy: bool,
    /// How long the pass under way takes.
    took: Duration,
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
    /// Tokens that windows might have had.
    pub(super) sought: u64,
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
                salt: [0; 32],
                keeps_nothing: false,
                trace: None,
            };
            Ok(Row {
                sampler: Sampler::new(sampling.clone(), Seed(id), &tokens, PROMPT)?,
                session: TargetSession::new(config, tokens),
                meter: Meter::default(),
                rows: 0,
                height: 0,
                tried: 0,
                tokens: Vec::new(),
                had: 0,
            })
        };
        let learned = match scenario.conduct {
            Conduct::LockStep => None,
            Conduct::Learned { trees } => {
                Learned::new(scenario.policy, &scenario.times.target, trees)
            }
        };
        Ok(Self {
            rows: ids.map(row).collect::<anyhow::Result<_>>()?,
            learned,
            waiting: None,
            busy: false,
            took: Duration::ZERO,
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
        let id = message.session();
        let Some(row) = self.rows.iter_mut().find(|row| row.session.id() == id) else {
            return Vec::new();
        };
        let effects = row.session.handle(now, Input::Received(message));
        let usual = effects.answer.filter(|_| row.meter.is_in_a_row());
        if let (Some(answer), Some(learned)) = (usual, &mut self.learned) {
            learned.observe_answer(&answer);
        }
        effects.messages
    }

    /// Begins a pass if it is time for one.
    pub(super) fn begin(&mut self, now: Duration, times: &Times) -> Begin {
        if self.busy {
            return Begin::Nothing;
        }
        let (mut ready, mut due) = (Ready::default(), Vec::new());
        for row in &mut self.rows {
            row.rows = match row.session.next(now) {
                Next::Verify(window) => window.len() as u32 + 1,
                Next::Wait { .. } | Next::Finished => 0,
            };
            if row.rows > 0 {
                ready.requests += 1;
                ready.rows += row.rows as usize;
            } else if let Some(learned) = &self.learned {
                due.push(learned.due(now, row.meter.asked));
            }
        }
        let all = ready.requests == self.rows.len();
        if ready.requests == 0 || (self.learned.is_none() && !all) {
            return Begin::Nothing;
        }
        if let Some(learned) = &self.learned {
            due.sort_unstable_by_key(|due| due.after);
            let wait = gather::wait_for(ready, &due, |rows| learned.pass(rows));
            if let Some(wait) = wait {
                return Begin::Wait(wait.max(MOMENT));
            }
        }
        self.busy = true;
        self.counts.waited += now.saturating_sub(self.idle_since);
        self.counts.passes += 1;
        self.took = times.pass(ready.rows as u32);
        Begin::Pass(self.took)
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
            row.height = proposals.height() as u32;
            row.tried = proposals.tried(verdict.node);
            row.tokens.push(verdict.decided);
            row.had = row.came();
        }
    }

    /// Whether to wait for more of what was drafted for the verdicts, and until when.
    pub(super) fn lingers(&mut self, now: Duration) -> Option<Duration> {
        let learned = self.learned.as_mut()?;
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
            learned.observe_wait(waiting.wait, more, waited);
            if !more {
                return None;
            }
            wait = Wait::Next;
        }
        let until = now + learned.patience(wait, &coming)?;
        self.waiting = Some(Waiting {
            wait,
            since: now,
            until,
            came,
        });
        Some(until)
    }

    /// Whether verdicts wait to be drawn consequences of.
    pub(super) fn is_decided(&self) -> bool {
        self.decided_at.is_some()
    }

    /// Draws the consequences of the verdicts; what to send.
    pub(super) fn conclude(&mut self, now: Duration) -> Vec<ToDraft> {
        self.busy = false;
        self.idle_since = self.decided_at.take().unwrap_or(now);
        let lingered = now.saturating_sub(self.idle_since);
        let requests = self.rows.len() as u32;
        let rows: u32 = self.rows.iter().map(|row| row.rows).sum();
        let mut learned = self.learned.as_mut();
        let suggestion = learned.as_mut().map(|learned| {
            learned.observe_pass(rows, self.took);
            learned.suggest(requests)
        });
        let (mut messages, mut emitted) = (Vec::new(), 0);
        let decided = self.rows.iter_mut().enumerate();
        for (index, row) in decided.filter(|(_, row)| row.rows > 0) {
            let accepted = row.tokens.len() as u32 - 1;
            let mut verified = Verified {
                tokens: &row.tokens,
                accepted,
                lingered,
                had: Some(row.had),
                ..Verified::default()
            };
            if let (Some(learned), Some(suggestion)) = (&learned, suggestion) {
                verified.suggested = suggestion.of(index);
                let others = rows - row.rows + 1;
                let caught_up = row.session.is_caught_up();
                verified = learned.advise(verified, suggestion, others, caught_up);
            }
            let before = row.session.stats().ahead;
            let effects = row.session.handle(now, Input::Verified(verified));
            let after = row.session.stats().ahead;
            let round = row.meter.verdict(&effects, now);
            if let Some(learned) = &mut learned {
                let lesson = Lesson {
                    drafted: row.height,
                    tried: row.tried,
                    clipped: false,
                    accepted,
                    own: false,
                    rows,
                    typical: true,
                    sessions: requests,
                    round,
                };
                learned.learn(&lesson, effects.lookup);
            }
            if effects.lookup.is_some_and(|lookup| !lookup.first) {
                self.counts.hits += u64::from(after.hits - before.hits);
                self.counts.misses += u64::from(after.misses - before.misses);
            }
            emitted += row.tokens.len() as u32;
            self.counts.rounds += 1;
            self.counts.sought += round.map_or(0, |(sought, _)| u64::from(sought.tokens));
            messages.extend(effects.messages);
        }
        self.counts.tokens += u64::from(emitted);
        if let Some(learned) = learned {
            learned.note_pace(now, emitted);
        }
        messages
    }
}
