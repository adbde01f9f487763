use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::claim::{Claim, Room};
use super::log_landing::LogLanding;
use super::notices::News;
use super::opening::{Opened, Published, PublisherKind, TopicParts};
use super::output::Output;
use super::topic::topic_accessors;
use super::{PublishError, PublisherError};
use crate::id::Sequence;
use crate::layout::log::{LogGeometry, LogHead};
use crate::limits;
use crate::payload::{InPlace, Payload, Pod, Raw};
use crate::repository::log::{Appended, LogWriter};

/// Publishes the records of a log topic: subscribers get them all, in order, as far back as the repository's ring holds them.
///
/// Records become visible by a commit. [`Self::publish`] appends one and commits it; [`Self::publish_batch`] commits many at
/// once, which costs less for each; [`Self::append`] and [`Self::commit`] leave that to the caller. Each record gets the next
/// sequence, from 1. The oldest ones are given up as new ones need their place: a subscriber that was too slow for them is told
/// which, and how many.
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing
/// for subscribers that pull, however many they are. It locks for a moment after a push subscriber has joined, and it locks and
/// wakes the node's thread when one is so slow that it is left to that thread. For subscribers that asked for notices it locks after one
/// has come or gone, and calls the operating system to wake those on this host that sleep. While there are some over RDMA, each
/// commit sends a datagram: it takes a lock that the other publishers of the node take for theirs, and the node's thread while it
/// puts together what it tells of all topics, and wakes that thread when there is no room to send.
///
/// A commit writes the records to those push subscribers that keep up before it returns. To one that has just joined, or is behind, the
/// node's thread brings them: it may have them a moment later.
///
/// Dropping the publisher commits what was appended, and ends the topic: subscribers are told, and its name is free again. That
/// does not block, unless the publisher is the last handle of its [`Node`](crate::Node): then it joins the node's thread, which
/// may take up to 250 ms (over RDMA a second more, where a peer does not take what was sent).
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = node.log_publisher::<(f64, u32)>("EURUSD").capacity(1 << 20).open()?;
/// assert_eq!(trades.publish(&(1.0841, 100))?.get(), 1);
/// assert_eq!(trades.publish_batch(&[(1.0842, 50), (1.0843, 70)])?.get(), 3);
/// # Ok(())
/// # }
/// ```
pub struct LogPublisher<T: Payload> {
    writer: LogWriter,
    output: Output<LogLanding>,
    payload: PhantomData<fn(&T)>,
}

impl<T: Payload> LogPublisher<T> {
    /// Publishes a record, and returns its sequence: appends it, and commits it with all that was appended before.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`]
    /// when its type refuses to be encoded, [`PublishError::NodeFailed`] when the node's thread has panicked. Nothing is
    /// published then.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let began_ns = self.output.realtime_ns();
        let sequence = self.append_at(value, began_ns)?;
        self.commit_at(began_ns);
        Ok(sequence)
    }

    /// Publishes records with one commit, and returns the sequence of the last one; of the newest record if there are none. A
    /// batch that would take more than half of the ring is committed in parts.
    ///
    /// # Errors
    ///
    /// As [`Self::publish`]. The records before the one that failed are published, and it and those behind it are not.
    #[inline]
    pub fn publish_batch<'v, I>(&mut self, values: I) -> Result<Sequence, PublishError>
    where
        I: IntoIterator<Item = &'v T::Borrowed>,
        T::Borrowed: 'v,
    {
        let began_ns = self.output.realtime_ns();
        let appended = values.into_iter().try_for_each(|value| self.append_at(value, began_ns).map(drop));
        self.commit_at(began_ns);
        appended.map(|()| self.newest())
    }

    /// Appends a record to the next commit, and returns its sequence. No subscriber sees it before; but what would take more
    /// than half of the ring is committed in parts.
    ///
    /// # Errors
    ///
    /// As [`Self::publish`]. Nothing is appended then, and what was before stays.
    #[inline]
    pub fn append(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let now_ns = self.output.realtime_ns();
        self.append_at(value, now_ns)
    }

    /// Lets subscribers see all that was appended. Returns the newest sequence.
    #[inline]
    pub fn commit(&mut self) -> Sequence {
        let now_ns = self.output.realtime_ns();
        self.commit_at(now_ns);
        self.newest()
    }

    topic_accessors!();

    /// The sequence of the newest record that was committed; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.writer.last()
    }

    /// Bytes of the ring: each record takes those of its payload, rounded up to 8, and 24 more.
    pub fn capacity(&self) -> usize {
        self.writer.geometry().capacity()
    }

    #[inline]
    fn append_at(&mut self, value: &T::Borrowed, now_ns: u64) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let Self { writer, output, .. } = self;
        let appended = append(writer, output, now_ns, |writer, output| match T::as_bytes(value) {
            Some(bytes) => Ok((writer.append(bytes, now_ns)?, bytes.len())),
            None => {
                let len = T::encode(value, output.topic().schema(), writer.room())?;
                Ok((writer.append_filled(len, now_ns), len))
            }
        });
        appended.map_err(|error| self.output.failed(error))
    }

    #[inline]
    fn commit_at(&mut self, began_ns: u64) {
        if let Some(appended) = self.writer.commit(began_ns) {
            deliver(&mut self.output, self.writer.geometry(), &appended, began_ns);
            self.output.measure(appended.newest, began_ns);
        }
    }
}

impl<T> LogPublisher<Pod<T>>
where
    Pod<T>: InPlace<Value = T>,
{
    /// Claims room for the next record, to be filled in place: for values that are too large to be moved about. Neither blocks nor
    /// allocates. Committing it commits what was appended before, too.
    pub fn claim(&mut self) -> Claim<'_, T> {
        Claim::new(self, size_of::<T>())
    }
}

impl LogPublisher<Raw> {
    /// Claims room for the next record, of so many bytes, to be filled in place. Neither blocks nor allocates. Committing it commits
    /// what was appended before, too.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when the length is over the topic's `payload_len_max`.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut messages = node.log_publisher::<Raw>("messages").open()?;
    /// let mut message = messages.claim(12)?;
    /// message[..8].copy_from_slice(&7_u64.to_le_bytes());
    /// message[8..].copy_from_slice(b"fill");
    /// assert_eq!(message.commit()?.get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&mut self, len: usize) -> Result<Claim<'_, [u8]>, PublishError> {
        let max = self.payload_len_max();
        if len > max {
            return Err(self.output.failed(PublishError::TooLong { len, max }));
        }
        Ok(Claim::new(self, len))
    }
}

impl<T: InPlace> Room<T::Value> for LogPublisher<T> {
    fn filled(&self, len: usize) -> &T::Value {
        T::value(self.writer.held().split_at(len).0)
    }

    fn filled_mut(&mut self, len: usize) -> &mut T::Value {
        T::value_mut(self.writer.room().split_at_mut(len).0)
    }

    fn publish_filled(&mut self, len: usize) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let began_ns = self.output.realtime_ns();
        let filled = |writer: &mut LogWriter, _: &_| Ok((writer.append_filled(len, began_ns), len));
        let sequence = append(&mut self.writer, &mut self.output, began_ns, filled)?;
        self.commit_at(began_ns);
        Ok(sequence)
    }
}

/// What `append` appends, counted and delivered as far as it had to be committed. `append` says its sequence and length.
#[inline]
fn append(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    now_ns: u64,
    append: impl FnOnce(&mut LogWriter, &Output<LogLanding>) -> Result<(Sequence, usize), PublishError>,
) -> Result<Sequence, PublishError> {
    let (committed, begin) = (writer.last(), writer.committed_end());
    let (sequence, len) = append(writer, output)?;
    output.add_bytes(len);
    // A part of what was appended before had to be committed.
    let newest = writer.last();
    if newest != committed {
        let positions = [begin, writer.committed_end()];
        let appended = Appended { newest, positions, count: newest.get() - committed.get() };
        deliver(output, writer.geometry(), &appended, now_ns);
    }
    Ok(sequence)
}

/// Brings committed records to whoever has to have them or hear of them.
#[inline]
fn deliver(output: &mut Output<LogLanding>, geometry: LogGeometry, appended: &Appended, published_ns: u64) {
    let Appended { newest, positions, count } = *appended;
    let [_, end] = positions;
    output.deliver(&LogHead { newest, end, published_ns }, || {
        let inline = geometry.range(positions).zip(u32::try_from(count).ok());
        News { sequence: newest, position: end, published_ns, inline }
    });
}

impl<T: Payload> Drop for LogPublisher<T> {
    fn drop(&mut self) {
        self.commit();
    }
}

impl<T: Payload> Published for LogPublisher<T> {}

impl<T: Payload> PublisherKind for LogPublisher<T> {
    type Payload = T;
    /// Bytes of the ring, at least.
    type Options = usize;
    const DEFAULTS: usize = limits::LOG_CAPACITY_DEFAULT;

    fn open(parts: TopicParts<'_>, capacity: usize) -> Result<Opened<Self>, PublisherError> {
        let geometry = LogGeometry::new(capacity, parts.payload_len_max)?;
        let (writer, output) = Output::open::<T, _>(parts, geometry, LogWriter::new)?;
        let topic = Arc::clone(output.topic());
        Ok(Opened { publisher: Self { writer, output, payload: PhantomData }, topic })
    }
}

impl<T: Payload> fmt::Debug for LogPublisher<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogPublisher")
            .field("topic", self.topic())
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}
