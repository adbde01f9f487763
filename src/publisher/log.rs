use std::borrow::Borrow;

use super::gate::Overwriting;
use super::handle::{Claimed, PublishedKind, Publisher, Writable};
use super::log_landing::LogLanding;
use super::notices::News;
use super::output::Output;
use super::{Gating, LenLimit, PublishError, PublisherError, TryPublishError};
use crate::id::Sequence;
use crate::layout::GeometryError;
use crate::layout::log::{LogGeometry, LogHead, frame_len};
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
    /// fails to encode, [`PublishError::Blocked`] when a subscriber for which the publisher waits has not read in time what the record
    /// would overwrite, [`PublishError::NodeFailed`] when the node's thread has panicked. In these cases the record is not published.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        let began_ns = self.output.realtime_ns();
        let sequence = self.append_at(value, began_ns, true)?;
        self.commit_at(began_ns);
        Ok(sequence)
    }

    /// Publishes a record like [`Self::publish`], or hands it back instead of waiting for a subscriber. The value may be given or lent.
    ///
    /// # Errors
    ///
    /// Those of [`Self::publish`], with the value; [`TryPublishError::is_blocked`] says whether to try again later. The publisher then
    /// publishes nothing, and neither waits nor allocates.
    #[inline]
    pub fn try_publish<V: Borrow<T::Borrowed>>(&mut self, value: V) -> Result<Sequence, TryPublishError<V>> {
        let began_ns = self.output.realtime_ns();
        match self.append_at(value.borrow(), began_ns, false) {
            Ok(sequence) => {
                self.commit_at(began_ns);
                Ok(sequence)
            }
            Err(error) => Err(TryPublishError { value, error }),
        }
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
        let appended =
            values.into_iter().try_for_each(|value| self.append_at(value, began_ns, true).map(drop));
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
        self.append_at(value, now_ns, true)
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
    fn append_at(
        &mut self,
        value: &T::Borrowed,
        now_ns: u64,
        may_wait: bool,
    ) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let Self { writer, output, .. } = self;
        let times = (now_ns, may_wait);
        let appended = match T::as_bytes(value) {
            Some(bytes) => {
                append(writer, output, times, bytes.len(), |writer| Ok(writer.append(bytes, now_ns)?))
            }
            None => {
                let max = writer.geometry().payload_len_max();
                let encoded = T::encode(value, &output.topic.schema, writer.room());
                encoded.map_err(|error| LenLimit::Value.refused(error, max)).and_then(|len| {
                    append(writer, output, times, len, |writer| Ok(writer.append_filled(len, now_ns)))
                })
            }
        };
        appended.map_err(|error| refused(output, error, may_wait))
    }

    #[inline]
    fn commit_at(&mut self, began_ns: u64) {
        commit(&mut self.writer, &mut self.output, began_ns);
    }
}

/// Counts an error, except that of an attempt that does not wait: it may be refused again and again.
#[cold]
pub(super) fn refused(output: &mut Output<LogLanding>, error: PublishError, may_wait: bool) -> PublishError {
    let is_expected = !may_wait && matches!(error, PublishError::Blocked { .. });
    if is_expected { error } else { output.failed(error) }
}

/// Appends a payload of this length, once no subscriber needs what it overwrites. Counts it, and delivers what had to be committed.
#[inline]
fn append(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    (now_ns, may_wait): (u64, bool),
    len: usize,
    append: impl FnOnce(&mut LogWriter) -> Result<Sequence, PublishError>,
) -> Result<Sequence, PublishError> {
    // A longer one is refused below.
    if output.gate.is_permitted() && len <= writer.geometry().payload_len_max() {
        admit(writer, output, frame_len(len), (now_ns, may_wait))?;
    }
    let before = (writer.last(), writer.committed_end());
    let sequence = append(writer)?;
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

/// Waits until no gating subscriber needs what frames of this length overwrite.
#[inline]
pub(super) fn admit(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    frames_len: usize,
    (now_ns, may_wait): (u64, bool),
) -> Result<(), PublishError> {
    match writer.gives_up(frames_len) {
        Some(until) if !output.gate.is_open(until) => wait_for(writer, output, until, (now_ns, may_wait)),
        _ => Ok(()),
    }
}

/// Does the same for an event that was admitted before it was committed. Only a subscriber that has joined since then, with older records,
/// may need what is overwritten: it is waited for, and then let go.
#[inline]
pub(super) fn admit_again(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    frames_len: usize,
    now_ns: u64,
) {
    if output.gate.is_permitted() && admit(writer, output, frames_len, (now_ns, true)).is_err() {
        output.gate.force(&Overwriting::of(writer, writer.gives_up(frames_len)));
    }
}

#[cold]
fn wait_for(
    writer: &mut LogWriter,
    output: &mut Output<LogLanding>,
    until: u64,
    (now_ns, may_wait): (u64, bool),
) -> Result<(), PublishError> {
    if until > writer.committed_end() {
        // Nobody can read these records before they are committed.
        commit(writer, output, now_ns);
    }
    let overwriting = Overwriting::of(writer, Some(until));
    let topic = &output.topic;
    output.gate.pass(&overwriting, may_wait, || topic.check_served())
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

/// The options of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// The minimum size of the ring, bytes.
    pub(crate) capacity: usize,
    /// What subscribers may ask of the publisher.
    pub(crate) gating: Option<Gating>,
}

impl PublishedKind for LogTopic {}

impl Writable for LogTopic {
    type Options = LogOptions;
    const DEFAULTS: LogOptions = LogOptions { capacity: limits::LOG_CAPACITY_DEFAULT, gating: None };
    type Writer = LogWriter;
    type Landing = LogLanding;
    type Parts = ();

    fn parts(_: &Schema, _: LogGeometry) -> Result<(), PublisherError> {
        Ok(())
    }

    fn gating(options: LogOptions) -> Option<Gating> {
        options.gating
    }

    fn geometry(options: LogOptions, payload_len_max: usize) -> Result<LogGeometry, GeometryError> {
        LogGeometry::new(options.capacity, payload_len_max)
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
        may_wait: bool,
    ) -> Result<Sequence, PublishError> {
        let Publisher { writer, output, .. } = publisher;
        let began_ns = output.realtime_ns();
        let filled = |writer: &mut LogWriter| Ok(writer.append_filled(len, began_ns));
        let sequence = append(writer, output, (began_ns, may_wait), len, filled);
        let sequence = sequence.map_err(|error| refused(output, error, may_wait))?;
        commit(writer, output, began_ns);
        Ok(sequence)
    }
}
