//! What a lookahead has to promise before it is begun with.

/// Decisions for which a lookahead has to last, or it was begun with for nothing.
const LASTING: u32 = 512;
/// Decisions for none after which one vain beginning is forgotten.
const FORGOTTEN: u32 = 1024;
/// Most that are remembered.
const REMEMBERED: u32 = 3;

/// Counts beginnings that were soon found to be wrong. Where lookaheads and plain decoding are about
/// even, noise alone makes one look better now and then; each beginning costs an endpoint the
/// reading of whole sequences, so each vain one doubles what the next has to promise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caution {
    /// Whether a lookahead is in use, and for how many decisions it, or none, has been.
    speculates: bool,
    since: u32,
    vain: u32,
    /// Whether it is the one begun with when nothing was known.
    first: bool,
}

impl Caution {
    /// Nothing is known: what may pay is to be tried.
    pub(super) fn new() -> Self {
        Self {
            speculates: true,
            since: 0,
            vain: 0,
            first: true,
        }
    }

    /// Takes in a decision.
    pub(super) fn decided(&mut self, lookahead: u32) {
        if self.speculates == (lookahead > 0) {
            self.since = self.since.saturating_add(1);
        } else {
            if self.speculates && !self.first {
                self.vain = match self.since {
                    LASTING.. => 0,
                    _ => (self.vain + 1).min(REMEMBERED),
                };
            }
            (self.speculates, self.since) = (lookahead > 0, 0);
        }
        self.first &= self.speculates && self.since < LASTING;
        if !self.speculates && self.since >= FORGOTTEN {
            (self.since, self.vain) = (0, self.vain.saturating_sub(1));
        }
    }

    /// How many margins better than none a lookahead has to be.
    pub(super) fn margins(&self) -> u32 {
        match (self.speculates, self.first) {
            (true, true) => 0,
            (true, false) => 1,
            (false, _) => 2 << self.vain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(caution: &mut Caution, lookahead: u32, times: u32) {
        (0..times).for_each(|_| caution.decided(lookahead));
    }

    #[test]
    fn vain_beginnings_raise_what_is_asked_and_time_or_success_lowers_it() {
        let mut caution = Caution::new();
        decide(&mut caution, 3, 10);
        assert_eq!(caution.margins(), 0, "nothing is known at first");
        decide(&mut caution, 0, 10);
        assert_eq!(caution.margins(), 2);
        for asked in [4, 8, 16, 16] {
            decide(&mut caution, 3, 80);
            assert_eq!(caution.margins(), 1);
            decide(&mut caution, 0, 10);
            assert_eq!(caution.margins(), asked);
        }
        decide(&mut caution, 0, FORGOTTEN);
        assert_eq!(caution.margins(), 8);
        decide(&mut caution, 3, LASTING + 1);
        decide(&mut caution, 0, 1);
        assert_eq!(caution.margins(), 2);
    }
}
