//! Why calls to the engine fail.

use super::SeqId;
use crate::runner::RunnerError;

/// Why a call about one sequence failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeqError {
    /// The sequence was closed.
    #[error("there is no open sequence {0:?}")]
    Unknown(SeqId),
    /// A length past the end.
    #[error("length {asked} is past the sequence's {len} tokens")]
    PastEnd {
        /// Length asked for.
        asked: usize,
        /// Length of the trunk.
        len: usize,
    },
    /// A path that does not follow the tail's tree.
    #[error("node {node} of the accepted path is not a child of the node before it")]
    NotAPath {
        /// The offending node.
        node: u32,
    },
    /// A sequence that does not begin with the trunk of another.
    #[error("the sequence does not begin with the other's {len} tokens")]
    OtherTrunk {
        /// Tokens of the other's trunk.
        len: usize,
    },
}

/// Why a step did not run.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A feed names a sequence that is not open, or breaks its bounds.
    #[error(transparent)]
    Sequence(#[from] SeqError),
    /// Two feeds of one sequence.
    #[error("sequence {0:?} appears twice in one step")]
    Repeated(SeqId),
    /// A feed without tokens, or a step without feeds.
    #[error("every step needs a feed and every feed a token")]
    Empty,
    /// A chain fed to a sequence whose tree is not decided.
    #[error("sequence {0:?} has an open tree: accept a path or truncate before feeding a chain")]
    TreeOpen(SeqId),
    /// The number of parents differs from the number of tokens.
    #[error("a tree of {tokens} tokens has {parents} parents")]
    Parents {
        /// Tokens of the feed.
        tokens: usize,
        /// Parents given.
        parents: usize,
    },
    /// A parent that does not come before its child.
    #[error("node {node} names node {parent} as its parent, which does not come before it")]
    ParentOrder {
        /// The child.
        node: usize,
        /// The parent it names.
        parent: u32,
    },
    /// More tree nodes than a mask has bits.
    #[error("a tree of {nodes} nodes exceeds the limit of {limit}")]
    TreeTooLarge {
        /// Nodes the tail would have.
        nodes: usize,
        /// Most nodes of a tail.
        limit: usize,
    },
    /// Not enough pages.
    #[error("the step needs {needed} pages and {available} are free: preempt a sequence first")]
    OutOfPages {
        /// Pages needed.
        needed: usize,
        /// Pages free or evictable.
        available: usize,
    },
    /// The runner refused or failed.
    #[error(transparent)]
    Runner(#[from] RunnerError),
}
