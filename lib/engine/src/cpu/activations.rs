//! Rows that go into linear layers, with the reduced forms some kernels want.

use super::memory::Buffer;

/// Rows that buffers of reduced forms are padded to: those of an AMX tile.
pub(super) const TILE_ROWS: usize = 16;

/// Rows of f32 with their bf16 or int8 form, which is made once, at the first layer that wants
/// it, and reused by all layers that read the same rows (Q, K and V; gate and up).
#[derive(Clone, Debug, Default)]
pub struct Activations {
    rows: usize,
    cols: usize,
    values: Buffer<f32>,
    /// bf16 form: stride [`Activations::padded_cols`], rows padded to 16, zeros in between.
    pub(super) bf16: Buffer<u16>,
    pub(super) bf16_ready: bool,
    /// int8 form: stride [`Activations::padded_cols`], rows padded to 16, with one scale per row and
    /// group.
    pub(super) int8: Buffer<u8>,
    pub(super) int8_scales: Buffer<f32>,
    /// The int8 form in 16 bits, for paths that multiply so.
    pub(super) words: Buffer<i16>,
    pub(super) int8_ready: bool,
}

impl Activations {
    /// Room for `max_rows` rows of `max_cols`, so that later steps do not allocate.
    pub fn new(max_rows: usize, max_cols: usize) -> Self {
        let mut made = Self::default();
        made.begin(max_rows, max_cols);
        made
    }

    /// Starts `rows` new rows of `cols` and returns them to be written, row after row. Their
    /// contents are stale until then. Grows (and so allocates) only past the largest use so far.
    pub fn begin(&mut self, rows: usize, cols: usize) -> &mut [f32] {
        (self.rows, self.cols) = (rows, cols);
        self.bf16_ready = false;
        self.int8_ready = false;
        let wanted = rows * cols;
        if self.values.len() < wanted {
            self.values = Buffer::zeroed(wanted);
        }
        &mut self.values[..wanted]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All rows, one after the other.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.rows * self.cols]
    }

    /// Columns of the reduced forms: `cols` rounded up to 64, the depth of an int8 tile.
    pub(super) fn padded_cols(&self) -> usize {
        self.cols.next_multiple_of(64)
    }
}
