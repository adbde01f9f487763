//! Every bound of the library, named once. Nothing that comes from outside makes it allocate, wait or loop
//! beyond one of these. Those that programs need to know are public.

#[cfg(feature = "verbs")]
pub(crate) mod verbs;

#[cfg(test)]
mod tests;

/// Longest node name, bytes.
pub const NODE_NAME_LEN_MAX: usize = 64;
/// Longest topic name, bytes.
pub const TOPIC_NAME_LEN_MAX: usize = 128;
/// Longest name of a payload type, bytes.
pub const TYPE_NAME_LEN_MAX: usize = 256;
/// Largest schema, bytes of its JSON form.
pub const SCHEMA_LEN_MAX: usize = 64 * 1024;
/// Deepest nesting that a schema or a value decoded by one may have.
pub const SCHEMA_DEPTH_MAX: usize = 64;
/// Most values (leaves and containers) that decoding one payload by its schema may produce.
pub(crate) const DECODED_VALUES_MAX: usize = 4 * 1024 * 1024;
/// Elements without bytes of their own (units, empty structs) that any payload may claim in its sequences.
pub(crate) const EMPTY_ELEMENTS_MAX: usize = 64 * 1024;

/// Largest payload a topic may declare, bytes (1 GiB).
pub const PAYLOAD_LEN_MAX: usize = 1 << 30;
/// Largest repository or landing region, bytes (16 GiB).
pub const REGION_LEN_MAX: usize = 1 << 34;
/// Largest repository that a subscriber maps, and largest landing region that it makes, unless it is told otherwise,
/// bytes (1 GiB): their size is the publisher's choice.
pub const SUBSCRIBED_LEN_MAX_DEFAULT: usize = 1 << 30;
/// Fewest slots of a state repository: the newest value stays whole while the next one is staged.
pub const SLOT_COUNT_MIN: u32 = 2;
/// Most slots of a state repository.
pub const SLOT_COUNT_MAX: u32 = 1 << 16;
/// Slots of a state repository unless the publisher says otherwise.
pub const SLOT_COUNT_DEFAULT: u32 = 8;

/// Topics of one node.
pub const TOPICS_MAX: usize = 4096;
/// Sessions that one node serves at a time.
pub const SESSIONS_MAX: usize = 1024;
/// Publishers that have dialled one node, accepted by a listener there or waiting to be, at a time.
pub const INVITED_SESSIONS_MAX: usize = 256;
/// Attachments of one session.
pub const ATTACHMENTS_PER_SESSION_MAX: usize = 256;
/// Bytes of the landing regions that one session may have at a time (16 GiB): their owner pays for their pages, the publisher for
/// the page tables, a 512th part.
pub(crate) const LANDING_LEN_PER_SESSION_MAX: usize = REGION_LEN_MAX;
/// Push subscribers of one topic.
pub const PUSH_SUBSCRIBERS_MAX: usize = 256;

/// Largest control message, bytes, frame header included.
pub(crate) const CONTROL_MESSAGE_LEN_MAX: usize = 96 * 1024;
/// Topics in one directory answer; the asker asks for the next page.
pub(crate) const DIRECTORY_PAGE_LEN_MAX: usize = 128;
/// Regions that may travel with one control message.
pub(crate) const MESSAGE_REGIONS_MAX: usize = 1;
/// File descriptors that peers sent, and connections to them, that wait to be closed, because closing others blocks or no
/// thread can be started. Beyond that a node on shared memory accepts no connections, and ends every session over which memory
/// arrives, also of peers that did nothing wrong.
pub(crate) const CLOSING_FILES_MAX: usize = 4 * SESSIONS_MAX;
/// Control messages waiting for a peer that does not take them; one more ends the session.
pub(crate) const OUTBOUND_MESSAGES_MAX: usize = 64;
/// Control messages of one session handled in one turn, so that a chatty peer does not starve the others.
pub(crate) const MESSAGES_PER_TURN_MAX: usize = 16;
/// Longest text in a refusal or an end-of-session message, bytes.
pub(crate) const REASON_LEN_MAX: usize = 512;

/// What a peer has to know to join a channel of datagrams, bytes.
pub(crate) const CHANNEL_TICKET_LEN_MAX: usize = 64;
/// Datagrams that a receiver of a channel has room for while it does not look; more are lost.
pub(crate) const CHANNEL_RECEIVES: usize = 512;
/// Datagrams that the sender of a channel has under way.
pub(crate) const CHANNEL_SENDS: u32 = 128;

/// Largest datagram of notices, bytes: what a network of long packets carries in one.
pub(crate) const NOTICE_DATAGRAM_LEN_MAX: usize = 4096;
/// Receivers of one channel that get every datagram alone beside the others, because the multicast does not reach them.
pub(crate) const UNICAST_RECEIVERS_MAX: usize = 64;
/// Datagrams of one channel that are taken in one turn, so that a chatty publisher does not hold up the thread.
pub(crate) const NOTICES_PER_TURN_MAX: u32 = 256;
/// Bytes that came with notices and that are kept for one subscriber until it takes them.
pub(crate) const NOTICE_INLINE_HELD_LEN: usize = 64 * 1024;
/// How far the number of a datagram may be ahead of all that were heard to be believed at once. After more losses than that
/// the next one is.
pub(crate) const NOTICE_LEAP_MAX: u64 = 1 << 20;
/// How far a value that came with a notice may be ahead of what the publisher's memory said last to be received before that is
/// read again: what a publisher of four million values a second publishes between two such reads ([`NOTICE_DOUBT_NS`]).
pub(crate) const NOTICE_LEAD_MAX: u64 = 1 << 20;
/// Bytes of records that came with notices and that a subscriber of a log receives before it compares them with the publisher's
/// memory; half of the ring where that is less.
pub(crate) const NOTICE_UNPROVEN_LEN_MAX: usize = LOG_FETCH_LEN;
/// How often a subscriber that asked for notices looks in a repository on another host while none arrive, nanoseconds.
pub(crate) const NOTICE_TIMER_NS: u64 = 1_000_000;
/// How often it looks while they do arrive, and tell of nothing, nanoseconds: the last one may have been lost.
pub(crate) const NOTICE_DOUBT_NS: u64 = 250_000_000;
/// How long a subscriber that waits on its host sleeps at the most before it looks for the end of the topic, nanoseconds.
pub(crate) const WAKE_WORD_SLEEP_NS: u64 = 50_000_000;
/// How often a subscriber tells on its session that it hears the notices, nanoseconds.
pub(crate) const NOTICE_HEARD_INTERVAL_NS: u64 = 500_000_000;
/// How long a publisher's node waits for that before it sends notices to a subscriber alone, nanoseconds.
pub(crate) const NOTICE_UNHEARD_NS: u64 = 1_500_000_000;
/// A channel on which no notice was heard for this long does not tell of news, nanoseconds.
pub(crate) const NOTICE_SILENCE_NS: u64 = 500_000_000;

/// How long a session has to tell why it ended once nothing can be fetched over its connection, before the publisher is
/// taken for gone, nanoseconds.
pub(crate) const LOSS_TOLD_NS: u64 = 1_000_000_000;
/// How long a peer that dialled has to say hello, nanoseconds.
pub(crate) const HELLO_DEADLINE_NS: u64 = 2_000_000_000;
/// How long a subscriber waits for an answer on the control channel, unless it says otherwise, nanoseconds.
pub const ANSWER_DEADLINE_NS: u64 = 5_000_000_000;
/// How long a publisher's node keeps a topic that has ended for subscribers on other hosts to fetch what was published last,
/// and for subscribers by push to make room for it, nanoseconds. Then a subscriber that has not detached from a repository that
/// it fetches loses its session.
pub(crate) const ENDED_GRACE_NS: u64 = 10_000_000_000;
/// How long a subscriber fetches from a topic that has ended, nanoseconds.
pub(crate) const ENDED_FETCH_NS: u64 = ENDED_GRACE_NS / 2;
/// How long after the end of a topic a subscriber's node detaches from it, if the subscriber has not received the end by then,
/// nanoseconds. What was being fetched is complete by then, and the publisher's grace is not over.
pub(crate) const ENDED_DETACH_NS: u64 = ENDED_GRACE_NS / 4 * 3;
/// How often the thread of a node shows that it lives, nanoseconds: in its channels of notices, and in some of its repositories.
pub const HEARTBEAT_INTERVAL_NS: u64 = 100_000_000;
/// Each repository's heartbeat word is written once in so many heartbeats: one write for each of thousands of topics costs more
/// than all else that a node at rest does.
pub(crate) const HEARTBEAT_PARTS: u64 = 4;
/// A repository whose heartbeat is older than this belongs to a process that hangs, nanoseconds.
pub const HEARTBEAT_STALE_NS: u64 = 1_000_000_000;

/// Reads of a value that was overwritten under the reader, repeated at once.
pub(crate) const TORN_RETRIES_AT_ONCE: u32 = 3;
/// Reads of a value that was overwritten under the reader before the caller is told `Contended`.
pub(crate) const TORN_RETRIES_MAX: u32 = 8;

/// A value that came over a medium without order must stay wrong for this long to be called damaged, nanoseconds: the
/// rest of it may be on its way.
pub(crate) const DAMAGE_SETTLED_NS: u64 = 20_000_000;

/// Longest slot, bytes, that a subscriber who fetches a repository over a wire fetches before it knows of a new value: up
/// to this length that costs less than a second round trip.
pub(crate) const PREDICTED_LEN_MAX: usize = 8 * 1024;

/// Bytes of the ring of a log unless the publisher says otherwise (1 MiB).
pub const LOG_CAPACITY_DEFAULT: usize = 1 << 20;

/// Bytes of a log that a reader copies at a time, if there are as many; more where a record is longer.
pub(crate) const LOG_FETCH_LEN: usize = 64 * 1024;

/// A reader of a log that was lapped goes on this part of the ring behind the oldest record, so that a writer that goes on
/// does not lap it again at once.
pub(crate) const LOG_MARGIN_PARTS: u64 = 8;

/// As [`LOG_MARGIN_PARTS`], for a subscriber by push on a medium where writes take their time: while they are under way, nothing
/// overwrites what they copy unless the publisher goes half round its ring.
pub(crate) const LOG_WIRE_MARGIN_PARTS: u64 = 2;

/// The part of the ring of a log after which a subscriber by push says how far it has come; it also does when it has taken all
/// there is.
pub(crate) const LOG_TAKEN_PARTS: u64 = 8;

/// The part of the ring of a log of which writes to one landing region may be under way at a time.
pub(crate) const LOG_FLIGHT_PARTS: u64 = 2;

/// A publisher asks a subscriber by push how far it has come when it knows of less room than this part of the ring.
pub(crate) const LOG_ROOM_PARTS: u64 = 2;

/// Batches of writes of a log that may be in flight to one landing region at a time.
pub(crate) const LOG_BATCHES_MAX: usize = 4;

/// Bytes of a log in one batch to a landing region that a publisher begins to write over a wire, if no record is longer. They
/// double whenever a batch of about that length has arrived: what has arrived is known there, should the connection break. Where
/// writes may be lost they stay as short, and only a record that is longer makes a longer batch.
pub(crate) const LOG_BATCH_LEN_MIN: usize = 64 * 1024;

/// Bytes of a log in one batch to a landing region on the same host, if no record is longer. A turn of a node's thread begins no
/// further batch for those that join once it has copied half as many to them, nor for those that are behind once it has copied
/// half as many to these: it copies less than three times as many, for all topics and subscribers together. Then the sessions
/// and the heartbeats have their turn. Values of state topics count as well; one that is longer is still copied whole. (A
/// publisher that has just committed copies in a thread of its own.)
pub(crate) const LOG_COPY_LEN_MAX: usize = 4 << 20;

/// Bytes of a log in one batch to a landing region over a wire at the most, if no record is longer.
pub(crate) const LOG_BATCH_LEN_MAX: usize = 1 << 20;

/// How soon the node's thread looks again after landing regions that are not up to date yet, nanoseconds.
pub(crate) const LANDING_TENDED_NS: u64 = 5_000_000;
/// A subscriber of a log by push that stands still while its landing region is full is asked less and less often whether it goes
/// on: after a quarter of the time for which it has stood still, and after this time at the latest, nanoseconds. It is asked
/// with each heartbeat, too ([`HEARTBEAT_INTERVAL_NS`]), which takes no wake-up of its own.
pub(crate) const LOG_REST_NS_MAX: u64 = 500_000_000;

/// How often one call copies from a log, or fetches from a repository of any kind, before it says that there is nothing yet.
pub(crate) const READS_PER_CALL_MAX: u32 = 8;

/// Most unused bytes that are fetched between two pieces of a repository, so that one READ fetches both.
pub(crate) const FETCHED_GAP_LEN_MAX: usize = 512;
/// A value whose first words have come to a landing region must stay incomplete for this long to be called damaged,
/// nanoseconds: what a network loses is sent again after tens of milliseconds. So must a record of a log that is wrong there, unless
/// writes may be lost, or the topic has ended: then it is damaged at once.
pub(crate) const ARRIVAL_SETTLED_NS: u64 = 1_000_000_000;

/// Batches of writes to one landing region that may be in flight at a time, where the topic has more slots than that;
/// otherwise one less than it has slots.
pub(crate) const LANDING_BATCHES_MAX: usize = 4;
/// Where only whole writes appear in order, the hot line of a landing region is written with one value in this many at
/// least.
pub(crate) const LANDING_HOT_LINE_EVERY: u64 = 64;

/// Distinct errors that a node keeps for inspection.
pub(crate) const DISTINCT_ERRORS_MAX: usize = 16;
/// Longest host name kept, bytes.
pub(crate) const HOST_NAME_LEN_MAX: usize = 64;

const _: () = assert!(SLOT_COUNT_MIN.is_power_of_two() && SLOT_COUNT_MAX.is_power_of_two());
const _: () = assert!(SLOT_COUNT_DEFAULT >= SLOT_COUNT_MIN && SLOT_COUNT_DEFAULT <= SLOT_COUNT_MAX);
const _: () = assert!(LOG_BATCH_LEN_MIN <= LOG_BATCH_LEN_MAX);
const _: () = assert!(CHANNEL_SENDS >= 2 && CHANNEL_RECEIVES <= u16::MAX as usize);
const _: () = assert!(SCHEMA_LEN_MAX < CONTROL_MESSAGE_LEN_MAX);
const _: () = assert!(TORN_RETRIES_AT_ONCE < TORN_RETRIES_MAX);
const _: () = assert!(NOTICE_INLINE_HELD_LEN >= 2 * NOTICE_DATAGRAM_LEN_MAX);
// Twice as often as readers call stale, at least.
const _: () = assert!(HEARTBEAT_STALE_NS >= 2 * HEARTBEAT_PARTS * HEARTBEAT_INTERVAL_NS);
const _: () = assert!(NOTICE_SILENCE_NS >= 2 * HEARTBEAT_INTERVAL_NS);
