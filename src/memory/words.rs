//! Mapped memory as words.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{WORD, copy};
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// A mapping of a memory file. Its words are accessed by offsets in bytes, which are multiples of 8. One past the end panics.
pub(super) struct Words {
    base: NonNull<u64>,
    len: usize,
}

// SAFETY: this value owns the mapping, which lives as long as it does; all access goes through
// atomic words, or equivalent copies, by shared reference.
unsafe impl Send for Words {}
// SAFETY: as for `Send`: methods take `&self` and access the memory only atomically.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `len` bytes of a memory file.
    pub(super) fn map(
        file: impl AsFd,
        len: usize,
        is_writable: bool,
        populate: MapFlags,
    ) -> rustix::io::Result<Self> {
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | populate;
        // SAFETY: a new mapping at an address chosen by the kernel replaces no existing one.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) }?;
        // SAFETY: the range was mapped by the call above; the advice only keeps it out of core dumps.
        let advised = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        if let Err(errno) = advised {
            tracing::debug!(target: "fabricast", %errno, "region memory will appear in core dumps");
        }
        // The kernel chooses no address 0.
        let base = NonNull::new(base.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { base, len })
    }

    /// This many zeros on the heap: Miri maps no files.
    #[cfg(miri)]
    pub(super) fn new(words: usize) -> Self {
        let zeros: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let base = NonNull::from(Box::leak(zeros)).cast();
        Self { base, len: words * WORD }
    }

    /// Makes the pages of these bytes present, `offset` being where a page begins.
    pub(super) fn populate(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(len <= self.len - offset, "{len} bytes at {offset} of {} cannot be populated", self.len);
        let at = self.range(offset, 0).cast();
        // SAFETY: the range lies in the mapping, as `range` and the assertion check; present pages are unchanged, missing ones
        // become zeros.
        unsafe { rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite) }
    }

    /// Returns its length in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns its address.
    #[cfg(feature = "verbs")]
    pub(super) fn base(&self) -> NonNull<u64> {
        self.base
    }

    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        let word = self.range(offset, 1);
        // SAFETY: `range` checked that the word lies in the mapping and is aligned; the mapping lives as long as
        // `self`, whose lifetime the reference takes; all access to it is atomic. Of a mapping that is only readable, words are only
        // loaded: `Region` checks each store. For such memory the standard library promises relaxed loads of 8 bytes on 64-bit
        // processors. An acquire load is the same instruction on x86-64, and one that only reads (LDAR) on ARM64.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Returns the lower half of a word. A word used like this must not be used otherwise.
    #[inline]
    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        let word = self.range(offset, 1).cast();
        // SAFETY: `range` checked that the word lies in the mapping and is aligned, and so is its lower half; the mapping lives
        // as long as `self`, whose lifetime the reference takes; all access to it is atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }

    #[inline]
    pub(super) fn copy_out(&self, offset: usize, target: &mut [u64]) {
        let source = self.range(offset, target.len());
        // SAFETY: `range` checked bounds and alignment of the source, which is accessed only atomically; the
        // target is a private slice of the same number of words, so the two cannot overlap.
        unsafe { copy::across(source, target.as_mut_ptr(), target.len()) };
    }

    #[inline]
    pub(super) fn copy_out_chunks(&self, offset: usize, target: &mut [[u8; WORD]]) {
        let source = self.range(offset, target.len());
        // SAFETY: `range` checked bounds and alignment of the source, which is accessed only atomically; the target is a private slice
        // of the same number of 8-byte chunks, so the two cannot overlap.
        unsafe { copy::out(source, target.as_mut_ptr().cast(), target.len()) };
    }

    #[inline]
    pub(super) fn copy_in(&self, offset: usize, source: &[u64]) {
        let target = self.range(offset, source.len());
        // SAFETY: `range` checked bounds and alignment of the target, which is accessed only atomically; the
        // source is a private slice of the same number of words, so the two cannot overlap.
        unsafe { copy::in_(source.as_ptr().cast(), target, source.len()) };
    }

    #[inline]
    pub(super) fn copy_in_chunks(&self, offset: usize, source: &[[u8; WORD]]) {
        let target = self.range(offset, source.len());
        // SAFETY: `range` checked bounds and alignment of the target, which is accessed only atomically; the
        // source is a private slice of the same number of 8-byte chunks, so the two cannot overlap.
        unsafe { copy::in_(source.as_ptr().cast(), target, source.len()) };
    }

    /// Copies this many words to another mapping.
    #[inline]
    pub(super) fn copy_across(&self, offset: usize, target: &Self, target_offset: usize, words: usize) {
        let source = self.range(offset, words);
        let destination = target.range(target_offset, words);
        // SAFETY: `range` checked bounds and alignment of both, both are accessed only atomically, and two
        // regions are two mappings, so that they do not overlap.
        unsafe { copy::across(source, destination, words) };
    }

    /// Prefetches the cache line of this offset for writing.
    #[inline]
    pub(super) fn request_line(&self, offset: usize) {
        copy::request_line(self.base.as_ptr().wrapping_byte_add(offset));
    }

    /// Returns the address of `words` words at `offset`, all of them inside the region.
    #[inline]
    fn range(&self, offset: usize, words: usize) -> *mut u64 {
        let fits = offset <= self.len && words <= (self.len - offset) / WORD;
        assert!(
            fits && offset.is_multiple_of(WORD),
            "access to {words} words at {offset} of {} bytes",
            self.len
        );
        // SAFETY: `offset <= len`, so the result stays inside the mapping or one past its end.
        unsafe { self.base.as_ptr().byte_add(offset) }
    }
}

#[cfg(miri)]
impl Drop for Words {
    fn drop(&mut self) {
        let words = NonNull::slice_from_raw_parts(self.base.cast::<AtomicU64>(), self.len / WORD);
        // SAFETY: `new` leaked a box of so many words, which belongs to this value; nothing refers to it.
        drop(unsafe { Box::from_raw(words.as_ptr()) });
    }
}

#[cfg(not(miri))]
impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and belongs to this value; nothing refers to it, since
        // references to words borrow the value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        if let Err(errno) = unmapped {
            tracing::warn!(target: "fabricast", %errno, len = self.len, "cannot unmap a region");
        }
    }
}
