//! One-sided access to the regions of peers.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::FabricError;
use super::registration::Registration;
use crate::memory::{ByteRange, Region};

/// A region that the peer sent, not opened yet. Dropping it gives it up.
pub(crate) trait Offer: Debug + Send {
    /// Opens it for one-sided reads. It must have at least `len_min` bytes.
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError>;

    /// Maps it in place, for memory that both ends write; where [`super::Capabilities::shares_memory`].
    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        let _ = len_min;
        Err(FabricError::Access { why: "this medium does not share memory" })
    }

    /// Opens it for one-sided writes. It must have `len` bytes, or as many more as fill the last page.
    fn open_write(self: Box<Self>, len: usize) -> Result<Box<dyn RemoteWrite>, FabricError>;
}

/// A peer's region, open for one-sided reads.
pub(crate) trait RemoteRead: Debug + Send {
    /// Where what was read appears, at the same offsets as at the peer.
    fn mirror(&self) -> &Arc<Region>;

    /// Whether the mirror is the peer's memory itself, always up to date, so that [`Self::post`] has nothing to do.
    fn is_mapped(&self) -> bool;

    /// Begins to bring these ranges, in no promised order and not at one moment. Only one batch at a time.
    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError>;

    /// Whether the batch is complete.
    fn poll(&mut self) -> Result<Completion, FabricError>;

    /// Becomes readable when the batch is complete, or may have become so: poll then. `None` where nothing can be
    /// waited for, or nothing is under way.
    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError>;
}

/// A peer's region, open for one-sided writes.
pub(crate) trait RemoteWrite: Debug + Send {
    /// Begins these writes from a registered region to the same offsets at the peer, each one placed after the one
    /// before it. Their source must not change until the batch is complete. Another batch may be posted before:
    /// batches are placed, and complete, in the order in which they were posted. [`Completion::Done`] when this one is
    /// complete.
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError>;

    /// How many batches are not complete yet, the last ones posted.
    fn in_flight(&mut self) -> Result<usize, FabricError>;

    /// A word of the peer's region, at an offset that is a multiple of 8: asks for it if that is not under way, and gives it when
    /// it has come. An error where writes are [`Placement::Lossy`].
    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError>;

    /// How its writes appear at the peer.
    fn placement(&self) -> Placement;

    /// What ends this access from another thread.
    fn revocation(&self) -> Arc<dyn Revocation>;
}

/// Ends one-sided writes, whoever holds them: the peer wants its memory back.
pub(crate) trait Revocation: Debug + Send + Sync {
    /// Lets no further batch begin, and no word be asked for. [`Completion::Done`] when nothing is under way any more either, so
    /// that the peer may withdraw its region; otherwise call it again.
    fn revoke(&self) -> Completion;
}

/// The revocation of a medium where a region stays usable for whoever has opened it.
#[derive(Debug)]
pub(crate) struct NothingToRevoke;

impl Revocation for NothingToRevoke {
    fn revoke(&self) -> Completion {
        Completion::Done
    }
}

/// How one-sided writes appear in the region that they go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    /// The words of each write in order: the last one first, the first one last.
    Words,
    /// Only whole writes, in order.
    #[default]
    Writes,
    /// Only whole writes, in order; any of them may be complete and never arrive.
    Lossy,
}

/// One write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// A range of the source, to the same offset. Its first word is placed last where the medium allows it.
    Range(ByteRange),
    /// A line of its own, at this offset. Its first word is placed last where the medium allows it.
    Line {
        /// Where, bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// What.
        words: [u64; 8],
    },
    /// A word of its own, at this offset.
    Word {
        /// Where, bytes from the start of the region; a multiple of 8.
        offset: usize,
        /// What.
        word: u64,
    },
}

/// Whether one-sided operations are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// They are.
    Done,
    /// Not yet: poll.
    Pending,
}
