//! Notices: datagrams that tell subscribers when to look.
//!
//! A node's [`NoticeSender`] tells all who have joined its channel what its topics have reached (see
//! [`crate::layout::notice`] for the bytes). A [`NoticeReceiver`] listens to the channel of one peer on behalf of all
//! subscriptions of its process, and puts what it believes into their [`Mailbox`]es.
//!
//! Losing notices costs time, and nothing else: the next one, the next heartbeat or the subscriber's own timer finds what
//! was missed. A forged one costs a look in vain.

mod mailbox;
mod receiver;
mod sender;
mod wake_word;

#[cfg(test)]
mod tests;

use std::io;

pub(crate) use crate::layout::notice::{Inline, Notice, NoticeKey};
#[cfg(test)]
pub(crate) use mailbox::Hint;
pub(crate) use mailbox::{Mailbox, Piece};
pub use receiver::NoticeCounts;
pub(crate) use receiver::{NoticeReach, NoticeReceiver};
#[cfg(test)]
pub(crate) use sender::NoticeSenderCounts;
pub(crate) use sender::{NoticeSender, RegisterError};
pub(crate) use wake_word::{WAKE_WORD_LEN, WakeWord};

use crate::random;

/// A key by chance, for the notices of one incarnation of a topic.
pub(crate) fn draw_key() -> io::Result<NoticeKey> {
    let words = [random::number()?, random::number()?];
    Ok(NoticeKey::new(bytemuck::cast(words)))
}
