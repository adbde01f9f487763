use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::claim::{Claim, Room};
use super::loan::Loan;
use super::notices::News;
use super::opening::{Opened, Published, PublisherKind, TopicParts};
use super::output::Output;
use super::state_landing::StateLanding;
use super::topic::topic_accessors;
use super::{PublishError, PublisherError};
use crate::id::Sequence;
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::payload::{InPlace, Payload, Pod, Raw};
use crate::repository::state::{Committed, StateWriter};

/// Publishes the values of a state topic: subscribers see the newest one.
///
/// Publishing neither allocates, nor locks, nor calls the operating system on the `shm` fabric, and costs nothing
/// for subscribers that pull, however many they are. It locks for a moment after a push subscriber has joined,
/// or one that asked for notices has come or gone. It calls the operating system to wake such subscribers on this host that sleep.
/// While there are some over RDMA, each publish sends a datagram: it takes a lock that the other publishers of the node take for
/// theirs, and the node's thread while it puts together what it tells of all topics, and wakes that thread when there is no room
/// to send.
/// Values are published in order; each gets the next sequence, from 1.
///
/// Dropping the publisher ends the topic: subscribers are told, and its name is free again. That does not block, unless
/// the publisher is the last handle of its [`Node`](crate::Node): then it joins the node's thread, which may take up to
/// 250 ms (over RDMA a second more, where a peer does not take what was sent).
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<(f64, f64)>("EURUSD").open()?;
/// assert_eq!(publisher.publish(&(1.0841, 1.0843))?.get(), 1);
/// # Ok(())
/// # }
/// ```
pub struct StatePublisher<T: Payload> {
    writer: StateWriter,
    output: Output<StateLanding>,
    encoding: u16,
    payload: PhantomData<fn(&T)>,
}

impl<T: Payload> StatePublisher<T> {
    /// Publishes a value, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`]
    /// when its type refuses to be encoded, [`PublishError::NodeFailed`] when the node's thread has panicked. Nothing is
    /// published then.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let began_ns = self.output.realtime_ns();
        let committed = match T::as_bytes(value) {
            Some(bytes) => self.writer.publish(bytes, self.encoding, began_ns).map_err(PublishError::from),
            None => {
                let schema = self.output.topic().schema();
                let fill = |room: &mut [u8]| T::encode(value, schema, room);
                self.writer.publish_with(self.encoding, began_ns, fill).map_err(PublishError::from)
            }
        };
        match committed {
            Ok(committed) => Ok(self.committed(&committed, began_ns)),
            Err(error) => Err(self.output.failed(error)),
        }
    }

    #[inline]
    fn committed(&mut self, committed: &Committed, began_ns: u64) -> Sequence {
        deliver(&mut self.output, committed);
        self.output.measure(committed.sequence, began_ns);
        committed.sequence
    }

    topic_accessors!();

    /// The sequence of the newest value; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.writer.last()
    }
}

impl<T> StatePublisher<Pod<T>>
where
    Pod<T>: InPlace<Value = T>,
{
    /// Claims room for the next value, to be filled in place: for values that are too large to be moved about. Neither blocks nor
    /// allocates.
    ///
    /// ```
    /// use fabricast::{Node, Pod};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("sensors")?.runtime_dir(dir.path()).open()?;
    /// let mut ranges = node.state_publisher::<Pod<[f64; 32]>>("lidar").open()?;
    /// let mut scan = ranges.claim();
    /// scan.iter_mut().enumerate().for_each(|(angle, range)| *range = angle as f64);
    /// assert_eq!(scan.commit()?.get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&mut self) -> Claim<'_, T> {
        Claim::new(self, size_of::<T>())
    }
}

impl<T: InPlace> Room<T::Value> for StatePublisher<T> {
    fn filled(&self, len: usize) -> &T::Value {
        T::value(self.writer.held().split_at(len).0)
    }

    fn filled_mut(&mut self, len: usize) -> &mut T::Value {
        T::value_mut(self.writer.room().split_at_mut(len).0)
    }

    fn publish_filled(&mut self, len: usize) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let began_ns = self.output.realtime_ns();
        let committed = self.writer.publish_filled(len, self.encoding, began_ns);
        Ok(self.committed(&committed, began_ns))
    }
}

impl StatePublisher<Raw> {
    /// Lends the idle slot, so that a large value can be written straight into it. Neither blocks nor allocates.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let mut frames = node.state_publisher::<Raw>("left").payload_len_max(1 << 20).open()?;
    /// let mut frame = frames.loan();
    /// for row in 0..480_u16 {
    ///     frame.append(&[row.to_le_bytes(); 640].concat())?;
    /// }
    /// assert_eq!(frame.commit().get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn loan(&mut self) -> Loan<'_> {
        Loan::new(self.writer.stage(self.encoding), &mut self.output)
    }

    /// Claims room for the next value, of so many bytes, to be filled in place and in any order. Neither blocks nor allocates. Large
    /// values are copied once less by [`Self::loan`].
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when the length is over the topic's `payload_len_max`.
    pub fn claim(&mut self, len: usize) -> Result<Claim<'_, [u8]>, PublishError> {
        let max = self.payload_len_max();
        if len > max {
            return Err(self.output.failed(PublishError::TooLong { len, max }));
        }
        Ok(Claim::new(self, len))
    }
}

/// Brings a committed value to whoever has to have it or hear of it.
#[inline]
pub(super) fn deliver(output: &mut Output<StateLanding>, committed: &Committed) {
    let Committed { sequence, slot, published_ns, payload_len } = *committed;
    output.add_bytes(payload_len);
    output.deliver(committed, || News { sequence, position: 0, published_ns, inline: Some((slot, 1)) });
}

impl<T: Payload> Published for StatePublisher<T> {}

impl<T: Payload> PublisherKind for StatePublisher<T> {
    type Payload = T;
    /// Slots.
    type Options = u32;
    const DEFAULTS: u32 = limits::SLOT_COUNT_DEFAULT;

    fn open(parts: TopicParts<'_>, slot_count: u32) -> Result<Opened<Self>, PublisherError> {
        let geometry = StateGeometry::new(slot_count, parts.payload_len_max)?;
        let (writer, output) = Output::open::<T, _>(parts, geometry, StateWriter::new)?;
        let topic = Arc::clone(output.topic());
        Ok(Opened {
            publisher: Self { writer, output, encoding: T::ENCODING.number(), payload: PhantomData },
            topic,
        })
    }
}

impl<T: Payload> fmt::Debug for StatePublisher<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StatePublisher")
            .field("topic", self.topic())
            .field("newest", &self.newest())
            .finish_non_exhaustive()
    }
}
