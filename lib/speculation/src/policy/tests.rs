//! Both sides in virtual time, over a link that drops, duplicates, reorders, delays and is cut.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::{
    Lookahead, Patience, Policy,
    draft::DraftSession,
    target::{Input, Next, TargetConfig, TargetSession, TargetStats, Verified},
};
use crate::{
    Epoch, Round, Seed, SessionId, TokenId,
    message::{Open, Outcome, Resync, ToDraft, ToTarget, Window},
    noise::philox,
    sampling::{Sampler, SamplingParams, Scratch},
    verify::coupled_chain,
};

const VOCAB: u32 = 12;
const US: Duration = Duration::from_micros(1);

/// A toy language: logits depend on the last two tokens. A draft sees them blurred.
fn logits(context: &[TokenId], blur: f32) -> Vec<f32> {
    let last = context.iter().rev().take(2).fold(7, |h, t| h * 31 + t.0);
    (0..VOCAB)
        .map(|v| {
            let unit = |salt| philox([v, last, salt, 0], [5, 9])[0] as f32 / u32::MAX as f32;
            4.0 * unit(1) + blur * unit(2)
        })
        .collect()
}

fn prompt() -> Vec<TokenId> {
    (0..9).map(|i| TokenId(i * 5 % VOCAB)).collect()
}

fn sampling(temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        frequency_penalty: 0.3,
        ..SamplingParams::default()
    }
}

fn plain(params: &SamplingParams, seed: Seed, max_len: usize) -> Vec<TokenId> {
    let mut tokens = prompt();
    let mut scratch = Scratch::new();
    let mut sampler = Sampler::new(params.clone(), seed, &tokens, tokens.len()).unwrap();
    while tokens.len() < max_len {
        let token = sampler.choose(&logits(&tokens, 0.0), &mut scratch);
        sampler.push(token);
        tokens.push(token);
    }
    tokens
}

/// What the link does to messages, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    drop: u32,
    duplicate: u32,
    delay: u32,
    cut: u32,
}

/// Things that happen, by time; ties in order of scheduling.
enum Event {
    ToDraft(ToDraft),
    ToTarget(ToTarget),
    DraftStep,
    TargetWakes,
    PassDone,
    LinkUp,
}

struct World {
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    count: u64,
    faults: Faults,
    dice: u32,
    seed: u64,
    target: TargetSession,
    sampler: Sampler,
    draft: Option<DraftSession>,
    draft_busy: bool,
    pass: bool,
    up: bool,
    blur: f32,
    scratch: Scratch,
}

impl World {
    fn new(
        policy: Policy,
        params: SamplingParams,
        seed: u64,
        faults: Faults,
        blur: f32,
        max_len: usize,
    ) -> Self {
        let tokens = prompt();
        let sampler = Sampler::new(params.clone(), Seed(seed), &tokens, tokens.len()).unwrap();
        let config = TargetConfig {
            session: SessionId(3),
            policy,
            sampling: params,
            seed: Seed(seed),
            prompt_len: tokens.len() as u32,
            max_len,
            vocab_size: VOCAB,
            patience: Patience::new(1.5, 500 * US, 20_000 * US, 5_000 * US),
            reopen_after: 10_000 * US,
        };
        Self {
            now: Duration::ZERO,
            events: BTreeMap::new(),
            count: 0,
            faults,
            dice: 0,
            seed,
            target: TargetSession::new(config, tokens),
            sampler,
            draft: None,
            draft_busy: false,
            pass: false,
            up: false,
            blur,
            scratch: Scratch::new(),
        }
    }

    fn roll(&mut self) -> u32 {
        self.dice += 1;
        philox([self.dice, 1, 2, 3], [self.seed as u32, 77])[0] % 1000
    }

    fn at(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    fn send(&mut self, event: impl Fn() -> Event) {
        if !self.up || self.roll() < self.faults.drop {
            return;
        }
        let copies = if self.roll() < self.faults.duplicate {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let slow = self.roll() < self.faults.delay;
            let delay = if slow { 50 * US * self.roll() } else { 40 * US };
            self.at(delay, event());
        }
    }

    fn input(&mut self, input: Input<'_>) {
        let effects = self.target.handle(self.now, input);
        for message in effects.messages {
            self.send(|| Event::ToDraft(message.clone()));
        }
        self.drive_target();
    }

    fn drive_target(&mut self) {
        if self.pass {
            return;
        }
        match self.target.next(self.now) {
            Next::Verify(_) => {
                self.pass = true;
                self.at(1000 * US, Event::PassDone);
            }
            Next::Wait { until } => {
                let delay = until.saturating_sub(self.now);
                self.at(delay, Event::TargetWakes);
            }
            Next::Finished => {}
        }
    }

    fn pass_done(&mut self) {
        self.pass = false;
        let base = self.target.tokens().to_vec();
        let Next::Verify(window) = self.target.next(self.now) else {
            return;
        };
        let window = window.to_vec();
        let rows: Vec<Vec<f32>> = (0..=window.len())
            .map(|i| logits(&[&base[..], &window[..i]].concat(), 0.0))
            .collect();
        let verdict = coupled_chain(&mut self.sampler, &mut self.scratch, &window, |i| &rows[i]);
        let mut tokens = window[..verdict.accepted].to_vec();
        tokens.push(verdict.decided);
        let accepted = verdict.accepted as u32;
        self.input(Input::Verified(Verified {
            tokens: &tokens,
            accepted,
            suggested: 4,
            last: false,
        }));
        if self.up && self.roll() < self.faults.cut {
            self.up = false;
            self.draft = None;
            self.events
                .retain(|_, e| !matches!(e, Event::ToDraft(_) | Event::ToTarget(_)));
            self.input(Input::LinkDown);
            let outage = 10 * US * self.roll();
            self.at(outage, Event::LinkUp);
        }
    }

    fn draft_receives(&mut self, message: &ToDraft) {
        let answer = match (&mut self.draft, message) {
            (Some(draft), _) => draft.handle(message),
            (None, ToDraft::Open(_)) => {
                let mut draft = DraftSession::new(SessionId(3), VOCAB, 4096);
                let answer = draft.handle(message);
                self.draft = Some(draft);
                answer
            }
            (None, _) => DraftSession::answer_unknown(message),
        };
        self.answer(answer);
        self.drive_draft();
    }

    fn answer(&mut self, answer: Option<ToTarget>) {
        if let Some(answer) = answer {
            self.send(|| Event::ToTarget(answer.clone()));
        }
    }

    fn drive_draft(&mut self) {
        if !self.draft_busy {
            self.draft_busy = true;
            self.at(80 * US, Event::DraftStep);
        }
    }

    /// A step of the draft: planned now, its end comes with messages in between.
    fn draft_step(&mut self) {
        self.draft_busy = false;
        let Some(draft) = &mut self.draft else { return };
        let Some(work) = draft.work() else { return };
        let ticket = work.ticket;
        let (keep, offered) = (work.keep, work.tokens.len());
        // Prompts go in by chunks.
        let fed = offered.min(5);
        let context = draft.tokens()[..keep + fed].to_vec();
        // Whatever is in the inbox now arrives during the step.
        let waiting: Vec<_> = self
            .events
            .iter()
            .filter(|((time, _), e)| *time <= self.now + 40 * US && matches!(e, Event::ToDraft(_)))
            .map(|(key, _)| *key)
            .collect();
        for key in waiting {
            if let Some(Event::ToDraft(message)) = self.events.remove(&key) {
                self.draft_busy = true;
                self.draft_receives(&message);
            }
        }
        self.draft_busy = false;
        let row = logits(&context, self.blur);
        if let Some(draft) = &mut self.draft {
            let answer = draft.stepped(ticket, fed, Some(&row), &mut self.scratch);
            self.answer(answer);
            self.drive_draft();
        }
    }

    /// Runs to the end; the tokens, and how long it took.
    fn run(&mut self) -> (Vec<TokenId>, Duration) {
        self.up = true;
        self.input(Input::LinkUp);
        let mut steps = 0;
        while self.target.next(self.now) != Next::Finished {
            let ((time, _), event) = self
                .events
                .pop_first()
                .expect("the target waits for nothing");
            self.now = time;
            steps += 1;
            assert!(steps < 200_000, "no progress");
            match event {
                Event::ToDraft(message) => self.draft_receives(&message),
                Event::ToTarget(message) => self.input(Input::Received(&message)),
                Event::DraftStep => self.draft_step(),
                Event::TargetWakes => self.drive_target(),
                Event::PassDone => self.pass_done(),
                Event::LinkUp => {
                    self.up = true;
                    self.input(Input::LinkUp);
                }
            }
        }
        (self.target.tokens().to_vec(), self.now)
    }
}

fn fixed(k: u32) -> Policy {
    Policy::Speculative(Lookahead::Fixed(k))
}

fn run(policy: Policy, seed: u64, faults: Faults, blur: f32) -> (TargetStats, Duration) {
    let params = sampling(if seed.is_multiple_of(2) { 0.0 } else { 1.0 });
    let expected = plain(&params, Seed(seed), 200);
    let mut world = World::new(policy, params, seed, faults, blur, 200);
    let (tokens, took) = world.run();
    assert_eq!(tokens, expected);
    let stats = world.target.stats();
    assert_eq!(stats.emitted as usize, 200 - prompt().len());
    (stats, took)
}

#[test]
fn a_perfect_draft_on_a_good_link_is_accepted_always_and_saves_time() {
    for seed in [0, 1] {
        let (stats, took) = run(fixed(4), seed, Faults::default(), 0.0);
        assert_eq!(stats.accepted, stats.drafted);
        assert!(stats.rounds <= 41, "{stats:?}");
        assert_eq!((stats.missed, stats.reopened), (0, 0));
        let (plain, alone) = run(Policy::Autoregressive, seed, Faults::default(), 0.0);
        assert_eq!((plain.rounds, plain.drafted), (191, 0));
        assert!(took * 2 < alone);
    }
}

#[test]
fn a_poor_draft_changes_no_token() {
    for seed in 0..20 {
        let (stats, _) = run(fixed(4), seed, Faults::default(), 3.0);
        assert!(
            stats.accepted < stats.drafted && stats.accepted > 0,
            "{stats:?}"
        );
    }
}

#[test]
fn whatever_the_link_does_the_output_is_that_of_plain_decoding() {
    for seed in 0..150 {
        let level = (seed % 5) as u32;
        let faults = Faults {
            drop: 40 * level,
            duplicate: 60 * level,
            delay: 80 * level,
            cut: if seed % 3 == 0 { 30 } else { 0 },
        };
        run(
            fixed(1 + (seed % 7) as u32),
            seed,
            faults,
            (seed % 4) as f32,
        );
    }
}

#[test]
fn an_adaptive_lookahead_follows_the_suggestion_up_to_its_maximum() {
    let adaptive = |max| Policy::Speculative(Lookahead::Adaptive { max });
    let (two, _) = run(adaptive(2), 1, Faults::default(), 0.0);
    let (four, _) = run(adaptive(8), 1, Faults::default(), 0.0);
    assert!(two.rounds > 60 && four.rounds <= 41, "{two:?} {four:?}");
}

#[test]
fn speculation_recovers_after_losses() {
    let faults = Faults {
        drop: 100,
        ..Faults::default()
    };
    let (stats, took) = run(fixed(4), 11, faults, 0.0);
    assert!(stats.reopened > 0, "{stats:?}");
    assert!(stats.accepted > 80, "{stats:?}");
    let (_, alone) = run(Policy::Autoregressive, 11, Faults::default(), 0.0);
    assert!(took < alone);
}

#[test]
fn a_dead_endpoint_costs_little() {
    let faults = Faults {
        drop: 1000,
        ..Faults::default()
    };
    let (stats, took) = run(fixed(4), 2, faults, 0.0);
    let (_, alone) = run(Policy::Autoregressive, 2, Faults::default(), 0.0);
    assert!(stats.missed <= 8, "{stats:?}");
    assert!(took < alone + 9 * 5_000 * US);
}

#[test]
fn windows_shrink_before_the_maximum_length() {
    let params = sampling(0.0);
    for max_len in 10..24 {
        let expected = plain(&params, Seed(4), max_len);
        let mut world = World::new(fixed(8), params.clone(), 4, Faults::default(), 0.0, max_len);
        let (tokens, _) = world.run();
        assert_eq!(tokens, expected);
        assert_eq!(world.target.stats().accepted, world.target.stats().drafted);
    }
}

fn open_target() -> (TargetSession, Vec<ToDraft>) {
    let mut world = World::new(fixed(3), sampling(0.0), 1, Faults::default(), 0.0, 64);
    let effects = world.target.handle(Duration::ZERO, Input::LinkUp);
    (world.target, effects.messages)
}

fn verified(tokens: &[TokenId], accepted: u32) -> Input<'_> {
    Input::Verified(Verified {
        tokens,
        accepted,
        suggested: 3,
        last: false,
    })
}

fn window(epoch: u32, round: u32, base_len: u32, tokens: &[u32]) -> ToTarget {
    ToTarget::Window(Window {
        session: SessionId(3),
        epoch: Epoch(epoch),
        round: Round(round),
        base_len,
        tokens: tokens.iter().map(|&t| TokenId(t)).collect(),
        q: Vec::new(),
    })
}

#[test]
fn only_the_window_of_this_epoch_round_and_length_is_verified() {
    let (mut target, _) = open_target();
    assert_eq!(target.next(US), Next::Verify(&[]));
    target.handle(US, verified(&[TokenId(1)], 0));
    for stale in [
        window(0, 1, 10, &[1]),
        window(1, 0, 9, &[1]),
        window(1, 2, 10, &[1]),
    ] {
        target.handle(2 * US, Input::Received(&stale));
        assert!(matches!(target.next(2 * US), Next::Wait { .. }));
    }
    target.handle(3 * US, Input::Received(&window(1, 1, 10, &[4, 5, 6, 7])));
    let expected = [TokenId(4), TokenId(5), TokenId(6)];
    assert_eq!(target.next(3 * US), Next::Verify(&expected));
    target.handle(3 * US, Input::Received(&window(1, 1, 10, &[8])));
    assert_eq!(target.next(3 * US), Next::Verify(&expected));
}

#[test]
fn a_window_of_another_length_does_not_count() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    target.handle(US, Input::Received(&window(1, 1, 11, &[4])));
    assert!(matches!(target.next(US), Next::Wait { .. }));
}

#[test]
fn a_late_window_is_dropped_but_teaches_patience() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    let late = 6_000 * US;
    assert_eq!(target.next(late), Next::Verify(&[]));
    let before = target.patience().limit();
    let effects = target.handle(late, Input::Received(&window(1, 1, 10, &[4])));
    assert!(
        effects
            .answer
            .is_some_and(|answer| answer.late && answer.tokens == 1)
    );
    assert_eq!(target.next(late), Next::Verify(&[]));
    assert!(target.patience().limit() > before);
}

#[test]
fn a_token_outside_the_vocabulary_ends_the_speculation_of_the_session() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    let effects = target.handle(US, Input::Received(&window(1, 1, 10, &[VOCAB])));
    assert!(matches!(effects.messages[..], [ToDraft::Close { .. }]));
    assert_eq!(target.next(US), Next::Verify(&[]));
    assert!(!target.is_bound());
}

#[test]
fn a_refusal_ends_the_wait_and_a_temporary_one_is_asked_again() {
    for retry in [true, false] {
        let (mut target, _) = open_target();
        target.next(US);
        target.handle(US, verified(&[TokenId(1)], 0));
        let (session, epoch) = (SessionId(3), Epoch(1));
        let refused = ToTarget::Refused {
            session,
            epoch,
            reason: "full".into(),
            retry,
        };
        target.handle(US, Input::Received(&refused));
        assert_eq!(target.next(US), Next::Verify(&[]));
        assert!(
            target
                .handle(US, verified(&[TokenId(2)], 0))
                .messages
                .is_empty()
        );
        target.next(US);
        let later = target
            .handle(20_000 * US, verified(&[TokenId(2)], 0))
            .messages;
        assert_eq!(later.len(), usize::from(retry));
        assert!(
            later
                .iter()
                .all(|m| matches!(m, ToDraft::Open(o) if o.epoch == Epoch(2)))
        );
    }
}

fn open(epoch: u32, tokens: &[u32]) -> ToDraft {
    ToDraft::Open(Open {
        session: SessionId(3),
        epoch: Epoch(epoch),
        sampling: SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
        seed: Seed(1),
        prompt_len: 1,
        tokens: tokens.iter().map(|&t| TokenId(t)).collect(),
    })
}

fn outcome(epoch: u32, round: u32, base_len: u32, tokens: &[u32], lookahead: u32) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(3),
        epoch: Epoch(epoch),
        round: Round(round),
        base_len,
        tokens: tokens.iter().map(|&t| TokenId(t)).collect(),
        lookahead,
    })
}

/// Runs the draft until it has nothing to do; its greedy continuation is always the last token
/// plus one. Returns what it sends.
fn settle(draft: &mut DraftSession, scratch: &mut Scratch) -> Vec<ToTarget> {
    let mut sent = vec![];
    while let Some(work) = draft.work() {
        let (ticket, fed) = (work.ticket, work.tokens.len());
        let next = (work.tokens[fed - 1].0 + 1) % VOCAB;
        let row: Vec<f32> = (0..VOCAB)
            .map(|v| if v == next { 1.0 } else { 0.0 })
            .collect();
        sent.extend(draft.stepped(ticket, fed, Some(&row), scratch));
    }
    sent
}

#[test]
fn a_draft_proposes_after_each_outcome_and_keeps_what_was_accepted() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    assert_eq!(settle(&mut draft, &mut scratch), []);
    assert_eq!(draft.handle(&outcome(1, 0, 2, &[3], 3)), None);
    assert_eq!(
        settle(&mut draft, &mut scratch),
        [window(1, 1, 3, &[4, 5, 6])]
    );
    // 4 and 5 were accepted, 9 is the correction: only 9 has to be fed.
    draft.handle(&outcome(1, 1, 3, &[4, 5, 9], 2));
    let work = draft.work().unwrap();
    assert_eq!((work.keep, work.tokens), (5, &[TokenId(9)][..]));
    assert_eq!(
        settle(&mut draft, &mut scratch),
        [window(1, 2, 6, &[10, 11])]
    );
}

#[test]
fn proposals_beyond_the_emitted_tokens_are_proposed_again_without_drafting() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    draft.handle(&outcome(1, 0, 2, &[3], 4));
    settle(&mut draft, &mut scratch);
    let answer = draft.handle(&outcome(1, 1, 3, &[4], 2));
    assert_eq!(answer, Some(window(1, 2, 4, &[5, 6])));
}

#[test]
fn after_a_correction_a_draft_proposes_what_a_fresh_one_does() {
    let warm = |tokens: &[u32]| match open(1, tokens) {
        ToDraft::Open(mut open) => {
            open.sampling.temperature = 4.0;
            ToDraft::Open(open)
        }
        other => other,
    };
    let mut scratch = Scratch::new();
    let mut old = DraftSession::new(SessionId(3), VOCAB, 64);
    old.handle(&warm(&[1, 2]));
    old.handle(&outcome(1, 0, 2, &[3], 6));
    settle(&mut old, &mut scratch);
    let correction = (old.tokens()[3].0 + 1) % VOCAB;
    old.handle(&outcome(1, 1, 3, &[correction], 6));
    settle(&mut old, &mut scratch);
    let mut fresh = DraftSession::new(SessionId(3), VOCAB, 64);
    fresh.handle(&warm(&[1, 2, 3]));
    fresh.handle(&outcome(1, 0, 3, &[correction], 6));
    settle(&mut fresh, &mut scratch);
    assert_eq!(old.tokens(), fresh.tokens());
}

#[test]
fn a_gap_asks_for_a_resync_and_a_new_epoch_heals_it() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    let resync = |epoch, have_len| {
        let (session, epoch) = (SessionId(3), Epoch(epoch));
        Some(ToTarget::Resync(Resync {
            session,
            epoch,
            have_len,
        }))
    };
    assert_eq!(draft.handle(&outcome(1, 0, 2, &[3], 2)), resync(1, 0));
    draft.handle(&open(2, &[1, 2]));
    assert_eq!(draft.handle(&outcome(2, 1, 3, &[4], 2)), resync(2, 2));
    assert_eq!(draft.handle(&outcome(2, 0, 2, &[3], 2)), resync(2, 2));
    settle(&mut draft, &mut scratch);
    draft.handle(&open(3, &[1, 2, 3]));
    assert_eq!(draft.work().map(|work| work.keep), Some(2));
    assert_eq!(draft.handle(&outcome(3, 0, 3, &[4], 1)), None);
    assert_eq!(settle(&mut draft, &mut scratch), [window(3, 1, 4, &[5])]);
    assert_eq!(draft.handle(&outcome(3, 0, 3, &[4], 1)), None);
    assert_eq!(draft.handle(&outcome(2, 9, 3, &[4], 1)), None);
}

#[test]
fn a_closed_session_stays_closed() {
    let mut draft = DraftSession::new(SessionId(3), VOCAB, 64);
    draft.handle(&open(2, &[1, 2]));
    draft.handle(&ToDraft::Close {
        session: SessionId(3),
        epoch: Epoch(1),
    });
    assert!(draft.is_bound());
    draft.handle(&ToDraft::Close {
        session: SessionId(3),
        epoch: Epoch(2),
    });
    assert!(!draft.is_bound() && draft.work().is_none());
    assert_eq!(draft.handle(&open(2, &[1, 2])), None);
    assert!(!draft.is_bound());
}

#[test]
fn a_draft_model_that_is_too_short_never_feeds_past_its_end() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 5), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    draft.handle(&outcome(1, 0, 2, &[3], 9));
    assert_eq!(settle(&mut draft, &mut scratch), [window(1, 1, 3, &[4, 5])]);
    let answer = draft.handle(&outcome(1, 1, 3, &[4, 5, 6], 9));
    assert_eq!(answer, Some(window(1, 2, 6, &[])));
    assert_eq!(settle(&mut draft, &mut scratch), []);
    assert!(
        draft
            .handle(&open(2, &[1, 2, 3, 4, 5]))
            .is_some_and(|m| matches!(m, ToTarget::Refused { retry: false, .. }))
    );
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..VOCAB + 1, 0..6)
}

fn any_to_draft() -> impl Strategy<Value = ToDraft> {
    prop_oneof![
        (0..5_u32, tokens()).prop_map(|(epoch, tokens)| open(epoch, &tokens)),
        (0..5_u32, 0..4_u32, 0..12_u32, tokens(), 0..5_u32)
            .prop_map(|(epoch, round, base, tokens, k)| outcome(epoch, round, base, &tokens, k)),
        (0..5_u32).prop_map(|e| ToDraft::Close {
            session: SessionId(3),
            epoch: Epoch(e)
        }),
    ]
}

fn any_to_target() -> impl Strategy<Value = ToTarget> {
    let session = SessionId(3);
    prop_oneof![
        (0..4_u32).prop_map(move |e| ToTarget::Opened {
            session,
            epoch: Epoch(e)
        }),
        (0..4_u32, any::<bool>()).prop_map(move |(e, retry)| {
            let reason = std::string::String::new();
            ToTarget::Refused {
                session,
                epoch: Epoch(e),
                reason,
                retry,
            }
        }),
        (0..4_u32, 0..6_u32, 9..20_u32, tokens())
            .prop_map(|(epoch, round, base, tokens)| window(epoch, round, base, &tokens)),
        (0..4_u32).prop_map(move |e| ToTarget::Resync(Resync {
            session,
            epoch: Epoch(e),
            have_len: 0
        })),
    ]
}

#[derive(Clone, Debug)]
enum Poke {
    LinkUp,
    LinkDown,
    Received(ToTarget),
    Verified(Vec<u32>, u32, u32, bool),
    Next,
}

fn any_poke() -> impl Strategy<Value = Poke> {
    prop_oneof![
        Just(Poke::LinkUp),
        Just(Poke::LinkDown),
        any_to_target().prop_map(Poke::Received),
        any_to_target().prop_map(Poke::Received),
        (
            tokens(),
            any::<u32>(),
            any::<u32>(),
            prop::bool::weighted(0.02)
        )
            .prop_map(|(t, a, k, last)| Poke::Verified(t, a % 8, k, last)),
        Just(Poke::Next),
        Just(Poke::Next),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_draft_session_takes_any_messages_in_any_order(
        messages in prop::collection::vec((any_to_draft(), 0..3_u8), 0..40),
    ) {
        let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 10), Scratch::new());
        let row = [0.0; VOCAB as usize];
        let mut held = 0;
        for (message, steps) in &messages {
            let mut pending = None;
            for _ in 0..*steps {
                let work = draft.work();
                let Some(work) = work else { break };
                prop_assert!(work.keep <= held, "keeps KV that was never written");
                prop_assert!(!work.tokens.is_empty() && work.keep + work.tokens.len() <= 10);
                let fed = 1 + usize::from(*steps) % work.tokens.len();
                held = work.keep + fed;
                pending = Some((work.ticket, fed));
            }
            draft.handle(message);
            if let Some((ticket, fed)) = pending {
                draft.stepped(ticket, fed, Some(&row), &mut scratch);
            }
            prop_assert!(draft.tokens().iter().all(|token| token.0 < VOCAB));
        }
    }

    #[test]
    fn a_target_session_takes_any_inputs_in_any_order(
        pokes in prop::collection::vec((any_poke(), 0..4000_u32), 0..60),
    ) {
        let (mut target, _) = open_target();
        let mut now = Duration::ZERO;
        let mut emitted = 0;
        for (poke, later) in &pokes {
            now += US * *later;
            let before = target.tokens().len();
            match poke {
                Poke::LinkUp => { target.handle(now, Input::LinkUp); }
                Poke::LinkDown => { target.handle(now, Input::LinkDown); }
                Poke::Received(message) => { target.handle(now, Input::Received(message)); }
                Poke::Verified(tokens, accepted, suggested, last) => {
                    let tokens: Vec<_> = tokens.iter().map(|&t| TokenId(t)).collect();
                    let (accepted, suggested, last) = (*accepted, *suggested, *last);
                    let result = Verified { tokens: &tokens, accepted, suggested, last };
                    target.handle(now, Input::Verified(result));
                }
                Poke::Next => {
                    if let Next::Verify(window) = target.next(now) {
                        prop_assert!(window.iter().all(|token| token.0 < VOCAB));
                        prop_assert!(window.len() <= 3 && before + window.len() < 64);
                    }
                }
            }
            // Only a verdict changes the sequence.
            emitted += target.tokens().len() - before;
            prop_assert!(emitted == target.stats().emitted as usize);
        }
    }
}
