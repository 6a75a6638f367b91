//! What clients get: ends, limits, replays, log-probabilities, cancellation, page pressure.

use foretoken_engine::sim::{End, SimOptions};
use foretoken_protocol::generate::{
    FinishReason, GenerateError, GenerateEvent, GenerateRequest, GenerationStats,
};
use foretoken_speculation::TokenId;

use super::rig::{Output, Rig, language, plain, request};
use crate::config::{LookaheadConfig, TargetConfig};

fn speculating(language: SimOptions) -> Rig {
    let lookahead = LookaheadConfig::Fixed(5);
    let mut rig = Rig::new(
        TargetConfig {
            lookahead,
            ..TargetConfig::default()
        },
        language,
        0.9,
    );
    rig.connect();
    rig
}

fn one(rig: &mut Rig, request: foretoken_protocol::generate::GenerateRequest) -> Output {
    let mut output = rig.ask(request);
    rig.run(std::slice::from_mut(&mut output));
    output
}

#[test]
fn a_request_for_one_token_gets_one_and_one_for_none_gets_none() {
    let mut rig = speculating(language());
    let output = one(&mut rig, request(3, 1.0, 1));
    assert_eq!(output.tokens.len(), 1);
    assert_eq!(output.reason(), FinishReason::Length);
    let mut none = request(3, 1.0, 0);
    none.prompt_logprobs = true;
    let output = one(&mut rig, none);
    assert!(output.tokens.is_empty());
    let GenerateEvent::Started {
        prompt_logprobs, ..
    } = &output.pieces[0]
    else {
        panic!("nothing started");
    };
    assert_eq!(prompt_logprobs.len(), 19);
    rig.assert_idle();
}

#[test]
fn a_stop_token_ends_the_output_wherever_in_a_window_it_is() {
    let whole = plain(&request(5, 1.0, 40));
    for stop in [1, 9, 17] {
        let first = whole
            .iter()
            .position(|&token| token == whole[stop])
            .expect("it is there");
        let mut request = request(5, 1.0, 40);
        request.stop_token_ids = vec![whole[stop]];
        let mut rig = speculating(language());
        let output = one(&mut rig, request);
        assert_eq!(output.tokens, whole[..=first]);
        assert_eq!(output.reason(), FinishReason::Stop(whole[stop]));
        rig.assert_idle();
    }
}

#[test]
fn the_end_token_ends_the_output_unless_it_is_ignored() {
    let end = TokenId(9);
    let ending = SimOptions {
        end: Some(End {
            token: end,
            rate: 0.2,
        }),
        ..language()
    };
    let config = TargetConfig {
        eos: vec![9],
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, ending, 0.9);
    rig.connect();
    let output = one(&mut rig, request(1, 0.0, 100));
    assert_eq!(output.reason(), FinishReason::Stop(end));
    assert_eq!(output.tokens.last(), Some(&end));
    let mut on = request(1, 0.0, 100);
    on.ignore_eos = true;
    let further = one(&mut rig, on);
    assert_eq!(further.tokens.len(), 100);
    assert_eq!(further.tokens[..output.tokens.len()], output.tokens);
}

#[test]
fn near_the_longest_sequence_windows_shrink_and_the_output_ends() {
    let short = SimOptions {
        max_positions: 48,
        ..language()
    };
    let mut rig = speculating(short);
    let output = one(&mut rig, request(2, 1.0, 1000));
    assert_eq!(output.tokens.len(), 28);
    assert_eq!(output.reason(), FinishReason::Length);
    assert_eq!(output.tokens, plain(&request(2, 1.0, 28)));
    rig.assert_idle();
}

#[test]
fn a_replay_from_any_point_goes_on_as_if_nothing_had_happened() {
    let mut whole = request(8, 1.1, 40);
    whole.sampling.frequency_penalty = 0.5;
    whole.sampling.repetition_penalty = 1.2;
    let reference = plain(&whole);
    for emitted in [1, 7, 33, 39, 40] {
        let mut replay = whole.clone();
        replay.tokens.extend_from_slice(&reference[..emitted]);
        let mut rig = speculating(language());
        let output = one(&mut rig, replay);
        assert_eq!(output.tokens, reference[emitted..], "after {emitted}");
        assert_eq!(output.reason(), FinishReason::Length);
        rig.assert_idle();
    }
}

#[test]
fn many_requests_at_once_get_what_each_gets_alone() {
    let mut rig = speculating(language());
    let requests: Vec<_> = (0..16)
        .map(|seed| request(seed, 0.1 * seed as f32, 20 + 3 * seed as u32))
        .collect();
    let mut outputs: Vec<_> = requests.iter().map(|r| rig.ask(r.clone())).collect();
    rig.run(&mut outputs);
    for (request, output) in requests.iter().zip(&outputs) {
        assert_eq!(output.tokens, plain(request));
    }
    rig.assert_idle();
}

#[test]
fn requests_preempted_for_pages_lose_nothing() {
    let tight = SimOptions {
        pages: 14,
        ..language()
    };
    let mut rig = speculating(tight);
    let requests: Vec<_> = (0..5).map(|seed| request(seed, 1.0, 70)).collect();
    let mut outputs: Vec<_> = requests.iter().map(|r| rig.ask(r.clone())).collect();
    rig.run(&mut outputs);
    for (request, output) in requests.iter().zip(&outputs) {
        assert_eq!(output.tokens, plain(request));
    }
    let preempted = rig.worker.metrics.preemptions.get();
    assert!(preempted > 0, "nobody was preempted");
    // What their clients waited for, endpoints had no part in.
    let waited = rig.counted("vllm:inter_token_latency_seconds_count");
    let rounds = rig.counted("foretoken_round_seconds_count");
    assert!(
        rounds < waited && rounds + preempted >= waited,
        "{rounds} rounds of {waited}, {preempted} preempted"
    );
    let prompts = requests.iter().map(|r| r.prompt_len as u64).sum::<u64>();
    let metrics = &rig.worker.metrics;
    assert_eq!(metrics.prompt_tokens.get(), prompts, "each once");
    assert_eq!(metrics.prefix_queries.get(), prompts);
    rig.assert_idle();
}

#[test]
fn a_client_that_goes_away_frees_everything_at_once() {
    let mut rig = speculating(language());
    let mut outputs: Vec<_> = (0..3)
        .map(|seed| rig.ask(request(seed, 1.0, 500)))
        .collect();
    while outputs[2].tokens.len() < 10 {
        rig.turn();
        outputs[2].collect();
    }
    assert_eq!(rig.endpoint.sessions(), 3);
    outputs.clear();
    rig.turn();
    rig.assert_idle();
    assert_eq!(rig.endpoint.sessions(), 0);
    assert_eq!(rig.worker.metrics.cancelled.get(), 3);
}

#[test]
fn a_prompt_seen_before_comes_from_the_cache_unless_it_must_not() {
    let mut rig = speculating(language());
    let mut long = request(4, 1.0, 8);
    long.tokens = (0..100).map(|i| TokenId(i % 60)).collect();
    long.prompt_len = 100;
    let first = one(&mut rig, long.clone());
    let again = one(&mut rig, long.clone());
    assert_eq!(first.stats().cached_tokens, 0);
    assert_eq!(again.stats().cached_tokens, 96);
    assert_eq!(first.tokens, again.tokens);
    long.cache_prompt = false;
    assert_eq!(one(&mut rig, long).stats().cached_tokens, 0);
    let metrics = &rig.worker.metrics;
    assert_eq!(metrics.prompt_tokens.get(), 300);
    assert_eq!(
        metrics.prefix_queries.get(),
        200,
        "nobody looked for the last"
    );
}

#[test]
fn a_prompt_is_found_in_the_cache_under_its_own_salt_only() {
    let mut rig = speculating(language());
    let salted = |salt: Option<&str>| {
        let mut long = request(4, 1.0, 8);
        long.tokens = (0..100).map(|i| TokenId(i % 60)).collect();
        long.prompt_len = 100;
        long.cache_salt = salt.map(str::to_owned);
        long
    };
    for (salt, found) in [
        (None, 0),
        (Some("a"), 0),
        (Some("b"), 0),
        (Some("a"), 96),
        (Some("b"), 96),
        (None, 96),
    ] {
        let output = one(&mut rig, salted(salt));
        assert_eq!(output.stats().cached_tokens, found, "{salt:?}");
    }
}

#[test]
fn log_probabilities_are_the_same_with_and_without_speculation() {
    let mut asked = request(6, 1.0, 30);
    asked.logprobs = Some(3);
    asked.prompt_logprobs = true;
    let mut alone = asked.clone();
    alone.policy = Some("Autoregressive".into());
    let mut rig = speculating(language());
    let flat = |output: &Output| {
        let mut all = Vec::new();
        for piece in &output.pieces {
            match piece {
                GenerateEvent::Started {
                    prompt_logprobs, ..
                } => all.extend(prompt_logprobs.clone()),
                GenerateEvent::Tokens(round) => {
                    all.extend(
                        round
                            .tokens
                            .iter()
                            .filter_map(|token| token.logprobs.clone()),
                    );
                }
                GenerateEvent::Finished { .. } => {}
            }
        }
        all
    };
    let (with, without) = (one(&mut rig, asked), one(&mut rig, alone));
    assert_eq!(
        (with.stats().policy.as_str(), without.stats().drafted),
        ("Speculative", 0)
    );
    assert!(with.stats().accepted > 0);
    let drafted = |piece: &GenerateEvent| match piece {
        GenerateEvent::Tokens(round) => round.drafted,
        GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => 0,
    };
    let told: u32 = with.pieces.iter().map(drafted).sum();
    assert_eq!(told, with.stats().drafted);
    assert_eq!(flat(&with).len(), 19 + 30);
    assert_eq!(flat(&with), flat(&without));
    assert!(
        flat(&with)
            .iter()
            .all(|found| found.top.len() == 3 && found.logprob <= 0.0)
    );
}

#[test]
fn requests_that_make_no_sense_are_told_so() {
    let mut rig = speculating(language());
    let mut bad = Vec::new();
    for change in 0..6 {
        let mut request = request(1, 1.0, 5);
        match change {
            0 => request.tokens.clear(),
            1 => request.prompt_len = 99,
            2 => request.tokens[3] = TokenId(64),
            3 => request.sampling.top_p = 0.0,
            4 => request.policy = Some("Magic".into()),
            _ => request.logprobs = Some(1000),
        }
        bad.push(rig.ask(request));
    }
    rig.run(&mut bad);
    for output in bad {
        assert!(matches!(output.end, Some(Err(GenerateError::Invalid(_)))));
    }
    rig.assert_idle();
}

#[test]
fn a_request_of_many_choices_does_not_keep_the_next_one_waiting() {
    let config = TargetConfig {
        max_running: 5,
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 1.0);
    let of = |owner, seed| GenerateRequest {
        owner,
        ..request(seed, 1.0, 40)
    };
    let mut many: Vec<_> = (0..20).map(|seed| rig.ask(of(1, seed))).collect();
    rig.turn();
    let mut next = [rig.ask(of(2, 20))];
    rig.run(&mut next);
    assert_eq!(next[0].tokens.len(), 40);
    let done = many.iter_mut().filter_map(|o| o.collect().then_some(()));
    let done = done.count();
    assert!(done < 8, "{done} of 20 had come first");
    rig.run(&mut many);
    assert!(many.iter().all(|o| o.tokens.len() == 40));
    rig.assert_idle();
}

#[test]
fn more_requests_than_may_wait_are_turned_away_as_busy() {
    let config = TargetConfig {
        max_waiting: 2,
        max_running: 1,
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 1.0);
    let mut outputs: Vec<_> = (0..4).map(|seed| rig.ask(request(seed, 1.0, 5))).collect();
    rig.run(&mut outputs);
    let busy = |o: &&Output| matches!(o.end, Some(Err(GenerateError::Busy { .. })));
    assert_eq!(outputs.iter().filter(busy).count(), 2);
    assert_eq!(outputs.iter().filter(|o| o.tokens.len() == 5).count(), 2);
}

#[test]
fn rounds_tell_what_the_output_took_so_far_if_that_is_asked_for() {
    let mut asked = request(6, 1.0, 30);
    let mut rig = speculating(language());
    let told = |output: &Output| -> Vec<(u32, u32, u64)> {
        let rounds = output.pieces.iter().filter_map(|piece| match piece {
            GenerateEvent::Tokens(round) => round.stats.as_deref(),
            GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => None,
        });
        let of = |stats: &GenerationStats| (stats.rounds, stats.drafted, stats.bytes);
        rounds.map(of).collect()
    };
    assert_eq!(told(&one(&mut rig, asked.clone())), []);
    asked.tell_stats = true;
    let output = one(&mut rig, asked);
    let all = told(&output);
    let rounds: Vec<u32> = all.iter().map(|(rounds, ..)| *rounds).collect();
    // The first pass is the prompt's.
    let every: Vec<u32> = (0..=output.stats().rounds).collect();
    assert_eq!(rounds, every);
    let end = output.stats();
    assert_eq!(all.last(), Some(&(end.rounds, end.drafted, end.bytes)));
    assert!(all.is_sorted() && end.drafted > 0, "{all:?}");
}
