use foretoken_engine::sim::{End, Role, SimOptions, SimRunner};
use foretoken_speculation::{
    fallback::OnMiss,
    policy::{Lookahead, SsdOptions},
};

use super::*;

fn job(policy: Policy, temperature: f32) -> Job {
    Job {
        prompt: (1..40).map(TokenId).collect(),
        sampling: SamplingParams {
            temperature,
            ..SamplingParams::default()
        },
        seed: Seed(7),
        policy,
        max_tokens: 50,
        stop: Vec::new(),
    }
}

fn engine(role: Role) -> Engine {
    let end = Some(End {
        token: TokenId(3),
        rate: 0.02,
    });
    Engine::new(Box::new(SimRunner::new(SimOptions {
        role,
        end,
        ..SimOptions::default()
    })))
}

fn decode(job: Job, agreement: Option<f64>) -> Decoding {
    let draft = agreement.map(|agreement| engine(Role::Draft { agreement }));
    decode_with(job, engine(Role::Target), draft)
}

fn decode_with(job: Job, target: Engine, draft: Option<Engine>) -> Decoding {
    let mut decoding = Decoding::new(job, target, draft).unwrap();
    while let Some(tokens) = decoding.round().unwrap() {
        assert!(!tokens.is_empty());
    }
    decoding
}

const SPECULATIVE: Policy = Policy::Speculative(Lookahead::Fixed(5));

fn ahead(fallback: OnMiss) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(5),
        fallback,
        ..SsdOptions::default()
    })
}

#[test]
fn drafting_ahead_changes_no_token_and_hits_more_often_the_better_the_draft() {
    for temperature in [0.0, 1.0] {
        let plain = decode(job(Policy::Autoregressive, temperature), None);
        for fallback in [OnMiss::Remote, OnMiss::Nothing] {
            let mut rates = Vec::new();
            for agreement in [0.3, 1.0] {
                let drafted = decode(job(ahead(fallback), temperature), Some(agreement));
                assert_eq!(drafted.tokens(), plain.tokens());
                assert_eq!(drafted.logprobs(), plain.logprobs());
                let stats = drafted.stats();
                assert_eq!(50, stats.accepted + stats.rounds + 1);
                // The last verdict leads to no further window.
                assert!(stats.hits + stats.misses + 1 >= stats.rounds, "{stats:?}");
                rates.push(f64::from(stats.hits) / f64::from(stats.hits + stats.misses));
            }
            assert!(rates[1] > 0.9 && rates[0] < rates[1], "{rates:?}");
        }
    }
}

#[test]
fn the_same_job_comes_to_the_same_counts_every_time() {
    let run = || decode(job(ahead(OnMiss::Remote), 1.0), Some(0.6)).stats();
    let first = run();
    assert!(first.hits > 0 && first.misses > 0, "{first:?}");
    assert_eq!(run(), first);
}

#[test]
fn a_draft_changes_no_token_and_no_log_probability() {
    for temperature in [0.0, 1.0] {
        let plain = decode(job(Policy::Autoregressive, temperature), None);
        assert_eq!(plain.tokens().len(), 50);
        for agreement in [0.0, 0.5, 1.0] {
            let drafted = decode(job(SPECULATIVE, temperature), Some(agreement));
            assert_eq!(drafted.tokens(), plain.tokens());
            assert_eq!(drafted.logprobs(), plain.logprobs());
        }
    }
}

#[test]
fn every_emitted_token_is_accepted_or_decided_by_a_round() {
    let decoding = decode(job(SPECULATIVE, 0.0), Some(0.8));
    let stats = decoding.stats();
    // One more is decided by the prompt's own pass.
    assert_eq!(
        decoding.tokens().len() as u32,
        stats.accepted + stats.rounds + 1
    );
    assert!(stats.rounds < 49, "nothing was accepted: {stats:?}");
    assert!(stats.drafted >= stats.accepted);
    let plain = decode(job(Policy::Autoregressive, 0.0), None).stats();
    assert_eq!(
        plain,
        Stats {
            rounds: 49,
            ..Stats::default()
        }
    );
}

#[test]
fn a_stop_token_is_the_last_one_wherever_it_falls_in_a_window() {
    let plain = decode(job(Policy::Autoregressive, 0.0), None);
    for place in 0..12 {
        let stop = plain.tokens()[place];
        let first = plain
            .tokens()
            .iter()
            .position(|token| *token == stop)
            .unwrap();
        let job = Job {
            stop: vec![stop],
            ..job(SPECULATIVE, 0.0)
        };
        let decoding = decode(job, Some(1.0));
        assert_eq!(decoding.tokens(), &plain.tokens()[..=first]);
        assert_eq!(decoding.finish(), Finish::Stop);
        assert_eq!(decoding.logprobs().len(), first + 1);
    }
}

#[test]
fn the_model_s_length_ends_the_output() {
    let short = SimOptions {
        max_positions: 44,
        ..SimOptions::default()
    };
    let target = Engine::new(Box::new(SimRunner::new(short)));
    let draft = engine(Role::Draft { agreement: 1.0 });
    let decoding = decode_with(job(SPECULATIVE, 0.0), target, Some(draft));
    assert_eq!(decoding.tokens().len(), 44 - 39);
    assert_eq!(decoding.finish(), Finish::Length);
}

#[test]
fn a_draft_that_refuses_changes_no_token() {
    let plain = decode(job(Policy::Autoregressive, 1.0), None);
    for policy in [SPECULATIVE, ahead(OnMiss::Remote)] {
        // The prompt has 39 tokens, the output 50: too long from the start, and at some time.
        for (max_positions, drafts) in [(30, false), (60, true)] {
            let draft = Engine::new(Box::new(SimRunner::new(SimOptions {
                role: Role::Draft { agreement: 0.8 },
                max_positions,
                ..SimOptions::default()
            })));
            let decoding = decode_with(job(policy, 1.0), engine(Role::Target), Some(draft));
            assert_eq!(decoding.tokens(), plain.tokens());
            assert_eq!(decoding.logprobs(), plain.logprobs());
            assert_eq!(decoding.stats().accepted > 0, drafts);
            let refused = decoding.refused().expect("it refuses");
            assert!(refused.contains("tokens"), "{refused}");
        }
    }
    let whole = decode(job(SPECULATIVE, 1.0), Some(0.8));
    assert_eq!(whole.refused(), None);
}

#[test]
fn impossible_jobs_are_refused_in_words() {
    let refuse = |job: Job, expected: &str| {
        let error = Decoding::new(job, engine(Role::Target), None)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    let plain = || job(Policy::Autoregressive, 0.0);
    refuse(
        Job {
            prompt: Vec::new(),
            ..plain()
        },
        "the prompt is empty",
    );
    refuse(
        Job {
            prompt: vec![TokenId(512)],
            ..plain()
        },
        "vocabulary of 512",
    );
    refuse(
        Job {
            prompt: vec![TokenId(1); 4096],
            ..plain()
        },
        "has 4096 tokens; the model has room for 4096, prompt and output together, so a prompt may have \
         at most 4095",
    );
    refuse(job(Policy::Autoregressive, -1.0), "temperature is -1");
}
