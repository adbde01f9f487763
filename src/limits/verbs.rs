//! The bounds of RDMA verbs.

use super::{LOG_BATCH_LEN_MAX, LOG_BATCH_LEN_MIN, LOG_BATCHES_MAX};

/// Fragments of control messages that a peer may have under way.
pub(crate) const RECEIVES: u16 = 8;
/// Frames without a fragment that a peer may have under way beside them: two that give back credits.
pub(crate) const SIGNAL_RECEIVES: u16 = 2;
/// Largest frame of a control message, bytes.
pub(crate) const FRAME_LEN_MAX: usize = 4096;
/// Work requests that one connection has under way.
pub(crate) const SENDS_MAX: u32 = 256;
/// Work requests of those that are reserved for control messages, frames without a fragment and one probe of the peer.
pub(crate) const SENDS_RESERVED: u32 = RECEIVES as u32 + SIGNAL_RECEIVES as u32 + 1;
/// Reads that one connection has under way, and serves, at a time.
pub(crate) const READS_MAX: u8 = 16;
/// Bytes that one WRITE moves, or about as many. A device gives a connection up after some attempts to bring
/// one message through, and a wire that loses packets lets only short ones through with so few.
pub(crate) const WRITE_LEN: usize = 32 * 1024;
/// WRITEs of which one range consists at the most: those of a long one are longer.
pub(crate) const WRITES_MAX: usize = 32;
/// WRITEs of one packet each of which one range consists at the most, over an unreliable connection: there, what is lost of
/// a longer one takes the rest of it along. Those of a longer range are as over others. A payload of 64 KiB and its header go in
/// as many packets of 1,024 bytes, which is what Ethernet's usual MTU leaves room for.
pub(crate) const PACKETS_MAX: usize = 65;
/// Batches of writes to one region that wait for room in a queue.
pub(crate) const WAITING_BATCHES_MAX: usize = 64;
/// Connections that may wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;
/// How long a connection may be quiet before the peer is probed, nanoseconds.
pub(crate) const QUIET_NS: u64 = 250_000_000;
/// How long a connection may take to stand, nanoseconds.
pub(crate) const CONNECT_DEADLINE_NS: u64 = 3_000_000_000;
/// How long a queue pair has to give back its work requests after it has failed, nanoseconds.
pub(crate) const DRAIN_NS: u64 = 250_000_000;
/// How long a connection that was dropped still delivers what was sent, nanoseconds.
pub(crate) const LINGER_NS: u64 = 1_000_000_000;

/// Work requests that are left for writes, if the device has as many as may be used. Where it has fewer, packets are not sent one by
/// one for a batch of so many.
const WRITES_ROOM: usize = (SENDS_MAX - SENDS_RESERVED) as usize;
const _: () = assert!(LOG_BATCHES_MAX * (LOG_BATCH_LEN_MAX / WRITE_LEN + 4) <= WRITES_ROOM);
const _: () = assert!(2 * WRITES_MAX + 4 < WRITES_ROOM / 2);
const _: () = assert!(2 * PACKETS_MAX + 8 <= WRITES_ROOM);
const _: () = assert!(LOG_BATCH_LEN_MIN < PACKETS_MAX * 1024);
const _: () = assert!(RECEIVES >= 2 && RECEIVES.is_multiple_of(2) && SIGNAL_RECEIVES >= 2);
