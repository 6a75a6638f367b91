//! The tile unit in plain Rust, for tests of everything around the instructions.

use half::bf16;

use super::{SIDE, Shapes, Unit};

/// Bytes of a line, at most.
const LINE: usize = 64;

/// Eight tiles.
pub(in crate::cpu) struct Tiles {
    shapes: Shapes,
    data: [[u8; SIDE * LINE]; 8],
}

impl Tiles {
    /// Tiles of these shapes.
    pub(in crate::cpu) fn configured(shapes: &Shapes) -> Self {
        Self {
            shapes: *shapes,
            data: [[0; SIDE * LINE]; 8],
        }
    }

    fn bf16(&self, tile: usize, line: usize, i: usize) -> f32 {
        let at = line * LINE + i * 2;
        bf16::from_le_bytes([self.data[tile][at], self.data[tile][at + 1]]).to_f32()
    }

    fn four(&self, tile: usize, i: usize) -> [u8; 4] {
        self.data[tile][i * 4..].first_chunk().copied().unwrap()
    }

    /// Lines of the sum, values of its lines, and values of the first factor's, all of 4 bytes.
    fn sizes(&self, c: usize, a: usize, b: usize) -> [usize; 3] {
        let [c, a, b] = [c, a, b].map(|tile| self.shapes[tile]);
        assert_eq!((c.0, a.1, c.1), (a.0, 4 * b.0, b.1), "shapes of a product");
        [c.0, c.1 / 4, b.0]
    }
}

impl Unit for Tiles {
    unsafe fn zero<const T: usize>(&mut self) {
        self.data[T] = [0; SIDE * LINE];
    }

    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
        let (lines, bytes) = self.shapes[T];
        for (line, to) in self.data[T].chunks_exact_mut(LINE).enumerate().take(lines) {
            // SAFETY: the caller names the tile's lines.
            unsafe { to.as_mut_ptr().copy_from(from.add(line * stride), bytes) }
        }
    }

    // TDPBF16PS: even and odd products are summed apart, then added to the accumulator.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
        let [lines, values, inputs] = self.sizes(C, A, B);
        for m in 0..lines {
            for n in 0..values {
                let (mut even, mut odd) = (0.0_f32, 0.0_f32);
                for k in 0..inputs {
                    even += self.bf16(A, m, 2 * k) * self.bf16(B, k, 2 * n);
                    odd += self.bf16(A, m, 2 * k + 1) * self.bf16(B, k, 2 * n + 1);
                }
                let i = m * SIDE + n;
                let sum = f32::from_le_bytes(self.four(C, i)) + (even + odd);
                self.data[C][i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }

    unsafe fn dot_bytes<const C: usize, const A: usize, const B: usize>(&mut self) {
        let [lines, values, inputs] = self.sizes(C, A, B);
        for m in 0..lines {
            for n in 0..values {
                let i = m * SIDE + n;
                let mut sum = i32::from_le_bytes(self.four(C, i));
                for k in 0..inputs {
                    let (x, w) = (self.four(A, m * SIDE + k), self.four(B, k * SIDE + n));
                    for (x, w) in x.into_iter().zip(w) {
                        sum += i32::from(x) * i32::from(w as i8);
                    }
                }
                self.data[C][i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }

    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
        let (lines, bytes) = self.shapes[T];
        for (line, from) in self.data[T].chunks_exact(LINE).enumerate().take(lines) {
            // SAFETY: the caller names the tile's lines.
            unsafe { to.add(line * stride).copy_from(from.as_ptr(), bytes) }
        }
    }
}
