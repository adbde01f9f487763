//! What happens in a node, as typed events. Log lines, counters, the distinct-error list of an inspector and
//! the assertions of tests are all subscribers of this one list.

use std::fmt::Debug;

use crate::id::{Delivery, NodeName, TopicName};

/// Something that happened on the control plane of a node. The data path emits none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A subscriber's node said hello: it dialled, or this node dialled it.
    SessionOpened {
        /// The peer's node.
        peer: NodeName,
        /// The peer's process.
        process: u32,
    },
    /// A peer was sent away, or sent something that is no message of this protocol.
    PeerRejected {
        /// What was wrong with it.
        reason: String,
    },
    /// A subscriber attached to a topic.
    Attached {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
        /// How its values travel.
        delivery: Delivery,
    },
    /// A subscriber's request to attach was refused.
    Refused {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic that was asked for, as it was written.
        topic: String,
        /// Why.
        reason: String,
    },
    /// A subscriber asked for notices and gets none, because this process lacks what that takes: it polls. Each repository counts
    /// them (`without notices`).
    NoticesUnavailable {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
        /// What is lacking.
        reason: String,
    },
    /// A subscriber detached, with what it counted. All counts are 0 for one that pulled over RDMA and had not received the end
    /// 7.5 seconds after the end of its topic: its node detached for it.
    Detached {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
        /// Values it received whole.
        received: u64,
        /// Values that were replaced before it read them.
        conflated: u64,
        /// Reads that it had to repeat.
        torn_retries: u64,
        /// Values it did not accept.
        rejected: u64,
        /// Records that were overwritten before it read them, and values that it could not read before the end.
        lost: u64,
    },
    /// A session ended.
    SessionClosed {
        /// The peer's node.
        peer: NodeName,
        /// Whether the peer said goodbye; a process that died did not.
        orderly: bool,
    },
    /// The node's thread has panicked and ended: the node serves nothing any more. Publishing fails from then on, and what
    /// this node subscribes to is gone.
    NodeFailed {
        /// What the panic said.
        reason: String,
    },
    /// Something failed, and the node goes on.
    Trouble {
        /// What failed, and how.
        what: String,
    },
}

/// Receives a node's events, on the node's thread or on a thread that opens a subscriber. Must not block. A panic in it is caught
/// and logged, and costs the event.
pub trait EventSink: Debug + Send + Sync {
    /// Takes one event.
    fn event(&self, event: &Event);
}

/// Writes events as `tracing` records: the target is `fabricast`, the level follows from the event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TracingSink;

impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        match event {
            Event::PeerRejected { .. }
            | Event::Refused { .. }
            | Event::NoticesUnavailable { .. }
            | Event::Trouble { .. } => {
                tracing::warn!(target: "fabricast", ?event);
            }
            Event::NodeFailed { .. } => tracing::error!(target: "fabricast", ?event),
            Event::SessionClosed { orderly: false, .. } => tracing::info!(target: "fabricast", ?event),
            _ => tracing::debug!(target: "fabricast", ?event),
        }
    }
}
