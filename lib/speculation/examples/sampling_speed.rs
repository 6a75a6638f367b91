//! How long choosing a token takes, by vocabulary and parameters.
//!
//! `cargo run --release -p foretoken-speculation --example sampling_speed`

use std::{hint::black_box, time::Instant};

use foretoken_speculation::{
    Seed, TokenId,
    noise::{Domain, philox},
    proposal::{Place, Proposer},
    saguaro::Saguaro,
    sampling::{RankBy, Ranking, Sampler, SamplingParams, Scratch, logprobs},
    verify::{Drawn, drawn_chain},
};

/// Rows like a model's: many unlikely tokens, a few likely ones.
fn row(vocab: u32, seed: u32) -> Vec<f32> {
    let unit = |v, salt| (f64::from(philox([v, seed, salt, 0], [3, 1])[0]) + 0.5) / 2_f64.powi(32);
    (0..vocab)
        .map(|v| {
            let normal =
                (-2.0 * unit(v, 0).ln()).sqrt() * (std::f64::consts::TAU * unit(v, 1)).cos();
            (2.5 * normal + if v % 997 == 3 { 8.0 } else { 0.0 }) as f32
        })
        .collect()
}

/// Least over repetitions of the mean time per call, in microseconds: what is not the machine's
/// other work.
fn measure(mut call: impl FnMut(usize)) -> f64 {
    (0..61)
        .map(|_| {
            let start = Instant::now();
            (0..32).for_each(&mut call);
            start.elapsed().as_secs_f64() / 32.0 * 1e6
        })
        .fold(f64::INFINITY, f64::min)
}

/// The same for all probabilities of a row.
fn measure_law(sampler: &Sampler, rows: &[Vec<f32>], scratch: &mut Scratch) -> f64 {
    let mut law = Vec::new();
    measure(|i| {
        sampler.distribution(&rows[i % rows.len()], scratch, &mut law);
        black_box(&law);
    })
}

/// The same for a window of five tokens, drawn among 16 each from rows that are nearly the target's,
/// and verified by rejection.
fn measure_window(sampler: &mut Sampler, rows: &[Vec<f32>], scratch: &mut Scratch) -> f64 {
    let mut proposer = Proposer::default();
    let (mut window, mut q) = (Vec::new(), Vec::new());
    for index in 0..5 {
        let place = Place { start: 3, index };
        let near: Vec<f32> = rows[index as usize].iter().map(|x| 0.9 * x).collect();
        let among = (16, Saguaro::default());
        let (token, law) = proposer.draw(sampler, scratch, &near, place, among);
        window.push(token);
        q.push(law);
    }
    let drawn = Drawn {
        window: &window,
        q: &q,
    };
    let len = sampler.history().len();
    measure(|i| {
        let row = |i: usize| &rows[i][..];
        black_box(drawn_chain(
            sampler,
            scratch,
            drawn,
            i as u32,
            row,
            |_, _| {},
        ));
        sampler.truncate(len);
    })
}

/// The same for the best 32 tokens.
fn measure_best(sampler: &Sampler, rows: &[Vec<f32>], scratch: &mut Scratch) -> f64 {
    let mut best = Vec::new();
    let ranking = Ranking {
        by: RankBy::Noise(Domain::Coupled),
        n: 32,
        without: Some(TokenId(3)),
    };
    measure(|i| {
        sampler.rank(ranking, &rows[i % rows.len()], scratch, &mut best);
        black_box(&best);
    })
}

fn main() {
    let base = SamplingParams::default();
    let cases = [
        (
            "temperature 0",
            SamplingParams {
                temperature: 0.0,
                ..base.clone()
            },
        ),
        ("temperature 1", base.clone()),
        (
            "top_p 0.95",
            SamplingParams {
                temperature: 0.7,
                top_p: 0.95,
                ..base.clone()
            },
        ),
        (
            "top_k 50",
            SamplingParams {
                top_k: 50,
                ..base.clone()
            },
        ),
        (
            "min_p 0.05",
            SamplingParams {
                min_p: 0.05,
                ..base.clone()
            },
        ),
        (
            "top_p 0.95, hot",
            SamplingParams {
                temperature: 2.0,
                top_p: 0.95,
                ..base.clone()
            },
        ),
        (
            "penalties",
            SamplingParams {
                frequency_penalty: 0.5,
                ..base
            },
        ),
    ];
    let tokens: Vec<TokenId> = (0..500).map(|i| TokenId(i * 7 % 4096)).collect();
    let mut scratch = Scratch::new();
    for vocab in [4096, 8192, 32_000, 152_064] {
        let rows: Vec<_> = (0..16).map(|seed| row(vocab, seed)).collect();
        for (name, params) in &cases {
            let Ok(mut sampler) = Sampler::new(params.clone(), Seed(7), &tokens, 100) else {
                continue;
            };
            let micros = measure(|i| {
                let token = sampler.choose(&rows[i % rows.len()], &mut scratch);
                sampler.push(black_box(token));
            });
            println!("vocabulary {vocab:6}  {name:16} {micros:8.2} us");
            let micros = measure_best(&sampler, &rows, &mut scratch);
            println!("vocabulary {vocab:6}  {name:16} {micros:8.2} us for the best 32");
            let micros = measure_law(&sampler, &rows, &mut scratch);
            println!("vocabulary {vocab:6}  {name:16} {micros:8.2} us for all probabilities");
            if !params.is_greedy() {
                let micros = measure_window(&mut sampler, &rows, &mut scratch);
                println!("vocabulary {vocab:6}  {name:16} {micros:8.2} us for a drawn window of 5");
            }
        }
        let micros = measure(|i| {
            black_box(logprobs(&rows[i % rows.len()], TokenId(5), 5, &mut scratch));
        });
        println!(
            "vocabulary {vocab:6}  {:16} {micros:8.2} us",
            "logprobs, top 5"
        );
    }
}
