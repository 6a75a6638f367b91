//! Rings of bytes in mapped memory: the only code here that touches it.
//!
//! Each ring has one reader and one writer. Both count bytes from the beginning; a ring holds those
//! that were written and not yet read.

#![expect(unsafe_code, reason = "memory that another process has mapped too")]

use std::{
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

use memmap2::MmapRaw;

/// Bytes a ring holds. It is small so that it stays in the caches of both ends.
pub const CAPACITY: usize = 64 << 10;

/// Bytes of both rings and their counters.
pub(crate) const SIZE: usize = HEADS + 2 * CAPACITY;

/// Bytes of the counters of both rings: a page, so that rings begin at one.
const HEADS: usize = 4096;

/// Distance of values that different ends write: two lines of a cache, since lines are fetched in
/// pairs.
const APART: usize = 128;

/// The other end says to be where it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer broke the rules of a shared ring")]
pub struct Broken;

/// The end that takes bytes out.
#[derive(Debug)]
pub struct Reader {
    ring: Arc<Ring>,
    /// Bytes read so far.
    read: u64,
    /// Whether it said that it may sleep, and has not taken that back.
    drowsy: bool,
}

/// Tells from elsewhere whether a reader would find anything.
#[derive(Clone, Debug)]
pub struct Peek {
    ring: Arc<Ring>,
}

/// The end that puts bytes in.
#[derive(Debug)]
pub struct Writer {
    ring: Ring,
    /// Bytes written so far.
    written: u64,
}

/// One of the two rings of a mapping.
#[derive(Debug)]
struct Ring {
    map: Arc<MmapRaw>,
    which: usize,
}

impl Reader {
    /// The reader of the first or second ring of a fresh mapping of [`SIZE`] bytes.
    pub(crate) fn new(map: Arc<MmapRaw>, which: usize) -> Self {
        Self {
            ring: Arc::new(Ring::new(map, which)),
            read: 0,
            drowsy: false,
        }
    }

    /// Takes out as many bytes as there are, and as `buffer` has room for; how many.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Broken> {
        if std::mem::take(&mut self.drowsy) {
            self.ring.sleeps().store(0, Ordering::Relaxed);
        }
        let there = self.there()?;
        let len = there.min(buffer.len());
        if len > 0 {
            self.ring.copy_out(self.read, &mut buffer[..len]);
            self.read += len as u64;
            self.ring.read().store(self.read, Ordering::Release);
        }
        Ok(len)
    }

    /// Says that this end sleeps from now on, so that the writer wakes it once it has written; false
    /// if there is something to read already.
    pub fn may_sleep(&mut self) -> Result<bool, Broken> {
        self.drowsy = true;
        self.ring.sleeps().store(1, Ordering::Relaxed);
        // Either this end sees what was written, or the writer sees that this end sleeps.
        fence(Ordering::SeqCst);
        Ok(self.there()? == 0)
    }

    /// A way to ask whether there is anything to read without being at the reader.
    pub fn peek(&self) -> Peek {
        Peek {
            ring: Arc::clone(&self.ring),
        }
    }

    fn there(&self) -> Result<usize, Broken> {
        let written = self.ring.written().load(Ordering::Acquire);
        within(written.wrapping_sub(self.read))
    }
}

impl Peek {
    /// Whether there was anything to read just now.
    pub fn finds_any(&self) -> bool {
        // If either is wrong, reading finds it out.
        let read = self.ring.read().load(Ordering::Relaxed);
        self.ring.written().load(Ordering::Relaxed) != read
    }
}

impl Writer {
    /// The writer of the first or second ring of a fresh mapping of [`SIZE`] bytes.
    pub(crate) fn new(map: Arc<MmapRaw>, which: usize) -> Self {
        let ring = Ring::new(map, which);
        Self { ring, written: 0 }
    }

    /// Puts in as many of `bytes` as there is room for; how many.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let read = self.ring.read().load(Ordering::Acquire);
        let held = within(self.written.wrapping_sub(read))?;
        let len = bytes.len().min(CAPACITY - held);
        if len > 0 {
            self.ring.copy_in(self.written, &bytes[..len]);
            self.written += len as u64;
            self.ring.written().store(self.written, Ordering::Release);
        }
        Ok(len)
    }

    /// Whether the reader has gone to sleep and nobody has been asked to wake it yet. To be asked
    /// after writing.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let sleeps = self.ring.sleeps();
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }
}

/// Bytes in a ring, if that many can be.
fn within(bytes: u64) -> Result<usize, Broken> {
    usize::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= CAPACITY)
        .ok_or(Broken)
}

impl Ring {
    fn new(map: Arc<MmapRaw>, which: usize) -> Self {
        assert!(map.len() == SIZE && which < 2, "a mapping of both rings");
        Self { map, which }
    }

    /// Bytes written so far; the writer's.
    fn written(&self) -> &AtomicU64 {
        self.counter(0)
    }

    /// Bytes read so far; the reader's.
    fn read(&self) -> &AtomicU64 {
        self.counter(1)
    }

    /// Not 0: the reader sleeps, or is about to.
    fn sleeps(&self) -> &AtomicU32 {
        // SAFETY: as in `counter`, for a value of four bytes.
        unsafe { AtomicU32::from_ptr(self.value(2).cast()) }
    }

    fn counter(&self, place: usize) -> &AtomicU64 {
        // SAFETY: the value lies within the mapping, which lives as long as `self`, and is aligned
        // to more than its size, because mappings begin at pages. Both processes access it as an
        // atomic only; one that does not can only make it hold another number.
        unsafe { AtomicU64::from_ptr(self.value(place).cast()) }
    }

    /// Where a value of this ring's head is.
    fn value(&self, place: usize) -> *mut u8 {
        let offset = (3 * self.which + place) * APART;
        assert!(offset + APART <= HEADS, "a head has three values");
        self.map.as_mut_ptr().wrapping_add(offset)
    }

    /// Copies bytes out of the ring, the first of which is number `from`.
    fn copy_out(&self, from: u64, buffer: &mut [u8]) {
        let (first, second) = buffer.split_at_mut(buffer.len().min(CAPACITY - place(from)));
        for (from, part) in [(place(from), first), (0, second)] {
            assert!(from + part.len() <= CAPACITY, "a part lies in the ring");
            // SAFETY: source and destination are as long, by the assertion, and apart: the buffer
            // is no mapping. A writer that keeps to the rules has written the bytes before it
            // counted them, and does not touch them again before they are counted as read; one that
            // does not can only make them other bytes.
            unsafe {
                ptr::copy_nonoverlapping(self.data(from), part.as_mut_ptr(), part.len());
            }
        }
    }

    /// Copies bytes into the ring, the first of which will be number `to`.
    fn copy_in(&self, to: u64, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len().min(CAPACITY - place(to)));
        for (to, part) in [(place(to), first), (0, second)] {
            assert!(to + part.len() <= CAPACITY, "a part lies in the ring");
            // SAFETY: as in `copy_out`; nobody but this writer writes here.
            unsafe {
                ptr::copy_nonoverlapping(part.as_ptr(), self.data(to), part.len());
            }
        }
    }

    /// Where a byte of the ring is.
    fn data(&self, place: usize) -> *mut u8 {
        let offset = HEADS + self.which * CAPACITY + place;
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

/// Where in its ring byte number `count` is.
fn place(count: u64) -> usize {
    (count % CAPACITY as u64) as usize
}
