//! Windows that are trees: rows with ancestor masks, and the accepted path becomes the sequence.

use std::time::Duration;

use foretoken_protocol::generate::{FinishReason, GenerateEvent, GenerateRequest, TokenLogprobs};
use foretoken_speculation::sampling::SamplingParams;

use super::rig::{Fault, Output, Rig, language, plain, request};
use crate::config::{LookaheadConfig, TargetConfig, TreesName, VerificationConfig};

/// A target for which rows cost nothing, with a draft that is often unsure.
fn rig(agreement: f64) -> Rig {
    verifying(VerificationConfig::Coupled, agreement)
}

fn verifying(verification: VerificationConfig, agreement: f64) -> Rig {
    let config = TargetConfig {
        trees: TreesName::Auto,
        lookahead: LookaheadConfig::Fixed(5),
        patience: Duration::from_millis(3),
        verification,
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), agreement);
    rig.connect();
    rig
}

fn all(rig: &mut Rig, requests: &[GenerateRequest]) -> Vec<Output> {
    let mut outputs: Vec<_> = requests.iter().map(|r| rig.ask(r.clone())).collect();
    rig.run(&mut outputs);
    outputs
}

/// Penalties make the choice at a node depend on the path to it.
fn penalised(seed: u64, temperature: f32, max_tokens: u32) -> GenerateRequest {
    let plain = request(seed, temperature, max_tokens);
    GenerateRequest {
        sampling: SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: 0.4,
            top_p: 0.95,
            ..plain.sampling
        },
        ..plain
    }
}

#[test]
fn trees_change_no_token_and_leave_no_page() {
    for batch in [1, 5] {
        let mut rig = rig(0.6);
        for temperature in [0.0, 0.7, 1.0] {
            let requests: Vec<_> = (0..batch)
                .flat_map(|seed| {
                    [
                        request(seed, temperature, 60),
                        penalised(seed, temperature, 60),
                    ]
                })
                .collect();
            let outputs = all(&mut rig, &requests);
            for (request, output) in requests.iter().zip(&outputs) {
                assert_eq!(output.tokens, plain(request), "{request:?}");
                let stats = output.stats();
                assert_eq!(stats.accepted + stats.rounds + 1, 60);
            }
        }
        let metrics = &rig.worker.metrics;
        let (windows, nodes) = (metrics.tree_windows.get(), metrics.tree_nodes.get());
        assert!(windows > 30 && nodes > 2 * windows, "{windows} {nodes}");
        assert!(nodes <= metrics.draft_tokens.get());
        rig.assert_idle();
    }
}

#[test]
fn no_fault_of_an_endpoint_that_proposes_trees_changes_a_token() {
    for fault in [
        Fault::Lose(3),
        Fault::Duplicate,
        Fault::Delay(2),
        Fault::Reverse,
        Fault::Wrong,
        Fault::Foreign,
    ] {
        let mut rig = rig(0.7);
        rig.fault = fault;
        let requests: Vec<_> = (0..4).map(|seed| penalised(seed, 0.9, 40)).collect();
        for (request, output) in requests.iter().zip(all(&mut rig, &requests)) {
            assert_eq!(output.tokens, plain(request), "{fault:?}");
        }
        rig.assert_idle();
    }
}

#[test]
fn a_stop_token_ends_the_output_wherever_in_a_branch_it_is() {
    let whole = plain(&request(5, 1.0, 40));
    for stop in 1..30 {
        let first = whole.iter().position(|&token| token == whole[stop]);
        let mut request = request(5, 1.0, 40);
        request.stop_token_ids = vec![whole[stop]];
        let mut rig = rig(0.7);
        let output = &all(&mut rig, &[request])[0];
        assert_eq!(output.tokens, whole[..=first.expect("it is there")]);
        assert_eq!(output.reason(), FinishReason::Stop(whole[stop]));
        rig.assert_idle();
    }
}

#[test]
fn outputs_end_at_their_limit_wherever_in_a_branch_that_is() {
    let whole = plain(&request(8, 0.7, 40));
    for max_tokens in 1..24 {
        let mut rig = rig(0.7);
        let output = &all(&mut rig, &[request(8, 0.7, max_tokens)])[0];
        assert_eq!(output.tokens, whole[..max_tokens as usize]);
        assert_eq!(output.reason(), FinishReason::Length);
        rig.assert_idle();
    }
}

fn logprobs(output: &Output) -> Vec<Option<TokenLogprobs>> {
    let rounds = output.pieces.iter().filter_map(|piece| match piece {
        GenerateEvent::Tokens(round) => Some(round.tokens.iter()),
        _ => None,
    });
    rounds
        .flatten()
        .map(|token| token.logprobs.clone())
        .collect()
}

#[test]
fn log_probabilities_are_those_of_the_rows_on_the_accepted_path() {
    let mut asked = request(4, 1.0, 50);
    asked.logprobs = Some(2);
    let mut alone = Rig::new(TargetConfig::default(), language(), 1.0);
    let expected = logprobs(&all(&mut alone, std::slice::from_ref(&asked))[0]);
    let mut rig = rig(0.7);
    let output = &all(&mut rig, &[asked])[0];
    assert!(rig.worker.metrics.tree_windows.get() > 3);
    assert_eq!(logprobs(output), expected);
}

#[test]
fn drawn_trees_are_decided_by_the_rows_on_the_accepted_path_and_leave_no_page() {
    let mut rig = verifying(VerificationConfig::Rejection { support: 8 }, 0.5);
    let mut beside = 0;
    for seed in 0..12 {
        let mut asked = penalised(seed, 1.0, 50);
        asked.logprobs = Some(2);
        let output = &all(&mut rig, std::slice::from_ref(&asked))[0];
        assert_eq!(output.tokens.len(), 50);
        // What is said of the tokens if nothing is proposed for them.
        let mut whole = asked.clone();
        whole.tokens.extend(&output.tokens);
        whole.prompt_len = whole.tokens.len();
        whole.prompt_logprobs = true;
        whole.max_tokens = 1;
        let again = &all(&mut rig, &[whole])[0];
        let expected = again.pieces.iter().find_map(|piece| match piece {
            GenerateEvent::Started {
                prompt_logprobs, ..
            } => Some(prompt_logprobs),
            _ => None,
        });
        let expected = &expected.expect("it began")[asked.tokens.len() - 1..];
        let found: Vec<_> = logprobs(output).into_iter().flatten().collect();
        assert_eq!(found, expected);
        beside += output.stats().drafted - output.stats().accepted;
    }
    let metrics = &rig.worker.metrics;
    let trees = metrics.tree_windows.get();
    assert!(trees > 100 && beside > 2 * trees as u32, "{trees} {beside}");
    rig.assert_idle();
}

#[test]
fn pages_for_few_rows_leave_a_part_of_the_tree() {
    let config = TargetConfig {
        trees: TreesName::Auto,
        lookahead: LookaheadConfig::Fixed(5),
        max_step_rows: 7,
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 0.7);
    rig.connect();
    let requests: Vec<_> = (0..3).map(|seed| penalised(seed, 1.0, 40)).collect();
    for (request, output) in requests.iter().zip(all(&mut rig, &requests)) {
        assert_eq!(output.tokens, plain(request));
    }
    rig.assert_idle();
}
