use super::handle::{Claimed, PublishedKind, Publisher, Writable};
use super::log_landing::LogLanding;
use super::notices::News;
use super::output::Output;
use super::{LenLimit, PublishError, PublisherError};
use crate::id::Sequence;
use crate::layout::GeometryError;
use crate::layout::log::{LogGeometry, LogHead};
use crate::limits;
use crate::payload::{Payload, Schema};
use crate::repository::Writer as _;
use crate::repository::log::{Appended, LogTopic, LogWriter};

/// Publishes the records of a log topic. Subscribers receive every record still in the repository's ring, in order.
///
/// A commit makes records visible. [`Self::publish`] appends one record and commits it; [`Self::publish_batch`] commits many at
/// once, at less cost for each; with [`Self::append`] and [`Self::commit`] the caller decides. Records have consecutive sequences
/// from 1. New records overwrite the oldest ones; a subscriber that was too slow learns which were lost, and how many.
///
/// A commit returns after it has written the records to push subscribers that keep up. The node's thread writes them to a
/// subscriber that has just joined, or is behind, a moment later.
///
/// Dropping the publisher commits the appended records.
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
pub type LogPublisher<T> = Publisher<LogTopic, T>;

impl<T: Payload> LogPublisher<T> {
    /// Publishes a record, together with all appended before, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`] when its type
    /// fails to encode, [`PublishError::NodeFailed`] when the node's thread has panicked. In these cases nothing is published.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let began_ns = self.output.realtime_ns();
        let sequence = self.append_at(value, began_ns)?;
        self.commit_at(began_ns);
        Ok(sequence)
    }

    /// Publishes records with one commit, and returns the newest sequence. A batch of more than half the ring is committed in
    /// parts.
    ///
    /// # Errors
    ///
    /// Those of [`Self::publish`]. The records before the failed one are published; the others are not.
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

    /// Appends a record to the next commit, and returns its sequence. Subscribers do not see it before that commit; more than
    /// half a ring of records is committed in parts.
    ///
    /// # Errors
    ///
    /// Those of [`Self::publish`]. In these cases nothing is appended, and records appended before are kept.
    #[inline]
    pub fn append(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let now_ns = self.output.realtime_ns();
        self.append_at(value, now_ns)
    }

    /// Makes all appended records visible. Returns the newest sequence.
    #[inline]
    pub fn commit(&mut self) -> Sequence {
        let now_ns = self.output.realtime_ns();
        self.commit_at(now_ns);
        self.newest()
    }

    /// Returns the bytes of the ring: each record takes its payload, rounded up to 8 bytes, and 24 bytes more.
    pub fn capacity(&self) -> usize {
        self.writer.geometry().capacity()
    }

    #[inline]
    fn append_at(&mut self, value: &T::Borrowed, now_ns: u64) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let Self { writer, output, .. } = self;
        let appended = append(writer, output, now_ns, |writer, schema| match T::as_bytes(value) {
            Some(bytes) => Ok((writer.append(bytes, now_ns)?, bytes.len())),
            None => {
                let max = writer.geometry().payload_len_max();
                let encoded = T::encode(value, schema, writer.room());
                let len = encoded.map_err(|error| LenLimit::Value.refused(error, max))?;
                Ok((writer.append_filled(len, now_ns), len))
            }
        });
        appended.map_err(|error| self.output.failed(error))
    }

    #[inline]
    fn commit_at(&mut self, began_ns: u64) {
        commit(&mut self.writer, &mut self.output, began_ns);
    }
}

/// Counts what `append` appends, and delivers what had to be committed. `append` returns a sequence and length.
#[inline]
fn append(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    now_ns: u64,
    append: impl FnOnce(&mut LogWriter, &Schema) -> Result<(Sequence, usize), PublishError>,
) -> Result<Sequence, PublishError> {
    let before = (writer.last(), writer.committed_end());
    let (sequence, len) = append(writer, &output.topic.schema)?;
    output.add_bytes(len);
    deliver_part(writer, output, before, now_ns);
    Ok(sequence)
}

/// Delivers the records after these that had to be committed to make space.
#[inline]
pub(super) fn deliver_part(
    writer: &LogWriter,
    output: &mut Output<LogLanding>,
    (committed, begin): (Sequence, u64),
    now_ns: u64,
) {
    let newest = writer.last();
    if newest != committed {
        let positions = [begin, writer.committed_end()];
        let appended = Appended { newest, positions, count: newest.get() - committed.get() };
        deliver(output, writer.geometry(), &appended, now_ns);
    }
}

/// Commits the appended records.
#[inline]
pub(super) fn commit(writer: &mut LogWriter, output: &mut Output<LogLanding>, began_ns: u64) {
    if let Some(appended) = writer.commit(began_ns) {
        deliver(output, writer.geometry(), &appended, began_ns);
        output.measure(appended.newest, began_ns);
    }
}

/// Delivers committed records to push subscribers, and announces them.
#[inline]
fn deliver(output: &mut Output<LogLanding>, geometry: LogGeometry, appended: &Appended, published_ns: u64) {
    let Appended { newest, positions, count } = *appended;
    let [_, end] = positions;
    output.deliver(&LogHead { newest, end, published_ns }, || {
        let inline = geometry.range(positions).zip(u32::try_from(count).ok());
        News { sequence: newest, position: end, published_ns, inline }
    });
}

impl PublishedKind for LogTopic {}

impl Writable for LogTopic {
    /// The minimum size of the ring, bytes.
    type Options = usize;
    const DEFAULTS: usize = limits::LOG_CAPACITY_DEFAULT;
    type Writer = LogWriter;
    type Landing = LogLanding;
    type Parts = ();

    fn parts(_: &Schema, _: LogGeometry) -> Result<(), PublisherError> {
        Ok(())
    }

    fn geometry(capacity: usize, payload_len_max: usize) -> Result<LogGeometry, GeometryError> {
        LogGeometry::new(capacity, payload_len_max)
    }

    fn finish(writer: &mut LogWriter, output: &mut Output<LogLanding>) {
        let now_ns = output.realtime_ns();
        commit(writer, output, now_ns);
    }
}

impl Claimed for LogTopic {
    fn publish_filled<T: Payload>(
        publisher: &mut LogPublisher<T>,
        len: usize,
    ) -> Result<Sequence, PublishError> {
        let Publisher { writer, output, .. } = publisher;
        let began_ns = output.realtime_ns();
        let filled = |writer: &mut LogWriter, _: &_| Ok((writer.append_filled(len, began_ns), len));
        let sequence = append(writer, output, began_ns, filled)?;
        commit(writer, output, began_ns);
        Ok(sequence)
    }
}
