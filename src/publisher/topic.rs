use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::PublishError;
use super::handover::Landings;
use super::notices::TopicNotices;
use super::subscribers::TopicSubscribers;
use crate::fabric::{KeyedWaker, Registration};
use crate::id::{Epoch, Incarnation, Kind, KindOptions, Sequence, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::clock::ClockLine;
use crate::layout::header::{HOT_HEARTBEAT, HOT_PUBLISHED, HOT_SEQUENCE};
use crate::memory::Region;
use crate::metrics::Gauge;
use crate::notice::Notice;
use crate::payload::Schema;
use crate::repository::GrantedAt;
use crate::repository::log::{LogStart, first_place_of};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A topic, shared by its node and its publisher: the node grants it and hands over landing regions, the publisher publishes.
#[derive(Debug)]
pub(crate) struct PublishedTopic {
    pub(crate) name: TopicName,
    /// Its identifier in regions.
    pub(crate) topic_id: TopicId,
    pub(crate) epoch: Epoch,
    pub(crate) incarnation: Incarnation,
    /// The sequence before that of its first value.
    pub(crate) after: Sequence,
    /// How long its values are valid, nanoseconds; 0 for ever.
    pub(crate) lifespan_ns: u64,
    /// The shape of its repository.
    pub(crate) geometry: Geometry,
    /// The schema of its values.
    pub(crate) schema: Schema,
    /// Its repository's memory.
    pub(crate) registration: Arc<Registration>,
    /// The number of pull subscribers.
    pub(crate) pull_subscribers: Gauge,
    /// The number of push subscribers.
    pub(crate) push_subscribers: Gauge,
    /// The number of requests for notices that failed.
    pub(crate) without_notices: Gauge,
    /// The audience of its notices.
    pub(crate) notices: Arc<TopicNotices>,
    /// Its subscribers.
    pub(crate) subscribers: Arc<TopicSubscribers>,
    /// Its push subscribers' landing regions.
    pub(crate) landings: Arc<dyn Landings>,
    /// The publisher was dropped.
    pub(super) ended: AtomicBool,
    /// The thread of its node has panicked.
    pub(super) orphaned: AtomicBool,
    /// A later incarnation has ended, too.
    pub(super) superseded: AtomicBool,
    /// Wakes the node's thread for it.
    pub(super) waker: KeyedWaker,
    /// Its attachments, by the sessions that serve it.
    pub(super) attached: Mutex<BTreeSet<(u64, u32)>>,
    /// Landing regions in which it shows its clock, too.
    pub(super) clocks: Mutex<Vec<(Weak<Region>, Arc<AtomicBool>)>>,
    /// How many attachments were notified of its end, and have not detached.
    pub(super) unfinished: Arc<AtomicU64>,
}

/// An attachment that was notified of the end of its topic, until it detaches or its session ends. Keeps no memory of the topic.
#[derive(Debug)]
pub(crate) struct Unfinished(Arc<AtomicU64>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PublishedTopic {
    /// Whether it is a log, so that subscribers can be behind.
    pub(crate) fn is_log(&self) -> bool {
        self.geometry.log().is_some()
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> Kind {
        self.geometry.kind()
    }

    /// The position before which a subscription of a log with these options, granted while this sequence was the newest, needs no frame.
    pub(crate) fn begins_at(&self, options: KindOptions, newest: Sequence) -> u64 {
        let Some((geometry, start)) = self.geometry.log().zip(LogStart::of(options)) else { return 0 };
        let start = start.within(self.epoch, GrantedAt { newest, after: self.after });
        first_place_of(&geometry, self.registration.region(), start)
    }

    /// The newest sequence, or that before its first value.
    pub(crate) fn newest(&self) -> Sequence {
        Sequence::new(self.registration.region().load_acquire(HOT_SEQUENCE)).max(self.after)
    }

    /// When the newest was published, nanoseconds since the Unix epoch; 0 for never.
    pub(crate) fn published_ns(&self) -> u64 {
        self.registration.region().load(HOT_PUBLISHED)
    }

    /// When the node last showed that it is alive, nanoseconds since the Unix epoch.
    pub(crate) fn heartbeat_ns(&self) -> u64 {
        self.registration.region().load(HOT_HEARTBEAT)
    }

    /// Writes the heartbeat of the node to this repository.
    pub(crate) fn beat(repository: &Region, now_ns: u64) {
        repository.store(HOT_HEARTBEAT, now_ns);
    }

    /// Shows how its time stamps follow from the clock, to the readers of its repository and of the landing regions on this host.
    pub(crate) fn show(&self, line: &ClockLine) {
        line.write(self.registration.region());
        self.clocks.lock().retain(|(landing, closed)| {
            let landing = landing.upgrade().filter(|_| !closed.load(Ordering::Relaxed));
            landing.iter().for_each(|landing| line.write(landing));
            landing.is_some()
        });
    }

    /// Shows the same to the owner of this landing region, from now on until it is closed.
    pub(crate) fn show_in(&self, landing: &Arc<Region>, closed: &Arc<AtomicBool>, line: &ClockLine) {
        line.write(landing);
        let mut clocks = self.clocks.lock();
        clocks.retain(|(landing, closed)| landing.strong_count() > 0 && !closed.load(Ordering::Relaxed));
        clocks.push((Arc::downgrade(landing), Arc::clone(closed)));
    }

    /// Whether the publisher was dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Its key at the node: later topics have larger ones.
    pub(crate) fn key(&self) -> u64 {
        self.waker.key()
    }

    /// Wakes the node's thread for it.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Records an attachment, by the numbers of its session and itself.
    pub(crate) fn attach(&self, attachment: (u64, u32)) {
        self.attached.lock().insert(attachment);
    }

    /// Drops an attachment.
    pub(crate) fn detach(&self, attachment: (u64, u32)) {
        self.attached.lock().remove(&attachment);
    }

    /// Its attachments, by the sessions that serve it.
    pub(crate) fn attached(&self) -> Vec<(u64, u32)> {
        self.attached.lock().iter().copied().collect()
    }

    /// Counts an attachment as notified of the end, before it is dropped.
    pub(crate) fn notified(&self) -> Unfinished {
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        Unfinished(Arc::clone(&self.unfinished))
    }

    /// After its end: how many attachments have not received it, and are not gone.
    pub(super) fn unfinished(&self) -> u64 {
        // In this order, so that one that is notified meanwhile is counted.
        let attached = self.attached.lock().len() as u64;
        attached + self.unfinished.load(Ordering::Relaxed)
    }

    /// Records that a later incarnation has ended, too.
    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    /// Whether a later incarnation has ended, too, so that its subscribers need not be waited for.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Records that the thread of its node has panicked.
    pub(crate) fn orphan(&self) {
        self.orphaned.store(true, Ordering::Relaxed);
    }

    /// Fails once the thread of its node has panicked. One load.
    #[inline]
    pub(super) fn check_served(&self) -> Result<(), PublishError> {
        if self.orphaned.load(Ordering::Relaxed) { Err(PublishError::NodeFailed) } else { Ok(()) }
    }

    /// A notice of what it has reached.
    pub(crate) fn notice(&self) -> Notice {
        let region = self.registration.region();
        // The sequence first, with Acquire, and then the end: a commit stores the sequence before the end, so the end covers at
        // least every commit before this sequence. In the other order the notice could announce records beyond the end.
        let newest = self.newest();
        let position = self.geometry.end_offset().map_or(0, |offset| region.load_acquire(offset));
        self.notices.notice(newest, position, self.published_ns())
    }
}
