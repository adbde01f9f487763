//! Messages about the subscribers of a topic: how far each one is, and which one the publisher has let go.

use serde::{Deserialize, Serialize};

use super::attachment::AttachmentId;
use super::list::List;
use crate::id::{Delivery, NodeName, SlowPolicy, TopicName};
use crate::limits;

/// Requests the subscribers of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListSubscribers {
    /// The topic.
    pub(crate) topic: TopicName,
}

/// Answers [`ListSubscribers`]; `None` if the node has no such topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subscribers {
    /// The subscribers.
    pub(crate) found: Option<SubscriberPage>,
}

/// The subscribers of a topic, the slowest first: those that report their progress before the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriberPage {
    /// The newest sequence of the topic.
    pub(crate) newest: u64,
    /// How many subscribers the topic has.
    pub(crate) count: u32,
    /// Those described.
    pub(crate) entries: SubscriberEntries,
}

/// A subscriber, as the publisher's node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriberEntry {
    /// Its node.
    pub(crate) node: NodeName,
    /// Its process ID on its host.
    pub(crate) process: u32,
    /// How values reach it.
    pub(crate) delivery: Delivery,
    /// What it reports; `None` if it reports nothing.
    pub(crate) progress: Option<ProgressEntry>,
}

/// What a subscriber reports, as last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProgressEntry {
    /// Its policy.
    pub(crate) policy: SlowPolicy,
    /// Whether the publisher still waits for it, or disconnects it.
    pub(crate) is_gating: bool,
    /// The last sequence that it has received, reported lost, or skipped.
    pub(crate) last: u64,
    /// Values received.
    pub(crate) received: u64,
    /// Values lost.
    pub(crate) lost: u64,
    /// Reads repeated.
    pub(crate) retries: u64,
    /// Values refused.
    pub(crate) rejected: u64,
    /// For how long its node has not shown that it runs, nanoseconds.
    pub(crate) unseen_ns: u64,
}

/// Subscribers of a topic.
pub(crate) type SubscriberEntries = List<SubscriberEntry, { limits::SUBSCRIBERS_LISTED_MAX }>;

/// Reports to a subscriber that the publisher no longer takes it into account. Sent at most once for an attachment, and once more if it is
/// revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LetGo {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// Why.
    pub(crate) reason: LetGoReason,
    /// The topic's newest sequence.
    pub(crate) published: u64,
}

/// Why a subscriber was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LetGoReason {
    /// Its node has not shown for the lease that it runs. It stays attached, and may lose records.
    Unseen,
    /// The publisher was about to overwrite records that it has not read, and it asked to be disconnected then. The attachment is as if
    /// the topic had ended.
    Overtaken,
    /// The publisher's node has revoked its access. The same: the peer must not read any more.
    Revoked,
}
