use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Node;
use super::topics::Reserved;
use crate::clock::saturate;
use crate::id::{Epoch, Incarnation, Sequence};
use crate::limits;
use crate::payload::Payload;
use crate::publisher::{
    LenLimit, Numbering, Place, PublishedKind, Publisher, PublisherError, TopicMemory, TopicParts,
    fresh_incarnation,
};

/// Bytes reserved for each value of a type without a fixed length, unless the maximum is set.
const PAYLOAD_LEN_MAX_DEFAULT: usize = 4096;

/// Sets up a [`Publisher`]. Settings of one kind are available only to publishers of that kind.
///
/// Send and Sync.
#[must_use = "a builder does nothing until it is opened"]
pub struct PublisherBuilder<'a, K: PublishedKind, T: Payload> {
    node: &'a Node,
    topic: String,
    payload_len_max: usize,
    /// What declares it.
    pub(super) limit: LenLimit,
    samples: Vec<String>,
    pub(super) options: K::Options,
    /// The epoch that it names.
    epoch: Option<Epoch>,
    after: Sequence,
    lifespan: Option<Duration>,
    /// The repository file.
    warm: Option<PathBuf>,
    payload: PhantomData<fn(&T)>,
}

/// What an incarnation of a topic begins with.
pub(super) struct Beginning {
    pub(super) incarnation: Incarnation,
    pub(super) memory: TopicMemory,
}

#[cfg(test)]
impl Beginning {
    /// One without a repository file.
    pub(super) fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, memory: TopicMemory::default() }
    }
}

impl<'a, K: PublishedKind, T: Payload> PublisherBuilder<'a, K, T> {
    pub(super) fn new(node: &'a Node, topic: &str) -> Self {
        let payload_len_max = T::fixed_len().unwrap_or(PAYLOAD_LEN_MAX_DEFAULT);
        let (topic, options) = (topic.to_owned(), K::DEFAULTS);
        let (limit, samples, epoch, after) = (K::LIMIT, Vec::new(), None, Sequence::NONE);
        let (lifespan, warm, payload) = (None, None, PhantomData);
        Self { node, topic, payload_len_max, limit, samples, options, epoch, after, lifespan, warm, payload }
    }

    /// Sets the longest payload, in bytes of its encoded form; up to [`limits::PAYLOAD_LEN_MAX`].
    /// The default is the length of a fixed-length type, otherwise 4 KiB. Each slot of a state or a table reserves this much; a
    /// record of a log takes only its own length. A payload of a table is a key and its value, and one byte between them.
    pub fn payload_len_max(self, payload_len_max: usize) -> Self {
        Self { payload_len_max, ..self }
    }

    /// Gives an example value for a payload type that validates its values. Schema tracing tries it first wherever a type reads
    /// text, bytes or a character, or a number if the sample is one. Call this once for each such type inside the payload type.
    /// See [`Payload`](crate::Payload#types-that-check-their-values) for an example.
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.samples.push(sample.into());
        self
    }

    /// Names the epoch, instead of a random one. A value is identified by epoch and sequence. A restarted publisher that names the
    /// epoch of its predecessor continues its numbering, and [persistent](crate::Persistent) subscribers continue with it: see
    /// [`Self::after`]. The same sequence must be the same value, because subscribers do not compare them.
    pub fn epoch(self, epoch: Epoch) -> Self {
        Self { epoch: Some(epoch), ..self }
    }

    /// Continues the numbering after this sequence, at most [`limits::SEQUENCE_AFTER_MAX`]: the first value has the next one. The
    /// values up to it count as overwritten: a persistent subscriber of a log that comes from another epoch reports them lost. By default
    /// the first value has sequence 1.
    ///
    /// ```
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut trades = node.log_publisher::<f64>("EURUSD").open()?;
    /// trades.publish(&1.0841)?;
    /// let (epoch, newest) = (trades.epoch(), trades.newest());
    /// drop(trades);
    ///
    /// // A restarted publisher, which has kept both numbers.
    /// let mut trades = node.log_publisher::<f64>("EURUSD").epoch(epoch).after(newest).open()?;
    /// assert_eq!(trades.publish(&1.0842)?.get(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A publisher that is [warm](Self::warm) continues after what its file holds, and does not open if that is less.
    pub fn after(self, after: Sequence) -> Self {
        Self { after, ..self }
    }

    /// Declares how long values are valid. A subscriber skips a value that it finds older than that, and counts it as
    /// [`expired`](crate::SubscriberStats::expired): a late subscriber does not receive the newest value of a state, or of a key of a
    /// table, that the publisher has not renewed in time, and a slow one no stale records of a log. A value that a program holds does not
    /// expire, and removals of keys do not. By default values are valid for ever.
    ///
    /// Subscribers measure the age with the [clock of the publisher](crate::PublisherClock): on another host, and by push, the
    /// difference between the real-time clocks counts as age. Feeds have no lifespan.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let mut publisher = node.state_publisher::<f64>("EURUSD").lifespan(Duration::from_nanos(1)).open()?;
    /// publisher.publish(&1.0841)?;
    /// let mut late = node.state_subscriber::<f64>("shm:quotes/EURUSD").open()?;
    /// assert!(late.try_receive()?.is_none());
    /// assert_eq!(late.stats().expired, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn lifespan(self, lifespan: Duration) -> Self {
        Self { lifespan: Some(lifespan), ..self }
    }

    /// Keeps the repository in this file, which outlives the publisher, also if its process is killed. A publisher that opens the file
    /// again continues it: with the next sequence, in the same epoch, and with everything that the repository held.
    /// [Persistent](crate::Persistent) subscribers continue with it, and lose nothing that it still holds.
    ///
    /// The file is made if there is none, with mode 0600. It has to be in a tmpfs, such as `/dev/shm`, which is empty after the host has
    /// started. One publisher has it at a time. It may be removed once that has ended; one that is not removed keeps its memory. Each
    /// publisher must declare the same topic, kind, type and sizes; a new file takes [`Self::epoch`] and [`Self::after`] as for other
    /// publishers, and an existing one has both already.
    ///
    /// What was published is what subscribers could have received: a commit that a kill interrupts is completed or undone as a whole.
    /// Opening reads all of the repository, and checks what can still be received. Publishing costs the same as without a file.
    ///
    /// Subscribers on this host that pull must belong to the same user: a file cannot be sealed, so its owner can end a process that
    /// has mapped it, by cutting it. So can this process itself: the node may read the file for a moment after its publisher was dropped.
    /// [`RepositoryFile`](crate::RepositoryFile) reads a file without a publisher.
    ///
    /// ```
    /// use fabricast::Node;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let memory = tempfile::tempdir_in("/dev/shm")?;
    /// # let path = memory.path().join("trades");
    /// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// // For example /dev/shm/exchange-trades.
    /// let mut trades = node.log_publisher::<f64>("EURUSD").warm(&path).open()?;
    /// trades.publish(&1.0841)?;
    /// drop(trades);
    ///
    /// let mut trades = node.log_publisher::<f64>("EURUSD").warm(&path).open()?;
    /// assert_eq!(trades.publish(&1.0842)?.get(), 2);
    /// let mut late = node.log_subscriber::<f64>("shm:exchange/EURUSD").earliest().open()?;
    /// assert_eq!(late.try_receive()?.map(|sample| sample.value), Some(1.0841));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Opening fails with [`PublisherError::File`] when another publisher has the file, the file is not in a tmpfs, is not this user's,
    /// holds another repository, or is damaged, and when the tmpfs is full.
    pub fn warm(self, path: impl Into<PathBuf>) -> Self {
        Self { warm: Some(path.into()), ..self }
    }

    /// Creates the repository and opens the topic to subscribers. Allocates; does not block, unless the repository is
    /// [kept](Self::warm): then it reads and checks the file.
    ///
    /// # Errors
    ///
    /// [`PublisherError`] when the name is in use or malformed, the sizes are inconsistent, the type cannot be described, or
    /// memory is exhausted.
    pub fn open(self) -> Result<Publisher<K, T>, PublisherError> {
        let reserved = self.reserve()?;
        let memory = TopicMemory { place: self.place()?, is_first: reserved.began, until: None };
        self.open_reserved(reserved, Beginning { incarnation: fresh_incarnation()?, memory })
    }

    /// Finds out what is in its repository file, if it has one.
    pub(super) fn place(&self) -> Result<Place, PublisherError> {
        let place = self.warm.as_deref().map_or(Ok(Place::Memory), Place::at)?;
        place.check_epoch(self.epoch)?;
        place.check_after(self.after)?;
        Ok(place)
    }

    /// Reserves the topic's name.
    pub(super) fn reserve(&self) -> Result<Reserved<'a>, PublisherError> {
        self.node.core().reserve(&self.topic.parse()?)
    }

    /// Opens this incarnation of the topic under its reserved name.
    pub(super) fn open_reserved(
        self,
        reserved: Reserved<'_>,
        Beginning { incarnation, memory }: Beginning,
    ) -> Result<Publisher<K, T>, PublisherError> {
        let Self { node, payload_len_max, limit, samples, options, epoch, after, lifespan, .. } = self;
        if after.get() > limits::SEQUENCE_AFTER_MAX {
            return Err(PublisherError::AfterTooHigh { after });
        }
        let own = Numbering::new(incarnation);
        let epoch = memory.place.epoch().or(epoch).unwrap_or(own.epoch);
        let after = memory.place.after().unwrap_or(after);
        let core = node.core();
        let parts = TopicParts {
            fabric: core.fabric.as_ref(),
            time: Arc::clone(&core.time),
            waker: reserved.waker.clone(),
            node: node.hold(),
            host: core.identity.host.as_str(),
            name: reserved.name().clone(),
            numbering: Numbering { epoch, after, ..own },
            memory,
            lifespan_ns: lifespan.map_or(0, |lifespan| saturate(lifespan).max(1)),
            payload_len_max,
            limit,
            gating: None,
            samples: &samples,
        };
        let (publisher, topic) = Publisher::open(parts, options)?;
        reserved.fill(topic);
        Ok(publisher)
    }
}

impl<K: PublishedKind, T: Payload> fmt::Debug for PublisherBuilder<'_, K, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PublisherBuilder")
            .field("topic", &self.topic)
            .field("payload_len_max", &self.payload_len_max)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
