//! What the tests of both sides share: a toy language, and both sides in virtual time over a link
//! that drops, duplicates, reorders, delays and is cut.

mod ahead;
mod branches;
mod cutoffs;
mod draft;
mod engine;
mod entries;
mod junk;
mod outlook;
mod pair;
mod recalled;
mod rejection;
mod target;
mod trees;
mod world;

use core::time::Duration;
use std::{vec, vec::Vec};

use self::world::{Faults, World};

use super::{
    Lookahead, Patience, Policy, SsdOptions,
    draft::{DraftSession, Planners},
    target::{Input, Next, TargetConfig, TargetSession, TargetStats, Verified},
};
use crate::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    fallback::{Fallback, OnMiss},
    fanout::FanOut,
    guess::OutcomeKey,
    message::{
        Account, Branching, Delivery, Entries, Open, Outcome, Resync, ToDraft, ToTarget, Window,
    },
    noise::philox,
    sampling::{Sampler, SamplingParams, Scratch},
};

const VOCAB: u32 = 12;
const US: Duration = Duration::from_micros(1);

/// A toy language: logits depend on every token before. A draft sees them blurred.
fn logits(context: &[TokenId], blur: f32) -> Vec<f32> {
    let last = context
        .iter()
        .fold(7_u32, |h, t| h.wrapping_mul(0x9e37_79b1).wrapping_add(t.0));
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

/// Everything at once that a request can ask of its samples.
fn demanding(temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_k: 9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        logit_bias: vec![(TokenId(4), -0.5), (TokenId(7), 0.8)],
        banned_until_min: vec![TokenId(2)],
        min_tokens: 30,
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

fn fixed(k: u32) -> Policy {
    Policy::Speculative(Lookahead::Fixed(k))
}

/// A world that was played to 200 tokens, which have to be those of plain decoding; and how long it
/// took.
fn played(
    policy: Policy,
    params: SamplingParams,
    seed: u64,
    faults: Faults,
    blur: f32,
    prepare: impl FnOnce(&mut World),
) -> (World, Duration) {
    let expected = plain(&params, Seed(seed), 200);
    let mut world = World::new(policy, params, seed, faults, blur, 200);
    prepare(&mut world);
    let (tokens, took) = world.run();
    assert_eq!(tokens, expected, "seed {seed}, {policy:?}, {faults:?}");
    let emitted = world.target.stats().emitted as usize;
    assert_eq!(emitted, 200 - prompt().len());
    (world, took)
}

fn run(policy: Policy, seed: u64, faults: Faults, blur: f32) -> (TargetStats, Duration) {
    let params = sampling(if seed.is_multiple_of(2) { 0.0 } else { 1.0 });
    let (world, took) = played(policy, params, seed, faults, blur, |_| ());
    (world.target.stats(), took)
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

fn chain(tokens: &[u32]) -> Proposals {
    let tokens: Vec<_> = tokens.iter().map(|&token| TokenId(token)).collect();
    tokens.into()
}

fn window(epoch: u32, round: u32, base_len: u32, tokens: &[u32]) -> ToTarget {
    ToTarget::Window(Window {
        session: SessionId(3),
        epoch: Epoch(epoch),
        round: Round(round),
        base_len,
        proposals: chain(tokens),
        ..Window::default()
    })
}

/// A window that had been drafted for the verdict before it, as the outcome in that place.
fn prepared(place: u32, window: ToTarget) -> ToTarget {
    let ToTarget::Window(window) = window else {
        unreachable!("it is a window");
    };
    ToTarget::Window(Window {
        place: Some(place),
        ..window
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
        ..Open::default()
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
