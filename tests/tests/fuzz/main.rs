//! Inputs from outside, damaged in every way: each ends in a value or an error, never in a panic,
//! a hang or memory without bound.
//!
//! Each test damages valid samples for `FORETOKEN_FUZZ_SECONDS` (2 if unset; `make fuzz` sets
//! more). The seed is `FORETOKEN_FUZZ_SEED` (1 if unset, so a plain run repeats itself) and a
//! failure prints the input.

mod links;
mod mutate;

use std::{fs, path::PathBuf, time::Duration};

use foretoken_engine::{spec::ModelSpec, weights::Weights};
use foretoken_protocol::link::{
    DraftFrame, Hello, TargetFrame, Welcome, decode_draft_frame, decode_target_frame,
    encode_draft_frame, encode_target_frame,
};
use foretoken_router::{ModelConfig, Router, RouterConfig};
use foretoken_speculation::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId, TraceContext,
    fanout::FanOut,
    guess::OutcomeKey,
    message::{
        Branching, Cutoff, Cutoffs, Delivery, Entries, Open, Outcome, Resync, Rise, Side,
        SparseDistribution, ToDraft, ToTarget, TreeBudget, Window,
    },
    saguaro::Saguaro,
    sampling::SamplingParams,
    verify::Verification,
};
use foretoken_tests::repository;
use mutate::Fuzzer;
use tokio_util::sync::CancellationToken;

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn tokens(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(i * 37 % 4096)).collect()
}

/// Siblings after the last token.
fn tree(n: u32) -> Proposals {
    let parents = vec![0; n as usize];
    Proposals::with_parents(tokens(n), &parents).expect("siblings differ")
}

/// A frame with everything that a target says.
fn target_frame() -> TargetFrame {
    let session = SessionId(7);
    let messages = vec![
        ToDraft::Open(Open {
            session,
            epoch: Epoch(1),
            sampling: SamplingParams {
                logit_bias: vec![(TokenId(5), 1.5)],
                ..Default::default()
            },
            verification: Verification::Rejection { support: 16 },
            seed: Seed(9),
            prompt_len: 20,
            tokens: tokens(24),
            branching: Some(Branching {
                lookahead: 5,
                branches: 24,
                fan_out: FanOut::Uniform,
                delivery: Delivery::Pull,
            }),
            salt: [7; 32],
            keeps_nothing: true,
            trace: TraceContext::parse(TRACEPARENT),
        }),
        ToDraft::Outcome(Outcome {
            session,
            epoch: Epoch(1),
            round: Round(3),
            base_len: 24,
            tokens: tokens(4),
            lookahead: 7,
            verifying: Some(tree(3)),
            branches: 24,
            tree: Some(TreeBudget {
                nodes: 12,
                cutoff: Cutoff {
                    parts: 300,
                    rise: Rise {
                        after: 5,
                        parts: 900,
                    },
                },
            }),
            cutoffs: Cutoffs {
                window: 3000,
                entries: 500,
                rise: Rise {
                    after: 4,
                    parts: 2000,
                },
            },
            saguaro: Saguaro::new(3, 5),
            lingered: Duration::from_micros(300),
            awaited: 2,
            elapsed: Duration::from_micros(2400),
        }),
        ToDraft::Close {
            session,
            epoch: Epoch(1),
        },
    ];
    TargetFrame {
        messages,
        hello: Some((
            1,
            Hello {
                vocab_size: 4096,
                ..Hello::default()
            },
        )),
        beat: Some(3),
        credit: 12,
        ..TargetFrame::default()
    }
}

#[test]
fn any_bytes_are_a_target_frame_or_an_error() {
    let frame = target_frame();
    let mut sample = Vec::new();
    encode_target_frame(&frame, &mut sample);
    assert_eq!(decode_target_frame(sample.clone().into()), Ok(frame));
    Fuzzer::from_environment("target frame").run(&[sample], |bytes| {
        if let Ok(frame) = decode_target_frame(bytes.to_vec().into()) {
            // What was read can be written and read again.
            let mut again = Vec::new();
            encode_target_frame(&frame, &mut again);
            assert!(decode_target_frame(again.into()).is_ok());
        }
    });
}

/// A frame with everything that an endpoint may say.
fn draft_frame() -> DraftFrame {
    let (session, epoch) = (SessionId(7), Epoch(2));
    let messages = vec![
        ToTarget::Opened { session, epoch },
        ToTarget::Refused {
            session,
            epoch,
            reason: "no slot".into(),
            retry: true,
        },
        ToTarget::Window(Window {
            session,
            epoch,
            round: Round(4),
            base_len: 28,
            proposals: tree(2),
            q: vec![
                SparseDistribution {
                    entries: vec![(TokenId(0), 1365), (TokenId(37), 4095)]
                };
                2
            ],
            saguaro: Saguaro::new(2, 7),
            place: Some(3),
        }),
        ToTarget::Entries(Entries {
            session,
            epoch,
            round: Round(4),
            base_len: 28,
            late: true,
            before: 0,
            keys: tokens(3)
                .into_iter()
                .map(|token| OutcomeKey { accepted: 2, token })
                .collect(),
            tokens: tokens(6),
            sides: vec![Side {
                entry: 2,
                after: 1,
                token: TokenId(9),
            }],
            q: vec![
                SparseDistribution {
                    entries: vec![(TokenId(5), 9)]
                };
                6
            ],
            saguaro: Saguaro::default(),
        }),
        ToTarget::Resync(Resync {
            session,
            epoch,
            have_len: 5,
        }),
    ];
    DraftFrame {
        messages,
        welcome: Some((
            1,
            Welcome {
                vocab_size: 4096,
                ..Welcome::default()
            },
        )),
        beat: Some(3),
        ..DraftFrame::default()
    }
}

#[test]
fn any_bytes_are_a_draft_frame_or_an_error() {
    let mut sample = Vec::new();
    encode_draft_frame(&draft_frame(), &mut sample);
    assert!(decode_draft_frame(sample.clone().into()).is_ok());
    Fuzzer::from_environment("draft frame").run(&[sample], |bytes| {
        if let Ok(frame) = decode_draft_frame(bytes.to_vec().into()) {
            let mut again = Vec::new();
            encode_draft_frame(&frame, &mut again);
            assert!(decode_draft_frame(again.into()).is_ok());
        }
    });
}

#[test]
fn any_text_is_a_model_configuration_or_an_error() {
    let fixtures = repository().join("tests/fixtures");
    let names = ["llama-mha", "llama3-rope", "mistral-swa", "opt", "qwen3"];
    let samples: Vec<Vec<u8>> = names
        .iter()
        .map(|name| fs::read(fixtures.join(name).join("config.json")).expect("a fixture"))
        .collect();
    let file = PathBuf::from("config.json");
    for sample in &samples {
        let text = str::from_utf8(sample).expect("text");
        assert!(ModelSpec::from_json(&file, text).is_ok());
    }
    Fuzzer::from_environment("config.json").run(&samples, |bytes| {
        let _ = ModelSpec::from_json(&file, &String::from_utf8_lossy(bytes));
    });
}

#[test]
fn any_file_is_weights_or_an_error() {
    let whole = repository().join("tests/fixtures/llama-draft/model.safetensors");
    let sample = fs::read(whole).expect("a fixture");
    let header = 8 + u64::from_le_bytes(sample[..8].try_into().expect("8 bytes")) as usize;
    // Only the header says anything; what follows are numbers.
    let (sample, data) = sample.split_at(header);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.safetensors");
    Fuzzer::from_environment("safetensors").run(&[sample.to_vec()], |bytes| {
        fs::write(&path, [bytes, data].concat()).expect("room for a small file");
        let Ok(weights) = Weights::open(folder.path()) else {
            return;
        };
        for name in weights.names().map(str::to_owned).collect::<Vec<_>>() {
            let _ = weights.tensor(&name, &[32]);
        }
    });
}

#[test]
fn any_text_is_a_manifest_or_an_error() {
    let sample = fs::read(repository().join("examples/laptop.yaml")).expect("the example");
    Fuzzer::from_environment("manifest").run(&[sample], |bytes| {
        let _ = foretoken_crds::Manifest::parse(&String::from_utf8_lossy(bytes));
    });
}

#[tokio::test]
async fn any_body_gets_an_answer_in_the_form_of_the_api() {
    let config = RouterConfig {
        listen: "127.0.0.1:0".into(),
        models: vec![ModelConfig {
            name: "m".into(),
            folder: repository().join("models/target"),
        }],
        ..RouterConfig::default()
    };
    let router = Router::bind(config).await.expect("a free port");
    let base = format!("http://{}", router.address());
    let stop = CancellationToken::new();
    let running = tokio::spawn(router.run(stop.clone()));
    let samples = [
        r#"{"model":"m","prompt":"Question: 1+1?","max_tokens":5,"temperature":0.5,"stop":["\n","a"],"logprobs":2,"n":2,"logit_bias":{"5":-1.5},"stream_options":{"include_usage":true},"stream":true}"#,
        r#"{"model":"m","prompt":[[0,5,9],[0,7]],"max_tokens":3,"seed":4,"echo":true,"ignore_eos":true,"min_tokens":1,"foretoken":{"policy":"Speculative","lookahead":4}}"#,
        r#"{"model":"m","messages":[{"role":"system","content":"x"},{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":4,"logprobs":true,"top_logprobs":3}"#,
    ];
    let http = reqwest::Client::new();
    let fuzzer = Fuzzer::from_environment("HTTP body");
    let samples: Vec<Vec<u8>> = samples.iter().map(|s| s.as_bytes().to_vec()).collect();
    let paths = [
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
    ];
    for (i, body) in fuzzer.inputs(&samples).enumerate() {
        let url = format!("{base}{}", paths[i % paths.len()]);
        let request = http
            .post(url)
            .header("content-type", "application/json")
            .body(body.clone());
        let shown = String::from_utf8_lossy(&body);
        let answer = async {
            let answer = request.send().await?;
            Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
        };
        let answer = answer.await;
        assert!(answer.is_ok(), "{answer:?} for {shown}");
        let (status, text) = answer.expect("it is");
        // No target is there, so a valid request is answered 503 and an invalid one 4xx.
        assert!(
            status == 200 || status == 503 || (400..500).contains(&status),
            "{status} for {shown}"
        );
        if status != 200 {
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert!(json["error"]["message"].is_string(), "{text} for {shown}");
        }
    }
    stop.cancel();
    running.await.expect("no panic").expect("a clean end");
}
