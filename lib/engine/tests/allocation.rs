//! A step in the steady state allocates nothing on the thread that runs it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize, WeightType};
use foretoken_engine::runner::{Logits, ModelRunner, PageIndex, SequenceRows, StepPlan, Tail};
use foretoken_speculation::TokenId;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks for.
struct Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
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
                let before = ALLOCATIONS.get();
                assert!(before > 0, "loading allocates, so the counter counts");
                for step in &steps {
                    runner.forward(step, &mut logits).unwrap();
                }
                let count = ALLOCATIONS.get() - before;
                assert_eq!(count, 0, "allocations on {isa} with {dtype}, {name}");
            }
        }
    }
}
