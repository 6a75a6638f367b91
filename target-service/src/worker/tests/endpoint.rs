//! A speculation endpoint in a few lines: one session at a time, to the end.
//!
//! Whatever is drafted ahead of a verdict is therefore drafted whole before the verdict comes, unless
//! the way to the target spoils it.

use std::collections::BTreeMap;

use foretoken_engine::{
    batch::{Engine, Feed, Reuse, SeqId, StepLogits, Wants},
    sim::{Role, SimOptions, SimRunner},
};
use foretoken_speculation::{
    SessionId,
    message::{Keyed as _, ToDraft, ToTarget},
    policy::draft::{self, BranchWork, BuildId, DraftSession, Planners},
    sampling::Scratch,
};

/// Most rows of a step that reads a sequence.
const CHUNK: usize = 64;

pub(super) struct MiniEndpoint {
    engine: Engine,
    sessions: BTreeMap<SessionId, Session>,
    planners: Planners,
    scratch: Scratch,
}

struct Session {
    draft: DraftSession,
    seq: SeqId,
    /// Where its branches are, and the build that these belong to.
    forks: Vec<SeqId>,
    build: Option<BuildId>,
}

impl Session {
    /// Closes the forks if their build is over.
    fn reap(&mut self, engine: &mut Engine) {
        if self.build != self.draft.build() {
            self.build = None;
            for fork in self.forks.drain(..) {
                engine.close(fork).expect("it is open");
            }
        }
    }

    /// Gives everything back.
    fn close(mut self, engine: &mut Engine) {
        for seq in self.forks.drain(..).chain([self.seq]) {
            engine.close(seq).expect("it is open");
        }
    }
}

impl MiniEndpoint {
    pub(super) fn new(language: &SimOptions, agreement: f64) -> Self {
        let role = Role::Draft { agreement };
        let runner = SimRunner::new(SimOptions {
            role,
            pages: 4096,
            ..*language
        });
        Self {
            engine: Engine::new(Box::new(runner)),
            sessions: BTreeMap::new(),
            planners: Planners::default(),
            scratch: Scratch::new(),
        }
    }

    /// Forgets everything, as after a restart.
    pub(super) fn restart(&mut self) {
        for (_, session) in std::mem::take(&mut self.sessions) {
            session.close(&mut self.engine);
        }
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Pages that sessions hold.
    pub(super) fn pages(&self) -> usize {
        self.engine.usage().referenced
    }

    pub(super) fn handle(&mut self, message: &ToDraft, answers: &mut Vec<ToTarget>) {
        let id = message.session();
        let session = self.sessions.remove(&id);
        let Some(mut session) = session.or_else(|| self.open(message)) else {
            answers.extend(DraftSession::answer_unknown(message));
            return;
        };
        answers.extend(session.draft.handle(message));
        if let Some(nodes) = session.draft.take_decided() {
            let accepted = self.engine.accept_path(session.seq, &nodes);
            accepted.expect("it has these nodes");
        }
        if let Some(branch) = session.draft.take_confirmed()
            && session.build == Some(branch.build)
        {
            let fork = session.forks[branch.fork];
            let grafted = self.engine.graft(session.seq, fork, &branch.nodes);
            grafted.expect("it has these nodes");
            session.draft.joined(&branch);
        }
        while self.step(&mut session, answers) {}
        if session.draft.is_bound() {
            self.sessions.insert(id, session);
        } else {
            session.close(&mut self.engine);
        }
    }

    fn open(&mut self, message: &ToDraft) -> Option<Session> {
        let ToDraft::Open(open) = message else {
            return None;
        };
        let info = self.engine.info();
        Some(Session {
            draft: DraftSession::new(open.session, info.vocab_size as u32, info.max_positions),
            seq: self.engine.open(&open.tokens, Reuse::Off),
            forks: Vec::new(),
            build: None,
        })
    }

    /// Makes a step of what a session wants; false if it wants nothing.
    fn step(&mut self, session: &mut Session, answers: &mut Vec<ToTarget>) -> bool {
        session.draft.plan(&mut self.planners);
        session.reap(&mut self.engine);
        let answer = if let Some(work) = session.draft.work() {
            let whole = work.wants == draft::Wants::All;
            let rows = work
                .tokens
                .len()
                .min(if whole { usize::MAX } else { CHUNK });
            let feed = Feed {
                seq: session.seq,
                tokens: &work.tokens[..rows],
                tree: work.parents,
                logits: match work.wants {
                    draft::Wants::All => Wants::All,
                    draft::Wants::Last if rows == work.tokens.len() => Wants::Last,
                    draft::Wants::Last | draft::Wants::None => Wants::None,
                },
            };
            let ticket = work.ticket;
            let kept = self.engine.truncate(session.seq, work.keep);
            kept.expect("it is open");
            let logits = self.engine.step(&[feed]).expect("it has room");
            let read = all_rows(logits, 1);
            let window = session
                .draft
                .stepped(ticket, rows, &read, &mut self.scratch);
            Vec::from_iter(window)
        } else if let Some(work) = session.draft.branches() {
            let (seq, forks) = (session.seq, &mut session.forks);
            session.build = Some(work.build);
            fork(&mut self.engine, seq, &work, forks);
            let feeds = branch(forks, &work);
            let ticket = work.ticket;
            let logits = self.engine.step(&feeds).expect("it has room");
            let read = all_rows(logits, feeds.len());
            session.draft.branched(ticket, &read, &mut self.scratch)
        } else {
            return false;
        };
        answers.extend(answer);
        true
    }
}

/// Makes the forks of a build that are not there.
fn fork(engine: &mut Engine, trunk: SeqId, work: &BranchWork<'_>, forks: &mut Vec<SeqId>) {
    let new = work.forks().skip(forks.len());
    let new = new.map(|fork| match fork.path {
        [] => engine
            .fork(trunk, fork.trunk_len as usize)
            .expect("it is as long"),
        path => engine.fork_path(trunk, path).expect("it has these nodes"),
    });
    forks.extend(new);
}

/// What the forks that go on are fed.
fn branch<'a>(forks: &[SeqId], work: &BranchWork<'a>) -> Vec<Feed<'a>> {
    let forks = forks.iter().zip(work.forks());
    let goes_on = forks.filter(|(_, fork)| !fork.tokens.is_empty());
    let feed = |(&seq, fork): (_, draft::ForkFeed<'a>)| Feed {
        seq,
        tokens: fork.tokens,
        tree: Some(fork.parents),
        logits: Wants::All,
    };
    goes_on.map(feed).collect()
}

fn all_rows(logits: StepLogits<'_>, feeds: usize) -> Vec<&[f32]> {
    let of_feed = |feed| (0..logits.rows(feed)).map(move |row| logits.row(feed, row));
    (0..feeds).flat_map(of_feed).collect()
}
