mod emulated;

use half::bf16;

use super::super::{KvShape, KvType};
use super::*;
use crate::isa::Isa;
use crate::runner::SequenceRows;

/// Deterministic values in -1..1.
fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[derive(Clone, Copy)]
struct Model {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
}

impl Model {
    fn store(&self, pages: usize, kind: KvType) -> KvStore {
        let (kv_heads, head_dim) = (self.kv_heads, self.dim);
        KvStore::new(
            KvShape {
                layers: 2,
                pages,
                kv_heads,
                head_dim,
            },
            kind,
        )
    }

    /// Key and value of a token, all KV heads.
    fn token(&self, token: u32) -> (Vec<f32>, Vec<f32>) {
        let width = self.kv_heads * self.dim;
        (noise(2 * token + 1, width), noise(2 * token + 2, width))
    }

    /// Query of a row, all heads.
    fn query(&self, token: u32) -> Vec<f32> {
        noise(1_000_003 + token, self.heads * self.dim)
            .iter()
            .map(|x| x * 4.0)
            .collect()
    }

    fn run(&self, cpu: &Cpu, plan: &StepPlan, kv: &KvStore, queries: &[u32]) -> Vec<f32> {
        self.attend(plan, kv, queries, |args, out| {
            cpu.attention(args, &mut AttentionScratch::default(), out);
        })
    }

    fn attend(
        &self,
        plan: &StepPlan,
        kv: &KvStore,
        queries: &[u32],
        attention: impl FnOnce(&AttentionArgs<'_>, &mut [f32]),
    ) -> Vec<f32> {
        let rows: Vec<f32> = queries
            .iter()
            .flat_map(|token| self.query(*token))
            .collect();
        let mut out = vec![f32::NAN; rows.len()];
        let args = AttentionArgs {
            plan,
            kv,
            layer: 1,
            rows: &rows,
            stride: self.heads * self.dim,
            query: 0,
            heads: self.heads,
            scale: (self.dim as f32).powf(-0.5),
            window: self.window,
        };
        attention(&args, &mut out);
        out
    }

    /// What a query gets that sees these tokens, in f64.
    fn naive(&self, query: u32, tokens: &[u32], kind: KvType) -> Vec<f64> {
        let stored = |x: f32| match kind {
            KvType::F32 => f64::from(x),
            KvType::Bf16 => bf16::from_f32(x).to_f64(),
        };
        let seen = self
            .window
            .map_or(0, |window| tokens.len().saturating_sub(window));
        let kv: Vec<_> = tokens[seen..]
            .iter()
            .map(|token| self.token(*token))
            .collect();
        let query = self.query(query);
        let mut out = Vec::new();
        for head in 0..self.heads {
            let at = head / (self.heads / self.kv_heads) * self.dim;
            let q = &query[head * self.dim..][..self.dim];
            let scores: Vec<f64> = kv
                .iter()
                .map(|(k, _)| {
                    let pairs = q.iter().zip(&k[at..]);
                    let dot: f64 = pairs.map(|(q, k)| f64::from(*q) * stored(*k)).sum();
                    dot / (self.dim as f64).sqrt()
                })
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..self.dim).map(|d| {
                let values = kv.iter().zip(&weights);
                values.map(|((_, v), w)| w * stored(v[at + d])).sum::<f64>() / total
            }));
        }
        out
    }
}

/// Writes tokens to consecutive slots of a page table.
fn write(model: &Model, kv: &mut KvStore, pages: &[PageIndex], first: usize, tokens: &[u32]) {
    for (i, token) in tokens.iter().enumerate() {
        let (page, slot) = page_of(first + i);
        let (k, v) = model.token(*token);
        kv.write(1, (pages[page], slot), &k, &v);
    }
}

fn sequence(rows: usize, first_slot: usize, pages: std::ops::Range<usize>) -> SequenceRows {
    SequenceRows {
        rows: rows as u32,
        first_slot: first_slot as u32,
        pages,
        tail: Tail::Causal,
    }
}

/// Compares; values are within +-1. Where queries and weights are rounded to bf16 as well, a score
/// may be off by 2^-9 of the sum of its products' magnitudes and a weight by 2^-9 of itself.
fn near(got: &[f32], exact: &[f64], (isa, kind): (Isa, KvType), context: &str) {
    let rounds = matches!(isa, Isa::Avx512Bf16 | Isa::Amx) && kind == KvType::Bf16;
    let within = if rounds { 1e-2 } else { 3e-6 };
    for (got, exact) in got.iter().zip(exact) {
        assert!(
            (f64::from(*got) - exact).abs() < within,
            "{isa} {kind:?} {context}: {got} {exact}"
        );
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

const MODELS: [Model; 6] = [
    Model {
        heads: 5,
        kv_heads: 1,
        dim: 64,
        window: None,
    },
    Model {
        heads: 4,
        kv_heads: 2,
        dim: 24,
        window: Some(37),
    },
    Model {
        heads: 3,
        kv_heads: 3,
        dim: 128,
        window: None,
    },
    Model {
        heads: 14,
        kv_heads: 2,
        dim: 80,
        window: Some(150),
    },
    Model {
        heads: 18,
        kv_heads: 1,
        dim: 96,
        window: Some(41),
    },
    Model {
        heads: 2,
        kv_heads: 1,
        dim: 8,
        window: Some(1),
    },
];

const KINDS: [KvType; 2] = [KvType::F32, KvType::Bf16];

/// How a model's attention is computed.
type Run<'a> = &'a dyn Fn(&Model, &StepPlan, &KvStore, &[u32]) -> Vec<f32>;

#[test]
fn causal_rows_agree_with_f64_at_every_length() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for model in MODELS {
            for kind in KINDS {
                agree(&model, (isa, kind), &|model, plan, kv, queries| {
                    model.run(&cpu, plan, kv, queries)
                });
            }
        }
    }
}

fn agree(model: &Model, (isa, kind): (Isa, KvType), run: Run<'_>) {
    let pages: Vec<PageIndex> = (0..20).rev().map(PageIndex).collect();
    let tokens: Vec<u32> = (0..300).collect();
    let mut kv = model.store(20, kind);
    write(model, &mut kv, &pages, 0, &tokens);
    for (first, rows) in [(0, 1), (0, 20), (15, 3), (127, 2), (250, 50)] {
        let plan = StepPlan {
            sequences: vec![sequence(rows, first, 0..20)],
            pages: pages.clone(),
            ..StepPlan::default()
        };
        let queries = &tokens[first..first + rows];
        let out = run(model, &plan, &kv, queries);
        for (i, out) in out.chunks_exact(model.heads * model.dim).enumerate() {
            let seen = &tokens[..=first + i];
            let exact = model.naive(queries[i], seen, kind);
            near(out, &exact, (isa, kind), &format!("row {}", first + i));
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_in_blocks_and_beside_other_sequences() {
    let pages: Vec<PageIndex> = (0..40).map(PageIndex).collect();
    for isa in Isa::available() {
        let cpus = [1, 3].map(|threads| Cpu::new(isa, threads, &[]).unwrap());
        for model in MODELS {
            for kind in KINDS {
                let width = model.heads * model.dim;
                let tokens: Vec<u32> = (0..290).collect();
                let mut kv = model.store(40, kind);
                // The second copy lies in pages of other numbers, in reverse.
                let reversed: Vec<PageIndex> = pages[20..].iter().rev().copied().collect();
                write(&model, &mut kv, &pages[..20], 0, &tokens);
                write(&model, &mut kv, &reversed, 0, &tokens);
                let table = [&pages[..20], &reversed].concat();
                let mut alone = Vec::new();
                for slot in 240..290 {
                    let sequences = vec![sequence(1, slot, 0..20)];
                    let plan = StepPlan {
                        sequences,
                        pages: table.clone(),
                        ..StepPlan::default()
                    };
                    alone.extend(model.run(&cpus[0], &plan, &kv, &tokens[slot..=slot]));
                }
                for (rows, cpu) in [
                    (2, 0),
                    (5, 0),
                    (6, 0),
                    (7, 0),
                    (8, 0),
                    (8, 1),
                    (50, 0),
                    (50, 1),
                ] {
                    let sequences = vec![
                        sequence(3, 7, 20..40),
                        sequence(rows, 240, 20..40),
                        sequence(1, 0, 0..20),
                    ];
                    let plan = StepPlan {
                        sequences,
                        pages: table.clone(),
                        ..StepPlan::default()
                    };
                    let queries = [&tokens[7..10], &tokens[240..240 + rows], &tokens[..1]].concat();
                    let out = model.run(&cpus[cpu], &plan, &kv, &queries);
                    let block = &out[3 * width..][..rows * width];
                    assert!(
                        same_bits(block, &alone[..rows * width]),
                        "{isa} {kind:?} {rows} rows"
                    );
                }
            }
        }
    }
}

/// A tree over a trunk: token i of the tail and its parent within the tail.
const TREE: [(u32, Option<usize>); 9] = [
    (900, None),
    (901, None),
    (902, Some(0)),
    (903, Some(1)),
    (904, Some(0)),
    (905, Some(2)),
    (906, Some(3)),
    (907, Some(5)),
    (908, Some(5)),
];

/// Tail indices from the root to node i, itself included.
fn path(mut i: usize) -> Vec<usize> {
    let mut path = vec![i];
    while let Some(parent) = TREE[i].1 {
        path.insert(0, parent);
        i = parent;
    }
    path
}

#[test]
fn a_branch_of_a_tree_has_the_bits_of_the_same_tokens_in_a_row() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        for model in MODELS {
            for kind in KINDS {
                branch(&model, (isa, kind), &|model, plan, kv, queries| {
                    model.run(&cpu, plan, kv, queries)
                });
            }
        }
    }
}

fn branch(model: &Model, (isa, kind): (Isa, KvType), run: Run<'_>) {
    let pages: Vec<PageIndex> = (0..12).map(PageIndex).collect();
    for trunk in [0, 1, 30, 121, 125, 128, 160] {
        let width = model.heads * model.dim;
        let tokens: Vec<u32> = (0..trunk as u32).collect();
        let tail: Vec<u32> = TREE.iter().map(|(token, _)| *token).collect();
        let mut kv = model.store(12, kind);
        write(model, &mut kv, &pages, 0, &tokens);
        write(model, &mut kv, &pages, trunk, &tail);
        // The last five nodes run in this step, the others ran before.
        let bits = |i| {
            path(i)
                .into_iter()
                .fold(0_u64, |mask, node| mask | 1 << node)
        };
        let mut rows = sequence(5, trunk + 4, 0..12);
        rows.tail = Tail::Tree {
            trunk_len: trunk as u32,
            masks: 0..5,
        };
        // Whether a row's own bit is set makes no difference.
        let ancestors = (4..9)
            .map(|i| bits(i) & !(u64::from(i == 6) << i))
            .collect();
        let plan = StepPlan {
            sequences: vec![rows],
            pages: pages.clone(),
            ancestors,
            ..StepPlan::default()
        };
        let out = run(model, &plan, &kv, &tail[4..]);
        for (i, out) in (4..9).zip(out.chunks_exact(width)) {
            let branch: Vec<u32> = path(i).into_iter().map(|node| tail[node]).collect();
            let mut straight = model.store(12, kind);
            write(model, &mut straight, &pages, 0, &tokens);
            write(model, &mut straight, &pages, trunk, &branch);
            let sequences = vec![sequence(1, trunk + branch.len() - 1, 0..12)];
            let plan = StepPlan {
                sequences,
                pages: pages.clone(),
                ..StepPlan::default()
            };
            let chain = run(model, &plan, &straight, &tail[i..=i]);
            assert!(
                same_bits(out, &chain),
                "{isa} {kind:?} trunk {trunk} node {i}"
            );
            let seen = [&tokens[..], &branch].concat();
            let exact = model.naive(tail[i], &seen, kind);
            near(out, &exact, (isa, kind), "tree");
        }
    }
}

#[test]
fn trees_of_two_sequences_in_a_step_have_the_bits_that_each_has_alone() {
    let pages: Vec<PageIndex> = (0..24).map(PageIndex).collect();
    let tree = |trunk: usize, pages, masks| SequenceRows {
        tail: Tail::Tree {
            trunk_len: trunk as u32,
            masks,
        },
        ..sequence(9, trunk, pages)
    };
    let step = |sequences, ancestors| StepPlan {
        sequences,
        pages: pages.clone(),
        ancestors,
        ..StepPlan::default()
    };
    let bits = |i| path(i).into_iter().fold(0, |mask, node| mask | 1 << node);
    let (branches, chain): (Vec<u64>, Vec<u64>) = (0..9).map(|i| (bits(i), (2 << i) - 1)).unzip();
    let both = step(
        vec![
            tree(121, 0..12, 0..9),
            sequence(1, 7, 0..12),
            tree(30, 12..24, 9..18),
        ],
        [&branches[..], &chain].concat(),
    );
    let first = step(vec![tree(121, 0..12, 0..9)], branches);
    let second = step(vec![tree(30, 12..24, 0..9)], chain);
    let (one, other): (Vec<u32>, Vec<u32>) = ((0..130).collect(), (500..539).collect());
    let queries = [&one[121..], &one[7..8], &other[30..]].concat();
    for isa in Isa::available() {
        let cpus = [1, 3].map(|threads| Cpu::new(isa, threads, &[]).unwrap());
        for model in MODELS {
            for kind in KINDS {
                let mut kv = model.store(24, kind);
                write(&model, &mut kv, &pages[..12], 0, &one);
                write(&model, &mut kv, &pages[12..], 0, &other);
                let first = model.run(&cpus[0], &first, &kv, &one[121..]);
                let second = model.run(&cpus[0], &second, &kv, &other[30..]);
                for cpu in &cpus {
                    let out = model.run(cpu, &both, &kv, &queries);
                    let behind = out.len() - second.len();
                    let same = same_bits(&out[..first.len()], &first);
                    let same = same && same_bits(&out[behind..], &second);
                    assert!(same, "{isa} {kind:?} {} heads", model.heads);
                }
            }
        }
    }
}

#[test]
fn invisible_slots_may_hold_anything() {
    for isa in Isa::available() {
        let cpu = Cpu::new(isa, 1, &[]).unwrap();
        ignored(&|model, plan, kv, queries| model.run(&cpu, plan, kv, queries));
    }
}

/// Rows have the same bits whatever lies in slots after their own, written in the same step or never.
fn ignored(run: Run<'_>) {
    let model = MODELS[0];
    let pages: Vec<PageIndex> = (0..4).map(PageIndex).collect();
    let plan = |first, rows| StepPlan {
        sequences: vec![sequence(rows, first, 0..4)],
        pages: pages.clone(),
        ..StepPlan::default()
    };
    let tokens: Vec<u32> = (0..24).collect();
    let mut kv = model.store(4, KvType::Bf16);
    write(&model, &mut kv, &pages, 0, &tokens[..20]);
    let clean = run(&model, &plan(18, 2), &kv, &tokens[18..20]);
    for poison in [f32::NAN, f32::INFINITY] {
        let poison = vec![poison; model.dim];
        for slot in 20..32 {
            kv.write(1, (pages[1], slot % 16), &poison, &poison);
        }
        let alone = run(&model, &plan(18, 2), &kv, &tokens[18..20]);
        assert!(same_bits(&alone, &clean));
        let beside = run(&model, &plan(18, 6), &kv, &tokens[18..]);
        assert!(same_bits(&beside[..clean.len()], &clean));
    }
}
