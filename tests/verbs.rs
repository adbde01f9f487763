//! Nodes over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast::{
    Address, Delivery, ErrorChain, FabricError, LogSubscriber, Node, NoticePath, Raw, RdmaConnect,
    ReceiveError, StateSubscriber, SubscriberError, TopicReport,
};
use rustix::process::Signal;
use tempfile::TempDir;

use self::support::attempts::one_of_three;
use self::support::files::raise_files;
use self::support::pattern::{Pattern, is_whole};
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const TOPIC: &str = "t";
const SIZE: usize = 64;

/// How long rates are measured in a turn: long enough for a stopped publisher to count as hung.
const MEASURED: Duration = Duration::from_secs(3);
/// Turns of a running and of a stopped publisher: other work on the host slows both alike.
const TURNS: u32 = 3;

/// Subscribers whose polling must cost the publisher nothing.
const SUBSCRIBERS: usize = 8;
/// How long they poll without a pause, or do nothing, in turns.
const ROUND: Duration = Duration::from_millis(600);
const ROUNDS: u32 = 5;

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

/// The device that owns this address, according to its GID table.
fn device() -> PathBuf {
    let address: Ipv4Addr = host().parse().expect("FABRICAST_VERBS_ADDRESS is an IPv4 address");
    let words: Vec<String> =
        address.to_ipv6_mapped().segments().iter().map(|word| format!("{word:04x}")).collect();
    let files =
        |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path());
    let ports = files("/sys/class/infiniband".into()).flat_map(|device| files(device.join("ports")));
    let has_address =
        |gid: PathBuf| std::fs::read_to_string(gid).is_ok_and(|gid| gid.trim() == words.join(":"));
    let port = ports.into_iter().find(|port| files(port.join("gids")).any(has_address));
    port.unwrap_or_else(|| panic!("no RDMA device has the address {address}"))
}

fn publishing(dir: &Path, name: &str) -> Node {
    let address = format!("rdma://{}:0", host());
    let builder = Node::builder().name(name).expect("a name").runtime_dir(dir);
    builder.rdma(&address).expect("an address").insecure().open().expect("a node")
}

/// The node's RDMA address.
fn rdma(node: &Node) -> String {
    let rdma = |address: &&Address| !address.is_local();
    node.addresses().iter().find(rdma).expect("it listens").to_string()
}

fn subscribe(node: &Node, address: &str, delivery: Delivery) -> StateSubscriber<Raw> {
    let target = format!("{address}/{TOPIC}");
    let builder = node.state_subscriber::<Raw>(&target).delivery(delivery).timeout(PATIENCE);
    builder.open().expect("a subscription")
}

fn anonymous(dir: &Path) -> Node {
    Node::builder().runtime_dir(dir).open().expect("a node")
}

/// Waits for the value of this sequence, and checks each before it.
fn take(subscriber: &mut StateSubscriber<Raw>, sequence: u64) {
    wait_until("the newest value", || match subscriber.try_receive_ref() {
        Ok(Some(sample)) => {
            assert!(is_whole(sample.bytes, sample.meta.sequence.get(), SIZE));
            sample.meta.sequence.get() == sequence
        }
        Ok(None) | Err(ReceiveError::Contended { .. }) => false,
        Err(error) => panic!("{error}"),
    });
}

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    if role.name != "publisher" {
        return limited(&role);
    }
    let node = publishing(&role.dir, "publisher");
    let mut publisher = node.state_publisher::<Raw>(TOPIC).payload_len_max(SIZE).open().expect("a topic");
    let mut pattern = Pattern::new(SIZE);
    role.say(rdma(&node));
    loop {
        match role.command().as_str() {
            "publish" => {
                let value = pattern.value(publisher.newest().get() + 1);
                role.say(publisher.publish(value).expect("it fits"));
            }
            "subscribers" => role.say(publisher.pull_subscribers() + publisher.push_subscribers()),
            command => panic!("unknown value: {command}"),
        }
    }
}

/// A process that publishes, and its address.
fn publisher(dir: &TempDir) -> (Peer, String) {
    let mut publisher = Peer::start("publisher", dir.path(), "");
    let address = publisher.hear();
    (publisher, address)
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn one_node_serves_shared_memory_and_rdma_from_the_same_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path(), "both");
    let mut publisher = node.state_publisher::<Raw>(TOPIC).payload_len_max(SIZE).open().expect("a topic");
    let watching = anonymous(dir.path());
    let mut subscribers = Vec::new();
    for address in ["shm:both".to_owned(), rdma(&node)] {
        for delivery in [Delivery::Pull, Delivery::Push] {
            subscribers.push(subscribe(&watching, &address, delivery));
        }
    }
    let mut pattern = Pattern::new(SIZE);
    for sequence in 1..100 {
        publisher.publish(pattern.value(sequence)).expect("it fits");
        subscribers.iter_mut().for_each(|subscriber| take(subscriber, sequence));
    }
    let directory = watching.directory(rdma(&node)).expect("it answers");
    assert_eq!((directory.node.as_str(), directory.topics.len()), ("both", 1));
    drop(publisher);
    for mut subscriber in subscribers {
        wait_until("the end", || matches!(subscriber.try_receive(), Err(ReceiveError::Ended { .. })));
        let stats = subscriber.stats();
        assert_eq!((stats.received + stats.conflated + stats.cut_off, stats.rejected), (99, 0));
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn every_connection_method_serves_subscribers_that_dial_and_that_are_dialled() {
    let dir = tempfile::tempdir().expect("a directory");
    for (connect, deliveries) in [
        (RdmaConnect::Manager, &[Delivery::Pull, Delivery::Push][..]),
        (RdmaConnect::Tcp, &[Delivery::Pull, Delivery::Push]),
        (RdmaConnect::TcpUnreliable, &[Delivery::Push]),
    ] {
        let open = |name: &str| {
            let builder =
                Node::builder().name(name).expect("a name").runtime_dir(dir.path()).rdma_connect(connect);
            builder
                .rdma(&format!("rdma://{}:0", host()))
                .expect("an address")
                .insecure()
                .open()
                .expect("a node")
        };
        let (publishing, subscribing) = (open("publishing"), open("subscribing"));
        let builder = publishing.state_publisher::<Raw>(TOPIC).payload_len_max(SIZE);
        let mut publisher = builder.open().expect("a topic");
        let desk = rdma(&subscribing);
        let mut subscribers = Vec::new();
        for delivery in deliveries {
            subscribers.push(subscribe(&subscribing, &rdma(&publishing), *delivery));
            let listener =
                subscribing.state_listener::<Raw>(TOPIC).delivery(*delivery).open().expect("a listener");
            let dialled = std::thread::scope(|scope| {
                let accepted = scope.spawn(|| listener.accept_timeout(PATIENCE).expect("a publisher"));
                publishing.dial_subscriber(TOPIC, &desk, PATIENCE).expect("a listener");
                accepted.join().expect("it accepts").expect("a dialling publisher")
            });
            subscribers.push(dialled);
        }
        let mut pattern = Pattern::new(SIZE);
        for sequence in 1..20 {
            publisher.publish(pattern.value(sequence)).expect("it fits");
            subscribers.iter_mut().for_each(|subscriber| take(subscriber, sequence));
        }
        drop(publisher);
        for subscriber in &mut subscribers {
            wait_until("the end", || matches!(subscriber.try_receive(), Err(ReceiveError::Ended { .. })));
        }
    }
}

/// Bytes of a log record, and how many records a publisher is ahead of its slowest subscriber at most.
const RECORD_LEN_MAX: usize = 5000;
const AHEAD_MAX: u64 = 300;

/// Records published to push subscribers.
const RECORDS: u64 = 6_000;

/// A record whose length and content follow from its number.
fn record(number: u64) -> Vec<u8> {
    let len =
        number.wrapping_mul(7919) % (RECORD_LEN_MAX as u64 / if number.is_multiple_of(8) { 1 } else { 20 });
    (0..len).map(|index| (index ^ number.wrapping_mul(31)).to_le_bytes()[0]).collect()
}

/// Receives records until the topic ends; returns how many were received, and how many were reported lost.
fn follow(mut subscriber: LogSubscriber<Raw>, progress: &AtomicU64) -> (u64, u64) {
    let (mut received, mut lost) = (0, 0);
    loop {
        let next = subscriber.next_sequence().get();
        match subscriber.receive_timeout(PATIENCE) {
            Ok(Some(found)) => {
                assert_eq!((found.meta.sequence.get(), found.value), (next, record(next)));
                received += 1;
            }
            Ok(None) => panic!("neither a record nor the end after {next}"),
            Err(
                ReceiveError::Lapped { first_lost, count }
                | ReceiveError::DamagedRecords { first_lost, count }
                | ReceiveError::CutOff { first_lost, count },
            ) => {
                assert_eq!(first_lost.get(), next);
                lost += count;
            }
            Err(ReceiveError::Ended { published }) => {
                assert_eq!(published.get(), received + lost);
                return (received, lost);
            }
            Err(error) => panic!("{error}"),
        }
        progress.store(received + lost, Ordering::Relaxed);
    }
}

/// Sleeping subscribers are woken by multicast datagrams.
#[test]
#[ignore = "needs an RDMA device"]
fn records_come_with_multicast_notices() {
    let dir = tempfile::tempdir().expect("a directory");
    let publishing = publishing(dir.path(), "publishing");
    let mut publisher = publishing.log_publisher::<Raw>(TOPIC).open().expect("a topic");
    let target = format!("{}/{TOPIC}", rdma(&publishing));
    let nodes = [anonymous(dir.path()), anonymous(dir.path())];
    let mut subscribers = nodes.each_ref().map(|node| {
        let builder = node.log_subscriber::<Raw>(&target).notices().timeout(PATIENCE);
        builder.open().expect("a subscription")
    });
    for subscriber in &mut subscribers {
        wait_until("notices that are sent to all", || {
            assert!(subscriber.try_receive().expect("the topic is there").is_none());
            subscriber.notice_path() == NoticePath::Multicast
        });
    }
    for number in 1..=20_u64 {
        publisher.publish(&number.to_le_bytes()).expect("it fits");
        for subscriber in &mut subscribers {
            let record = subscriber.receive_timeout(PATIENCE).expect("the topic is there").expect("a record");
            assert_eq!((record.meta.sequence.get(), record.value), (number, number.to_le_bytes().to_vec()));
        }
    }
    for subscriber in &subscribers {
        let counts = subscriber.notice_counts();
        assert!(counts.inline_taken >= 20 && counts.inline_dropped == 0, "{counts:?}");
        assert_eq!(subscriber.notice_path(), NoticePath::Multicast);
    }
}

/// Publishes records to two push subscribers over RDMA, and returns their counts.
fn push_records(connect: RdmaConnect, count: u64, is_paced: bool) -> [(u64, u64); 2] {
    let dir = tempfile::tempdir().expect("a directory");
    let publishing = publishing(dir.path(), "publishing");
    let builder = publishing.log_publisher::<Raw>(TOPIC).payload_len_max(RECORD_LEN_MAX);
    let mut publisher = builder.capacity(1 << 20).open().expect("a topic");
    let progress = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let following = progress.each_ref().map(|progress| {
            let builder = Node::builder().runtime_dir(dir.path()).rdma_connect(connect);
            let node = builder.open().expect("a node");
            let target = format!("{}/{TOPIC}", rdma(&publishing));
            let builder = node.log_subscriber::<Raw>(&target).push().earliest().timeout(PATIENCE);
            let subscriber = builder.open().expect("a subscription");
            scope.spawn(move || follow(subscriber, progress))
        });
        let began = now();
        for number in 1..=count {
            publisher.append(&record(number)).expect("it fits");
            if number % 3 == 0 {
                publisher.commit();
            }
            let slowest = || progress.iter().map(|it| it.load(Ordering::Relaxed)).min().unwrap_or(0);
            while is_paced && slowest() + AHEAD_MAX < number {
                publisher.commit();
                std::thread::yield_now();
            }
        }
        publisher.commit();
        // Over an unreliable connection the end, which comes over TCP, may overtake the last records.
        let has_come = || progress.iter().all(|it| it.load(Ordering::Relaxed) == count);
        if is_paced {
            wait_until("all records", has_come);
        }
        drop(publisher);
        let outcomes = following.map(|thread| thread.join().expect("it ends"));
        println!("{count} records, {connect:?}, paced: {is_paced}: {outcomes:?} in {:?}", began.elapsed());
        outcomes
    })
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn records_of_a_log_are_pushed_to_two_subscribers_whole_and_in_order() {
    for connect in [RdmaConnect::Manager, RdmaConnect::Tcp] {
        let outcomes = push_records(connect, RECORDS, true);
        assert_eq!(outcomes, [(RECORDS, 0); 2], "{connect:?}");
    }
}

/// Nothing is lost over loopback, and the publisher need not hear of its subscribers' progress while they
/// keep up. `follow` returns at the end of the topic.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn records_of_a_log_are_pushed_over_an_unreliable_connection_in_order_up_to_the_end() {
    let outcomes = push_records(RdmaConnect::TcpUnreliable, RECORDS, true);
    assert_eq!(outcomes, [(RECORDS, 0); 2]);
}

/// A publisher that does not wait: received and lost records together are all records, in order.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn records_pushed_faster_than_the_wire_takes_them_are_accounted_for() {
    for connect in [RdmaConnect::Manager, RdmaConnect::TcpUnreliable] {
        for (received, lost) in push_records(connect, RECORDS, false) {
            assert!(received > 100 && received + lost == RECORDS, "{received} and {lost}");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn an_unreliable_queue_pair_does_not_pull() {
    let dir = tempfile::tempdir().expect("a directory");
    let publishing = publishing(dir.path(), "publishing");
    let _publisher = publishing.state_publisher::<Raw>(TOPIC).payload_len_max(SIZE).open().expect("a topic");
    let node = Node::builder().runtime_dir(dir.path()).rdma_connect(RdmaConnect::TcpUnreliable).open();
    let target = format!("{}/{TOPIC}", rdma(&publishing));
    let error =
        node.expect("a node").state_subscriber::<Raw>(&target).open().expect_err("there are no READs");
    let error = ErrorChain(&error).to_string();
    assert!(error.contains("push only"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn an_address_without_a_node_is_reported_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = anonymous(dir.path());
    let target = format!("rdma://{}:7999/{TOPIC}", host());
    let error = node.state_subscriber::<Raw>(&target).open().expect_err("nobody listens");
    let nobody = |source: &FabricError| matches!(source, FabricError::NoSuchNode { .. });
    assert!(matches!(&error, SubscriberError::Unreachable { source, .. } if nobody(source)), "{error}");
}

/// Polls for a turn while the values do not change: one poll is one or two READs.
fn poll_for_a_turn(subscriber: &mut StateSubscriber<Raw>) {
    let began = now();
    while began.elapsed() < MEASURED {
        // The publisher's device has completed each poll that found nothing.
        let Ok(None) = subscriber.try_receive_ref() else { panic!("nothing was published") };
    }
}

/// Packets received by the device for all queue pairs. Both ends are on it: a READ with its answer is two.
fn packets() -> u64 {
    let text = std::fs::read_to_string(device().join("hw_counters/rcvd_pkts"));
    text.expect("soft-RoCE counts packets").trim().parse().expect("a number")
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_stopped_publisher_is_read_at_full_rate() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    let node = anonymous(dir.path());
    let mut subscriber = subscribe(&node, &address, Delivery::Pull);
    let sequence = publisher.ask_number("publish");
    take(&mut subscriber, sequence);
    let rate = |subscriber: &mut StateSubscriber<Raw>| {
        let before = packets();
        poll_for_a_turn(subscriber);
        packets() - before
    };
    one_of_three(|| {
        let (mut running, mut stopped) = (0, 0);
        for _ in 0..TURNS {
            running += rate(&mut subscriber);
            publisher.stop();
            stopped += rate(&mut subscriber);
            publisher.signal(Signal::CONT);
        }
        println!("packets: {running} with a running publisher, {stopped} with a stopped one");
        assert!(stopped > 0, "{running} before");
        let is_full = stopped * 10 > running * 8;
        if is_full { Ok(()) } else { Err(format!("{stopped} packets, {running} before")) }
    });
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn eight_subscribers_cost_the_publisher_no_processor_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    // Separate nodes, so separate sessions and queue pairs.
    let nodes: Vec<Node> = (0..SUBSCRIBERS).map(|_| anonymous(dir.path())).collect();
    let mut subscribers: Vec<_> =
        nodes.iter().map(|node| subscribe(node, &address, Delivery::Pull)).collect();
    let sequence = publisher.ask_number("publish");
    subscribers.iter_mut().for_each(|subscriber| take(subscriber, sequence));
    one_of_three(|| cost_nothing(&publisher, &mut subscribers));
}

/// Whether the publisher uses no more processor time while these subscribers poll than while none does.
fn cost_nothing(publisher: &Peer, subscribers: &mut [StateSubscriber<Raw>]) -> Result<(), String> {
    let (mut idle, mut polled) = (Cost::default(), Cost::default());
    let mut heartbeats = [0; SUBSCRIBERS];
    let mut reads = 0;
    for _ in 0..ROUNDS {
        let began = now();
        idle.add(publisher, || wait_until("some time to pass", || began.elapsed() >= ROUND));
        let packets_before = packets();
        let began = now();
        polled.add(publisher, || {
            while began.elapsed() < ROUND {
                subscribers.iter_mut().for_each(|it| assert!(matches!(it.try_receive_ref(), Ok(None))));
            }
            // Each has read new content of the publisher's memory by a completed READ.
            for (subscriber, last) in subscribers.iter_mut().zip(&mut heartbeats) {
                let heartbeat_ns = TopicReport::of(subscriber).expect("the headers").heartbeat_ns;
                assert!(heartbeat_ns > std::mem::replace(last, heartbeat_ns), "{heartbeat_ns}");
            }
        });
        reads += (packets() - packets_before) / 2;
    }
    println!("idle: {idle:?}; {reads} READs: {polled:?}");
    assert!(reads > 1000, "{reads} READs");
    // Its thread updates the heartbeat ten times a second, and probes idle peers less often. An
    // emulated machine takes varying time for that: how often the thread runs is exact.
    let is_as_idle =
        polled.turns <= idle.turns * 11 / 10 + 10 && polled.cpu_ns <= idle.cpu_ns * 3 / 2 + 10_000_000;
    if is_as_idle { Ok(()) } else { Err(format!("{polled:?}, idle {idle:?}")) }
}

/// The processor time of a process.
#[derive(Debug, Default)]
struct Cost {
    cpu_ns: u64,
    /// How often it was scheduled.
    turns: u64,
}

impl Cost {
    /// Adds the cost of the process meanwhile.
    fn add(&mut self, publisher: &Peer, meanwhile: impl FnOnce()) {
        let (cpu_ns, turns) = (publisher.cpu_ns(), publisher.turns());
        meanwhile();
        self.cpu_ns += publisher.cpu_ns() - cpu_ns;
        self.turns += publisher.turns() - turns;
    }
}

/// RDMA resources in the kernel of this program and its publisher, the only programs that use RDMA: queue pairs, memory
/// regions, completion queues, protection domains; and the open files of both.
fn held(processes: [u32; 2]) -> Vec<(&'static str, usize)> {
    let shown = |object: &'static str| {
        let output = std::process::Command::new("rdma").args(["resource", "show", object]).output();
        let output = output.expect("iproute2 is installed");
        assert!(output.status.success(), "rdma resource show {object}: {output:?}");
        // The kernel's own bear the name of a module. Others name the thread that created them, if it lives.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (object, text.lines().filter(|line| !line.contains(" comm [")).count())
    };
    let files = |process| std::fs::read_dir(format!("/proc/{process}/fd")).expect("there are files").count();
    let mut held: Vec<_> = ["qp", "mr", "cq", "pd", "cm_id"].into_iter().map(shown).collect();
    held.extend(processes.map(|process| ("files", files(process))));
    held
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn two_hundred_sessions_leave_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    let processes = [std::process::id(), publisher.pid().as_raw_nonzero().get().cast_unsigned()];
    // A value is published in each, so that the publisher holds what it writes to, and none after that.
    let open = |round: usize, publisher: &mut Peer| {
        let node = anonymous(dir.path());
        let delivery = if round.is_multiple_of(2) { Delivery::Pull } else { Delivery::Push };
        let mut subscriber = subscribe(&node, &address, delivery);
        let sequence = publisher.ask_number("publish");
        take(&mut subscriber, sequence);
        subscriber
    };
    // Processes keep devices and their events after the first session.
    for round in 0..2 {
        drop(open(round, &mut publisher));
        wait_until("the queue pairs to go", || count(&held(processes), "qp") == 0);
    }
    let (before, holdings_before) = (held(processes), publisher.holdings());
    for round in 0..2 {
        let subscriber = open(round, &mut publisher);
        let meanwhile = held(processes);
        println!("by {}: {meanwhile:?}", subscriber.delivery());
        // Each session has one of each at either end; completion queues are shared by purpose.
        for (object, ends) in [("qp", 2), ("mr", 2), ("cq", 2)] {
            assert!(
                count(&meanwhile, object) >= count(&before, object) + ends,
                "{object}, before {before:?}"
            );
        }
        drop(subscriber);
        wait_until("the queue pairs to go", || count(&held(processes), "qp") == 0);
    }
    (0..200).for_each(|round| drop(open(round, &mut publisher)));
    let (mut after, began) = (held(processes), now());
    while after != before && began.elapsed() < PATIENCE {
        std::thread::park_timeout(Duration::from_millis(10));
        after = held(processes);
    }
    println!("before {before:?}\nafter {after:?}");
    assert_eq!(after, before);
    wait_until("the publisher to forget them", || {
        let holdings = publisher.holdings();
        holdings.files <= holdings_before.files && holdings.regions <= holdings_before.regions
    });
    assert_eq!(publisher.ask_number("subscribers"), 0);
}

/// How often the thread of a node in this process has slept.
fn sleeps(process: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let read = |thread: &Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let mut threads = threads.flatten().map(|thread| thread.path());
    let thread = threads.find(|thread| read(thread, "comm").trim() == "fabricast-node");
    let status = read(&thread.expect("a node"), "status");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("the kernel counts them").trim().parse().expect("a number")
}

/// Liveness checks of sessions do not wake the node's thread: it updates the heartbeat ten times a second, and sleeps
/// otherwise.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn two_hundred_idle_sessions_do_not_wake_the_thread_of_the_publishers_node() {
    raise_files();
    let dir = tempfile::tempdir().expect("a directory");
    let (publisher, address) = publisher(&dir);
    let process = publisher.pid().as_raw_nonzero().get().cast_unsigned();
    let subscribers: Vec<_> =
        (0..200).map(|_| subscribe(&anonymous(dir.path()), &address, Delivery::Pull)).collect();
    // They have all they requested, and the last one has seen that for a while.
    std::thread::park_timeout(MEASURED);
    let (began, before) = (now(), sleeps(process));
    std::thread::park_timeout(MEASURED);
    let (count, elapsed) = (sleeps(process) - before, began.elapsed());
    println!("{count} wake-ups in {elapsed:?} beside {} sessions", subscribers.len());
    assert!(u128::from(count) <= elapsed.as_millis() / 100 + 20, "{count} wake-ups in {elapsed:?}");
}

/// The number of resources of one kind.
fn count(held: &[(&str, usize)], object: &str) -> usize {
    held.iter().find(|it| it.0 == object).map_or(0, |it| it.1)
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_killed_publisher_is_gone_for_both_deliveries() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    let node = anonymous(dir.path());
    let mut subscribers = [Delivery::Pull, Delivery::Push].map(|it| subscribe(&node, &address, it));
    let sequence = publisher.ask_number("publish");
    subscribers.iter_mut().for_each(|subscriber| take(subscriber, sequence));
    publisher.kill();
    for subscriber in &mut subscribers {
        let mut end = None;
        wait_until("the end", || {
            end = subscriber.try_receive().err();
            end.is_some()
        });
        assert!(matches!(end, Some(ReceiveError::Gone { .. })), "{end:?}");
    }
}

/// The locked memory limit of a constrained process, bytes.
const LOCKED_MAX: u64 = 8 << 20;
/// A payload with which a repository exceeds that.
const LARGE: usize = 4 << 20;

/// Gives up the right to lock unlimited memory, for this thread and those that it starts.
fn limit_locked_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let limit = Rlimit { current: Some(LOCKED_MAX), maximum: Some(LOCKED_MAX) };
    setrlimit(Resource::Memlock, limit).expect("a limit can be lowered");
    let mut sets = capabilities(None).expect("a thread has capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("a capability can be given up");
}

/// Checks that an error says that the locked memory limit is too low, and how to raise it.
#[track_caller]
fn assert_locked_memory(error: &str) {
    assert!(error.contains("the limit of locked memory is 8388608; raise it with"), "{error}");
}

/// A publisher of large values and one of small ones.
fn publish_both(node: &Node) -> [Result<fabricast::StatePublisher<Raw>, fabricast::PublisherError>; 2] {
    [("large", LARGE), ("small", SIZE)]
        .map(|(topic, len)| node.state_publisher::<Raw>(topic).payload_len_max(len).open())
}

/// A process with little lockable memory, and its errors.
fn limited(role: &Role) {
    limit_locked_memory();
    match role.name.as_str() {
        "limited subscriber" => {
            let node = anonymous(&role.dir);
            let open = |topic: &str| {
                let target = format!("{}/{topic}", role.argument(0));
                node.state_subscriber::<Raw>(&target).push().timeout(PATIENCE).open()
            };
            let _small = open("small").expect("memory for a small one");
            role.say(ErrorChain(&open("large").expect_err("no memory for a large one")));
            // Other topics of the same session continue.
            let _other = open("small").expect("memory for another small one");
            role.say("goes on");
        }
        "limited listening publisher" => {
            let builder = Node::builder().name("limited").expect("a name").runtime_dir(&role.dir);
            let node =
                builder.rdma("rdma://0.0.0.0:7472").expect("an address").insecure().open().expect("a node");
            let [large, small] = publish_both(&node);
            role.say(ErrorChain(&large.expect_err("no memory for a large one")));
            let _small = small.expect("memory for a small one");
            role.command();
        }
        "limited dialling publisher" => {
            let node = anonymous(&role.dir);
            let _publishers = publish_both(&node).map(|it| it.expect("nothing is registered yet"));
            let address = role.argument(0).to_owned();
            loop {
                let topic = role.command();
                match node.dial_subscriber(&topic, &address, PATIENCE) {
                    Ok(()) => role.say("attached"),
                    Err(error) => role.say(ErrorChain(&error)),
                }
            }
        }
        role => panic!("unknown value: {role}"),
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_subscriber_over_its_locked_memory_limit_gets_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path(), "both");
    let _publishers = publish_both(&node).map(|it| it.expect("a topic"));
    let began = now();
    let mut subscriber = Peer::start("limited subscriber", dir.path(), &rdma(&node));
    assert_locked_memory(&subscriber.hear());
    assert_eq!(subscriber.hear(), "goes on");
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_publisher_on_all_devices_over_its_locked_memory_limit_gets_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::start("limited listening publisher", dir.path(), "");
    assert_locked_memory(&publisher.hear());
    let node = anonymous(dir.path());
    let target = format!("rdma://{}:7472/small", host());
    let open = |delivery| node.state_subscriber::<Raw>(&target).delivery(delivery).timeout(PATIENCE).open();
    for delivery in [Delivery::Pull, Delivery::Push] {
        open(delivery).expect("a subscription");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_dialling_publisher_over_its_locked_memory_limit_reports_it_to_both_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path(), "both");
    let mut publisher = Peer::start("limited dialling publisher", dir.path(), &rdma(&node));
    for (topic, delivery) in [("large", Delivery::Pull), ("large", Delivery::Push), ("small", Delivery::Push)]
    {
        let listener = node.state_listener::<Raw>(topic).delivery(delivery).open().expect("a listener");
        publisher.tell(topic);
        let accepted = listener.accept_timeout(PATIENCE);
        let told = publisher.hear();
        if topic == "small" {
            assert_eq!((told.as_str(), accepted.is_ok()), ("attached", true));
            return;
        }
        assert_locked_memory(&told);
        let error = accepted.expect_err("no memory for a large one");
        assert_locked_memory(&ErrorChain(&error).to_string());
    }
}
