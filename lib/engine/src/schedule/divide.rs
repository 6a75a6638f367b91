//! How one step's rows and pages are divided among running requests.

use super::{Ask, Running};
use crate::kv::pages_for;
use crate::runner::PAGE_TOKENS;

/// A running request and what it was given so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) state: Running,
    /// Most proposed tokens of use to it.
    pub(super) most_window: usize,
    /// Rows granted.
    pub(super) rows: usize,
    pub(super) preempted: bool,
}

impl Share {
    /// Known tokens without KV that it wants fed; 0 if it sits out.
    fn pending(&self) -> usize {
        match self.state.ask {
            Ask::Run { .. } if !self.preempted => self.state.tokens.saturating_sub(self.state.len),
            Ask::Run { .. } | Ask::SitOut => 0,
        }
    }

    /// Whether it is past its prefill and wants rows.
    pub(super) fn decodes(&self) -> bool {
        self.pending() == 1
    }

    fn prefills(&self) -> bool {
        self.pending() > 1
    }

    fn window(&self) -> usize {
        match self.state.ask {
            Ask::Run { window } => window.min(self.most_window),
            Ask::SitOut => 0,
        }
    }

    /// Pages that `rows` rows take.
    fn pages(&self, rows: usize) -> usize {
        let copied = usize::from(rows > 0 && self.state.shares_tail);
        pages_for(self.state.len + rows) - pages_for(self.state.len) + copied
    }

    /// Most rows that `pages` pages hold.
    fn capacity(&self, pages: usize) -> usize {
        let copied = usize::from(self.state.shares_tail);
        let slots = |new: usize| (pages_for(self.state.len) + new) * PAGE_TOKENS;
        pages
            .checked_sub(copied)
            .map_or(0, |new| slots(new) - self.state.len)
    }

    /// Pages to keep for the known tokens that are still without KV after this step, and for the
    /// first decoded one.
    pub(super) fn outstanding(&self) -> usize {
        if self.preempted || self.state.tokens <= self.state.len + 1 {
            return 0;
        }
        pages_for(self.state.tokens + 1) - pages_for(self.state.len + self.rows)
    }
}

/// A step being divided.
#[derive(Debug)]
pub(super) struct Division {
    /// Running requests, oldest first.
    pub(super) shares: Vec<Share>,
    /// Rows left.
    pub(super) rows: usize,
    /// Most of them that prefill may take.
    pub(super) prefill_rows: usize,
    /// Pages left.
    pub(super) pages: usize,
}

impl Division {
    /// One row for every request that decodes.
    pub(super) fn decode(&mut self) {
        for i in 0..self.shares.len() {
            if self.shares[i].decodes() && self.rows > 0 && self.make_room(i) {
                self.grant(i, 1);
            }
        }
    }

    /// Chunks for those in prefill, oldest first.
    pub(super) fn prefill(&mut self) {
        for i in 0..self.shares.len() {
            if self.shares[i].prefills() && self.rows_for_prefill() > 0 && self.make_room(i) {
                let share = &self.shares[i];
                let fits = share.capacity(self.pages).min(self.rows_for_prefill());
                let rows = share.pending().min(fits);
                self.grant(i, rows);
                self.prefill_rows -= rows;
            }
        }
    }

    /// Windows, from what is left: one row after the other in turn, so that short windows are
    /// served whole before long ones.
    pub(super) fn windows(&mut self) {
        let mut width = 0;
        let mut grew = true;
        while grew && self.rows > 0 {
            grew = false;
            width += 1;
            for i in 0..self.shares.len() {
                let share = &self.shares[i];
                // Whoever missed a turn has no page for the next row, nor for any later one.
                let next = share.decodes() && share.rows == width && share.window() >= width;
                if next && self.rows > 0 && self.pages_for_more(i, 1) <= self.pages {
                    self.grant(i, 1);
                    grew = true;
                }
            }
        }
    }

    /// Makes sure that the `i`-th request can have a row, if need be by preempting younger ones,
    /// youngest first. Preempts nobody if that would not help.
    fn make_room(&mut self, i: usize) -> bool {
        let needed = self.shares[i].pages(1);
        if self.pages >= needed {
            return true;
        }
        let younger = i + 1..self.shares.len();
        let held = |share: &Share| share.state.owned_pages + share.pages(share.rows);
        let held = self.shares[younger.clone()]
            .iter()
            .filter(|s| !s.preempted)
            .map(held);
        if self.pages + held.sum::<usize>() < needed {
            return false;
        }
        for j in younger.rev() {
            if self.pages >= needed {
                break;
            }
            let share = &mut self.shares[j];
            let freed = share.state.owned_pages + share.pages(share.rows);
            if !share.preempted && freed > 0 {
                self.pages += freed;
                self.rows += share.rows;
                share.rows = 0;
                share.preempted = true;
            }
        }
        true
    }

    /// Preempts the youngest if nobody could be given a row that somebody older wants. Younger ones
    /// that share all their pages with each other own none, so closing one of them gives nothing
    /// back yet; but the last of them owns them all.
    pub(super) fn unblock(&mut self) {
        if self.shares.iter().any(|share| share.rows > 0) {
            return;
        }
        let Some(waits) = self.shares.iter().position(|share| share.pending() > 0) else {
            return;
        };
        let mut younger = self.shares[waits + 1..].iter_mut().rev();
        if let Some(youngest) = younger.find(|share| share.state.len > 0) {
            youngest.preempted = true;
        }
    }

    /// Rows that known tokens may still take.
    pub(super) fn rows_for_prefill(&self) -> usize {
        self.prefill_rows.min(self.rows)
    }

    fn pages_for_more(&self, i: usize, rows: usize) -> usize {
        let share = &self.shares[i];
        share.pages(share.rows + rows) - share.pages(share.rows)
    }

    fn grant(&mut self, i: usize, rows: usize) {
        self.pages -= self.pages_for_more(i, rows);
        self.rows -= rows;
        self.shares[i].rows += rows;
    }
}
