use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;

use super::PublishError;
use super::handover::Landings;
use super::notices::TopicNotices;
use crate::fabric::{KeyedWaker, Registration};
use crate::id::{Epoch, Kind, Sequence, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::header::{HOT_HEARTBEAT, HOT_PUBLISHED, HOT_SEQUENCE};
use crate::memory::Region;
use crate::metrics::Gauge;
use crate::notice::Notice;
use crate::payload::Schema;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What a node and a publisher share of a topic: the node grants it to subscribers and hands over their landing
/// regions, the publisher publishes.
#[derive(Debug)]
pub(crate) struct PublishedTopic {
    pub(super) name: TopicName,
    pub(super) topic_id: TopicId,
    pub(super) epoch: Epoch,
    pub(super) geometry: Geometry,
    pub(super) schema: Schema,
    pub(super) registration: Arc<Registration>,
    pub(super) pull_subscribers: Gauge,
    pub(super) push_subscribers: Gauge,
    pub(super) without_notices: Gauge,
    /// Who is told of what it publishes.
    pub(super) notices: Arc<TopicNotices>,
    /// What the topic is written to.
    pub(super) landings: Arc<dyn Landings>,
    /// The publisher was dropped.
    pub(super) ended: AtomicBool,
    /// The thread of its node has panicked.
    pub(super) orphaned: AtomicBool,
    /// A later incarnation of it has ended, too.
    pub(super) superseded: AtomicBool,
    /// Has the node's thread look at it.
    pub(super) waker: KeyedWaker,
    /// Sessions that serve it, and their attachments.
    pub(super) attached: Mutex<BTreeSet<(u64, u32)>>,
}

impl PublishedTopic {
    /// Its name.
    pub(crate) fn name(&self) -> &TopicName {
        &self.name
    }

    /// What stands for it in regions.
    pub(crate) fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    /// What its repository holds.
    pub(crate) fn kind(&self) -> Kind {
        self.geometry.kind()
    }

    /// Its incarnation.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The shape of its repository.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What its payload is.
    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Its repository's memory.
    pub(crate) fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }

    /// How many subscribers read it.
    pub(crate) fn pull_subscribers(&self) -> &Gauge {
        &self.pull_subscribers
    }

    /// How many subscribers it is written to.
    pub(crate) fn push_subscribers(&self) -> &Gauge {
        &self.push_subscribers
    }

    /// How many subscribers have asked for notices in vain.
    pub(crate) fn without_notices(&self) -> &Gauge {
        &self.without_notices
    }

    /// The newest sequence.
    pub(crate) fn newest(&self) -> Sequence {
        Sequence::new(self.registration.region().load_acquire(HOT_SEQUENCE))
    }

    /// When that was published, nanoseconds since the Unix epoch; 0 for never.
    pub(crate) fn published_ns(&self) -> u64 {
        self.registration.region().load(HOT_PUBLISHED)
    }

    /// When the node last showed that it lives, nanoseconds since the Unix epoch.
    pub(crate) fn heartbeat_ns(&self) -> u64 {
        self.registration.region().load(HOT_HEARTBEAT)
    }

    /// Shows in this repository of a topic that its node lives.
    pub(crate) fn beat(repository: &Region, now_ns: u64) {
        repository.store(HOT_HEARTBEAT, now_ns);
    }

    /// Whether the publisher was dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What stands for it at its node: later ones have larger numbers.
    pub(crate) fn key(&self) -> u64 {
        self.waker.key()
    }

    /// Has the node's thread look at it.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Takes note of an attachment of a session, by their numbers.
    pub(crate) fn attach(&self, attachment: (u64, u32)) {
        self.attached.lock().insert(attachment);
    }

    /// Forgets an attachment.
    pub(crate) fn detach(&self, attachment: (u64, u32)) {
        self.attached.lock().remove(&attachment);
    }

    /// The sessions that serve it, and their attachments.
    pub(crate) fn attached(&self) -> Vec<(u64, u32)> {
        self.attached.lock().iter().copied().collect()
    }

    /// Says that a later incarnation of it has ended, too.
    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    /// Whether a later incarnation of it has ended, too: nobody waits for its subscribers any more.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Tells the publisher that the thread of its node has panicked.
    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Ordering::Relaxed);
    }

    /// An error once the thread of its node has panicked. One load.
    #[inline]
    pub(super) fn check_served(&self) -> Result<(), PublishError> {
        if self.orphaned.load(Ordering::Relaxed) { Err(PublishError::NodeFailed) } else { Ok(()) }
    }

    /// Who is told of what it publishes.
    pub(crate) fn notices(&self) -> &Arc<TopicNotices> {
        &self.notices
    }

    /// What it has reached, to be told on a channel.
    pub(crate) fn notice(&self) -> Notice {
        let region = self.registration.region();
        // The sequence first, and by an Acquire load, so that the end is loaded behind it: a commit stores the sequence and then
        // the end, and what was committed before this one has its end there. The other way round any number of commits could
        // come in between, and records be told of whose end is not.
        let newest = self.newest();
        let position = self.geometry.end_offset().map_or(0, |offset| region.load_acquire(offset));
        self.notices.notice(newest, position, self.published_ns())
    }

    /// What it is written to.
    pub(crate) fn landings(&self) -> &dyn Landings {
        self.landings.as_ref()
    }
}
