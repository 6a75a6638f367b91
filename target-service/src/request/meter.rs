//! What is measured of a request's rounds, from verdict to verdict.

use std::time::{Duration, Instant};

use foretoken_protocol::{
    generate::{EndpointStats, RoundStats},
    link::WireSize,
};
use foretoken_speculation::{
    control::Limit,
    fallback::Fallback,
    message::{Account, ToDraft, ToTarget},
    policy::target::{Course, Effects, Sought, Source, TargetStats},
};

/// A round that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turnaround {
    /// What was sought for its window.
    pub(crate) sought: Sought,
    /// How long it took, from verdict to verdict.
    pub(crate) took: Duration,
    /// Bytes of the messages that were sent and received in it, but for those that open sessions; none
    /// if no endpoint had to do with it.
    pub(crate) bytes: Option<u32>,
}

/// The round under way.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Instant,
    sought: Sought,
}

/// Watches a request's rounds.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// When the window of the next round was asked for, and how many tokens.
    pub(crate) asked: Option<(Instant, u32)>,
    begun: Option<Begun>,
    /// Bytes of the round under way, and of all.
    bytes: u32,
    all_bytes: u64,
    /// Rounds so far.
    measured: RoundStats,
    /// What endpoints said of their work for it.
    endpoint: EndpointStats,
    /// How long verdicts waited for more of what was drafted for them.
    lingered: Duration,
    /// Hits among the outcomes drafted for, and the sum of their places from 1.
    placed: u32,
    places: u64,
    /// What bound the latest lookahead.
    limit: Option<Limit>,
    /// Counts that metrics know of.
    pub(crate) counted: TargetStats,
}

impl Meter {
    /// Takes in what follows from a verdict, the step of which took `verification`. Gives the round
    /// that ended with it, unless that is not known whole.
    pub(crate) fn verdict(
        &mut self,
        effects: &Effects,
        now: Instant,
        verification: Duration,
    ) -> Option<Turnaround> {
        let asked = effects.asked();
        self.asked = (asked > 0).then_some((now, asked));
        let sought = Sought::after(effects, self.begun.map(|begun| begun.sought));
        self.note_place(sought.source);
        self.weigh_sent(&effects.messages);
        let bytes = std::mem::take(&mut self.bytes);
        let begun = self.begun.replace(Begun { at: now, sought })?;
        let round = Turnaround {
            sought: begun.sought,
            took: now.saturating_duration_since(begun.at),
            bytes: (bytes > 0).then_some(bytes),
        };
        self.measure(&round, verification);
        Some(round)
    }

    /// Takes in that the window of the round under way had been drafted for, which only its endpoint
    /// knew, at that place.
    pub(crate) fn prepared(&mut self, place: Option<u32>) {
        let source = Source::Ahead { place };
        if let Some(begun) = &mut self.begun {
            begun.sought.source = source;
        }
        self.note_place(source);
    }

    /// Takes in what an endpoint did for a verdict.
    pub(crate) fn note_account(&mut self, account: &Account) {
        self.endpoint.add(account);
    }

    /// Notes how long a verdict waited for more of what was drafted for it.
    pub(crate) fn note_lingered(&mut self, lingered: Duration) {
        self.lingered += lingered;
    }

    /// What endpoints said of their work so far. They do not know what they did ahead of a verdict that
    /// then waited for it.
    pub(crate) fn endpoint(&self) -> EndpointStats {
        let waited = self.lingered.min(self.endpoint.ahead);
        EndpointStats {
            ahead: self.endpoint.ahead.saturating_sub(waited),
            awaited: self.endpoint.awaited + waited,
            ..self.endpoint
        }
    }

    /// Notes where among the outcomes drafted for a verdict was found.
    fn note_place(&mut self, source: Source) {
        if let Source::Ahead { place: Some(place) } = source {
            self.placed += 1;
            self.places += u64::from(place) + 1;
        }
    }

    fn measure(&mut self, round: &Turnaround, verification: Duration) {
        let measured = &mut self.measured;
        if let Some(bytes) = round.bytes {
            measured.bytes += u64::from(bytes);
            measured.weighed += 1;
        }
        if !round.sought.is_timed() {
            return;
        }
        match round.sought.source {
            Source::Ahead { .. } => {
                measured.hit += round.took;
                measured.hit_verification += verification.min(round.took);
            }
            Source::Fallback(Fallback::Remote) => {
                measured.awaited += round.took.saturating_sub(verification);
            }
            Source::Fallback(Fallback::Local | Fallback::Nothing) => {}
        }
    }

    /// Notes what bound the lookahead for the next window; none if nobody chose it.
    pub(crate) fn bound_by(&mut self, limit: Option<Limit>) {
        self.limit = limit;
        if let Some(limit) = limit {
            self.measured.limits.add(limit);
        }
    }

    /// What bound the latest lookahead, if it was chosen.
    pub(crate) fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// What was measured of all rounds.
    pub(crate) fn measured(&self) -> RoundStats {
        self.measured
    }

    /// How many verdicts were found among the outcomes drafted for, and the sum of their places there,
    /// from 1.
    pub(crate) fn places(&self) -> (u32, u64) {
        (self.placed, self.places)
    }

    /// Whether tokens were sought for the round under way and for the one before it.
    pub(crate) fn is_in_a_row(&self) -> bool {
        self.begun.is_some_and(|begun| begun.sought.is_in_a_row())
    }

    /// Counts the bytes of a message from the endpoint.
    pub(crate) fn weigh_received(&mut self, message: &ToTarget) {
        self.weigh(message.wire_size(), true);
    }

    /// Counts the bytes of messages to the endpoint. One that opens a session has all tokens so far and is
    /// of no round: where an endpoint is asked often, or is lost, what rounds take would be hidden by it.
    pub(crate) fn weigh_sent(&mut self, messages: &[ToDraft]) {
        for message in messages {
            let opens = matches!(message, ToDraft::Open(_));
            self.weigh(message.wire_size(), !opens);
        }
    }

    fn weigh(&mut self, bytes: usize, is_of_round: bool) {
        self.all_bytes += bytes as u64;
        if is_of_round {
            self.bytes = self.bytes.saturating_add(bytes as u32);
        }
    }

    /// Bytes of all messages so far.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.all_bytes
    }

    /// The request lost its pages: the time to its next verdict will say nothing about an endpoint,
    /// only about what its client waits.
    pub(crate) fn interrupt(&mut self) {
        if let Some(begun) = &mut self.begun {
            begun.sought.course = Course::Interrupted;
        }
    }

    /// Forgets the round under way: the time to its verdict will say nothing about an endpoint.
    pub(crate) fn forget_round(&mut self) {
        self.asked = None;
        self.begun = None;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::{
        Epoch, SessionId,
        message::{Open, Outcome},
        policy::target::Lookup,
    };

    use super::*;

    fn outcome(lookahead: u32) -> Effects {
        Effects {
            messages: vec![ToDraft::Outcome(Outcome {
                lookahead,
                ..Outcome::default()
            })],
            ..Effects::default()
        }
    }

    /// After a verdict that was drafted for.
    fn hit() -> Effects {
        Effects {
            lookup: Some(Lookup {
                source: Source::Ahead { place: Some(3) },
                tokens: 4,
                sought: 5,
                ended: false,
                expected: true,
                first: false,
            }),
            ..outcome(0)
        }
    }

    #[test]
    fn a_round_has_the_bytes_between_two_verdicts_and_the_later_of_them() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.verdict(&outcome(4), now, Duration::ZERO);
        let opened = ToTarget::Opened {
            session: foretoken_speculation::SessionId(1),
            epoch: foretoken_speculation::Epoch(1),
        };
        meter.weigh_received(&opened);
        meter.weigh_received(&opened);
        let later = now + Duration::from_millis(3);
        let effects = outcome(4);
        let round = meter
            .verdict(&effects, later, Duration::ZERO)
            .expect("it ended");
        let sizes = 2 * opened.wire_size() + effects.messages[0].wire_size();
        assert_eq!(round.bytes, Some(sizes as u32));
        assert_eq!(
            (round.sought.tokens, round.sought.ahead, round.took),
            (4, false, later - now)
        );
        let first = effects.messages[0].wire_size();
        assert_eq!(meter.all_bytes(), (sizes + first) as u64);
    }

    #[test]
    fn what_opens_a_session_is_of_no_round() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        let open = ToDraft::Open(Open::default());
        let mut bytes = Vec::new();
        // The prompt, then one that begins anew, then one after a refusal, which a verdict sends.
        meter.weigh_sent(std::slice::from_ref(&open));
        meter.verdict(&outcome(4), now, Duration::ZERO);
        meter.weigh_sent(std::slice::from_ref(&open));
        for messages in [outcome(4).messages, vec![open.clone()]] {
            let effects = Effects {
                messages,
                ..Effects::default()
            };
            let round = meter.verdict(&effects, now, Duration::ZERO);
            bytes.push(round.expect("it ended").bytes);
        }
        let told = outcome(4).messages[0].wire_size();
        assert_eq!(bytes, [Some(told as u32), None]);
        let all = 3 * open.wire_size() + 2 * told;
        assert_eq!(meter.all_bytes(), all as u64);
    }

    #[test]
    fn rounds_are_in_a_row_if_the_one_before_sought_something_too() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        let mut ended = Vec::new();
        for lookahead in [0, 4, 4, 0, 4] {
            let round = meter.verdict(&outcome(lookahead), now, Duration::ZERO);
            ended.extend(round.map(|Turnaround { sought, .. }| (sought.tokens, sought.course)));
            let row = ended.last().is_some_and(|&(sought, _)| sought > 0) && lookahead > 0;
            assert_eq!(meter.is_in_a_row(), row);
        }
        let (anew, in_a_row) = (Course::Anew, Course::InARow);
        assert_eq!(ended, [(0, anew), (4, anew), (4, in_a_row), (0, in_a_row)]);
        meter.forget_round();
        meter.verdict(&outcome(4), now, Duration::ZERO);
        assert!(!meter.is_in_a_row());
    }

    #[test]
    fn rounds_are_measured_by_where_their_windows_came_from() {
        let (mut meter, began) = (Meter::default(), Instant::now());
        let ms = Duration::from_millis;
        let alone = Effects::default();
        for (after, effects) in [
            (0, hit()),       // then a round of 10 ms that hits,
            (10, outcome(4)), // one of 30 ms that waits,
            (40, outcome(0)), // one of 20 ms without a window
            (60, alone),      // and one that goes on.
        ] {
            meter.verdict(&effects, began + ms(after), ms(8));
        }
        let measured = meter.measured();
        assert_eq!((measured.hit, measured.hit_verification), (ms(10), ms(8)));
        assert_eq!(measured.awaited, ms(30 - 8));
        // The round that ends with a verdict has the message about it; nothing was said of the last.
        assert_eq!(measured.weighed, 2);
        let before = hit().messages[0].wire_size() as u64;
        assert_eq!(measured.bytes, meter.all_bytes() - before);
        assert_eq!(meter.places(), (1, 4), "places are told from 1");
        let mut rest = hit();
        rest.lookup.as_mut().unwrap().source = Source::Ahead { place: None };
        meter.verdict(&rest, began + ms(70), ms(8));
        assert_eq!(meter.places(), (1, 4), "the rest of a window was no guess");
        for limit in [
            Some(Limit::Margin),
            None,
            Some(Limit::Margin),
            Some(Limit::Answer),
        ] {
            meter.bound_by(limit);
            assert_eq!(meter.limit(), limit);
        }
        meter.verdict(&outcome(4), began + ms(80), ms(8));
        meter.prepared(Some(0));
        meter.verdict(&outcome(0), began + ms(110), ms(8));
        assert_eq!(meter.places(), (2, 5));
        let pulled = meter.measured();
        assert_eq!(pulled.awaited, measured.awaited, "it was there already");
        assert_eq!(pulled.hit, measured.hit + ms(10 + 30));
        let times =
            [Limit::Margin, Limit::Answer, Limit::Step].map(|limit| pulled.limits.of(limit));
        assert_eq!(times, [2, 1, 0]);
    }

    #[test]
    fn nothing_is_ahead_of_a_verdict_that_waits_for_it() {
        let (mut meter, ms) = (Meter::default(), Duration::from_millis);
        meter.note_lingered(ms(3));
        assert_eq!(meter.endpoint(), EndpointStats::default());
        meter.note_account(&Account {
            session: SessionId(1),
            epoch: Epoch(1),
            ahead: ms(10),
            awaited: ms(2),
            ..Account::default()
        });
        let told = |meter: &Meter| (meter.endpoint().ahead, meter.endpoint().awaited);
        assert_eq!(told(&meter), (ms(7), ms(5)));
        meter.note_lingered(ms(20));
        assert_eq!(told(&meter), (ms(0), ms(12)));
    }

    #[test]
    fn a_round_that_was_forgotten_is_not_told() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.verdict(&outcome(4), now, Duration::ZERO);
        meter.forget_round();
        assert!(meter.verdict(&outcome(4), now, Duration::ZERO).is_none());
        assert_eq!(meter.measured(), RoundStats::default());
    }

    #[test]
    fn a_round_that_was_interrupted_is_told_as_such_and_not_timed() {
        let (mut meter, now) = (Meter::default(), Instant::now());
        meter.verdict(&hit(), now, Duration::ZERO);
        meter.interrupt();
        let later = now + Duration::from_secs(1);
        let round = meter.verdict(&hit(), later, Duration::ZERO);
        let round = round.expect("it ended");
        assert!(!round.sought.is_timed() && round.took == later - now);
        assert_eq!(meter.measured().hit, Duration::ZERO);
        let next = meter.verdict(&hit(), later, Duration::ZERO);
        assert!(next.is_some_and(|round| round.sought.is_timed()));
    }
}
