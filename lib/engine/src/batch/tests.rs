//! Unit tests; random programs are in `tests/batching.rs`.

use foretoken_speculation::TokenId;

use super::*;
use crate::kv::Salt;
use crate::runner::{Logits, PageCopy, RunnerError, SlotMove, StepPlan};
use crate::sim::{SimOptions, SimRunner};

mod forks;

const SHARED: Reuse = Reuse::Within(Salt([7; 32]));

fn options() -> SimOptions {
    SimOptions {
        vocab_size: 64,
        pages: 8,
        max_rows: 100,
        max_positions: 100,
        ..Default::default()
    }
}

fn engine() -> Engine {
    with_pages(8)
}

fn with_pages(pages: usize) -> Engine {
    Engine::new(Box::new(SimRunner::new(SimOptions { pages, ..options() })))
}

/// `len` tokens of a text.
fn text(len: usize) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((i * i % 61) as u32)).collect()
}

fn feed(seq: SeqId, tokens: &[TokenId]) -> Feed<'_> {
    Feed {
        seq,
        tokens,
        tree: None,
        logits: Wants::Last,
    }
}

fn grow<'a>(seq: SeqId, tokens: &'a [TokenId], tree: &'a [Option<u32>]) -> Feed<'a> {
    Feed {
        seq,
        tokens,
        tree: Some(tree),
        logits: Wants::All,
    }
}

/// A sequence of `len` tokens of the text.
fn with_text(engine: &mut Engine, len: usize) -> SeqId {
    let tokens = text(len);
    let seq = engine.open(&tokens, SHARED);
    let rest = engine.cached_len(seq).unwrap();
    engine.step(&[feed(seq, &tokens[rest..])]).unwrap();
    seq
}

#[test]
fn a_second_sequence_begins_with_the_full_pages_of_the_first() {
    let mut engine = engine();
    let first = with_text(&mut engine, 40);
    // Not yet taken any further: what the first one has is found all the same.
    let second = engine.open(&text(40), SHARED);
    assert_eq!(
        (
            engine.cached_len(second).unwrap(),
            engine.len(second).unwrap()
        ),
        (32, 32)
    );
    assert_eq!(engine.tokens(second).unwrap(), &text(40)[..32]);
    assert_eq!(engine.usage().referenced, 3);
    engine.close(first).unwrap();
    engine.close(second).unwrap();
    assert_eq!(
        engine.usage(),
        Usage {
            free: 6,
            cached: 2,
            referenced: 0
        }
    );
}

#[test]
fn the_last_token_is_never_cached_because_its_logits_are_wanted() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 32);
    engine.close(seq).unwrap();
    let cached = |engine: &mut Engine, len| {
        let seq = engine.open(&text(len), SHARED);
        engine.cached_len(seq).unwrap()
    };
    assert_eq!(cached(&mut engine, 33), 32);
    assert_eq!(cached(&mut engine, 32), 16);
    assert_eq!(cached(&mut engine, 16), 0);
    assert_eq!(cached(&mut engine, 0), 0);
}

#[test]
fn neither_another_salt_nor_a_sequence_that_opts_out_shares_pages() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 40);
    for reuse in [Reuse::Off, Reuse::Within(Salt([8; 32]))] {
        let other = engine.open(&text(40), reuse);
        assert_eq!(engine.cached_len(other).unwrap(), 0);
        engine.close(other).unwrap();
    }
    engine.close(seq).unwrap();

    let mut engine = self::engine();
    let private = engine.open(&text(40), Reuse::Off);
    engine.step(&[feed(private, &text(40))]).unwrap();
    engine.close(private).unwrap();
    assert_eq!(
        engine.usage().cached,
        0,
        "what opts out leaves nothing behind"
    );
}

#[test]
fn two_sequences_that_computed_the_same_come_to_share_it() {
    let mut engine = engine();
    let (a, b) = (
        engine.open(&text(40), SHARED),
        engine.open(&text(40), SHARED),
    );
    engine
        .step(&[feed(a, &text(40)), feed(b, &text(40))])
        .unwrap();
    assert_eq!(engine.usage().referenced, 6);
    let next = [TokenId(1)];
    engine.step(&[feed(a, &next), feed(b, &next)]).unwrap();
    assert_eq!(engine.usage().referenced, 4);
    assert_eq!(engine.audit(), Ok(engine.usage()));
}

#[test]
fn a_page_that_was_overwritten_is_cached_with_its_new_tokens() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 40);
    let mut changed = text(40);
    changed[20] = TokenId(63);
    engine.open(&[], SHARED); // publishes
    engine.truncate(seq, 20).unwrap();
    engine.step(&[feed(seq, &changed[20..])]).unwrap();
    for (tokens, cached) in [(changed, 32), (text(40), 16)] {
        let other = engine.open(&tokens, SHARED);
        assert_eq!(engine.cached_len(other).unwrap(), cached);
    }
}

#[test]
fn a_fork_shares_pages_until_one_side_writes() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 20);
    let fork = engine.fork(seq, 18).unwrap();
    assert_eq!(engine.tokens(fork).unwrap(), text(18));
    assert_eq!(engine.usage().referenced, 2);
    assert_eq!(engine.owned_pages(seq).unwrap(), 0);
    assert!(engine.shares_tail(seq).unwrap() && engine.shares_tail(fork).unwrap());
    assert_eq!(engine.pages_needed(fork, 1).unwrap(), 1);
    assert_eq!(engine.pages_needed(fork, 15).unwrap(), 2);
    assert_eq!(engine.pages_needed(fork, 0).unwrap(), 0);
    engine.step(&[feed(fork, &[TokenId(9)])]).unwrap();
    assert_eq!(engine.usage().referenced, 3);
    assert!(!engine.shares_tail(seq).unwrap() && !engine.shares_tail(fork).unwrap());
    let past_end = SeqError::PastEnd { asked: 21, len: 20 };
    assert_eq!(engine.fork(seq, 21), Err(past_end));
    assert_eq!(engine.truncate(seq, 21), Err(past_end));
}

#[test]
fn who_shares_pages_names_the_same_ones_and_a_copy_is_another() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 40);
    let other = engine.open(&text(40), SHARED);
    let fork = engine.fork(seq, 20).unwrap();
    let pages = |engine: &Engine, seq| engine.pages(seq).unwrap().to_vec();
    let of_seq = pages(&engine, seq);
    assert_eq!(of_seq.len(), 3);
    assert_eq!(pages(&engine, other), of_seq[..2]);
    assert_eq!(pages(&engine, fork), of_seq[..2]);
    engine.step(&[feed(fork, &[TokenId(9)])]).unwrap();
    let of_fork = pages(&engine, fork);
    assert_eq!(of_fork[0], of_seq[0]);
    assert!(!of_seq.contains(&of_fork[1]), "it was written to");
    engine.close(seq).unwrap();
    assert_eq!(engine.pages(seq), Err(SeqError::Unknown(seq)));
}

#[test]
fn what_a_fork_adds_is_cached_like_the_rest() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 40);
    engine.open(&[], SHARED); // publishes
    let fork = engine.fork(seq, 20).unwrap();
    let mut tokens = text(40);
    tokens[20] = TokenId(63);
    engine.step(&[feed(fork, &tokens[20..])]).unwrap();
    let again = engine.open(&tokens, SHARED);
    assert_eq!(engine.cached_len(again).unwrap(), 32);
}

#[test]
fn a_closed_sequences_id_is_never_anothers() {
    let mut engine = engine();
    let old = with_text(&mut engine, 5);
    engine.close(old).unwrap();
    let new = with_text(&mut engine, 6);
    assert_ne!(old, new);
    let unknown = SeqError::Unknown(old);
    assert_eq!(engine.len(old), Err(unknown));
    assert_eq!(engine.tokens(old), Err(unknown));
    assert_eq!(engine.close(old), Err(unknown));
    assert_eq!(engine.fork(old, 0), Err(unknown));
    assert_eq!(engine.truncate(old, 0), Err(unknown));
    assert_eq!(engine.accept_path(old, &[]), Err(unknown));
    assert!(matches!(
        engine.step(&[feed(old, &text(1))]),
        Err(StepError::Sequence(_))
    ));
    assert_eq!(engine.len(new), Ok(6));
}

#[test]
fn logits_come_by_feed_and_row() {
    let mut engine = engine();
    let seqs: Vec<_> = (0..4).map(|_| engine.open(&[], Reuse::Off)).collect();
    let tokens = text(5);
    let wants = [Wants::All, Wants::None, Wants::Last, Wants::All];
    let feeds: Vec<_> = std::iter::zip(&seqs, wants)
        .map(|(seq, logits)| Feed {
            seq: *seq,
            tokens: &tokens,
            tree: None,
            logits,
        })
        .collect();
    let logits = engine.step(&feeds).unwrap();
    assert_eq!([0, 1, 2, 3].map(|i| logits.rows(i)), [5, 0, 1, 5]);
    assert_eq!(logits.last(1), None);
    assert_eq!(logits.last(2), Some(logits.row(0, 4)));
    for row in 0..5 {
        assert_eq!(logits.row(3, row), logits.row(0, row));
        assert_eq!(logits.row(0, row).len(), 64);
    }
    assert_ne!(logits.row(0, 3), logits.row(0, 4));
}

#[test]
fn an_accepted_path_becomes_part_of_the_trunk() {
    let mut engine = engine();
    let seq = with_text(&mut engine, 14);
    let nodes = [1, 2, 3, 4, 5].map(TokenId);
    engine
        .step(&[grow(seq, &nodes[..3], &[None, None, Some(1)])])
        .unwrap();
    // The tail goes on in a later step.
    engine
        .step(&[grow(seq, &nodes[3..], &[Some(2), Some(0)])])
        .unwrap();
    assert_eq!(
        (engine.len(seq).unwrap(), engine.tail(seq).unwrap()),
        (14, &nodes[..])
    );
    for (path, node) in [
        (&[0, 1][..], 1),
        (&[2], 2),
        (&[1, 2, 4], 4),
        (&[5], 5),
        (&[70], 70),
    ] {
        assert_eq!(
            engine.accept_path(seq, path),
            Err(SeqError::NotAPath { node })
        );
    }
    engine.accept_path(seq, &[1, 2, 3]).unwrap();
    let expected: Vec<_> = text(14).into_iter().chain([2, 3, 4].map(TokenId)).collect();
    assert_eq!(engine.tokens(seq).unwrap(), expected);
    assert_eq!(engine.tail(seq).unwrap(), []);
    assert_eq!(engine.usage().referenced, 2);
}

#[test]
fn an_unsound_step_is_an_error_that_changes_nothing() {
    let mut engine = with_pages(13);
    let seq = with_text(&mut engine, 90);
    let tree = with_text(&mut engine, 5);
    let long = text(95);
    engine
        .step(&[grow(tree, &long[..60], &[None; 60])])
        .unwrap();
    let other = engine.open(&[], SHARED);
    let before = engine.usage();
    let (nodes, unknown) = (&long[..5], [TokenId(64)]);
    let chain: Vec<_> = (0..11_u32).map(|node| node.checked_sub(1)).collect();
    let errors = [
        (vec![], "needs a feed"),
        (vec![feed(other, nodes), feed(seq, &[])], "needs a feed"),
        (
            vec![feed(other, nodes), feed(other, nodes)],
            "appears twice",
        ),
        (vec![feed(tree, nodes)], "open tree"),
        (
            vec![grow(tree, nodes, &[None; 5])],
            "65 nodes exceeds the limit of 64",
        ),
        (
            vec![grow(other, nodes, &[None; 4])],
            "5 tokens has 4 parents",
        ),
        (
            vec![grow(tree, &nodes[..2], &[Some(60), None])],
            "node 60 names node 60",
        ),
        (vec![feed(other, &unknown)], "outside the vocabulary of 64"),
        (vec![feed(seq, &long[..11])], "position 100 is past"),
        (vec![grow(seq, &long[..11], &chain)], "position 100 is past"),
        (
            vec![feed(seq, &long), feed(other, &long[..6])],
            "101 rows exceeds the limit of 100",
        ),
        (
            vec![feed(seq, &long[..10]), feed(other, &long[..17])],
            "needs 3 pages and 2 are free",
        ),
    ];
    for (feeds, message) in errors {
        let error = engine.step(&feeds).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(engine.usage(), before);
        assert_eq!(
            [seq, tree, other].map(|seq| engine.len(seq).unwrap()),
            [90, 5, 0]
        );
        assert_eq!(engine.tail(tree).unwrap().len(), 60);
    }
    engine
        .step(&[grow(tree, &nodes[..1], &[Some(59)])])
        .unwrap();
    engine.truncate(tree, 5).unwrap();
    engine.step(&[feed(tree, nodes)]).unwrap();
}

/// A device that fails when told to.
struct Failing {
    inner: SimRunner,
    fails: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl ModelRunner for Failing {
    fn info(&self) -> &RunnerInfo {
        self.inner.info()
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        self.inner.forward(plan, logits)?;
        if self.fails.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(RunnerError::Malformed("the device failed"));
        }
        Ok(())
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        self.inner.copy_pages(copies);
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        self.inner.move_slots(moves);
    }
}

#[test]
fn after_a_failure_of_the_device_the_step_can_be_repeated() {
    let fails = std::sync::Arc::default();
    let inner = SimRunner::new(options());
    let mut failing = Engine::new(Box::new(Failing {
        inner,
        fails: std::sync::Arc::clone(&fails),
    }));
    let mut sound = engine();
    let (nodes, more) = ([3, 4].map(TokenId), text(30));
    let mut rows = Vec::new();
    for engine in [&mut failing, &mut sound] {
        let seq = with_text(engine, 20);
        let fork = engine.fork(seq, 18).unwrap();
        let feeds = [feed(seq, &more), grow(fork, &nodes, &[None, Some(0)])];
        fails.store(true, std::sync::atomic::Ordering::Relaxed);
        if engine.step(&feeds).is_err() {
            assert_eq!([seq, fork].map(|seq| engine.len(seq).unwrap()), [20, 18]);
            assert!(engine.audit().is_ok() && engine.tail(fork).unwrap().is_empty());
            fails.store(false, std::sync::atomic::Ordering::Relaxed);
            engine.step(&feeds).unwrap();
        }
        engine.accept_path(fork, &[0, 1]).unwrap();
        let logits = engine
            .step(&[feed(fork, &nodes), feed(seq, &nodes)])
            .unwrap();
        rows.push([0, 1].map(|i| logits.row(i, 0).to_vec()));
    }
    assert_eq!(rows[0], rows[1]);
}
