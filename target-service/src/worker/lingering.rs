//! Verdicts that wait for more of what was drafted for them.
//!
//! All of a step wait together, because the next one begins with all of them.

use std::{
    thread,
    time::{Duration, Instant},
};

use foretoken_protocol::link::Mailbox;
use foretoken_speculation::{
    linger::Wait,
    policy::target::{Drafted, Verified},
};

use super::{Cohort, Flow, Worker, verdict::Decision};
use crate::inbox::Message;

/// Shortest sleep: timers are as coarse. Whoever waits for less looks again and again.
const SLEEP: Duration = Duration::from_millis(2);

/// What the verdicts of a cohort wait for.
#[derive(Clone, Copy)]
struct Stake {
    cohort: Cohort,
    /// Tokens that have come of what was drafted for them.
    came: u32,
    /// Tokens that the next ones of all are expected to bring; 0 if no more are to come.
    chance: f64,
}

impl Worker {
    /// Waits for more of what was drafted for the verdicts of a step, as long as it is worth it.
    pub(super) fn linger(&mut self, inbox: &Mailbox<Message>, decisions: &mut [Decision]) -> Flow {
        let begun = self.now;
        let mut has_waited = false;
        let mut wait = Wait::First;
        while let Some(stake) = self.stake(decisions) {
            let pace = self.stopgap.pace();
            let linger = self.endpoints.linger(stake.cohort);
            let patience = linger.and_then(|linger| linger.patience(wait, stake.chance, pace));
            let Some(patience) = patience else { break };
            let patience = patience.min(self.config.patience);
            if !std::mem::replace(&mut has_waited, true) {
                for decision in &mut *decisions {
                    decision.had = Some(self.tokens_for(decision));
                }
            }
            self.mark_awaited(decisions, stake.cohort);
            let since = self.now;
            let Some(came) = self.wait_for_more(inbox, decisions, stake, since + patience) else {
                return Flow::End;
            };
            let waited = self.now.saturating_duration_since(since);
            if let Some(linger) = self.endpoints.linger(stake.cohort) {
                linger.observe(wait, came, waited);
            }
            if !came {
                break;
            }
            wait = Wait::Next;
        }
        if has_waited {
            let lingered = self.now.saturating_duration_since(begun);
            self.feeding.lingered = lingered;
            let seconds = lingered.as_secs_f64();
            self.metrics.step_lingered_seconds.observe(seconds);
        }
        Flow::On
    }

    /// Hears what comes until that is more of what is waited for; whether it was before `until`.
    /// None if it was told to stop.
    fn wait_for_more(
        &mut self,
        inbox: &Mailbox<Message>,
        decisions: &[Decision],
        stake: Stake,
        until: Instant,
    ) -> Option<bool> {
        loop {
            let left = until.saturating_duration_since(self.now);
            if left.is_zero() {
                return Some(false);
            }
            let message = if left < SLEEP {
                // The endpoint may share this core.
                thread::yield_now();
                inbox.try_recv()
            } else {
                inbox.recv_timeout(left)
            };
            if let Some(message) = message {
                if self.take(message) == Flow::End {
                    return None;
                }
                let now = self.stakes(decisions);
                let own = now.iter().find(|other| other.cohort == stake.cohort);
                let came = own.is_some_and(|own| own.came > stake.came);
                // Whatever is complete, or has ended without more, is waited for no more.
                if came || own.is_none_or(|own| own.chance <= 0.0) {
                    self.now = self.clock.now();
                    return Some(came);
                }
            }
            self.now = self.clock.now();
        }
    }

    /// Marks the verdicts of a cohort that more may come for.
    fn mark_awaited(&self, decisions: &mut [Decision], cohort: Cohort) {
        for decision in decisions {
            let drafted = self.drafted(decision);
            decision.is_awaited |= drafted.is_some_and(|(own, it)| own == cohort && it.grows);
        }
    }

    /// The cohort for which most is at stake, if anything is.
    fn stake(&self, decisions: &[Decision]) -> Option<Stake> {
        let stakes = self.stakes(decisions).into_iter();
        stakes
            .filter(|stake| stake.chance > 0.0)
            .max_by(|a, b| a.chance.total_cmp(&b.chance))
    }

    /// What has come and is waited for, by cohort.
    fn stakes(&self, decisions: &[Decision]) -> Vec<Stake> {
        let mut stakes: Vec<Stake> = Vec::new();
        for decision in decisions {
            let Some((cohort, Drafted { tokens, grows })) = self.drafted(decision) else {
                continue;
            };
            let chance = if grows {
                self.endpoints.reached(cohort, tokens)
            } else {
                0.0
            };
            match stakes.iter_mut().find(|stake| stake.cohort == cohort) {
                Some(stake) => {
                    stake.came += tokens;
                    stake.chance += chance;
                }
                None => stakes.push(Stake {
                    cohort,
                    came: tokens,
                    chance,
                }),
            }
        }
        stakes
    }

    /// Tokens that have come of what was drafted for a verdict.
    fn tokens_for(&self, decision: &Decision) -> u32 {
        self.drafted(decision)
            .map_or(0, |(_, drafted)| drafted.tokens)
    }

    /// What has come of what was drafted for a verdict, if anything.
    fn drafted(&self, decision: &Decision) -> Option<(Cohort, Drafted)> {
        let request = self.requests.get(&decision.share.request)?;
        if decision.decided.ended.is_some() {
            return None;
        }
        let drafted = request.session.drafted(&Verified {
            tokens: &decision.emitted,
            accepted: decision.decided.accepted as u32,
            ..Verified::default()
        })?;
        Some((request.cohort(request.link?), drafted))
    }
}
