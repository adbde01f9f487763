//! A publisher in one process that never pauses, a subscriber in another that is overtaken all the time: no record of a log and no entry of
//! a table that it accepts may mix two.
//!
//! Every value shows whether it is whole, so that a torn one is noticed even if the library's own checks accept it. The environment sets
//! how many are received by each way:
//!
//! ```text
//! FABRICAST_TORN_READS=100000000 cargo test --release --test torn_records -- --nocapture
//! tools/soft-roce run -- torn_records --ignored --skip role --nocapture
//! ```

use std::path::Path;
use std::time::Duration;

use fabricast::{
    Delivery, LogPublisher, LogSubscriber, Node, Raw, ReceiveError, TablePublisher, TableSubscriber,
};
use parking_lot::Mutex;

use self::support::long::is_long;
use self::support::pattern::{Pattern, is_whole};
use self::support::peer::Peer;
#[cfg(feature = "verbs")]
use self::support::rdma;
use self::support::role::Role;
use self::support::time::{PATIENCE, now};

#[cfg(test)]
mod support;

/// The longest record of the log.
const RECORD_LEN_MAX: usize = 256;
/// So few records fit that a subscriber is overtaken while it reads.
const LOG_CAPACITY: usize = 4096;
/// Keys of the table.
const KEYS: u64 = 4;
/// Commits between two polls for a command.
const COMMITS_AT_A_TIME: u32 = 1024;
/// Calls between two checks of the time.
const CALLS_AT_A_TIME: u64 = 1024;
/// Fewer accepted values than this prove nothing.
const READS_MIN: u64 = 100;
/// When a run without a number of reads ends.
const RUN_LEN_MAX: Duration = Duration::from_secs(2);

/// One run at a time: each needs two processors.
static TURN: Mutex<()> = Mutex::new(());

/// A value of the table: each word follows from the commit.
type Words = [u64; 16];

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    accepted: u64,
    torn: u64,
    damaged: u64,
    lapped: u64,
    contended: u64,
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let mut builder = Node::builder().name("writer").expect("a name").runtime_dir(&role.dir);
    if role.has_argument(0) {
        builder = builder.rdma(role.argument(0)).expect("an address").insecure();
    }
    let node = builder.open().expect("a node");
    let mut publish = publisher(&node, &role.name);
    role.say("ready");
    while role.command_now().is_none() {
        (0..COMMITS_AT_A_TIME).for_each(|_| publish());
    }
    role.say("ended");
}

/// What publishes the next value of this kind of topic.
fn publisher(node: &Node, kind: &str) -> Box<dyn FnMut()> {
    match kind {
        "log" => {
            let builder = node.log_publisher::<Raw>("t").payload_len_max(RECORD_LEN_MAX);
            let mut log: LogPublisher<Raw> = builder.capacity(LOG_CAPACITY).open().expect("a topic");
            let mut pattern = Pattern::new(RECORD_LEN_MAX);
            Box::new(move || {
                let value = pattern.value(log.newest().get() + 1);
                log.publish(value).expect("it fits");
            })
        }
        _ => {
            let builder = node.table_publisher::<u64, Words>("t").capacity(8);
            let mut table: TablePublisher<u64, Words> = builder.open().expect("a topic");
            Box::new(move || {
                let commit = table.newest().get() + 1;
                table.put(&(commit % KEYS), &words(commit)).expect("it fits");
            })
        }
    }
}

fn words(commit: u64) -> Words {
    let mut word = commit;
    std::array::from_fn(|_| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word
    })
}

#[test]
fn no_torn_record_of_a_log_is_accepted() {
    receive_log(None);
}

#[test]
fn no_torn_entry_of_a_table_is_accepted() {
    receive_table(None);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn no_torn_record_of_a_log_is_accepted_over_rdma() {
    receive_log(Some(rdma::address(7760)));
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn no_torn_entry_of_a_table_is_accepted_over_rdma() {
    receive_table(Some(rdma::address(7761)));
}

/// A log over shared memory, or over RDMA at this address.
fn receive_log(address: Option<String>) {
    for delivery in [Delivery::Pull, Delivery::Push] {
        run("log", delivery, address.as_deref(), |node, topic| {
            let builder = node.log_subscriber::<Raw>(topic).delivery(delivery);
            let mut log: LogSubscriber<Raw> = builder.timeout(PATIENCE).open().expect("a subscription");
            move || {
                let record = log.try_receive_ref()?;
                Ok(record.map(|it| is_whole(it.bytes, it.meta.sequence.get(), RECORD_LEN_MAX)))
            }
        });
    }
}

/// A table over shared memory, or over RDMA at this address.
fn receive_table(address: Option<String>) {
    for delivery in [Delivery::Pull, Delivery::Push] {
        run("table", delivery, address.as_deref(), |node, topic| {
            let builder = node.table_subscriber::<u64, Words>(topic).delivery(delivery);
            let mut table: TableSubscriber<u64, Words> =
                builder.timeout(PATIENCE).open().expect("a subscription");
            move || {
                let Some(change) = table.try_change()? else { return Ok(None) };
                let commit = change.meta.sequence.get();
                Ok(Some(change.key == commit % KEYS && change.value == Some(words(commit))))
            }
        });
    }
}

/// Reads while the publisher of another process publishes. `open` returns what receives a value of a topic, and says whether it is whole.
fn run<R>(kind: &str, delivery: Delivery, address: Option<&str>, open: impl FnOnce(&Node, &str) -> R)
where
    R: FnMut() -> Result<Option<bool>, ReceiveError>,
{
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = Peer::ready(kind, dir.path(), address.unwrap_or_default());
    let topic = format!("{}/t", address.unwrap_or("shm:writer"));
    let outcome = read(dir.path(), |node| open(node, &topic));
    assert_eq!(writer.ask("end"), "ended");
    let over = if address.is_some() { " over RDMA" } else { "" };
    println!("{kind} by {delivery}{over}: {outcome:?}");
    assert_eq!((outcome.torn, outcome.damaged), (0, 0), "{kind} by {delivery}{over}: {outcome:?}");
    assert!(outcome.accepted >= READS_MIN, "{kind} by {delivery}{over}: {outcome:?}");
}

fn read<R>(dir: &Path, open: impl FnOnce(&Node) -> R) -> Outcome
where
    R: FnMut() -> Result<Option<bool>, ReceiveError>,
{
    let asked: Option<u64> = std::env::var("FABRICAST_TORN_READS").ok().and_then(|text| text.parse().ok());
    let usual = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let times = if is_long() { 50 } else { 1 };
    let usual = u64::from(times) * usual;
    let reads = asked.unwrap_or(usual);
    let len_max = if asked.is_some() { Duration::MAX } else { times * RUN_LEN_MAX };
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    let mut receive = open(&node);
    let (mut outcome, mut calls, began) = (Outcome::default(), 0_u64, now());
    while outcome.accepted < reads {
        calls += 1;
        if calls.is_multiple_of(CALLS_AT_A_TIME) {
            let more = if outcome.accepted < READS_MIN { PATIENCE } else { Duration::ZERO };
            if began.elapsed() >= len_max.max(more) {
                break;
            }
        }
        match receive() {
            Ok(Some(is_whole)) => {
                outcome.accepted += 1;
                outcome.torn += u64::from(!is_whole);
            }
            Ok(None) => std::hint::spin_loop(),
            Err(ReceiveError::Contended { .. }) => outcome.contended += 1,
            Err(ReceiveError::Lapped { count, .. }) => outcome.lapped += count,
            Err(ReceiveError::Damaged { .. } | ReceiveError::BrokenStamps { .. }) => outcome.damaged += 1,
            Err(error) => panic!("{error}"),
        }
    }
    outcome
}
