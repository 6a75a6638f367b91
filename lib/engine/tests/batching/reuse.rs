//! What windows of proposals leave in the prefix cache, as the next requests find it.

use foretoken_engine::batch::{Engine, Feed, Reuse, SeqId, Wants};
use foretoken_engine::kv::Salt;
use foretoken_engine::runner::ModelRunner;
use foretoken_speculation::TokenId;

use crate::trial::Oracle;
use crate::{on_cpu, simulated};

const SHARED: Reuse = Reuse::Within(Salt([7; 32]));
/// Tokens of a window: what is rejected of it reaches past the page that follows.
const WINDOW: usize = 24;

/// What the model is taken to say, from position `from` to `to`.
fn said(from: usize, to: usize) -> Vec<TokenId> {
    (from..to).map(|i| TokenId((i * i % 29) as u32)).collect()
}

/// Proposals for the same positions, every one of them wrong.
fn wrong(from: usize, to: usize) -> Vec<TokenId> {
    let other = |token: TokenId| TokenId((token.0 + 1) % 29);
    said(from, to).into_iter().map(other).collect()
}

/// One round: feeds a window and keeps the first `accepted` proposals of it.
type Round = fn(&mut Engine, SeqId, usize);

fn round_of_a_chain(engine: &mut Engine, seq: SeqId, accepted: usize) {
    let from = engine.len(seq).unwrap();
    let (kept, end) = (from + accepted, from + WINDOW);
    let tokens = [said(from, kept), wrong(kept, end)].concat();
    step(engine, seq, &tokens, None);
    engine.truncate(seq, kept).unwrap();
}

/// What is accepted stands behind what is rejected, so that its slots move.
fn round_of_a_tree(engine: &mut Engine, seq: SeqId, accepted: usize) {
    let from = engine.len(seq).unwrap();
    let rejected = WINDOW - accepted;
    let tokens = [wrong(from, from + rejected), said(from, from + accepted)].concat();
    let chain = (0..WINDOW as u32).map(|node| node.checked_sub(1));
    let mut parents: Vec<Option<u32>> = chain.collect();
    parents[rejected] = None;
    step(engine, seq, &tokens, Some(&parents));
    let path: Vec<u32> = (rejected as u32..WINDOW as u32).collect();
    engine.accept_path(seq, &path).unwrap();
}

fn step(engine: &mut Engine, seq: SeqId, tokens: &[TokenId], tree: Option<&[Option<u32>]>) {
    let logits = Wants::All;
    let feed = Feed {
        seq,
        tokens,
        tree,
        logits,
    };
    engine.step(&[feed]).unwrap();
}

/// Feeds what `seq` lacks of a text, and compares logits with those of the text alone.
fn go_on(engine: &mut Engine, oracle: &mut Oracle, seq: SeqId, text: &[TokenId]) {
    let from = engine.len(seq).unwrap();
    step(engine, seq, &text[from..], None);
    for end in from + 1..=text.len() {
        let found = engine.logits().row(0, end - from - 1);
        assert_eq!(found, oracle.logits(&text[..end]), "token {end}");
    }
}

/// A prompt of 14 tokens, then rounds, of which one completes the first page and has rejected rows
/// in the second, and others do the same a page later; then requests that begin alike.
fn serve(runner: Box<dyn ModelRunner>, oracle: &mut Oracle, round: Round, accepted: usize) {
    let mut engine = Engine::new(runner);
    let prompt = said(0, 14);
    let first = engine.open(&prompt, SHARED);
    step(&mut engine, first, &prompt, None);
    while engine.len(first).unwrap() <= 32 {
        round(&mut engine, first, accepted);
    }
    // Of 32 tokens the last one's logits are wanted, so its page is computed again.
    for (len, cached) in [(33, 32), (40, 32), (32, 16)] {
        let seq = engine.open(&said(0, len), SHARED);
        assert_eq!(engine.cached_len(seq), Ok(cached));
        go_on(&mut engine, oracle, seq, &said(0, len));
    }
    // Whoever says what was rejected gets that.
    let kept = 14 + accepted;
    for kept in [14, kept] {
        let text = [said(0, kept), wrong(kept, 14 + WINDOW)].concat();
        let seq = engine.open(&text, SHARED);
        go_on(&mut engine, oracle, seq, &text);
    }
    // And none of them has touched what the first one goes on from.
    go_on(&mut engine, oracle, first, &said(0, 50));
}

#[test]
fn pages_completed_by_accepted_tokens_serve_the_next_request_whatever_was_rejected_in_them() {
    let runners: [fn() -> Box<dyn ModelRunner>; 3] = [
        || simulated(32),
        || on_cpu("qwen3", 32),
        || on_cpu("mistral-swa", 32),
    ];
    for runner in runners {
        let mut oracle = Oracle::new(runner());
        for accepted in 1..=6 {
            for round in [round_of_a_chain as Round, round_of_a_tree] {
                serve(runner(), &mut oracle, round, accepted);
            }
        }
    }
}
