use std::sync::Arc;

use parking_lot::Mutex;

use super::CopyRoom;
use super::log_landing::LogLanding;
use super::topic::{Landings, LendError, Lent, Tended};
use crate::fabric::{Registration, Waker};
use crate::id::Epoch;
use crate::layout::log::{LogGeometry, LogHead};
use crate::repository::log::{LogStart, head, place_of};
use crate::sync::atomic::{AtomicBool, Ordering};

/// How often the node looks after a landing region that has everything and that the publisher has not taken over, in quick
/// succession.
const TENDED_CLOSELY: u32 = 5;

/// How often the node brings landing regions up to date in one turn while its publisher goes on.
const ROUNDS_MAX: u32 = 4;

/// The landing regions of a log topic, as its node and its publisher share them.
///
/// The publisher has those whose subscribers keep up. One that is behind is left to the node, which brings it up to date a part
/// at a time, as far as its subscriber makes room, and only then has the publisher take it over again. So a subscriber that is
/// slow, or stands still, costs the publisher nothing.
#[derive(Debug)]
pub(super) struct LogLandings {
    registration: Arc<Registration>,
    geometry: LogGeometry,
    epoch: Epoch,
    waker: Arc<Waker>,
    /// Landing regions that the node has.
    waiting: Mutex<Vec<LogLanding>>,
    /// Whether there are some among them for the publisher; the only word of this that the data path looks at.
    has_waiting: AtomicBool,
    /// The node looks after them soon, without being woken.
    is_tended_soon: AtomicBool,
    /// Landing regions that the publisher has given up, to be released by the node.
    released: Mutex<Vec<LogLanding>>,
}

impl LogLandings {
    /// No landing regions yet of this repository.
    pub(super) fn new(
        registration: Arc<Registration>,
        geometry: LogGeometry,
        epoch: Epoch,
        waker: Arc<Waker>,
    ) -> Self {
        Self {
            registration,
            geometry,
            epoch,
            waker,
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            is_tended_soon: AtomicBool::new(false),
            released: Mutex::default(),
        }
    }

    /// Writes what was committed to these landing regions. Those that are of no more use, or cannot take everything now, are
    /// left to the node, and those that the node has finished with are taken over.
    #[inline]
    pub(super) fn deliver(&self, landings: &mut Vec<LogLanding>, head: &LogHead) {
        // Acquire: pairs with the Release in `Self::leave`.
        if self.has_waiting.load(Ordering::Acquire) {
            self.take_waiting(landings);
        }
        let mut leaving = false;
        for landing in landings.iter_mut() {
            if !landing.is_closed() {
                // Nobody but the publisher waits for that.
                let mut room = u64::MAX;
                landing.advance(&self.registration, head, &mut room);
            }
            leaving |= landing.is_closed() || landing.is_behind(head.end);
        }
        if leaving {
            self.part(landings, head.end);
        }
    }

    #[cold]
    fn take_waiting(&self, landings: &mut Vec<LogLanding>) {
        let mut waiting = self.waiting.lock();
        self.has_waiting.store(false, Ordering::Relaxed);
        landings.extend(waiting.extract_if(.., |landing| landing.is_ready()));
    }

    #[cold]
    fn part(&self, landings: &mut Vec<LogLanding>, end: u64) {
        self.released.lock().extend(landings.extract_if(.., |landing| landing.is_closed()));
        self.leave(landings.extract_if(.., |landing| landing.is_behind(end)));
        if !self.is_tended_soon.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    /// Leaves landing regions to the node.
    pub(super) fn leave(&self, landings: impl IntoIterator<Item = LogLanding>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(landings);
        if waiting.iter().any(LogLanding::is_ready) {
            // Release: whoever sees the flag finds the landing region behind the lock. Pairs with `deliver`.
            self.has_waiting.store(true, Ordering::Release);
        }
    }

    /// Takes landing regions out, so that the publisher is not kept waiting while something is written to them.
    fn take_those(&self, which: impl Fn(&LogLanding) -> bool) -> Vec<LogLanding> {
        self.waiting.lock().extract_if(.., |landing| which(landing)).collect()
    }

    fn end(&self) -> u64 {
        head(self.registration.region()).end
    }

    /// Brings these up to date as far as that can be done now. Says whether that should be done again soon, and whether anything
    /// was written. Those for which no room was left come first then.
    fn bring_up_to_date(&self, landings: &mut Vec<LogLanding>, room: &CopyRoom) -> (bool, bool) {
        landings.retain(|landing| !landing.is_closed());
        let (mut soon, mut has_written, mut served, mut left) = (false, false, 0, room.left());
        for landing in landings.iter_mut() {
            served += usize::from(left > 0);
            let head = head(self.registration.region());
            // One for which no room is left does not stand still.
            let mut advances = left == 0;
            if landing.is_behind(head.end) {
                let advanced = landing.advance(&self.registration, &head, &mut left);
                advances |= advanced;
                has_written |= advanced;
            }
            let is_settled = landing.is_settled(&self.registration);
            landing.pause(head.end, advances, room.now_ns());
            if landing.tend(head.end) < TENDED_CLOSELY && !landing.rests() {
                landing.remind(&self.registration, &head);
                soon = true;
            }
            soon |= !is_settled;
        }
        room.set(left);
        landings.rotate_left(served);
        (soon, has_written)
    }

    /// When those that stand still are looked after again.
    fn rest_ends_ns(&self) -> Option<u64> {
        self.waiting.lock().iter().filter(|landing| landing.rests()).map(LogLanding::due_ns).min()
    }
}

impl Landings for LogLandings {
    fn lend(
        &self,
        Lent { remote, closed, options, granted }: Lent,
        room: &CopyRoom,
    ) -> Result<(), LendError> {
        let start = LogStart::of(options).ok_or(LendError::Options)?;
        let place = place_of(&self.geometry, self.registration.region(), start.settled(granted));
        let of = (self.geometry, self.epoch);
        let mut landings = vec![LogLanding::new(remote, of, closed, place)];
        self.bring_up_to_date(&mut landings, room);
        if landings.iter().any(LogLanding::is_closed) {
            return Err(LendError::Unwritable);
        }
        self.leave(landings);
        Ok(())
    }

    fn is_begun(&self, closed: &Arc<AtomicBool>) -> bool {
        let mut waiting = self.waiting.lock();
        let found = waiting.iter_mut().find(|landing| landing.is_closed_by(closed));
        found.is_none_or(|landing| landing.is_begun(&self.registration))
    }

    fn tend(&self, room: &CopyRoom) -> Tended {
        self.is_tended_soon.store(false, Ordering::Release);
        // Taken out first, so that the publisher is not kept waiting while memory is unmapped.
        // The room for them stays: the publisher allocates nothing when it leaves some here.
        let released: Vec<_> = self.released.lock().drain(..).collect();
        drop(released);
        let (mut soon, mut has_written, mut end) = (false, false, self.end());
        let is_due = |landing: &LogLanding| landing.due_ns() <= room.now_ns();
        let mut landings = self.take_those(|landing| {
            landing.needs_tending(end, TENDED_CLOSELY) && (room.is_beat() || is_due(landing))
        });
        for round in 1.. {
            if landings.is_empty() {
                break;
            }
            let outcome = self.bring_up_to_date(&mut landings, room);
            (soon, has_written) = (soon || outcome.0, has_written || outcome.1);
            self.leave(landings);
            // What was published meanwhile, when the publisher found nobody waiting here, is brought at once as far as there is room.
            let before = std::mem::replace(&mut end, self.end());
            let is_enough = round == ROUNDS_MAX || room.is_used_up();
            soon |= is_enough && end != before;
            if is_enough || end == before {
                break;
            }
            landings = self.take_those(|landing| landing.is_behind(end) && is_due(landing));
        }
        // One that rests is looked after later: the publisher wakes the node for the next one that it leaves here.
        self.is_tended_soon.store(soon, Ordering::Release);
        let again_ns = if soon { Some(room.soon_ns()) } else { self.rest_ends_ns() };
        Tended { again_ns, has_written }
    }

    fn rests(&self, closed: &Arc<AtomicBool>) -> bool {
        let waiting = self.waiting.lock();
        waiting.iter().any(|landing| landing.is_closed_by(closed) && landing.rests())
    }

    fn owe(&self, closed: &Arc<AtomicBool>) -> bool {
        let end = self.end();
        let mut waiting = self.waiting.lock();
        let mut found = waiting.iter_mut().filter(|landing| landing.is_closed_by(closed));
        found.any(|landing| {
            let has_arrived = landing.is_settled(&self.registration) && !landing.is_behind(end);
            !has_arrived && !landing.is_closed()
        })
    }
}
