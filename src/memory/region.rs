use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "verbs")]
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::file::{RepositoryFileError, WarmFile, is_tmpfs};
use super::file_limit::check_file_limit;
use super::words::Words;
use super::{LINE, WORD};
use crate::limits;
use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// The magic number of the huge page file system (`statfs(2)`).
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58F6;

/// What another process may do with a region that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// Read it. The memory file is sealed: only the owner can ever map it for writing.
    PeersRead,
    /// Read and write it.
    PeersWrite,
    /// One peer writes it, after sealing the file against giving up pages ([`Region::import_to_write`]): the file accepts
    /// further seals.
    PeerSeals,
}

/// What this process does with an imported region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only read.
    Read,
    /// Read and write.
    Write,
}

/// An error of creating or mapping a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The length is out of range.
    #[error("invalid region length of {len} bytes: it must be between 8 and {max} bytes")]
    Length {
        /// The requested length in bytes.
        len: usize,
        /// The maximum in bytes.
        max: usize,
    },
    /// The operating system refused.
    #[error("cannot {what} {len} bytes of shared memory")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The length in bytes.
        len: usize,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A peer sent a memory file that may change under its reader.
    #[error("the memory file from the peer is unfit: {why}")]
    Unfit {
        /// Why it is unfit.
        why: &'static str,
    },
}

/// Whole pages of memory that others may access concurrently.
///
/// Word access takes byte offsets that are multiples of 8. Offsets come from validated geometries, so one past the end is a
/// bug of this crate, not of a peer, and panics.
pub(crate) struct Region {
    words: Words,
    access: Access,
    /// The memory file, if the memory was allocated here. A mapping does not need it. Of a repository file a descriptor for readers.
    file: Option<OwnedFd>,
    /// The repository file, locked. After the mapping: nothing is stored once another process may have it.
    kept: Option<WarmFile>,
}

impl Region {
    /// Creates a zeroed region of this length (rounded up to whole words) for the threads of a model, or of a test under Miri.
    #[cfg(any(loom, miri))]
    #[expect(clippy::unnecessary_wraps, reason = "mapping may fail")]
    pub(crate) fn allocate(len: usize, _protection: Protection) -> Result<Self, MemoryError> {
        Ok(Self { words: Words::new(len.div_ceil(WORD)), access: Access::Write, file: None, kept: None })
    }

    /// Creates a zeroed region of at least `len` bytes (rounded up to whole pages), with its pages present.
    #[cfg(not(any(loom, miri)))]
    pub(crate) fn allocate(len: usize, protection: Protection) -> Result<Self, MemoryError> {
        if !(WORD..=limits::REGION_LEN_MAX).contains(&len) {
            return Err(MemoryError::Length { len, max: limits::REGION_LEN_MAX });
        }
        let len = len.next_multiple_of(rustix::param::page_size());
        let system = |what| move |errno: Errno| MemoryError::System { what, len, source: errno.into() };

        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"fabricast", flags).map_err(system("create"))?;
        check_file_limit(len as u64)
            .and_then(|()| rustix::fs::ftruncate(&file, len as u64))
            .map_err(system("reserve"))?;
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

    /// Returns the same memory without its file, and so without a descriptor: no other process will be shown it.
    #[cfg(feature = "verbs")]
    pub(crate) fn unshared(self) -> Self {
        Self { file: None, ..self }
    }

    /// Maps the first `len_min` bytes (rounded up to whole pages) of a peer's memory file. The file may
    /// be longer: only those pages are made present.
    ///
    /// The file must be sealed against shrinking: otherwise a peer could truncate it and kill this process by `SIGBUS`. A read-only
    /// file must have all its pages: this process would be charged for pages that its reads allocate.
    pub(crate) fn import(file: BorrowedFd<'_>, len_min: usize, access: Access) -> Result<Self, MemoryError> {
        check_len(file, len_min)?;
        if access == Access::Read {
            check_pages(file, len_min)?;
        }
        Self::map(file, whole_pages(len_min), access, MapFlags::POPULATE)
    }

    /// Maps a memory file of exactly `len` bytes (rounded up to whole pages) that a peer made for this process to write. Its pages
    /// stay charged to the peer: the kernel charges a page to the process that touches it first, so the file is refused unless all
    /// pages are present, and it is sealed so that the peer cannot free any later (fallocate(2) then punches no holes).
    ///
    /// Returns before the pages are mapped; see [`Self::populate`].
    pub(crate) fn import_to_write(file: BorrowedFd<'_>, len: usize) -> Result<Self, MemoryError> {
        let unfit = |why| MemoryError::Unfit { why };
        let found = check_len(file, len)?;
        let len = whole_pages(len);
        if found > len {
            return Err(unfit("it is longer than agreed"));
        }
        // Mapped first: once sealed, it cannot be mapped for writing.
        let region = Self::map(file, len, Access::Write, MapFlags::empty())?;
        let kept = SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let sealed = rustix::fs::fcntl_add_seals(file, kept);
        sealed.map_err(|_| unfit("it cannot be sealed against giving up its pages"))?;
        check_pages(file, len)?;
        Ok(region)
    }

    /// Maps the first `len` bytes (rounded up to whole pages) of a repository file, whose pages are all present.
    pub(crate) fn keep(file: WarmFile, len: usize) -> Result<Self, RepositoryFileError> {
        let len = whole_pages(len);
        let system = |what, source| RepositoryFileError::System {
            what,
            path: file.path().to_owned(),
            len: None,
            source,
        };
        if len as u64 > file.len() {
            return Err(system("map", io::ErrorKind::UnexpectedEof.into()));
        }
        let mapped =
            Self::map_populated(&file, len).map_err(|error| system("map", io::Error::other(error)))?;
        let readable = file.for_readers()?;
        Ok(Self { file: Some(readable), kept: Some(file), ..mapped })
    }

    /// Returns the repository file that it maps.
    pub(crate) fn kept(&self) -> Option<&WarmFile> {
        self.kept.as_ref()
    }

    /// Maps the first `len_min` bytes (rounded up to whole pages) of a peer's repository file for reading. It cannot be sealed: a
    /// process that may write it can cut it, and so end this process by `SIGBUS`.
    pub(crate) fn import_kept(file: BorrowedFd<'_>, len_min: usize) -> Result<Self, MemoryError> {
        let unfit = |why| MemoryError::Unfit { why };
        if !is_tmpfs(file).map_err(|_| unfit("its file system cannot be read"))? {
            return Err(unfit("it is neither a sealed memory file nor a file in a tmpfs"));
        }
        let stat = rustix::fs::fstat(file).map_err(|_| unfit("its length cannot be read"))?;
        let found = usize::try_from(stat.st_size).map_err(|_| unfit("its length is negative"))?;
        let len = whole_pages(len_min);
        if found < len || len > limits::REGION_LEN_MAX {
            return Err(unfit("it is shorter than agreed"));
        }
        check_pages(file, len)?;
        Self::map(file, len, Access::Read, MapFlags::POPULATE)
    }

    /// Maps memory of this process with all pages present. MAP_POPULATE silently skips pages that it cannot allocate,
    /// and peers would refuse the region as sparse.
    fn map_populated(file: impl AsFd, len: usize) -> Result<Self, MemoryError> {
        let region = Self::map(&file, len, Access::Write, MapFlags::empty())?;
        match rustix::io::retry_on_intr(|| region.words.populate(0, len)) {
            Ok(()) => Ok(region),
            // Not supported before kernel 5.14.
            Err(Errno::INVAL) => Self::map(file, len, Access::Write, MapFlags::POPULATE),
            Err(errno) => Err(MemoryError::System { what: "populate", len, source: errno.into() }),
        }
    }

    /// Maps the pages of these bytes, where they are within the region, so that the first stores there are
    /// as fast as later ones. Blocks meanwhile.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        let page = rustix::param::page_size();
        let begin = offset.min(self.len()) / page * page;
        let len = self.len().min(offset.saturating_add(len)) - begin;
        if let Err(errno) = self.words.populate(begin, len) {
            // Not supported before kernel 5.14: the first stores map the pages then.
            tracing::trace!(target: "fabricast", %errno, "cannot populate a region");
        }
    }

    /// Whether this is a file in a tmpfs, or memory like one, that nothing can be sealed against.
    pub(crate) fn is_unsealable(file: BorrowedFd<'_>) -> bool {
        rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals == SealFlags::SEAL)
            && is_tmpfs(file).unwrap_or(false)
    }

    /// Whether this memory file is sealed against future mappings for writing.
    pub(crate) fn is_sealed_against_writing(file: BorrowedFd<'_>) -> Result<bool, MemoryError> {
        let seals = rustix::fs::fcntl_get_seals(file);
        let seals = seals.map_err(|_| MemoryError::Unfit { why: "it is not a memory file" })?;
        Ok(seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE))
    }

    /// Whether peers may only read this region.
    pub(crate) fn is_for_readers(&self) -> Result<bool, MemoryError> {
        if self.kept.is_some() { Ok(true) } else { Self::is_sealed_against_writing(self.file()) }
    }

    fn map(file: impl AsFd, len: usize, access: Access, populate: MapFlags) -> Result<Self, MemoryError> {
        let words = Words::map(file, len, access == Access::Write, populate);
        let words = words.map_err(|errno| MemoryError::System { what: "map", len, source: errno.into() })?;
        Ok(Self { words, access, file: None, kept: None })
    }

    /// Returns its length in bytes; a multiple of the page size.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Returns its address, to register it with a device.
    #[cfg(feature = "verbs")]
    pub(crate) fn base(&self) -> NonNull<u64> {
        self.words.base()
    }

    /// Returns what this process may do with it.
    #[cfg(test)]
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns the memory file, to send to another process.
    ///
    /// # Panics
    ///
    /// If the region was imported: only its owner sends it.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        match &self.file {
            Some(file) => file.as_fd(),
            None => unreachable!("an imported region is not sent on"),
        }
    }

    /// Loads one word.
    #[inline]
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.words.word(offset).load(Ordering::Relaxed)
    }

    /// Returns the lower half of a word, for futex waits. A word used like this must not be used otherwise.
    ///
    /// # Panics
    ///
    /// If the region is mapped read-only.
    pub(crate) fn half(&self, offset: usize) -> &AtomicU32 {
        self.assert_writable();
        self.words.half(offset)
    }

    /// Loads one word; later loads see what was stored before its [`Self::store_release`].
    #[inline]
    pub(crate) fn load_acquire(&self, offset: usize) -> u64 {
        // Acquire: pairs with the Release of `store_release` in the process that writes this region.
        self.words.word(offset).load(Ordering::Acquire)
    }

    /// Stores one word.
    ///
    /// # Panics
    ///
    /// If the region is mapped read-only.
    #[inline]
    pub(crate) fn store(&self, offset: usize, word: u64) {
        self.assert_writable();
        #[cfg(test)]
        if !super::kill::permits() {
            return;
        }
        self.words.word(offset).store(word, Ordering::Relaxed);
    }

    /// Stores one word, visible after all earlier stores.
    #[inline]
    pub(crate) fn store_release(&self, offset: usize, word: u64) {
        self.assert_writable();
        #[cfg(test)]
        if !super::kill::permits() {
            return;
        }
        // Release: publishes all earlier stores to a reader that loads this word by `load_acquire`.
        self.words.word(offset).store(word, Ordering::Release);
    }

    /// Copies words to private memory. Each word is whole, but the copy may be torn between words.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u64]) {
        self.words.copy_out(offset, target);
    }

    /// Copies bytes from an offset that is a multiple of 8 to private memory. Each word is whole, but the copy may be torn between
    /// words.
    #[inline]
    pub(crate) fn copy_out_bytes(&self, offset: usize, target: &mut [u8]) {
        let (whole, rest) = target.as_chunks_mut::<WORD>();
        self.words.copy_out_chunks(offset, whole);
        if !rest.is_empty() {
            let last = self.load(offset + whole.len() * WORD).to_le_bytes();
            rest.iter_mut().zip(last).for_each(|(to, from)| *to = from);
        }
    }

    /// Copies words from private memory.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, source: &[u64]) {
        self.assert_writable();
        #[cfg(test)]
        if super::kill::is_armed() {
            let words = source.iter().zip((offset..).step_by(WORD));
            return words.for_each(|(word, offset)| self.store(offset, *word));
        }
        self.words.copy_in(offset, source);
    }

    /// Copies bytes from private memory to an offset that is a multiple of 8, and pads the last word with
    /// zeros.
    #[inline]
    pub(crate) fn copy_in_bytes(&self, offset: usize, source: &[u8]) {
        self.assert_writable();
        let (whole, rest) = source.as_chunks::<WORD>();
        #[cfg(test)]
        if super::kill::is_armed() {
            let words = whole.iter().map(|bytes| u64::from_le_bytes(*bytes)).zip((offset..).step_by(WORD));
            words.for_each(|(word, offset)| self.store(offset, word));
        } else {
            self.words.copy_in_chunks(offset, whole);
        }
        #[cfg(not(test))]
        self.words.copy_in_chunks(offset, whole);
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.store(offset + whole.len() * WORD, u64::from_le_bytes(last));
        }
    }

    /// Hints that these bytes, where they are within the region, will be written soon, so that the processor fetches
    /// their cache lines early.
    #[inline]
    pub(crate) fn expect_writes(&self, offset: usize, len: usize) {
        let end = self.len().min(offset.saturating_add(len));
        for offset in (offset..end).step_by(LINE) {
            self.words.request_line(offset);
        }
    }

    /// Copies up to a line of words from private memory; the first becomes visible last.
    #[inline]
    pub(crate) fn copy_in_head(&self, offset: usize, source: &[u64]) {
        let Some((first, rest)) = source.split_first() else { return };
        // The second word separately: the registers then hold the same pairs as when the words were gathered, and
        // are forwarded from the store buffer.
        if let Some((second, rest)) = rest.split_first() {
            self.store(offset + WORD, *second);
            self.copy_in(offset + 2 * WORD, rest);
        }
        self.store_release(offset, *first);
    }

    /// Copies `len` bytes (a multiple of 8) of this region to another one, like an RDMA WRITE: the last word becomes
    /// visible first and the first word last, each ordered with everything else. The first line is
    /// written together at the end, because readers may poll it.
    pub(crate) fn write_across(&self, offset: usize, target: &Self, target_offset: usize, len: usize) {
        let words = len / WORD;
        assert!(len.is_multiple_of(WORD), "a transfer must be whole words");
        let Some(last) = words.checked_sub(1) else { return };
        if last > 0 {
            target.store(target_offset + last * WORD, self.load(offset + last * WORD));
            // Release: the last word becomes visible before any other, and the first one below after all others.
            fence(Ordering::Release);
            let line = LINE / WORD;
            self.copy_across(offset, target, target_offset, line..last);
            self.copy_across(offset, target, target_offset, 1..last.min(2));
            self.copy_across(offset, target, target_offset, 2..last.min(line));
        }
        target.store_release(target_offset, self.load(offset));
    }

    /// Copies this range of words, relative to the offsets. Does nothing if it is empty.
    #[inline]
    fn copy_across(&self, offset: usize, target: &Self, target_offset: usize, words: std::ops::Range<usize>) {
        let skipped = words.start.min(words.end) * WORD;
        self.words.copy_across(offset + skipped, &target.words, target_offset + skipped, words.len());
    }

    #[inline]
    fn assert_writable(&self) {
        assert!(self.access == Access::Write, "a store to a region that is mapped for reading");
    }
}

/// Rounds up to whole pages.
fn whole_pages(len: usize) -> usize {
    len.max(WORD).next_multiple_of(rustix::param::page_size())
}

/// Checks that a peer's file is memory that cannot shrink, of at least `len_min` bytes. Returns its length.
fn check_len(file: BorrowedFd<'_>, len_min: usize) -> Result<usize, MemoryError> {
    let unfit = |why| MemoryError::Unfit { why };
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| unfit("it is not a memory file"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(unfit("it is not sealed against shrinking"));
    }
    let stat = rustix::fs::fstat(file).map_err(|_| unfit("its length cannot be read"))?;
    let len = usize::try_from(stat.st_size).map_err(|_| unfit("its length is negative"))?;
    if len < len_min {
        return Err(unfit("it is shorter than agreed"));
    }
    if !(WORD..=limits::REGION_LEN_MAX).contains(&len) || !len.is_multiple_of(rustix::param::page_size()) {
        return Err(unfit("its length is out of range"));
    }
    // Mappings of such files are rounded to other lengths.
    let system = rustix::fs::fstatfs(file).map_err(|_| unfit("its file system cannot be read"))?;
    if system.f_type == HUGETLBFS_MAGIC {
        return Err(unfit("it is made of huge pages"));
    }
    Ok(len)
}

/// Checks that all pages of the first `len` bytes are present.
fn check_pages(file: BorrowedFd<'_>, len: usize) -> Result<(), MemoryError> {
    let hole = rustix::fs::seek(file, SeekFrom::Hole(0));
    let hole = hole.map_err(|_| MemoryError::Unfit { why: "its pages cannot be found" })?;
    if hole < len as u64 {
        return Err(MemoryError::Unfit {
            why: "it is sparse: this process would be charged for pages that its owner has never written",
        });
    }
    Ok(())
}

impl fmt::Debug for Region {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Region")
            .field("len", &self.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
