//! The bounds of RDMA verbs.

use super::{LOG_BATCH_LEN_MAX, LOG_BATCH_LEN_MIN, LOG_BATCHES_MAX};

/// Fragments of control messages that a peer may have in flight.
pub(crate) const RECEIVES: u16 = 8;
/// Frames without a fragment that a peer may have in flight besides: two that return credits of each kind.
pub(crate) const SIGNAL_RECEIVES: u16 = 4;
/// Writes that wake the peer which one end may have in flight.
pub(crate) const WAKE_RECEIVES: u16 = 16;
/// Largest frame of a control message, bytes.
pub(crate) const FRAME_LEN_MAX: usize = 4096;
/// Work requests in flight on one connection.
pub(crate) const SENDS_MAX: u32 = 256;
/// Of those, the work requests reserved for control messages, frames without a fragment, and one probe of the peer.
pub(crate) const FRAMES_RESERVED: u32 = RECEIVES as u32 + SIGNAL_RECEIVES as u32 + 1;
/// The same, and for wake-ups that were owed.
pub(crate) const SENDS_RESERVED: u32 = FRAMES_RESERVED + WAKE_RECEIVES as u32;
/// READs that one connection has in flight, and serves, at a time.
pub(crate) const READS_MAX: u8 = 16;
/// The most bytes of one READ. A longer range takes several, so that their completions show that the peer's host is alive: where
/// packets are lost, soft-RoCE waits for a timeout after each lost one of a READ.
pub(crate) const READ_LEN: u32 = 64 * 1024;
/// Approximate bytes of one WRITE. Some devices count retries per message before they give up the connection, and on a lossy
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
/// Units that a dial costs, as [`super::DIAL_UNITS`]: a queue pair is made.
pub(crate) const DIAL_UNITS: u64 = 64;
/// How often a node whose device was removed tries to listen at its address again, nanoseconds.
pub(crate) const RELISTEN_NS: u64 = 2_000_000_000;
/// How often an end of a channel whose queue pair could not be restarted tries that again, nanoseconds.
pub(crate) const RESTART_NS: u64 = 1_000_000_000;
/// How long a receiver of unicast datagrams whose host does not answer is not looked for again, nanoseconds.
pub(crate) const FIND_NS: u64 = 10_000_000_000;
/// Connections waiting to be accepted.
pub(crate) const BACKLOG: i32 = 128;
/// How long a connection may be idle before the peer is probed, nanoseconds.
pub(crate) const QUIET_NS: u64 = 250_000_000;
/// How long the peer's host may leave work unanswered before the connection counts as lost, nanoseconds, however long the device
/// would retry. Together with [`QUIET_NS`] a dead host is noticed within 2 s.
pub(crate) const SILENCE_NS: u64 = 1_250_000_000;
/// How often the ends of an unreliable connection send a beat, nanoseconds. A host that dies right after one is noticed by the next.
pub(crate) const BEAT_NS: u64 = QUIET_NS;
/// How long Linux waits before it counts a beat as unacknowledged, nanoseconds: until it has repeated the beat the first time, and
/// the probe of the tail of a stream that comes before.
const BEAT_REPEATED_NS: u64 = 400_000_000;
/// What one check of an unanswered peer adds to its silence at most, nanoseconds: a host that was suspended itself does not take
/// that time for the peer's silence.
pub(crate) const SILENCE_STEP_NS: u64 = 2 * QUIET_NS;
/// A long WRITE completes only when all of it has arrived: the silence may last as much longer as its bytes take at this rate,
/// bytes per second.
pub(crate) const RATE_MIN: u64 = 16 << 20;
/// Within a batch, an operation is reported complete after so many bytes: completions show that the peer's host is alive.
pub(crate) const SIGNAL_LEN: usize = READ_LEN as usize;
/// How long a dial waits for an answer before it makes another attempt, nanoseconds. Each pause is half as long again as the one
/// before: a slow node is not flooded, and of five attempts on a wire that loses one packet in ten, one in 3,000 dials has all lost.
pub(crate) const REDIAL_NS: u64 = 300_000_000;
/// How long connecting may take, nanoseconds.
pub(crate) const CONNECT_DEADLINE_NS: u64 = 3_000_000_000;
/// How long a session whose queue pair has returned its work, without saying why, waits for an event of the device that does, nanoseconds.
pub(crate) const FAULT_AWAITED_NS: u64 = 50_000_000;
/// How long a peer's host may leave a READ or another request unanswered while it sends other messages, nanoseconds.
pub(crate) const UNANSWERED_NS: u64 = 5_000_000_000;
/// How long a node that is dropped waits until the device has released what its sessions have used, nanoseconds.
pub(crate) const RELEASE_NS: u64 = 250_000_000;
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
const _: () = assert!(SILENCE_NS + 5 * QUIET_NS / 4 + QUIET_NS / 4 < 2_000_000_000);
const _: () = assert!(SILENCE_NS + BEAT_NS + QUIET_NS / 4 + BEAT_REPEATED_NS < 2_000_000_000);
const _: () = assert!(RECEIVES >= 2 && RECEIVES.is_multiple_of(2) && SIGNAL_RECEIVES >= 4);
const _: () =
    assert!(WAKE_RECEIVES >= 2 && WAKE_RECEIVES.is_multiple_of(2) && WAKE_RECEIVES <= u8::MAX as u16);
