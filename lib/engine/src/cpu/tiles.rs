//! A unit that multiplies tiles: AMX, and for tests the same in plain Rust.
//!
//! What uses it is generic over the unit: tests run it on an emulation of the instructions (Intel's
//! architecture extensions reference), so that packing, addresses and edges are checked on machines
//! without the unit. What only such a machine checks is the instructions themselves.

#![expect(unsafe_code, reason = "tile instructions behind run-time detection")]

#[cfg(test)]
pub(super) mod emulated;

/// Lines of a tile, and values of 4 bytes of a line.
pub(super) const SIDE: usize = 16;

/// Lines and bytes of a line, of each tile.
pub(super) type Shapes = [(usize, usize); 8];

/// A unit with eight tiles of at most 16 lines of 64 bytes.
///
/// Of products the first factor has as many lines as the sum, the second a line for each 4 bytes of the
/// first one's lines.
///
/// # Safety
/// Pointers must be valid for the lines of the tile's shape, `stride` bytes apart.
pub(super) trait Unit {
    /// Clears tile `T`.
    unsafe fn zero<const T: usize>(&mut self);
    /// Loads tile `T`.
    unsafe fn load<const T: usize>(&mut self, from: *const u8, stride: usize);
    /// Adds the bf16 products of tiles `A` (rows by inputs) and `B` (inputs by outputs) to `C`.
    unsafe fn dot<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Adds the products of unsigned bytes `A` (rows by inputs) and signed ones `B` to `C`, in i32.
    unsafe fn dot_bytes<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Stores tile `T`.
    unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize);
}

/// Whether the processor has AMX for bf16 and int8, and the system lets this process use it.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_granted() -> bool {
    use std::sync::OnceLock;

    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(x86::request)
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Tiles;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    use super::{Shapes, Unit};

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
    pub(in super::super) struct Tiles(());

    /// Palette 1: eight tiles of up to 16 lines of 64 bytes.
    #[repr(C, align(64))]
    struct Palette([u8; 64]);

    impl Tiles {
        /// Configures the tiles of this thread.
        ///
        /// # Safety
        /// [`super::is_granted`] must have returned true, and shapes are of 1 to 16 lines of 1 to 64
        /// bytes.
        pub(in super::super) unsafe fn configured(shapes: &Shapes) -> Self {
            let mut palette = Palette([0; 64]);
            palette.0[0] = 1;
            for (tile, (lines, bytes)) in shapes.iter().enumerate() {
                palette.0[16 + 2 * tile] = *bytes as u8;
                palette.0[48 + tile] = *lines as u8;
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
            // SAFETY: the caller names valid lines.
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
        unsafe fn store<const T: usize>(&mut self, to: *mut u8, stride: usize) {
            // SAFETY: the caller names valid lines.
            unsafe {
                asm!(
                    "tilestored [{to} + {stride}*1], tmm{t}",
                    t = const T, to = in(reg) to, stride = in(reg) stride,
                    options(nostack, preserves_flags)
                );
            }
        }
    }
}
