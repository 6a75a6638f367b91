//! A speculation endpoint in a few lines: one session at a time, to the end.

use std::collections::BTreeMap;

use foretoken_engine::{
    batch::{Engine, Feed, Reuse, SeqId, Wants},
    sim::{Role, SimOptions, SimRunner},
};
use foretoken_speculation::{
    SessionId,
    message::{ToDraft, ToTarget},
    policy::draft::{self, DraftSession, Planners},
    sampling::Scratch,
};

pub(super) struct MiniEndpoint {
    engine: Engine,
    sessions: BTreeMap<SessionId, (DraftSession, SeqId)>,
    planners: Planners,
    scratch: Scratch,
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
        for (_, (_, seq)) in std::mem::take(&mut self.sessions) {
            self.engine.close(seq).expect("it was open");
        }
    }

    pub(super) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn handle(&mut self, message: &ToDraft, answers: &mut Vec<ToTarget>) {
        let id = match message {
            ToDraft::Open(open) => open.session,
            ToDraft::Outcome(outcome) => outcome.session,
            ToDraft::Close { session, .. } => *session,
        };
        if !self.sessions.contains_key(&id) {
            let ToDraft::Open(open) = message else {
                answers.extend(DraftSession::answer_unknown(message));
                return;
            };
            let info = self.engine.info();
            let session = DraftSession::new(id, info.vocab_size as u32, info.max_positions);
            let seq = self.engine.open(&open.tokens, Reuse::Off);
            self.sessions.insert(id, (session, seq));
        }
        let (session, seq) = self.sessions.get_mut(&id).expect("it was just put there");
        answers.extend(session.handle(message));
        session.plan(&mut self.planners);
        while let Some(work) = session.work() {
            let rows = work.tokens.len().min(64);
            let logits = if work.wants != draft::Wants::None && rows == work.tokens.len() {
                Wants::Last
            } else {
                Wants::None
            };
            self.engine.truncate(*seq, work.keep).expect("it is open");
            let feed = Feed {
                seq: *seq,
                tokens: &work.tokens[..rows],
                tree: None,
                logits,
            };
            self.engine.step(&[feed]).expect("it has room");
            let ticket = work.ticket;
            let row = self.engine.logits().last(0);
            answers.extend(session.stepped(ticket, rows, row.as_slice(), &mut self.scratch));
        }
        if !session.is_bound() {
            let (_, seq) = self.sessions.remove(&id).expect("it is there");
            self.engine.close(seq).expect("it is open");
        }
    }
}
