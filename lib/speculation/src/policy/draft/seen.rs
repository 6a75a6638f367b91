//! What the likeliest branches saw as they drew.
//!
//! If the outcome of one comes about, what it drew is the next window, and the rows that it drew from are
//! those of that window's glue pass: all but the last, which comes of the token that it drew last and has
//! not fed. The tail of its fork holds the tokens before that one.

use alloc::vec::Vec;

use super::build::COUPLED;
use crate::{
    columns::Columns,
    guess::{Candidates, Row},
};

/// How many guesses are remembered of those that begin together, from the likeliest on. Of others candidates
/// are ranked in a glue pass if they come about: to rank them all would take longer.
const REMEMBERED: usize = 4;
/// Candidates that are ranked in each of their rows: fewer than in those of a glue pass, whose number costs
/// nothing in most rounds.
const RANKED: usize = 8;

/// Rows of the branches of a build.
#[derive(Debug)]
pub(super) struct Seen {
    rows: Candidates,
    /// By guess, a column a step: which row is its own, and the node of its fork's tail that this is of.
    places: Columns<Option<Place>>,
    /// The column of the step at hand.
    step: Vec<Option<Place>>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    row: usize,
    node: u32,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            rows: Candidates::new(COUPLED, RANKED),
            places: Columns::new(),
            step: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.places.clear();
        self.step.clear();
    }

    /// Candidates to rank beside what the branch of this guess draws, so that it can be remembered; none if
    /// it will not be.
    pub(super) fn ranks(guess: usize) -> Option<usize> {
        (guess < REMEMBERED).then_some(RANKED)
    }

    /// Takes in the row that the branch of this guess draws from in the step at hand, and the node that
    /// it is of.
    pub(super) fn note(&mut self, guess: usize, node: u32, row: &Row<'_>) {
        if guess >= REMEMBERED {
            return;
        }
        self.step.resize(self.step.len().max(guess + 1), None);
        self.step[guess] = Some(Place {
            row: self.rows.rows().len(),
            node,
        });
        self.rows.keep(row);
    }

    /// Ends the step at hand.
    pub(super) fn end_step(&mut self) {
        self.places.push(self.step.drain(..));
    }

    /// The rows that the branch of this guess has drawn from.
    pub(super) fn rows(&self, guess: usize) -> impl Iterator<Item = Row<'_>> {
        self.of(guess).filter_map(|place| self.rows.row(place.row))
    }

    /// The nodes of its fork's tail that these are of.
    pub(super) fn nodes(&self, guess: usize) -> impl Iterator<Item = u32> {
        self.of(guess).map(|place| place.node)
    }

    fn of(&self, guess: usize) -> impl Iterator<Item = Place> {
        self.places.of(guess).map_while(|place| *place)
    }
}
