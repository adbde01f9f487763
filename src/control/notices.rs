//! Messages about notices: requesting them, where to receive them, and what is received.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::attachment::AttachmentId;
use super::bytes::Bytes;
use crate::limits;

/// Answers `Listen`. With a wake word, its memory comes with the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notices {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// How the subscriber is notified.
    pub(crate) by: NoticesBy,
}

/// How a subscriber is notified of new values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum NoticesBy {
    /// Not at all: it polls.
    Nothing,
    /// By a wake word in shared memory.
    WakeWord,
    /// By datagrams.
    Channel(NoticeChannel),
    /// By the writes to its landing region, over RDMA: their immediate number is that of the attachment.
    Immediate,
}

/// A channel of notice datagrams. Its `Debug` output hides the keys.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NoticeChannel {
    /// The random number of the channel.
    pub(crate) channel: u64,
    /// The key of the topic's notices by multicast, which all its subscribers have.
    pub(crate) key: [u8; 16],
    /// The key of the topic's notices by unicast in this session.
    pub(crate) own_key: [u8; 16],
    /// The fabric's ticket to join it.
    pub(crate) ticket: TicketBytes,
}

impl fmt::Debug for NoticeChannel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { channel, ticket, key: _, own_key: _ } = self;
        let mut fields = out.debug_struct("NoticeChannel");
        fields.field("channel", channel).field("ticket", ticket).finish_non_exhaustive()
    }
}

/// Reports that the subscriber's process has joined the session's channel, and what it receives. Sent on joining and
/// then, while anything is received, every [`NOTICE_HEARD_INTERVAL_NS`](limits::NOTICE_HEARD_INTERVAL_NS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    /// The fabric's ticket to reach it by unicast.
    pub(crate) return_ticket: TicketBytes,
    /// Whether multicast arrives.
    pub(crate) is_multicast_received: bool,
}

/// Asks to be woken through a wake socket as well: its sending end comes with the message. Only for an attachment with a wake word, and a
/// later request replaces an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WakeBy {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The number of the socket in the session: the same number is the same socket.
    pub(crate) socket: u32,
    /// What to send through it.
    pub(crate) token: u32,
}

/// Answers `WakeBy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WakeSlot {
    /// The attachment.
    pub(crate) attachment: AttachmentId,
    /// The slot of the wake word in which the subscriber says that it waits. `None` if the publisher cannot wake it so.
    pub(crate) slot: Option<u32>,
}

/// A fabric's opaque description of one end of a channel, never longer than this.
pub(crate) type TicketBytes = Bytes<{ limits::CHANNEL_TICKET_LEN_MAX }>;
