use super::handle::{Claimed, PublishedKind, Publisher, Writable};
use super::notices::News;
use super::output::Output;
use super::state_landing::StateLanding;
use super::{LenLimit, PublishError, PublisherError};
use crate::id::Sequence;
use crate::layout::GeometryError;
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::payload::{Payload, Schema};
use crate::repository::Writer as _;
use crate::repository::state::{Committed, StateTopic, StateWriter};

/// Publishes the values of a state topic. Subscribers receive the newest one.
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
pub type StatePublisher<T> = Publisher<StateTopic, T>;

impl<T: Payload> StatePublisher<T> {
    /// Publishes a value, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when it is longer than the topic's `payload_len_max`, [`PublishError::Encode`] when its type fails
    /// to encode, [`PublishError::NodeFailed`] when the node's thread has panicked. In these cases nothing is published.
    #[inline]
    pub fn publish(&mut self, value: &T::Borrowed) -> Result<Sequence, PublishError> {
        self.output.check_served()?;
        let began_ns = self.output.realtime_ns();
        let encoding = T::ENCODING.number();
        let committed = match T::as_bytes(value) {
            Some(bytes) => self.writer.publish(bytes, encoding, began_ns).map_err(PublishError::from),
            None => {
                let max = self.payload_len_max();
                let filled = T::encode(value, &self.output.topic.schema, self.writer.room());
                let filled = filled.map_err(|error| LenLimit::Value.refused(error, max));
                filled.map(|len| self.writer.publish_filled(len.min(max), encoding, began_ns))
            }
        };
        match committed {
            Ok(committed) => {
                deliver(&mut self.output, &committed);
                Ok(committed.sequence)
            }
            Err(error) => Err(self.output.failed(error)),
        }
    }
}

/// Delivers a committed value to push subscribers, announces it, and measures how long that took.
#[inline]
pub(super) fn deliver(output: &mut Output<StateLanding>, committed: &Committed) {
    let Committed { sequence, slot, published_ns, payload_len } = *committed;
    output.add_bytes(payload_len);
    output.deliver(committed, || News { sequence, position: 0, published_ns, inline: Some((slot, 1)) });
    output.measure(sequence, published_ns);
}

impl PublishedKind for StateTopic {}

impl Writable for StateTopic {
    /// The number of slots.
    type Options = u32;
    const DEFAULTS: u32 = limits::SLOT_COUNT_DEFAULT;
    type Writer = StateWriter;
    type Landing = StateLanding;
    type Parts = ();

    fn parts(_: &Schema, _: StateGeometry) -> Result<(), PublisherError> {
        Ok(())
    }

    fn geometry(slot_count: u32, payload_len_max: usize) -> Result<StateGeometry, GeometryError> {
        StateGeometry::new(slot_count, payload_len_max)
    }
}

impl Claimed for StateTopic {
    fn publish_filled<T: Payload>(
        publisher: &mut StatePublisher<T>,
        len: usize,
        _may_wait: bool,
    ) -> Result<Sequence, PublishError> {
        let began_ns = publisher.output.realtime_ns();
        let committed = publisher.writer.publish_filled(len, T::ENCODING.number(), began_ns);
        deliver(&mut publisher.output, &committed);
        Ok(committed.sequence)
    }
}
