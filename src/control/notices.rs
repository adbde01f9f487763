//! What the two ends of a session say about notices: who wants them, where they can be heard, and who hears them.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::attachment::AttachmentId;
use crate::limits;

/// Asks to be told of what the topic publishes. Sent at most once for an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listen {
    /// Of which attachment.
    pub(crate) attachment: AttachmentId,
}

/// Answers that. With a bell, its memory comes with the message.
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
    /// By a bell in shared memory.
    Bell,
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

/// A fabric's own words for one end of a channel, at most [`CHANNEL_TICKET_LEN_MAX`](limits::CHANNEL_TICKET_LEN_MAX) bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticket(Vec<u8>);

impl Ticket {
    /// The ticket of these bytes, cut to what it may have: a fabric never gives more.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (bytes, _) = bytes.split_at(bytes.len().min(limits::CHANNEL_TICKET_LEN_MAX));
        Self(bytes.to_vec())
    }

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for Ticket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Ticket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(TicketVisitor)
    }
}

/// Reads a ticket in one piece.
struct TicketVisitor;

impl Visitor<'_> for TicketVisitor {
    type Value = Ticket;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {} bytes of ticket", limits::CHANNEL_TICKET_LEN_MAX)
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Ticket, E> {
        if bytes.len() > limits::CHANNEL_TICKET_LEN_MAX {
            return Err(E::invalid_length(bytes.len(), &self));
        }
        Ok(Ticket(bytes))
    }
}
