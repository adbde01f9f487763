use std::fmt::Debug;

use crate::id::{Epoch, Kind, KindOptions, Meta, Sequence, TopicId};
use crate::layout::header::HOT_OFFSET;
use crate::layout::{ByteRange, Geometry, LINE};
use crate::memory::Region;

/// A reader of repositories of one kind: copies values to private memory, and accepts those that pass every check there.
///
/// A mapped repository is read with [`Self::poll`], a landing region with [`Self::follow`]. A repository that has to be fetched
/// over a wire is read by fetching the ranges of [`Self::plan`] into a mirror of it and handing that to [`Self::check`]. Nothing
/// here blocks, and only [`Self::open`] and [`Self::expect_inline`] allocate.
pub(crate) trait Reader: Debug + Sized {
    /// The kind of its topics.
    const KIND: Kind;
    /// Whether every value counts. If not, only the newest of those that came inline is taken.
    const WANTS_EACH: bool;
    /// What a subscriber of this kind may choose, and how a publisher is asked for it.
    type Options: Copy + Debug + Default + Into<KindOptions>;
    /// What a fetch is for.
    type Purpose: Copy + Debug + Send;

    /// A reader of a repository of this shape whose newest value had this sequence when it was granted. `None` if the shape
    /// belongs to another kind.
    fn open(
        geometry: &Geometry,
        names: (Epoch, TopicId),
        granted: Sequence,
        options: Self::Options,
    ) -> Option<Self>;

    /// Reserves memory for values that come inline, so that taking one allocates nothing.
    fn expect_inline(&mut self);

    /// Whether it knows where to begin.
    fn has_begun(&self) -> bool {
        true
    }

    /// Finds where to begin: what is published afterwards is not before that.
    fn settle(&mut self, _memory: &Region) {}

    /// Takes the next value if it is in private memory already, whole and right.
    #[inline]
    fn take_held(&mut self) -> Option<Taken> {
        None
    }

    /// Takes the next value of a mapped repository.
    fn poll(&mut self, memory: &Region) -> Result<Option<Taken>, ReadFailure>;

    /// Takes the next value of a landing region. The time is only asked for where a value may still be arriving.
    fn follow(
        &mut self,
        landing: &Region,
        order: WriteOrder,
        now_ns: impl Fn() -> u64,
    ) -> Result<Option<Taken>, ReadFailure>;

    /// Whether the last [`Self::poll`] or [`Self::follow`] found nothing only because it had copied enough for one call.
    fn has_more(&self) -> bool {
        false
    }

    /// What to fetch next.
    fn plan(&self) -> Fetch<Self::Purpose>;

    /// Takes over what was fetched into a mirror of the repository, where words may have come in any order.
    fn check(
        &mut self,
        mirror: &Region,
        fetched: &Fetch<Self::Purpose>,
        now_ns: u64,
    ) -> Result<Finding<Self::Purpose>, ReadFailure>;

    /// The newest sequence of the repository, as far as a fetch that was just checked tells it.
    fn newest_fetched(&self, mirror: &Region, fetched: &Fetch<Self::Purpose>) -> Option<Sequence>;

    /// Takes the next value of what was fetched or came inline and is held.
    #[inline]
    fn take_fetched(&mut self) -> Result<Option<Taken>, ReadFailure> {
        Ok(None)
    }

    /// Whether something has to be fetched before this reader can tell whether there is anything new.
    fn wants_more(&self) -> bool {
        false
    }

    /// Whether more is known to be there than is held: it may be fetched while that is taken.
    fn is_behind(&self) -> bool {
        false
    }

    /// Takes what came inline with a notice of this sequence, and of this position in a log. It is checked as if it had been
    /// fetched, and compared with the repository when that is read next.
    fn take_inline(&mut self, words: &[u64], sequence: Sequence, position: u64) -> Finding<Self::Purpose>;

    /// Whether values were taken that came inline and were not compared with the repository yet.
    fn is_unproven(&self) -> bool;

    /// The sequence of the last value that was taken, reported, or passed over.
    fn last(&self) -> Sequence;

    /// Gives up the values up to this one, because they cannot be read any more. The first of them and how many, if any.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)>;

    /// What has been counted so far.
    fn counts(&self) -> SubscriberStats;

    /// Its private memory.
    fn held(&self) -> &[u64];

    /// As [`Self::poll`], but gives the value.
    #[inline]
    fn read(&mut self, memory: &Region) -> Result<Option<Verified<'_>>, ReadFailure> {
        let taken = self.poll(memory)?;
        Ok(taken.map(|taken| self.verified(taken)))
    }

    /// The value that was taken last.
    #[inline]
    fn verified(&self, Taken { meta, conflated, begin, len }: Taken) -> Verified<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(self.held().get(begin..).unwrap_or_default());
        Verified { meta, conflated, payload: bytes.get(..len).unwrap_or_default() }
    }
}

/// A value that passed every check, in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verified<'a> {
    /// Where and when it was published.
    pub(crate) meta: Meta,
    /// Values between the one before and this one, which were replaced before they were read.
    pub(crate) conflated: u64,
    /// Its payload, aligned to 8.
    pub(crate) payload: &'a [u8],
}

/// A value that a reader has checked and holds, for [`Reader::verified`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(super) meta: Meta,
    pub(super) conflated: u64,
    /// Where its payload begins in private memory, words.
    pub(super) begin: usize,
    /// The length of its payload, bytes.
    pub(super) len: usize,
}

/// How what is written to a landing region arrives there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOrder {
    /// All words in order.
    Words,
    /// Only whole writes in order. What is wrong may be put right by writes that are under way.
    Writes,
    /// Only whole writes in order, and no write that is under way puts anything right: it may be lost, or there is none.
    FinalWrites,
}

/// What to fetch before the next check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch<P> {
    /// Those that are not empty, the first ones.
    pub(super) ranges: [ByteRange; 2],
    pub(super) purpose: P,
}

/// What became of something that was fetched or came inline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finding<P> {
    /// A value.
    Taken(Taken),
    /// More must be fetched, and checked again.
    More(Fetch<P>),
    /// Values, for [`Reader::take_fetched`], or knowledge of where they are.
    Something,
    /// Nothing new.
    Nothing,
}

/// Why a value was not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The writer overwrote each value while it was read.
    Contended { attempts: u32 },
    /// The value does not match its checksum, and nobody is writing it.
    Damaged { sequence: Sequence, expected: u32, found: u32 },
    /// The stamps of the value do not agree, and nobody is writing it.
    BrokenStamps { sequence: Sequence },
    /// The value belongs to another incarnation of the repository.
    ForeignEpoch { sequence: Sequence, expected: Epoch, found: u64 },
    /// The value claims a length that the repository cannot hold.
    ImpossibleLen { sequence: Sequence, len: u64, max: usize },
    /// Records of a log are missing before the next one.
    Lost(Lost),
    /// What came inline up to `told` is not what the repository holds, whose newest value is `found`. Values before `first` are
    /// not in doubt.
    Contradicted { first: Sequence, told: Sequence, found: Sequence },
}

/// Records that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The first of them.
    pub(crate) first: Sequence,
    /// How many they are.
    pub(crate) count: u64,
    /// Why.
    pub(crate) reason: LossReason,
}

/// Why records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossReason {
    /// The writer gave them up before they were read.
    Lapped,
    /// They stand still and are wrong.
    Damaged,
}

/// What a subscriber has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Values received.
    pub received: u64,
    /// Values of a state topic that were replaced by newer ones, or gone with their topic, before this subscriber read them.
    pub conflated: u64,
    /// Records of a log that the publisher had overwritten before they were read.
    pub lapped: u64,
    /// Records of a log that could not be read any more when the topic had ended.
    pub cut_off: u64,
    /// Values that were not accepted: damaged, or not of the type.
    pub rejected: u64,
    /// Reads that were repeated because the value was overwritten meanwhile.
    pub torn_retries: u64,
    /// Values among those received that came with notices and that the publisher's memory did not confirm: see
    /// [`ReceiveError::Contradicted`](crate::ReceiveError::Contradicted). Records of a log are received again as it holds them.
    pub withdrawn: u64,
}

/// The line of a repository that changes with each value.
pub(super) const HOT_LINE: ByteRange = ByteRange { offset: HOT_OFFSET, len: LINE };
/// What is not fetched.
pub(super) const NOTHING: ByteRange = ByteRange { offset: 0, len: 0 };

impl<P> Fetch<P> {
    /// The ranges, in order. A range may be fetched before or while the one before it is.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        let count = self.ranges.iter().take_while(|range| range.len > 0).count();
        self.ranges.split_at(count).0
    }
}
