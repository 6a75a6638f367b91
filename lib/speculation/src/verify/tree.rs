//! Coupled verification of trees.

use crate::{
    Proposals, TokenId,
    sampling::{Sampler, Scratch},
};

/// Outcome of verifying a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeVerdict {
    /// The last accepted node (0: no proposal is); [`Proposals::path`] gives all of them.
    pub node: u32,
    /// The token emitted after it.
    pub decided: TokenId,
}

/// Coupled verification of a tree: from the root, descends to the child that equals the target's
/// own choice, as long as there is one. `row(node)` are the logits after `node`; only those on the
/// way are asked for. The accepted tokens and the decided one are pushed to `sampler`.
pub fn coupled_tree<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    tree: &Proposals,
    row: impl Fn(u32) -> &'a [f32],
) -> TreeVerdict {
    let mut node = 0;
    loop {
        let decided = sampler.choose(row(node), scratch);
        sampler.push(decided);
        match tree.child(node, decided) {
            Some(child) => node = child,
            None => return TreeVerdict { node, decided },
        }
    }
}
