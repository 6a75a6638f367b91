//! What a target knows of the slots of an endpoint.
//!
//! An endpoint only reports what has changed, and of one session that ends and one that begins
//! nothing has. So what it said last is kept up with what this target opens and closes there.

use foretoken_protocol::link::LoadReport;
use foretoken_speculation::message::ToDraft;

#[derive(Debug, Default)]
pub(in crate::worker) struct Slots {
    load: LoadReport,
    /// Sessions opened since its last report, which counts none of those that it refused.
    opened: u32,
    /// Whether none was free at some time since it last said that one is.
    was_full: bool,
}

impl Slots {
    /// Those of an endpoint that has so many, none of them taken.
    pub(in crate::worker) fn new(slots: u32) -> Self {
        let load = LoadReport {
            slots,
            ..LoadReport::default()
        };
        Self {
            load,
            ..Self::default()
        }
    }

    /// Takes in a report; says whether somebody may be waiting for a slot that is free now.
    pub(in crate::worker) fn report(&mut self, load: LoadReport) -> bool {
        self.load = load;
        self.opened = 0;
        let has_room = self.has_room();
        std::mem::replace(&mut self.was_full, !has_room) && has_room
    }

    /// Counts sessions that are opened and closed by `messages`.
    pub(super) fn count(&mut self, messages: &[ToDraft]) {
        for message in messages {
            let used = &mut self.load.used;
            match message {
                ToDraft::Open(_) => {
                    *used = used.saturating_add(1);
                    self.opened += 1;
                }
                ToDraft::Close { .. } => *used = used.saturating_sub(1),
                ToDraft::Outcome(_) => {}
            }
            self.was_full |= !self.has_room();
        }
    }

    /// What was opened takes no slot, if it still counts.
    pub(super) fn uncount(&mut self) {
        if let Some(opened) = self.opened.checked_sub(1) {
            self.opened = opened;
            self.load.used = self.load.used.saturating_sub(1);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.takes_any() && (self.load.slots == 0 || self.load.used < self.load.slots)
    }

    /// Whether somebody who has so many of them may have one more.
    pub(super) fn may_have_more(&self, own: u32) -> bool {
        self.takes_any() && (self.load.slots == 0 || own < self.load.slots)
    }

    fn takes_any(&self) -> bool {
        !self.load.draining
    }

    #[cfg(test)]
    pub(in crate::worker) fn used(&self) -> u32 {
        self.load.used
    }
}
