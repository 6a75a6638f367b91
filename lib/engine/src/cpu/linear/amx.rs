//! Panels against activations by AMX tiles: bf16 by bf16, int8 by int8.
//!
//! A tile of 16 rows costs what one row costs, so verification is free up to 16 rows. Panels have
//! the layout of the vector paths: a weight tile is 16 pairs (bf16) or quads (int8) of inputs of half
//! a panel, its lines 128 bytes apart. An output is a chain of tile products over the inputs in order,
//! whatever the rows around it.
//!
//! The walks are generic over the tile unit: tests run them on an emulation of the instructions
//! (Intel's architecture extensions reference), so that packing, addresses and edges are checked
//! on machines without the unit. What only such a machine checks is the instructions themselves.

#![expect(unsafe_code, reason = "tile instructions behind run-time detection")]
#![cfg_attr(
    not(any(test, target_arch = "x86_64")),
    expect(dead_code, reason = "other processors have no such unit")
)]

mod bf16;
mod int8;

use std::{array, ops::Range};

use super::Job;

/// Rows of a tile, and vectors of 16 outputs.
const SIDE: usize = 16;
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
    /// Adds the products of unsigned bytes `A` (rows by inputs) and signed ones `B` to `C`, in i32.
    unsafe fn dot_bytes<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Stores tile `T`, lines of 16 values of 4 bytes one after the other.
    unsafe fn store<const T: usize>(&mut self, to: *mut u8);
}

/// Where a vector of outputs goes, row by row.
struct Output<'a> {
    first: *mut f32,
    /// From row to row.
    stride: usize,
    bias: Option<&'a [f32; SIDE]>,
    /// How many of them are output.
    lanes: usize,
}

impl<'a> Output<'a> {
    /// Of vector number `vector`, from `row` on.
    ///
    /// # Safety
    /// As for [`Job::run`]; the row exists, and so does the panel.
    #[inline(always)]
    unsafe fn of(job: &Job<'a>, vector: usize, row: usize) -> Self {
        let output = vector * SIDE;
        let bias = job.w.bias.get(output..);
        Self {
            // Past the end where nothing of it is output.
            first: job.y.wrapping_add(row * job.w.outputs + output),
            stride: job.w.outputs,
            bias: bias.and_then(<[f32]>::first_chunk),
            lanes: job.w.outputs.saturating_sub(output).min(SIDE),
        }
    }

    /// Writes row `r` of them.
    ///
    /// # Safety
    /// As for [`Output::of`].
    #[inline(always)]
    unsafe fn put(&self, r: usize, mut sums: [f32; SIDE]) {
        if let Some(bias) = self.bias {
            sums = array::from_fn(|lane| sums[lane] + bias[lane]);
        }
        let to = self.first.wrapping_add(r * self.stride);
        // SAFETY: these lanes of the row are output.
        unsafe {
            if self.lanes == SIDE {
                to.cast::<[f32; SIDE]>().write_unaligned(sums);
            } else {
                to.copy_from_nonoverlapping(sums.as_ptr(), self.lanes);
            }
        }
    }
}

/// Multiplies some panels of bf16 with all rows.
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

/// Multiplies some panels of bf16 with all rows.
///
/// # Safety
/// Never called: no other architecture packs for this format.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn run(_job: &Job<'_>, _panels: Range<usize>) {}

/// Multiplies some panels of int8 with all rows.
///
/// # Safety
/// As for [`Job::run`], with the int8 form made, unsigned.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run_bytes(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: the path is only taken on machines that have the unit and let this process use it.
    unsafe {
        let mut unit = x86::Tiles::configured();
        x86::enter_bytes(&mut unit, job, panels);
    }
}

/// Whether the processor has AMX for bf16 and int8, and the system lets this process use it.
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
    use super::{Unit, bf16, int8};

    /// Bits of CPUID leaf 7, EDX: AMX-BF16, AMX-TILE, AMX-INT8.
    const FEATURES: u32 = 1 << 22 | 1 << 24 | 1 << 25;

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
        unsafe fn dot_bytes<const C: usize, const A: usize, const B: usize>(&mut self) {
            // SAFETY: the tiles are configured.
            unsafe {
                asm!(
                    "tdpbusd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                    options(nostack, nomem, preserves_flags)
                );
            }
        }

        #[inline(always)]
        unsafe fn store<const T: usize>(&mut self, to: *mut u8) {
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

    /// Runs the walk over bf16 on the processor's tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn enter(unit: &mut Tiles, job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { bf16::walk(unit, job, panels) }
    }

    /// Runs the walk over int8 on the processor's tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn enter_bytes(unit: &mut Tiles, job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { int8::walk(unit, job, panels) }
    }
}

/// The tile unit in plain Rust, for tests of everything around the instructions.
#[cfg(test)]
pub(super) mod emulated {
    use half::bf16;

    use super::{Job, Range, SIDE, Unit};

    /// Eight tiles.
    struct Tiles([[u8; 1024]; 8]);

    impl Tiles {
        fn bf16(&self, tile: usize, line: usize, i: usize) -> f32 {
            let at = line * 64 + i * 2;
            bf16::from_le_bytes([self.0[tile][at], self.0[tile][at + 1]]).to_f32()
        }

        fn four(&self, tile: usize, i: usize) -> [u8; 4] {
            self.0[tile][i * 4..].first_chunk().copied().unwrap()
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
                    let sum = f32::from_le_bytes(self.four(C, i)) + (even + odd);
                    self.0[C][i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }

        unsafe fn dot_bytes<const C: usize, const A: usize, const B: usize>(&mut self) {
            for m in 0..SIDE {
                for n in 0..SIDE {
                    let i = m * SIDE + n;
                    let mut sum = i32::from_le_bytes(self.four(C, i));
                    for k in 0..SIDE {
                        let (x, w) = (self.four(A, m * SIDE + k), self.four(B, k * SIDE + n));
                        for (x, w) in x.into_iter().zip(w) {
                            sum += i32::from(x) * i32::from(w as i8);
                        }
                    }
                    self.0[C][i * 4..][..4].copy_from_slice(&sum.to_le_bytes());
                }
            }
        }

        unsafe fn store<const T: usize>(&mut self, to: *mut u8) {
            // SAFETY: the caller names a tile.
            unsafe { to.copy_from_nonoverlapping(self.0[T].as_ptr(), self.0[T].len()) }
        }
    }

    /// Multiplies some panels of bf16 with all rows.
    ///
    /// # Safety
    /// As for [`super::run`].
    pub(in super::super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { super::bf16::walk(&mut Tiles([[0; 1024]; 8]), job, panels) }
    }

    /// Multiplies some panels of int8 with all rows.
    ///
    /// # Safety
    /// As for [`super::run_bytes`].
    pub(in super::super) unsafe fn run_bytes(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { super::int8::walk(&mut Tiles([[0; 1024]; 8]), job, panels) }
    }
}
