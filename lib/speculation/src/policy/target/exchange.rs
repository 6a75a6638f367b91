//! What goes into a target's session and what comes out of it.

use alloc::vec::Vec;
use core::time::Duration;

use super::{AheadStats, Answer, Lookup, Verified};
use crate::{
    Proposals,
    message::{Account, ToDraft, ToTarget},
};

/// What the outside world tells a session.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// An endpoint can be reached (at first, after a lost link, or another one).
    LinkUp,
    /// The link to the endpoint is gone.
    LinkDown,
    /// The endpoint sent this.
    Received(&'a ToTarget),
    /// The pass that [`TargetSession::next`](super::TargetSession::next) asked for has decided.
    Verified(Verified<'a>),
    /// The request ended otherwise: cancelled, or failed.
    Cancelled,
}

/// What the driver must do after an input.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// Send these to the endpoint, in order.
    pub messages: Vec<ToDraft>,
    /// A window arrived: what to tell a controller.
    pub answer: Option<Answer>,
    /// After a verdict of [`Policy::Ssd`](crate::policy::Policy::Ssd): where the next window comes from.
    /// If only the endpoint knows that: with the window.
    pub lookup: Option<Lookup>,
    /// What the endpoint of a [`Policy::Ssd`](crate::policy::Policy::Ssd) did.
    pub account: Option<Account>,
    /// After a verdict: a window that its round waited for has not come, of which only the endpoint knew
    /// whether it was drafted ahead. A miss.
    pub lost: bool,
    /// Tokens of [`Verified::local`] that are verified next.
    pub local: u32,
}

/// What a session wants of its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Verify this window (it may be empty). Repeated until the verdict is in.
    Verify(&'a Proposals),
    /// Do other things until a message arrives, at most until this time.
    Wait {
        /// When to ask again.
        until: Duration,
    },
    /// The output has ended.
    Finished,
}

/// Counts for usage and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetStats {
    /// Verifications that decided.
    pub rounds: u32,
    /// Tokens proposed in verified windows.
    pub drafted: u32,
    /// Tokens emitted that had been proposed.
    pub accepted: u32,
    /// Tokens emitted.
    pub emitted: u32,
    /// Windows that did not come in time.
    pub missed: u32,
    /// Windows, or parts of entries, that did not say what they were drawn from.
    pub unexplained: u32,
    /// Bindings after the first.
    pub reopened: u32,
    /// What was drafted ahead of verdicts.
    pub ahead: AheadStats,
}
