//! Zeroed buffers aligned for vector loads and, when large, for huge pages.

#![expect(
    unsafe_code,
    reason = "alignment beyond that of the element type needs the raw allocator"
)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of small buffers: one cache line, one AVX-512 register, one AMX tile row.
const LINE: usize = 64;
/// Alignment of large buffers: one huge page.
const HUGE: usize = 2 << 20;

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
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

/// A fixed-length buffer, zeroed when made, aligned to at least 64 bytes.
pub struct Buffer<T: Plain> {
    data: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its memory and `Plain` values may be sent and shared.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// A buffer of `len` zeros. Large ones ask the system for huge pages.
    pub fn zeroed(len: usize) -> Self {
        let Some(layout) = layout_of::<T>(len) else {
            return Self {
                data: NonNull::dangling(),
                len: 0,
            };
        };
        // SAFETY: `layout_of` never returns a layout of size 0, and `alloc` returns that much or nothing.
        let raw = unsafe {
            if layout.align() == HUGE {
                let raw = alloc(layout);
                if !raw.is_null() {
                    // Before it is written to: pages that are there already stay small.
                    advise_huge_pages(raw, layout.size());
                    raw.write_bytes(0, layout.size());
                }
                raw
            } else {
                alloc_zeroed(layout)
            }
        };
        let Some(data) = NonNull::new(raw.cast::<T>()) else {
            handle_alloc_error(layout)
        };
        Self { data, len }
    }
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

/// Layout of `len` values, or none if that is no memory.
fn layout_of<T>(len: usize) -> Option<Layout> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0)?;
    let align = if bytes >= HUGE { HUGE } else { LINE };
    Layout::from_size_align(bytes, align).ok()
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.len > 0
            && let Some(layout) = layout_of::<T>(self.len)
        {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.data.as_ptr().cast(), layout) };
        }
    }
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
