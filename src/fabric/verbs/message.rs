//! Control messages over the SENDs of a queue pair, or over TCP where SENDs may be lost.
//!
//! A message travels as frames, each of them one SEND of at most [`limits::verbs::FRAME_LEN_MAX`] bytes. All numbers are in
//! network byte order:
//!
//! ```text
//! 00  u8   receives that the sender of this frame has posted again after wake-ups
//! 01  u8   credits: receives that it has posted again after fragments
//! 02  u8   bit 0: the frame holds a fragment; bit 1: its message carries a region; bit 2: the region is writable;
//! 03  u8   version
//! 04  u32  length of the message, bytes
//! 08  u32  offset of the fragment in it, bytes
//! 0c  u64  the region's address, as its device sees it    } with bit 1 only,
//! 14  u32  its remote key                                 } and only in the
//! 18  u64  its length, bytes                              } first fragment
//! ..  the fragment
//! ```
//!
//! Each end posts receives for [`limits::verbs::RECEIVES`] fragments of its peer, which may have that many in flight: a
//! fragment consumes a credit, which is returned once the fragment was taken and the receive is posted again.
//! Credits travel with other frames or, when half of them are owed, in a frame of their own. Frames without a fragment consume
//! no credit: [`limits::verbs::SIGNAL_RECEIVES`] further receives are posted for them.
//!
//! A one-sided write that wakes the peer takes a receive, too, which only returns its number: [`limits::verbs::WAKE_RECEIVES`] further
//! receives are posted for these, with credits of their own. A queue pair takes its receives in the order in which they were posted,
//! whatever arrives, so that all of them have buffers for frames.
//!
//! Of each kind of credit at most two frames that only return credits are in flight, because each of them returns half of all
//! credits of one kind, which the peer must have used before.

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
/// Set in the first fragment of a message that carries a region.
const REGION: u8 = 2;
/// Set if that region may be written, not read.
const WRITABLE: u8 = 4;
/// Owed credits that cause a frame of their own.
const OWED_MAX: u16 = limits::verbs::RECEIVES / 2;
/// The same, of wake-ups.
const OWED_WAKES_MAX: u16 = limits::verbs::WAKE_RECEIVES / 2;
/// Queued bytes at which further messages are refused.
const QUEUED_LEN_MAX: usize = 2 * limits::CONTROL_MESSAGE_LEN_MAX;

const _: () = assert!(limits::verbs::FRAME_LEN_MAX > HEADER_LEN + DESCRIPTOR_LEN);
const _: () = assert!(limits::verbs::FRAME_LEN_MAX.is_multiple_of(WORD));
const _: () = assert!(limits::CONTROL_MESSAGE_LEN_MAX <= u32::MAX as usize);

/// What a peer needs to access a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The permitted access.
    pub(super) exposure: Exposure,
    /// The address of its first byte, as its device sees it.
    pub(super) address: u64,
    /// Its remote key.
    pub(super) key: u32,
    /// Bytes.
    pub(super) len: u64,
}

/// Why a peer's frame is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The unit that a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// Receives that its sender has posted again after fragments.
    pub(super) credits: u16,
    /// Receives that it has posted again after wake-ups.
    pub(super) wakes: u16,
    /// A piece of a message.
    pub(super) fragment: Option<Fragment<'a>>,
}

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// Its region, if any.
    pub(super) region: Option<Descriptor>,
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment<'a> {
    /// Bytes of the whole message.
    message_len: u32,
    /// The offset of the piece.
    offset: u32,
    /// The region of the message.
    pub(super) region: Option<Descriptor>,
    /// The piece.
    bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Decodes a frame.
    pub(super) fn parse(mut bytes: &'a [u8]) -> Result<Self, Malformed> {
        let rest = &mut bytes;
        let [wakes, credits] = take(rest)?.map(u16::from);
        let [flags, version] = take(rest)?;
        if version != VERSION {
            return Err(Malformed("unsupported version"));
        }
        let message_len = u32::from_be_bytes(take(rest)?);
        let offset = u32::from_be_bytes(take(rest)?);
        if flags == 0 {
            let is_empty = rest.is_empty() && message_len == 0 && offset == 0;
            return match (is_empty, credits + wakes) {
                (false, _) => Err(Malformed("data without a flag for it")),
                (true, 0) => Err(Malformed("it is empty")),
                (true, _) => Ok(Self { credits, wakes, fragment: None }),
            };
        }
        let region = match flags {
            FRAGMENT => None,
            _ if flags & !WRITABLE == FRAGMENT | REGION => Some(Descriptor::parse(flags, rest)?),
            _ => return Err(Malformed("unknown flags")),
        };
        if region.is_some() && offset != 0 {
            return Err(Malformed("a region in the middle of a message"));
        }
        if message_len as usize > limits::CONTROL_MESSAGE_LEN_MAX {
            return Err(Malformed("its message is too long"));
        }
        let bytes = *rest;
        let end = u64::from(offset) + bytes.len() as u64;
        if bytes.is_empty() || end > u64::from(message_len) {
            return Err(Malformed("its fragment is out of bounds"));
        }
        let fragment = Some(Fragment { message_len, offset, region, bytes });
        Ok(Self { credits, wakes, fragment })
    }

    /// Encodes the frame into a buffer.
    pub(super) fn emit(&self, into: &mut Vec<u8>) {
        let (mut flags, mut message_len, mut offset) = (0, 0, 0);
        if let Some(fragment) = &self.fragment {
            flags |= FRAGMENT | fragment.region.as_ref().map_or(0, Descriptor::flags);
            (message_len, offset) = (fragment.message_len, fragment.offset);
        }
        into.clear();
        // Neither exceeds the receives of its kind.
        let byte = |count: u16| u8::try_from(count).unwrap_or(u8::MAX);
        into.extend_from_slice(&[byte(self.wakes), byte(self.credits), flags, VERSION]);
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
            return Err(Malformed("its region is invalid"));
        }
        let exposure = if flags & WRITABLE == 0 { Exposure::Read } else { Exposure::Write };
        Ok(Self { exposure, address, key, len })
    }
}

/// Takes the first bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Malformed("truncated"))?;
    *bytes = rest;
    Ok(*first)
}

/// The send queue of messages to a peer.
#[derive(Debug)]
pub(super) struct Outbound {
    queue: VecDeque<Queued>,
    /// Queued bytes.
    queued_len: usize,
    /// Credits: fragments that the peer can receive.
    credits: u16,
    /// Fragments taken whose credits are not returned yet.
    owed: u16,
    /// The same of wake-ups.
    owed_wakes: u16,
}

/// A message not sent completely.
#[derive(Debug)]
struct Queued {
    bytes: Box<[u8]>,
    region: Option<Descriptor>,
    sent_len: usize,
}

impl Outbound {
    /// Creates an empty queue.
    pub(super) fn new() -> Self {
        let credits = limits::verbs::RECEIVES;
        Self { queue: VecDeque::new(), queued_len: 0, credits, owed: 0, owed_wakes: 0 }
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
        self.owed >= OWED_MAX || self.owed_wakes >= OWED_WAKES_MAX
    }

    /// Takes the credits to return.
    fn take_owed(&mut self) -> (u16, u16) {
        (std::mem::take(&mut self.owed), std::mem::take(&mut self.owed_wakes))
    }

    /// Whether another message is accepted.
    pub(super) fn accepts(&self) -> bool {
        self.queued_len < QUEUED_LEN_MAX && self.queue.len() < limits::OUTBOUND_MESSAGES_MAX
    }

    /// Queues a message, unless the queue is full.
    pub(super) fn push(&mut self, bytes: &[u8], region: Option<Descriptor>) -> Sent {
        if !self.accepts() {
            return Sent::Full;
        }
        self.queued_len += bytes.len();
        self.queue.push_back(Queued { bytes: bytes.into(), region, sent_len: 0 });
        Sent::Done
    }

    /// Encodes the next frame into a buffer; `false` if there is none, or no credit.
    pub(super) fn next(&mut self, into: &mut Vec<u8>) -> bool {
        let is_signal = self.queue.is_empty() || self.credits == 0;
        if is_signal && !self.has_signal() {
            return false;
        }
        let (credits, wakes) = self.take_owed();
        let Some(first) = self.queue.front_mut().filter(|_| !is_signal) else {
            Frame { credits, wakes, fragment: None }.emit(into);
            return true;
        };
        let region = first.region.take();
        let room =
            limits::verbs::FRAME_LEN_MAX - HEADER_LEN - if region.is_some() { DESCRIPTOR_LEN } else { 0 };
        let (_, rest) = first.bytes.split_at_checked(first.sent_len).unwrap_or_default();
        let (bytes, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
        let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let (message_len, offset) = (number(first.bytes.len()), number(first.sent_len));
        let fragment = Some(Fragment { message_len, offset, region, bytes });
        Frame { credits, wakes, fragment }.emit(into);
        self.credits -= 1;
        self.queued_len -= bytes.len();
        first.sent_len += bytes.len();
        if later.is_empty() {
            self.queue.pop_front();
        }
        true
    }

    /// Adds the credits that a peer's frame returns.
    pub(super) fn credit(&mut self, credits: u16) -> Result<(), Malformed> {
        let sum = self.credits.saturating_add(credits);
        if sum > limits::verbs::RECEIVES {
            return Err(Malformed("it returns more credits than it owes"));
        }
        self.credits = sum;
        Ok(())
    }

    /// Counts a fragment as taken, and its receive as posted again.
    pub(super) fn owe(&mut self) -> Result<(), Malformed> {
        if self.owed >= limits::verbs::RECEIVES {
            return Err(Malformed("it exceeds its credits"));
        }
        self.owed += 1;
        Ok(())
    }

    /// Counts a wake-up as taken. Its receive is to be posted again.
    pub(super) fn owe_wake(&mut self) -> Result<(), Malformed> {
        if self.owed_wakes >= limits::verbs::WAKE_RECEIVES {
            return Err(Malformed("it wakes more often than its credits allow"));
        }
        self.owed_wakes += 1;
        Ok(())
    }
}

/// Reassembles the messages of a peer: one at a time, in order.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    bytes: Vec<u8>,
    message_len: usize,
    region: Option<Descriptor>,
}

impl Inbound {
    /// Adds the next fragment. Returns the message if it is complete.
    pub(super) fn take(&mut self, fragment: &Fragment<'_>) -> Result<Option<Message>, Malformed> {
        if self.bytes.is_empty() {
            self.message_len = fragment.message_len as usize;
            self.region = fragment.region;
        }
        let goes_on = fragment.offset as usize == self.bytes.len();
        if !goes_on || fragment.message_len as usize != self.message_len {
            return Err(Malformed("its fragment does not follow the previous one"));
        }
        self.bytes.extend_from_slice(fragment.bytes);
        let is_whole = self.bytes.len() == self.message_len;
        Ok(is_whole.then(|| Message { bytes: std::mem::take(&mut self.bytes), region: self.region.take() }))
    }
}

#[cfg(test)]
mod tests;
