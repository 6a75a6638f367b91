//! What the tests of both sides share: a toy language, and both sides in virtual time over a link
//! that drops, duplicates, reorders, delays and is cut.

mod draft;
mod junk;
mod pair;
mod target;

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::{vec, vec::Vec};

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
            ..Verified::default()
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
            let answer = draft.stepped(ticket, fed, &[&row], &mut self.scratch);
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
        ..Verified::default()
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
        branching: None,
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
        ..Outcome::default()
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
        sent.extend(draft.stepped(ticket, fed, &[&row], scratch));
    }
    sent
}
