use std::{collections::BTreeSet, vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    Seed,
    noise::{Domain, Noise, philox},
};

/// Logits with the spread of a real model's: mostly low, a few high; `spread` scales them.
pub(super) fn row(vocab: u32, seed: u32, spread: f32) -> Vec<f32> {
    (0..vocab)
        .map(|v| {
            let u = philox([v, seed, 0, 0], [3, 1])[0] as f32 / u32::MAX as f32;
            spread * (-(1.0 - u + 1e-9).ln() - 1.0)
        })
        .collect()
}

pub(super) fn sampler(
    params: &SamplingParams,
    seed: u64,
    tokens: &[TokenId],
    prompt_len: usize,
) -> Sampler {
    Sampler::new(params.clone(), Seed(seed), tokens, prompt_len).unwrap()
}

pub(super) fn ids(tokens: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
    tokens.into_iter().map(TokenId).collect()
}

/// The tokens that are kept, by sorting everything.
pub(super) fn naive_support(logits: &[f32], params: &SamplingParams) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    let top = logits[order[0]];
    let scaled = |i: usize| {
        let logit = logits[i];
        if logit >= top {
            0.0
        } else {
            (logit - top) * (1.0 / params.temperature)
        }
    };
    if params.min_p > 0.0 {
        order.retain(|&i| scaled(i) >= libm::logf(params.min_p));
    }
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: f64 = order.iter().map(|&i| weight::weight(scaled(i))).sum();
        let mut sum = 0.0;
        let mut kept = 0;
        while kept == 0 || sum < f64::from(params.top_p) * total {
            sum += weight::weight(scaled(order[kept]));
            kept += 1;
        }
        order.truncate(kept);
    }
    order
}

/// The token with the largest noisy score, by evaluating all of the support.
fn naive_choice(logits: &[f32], params: &SamplingParams, noise: &Noise) -> TokenId {
    let mut best = (f64::NEG_INFINITY, 0);
    let mut support = naive_support(logits, params);
    support.sort_unstable();
    for i in support {
        let score = f64::from(logits[i]) * (1.0 / f64::from(params.temperature))
            + noise.gumbel(TokenId(i as u32));
        if score > best.0 {
            best = (score, i);
        }
    }
    TokenId(best.1 as u32)
}

pub(super) fn any_params() -> impl Strategy<Value = SamplingParams> {
    let top_p = prop_oneof![Just(1.0_f32), 0.01..1.0_f32, Just(0.999_99)];
    let min_p = prop_oneof![Just(0.0_f32), 0.0..1.0_f32, Just(1e-6)];
    let top_k = prop_oneof![Just(0_u32), 1..60_u32, 200..400_u32];
    (0.05..3.0_f32, top_k, top_p, min_p).prop_map(|(temperature, top_k, top_p, min_p)| {
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingParams::default()
        }
    })
}

/// Rows of awkward lengths, some with ties and infinities.
pub(super) fn any_row() -> impl Strategy<Value = Vec<f32>> {
    (1..700_u32, any::<u32>(), 0.0..8.0_f32, 0..4_u8).prop_map(|(vocab, seed, spread, kind)| {
        let mut logits = row(vocab, seed, spread);
        match kind {
            0 => logits
                .iter_mut()
                .for_each(|l| *l = (*l * 2.0).round() / 2.0),
            1 => logits
                .iter_mut()
                .step_by(3)
                .for_each(|l| *l = f32::NEG_INFINITY),
            2 => logits.iter_mut().for_each(|l| *l *= 1e4),
            _ => {}
        }
        logits[seed as usize % vocab as usize] = 1.0;
        logits
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn the_quick_choice_is_that_of_evaluating_every_token(
        params in any_params(), logits in any_row(), seed in any::<u64>(), position in 0..99_u32,
    ) {
        let tokens = ids(0..position);
        let noise = Noise::new(Seed(seed), Domain::Coupled, position);
        let chosen = sampler(&params, seed, &tokens, 3).choose(&logits, &mut Scratch::new());
        prop_assert_eq!(chosen, naive_choice(&logits, &params, &noise));
        let plain = SamplingParams { temperature: params.temperature, ..SamplingParams::default() };
        let chosen = sampler(&plain, seed, &tokens, 3).choose(&logits, &mut Scratch::new());
        prop_assert_eq!(chosen, naive_choice(&logits, &plain, &noise));
    }

    #[test]
    fn the_support_is_that_of_sorting_everything(params in any_params(), logits in any_row()) {
        let mut probabilities = Vec::new();
        sampler(&params, 1, &[], 0).distribution(&logits, &mut Scratch::new(), &mut probabilities);
        let naive: BTreeSet<usize> = naive_support(&logits, &params).into_iter().collect();
        for (i, &p) in probabilities.iter().enumerate() {
            // A kept token may be too unlikely for a number above 0, but not the other way round.
            prop_assert!(p == 0.0 || naive.contains(&i));
            let distance = (logits[i] - argmax::maximum(&logits)) / params.temperature;
            prop_assert!(p > 0.0 || !naive.contains(&i) || distance < -700.0);
        }
        prop_assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn any_logits_at_all_give_a_token(
        logits in prop::collection::vec(any::<f32>(), 0..200), params in any_params(),
    ) {
        let mut scratch = Scratch::new();
        let tokens = ids([1, 2, 3, u32::MAX]);
        let penalties = SamplingParams {
            repetition_penalty: 1.3,
            logit_bias: vec![(TokenId(9), -100.0), (TokenId(u32::MAX), 1.0)],
            ..params.clone()
        };
        for params in [params, penalties, SamplingParams { temperature: 0.0, ..Default::default() }] {
            let token = sampler(&params, 5, &tokens, 2).choose(&logits, &mut scratch);
            prop_assert!(token.index() < logits.len().max(1));
            logprobs(&logits, token, 5, &mut scratch);
            sampler(&params, 5, &tokens, 2).distribution(&logits, &mut scratch, &mut Vec::new());
        }
    }

    #[test]
    fn logprobs_are_those_of_the_softmax(logits in any_row(), pick in any::<u32>()) {
        let token = TokenId(pick % logits.len() as u32);
        let found = logprobs(&logits, token, 7, &mut Scratch::new());
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|&l| libm::exp(f64::from(l - top))).sum();
        let exact = |t: TokenId| f64::from(logits[t.index()] - top) - libm::log(total);
        let near = |a: f32, b: f64| (f64::from(a) - b).abs() < 2e-6 * (1.0 + b.abs()) || (a < -1e30 && b < -1e30);
        prop_assert!(near(found.logprob, exact(token)));
        let order = naive_support(&logits, &SamplingParams::default());
        let rank = order.iter().position(|&i| i == token.index()).unwrap();
        prop_assert_eq!(found.rank as usize, rank);
        prop_assert_eq!(found.top.len(), logits.len().min(7));
        for (&(token, logprob), &i) in found.top.iter().zip(&order) {
            prop_assert_eq!(token.index(), i);
            prop_assert!(near(logprob, exact(token)));
        }
    }

    #[test]
    fn a_history_popped_is_the_history_before_the_push(
        tokens in prop::collection::vec(0..20_u32, 0..30), window in prop::collection::vec(0..20_u32, 0..9),
    ) {
        let params = SamplingParams {
            repetition_penalty: 1.2, presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default()
        };
        let tokens = ids(tokens);
        let mut ahead = sampler(&params, 1, &tokens, tokens.len() / 2);
        for &token in &window {
            ahead.push(TokenId(token));
        }
        ahead.truncate(tokens.len());
        let logits = row(20, 8, 1.0);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        ahead.distribution(&logits, &mut Scratch::new(), &mut a);
        sampler(&params, 1, &tokens, tokens.len() / 2).distribution(&logits, &mut Scratch::new(), &mut b);
        prop_assert_eq!(a, b);
    }
}

#[test]
fn the_choice_over_a_whole_vocabulary_is_that_of_evaluating_every_token() {
    let mut scratch = Scratch::new();
    for seed in 0..60 {
        let logits = row(4096, seed, [0.0, 0.5, 1.0, 2.5][seed as usize % 4]);
        let top_p = if seed % 3 == 0 { 0.97 } else { 1.0 };
        let params = SamplingParams {
            top_p,
            ..SamplingParams::default()
        };
        let noise = Noise::new(Seed(u64::from(seed)), Domain::Coupled, 0);
        let chosen = sampler(&params, u64::from(seed), &[], 0).choose(&logits, &mut scratch);
        assert_eq!(chosen, naive_choice(&logits, &params, &noise));
    }
}

#[test]
fn choices_follow_the_distribution() {
    let params = SamplingParams {
        temperature: 0.8,
        top_k: 4,
        top_p: 0.9,
        ..Default::default()
    };
    let logits = [1.0, 2.0, 0.5, 1.5, -1.0, 1.9];
    let mut scratch = Scratch::new();
    let mut sampler = sampler(&params, 42, &[], 0);
    let mut expected = Vec::new();
    sampler.distribution(&logits, &mut scratch, &mut expected);
    assert_eq!(expected.iter().filter(|&&p| p > 0.0).count(), 4);
    let n = 200_000;
    let mut counts = [0; 6];
    for _ in 0..n {
        let token = sampler.choose(&logits, &mut scratch);
        counts[token.index()] += 1;
        sampler.push(token);
    }
    for (count, p) in counts.into_iter().zip(expected) {
        let deviation = (f64::from(count) / f64::from(n) - p).abs();
        assert!(deviation < 5.0 * libm::sqrt(p * (1.0 - p) / f64::from(n)) + 1e-12);
    }
}

#[test]
fn temperature_zero_takes_the_lowest_of_the_likeliest() {
    let params = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let mut logits = vec![0.0; 500];
    for i in [130, 131, 499] {
        logits[i] = 3.0;
    }
    let mut scratch = Scratch::new();
    assert_eq!(
        sampler(&params, 1, &[], 0).choose(&logits, &mut scratch),
        TokenId(130)
    );
    let mut p = Vec::new();
    sampler(&params, 1, &[], 0).distribution(&logits, &mut scratch, &mut p);
    assert!(p[130] >= 1.0 && p.iter().sum::<f64>() <= 1.0);
}

#[test]
fn penalties_tell_prompt_from_output() {
    let greedy = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let choose = |params: &SamplingParams, prompt: &[u32], output: &[u32], logits: &[f32]| {
        let tokens = ids(prompt.iter().chain(output).copied());
        sampler(params, 1, &tokens, prompt.len())
            .choose(logits, &mut Scratch::new())
            .0
    };
    let repetition = SamplingParams {
        repetition_penalty: 2.0,
        ..greedy.clone()
    };
    assert_eq!(choose(&repetition, &[0], &[], &[3.0, 2.0, -9.0]), 1);
    assert_eq!(choose(&repetition, &[], &[0], &[3.0, 2.0, -9.0]), 1);
    assert_eq!(choose(&repetition, &[0], &[], &[-1.0, -1.5, -9.0]), 1);
    let presence = SamplingParams {
        presence_penalty: 1.5,
        ..greedy.clone()
    };
    assert_eq!(choose(&presence, &[0, 0], &[], &[3.0, 2.0, 0.0]), 0);
    assert_eq!(choose(&presence, &[], &[0], &[3.0, 2.0, 0.0]), 1);
    assert_eq!(choose(&presence, &[], &[0, 0], &[3.0, 1.0, 0.0]), 0);
    let frequency = SamplingParams {
        frequency_penalty: 0.75,
        ..greedy
    };
    assert_eq!(choose(&frequency, &[0], &[0], &[3.0, 2.0, 0.0]), 0);
    assert_eq!(choose(&frequency, &[], &[0, 0], &[3.0, 2.0, 0.0]), 1);
}

#[test]
fn bias_and_bans_move_the_choice() {
    let greedy = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let logits = [5.0, 4.0, 3.0];
    let mut scratch = Scratch::new();
    let bias = vec![(TokenId(2), 2.5), (TokenId(77), 9.0)];
    let biased = SamplingParams {
        logit_bias: bias,
        ..greedy.clone()
    };
    assert_eq!(
        sampler(&biased, 1, &[], 0).choose(&logits, &mut scratch),
        TokenId(2)
    );
    let banned = SamplingParams {
        banned_until_min: vec![TokenId(0)],
        min_tokens: 2,
        ..greedy
    };
    let mut sampler = sampler(&banned, 1, &ids([0, 0, 0]), 3);
    for expected in [1, 1, 0, 0] {
        assert_eq!(sampler.choose(&logits, &mut scratch), TokenId(expected));
        sampler.push(TokenId(2));
    }
}

#[test]
fn every_parameter_out_of_range_is_named() {
    let d = SamplingParams::default;
    let wrong = [
        (
            "temperature",
            SamplingParams {
                temperature: -0.1,
                ..d()
            },
        ),
        (
            "temperature",
            SamplingParams {
                temperature: f32::NAN,
                ..d()
            },
        ),
        ("top_p", SamplingParams { top_p: 0.0, ..d() }),
        ("top_p", SamplingParams { top_p: 1.1, ..d() }),
        ("min_p", SamplingParams { min_p: -0.5, ..d() }),
        (
            "repetition_penalty",
            SamplingParams {
                repetition_penalty: 0.0,
                ..d()
            },
        ),
        (
            "presence_penalty",
            SamplingParams {
                presence_penalty: 2.5,
                ..d()
            },
        ),
        (
            "frequency_penalty",
            SamplingParams {
                frequency_penalty: f32::NAN,
                ..d()
            },
        ),
        (
            "logit_bias",
            SamplingParams {
                logit_bias: vec![(TokenId(1), 101.0)],
                ..d()
            },
        ),
    ];
    for (field, params) in wrong {
        assert_eq!(params.validate().unwrap_err().field, field);
    }
    let message = SamplingParams { top_p: 1.5, ..d() }.validate().unwrap_err();
    assert_eq!(
        std::format!("{message}"),
        "top_p is 1.5, but has to be above 0 and at most 1"
    );
    assert!(d().validate().is_ok());
}

#[test]
fn a_short_sequence_takes_little_memory_however_large_its_tokens() {
    let prompt = [TokenId(0), TokenId(151_935), TokenId(u32::MAX)];
    let mut history = History::new(&prompt, prompt.len(), true);
    history.push(TokenId(151_000));
    history.push(TokenId(151_000));
    let seen: Vec<_> = history
        .seen()
        .map(|seen| (seen.token.0, seen.in_prompt, seen.outputs))
        .collect();
    let expected = [(0, true, 0), (151_935, true, 0), (151_000, false, 2)];
    assert_eq!(seen, expected);
    assert!(history.tallies() <= 4096, "{} tallies", history.tallies());
}

#[test]
fn tokens_that_were_only_guessed_are_forgotten() {
    let mut history = History::new(&[TokenId(0), TokenId(1)], 2, true);
    history.push(TokenId(2));
    for guess in 0..1000 {
        // One that occurs already, one that does not, and the same again.
        for token in [TokenId(2), TokenId(guess), TokenId(guess)] {
            history.push(token);
        }
        history.truncate(3);
    }
    assert_eq!(history.listed(), 3);
    let seen: Vec<_> = history
        .seen()
        .map(|seen| (seen.token.0, seen.outputs))
        .collect();
    assert_eq!(seen, [(0, 0), (1, 0), (2, 1)]);
}
