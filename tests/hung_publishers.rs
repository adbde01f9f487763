//! Publishers whose processes are stopped, as their subscribers' nodes see it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabricast::{Delivery, Event, EventSink, Node, ReceiveError, StateSubscriber};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{now, wait_until};

#[cfg(test)]
mod support;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    #[cfg(feature = "verbs")]
    let builder = match role.argument(0) {
        "shm" => builder,
        address => builder.rdma(address).expect("an address"),
    };
    let node = builder.open().expect("a node");
    let mut publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    publisher.publish(&1).expect("it fits");
    role.say("ready");
    loop {
        role.command();
        let sequence = publisher.publish(&2).expect("it fits");
        role.say(sequence.get().to_string());
    }
}

/// Counts a node's events.
#[derive(Debug, Default)]
struct Counts(Mutex<[u32; 2]>);

impl EventSink for Counts {
    fn event(&self, event: &Event) {
        let mut counts = self.0.lock().expect("no test panics with it");
        let [hung, recovered] = &mut *counts;
        match event {
            Event::Hung { peer, .. } if peer.as_str() == "p" => *hung += 1,
            Event::Recovered { peer, .. } if peer.as_str() == "p" => *recovered += 1,
            _ => {}
        }
    }
}

impl Counts {
    fn read(&self) -> [u32; 2] {
        *self.0.lock().expect("no test panics with it")
    }
}

/// A subscription of its own node, whose program receives nothing while the publisher hangs.
fn subscribe(dir: &Path, target: &str, delivery: Delivery) -> (Arc<Counts>, StateSubscriber<u64>, Node) {
    let counts = Arc::new(Counts::default());
    let sink: Arc<dyn EventSink> = Arc::<Counts>::clone(&counts);
    let node = Node::builder().runtime_dir(dir).events(sink).open().expect("a node");
    let mut subscriber =
        node.state_subscriber::<u64>(target).delivery(delivery).open().expect("a subscription");
    wait_until("the first value", || subscriber.try_receive().expect("a receive").is_some());
    (counts, subscriber, node)
}

/// Stops and kills a publisher there.
fn stop_and_kill(place: &str, target: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::ready("publisher", dir.path(), place);
    let mut watches = BOTH.map(|delivery| subscribe(dir.path(), target, delivery));
    for round in 1..=2 {
        publisher.stop();
        let began = now();
        wait_until("the hang to be noticed", || watches.iter().all(|(counts, ..)| counts.read()[0] == round));
        println!("noticed after {:?}", began.elapsed());
        assert!(began.elapsed() > Duration::from_millis(500), "a short pause is not a hang");
        publisher.signal(Signal::CONT);
        wait_until("its end", || watches.iter().all(|(counts, ..)| counts.read()[1] == round));
        assert!(watches.iter().all(|(counts, ..)| counts.read() == [round; 2]), "each once");
    }
    let newest = publisher.ask_number("publish");
    for (_, subscriber, _) in &mut watches {
        wait_until("the next value", || {
            subscriber
                .try_receive()
                .expect("it was not lost")
                .is_some_and(|value| value.meta.sequence.get() == newest)
        });
    }
    publisher.stop();
    wait_until("the last hang", || watches.iter().all(|(counts, ..)| counts.read()[0] == 3));
    publisher.kill();
    for (_, subscriber, _) in &mut watches {
        wait_until("its death", || matches!(subscriber.try_receive(), Err(ReceiveError::Gone { .. })));
    }
    assert!(watches.iter().all(|(counts, ..)| counts.read() == [3, 2]), "it did not recover");
}

#[test]
fn stopped_publisher_is_hung_until_it_continues() {
    stop_and_kill("shm", "shm:p/t");
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device"]
fn stopped_publisher_is_hung_until_it_continues_over_verbs() {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    stop_and_kill(&format!("rdma://{host}:7555"), &format!("rdma://{host}:7555/t"));
}
