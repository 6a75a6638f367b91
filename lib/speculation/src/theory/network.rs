//! Speculation ahead across a network (ours).
//!
//! With a round trip of d verifications, an endpoint that is *asked* after the verdict answers a
//! round trip later: `max(1 + d, T_p)` a round, so the network is never hidden. One that *pushes*
//! what it has before the verdict needs `max(1, T_p + d)`: from an outcome's way there to the
//! entries' way back d passes besides the drafting, and all of it hides behind the verification.

use super::Ahead;
use crate::message::Delivery;

/// Speculation ahead with a network between draft and target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Networked {
    /// As if there were none.
    pub ahead: Ahead,
    /// How entries come to the target.
    pub delivery: Delivery,
    /// Round trip, in verifications.
    pub round_trip: f64,
    /// Whether the backup is the endpoint, so that a miss with push costs a round trip too; with
    /// pull the request that tells of the miss has taken it already.
    pub remote_backup: bool,
}

impl Networked {
    /// Time of a round that hits, in verifications.
    pub fn hit_time(&self) -> f64 {
        let draft = self.ahead.primary.time;
        match self.delivery {
            Delivery::Push => (draft + self.round_trip).max(1.0),
            Delivery::Pull => draft.max(1.0 + self.round_trip),
        }
    }

    /// Time of a round that misses, in verifications.
    pub fn miss_time(&self) -> f64 {
        let backup = self.ahead.backup.time;
        match self.delivery {
            Delivery::Push if self.remote_backup => 1.0 + self.round_trip + backup,
            Delivery::Push => 1.0 + backup,
            Delivery::Pull => self.hit_time() + backup,
        }
    }

    /// Tokens per time over those of plain decoding.
    pub fn speedup(&self) -> f64 {
        let hit = self.ahead.hit_rate();
        self.ahead.tokens() / (hit * self.hit_time() + (1.0 - hit) * self.miss_time())
    }
}
