//! What the two ends of a session say about notices: who wants them, where they can be heard, and who hears them.

use serde::{Deserialize, Serialize};

use super::attachment::AttachmentId;
use super::bytes::Bytes;
use crate::limits;

/// Asks to be told of what the topic publishes. Sent at most once for an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listen {
    /// Of which attachment.
    pub(crate) attachment: AttachmentId,
}

/// Answers that. With a wake word, its memory comes with the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notices {
    /// Of which attachment.
    pub(crate) attachment: AttachmentId,
    /// How the subscriber is told.
    pub(crate) by: NoticesBy,
}

/// How a subscriber is told of what a topic publishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NoticesBy {
    /// Not at all: it looks when it likes.
    Nothing,
    /// By a wake word in shared memory.
    WakeWord,
    /// By datagrams.
    Channel(NoticeChannel),
}

/// Where datagrams can be heard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NoticeChannel {
    /// The random number of the channel.
    pub(crate) channel: u64,
    /// The key of the topic's notices.
    pub(crate) key: [u8; 16],
    /// What the fabric has to know to join.
    pub(crate) ticket: Ticket,
}

/// Tells that the subscriber's process has joined the session's channel, and what it hears of it. Sent when it has joined, and
/// then, for as long as anything is heard, every [`NOTICE_HEARD_INTERVAL_NS`](limits::NOTICE_HEARD_INTERVAL_NS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// What the fabric has to know to reach it alone.
    pub(crate) return_ticket: Ticket,
    /// Whether what is sent to all arrives.
    pub(crate) is_multicast_heard: bool,
}

/// A fabric's own words for one end of a channel. A fabric never gives more.
pub(crate) type Ticket = Bytes<{ limits::CHANNEL_TICKET_LEN_MAX }>;
