//! Against itself: whatever computes a token's logits, their bits are the same.

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuRunner, KvType, WeightType};
use foretoken_engine::runner::{ModelRunner, PageCopy, PageIndex, SlotMove};

use crate::fixture::{self, Expected, NAMES};
use crate::sequence::{Rows, Sequence, assert_same_bits, causal, step};
use crate::shipped;

/// Runs a test on every path, model and number format.
fn everywhere(test: impl Fn(&mut CpuRunner, &[Vec<u32>], &str)) {
    let formats = [
        (WeightType::F32, KvType::F32),
        (WeightType::F32, KvType::Bf16),
        (WeightType::Bf16, KvType::F32),
        (WeightType::Bf16, KvType::Bf16),
        (WeightType::Int8, KvType::F32),
        (WeightType::Int8, KvType::Bf16),
    ];
    for isa in Isa::available() {
        for name in NAMES {
            let prompts = texts(&Expected::read(name));
            for (dtype, kv_dtype) in formats {
                let mut runner = fixture::load(&fixture::folder(name), isa, dtype, kv_dtype);
                test(
                    &mut runner,
                    &prompts,
                    &format!("{isa}, {name}, {dtype}, kv {kv_dtype}"),
                );
            }
        }
    }
}

/// Each prompt with its continuation: 56 tokens, past three pages and the sliding window.
fn texts(expected: &Expected) -> Vec<Vec<u32>> {
    let pairs = expected.prompts.iter().zip(&expected.greedy);
    pairs
        .map(|(prompt, greedy)| [prompt.as_slice(), greedy].concat())
        .collect()
}

/// Logits of every token, computed one token a step on fresh pages.
fn one_by_one(runner: &mut CpuRunner, text: &[u32]) -> Vec<Vec<f32>> {
    in_chunks(runner, text, 1, Sequence::new(0, text.len()))
}

/// The same, computed so many tokens a step.
fn in_chunks(
    runner: &mut CpuRunner,
    text: &[u32],
    chunk: usize,
    mut sequence: Sequence,
) -> Vec<Vec<f32>> {
    let chunks = text.chunks(chunk);
    chunks
        .flat_map(|tokens| step(runner, &mut [causal(&mut sequence, tokens)], true))
        .collect()
}

/// That any of these chunkings of a prefill gives the logits of single tokens.
fn assert_chunks_alike(runner: &mut CpuRunner, text: &[u32], chunks: &[usize], what: &str) {
    let alone = one_by_one(runner, text);
    for &chunk in chunks {
        let found = in_chunks(runner, text, chunk, Sequence::new(8, text.len()));
        assert_eq!(found.len(), alone.len());
        for (i, (row, wanted)) in found.iter().zip(&alone).enumerate() {
            let what = format!("{what}, chunks of {chunk}, token {i}");
            assert_same_bits(row, wanted, &what);
        }
    }
}

#[test]
fn any_chunking_of_a_prefill_gives_the_logits_of_single_tokens() {
    everywhere(|runner, texts, what| {
        let chunks = [2, 3, 5, 7, 8, 11, 16, 17, 24, 33, 56];
        assert_chunks_alike(runner, &texts[0], &chunks, what);
    });
}

/// Attention takes 128 positions at a time; of these a text has several.
#[test]
fn a_long_text_has_the_same_bits_however_it_is_read() {
    let text: Vec<u32> = (0..300).map(|i| (i * i * 7 + 5 * i) % 4096).collect();
    for name in ["target", "draft"] {
        for isa in Isa::available() {
            // The larger one takes too long elsewhere.
            if name == "target" && isa != Isa::best() {
                continue;
            }
            for dtype in [WeightType::F32, WeightType::Bf16, WeightType::Int8] {
                let folder = shipped::folder(name);
                let mut runner = fixture::load(&folder, isa, dtype, KvType::Bf16);
                let what = format!("{isa}, {name}, {dtype}");
                assert_chunks_alike(&mut runner, &text, &[6, 50, 128], &what);
            }
        }
    }
}

#[test]
fn asking_for_the_last_logits_alone_gives_the_same_bits() {
    everywhere(|runner, texts, what| {
        let all = step(
            runner,
            &mut [causal(&mut Sequence::new(0, 64), &texts[1])],
            true,
        );
        let last = step(
            runner,
            &mut [causal(&mut Sequence::new(8, 64), &texts[1])],
            false,
        );
        assert_eq!(last.len(), 1);
        assert_same_bits(&last[0], &all[texts[1].len() - 1], what);
    });
}

#[test]
fn sequences_of_a_ragged_batch_do_not_feel_each_other() {
    everywhere(|runner, texts, what| {
        let alone: Vec<_> = texts.iter().map(|text| one_by_one(runner, text)).collect();
        let mut sequences: Vec<_> = (0..4).map(|i| Sequence::new(10 + 4 * i, 64)).collect();
        // Each sequence starts at its own length, then steps of its own width.
        for (round, widths) in [[1, 20, 5, 16], [3, 1, 8, 2], [1, 1, 1, 1], [5, 2, 9, 4]]
            .into_iter()
            .enumerate()
        {
            let starts: Vec<usize> = sequences.iter().map(|s| s.len).collect();
            let mut batch: Vec<Rows<'_>> = Vec::new();
            for ((sequence, text), width) in sequences.iter_mut().zip(texts).zip(widths) {
                let from = sequence.len;
                batch.push(causal(sequence, &text[from..from + width]));
            }
            let mut found = step(runner, &mut batch, true).into_iter();
            for (i, (start, width)) in starts.into_iter().zip(widths).enumerate() {
                for (at, wanted) in alone[i].iter().enumerate().skip(start).take(width) {
                    let what = format!("{what}, round {round}, sequence {i}, token {at}");
                    assert_same_bits(&found.next().unwrap(), wanted, &what);
                }
            }
        }
    });
}

#[test]
fn the_layout_of_pages_does_not_matter() {
    everywhere(|runner, texts, what| {
        let plain = step(
            runner,
            &mut [causal(&mut Sequence::new(0, 64), &texts[2])],
            true,
        );
        let mut scattered = Sequence::on(vec![31, 7, 40, 5]);
        let (first, second) = texts[2].split_at(21);
        let mut found = step(runner, &mut [causal(&mut scattered, first)], true);
        found.extend(step(runner, &mut [causal(&mut scattered, second)], true));
        assert_eq!(found.len(), plain.len());
        for (i, (row, wanted)) in found.iter().zip(&plain).enumerate() {
            assert_same_bits(row, wanted, &format!("{what}, token {i}"));
        }
    });
}

/// A tree over the slots of a speculative tail, each row by its parent:
///
/// ```text
/// trunk -+- 0 -+- 2 --- 4
///        |     +- 5 --- 6
///        +- 1 --- 3
/// ```
const PARENTS: [Option<usize>; 7] = [None, None, Some(0), Some(1), Some(2), Some(0), Some(5)];

/// A tree of another shape: but for the first, no row sees what the same row of the other one does.
///
/// ```text
/// trunk --- 0 -+- 1 -+- 2
///              |     +- 3
///              +- 4
/// ```
const OTHER_PARENTS: [Option<usize>; 5] = [None, Some(0), Some(1), Some(1), Some(0)];

/// Slots on the way to a slot of a tree, itself included.
fn path_to(parents: &[Option<usize>], slot: usize) -> Vec<usize> {
    let mut path = vec![slot];
    while let Some(parent) = parents[path[0]] {
        path.insert(0, parent);
    }
    path
}

/// Logits of every node of a tree, each computed after its own path alone.
fn branches(
    runner: &mut CpuRunner,
    trunk: &[u32],
    tail: &[u32],
    parents: &[Option<usize>],
) -> Vec<Vec<f32>> {
    let slots = 0..parents.len();
    slots
        .map(|slot| {
            let branch = path_to(parents, slot).into_iter().map(|s| tail[s]);
            let text: Vec<u32> = trunk.iter().copied().chain(branch).collect();
            one_by_one(runner, &text).pop().unwrap()
        })
        .collect()
}

#[test]
fn every_branch_of_a_tree_has_the_logits_of_plain_decoding() {
    everywhere(|runner, texts, what| {
        let trunk = &texts[3][..21];
        let tail: Vec<u32> = texts[0][..PARENTS.len()].to_vec();
        let wanted = branches(runner, trunk, &tail, &PARENTS);
        // The whole tree in one step, and grown over three.
        for cuts in [vec![0, 7], vec![0, 2, 4, 7]] {
            let mut sequence = Sequence::new(20, 64);
            step(runner, &mut [causal(&mut sequence, trunk)], false);
            let mut found = Vec::new();
            for cut in cuts.windows(2) {
                let rows = Rows {
                    sequence: &mut sequence,
                    tokens: &tail[cut[0]..cut[1]],
                    tree: Some((trunk.len(), &PARENTS)),
                };
                found.extend(step(runner, &mut [rows], true));
            }
            assert_eq!(found.len(), wanted.len());
            for (slot, (row, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert_same_bits(row, wanted, &format!("{what}, {cuts:?}, slot {slot}"));
            }
        }
    });
}

#[test]
fn trees_of_two_sequences_and_a_row_of_a_third_do_not_feel_each_other_in_a_step() {
    everywhere(|runner, texts, what| {
        // The second tree begins in one page and ends in the next.
        let trunks = [&texts[3][..21], &texts[2][..13]];
        let tails = [&texts[0][..7], &texts[0][7..12]];
        let shapes = [PARENTS.as_slice(), &OTHER_PARENTS];
        let wanted = [0, 1].map(|i| branches(runner, trunks[i], tails[i], shapes[i]));
        let (third, fed) = (&texts[1], 33);
        let plain = one_by_one(runner, &third[..fed + 2]);
        // Both trees in one step, and grown over two.
        for cuts in [vec![[0, 0], [7, 5]], vec![[0, 0], [2, 4], [7, 5]]] {
            let mut sequences = [20, 30, 40].map(|page| Sequence::new(page, 64));
            for (sequence, text) in sequences
                .iter_mut()
                .zip([trunks[0], trunks[1], &third[..fed]])
            {
                step(runner, &mut [causal(sequence, text)], false);
            }
            for cut in cuts.windows(2) {
                let [first, second, other] = &mut sequences;
                let at = other.len;
                let grown = |sequence, i: usize| Rows {
                    sequence,
                    tokens: &tails[i][cut[0][i]..cut[1][i]],
                    tree: Some((trunks[i].len(), shapes[i])),
                };
                // With a causal row between them, the second tree's masks are not numbered like rows.
                let row = causal(other, &third[at..=at]);
                let found = step(runner, &mut [grown(first, 0), row, grown(second, 1)], true);
                let [first, second] = [0, 1].map(|i| &wanted[i][cut[0][i]..cut[1][i]]);
                let wanted = [first, &plain[at..=at], second].concat();
                assert_eq!(found.len(), wanted.len());
                for (row, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    assert_same_bits(found, wanted, &format!("{what}, {cuts:?}, row {row}"));
                }
            }
        }
    });
}

#[test]
fn a_compacted_path_continues_like_plain_decoding() {
    everywhere(|runner, texts, what| {
        // The tail spans two pages, so the moves cross them.
        let trunk = &texts[3][..13];
        let tail: Vec<u32> = texts[0][..PARENTS.len()].to_vec();
        let mut sequence = Sequence::new(20, 64);
        step(runner, &mut [causal(&mut sequence, trunk)], false);
        let tree = Some((trunk.len(), PARENTS.as_slice()));
        step(
            runner,
            &mut [Rows {
                sequence: &mut sequence,
                tokens: &tail,
                tree,
            }],
            false,
        );
        let path = path_to(&PARENTS, 6);
        let place = |slot: usize| (PageIndex(20 + slot as u32 / 16), slot as u32 % 16);
        let moves: Vec<SlotMove> = path
            .iter()
            .enumerate()
            .filter(|(to, from)| to != *from)
            .map(|(to, from)| SlotMove {
                from: place(trunk.len() + from),
                to: place(trunk.len() + to),
            })
            .collect();
        runner.move_slots(&moves);
        sequence.len = trunk.len() + path.len();
        let next = &texts[2][..3];
        let found = step(runner, &mut [causal(&mut sequence, next)], true);
        let accepted = path.iter().map(|s| tail[*s]);
        let text: Vec<u32> = trunk
            .iter()
            .copied()
            .chain(accepted)
            .chain(next.iter().copied())
            .collect();
        let wanted = one_by_one(runner, &text);
        assert_eq!(found.len(), wanted[wanted.len() - 3..].len());
        for (row, wanted) in found.iter().zip(&wanted[wanted.len() - 3..]) {
            assert_same_bits(row, wanted, what);
        }
    });
}

#[test]
fn a_fork_shares_full_pages_and_copies_the_last_one() {
    everywhere(|runner, texts, what| {
        let (trunk, rest) = texts[1].split_at(21);
        let mut parent = Sequence::new(20, 64);
        step(runner, &mut [causal(&mut parent, trunk)], false);
        runner.copy_pages(&[PageCopy {
            from: PageIndex(21),
            to: PageIndex(40),
            slots: 5,
        }]);
        let mut child = Sequence::on(vec![20, 40, 41, 42]);
        child.len = parent.len;
        // The parent goes another way first; the child must not see it.
        step(runner, &mut [causal(&mut parent, &texts[2][..9])], false);
        let found = step(runner, &mut [causal(&mut child, rest)], true);
        let wanted = one_by_one(runner, &texts[1]);
        assert_eq!(found.len(), wanted[21..].len());
        for (i, (row, wanted)) in found.iter().zip(&wanted[21..]).enumerate() {
            assert_same_bits(row, wanted, &format!("{what}, token {i}"));
        }
    });
}

#[test]
fn the_number_of_threads_does_not_matter() {
    for isa in Isa::available() {
        for dtype in [WeightType::F32, WeightType::Bf16, WeightType::Int8] {
            let logits = [1, 2, 3].map(|threads| {
                let options = foretoken_engine::model::CpuOptions {
                    dtype,
                    threads: Some(threads),
                    isa: Some(isa),
                    kv: foretoken_engine::model::KvSize::Pages(8),
                    max_rows: 64,
                    ..Default::default()
                };
                let mut runner = CpuRunner::load(&fixture::folder("qwen3"), &options).unwrap();
                let text = &texts(&Expected::read("qwen3"))[0];
                step(
                    &mut runner,
                    &mut [causal(&mut Sequence::new(0, 64), text)],
                    true,
                )
            });
            for rows in &logits[1..] {
                for (row, wanted) in rows.iter().zip(&logits[0]) {
                    assert_same_bits(row, wanted, &format!("{isa}, {dtype}"));
                }
            }
        }
    }
}
