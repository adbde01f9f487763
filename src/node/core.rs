use std::any::Any;
use std::error::Error;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::admission::Guard;
use super::revocation::Revocations;
use super::topics::{Reserved, Topics};
use super::wakers::PeerWakers;
use crate::chain::ErrorChain;
use crate::clock::{Clock, Timekeeper, namespace};
use crate::control::{ControlError, Credentials, Greeting, Identity};
use crate::event::{Event, EventSink};
use crate::fabric::{
    Address, Connection, Fabric, FabricError, Intent, KeyedWaker, PeerAddress, WakeQueue, Worker,
};
use crate::id::TopicName;
use crate::keyring::{Challenge, Keyring, Keys};
use crate::layout::clock::ClockLine;
use crate::publisher::{PublishedTopic, PublisherError};
use crate::sync::atomic::{AtomicU64, Ordering};

/// What the threads of a node share.
#[derive(Debug)]
pub(crate) struct NodeCore {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Gives its time stamps.
    pub(crate) time: Arc<Timekeeper>,
    events: Arc<dyn EventSink>,
    pub(crate) identity: Identity,
    /// What it demands of its peers, and proves to them.
    pub(super) guard: Guard,
    /// Where others find this node.
    pub(super) addresses: Vec<Address>,
    pub(super) queue: Arc<WakeQueue>,
    /// The next key for an object of its thread.
    key_next: AtomicU64,
    pub(super) topics: Topics,
    /// What its thread is to revoke.
    pub(super) revocations: Revocations,
    /// The wake sockets of its peers.
    pub(super) wakers: PeerWakers,
    /// Does for its thread what may take long.
    pub(super) worker: Worker,
    /// Why its thread has ended early.
    failure: OnceLock<String>,
}

/// The key of the queue that wakes the thread of a node.
pub(super) const QUEUE_KEY: u64 = 0;
/// The key of the first listener; those of the others follow.
pub(super) const LISTENER_KEY: u64 = 1;
/// The most listeners.
pub(super) const LISTENERS_MAX: u64 = 8;
/// The key of the look for changes of the keyring.
pub(super) const KEYRING_KEY: u64 = LISTENER_KEY + LISTENERS_MAX;

impl NodeCore {
    pub(super) fn new(
        fabric: Arc<dyn Fabric>,
        clock: Arc<dyn Clock>,
        events: Arc<dyn EventSink>,
        (identity, guard): (Identity, Guard),
        addresses: Vec<Address>,
    ) -> Result<Self, FabricError> {
        let queue = Arc::new(WakeQueue::new()?);
        let time = Arc::new(Timekeeper::new(Arc::clone(&clock)));
        Ok(Self {
            fabric,
            clock,
            time,
            events,
            identity,
            guard,
            addresses,
            queue,
            key_next: AtomicU64::new(KEYRING_KEY + 1),
            topics: Topics::default(),
            revocations: Revocations::default(),
            wakers: PeerWakers::affordable(),
            worker: Worker::default(),
            failure: OnceLock::new(),
        })
    }

    /// Dials the node at this address, and waits up to `timeout_ns` until it accepts. Returns the connection and the time left.
    pub(super) fn dial(
        &self,
        address: &Address,
        timeout_ns: u64,
    ) -> Result<(Box<dyn Connection>, u64), FabricError> {
        let began_ns = self.clock.monotonic_ns();
        let connection = self.fabric.dial(address, Intent::Read, Duration::from_nanos(timeout_ns))?;
        let elapsed_ns = self.clock.monotonic_ns().saturating_sub(began_ns);
        Ok((connection, timeout_ns.saturating_sub(elapsed_ns)))
    }

    /// How its time stamps follow from the clock.
    pub(super) fn clock_line(&self) -> ClockLine {
        ClockLine { namespace: namespace(), timeline: self.time.timeline() }
    }

    /// A new key for an object of its thread, larger than all before it.
    pub(super) fn next_key(&self) -> u64 {
        // Relaxed: the numbers only have to differ, and each thread draws its own in order.
        self.key_next.fetch_add(1, Ordering::Relaxed)
    }

    /// A waker of its thread with a new key.
    pub(super) fn keyed_waker(&self) -> KeyedWaker {
        self.queue.keyed(self.next_key())
    }

    /// Reports an event. If the sink panics, the event is lost.
    pub(super) fn tell(&self, event: &Event) {
        let told = catch_unwind(AssertUnwindSafe(|| self.events.event(event)));
        if let Err(panic) = told {
            let reason = panic_message(panic.as_ref());
            tracing::error!(target: "fabricast", ?event, reason, "the event sink panicked: the event is lost");
        }
    }

    /// Returns the result, or reports the error as an event.
    pub(super) fn ok_or_report<R>(&self, outcome: Result<R, impl Error>) -> Option<R> {
        outcome.map_err(|error| self.tell(&Event::Trouble { what: ErrorChain(&error).to_string() })).ok()
    }

    /// Records that its thread has panicked, and notifies its publishers. Returns the reason.
    pub(super) fn fail(&self, panic: &(dyn Any + Send)) -> &str {
        let reason = self.failure.get_or_init(|| panic_message(panic).to_owned());
        self.topics.orphan();
        reason
    }

    /// Fails once its thread has panicked.
    pub(super) fn check_runs(&self) -> Result<(), ControlError> {
        let Some(reason) = self.failure.get() else { return Ok(()) };
        let why = format!("the thread of this node has panicked ({reason}): open another node");
        Err(ControlError::Broken { why })
    }

    /// How this node introduces itself over this connection. Reads the keyring's file again if it has changed.
    pub(super) fn greeting(&self, connection: &dyn Connection) -> Result<Greeting, FabricError> {
        let credentials = match &self.guard.keyring {
            None => Credentials::default(),
            Some(keyring) => {
                let keys = self.keys(keyring);
                let challenge = Challenge::random().map_err(FabricError::no_random)?;
                Credentials::new(keys, challenge, is_vouched_for(connection))
            }
        };
        Ok(Greeting::new(self.identity.clone(), self.nonce()?, credentials))
    }

    /// The keys in force now. Reads the keyring's file again if it has changed.
    pub(super) fn keys(&self, keyring: &Keyring) -> Arc<Keys> {
        let (keys, error) = keyring.current();
        if let Some(error) = error {
            let what =
                format!("{}: the previous keys stay in force, and nobody is revoked", ErrorChain(&error));
            self.tell(&Event::Trouble { what });
        }
        keys
    }

    /// How this node introduces itself if it has no keys.
    #[cfg(test)]
    pub(super) fn greeting_without_keys(&self) -> Greeting {
        Greeting::new(self.identity.clone(), self.nonce().expect("random numbers"), Credentials::default())
    }

    /// A number that no peer can guess.
    pub(super) fn nonce(&self) -> Result<NonZeroU64, FabricError> {
        let number = crate::random::number().map_err(FabricError::no_random)?;
        Ok(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }

    /// Reserves a topic's name.
    pub(super) fn reserve(&self, name: &TopicName) -> Result<Reserved<'_>, PublisherError> {
        self.check_runs().map_err(|_| PublisherError::NodeFailed)?;
        let mut reserved = self.topics.reserve(name, self.keyed_waker())?;
        reserved.began = reserved.is_first();
        if reserved.began {
            self.time.restart();
        }
        Ok(reserved)
    }

    /// The topic of this name, if its publisher has not been dropped.
    pub(super) fn topic(&self, name: &TopicName) -> Option<Arc<PublishedTopic>> {
        self.topics.named(name)
    }
}

/// Whether the kernel shows that a peer on this host belongs to this user, or to root.
fn is_vouched_for(connection: &dyn Connection) -> bool {
    let own = rustix::process::geteuid().as_raw();
    matches!(connection.peer_address(), PeerAddress::Local { user, .. } if user == own || user == 0)
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given")
}
