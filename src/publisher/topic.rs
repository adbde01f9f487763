use std::sync::Arc;

use parking_lot::Mutex;

use super::landing::Landing;
use crate::fabric::{Registration, Waker};
use crate::id::{Epoch, Kind, Sequence, TopicId, TopicName};
use crate::layout::header::{HOT_HEARTBEAT, HOT_PUBLISHED, HOT_SEQUENCE};
use crate::layout::state::{HEADER_WORDS, SlotHeader, StateGeometry};
use crate::metrics::Gauge;
use crate::payload::Schema;
use crate::repository::state::Committed;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// How often the node looks after a landing region that the publisher has not taken over, in quick succession.
const TENDED_CLOSELY: u32 = 5;
/// Copies of the newest value, when the publisher overwrites it meanwhile, before it is left to the publisher, which
/// writes so fast that it takes the landing region over any moment.
const ATTEMPTS_MAX: u32 = 4;

/// What a node and a publisher share of a topic: the node grants it to subscribers and hands over their landing
/// regions, the publisher publishes.
#[derive(Debug)]
pub(crate) struct PublishedTopic {
    pub(super) name: TopicName,
    pub(super) topic_id: TopicId,
    pub(super) epoch: Epoch,
    pub(super) geometry: StateGeometry,
    pub(super) schema: Schema,
    pub(super) registration: Arc<Registration>,
    pub(super) pull_subscribers: Gauge,
    pub(super) push_subscribers: Gauge,
    pub(super) waker: Arc<Waker>,
    /// Landing regions that the publisher has yet to take over.
    pub(super) waiting: Mutex<Vec<Landing>>,
    /// Whether there are any; the only word of this that the data path looks at.
    pub(super) has_waiting: AtomicBool,
    /// Landing regions that the publisher has given up, to be released by the node.
    pub(super) released: Mutex<Vec<Landing>>,
    /// The publisher was dropped.
    pub(super) ended: AtomicBool,
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
        Kind::State
    }

    /// Its incarnation.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The shape of its repository.
    pub(crate) fn geometry(&self) -> StateGeometry {
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

    /// Shows in the repository that the node lives.
    pub(crate) fn beat(&self, now_ns: u64) {
        self.registration.region().store(HOT_HEARTBEAT, now_ns);
    }

    /// Whether the publisher was dropped.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Hands a landing region over to the publisher, the newest value already in it.
    pub(crate) fn hand_over(&self, mut landing: Landing) {
        self.bring_up_to_date(&mut landing);
        self.give_back([landing]);
    }

    /// Leaves landing regions to the node until the publisher takes them over again.
    pub(super) fn give_back(&self, landings: impl IntoIterator<Item = Landing>) {
        self.waiting.lock().extend(landings);
        // Release: whoever sees the flag finds the landing region behind the lock. Pairs with `take_waiting`.
        self.has_waiting.store(true, Ordering::Release);
    }

    /// Releases what the publisher has given up, and keeps landing regions up to date that it has not taken over
    /// yet, because it has not published since. True when that should be done again soon: a publish that began
    /// before the handover may have passed one of them by.
    pub(crate) fn tend(&self) -> bool {
        // Taken out first, so that the publisher is not kept waiting while memory is unmapped.
        let released = std::mem::take(&mut *self.released.lock());
        drop(released);
        let mut waiting = self.waiting.lock();
        waiting.retain(|landing| !landing.is_closed());
        let mut soon = false;
        for landing in waiting.iter_mut() {
            self.bring_up_to_date(landing);
            soon |= landing.tend() < TENDED_CLOSELY || landing.is_behind();
        }
        soon
    }

    /// Whether the landing region that `closed` closes was left to the node, and has yet to get the newest value.
    pub(crate) fn owes_values(&self, closed: &Arc<AtomicBool>) -> bool {
        let newest = self.newest();
        let mut waiting = self.waiting.lock();
        waiting.iter_mut().filter(|landing| landing.is_closed_by(closed)).any(|landing| landing.owes(newest))
    }

    /// Landing regions that wait to be taken over. Locks; the flag tells when it is worth while.
    pub(super) fn take_waiting(&self) -> Vec<Landing> {
        let mut waiting = self.waiting.lock();
        self.has_waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    }

    /// Writes the newest value into a landing region, beside a publisher that may be overwriting it: it is revealed
    /// only when it was still whole after it had been copied.
    fn bring_up_to_date(&self, landing: &mut Landing) {
        for _ in 0..ATTEMPTS_MAX {
            if landing.hidden().is_none() {
                let sequence = self.newest();
                if sequence <= landing.written() {
                    return;
                }
                landing.write_hidden(&self.registration, self.held(sequence));
            }
            let Some(hidden) = landing.hidden() else { return };
            // Acquire: if any word of the copy is of a later value, the load below sees that value's predecessor.
            fence(Ordering::Acquire);
            let ahead = self.newest().get() - hidden.sequence.get();
            let whole = ahead + 1 < u64::from(self.geometry.slot_count());
            landing.reveal(&self.registration, whole);
            if whole {
                return;
            }
        }
    }

    /// What the repository's slot of this sequence says of it.
    fn held(&self, sequence: Sequence) -> Committed {
        let region = self.registration.region();
        let offset = self.geometry.slot_offset(sequence);
        let mut head = [0; HEADER_WORDS];
        region.copy_out(offset, &mut head);
        let header = SlotHeader::parse(head);
        let payload_len = (header.payload_len as usize).min(self.geometry.payload_len_max());
        let slot = self.geometry.slot_range(sequence, payload_len);
        Committed { sequence, slot, published_ns: header.published_ns, payload_len }
    }
}
