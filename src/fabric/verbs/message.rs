//! Control messages over the SENDs of a queue pair, or over TCP where those may be lost.
//!
//! A message travels as frames, each of them one SEND of at most [`limits::verbs::FRAME_LEN_MAX`] bytes. All numbers are in
//! network byte order:
//!
//! ```text
//! 00  u16  credits: receives that the sender of this frame has posted again
//! 02  u8   bit 0: the frame holds a fragment; bit 1: a region comes with its message; bit 2: that may be written;
//! 03  u8   version
//! 04  u32  length of the message, bytes
//! 08  u32  offset of the fragment in it, bytes
//! 0c  u64  the region's address, as its device sees it    } with bit 1 only,
//! 14  u32  its remote key                                 } and only in the
//! 18  u64  its length, bytes                              } first fragment
//! ..  the fragment
//! ```
//!
//! Each end has receives posted for [`limits::verbs::RECEIVES`] fragments of its peer, which may have that many under way: a
//! fragment takes a credit, and the credit is given back when the fragment was taken and the receive is posted again.
//! Credits travel with other frames or, when half of them are owed, in a frame of their own. Frames without a fragment take
//! no credit: [`limits::verbs::SIGNAL_RECEIVES`] further receives are posted for them. Of those that only give back credits a
//! third is never under way, because each of them gives back half of all credits, and the peer must have used them all
//! before.

#![expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]

use std::collections::VecDeque;

use crate::fabric::{Exposure, Sent};
use crate::limits;
use crate::memory::WORD;

/// The version of the frames.
const VERSION: u8 = 1;
/// Bytes before the fragment, or the region.
const HEADER_LEN: usize = 12;
/// Bytes of a region.
const DESCRIPTOR_LEN: usize = 20;
/// Set in frames that hold a fragment.
const FRAGMENT: u8 = 1;
/// Set in the first fragment of a message that a region comes with.
const REGION: u8 = 2;
/// Set when that region may be written, and not read.
const WRITABLE: u8 = 4;
/// Credits that are owed before a frame is sent for them alone.
const OWED_MAX: u16 = limits::verbs::RECEIVES / 2;
/// Bytes of queued messages from which on no further one is taken.
const QUEUED_LEN_MAX: usize = 2 * limits::CONTROL_MESSAGE_LEN_MAX;

const _: () = assert!(limits::verbs::FRAME_LEN_MAX > HEADER_LEN + DESCRIPTOR_LEN);
const _: () = assert!(limits::verbs::FRAME_LEN_MAX.is_multiple_of(WORD));
const _: () = assert!(limits::CONTROL_MESSAGE_LEN_MAX <= u32::MAX as usize);

/// What a peer has to know of a region to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// How it may be used.
    pub(super) exposure: Exposure,
    /// The address of its first byte, as its device sees it.
    pub(super) address: u64,
    /// Its remote key.
    pub(super) key: u32,
    /// Bytes.
    pub(super) len: u64,
}

/// What is wrong with a frame that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// What a peer sends at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// Receives that it has posted again.
    pub(super) credits: u16,
    /// A piece of a message.
    pub(super) fragment: Option<Fragment<'a>>,
}

/// A message that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The region that came with it.
    pub(super) region: Option<Descriptor>,
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment<'a> {
    /// Bytes of the whole message.
    message_len: u32,
    /// Where in it the piece belongs.
    offset: u32,
    /// The region that comes with the message.
    pub(super) region: Option<Descriptor>,
    /// The piece.
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads a frame.
    pub(super) fn parse(mut bytes: &'a [u8]) -> Result<Self, Malformed> {
        let rest = &mut bytes;
        let credits = u16::from_be_bytes(take(rest)?);
        let [flags, version] = take(rest)?;
        if version != VERSION {
            return Err(Malformed("it is of another version"));
        }
        let message_len = u32::from_be_bytes(take(rest)?);
        let offset = u32::from_be_bytes(take(rest)?);
        if flags == 0 {
            let is_empty = rest.is_empty() && message_len == 0 && offset == 0;
            return match (is_empty, credits) {
                (false, _) => Err(Malformed("it holds something unannounced")),
                (true, 0) => Err(Malformed("it says nothing")),
                (true, _) => Ok(Self { credits, fragment: None }),
            };
        }
        let region = match flags {
            FRAGMENT => None,
            _ if flags & !WRITABLE == FRAGMENT | REGION => Some(Descriptor::parse(flags, rest)?),
            _ => return Err(Malformed("its flags are unknown")),
        };
        if region.is_some() && offset != 0 {
            return Err(Malformed("a region comes in the middle of a message"));
        }
        if message_len as usize > limits::CONTROL_MESSAGE_LEN_MAX {
            return Err(Malformed("its message is too long"));
        }
        let bytes = *rest;
        let end = u64::from(offset) + bytes.len() as u64;
        if bytes.is_empty() || end > u64::from(message_len) {
            return Err(Malformed("its fragment does not lie in its message"));
        }
        let fragment = Some(Fragment { message_len, offset, region, bytes });
        Ok(Self { credits, fragment })
    }

    /// Writes the frame, and nothing else, into a buffer.
    fn emit(&self, into: &mut Vec<u8>) {
        let (mut flags, mut message_len, mut offset) = (0, 0, 0);
        if let Some(fragment) = &self.fragment {
            flags |= FRAGMENT | fragment.region.as_ref().map_or(0, Descriptor::flags);
            (message_len, offset) = (fragment.message_len, fragment.offset);
        }
        into.clear();
        into.extend_from_slice(&self.credits.to_be_bytes());
        into.extend_from_slice(&[flags, VERSION]);
        into.extend_from_slice(&message_len.to_be_bytes());
        into.extend_from_slice(&offset.to_be_bytes());
        if let Some(fragment) = &self.fragment {
            if let Some(Descriptor { address, key, len, .. }) = &fragment.region {
                into.extend_from_slice(&address.to_be_bytes());
                into.extend_from_slice(&key.to_be_bytes());
                into.extend_from_slice(&len.to_be_bytes());
            }
            into.extend_from_slice(fragment.bytes);
        }
    }
}

impl Descriptor {
    fn flags(&self) -> u8 {
        match self.exposure {
            Exposure::Read => REGION,
            Exposure::Write => REGION | WRITABLE,
        }
    }

    fn parse(flags: u8, bytes: &mut &[u8]) -> Result<Self, Malformed> {
        let address = u64::from_be_bytes(take(bytes)?);
        let key = u32::from_be_bytes(take(bytes)?);
        let len = u64::from_be_bytes(take(bytes)?);
        let is_len = (WORD as u64..=limits::REGION_LEN_MAX as u64).contains(&len);
        if !is_len || address.checked_add(len).is_none() {
            return Err(Malformed("its region is not one"));
        }
        let exposure = if flags & WRITABLE == 0 { Exposure::Read } else { Exposure::Write };
        Ok(Self { exposure, address, key, len })
    }
}

/// Takes the first bytes off.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Malformed("it ends too early"))?;
    *bytes = rest;
    Ok(*first)
}

/// What is to be sent to a peer.
#[derive(Debug)]
pub(super) struct Outbound {
    queue: VecDeque<Queued>,
    /// Bytes in the queue that were not sent yet.
    queued_len: usize,
    /// Fragments that the peer has room for.
    credits: u16,
    /// Fragments of the peer that were taken and that it was not told of yet.
    owed: u16,
}

/// A message that was not sent, or not all of it.
#[derive(Debug)]
struct Queued {
    bytes: Box<[u8]>,
    region: Option<Descriptor>,
    sent_len: usize,
}

impl Outbound {
    /// What is to be sent to a new peer: nothing.
    pub(super) fn new() -> Self {
        Self { queue: VecDeque::new(), queued_len: 0, credits: limits::verbs::RECEIVES, owed: 0 }
    }

    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a frame could be sent now.
    pub(super) fn has_frame(&self) -> bool {
        self.has_signal() || (self.credits > 0 && !self.queue.is_empty())
    }

    /// Whether a frame without a fragment is due.
    fn has_signal(&self) -> bool {
        self.owed >= OWED_MAX
    }

    /// Whether a further message is taken.
    pub(super) fn has_room(&self) -> bool {
        self.queued_len < QUEUED_LEN_MAX && self.queue.len() < limits::OUTBOUND_MESSAGES_MAX
    }

    /// Takes a message, if there is room.
    pub(super) fn push(&mut self, bytes: &[u8], region: Option<Descriptor>) -> Sent {
        if !self.has_room() {
            return Sent::Full;
        }
        self.queued_len += bytes.len();
        self.queue.push_back(Queued { bytes: bytes.into(), region, sent_len: 0 });
        Sent::Done
    }

    /// Writes the next frame to be sent into a buffer; `false` when there is none, or the peer has no room.
    pub(super) fn next(&mut self, into: &mut Vec<u8>) -> bool {
        let Some(first) = self.queue.front_mut().filter(|_| self.credits > 0) else {
            let is_due = self.has_signal();
            if is_due {
                Frame { credits: std::mem::take(&mut self.owed), fragment: None }.emit(into);
            }
            return is_due;
        };
        let region = first.region.take();
        let room =
            limits::verbs::FRAME_LEN_MAX - HEADER_LEN - if region.is_some() { DESCRIPTOR_LEN } else { 0 };
        let (_, rest) = first.bytes.split_at_checked(first.sent_len).unwrap_or_default();
        let (bytes, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
        let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let (message_len, offset) = (number(first.bytes.len()), number(first.sent_len));
        let fragment = Some(Fragment { message_len, offset, region, bytes });
        Frame { credits: std::mem::take(&mut self.owed), fragment }.emit(into);
        self.credits -= 1;
        self.queued_len -= bytes.len();
        first.sent_len += bytes.len();
        if later.is_empty() {
            self.queue.pop_front();
        }
        true
    }

    /// Adds the credits that a frame of the peer gives back.
    pub(super) fn credit(&mut self, credits: u16) -> Result<(), Malformed> {
        let sum = self.credits.saturating_add(credits);
        if sum > limits::verbs::RECEIVES {
            return Err(Malformed("it gives back more credits than it was due"));
        }
        self.credits = sum;
        Ok(())
    }

    /// Takes note that a fragment of the peer was taken, and the receive posted again.
    pub(super) fn owe(&mut self) {
        self.owed += 1;
    }
}

/// What a peer sends: one message at a time, in order.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    bytes: Vec<u8>,
    message_len: usize,
    region: Option<Descriptor>,
}

impl Inbound {
    /// Takes the next fragment. The message, when that was the last one.
    pub(super) fn take(&mut self, fragment: &Fragment<'_>) -> Result<Option<Message>, Malformed> {
        if self.bytes.is_empty() {
            self.message_len = fragment.message_len as usize;
            self.region = fragment.region;
        }
        let goes_on = fragment.offset as usize == self.bytes.len();
        if !goes_on || fragment.message_len as usize != self.message_len {
            return Err(Malformed("its fragment does not follow the one before it"));
        }
        self.bytes.extend_from_slice(fragment.bytes);
        let is_whole = self.bytes.len() == self.message_len;
        Ok(is_whole.then(|| Message { bytes: std::mem::take(&mut self.bytes), region: self.region.take() }))
    }
}

#[cfg(test)]
mod tests;
