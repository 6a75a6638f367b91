//! The CPU runner against logits of the reference implementation, and against itself: the same
//! token in the same context has the same logits in every bit, however it got there.
//!
//! Every test runs on every instruction path that this machine has.

#![expect(clippy::unwrap_used, reason = "a test ends where a step of it fails")]

mod checkpoint;
mod damage;
mod exactness;
mod fixture;
mod forms;
mod oracle;
mod reference;
mod sequence;
mod shipped;
