//! The events of a node, typed. Log lines, counters, an inspector's list of errors and test assertions all derive from them.

use std::fmt::Debug;

use crate::id::{Delivery, Epoch, NodeName, TopicName};

/// An event on the control plane of a node. The data path emits none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session with a subscriber's node opened; either side may have dialled.
    SessionOpened {
        /// The peer's node.
        peer: NodeName,
        /// The peer's process.
        process: u32,
    },
    /// A peer was rejected, or sent a malformed message.
    PeerRejected {
        /// What was wrong.
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
    /// A subscriber's request to attach was refused, or the socket by which it asked to be woken.
    Refused {
        /// The subscriber's node.
        peer: NodeName,
        /// The requested topic, as the peer wrote it.
        topic: String,
        /// Why.
        reason: String,
    },
    /// A subscriber asked for notices, but this process lacks the resources, so that it polls. Each repository counts such
    /// subscribers (`without notices`).
    NoticesUnavailable {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
        /// The missing resource.
        reason: String,
    },
    /// A subscriber detached, with its final counts. All counts are 0 for a pull subscriber over RDMA that had not received the
    /// end 7.5 seconds after the end of its topic: its node detached for it.
    Detached {
        /// The subscriber's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
        /// Values received intact.
        received: u64,
        /// Values replaced before it read them.
        conflated: u64,
        /// Reads it repeated.
        torn_retries: u64,
        /// Values it rejected.
        rejected: u64,
        /// Records overwritten before it read them, and values unreadable before the end.
        lost: u64,
    },
    /// A session ended.
    SessionClosed {
        /// The peer's node.
        peer: NodeName,
        /// Whether the peer ended the session; a process that died did not.
        orderly: bool,
    },
    /// The connection of a persistent subscription broke, and was made again at once: its publisher is the same, and what it published
    /// meanwhile is received.
    Reconnected {
        /// The topic's address.
        target: String,
        /// Why the connection ended.
        reason: String,
    },
    /// A persistent subscription was lost. The node seeks its publisher.
    Lost {
        /// The topic's address.
        target: String,
        /// Why.
        reason: String,
    },
    /// A persistent subscription continues, with a publisher of the same epoch, or began with the first one found. No [`Self::Lost`] comes
    /// before it if one of several lines has left its publisher itself, to receive an epoch that comes back from the beginning.
    Resumed {
        /// The topic's address.
        target: String,
        /// The epoch.
        epoch: Epoch,
    },
    /// A persistent subscription was found again, with a publisher of another epoch.
    Restarted {
        /// The topic's address.
        target: String,
        /// The new epoch.
        epoch: Epoch,
    },
    /// The node of a publisher hangs: it has not shown for a second that it is alive, though its host answers. Its subscribers stay
    /// attached, and can still read what it published.
    Hung {
        /// The publisher's node.
        peer: NodeName,
        /// The publisher's process.
        process: u32,
    },
    /// The node of a publisher that was hung runs again. A session that ends while it hangs has no such event.
    Recovered {
        /// The publisher's node.
        peer: NodeName,
        /// The publisher's process.
        process: u32,
    },
    /// The host's real-time clock was set by a second or more while the node publishes. Its time stamps follow: at once if the clock was
    /// set forward. If it was set back, they advance 1 % slower until it has caught up, so that they never go back: 100 seconds for each
    /// second. To follow at once, open the node again. Ages and timeouts are not affected.
    ClockSet {
        /// How far the clock was ahead of the node's time stamps, nanoseconds; negative if it was set back.
        ahead_ns: i64,
    },
    /// A publisher has let a subscriber of this node go, for which it had waited: this process had shown no sign of life for the lease.
    /// The subscriber stays attached, and may lose records.
    LetGo {
        /// The publisher's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
    },
    /// A publisher has disconnected a subscriber of this node that had asked for it: it was about to lose records.
    Overtaken {
        /// The publisher's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
    },
    /// The memory of a publisher contradicts values that a subscriber of this node had received with notices. A program that may read the
    /// topic has forged them, or they were damaged on the wire. The subscriber takes no more values from notices.
    Contradicted {
        /// The publisher's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
    },
    /// A publisher's node has revoked the access of a subscriber of this node to this topic.
    Revoked {
        /// The publisher's node.
        peer: NodeName,
        /// The topic.
        topic: TopicName,
    },
    /// This node has let a subscriber go, for which a publisher had waited: its process has shown no sign of life for the lease. The
    /// subscriber stays attached, and may lose records.
    SubscriberLetGo {
        /// The subscriber's node.
        peer: NodeName,
        /// The subscriber's process.
        process: u32,
        /// The topic.
        topic: TopicName,
    },
    /// This node disconnects a subscriber that had asked for it: it was about to lose records.
    SubscriberOvertaken {
        /// The subscriber's node.
        peer: NodeName,
        /// The subscriber's process.
        process: u32,
        /// The topic.
        topic: TopicName,
    },
    /// This node has revoked the access of a subscriber, because the program requested it or the keyring no longer permits it.
    SubscriberRevoked {
        /// The subscriber's node.
        peer: NodeName,
        /// The subscriber's process.
        process: u32,
        /// The topic.
        topic: TopicName,
    },
    /// The RDMA device at whose address this node listens was removed: its sessions over the device have ended, and no peer reaches it
    /// there. It serves its own host, and tries every two seconds whether the device is back. A node that listens at `0.0.0.0` goes on
    /// with its other devices, and has no such event.
    NotListening {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// The RDMA device at whose address this node listens is back, after [`Self::NotListening`]: peers reach it again.
    ListensAgain {
        /// The address.
        address: String,
    },
    /// The node's thread has panicked: the node serves nothing any more. Publishing fails from then on, and this node's
    /// subscriptions are gone.
    NodeFailed {
        /// The message of the panic.
        reason: String,
    },
    /// Something failed, and the node continues.
    Trouble {
        /// What failed, and how.
        what: String,
    },
}

/// Receives a node's events, on the node's thread, or on a thread that opens, seeks or receives. Must not block. A panic in it is caught
/// and logged, and the event is lost.
pub trait EventSink: Debug + Send + Sync {
    /// Receives one event.
    fn event(&self, event: &Event);
}

impl Event {
    /// Writes it as a `tracing` record with the target `fabricast`, with a level by its kind, as a node does that has no other sink. Of
    /// each kind that its peers can cause, the node writes up to ten events a second; where they concern one of its subscriptions, ten of
    /// each subscription, and ten of each trouble. How many it has left out it writes with its next event of any kind, a second later or
    /// more.
    ///
    /// ```
    /// use fabricast::{Event, EventSink};
    ///
    /// /// Logs every event but those of peers that were turned away.
    /// #[derive(Debug)]
    /// struct Log;
    ///
    /// impl EventSink for Log {
    ///     fn event(&self, event: &Event) {
    ///         if !matches!(event, Event::PeerRejected { .. }) {
    ///             event.log();
    ///         }
    ///     }
    /// }
    /// ```
    pub fn log(&self) {
        let event = self;
        match self {
            Self::PeerRejected { .. }
            | Self::Refused { .. }
            | Self::Hung { .. }
            | Self::NoticesUnavailable { .. }
            | Self::ClockSet { .. }
            | Self::LetGo { .. }
            | Self::Overtaken { .. }
            | Self::SubscriberLetGo { .. }
            | Self::SubscriberOvertaken { .. }
            | Self::Revoked { .. }
            | Self::Contradicted { .. }
            | Self::SubscriberRevoked { .. }
            | Self::NotListening { .. }
            | Self::Trouble { .. } => {
                tracing::warn!(target: "fabricast", ?event);
            }
            Self::NodeFailed { .. } => tracing::error!(target: "fabricast", ?event),
            Self::SessionClosed { orderly: false, .. }
            | Self::Reconnected { .. }
            | Self::Lost { .. }
            | Self::Recovered { .. }
            | Self::ListensAgain { .. }
            | Self::Resumed { .. }
            | Self::Restarted { .. } => tracing::info!(target: "fabricast", ?event),
            _ => tracing::debug!(target: "fabricast", ?event),
        }
    }
}
