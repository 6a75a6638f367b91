//! Seeded faults between an engine and its link.

use foretoken_speculation::noise::philox;

/// What happens to messages, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) drop: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    pub(crate) delay: u32,
    /// The carrier is cut or corrupts bytes, per batch.
    pub(crate) harm: u32,
}

/// Dice of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    seed: u32,
    thrown: u32,
}

impl Dice {
    pub(crate) fn new(seed: u32) -> Self {
        Self { seed, thrown: 0 }
    }

    /// A number below 1000.
    pub(crate) fn roll(&mut self) -> u32 {
        self.thrown += 1;
        philox([self.thrown, 0, 0, 0], [self.seed, 0xfa17])[0] % 1000
    }
}

/// One direction of a lossy link.
#[derive(Debug)]
pub(crate) struct Lossy<M> {
    faults: Faults,
    dice: Dice,
    /// Held back for so many more batches.
    held: Vec<(u32, M)>,
}

impl<M: Clone> Lossy<M> {
    pub(crate) fn new(faults: Faults, seed: u32) -> Self {
        Self {
            faults,
            dice: Dice::new(seed),
            held: Vec::new(),
        }
    }

    /// What of `messages`, and of earlier ones, comes out now.
    pub(crate) fn pass(&mut self, messages: Vec<M>) -> Vec<M> {
        let mut out = Vec::new();
        for (batches, message) in std::mem::take(&mut self.held) {
            if batches == 0 {
                out.push(message);
            } else {
                self.held.push((batches - 1, message));
            }
        }
        for message in messages {
            if self.dice.roll() < self.faults.drop {
                continue;
            }
            if self.dice.roll() < self.faults.duplicate {
                out.push(message.clone());
            }
            if self.dice.roll() < self.faults.delay {
                self.held.push((self.dice.roll() % 4, message));
            } else {
                out.push(message);
            }
        }
        if out.len() > 1 && self.dice.roll() < self.faults.reorder {
            let place = self.dice.roll() as usize % out.len();
            out.swap(0, place);
        }
        out
    }

    /// Whether the carrier is to be harmed now.
    pub(crate) fn harms(&mut self) -> bool {
        self.dice.roll() < self.faults.harm
    }
}
