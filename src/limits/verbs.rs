//! The bounds of RDMA verbs.

use super::{LOG_BATCH_LEN_MAX, LOG_BATCH_LEN_MIN, LOG_BATCHES_MAX};

/// Fragments of control messages that a peer may have in flight.
pub(crate) const RECEIVES: u16 = 8;
/// Frames without a fragment that a peer may have in flight besides: two that return credits.
pub(crate) const SIGNAL_RECEIVES: u16 = 2;
/// Largest frame of a control message, bytes.
pub(crate) const FRAME_LEN_MAX: usize = 4096;
/// Work requests in flight on one connection.
pub(crate) const SENDS_MAX: u32 = 256;
/// Of those, the work requests reserved for control messages, frames without a fragment, and one probe of the peer.
pub(crate) const SENDS_RESERVED: u32 = RECEIVES as u32 + SIGNAL_RECEIVES as u32 + 1;
/// READs that one connection has in flight, and serves, at a time.
pub(crate) const READS_MAX: u8 = 16;
/// Approximate bytes of one WRITE. A device retries a message a few times before it gives up the connection, and on a lossy
/// network only short ones succeed within that.
pub(crate) const WRITE_LEN: usize = 32 * 1024;
/// The most WRITEs of this length for one range; a longer range has longer ones.
pub(crate) const WRITES_MAX: usize = 32;
/// The most one-packet WRITEs for one range over an unreliable connection, where a lost packet takes the rest of a longer WRITE
/// along. A longer range is written as over other connections. A payload of 64 KiB and its header take this many packets of 1,024
/// bytes, which fit Ethernet's usual MTU.
pub(crate) const PACKETS_MAX: usize = 65;
/// Queued batches of writes to one region.
pub(crate) const WAITING_BATCHES_MAX: usize = 64;
/// Connections waiting to be accepted.
pub(crate) const BACKLOG: i32 = 128;
/// How long a connection may be idle before the peer is probed, nanoseconds.
pub(crate) const QUIET_NS: u64 = 250_000_000;
/// How long connecting may take, nanoseconds.
pub(crate) const CONNECT_DEADLINE_NS: u64 = 3_000_000_000;
/// How long a failed queue pair has to return its work requests, nanoseconds.
pub(crate) const DRAIN_NS: u64 = 250_000_000;
/// How long a dropped connection still delivers what was sent, nanoseconds.
pub(crate) const LINGER_NS: u64 = 1_000_000_000;

/// Work requests for writes, if the device has as many as may be used. With fewer, a batch this long is not sent in single
/// packets.
const WRITES_ROOM: usize = (SENDS_MAX - SENDS_RESERVED) as usize;
const _: () = assert!(LOG_BATCHES_MAX * (LOG_BATCH_LEN_MAX / WRITE_LEN + 4) <= WRITES_ROOM);
const _: () = assert!(2 * WRITES_MAX + 4 < WRITES_ROOM / 2);
const _: () = assert!(2 * PACKETS_MAX + 8 <= WRITES_ROOM);
const _: () = assert!(LOG_BATCH_LEN_MIN < PACKETS_MAX * 1024);
const _: () = assert!(RECEIVES >= 2 && RECEIVES.is_multiple_of(2) && SIGNAL_RECEIVES >= 2);
