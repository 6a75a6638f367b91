//! Programs over sequences, and what must hold after each of their operations.

use std::collections::{HashMap, HashSet};

use foretoken_engine::batch::{Engine, Feed, Reuse, SeqError, SeqId, StepError, Wants};
use foretoken_engine::kv::Salt;
use foretoken_engine::runner::{ModelRunner, PAGE_TOKENS};
use foretoken_speculation::TokenId;
use proptest::prelude::*;

/// One operation; sequences are named by their number modulo the open ones.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open {
        prompt: Prompt,
        tenant: Option<u8>,
    },
    Step {
        rows: Vec<(usize, Rows)>,
    },
    Accept {
        seq: usize,
        leaf: usize,
    },
    Truncate {
        seq: usize,
        cut: usize,
    },
    Fork {
        seq: usize,
        cut: usize,
    },
    Branch {
        seq: usize,
        leaf: usize,
    },
    Graft {
        seq: usize,
        from: usize,
        leaf: usize,
    },
    Close {
        seq: usize,
    },
}

/// What a step has of one sequence.
#[derive(Clone, Debug)]
pub(crate) enum Rows {
    /// The rest of the prompt first, then these tokens.
    Chain { tokens: Vec<u8>, all: bool },
    /// Tree nodes: a token, and how many nodes back its parent is; before the first is the trunk.
    Tree { nodes: Vec<(u8, usize)> },
}

/// The beginning of one of a few texts, so that prefixes meet.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    text: u8,
    len: usize,
}

impl Prompt {
    fn tokens(&self) -> Vec<TokenId> {
        // The texts share their first 40 tokens, which is no whole number of pages.
        let token = |i: usize| {
            if i < 40 {
                i % 3
            } else {
                (i + usize::from(self.text)) % 3
            }
        };
        (0..self.len).map(|i| TokenId(token(i) as u32)).collect()
    }
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let seq = || 0..8_usize;
    let tokens = |n: std::ops::Range<usize>| prop::collection::vec(0..3_u8, n);
    let prompt = (0..2_u8, 1..60_usize).prop_map(|(text, len)| Prompt { text, len });
    // Trees of several sequences meet in a step, and chains of others.
    let rows = prop_oneof![
        (tokens(1..40), any::<bool>()).prop_map(|(tokens, all)| Rows::Chain { tokens, all }),
        prop::collection::vec((0..3_u8, 0..9_usize), 1..12).prop_map(|nodes| Rows::Tree { nodes }),
    ];
    let op = prop_oneof![
        3 => (prompt, prop::option::weighted(0.8, 0..2_u8))
            .prop_map(|(prompt, tenant)| Op::Open { prompt, tenant }),
        10 => prop::collection::vec((seq(), rows), 1..5).prop_map(|rows| Op::Step { rows }),
        3 => (seq(), 0..64_usize).prop_map(|(seq, leaf)| Op::Accept { seq, leaf }),
        3 => (seq(), 0..40_usize).prop_map(|(seq, cut)| Op::Truncate { seq, cut }),
        2 => (seq(), 0..24_usize).prop_map(|(seq, cut)| Op::Fork { seq, cut }),
        2 => (seq(), 0..64_usize).prop_map(|(seq, leaf)| Op::Branch { seq, leaf }),
        3 => (seq(), seq(), 0..64_usize)
            .prop_map(|(seq, from, leaf)| Op::Graft { seq, from, leaf }),
        3 => seq().prop_map(|seq| Op::Close { seq }),
    ];
    prop::collection::vec(op, 1..120)
}

/// Logits of token paths, each computed in a sequence of its own.
pub(crate) struct Oracle {
    engine: Engine,
    known: HashMap<Vec<TokenId>, Vec<f32>>,
}

impl Oracle {
    pub(crate) fn new(runner: Box<dyn ModelRunner>) -> Self {
        let engine = Engine::new(runner);
        let known = HashMap::new();
        Self { engine, known }
    }

    pub(crate) fn logits(&mut self, path: &[TokenId]) -> &[f32] {
        if !self.known.contains_key(path) {
            let seq = self.engine.open(path, Reuse::Off);
            let feed = Feed {
                seq,
                tokens: path,
                tree: None,
                logits: Wants::All,
            };
            let logits = self.engine.step(&[feed]).unwrap();
            for i in 0..path.len() {
                self.known
                    .insert(path[..=i].to_vec(), logits.row(0, i).to_vec());
            }
            self.engine.close(seq).unwrap();
        }
        &self.known[path]
    }
}

/// What a sequence should be.
#[derive(Clone)]
struct Twin {
    id: SeqId,
    tokens: Vec<TokenId>,
    /// Rest of the prompt that is not fed yet.
    ahead: Vec<TokenId>,
    /// Tree nodes: token and parent.
    tail: Vec<(TokenId, Option<u32>)>,
    tenant: Option<u8>,
}

impl Twin {
    fn push(&mut self, token: TokenId, computed: &mut HashSet<(u8, Vec<TokenId>)>) {
        self.tokens.push(token);
        let full = self.tokens.len().is_multiple_of(PAGE_TOKENS);
        if let Some(tenant) = self.tenant.filter(|_| full) {
            computed.insert((tenant, self.tokens.clone()));
        }
    }

    /// Nodes from the trunk to `node`.
    fn path(&self, node: u32) -> Vec<u32> {
        let parent = |node: &u32| self.tail[*node as usize].1;
        let mut path: Vec<u32> = std::iter::successors(Some(node), parent).collect();
        path.reverse();
        path
    }

    /// Nodes from the trunk to a leaf; none if there is no tail.
    fn way(&self, leaf: usize) -> Vec<u32> {
        let leaf = leaf.checked_rem(self.tail.len());
        leaf.map_or_else(Vec::new, |leaf| self.path(leaf as u32))
    }

    /// The text that ends with `node`.
    fn text(&self, node: u32) -> Vec<TokenId> {
        let nodes = self
            .path(node)
            .into_iter()
            .map(|node| self.tail[node as usize].0);
        self.tokens.iter().copied().chain(nodes).collect()
    }

    /// What it can take of the rows asked for.
    fn choose(&self, rows: &Rows, max_positions: usize) -> Option<Chosen> {
        let len = self.tokens.len() + self.tail.len();
        match rows {
            Rows::Chain { tokens, all } => {
                let mut ahead = self.ahead.iter().copied();
                let token = |given: &u8| ahead.next().unwrap_or(TokenId((*given).into()));
                let chosen = Chosen {
                    tokens: tokens.iter().map(token).collect(),
                    parents: None,
                    logits: if *all { Wants::All } else { Wants::Last },
                };
                let fits = self.tail.is_empty() && len + tokens.len() <= max_positions;
                fits.then_some(chosen)
            }
            Rows::Tree { nodes } => {
                let parent = |(node, (_, back)): (usize, &(u8, usize))| {
                    node.checked_sub(back + 1).map(|parent| parent as u32)
                };
                let old = self.tail.len();
                let tokens = nodes.iter().map(|(token, _)| TokenId((*token).into()));
                let chosen = Chosen {
                    tokens: tokens.collect(),
                    parents: Some((old..).zip(nodes).map(parent).collect()),
                    logits: Wants::All,
                };
                let fits = old + nodes.len() <= 64 && len + nodes.len() <= max_positions;
                (fits && !self.tokens.is_empty()).then_some(chosen)
            }
        }
    }

    /// Adds what a step fed; returns the text that each row ends.
    fn take(
        &mut self,
        fed: &Chosen,
        computed: &mut HashSet<(u8, Vec<TokenId>)>,
    ) -> Vec<Vec<TokenId>> {
        let Some(parents) = &fed.parents else {
            let old = self.tokens.len();
            self.ahead.drain(..fed.tokens.len().min(self.ahead.len()));
            for token in &fed.tokens {
                self.push(*token, computed);
            }
            let ends = old + 1..=self.tokens.len();
            return ends.map(|end| self.tokens[..end].to_vec()).collect();
        };
        let old = self.tail.len() as u32;
        let nodes = fed.tokens.iter().copied().zip(parents.iter().copied());
        self.tail.extend(nodes);
        let nodes = old..self.tail.len() as u32;
        nodes.map(|node| self.text(node)).collect()
    }
}

/// What a sequence is fed.
struct Chosen {
    tokens: Vec<TokenId>,
    /// Of a tree's nodes.
    parents: Option<Vec<Option<u32>>>,
    logits: Wants,
}

/// The engine under test with what it should hold.
pub(crate) struct Trial {
    engine: Engine,
    oracle: Oracle,
    twins: Vec<Twin>,
    /// Whatever each tenant has computed, page by page.
    computed: HashSet<(u8, Vec<TokenId>)>,
}

impl Trial {
    pub(crate) fn new(under_test: Box<dyn ModelRunner>, oracle: Box<dyn ModelRunner>) -> Self {
        Self {
            engine: Engine::new(under_test),
            oracle: Oracle::new(oracle),
            twins: Vec::new(),
            computed: HashSet::new(),
        }
    }

    pub(crate) fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.apply(op);
            let usage = self.engine.audit().unwrap();
            assert_eq!(usage.free + usage.cached, self.engine.free_pages());
            for twin in &self.twins {
                assert_eq!(self.engine.tokens(twin.id).unwrap(), twin.tokens);
                let tail: Vec<_> = twin.tail.iter().map(|(token, _)| *token).collect();
                assert_eq!(self.engine.tail(twin.id).unwrap(), tail);
            }
        }
        for twin in self.twins.drain(..) {
            self.engine.close(twin.id).unwrap();
            assert_eq!(self.engine.len(twin.id), Err(SeqError::Unknown(twin.id)));
        }
        assert_eq!(self.engine.audit().unwrap().referenced, 0);
    }

    fn apply(&mut self, op: &Op) {
        if let Op::Open { prompt, tenant } = op {
            return self.open(prompt, *tenant);
        }
        if self.twins.is_empty() {
            return;
        }
        let count = self.twins.len();
        match op {
            Op::Open { .. } => {}
            Op::Step { rows } => self.step(rows),
            Op::Accept { seq, leaf } => {
                let twin = &mut self.twins[seq % count];
                let path = twin.way(*leaf);
                self.engine.accept_path(twin.id, &path).unwrap();
                for node in path {
                    twin.push(twin.tail[node as usize].0, &mut self.computed);
                }
                twin.tail.clear();
            }
            Op::Truncate { seq, cut } => {
                let twin = &mut self.twins[seq % count];
                let len = twin.tokens.len().saturating_sub(*cut);
                let free = self.engine.free_pages();
                let rows = [0, 1, 9, 30];
                let told =
                    rows.map(|rows| self.engine.pages_needed_from(twin.id, len, rows).unwrap());
                self.engine.truncate(twin.id, len).unwrap();
                let freed = self.engine.free_pages() - free;
                let needed = rows.map(|rows| self.engine.pages_needed(twin.id, rows).unwrap());
                assert_eq!(told, needed.map(|needed| needed.saturating_sub(freed)));
                twin.tokens.truncate(len);
                twin.tail.clear();
            }
            Op::Fork { seq, cut } => {
                let mut twin = self.twins[seq % count].clone();
                let len = twin.tokens.len().saturating_sub(*cut);
                twin.id = self.engine.fork(twin.id, len).unwrap();
                twin.tokens.truncate(len);
                twin.tail.clear();
                self.twins.push(twin);
            }
            Op::Branch { seq, leaf } => self.branch(seq % count, *leaf),
            Op::Graft { seq, from, leaf } => self.graft(seq % count, from % count, *leaf),
            Op::Close { seq } => {
                let twin = self.twins.swap_remove(seq % count);
                self.engine.close(twin.id).unwrap();
            }
        }
    }

    /// A sequence of its own for a path of the tail, unless pages are short.
    fn branch(&mut self, seq: usize, leaf: usize) {
        let mut twin = self.twins[seq].clone();
        let path = twin.way(leaf);
        match self.engine.fork_path(twin.id, &path) {
            Ok(id) => twin.id = id,
            Err(StepError::OutOfPages { needed, available }) => {
                assert!(needed > available && available == self.engine.free_pages());
                return;
            }
            Err(other) => panic!("{other}"),
        }
        for node in path {
            twin.push(twin.tail[node as usize].0, &mut self.computed);
        }
        twin.tail.clear();
        self.twins.push(twin);
    }

    /// Puts a path of the tail of one sequence behind its trunk in another, if that begins with it and
    /// unless pages are short.
    fn graft(&mut self, seq: usize, from: usize, leaf: usize) {
        let other = self.twins[from].clone();
        let path = other.way(leaf);
        let twin = &mut self.twins[seq];
        let (len, asked) = (twin.tokens.len(), other.tokens.len());
        match self.engine.graft(twin.id, other.id, &path) {
            Ok(()) => assert!(twin.tokens.starts_with(&other.tokens)),
            Err(StepError::Sequence(SeqError::OtherTrunk { .. })) => {
                return assert!(!twin.tokens.starts_with(&other.tokens));
            }
            Err(StepError::Sequence(error)) => {
                return assert_eq!(
                    (error, asked > len),
                    (SeqError::PastEnd { asked, len }, true)
                );
            }
            Err(StepError::OutOfPages { needed, available }) => {
                return assert!(needed > available && available == self.engine.free_pages());
            }
            Err(error) => panic!("{error}"),
        }
        twin.tokens.truncate(asked);
        for node in path {
            twin.push(other.tail[node as usize].0, &mut self.computed);
        }
        twin.tail.clear();
    }

    fn open(&mut self, prompt: &Prompt, tenant: Option<u8>) {
        let tokens = prompt.tokens();
        let reuse = tenant.map_or(Reuse::Off, |tenant| Reuse::Within(Salt([tenant; 32])));
        let id = self.engine.open(&tokens, reuse);
        let cached = self.engine.cached_len(id).unwrap();
        assert!(cached < tokens.len() && cached.is_multiple_of(PAGE_TOKENS));
        if cached > 0 {
            let prefix = (tenant.unwrap(), tokens[..cached].to_vec());
            assert!(
                self.computed.contains(&prefix),
                "nobody of this tenant has computed this"
            );
        }
        let ahead = tokens[cached..].to_vec();
        let tokens = tokens[..cached].to_vec();
        self.twins.push(Twin {
            id,
            tokens,
            ahead,
            tail: Vec::new(),
            tenant,
        });
    }

    /// Feeds chains and trees of different sequences in one step.
    fn step(&mut self, asked: &[(usize, Rows)]) {
        let mut chosen: Vec<(usize, Chosen)> = Vec::new();
        for (seq, rows) in asked {
            let seq = seq % self.twins.len();
            if chosen.iter().all(|(other, _)| *other != seq) {
                let fed = self.twins[seq].choose(rows, self.engine.info().max_positions);
                chosen.extend(fed.map(|fed| (seq, fed)));
            }
        }
        let feeds: Vec<Feed<'_>> = chosen
            .iter()
            .map(|(seq, fed)| Feed {
                seq: self.twins[*seq].id,
                tokens: &fed.tokens,
                tree: fed.parents.as_deref(),
                logits: fed.logits,
            })
            .collect();
        if feeds.is_empty() || !runs(&mut self.engine, &feeds) {
            return;
        }
        for (i, (seq, fed)) in chosen.iter().enumerate() {
            let texts = self.twins[*seq].take(fed, &mut self.computed);
            let rows = self.engine.logits().rows(i);
            let all = fed.logits == Wants::All;
            assert_eq!(rows, if all { texts.len() } else { 1 });
            for (row, text) in texts[texts.len() - rows..].iter().enumerate() {
                assert_eq!(
                    self.engine.logits().row(i, row),
                    self.oracle.logits(text),
                    "row {row} of feed {i}, a tree: {}",
                    fed.parents.is_some()
                );
            }
        }
    }
}

/// Runs a step; false if pages were short, which must be so if and only if the engine said so.
fn runs(engine: &mut Engine, feeds: &[Feed<'_>]) -> bool {
    let needed = |feed: &Feed<'_>| engine.pages_needed(feed.seq, feed.tokens.len()).unwrap();
    let expected: usize = feeds.iter().map(needed).sum();
    let free = engine.free_pages();
    match engine.step(feeds) {
        Ok(_) => {
            assert!(expected <= free);
            true
        }
        Err(StepError::OutOfPages { needed, available }) => {
            assert_eq!((needed, available), (expected, free));
            assert!(needed > available);
            false
        }
        Err(other) => panic!("{other}"),
    }
}
