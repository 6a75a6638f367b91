//! The step being built: whose rows it has, and what it took.

use std::time::Duration;

use foretoken_engine::{
    batch::{Feed, SeqId, Wants},
    schedule::{RequestId, Running},
};
use foretoken_speculation::{Proposals, TokenId, gather::Due};

use crate::{inbox::LinkKey, request::Request};

/// Plain steps that have to have come before one for it to take what such steps take in a row. The
/// first ones after speculation take up to a fifth longer: the cores were at something else.
const SETTLING: u32 = 6;

/// Rows of one request in the step being built.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) request: RequestId,
    /// The endpoint that the request was bound to. It may have another by the time its window is decided.
    pub(super) link: Option<LinkKey>,
    pub(super) seq: SeqId,
    /// Tokens with KV before the step.
    pub(super) len: usize,
    /// Where its tokens are in [`Feeding::tokens`].
    start: usize,
    end: usize,
    /// Its window among [`Feeding::trees`], if that is no chain.
    tree: Option<usize>,
    wants: Wants,
    pub(super) kind: Kind,
}

/// What a share is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Known tokens; more of them follow in later steps.
    Chunk,
    /// Known tokens up to the last: the first token is decided.
    First,
    /// The last token and a window of proposals.
    Window,
}

/// The step being built; its buffers are kept from step to step.
#[derive(Default)]
pub(super) struct Feeding {
    tokens: Vec<TokenId>,
    /// Windows that are trees.
    trees: Vec<Proposals>,
    /// Parents of their nodes, the last token before each included.
    parents: Vec<Option<u32>>,
    pub(super) shares: Vec<Share>,
    /// How long the latest step took, with what it decided: that is part of a verification.
    pub(super) took: Duration,
    /// How long its verdicts waited for more of what was drafted for them.
    pub(super) lingered: Duration,
    /// Whether the links were looked at after the latest step.
    pub(super) looked: bool,
    /// Whether the latest step took what such steps always take. Steps without proposals are
    /// learned from for what they say about plain decoding: one beside an endpoint that reads a
    /// whole sequence, maybe on the target's cores, says nothing about it, nor does one that plain
    /// ones did not come before. Either would make speculation look good by what it spoils.
    pub(super) typical: bool,
    /// Steps without proposals up to the latest one.
    plain: u32,
    pub(super) running: Vec<Running>,
    pub(super) due: Vec<Due>,
}

impl Feeding {
    /// Rows of the step.
    pub(super) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Whether anything is proposed in it.
    fn proposes(&self) -> bool {
        let mut shares = self.shares.iter();
        shares.any(|share| !self.window(share).is_empty())
    }

    /// Takes in a step of these rows, beside an endpoint that reads or not.
    pub(super) fn settle(&mut self, catches_up: bool) {
        let proposes = self.proposes();
        self.typical = proposes || (!catches_up && self.plain >= SETTLING);
        self.plain = if proposes {
            0
        } else {
            self.plain.saturating_add(1)
        };
    }

    /// The proposals of a share of [`Kind::Window`].
    pub(super) fn window(&self, share: &Share) -> &[TokenId] {
        match share.kind {
            Kind::Window => &self.tokens[share.start + 1..share.end],
            Kind::Chunk | Kind::First => &[],
        }
    }

    /// The same, if they are a tree.
    pub(super) fn tree(&self, share: &Share) -> Option<&Proposals> {
        self.trees.get(share.tree?)
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.trees.clear();
        self.parents.clear();
        self.shares.clear();
    }

    pub(super) fn push(
        &mut self,
        request: &Request,
        len: usize,
        tokens: impl Iterator<Item = TokenId>,
        tree: Option<Proposals>,
        kind: Kind,
    ) {
        let Some(seq) = request.seq else { return };
        let start = self.tokens.len();
        self.tokens.extend(tokens);
        let wants = match kind {
            Kind::Window => Wants::All,
            Kind::Chunk | Kind::First if request.wants_prompt_logprobs() => Wants::All,
            Kind::First => Wants::Last,
            Kind::Chunk => Wants::None,
        };
        let tree = tree.map(|tree| {
            self.trees.push(tree);
            self.trees.len() - 1
        });
        let end = self.tokens.len();
        self.shares.push(Share {
            request: request.id,
            link: request.link,
            seq,
            len,
            start,
            end,
            tree,
            wants,
            kind,
        });
    }

    /// The last token of a sequence and as much of its window as fits.
    pub(super) fn push_window(
        &mut self,
        request: &Request,
        len: usize,
        window: &Proposals,
        most: usize,
    ) {
        let Some(&last) = request.session.tokens().last() else {
            return;
        };
        let fits = most.min(window.len());
        let proposed = window.tokens()[..fits].iter().copied();
        let tree = (!window.is_chain()).then(|| {
            let mut tree = window.clone();
            tree.truncate(fits);
            tree
        });
        let tree = tree.filter(|tree| !tree.is_chain());
        let tokens = std::iter::once(last).chain(proposed);
        self.push(request, len, tokens, tree, Kind::Window);
    }

    /// The rows of a step. A tree hangs on the last token, which is a node itself: what becomes of
    /// it is decided with the tree.
    pub(super) fn feeds(&mut self) -> Vec<Feed<'_>> {
        let mut ends = Vec::with_capacity(self.trees.len());
        for tree in &self.trees {
            self.parents.push(None);
            let nodes = 1..=tree.len() as u32;
            self.parents
                .extend(nodes.map(|node| Some(tree.parent(node))));
            ends.push(self.parents.len());
        }
        let Self {
            tokens,
            parents,
            shares,
            ..
        } = self;
        let feed = |share: &Share| Feed {
            seq: share.seq,
            tokens: &tokens[share.start..share.end],
            tree: share.tree.map(|tree| {
                let end = ends[tree];
                &parents[end - (share.end - share.start)..end]
            }),
            logits: share.wants,
        };
        shares.iter().map(feed).collect()
    }
}
