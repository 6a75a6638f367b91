//! Which sessions there are: messages, leases, ends. Who is admitted says `room`.

use std::time::{Duration, Instant};

use foretoken_engine::batch::{Engine, Reuse, SeqError, SeqId, StepError};
use foretoken_protocol::link::LinkId;
use foretoken_speculation::{
    Round, SessionId,
    bounds::Bound as _,
    fanout::Limit,
    message::{Account, Open, Outcome, ToDraft, ToTarget},
    policy::draft::{DraftSession, DraftStats, Judged, Outlook, Purpose},
};

use foretoken_service::rounds::{Build, Feed, Line};

use super::{Outlet, Worker, branches::Forks};
use crate::recording::Recording;

/// A session that holds a slot.
pub(super) struct Session {
    pub(super) link: LinkId,
    pub(super) draft: DraftSession,
    pub(super) seq: SeqId,
    /// Where its branches are.
    pub(super) forks: Forks,
    /// Counts that metrics know of.
    pub(super) counted: DraftStats,
    /// Counts at the last outcome that a listener was told of.
    pub(super) told: Option<DraftStats>,
    /// Outcomes that the latest build drafts for.
    pub(super) outcomes: u32,
    /// What kept it from drafting for more.
    pub(super) limit: Option<Limit>,
    /// Time of steps that had a part in it since a listener was told.
    pub(super) spent: Spent,
    /// What its target has yet to be told of.
    pub(super) account: Account,
    /// What they are for, and what its target is doing.
    pub(super) outlook: Outlook,
    /// Rises with every session opened.
    pub(super) opened: u64,
    /// When the target last said anything about it.
    heard: Instant,
    /// Whether its prompt is in the KV: before that, even work that nobody waits for is done.
    pub(super) primed: bool,
    /// What is recorded of it, if anything is.
    pub(super) recording: Option<Recording>,
}

/// What steps were for, as far as a session had a part in them.
#[derive(Default)]
pub(super) struct Spent {
    ahead: Duration,
    awaited: Duration,
}

impl Session {
    /// Notes a step that it had a part in.
    pub(super) fn note_step(&mut self, was_for: Purpose, took: Duration) {
        let (spent, account) = (&mut self.spent, &mut self.account);
        let [told, owed] = match was_for {
            Purpose::Ahead => [&mut spent.ahead, &mut account.ahead],
            Purpose::Window => [&mut spent.awaited, &mut account.awaited],
            Purpose::Follow => return,
        };
        *told += took;
        *owed += took;
    }

    /// What its target has yet to be told of, if it wants anything drafted ahead.
    pub(super) fn take_account(&mut self) -> Option<Account> {
        let (epoch, _) = self.draft.awaits().filter(|_| self.draft.drafts_ahead())?;
        let account = std::mem::take(&mut self.account);
        let session = self.draft.id();
        (account != Account::default()).then_some(Account {
            session,
            epoch,
            ..account
        })
    }

    /// Keeps what the engine has read of the tree that a verdict went through, and of the window after it
    /// in the branch that drew that. `late` says whether its target takes late entries, which come of that.
    fn join_decided(&mut self, engine: &mut Engine, late: bool) {
        if let Some(nodes) = self.draft.take_decided()
            && let Err(error) = engine.accept_path(self.seq, &nodes)
        {
            tracing::error!(%error, "a tree had no such nodes");
        }
        if let Some(branch) = self.draft.take_confirmed().filter(|_| late)
            && let Some(fork) = self.forks.of(&branch)
        {
            match engine.graft(self.seq, fork, &branch.nodes) {
                Ok(()) => self.draft.joined(&branch),
                // It is read again, when there is room.
                Err(StepError::OutOfPages { .. }) => {}
                Err(error) => tracing::error!(%error, "a branch had no such nodes"),
            }
        }
    }

    /// Gives back pages of what it no longer wants; its first `same` tokens are what they were. The
    /// next step would do so too, but who wants nothing read has none.
    fn let_go(&mut self, engine: &mut Engine, same: usize) -> Result<(), SeqError> {
        self.forks.reap(engine, &self.draft);
        let read = engine.tokens(self.seq)?;
        let wanted = self.draft.tokens().iter().skip(same);
        let common = read.iter().skip(same).zip(wanted);
        let common = common.take_while(|(read, wanted)| read == wanted);
        let kept = (same + common.count()).min(read.len());
        if kept < read.len() || !engine.tail(self.seq)?.is_empty() {
            engine.truncate(self.seq, kept)?;
        }
        Ok(())
    }
}

impl<O: Outlet> Worker<O> {
    /// Takes in one message of a target.
    pub(super) fn handle(&mut self, link: LinkId, mut message: ToDraft) {
        let id = match &mut message {
            ToDraft::Open(open) => {
                if let Some(branching) = &mut open.branching {
                    branching.lookahead = branching.lookahead.min(self.limits.lookahead);
                }
                open.session
            }
            ToDraft::Outcome(outcome) => {
                outcome.lookahead = outcome.lookahead.min(self.limits.lookahead);
                outcome.session
            }
            ToDraft::Close { session, .. } => *session,
        };
        let Some(index) = self.find(link, id) else {
            let answer = match &message {
                ToDraft::Open(open) => Some(self.open(link, open)),
                other => DraftSession::answer_unknown(other),
            };
            if let Some(answer) = answer {
                self.count(&answer);
                self.answer(link, answer);
            }
            return;
        };
        let session = &mut self.sessions[index];
        session.heard = self.now;
        let (before, awaited) = (session.draft.stats(), session.draft.awaits());
        let was_drafting = session.draft.remaining() > 0;
        let decided = session.draft.decided().len();
        let answer = session.draft.handle(&message);
        // What was said before, or comes late, changes nothing.
        if session.draft.awaits() != awaited {
            if was_drafting {
                self.metrics.abandoned.inc();
            }
            let late = self.links.get(&link).is_some_and(|peer| peer.late_entries);
            session.join_decided(&mut self.engine, late);
            // An `Open` may change everything, a verdict what was not decided before it.
            let same = match &message {
                ToDraft::Open(_) => 0,
                ToDraft::Outcome(_) | ToDraft::Close { .. } => decided,
            };
            if session.draft.is_bound()
                && let Err(error) = session.let_go(&mut self.engine, same)
            {
                tracing::error!(%error, "a session had no sequence");
            }
            match &message {
                ToDraft::Outcome(outcome) => self.hear_verdict(index, outcome, &before),
                // It begins anew: nothing is verified that it knows of.
                ToDraft::Open(_) => session.outlook = Outlook::default(),
                ToDraft::Close { .. } => {}
            }
            self.drop_columns(link, id);
        }
        let now = self.heard_at();
        let session = &mut self.sessions[index];
        if let Some(ToTarget::Window(window)) = &answer {
            session.outlook.begin(now, window.proposals.len());
        }
        if !session.draft.is_bound() {
            self.remove(index);
        }
        if let Some(answer) = answer {
            self.count(&answer);
            self.answer(link, answer);
        }
    }

    /// Notes what a verdict says of its target's times, and of what was drafted for it; `before` was
    /// counted before it.
    fn hear_verdict(&mut self, index: usize, outcome: &Outcome, before: &DraftStats) {
        let now = self.heard_at();
        let session = &mut self.sessions[index];
        // Nothing is ahead of a verdict that waits for it; the target counts that too.
        let waited = outcome.lingered.min(session.spent.ahead);
        session.spent.ahead = session.spent.ahead.saturating_sub(waited);
        session.spent.awaited += waited;
        let learned = self.learned.entry(session.link).or_default();
        let (draft, timing) = (&session.draft, &mut learned.timing);
        let judged = session.outlook.hear(now, outcome, before, draft, timing);
        if let Some(Judged { planned, missing }) = judged {
            self.metrics.entry_tokens.judge(planned, missing);
        }
        let target = self.links.get(&session.link).map(|peer| &*peer.name);
        let at = (outcome.round, self.began);
        tell_build(&self.feed, target, session, at);
    }

    /// Ends a session because of `reason`, and tells its target.
    pub(super) fn evict(&mut self, link: LinkId, id: SessionId, reason: &str) {
        let Some(index) = self.find(link, id) else {
            return;
        };
        if let Some(recording) = &self.sessions[index].recording {
            recording.gives_up(reason);
        }
        if let Some(answer) = self.sessions[index].draft.evict(reason) {
            self.count(&answer);
            self.answer(link, answer);
        }
        self.remove(index);
    }

    /// Ends the sessions that were silent for longer than their lease.
    pub(super) fn expire(&mut self) {
        let (now, lease) = (self.now, self.limits.lease);
        let silent: Vec<_> = self
            .sessions
            .iter()
            .filter(|session| now.saturating_duration_since(session.heard) > lease)
            .map(|session| (session.link, session.draft.id()))
            .collect();
        for (link, id) in silent {
            self.metrics.expired.inc();
            self.evict(link, id, "the session was silent for longer than its lease");
        }
    }

    /// Ends sessions without telling anybody.
    pub(super) fn close_where(&mut self, gone: impl Fn(&Session) -> bool) {
        for index in (0..self.sessions.len()).rev() {
            if gone(&self.sessions[index]) {
                self.remove(index);
            }
        }
    }

    pub(super) fn find(&self, link: LinkId, id: SessionId) -> Option<usize> {
        self.sessions
            .iter()
            .position(|session| session.link == link && session.draft.id() == id)
    }

    fn remove(&mut self, index: usize) {
        let mut session = self.sessions.swap_remove(index);
        // Nobody looks at them, and its number may come again.
        self.drop_columns(session.link, session.draft.id());
        self.metrics.note(&session.take_stats());
        if let Some(recording) = session.recording.take() {
            recording.ended(&session.draft.stats(), self.now);
        }
        session.forks.close(&mut self.engine);
        self.close_sequence(session.seq);
    }

    fn close_sequence(&mut self, seq: SeqId) {
        if let Err(error) = self.engine.close(seq) {
            tracing::error!(%error, "a session had no sequence");
        }
    }

    /// Gives a new session a slot, or says why not.
    fn open(&mut self, link: LinkId, open: &Open) -> ToTarget {
        let refuse = |reason: String, retry| ToTarget::Refused {
            session: open.session,
            epoch: open.epoch,
            reason,
            retry,
        };
        let len = open.tokens.len();
        if len >= self.limits.positions {
            let limit = self.limits.positions;
            return refuse(
                format!("{len} tokens exceed the draft model's {limit} positions"),
                false,
            );
        }
        let mut draft =
            DraftSession::new(open.session, self.limits.vocab_size, self.limits.positions)
                .with_max_branches(self.limits.branches);
        let answer = draft.handle(&ToDraft::Open(open.clone()));
        if !draft.is_bound() {
            return answer.unwrap_or_else(|| refuse("the session is closed".into(), false));
        }
        let reuse = if self.prefix_cache && !open.keeps_nothing {
            Reuse::Within(self.tenants.salt(link, open.salt))
        } else {
            Reuse::Off
        };
        let seq = self.engine.open(&open.tokens, reuse);
        // Only for one that will be: others may lose something by it.
        if let Err((limit, reason)) = self.admit(link, seq, len) {
            self.close_sequence(seq);
            self.metrics.refused_for(limit);
            return refuse(reason, true);
        }
        let cached = self.engine.cached_len(seq).unwrap_or(0);
        if let Some(work) = draft.work().map(|work| work.ticket) {
            draft.stepped(work, cached, &[], &mut self.scratch);
        }
        self.metrics.prefix_queries.inc_by(len as u64);
        self.metrics.prefix_hits.inc_by(cached as u64);
        self.opened += 1;
        let (opened, heard) = (self.opened, self.now);
        self.sessions.push(Session {
            link,
            draft,
            seq,
            forks: Forks::default(),
            counted: DraftStats::default(),
            told: None,
            outcomes: 0,
            limit: None,
            spent: Spent::default(),
            account: Account::default(),
            outlook: Outlook::default(),
            opened,
            heard,
            primed: false,
            recording: Recording::new(&self.tracer, open, cached, self.now),
        });
        ToTarget::Opened {
            session: open.session,
            epoch: open.epoch,
        }
    }

    fn count(&self, answer: &ToTarget) {
        match answer {
            ToTarget::Refused { .. } => self.metrics.refused.inc(),
            ToTarget::Resync(_) => self.metrics.resyncs.inc(),
            ToTarget::Window(_) => self.metrics.windows.inc(),
            ToTarget::Opened { .. } | ToTarget::Entries(_) | ToTarget::Account(_) => return,
        };
    }
}

/// Tells whoever listens what was done for the verdict of `target` that has just come.
fn tell_build(
    feed: &Feed,
    target: Option<&str>,
    session: &mut Session,
    (round, began): (Round, Instant),
) {
    let spent = std::mem::take(&mut session.spent);
    if !feed.is_heard() || session.draft.learns_as().is_none() {
        session.told = None;
        return;
    }
    let outcomes = std::mem::take(&mut session.outcomes);
    let Some(stats) = session.take_told() else {
        return;
    };
    let rank = stats.ranks.iter().position(|&count| count > 0);
    feed.tell(Line::Build(Build {
        at_ms: began.elapsed().as_millis() as u64,
        link: session.link.0,
        target: target.unwrap_or_default().to_owned(),
        session: session.draft.id().0,
        round: round.0,
        outcomes,
        drafted: stats.built,
        pushed: stats.pushed,
        timely: stats.timely,
        late: stats.late,
        cut: stats.cut > 0,
        limit: session.limit.take().map(|limit| limit.name().into()),
        ahead_us: spent.ahead.as_micros() as u64,
        awaited_us: spent.awaited.as_micros() as u64,
        judged: stats.judged,
        rank: rank.map(|rank| rank as u32 + 1),
    }));
}
