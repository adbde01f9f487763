//! The control channel: what a publisher's node and a subscriber exchange before, beside and after
//! the data. Messages, their encoding, and the two ends of a session as state machines. Nothing here does I/O,
//! starts a thread or reads a clock.
//!
//! The transport delivers whole messages, reliably and in order (a sequenced-packet socket, or SEND and RECV
//! on a reliable connection). Messages may carry registered regions: the state machines only
//! know how many arrived, and whose region to send.
//!
//! ```text
//! subscriber (ClientSession)                publisher (ServerSession)
//!   Hello ------------------------------->
//!         <------------------------------- Hello                    or Refuse, and the end
//!   Prove -------------------------------->                         if the nodes have keys
//!         <------------------------------- Prove
//!   ListTopics -------------------------->
//!         <------------------------------- Topics                   a page; ask again while there is more
//!   ListSubscribers --------------------->
//!         <------------------------------- Subscribers
//!   Attach ------------------------------>                          + 1 region if it reports its progress
//!         <------------------------------- Granted                  + 1 region for pull; or Refused
//!   Expose + 1 region ------------------->                          push only
//!         <------------------------------- Exposed                  or Refused; may expose another region
//!   Listen ------------------------------>                          to receive notices
//!         <------------------------------- Notices                  + 1 region for a wake word
//!   WakeBy + 1 socket ------------------->                          to wait for many topics at once
//!         <------------------------------- WakeSlot
//!   Heard ------------------------------->                          with a channel: periodically
//!         <------------------------------- LetGo                    the publisher does not wait for it any more
//!         <------------------------------- TopicEnded               the publisher of the topic was dropped
//!   Detach ------------------------------>                          with final counts; also after TopicEnded
//!         <------------------------------- Detached
//!   End --------------------------------->                          either side begins
//!         <------------------------------- End
//! ```
//!
//! A publisher's node that dials says so in its hello, and sends `Invite` after hellos and proofs. If the dialled node has a listener
//! for the topic, it becomes the subscriber; otherwise it refuses.
//!
//! Guarantees:
//!
//! - Every length is checked against [`limits`](crate::limits) before anything is allocated; a message that is truncated,
//!   damaged, of another version or out of turn is a typed [`ControlError`], never another message.
//! - A peer that breaks the rules gets the reason in one [`Refuse`](message::Refuse), and the session is over. The
//!   encoding of `Refuse` is the same in every version, so that an old and a new program can report to each other why
//!   they disconnect.
//! - A silent peer costs a deadline. An idle session has none.
//! - In any state, a peer can make a session hold at most [`ATTACHMENTS_PER_SESSION_MAX`] attachments and a
//!   bounded number of pending actions.
//!
//! [`ATTACHMENTS_PER_SESSION_MAX`]: crate::limits::ATTACHMENTS_PER_SESSION_MAX

mod attachment;
mod bytes;
mod client;
mod codec;
mod error;
mod frame;
mod handshake;
mod list;
mod message;
mod notices;
mod peer;
mod progress;
mod proof;
mod server;
mod text;

pub use error::{ControlError, RefuseReason, Unproven};
pub use peer::Peer;

pub(crate) use client::{AttachOptions, ClientEvent, ClientSession};
pub(crate) use codec::RegionKind;
#[cfg(any(test, fuzzing))]
pub(crate) use codec::{decode, encode};
#[cfg(any(test, fuzzing))]
pub(crate) use frame::Frame;
pub(crate) use handshake::{Credentials, Greeting, Invited};
pub(crate) use message::{
    Attach, AttachmentId, Detach, Detached, EndReason, EndSummary, Grant, Identity, SchemaJson,
    SubscriberCounts, TopicEnded, TopicEntry,
};
#[cfg(any(test, fuzzing))]
pub(crate) use message::{Message, VERSION};
pub(crate) use notices::{Heard, NoticeChannel, Notices, NoticesBy, TicketBytes, WakeBy, WakeSlot};
pub(crate) use progress::{
    LetGo, LetGoReason, ProgressEntry, SubscriberEntries, SubscriberEntry, SubscriberPage,
};
pub(crate) use server::{ServerAction, ServerSession};
pub(crate) use text::Text;

#[cfg(test)]
pub(crate) use message::Hello;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::sample;
