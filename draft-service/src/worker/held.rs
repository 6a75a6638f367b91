//! Who has which pages: counted where they are short, and by what the engine holds.
//!
//! A page counts once for a tenant, however many of its sessions begin with what is in it: without
//! one of them it would have less by what no other of its sessions has. What sessions have yet to
//! read counts too, or whoever opens many at once would seem to have none.

use foretoken_engine::{
    batch::{Engine, SeqId},
    runner::PageIndex,
};

use super::{
    Outlet, Worker,
    sessions::Session,
    tenants::{Holdings, TenantId},
};

/// What tenants have.
#[derive(Clone, Default)]
pub(super) struct Held {
    pub(super) sessions: Holdings,
    /// Pages of sessions, without branches.
    pub(super) trunks: Holdings,
    /// All of their pages.
    pub(super) pages: Holdings,
    /// Pages of all sequences, those of branches too.
    pub(super) all: Tally,
    /// Pages of each tenant's sessions, without branches.
    own: Vec<Tally>,
}

/// How many of some sequences name each page.
#[derive(Clone, Default)]
pub(super) struct Tally(Vec<u32>);

impl Session {
    /// Pages that what it has yet to read will take.
    pub(super) fn unread_pages(&self, engine: &Engine) -> usize {
        let read = engine.len(self.seq).unwrap_or(0);
        let rows = self.draft.tokens().len().saturating_sub(read);
        let needed = engine.pages_needed_from(self.seq, read, rows);
        needed.unwrap_or(0)
    }

    /// Pages that count as those of its branches, between builds too, or it would have more and
    /// less in turns.
    pub(super) fn branch_pages_held(&self) -> usize {
        if self.draft.drafts_ahead() {
            self.forks.pages_of_a_build()
        } else {
            self.forks.pages()
        }
    }

    /// All its sequences.
    fn seqs(&self) -> impl Iterator<Item = SeqId> {
        self.forks.seqs().iter().copied().chain([self.seq])
    }
}

impl Held {
    /// Pages that the tenant would have less without the session, its branches apart.
    pub(super) fn alone(&self, session: &Session, tenant: TenantId, engine: &Engine) -> usize {
        let read = pages(engine, session.seq).iter();
        let read = read.filter(|page| self.named(tenant, **page) == 1).count();
        read + session.unread_pages(engine)
    }

    /// Pages of a sequence that no session of the tenant has.
    pub(super) fn added(&self, seq: SeqId, tenant: TenantId, engine: &Engine) -> usize {
        let pages = pages(engine, seq).iter();
        pages.filter(|page| self.named(tenant, **page) == 0).count()
    }

    /// Counts a sequence that is nobody's session yet among those that need their pages.
    pub(super) fn keep(&mut self, seq: SeqId, engine: &Engine) {
        self.all.add(pages(engine, seq));
    }

    /// Leaves a session of the tenant out; says how many pages closing it gives back, where those
    /// left out before are closed.
    pub(super) fn close(&mut self, session: &Session, tenant: TenantId, engine: &Engine) -> usize {
        let less = self.alone(session, tenant, engine);
        self.sessions.take(tenant, 1);
        self.trunks.take(tenant, less);
        let with_branches = less + session.branch_pages_held();
        self.pages.take(tenant, with_branches);
        if let Some(own) = self.own.get_mut(tenant.0) {
            own.take(pages(engine, session.seq));
        }
        let seqs = session.seqs();
        seqs.map(|seq| self.all.take(pages(engine, seq))).sum()
    }

    fn open(&mut self, session: &Session, tenant: TenantId, engine: &Engine) {
        if self.own.len() <= tenant.0 {
            self.own.resize_with(tenant.0 + 1, Tally::default);
        }
        let more = self.own[tenant.0].add(pages(engine, session.seq));
        let more = more + session.unread_pages(engine);
        self.sessions.add(tenant, 1);
        self.trunks.add(tenant, more);
        self.pages.add(tenant, more + session.branch_pages_held());
    }

    /// How many sessions of the tenant have a page.
    fn named(&self, tenant: TenantId, page: PageIndex) -> u32 {
        let own = self.own.get(tenant.0);
        own.map_or(0, |own| own.of(page))
    }
}

impl Tally {
    /// Counts another sequence with these pages; says how many of them none had.
    fn add(&mut self, pages: &[PageIndex]) -> usize {
        let mut new = 0;
        for page in pages {
            let page = page.0 as usize;
            if self.0.len() <= page {
                self.0.resize(page + 1, 0);
            }
            new += usize::from(self.0[page] == 0);
            self.0[page] += 1;
        }
        new
    }

    /// Leaves out a sequence that was counted; says how many of its pages none has any more.
    pub(super) fn take(&mut self, pages: &[PageIndex]) -> usize {
        let mut gone = 0;
        for page in pages {
            if let Some(named) = self.0.get_mut(page.0 as usize) {
                gone += usize::from(*named == 1);
                *named = named.saturating_sub(1);
            }
        }
        gone
    }

    fn of(&self, page: PageIndex) -> u32 {
        self.0.get(page.0 as usize).copied().unwrap_or(0)
    }
}

impl<O: Outlet> Worker<O> {
    /// Sessions that the tenants hold.
    pub(super) fn sessions_held(&self) -> Holdings {
        let mut sessions = Holdings::default();
        for session in &self.sessions {
            if let Some(tenant) = self.tenants.of(session.link) {
                sessions.add(tenant, 1);
            }
        }
        sessions
    }

    /// All that they hold. Goes over the pages of all sequences.
    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        for session in &self.sessions {
            for seq in session.seqs() {
                held.keep(seq, &self.engine);
            }
            if let Some(tenant) = self.tenants.of(session.link) {
                held.open(session, tenant, &self.engine);
            }
        }
        held
    }
}

/// Pages of an open sequence.
fn pages(engine: &Engine, seq: SeqId) -> &[PageIndex] {
    engine.pages(seq).unwrap_or_default()
}
