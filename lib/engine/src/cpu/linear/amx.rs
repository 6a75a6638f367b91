//! bf16 panels against activations rounded to bf16, by AMX tiles.
//!
//! A tile of 16 rows costs what one row costs, so verification is free up to 16 rows. Panels have
//! the layout of the vector path: a weight tile is 16 pairs of inputs of half a panel, its lines
//! 128 bytes apart. An output is a chain of tile products over the inputs in order, whatever the
//! rows around it.
//!
//! The walk is generic over the tile unit: tests run it on an emulation of the instructions
//! (Intel's architecture extensions reference), so that packing, addresses and edges are checked
//! on machines without the unit. What only such a machine checks is the instructions themselves.

#![expect(unsafe_code, reason = "tile instructions behind run-time detection")]
#![cfg_attr(
    not(any(test, target_arch = "x86_64")),
    expect(dead_code, reason = "other processors have no such unit")
)]

use std::ops::Range;

use super::Job;

/// Rows of a tile, and vectors of 16 outputs.
const SIDE: usize = 16;
/// Inputs of a tile.
const DEPTH: usize = 32;
/// Bytes between the lines of a weight tile: a panel's line.
const LINE: usize = 128;

/// A unit with eight tiles of 16 lines of 64 bytes.
///
/// # Safety
/// Pointers must be valid for 16 lines of 64 bytes, `stride` bytes apart.
trait Unit {
    /// Clears tile `T`.
    unsafe fn zero<const T: usize>(&mut self);
    /// Loads tile `T`.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);
    /// Adds the bf16 products of tiles `A` (rows by inputs) and `B` (inputs by outputs) to `C`.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Stores tile `T`, lines of 16 f32 one after the other.
    unsafe fn store<const T: usize>(&mut self, to: *mut f32);
}

/// Multiplies some panels with all rows.
#[inline(always)]
unsafe fn walk<U: Unit>(unit: &mut U, job: &Job<'_>, panels: Range<usize>) {
    let rows = job.x.rows();
    // SAFETY: panels and rows exist (the caller's contract), and the bf16 form is padded to
    // whole tiles.
    unsafe {
        let mut panel = panels.start;
        while panel < panels.end {
            let two_panels = rows <= SIDE && panel + 1 < panels.end;
            if two_panels {
                one_by_four(unit, job, panel);
                panel += 2;
                continue;
            }
            for row in (0..rows).step_by(2 * SIDE) {
                if rows - row > SIDE {
                    two_by_two(unit, job, panel, row);
                } else {
                    one_by_two(unit, job, panel, row);
                }
            }
            panel += 1;
        }
    }
}

/// First weight tile of a panel and first activation tile of a row, with its stride in bytes.
#[inline(always)]
fn operands(job: &Job<'_>, panel: usize, row: usize) -> (*const u8, *const u8, usize) {
    let stride = job.x.padded_cols() * 2;
    let weights = job.w.data[panel * job.w.panel_bytes..].as_ptr();
    (
        weights,
        job.x.bf16[row * stride / 2..].as_ptr().cast(),
        stride,
    )
}

/// Up to 16 rows with two panels.
#[inline(always)]
unsafe fn one_by_four<U: Unit>(unit: &mut U, job: &Job<'_>, panel: usize) {
    let (weights, x, stride) = operands(job, panel, 0);
    // SAFETY: the caller's contract; all offsets stay within the two panels and the padded rows.
    unsafe {
        unit.zero::<0>();
        unit.zero::<1>();
        unit.zero::<2>();
        unit.zero::<3>();
        let next = weights.add(job.w.panel_bytes);
        for i in 0..job.w.inputs.div_ceil(DEPTH) {
            let at = i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH * 2), stride);
            unit.load::<5>(weights.add(at), LINE);
            unit.dot::<0, 4, 5>();
            unit.load::<6>(weights.add(at + LINE / 2), LINE);
            unit.dot::<1, 4, 6>();
            unit.load::<7>(next.add(at), LINE);
            unit.dot::<2, 4, 7>();
            unit.load::<5>(next.add(at + LINE / 2), LINE);
            unit.dot::<3, 4, 5>();
        }
        put::<U, 0>(unit, job, panel * 2, 0);
        put::<U, 1>(unit, job, panel * 2 + 1, 0);
        put::<U, 2>(unit, job, panel * 2 + 2, 0);
        put::<U, 3>(unit, job, panel * 2 + 3, 0);
    }
}

/// Up to 16 rows with one panel.
#[inline(always)]
unsafe fn one_by_two<U: Unit>(unit: &mut U, job: &Job<'_>, panel: usize, row: usize) {
    let (weights, x, stride) = operands(job, panel, row);
    // SAFETY: the caller's contract.
    unsafe {
        unit.zero::<0>();
        unit.zero::<1>();
        for i in 0..job.w.inputs.div_ceil(DEPTH) {
            let at = i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH * 2), stride);
            unit.load::<5>(weights.add(at), LINE);
            unit.dot::<0, 4, 5>();
            unit.load::<6>(weights.add(at + LINE / 2), LINE);
            unit.dot::<1, 4, 6>();
        }
        put::<U, 0>(unit, job, panel * 2, row);
        put::<U, 1>(unit, job, panel * 2 + 1, row);
    }
}

/// 17 to 32 rows with one panel.
#[inline(always)]
unsafe fn two_by_two<U: Unit>(unit: &mut U, job: &Job<'_>, panel: usize, row: usize) {
    let (weights, x, stride) = operands(job, panel, row);
    // SAFETY: the caller's contract.
    unsafe {
        unit.zero::<0>();
        unit.zero::<1>();
        unit.zero::<2>();
        unit.zero::<3>();
        let below = x.add(SIDE * stride);
        for i in 0..job.w.inputs.div_ceil(DEPTH) {
            let at = i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH * 2), stride);
            unit.load::<6>(weights.add(at), LINE);
            unit.dot::<0, 4, 6>();
            unit.load::<7>(weights.add(at + LINE / 2), LINE);
            unit.dot::<1, 4, 7>();
            unit.load::<5>(below.add(i * DEPTH * 2), stride);
            unit.dot::<2, 5, 6>();
            unit.dot::<3, 5, 7>();
        }
        put::<U, 0>(unit, job, panel * 2, row);
        put::<U, 1>(unit, job, panel * 2 + 1, row);
        put::<U, 2>(unit, job, panel * 2, row + SIDE);
        put::<U, 3>(unit, job, panel * 2 + 1, row + SIDE);
    }
}

/// Writes what of tile `T` is output: `vector` counts 16 outputs.
#[inline(always)]
unsafe fn put<U: Unit, const T: usize>(unit: &mut U, job: &Job<'_>, vector: usize, row: usize) {
    let mut sums = [0.0_f32; SIDE * SIDE];
    let first = vector * SIDE;
    let lanes = job.w.outputs.saturating_sub(first).min(SIDE);
    // SAFETY: `sums` holds a tile; rows and outputs are in range.
    unsafe {
        unit.store::<T>(sums.as_mut_ptr());
        for (r, sums) in sums
            .chunks_exact_mut(SIDE)
            .take(job.x.rows() - row)
            .enumerate()
        {
            if let Some(bias) = job.w.bias.get(first..first + SIDE) {
                for (sum, bias) in sums.iter_mut().zip(bias) {
                    *sum += bias;
                }
            }
            let to = job.y.add((row + r) * job.w.outputs + first);
            to.copy_from_nonoverlapping(sums.as_ptr(), lanes);
        }
    }
}

/// Multiplies some panels with all rows.
///
/// # Safety
/// As for [`Job::run`], with the bf16 form made.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: only packed for machines that have the unit and let this process use it.
    unsafe {
        let mut unit = x86::Tiles::configured();
        x86::enter(&mut unit, job, panels);
    }
}

/// Multiplies some panels with all rows.
///
/// # Safety
/// Never called: no other architecture packs for this format.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn run(_job: &Job<'_>, _panels: Range<usize>) {}

/// Whether the processor has AMX for bf16 and the system lets this process use it.
#[cfg(target_arch = "x86_64")]
pub(in crate::cpu) fn is_granted() -> bool {
    use std::sync::OnceLock;

    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(x86::request)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::ops::Range;

    use super::super::Job;
    use super::{Unit, walk};

    /// Bits of CPUID leaf 7, EDX: AMX-BF16, AMX-TILE.
    const FEATURES: u32 = 1 << 22 | 1 << 24;

    /// Asks the system for the tile registers, which it saves only for processes that asked.
    #[cfg(target_os = "linux")]
    pub(super) fn request() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        if !has_features() {
            return false;
        }
        // SAFETY: the call takes no pointers; an old system answers with an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }

    /// Elsewhere than on Linux the unit is not used.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn request() -> bool {
        false && has_features()
    }

    fn has_features() -> bool {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES
    }

    /// The processor's tiles, configured until dropped.
    pub(super) struct Tiles(());

    /// Palette 1: eight tiles of 16 lines of 64 bytes.
    #[repr(C, align(64))]
    struct Palette([u8; 64]);

    impl Tiles {
        /// Configures the tiles of this thread.
        ///
        /// # Safety
        /// [`super::is_granted`] must have returned true.
        pub(super) unsafe fn configured() -> Self {
            let mut palette = Palette([0; 64]);
            palette.0[0] = 1;
            for tile in 0..8 {
                palette.0[16 + 2 * tile] = 64;
                palette.0[48 + tile] = 16;
            }
            // SAFETY: the unit is there by contract; the palette is 64 bytes.
            unsafe {
                asm!(
                    "ldtilecfg [{}]", in(reg) &raw const palette,
                    options(nostack, readonly, preserves_flags)
                );
            }
            Self(())
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: configured by this thread; without release every context switch saves 8 KiB.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
        }
    }

    impl Unit for Tiles {
        #[inline(always)]
        unsafe fn zero<const T: usize>(&mut self) {
            // SAFETY: the tiles are configured.
            unsafe {
                asm!("tilezero tmm{t}", t = const T, options(nostack, nomem, preserves_flags));
            }
        }

        #[inline(always)]
        unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
            // SAFETY: the caller names 16 valid lines.
            unsafe {
                asm!(
                    "tileloadd tmm{t}, [{from} + {stride}*1]",
                    t = const T, from = in(reg) from, stride = in(reg) stride,
                    options(nostack, readonly, preserves_flags)
                );
            }
        }

        #[inline(always)]
        unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
            // SAFETY: the tiles are configured.
            unsafe {
                asm!(
                    "tdpbf16ps tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                    options(nostack, nomem, preserves_flags)
                );
            }
        }

        #[inline(always)]
        unsafe fn store<const T: usize>(&mut self, to: *mut f32) {
            // SAFETY: the caller names 16 valid lines.
            unsafe {
                asm!(
                    "tilestored [{to} + {stride}*1], tmm{t}",
                    t = const T, to = in(reg) to, stride = in(reg) 64_usize,
                    options(nostack, preserves_flags)
                );
            }
        }
    }

    /// Runs the walk on the processor's tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn enter(unit: &mut Tiles, job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { walk(unit, job, panels) }
    }
}

/// The tile unit in plain Rust, for tests of everything around the instructions.
#[cfg(test)]
pub(super) mod emulated {
    use half::bf16;

    use super::{Job, Range, SIDE, Unit, walk};

    /// Eight tiles.
    struct Tiles([[u8; 1024]; 8]);

    impl Tiles {
        fn bf16(&self, tile: usize, line: usize, i: usize) -> f32 {
            let at = line * 64 + i * 2;
            bf16::from_le_bytes([self.0[tile][at], self.0[tile][at + 1]]).to_f32()
        }

        fn f32(&self, tile: usize, i: usize) -> f32 {
            let four = self.0[tile][i * 4..].first_chunk().copied();
            f32::from_le_bytes(four.unwrap())
        }
    }

    impl Unit for Tiles {
        unsafe fn zero<const T: usize>(&mut self) {
            self.0[T] = [0; 1024];
        }

        unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize) {
            for (line, to) in self.0[T].chunks_exact_mut(64).enumerate() {
                // SAFETY: the caller names 16 lines of 64 bytes.
                unsafe { to.as_mut_ptr().copy_from(from.add(line * stride), 64) }
            }
        }

        // TDPBF16PS: even and odd products are summed apart, then added to the accumulator.
        unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self) {
            for m in 0..SIDE {
                for n in 0..SIDE {
                    let (mut even, mut odd) = (0.0_f32, 0.0_f32);
                    for k in 0..SIDE {
                        even += self.bf16(A, m, 2 * k) * self.bf16(B, k, 2 * n);
                        odd += self.bf16(A, m, 2 * k + 1) * self.bf16(B, k, 2 * n + 1);
                    }
                    let i = m * SIDE + n;
                    let sum = self.f32(C, i) + (even + odd);
                    self.0[C][i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }

        unsafe fn store<const T: usize>(&mut self, to: *mut f32) {
            for i in 0..SIDE * SIDE {
                // SAFETY: the caller names a tile.
                unsafe { *to.add(i) = self.f32(T, i) }
            }
        }
    }

    /// Multiplies all panels with all rows.
    ///
    /// # Safety
    /// As for [`super::run`].
    pub(in super::super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { walk(&mut Tiles([[0; 1024]; 8]), job, panels) }
    }
}
