//! Attention by the tile unit in plain Rust.

use super::super::super::simd::Simd;
use super::super::super::simd::portable::Portable;
use super::super::super::tiles::emulated::Tiles;
use super::super::block::attend;
use super::super::stored::Form;
use super::super::tiles::{Tiled, fits, shapes};
use super::*;

/// A stored value; queries and weights are rounded as it is.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Rounded(u16);

fn word(pair: &[f32]) -> u32 {
    let bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
    bits(pair[0]) | bits(pair[1]) << 16
}

// SAFETY: no special instructions.
unsafe impl Form<Portable> for Rounded {
    fn words(dim: usize) -> usize {
        dim / 2
    }

    unsafe fn put_query(to: &mut Vec<u32>, query: &[f32], scale: f32) {
        let query: Vec<f32> = query.iter().map(|x| x * scale).collect();
        to.extend(query.chunks(2).map(word));
    }

    unsafe fn put_weights(to: *mut f32, at: usize, weights: <Portable as Simd>::F) {
        for (i, pair) in weights.chunks(2).enumerate() {
            // SAFETY: the caller names room for 16 weights at `at`, so for 8 words at `at / 2`.
            unsafe { to.add(at / 2 + i).cast::<u32>().write(word(pair)) }
        }
    }
}

fn run(model: &Model, plan: &StepPlan, kv: &KvStore, queries: &[u32]) -> Vec<f32> {
    let KvData::Bf16(data) = &kv.data else {
        panic!("tiles take bf16");
    };
    // SAFETY: `Rounded` is a `u16`.
    let data = unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), data.len()) };
    model.attend(plan, kv, queries, |args, out| {
        let mut tasks = Vec::new();
        let cpu = Cpu::new(Isa::Portable, 1, &[]).unwrap();
        cpu.divide(args, &mut tasks);
        for task in tasks {
            let run = super::super::Run {
                args,
                task,
                out: out.as_mut_ptr(),
            };
            let unit = Tiles::configured(&shapes(task.queries));
            // SAFETY: shapes fit, and the emulation runs anywhere.
            unsafe { attend::<Portable, Rounded, _>(&run, data, Tiled(unit)) }
        }
    })
}

#[test]
fn tiles_agree_with_f64_and_branches_have_the_bits_of_rows() {
    for model in MODELS.into_iter().filter(|model| fits(model.dim)) {
        agree(&model, (Isa::Amx, KvType::Bf16), &run);
        branch(&model, (Isa::Amx, KvType::Bf16), &run);
    }
}

#[test]
fn what_a_row_does_not_see_changes_nothing() {
    ignored(&run);
}
