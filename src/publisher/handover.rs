use std::fmt::Debug;
use std::sync::Arc;

use super::CopyBudget;
use super::landing_writer::LandingWriter;
use super::subscribers::TopicSubscriber;
use crate::fabric::{KeyedWaker, Registration, RemoteWrite};
use crate::id::{Epoch, KindOptions, Sequence};
use crate::limits;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// How often, in quick succession, the node tends a complete landing region that the publisher has not taken back.
const TENDED_CLOSELY: u32 = 5;

/// How often the node writes landing regions in one turn while the publisher keeps publishing.
const ROUNDS_MAX: u32 = 4;

/// A subscriber's landing region.
#[derive(Debug)]
pub(crate) struct ExposedLanding {
    /// What writes it.
    pub(crate) remote: Box<dyn RemoteWrite>,
    /// Set to end its use.
    pub(crate) closed: Arc<AtomicBool>,
    /// The options of the subscription.
    pub(crate) options: KindOptions,
    /// The newest sequence when the topic was granted.
    pub(crate) granted: Sequence,
    /// The subscriber.
    pub(crate) subscriber: Option<Arc<TopicSubscriber>>,
}

/// Why a landing region is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LandingError {
    /// Writing it failed.
    #[error("it cannot be written")]
    Unwritable,
    /// Writes to it may be lost, which topics of this kind would not notice.
    #[error("a table cannot be pushed over an unreliable connection")]
    Lossy,
    /// Topics of this kind do not have the options.
    #[error("the subscription has options that topics of this kind lack")]
    Options,
}

/// The outcome of tending landing regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tended {
    /// When to tend them again, ns of the node's clock.
    pub(crate) again_ns: Option<u64>,
    /// Wrote something that no publisher announces.
    pub(crate) has_written: bool,
    /// Gave up landing regions: writing failed, or the subscribers have left.
    pub(crate) has_given_up: bool,
}

/// The landing regions of a topic, for its node.
pub(crate) trait Landings: Debug + Send + Sync {
    /// Accepts a landing region: writes what the repository holds, within the budget, and then leaves it to the publisher.
    fn accept(&self, exposed: ExposedLanding, budget: &CopyBudget) -> Result<(), LandingError>;

    /// Whether the landing region with this `closed` holds what its subscriber needs to begin.
    fn is_begun(&self, closed: &Arc<AtomicBool>) -> bool;

    /// Releases landing regions that the publisher gave up. Writes those that are behind, and those that the publisher has not
    /// taken yet because it has not published since; within the budget.
    fn tend(&self, budget: &CopyBudget) -> Tended;

    /// Whether the landing region with this `closed` waits for its subscriber to consume. [`Self::tend`] says when to check
    /// again.
    fn rests(&self, closed: &Arc<AtomicBool>) -> bool;

    /// Whether the landing region with this `closed` is the node's, and lacks the last commit.
    fn owe(&self, closed: &Arc<AtomicBool>) -> bool;
}

/// The landing region of a push subscriber of one kind of topic. The publisher or the node writes it.
///
/// The progress of a repository or landing region is a number that grows with each commit.
pub(crate) trait Landing: Debug + Send + Sized + 'static {
    /// The geometry of its contents.
    type Geometry: Copy + Debug + Send + Sync;
    /// The publisher's result of a commit.
    type Commit: Copy;
    /// A batch of writes in flight.
    type Batch: Debug + Send;

    /// Opens an exposed landing region for this incarnation of a topic.
    fn open(exposed: ExposedLanding, repository: &Repository<Self::Geometry>) -> Result<Self, LandingError>;

    /// Its writer.
    fn writer(&self) -> &LandingWriter<Self::Batch>;

    /// The repository's progress after this commit.
    fn end_of(commit: &Self::Commit) -> u64;

    /// The repository's progress now.
    fn end(source: &Registration) -> u64;

    /// Writes what a commit changed, for the publisher. Never waits: if it cannot write now, the landing region is behind.
    fn write(&mut self, source: &Registration, commit: &Self::Commit);

    /// Writes what the repository holds and the landing region lacks, for the node, while the publisher keeps publishing. Copies at most
    /// `left` bytes. Returns whether anything was written.
    fn catch_up(&mut self, source: &Registration, left: &mut u64) -> bool;

    /// Whether something before `end` is still unwritten.
    fn is_behind(&self, end: u64) -> bool;

    /// Whether all writes have completed.
    fn is_settled(&mut self, source: &Registration) -> bool;

    /// Whether the publisher may take it.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether its subscriber can begin to read it.
    fn is_begun(&mut self, _source: &Registration) -> bool {
        true
    }

    /// Repeats writes that may have been lost. Called a few times after everything is written.
    fn remind(&mut self, _source: &Registration) {}

    /// Records the outcome of [`Self::catch_up`] at this time, ns of the node's clock.
    fn pause(&mut self, _end: u64, _advances: bool, _now_ns: u64) {}

    /// When to ask its waiting subscriber again, ns of the node's clock. `None` when it does not wait.
    fn rests_until_ns(&self) -> Option<u64> {
        None
    }
}

/// A repository, the source of landing regions.
#[derive(Debug)]
pub(crate) struct Repository<G> {
    pub(super) registration: Arc<Registration>,
    pub(super) geometry: G,
    pub(super) epoch: Epoch,
    /// The sequence before that of its first value.
    pub(super) after: Sequence,
}

/// The landing regions of one topic, handed over between its node and its publisher.
///
/// The publisher writes those whose subscribers keep up, and leaves the others to the node. The node writes them in parts, as
/// their subscribers consume, until the publisher can take them back. So a slow or stopped subscriber costs the publisher
/// nothing.
#[derive(Debug)]
pub(super) struct Handover<L: Landing> {
    repository: Repository<L::Geometry>,
    waker: KeyedWaker,
    /// The node's landing regions.
    waiting: Mutex<Vec<WaitingLanding<L>>>,
    /// Whether one of them is for the publisher to take; the data path reads only this word.
    has_waiting: AtomicBool,
    /// The node tends them soon, without being woken.
    is_tended_soon: AtomicBool,
    /// Landing regions that the publisher has given up, to be released by the node.
    released: Mutex<Vec<Box<L>>>,
}

/// A landing region of the node.
#[derive(Debug)]
struct WaitingLanding<L> {
    landing: Box<L>,
    /// How often the node has tended it since everything was written.
    tended: u32,
}

impl<L: Landing> Handover<L> {
    /// No landing regions of this repository yet. `waker` wakes the node.
    pub(super) fn new(repository: Repository<L::Geometry>, waker: KeyedWaker) -> Self {
        Self {
            repository,
            waker,
            // The publisher allocates nothing when it leaves some here.
            waiting: Mutex::new(Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX)),
            has_waiting: AtomicBool::new(false),
            is_tended_soon: AtomicBool::new(false),
            released: Mutex::new(Vec::with_capacity(limits::PUSH_SUBSCRIBERS_MAX)),
        }
    }

    /// Writes a commit to the publisher's landing regions. Takes those that the node has completed, and leaves to the node those
    /// that are closed or behind.
    #[inline]
    pub(super) fn deliver(&self, landings: &mut Vec<Box<L>>, commit: &L::Commit) {
        // Acquire: pairs with the Release in `Self::offer`.
        if self.has_waiting.load(Ordering::Acquire) {
            self.take_waiting(landings);
        }
        let (mut leaving, end) = (false, L::end_of(commit));
        for landing in landings.iter_mut() {
            if !landing.writer().is_closed() {
                landing.write(&self.repository.registration, commit);
            }
            leaving |= landing.writer().is_closed() || landing.is_behind(end);
        }
        if leaving {
            self.part(landings, end);
        }
    }

    /// Leaves landing regions of the publisher to the node.
    pub(super) fn leave(&self, landings: impl IntoIterator<Item = Box<L>>) {
        self.hold(landings.into_iter().map(|landing| WaitingLanding { landing, tended: 0 }));
    }

    #[cold]
    fn take_waiting(&self, landings: &mut Vec<Box<L>>) {
        let mut waiting = self.waiting.lock();
        self.has_waiting.store(false, Ordering::Relaxed);
        landings.extend(waiting.extract_if(.., |held| held.landing.is_ready()).map(|held| held.landing));
    }

    #[cold]
    fn part(&self, landings: &mut Vec<Box<L>>, end: u64) {
        self.released.lock().extend(landings.extract_if(.., |landing| landing.writer().is_closed()));
        self.leave(landings.extract_if(.., |landing| landing.is_behind(end)));
        if !self.is_tended_soon.swap(true, Ordering::AcqRel) {
            self.waker.wake();
        }
    }

    fn hold(&self, landings: impl IntoIterator<Item = WaitingLanding<L>>) {
        let mut waiting = self.waiting.lock();
        waiting.extend(landings);
        self.offer(&waiting);
    }

    /// Has the publisher take those that are ready.
    fn offer(&self, waiting: &[WaitingLanding<L>]) {
        if waiting.iter().any(|held| held.landing.is_ready()) {
            // Release: a thread that reads the flag finds the landing region behind the lock. Pairs with `deliver`.
            self.has_waiting.store(true, Ordering::Release);
        }
    }

    /// Takes these landing regions out, so that the publisher does not wait while they are written.
    fn take_those(&self, which: impl Fn(&WaitingLanding<L>) -> bool) -> Vec<WaitingLanding<L>> {
        self.waiting.lock().extract_if(.., |held| which(held)).collect()
    }

    fn end(&self) -> u64 {
        L::end(&self.repository.registration)
    }

    /// Writes these as far as possible now. Returns whether to do so again soon, and whether anything was written. Those left out
    /// for lack of budget come first next time.
    fn bring_up_to_date(&self, landings: &mut [WaitingLanding<L>], budget: &CopyBudget) -> (bool, bool) {
        let source = &self.repository.registration;
        let (mut soon, mut has_written, mut served, mut left) = (false, false, 0, budget.left());
        for WaitingLanding { landing, tended } in landings.iter_mut() {
            served += usize::from(left > 0);
            // A landing region left out for lack of budget is not stalled.
            let has_no_budget = left == 0;
            let advanced = landing.is_behind(self.end()) && landing.catch_up(source, &mut left);
            has_written |= advanced;
            let (is_settled, end) = (landing.is_settled(source), self.end());
            landing.pause(end, advanced || has_no_budget, budget.now_ns());
            // The publisher may have passed this one by meanwhile: it is tended again, as after each write.
            *tended = if advanced || landing.is_behind(end) { 0 } else { tended.saturating_add(1) };
            if *tended < TENDED_CLOSELY && landing.rests_until_ns().is_none() {
                landing.remind(source);
                soon = true;
            }
            soon |= !is_settled;
        }
        budget.set(left);
        landings.rotate_left(served);
        (soon, has_written)
    }

    /// Applies `look` to the landing region with this `closed`, if the node has it.
    fn find<R>(&self, closed: &Arc<AtomicBool>, look: impl FnOnce(&mut L) -> R) -> Option<R> {
        let mut waiting = self.waiting.lock();
        let held = waiting.iter_mut().find(|held| Arc::ptr_eq(held.landing.writer().closed(), closed));
        let found = held.map(|held| look(&mut held.landing));
        // `look` may have found that it is ready.
        self.offer(&waiting);
        found
    }
}

impl<L: Landing> Landings for Handover<L> {
    fn accept(&self, exposed: ExposedLanding, budget: &CopyBudget) -> Result<(), LandingError> {
        let landing = Box::new(L::open(exposed, &self.repository)?);
        let mut landings = vec![WaitingLanding { landing, tended: 0 }];
        self.bring_up_to_date(&mut landings, budget);
        if landings.iter().any(|held| held.landing.writer().is_closed()) {
            return Err(LandingError::Unwritable);
        }
        self.hold(landings);
        Ok(())
    }

    fn is_begun(&self, closed: &Arc<AtomicBool>) -> bool {
        self.find(closed, |landing| landing.is_begun(&self.repository.registration)).unwrap_or(true)
    }

    fn tend(&self, budget: &CopyBudget) -> Tended {
        self.is_tended_soon.store(false, Ordering::Release);
        // Drained first, so that the publisher does not wait while memory is unmapped. The capacity stays: the publisher
        // allocates nothing to add to it.
        let released: Vec<_> = self.released.lock().drain(..).collect();
        let mut has_given_up = !released.is_empty();
        drop(released);
        let (mut soon, mut has_written, mut end) = (false, false, self.end());
        let now_ns = budget.now_ns();
        let is_due = |held: &WaitingLanding<L>| {
            let landing = &held.landing;
            landing.writer().is_closed() || landing.rests_until_ns().is_none_or(|until_ns| until_ns <= now_ns)
        };
        let mut landings =
            self.take_those(|held| held.needs_tending(end) && (budget.is_beat() || is_due(held)));
        let mut give_up = |landings: &mut Vec<WaitingLanding<L>>| {
            has_given_up |= landings.extract_if(.., |held| held.landing.writer().is_closed()).count() > 0;
        };
        for round in 1.. {
            give_up(&mut landings);
            if landings.is_empty() {
                break;
            }
            let outcome = self.bring_up_to_date(&mut landings, budget);
            (soon, has_written) = (soon || outcome.0, has_written || outcome.1);
            give_up(&mut landings);
            self.hold(landings);
            // Writes what was published in the meantime, while the publisher found no landing region here.
            let before = std::mem::replace(&mut end, self.end());
            let is_enough = round == ROUNDS_MAX || budget.is_used_up();
            soon |= is_enough && end != before;
            if is_enough || end == before {
                break;
            }
            landings = self.take_those(|held| held.landing.is_behind(end) && is_due(held));
        }
        // A resting landing region is tended later: the publisher wakes the node when it leaves another one.
        self.is_tended_soon.store(soon, Ordering::Release);
        let rest_ends = || self.waiting.lock().iter().filter_map(|held| held.landing.rests_until_ns()).min();
        let again_ns = if soon { Some(budget.soon_ns()) } else { rest_ends() };
        Tended { again_ns, has_written, has_given_up }
    }

    fn rests(&self, closed: &Arc<AtomicBool>) -> bool {
        let rests = |landing: &mut L| !landing.writer().is_closed() && landing.rests_until_ns().is_some();
        self.find(closed, rests).unwrap_or(false)
    }

    fn owe(&self, closed: &Arc<AtomicBool>) -> bool {
        let end = self.end();
        let owes = |landing: &mut L| {
            let has_arrived = landing.is_settled(&self.repository.registration) && !landing.is_behind(end);
            !has_arrived && !landing.writer().is_closed()
        };
        self.find(closed, owes).unwrap_or(false)
    }
}

impl<L: Landing> WaitingLanding<L> {
    /// Whether the node has more to write to it, or has not tended it often enough since. Otherwise the publisher may take it at
    /// any time.
    fn needs_tending(&self, end: u64) -> bool {
        let Self { landing, tended } = self;
        let writer = landing.writer();
        writer.is_closed() || landing.is_behind(end) || !writer.is_empty() || *tended < TENDED_CLOSELY
    }
}

#[cfg(test)]
impl super::PublishedTopic {
    /// Adds a landing region for a subscription granted now. Returns whether it is usable.
    pub(crate) fn accept(
        &self,
        remote: Box<dyn RemoteWrite>,
        closed: &Arc<AtomicBool>,
        options: KindOptions,
        budget: &CopyBudget,
    ) -> bool {
        let exposed = ExposedLanding {
            remote,
            closed: Arc::clone(closed),
            options,
            granted: self.newest(),
            subscriber: None,
        };
        self.landings.accept(exposed, budget).is_ok()
    }
}
