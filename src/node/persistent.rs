//! Persistent subscriptions: a node finds them again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::core::NodeCore;
use super::seeking::{Attempt, Sought};
use super::terms::Terms;
use super::{Node, NodeInner, SubscriberBuilder};
use crate::chain::ErrorChain;
use crate::clock::Clock;
use crate::event::Event;
use crate::fabric::{FabricError, KeyedWaker, Target};
use crate::id::{Epoch, Incarnation, Sequence};
use crate::limits;
use crate::repository::log::LogStart;
use crate::subscriber::{
    Persistent, Position, ReceiveError, Renewable, RenewableHandle, Seek, Subscribed, SubscriberError,
    SubscriberHandle,
};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl<'a, S: Subscribed> SubscriberBuilder<'a, S> {
    /// Makes the subscriber outlive its publishers: see [`Persistent`]. The settings apply to each of its subscriptions; where to begin
    /// in a log, to the first one.
    pub fn persistent(self) -> PersistentBuilder<'a, S> {
        PersistentBuilder(self)
    }
}

/// Sets up a [`Persistent`] subscriber.
///
/// Send and Sync.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct PersistentBuilder<'a, S: Subscribed>(SubscriberBuilder<'a, S>);

/// The options of a later subscription.
pub(super) trait ResumingOptions {
    /// Returns the options to continue after a subscription, or to begin with a topic that did not exist before.
    fn resuming(self, lost: Option<Position>) -> Self;

    /// Returns the options to receive all that a publisher has of its epoch.
    fn anew(self) -> Self;

    /// Returns the record that they name.
    fn begins_at(&self) -> Option<Sequence> {
        None
    }

    /// Returns whether they ask for values that are published later.
    fn begins_with_newest(&self) -> bool {
        false
    }
}

impl ResumingOptions for () {
    fn resuming(self, _: Option<Position>) -> Self {}

    fn anew(self) -> Self {}
}

impl ResumingOptions for LogStart {
    fn resuming(self, lost: Option<Position>) -> Self {
        match (self, lost) {
            (_, Some(Position { epoch, last, .. })) => Self::Resume { epoch, after: last },
            // All records of a topic that did not exist are records after this one was opened.
            (Self::Newest | Self::Back(_), None) => Self::First,
            (start, None) => start,
        }
    }

    fn anew(self) -> Self {
        // What was overwritten before is not reported.
        if self == Self::Earliest { self } else { Self::First }
    }

    fn begins_at(&self) -> Option<Sequence> {
        if let Self::At(sequence) = self { Some(*sequence) } else { None }
    }

    fn begins_with_newest(&self) -> bool {
        matches!(self, Self::Newest | Self::Back(_))
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<'a, S> PersistentBuilder<'a, S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Send + 'static,
{
    /// Attaches to the topic, like [`SubscriberBuilder::open`], or, if that is not possible at the moment, returns a subscriber that is
    /// sought in the background; [`Persistent::open_error`] has the reason. A log that does not exist yet, or that is found missing while
    /// it is sought, is received from the first record of its publisher on; so is one whose node does not answer a connection over RDMA.
    ///
    /// # Errors
    ///
    /// Those of [`SubscriberBuilder::open`] for which another attempt makes no sense: see [`SubscriberError::is_transient`].
    pub fn open(self) -> Result<Persistent<S>, SubscriberError> {
        let (node, deadline, opening) = self.opening()?;
        Ok(persistent(node, opening)?.expect_within(deadline))
    }

    /// Returns what it takes to open the subscriber, without the builder: its node, its deadline, and its topic.
    pub(super) fn opening(self) -> Result<(&'a Node, Option<Duration>, TopicReopening<S>), SubscriberError> {
        let (node, mut opening) = self.0.opening()?;
        // It is one of the persistent subscriber, not of each that it attaches.
        let deadline = opening.terms.deadline.take();
        Ok((node, deadline, opening))
    }
}

/// What it takes to open a subscriber, again and again.
pub(super) trait Reopen: Clone + Send + 'static {
    /// The subscriber.
    type Handle: Renewable + RenewableHandle + Send + 'static;

    /// What it subscribes to.
    fn target(&self) -> &Target;

    /// Opens it. Blocks.
    fn open(&self, node: &Node) -> Result<Self::Handle, SubscriberError>;

    /// Returns what it takes to continue after this position, or to begin with a topic that did not exist before.
    fn resuming(&self, lost: Option<Position>) -> Self;

    /// Returns what it takes to receive all that a publisher has of its epoch: other lines may have brought any of it, or of another epoch.
    fn anew(&self) -> Self;
}

/// Opens a subscriber now or, if that is not possible at the moment, seeks it.
pub(super) fn persistent<O: Reopen>(
    node: &Node,
    opening: O,
) -> Result<Persistent<O::Handle>, SubscriberError> {
    let first = opening.open(node);
    let has_begun = Arc::new(AtomicBool::new(first.is_ok()));
    begin(node, opening, first, &has_begun)
}

/// Does the same for several lines. Once one is open, now or when it is found, the others begin with the first value; what it has
/// brought by then is skipped. Otherwise each would begin with its own newest value, and none could bring what another one lost.
pub(super) fn persistent_lines<O: Reopen>(
    node: &Node,
    openings: Vec<O>,
) -> Result<Vec<Persistent<O::Handle>>, SubscriberError> {
    let firsts: Vec<_> = openings.iter().map(|opening| opening.open(node)).collect();
    let has_begun = Arc::new(AtomicBool::new(firsts.iter().any(Result::is_ok)));
    let lines = openings.into_iter().zip(firsts);
    lines.map(|(opening, first)| begin(node, opening, first, &has_begun)).collect()
}

/// Keeps a subscriber, or seeks it if another attempt to open it makes sense. `has_begun`: of the subscriber or one of its lines.
fn begin<O: Reopen>(
    node: &Node,
    opening: O,
    first: Result<O::Handle, SubscriberError>,
    has_begun: &Arc<AtomicBool>,
) -> Result<Persistent<O::Handle>, SubscriberError> {
    let (search, has_begun) = (Arc::new(Search::new()), Arc::clone(has_begun));
    let seek = NodeSeek { node: node.clone(), opening, search, has_begun };
    match first {
        Ok(subscriber) => Ok(Persistent::new(Ok(subscriber), Box::new(seek))),
        Err(error) if error.is_transient() => {
            let opening = if error.is_absence() { seek.opening.resuming(None) } else { seek.opening.clone() };
            seek.seek(opening, None);
            Ok(Persistent::new(Err(error), Box::new(seek)))
        }
        Err(error) => Err(error),
    }
}

/// A subscriber of one topic.
pub(super) struct TopicReopening<S: Subscribed> {
    pub(super) target: Target,
    pub(super) terms: Terms<S::Options>,
    pub(super) samples: Vec<String>,
}

impl<'a, S: Subscribed> SubscriberBuilder<'a, S> {
    /// Returns what it takes to open the subscriber, without the builder.
    pub(super) fn opening(self) -> Result<(&'a Node, TopicReopening<S>), SubscriberError> {
        let Self { node, place, terms, samples, .. } = self;
        Ok((node, TopicReopening { target: place?, terms, samples }))
    }
}

impl<S: Subscribed> Clone for TopicReopening<S> {
    fn clone(&self) -> Self {
        let Self { target, terms, samples } = self;
        Self { target: target.clone(), terms: *terms, samples: samples.clone() }
    }
}

impl<S> Reopen for TopicReopening<S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Send + 'static,
{
    type Handle = S;

    fn target(&self) -> &Target {
        &self.target
    }

    fn open(&self, node: &Node) -> Result<S, SubscriberError> {
        let Self { target, terms, samples } = self.clone();
        SubscriberBuilder::<S>::with(node, Ok(target), (terms, samples)).open()
    }

    fn resuming(&self, lost: Option<Position>) -> Self {
        let options = self.terms.options.resuming(lost);
        Self { terms: Terms { options, ..self.terms }, ..self.clone() }
    }

    fn anew(&self) -> Self {
        let options = self.terms.options.anew();
        Self { terms: Terms { options, ..self.terms }, ..self.clone() }
    }
}

/// Seeks a subscription for its handle.
struct NodeSeek<O: Reopen> {
    node: Node,
    opening: O,
    search: Arc<Search<O::Handle>>,
    /// It was open, or another line was.
    has_begun: Arc<AtomicBool>,
}

/// What a handle and the thread that seeks for it share.
struct Search<S> {
    /// What was found and not taken yet.
    found: Mutex<Option<Result<S, SubscriberError>>>,
    /// Why the last session ended, while nothing says that its publisher did. Locked while an event is told, so that events are in
    /// order.
    suspicion: Mutex<Option<Suspicion>>,
    /// Whether something was found, or is suspected: without it, a subscriber that is lost takes no lock and reads no clock. Written under
    /// the lock of the suspicion.
    has_news: AtomicBool,
    /// How often a publisher was lost.
    outages: AtomicU64,
    /// Wakes what waits for the subscriber.
    waker: Mutex<Option<KeyedWaker>>,
}

/// A session broke: its publisher may be lost, or only the connection to it.
struct Suspicion {
    publisher: Incarnation,
    reason: String,
    /// Until when an attempt to reach it is awaited, ns.
    until_ns: u64,
}

/// A subscription that is sought for a handle, unless that or the node is gone.
struct Wanted<O: Reopen> {
    node: Weak<NodeInner>,
    opening: O,
    /// The epoch of the one that was lost.
    lost: Option<Epoch>,
    search: Weak<Search<O::Handle>>,
    /// As in [`NodeSeek`].
    has_begun: Arc<AtomicBool>,
    /// An error that another attempt may not mend was reported.
    has_reported: bool,
}

impl<O: Reopen> NodeSeek<O> {
    fn seek(&self, opening: O, lost: Option<Epoch>) {
        let (node, search) = (Arc::downgrade(&self.node.inner), Arc::downgrade(&self.search));
        let has_begun = Arc::clone(&self.has_begun);
        let wanted = Wanted { node, opening, lost, search, has_begun, has_reported: false };
        self.node.inner.shared.seeking.seek(&self.opening.target().address, Box::new(wanted));
    }
}

impl<S: RenewableHandle> Search<S> {
    fn new() -> Self {
        Self {
            found: Mutex::new(None),
            suspicion: Mutex::new(None),
            has_news: AtomicBool::new(false),
            outages: AtomicU64::new(0),
            waker: Mutex::new(None),
        }
    }

    /// Suspects that a publisher is lost.
    fn suspect(&self, suspicion: Suspicion) {
        let mut current = self.suspicion.lock();
        *current = Some(suspicion);
        self.has_news.store(true, Ordering::Release);
    }

    /// Keeps what was found, for the next poll. `_lock`: that of the suspicion is held.
    fn keep(&self, found: Result<S, SubscriberError>, _lock: &mut Option<Suspicion>) {
        *self.found.lock() = Some(found);
        self.has_news.store(true, Ordering::Release);
        if let Some(waker) = &*self.waker.lock() {
            waker.wake();
        }
    }

    /// Takes what was found.
    fn take(&self) -> Option<Result<S, SubscriberError>> {
        let suspicion = self.suspicion.lock();
        let found = self.found.lock().take();
        self.has_news.store(suspicion.is_some(), Ordering::Release);
        found
    }

    /// Reports the publisher lost, if it was suspected, and no attempt to reach it is awaited at this time any more.
    fn lose(&self, core: &NodeCore, target: &Target, now_ns: u64) {
        let mut suspicion = self.suspicion.lock();
        if let Some(Suspicion { reason, .. }) = suspicion.take_if(|suspicion| suspicion.until_ns <= now_ns) {
            self.tell_lost(core, target, reason);
        }
    }

    fn tell_lost(&self, core: &NodeCore, target: &Target, reason: String) {
        self.outages.fetch_add(1, Ordering::Relaxed);
        core.tell(&Event::Lost { target: target.to_string(), reason });
    }

    /// Reports and keeps what was found: the publisher that was suspected, or another one after that was lost.
    fn find(&self, core: &NodeCore, target: &Target, lost: Option<Epoch>, found: S) {
        let Position { incarnation, epoch, .. } = found.position();
        let mut suspicion = self.suspicion.lock();
        let target_name = target.to_string();
        match (suspicion.take(), lost) {
            (Some(Suspicion { publisher, reason, .. }), _) if publisher == incarnation => {
                core.tell(&Event::Reconnected { target: target_name, reason });
            }
            (suspicion, lost) => {
                if let Some(Suspicion { reason, .. }) = suspicion {
                    self.tell_lost(core, target, reason);
                }
                core.tell(&match lost {
                    Some(lost) if lost != epoch => Event::Restarted { target: target_name, epoch },
                    _ => Event::Resumed { target: target_name, epoch },
                });
            }
        }
        self.keep(Ok(found), &mut suspicion);
    }
}

impl<O: Reopen> Seek<O::Handle> for NodeSeek<O> {
    fn begin(&mut self, lost: Position, reason: &ReceiveError) {
        let is_certain = matches!(reason, ReceiveError::Ended { .. });
        let until_ns = self.clock().monotonic_ns().saturating_add(limits::RECONNECT_NS);
        let reason = ErrorChain(reason).to_string();
        self.search.suspect(Suspicion { publisher: lost.incarnation, reason, until_ns });
        if is_certain {
            self.search.lose(self.node.core(), self.opening.target(), u64::MAX);
        }
        self.seek(self.opening.resuming(Some(lost)), Some(lost.epoch));
    }

    /// Nothing is lost, so that no event says so: what is found is told like the first publisher.
    fn begin_anew(&mut self) {
        self.seek(self.opening.anew(), None);
    }

    fn is_suspected(&self) -> bool {
        self.search.has_news.load(Ordering::Acquire)
            && (self.search.suspicion.lock().is_some() || self.search.found.lock().is_some())
    }

    fn poll(&mut self) -> Option<Result<O::Handle, SubscriberError>> {
        if !self.search.has_news.load(Ordering::Acquire) {
            return None;
        }
        let found = self.search.take();
        if found.is_none() {
            let core = self.node.core();
            self.search.lose(core, self.opening.target(), core.clock.monotonic_ns());
        }
        found
    }

    fn outages(&self) -> u64 {
        self.search.outages.load(Ordering::Relaxed)
    }

    fn target(&self) -> &Target {
        self.opening.target()
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.node.core().clock
    }

    fn wake_with(&mut self, waker: Option<KeyedWaker>) {
        *self.search.waker.lock() = waker;
    }
}

impl<O: Reopen> Wanted<O> {
    /// Opens it. If another line is open, it begins with the first value.
    fn open(&mut self, node: &Node) -> Result<O::Handle, SubscriberError> {
        loop {
            let is_first = !self.has_begun.load(Ordering::Acquire);
            if self.lost.is_none() && !is_first {
                self.opening = self.opening.anew();
            }
            let opened = self.opening.open(node)?;
            // Otherwise another one was opened meanwhile.
            if !is_first || !self.has_begun.swap(true, Ordering::AcqRel) {
                return Ok(opened);
            }
        }
    }
}

impl<O: Reopen> Sought for Wanted<O> {
    fn attempt(&mut self) -> Attempt {
        let (Some(inner), Some(search)) = (self.node.upgrade(), self.search.upgrade()) else {
            return Attempt::Done;
        };
        let node = Node { inner };
        match self.open(&node) {
            Ok(subscriber) => {
                search.find(node.core(), self.opening.target(), self.lost, subscriber);
                Attempt::Done
            }
            Err(error) if error.is_transient() => {
                if error.is_absence() {
                    // Without an answer, only packets of the connection may be lost.
                    let is_silent = matches!(
                        error,
                        SubscriberError::Unreachable { source: FabricError::NoAnswer { .. }, .. }
                    );
                    let now_ns = if is_silent { node.core().clock.monotonic_ns() } else { u64::MAX };
                    search.lose(node.core(), self.opening.target(), now_ns);
                }
                if self.lost.is_none() && error.is_absence() {
                    // What it finds from now on did not exist when the subscriber was opened.
                    self.opening = self.opening.resuming(None);
                }
                match error {
                    SubscriberError::Unreachable { .. } | SubscriberError::Session { .. } => {
                        Attempt::Unreached
                    }
                    _ => Attempt::Refused,
                }
            }
            Err(error) => {
                search.lose(node.core(), self.opening.target(), u64::MAX);
                let is_denied = match &error {
                    SubscriberError::Session { source, .. } => source.denies_access(),
                    SubscriberError::Unreachable { source, .. } => {
                        matches!(source, FabricError::NotAdmitted(_) | FabricError::NotOpen { .. })
                    }
                    _ => false,
                };
                if !std::mem::replace(&mut self.has_reported, true) {
                    search.keep(Err(error), &mut search.suspicion.lock());
                }
                if is_denied { Attempt::Denied } else { Attempt::Refused }
            }
        }
    }
}
