//! An engine that knows what each row sees: a trunk, and forks with a tail of nodes.

use super::*;
use crate::policy::draft::{BranchWork, BuildId, ForkFeed, MAX_TAIL, Ticket, Wants, Work};

#[derive(Default)]
pub(super) struct ToyEngine {
    trunk: Vec<TokenId>,
    /// Nodes of a tree behind the trunk.
    tail: Vec<(TokenId, Option<u32>)>,
    build: Option<BuildId>,
    forks: Vec<ToyFork>,
    /// Branches that were confirmed, and those whose KV was kept.
    pub(super) offered: usize,
    pub(super) joined: usize,
}

#[derive(Default)]
struct ToyFork {
    trunk: Vec<TokenId>,
    tail: Vec<(TokenId, Option<u32>)>,
}

impl ToyFork {
    /// The tokens that a node sees, itself included.
    fn sees(&self, node: usize) -> Vec<TokenId> {
        let mut path = Vec::new();
        let mut next = Some(node);
        while let Some(node) = next {
            let (token, parent) = self.tail[node];
            assert!(parent.is_none_or(|parent| (parent as usize) < node));
            path.push(token);
            next = parent.map(|parent| parent as usize);
        }
        path.reverse();
        [&self.trunk[..], &path].concat()
    }
}

/// A step that is under way: what each row that wants logits sees.
pub(super) struct ToyStep {
    /// Of the session's sequence, with how many tokens were fed.
    sequence: Option<(Ticket, usize, Contexts)>,
    branches: Option<(Ticket, Contexts)>,
}

type Contexts = Vec<Vec<TokenId>>;

impl ToyEngine {
    /// Keeps what it has read that a verdict confirmed. Of branches it now and then does not.
    pub(super) fn join(&mut self, draft: &mut DraftSession) {
        if let Some(nodes) = draft.take_decided() {
            for &node in &nodes {
                self.trunk.push(self.tail[node as usize].0);
            }
            assert!(draft.decided().starts_with(&self.trunk), "they were not");
            self.tail.clear();
        }
        let Some(branch) = draft.take_confirmed() else {
            return;
        };
        self.offered += 1;
        if self.build != Some(branch.build) || self.offered.is_multiple_of(4) {
            return;
        }
        let fork = &self.forks[branch.fork];
        assert_eq!(fork.trunk, self.trunk[..branch.trunk_len]);
        let last = branch.nodes.last().map(|&node| fork.sees(node as usize));
        let seen = last.expect("a branch that is confirmed has nodes");
        assert_eq!(seen.len(), branch.trunk_len + branch.nodes.len());
        assert!(draft.tokens().starts_with(&seen), "it went elsewhere");
        self.trunk = seen;
        self.tail.clear();
        draft.joined(&branch);
        self.joined += 1;
    }

    /// Does what a session wants, the prompt by chunks.
    pub(super) fn step(&mut self, draft: &mut DraftSession, chunk: usize) -> Option<ToyStep> {
        let (work, branches) = draft.works();
        let sequence = work.map(|work| self.feed(&work, chunk));
        let branches = branches.map(|work| (work.ticket, self.branch(&work)));
        let any = sequence.is_some() || branches.is_some();
        any.then_some(ToyStep { sequence, branches })
    }

    /// Feeds the session's own sequence.
    fn feed(&mut self, work: &Work<'_>, chunk: usize) -> (Ticket, usize, Contexts) {
        assert!(work.keep <= self.trunk.len(), "keeps KV never written");
        self.trunk.truncate(work.keep);
        self.tail.clear();
        if let Some(parents) = work.parents {
            assert_eq!((parents.len(), work.wants), (work.tokens.len(), Wants::All));
            let nodes = work.tokens.iter().zip(parents);
            self.tail.extend(nodes.map(|(&t, &parent)| (t, parent)));
            let own = self.own();
            let contexts = (0..parents.len()).map(|node| own.sees(node)).collect();
            return (work.ticket, parents.len(), contexts);
        }
        let fed = match work.wants {
            Wants::All => work.tokens.len(),
            Wants::None | Wants::Last => work.tokens.len().min(chunk),
        };
        self.trunk.extend_from_slice(&work.tokens[..fed]);
        let rows = match work.wants {
            Wants::All => fed,
            Wants::Last if fed == work.tokens.len() => 1,
            Wants::None | Wants::Last => 0,
        };
        let end = self.trunk.len();
        let contexts = (end - rows + 1..=end).map(|end| self.trunk[..end].to_vec());
        (work.ticket, fed, contexts.collect())
    }

    /// KV slots that the session's own sequence has.
    pub(super) fn slots(&self) -> usize {
        self.trunk.len() + self.tail.len()
    }

    /// The session's own sequence.
    fn own(&self) -> ToyFork {
        ToyFork {
            trunk: self.trunk.clone(),
            tail: self.tail.clone(),
        }
    }

    fn branch(&mut self, work: &BranchWork<'_>) -> Vec<Vec<TokenId>> {
        if self.build != Some(work.build) {
            assert_eq!(work.step, 0, "a build begins with its first step");
            self.build = Some(work.build);
            self.forks.clear();
        }
        let own = self.own();
        let fork = |feed: ForkFeed<'_>| {
            let trunk = match feed.path.last() {
                Some(&node) => own.sees(node as usize),
                None => own.trunk[..feed.trunk_len as usize].to_vec(),
            };
            assert_eq!(trunk.len(), feed.trunk_len as usize);
            ToyFork {
                trunk,
                tail: Vec::new(),
            }
        };
        self.forks
            .extend(work.forks().skip(self.forks.len()).map(fork));
        assert_eq!(self.forks.len(), work.forks().count());
        let mut contexts = Vec::new();
        for (fork, feed) in self.forks.iter_mut().zip(work.forks()) {
            assert_eq!(feed.tokens.len(), feed.parents.len());
            let start = fork.tail.len();
            let nodes = feed.tokens.iter().zip(feed.parents);
            fork.tail.extend(nodes.map(|(&t, &parent)| (t, parent)));
            assert!(fork.tail.len() <= MAX_TAIL, "a tail is too long");
            contexts.extend((start..fork.tail.len()).map(|node| fork.sees(node)));
        }
        assert_eq!(contexts.len(), work.rows());
        contexts
    }
}

impl ToyStep {
    /// What each row that wants logits sees.
    pub(super) fn contexts(&self) -> impl Iterator<Item = &Vec<TokenId>> {
        let sequence = self.sequence.iter().flat_map(|(.., contexts)| contexts);
        let branches = self.branches.iter().flat_map(|(_, contexts)| contexts);
        sequence.chain(branches)
    }

    /// Tells the session what came out, of its sequence or of its branches first.
    pub(super) fn report(
        self,
        draft: &mut DraftSession,
        scratch: &mut Scratch,
        logits: impl Fn(&[TokenId]) -> Vec<f32>,
    ) -> Vec<ToTarget> {
        let rows = |contexts: &Contexts| contexts.iter().map(|seen| logits(seen)).collect();
        let mut said = Vec::new();
        let mut branched = |draft: &mut DraftSession, scratch: &mut Scratch| {
            let branches = self.branches.iter();
            branches.for_each(|(ticket, contexts)| {
                let rows: Vec<Vec<f32>> = rows(contexts);
                let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                said.extend(draft.branched(*ticket, &rows, scratch));
            });
        };
        let first = draft.tokens().len().is_multiple_of(2);
        if first {
            branched(draft, scratch);
        }
        let window = self.sequence.as_ref().and_then(|(ticket, fed, contexts)| {
            let rows: Vec<Vec<f32>> = rows(contexts);
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            draft.stepped(*ticket, *fed, &rows, scratch)
        });
        if !first {
            branched(draft, scratch);
        }
        said.extend(window);
        said
    }
}
