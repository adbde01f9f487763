//! The control channel: what a publisher's node and a subscriber say to each other before, beside and after
//! the data. Messages, their bytes, and the two ends of a session as state machines. Nothing here does I/O,
//! starts a thread or reads a clock.
//!
//! The transport delivers whole messages, reliably and in order (a sequenced-packet socket, or SEND and RECV
//! on a reliable connection). Registered regions may travel beside a message's bytes: the state machines only
//! know how many came, and say which attachment's region goes out.
//!
//! ```text
//! subscriber (ClientSession)                publisher (ServerSession)
//!   Hello ------------------------------->
//!         <------------------------------- Hello                    or Refuse, and the end
//!   ListTopics -------------------------->
//!         <------------------------------- Topics                   a page; ask again while there is more
//!   Attach ------------------------------>
//!         <------------------------------- Granted                  + 1 region for pull; or Refused
//!   Lend + 1 region --------------------->                          push only
//!         <------------------------------- Lent                     or Refused; may lend another region
//!   Listen ------------------------------>                          who wants notices
//!         <------------------------------- Notices                  + 1 region for a wake word
//!   Heard ------------------------------->                          with a channel: now and then
//!         <------------------------------- TopicEnded               the publisher of the topic was dropped
//!   Detach ------------------------------>                          with final counts; also after TopicEnded
//!         <------------------------------- Detached
//!   End --------------------------------->                          either side begins
//!         <------------------------------- End
//! ```
//!
//! A publisher's node that dials says `Invite` first. If somebody listens for the topic there, the listening side is
//! the subscriber from then on, and begins with its hello; if nobody does, it refuses.
//!
//! What holds:
//!
//! - Every length is bounded by [`limits`](crate::limits) before anything is allocated; a message that is cut,
//!   damaged, of another version or out of turn is a typed [`ControlError`], never another message.
//! - A peer that breaks the rules is told why in one [`Refuse`](message::Refuse), and the session is over. The
//!   layout of `Refuse` is the same in every version, so that an old and a new program can tell each other why
//!   they part.
//! - A silent peer costs a deadline. An idle session in good order has none.
//! - In every state, the peer can make a session hold at most [`ATTACHMENTS_PER_SESSION_MAX`] attachments and a
//!   bounded number of waiting actions.
//!
//! [`ATTACHMENTS_PER_SESSION_MAX`]: crate::limits::ATTACHMENTS_PER_SESSION_MAX

mod attachment;
mod bytes;
mod client;
mod codec;
mod error;
mod frame;
mod message;
mod notices;
mod server;
mod text;

pub use error::{ControlError, RefuseReason};

pub(crate) use client::{ClientEvent, ClientSession};
pub(crate) use message::{
    Attach, AttachmentId, EndReason, Farewell, Grant, Identity, Invite, SchemaJson, SubscriberCounts,
    TopicEntry,
};
pub(crate) use notices::{Heard, NoticeChannel, NoticesBy, Ticket};
pub(crate) use server::{ServerAction, ServerSession};
pub(crate) use text::Text;

#[cfg(test)]
mod tests;
