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
    Persistent, Position, ReceiveError, Seek, Subscribed, SubscriberError, SubscriberHandle,
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
pub(crate) trait Resumable {
    /// Returns the options to continue after a subscription, or to begin with a topic that did not exist before.
    fn resuming(self, lost: Option<Position>) -> Self;
}

impl Resumable for () {
    fn resuming(self, _: Option<Position>) -> Self {}
}

impl Resumable for LogStart {
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
    S: Subscribed + SubscriberHandle<Options: Resumable + Send> + Send + 'static,
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
        let target = place?;
        let mut seek = NodeSeek { node: node.clone(), target, terms, samples, slot: Arc::default() };
        match attach::<S>(node, &seek.target, terms, &seek.samples) {
            Ok(subscriber) => Ok(Persistent::new(Ok(subscriber), Box::new(seek))),
            Err(error) if error.is_transient() => {
                let options = if error.is_absence() { terms.options.resuming(None) } else { terms.options };
                seek.seek(Terms { options, ..terms }, None);
                Ok(Persistent::new(Err(error), Box::new(seek)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Seeks a subscription for its handle.
struct NodeSeek<S: Subscribed> {
    node: Node,
    target: Target,
    terms: Terms<S::Options>,
    samples: Vec<String>,
    slot: Arc<Slot<S>>,
}

/// What was found and not taken yet.
type Slot<S> = Mutex<Option<Result<S, SubscriberError>>>;

/// A subscription that is sought for a handle, unless that or the node is gone.
struct Wanted<S: Subscribed> {
    node: Weak<NodeInner>,
    target: Target,
    terms: Terms<S::Options>,
    samples: Vec<String>,
    /// The epoch of the one that was lost.
    lost: Option<Epoch>,
    slot: Weak<Slot<S>>,
    /// An error that another attempt may not mend was reported.
    has_reported: bool,
}

impl<S> NodeSeek<S>
where
    S: Subscribed + SubscriberHandle<Options: Resumable + Send> + Send + 'static,
{
    fn seek(&mut self, terms: Terms<S::Options>, lost: Option<Epoch>) {
        let (node, slot) = (Arc::downgrade(&self.node.inner), Arc::downgrade(&self.slot));
        let (target, samples) = (self.target.clone(), self.samples.clone());
        let wanted = Wanted { node, target, terms, samples, lost, slot, has_reported: false };
        self.node.inner.shared.seeking.seek(&self.target.address, Box::new(wanted));
    }
}

impl<S> Seek<S> for NodeSeek<S>
where
    S: Subscribed + SubscriberHandle<Options: Resumable + Send> + Send + 'static,
{
    fn begin(&mut self, lost: Position, reason: &ReceiveError) {
        let (target, reason) = (self.target.to_string(), ErrorChain(reason).to_string());
        self.node.core().tell(&Event::Lost { target, reason });
        let options = self.terms.options.resuming(Some(lost));
        self.seek(Terms { options, ..self.terms }, Some(lost.epoch));
    }

    fn poll(&mut self) -> Option<Result<S, SubscriberError>> {
        self.slot.lock().take()
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.node.core().clock
    }
}

impl<S> Sought for Wanted<S>
where
    S: Subscribed + SubscriberHandle<Options: Resumable + Send> + Send + 'static,
{
    fn attempt(&mut self) -> Attempt {
        let (Some(inner), Some(slot)) = (self.node.upgrade(), self.slot.upgrade()) else {
            return Attempt::Done;
        };
        let node = Node { inner };
        match attach::<S>(&node, &self.target, self.terms, &self.samples) {
            Ok(subscriber) => {
                let (target, epoch) = (self.target.to_string(), subscriber.position().epoch);
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

fn attach<S: Subscribed>(
    node: &Node,
    target: &Target,
    terms: Terms<S::Options>,
    samples: &[String],
) -> Result<S, SubscriberError> {
    let mut builder = SubscriberBuilder::<S>::new(node, target.clone());
    builder.terms = terms;
    samples.clone_into(&mut builder.samples);
    builder.open()
}
