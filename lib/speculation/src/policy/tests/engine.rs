//! An engine that knows what each row sees: a trunk, and forks with a tail of nodes.

use super::*;
use crate::policy::draft::{BranchWork, BuildId, ForkFeed, MAX_TAIL, Ticket, Wants};

#[derive(Default)]
pub(super) struct ToyEngine {
    trunk: Vec<TokenId>,
    /// Nodes of a tree behind the trunk.
    tail: Vec<(TokenId, Option<u32>)>,
    build: Option<BuildId>,
    forks: Vec<ToyFork>,
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
    ticket: Ticket,
    fed: Option<usize>,
    pub(super) contexts: Vec<Vec<TokenId>>,
}

impl ToyEngine {
    /// Does what a session wants, the prompt by chunks.
    pub(super) fn step(&mut self, draft: &mut DraftSession, chunk: usize) -> Option<ToyStep> {
        if let Some(nodes) = draft.take_decided() {
            for &node in &nodes {
                self.trunk.push(self.tail[node as usize].0);
            }
            assert!(draft.decided().starts_with(&self.trunk), "they were not");
            self.tail.clear();
        }
        if let Some(work) = draft.work() {
            assert!(work.keep <= self.trunk.len(), "keeps KV never written");
            self.trunk.truncate(work.keep);
            self.tail.clear();
            if let Some(parents) = work.parents {
                assert_eq!((parents.len(), work.wants), (work.tokens.len(), Wants::All));
                let nodes = work.tokens.iter().zip(parents);
                self.tail.extend(nodes.map(|(&t, &parent)| (t, parent)));
                let own = self.own();
                return Some(ToyStep {
                    ticket: work.ticket,
                    fed: Some(parents.len()),
                    contexts: (0..parents.len()).map(|node| own.sees(node)).collect(),
                });
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
            return Some(ToyStep {
                ticket: work.ticket,
                fed: Some(fed),
                contexts: contexts.collect(),
            });
        }
        let work = draft.branches()?;
        let contexts = self.branch(&work);
        Some(ToyStep {
            ticket: work.ticket,
            fed: None,
            contexts,
        })
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
            self.forks = work.forks().map(fork).collect();
        }
        assert_eq!(self.forks.len(), work.forks().len());
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
    /// Tells the session what came out.
    pub(super) fn report(
        self,
        draft: &mut DraftSession,
        scratch: &mut Scratch,
        logits: impl Fn(&[TokenId]) -> Vec<f32>,
    ) -> Option<ToTarget> {
        let rows: Vec<Vec<f32>> = self.contexts.iter().map(|seen| logits(seen)).collect();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        match self.fed {
            Some(fed) => draft.stepped(self.ticket, fed, &rows, scratch),
            None => draft.branched(self.ticket, &rows, scratch),
        }
    }
}
