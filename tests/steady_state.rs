//! After start-up, publishing and receiving allocate nothing and make no system calls.
//!
//! The allocator of this program counts allocations for each thread. A filter forbids system calls to the thread that publishes
//! and receives, and ends the process at the first one; the node's own thread is not restricted. Both checks are also tried on
//! code that does allocate, or make a call.
//!
//! An allocator and a filter need `unsafe`.

#![expect(unsafe_code, reason = "an allocator and a system call filter have no safe interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fabricast::{
    Delivery, Epoch, FeedUpdate, Gating, LogPublisher, Node, NoticePath, Payload, Pod, Raw, SlowPolicy,
    StatePublisher, StateSubscriber,
};
use serde::{Deserialize, Serialize};

use self::support::pattern::{Pattern, is_whole};
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::{now, wait_until};

#[cfg(test)]
mod support;

/// Values published and received before it counts.
const ROUNDS_BEFORE: u64 = 100;
/// Values published and received while it counts.
const ROUNDS: u64 = 2000;

/// Keys of a table, and those of one batch.
const TABLE_KEYS: usize = 1000;
const TABLE_BATCH: usize = 30;

/// All ways of publishing and receiving that promise both, with the length of the values.
const FREE: &[(&str, usize)] = &[
    ("raw", 64),
    ("raw", 1024),
    ("raw", 65_536),
    ("loan", 64),
    ("loan", 65_536),
    ("pod", 64),
    ("pod", 65_536),
    ("pod-in-place", 65_536),
    ("struct", 128),
    ("nothing-new", 64),
    ("log", 64),
    ("log", 65_536),
    ("log-batch", 100),
    ("told", 64),
    ("log-told", 64),
    ("log-persistent", 64),
    ("log-lines", 8),
    ("log-lines-lost", 8),
    ("log-batch-told", 100),
    ("log-gated", 100),
    ("log-viewed", 65_536),
    ("table", 64),
    ("table", 4096),
    ("table-batch", 100),
    ("table-told", 64),
    ("table-batch-told", 100),
    ("feed", 64),
    ("feed-batch", 64),
    ("feed-told", 64),
];

#[test]
fn publishing_and_receiving_allocate_nothing() {
    for (what, len) in FREE {
        for delivery in [Delivery::Pull, Delivery::Push] {
            let allocations = allocations_of(what, delivery, *len);
            assert_eq!(allocations, 0, "{what} of {len} bytes by {delivery}");
        }
    }
}

/// There may be thousands of topics at a node, most of which are only read.
#[test]
fn a_topic_that_is_not_written_to_anybody_takes_little_memory_besides_its_repository() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let before = ALLOCATED_LEN.get();
    let state = node.state_publisher::<Raw>("state").payload_len_max(64).open().expect("a publisher");
    let between = ALLOCATED_LEN.get();
    let log = node.log_publisher::<Raw>("log").payload_len_max(64).open().expect("a publisher");
    let lens = [between - before, ALLOCATED_LEN.get() - between];
    drop((state, log));
    assert!(lens.iter().all(|len| *len < 16 * 1024), "{lens:?} bytes");
}

#[test]
fn an_allocation_is_noticed() {
    let allocations = allocations_of("owned-bytes", Delivery::Pull, 64);
    assert!(
        allocations >= ROUNDS,
        "each value has memory of its own, and {allocations} allocations were seen"
    );
}

#[test]
fn publishing_and_receiving_make_no_system_call() {
    if !calls_can_be_noticed() {
        return;
    }
    for (what, len) in FREE {
        for delivery in [Delivery::Pull, Delivery::Push] {
            let outcome = filtered(what, delivery, *len);
            assert_eq!(outcome, Filtered::Clean, "{what} of {len} bytes by {delivery}");
        }
    }
}

#[test]
fn a_system_call_is_noticed() {
    if calls_can_be_noticed() {
        assert_eq!(filtered("waiting", Delivery::Pull, 64), Filtered::Called);
        assert_eq!(filtered("call", Delivery::Pull, 64), Filtered::Called);
    }
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let (what, len) = (role.argument(0).to_owned(), role.number(2));
    let delivery = if role.argument(1) == "push" { Delivery::Push } else { Delivery::Pull };
    let no_core = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, no_core).expect("limits can be lowered");
    let outcome = Arc::new(OnceLock::new());
    let told = Arc::clone(&outcome);
    let dir = role.dir.clone();
    std::thread::spawn(move || {
        exercise(&dir, &what, delivery, len, &mut |rounds| {
            let tell = |word| {
                // From here on this thread must not make a system call.
                let _ = told.set(word);
                loop {
                    std::hint::spin_loop();
                }
            };
            if !forbid_system_calls() {
                tell("refused");
            }
            rounds();
            tell("clean");
        });
    });
    wait_until("the thread without system calls", || outcome.get().is_some());
    role.say(outcome.get().expect("it is there"));
    std::process::exit(0);
}

/// The outcome without system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filtered {
    /// It made none.
    Clean,
    /// It made one.
    Called,
    /// This machine cannot forbid them.
    Refused,
}

fn filtered(what: &str, delivery: Delivery, len: usize) -> Filtered {
    let dir = tempfile::tempdir().expect("a directory");
    let mut peer = Peer::start("filtered", dir.path(), &format!("{what} {delivery} {len}"));
    match peer.outcome() {
        Ok(word) if word == "clean" => Filtered::Clean,
        Ok(_) => Filtered::Refused,
        Err(status) if status.signal() == Some(libc::SIGSYS) => Filtered::Called,
        Err(status) => panic!("{what} of {len} bytes by {delivery} ended with {status}"),
    }
}

/// Whether this machine can forbid system calls and read its clocks without one. Fails where it cannot, unless skipping is
/// allowed.
fn calls_can_be_noticed() -> bool {
    let reason = match filtered("clock", Delivery::Pull, 64) {
        Filtered::Clean => return true,
        Filtered::Called => "this machine cannot tell the time without a system call",
        Filtered::Refused => "this machine does not let a program filter its system calls (seccomp)",
    };
    skip("system-calls", reason);
    false
}

fn allocations_of(what: &str, delivery: Delivery, len: usize) -> u64 {
    let dir = tempfile::tempdir().expect("a directory");
    let mut counted = None;
    exercise(dir.path(), what, delivery, len, &mut |rounds| {
        let before = ALLOCATIONS.get();
        rounds();
        counted = Some(ALLOCATIONS.get() - before);
    });
    counted.expect("it was exercised")
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Quote {
    number: u64,
    bid: f64,
    ask: f64,
    sizes: [u32; 4],
    levels: [(f64, u32); 4],
    venue: Option<Venue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Venue {
    Auction { number: u16 },
    Continuous,
}

/// Repeats an action: first as often as start-up takes, then as `around` decides.
type Around<'a> = &'a mut dyn FnMut(&mut dyn FnMut());

fn exercise(dir: &Path, what: &str, delivery: Delivery, len: usize, around: Around<'_>) {
    let (what, is_told) = what.strip_suffix("told").map_or((what, false), |rest| (rest, true));
    let place = Place { dir, delivery, len, is_told };
    let mut pattern = Pattern::new(len);
    let mut publish_raw = |publisher: &mut StatePublisher<Raw>, number: u64| {
        publisher.publish(pattern.value(number)).expect("it fits");
    };
    let receive_raw = |subscriber: &mut StateSubscriber<Raw>, number: u64| {
        let sample = subscriber.try_receive_ref().expect("a receive").expect("a value");
        assert!(is_whole(sample.bytes, number, len));
    };
    match what {
        "raw" | "" => place.rounds::<Raw>(&mut publish_raw, receive_raw, around),
        "owned-bytes" => place.rounds::<Raw>(
            &mut publish_raw,
            |subscriber, _| drop(subscriber.try_receive().expect("a receive").expect("a value")),
            around,
        ),
        "nothing-new" => place.rounds::<Raw>(
            &mut publish_raw,
            |subscriber, number| {
                receive_raw(subscriber, number);
                assert!(subscriber.try_receive().expect("a receive").is_none());
            },
            around,
        ),
        "waiting" => place.rounds::<Raw>(
            &mut publish_raw,
            |subscriber, number| {
                receive_raw(subscriber, number);
                assert!(subscriber.receive_timeout(Duration::from_micros(200)).expect("a receive").is_none());
            },
            around,
        ),
        "loan" => place.rounds::<Raw>(
            &mut |publisher, number| {
                let mut loan = publisher.loan();
                pattern.value(number).chunks(1000).for_each(|part| loan.append(part).expect("it fits"));
                loan.commit();
            },
            receive_raw,
            around,
        ),
        "pod" if len == 64 => place.values::<Pod<_>, _>(|number| [number; 8], around),
        "pod" => place.values::<Pod<_>, _>(|number| [[[number; 32]; 32]; 8], around),
        "pod-in-place" => place.values_in_place(|number| [[[number; 32]; 32]; 8], around),
        "struct" => place.values::<Quote, _>(quote, around),
        "log" | "log-" => place.logs(1, SlowPolicy::Lap, around),
        "log-gated" => place.logs(30, SlowPolicy::Block, around),
        "log-viewed" => place.views(around),
        "log-persistent" => place.persistent_logs(around),
        "log-lines" => place.lines(&[], around),
        "log-lines-lost" => place.lines(&["c"], around),
        "log-batch" | "log-batch-" => place.logs(31, SlowPolicy::Lap, around),
        "table" | "table-" => place.tables(1, around),
        "table-batch" | "table-batch-" => place.tables(TABLE_BATCH, around),
        "feed" | "feed-" => place.feeds(1, around),
        "feed-batch" => place.feeds(TABLE_BATCH, around),
        "clock" => around(&mut || (0..ROUNDS).for_each(|_| _ = std::hint::black_box(now()))),
        "call" => around(&mut || _ = std::hint::black_box(rustix::process::getppid())),
        what => panic!("nobody knows how to {what}"),
    }
}

/// Repeats a round, which is told whether it may wait, and returns whether it did not.
fn repeat(round: &mut dyn FnMut(bool) -> bool, around: Around<'_>) {
    // While the node tends a new push subscriber, it writes what a commit changes. The first commit after that takes the subscriber
    // over for good.
    let mut at_once = 0;
    wait_until("rounds without waiting", || {
        at_once = if round(true) { at_once + 1 } else { 0 };
        at_once == ROUNDS_BEFORE
    });
    around(&mut || {
        for _ in 0..ROUNDS {
            round(false);
        }
    });
}

/// The value of a key.
type Numbers = [u64; 8];

fn quote(number: u64) -> Quote {
    let venue = match number % 3 {
        0 => None,
        1 => Some(Venue::Continuous),
        _ => Some(Venue::Auction { number: 7 }),
    };
    Quote { number, bid: 99.5, ask: 100.5, sizes: [1, 2, 3, 4], levels: [(1.5, 6); 4], venue }
}

/// Two nodes of one process, and their topics.
#[derive(Clone, Copy, Debug)]
struct Place<'a> {
    dir: &'a Path,
    delivery: Delivery,
    len: usize,
    /// The subscriber has notices. It is awake.
    is_told: bool,
}

impl Place<'_> {
    /// Values received decoded.
    fn values<T, V>(self, make: impl Fn(u64) -> V, around: Around<'_>)
    where
        T: Payload<Borrowed = V, Owned = V>,
        V: PartialEq,
    {
        let receive = |subscriber: &mut StateSubscriber<T>, expected| {
            let sample = subscriber.try_receive().expect("a receive").expect("a value");
            assert!(sample.value == expected);
        };
        self.made_values(make, receive, around);
    }

    /// Values received in place.
    fn values_in_place<V>(self, make: impl Fn(u64) -> V, around: Around<'_>)
    where
        Pod<V>: Payload<Borrowed = V, Owned = V>,
        V: bytemuck::Pod + PartialEq,
    {
        let receive = |subscriber: &mut StateSubscriber<Pod<V>>, expected| {
            let sample = subscriber.try_receive_ref().expect("a receive").expect("a value");
            assert!(*sample.value().expect("it lies as it may") == expected);
        };
        self.made_values(make, receive, around);
    }

    /// Values published by reference.
    fn made_values<T, V>(
        self,
        make: impl Fn(u64) -> V,
        receive: impl Fn(&mut StateSubscriber<T>, V),
        around: Around<'_>,
    ) where
        T: Payload<Borrowed = V>,
    {
        self.rounds(
            &mut |publisher: &mut StatePublisher<T>, number| {
                publisher.publish(&make(number)).expect("it fits");
            },
            |subscriber, number| receive(subscriber, make(number)),
            around,
        );
    }

    /// Records of a log that goes round its ring, received in place.
    fn views(self, around: Around<'_>) {
        let Self { dir, delivery, len, .. } = self;
        let publishing = Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node");
        let builder = publishing.log_publisher::<Raw>("t").payload_len_max(len).gating(Gating::new());
        let mut publisher = builder.open().expect("a topic");
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.log_subscriber::<Raw>("shm:p/t").delivery(delivery);
        let mut subscriber = builder.slow(SlowPolicy::Block).open().expect("a subscription");
        let (mut pattern, mut number, mut in_place) = (Pattern::new(len), 0, 0);
        let mut bytes = vec![0_u64; len / size_of::<u64>()];
        let mut round = |may_wait: bool| {
            number += 1;
            publisher.publish(pattern.value(number)).expect("it fits");
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut bytes);
            let mut is_there = || match subscriber.try_receive_view().expect("a receive") {
                Some(view) => {
                    let read = view.read_at(0, bytes);
                    assert!(is_whole(bytes.split_at(read).0, number, len) && view.is_intact());
                    let (mut chunks, mut sum) = (view.chunks(), 0);
                    while let Some(chunk) = chunks.next_chunk() {
                        sum += chunk.len();
                    }
                    assert_eq!(sum, read);
                    in_place += u64::from(view.is_in_place());
                    true
                }
                None => false,
            };
            let is_at_once = is_there();
            if !is_at_once {
                assert!(may_wait, "a record");
                wait_until("a record", is_there);
            }
            is_at_once
        };
        repeat(&mut round, around);
        assert!(in_place > ROUNDS / 2, "{in_place} of {number} in place");
    }

    /// Records of a log that goes round its ring: so many per commit, received one by one.
    fn logs(self, batch: u64, policy: SlowPolicy, around: Around<'_>) {
        let Self { dir, delivery, len, is_told } = self;
        let publishing = Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node");
        let builder = publishing.log_publisher::<Raw>("t").payload_len_max(len).gating(Gating::new());
        let mut publisher = builder.open().expect("a topic");
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.log_subscriber::<Raw>("shm:p/t").delivery(delivery).slow(policy);
        let builder = if is_told { builder.notices() } else { builder };
        let mut subscriber = builder.open().expect("a subscription");
        assert_eq!(subscriber.notice_path() == NoticePath::WakeWord, is_told);
        let mut pattern = Pattern::new(len);
        let mut number = 0;
        // Returns whether it did not have to wait.
        let mut round = |may_wait: bool| {
            for ahead in 1..batch {
                publisher.append(pattern.value(number + ahead)).expect("it fits");
            }
            let last = pattern.value(number + batch);
            // Written in place by about every other commit.
            if number.is_multiple_of(2) {
                publisher.publish(last).expect("it fits");
            } else {
                let mut loan = publisher.loan().expect("nobody is waited for");
                last.chunks(1000).for_each(|part| loan.append(part).expect("it fits"));
                loan.commit();
            }
            let mut is_at_once = true;
            for _ in 0..batch {
                number += 1;
                let mut is_there = || match subscriber.try_receive_ref().expect("a receive") {
                    Some(record) => {
                        assert!(is_whole(record.bytes, number, len));
                        true
                    }
                    None => false,
                };
                if !is_there() {
                    assert!(may_wait, "a record");
                    is_at_once = false;
                    wait_until("a record", is_there);
                }
            }
            assert!(subscriber.try_receive_ref().expect("a receive").is_none());
            is_at_once
        };
        repeat(&mut round, around);
    }

    /// Records that a persistent subscriber receives.
    fn persistent_logs(self, around: Around<'_>) {
        let Self { dir, delivery, len, .. } = self;
        let publishing = Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node");
        let mut publisher =
            publishing.log_publisher::<Raw>("t").payload_len_max(len).open().expect("a topic");
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.log_subscriber::<Raw>("shm:p/t").delivery(delivery).persistent();
        let mut subscriber = builder.open().expect("a subscription");
        assert!(subscriber.is_attached());
        let mut pattern = Pattern::new(len);
        let mut number = 0;
        let mut round = |may_wait: bool| {
            number += 1;
            publisher.publish(pattern.value(number)).expect("it fits");
            let mut is_there = || {
                let received = subscriber.try_receive_with(|subscriber| {
                    let record = subscriber.try_receive_ref()?;
                    Ok(record.map(|record| is_whole(record.bytes, number, len)))
                });
                received.expect("a receive").inspect(|is_right| assert!(is_right)).is_some()
            };
            let is_at_once = is_there();
            if !is_at_once {
                assert!(may_wait, "a record");
                wait_until("a record", is_there);
            }
            is_at_once
        };
        repeat(&mut round, around);
    }

    /// Records of two lines, besides others that are lost.
    fn lines(self, lost: &[&str], around: Around<'_>) {
        let Self { dir, delivery, .. } = self;
        let node = |name: &str| {
            let builder = Node::builder().name(name).expect("a name");
            builder.runtime_dir(dir).open().expect("a node")
        };
        let nodes = ["a", "b"].map(node);
        let epoch = Epoch::new(1).expect("not zero");
        let open = |node: &Node| node.log_publisher::<u64>("t").epoch(epoch).open().expect("a topic");
        let mut publishers = nodes.each_ref().map(open);
        let others: Vec<(LogPublisher<u64>, Node)> =
            lost.iter().map(|name| node(name)).map(|node| (open(&node), node)).collect();
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.log_subscriber::<u64>("shm:a/t").delivery(delivery);
        let names = lost.iter().chain(&["b"]).map(|name| format!("shm:{name}/t"));
        let mut subscriber = builder.lines(names).open().expect("a subscription of each");
        drop(others);
        let mut number = 0;
        let mut round = |may_wait: bool| {
            number += 1;
            publishers.iter_mut().for_each(|publisher| _ = publisher.publish(&number).expect("it fits"));
            let mut is_there = || {
                let received = subscriber.try_receive().expect("a receive");
                received.inspect(|record| assert_eq!(record.value, number)).is_some()
            };
            let is_at_once = is_there();
            if !is_at_once {
                assert!(may_wait, "a record");
                wait_until("a record", is_there);
            }
            assert!(subscriber.try_receive().expect("a receive").is_none());
            is_at_once
        };
        repeat(&mut round, around);
        assert_eq!(subscriber.report().iter().filter(|line| !line.is_attached).count(), lost.len());
    }

    /// Changes of existing keys of a table: so many per commit.
    fn tables(self, batch: usize, around: Around<'_>) {
        let Self { dir, delivery, len, is_told } = self;
        let publishing = Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node");
        let builder = publishing.table_publisher::<u64, Numbers>("t").capacity(TABLE_KEYS);
        let mut publisher = builder.payload_len_max(len + 200).open().expect("a topic");
        let keys: Vec<u64> = (0..TABLE_KEYS as u64).collect();
        let mut values = vec![[0; 8]; TABLE_KEYS];
        publisher.put_batch(keys.iter().zip(&values)).expect("they fit");
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.table_subscriber::<u64, Numbers>("shm:p/t").delivery(delivery);
        let builder = if is_told { builder.notices() } else { builder };
        let mut subscriber = builder.open().expect("a subscription");
        assert_eq!(subscriber.notice_path() == NoticePath::WakeWord, is_told);
        let mut received = 0;
        wait_until("all keys", || {
            received += subscriber.changes().count();
            received == TABLE_KEYS
        });
        let (mut number, mut place) = (0, 0);
        // Returns whether it did not have to wait.
        let mut round = |may_wait: bool| {
            number += 1;
            place = (place + 7) % (TABLE_KEYS - batch);
            let changed = values.split_at_mut(place).1.split_at_mut(batch).0;
            changed.fill([number; 8]);
            let entries = keys.split_at(place).1.iter().zip(changed.iter());
            match batch {
                1 => entries.for_each(|(key, value)| _ = publisher.put(key, value).expect("it fits")),
                _ => _ = publisher.put_batch(entries).expect("they fit"),
            }
            let mut left = batch;
            let mut receive = || {
                for change in subscriber.changes() {
                    let change = change.expect("a change");
                    assert_eq!((change.value, change.replaced), (Some([number; 8]), 0));
                    left -= 1;
                }
                left == 0
            };
            let is_at_once = receive();
            if !is_at_once {
                assert!(may_wait, "all changes of a commit");
                wait_until("all changes of a commit", receive);
            }
            is_at_once
        };
        repeat(&mut round, around);
    }

    /// Records of existing keys of a feed: so many per event.
    fn feeds(self, batch: usize, around: Around<'_>) {
        let Self { dir, delivery, is_told, .. } = self;
        let publishing = Node::builder().name("p").expect("a name").runtime_dir(dir).open().expect("a node");
        let builder = publishing.feed_publisher::<u64, Numbers, Numbers>("f").capacity(TABLE_KEYS);
        let mut publisher = builder.open().expect("two topics");
        for key in 0..TABLE_KEYS as u64 {
            publisher.publish(&key, &[0; 8], &[0; 8]).expect("it fits");
        }
        let subscribing = Node::builder().runtime_dir(dir).open().expect("a node");
        let builder = subscribing.feed_subscriber::<u64, Numbers, Numbers>("shm:p/f").delivery(delivery);
        let builder = if is_told { builder.notices() } else { builder };
        let mut subscriber = builder.open().expect("two subscriptions");
        assert_eq!(subscriber.notice_path() == NoticePath::WakeWord, is_told);
        let mut received = 0;
        wait_until("all keys", || {
            received += usize::from(subscriber.try_update().expect("a value").is_some());
            received == TABLE_KEYS
        });
        let (mut number, mut first) = (0, 0);
        // Returns whether it did not have to wait.
        let mut round = |may_wait: bool| {
            number += 1;
            first = (first + 7) % (TABLE_KEYS - batch);
            let mut event = publisher.event();
            for key in first..first + batch {
                event.update(&(key as u64), &[number; 8], &[number; 8]).expect("it fits");
            }
            event.commit();
            let mut left = batch;
            let mut receive = || {
                while let Some(update) = subscriber.try_update().expect("no loss") {
                    left -= 1;
                    assert_eq!(update.ends_event(), left == 0);
                    let FeedUpdate::Record(update) = update else { panic!("a value") };
                    assert_eq!(update.record, [number; 8]);
                }
                left == 0
            };
            let is_at_once = receive();
            if !is_at_once {
                assert!(may_wait, "all records of an event");
                wait_until("all records of an event", receive);
            }
            is_at_once
        };
        repeat(&mut round, around);
    }

    fn rounds<T: Payload>(
        self,
        publish: &mut dyn FnMut(&mut StatePublisher<T>, u64),
        receive: impl Fn(&mut StateSubscriber<T>, u64),
        around: Around<'_>,
    ) {
        let publishing =
            Node::builder().name("p").expect("a name").runtime_dir(self.dir).open().expect("a node");
        let builder = publishing.state_publisher::<T>("t").payload_len_max(self.len);
        let mut publisher = builder.open().expect("a topic");
        let subscribing = Node::builder().runtime_dir(self.dir).open().expect("a node");
        let builder = subscribing.state_subscriber::<T>("shm:p/t").delivery(self.delivery);
        let builder = if self.is_told { builder.notices() } else { builder };
        let mut subscriber = builder.open().expect("a subscription");
        assert_eq!(subscriber.notice_path() == NoticePath::WakeWord, self.is_told);
        let mut number = 0;
        // A landing region is the node's at first, which may write late.
        let mut at_once = 0;
        while at_once < ROUNDS_BEFORE {
            number += 1;
            publish(&mut publisher, number);
            let mut received = || subscriber.try_receive_ref().expect("a receive").is_some();
            at_once = if received() { at_once + 1 } else { 0 };
            if at_once == 0 {
                wait_until("a value", received);
            }
        }
        let mut round = || {
            number += 1;
            publish(&mut publisher, number);
            receive(&mut subscriber, number);
        };
        (0..ROUNDS_BEFORE).for_each(|_| round());
        around(&mut || (0..ROUNDS).for_each(|_| round()));
    }
}

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_LEN: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(len: usize) {
    // The counters have no destructor and are there for as long as their thread.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let _ = ALLOCATED_LEN.try_with(|sum| sum.set(sum.get() + len));
}

// SAFETY: every method passes its arguments to the system's allocator, which upholds the trait's contract, and returns its
// result. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the conditions of this method, which are those of the one called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the conditions of this method, which are those of the one called.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len);
        // SAFETY: the caller keeps the conditions of this method, which are those of the one called.
        unsafe { System.realloc(pointer, layout, len) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0);
        // SAFETY: the caller keeps the conditions of this method, which are those of the one called.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Has the next system call of this thread end the process by `SIGSYS`. False if that is impossible.
fn forbid_system_calls() -> bool {
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).expect("a code of 16 bits");
    let mut end = libc::sock_filter { code, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS };
    let program = libc::sock_fprog { len: 1, filter: &raw mut end };
    // Without privileges a filter requires a thread that can gain none.
    if rustix::thread::set_no_new_privs(true).is_err() {
        return false;
    }
    // SAFETY: the arguments are those of this call: the mode, and a program that points to its one instruction. Both live until
    // it returns, and the kernel keeps a copy.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0 }
}
