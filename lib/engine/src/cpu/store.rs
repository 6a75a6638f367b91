//! The memory behind KV pages.
//!
//! Per layer, page and KV head: keys of the page's 16 slots, transposed so that one vector holds
//! one dimension of all slots, then values slot by slot, padded to whole vectors. In bf16 what is
//! multiplied together stands in pairs: two dimensions of a key, the values of two slots.
//!
//! ```text
//! f32   K[dim][16]         V[16][dim rounded up to 16]
//! bf16  K[dim/2][16][2]    V[8][dim rounded up to 16][2]
//! ```
//!
//! Not here: which sequence owns which page (`kv`), and what is visible to whom (`attention`).

use half::bf16;

use super::memory::{Buffer, Plain};
use super::simd::LANES;
use crate::runner::{PAGE_TOKENS, PageCopy, PageIndex, SlotMove, StepPlan};

/// Number format of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes, rounded to nearest even.
    Bf16,
}

/// Size of a [`KvStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model (or of this stage of it).
    pub layers: usize,
    /// Pages per layer.
    pub pages: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Dimensions of a head, a multiple of 8.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes that one page takes in all layers.
    pub fn page_bytes(&self, kind: KvType) -> usize {
        let value = match kind {
            KvType::F32 => 4,
            KvType::Bf16 => 2,
        };
        self.layers * self.kv_heads * self.block() * value
    }

    /// Values of one (layer, page, head): its keys and its values.
    pub(super) fn block(&self) -> usize {
        PAGE_TOKENS * (self.head_dim + self.padded_dim())
    }

    /// Values from one slot's values to the next.
    pub(super) fn padded_dim(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }
}

/// Where new keys and values stand in the rows that a fused QKV layer produced.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<'a> {
    /// The rows, one after the other.
    pub rows: &'a [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// Column of the first key (`kv_heads * head_dim` of them).
    pub key: usize,
    /// Column of the first value.
    pub value: usize,
}

/// All KV pages of all layers.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    pub(super) data: KvData,
}

/// Memory of a [`KvStore`] by number format.
#[derive(Debug)]
pub(super) enum KvData {
    F32(Buffer<f32>),
    Bf16(Buffer<u16>),
}

impl KvStore {
    /// A store of zeros. All of its memory is taken from the system at once: what there is no room for
    /// fails here, not under a request.
    pub fn new(shape: KvShape, kind: KvType) -> Self {
        let len = shape.layers * shape.pages * shape.kv_heads * shape.block();
        let data = match kind {
            KvType::F32 => KvData::F32(Buffer::zeroed(len)),
            KvType::Bf16 => KvData::Bf16(Buffer::zeroed(len)),
        };
        Self { shape, data }
    }

    /// Writes the keys and values of a step's rows to their slots.
    pub fn write_step(&mut self, layer: usize, plan: &StepPlan, from: &KvRows<'_>) {
        let mut row = 0;
        for sequence in &plan.sequences {
            let pages = &plan.pages[sequence.pages.clone()];
            for i in 0..sequence.rows as usize {
                let slot = sequence.first_slot as usize + i;
                let to = (pages[slot / PAGE_TOKENS], slot % PAGE_TOKENS);
                let at = row * from.stride;
                let width = self.shape.kv_heads * self.shape.head_dim;
                let keys = &from.rows[at + from.key..][..width];
                let values = &from.rows[at + from.value..][..width];
                self.write(layer, to, keys, values);
                row += 1;
            }
        }
    }

    /// Writes one slot: `kv_heads * head_dim` keys and as many values.
    pub fn write(&mut self, layer: usize, to: (PageIndex, usize), keys: &[f32], values: &[f32]) {
        let (page, slot) = to;
        for head in 0..self.shape.kv_heads {
            let at = self.block_at(layer, page, head);
            let (dim, padded) = (self.shape.head_dim, self.shape.padded_dim());
            let len = self.shape.block();
            let range = head * dim..(head + 1) * dim;
            let (keys, values) = (&keys[range.clone()], &values[range]);
            match &mut self.data {
                KvData::F32(data) => {
                    let block = &mut data[at..][..len];
                    let (k, v) = block.split_at_mut(PAGE_TOKENS * dim);
                    for (column, key) in k.chunks_exact_mut(PAGE_TOKENS).zip(keys) {
                        column[slot] = *key;
                    }
                    v[slot * padded..][..dim].copy_from_slice(values);
                }
                KvData::Bf16(data) => {
                    let block = &mut data[at..][..len];
                    let (k, v) = block.split_at_mut(PAGE_TOKENS * dim);
                    let pairs = k.chunks_exact_mut(2 * PAGE_TOKENS);
                    for (pair, keys) in pairs.zip(keys.chunks_exact(2)) {
                        pair[2 * slot] = bf16::from_f32(keys[0]).to_bits();
                        pair[2 * slot + 1] = bf16::from_f32(keys[1]).to_bits();
                    }
                    let pairs = v[slot / 2 * 2 * padded..].chunks_exact_mut(2);
                    for (pair, value) in pairs.zip(values) {
                        pair[slot % 2] = bf16::from_f32(*value).to_bits();
                    }
                }
            }
        }
    }

    /// Copies pages in order, in all layers.
    pub fn copy_pages(&mut self, copies: &[PageCopy]) {
        for copy in copies {
            for slot in 0..copy.slots as usize {
                self.move_slot((copy.from, slot), (copy.to, slot));
            }
        }
    }

    /// Moves slots in order, in all layers.
    pub fn move_slots(&mut self, moves: &[SlotMove]) {
        for step in moves {
            let (from, to) = (step.from, step.to);
            self.move_slot((from.0, from.1 as usize), (to.0, to.1 as usize));
        }
    }

    /// Size of the store.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Number format of the store.
    pub fn kind(&self) -> KvType {
        match self.data {
            KvData::F32(_) => KvType::F32,
            KvData::Bf16(_) => KvType::Bf16,
        }
    }

    /// Index of the first value of a (layer, page, head).
    pub(super) fn block_at(&self, layer: usize, page: PageIndex, head: usize) -> usize {
        let KvShape {
            layers,
            pages,
            kv_heads,
            ..
        } = self.shape;
        let page = page.0 as usize;
        assert!(
            layer < layers && page < pages && head < kv_heads,
            "KV block out of range"
        );
        ((layer * pages + page) * kv_heads + head) * self.shape.block()
    }

    fn move_slot(&mut self, from: (PageIndex, usize), to: (PageIndex, usize)) {
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.kv_heads {
                let source = (self.block_at(layer, from.0, head), from.1);
                let target = (self.block_at(layer, to.0, head), to.1);
                let dim = self.shape.head_dim;
                match &mut self.data {
                    KvData::F32(data) => move_within(data, source, target, (dim, 1)),
                    KvData::Bf16(data) => move_within(data, source, target, (dim, 2)),
                }
            }
        }
    }
}

/// Moves a slot between two blocks given as (start, slot), where `interleave` dimensions of keys and
/// as many slots of values stand together.
fn move_within<T: Plain>(
    data: &mut [T],
    from: (usize, usize),
    to: (usize, usize),
    (dim, interleave): (usize, usize),
) {
    for group in 0..dim / interleave {
        let column = group * PAGE_TOKENS * interleave;
        let source = from.0 + column + from.1 * interleave;
        data.copy_within(
            source..source + interleave,
            to.0 + column + to.1 * interleave,
        );
    }
    let padded = dim.next_multiple_of(LANES);
    let value = |(start, slot): (usize, usize), d: usize| {
        let line = slot / interleave * interleave * padded;
        start + PAGE_TOKENS * dim + line + d * interleave + slot % interleave
    };
    for d in 0..dim {
        data[value(to, d)] = data[value(from, d)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape {
        layers: 2,
        pages: 4,
        kv_heads: 3,
        head_dim: 24,
    };

    /// Keys and values of a slot, all layers and heads, as stored.
    fn read(store: &KvStore, page: u32, slot: usize) -> Vec<f32> {
        let dim = SHAPE.head_dim;
        let mut out = Vec::new();
        for layer in 0..SHAPE.layers {
            for head in 0..SHAPE.kv_heads {
                let at = store.block_at(layer, PageIndex(page), head);
                let get = |i: usize| match &store.data {
                    KvData::F32(data) => data[at + i],
                    KvData::Bf16(data) => bf16::from_bits(data[at + i]).to_f32(),
                };
                let key = |d: usize| match store.kind() {
                    KvType::F32 => d * PAGE_TOKENS + slot,
                    KvType::Bf16 => d / 2 * 2 * PAGE_TOKENS + 2 * slot + d % 2,
                };
                out.extend((0..dim).map(|d| get(key(d))));
                let value = |d: usize| match store.kind() {
                    KvType::F32 => slot * SHAPE.padded_dim() + d,
                    KvType::Bf16 => (slot / 2 * SHAPE.padded_dim() + d) * 2 + slot % 2,
                };
                out.extend((0..dim).map(|d| get(PAGE_TOKENS * dim + value(d))));
            }
        }
        out
    }

    fn filled(kind: KvType) -> KvStore {
        let mut store = KvStore::new(SHAPE, kind);
        let width = SHAPE.kv_heads * SHAPE.head_dim;
        for layer in 0..SHAPE.layers {
            for page in 0..SHAPE.pages {
                for slot in 0..PAGE_TOKENS {
                    let base = (layer * 1000 + page * 100 + slot) as f32;
                    let keys: Vec<f32> = (0..width).map(|i| base + i as f32 / 128.0).collect();
                    let values: Vec<f32> = keys.iter().map(|x| -x).collect();
                    store.write(layer, (PageIndex(page as u32), slot), &keys, &values);
                }
            }
        }
        store
    }

    #[test]
    fn slots_move_with_all_their_layers_and_heads_and_nothing_else_changes() {
        for kind in [KvType::F32, KvType::Bf16] {
            let before = filled(kind);
            let mut after = filled(kind);
            let (from, to) = ((PageIndex(1), 3), (PageIndex(2), 15));
            after.move_slots(&[SlotMove { from, to }]);
            assert_eq!(read(&after, 2, 15), read(&before, 1, 3));
            for (page, slot) in [(2, 14), (1, 3), (3, 0), (2, 0)] {
                assert_eq!(read(&after, page, slot), read(&before, page, slot));
            }
        }
    }

    #[test]
    fn a_page_copy_takes_the_first_slots_only() {
        for kind in [KvType::F32, KvType::Bf16] {
            let before = filled(kind);
            let mut after = filled(kind);
            after.copy_pages(&[PageCopy {
                from: PageIndex(0),
                to: PageIndex(3),
                slots: 5,
            }]);
            for slot in 0..PAGE_TOKENS {
                let source = if slot < 5 { 0 } else { 3 };
                assert_eq!(
                    read(&after, 3, slot),
                    read(&before, source, slot),
                    "slot {slot}"
                );
            }
        }
    }

    #[test]
    fn a_page_takes_the_bytes_that_the_shape_says() {
        let store = KvStore::new(SHAPE, KvType::Bf16);
        let KvData::Bf16(data) = &store.data else {
            panic!("bf16 asked for")
        };
        assert_eq!(data.len() * 2, SHAPE.pages * SHAPE.page_bytes(KvType::Bf16));
    }
}
