use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{LINE, WORD, copy, remedy};
use crate::limits;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the file system of memory files with huge pages calls itself (`statfs(2)`).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58F6;

/// What another process may do with a region that it is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Read it. The memory file is sealed: nobody but the owner can ever map it for writing.
    PeersRead,
    /// Read and write it.
    PeersWrite,
    /// One peer writes it, after it has sealed the file against giving up pages ([`Region::import_to_write`]): the file can still
    /// be sealed further.
    PeerSeals,
}

/// What this process does with a region that it was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only read.
    Read,
    /// Read and write.
    Write,
}

/// Why a region could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The length is not one a region can have.
    #[error("a region of {len} bytes is not possible: it must have between 8 and {max} bytes")]
    Length {
        /// Bytes asked for.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The operating system refused.
    #[error("cannot {what} {len} bytes of shared memory: {source}{}", remedy(source))]
    System {
        /// What was tried.
        what: &'static str,
        /// Bytes asked for.
        len: usize,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// A peer handed over a memory file that cannot be trusted to stay as it is.
    #[error("the memory file that the peer handed over is unfit: {why}")]
    Unfit {
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Whole pages of memory that others may access while we do.
///
/// Word access takes byte offsets that are multiples of 8. An offset past the end is a mistake of this crate, not
/// of a peer (offsets come from checked geometries), so it is an assertion.
pub(crate) struct Region {
    base: NonNull<u64>,
    len: usize,
    access: Access,
    /// The memory file, of memory that was allocated here. A mapping needs none.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to this value alone and lives as long as it does; all access to it goes through
// atomic words, or copies that stand for such, by shared reference.
unsafe impl Send for Region {}
// SAFETY: as for `Send`: methods take `&self` and touch the memory only atomically.
unsafe impl Sync for Region {}

/// Bytes that processors exchange at a time.
const CACHE_LINE: usize = 64;

impl Region {
    /// Makes a zeroed region of at least `len` bytes (rounded up to whole pages), its pages present.
    pub(crate) fn allocate(len: usize, protection: Protection) -> Result<Self, MemoryError> {
        if !(WORD..=limits::REGION_LEN_MAX).contains(&len) {
            return Err(MemoryError::Length { len, max: limits::REGION_LEN_MAX });
        }
        let len = len.next_multiple_of(rustix::param::page_size());
        let system =
            |what| move |errno: rustix::io::Errno| MemoryError::System { what, len, source: errno.into() };

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"fabricast", flags).map_err(system("create"))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(system("reserve"))?;
        let mut region = Self::map_populated(&file, len)?;

        let fixed = SealFlags::SHRINK | SealFlags::GROW;
        let seals = match protection {
            Protection::PeersRead => fixed | SealFlags::FUTURE_WRITE | SealFlags::SEAL,
            Protection::PeersWrite => fixed | SealFlags::SEAL,
            Protection::PeerSeals => fixed,
        };
        rustix::fs::fcntl_add_seals(&file, seals).map_err(system("seal"))?;
        region.file = Some(file);
        Ok(region)
    }

    /// Maps the first `len_min` bytes (rounded up to whole pages) of a memory file that a peer handed over. It may
    /// be longer: no more pages are made present than that takes.
    ///
    /// The file must be sealed against shrinking: a peer could otherwise cut it and have us killed by `SIGBUS`. What can only be
    /// read must have all its pages: this process would pay for those that its reads make.
    pub(crate) fn import(file: BorrowedFd<'_>, len_min: usize, access: Access) -> Result<Self, MemoryError> {
        check_len(file, len_min)?;
        if access == Access::Read {
            check_pages(file, len_min)?;
        }
        Self::map(file, whole_pages(len_min), access, MapFlags::POPULATE)
    }

    /// Maps a memory file of exactly `len` bytes (rounded up to whole pages) that a peer made for this process to write. Its pages
    /// are the peer's, and stay so: the kernel charges a page to whoever touches it first, so the file is refused unless all of
    /// them are there, and sealed so that the peer cannot give any up later (fallocate(2) punches no holes then).
    ///
    /// Returns before the pages are in this process's page table; see [`Self::populate`].
    pub(crate) fn import_to_write(file: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let unfit = |why| MemoryError::Unfit { why };
        let found = check_len(file, len)?;
        let len = whole_pages(len);
        if found > len {
            return Err(unfit("it is longer than what was agreed"));
        }
        // Mapped first: afterwards nobody can map it for writing any more.
        let region = Self::map(file, len, Access::Write, MapFlags::empty())?;
        let kept = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let sealed = rustix::fs::fcntl_add_seals(file, kept);
        sealed.map_err(|_| unfit("it cannot be sealed against giving up its pages"))?;
        check_pages(file, len)?;
        Ok(region)
    }

    /// Maps memory of this process, all pages of it made present. What MAP_POPULATE cannot make present it leaves out without an
    /// error: peers would refuse the region as sparse.
    fn map_populated(file: &OwnedFd, len: usize) -> Result<Self, MemoryError> {
        let region = Self::map(file, len, Access::Write, MapFlags::empty())?;
        match rustix::io::retry_on_intr(|| region.advise_populate(0, len)) {
            Ok(()) => Ok(region),
            // Kernels before 5.14 cannot.
            Err(rustix::io::Errno::INVAL) => Self::map(file, len, Access::Write, MapFlags::POPULATE),
            Err(errno) => Err(MemoryError::System { what: "populate", len, source: errno.into() }),
        }
    }

    /// Has the page table refer to the pages of these bytes, as far as they are in the region, so that the first stores there are
    /// as fast as later ones. Blocks for as long as that takes.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        let page = rustix::param::page_size();
        let begin = offset.min(self.len) / page * page;
        let len = self.len.min(offset.saturating_add(len)) - begin;
        if let Err(errno) = self.advise_populate(begin, len) {
            // Kernels before 5.14 cannot: the first stores do it then.
            tracing::trace!(target: "fabricast", %errno, "cannot populate a region");
        }
    }

    /// Makes the pages of these bytes present, `offset` being where a page begins.
    fn advise_populate(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(len <= self.len - offset, "{len} bytes at {offset} of {} cannot be populated", self.len);
        let at = self.range(offset, 0).cast();
        // SAFETY: the range lies in the mapping, as `range` and the assertion check; pages that are there stay as they are, others
        // become zeroes.
        unsafe { rustix::mm::madvise(at, len, Advice::LinuxPopulateWrite) }
    }

    /// Whether nobody can ever map this memory file for writing any more.
    pub(crate) fn is_sealed_against_writing(file: BorrowedFd<'_>) -> Result<bool, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(file);
        let seals = seals.map_err(|_| MemoryError::Unfit { why: "it is not a memory file" })?;
        Ok(seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE))
    }

    fn map(file: impl AsFd, len: usize, access: Access, populate: MapFlags) -> Result<Self, MemoryError> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let flags = MapFlags::SHARED | populate;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing that exists.
        let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) };
        let base = mapped.map_err(|errno| MemoryError::System { what: "map", len, source: errno.into() })?;
        // SAFETY: the range was mapped by the call above; the advice only keeps it out of core dumps.
        let advised = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        if let Err(errno) = advised {
            tracing::debug!(target: "fabricast", %errno, "region memory will appear in core dumps");
        }
        let base =
            NonNull::new(base.cast()).ok_or(MemoryError::Unfit { why: "it was mapped at address 0" })?;
        Ok(Self { base, len, access, file: None })
    }

    /// Bytes; a multiple of the page size.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where it is mapped, for a device to register it.
    #[cfg(feature = "verbs")]
    pub(crate) fn base(&self) -> NonNull<u64> {
        self.base
    }

    /// What may be done with it here.
    #[cfg(test)]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The memory file, to be handed to another process.
    ///
    /// # Panics
    ///
    /// When the region was imported: only its owner hands it over.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        match &self.file {
            Some(file) => file.as_fd(),
            None => unreachable!("a region that another process has handed over is not handed on"),
        }
    }

    /// One word, as it is now.
    #[inline]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// The lower half of a word, for the operating system to wait on. Whoever uses it uses no other part of that word.
    ///
    /// # Panics
    ///
    /// When the region is only mapped for reading.
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        self.assert_writable();
        let word = self.range(offset, 1).cast();
        // SAFETY: `range` checked that the word lies in the mapping and is aligned, and so is its lower half; the mapping lives
        // as long as `self`, whose lifetime the reference takes; all access to it is atomic.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// One word; what was stored before it by [`Self::store_release`] is seen by loads that follow.
    #[inline]
    pub(crate) fn load_acquire(&self, offset: usize) -> u64 {
        // Acquire: pairs with the Release of `store_release` in the process that writes this region.
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores one word.
    ///
    /// # Panics
    ///
    /// When the region is only mapped for reading.
    #[inline]
    pub(crate) fn store(&self, offset: usize, word: u64) {
        self.assert_writable();
        self.word(offset).store(word, Ordering::Relaxed);
    }

    /// Stores one word after everything stored before it.
    #[inline]
    pub(crate) fn store_release(&self, offset: usize, word: u64) {
        self.assert_writable();
        // Release: publishes all earlier stores to whoever sees this word through `load_acquire`.
        self.word(offset).store(word, Ordering::Release);
    }

    /// Copies words to private memory. Words are whole, the copy as a whole may be torn.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u64]) {
        let source = self.range(offset, target.len());
        // SAFETY: `range` checked bounds and alignment of the source, which is accessed only atomically; the
        // target is a private slice of the same number of words, so the two cannot overlap.
        unsafe { copy::out(source, target.as_mut_ptr(), target.len()) };
    }

    /// Copies words from private memory.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, source: &[u64]) {
        self.assert_writable();
        let target = self.range(offset, source.len());
        // SAFETY: `range` checked bounds and alignment of the target, which is accessed only atomically; the
        // source is a private slice of the same number of words, so the two cannot overlap.
        unsafe { copy::in_(source.as_ptr().cast(), target, source.len()) };
    }

    /// Copies bytes from private memory to an offset that is a multiple of 8. The rest of the last word becomes
    /// zero.
    #[inline]
    pub(crate) fn copy_in_bytes(&self, offset: usize, source: &[u8]) {
        self.assert_writable();
        let (whole, rest) = source.as_chunks::<WORD>();
        let target = self.range(offset, whole.len());
        // SAFETY: `range` checked bounds and alignment of the target, which is accessed only atomically; the
        // source is a private slice of the same number of 8-byte chunks, so the two cannot overlap.
        unsafe { copy::in_(whole.as_ptr().cast(), target, whole.len()) };
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.store(offset + whole.len() * WORD, u64::from_le_bytes(last));
        }
    }

    /// Tells the processor that these bytes will be written soon, as far as they are in the region: it need not wait for
    /// another one then that has them in its cache.
    #[inline]
    pub(crate) fn expect_writes(&self, offset: usize, len: usize) {
        let end = self.len.min(offset.saturating_add(len));
        for offset in (offset..end).step_by(CACHE_LINE) {
            copy::request_line(self.base.as_ptr().wrapping_byte_add(offset));
        }
    }

    /// Copies up to a line of words from private memory; the first becomes visible last.
    #[inline]
    pub(crate) fn copy_in_head(&self, offset: usize, source: &[u64]) {
        let Some((first, rest)) = source.split_first() else { return };
        // The second word by itself: registers then hold the same pairs as when the words were gathered, and get
        // them from the store buffer.
        if let Some((second, rest)) = rest.split_first() {
            self.store(offset + WORD, *second);
            self.copy_in(offset + 2 * WORD, rest);
        }
        self.store_release(offset, *first);
    }

    /// Copies `len` bytes (a multiple of 8) of this region to another one, as an RDMA_WRITE would: the first
    /// word becomes visible last, and the last word first, each in order with everything else. The first line is
    /// written in one go at the end: somebody may be looking at it all the time.
    pub(crate) fn write_across(&self, offset: usize, target: &Self, target_offset: usize, len: usize) {
        let words = len / WORD;
        assert!(len.is_multiple_of(WORD), "a transfer is made of whole words");
        let Some(last) = words.checked_sub(1) else { return };
        if last > 0 {
            target.store(target_offset + last * WORD, self.load(offset + last * WORD));
            // Release: the last word becomes visible before any other, and the first one below after all others.
            crate::sync::atomic::fence(Ordering::Release);
            let line = LINE / WORD;
            self.copy_across(offset, target, target_offset, line..last);
            self.copy_across(offset, target, target_offset, 1..last.min(2));
            self.copy_across(offset, target, target_offset, 2..last.min(line));
        }
        target.store_release(target_offset, self.load(offset));
    }

    /// Copies these words, counted from the offsets on. None when the range is empty.
    #[inline]
    fn copy_across(&self, offset: usize, target: &Self, target_offset: usize, words: std::ops::Range<usize>) {
        let source = self.range(offset + words.start.min(words.end) * WORD, words.len());
        let destination = target.range(target_offset + words.start.min(words.end) * WORD, words.len());
        // SAFETY: `range` checked bounds and alignment of both, both are accessed only atomically, and two
        // regions are two mappings, so that they do not overlap.
        unsafe { copy::across(source, destination, words.len()) };
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        let word = self.range(offset, 1);
        // SAFETY: `range` checked that the word lies in the mapping and is aligned; the mapping lives as long as
        // `self`, whose lifetime the reference takes; all access to it is atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// The address of `words` words from `offset` on, all of them inside the region.
    #[inline]
    fn range(&self, offset: usize, words: usize) -> *mut u64 {
        let fits = offset <= self.len && words <= (self.len - offset) / WORD;
        assert!(
            fits && offset.is_multiple_of(WORD),
            "access to {words} words at {offset} of {} bytes",
            self.len
        );
        // SAFETY: `offset <= len`, so that the result stays inside the mapping or one past its end.
        unsafe { self.base.as_ptr().byte_add(offset) }
    }

    #[inline]
    fn assert_writable(&self) {
        assert!(self.access == Access::Write, "a store to a region that is mapped for reading");
    }
}

/// Whole pages for this many bytes.
fn whole_pages(len: usize) -> usize {
    len.max(WORD).next_multiple_of(rustix::param::page_size())
}

/// Checks that a peer's file is memory that stays as long as it is, and at least `len_min` bytes long. Its length.
fn check_len(file: BorrowedFd<'_>, len_min: usize) -> Result<usize, MemoryError> {
    let unfit = |why| MemoryError::Unfit { why };
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| unfit("it is not a memory file"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(unfit("it is not sealed against shrinking"));
    }
    let stat = rustix::fs::fstat(file).map_err(|_| unfit("its length cannot be read"))?;
    let len = usize::try_from(stat.st_size).map_err(|_| unfit("its length is negative"))?;
    if len < len_min {
        return Err(unfit("it is shorter than what was agreed"));
    }
    if !(WORD..=limits::REGION_LEN_MAX).contains(&len) || !len.is_multiple_of(rustix::param::page_size()) {
        return Err(unfit("its length is not one that a region can have"));
    }
    // Mappings of such files have other lengths than asked for.
    let system = rustix::fs::fstatfs(file).map_err(|_| unfit("its file system cannot be read"))?;
    if system.f_type == HUGETLBFS_MAGIC {
        return Err(unfit("it is made of huge pages"));
    }
    Ok(len)
}

/// Checks that all pages of the first `len` bytes are there.
fn check_pages(file: BorrowedFd<'_>, len: usize) -> Result<(), MemoryError> {
    let hole = rustix::fs::seek(file, SeekFrom::Hole(0));
    let hole = hole.map_err(|_| MemoryError::Unfit { why: "its pages cannot be found" })?;
    if hole < len as u64 {
        return Err(MemoryError::Unfit {
            why: "it is sparse: this process would pay for pages that its owner has never written",
        });
    }
    Ok(())
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and belongs to this value; nothing refers to it any more, since
        // references to words borrow the value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        if let Err(errno) = unmapped {
            tracing::warn!(target: "fabricast", %errno, len = self.len, "cannot unmap a region");
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Region")
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
