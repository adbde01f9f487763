use std::sync::Arc;

use parking_lot::Mutex;

use super::CopyRoom;
use super::landing::Landing;
use super::topic::{Landings, LendError, Lent, Tended};
use crate::fabric::Registration;
use crate::id::{Epoch, Sequence};
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::{HEADER_WORDS, SlotHeader, StateGeometry};
use crate::repository::state::Committed;
use crate::sync::atomic::{AtomicBool, Ordering, fence};

/// How often the node looks after a landing region that the publisher has not taken over, in quick succession.
const TENDED_CLOSELY: u32 = 5;
/// Copies of the newest value, when the publisher overwrites it meanwhile, before it is left to the publisher, which
/// writes so fast that it takes the landing region over any moment.
const ATTEMPTS_MAX: u32 = 4;

/// The landing regions of a state topic, as its node and its publisher share them.
#[derive(Debug)]
pub(super) struct StateLandings {
    registration: Arc<Registration>,
    geometry: StateGeometry,
    epoch: Epoch,
    /// Landing regions that the publisher has yet to take over.
    waiting: Mutex<Vec<Landing>>,
    /// Whether there are any; the only word of this that the data path looks at.
    has_waiting: AtomicBool,
    /// Landing regions that the publisher has given up, to be released by the node.
    released: Mutex<Vec<Landing>>,
}

impl StateLandings {
    /// No landing regions yet of this repository.
    pub(super) fn new(registration: Arc<Registration>, geometry: StateGeometry, epoch: Epoch) -> Self {
        let (waiting, released) = (Mutex::default(), Mutex::default());
        Self { registration, geometry, epoch, waiting, has_waiting: AtomicBool::new(false), released }
    }

    /// The repository's memory.
    pub(super) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Whether landing regions wait to be taken over.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        // Acquire: pairs with the Release in `Self::give_back`.
        self.has_waiting.load(Ordering::Acquire)
    }

    /// Leaves landing regions to the node until the publisher takes them over again.
    pub(super) fn give_back(&self, landings: impl IntoIterator<Item = Landing>) {
        self.waiting.lock().extend(landings);
        // Release: whoever sees the flag finds the landing region behind the lock. Pairs with `has_waiting`.
        self.has_waiting.store(true, Ordering::Release);
    }

    /// Leaves landing regions to the node to be released.
    pub(super) fn release(&self, landings: impl IntoIterator<Item = Landing>) {
        self.released.lock().extend(landings);
    }

    /// Landing regions that wait to be taken over. Locks; the flag tells when it is worth while.
    pub(super) fn take_waiting(&self) -> Vec<Landing> {
        let mut waiting = self.waiting.lock();
        self.has_waiting.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting)
    }

    fn newest(&self) -> Sequence {
        Sequence::new(self.registration.region().load_acquire(HOT_SEQUENCE))
    }

    /// Writes the newest value into a landing region, beside a publisher that may be overwriting it: it is revealed
    /// only when it was still whole after it had been copied. Says whether it was left for another turn, for want of room.
    fn bring_up_to_date(&self, landing: &mut Landing, room: &CopyRoom) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            if landing.hidden().is_none() {
                let sequence = self.newest();
                if sequence <= landing.written() {
                    return false;
                }
                if room.is_used_up() {
                    return true;
                }
                let held = self.held(sequence);
                let len = held.payload_len as u64;
                if landing.write_hidden(&self.registration, held) {
                    room.set(room.left().saturating_sub(len));
                }
            }
            let Some(hidden) = landing.hidden() else { return false };
            // Acquire: if any word of the copy is of a later value, the load below sees that value's predecessor.
            fence(Ordering::Acquire);
            let ahead = self.newest().get() - hidden.sequence.get();
            let whole = ahead + 1 < u64::from(self.geometry.slot_count());
            landing.reveal(&self.registration, whole);
            if whole {
                return false;
            }
        }
        false
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

impl Landings for StateLandings {
    fn lend(&self, lent: Lent, room: &CopyRoom) -> Result<(), LendError> {
        let mut landing = Landing::new(lent.remote, self.geometry, self.epoch, lent.closed);
        // If the room is used up, `tend` copies the value in a later turn.
        self.bring_up_to_date(&mut landing, room);
        if landing.is_closed() {
            return Err(LendError::Unwritable);
        }
        self.give_back([landing]);
        Ok(())
    }

    /// A value comes when it comes.
    fn is_begun(&self, _: &Arc<AtomicBool>) -> bool {
        true
    }

    /// A publish that began before a handover may have passed the landing region by: it is looked after once more.
    fn tend(&self, room: &CopyRoom) -> Tended {
        // Taken out first, so that the publisher is not kept waiting while memory is unmapped.
        let released = std::mem::take(&mut *self.released.lock());
        drop(released);
        let mut waiting = self.waiting.lock();
        waiting.retain(|landing| !landing.is_closed());
        let (mut soon, mut has_written) = (false, false);
        for landing in waiting.iter_mut() {
            let before = landing.written();
            soon |= self.bring_up_to_date(landing, room);
            has_written |= landing.written() != before;
            soon |= landing.tend() < TENDED_CLOSELY || landing.is_behind();
        }
        Tended { again_ns: soon.then(|| room.soon_ns()), has_written }
    }

    /// Nobody has to make room for a value.
    fn rests(&self, _: &Arc<AtomicBool>) -> bool {
        false
    }

    fn owe(&self, closed: &Arc<AtomicBool>) -> bool {
        let newest = self.newest();
        let mut waiting = self.waiting.lock();
        waiting.iter_mut().filter(|landing| landing.is_closed_by(closed)).any(|landing| landing.owes(newest))
    }
}
