use std::fmt::Debug;

use super::arbiter::{Arbiter, ChangedKey};
use crate::id::{Epoch, Kind, KindOptions, Meta, Sequence, TopicId};
use crate::layout::header::{HOT_EPOCH, HOT_OFFSET};
use crate::layout::{ByteRange, Geometry, LINE};
use crate::memory::Region;

/// A reader of repositories of one kind: copies values to private memory, and accepts those that pass every check there.
///
/// A mapped repository is read with [`Self::poll`], a landing region with [`Self::follow`]. A repository behind a wire
/// is read by fetching the ranges of [`Self::plan`] into a mirror of it and passing that to [`Self::check`]. No
/// method blocks, and only [`Self::open`] and [`Self::expect_inline`] allocate.
pub(crate) trait Reader: Debug + Sized {
    /// The kind of its topics.
    const KIND: Kind;
    /// Whether every value counts. Otherwise only the newest inline value is taken.
    const WANTS_EACH: bool;
    /// A word of the hot line that is not zero once the line was written.
    const HOT_WRITTEN: usize = HOT_EPOCH;
    /// Whether values come inline with notices.
    const HAS_INLINE: bool = true;
    /// The subscriber's options for this kind.
    type Options: Copy + Debug + Default + Into<KindOptions>;
    /// The purpose of a fetch.
    type Purpose: Copy + Debug + Send;
    /// Decides which values of several publishers are received.
    type Arbiter: Arbiter + Default + 'static;

    /// Creates a reader of a repository of this geometry that held this much when it was granted. `None` if the
    /// geometry belongs to another kind.
    fn open(
        geometry: &Geometry,
        names: (Epoch, TopicId),
        granted: GrantedAt,
        options: Self::Options,
    ) -> Option<Self>;

    /// Continues for a reader whose subscription was lost: takes over its counts and its interest and, if the values are of the same
    /// epoch, what it has received, which is not received again. Where a log continues is an option of [`Self::open`]. Allocates.
    fn resume(&mut self, before: &mut Self, is_same_epoch: bool);

    /// Takes back that values were lost: the reader is not used any more, and the one that resumes it finds them lost again.
    fn take_back(&mut self, _lost: &Lost) {}

    /// Reserves memory for inline values, so that taking one does not allocate.
    fn expect_inline(&mut self);

    /// Returns whether it has found its start.
    fn has_begun(&self) -> bool {
        true
    }

    /// Finds the start: values published afterwards are included.
    fn settle(&mut self, _memory: &Region) {}

    /// Takes the next value if it is already in private memory, whole and verified.
    #[inline]
    fn take_held(&mut self) -> Option<Taken> {
        None
    }

    /// Takes the next value of a mapped repository.
    fn poll(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure>;

    /// Makes the next [`Self::poll`] rely on nothing that it saw before: nothing will be published any more.
    fn look_closely(&mut self) {}

    /// Takes the next value of a landing region. Reads the clock only if a value may still be arriving.
    fn follow(
        &mut self,
        landing: &Region,
        order: WriteOrder,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure>;

    /// Returns whether the last [`Self::poll`] or [`Self::follow`] stopped only because it reached its limit of copying per call.
    fn has_more(&self) -> bool {
        false
    }

    /// Returns what to fetch next.
    fn plan(&mut self) -> Fetch<Self::Purpose>;

    /// Returns the ranges of a planned fetch, in order. A range may be fetched before or while the previous one is.
    fn ranges<'a>(&'a self, fetch: &'a Fetch<Self::Purpose>) -> &'a [ByteRange] {
        fetch.ranges()
    }

    /// Checks a mirror of the repository after a fetch, whose words may have arrived in any order.
    fn check(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Self::Purpose>,
        now_ns: u64,
    ) -> Result<Finding<Self::Purpose>, ReadFailure>;

    /// Returns the newest sequence of the repository, if the last checked fetch includes it.
    fn newest_fetched(&self, mirror: &Region, fetched: &Fetch<Self::Purpose>) -> Option<Sequence>;

    /// Takes the next value that was fetched into the mirror or came inline.
    #[inline]
    fn take_fetched(
        &mut self,
        _mirror: &Region,
        _now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure> {
        Ok(None)
    }

    /// Returns whether a fetch is needed to detect new values.
    fn wants_more(&self) -> bool {
        false
    }

    /// Returns whether the repository holds more than this reader: it may be fetched while the held values are taken.
    fn is_behind(&self) -> bool {
        false
    }

    /// Accepts values inline in a notice of this sequence, and of this position in a log. They are checked as if
    /// fetched, and compared with the repository at the next read.
    fn take_inline(&mut self, words: &[u64], sequence: Sequence, position: u64) -> Finding<Self::Purpose>;

    /// Returns whether inline values were taken that have not been compared with the repository yet.
    fn is_unproven(&self) -> bool;

    /// Returns the sequence of the last value that was taken, reported or skipped.
    fn last(&self) -> Sequence;

    /// Returns the same without the values at the end that were reported as damaged and can still come: of a state, until the next one.
    fn brought(&self) -> Sequence {
        self.last()
    }

    /// Returns up to where every value was taken, and none was damaged; [`Sequence::NONE`] if that is not certain.
    fn complete(&self) -> Sequence {
        self.last()
    }

    /// Returns once whether [`Self::complete`] has named a commit up to which a wrong read had hidden a change.
    fn take_misread(&mut self) -> bool {
        false
    }

    /// Takes the newest value of each key of a table once more.
    fn offer_again(&mut self) {}

    /// Returns when this commit of a table was published, ns since the Unix epoch; 0 if that is not known. It is known if one of its
    /// entries was read, and none of a later commit.
    fn published_ns(&self, _commit: Sequence) -> u64 {
        0
    }

    /// Returns more on the last change taken of a table.
    fn changed_key(&self) -> Option<ChangedKey> {
        None
    }

    /// Returns which entry of a table was found to be damaged last. Allocates.
    fn damaged(&self) -> DamagedEntry {
        DamagedEntry::default()
    }

    /// Returns whether this key of a table is received.
    fn is_wanted(&self, _key: &[u8]) -> bool {
        true
    }

    /// Returns whether the table has this key, as far as it was read.
    fn has_key(&self, _key: &[u8]) -> bool {
        true
    }

    /// Returns the position before which it needs no frame of a log any more; of a landing region, as it has told there.
    fn released(&self, _is_landing: bool) -> u64 {
        0
    }

    /// Whether those from the next one on are damaged, as far as it has seen.
    fn ends_damaged(&self) -> bool {
        false
    }

    /// Gives up the values up to this one, which are unreadable. Returns the first of them and their number, if any.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)>;

    /// Returns the counts so far.
    fn counts(&self) -> SubscriberStats;

    /// Returns its private memory.
    fn held(&self) -> &[u64];

    /// Like [`Self::poll`], but returns the value.
    #[inline]
    fn read(&mut self, memory: &Region) -> Result<Option<Verified<'_>>, ReadFailure> {
        let taken = self.poll(memory)?;
        Ok(taken.map(|taken| self.verified(taken)))
    }

    /// Returns the last value taken.
    #[inline]
    fn verified(&self, Taken { meta, conflated, begin, len }: Taken) -> Verified<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(self.held().get(begin..).unwrap_or_default());
        Verified { meta, conflated, payload: bytes.get(..len).unwrap_or_default() }
    }
}

/// A verified value in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verified<'a> {
    /// Its sequence and publish time.
    pub(crate) meta: Meta,
    /// Values between the previous one and this one, which were replaced before they were read.
    pub(crate) conflated: u64,
    /// Its payload, aligned to 8.
    pub(crate) payload: &'a [u8],
}

/// A verified value that the reader holds, for [`Reader::verified`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(super) meta: Meta,
    pub(super) conflated: u64,
    /// The offset of its payload in private memory, words.
    pub(super) begin: usize,
    /// The length of its payload, bytes.
    pub(super) len: usize,
}

/// The order in which writes to a landing region become visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// Word by word, in order.
    Words,
    /// In whole writes, in order. Writes in flight may correct what is wrong.
    Writes,
    /// In whole writes, in order, but a write may be lost, or none is in flight: nothing will correct what is wrong.
    FinalWrites,
}

/// What to fetch before the next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch<P> {
    /// The non-empty ranges, at the front.
    pub(super) ranges: [ByteRange; 2],
    pub(super) purpose: P,
}

/// The result of checking fetched or inline bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finding<P> {
    /// A value.
    Taken(Taken),
    /// More must be fetched, and checked again.
    More(Fetch<P>),
    /// Values, for [`Reader::take_fetched`], or their location.
    Something,
    /// Nothing new.
    Nothing,
}

/// Why a value was not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The writer overwrote each value while it was read.
    Contended { attempts: u32 },
    /// The value does not match its checksum, and is not being written.
    Damaged { sequence: Sequence, expected: u32, found: u32 },
    /// The stamps of the value disagree, and it is not being written.
    BrokenStamps { sequence: Sequence },
    /// The value belongs to another incarnation of the repository.
    ForeignEpoch { sequence: Sequence, expected: Epoch, found: u64 },
    /// The value claims a length that the repository cannot hold.
    ImpossibleLen { sequence: Sequence, len: u64, max: usize },
    /// Records of a log are missing before the next one.
    Lost(Lost),
    /// The inline values up to `told` differ from the repository, whose newest value is `found`. Values before `first` are
    /// confirmed.
    Contradicted { first: Sequence, told: Sequence, found: Sequence },
}

/// An entry of a table that was found to be damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DamagedEntry {
    pub(crate) cell: usize,
    /// The key that the cell has, as far as is known.
    pub(crate) key: Option<Box<[u8]>>,
}

/// Missing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The first of them.
    pub(crate) first: Sequence,
    /// Their number.
    pub(crate) count: u64,
    /// The reason.
    pub(crate) reason: LossReason,
}

/// Why records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossReason {
    /// The writer gave them up before they were read.
    Lapped,
    /// They are damaged, and not being written.
    Damaged,
}

/// The counts of a subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Values received.
    pub received: u64,
    /// Values of a state topic, or of keys of a table, that were replaced, or gone with their topic, before this subscriber read them.
    pub conflated: u64,
    /// Records of a log that the publisher overwrote before they were read.
    pub lapped: u64,
    /// Records of a log that were unreadable after the topic had ended.
    pub cut_off: u64,
    /// Values refused as damaged, or as not of the type.
    pub rejected: u64,
    /// Values that were older than the publisher's [`lifespan`](crate::PublisherBuilder::lifespan) when they were read, and were skipped.
    pub expired: u64,
    /// Reads repeated because the value was overwritten meanwhile.
    pub torn_retries: u64,
    /// Received inline values that the publisher's memory did not confirm: see
    /// [`ReceiveError::Contradicted`](crate::ReceiveError::Contradicted). Records of a log are then received again from the repository.
    pub withdrawn: u64,
    /// How often the publisher's memory contradicted them: once at most, since the subscriber takes none afterwards.
    pub contradicted: u64,
}

impl SubscriberStats {
    /// Adds the counts of the subscription before.
    pub(super) fn add(&mut self, before: &Self) {
        let Self { received, conflated, lapped, cut_off, rejected, expired, .. } = self;
        let pairs = [
            (received, before.received),
            (conflated, before.conflated),
            (lapped, before.lapped),
            (cut_off, before.cut_off),
            (rejected, before.rejected),
            (expired, before.expired),
            (&mut self.torn_retries, before.torn_retries),
            (&mut self.withdrawn, before.withdrawn),
            (&mut self.contradicted, before.contradicted),
        ];
        pairs.into_iter().for_each(|(count, before)| *count = count.saturating_add(before));
    }
}

/// What a repository held when it was granted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantedAt {
    /// The sequence of its newest value, or `after`.
    pub(crate) newest: Sequence,
    /// The sequence before that of its first value.
    pub(crate) after: Sequence,
}

impl GrantedAt {
    /// Returns whether nothing had been published.
    pub(super) fn is_empty(self) -> bool {
        self.newest <= self.after
    }

    /// Returns the first value that a reader of newest values can miss: those before the newest one were replaced already.
    pub(super) fn first(self) -> Sequence {
        self.newest.max(self.after.next())
    }
}

/// The first value that a reader of newest values has not read, and their number up to `last`; those before `first` do not count.
/// `None` if there are none.
pub(super) fn unread(read: Sequence, first: Sequence, last: Sequence) -> Option<(Sequence, u64)> {
    if last <= read {
        return None;
    }
    let first = read.next().max(first);
    Some((first, last.get().checked_sub(first.get())?.saturating_add(1)))
}

/// The hot line of a repository.
pub(super) const HOT_LINE: ByteRange = ByteRange { offset: HOT_OFFSET, len: LINE };
/// An empty range.
pub(super) const NOTHING: ByteRange = ByteRange { offset: 0, len: 0 };

impl<P> Fetch<P> {
    /// Fetches these ranges, in order. A range may be fetched before or while the previous one is.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        let count = self.ranges.iter().take_while(|range| range.len > 0).count();
        self.ranges.split_at(count).0
    }
}
