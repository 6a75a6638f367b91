//! A step in the steady state allocates nothing, on whatever thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize, WeightType};
use foretoken_engine::runner::{Logits, ModelRunner, PageIndex, SequenceRows, StepPlan, Tail};
use foretoken_speculation::TokenId;

/// Of all threads: there is one test here, so none has anything else to do meanwhile.
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting what it is asked for.
struct Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// `rows` rows of a sequence that has `context` tokens, as a tree of siblings behind its first row
/// or as a chain.
fn plan(context: u32, rows: u32, tree: bool) -> StepPlan {
    let pages = (context + rows).div_ceil(16);
    StepPlan {
        tokens: (0..rows).map(|i| TokenId(3 + i)).collect(),
        positions: (0..rows)
            .map(|i| {
                if tree {
                    context + i.min(1)
                } else {
                    context + i
                }
            })
            .collect(),
        wants_logits: (0..rows).map(|i| i % 2 == 0).collect(),
        sequences: vec![SequenceRows {
            rows,
            first_slot: context,
            pages: 0..pages as usize,
            tail: if tree {
                Tail::Tree {
                    trunk_len: context,
                    masks: 0..rows as usize,
                }
            } else {
                Tail::Causal
            },
        }],
        pages: (0..pages).map(PageIndex).collect(),
        ancestors: if tree {
            (0..rows).map(|i| u64::from(i > 0)).collect()
        } else {
            Vec::new()
        },
    }
}

#[test]
fn a_step_allocates_nothing_once_the_largest_has_run() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    for isa in Isa::available() {
        for dtype in [WeightType::F32, WeightType::Bf16, WeightType::Int8] {
            for name in ["qwen3", "mistral-swa", "opt"] {
                let options = CpuOptions {
                    dtype,
                    threads: Some(2),
                    isa: Some(isa),
                    kv: KvSize::Pages(8),
                    max_rows: 32,
                    ..CpuOptions::default()
                };
                let mut runner = CpuRunner::load(&fixtures.join(name), &options).unwrap();
                let mut logits = Logits::default();
                for context in [0, 32, 64, 96] {
                    runner
                        .forward(&plan(context, 32, false), &mut logits)
                        .unwrap();
                }
                let steps = [
                    (40, 1, false),
                    (41, 7, true),
                    (96, 32, true),
                    (8, 20, false),
                ]
                .map(|(context, rows, tree)| plan(context, rows, tree));
                let mut allocations = || {
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    assert!(before > 0, "loading allocates, so the counter counts");
                    for step in &steps {
                        runner.forward(step, &mut logits).unwrap();
                    }
                    ALLOCATIONS.load(Ordering::Relaxed) - before
                };
                // A thread allocates when it begins, and others compute for it until it has.
                let mut in_a_row = 0;
                for _ in 0..100 {
                    let none = allocations() == 0;
                    in_a_row = if none { in_a_row + 1 } else { 0 };
                    if in_a_row == 10 {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(in_a_row, 10, "allocations on {isa} with {dtype}, {name}");
            }
        }
    }
}
