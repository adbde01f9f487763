//! One-sided access to the regions of peers.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::FabricError;
use super::registration::Registration;
use super::wake_socket::RemoteWaker;
use crate::memory::{ByteRange, Region};
use crate::sync::atomic::{Ordering, fence};

/// A region received from the peer and not opened yet. Dropping it releases it.
pub(crate) trait Offer: Debug + Send {
    /// Opens it for one-sided reads. It must be at least `len_min` bytes long.
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError>;

    /// Maps it for memory that both ends write; requires [`super::Capabilities::shares_memory`].
    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        let _ = len_min;
        Err(FabricError::Access { why: "this medium does not share memory" })
    }

    /// Opens the end of a pair of sockets that came in place of a region.
    fn open_waker(self: Box<Self>) -> Result<Arc<dyn RemoteWaker>, FabricError> {
        Err(FabricError::Access { why: "this medium carries no sockets" })
    }

    /// Opens it for one-sided writes. It must be `len` bytes long, or `len` rounded up to whole pages.
    fn open_write(self: Box<Self>, len: usize) -> Result<Box<dyn RemoteWrite>, FabricError>;
}

/// A peer's region, open for one-sided reads.
pub(crate) trait RemoteRead: Debug + Send {
    /// Returns the local copy, which has the peer's offsets.
    fn mirror(&self) -> &Arc<Region>;

    /// Returns whether the mirror is the peer's memory itself, always up to date, so that [`Self::post`] has no effect.
    fn is_mapped(&self) -> bool;

    /// Starts reading these ranges, in no particular order and not atomically. Only one batch at a time.
    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError>;

    /// Returns whether the batch is complete. After an error only a part of it may have been read.
    fn poll(&mut self) -> Result<Completion, FabricError>;

    /// Returns another reader of the first `len` bytes, with a copy of its own, for another thread. `None` if that is impossible, or
    /// needless because the mirror is the peer's memory.
    fn headers(&self, len: usize) -> Result<Option<Box<dyn RemoteRead>>, FabricError> {
        let _ = len;
        Ok(None)
    }

    /// Returns a handle that becomes readable when the batch may be complete: poll then. `None` if waiting is impossible or no
    /// batch is in flight.
    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError>;
}

/// A peer's region, open for one-sided writes.
pub(crate) trait RemoteWrite: Debug + Send {
    /// Starts these writes from a registered region to the same offsets at the peer, each placed after the one
    /// before it. The source must not change until the batch completes. Several batches may be in flight; they are placed and
    /// complete in posting order. Returns [`Completion::Done`] when this one is complete.
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError>;

    /// Returns the number of incomplete batches.
    fn in_flight(&mut self) -> Result<usize, FabricError>;

    /// Fetches a word of the peer's region at an offset that is a multiple of 8: starts the fetch if none is in flight, and
    /// returns the word once it has arrived. An error where writes are [`Placement::Lossy`].
    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError>;

    /// Returns how writes become visible at the peer.
    fn placement(&self) -> Placement;

    /// Returns the peer's memory itself, if it is mapped, for words that only this process's node writes there.
    fn mapped(&self) -> Option<&Arc<Region>> {
        None
    }

    /// Returns a handle that ends this access from another thread.
    fn revocation(&self) -> Arc<dyn Revocation>;

    /// Returns a handle that has writes wake the peer from now on. `None` where writes cannot.
    fn announcer(&self) -> Option<Arc<dyn ArrivalAnnouncer>> {
        None
    }
}

/// Revokes one-sided write access before the peer reclaims its memory.
pub(crate) trait Revocation: Debug + Send + Sync {
    /// Refuses new batches and fetches. Returns [`Completion::Done`] once nothing is in flight, so that
    /// the peer may withdraw its region; otherwise call it again.
    fn revoke(&self) -> Completion;
}

/// Wakes the peer by the writes to one of its regions, from another thread than the one that writes.
pub(crate) trait ArrivalAnnouncer: Debug + Send + Sync {
    /// From now on each batch of writes wakes the peer with this token once it has arrived. The peer is woken for the batches before, too:
    /// it misses none. Batches in quick succession may share a wake-up.
    fn begin(&self, token: u32);
}

/// The revocation of a medium where an opened region stays usable.
#[derive(Debug)]
pub(crate) struct NothingToRevoke;

impl Revocation for NothingToRevoke {
    fn revoke(&self) -> Completion {
        Completion::Done
    }
}

/// How one-sided writes become visible in their target region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Word by word: the last word of each write first, its first word last.
    Words,
    /// In whole writes, in order.
    #[default]
    Writes,
    /// In whole writes, in order; a write may complete without arriving.
    Lossy,
}

/// One write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// A range of the source, copied to the same offset. Its first word is placed last where the medium allows it.
    Range(ByteRange),
    /// A line of eight words, at this offset. Its first word is placed last where the medium allows it.
    Line {
        /// The offset in bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// The words.
        words: [u64; 8],
    },
    /// One word, at this offset.
    Word {
        /// The offset in bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// The word.
        word: u64,
    },
}

impl Write {
    /// Writes it from mapped memory to mapped memory, after all writes before it.
    #[inline]
    pub(crate) fn place(self, source: &Region, target: &Region) {
        // Release: a reader that sees a word of this write sees all of the write before it. Pairs with the Acquire
        // loads and fences of readers.
        fence(Ordering::Release);
        match self {
            Self::Range(ByteRange { offset, len }) => source.write_across(offset, target, offset, len),
            Self::Line { offset, words } => target.copy_in_head(offset, &words),
            Self::Word { offset, word } => target.store_release(offset, word),
        }
    }
}

/// Whether one-sided operations are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// Complete.
    Done,
    /// Not yet: poll.
    Pending,
}
