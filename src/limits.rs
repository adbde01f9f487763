//! The bounds of the library, each named once. No input makes the library allocate, wait or loop beyond one of them. Those that
//! programs need to know are public.

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
/// Elements without bytes of their own (units, empty structs) that a payload may claim in its sequences.
pub(crate) const EMPTY_ELEMENTS_MAX: usize = 64 * 1024;

/// Longest name of a key, bytes.
pub const KEY_NAME_LEN_MAX: usize = 64;
/// Most keys of a keyring.
pub const KEYS_MAX: usize = 1024;
/// Longest text of a keyring, bytes.
pub const KEYRING_LEN_MAX: usize = 1 << 20;
/// Fields of a line of a keyring.
pub(crate) const KEY_FIELDS_MAX: usize = 5;
/// Most keys that a peer proves in a session.
pub const KEYS_PROVEN_MAX: usize = 64;
/// Keys that a request to connect over RDMA shows.
#[cfg(any(test, feature = "verbs"))]
pub(crate) const KEYS_PER_REQUEST: usize = 8;
/// Keys with which a request is compared for one unit of what a peer may ask for: see [`UNITS_PER_S`].
#[cfg(feature = "verbs")]
pub(crate) const KEYS_PER_UNIT: usize = 8;

/// Events of each kind that peers can cause which a node writes to the log in each second.
pub(crate) const EVENTS_LOGGED_MAX: u32 = 10;

/// Largest payload a topic may declare, bytes (1 GiB).
pub const PAYLOAD_LEN_MAX: usize = 1 << 30;
/// Largest repository or landing region, bytes (16 GiB).
pub const REGION_LEN_MAX: usize = 1 << 34;
/// Largest repository that a subscriber maps, and largest landing region that it allocates, by default, bytes (256 MiB): the
/// publisher chooses their size.
pub const SUBSCRIBED_LEN_MAX_DEFAULT: usize = 1 << 28;
/// Fewest slots of a state repository: the newest value stays whole while the next one is staged.
pub const SLOT_COUNT_MIN: u32 = 2;
/// Most slots of a state repository.
pub const SLOT_COUNT_MAX: u32 = 1 << 16;
/// Default slots of a state repository.
pub const SLOT_COUNT_DEFAULT: u32 = 8;

/// Most keys that a table may declare.
pub const TABLE_CAPACITY_MAX: usize = 1 << 24;
/// Keys of a table unless declared.
pub const TABLE_CAPACITY_DEFAULT: usize = 1024;
/// Longest key that a table may declare, bytes of its encoded form.
pub const KEY_LEN_MAX: usize = 1024;
/// Longest key of a table unless declared, bytes of its encoded form.
pub const KEY_LEN_MAX_DEFAULT: usize = 64;
/// Ranges of a table that a reader fetches at a time.
pub(crate) const TABLE_FETCH_RANGES: usize = 64;
/// Bytes of a table that a reader fetches at a time, unless one cell is longer.
pub(crate) const TABLE_FETCH_LEN: usize = 128 * 1024;

/// A reader of a table over a wire compares the versions of one page with every so many fetches of the hot line.
pub(crate) const TABLE_AUDIT_ONE_IN: u64 = 16;
/// A reader of a mapped table does so in every so many passes that it makes, each of which costs less than a fetch.
pub(crate) const TABLE_PASS_AUDIT_ONE_IN: u64 = 64;
/// Bytes of a table that a publisher copies to one landing region with a commit; the node's thread copies the rest.
pub(crate) const TABLE_PUSH_LEN: u64 = 256 * 1024;

/// Threads of a node that seek lost subscriptions, one for each address at a time.
pub(crate) const SEEKING_THREADS_MAX: usize = 16;
/// The first pause between two attempts to find a publisher, nanoseconds. Each pause is random, from half of this on, and the next one
/// may be twice as long.
pub(crate) const SEEK_PAUSE_MIN_NS: u64 = 5_000_000;
/// How long a publisher is not reported lost after the connection to it broke, nanoseconds, while no attempt to reach it has failed.
/// Over RDMA that is three attempts: see [`verbs::REDIAL_NS`].
pub(crate) const RECONNECT_NS: u64 = 1_000_000_000;
/// The most lines of one subscriber.
pub const LINES_MAX: usize = 16;
/// How long a line has another epoch than the others before that is reported, nanoseconds: publishers of a pair do not restart at the same
/// moment.
pub(crate) const OUT_OF_STEP_NS: u64 = 500_000_000;
/// How long a record that is missing on one line of a log is awaited from another one by default, nanoseconds.
pub const LINE_GAP_NS: u64 = 100_000_000;
/// Removed keys that a subscriber of several lines of a table remembers, besides as many as the table had at once, so that a line that
/// is behind does not bring them again.
pub const LINE_REMOVED_MAX: usize = 8192;
/// Keys that a line of a table may bring for each cell that its table has, without removing them. A publisher that was restarted with
/// other keys brings two; one that brings more is faulty.
pub const LINE_KEYS_PER_CELL: usize = 4;
/// Damaged values of which a subscriber of several lines awaits that another line brings them. Beyond these, the oldest is reported.
pub(crate) const LINE_DAMAGED_MAX: usize = 64;
/// The longest such pause in the first [`SEEK_SOON_NS`], and later, for an address on this host.
pub(crate) const SEEK_PAUSE_MAX_NS: [u64; 2] = [60_000_000, 250_000_000];
/// The same for an address on another host.
pub(crate) const SEEK_FAR_PAUSE_MAX_NS: [u64; 2] = [200_000_000, 2_000_000_000];
/// The longest pause before another attempt at a node that does not admit this one, nanoseconds.
pub(crate) const SEEK_DENIED_PAUSE_NS: u64 = 1_000_000_000;
/// How long a publisher is sought often, nanoseconds.
pub(crate) const SEEK_SOON_NS: u64 = 10_000_000_000;

/// The greatest sequence after which a publisher may begin: more follow than will ever be published.
pub const SEQUENCE_AFTER_MAX: u64 = 1 << 48;
/// The greatest newest sequence that a repository file may have.
pub(crate) const SEQUENCE_MAX: u64 = 2 * SEQUENCE_AFTER_MAX;

/// Topics of one node.
pub const TOPICS_MAX: usize = 4096;
/// The most sessions that one node serves at a time over each fabric, whatever [`PeerLimits`](crate::PeerLimits) say.
pub const SESSIONS_MAX: usize = 4096;
/// Sessions that one node serves at a time over each fabric, unless [`PeerLimits`](crate::PeerLimits) say otherwise.
pub const SESSIONS_DEFAULT: usize = 1024;
/// How many of them one peer may have, a process of this host or another host, unless [`PeerLimits`](crate::PeerLimits) say otherwise.
pub const SESSIONS_PER_PEER_DEFAULT: usize = 256;
/// The number of a node's sessions on its host, divided by this, is not for the processes of one user.
pub(crate) const SESSIONS_OTHER_USERS_PARTS: usize = 16;
/// Descriptors that a session takes at the node that serves it: on its host, and over RDMA.
pub(crate) const SESSION_FILES: usize = 1;
pub(crate) const RDMA_SESSION_FILES: usize = 6;
/// Memory that a session over RDMA locks, bytes: its messages.
pub(crate) const SESSION_LOCKED_LEN: usize = 144 * 1024;
/// A process keeps from its peers the number of descriptors that it may have, and the memory that it may lock, divided by these.
pub(crate) const FILES_KEPT_PARTS: usize = 4;
pub(crate) const LOCKED_KEPT_PARTS: usize = 2;
/// Sessions for which there is a place however few descriptors, and however little memory to be locked, a process may have.
pub(crate) const SESSIONS_MIN: usize = 4;
/// What one peer may ask of a node: units a second, and units at once. The most expensive requests take some 100 us for
/// [`COSTLY_UNITS`], so that one peer takes less than a tenth of the node's thread.
pub(crate) const UNITS_PER_S: u64 = 16 * 1024;
pub(crate) const UNITS_AT_ONCE: u64 = 16 * 1024;
/// How often one message of each session is taken, however much the peer has asked for in all of them, nanoseconds.
pub(crate) const HEARD_NS: u64 = 250_000_000;
/// Units of a message; of one that attaches or exposes memory; of one that proves keys, a page of the directory or a list of subscribers;
/// and of a dial on this host.
pub(crate) const MESSAGE_UNITS: u64 = 1;
pub(crate) const ATTACH_UNITS: u64 = 8;
pub(crate) const COSTLY_UNITS: u64 = 16;
pub(crate) const DIAL_UNITS: u64 = 16;
/// Events that an [`EventQueue`](crate::EventQueue) holds.
pub const EVENTS_QUEUED_MAX: usize = 4096;
/// Publishers that have dialled one node, waiting or accepted, at a time.
pub const INVITED_SESSIONS_MAX: usize = 256;
/// Attachments of one session.
pub const ATTACHMENTS_PER_SESSION_MAX: usize = 256;
/// Bytes of the landing regions of one session (1 GiB), and of all sessions of a node (16 GiB), unless
/// [`PeerLimits`](crate::PeerLimits) say otherwise. Their owner pays for the pages, the publisher for the page tables, a 512th part.
pub const LANDING_LEN_PER_SESSION_DEFAULT: usize = 1 << 30;
/// See [`LANDING_LEN_PER_SESSION_DEFAULT`].
pub const LANDING_LEN_DEFAULT: usize = 1 << 34;
/// Push subscribers of one topic.
pub const PUSH_SUBSCRIBERS_MAX: usize = 256;

/// Subscribers of one topic that report their progress although they may be lapped, and as many for which its publisher waits or that it
/// disconnects.
pub const PROGRESS_SLOTS_MAX: usize = 256;
/// Subscribers of one topic that its node lists: the slowest ones.
pub const SUBSCRIBERS_LISTED_MAX: usize = 256;
/// How long a publisher waits by default for the slowest subscriber that it waits for, nanoseconds. Longer than the lease, so that a
/// stopped subscriber makes no publish fail.
pub const GATING_TIMEOUT_NS: u64 = 5_000_000_000;
/// For how long a publisher waits by default for a subscriber whose node does not show that it runs, nanoseconds.
pub const GATING_LEASE_NS: u64 = 2_000_000_000;
/// The shortest such lease, nanoseconds.
pub const GATING_LEASE_MIN_NS: u64 = 1_000_000_000;
/// How often a node shows that it runs in the progress slots of its subscribers, nanoseconds.
pub(crate) const PROGRESS_SEEN_NS: u64 = 200_000_000;

/// Largest control message, bytes, frame header included.
pub(crate) const CONTROL_MESSAGE_LEN_MAX: usize = 96 * 1024;
/// Topics in one page of the directory.
pub(crate) const DIRECTORY_PAGE_LEN_MAX: usize = 128;
/// Regions that may travel with one control message.
pub(crate) const MESSAGE_REGIONS_MAX: usize = 1;
/// File descriptors of peers, and connections, that wait to be closed because closing blocks or no thread can be started. At the
/// limit a node on shared memory accepts no connections, and receives no message that carries memory, even from innocent peers.
pub(crate) const CLOSING_FILES_MAX: usize = 4 * SESSIONS_DEFAULT;
/// Where a process may have few descriptors, the limit is their number divided by this, but not less than the minimum.
pub(crate) const CLOSING_FILES_PARTS: u64 = 16;
pub(crate) const CLOSING_FILES_MIN: usize = 64;
/// How soon a message that carries memory is looked at again while that limit is reached, nanoseconds, and how long it may wait before
/// the session ends.
pub(crate) const HELD_BACK_NS: u64 = 50_000_000;
pub(crate) const HELD_BACK_NS_MAX: u64 = 5_000_000_000;
/// Descriptors of one unread message that are closed one by one when its connection is closed: the number that the process may have,
/// divided by the parts, within these bounds. The upper one is the most that a message can carry (SCM_MAX_FD of the kernel).
pub(crate) const DRAINED_FILES_PARTS: u64 = 16;
pub(crate) const DRAINED_FILES_MIN: usize = 16;
pub(crate) const DRAINED_FILES_MAX: usize = 253;
/// Sockets of peers on this host through which a node wakes their waiters: the number of descriptors that the process may have, divided by
/// the parts, within these bounds.
pub(crate) const WAKE_SOCKETS_PARTS: u64 = 8;
pub(crate) const WAKE_SOCKETS_MIN: usize = 16;
pub(crate) const WAKE_SOCKETS_MAX: usize = 4096;
/// Control messages queued for a peer; one more ends the session.
pub(crate) const OUTBOUND_MESSAGES_MAX: usize = 64;
/// Control messages of one session handled in one turn, so that one peer cannot starve the others.
pub(crate) const MESSAGES_PER_TURN_MAX: usize = 16;
/// Longest text in a refusal or an End message, bytes.
pub(crate) const REASON_LEN_MAX: usize = 512;

/// Longest ticket for joining a channel of datagrams, bytes.
pub(crate) const CHANNEL_TICKET_LEN_MAX: usize = 64;
/// Datagrams that a receiver of a channel can hold; more are lost.
pub(crate) const CHANNEL_RECEIVES: usize = 512;
/// Datagrams in flight of a channel's sender.
pub(crate) const CHANNEL_SENDS: u32 = 128;

/// Largest datagram of notices, bytes: one packet of a network with a large MTU.
pub(crate) const NOTICE_DATAGRAM_LEN_MAX: usize = 4096;
/// Receivers of one channel that are also served by unicast, because the multicast does not reach them.
pub(crate) const UNICAST_RECEIVERS_MAX: usize = 64;
/// How many of them may be of one peer.
pub(crate) const UNICAST_RECEIVERS_PER_PEER_MAX: usize = 8;
/// Datagrams of one channel received in one turn, so that one publisher cannot hold up the thread.
pub(crate) const NOTICES_PER_TURN_MAX: u32 = 256;
/// Bytes of inline pieces kept for one subscriber.
pub(crate) const NOTICE_INLINE_HELD_LEN: usize = 64 * 1024;
/// How far a datagram's number may be ahead of all before it to be trusted at once. After more losses the next datagram is
/// trusted.
pub(crate) const NOTICE_LEAP_MAX: u64 = 1 << 20;
/// How far an inline value may be ahead of the publisher's memory, as last read, to be received before the next read: as many as
/// a publisher of four million values a second publishes between two such reads ([`NOTICE_DOUBT_NS`]).
pub(crate) const NOTICE_LEAD_MAX: u64 = 1 << 20;
/// Bytes of inline records that a subscriber of a log receives before it compares them with the publisher's memory; half of the
/// ring if that is less.
pub(crate) const NOTICE_UNPROVEN_LEN_MAX: usize = LOG_FETCH_LEN;
/// How often a subscriber with notices reads a repository on another host while none arrive, nanoseconds.
pub(crate) const NOTICE_TIMER_NS: u64 = 1_000_000;
/// How often it reads while notices arrive that announce nothing, nanoseconds: the last one may have been lost.
pub(crate) const NOTICE_DOUBT_NS: u64 = 250_000_000;
/// The longest sleep of a subscriber on its wake word before it checks for the end of the topic, nanoseconds.
pub(crate) const WAKE_WORD_SLEEP_NS: u64 = 50_000_000;
/// How often what waits for many subscriptions polls some of them in turn, nanoseconds: a wake-up may have been lost.
pub(crate) const WAITER_LOOK_NS: u64 = 1_000_000_000;
/// It has polled all of them after so many turns, and polls no fewer than this many in each.
pub(crate) const WAITER_LOOK_PARTS: usize = 8;
pub(crate) const WAITER_LOOK_MIN: usize = 64;
/// How often it looks at one that nothing wakes, nanoseconds.
pub(crate) const WAITER_POLL_NS: u64 = 1_000_000;
/// How long a subscription waits for the answer to its request for notices before it polls, nanoseconds.
pub(crate) const NOTICES_AWAITED_NS: u64 = 10_000_000;
/// How often a subscriber reports on its session that notices arrive, nanoseconds.
pub(crate) const NOTICE_HEARD_INTERVAL_NS: u64 = 500_000_000;
/// How long a publisher's node waits for that report before it sends to a subscriber by unicast, nanoseconds.
pub(crate) const NOTICE_UNHEARD_NS: u64 = 1_500_000_000;
/// A channel without a notice for this long counts as silent, nanoseconds.
pub(crate) const NOTICE_SILENCE_NS: u64 = 500_000_000;

/// How long a session has to report why it ended, once its connection is lost, before the publisher counts as gone, nanoseconds.
pub(crate) const LOSS_TOLD_NS: u64 = 1_000_000_000;
/// How long a subscriber whose access was revoked may take to stop reading, nanoseconds. Then its memory window is closed, and a READ
/// ends its session.
pub(crate) const REVOKED_GRACE_NS: u64 = 1_000_000_000;
/// How long after that it reads nothing more a subscriber's node detaches, nanoseconds: what is in flight completes before.
pub(crate) const REVOKED_DETACH_NS: u64 = 200_000_000;
/// How often a node looks whether the file of its keyring has changed, nanoseconds.
pub(crate) const KEYRING_CHECK_NS: u64 = 1_000_000_000;
/// How often a node looks whether a connection of a peer that dialled is established, nanoseconds.
pub(crate) const CONNECTING_CHECK_NS: u64 = 250_000_000;
/// How long a peer that dialled has to say hello, nanoseconds.
pub(crate) const HELLO_DEADLINE_NS: u64 = 2_000_000_000;
/// How long a session may last in which nothing is attached, nanoseconds. Clients end theirs as soon as they do not need it.
pub(crate) const IDLE_SESSION_NS: u64 = 10_000_000_000;
/// Default time that a subscriber waits for an answer on the control channel, nanoseconds.
pub const ANSWER_DEADLINE_NS: u64 = 5_000_000_000;
/// How long a publisher's node keeps an ended topic, so that subscribers on other hosts can read the last values and push
/// subscribers can consume them, nanoseconds. A subscriber that has not detached by then loses its session.
pub(crate) const ENDED_GRACE_NS: u64 = 10_000_000_000;
/// How long a subscriber reads an ended topic, nanoseconds.
pub(crate) const ENDED_FETCH_NS: u64 = ENDED_GRACE_NS / 2;
/// How long after the end of a topic a subscriber's node detaches from it, if the subscriber has not received the end,
/// nanoseconds: after the last read completes, and before the publisher's grace is over.
pub(crate) const ENDED_DETACH_NS: u64 = ENDED_GRACE_NS / 4 * 3;
/// How long a publisher waits at most until its subscribers have received the end of its topic, nanoseconds: after that a subscriber's
/// node may detach although its program has not received the end.
pub const FINISH_NS_MAX: u64 = ENDED_DETACH_NS - 500_000_000;
/// How often a node shows that it is alive, nanoseconds: in its notice channels, and in some of its repositories.
pub const HEARTBEAT_INTERVAL_NS: u64 = 100_000_000;
/// Each repository's heartbeat word is written once in this many heartbeats: for thousands of topics these writes cost more than
/// all other work of an idle node.
pub(crate) const HEARTBEAT_PARTS: u64 = 4;
/// How often a node reads the heartbeat of a peer to which it subscribes, nanoseconds.
pub(crate) const PULSE_READ_NS: u64 = 500_000_000;
/// How often it asks a peer that only pushes, nanoseconds.
pub(crate) const PULSE_ASKED_NS: u64 = 1_000_000_000;
/// A repository whose heartbeat is older than this belongs to a hung process, nanoseconds.
pub const HEARTBEAT_STALE_NS: u64 = 1_000_000_000;

/// How far ahead of the host's clock time stamps may be that a publisher finds in its repository file and continues, nanoseconds.
pub(crate) const CLOCK_ADOPTED_NS: i64 = 3_600_000_000_000;
/// A difference between a node's time stamps and its host's clock that is corrected at once, nanoseconds, if the stamps are behind.
pub(crate) const CLOCK_LEAP_NS: u64 = 1_000_000_000;
/// Any other difference is corrected by this part of the time that passes, so that stamps do not step back.
pub(crate) const CLOCK_SLEW_PARTS: u64 = 100;
/// The longest time for which a difference is corrected in one go, nanoseconds: no publisher may see its stamps stand still for long.
pub(crate) const CLOCK_SLEW_SPAN_NS: u64 = 1_000_000_000;
/// A smaller difference is none: two clocks are not read at the same moment, nanoseconds.
pub(crate) const CLOCK_TOLERANCE_NS: u64 = 1_000;
/// A comparison of clocks that took longer is not used, nanoseconds.
pub(crate) const CLOCK_COMPARISON_NS: u64 = 1_000_000;
/// A suspension of the host that is shorter goes unnoticed, and counts as a correction of its clock, nanoseconds.
pub(crate) const CLOCK_SUSPENDED_NS: u64 = 10_000_000;
/// The leaps of its time stamps that a repository names: of values from before an earlier one, the age is not known.
pub(crate) const CLOCK_LEAPS: usize = 2;

/// Polls of mapped memory that find nothing until a reader that keeps up reads the hot line again: where memory is damaged, that alone
/// may name the newest value.
pub(crate) const EMPTY_POLLS_MAX: u32 = 256;
/// Immediate repetitions of a torn read.
pub(crate) const TORN_RETRIES_AT_ONCE: u32 = if cfg!(loom) { 1 } else { 3 };
/// Torn reads of a value before the caller gets `Contended`, or it counts as damaged. Models have as few as that allows: the stamp that
/// the first one sees is ordered before what the third one loads, by the fence of the second one.
pub(crate) const TORN_RETRIES_MAX: u32 = if cfg!(loom) { 3 } else { 8 };

/// How long a value that came over an unordered medium must stay wrong to count as damaged, nanoseconds: the rest may be in
/// flight.
pub(crate) const DAMAGE_SETTLED_NS: u64 = 20_000_000;

/// Longest slot, bytes, that a remote subscriber reads before it knows of a new value: up to this length that costs less than a
/// second round trip.
pub(crate) const PREDICTED_LEN_MAX: usize = 8 * 1024;

/// Default bytes of a log's ring (1 MiB).
pub const LOG_CAPACITY_DEFAULT: usize = 1 << 20;

/// Bytes of a log that a reader copies at a time, if available; more for a longer record.
pub(crate) const LOG_FETCH_LEN: usize = if cfg!(loom) { 128 } else { 64 * 1024 };

/// A lapped reader of a log continues this part of the ring after the oldest record, so that the writer does not lap it again at
/// once.
pub(crate) const LOG_MARGIN_PARTS: u64 = 8;

/// The same for a push subscriber on a slow medium: writes in flight are safe unless the publisher advances by half its ring.
pub(crate) const LOG_WIRE_MARGIN_PARTS: u64 = 2;

/// The part of a log's ring after which a push subscriber updates its consumed position; it also does so when it has consumed
/// everything.
pub(crate) const LOG_TAKEN_PARTS: u64 = 8;

/// The part of a log's ring that may be in flight to one landing region.
pub(crate) const LOG_FLIGHT_PARTS: u64 = 2;

/// A publisher reads a push subscriber's consumed position when it knows of less credit than this part of the ring.
pub(crate) const LOG_ROOM_PARTS: u64 = 2;

/// Batches of a log in flight to one landing region.
pub(crate) const LOG_BATCHES_MAX: usize = 4;

/// Initial bytes of a log in one batch to a landing region over a wire, unless a record is longer. They double whenever a batch
/// of about that length has arrived: should the connection break, what has arrived is kept. Where writes may be lost they stay as
/// short, except for a longer record.
pub(crate) const LOG_BATCH_LEN_MIN: usize = 64 * 1024;

/// Bytes of a log in one batch to a landing region on the same host, unless a record is longer. A turn of the node's thread
/// begins no batch for joining subscribers after half of this, nor for those behind after another half: it copies less than three
/// times as much, over all topics and subscribers, before sessions and heartbeats have their turn. Values of state topics count
/// as well; a longer one is still copied whole. (A publisher copies its own commits on its own thread.)
pub(crate) const LOG_COPY_LEN_MAX: usize = if cfg!(loom) { 64 } else { 4 << 20 };

/// Most bytes of a log in one batch to a landing region over a wire, unless a record is longer.
pub(crate) const LOG_BATCH_LEN_MAX: usize = 1 << 20;

/// How soon the node's thread tends landing regions again that are not up to date, nanoseconds.
pub(crate) const LANDING_TENDED_NS: u64 = 5_000_000;
/// A stalled push subscriber of a log, with a full landing region, is asked ever less often: after a quarter of the time since it
/// stalled, at most this, nanoseconds, and with each heartbeat ([`HEARTBEAT_INTERVAL_NS`]), which costs no wake-up of its own.
pub(crate) const LOG_REST_NS_MAX: u64 = 500_000_000;

/// Values that have expired which a receive skips before it returns without one.
pub(crate) const EXPIRED_PER_CALL_MAX: u32 = 1024;
/// Copies from a log, or reads of a remote repository, in one call before it returns without a value.
pub(crate) const READS_PER_CALL_MAX: u32 = 8;

/// Most unused bytes between two parts of a repository that one READ covers.
pub(crate) const FETCHED_GAP_LEN_MAX: usize = 512;
/// How long an incomplete value in a landing region must stay so to count as damaged, nanoseconds: a network resends what it
/// loses after tens of milliseconds. A wrong record of a log has as long, unless writes may be lost or the topic has ended.
pub(crate) const ARRIVAL_SETTLED_NS: u64 = 1_000_000_000;

/// Batches in flight to one landing region of a state, if the topic has more slots; otherwise one less than its slots.
pub(crate) const LANDING_BATCHES_MAX: usize = 4;
/// Where only whole writes appear in order, at least one in this many values writes the hot line of a landing region.
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
// Beats at least twice as often as readers require.
const _: () = assert!(HEARTBEAT_STALE_NS >= 2 * HEARTBEAT_PARTS * HEARTBEAT_INTERVAL_NS);
const _: () =
    assert!(PULSE_READ_NS > HEARTBEAT_PARTS * HEARTBEAT_INTERVAL_NS && HEARTBEAT_STALE_NS >= PULSE_ASKED_NS);
const _: () = assert!(CLOCK_SUSPENDED_NS > CLOCK_COMPARISON_NS && CLOCK_COMPARISON_NS > CLOCK_TOLERANCE_NS);
const _: () = assert!(NOTICE_SILENCE_NS >= 2 * HEARTBEAT_INTERVAL_NS);
