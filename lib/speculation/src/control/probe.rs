//! When a lookahead is tried while none seems to pay.

use super::ControlConfig;

/// Decisions after which a probe that taught nothing is repeated: its session may have ended, or
/// been too new to answer. Odd, so that it meets sessions of a few rounds in all their stages.
const RETRY_AFTER: u32 = 7;
/// Most repetitions.
const RETRIES: u32 = 8;

/// Decisions for K = 0 after which a probe has had its consequences.
const OVER_AFTER: u32 = 32;

/// Probes, further and further apart as long as they do not pay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// Decisions for K = 0 since the last one.
    idle: u32,
    pause: u32,
    /// Decisions left of the one under way.
    left: u32,
    /// The last one was left out.
    postponed: bool,
    /// How often the last one may be repeated, having taught nothing so far.
    retries: u32,
    /// Tokens that the last one has brought, and the seconds that such rounds take.
    brought: (f64, f64),
    /// Whether that would have paid.
    pays: bool,
}

impl Probe {
    pub(super) fn new(config: &ControlConfig) -> Self {
        Self {
            idle: 0,
            pause: config.probe_after.max(1),
            left: 0,
            postponed: false,
            retries: 0,
            brought: (0.0, 0.0),
            pays: false,
        }
    }

    /// A lookahead pays.
    pub(super) fn reset(&mut self, config: &ControlConfig) {
        (self.idle, self.left) = (0, 0);
        self.pause = config.probe_after.max(1);
    }

    /// Takes in a round of the last probe: its tokens, and the seconds that such a round takes. If
    /// all of its rounds have brought more than `enough` tokens a second, the next one comes soon.
    pub(super) fn brought(&mut self, tokens: u32, seconds: f64, enough: f64) {
        self.brought.0 += f64::from(tokens);
        self.brought.1 += seconds;
        self.pays = self.brought.0 > enough * self.brought.1;
    }

    /// Something was learned from the last probe.
    pub(super) fn taught(&mut self) {
        (self.postponed, self.retries) = (false, 0);
    }

    /// Whether the last one was some time ago and will not be repeated.
    pub(super) fn is_over(&self) -> bool {
        self.idle >= OVER_AFTER && self.retries == 0
    }

    /// Whether the one just decided may be left out: every second one may.
    pub(super) fn postpone(&mut self) -> bool {
        self.postponed = !self.postponed;
        if self.postponed {
            self.left = 0;
        }
        self.postponed
    }

    /// Whether one more decision for K = 0 is to be a probe instead.
    pub(super) fn is_due(&mut self, config: &ControlConfig) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return true;
        }
        self.idle += 1;
        let again = self.retries > 0 && self.idle >= RETRY_AFTER;
        if self.pays {
            self.pause = self.pause.min(config.probe_after.max(1));
        }
        if self.idle < self.pause && !again {
            return false;
        }
        (self.idle, self.left) = (0, config.probe_rounds.saturating_sub(1));
        (self.brought, self.pays) = ((0.0, 0.0), false);
        if again {
            self.retries -= 1;
        } else {
            self.retries = RETRIES;
            let most = config.probe_at_most.max(1);
            self.pause = self.pause.saturating_mul(2).min(most);
        }
        true
    }
}
