//! Notices: datagrams that announce what topics have reached.
//!
//! A node's [`NoticeSender`] sends them on the node's channel (see [`crate::layout::notice`] for the bytes). A [`NoticeReceiver`]
//! receives the channel of one peer for all subscriptions of its process, and puts verified entries into their [`Mailbox`]es.
//!
//! A lost notice only costs time: the next one, the next heartbeat or the subscriber's timer makes up for it. A forged one costs
//! a read in vain.

mod mailbox;
#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "a model fails by a panic, as a test does")]
pub mod models;
mod receiver;
mod sender;
mod wake_word;

#[cfg(test)]
mod tests;

pub(crate) use crate::layout::notice::{Inline, Notice, NoticeKey};
pub(crate) use mailbox::Mailbox;
pub use receiver::NoticeCounts;
pub(crate) use receiver::{NoticeKeys, NoticeReceiver};
pub(crate) use sender::{NoticeSender, RegisterError};
pub(crate) use wake_word::{WAKE_SLOTS, WAKE_WORD_LEN, WakeWord};

use crate::fabric::FabricError;
use crate::random;

/// Draws a random key for the notices of one incarnation of a topic, or the secret of one session.
pub(crate) fn draw_key() -> Result<NoticeKey, FabricError> {
    let draw = || random::number().map_err(FabricError::no_random);
    let words = [draw()?, draw()?];
    Ok(NoticeKey::new(bytemuck::cast(words)))
}
