//! How branches grow: where they end because the next token is not likely enough, and the second
//! choices beside what they draw, leaves that make trees of continuations and cost the endpoint no row.
//!
//! Second choices for verification by ratio are drawn, too. Whether there is one more depends on what
//! was drawn before it, never on what it is itself, or the output would not have the target's law;
//! for the same reason a continuation then never ends early.

use alloc::vec::Vec;

use super::build::COUPLED;
use crate::{
    Seed, TokenId,
    fanout::Chances,
    guess::{Candidates, Row},
    message::{Cutoff, Side, TreeBudget},
    proposal::Proposer,
    sampling::{Sampler, Scratch},
    tree::choose::Spine,
};

/// What is thought of the tokens that branches draw.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) chances: Chances,
    /// Probability from which a branch's next token is worth its row, after its first one.
    cutoff: Cutoff,
    /// The same for second choices, and the chain that they are beside.
    beside: Cutoff,
    spine: Spine,
    /// Second choices of a branch, at most.
    most: usize,
    /// By guess: the probability that all its branch drew is accepted, and second choices so far.
    reached: Vec<(f64, usize)>,
    /// Second choices of the last step.
    pub(super) sides: Vec<Side>,
    /// Candidates to rank beside each token that is drawn.
    ranks: usize,
    /// The row at hand.
    drawn: Candidates,
}

impl Growth {
    pub(super) fn new() -> Self {
        Self {
            chances: Chances::default(),
            cutoff: Cutoff::default(),
            beside: Cutoff::default(),
            spine: Spine::default(),
            most: 0,
            reached: Vec::new(),
            sides: Vec::new(),
            ranks: Chances::beside(false),
            drawn: nothing_drawn(),
        }
    }

    /// No branches: what is drawn is drawn whatever is thought of it.
    pub(super) fn clear(&mut self) {
        self.sides.clear();
        self.reached.clear();
    }

    /// Before the first step of `branches` branches of `steps` tokens.
    pub(super) fn begin(
        &mut self,
        tree: Option<TreeBudget>,
        cutoff: Cutoff,
        steps: usize,
        branches: usize,
    ) {
        self.beside = tree.map_or_else(Cutoff::default, |tree| tree.cutoff);
        self.spine = Spine {
            tokens: steps as u32,
            acceptance: self.chances.acceptance(),
        };
        self.most = tree.map_or(0, |tree| (tree.nodes as usize).saturating_sub(steps));
        self.cutoff = cutoff;
        self.ranks = Chances::beside(tree.is_some());
        self.reached.clear();
        self.reached.resize(branches, (1.0, 0));
    }

    /// Draws what follows in the branch of this entry, which has made `after` steps; nothing if that
    /// is too unlikely to be verified. Candidates beside it are ranked as far as that takes, and
    /// `ranks` of them if that is given.
    pub(super) fn draw(
        &mut self,
        (entry, after): (usize, u32),
        ranks: Option<usize>,
        row: &[f32],
        (sampler, scratch): (&Sampler, &mut Scratch),
    ) -> Option<TokenId> {
        let ranks = ranks.map_or(self.ranks, |ranks| ranks.max(self.ranks));
        self.drawn.reset(COUPLED, ranks);
        let token = self.drawn.draw(sampler, scratch, row);
        if let (Some(row), Some(&(reached, mut count))) =
            (self.drawn.row(0), self.reached.get(entry))
        {
            let (accepts, sides) = self.chances.of(&row);
            let likely = reached * accepts;
            // A continuation without a token would be none.
            if after > 0 && likely < self.cutoff.at(after) {
                return None;
            }
            for (token, chance) in sides {
                if !self.is_worth((after, likely), count, reached * chance) {
                    break;
                }
                count += 1;
                self.sides.push(Side {
                    entry: entry as u32,
                    after,
                    token,
                });
            }
            self.reached[entry] = (likely, count);
        }
        Some(token)
    }

    /// The row that the last token was drawn from.
    pub(super) fn row(&self) -> Option<Row<'_>> {
        self.drawn.row(0)
    }

    /// Draws second choices beside `token`, which `proposer` has just drawn for the branch of this
    /// entry after as many others.
    pub(super) fn draw_beside(
        &mut self,
        (entry, after): (usize, u32),
        token: TokenId,
        proposer: &mut Proposer,
        seed: Seed,
    ) {
        self.drawn.reset(COUPLED, self.ranks);
        self.drawn.drawn(token, proposer.ranked());
        let (Some(row), Some(&(reached, mut count))) = (self.drawn.row(0), self.reached.get(entry))
        else {
            return;
        };
        let (accepts, _) = self.chances.of(&row);
        let likely = reached * accepts;
        let mut refused = reached - likely;
        for accepts in self.chances.drawn_beside() {
            if !self.is_worth((after, likely), count, refused * accepts) {
                break;
            }
            let Some(token) = proposer.draw_beside(seed) else {
                break;
            };
            count += 1;
            refused *= 1.0 - accepts;
            self.sides.push(Side {
                entry: entry as u32,
                after,
                token,
            });
        }
        self.reached[entry] = (likely, count);
    }

    /// Whether a second choice of this `probability` is worth its row, `count` others of its branch come
    /// before it, and its branch drew a token beside it, after as many others, which are all accepted with
    /// probability `likely`.
    fn is_worth(&self, (after, likely): (u32, f64), count: usize, probability: f64) -> bool {
        let before = self.spine.before((after + 1, likely), probability) + count as u32;
        count < self.most && probability > self.beside.at(before)
    }

    /// Takes in tokens of the branch of this entry that are there already, and nothing beside them.
    pub(super) fn assume(&mut self, entry: usize, tokens: usize) {
        if let Some((reached, _)) = self.reached.get_mut(entry) {
            *reached *= libm::pow(self.chances.acceptance(), tokens as f64);
        }
    }

    /// The second choices after the first so many tokens of a branch.
    pub(super) fn sides_at(&self, after: u32) -> impl Iterator<Item = TokenId> {
        let here = self.sides.iter().filter(move |side| side.after == after);
        here.map(|side| side.token)
    }
}

/// Room for what is drawn as a coupled target decides, with the second choices beside it.
pub(super) fn nothing_drawn() -> Candidates {
    Candidates::new(COUPLED, Chances::beside(true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Rise;

    #[test]
    fn second_choices_leave_cheap_rows_to_what_is_likelier() {
        let mut growth = Growth::new();
        let tree = TreeBudget {
            nodes: 12,
            cutoff: Cutoff::new(0.0, Rise::new(4, 0.5)),
        };
        growth.begin(Some(tree), Cutoff::default(), 4, 1);
        let mut is_worth = |acceptance, after, count, probability| {
            growth.spine.acceptance = acceptance;
            growth.is_worth((after, 0.9), count, probability)
        };
        // All four tokens of the chain are likelier, and then rows are dear.
        assert!(!is_worth(0.9, 0, 0, 0.3));
        assert!(is_worth(0.9, 0, 0, 0.55));
        // Of the chain only the first is, and with two others two rows are taken besides.
        assert!(is_worth(0.1, 0, 0, 0.3));
        assert!(is_worth(0.1, 0, 2, 0.3));
        assert!(!is_worth(0.1, 0, 3, 0.3));
        // The tokens before it are likelier in any case.
        assert!(is_worth(0.1, 2, 0, 0.3));
        assert!(!is_worth(0.1, 3, 0, 0.3));
        // No more than there is room for beside the chain, however cheap, and nothing that never is.
        assert!(is_worth(0.1, 0, 7, 0.9));
        assert!(!is_worth(0.1, 0, 8, 0.9));
        assert!(!is_worth(0.1, 0, 0, 0.0));
    }
}
