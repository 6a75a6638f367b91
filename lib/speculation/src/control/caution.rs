//! What a lookahead has to promise before it is begun with.

use super::Load;

/// Decisions for which a lookahead has to last, or it was begun with for nothing.
const LASTING: u32 = 512;
/// Decisions for none after which one vain beginning is forgotten.
const FORGOTTEN: u32 = 1024;
/// Most that are remembered.
const REMEMBERED: u32 = 3;

/// Counts beginnings that were soon found to be wrong. Where lookaheads and plain decoding are about
/// even, noise alone makes one look better now and then; each beginning costs an endpoint the
/// reading of whole sequences, so each vain one doubles what the next has to promise, under about
/// the same load. A lookahead that was ended by a greater load was not begun with in vain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caution {
    /// Whether a lookahead is in use, and for how many decisions it, or none, has been.
    speculates: bool,
    since: u32,
    /// Under which load it was begun with.
    begun: u32,
    /// Whether it is the one begun with when nothing was known.
    first: bool,
    /// Vain beginnings, and under which load.
    vain: u32,
    under: u32,
}

impl Caution {
    /// Nothing is known: what may pay is to be tried.
    pub(super) fn new() -> Self {
        Self {
            speculates: true,
            since: 0,
            begun: 0,
            first: true,
            vain: 0,
            under: 0,
        }
    }

    /// Takes in a decision.
    pub(super) fn decided(&mut self, lookahead: u32, load: Load) {
        match (self.speculates, lookahead > 0) {
            (false, true) => self.begin(load.magnitude()),
            (true, false) => self.end(load.magnitude()),
            _ => self.since = self.since.saturating_add(1),
        }
        self.first &= self.speculates && self.since < LASTING;
        if !self.speculates && self.since >= FORGOTTEN {
            (self.since, self.vain) = (0, self.vain.saturating_sub(1));
        }
    }

    fn begin(&mut self, load: u32) {
        (self.speculates, self.since, self.begun) = (true, 0, load);
    }

    fn end(&mut self, load: u32) {
        if self.since >= LASTING {
            self.vain = 0;
        } else if load == self.begun && !self.first {
            let before = if load == self.under { self.vain } else { 0 };
            (self.vain, self.under) = ((before + 1).min(REMEMBERED), load);
        }
        (self.speculates, self.since) = (false, 0);
    }

    /// How many margins better than none a lookahead has to be.
    pub(super) fn margins(&self, load: Load) -> u32 {
        match (self.speculates, self.first) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) if load.magnitude() == self.under => 2 << self.vain,
            (false, _) => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Load = Load::of(1);
    const CROWD: Load = Load::of(16);

    fn decide(caution: &mut Caution, lookahead: u32, times: u32) {
        (0..times).for_each(|_| caution.decided(lookahead, ALONE));
    }

    /// One that asks for `2 << vain` margins.
    fn after(vain: u32) -> Caution {
        let mut caution = Caution::new();
        decide(&mut caution, 0, 1);
        for _ in 0..vain {
            decide(&mut caution, 3, 80);
            decide(&mut caution, 0, 10);
        }
        caution
    }

    #[test]
    fn when_nothing_is_known_nothing_is_asked() {
        let mut caution = Caution::new();
        decide(&mut caution, 3, 10);
        assert_eq!(caution.margins(ALONE), 0);
        decide(&mut caution, 0, 10);
        assert_eq!(caution.margins(ALONE), 2, "it was no error to try");
        decide(&mut caution, 3, 10);
        assert_eq!(caution.margins(ALONE), 1);
    }

    #[test]
    fn vain_beginnings_raise_what_is_asked_and_time_or_success_lowers_it() {
        for (vain, asked) in [2, 4, 8, 16, 16].into_iter().enumerate() {
            let mut caution = after(vain as u32);
            assert_eq!(caution.margins(ALONE), asked);
            decide(&mut caution, 3, LASTING + 1);
            decide(&mut caution, 0, 1);
            assert_eq!(caution.margins(ALONE), 2);
        }
        let mut caution = after(3);
        decide(&mut caution, 0, FORGOTTEN);
        assert_eq!(caution.margins(ALONE), 8);
    }

    #[test]
    fn another_load_is_another_matter() {
        let mut caution = after(2);
        assert_eq!((caution.margins(ALONE), caution.margins(CROWD)), (8, 2));
        // What a crowd ended was not begun with in vain.
        decide(&mut caution, 3, 10);
        caution.decided(0, CROWD);
        assert_eq!((caution.margins(ALONE), caution.margins(CROWD)), (8, 2));
        // What is found to be wrong in a crowd says nothing about one alone.
        for lookahead in [3, 0] {
            caution.decided(lookahead, CROWD);
        }
        assert_eq!((caution.margins(ALONE), caution.margins(CROWD)), (2, 4));
    }
}
