use std::fmt;
use std::io;
use std::ops::Range;

use bytemuck::Pod;

use super::core::Core;
use super::log::LogSubscriber;
use super::subscription::Source;
use super::{ProgressReport, ReceiveError};
use crate::id::{Delivery, Meta};
use crate::layout::WORD;
use crate::memory::Region;
use crate::payload::InPlace;
use crate::repository::Verified;
use crate::repository::log::{LogReader, Viewed};

/// Bytes of a chunk: few enough to stay in the first-level cache.
const CHUNK_LEN: usize = 4 * 1024;

/// A record of a log that was received and checked, in the publisher's memory where possible: see [`LogSubscriber::try_receive_view`].
///
/// Its bytes are read by copies: [`Self::read_at`], [`Self::value_at`] and [`Self::chunks`]. None of them blocks or allocates.
///
/// The publisher waits for this subscriber while the view exists, and dropping the view releases the record. A view that is leaked (by
/// [`std::mem::forget`]) is released by the next receive.
///
/// What is read is what was checked, with two exceptions, in which bytes of other records may be read, or a mixture. The publisher may
/// let the subscriber go, because its process was stopped for longer than the [lease](crate::Gating::lease): then the record may be
/// overwritten, and [`Self::is_intact`] says so. And a publisher that breaks the protocol can overwrite the record at any time. Whatever
/// it writes, reading the view is safe: at worst the bytes are not those that were checked.
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
pub struct LogView<'a> {
    /// Where and when it was published.
    pub meta: Meta,
    content: Content<'a>,
}

/// Where a record is.
enum Content<'a> {
    /// In the subscriber's private memory.
    Private(&'a [u8]),
    InPlace {
        core: &'a mut Core<LogReader>,
        viewed: Viewed,
    },
}

/// The bytes of a [`LogView`] from front to back, in chunks: see [`LogView::chunks`].
///
/// It implements [`io::Read`] and [`io::BufRead`], for decoders.
pub struct LogChunks<'v> {
    view: &'v LogView<'v>,
    /// The bytes that were copied, and not read yet, in the buffer or in private memory.
    unread: Range<usize>,
    /// The offset of what is copied next.
    offset: usize,
    buffer: [u64; CHUNK_LEN / WORD],
}

impl<T: InPlace> LogSubscriber<T> {
    /// Receives the next record as a view, without copying it to private memory if possible. Does not block. Neither allocates nor locks.
    ///
    /// It is meant for programs that read parts of a long record, or have no memory for a copy. Reading every byte takes longer than by
    /// [`Self::try_receive_ref`], because each is copied twice: by the check, and by the program.
    ///
    /// That is possible for a long record (more than 4 KiB with its header) of a subscriber whose publisher waits for it
    /// ([`SlowPolicy::Block`](crate::SlowPolicy::Block)), by pull on the publisher's host, and by push. The publisher keeps the record
    /// until the view is dropped, and is held up if it needs the space. Every other record is viewed in private memory, where it was
    /// copied: short ones and long ones that were copied together with them, those of topics with a
    /// [lifespan](crate::PublisherBuilder::lifespan) or subscribers with a deadline, and all records of subscribers that are lapped, or
    /// that pull over RDMA. [`LogView::is_in_place`] tells the two apart.
    ///
    /// ```
    /// use fabricast::{Gating, Node, Raw, SlowPolicy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let builder = node.log_publisher::<Raw>("left").payload_len_max(1 << 16);
    /// let mut frames = builder.gating(Gating::new()).open()?;
    /// let mut viewer = node.log_subscriber::<Raw>("shm:camera/left").slow(SlowPolicy::Block).open()?;
    /// frames.publish(&[7; 1 << 16])?;
    ///
    /// let frame = viewer.try_receive_view()?.ok_or("nothing published")?;
    /// assert!(frame.is_in_place());
    /// assert_eq!((frame.len(), frame.value_at::<u32>(640)), (1 << 16, Some(0x0707_0707)));
    /// let mut sum = 0_u64;
    /// let mut chunks = frame.chunks();
    /// while let Some(bytes) = chunks.next_chunk() {
    ///     sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    /// }
    /// assert_eq!(sum, 7 << 16);
    /// assert!(frame.is_intact());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`], except [`ReceiveError::Decode`]: the bytes need not be a value of the type.
    pub fn try_receive_view(&mut self) -> Result<Option<LogView<'_>>, ReceiveError> {
        if let Some(viewed) = self.core.view() {
            let content = Content::InPlace { core: &mut self.core, viewed };
            return Ok(Some(LogView { meta: viewed.meta, content }));
        }
        let private = |Verified { meta, payload, .. }| LogView { meta, content: Content::Private(payload) };
        self.core.try_receive(private)
    }
}

impl Core<LogReader> {
    /// Takes the next record in place, if that is possible.
    fn view(&mut self) -> Option<Viewed> {
        let Self { reader, subscription, .. } = self;
        let waits = subscription.progress.as_ref().is_some_and(ProgressReport::blocks);
        if !waits || subscription.is_timed() || !subscription.is_gating() {
            return None;
        }
        let is_landing = subscription.granted.delivery == Delivery::Push;
        let (Source::Mapped(memory) | Source::Landing { region: memory, .. }) = &subscription.source else {
            return None;
        };
        reader.view(memory, is_landing)
    }

    /// The memory of a record in view.
    fn viewed_memory(&self) -> Option<&Region> {
        match &self.subscription.source {
            Source::Mapped(memory) | Source::Landing { region: memory, .. } => Some(memory),
            // Only a receive releases it, and there was none since.
            Source::Remote(_) | Source::Released(_) => None,
        }
    }

    /// Releases the record in view.
    fn end_view(&mut self) {
        let Self { reader, subscription, .. } = self;
        let is_landing = subscription.granted.delivery == Delivery::Push;
        if let Source::Mapped(memory) | Source::Landing { region: memory, .. } = &subscription.source {
            reader.end_view(memory, is_landing);
        }
        subscription.progress.iter_mut().for_each(|progress| progress.tell(reader, is_landing));
    }
}

impl LogView<'_> {
    /// Returns the length of the record, bytes.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Private(bytes) => bytes.len(),
            Content::InPlace { viewed, .. } => viewed.len,
        }
    }

    /// Returns whether the record has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the record is viewed where the publisher wrote it, and not in private memory.
    pub fn is_in_place(&self) -> bool {
        matches!(self.content, Content::InPlace { .. })
    }

    /// Returns whether the publisher still kept the record when it was last read. False once the publisher has let the subscriber go and
    /// has given up the record: what was read before this call may then be wrong. Always true in private memory. One load.
    pub fn is_intact(&self) -> bool {
        match &self.content {
            Content::Private(_) => true,
            Content::InPlace { core, viewed } => {
                core.viewed_memory().is_some_and(|memory| viewed.is_intact(memory))
            }
        }
    }

    /// Copies bytes from this offset on to `target`. Returns their number: less than `target` holds at the end of the record, and 0 after
    /// it.
    pub fn read_at(&self, offset: usize, target: &mut [u8]) -> usize {
        let len = self.len().saturating_sub(offset).min(target.len());
        let (target, _) = target.split_at_mut(len);
        match &self.content {
            Content::Private(bytes) => {
                target.copy_from_slice(bytes.get(offset..).unwrap_or_default().split_at(len).0);
            }
            Content::InPlace { core, viewed } if len > 0 => {
                let Some(memory) = core.viewed_memory() else { return 0 };
                // Memory is read by whole words.
                let (begun, whole) = (offset % WORD, viewed.offset + offset / WORD * WORD);
                let head = len.min((WORD - begun) % WORD);
                let (first, rest) = target.split_at_mut(head);
                if head > 0 {
                    let word = memory.load(whole).to_le_bytes();
                    first.iter_mut().zip(word.into_iter().skip(begun)).for_each(|(to, from)| *to = from);
                }
                memory.copy_out_bytes(whole + WORD * usize::from(begun > 0), rest);
            }
            Content::InPlace { .. } => {}
        }
        len
    }

    /// Returns the value at this offset, in any alignment; `None` if it extends past the end of the record. Its bytes are those of the
    /// record, in memory order.
    pub fn value_at<V: Pod>(&self, offset: usize) -> Option<V> {
        let mut value = V::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut value);
        let len = bytes.len();
        (self.read_at(offset, bytes) == len).then_some(value)
    }

    /// Returns the bytes from front to back, in chunks of up to 4 KiB that are copied one after the other.
    pub fn chunks(&self) -> LogChunks<'_> {
        LogChunks { view: self, unread: 0..0, offset: 0, buffer: [0; CHUNK_LEN / WORD] }
    }
}

impl LogChunks<'_> {
    /// Returns the next chunk: all bytes that were not read yet of the last one; otherwise the next 4 KiB of the record, or its rest.
    /// `None` at its end.
    #[inline]
    pub fn next_chunk(&mut self) -> Option<&[u8]> {
        self.fill();
        let Range { start, end } = std::mem::replace(&mut self.unread, 0..0);
        (start < end).then(|| self.filled().get(start..end).unwrap_or_default())
    }

    /// Copies the next bytes, if all copied ones were read.
    #[inline]
    fn fill(&mut self) {
        if !self.unread.is_empty() {
            return;
        }
        let Self { view, unread, offset, buffer } = self;
        let len = view.len().saturating_sub(*offset).min(CHUNK_LEN);
        *unread = match &view.content {
            Content::Private(_) => *offset..*offset + len,
            Content::InPlace { .. } => {
                let (chunk, _) = bytemuck::cast_slice_mut(buffer.as_mut_slice()).split_at_mut(len);
                0..view.read_at(*offset, chunk)
            }
        };
        *offset += len;
    }

    /// What the range of unread bytes is a part of.
    #[inline]
    fn filled(&self) -> &[u8] {
        match &self.view.content {
            Content::Private(bytes) => bytes,
            Content::InPlace { .. } => bytemuck::cast_slice(&self.buffer),
        }
    }
}

impl io::BufRead for LogChunks<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill();
        Ok(self.filled().get(self.unread.clone()).unwrap_or_default())
    }

    fn consume(&mut self, amount: usize) {
        self.unread.start = self.unread.end.min(self.unread.start.saturating_add(amount));
    }
}

impl io::Read for LogChunks<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let bytes = io::BufRead::fill_buf(self)?;
        let len = bytes.len().min(target.len());
        target.split_at_mut(len).0.copy_from_slice(bytes.split_at(len).0);
        io::BufRead::consume(self, len);
        Ok(len)
    }
}

impl Drop for LogView<'_> {
    fn drop(&mut self) {
        if let Content::InPlace { core, .. } = &mut self.content {
            core.end_view();
        }
    }
}

impl fmt::Debug for LogView<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogView")
            .field("meta", &self.meta)
            .field("len", &self.len())
            .field("is_in_place", &self.is_in_place())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LogChunks<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogChunks")
            .field("view", self.view)
            .field("offset", &(self.offset - self.unread.len()))
            .finish_non_exhaustive()
    }
}
