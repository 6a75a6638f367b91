//! Zeroed buffers aligned for vector loads and, when large, for huge pages.

#![expect(
    unsafe_code,
    reason = "alignment beyond that of the element type needs the raw allocator"
)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of small buffers: one cache line, one AVX-512 register, one AMX tile row.
const LINE: usize = 64;
/// Alignment of large buffers: one huge page.
const HUGE: usize = 2 << 20;
/// Bytes of a region's blocks; what is never used of the last one is never brought to memory.
const BLOCK: usize = 16 * HUGE;

/// Plain numbers: any bit pattern, all zeros included, is a value.
///
/// # Safety
/// Implementors must have no padding, no invalid bit patterns and no drop glue.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: primitive numbers have no padding and no invalid bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for i16 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// One allocation.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is given back once, by whoever drops it last, and nothing is read or written through it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// At least one byte, and whatever is in there. Much of it asks the system for huge pages.
    fn new(bytes: usize) -> Arc<Self> {
        let align = if bytes >= HUGE { HUGE } else { LINE };
        let Ok(layout) = Layout::from_size_align(bytes.max(1), align) else {
            // More than any process has.
            handle_alloc_error(Layout::new::<u8>())
        };
        // SAFETY: the size is not 0, and `alloc` returns that much or nothing.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        if align == HUGE {
            // Before it is written to: pages that are there already stay small.
            // SAFETY: all of it was just allocated.
            unsafe { advise_huge_pages(start.as_ptr(), bytes) };
        }
        Arc::new(Self { start, layout })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Memory of buffers that are read one after the other, as a model's weights are: they lie side by side,
/// so that those that would not fill a huge page share one.
#[derive(Default)]
pub struct Region {
    block: Option<Arc<Memory>>,
    /// Bytes of the block that buffers have.
    used: usize,
}

impl Region {
    /// A buffer of `len` zeros behind the last one.
    pub fn zeroed<T: Plain>(&mut self, len: usize) -> Buffer<T> {
        let bytes = bytes_of::<T>(len);
        let end = self.used.saturating_add(bytes);
        let block = self.block.take().filter(|it| end <= it.layout.size());
        let block = block.unwrap_or_else(|| {
            self.used = 0;
            Memory::new(bytes.max(BLOCK))
        });
        let from = self.used;
        self.used = (from + bytes).next_multiple_of(LINE);
        self.block = Some(Arc::clone(&block));
        // SAFETY: there is room, and no other buffer has it.
        unsafe { Buffer::within(block, from, len) }
    }
}

/// A fixed-length buffer, zeroed when made, aligned to at least 64 bytes.
pub struct Buffer<T: Plain> {
    data: NonNull<T>,
    len: usize,
    /// Where it lies, unless it is empty.
    _memory: Option<Arc<Memory>>,
}

// SAFETY: the buffer owns its part of the memory, and `Plain` values may be sent and shared.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// A buffer of `len` zeros. Large ones ask the system for huge pages.
    pub fn zeroed(len: usize) -> Self {
        if len == 0 {
            return Self {
                data: NonNull::dangling(),
                len,
                _memory: None,
            };
        }
        // SAFETY: it has all of the memory.
        unsafe { Self::within(Memory::new(bytes_of::<T>(len)), 0, len) }
    }

    /// `len` zeros from byte `from` of some memory, a multiple of [`LINE`].
    ///
    /// # Safety
    /// They must lie within it, where no other buffer does.
    unsafe fn within(memory: Arc<Memory>, from: usize, len: usize) -> Self {
        // SAFETY: the caller's contract.
        let data = unsafe { memory.start.add(from).cast::<T>() };
        // SAFETY: as above; a `Plain` value may be zero, and is aligned as a line is.
        unsafe { data.write_bytes(0, len) };
        Self {
            data,
            len,
            _memory: Some(memory),
        }
    }
}

/// Bytes of `len` values.
fn bytes_of<T>(len: usize) -> usize {
    len.saturating_mul(size_of::<T>())
}

/// Asks for huge pages, which may be refused.
///
/// # Safety
/// The range must be the caller's.
unsafe fn advise_huge_pages(from: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: the caller's contract; the advice changes no contents.
    unsafe {
        libc::madvise(from.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (from, bytes);
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `data` points to `len` initialised values (or dangles with `len` 0).
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

impl<T: Plain> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl<T: Plain> Default for Buffer<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Plain> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} values)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB in huge pages of the mapping that `at` lies in.
    #[cfg(target_os = "linux")]
    fn huge_kib(at: *const u8) -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_here = false;
        for line in text.lines() {
            let first = line.split(' ').next().unwrap();
            let hex = |text| usize::from_str_radix(text, 16).ok();
            let range = first.split_once('-').map(|(a, b)| (hex(a), hex(b)));
            if let Some((Some(from), Some(to))) = range {
                is_here = (from..to).contains(&(at as usize));
            } else if is_here && first == "AnonHugePages:" {
                return line.split_whitespace().nth(1).unwrap().parse().unwrap();
            }
        }
        0
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_buffers_are_in_huge_pages_where_the_system_has_them() {
        const SIZE: usize = 32 << 20;
        // What the system gives when it is asked the plain way.
        // SAFETY: a new mapping, advised and written to within its size, and given back.
        let given = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory = libc::mmap(std::ptr::null_mut(), SIZE, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            libc::madvise(memory, SIZE, libc::MADV_HUGEPAGE);
            memory.cast::<u8>().write_bytes(0, SIZE);
            let given = huge_kib(memory.cast());
            libc::munmap(memory, SIZE);
            given
        };
        let buffer = Buffer::<u8>::zeroed(SIZE);
        let had = huge_kib(buffer.as_ptr());
        assert!(had >= given / 2, "{had} KiB of {given}");
        // Those that are smaller than a huge page, as a small model's layers are.
        let mut region = Region::default();
        let layers: Vec<Buffer<u8>> = (0..64).map(|_| region.zeroed(SIZE / 64 - LINE)).collect();
        let had = huge_kib(layers[0].as_ptr());
        assert!(had >= given / 2, "{had} KiB of {given} in a region");
    }

    #[test]
    fn buffers_of_a_region_lie_side_by_side_and_keep_its_memory() {
        let mut region = Region::default();
        let mut first: Buffer<u8> = region.zeroed(LINE + 1);
        let second: Buffer<f32> = region.zeroed(16);
        let none: Buffer<f32> = region.zeroed(0);
        let mut third: Buffer<u16> = region.zeroed(32);
        let at = |of: usize| of - first.as_ptr() as usize;
        assert_eq!(at(second.as_ptr() as usize), 2 * LINE);
        assert_eq!(at(third.as_ptr() as usize), 3 * LINE);
        assert!(none.is_empty());
        // More than a block, and more than is left of one.
        let large: Buffer<u8> = region.zeroed(BLOCK + 1);
        let half: Buffer<u8> = region.zeroed(BLOCK / 2 + 1);
        let other: Buffer<u8> = region.zeroed(BLOCK / 2);
        assert!(large.len() == BLOCK + 1 && half.len() + other.len() == BLOCK + 1);
        drop((region, none));
        first.fill(1);
        third.fill(3);
        assert!(second.iter().all(|x| x.to_bits() == 0));
        let copy = first.clone();
        drop(first);
        assert!(copy.iter().all(|x| *x == 1) && third.iter().all(|x| *x == 3));
        assert!(
            [large, half, other]
                .iter()
                .all(|b| b.iter().all(|x| *x == 0))
        );
    }

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for len in [1, 63, 1 << 20] {
            let buffer = Buffer::<f32>::zeroed(len);
            assert_eq!(buffer.as_ptr() as usize % LINE, 0);
            assert!(buffer.len() == len && buffer.iter().all(|x| x.to_bits() == 0));
        }
        assert!(Buffer::<u8>::zeroed(0).is_empty());
    }
}
