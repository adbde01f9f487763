//! Faults of hosts, networks and adapters between two hosts. Each pair of tests is the two hosts' parts, as in `tests/two_hosts.rs`:
//!
//! ```text
//! tools/soft-roce run2 'two_hosts_faults --ignored --nocapture --exact publisher_of_many_dead_subscribers' \
//!     'two_hosts_faults --ignored --nocapture --exact subscribers_that_die_together'
//! ```
//!
//! FABRICAST_TEST_PEERS is the number of nodes of the subscribers. FABRICAST_TEST_CONNECT=tcp connects queue pairs over TCP: the port that
//! goes down needs that, because soft-RoCE (Linux 6.1) never sends anything for the connection manager again after it could not send one
//! of its messages; rping hangs then, too.

#![cfg(feature = "verbs")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, Node, NodeBuilder, Persistent, RdmaConnect, ReceiveError, StatePublisher,
    StateSubscriber, SubscriberError,
};

use self::support::files::raise_files;
use self::support::slow::Recorder;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

const PORT: u16 = 7475;
/// The pause between two values: few enough for many subscribers of an emulated machine.
const PAUSE: Duration = Duration::from_millis(20);
const TOPIC: &str = "t";
/// The topic that has a subscriber when the pair of tests is over.
const OVER: &str = "over";
/// Nodes of subscribers, unless FABRICAST_TEST_PEERS overrides it.
const PEERS: usize = 30;
/// A dead host is noticed within this time: two seconds, and another one because an emulated machine is slow.
const NOTICED: Duration = Duration::from_secs(3);
/// How long dropping a node takes at most, however many peers are dead, and as much for an emulated machine.
const DROPPED: Duration = Duration::from_secs(5);
/// A request of which the answer is dropped ends the session within this time: five seconds, and one for a slow machine.
const UNANSWERED: Duration = Duration::from_secs(6);
/// A bond that fails over delays values by less than this, also in an emulated machine: it notices that within 100 ms.
const FAILED_OVER: Duration = Duration::from_secs(3);
/// How often it fails over.
const FAILOVERS: usize = 4;
/// How long a port is down.
const DOWN: Duration = Duration::from_secs(4);

fn host(variable: &str) -> String {
    let host = std::env::var(variable).expect("tools/soft-roce run2 sets the addresses");
    format!("rdma://{host}:{PORT}")
}

fn builder() -> NodeBuilder {
    let connect = match std::env::var("FABRICAST_TEST_CONNECT").as_deref() {
        Ok("tcp") => RdmaConnect::Tcp,
        _ => RdmaConnect::Manager,
    };
    Node::builder().runtime_dir("/tmp/fabricast-two-hosts-faults").rdma_connect(connect)
}

fn publishing_node() -> Node {
    let builder = builder().name("feed").expect("a name").rdma(&host("SELF")).expect("an address");
    builder.insecure().open().expect("a node")
}

fn run(program: &str, words: &str) {
    let status = Command::new(program).args(words.split(' ')).status().expect("a program");
    assert!(status.success(), "{program} {words}");
}

fn subscribers_of(publisher: &StatePublisher<u64>) -> u64 {
    publisher.pull_subscribers() + publisher.push_subscribers()
}

fn publish(publisher: &mut StatePublisher<u64>) {
    publisher.publish(&(publisher.newest().get() + 1)).expect("it fits");
}

/// Publishes now and then until this holds.
fn publish_until(
    publisher: &mut StatePublisher<u64>,
    what: &str,
    mut holds: impl FnMut(&StatePublisher<u64>) -> bool,
) {
    let began = now();
    while !holds(publisher) {
        assert!(began.elapsed() < 4 * PATIENCE, "timed out: {what}");
        publish(publisher);
        std::thread::park_timeout(PAUSE);
    }
}

/// Subscribes to a topic of the other host, once that is ready.
fn subscribe(node: &Node, topic: &str, delivery: Delivery) -> StateSubscriber<u64> {
    let mut opened: Option<Result<_, SubscriberError>> = None;
    wait_until("a subscription", || {
        let builder = node.state_subscriber::<u64>(format!("{}/{topic}", host("PEER")).as_str());
        opened = Some(builder.delivery(delivery).timeout(PATIENCE).open());
        matches!(&opened, Some(Ok(_)))
    });
    opened.expect("it was tried").expect("it was opened")
}

/// Waits for the end of a subscription. Returns how long it took.
fn await_end(subscriber: &mut StateSubscriber<u64>) -> (Duration, ReceiveError) {
    let (began, mut end) = (now(), None);
    wait_until("the end of a subscription", || {
        match subscriber.try_receive() {
            Ok(_) | Err(ReceiveError::Contended { .. }) => {}
            Err(error) => end = Some(error),
        }
        end.is_some()
    });
    (began.elapsed(), end.expect("it was awaited"))
}

/// Whether the connection was lost, and the error says why.
fn check_loss(end: &ReceiveError, why: &str) {
    let chain = ErrorChain(end).to_string();
    println!("{chain}");
    assert!(matches!(end, ReceiveError::Gone { .. }) && chain.contains(why), "{chain}");
}

fn peers() -> usize {
    std::env::var("FABRICAST_TEST_PEERS").ok().and_then(|text| text.parse().ok()).unwrap_or(PEERS)
}

/// Host A: nothing that it sends arrives any more, so all peers are dead to it; it drops its node before and after it has noticed that.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_of_many_dead_subscribers() {
    raise_files();
    let mut longest = Duration::ZERO;
    for round in 0..2 {
        let node = publishing_node();
        let mut publisher = node.state_publisher::<u64>(TOPIC).open().expect("a topic");
        let count = peers() as u64;
        publish_until(&mut publisher, "the subscribers", |it| subscribers_of(it) == count);
        println!("{count} subscribers are there");
        run("tc", "qdisc add dev eth0 root netem loss 100%");
        if round > 0 {
            publish_until(&mut publisher, "the end of the subscribers", |it| subscribers_of(it) == 0);
        }
        let began = now();
        drop(publisher);
        drop(node);
        let dropped = began.elapsed();
        println!("round {round}: the node was dropped within {dropped:?}");
        run("tc", "qdisc del dev eth0 root netem");
        longest = longest.max(dropped);
    }
    // Last, so that the other host need not wait for what this one has left out.
    assert!(longest < DROPPED, "TOO SLOW: {longest:?}");
}

/// Host B: many nodes with a subscriber each.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_that_die_together() {
    raise_files();
    for _ in 0..2 {
        let nodes: Vec<Node> = (0..peers()).map(|_| builder().open().expect("a node")).collect();
        let deliveries = [Delivery::Pull, Delivery::Push];
        let subscribers = nodes.iter().zip(deliveries.iter().cycle());
        let mut subscribers: Vec<_> =
            subscribers.map(|(node, delivery)| subscribe(node, TOPIC, *delivery)).collect();
        subscribers.iter_mut().for_each(|subscriber| _ = await_end(subscriber));
        let began = now();
        drop((subscribers, nodes));
        println!("the nodes were dropped within {:?}", began.elapsed());
    }
}

/// Host A: the port of the other host goes down and comes back.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_whose_subscribers_lose_their_port() {
    let node = publishing_node();
    let mut publisher = node.state_publisher::<u64>(TOPIC).open().expect("a topic");
    let over = node.state_publisher::<u64>(OVER).open().expect("a topic");
    publish_until(&mut publisher, "the subscribers", |it| subscribers_of(it) == 4);
    publish_until(&mut publisher, "the loss of the subscribers", |it| subscribers_of(it) == 0);
    println!("the subscribers are gone");
    publish_until(&mut publisher, "the persistent subscribers", |it| subscribers_of(it) == 2);
    publish_until(&mut publisher, "the end", |_| subscribers_of(&over) == 1);
}

/// Host B: sessions end in time, with an error that says why, and persistent subscribers continue when the port is back.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscribers_whose_port_goes_down() {
    let node = builder().open().expect("a node");
    let deliveries = [Delivery::Pull, Delivery::Push];
    let mut mortal = deliveries.map(|delivery| subscribe(&node, TOPIC, delivery));
    let target = format!("{}/{TOPIC}", host("PEER"));
    let persistent =
        |delivery| node.state_subscriber::<u64>(target.as_str()).delivery(delivery).persistent().open();
    let mut persistent: Vec<Persistent<StateSubscriber<u64>>> =
        deliveries.iter().map(|delivery| persistent(*delivery).expect("a name")).collect();
    let receive = |subscribers: &mut Vec<Persistent<StateSubscriber<u64>>>| {
        subscribers.iter_mut().filter_map(|it| it.try_receive().expect("no loss of the epoch")).count()
    };
    wait_until("values", || receive(&mut persistent) > 0);
    // The publisher has seen all four.
    wait_until("values of both", || persistent.iter().all(Persistent::is_attached));
    run("ip", "link set eth0 down");
    let went_down = now();
    for subscriber in &mut mortal {
        let (_, end) = await_end(subscriber);
        println!("{:?} ended after {:?}", subscriber.delivery(), went_down.elapsed());
        // A device sends nothing through a port that is down: some report that, others try again.
        check_loss(&end, "the connection to the peer failed");
    }
    let noticed = went_down.elapsed();
    wait_until("the port to have been down for long", || {
        receive(&mut persistent);
        went_down.elapsed() > DOWN
    });
    run("ip", "link set eth0 up");
    run("ip", "route add 224.0.0.0/4 dev eth0");
    let came_up = now();
    let mut newest = [0; 2];
    wait_within(PATIENCE, "the next values of both", || {
        for (subscriber, newest) in persistent.iter_mut().zip(&mut newest) {
            if let Some(sample) = subscriber.try_receive().expect("no loss of the epoch") {
                *newest = sample.value;
            }
        }
        newest.iter().all(|value| *value > 0)
    });
    println!("values again {:?} after the port was up", came_up.elapsed());
    drop(persistent);
    // The other host sees this subscriber, and ends.
    await_end(&mut subscribe(&node, OVER, Delivery::Push));
    assert!(noticed < NOTICED, "TOO SLOW: {noticed:?}");
}

/// Host A: sends messages all the time to a host that drops the answers to its READs.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publisher_whose_answers_are_dropped() {
    let node = publishing_node();
    let mut publisher = node.state_publisher::<u64>(TOPIC).open().expect("a topic");
    let over = node.state_publisher::<u64>(OVER).open().expect("a topic");
    publish_until(&mut publisher, "the end", |_| subscribers_of(&over) == 1);
}

/// Host B: a READ that is never answered ends, although the peer's messages arrive.
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn subscriber_whose_reads_are_not_answered() {
    let node = builder().open().expect("a node");
    let mut pull = subscribe(&node, TOPIC, Delivery::Pull);
    // In the same session. It waits, so each value comes with a message.
    let mut push = subscribe(&node, TOPIC, Delivery::Push);
    let waiting = std::thread::spawn(move || {
        let (mut received, mut last) = (0_u64, now());
        loop {
            match push.receive_timeout(PATIENCE) {
                Ok(value) => {
                    received += u64::from(value.is_some());
                    last = now();
                }
                Err(ReceiveError::Contended { .. }) => {}
                Err(_) => return (received, last),
            }
        }
    });
    wait_until("a value", || pull.try_receive().expect("a receive").is_some());
    run("tc", "qdisc add dev eth0 handle ffff: ingress");
    // The first, middle, last and only packets of answers to READs (opcodes 0x0d to 0x10) of RoCE v2.
    for (number, opcode) in (0x0d..=0x10).enumerate() {
        let udp = "match ip protocol 17 0xff match u16 4791 0xffff at 22";
        let filter = format!("filter add dev eth0 parent ffff: protocol ip prio {} u32 {udp}", number + 1);
        run("tc", &format!("{filter} match u8 {opcode:#x} 0xff at 28 action drop"));
    }
    let began = now();
    let (ended, end) = await_end(&mut pull);
    let (received, last) = waiting.join().expect("it does not panic");
    println!(
        "the READ ended after {ended:?}; {received} values by push, the last {:?} after the first drop",
        last - began
    );
    check_loss(&end, "stopped answering");
    run("tc", "qdisc del dev eth0 ingress");
    // The other host sees this subscriber, and ends.
    await_end(&mut subscribe(&node, OVER, Delivery::Push));
    assert!(ended < UNANSWERED, "TOO SLOW: {ended:?}");
    assert!(
        last - began > NOTICED,
        "messages did not arrive: it was the silence of the host that ended the session"
    );
}

/// Host A: publishes to a host whose interface is a bond.
#[test]
#[ignore = "needs another host: tools/soft-roce run2 --bond-b"]
fn publisher_to_a_bond() {
    let node = publishing_node();
    let mut publisher = node.state_publisher::<u64>(TOPIC).open().expect("a topic");
    let over = node.state_publisher::<u64>(OVER).open().expect("a topic");
    publish_until(&mut publisher, "the end", |_| subscribers_of(&over) == 1);
}

/// Host B: the active port of the bond goes down again and again. soft-RoCE ends a connection that sends at that moment, and the
/// subscriptions go on over another one.
#[test]
#[ignore = "needs another host: tools/soft-roce run2 --bond-b"]
fn subscribers_behind_a_bond_that_fails_over() {
    let events = Arc::new(Recorder::default());
    let node = builder().events(Arc::clone(&events) as _).open().expect("a node");
    let target = format!("{}/{TOPIC}", host("PEER"));
    let mut subscribers = [Delivery::Pull, Delivery::Push].map(|delivery| {
        let builder = node.state_subscriber::<u64>(target.as_str()).delivery(delivery);
        builder.persistent().open().expect("a name")
    });
    let of_bond = |file: &str| {
        let text = std::fs::read_to_string(format!("/sys/class/net/eth0/bonding/{file}")).expect("a bond");
        text.trim().to_owned()
    };
    let mut receive_after = |since: [u64; 2]| {
        let mut newest = since;
        wait_until("values of both", || {
            for (subscriber, newest) in subscribers.iter_mut().zip(&mut newest) {
                match subscriber.try_receive() {
                    Ok(sample) => *newest = sample.map_or(*newest, |sample| sample.value),
                    Err(ReceiveError::Contended { .. }) => {}
                    Err(error) => panic!("no loss of the epoch: {}", ErrorChain(&error)),
                }
            }
            newest.iter().zip(&since).all(|(newest, since)| newest > since)
        });
        newest
    };
    let (mut newest, mut longest) = (receive_after([0; 2]), Duration::ZERO);
    for _ in 0..FAILOVERS {
        let active = of_bond("active_slave");
        let before = events.all().len();
        run("ip", &format!("link set {active} down"));
        let began = now();
        wait_until("another port", || of_bond("active_slave") != active);
        let noticed = began.elapsed();
        // What was on its way may have arrived before.
        newest = receive_after(newest);
        newest = receive_after(newest);
        let delayed = began.elapsed();
        println!("{active} went down: the bond noticed it after {noticed:?}, values again after {delayed:?}");
        events.all().iter().skip(before).for_each(|event| println!("{event:?}"));
        longest = longest.max(delayed);
        run("ip", &format!("link set {active} up"));
        wait_until("the port to be up again", || {
            let state = std::fs::read_to_string(format!("/sys/class/net/{active}/bonding_slave/mii_status"));
            newest = receive_after(newest);
            state.expect("a port").trim() == "up"
        });
    }
    // The other host sees this subscriber, and ends.
    await_end(&mut subscribe(&node, OVER, Delivery::Push));
    assert!(longest < FAILED_OVER, "TOO SLOW: {longest:?}");
}
