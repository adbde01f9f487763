use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;

use super::CopyRoom;
use super::flight::Flight;
use crate::fabric::{KeyedWaker, Registration, RemoteWrite};
use crate::id::{Epoch, KindOptions, Sequence};
use crate::sync::atomic::{AtomicBool, Ordering};

/// How often the node looks after a landing region that has everything and that the publisher has not taken over, in quick
/// succession.
const TENDED_CLOSELY: u32 = 5;

/// How often the node brings landing regions up to date in one turn while its publisher goes on.
const ROUNDS_MAX: u32 = 4;

/// A subscriber's landing region.
#[derive(Debug)]
pub(crate) struct ExposedLanding {
    /// What writes it.
    pub(crate) remote: Box<dyn RemoteWrite>,
    /// Whoever sets this ends its use.
    pub(crate) closed: Arc<AtomicBool>,
    /// What the subscription asks of the topic's kind.
    pub(crate) options: KindOptions,
    /// The newest sequence when the topic was granted.
    pub(crate) granted: Sequence,
}

/// Why a landing region is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExposeError {
    /// Writing it failed.
    #[error("it cannot be written")]
    Unwritable,
    /// The kind of the topic does not know the options.
    #[error("its subscription asks for what topics of this kind do not have")]
    Options,
}

/// What came of looking after landing regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tended {
    /// When that should be done again, ns of the node's clock.
    pub(crate) again_ns: Option<u64>,
    /// Something was written that nobody else tells of.
    pub(crate) has_written: bool,
    /// Landing regions were given up: writing them failed, or their subscribers have left.
    pub(crate) has_given_up: bool,
}

/// The landing regions of a topic, as its node sees them.
pub(crate) trait Landings: Debug + Send + Sync {
    /// Takes a landing region, and has the publisher write it from now on: what the repository holds is brought to it first, as
    /// far as there is room for copies.
    fn expose(&self, exposed: ExposedLanding, room: &CopyRoom) -> Result<(), ExposeError>;

    /// Whether what has to be in the landing region that `closed` closes has arrived there, so that its subscriber can begin.
    fn is_begun(&self, closed: &Arc<AtomicBool>) -> bool;

    /// Releases what the publisher has given up, and keeps landing regions up to date that it has not taken over
    /// yet, because it has not published since, or that are behind: as far as there is room for copies.
    fn tend(&self, room: &CopyRoom) -> Tended;

    /// Whether the landing region that `closed` closes waits for its subscriber to go on. [`Self::tend`] says when it is looked
    /// after.
    fn rests(&self, closed: &Arc<AtomicBool>) -> bool;

    /// Whether the landing region that `closed` closes was left to the node, and has yet to get what was published last.
    fn owe(&self, closed: &Arc<AtomicBool>) -> bool;
}

/// The landing region of a push subscriber of one kind of topic. It is written by the publisher, or by the node.
///
/// How far a repository and a landing region have come is a number that grows with each commit.
pub(crate) trait Landing: Debug + Send + Sized + 'static {
    /// Where things stand in it.
    type Geometry: Copy + Debug + Send + Sync;
    /// What a commit leaves, as its publisher has it.
    type Commit: Copy;
    /// A batch of writes that is under way.
    type Batch: Debug + Send;

    /// What was exposed, for this incarnation of a topic.
    fn open(exposed: ExposedLanding, repository: &Repository<Self::Geometry>) -> Result<Self, ExposeError>;

    /// The writes to it.
    fn flight(&self) -> &Flight<Self::Batch>;

    /// How far this commit has brought the repository.
    fn end_of(commit: &Self::Commit) -> u64;

    /// How far the repository has come at this moment.
    fn end(source: &Registration) -> u64;

    /// Writes what a commit changed. For the publisher, which never waits: what cannot be written now is left out, and it is behind.
    fn write(&mut self, source: &Registration, commit: &Self::Commit);

    /// Writes what the repository holds and this has not, beside a publisher that may go on; copies no more than `left`, bytes.
    /// For the node. Whether anything was written.
    fn catch_up(&mut self, source: &Registration, left: &mut u64) -> bool;

    /// Whether something up to there has yet to be written.
    fn is_behind(&self, end: u64) -> bool;

    /// Whether all that was written has arrived.
    fn is_settled(&mut self, source: &Registration) -> bool;

    /// Whether the publisher may have it.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether its subscriber can begin to read it.
    fn is_begun(&mut self, _source: &Registration) -> bool {
        true
    }

    /// Writes once more what may have been lost. Called a few times when all is written.
    fn remind(&mut self, _source: &Registration) {}

    /// Takes note of what came of [`Self::catch_up`] at this time, ns of the node's clock.
    fn pause(&mut self, _end: u64, _advances: bool, _now_ns: u64) {}

    /// Until when it waits for its subscriber to go on, ns of the node's clock. `None` when it does not.
    fn rests_until_ns(&self) -> Option<u64> {
        None
    }
}

/// A repository, as landing regions are written from it.
#[derive(Debug)]
pub(crate) struct Repository<G> {
    pub(super) registration: Arc<Registration>,
    pub(super) geometry: G,
    pub(super) epoch: Epoch,
}

/// The landing regions of one topic, on their way between its node and its publisher.
///
/// The publisher has those whose subscribers keep up. One that is behind is left to the node, which brings it up to date a part
/// at a time, as far as its subscriber makes room, and only then has the publisher take it over again. So a subscriber that is
/// slow, or stands still, costs the publisher nothing.
#[derive(Debug)]
pub(super) struct Handover<L: Landing> {
    repository: Repository<L::Geometry>,
    waker: KeyedWaker,
    /// Landing regions that the node has.
    waiting: Mutex<Vec<Held<L>>>,
    /// Whether there are some among them for the publisher; the only word of this that the data path looks at.
    has_waiting: AtomicBool,
    /// The node looks after them soon, without being woken.
    is_tended_soon: AtomicBool,
    /// Landing regions that the publisher has given up, to be released by the node.
    released: Mutex<Vec<L>>,
}

/// A landing region that the node has.
#[derive(Debug)]
struct Held<L> {
    landing: L,
    /// How often the node has looked after it since all was written.
    tended: u32,
}

impl<L: Landing> Handover<L> {
    /// No landing regions yet of this repository. The waker is that of the node.
    pub(super) fn new(repository: Repository<L::Geometry>, waker: KeyedWaker) -> Self {
        Self {
            repository,
            waker,
            waiting: Mutex::default(),
            has_waiting: AtomicBool::new(false),
            is_tended_soon: AtomicBool::new(false),
            released: Mutex::default(),
        }
    }

    /// Writes what was committed to these landing regions, those of the publisher. The ones that are of no more use, or cannot take
    /// everything now, are left to the node, and those that the node has finished with are taken over.
    #[inline]
    pub(super) fn deliver(&self, landings: &mut Vec<L>, commit: &L::Commit) {
        // Acquire: pairs with the Release in `Self::hold`.
        if self.has_waiting.load(Ordering::Acquire) {
            self.take_waiting(landings);
        }
        let (mut leaving, end) = (false, L::end_of(commit));
        for landing in landings.iter_mut() {
            if !landing.flight().is_closed() {
                landing.write(&self.repository.registration, commit);
            }
            leaving |= landing.flight().is_closed() || landing.is_behind(end);
        }
        if leaving {
            self.part(landings, end);
        }
    }

    /// Leaves landing regions of the publisher to the node.
    pub(super) fn leave(&self, landings: impl IntoIterator<Item = L>) {
        self.hold(landings.into_iter().map(|landing| Held { landing, tended: 0 }));
    }

    #[cold]
    fn take_waiting(&self, landings: &mut Vec<L>) {
        let mut waiting = self.waiting.lock();
        self.has_waiting.store(false, Ordering::Relaxed);
        landings.extend(waiting.extract_if(.., |held| held.landing.is_ready()).map(|held| held.landing));
    }

    #[cold]
    fn part(&self, landings: &mut Vec<L>, end: u64) {
        self.released.lock().extend(landings.extract_if(.., |landing| landing.flight().is_closed()));
        self.leave(landings.extract_if(.., |landing| landing.is_behind(end)));
        if !self.is_tended_soon.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn hold(&self, landings: impl IntoIterator<Item = Held<L>>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(landings);
        if waiting.iter().any(|held| held.landing.is_ready()) {
            // Release: whoever sees the flag finds the landing region behind the lock. Pairs with `deliver`.
            self.has_waiting.store(true, Ordering::Release);
        }
    }

    /// Takes landing regions out, so that the publisher is not kept waiting while something is written to them.
    fn take_those(&self, which: impl Fn(&Held<L>) -> bool) -> Vec<Held<L>> {
        self.waiting.lock().extract_if(.., |held| which(held)).collect()
    }

    fn end(&self) -> u64 {
        L::end(&self.repository.registration)
    }

    /// Brings these up to date as far as that can be done now. Says whether that should be done again soon, and whether anything
    /// was written. Those for which no room was left come first then.
    fn bring_up_to_date(&self, landings: &mut [Held<L>], room: &CopyRoom) -> (bool, bool) {
        let source = &self.repository.registration;
        let (mut soon, mut has_written, mut served, mut left) = (false, false, 0, room.left());
        for Held { landing, tended } in landings.iter_mut() {
            served += usize::from(left > 0);
            // One for which no room is left does not stand still.
            let mut advances = left == 0;
            if landing.is_behind(self.end()) {
                let advanced = landing.catch_up(source, &mut left);
                advances |= advanced;
                has_written |= advanced;
            }
            let (is_settled, end) = (landing.is_settled(source), self.end());
            landing.pause(end, advances, room.now_ns());
            *tended = if landing.is_behind(end) { 0 } else { tended.saturating_add(1) };
            if *tended < TENDED_CLOSELY && landing.rests_until_ns().is_none() {
                landing.remind(source);
                soon = true;
            }
            soon |= !is_settled;
        }
        room.set(left);
        landings.rotate_left(served);
        (soon, has_written)
    }

    /// What is found at the landing region that `closed` closes, if the node has it.
    fn find<R>(&self, closed: &Arc<AtomicBool>, look: impl FnOnce(&mut L) -> R) -> Option<R> {
        let mut waiting = self.waiting.lock();
        let held = waiting.iter_mut().find(|held| Arc::ptr_eq(held.landing.flight().closed(), closed));
        held.map(|held| look(&mut held.landing))
    }
}

impl<L: Landing> Landings for Handover<L> {
    fn expose(&self, exposed: ExposedLanding, room: &CopyRoom) -> Result<(), ExposeError> {
        let mut landings = vec![Held { landing: L::open(exposed, &self.repository)?, tended: 0 }];
        self.bring_up_to_date(&mut landings, room);
        if landings.iter().any(|held| held.landing.flight().is_closed()) {
            return Err(ExposeError::Unwritable);
        }
        self.hold(landings);
        Ok(())
    }

    fn is_begun(&self, closed: &Arc<AtomicBool>) -> bool {
        self.find(closed, |landing| landing.is_begun(&self.repository.registration)).unwrap_or(true)
    }

    fn tend(&self, room: &CopyRoom) -> Tended {
        self.is_tended_soon.store(false, Ordering::Release);
        // Taken out first, so that the publisher is not kept waiting while memory is unmapped.
        // The room for them stays: the publisher allocates nothing when it leaves some here.
        let released: Vec<_> = self.released.lock().drain(..).collect();
        let mut has_given_up = !released.is_empty();
        drop(released);
        let (mut soon, mut has_written, mut end) = (false, false, self.end());
        let now_ns = room.now_ns();
        let is_due = |held: &Held<L>| {
            let landing = &held.landing;
            landing.flight().is_closed() || landing.rests_until_ns().is_none_or(|until_ns| until_ns <= now_ns)
        };
        let mut landings =
            self.take_those(|held| held.needs_tending(end) && (room.is_beat() || is_due(held)));
        let mut give_up = |landings: &mut Vec<Held<L>>| {
            has_given_up |= landings.extract_if(.., |held| held.landing.flight().is_closed()).count() > 0;
        };
        for round in 1.. {
            give_up(&mut landings);
            if landings.is_empty() {
                break;
            }
            let outcome = self.bring_up_to_date(&mut landings, room);
            (soon, has_written) = (soon || outcome.0, has_written || outcome.1);
            give_up(&mut landings);
            self.hold(landings);
            // What was published meanwhile, when the publisher found nobody waiting here, is brought at once as far as there is room.
            let before = std::mem::replace(&mut end, self.end());
            let is_enough = round == ROUNDS_MAX || room.is_used_up();
            soon |= is_enough && end != before;
            if is_enough || end == before {
                break;
            }
            landings = self.take_those(|held| held.landing.is_behind(end) && is_due(held));
        }
        // One that rests is looked after later: the publisher wakes the node for the next one that it leaves here.
        self.is_tended_soon.store(soon, Ordering::Release);
        let rest_ends = || self.waiting.lock().iter().filter_map(|held| held.landing.rests_until_ns()).min();
        let again_ns = if soon { Some(room.soon_ns()) } else { rest_ends() };
        Tended { again_ns, has_written, has_given_up }
    }

    fn rests(&self, closed: &Arc<AtomicBool>) -> bool {
        let rests = |landing: &mut L| !landing.flight().is_closed() && landing.rests_until_ns().is_some();
        self.find(closed, rests).unwrap_or(false)
    }

    fn owe(&self, closed: &Arc<AtomicBool>) -> bool {
        let end = self.end();
        let owes = |landing: &mut L| {
            let has_arrived = landing.is_settled(&self.repository.registration) && !landing.is_behind(end);
            !has_arrived && !landing.flight().is_closed()
        };
        self.find(closed, owes).unwrap_or(false)
    }
}

impl<L: Landing> Held<L> {
    /// Whether the node has something to do for it, or has not looked after it often enough since it had. The publisher may have it
    /// otherwise, which then finds it at any time.
    fn needs_tending(&self, end: u64) -> bool {
        let Self { landing, tended } = self;
        let flight = landing.flight();
        flight.is_closed() || landing.is_behind(end) || !flight.is_empty() || *tended < TENDED_CLOSELY
    }
}

#[cfg(test)]
impl super::PublishedTopic {
    /// Lends it a landing region for a subscription that is granted at this moment. Whether it is of use.
    pub(crate) fn expose(
        &self,
        remote: Box<dyn RemoteWrite>,
        closed: &Arc<AtomicBool>,
        options: KindOptions,
        room: &CopyRoom,
    ) -> bool {
        let exposed = ExposedLanding { remote, closed: Arc::clone(closed), options, granted: self.newest() };
        self.landings.expose(exposed, room).is_ok()
    }
}
