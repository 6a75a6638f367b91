//! What an endpoint keeps of a session, and what that wants of a step.

use std::time::Duration;

use foretoken_speculation::{
    SessionId,
    message::{ToDraft, ToTarget},
    policy::draft::{DraftSession, Grant, Outlook, Purpose, Wants},
    sampling::Scratch,
};

use super::{
    Learned,
    forks::{Forks, Tail},
};
use crate::sim::{
    pair::{Pair, Role, VOCAB},
    times::DraftRows,
};

pub(super) struct Session {
    pub(super) target: usize,
    pub(super) draft: DraftSession,
    /// What was fed last.
    fed: Tail,
    forks: Forks,
    /// What its branches are for, and what its target is doing.
    pub(super) outlook: Outlook,
}

impl Session {
    pub(super) fn new(id: SessionId, target: usize, max_len: usize) -> Self {
        Self {
            target,
            draft: DraftSession::new(id, VOCAB as u32, max_len),
            fed: Tail::default(),
            forks: Forks::default(),
            outlook: Outlook::default(),
        }
    }

    /// Takes in a message; what it answers. `joins` says whether what a branch has read is kept if its
    /// outcome comes about.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        message: &ToDraft,
        joins: bool,
        learned: &mut Learned,
    ) -> Option<ToTarget> {
        let before = self.draft.stats();
        let answer = self.draft.handle(message);
        // Contexts are made from tokens anyway.
        self.draft.take_decided();
        if let Some(branch) = self.draft.take_confirmed().filter(|_| joins) {
            self.draft.joined(&branch);
        }
        if let ToDraft::Outcome(outcome) = message {
            let (draft, timing) = (&self.draft, &mut learned.timing);
            self.outlook.hear(now, outcome, &before, draft, timing);
        }
        if let Some(ToTarget::Window(window)) = &answer {
            self.outlook.begin(now, window.proposals.len());
        }
        answer
    }

    /// What it wants of the next step, which has `most` rows: for its branches, and of its sequence.
    /// `session` is what it is called there.
    pub(super) fn demand(&mut self, session: usize, most: usize) -> [Option<Grant>; 2] {
        let tenant = Some(self.target);
        let branches = self.draft.branches();
        let branches = branches.map(|work| work.demand(session, tenant));
        let work = self.draft.work();
        let work = work.filter(|work| !work.may_wait(work.tokens.len()));
        let sequence = work.map(|work| work.demand(session, tenant, work.tokens.len(), most));
        [branches, sequence]
    }

    /// Feeds what it was granted, in `rows` of the step; what it answers.
    pub(super) fn feed(
        &mut self,
        grant: &Grant,
        pair: &Pair,
        scratch: &mut Scratch,
        rows: &mut DraftRows,
    ) -> Vec<ToTarget> {
        if grant.is_of_branches() {
            self.feed_branches(pair, scratch, rows)
        } else {
            Vec::from_iter(self.feed_sequence(grant, pair, scratch, rows))
        }
    }

    fn feed_sequence(
        &mut self,
        grant: &Grant,
        pair: &Pair,
        scratch: &mut Scratch,
        rows: &mut DraftRows,
    ) -> Option<ToTarget> {
        let work = self.draft.work()?;
        let (keep, fed) = (work.keep, grant.rows);
        let (ticket, wants) = (work.ticket, work.wants);
        match grant.purpose {
            // A glue pass that needs no more than the last token is a step like others.
            Purpose::Ahead | Purpose::Follow if fed > 1 => rows.glue += fed as u32,
            Purpose::Window | Purpose::Ahead | Purpose::Follow => rows.token += fed as u32,
        }
        let complete = fed == work.tokens.len();
        let tokens = work.tokens[..fed].to_vec();
        let parents = work.parents.map(<[_]>::to_vec);
        let chain = || (0..fed as u32).map(|node| node.checked_sub(1)).collect();
        let mut tail = Tail::after(&self.draft.tokens()[..keep]);
        tail.grow(&tokens, parents.unwrap_or_else(chain));
        let wanted = match wants {
            Wants::All if complete => fed,
            Wants::Last if complete => 1,
            Wants::All | Wants::Last | Wants::None => 0,
        };
        let logits = pair.rows(Role::Draft, tail.last(wanted));
        let logits: Vec<&[f32]> = logits.chunks_exact(VOCAB).collect();
        self.fed = tail;
        self.draft.stepped(ticket, fed, &logits, scratch)
    }

    fn feed_branches(
        &mut self,
        pair: &Pair,
        scratch: &mut Scratch,
        rows: &mut DraftRows,
    ) -> Vec<ToTarget> {
        let sequence = self.draft.tokens().to_vec();
        let Some(work) = self.draft.branches() else {
            return Vec::new();
        };
        rows.branch += work.rows() as u32;
        let ticket = work.ticket;
        let contexts = self.forks.feed(&sequence, &self.fed, &work);
        let logits = pair.rows(Role::Draft, &contexts);
        let logits: Vec<&[f32]> = logits.chunks_exact(VOCAB).collect();
        self.draft.branched(ticket, &logits, scratch)
    }
}
