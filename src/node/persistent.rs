//! Persistent subscriptions: a node finds them again.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::seeking::{Attempt, Sought};
use super::terms::Terms;
use super::{Node, NodeInner, SubscriberBuilder};
use crate::chain::ErrorChain;
use crate::clock::Clock;
use crate::event::Event;
use crate::fabric::Target;
use crate::id::Epoch;
use crate::repository::log::LogStart;
use crate::subscriber::{
    Persistent, Position, ReceiveError, Renewable, RenewableHandle, Seek, Subscribed, SubscriberError,
    SubscriberHandle,
};

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
trait ResumingOptions {
    /// Returns the options to continue after a subscription, or to begin with a topic that did not exist before.
    fn resuming(self, lost: Option<Position>) -> Self;
}

impl ResumingOptions for () {
    fn resuming(self, _: Option<Position>) -> Self {}
}

impl ResumingOptions for LogStart {
    fn resuming(self, lost: Option<Position>) -> Self {
        match (self, lost) {
            (_, Some(Position { epoch, last })) => Self::Resume { epoch, after: last },
            // All records of a topic that did not exist are records after this one was opened.
            (Self::Newest | Self::Back(_), None) => Self::First,
            (start, None) => start,
        }
    }
}

#[expect(private_bounds, reason = "no other item names the options of a subscriber")]
impl<S> PersistentBuilder<'_, S>
where
    S: Subscribed + SubscriberHandle<Options: ResumingOptions + Send> + Send + 'static,
{
    /// Attaches to the topic, like [`SubscriberBuilder::open`], or, if that is not possible at the moment, returns a subscriber that is
    /// sought in the background; [`Persistent::open_error`] has the reason. A log that does not exist yet is received from its first
    /// record on.
    ///
    /// # Errors
    ///
    /// Those of [`SubscriberBuilder::open`] for which another attempt makes no sense: see [`SubscriberError::is_transient`].
    pub fn open(self) -> Result<Persistent<S>, SubscriberError> {
        let SubscriberBuilder { node, place, terms, samples, .. } = self.0;
        persistent(node, TopicReopening::<S> { target: place?, terms, samples })
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
}

/// Opens a subscriber now or, if that is not possible at the moment, seeks it.
pub(super) fn persistent<O: Reopen>(
    node: &Node,
    opening: O,
) -> Result<Persistent<O::Handle>, SubscriberError> {
    let first = opening.open(node);
    let seek = NodeSeek { node: node.clone(), opening, slot: Arc::default() };
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
struct TopicReopening<S: Subscribed> {
    target: Target,
    terms: Terms<S::Options>,
    samples: Vec<String>,
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
        let mut builder = SubscriberBuilder::<S>::new(node, self.target.clone());
        builder.terms = self.terms;
        self.samples.clone_into(&mut builder.samples);
        builder.open()
    }

    fn resuming(&self, lost: Option<Position>) -> Self {
        let options = self.terms.options.resuming(lost);
        Self { terms: Terms { options, ..self.terms }, ..self.clone() }
    }
}

/// Seeks a subscription for its handle.
struct NodeSeek<O: Reopen> {
    node: Node,
    opening: O,
    slot: Arc<FoundSlot<O::Handle>>,
}

/// What was found and not taken yet.
type FoundSlot<S> = Mutex<Option<Result<S, SubscriberError>>>;

/// A subscription that is sought for a handle, unless that or the node is gone.
struct Wanted<O: Reopen> {
    node: Weak<NodeInner>,
    opening: O,
    /// The epoch of the one that was lost.
    lost: Option<Epoch>,
    slot: Weak<FoundSlot<O::Handle>>,
    /// An error that another attempt may not mend was reported.
    has_reported: bool,
}

impl<O: Reopen> NodeSeek<O> {
    fn seek(&self, opening: O, lost: Option<Epoch>) {
        let (node, slot) = (Arc::downgrade(&self.node.inner), Arc::downgrade(&self.slot));
        let wanted = Wanted { node, opening, lost, slot, has_reported: false };
        self.node.inner.shared.seeking.seek(&self.opening.target().address, Box::new(wanted));
    }
}

impl<O: Reopen> Seek<O::Handle> for NodeSeek<O> {
    fn begin(&mut self, lost: Position, reason: &ReceiveError) {
        let (target, reason) = (self.opening.target().to_string(), ErrorChain(reason).to_string());
        self.node.core().tell(&Event::Lost { target, reason });
        self.seek(self.opening.resuming(Some(lost)), Some(lost.epoch));
    }

    fn poll(&mut self) -> Option<Result<O::Handle, SubscriberError>> {
        self.slot.lock().take()
    }

    fn target(&self) -> &Target {
        self.opening.target()
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.node.core().clock
    }
}

impl<O: Reopen> Sought for Wanted<O> {
    fn attempt(&mut self) -> Attempt {
        let (Some(inner), Some(slot)) = (self.node.upgrade(), self.slot.upgrade()) else {
            return Attempt::Done;
        };
        let node = Node { inner };
        match self.opening.open(&node) {
            Ok(subscriber) => {
                let (target, epoch) = (self.opening.target().to_string(), subscriber.position().epoch);
                node.core().tell(&match self.lost {
                    Some(lost) if lost != epoch => Event::Restarted { target, epoch },
                    _ => Event::Resumed { target, epoch },
                });
                *slot.lock() = Some(Ok(subscriber));
                Attempt::Done
            }
            Err(error) if error.is_transient() => match error {
                SubscriberError::Unreachable { .. } | SubscriberError::Session { .. } => Attempt::Unreached,
                _ => Attempt::Refused,
            },
            Err(error) => {
                if !std::mem::replace(&mut self.has_reported, true) {
                    *slot.lock() = Some(Err(error));
                }
                Attempt::Refused
            }
        }
    }
}
