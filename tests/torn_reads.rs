//! A writer in one process that never pauses, a reader in another: no accepted value may mix two.
//!
//! Every value shows whether it is whole (see `support::pattern`), so that a torn value is noticed even if the library's own
//! checks accept it. The environment sets how long a run takes:
//!
//! ```text
//! FABRICAST_TORN_READS=100000000 FABRICAST_TORN_SIZES=64,1024 FABRICAST_TORN_SLOTS=8 \
//!     cargo test --release --test torn_reads -- --nocapture
//! tools/soft-roce run -- torn_reads --ignored --skip role --nocapture
//! ```
//!
//! Built with `RUSTFLAGS="--cfg fabricast_skip_check"` the library accepts whatever it reads; this program then finds torn
//! values, which shows that they occur and are detected.

use std::path::Path;
use std::time::Duration;

use fabricast::{Delivery, Node, Raw, ReceiveError, StatePublisher, StateSubscriber};
use parking_lot::Mutex;

#[cfg(not(fabricast_skip_check))]
use self::support::long::is_long;
use self::support::pattern::{Pattern, is_whole};
use self::support::peer::Peer;
use self::support::rdma;
use self::support::role::Role;
use self::support::time::{PATIENCE, now};

#[cfg(test)]
mod support;

/// Values published between two polls for a command.
const PUBLISHES_AT_A_TIME: u32 = 1024;
/// Reads between two checks of the time.
const READS_AT_A_TIME: u64 = 1024;

/// Fewer accepted values than this prove nothing.
const READS_MIN: u64 = 100;

/// One run at a time: each needs two processors.
static TURN: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, Debug)]
struct Run {
    size: usize,
    slots: u32,
    delivery: Delivery,
    /// Where the writer listens over RDMA; 0 over shared memory.
    port: u16,
    /// How the writer writes: `publish` or `loan`.
    manner: &'static str,
    reads: u64,
    run_len_max: Duration,
    /// The run ends when this many torn values were accepted.
    torn_enough: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    accepted: u64,
    torn: u64,
    contended: u64,
    torn_retries: u64,
    conflated: u64,
    damaged: u64,
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    assert_eq!(role.name, "writer");
    let (size, slots, loans) = (role.number(0), role.number(1), role.argument(2) == "loan");
    let mut builder = Node::builder().name("writer").expect("a name").runtime_dir(&role.dir);
    if role.has_argument(3) {
        builder = builder.rdma(role.argument(3)).expect("an address").insecure();
    }
    let node = builder.open().expect("a node");
    let builder = node.state_publisher::<Raw>("t").payload_len_max(size);
    let slots = u32::try_from(slots).expect("a number of slots");
    let mut publisher = builder.slots(slots).open().expect("a topic");
    let mut pattern = Pattern::new(size);
    role.say("ready");
    while role.command_now().is_none() {
        for _ in 0..PUBLISHES_AT_A_TIME {
            write(&mut publisher, &mut pattern, loans);
        }
    }
    role.say(publisher.newest());
}

fn write(publisher: &mut StatePublisher<Raw>, pattern: &mut Pattern, loans: bool) {
    let value = pattern.value(publisher.newest().get() + 1);
    if loans {
        let mut loan = publisher.loan();
        let (first, second) = value.split_at(value.len() / 3);
        loan.append(first).and_then(|()| loan.append(second)).expect("the value fits");
        loan.commit();
    } else {
        publisher.publish(value).expect("the value fits");
    }
}

#[cfg(not(fabricast_skip_check))]
mod checked {
    use super::*;

    /// When a run without a number of reads ends: with fewer processors than processes, writer and reader alternate, and few
    /// values are new.
    const RUN_LEN_MAX: Duration = Duration::from_secs(2);

    /// The factor for runs where `FABRICAST_TEST_LONG` is 1.
    const LONG: u32 = 5;

    /// The factor for unoptimised code, which also shows less: few values are written during a read.
    const LESS_WITHOUT_OPTIMISATION: u64 = if cfg!(debug_assertions) { 30 } else { 1 };

    #[test]
    fn no_torn_value_is_accepted_by_pull() {
        each_size(Delivery::Pull, "publish", 0);
    }

    #[test]
    fn no_torn_value_is_accepted_by_pull_from_loans() {
        each_size(Delivery::Pull, "loan", 0);
    }

    #[test]
    fn no_torn_value_is_accepted_by_push() {
        each_size(Delivery::Push, "publish", 0);
    }

    #[cfg(feature = "verbs")]
    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn no_torn_value_is_accepted_by_pull_over_rdma() {
        each_size(Delivery::Pull, "publish", 7750);
    }

    #[cfg(feature = "verbs")]
    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn no_torn_value_is_accepted_by_push_over_rdma() {
        each_size(Delivery::Push, "publish", 7751);
    }

    fn each_size(delivery: Delivery, manner: &'static str, port: u16) {
        let asked = numbers("FABRICAST_TORN_READS").map(|reads| reads.iter().sum());
        let times = if is_long() { LONG } else { 1 };
        let run_len_max = if asked.is_some() { Duration::MAX } else { times * RUN_LEN_MAX };
        for size in numbers("FABRICAST_TORN_SIZES").unwrap_or_else(|| vec![64, 1024, 65_536]) {
            for slots in numbers("FABRICAST_TORN_SLOTS").unwrap_or_else(|| vec![2, 8]) {
                let usual = if size > 4096 { 60_000 } else { 300_000 } / LESS_WITHOUT_OPTIMISATION;
                let usual = u64::from(times) * usual;
                let reads = asked.unwrap_or(usual);
                let slots = u32::try_from(slots).expect("a number of slots");
                let size = usize::try_from(size).expect("a length");
                let run = Run { size, slots, delivery, port, manner, reads, run_len_max, torn_enough: 1 };
                let outcome = read(run);
                assert_eq!((outcome.torn, outcome.damaged), (0, 0), "{run:?}: {outcome:?}");
                assert!(outcome.accepted >= READS_MIN, "{run:?}: {outcome:?}");
            }
        }
    }

    /// Numbers between commas.
    fn numbers(variable: &str) -> Option<Vec<u64>> {
        let text = std::env::var(variable).ok()?;
        let number = |part: &str| part.trim().parse().unwrap_or_else(|_| panic!("{variable}: {part:?}"));
        Some(text.split(',').map(number).collect())
    }
}

#[cfg(fabricast_skip_check)]
mod unchecked {
    use super::*;

    #[test]
    fn unchecked_pull_reads_yield_torn_values() {
        finds_torn_values(Delivery::Pull, "publish");
    }

    #[test]
    fn unchecked_pull_reads_from_loans_yield_torn_values() {
        finds_torn_values(Delivery::Pull, "loan");
    }

    #[test]
    fn unchecked_push_reads_yield_torn_values() {
        finds_torn_values(Delivery::Push, "publish");
    }

    fn finds_torn_values(delivery: Delivery, manner: &'static str) {
        let mut torn = 0;
        for size in [1024, 65_536] {
            let (slots, reads, run_len_max) = (2, 50_000_000, Duration::from_secs(20));
            torn +=
                read(Run { size, slots, delivery, port: 0, manner, reads, run_len_max, torn_enough: 100 })
                    .torn;
        }
        assert!(torn > 0, "no torn value was seen: this program cannot see them");
    }
}

/// Reads while the writer writes, and reports the outcome.
fn read(run: Run) -> Outcome {
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = start(dir.path(), run);
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let topic =
        if run.port == 0 { "shm:writer/t".to_owned() } else { format!("{}/t", rdma::address(run.port)) };
    let builder = node.state_subscriber::<Raw>(topic.as_str()).delivery(run.delivery).timeout(PATIENCE);
    let mut subscriber = builder.open().expect("a subscription");
    let began = now();
    let mut outcome = Outcome::default();
    let mut first = None;
    let mut calls: u64 = 0;
    while outcome.accepted < run.reads && outcome.torn < run.torn_enough {
        calls += 1;
        if calls.is_multiple_of(READS_AT_A_TIME) {
            let more = if outcome.accepted < READS_MIN { PATIENCE } else { Duration::ZERO };
            if began.elapsed() >= run.run_len_max.max(more) {
                break;
            }
        }
        take(&mut subscriber, run.size, &mut outcome, &mut first);
    }
    let seconds = began.elapsed().as_secs_f64();
    let stats = subscriber.stats();
    (outcome.torn_retries, outcome.conflated) = (stats.torn_retries, stats.conflated);
    let published: u64 = writer.ask("end").parse().expect("a number");
    println!(
        "{} {}{}, {} bytes, {} slots: {} accepted, {} torn accepted, {} torn retries, {} contended, {} conflated, \
         {} damaged, {published} published, {seconds:.1} s",
        run.delivery,
        run.manner,
        if run.port == 0 { "" } else { " over RDMA" },
        run.size,
        run.slots,
        outcome.accepted,
        outcome.torn,
        outcome.torn_retries,
        outcome.contended,
        outcome.conflated,
        outcome.damaged,
    );
    // Every value from the first one on was received, or counted as replaced, or as damaged.
    let span = first.map_or(0, |first| subscriber.last().get() + 1 - first);
    assert_eq!(outcome.accepted + outcome.conflated + outcome.damaged, span, "{run:?}: {outcome:?}");
    outcome
}

fn start(dir: &Path, run: Run) -> Peer {
    let address = if run.port == 0 { String::new() } else { rdma::address(run.port) };
    Peer::ready("writer", dir, &format!("{} {} {} {address}", run.size, run.slots, run.manner))
}

#[inline]
fn take(subscriber: &mut StateSubscriber<Raw>, size: usize, outcome: &mut Outcome, first: &mut Option<u64>) {
    match subscriber.try_receive_ref() {
        Ok(Some(sample)) => {
            let sequence = sample.meta.sequence.get();
            outcome.accepted += 1;
            outcome.torn += u64::from(!is_whole(sample.bytes, sequence, size));
            // A torn value that is accepted may say the sequence of another.
            first.get_or_insert_with(|| subscriber.last().get());
        }
        Ok(None) => std::hint::spin_loop(),
        Err(ReceiveError::Contended { .. }) => outcome.contended += 1,
        Err(ReceiveError::Damaged { .. }) => outcome.damaged += 1,
        Err(error) => panic!("{error}"),
    }
}
