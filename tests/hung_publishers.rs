//! Publishers whose processes are stopped, as their subscribers' nodes see it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fabricast::{Delivery, Event, EventSink, Node, ReceiveError, StateSubscriber};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::wait_until;

#[cfg(test)]
mod support;
#[path = "hung_publishers/zombies.rs"]
mod zombies;

/// Held by each test: one counts the memory of its process.
static ALONE: Mutex<()> = Mutex::new(());

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    #[cfg(feature = "verbs")]
    let builder = match role.argument(0) {
        "shm" => builder,
        address => builder.rdma(address).expect("an address").insecure(),
    };
    let node = builder.open().expect("a node");
    if role.name == "storm" {
        return zombies::storm(&role, node);
    }
    let mut publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    publisher.publish(&1).expect("it fits");
    role.say("ready");
    loop {
        role.command();
        let sequence = publisher.publish(&2).expect("it fits");
        role.say(sequence.get().to_string());
    }
}

/// Whether the publisher hangs, by the last event of a node. A busy machine may cause more events than a test does: that each comes once,
/// and not too early, is tested in simulated time.
#[derive(Debug, Default)]
struct Pulse(AtomicBool);

impl EventSink for Pulse {
    fn event(&self, event: &Event) {
        match event {
            Event::Hung { peer, .. } if peer.as_str() == "p" => self.0.store(true, Ordering::Relaxed),
            Event::Recovered { peer, .. } if peer.as_str() == "p" => self.0.store(false, Ordering::Relaxed),
            _ => {}
        }
    }
}

impl Pulse {
    fn is_hung(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

type Watch = (Arc<Pulse>, StateSubscriber<u64>, Node);

/// A subscription of its own node, whose program receives nothing while the publisher hangs.
fn subscribe(dir: &Path, target: &str, delivery: Delivery) -> Watch {
    let pulse = Arc::new(Pulse::default());
    let sink: Arc<dyn EventSink> = Arc::<Pulse>::clone(&pulse);
    let node = Node::builder().runtime_dir(dir).events(sink).open().expect("a node");
    let mut subscriber =
        node.state_subscriber::<u64>(target).delivery(delivery).open().expect("a subscription");
    wait_until("the first value", || subscriber.try_receive().expect("a receive").is_some());
    (pulse, subscriber, node)
}

fn wait_for(watches: &[Watch], what: &str, is_so: impl Fn(&Pulse) -> bool) {
    wait_until(what, || watches.iter().all(|(pulse, ..)| is_so(pulse)));
}

/// Stops and kills a publisher there.
fn stop_and_kill(place: &str, target: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::ready("publisher", dir.path(), place);
    let mut watches = BOTH.map(|delivery| subscribe(dir.path(), target, delivery));
    for _ in 0..2 {
        wait_for(&watches, "life", |pulse| !pulse.is_hung());
        publisher.stop();
        wait_for(&watches, "the hang to be noticed", Pulse::is_hung);
        publisher.signal(Signal::CONT);
        wait_for(&watches, "its end", |pulse| !pulse.is_hung());
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
    wait_for(&watches, "life", |pulse| !pulse.is_hung());
    publisher.stop();
    wait_for(&watches, "the last hang", Pulse::is_hung);
    publisher.kill();
    for (_, subscriber, _) in &mut watches {
        wait_until("its death", || matches!(subscriber.try_receive(), Err(ReceiveError::Gone { .. })));
    }
    assert!(watches.iter().all(|(pulse, ..)| pulse.is_hung()), "it did not recover");
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
