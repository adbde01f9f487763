use std::sync::Arc;

use super::PublishError;
use super::handle::{PublishedKind, Publisher, Writable};
use super::log_landing::LogLanding;
use super::notices::News;
use super::output::Output;
use crate::id::Sequence;
use crate::layout::GeometryError;
use crate::layout::header::StaticHeader;
use crate::layout::log::{LogGeometry, LogHead};
use crate::limits;
use crate::memory::Region;
use crate::payload::{Payload, Schema};
use crate::repository::log::{Appended, LogTopic, LogWriter};

/// Publishes the records of a log topic: subscribers get them all, in order, as far back as the repository's ring holds them.
///
/// Records become visible by a commit. [`Self::publish`] appends one and commits it; [`Self::publish_batch`] commits many at
/// once, which costs less for each; [`Self::append`] and [`Self::commit`] leave that to the caller. Each record gets the next
/// sequence, from 1. The oldest ones are given up as new ones need their place: a subscriber that was too slow for them is told
/// which, and how many.
///
/// A commit writes the records to those push subscribers that keep up before it returns. To one that has just joined, or is behind, the
/// node's thread brings them: it may have them a moment later.
///
/// Dropping the publisher commits what was appended.
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

    /// Bytes of the ring: each record takes those of its payload, rounded up to 8, and 24 more.
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
                let len = T::encode(value, schema, writer.room())?;
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

/// What `append` appends, counted, and delivered as far as it had to be committed. `append` says its sequence and length.
#[inline]
fn append(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    now_ns: u64,
    append: impl FnOnce(&mut LogWriter, &Schema) -> Result<(Sequence, usize), PublishError>,
) -> Result<Sequence, PublishError> {
    let (committed, begin) = (writer.last(), writer.committed_end());
    let (sequence, len) = append(writer, output.topic().schema())?;
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

/// Commits what was appended.
#[inline]
fn commit(writer: &mut LogWriter, output: &mut Output<LogLanding>, began_ns: u64) {
    if let Some(appended) = writer.commit(began_ns) {
        deliver(output, writer.geometry(), &appended, began_ns);
        output.measure(appended.newest, began_ns);
    }
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

impl PublishedKind for LogTopic {}

impl Writable for LogTopic {
    /// Bytes of the ring, at least.
    type Options = usize;
    const DEFAULTS: usize = limits::LOG_CAPACITY_DEFAULT;
    type Writer = LogWriter;
    type Landing = LogLanding;

    fn geometry(capacity: usize, payload_len_max: usize) -> Result<LogGeometry, GeometryError> {
        LogGeometry::new(capacity, payload_len_max)
    }

    fn place(region: Arc<Region>, geometry: LogGeometry, header: &StaticHeader) -> LogWriter {
        LogWriter::new(region, geometry, header)
    }

    fn newest(writer: &LogWriter) -> Sequence {
        writer.last()
    }

    fn buffer(writer: &mut LogWriter) -> &mut [u8] {
        writer.room()
    }

    fn held(writer: &LogWriter) -> &[u8] {
        writer.held()
    }

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

    fn finish(writer: &mut LogWriter, output: &mut Output<LogLanding>) {
        let now_ns = output.realtime_ns();
        commit(writer, output, now_ns);
    }
}
