use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::admission::refusal;
use crate::control::{ControlError, RefuseReason};
use crate::fabric::{Address, AddressError, FabricError, KeyedWaker, Waker};
use crate::id::{NameError, TopicName};
use crate::limits;

/// Why a subscriber could not be dialled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The text is not a topic's name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The node does not publish the topic.
    #[error("this node does not publish {topic}: open its publisher first, and keep it")]
    NoSuchTopic {
        /// The topic.
        topic: TopicName,
    },
    /// The subscriber's node cannot be reached.
    #[error("cannot dial the subscriber of {topic}")]
    Unreachable {
        /// The topic.
        topic: TopicName,
        /// Why.
        #[source]
        source: FabricError,
    },
    /// The subscriber's node refused the session.
    #[error("the node at {address} refused {topic}: {reason}{}{text}", if text.is_empty() { "" } else { ": " })]
    Refused {
        /// The subscriber's node.
        address: Address,
        /// The topic.
        topic: TopicName,
        /// Why.
        reason: RefuseReason,
        /// The node's explanation; may be empty.
        text: String,
    },
    /// This node refused the subscriber: it does not fit the topic.
    #[error(
        "the subscriber at {address} does not fit {topic}: {reason}{}{text}",
        if text.is_empty() { "" } else { ": " }
    )]
    Unfit {
        /// The subscriber's node.
        address: Address,
        /// The topic.
        topic: TopicName,
        /// Why.
        reason: RefuseReason,
        /// The explanation; may be empty.
        text: String,
    },
    /// The subscriber's node has a listener for the topic, but did not accept the session in time.
    #[error("timed out: {address} has a listener for {topic}, but nothing called accept_timeout")]
    NotAccepted {
        /// The subscriber's node.
        address: Address,
        /// The topic.
        topic: TopicName,
    },
    /// The subscriber closed the session in good order before it attached.
    #[error("the subscriber at {address} left before it was attached to {topic}: its own error says why")]
    Left {
        /// The subscriber's node.
        address: Address,
        /// The topic.
        topic: TopicName,
    },
    /// The session with the subscriber's node failed.
    #[error("the session with the node at {address} failed")]
    Session {
        /// The subscriber's node.
        address: Address,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// The thread of this node has panicked and serves no sessions.
    #[error("cannot dial the subscriber of {topic}")]
    NodeFailed {
        /// The topic.
        topic: TopicName,
        /// Why.
        #[source]
        source: ControlError,
    },
    /// This node serves the maximum of sessions.
    #[error(
        "this node serves {max} sessions, which is the limit: open another node for more",
        max = limits::SESSIONS_MAX
    )]
    TooManySessions,
}

impl From<Infallible> for DialError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A dialled subscriber, until it is attached.
#[derive(Debug)]
pub(super) struct Invitation {
    address: Address,
    pub(super) topic: TopicName,
    progress: Mutex<Progress>,
    /// Wakes the thread that waits for the outcome.
    settled: Waker,
    /// Has the node's thread process its session.
    session: KeyedWaker,
    #[cfg(test)]
    witness: Mutex<Witness>,
}

/// An action of a test at the moment when an invitation is settled.
#[cfg(test)]
#[derive(Default)]
struct Witness(Option<Box<dyn FnOnce() + Send>>);

#[cfg(test)]
impl std::fmt::Debug for Witness {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Witness")
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// The connection is not established yet.
    is_connecting: bool,
    /// The subscriber's node has said hello.
    greeted: bool,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Open,
    Attached,
    Failed(DialError),
    /// The outcome was reported, or the dialling thread has given up.
    Over,
}

/// The session's end of an invitation. Dropping it without an outcome reports that the session is gone.
#[derive(Debug)]
pub(super) struct Pending(Arc<Invitation>);

impl Invitation {
    /// Invites the node at this address to this topic. `session` wakes the node's thread for it.
    pub(super) fn new(
        address: &Address,
        topic: TopicName,
        session: KeyedWaker,
    ) -> Result<Arc<Self>, DialError> {
        let settled = match Waker::new() {
            Ok(settled) => settled,
            Err(source) => return Err(DialError::Unreachable { topic, source }),
        };
        let address = address.clone();
        Ok(Arc::new(Self {
            address,
            topic,
            progress: Mutex::default(),
            settled,
            session,
            #[cfg(test)]
            witness: Mutex::default(),
        }))
    }

    /// Wakes the node's thread for its session.
    pub(super) fn wake(&self) {
        self.session.wake();
    }

    /// Readable when it is settled.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.settled.wait_handle()
    }

    /// How it ended, if it has. An invitation past its deadline has failed.
    pub(super) fn outcome(&self, in_time: bool) -> Option<Result<(), DialError>> {
        let mut progress = self.progress.lock();
        match std::mem::replace(&mut progress.stage, Stage::Over) {
            Stage::Attached => Some(Ok(())),
            Stage::Failed(error) => Some(Err(error)),
            Stage::Open if in_time => {
                progress.stage = Stage::Open;
                None
            }
            Stage::Open | Stage::Over => {
                let (address, topic) = (self.address.clone(), self.topic.clone());
                Some(Err(if progress.greeted {
                    DialError::NotAccepted { address, topic }
                } else if progress.is_connecting {
                    DialError::Unreachable { topic, source: FabricError::NoAnswer { address } }
                } else {
                    DialError::Session { address, source: ControlError::Deadline { awaited: "hello" } }
                }))
            }
        }
    }

    /// Settles an open invitation and returns whether it was open. `effect` happens before the outcome is visible.
    fn settle(&self, stage: Stage, effect: impl FnOnce()) -> bool {
        let mut progress = self.progress.lock();
        let is_open = matches!(progress.stage, Stage::Open);
        if is_open {
            effect();
            progress.stage = stage;
            self.settled.wake();
            #[cfg(test)]
            self.witness.lock().0.take().into_iter().for_each(|witness| witness());
        }
        is_open
    }

    /// Runs `witness` as soon as the outcome is visible.
    #[cfg(test)]
    pub(super) fn when_settled(&self, witness: impl FnOnce() + Send + 'static) {
        self.witness.lock().0 = Some(Box::new(witness));
    }
}

impl Pending {
    /// The end of the session in which this invitation is made.
    pub(super) fn new(invitation: &Arc<Invitation>) -> Self {
        Self(Arc::clone(invitation))
    }

    /// The key of its session.
    pub(super) fn key(&self) -> u64 {
        self.0.session.key()
    }

    /// The topic.
    pub(super) fn topic(&self) -> &TopicName {
        &self.0.topic
    }

    /// Whether the dialling thread no longer waits and the peer was not attached.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.0.progress.lock().stage, Stage::Over)
    }

    /// Whether the connection is still being established.
    pub(super) fn set_connecting(&self, is_connecting: bool) {
        self.0.progress.lock().is_connecting = is_connecting;
    }

    /// The peer has said hello.
    pub(super) fn greeted(&self) {
        self.0.progress.lock().greeted = true;
    }

    /// Attaches the peer to the topic. Returns the invitation, without attaching, if it has failed or the dialling thread has
    /// given up.
    pub(super) fn attached(self, attach: impl FnOnce()) -> Result<(), Self> {
        if self.0.settle(Stage::Attached, attach) { Ok(()) } else { Err(self) }
    }

    fn fail(&self, error: DialError) {
        self.0.settle(Stage::Failed(error), || {});
    }

    /// Fails it: this node refused the peer's request to attach, or its landing region.
    pub(super) fn unfit(&self, reason: RefuseReason, text: &str) {
        let (address, topic, text) = (self.0.address.clone(), self.0.topic.clone(), text.to_owned());
        self.fail(DialError::Unfit { address, topic, reason, text });
    }

    /// Fails it: the connection broke before the peer's hello. The peer was unreachable, unless it sent a malformed message.
    pub(super) fn broken(&self, error: FabricError) {
        match error {
            FabricError::MessageTooLong { len, .. } => self.closed(Some(&ControlError::TooLong { len })),
            FabricError::TooManyRegions => {
                self.closed(Some(&ControlError::Broken { why: error.to_string() }));
            }
            source => {
                if let Some(refused) = refusal(&source) {
                    return self.closed(Some(&refused));
                }
                let topic = self.0.topic.clone();
                self.fail(DialError::Unreachable { topic, source });
            }
        }
    }

    /// Fails it: this node serves too many sessions.
    pub(super) fn no_room(&self) {
        self.fail(DialError::TooManySessions);
    }

    /// The session ended: in good order, or with this error.
    pub(super) fn closed(&self, error: Option<&ControlError>) {
        let (address, topic) = (self.0.address.clone(), self.0.topic.clone());
        self.fail(match error.cloned() {
            None => DialError::Left { address, topic },
            Some(ControlError::Deadline { .. }) if self.0.progress.lock().is_connecting => {
                DialError::Unreachable { topic, source: FabricError::NoAnswer { address } }
            }
            Some(ControlError::Refused { reason, text }) => {
                DialError::Refused { address, topic, reason, text }
            }
            Some(source) => DialError::Session { address, source },
        });
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.closed(Some(&ControlError::Disconnected));
    }
}
