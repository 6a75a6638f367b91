//! Who makes room when slots or pages have run out.
//!
//! The session opened last has the least to lose, so of several it goes first, and branches go
//! before sessions, because they are guesses about guesses. Between tenants it is shares that count:
//! what a tenant does with its own is its affair, so pages of branches are the tenant's like others,
//! and who has more gives to who has less.
//!
//! ```text
//! pages for a step     branches of tenants with their share
//!                      > sessions of such tenants, if those suffice that leave them no less
//!                        than those have whose branches would go
//!                      > other branches > a session of a tenant with its share
//! pages for a session  branches of its tenant, and of those with more than that would have
//!                      > sessions of whoever has most each time, while that is more, branches apart
//!                      > branches of those with more than its tenant has now
//! ```
//!
//! A session that goes costs its target some windows, and reading it again once there is room: that
//! is why pages of a build are kept from tenants with more in between as well. Without that their
//! sessions would come back between two builds, to go again with the next.

use std::cmp::Reverse;

use foretoken_engine::{batch::SeqId, runner::PAGE_TOKENS};
use foretoken_protocol::link::LinkId;
use foretoken_speculation::{SessionId, fanout::Limit, policy::draft::Grant};

use super::{Outlet, Worker, held::Held, sessions::Session, tenants::TenantId};
use crate::config::QuotaConfig;

/// What a session whose pages are for somebody else is told.
const PAGES_GO: &str = "its pages go to a target with fewer";

/// A session that wants to be admitted.
struct Asker {
    tenant: Option<TenantId>,
    /// Pages that its tenant would have more with it.
    pages: usize,
}

impl Session {
    /// Whether branches are drafted for it.
    fn builds(&self) -> bool {
        self.draft.build().is_some() || !self.forks.is_empty()
    }
}

impl<O: Outlet> Worker<O> {
    /// Finds a slot, and pages for `len` tokens, for a session of `link` whose sequence `seq` is and
    /// has what is cached of them; otherwise says what there is none of, and nobody has lost anything.
    pub(super) fn admit(
        &mut self,
        link: LinkId,
        seq: SeqId,
        len: usize,
    ) -> Result<(), (Limit, String)> {
        // Steps end builds too, and the forks of those are closed with the next.
        for session in &mut self.sessions {
            session.forks.reap(&mut self.engine, &session.draft);
        }
        let tenant = self.tenants.of(link);
        let sessions = self.sessions_held();
        if let Some(quota) = tenant.and_then(|tenant| self.tenants.spent(tenant, &sessions)) {
            let QuotaConfig {
                namespace,
                max_slots,
                ..
            } = quota;
            let most = max_slots.unwrap_or_default();
            let reason = format!("namespace {namespace} has all {most} slots of its quota");
            return Err((Limit::Quota, reason));
        }
        let cached = self.engine.len(seq).unwrap_or(0) / PAGE_TOKENS;
        let pages = len / PAGE_TOKENS + 2 - cached;
        let free = self.engine.free_pages();
        let no_slot = self.sessions.len() >= self.limits.sessions;
        if !no_slot && pages + self.promised(|_| false) <= free {
            return Ok(());
        }
        let mut held = self.held();
        // What it shares is not given back by others.
        held.keep(seq, &self.engine);
        let has = tenant.map_or(cached, |tenant| held.added(seq, tenant, &self.engine));
        let asker = Asker {
            tenant,
            pages: len.div_ceil(PAGE_TOKENS) - cached + has,
        };
        let needed = pages + self.promised(|session| self.yields(session, &asker, 0, &held));
        let short = needed.saturating_sub(free);
        let gives = tenant.filter(|_| no_slot);
        let gives = gives.and_then(|tenant| self.tenants.gives_way(tenant, &held.sessions));
        let first = gives.and_then(|gives| self.youngest_of(gives, &[]));
        if no_slot && first.is_none() {
            let reason = format!("all {} slots are taken", self.limits.sessions);
            return Err((Limit::Slots, reason));
        }
        let Some((gone, shed)) = self.cheapest(first, short, &asker, &held) else {
            let reason = format!("{pages} KV pages are needed and not free");
            return Err((Limit::Pages, reason));
        };
        let gone: Vec<_> = gone.into_iter().map(|index| self.name(index)).collect();
        for index in shed {
            self.shed(index);
        }
        for (place, (link, id)) in gone.into_iter().enumerate() {
            let slot = "its slot goes to a target with fewer";
            let reason = if no_slot && place == 0 {
                slot
            } else {
                PAGES_GO
            };
            self.evict(link, id, reason);
        }
        Ok(())
    }

    /// Makes room for a step with these grants; says whether somebody gave something up, and grants
    /// are to be made anew.
    pub(super) fn make_room(&mut self, grants: &[Grant]) -> bool {
        let needed: usize = grants.iter().map(|grant| self.pages_for(grant)).sum();
        let short = needed.saturating_sub(self.engine.free_pages());
        if short == 0 {
            return false;
        }
        let mut held = self.held();
        for grant in grants.iter().filter(|grant| grant.is_of_branches()) {
            // Shares are of what all want to have.
            let with = self.pages_for(grant) + self.sessions[grant.session].forks.pages();
            let session = &self.sessions[grant.session];
            if let Some(tenant) = self.tenants.of(session.link) {
                let more = with.saturating_sub(session.branch_pages_held());
                held.pages.add(tenant, more);
            }
        }
        let (sessions, all) = (&held.sessions, self.limits.pages);
        let rich = self.tenants.rich(&held.pages, sessions, all);
        let build = self.youngest(|session| session.builds() && self.is_of(session, &rich));
        if let Some(index) = build {
            self.shed(index);
        } else if let Some(index) = self.youngest(Session::builds) {
            match self.spare(short, &rich, &held) {
                Some(spare) => {
                    for (link, id) in spare {
                        self.evict(link, id, PAGES_GO);
                    }
                }
                None => self.shed(index),
            }
        } else {
            // No branches are left, so what they would take makes nobody rich.
            let rich = self.tenants.rich(&held.trunks, sessions, all);
            let Some(index) = self.youngest(|session| self.is_of(session, &rich)) else {
                return false;
            };
            let (link, id) = self.name(index);
            self.evict(link, id, "the endpoint ran out of KV pages");
        }
        true
    }

    fn is_of(&self, session: &Session, tenants: &[TenantId]) -> bool {
        let tenant = self.tenants.of(session.link);
        tenant.is_some_and(|tenant| tenants.contains(&tenant))
    }

    /// Whether branches of the session give way to the asker: its tenant's own, and those of one
    /// that has more than its tenant with so much `more`. The latter's own branches have given way
    /// before.
    fn yields(&self, session: &Session, asker: &Asker, more: usize, held: &Held) -> bool {
        let both = self.tenants.of(session.link).zip(asker.tenant);
        let sessions = &held.sessions;
        both.is_some_and(|(tenant, own)| {
            let has = self.tenants.part(tenant, &held.pages, 0.0, sessions);
            let part = |more| self.tenants.part(own, &held.trunks, more, sessions);
            tenant == own || has > part(more as f64)
        })
    }

    /// Pages that are free and not for somebody new: what those that are here are yet to take, or
    /// they would drive each other out; for builds only of those whose branches do not give way.
    fn promised(&self, yields: impl Fn(&Session) -> bool) -> usize {
        let kept = |session: &Session| {
            let build = if yields(session) {
                0
            } else {
                session.branch_pages_held() - session.forks.pages()
            };
            self.outstanding(session) + build
        };
        self.sessions.iter().map(kept).sum()
    }

    /// Pages that the session is yet to take.
    fn outstanding(&self, session: &Session) -> usize {
        let read = self.engine.len(session.seq).unwrap_or(0);
        match session.draft.tokens().len().saturating_sub(read) {
            // It decodes, and grows by a page now and then.
            0 | 1 => 0,
            _ => session.unread_pages(&self.engine),
        }
    }

    /// Finds `short` pages for the asker: who goes besides `first`, each time the youngest session of
    /// who has most then, as few as suffice, and whose branches.
    fn cheapest(
        &self,
        first: Option<usize>,
        short: usize,
        asker: &Asker,
        held: &Held,
    ) -> Option<(Vec<usize>, Vec<usize>)> {
        for more in [asker.pages, 0] {
            let (mut left, mut gone, mut freed) = (held.clone(), Vec::new(), 0);
            let mut next = first;
            loop {
                if let Some(index) = next {
                    let session = &self.sessions[index];
                    freed += self.outstanding(session);
                    if let Some(tenant) = self.tenants.of(session.link) {
                        freed += left.close(session, tenant, &self.engine);
                    }
                    gone.push(index);
                }
                let may_shed = |index: usize| {
                    let session = &self.sessions[index];
                    !gone.contains(&index) && self.yields(session, asker, more, &left)
                };
                if let Some(shed) = self.branches_of(short.saturating_sub(freed), may_shed) {
                    return Some((gone, shed));
                }
                next = asker.tenant.and_then(|tenant| {
                    let (trunks, sessions) = (&left.trunks, &left.sessions);
                    let tenants = &self.tenants;
                    let gives = tenants.gives_pages(tenant, asker.pages, trunks, sessions)?;
                    self.youngest_of(gives, &gone)
                });
                if next.is_none() {
                    break;
                }
            }
        }
        None
    }

    /// The sessions of those that `may_shed` names whose branches have so many pages, youngest first;
    /// none if all of them have fewer.
    fn branches_of(&self, pages: usize, may_shed: impl Fn(usize) -> bool) -> Option<Vec<usize>> {
        let mut chosen = Vec::new();
        let mut found = 0;
        for index in self.by_age() {
            if found >= pages {
                break;
            }
            let own = self.sessions[index].forks.pages();
            if own > 0 && may_shed(index) {
                found += own;
                chosen.push(index);
            }
        }
        (found >= pages).then_some(chosen)
    }

    /// The youngest sessions of `rich` tenants that leave these no less than any tenant with branches
    /// wants, as many as have `short` pages; none if all of them have fewer.
    fn spare(
        &self,
        short: usize,
        rich: &[TenantId],
        held: &Held,
    ) -> Option<Vec<(LinkId, SessionId)>> {
        let sessions = &held.sessions;
        let builders = self.sessions.iter().filter(|session| session.builds());
        let builders = builders.filter_map(|session| self.tenants.of(session.link));
        let wants = |tenant| self.tenants.part(tenant, &held.pages, 0.0, sessions);
        let most = builders.map(wants).fold(0.0, f64::max);
        let (mut left, mut names, mut freed) = (held.clone(), Vec::new(), 0);
        for index in self.by_age() {
            let session = &self.sessions[index];
            let tenant = self.tenants.of(session.link);
            let Some(tenant) = tenant.filter(|tenant| rich.contains(tenant)) else {
                continue;
            };
            let own = left.alone(session, tenant, &self.engine) as f64;
            if self.tenants.part(tenant, &left.trunks, -own, sessions) < most {
                continue;
            }
            names.push(self.name(index));
            freed += left.close(session, tenant, &self.engine);
            if freed >= short {
                return Some(names);
            }
        }
        None
    }

    /// Gives up the branches of a session, because pages are short.
    fn shed(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        // What is drafted already is sent, or soon will be.
        if session.drop_branches(&mut self.engine) {
            session.account.limits.add(Limit::Pages);
            self.metrics.build_bound_by(Limit::Pages);
        }
    }

    /// Pages that a grant takes.
    fn pages_for(&mut self, grant: &Grant) -> usize {
        let session = &mut self.sessions[grant.session];
        if grant.is_of_branches() {
            session.branch_pages(&self.engine)
        } else {
            let keep = session.draft.work().map_or(usize::MAX, |work| work.keep);
            let engine = &self.engine;
            let needed = engine.pages_needed_from(session.seq, keep, grant.rows);
            // Forks that are made in the same step share the page that it goes on in.
            let forks = session.draft.is_branching() && session.forks.is_empty();
            needed.unwrap_or(0) + usize::from(forks)
        }
    }

    /// The youngest session that is `one`.
    fn youngest(&self, one: impl Fn(&Session) -> bool) -> Option<usize> {
        self.youngest_besides(&[], one)
    }

    /// The youngest session of the tenant that is not `gone`.
    fn youngest_of(&self, tenant: TenantId, gone: &[usize]) -> Option<usize> {
        self.youngest_besides(gone, |session| self.is_of(session, &[tenant]))
    }

    fn youngest_besides(&self, gone: &[usize], one: impl Fn(&Session) -> bool) -> Option<usize> {
        let sessions = self.sessions.iter().enumerate();
        let sessions = sessions.filter(|(index, session)| !gone.contains(index) && one(session));
        let youngest = sessions.max_by_key(|(_, session)| session.opened);
        youngest.map(|(index, _)| index)
    }

    /// All sessions, the youngest first.
    fn by_age(&self) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..self.sessions.len()).collect();
        indices.sort_by_key(|&index| Reverse(self.sessions[index].opened));
        indices
    }

    fn name(&self, index: usize) -> (LinkId, SessionId) {
        let session = &self.sessions[index];
        (session.link, session.draft.id())
    }
}
