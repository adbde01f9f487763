//! Nodes over RDMA verbs, on one host with a device: run by `tools/test` in a soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs --ignored --test-threads 1
//! ```

#![cfg(feature = "verbs")]

use std::path::Path;
use std::time::Duration;

use fabricast::{Address, Delivery, FabricError, Node, Raw, ReceiveError, StateSubscriber, SubscriberError};
use tempfile::TempDir;

use self::support::pattern::{Pattern, is_whole};
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const TOPIC: &str = "t";
const SIZE: usize = 64;
/// How long rates and processor time are measured.
const MEASURED: Duration = Duration::from_secs(3);

/// The address of this host that its RDMA device has.
fn host() -> String {
    std::env::var("SELF").unwrap_or_else(|_| "127.0.0.1".to_owned())
}

fn publishing(dir: &Path, name: &str) -> Node {
    let address = format!("rdma://{}:0", host());
    let builder = Node::builder().name(name).expect("a name").runtime_dir(dir);
    builder.rdma(&address).expect("an address").open().expect("a node")
}

/// Where a node is found by RDMA.
fn rdma(node: &Node) -> String {
    let rdma = |address: &&Address| matches!(address, Address::Rdma { .. });
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

/// Waits for the value of this sequence, and looks at each before it.
fn take(subscriber: &mut StateSubscriber<Raw>, sequence: u64) {
    wait_until("the newest value", || match subscriber.try_receive_ref() {
        Ok(Some(sample)) => {
            assert!(is_whole(sample.bytes, sample.sequence.get(), SIZE));
            sample.sequence.get() == sequence
        }
        Ok(None) | Err(ReceiveError::Contended { .. }) => false,
        Err(error) => panic!("{error}"),
    });
}

#[test]
fn role() {
    let Some(role) = Role::of_this_process() else { return };
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
            command => panic!("what is {command}?"),
        }
    }
}

/// A process that publishes, and where.
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
    let directory = watching.directory(&rdma(&node).parse().expect("an address")).expect("it answers");
    assert_eq!((directory.node.as_str(), directory.topics.len()), ("both", 1));
    drop(publisher);
    for mut subscriber in subscribers {
        wait_until("the end", || matches!(subscriber.try_receive(), Err(ReceiveError::Ended { .. })));
        let stats = subscriber.stats();
        assert_eq!((stats.received + stats.conflated, stats.rejected), (99, 0));
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn nobody_at_an_address_is_told_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = anonymous(dir.path());
    let target = format!("rdma://{}:7999/{TOPIC}", host());
    let error = node.state_subscriber::<Raw>(&target).open().expect_err("nobody listens");
    let nobody = |source: &FabricError| matches!(source, FabricError::NoSuchNode { .. });
    assert!(matches!(&error, SubscriberError::Unreachable { source, .. } if nobody(source)), "{error}");
}

/// Values received while the values do not change: one look is one or two READs.
fn looks(subscriber: &mut StateSubscriber<Raw>) -> u64 {
    let began = now();
    let mut looks = 0;
    while began.elapsed() < MEASURED {
        // Each that has nothing was completed by the publisher's device.
        let Ok(None) = subscriber.try_receive_ref() else { panic!("nothing was published") };
        looks += 1;
    }
    looks
}

/// READs that a device has answered, of all queue pairs, from its counters.
fn reads_answered() -> Option<u64> {
    let path = "/sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts";
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
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
        let before = reads_answered();
        looks(subscriber);
        reads_answered().zip(before).map_or(0, |(after, before)| after - before)
    };
    let running = rate(&mut subscriber);
    publisher.stop();
    let stopped = rate(&mut subscriber);
    println!("packets in {MEASURED:?}: {running} with a running publisher, {stopped} with a stopped one");
    assert!(stopped > 0 && stopped * 10 > running * 8, "{stopped} packets, {running} before");
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn eight_subscribers_cost_the_publisher_no_processor_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    // Nodes of their own, and so sessions and queue pairs of their own.
    let nodes: Vec<Node> = (0..8).map(|_| anonymous(dir.path())).collect();
    let mut subscribers: Vec<_> =
        nodes.iter().map(|node| subscribe(node, &address, Delivery::Pull)).collect();
    let sequence = publisher.ask_number("publish");
    subscribers.iter_mut().for_each(|subscriber| take(subscriber, sequence));
    // Its thread shows ten times a second that it lives, and looks after its sessions, whether they do something or not.
    let idle_ns = spent_ns(&publisher);
    let before_ns = publisher.cpu_ns();
    let began = now();
    let mut looks = 0_u64;
    while began.elapsed() < MEASURED {
        for subscriber in &mut subscribers {
            assert!(matches!(subscriber.try_receive_ref(), Ok(None)));
            looks += 1;
        }
    }
    let polled_ns = publisher.cpu_ns() - before_ns;
    println!(
        "processor time of the publisher in {MEASURED:?}: idle {idle_ns} ns, polled {polled_ns} ns, {looks} looks"
    );
    assert!(polled_ns < idle_ns * 2 + 50_000_000, "{polled_ns} ns, {idle_ns} ns idle");
}

/// Processor time that a process spends while nobody does anything.
fn spent_ns(publisher: &Peer) -> u64 {
    let before_ns = publisher.cpu_ns();
    let began = now();
    wait_until("some time to pass", || began.elapsed() >= MEASURED);
    publisher.cpu_ns() - before_ns
}

/// What the kernel keeps of this process: queue pairs, memory regions, completion queues, protection domains, files.
fn held() -> Vec<(String, usize)> {
    let pid = std::process::id();
    let count = |object: &str| {
        let output = std::process::Command::new("rdma").args(["resource", "show", object]).output();
        let output = output.expect("iproute2 is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let own = format!("pid {pid} ");
        (object.to_owned(), text.lines().filter(|line| line.contains(&own)).count())
    };
    let mut held: Vec<_> = ["qp", "mr", "cq", "pd", "cm_id"].into_iter().map(count).collect();
    let files = std::fs::read_dir("/proc/self/fd").expect("there are files").count();
    held.push(("files".to_owned(), files));
    held
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn two_hundred_sessions_leave_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, address) = publisher(&dir);
    let sequence = publisher.ask_number("publish");
    let cycle = |round: usize| {
        let node = anonymous(dir.path());
        let delivery = if round.is_multiple_of(2) { Delivery::Pull } else { Delivery::Push };
        let mut subscriber = subscribe(&node, &address, delivery);
        take(&mut subscriber, sequence);
    };
    // What a process keeps after its first session: devices and their events.
    (0..2).for_each(cycle);
    let holdings_before = publisher.holdings();
    let before = held();
    (0..200).for_each(cycle);
    println!("before {before:?}\nafter {:?}", held());
    assert_eq!(held(), before);
    wait_until("the publisher to forget them", || {
        let holdings = publisher.holdings();
        holdings.files <= holdings_before.files && holdings.regions <= holdings_before.regions
    });
    assert_eq!(publisher.ask_number("subscribers"), 0);
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

/// Bytes of memory that a process of little means may lock.
const LOCKED_MAX: u64 = 8 << 20;
/// A payload with which a repository takes more than that.
const LARGE: usize = 4 << 20;

/// Gives up the right to lock as much memory as one likes, for this thread and those that it starts.
fn limit_locked_memory() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let limit = Rlimit { current: Some(LOCKED_MAX), maximum: Some(LOCKED_MAX) };
    setrlimit(Resource::Memlock, limit).expect("a limit can be lowered");
    let mut sets = capabilities(None).expect("a thread has capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("a capability can be given up");
}

/// Whether an error says that too little memory may be locked, and how to change that.
#[track_caller]
fn assert_locked_memory(error: &str) {
    assert!(error.contains("the limit of locked memory is 8388608; raise it with"), "{error}");
}

/// A publisher of large values and one of small ones.
fn publish_both(node: &Node) -> [Result<fabricast::StatePublisher<Raw>, fabricast::PublisherError>; 2] {
    [("large", LARGE), ("small", SIZE)]
        .map(|(topic, len)| node.state_publisher::<Raw>(topic).payload_len_max(len).open())
}

/// A process that may lock little memory, and what it is told.
fn limited(role: &Role) {
    limit_locked_memory();
    match role.name.as_str() {
        "limited subscriber" => {
            let node = anonymous(&role.dir);
            let open = |topic: &str| {
                let target = format!("{}/{topic}", role.argument(0));
                node.state_subscriber::<Raw>(&target).push().timeout(PATIENCE).open()
            };
            let _small = open("small").expect("room for a small one");
            role.say(open("large").expect_err("no room for a large one"));
            // What stands behind it in the same session goes on.
            let _other = open("small").expect("room for another small one");
            role.say("goes on");
        }
        "limited listening publisher" => {
            let builder = Node::builder().name("limited").expect("a name").runtime_dir(&role.dir);
            let node = builder.rdma("rdma://0.0.0.0:7472").expect("an address").open().expect("a node");
            let [large, small] = publish_both(&node);
            role.say(large.expect_err("no room for a large one"));
            let _small = small.expect("room for a small one");
            role.command();
        }
        "limited dialling publisher" => {
            let node = anonymous(&role.dir);
            let _publishers = publish_both(&node).map(|it| it.expect("nothing is registered yet"));
            let address = role.argument(0).parse().expect("an address");
            loop {
                let topic = role.command();
                match node.dial_subscriber(&topic, &address, PATIENCE) {
                    Ok(()) => role.say("attached"),
                    Err(error) => role.say(error),
                }
            }
        }
        role => panic!("what is a {role}?"),
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_subscriber_that_may_lock_too_little_memory_is_told() {
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
fn a_publisher_on_all_devices_that_may_lock_too_little_memory_is_told() {
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
fn a_publisher_that_dials_and_may_lock_too_little_memory_is_told_and_so_is_its_subscriber() {
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
        assert_locked_memory(&accepted.expect_err("no room for a large one").to_string());
    }
}
