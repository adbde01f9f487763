//! Log topics at a node.

use super::{ListenerBuilder, Node, PublisherBuilder, SubscriberBuilder};
use crate::fabric::Target;
use crate::id::{Sequence, SlowPolicy, TopicName};
use crate::payload::Payload;
use crate::publisher::Gating;
use crate::repository::log::{LogStart, LogTopic};
use crate::subscriber::{LogSubscriber, Subscribed, SubscriberError, SubscriberHandle};

impl Node {
    /// Returns a builder for a publisher of a log topic of this name.
    pub fn log_publisher<T: Payload>(&self, topic: &str) -> PublisherBuilder<'_, LogTopic, T> {
        PublisherBuilder::new(self, topic)
    }

    /// Returns a builder for a subscriber of the log topic at this address, for example `shm:NODE/TOPIC`.
    pub fn log_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Returns a builder for a listener: publishers of this log topic dial this node, which needs a name.
    pub fn log_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, LogSubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

/// Settings of a [`LogSubscriber`]. An [`AnySubscriber`](crate::AnySubscriber) ignores them for other kinds of topic.
#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S, P> SubscriberBuilder<'_, S, P>
where
    S: Subscribed + SubscriberHandle<Options = LogStart>,
{
    /// Begins with the oldest record still in the publisher's ring.
    pub fn earliest(self) -> Self {
        self.start(LogStart::Earliest)
    }

    /// Begins with the next record published. This is the default.
    pub fn newest(self) -> Self {
        self.start(LogStart::Newest)
    }

    /// Begins with this record. Records from it on that are already overwritten are reported lost.
    pub fn at(self, sequence: Sequence) -> Self {
        self.start(LogStart::At(sequence))
    }

    /// Begins `count` records before the next one at the time of the publisher's grant, or with the oldest of them still in the
    /// ring. Records published since the grant are received or reported lost.
    pub fn back(self, count: u64) -> Self {
        self.start(LogStart::Back(count))
    }

    /// Sets what happens when this subscriber reads more slowly than the publisher publishes; by default it loses records and says so
    /// ([`SlowPolicy::Lap`]). Any other policy needs the publisher's permission ([`PublisherBuilder::gating`]), holds from the first
    /// record on, and reports the subscriber's [progress](Self::progress). Ignored for other kinds of topic.
    ///
    /// A lossless stream is [`SlowPolicy::Block`]:
    ///
    /// ```
    /// use fabricast::{Gating, Node, SlowPolicy};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
    /// let mut trades = publishing.log_publisher::<u64>("trades").capacity(4096).gating(Gating::new()).open()?;
    /// let node = Node::builder().runtime_dir(dir.path()).open()?;
    /// let mut subscriber = node.log_subscriber::<u64>("shm:exchange/trades").slow(SlowPolicy::Block).open()?;
    /// let publishing = std::thread::spawn(move || (1..=10_000).try_for_each(|number| trades.publish(&number).map(drop)));
    /// let records: Vec<u64> = subscriber.samples().take(10_000).flatten().map(|record| record.value).collect();
    /// assert!(records.into_iter().eq(1..=10_000));
    /// publishing.join().expect("publishing does not panic")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Opening fails with [`RefuseReason::GatingNotPermitted`](crate::RefuseReason::GatingNotPermitted) if the publisher does not permit
    /// it, and with [`RefuseReason::TooManySubscribers`](crate::RefuseReason::TooManySubscribers) if it permits no more of them.
    pub fn slow(mut self, policy: SlowPolicy) -> Self {
        self.terms.slow = policy;
        self
    }

    /// Reports how far this subscriber is, so that [`Node::subscribers`] and `fabricast info` of any process show its position, lag and
    /// losses. It writes them to memory of its own, which the publisher's node reads one-sidedly: that costs the subscriber a few
    /// stores, and the publisher's thread nothing. A topic has [`limits::PROGRESS_SLOTS_MAX`](crate::limits::PROGRESS_SLOTS_MAX) such
    /// subscribers at most; further ones receive as well, but are shown without their progress.
    pub fn progress(mut self) -> Self {
        self.terms.progress = true;
        self
    }

    /// Sets where to begin. Opening fixes the position, by [`open`](SubscriberBuilder::open) or
    /// [`accept_timeout`](crate::Listener::accept_timeout): the subscriber receives everything published later. For an accepted
    /// subscriber the next record is the first one published after [`Node::dial_subscriber`] returns.
    pub fn start(mut self, start: LogStart) -> Self {
        self.terms.options = start;
        self
    }
}

impl<T: Payload> PublisherBuilder<'_, LogTopic, T> {
    /// Permits subscribers that the publisher waits for, or disconnects, before it overwrites records that they have not read: see
    /// [`Gating`] and [`SubscriberBuilder::slow`]. By default they are refused. While none is attached, this costs a publish nothing.
    pub fn gating(mut self, gating: Gating) -> Self {
        self.options.gating = Some(gating);
        self
    }

    /// Sets the minimum size of the ring that holds the records, in bytes; by default
    /// [`limits::LOG_CAPACITY_DEFAULT`](crate::limits::LOG_CAPACITY_DEFAULT). Each record takes its payload, rounded up to 8
    /// bytes, and 24 bytes more. The ring bounds how late a subscriber may join or read without losing records. It always holds
    /// at least four of the largest records.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.options.capacity = capacity;
        self
    }
}
