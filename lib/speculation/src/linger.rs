//! How long a target waits for more of what was drafted for its verdict.
//!
//! Continuations come token by token while a verification runs. Where its end finds a part of the
//! one that it needs, the next token may be nearly there, and once the endpoint knows the verdict
//! nothing more is drafted for it. To wait is worth it iff the tokens that it brings are more than
//! what is emitted in the time that it takes (Charnov 1976, as in [`fallback`](crate::fallback)):
//!
//! ```text
//! chance * P(it comes) > pace * E(time until it comes, or is given up)
//! ```
//!
//! where `chance` is the probability that the token and all before it are accepted, summed over the
//! rows that wait for one, and `pace` the tokens a second of all that wait with them. Nobody waits for
//! longer than `chance / pace`. When tokens come is learned from waits alone: what came during the
//! verification was not looked at before its end.

use core::time::Duration;

/// Weight that a wait keeps with each later one: about the last 20 count.
const MEMORY: f64 = 0.95;
/// Weight that waits keep with each one that was not made. One in vain is tried again after some
/// seventy of them, many after hundreds.
const FORGETS: f64 = 0.99;

/// Which token is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The first one after the verification. When it comes depends on when that ended.
    First,
    /// The one after a token that was waited for: it takes a step of the endpoint.
    Next,
}

/// Decides for the sessions that one endpoint serves alike.
#[derive(Clone, Debug, Default)]
pub struct Linger {
    first: Waits,
    next: Waits,
}

/// Waits of a kind; the longer ago the less they count.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// Those that brought a token.
    came: f64,
    /// Time of all of them.
    seconds: f64,
}

impl Linger {
    /// How long to wait at most, if at all. The first wait of a kind is made whatever it brings.
    pub fn patience(&mut self, wait: Wait, chance: f64, pace: f64) -> Option<Duration> {
        let waits = self.of(wait);
        // As if one more had brought its token at once.
        if chance * (waits.came + 1.0) <= pace * waits.seconds {
            waits.keep(FORGETS);
            return None;
        }
        let longest = Duration::try_from_secs_f64(chance / pace).ok();
        longest.filter(|longest| !longest.is_zero())
    }

    /// Takes in a wait of this length, and whether it brought a token.
    pub fn observe(&mut self, wait: Wait, came: bool, waited: Duration) {
        let waits = self.of(wait);
        waits.keep(MEMORY);
        waits.came += f64::from(u8::from(came));
        waits.seconds += waited.as_secs_f64();
    }

    fn of(&mut self, wait: Wait) -> &mut Waits {
        match wait {
            Wait::First => &mut self.first,
            Wait::Next => &mut self.next,
        }
    }
}

impl Waits {
    fn keep(&mut self, part: f64) {
        self.came *= part;
        self.seconds *= part;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// 200 tokens a second: half a token is worth 2.5 ms.
    const PACE: f64 = 200.0;

    /// Whether it waits for half a token after waits of this length, of which one in `every` was
    /// in vain.
    fn waits_after(waited: Duration, every: usize) -> bool {
        let mut linger = Linger::default();
        (1..=100).for_each(|i| linger.observe(Wait::First, i % every > 0, waited));
        linger.patience(Wait::First, 0.5, PACE).is_some()
    }

    #[test]
    fn a_token_is_waited_for_if_it_brings_more_than_its_time() {
        assert!(waits_after(2 * MS, 1000));
        assert!(!waits_after(3 * MS, 1000));
        assert!(
            waits_after(MS, 2),
            "half of them bring as much as all do in 2 ms"
        );
        assert!(!waits_after(2 * MS, 2));
    }

    #[test]
    fn nobody_waits_for_longer_than_a_token_is_worth() {
        let mut linger = Linger::default();
        let patience = linger.patience(Wait::First, 0.5, PACE);
        assert_eq!(patience, Some(2500 * Duration::from_micros(1)));
        for (chance, pace) in [(0.0, PACE), (0.5, 0.0), (f64::NAN, PACE), (0.5, f64::NAN)] {
            assert_eq!(linger.patience(Wait::First, chance, pace), None);
        }
    }

    #[test]
    fn waits_in_vain_soon_end_and_are_tried_again_much_later() {
        let mut linger = Linger::default();
        let (mut pauses, mut pause) = (Vec::new(), 0);
        for _ in 0..5000 {
            pause += 1;
            if let Some(patience) = linger.patience(Wait::First, 0.5, PACE) {
                linger.observe(Wait::First, false, patience);
                pauses.push(core::mem::take(&mut pause));
            }
        }
        assert!(pauses[0] == 1 && pauses.len() > 10, "{pauses:?}");
        assert!(pauses[2..].iter().all(|&pause| pause > 50), "{pauses:?}");
    }

    #[test]
    fn the_token_after_one_that_was_waited_for_is_judged_by_its_like() {
        let mut linger = Linger::default();
        (0..20).for_each(|_| linger.observe(Wait::First, true, MS));
        (0..20).for_each(|_| linger.observe(Wait::Next, true, 10 * MS));
        assert!(linger.patience(Wait::First, 0.5, PACE).is_some());
        assert!(linger.patience(Wait::Next, 0.5, PACE).is_none());
    }
}
