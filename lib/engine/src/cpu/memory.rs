//! Zeroed buffers aligned for vector loads and, when large, for huge pages.

#![expect(
    unsafe_code,
    reason = "alignment beyond that of the element type needs the raw allocator"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
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
        // SAFETY: `layout_of` never returns a layout of size 0.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(data) = NonNull::new(raw.cast::<T>()) else {
            handle_alloc_error(layout)
        };
        #[cfg(target_os = "linux")]
        if layout.align() == HUGE {
            // SAFETY: the range is ours; the advice changes no contents, and may be refused.
            unsafe { libc::madvise(raw.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Self { data, len }
    }
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
