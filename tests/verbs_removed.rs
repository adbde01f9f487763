//! An RDMA device that is removed while a node uses it, and comes back, and what only looks like that: `tools/soft-roce run` runs this.

#![cfg(feature = "verbs")]

use std::fs::File;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use fabricast::{Delivery, ErrorChain, Event, Node, Persistent, ReceiveError, StateSubscriber};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::support::peer::Peer;
use self::support::rdma::address;
use self::support::role::Role;
use self::support::slow::Recorder;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

const PORT: u16 = 7477;
const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// How soon the ends of all sessions know it, also in an emulated machine.
const NOTICED: Duration = Duration::from_secs(3);
/// How soon the node uses a device that is back, in the best of the rounds: it tries every two seconds, and an emulated machine is slow.
const BACK: Duration = Duration::from_secs(5);
/// How often the device goes and comes.
const ROUNDS: u64 = 3;

/// A publisher that says its newest sequence, and what its node has reported of the device.
#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name("p").expect("a name").runtime_dir(&role.dir);
    let builder = builder.rdma(&address(PORT)).expect("an address").insecure();
    let node = builder.events(Arc::clone(&events) as _).open().expect("a node");
    let mut publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    role.say("ready");
    loop {
        publisher.publish(&(publisher.newest().get() + 1)).expect("it fits");
        match role.command_within(Duration::from_millis(5)).as_deref() {
            None => {}
            Some("newest") => role.say(publisher.newest()),
            Some("subscribers") => role.say(publisher.pull_subscribers() + publisher.push_subscribers()),
            Some("events") => {
                let is_it = |event: &Event| matches!(event, Event::NotListening { reason, .. } if reason.contains("was removed"));
                role.say(events.all().into_iter().filter(is_it).count());
            }
            Some(_) => {
                let is_it = |event: &Event| matches!(event, Event::ListensAgain { address } if *address == self::address(PORT));
                role.say(events.all().into_iter().filter(is_it).count());
            }
        }
    }
}

/// Removes the device. The kernel's soft-RoCE waits until no program has it open.
fn remove() -> Child {
    Command::new("rdma").args(["link", "delete", "rxe0"]).spawn().expect("rdma")
}

/// Adds the device again.
fn add() {
    let words = ["link", "add", "rxe0", "type", "rxe", "netdev", "eth0"];
    assert!(Command::new("rdma").args(words).status().expect("rdma").success());
}

/// Receives what there is. Returns the newest value that both have received.
fn receive(subscribers: &mut [Persistent<StateSubscriber<u64>>; 2], received: &mut [u64; 2]) -> u64 {
    for (subscriber, received) in subscribers.iter_mut().zip(received.iter_mut()) {
        match subscriber.try_receive() {
            Ok(sample) => *received = sample.map_or(*received, |sample| sample.value),
            Err(ReceiveError::Contended { .. }) => {}
            Err(error) => panic!("no loss of the epoch: {}", ErrorChain(&error)),
        }
    }
    received.iter().copied().min().unwrap_or(0)
}

/// Where librdmacm reports no removal, since nothing is connected by it, the kernel says so once the process dials.
#[test]
#[ignore = "needs an RDMA device that may be removed: tools/soft-roce run"]
fn device_of_a_node_at_all_addresses_is_given_back_when_it_dials() {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Node::builder().name("all").expect("a name").runtime_dir(dir.path()).insecure();
    let builder = builder.rdma(&format!("rdma://0.0.0.0:{}", PORT + 2)).expect("an address");
    let node = builder.open().expect("a node");
    let mut removal = remove();
    wait_until("the end of the removal", || {
        dial_in_vain(&node);
        removal.try_wait().expect("it was started").is_some()
    });
    add();
    let _publisher = Peer::ready("publisher", dir.path(), "");
    let target = format!("{}/t", address(PORT));
    let mut subscriber =
        node.state_subscriber::<u64>(target.as_str()).open().expect("the device is used again");
    wait_until("a value", || match subscriber.try_receive() {
        Ok(sample) => sample.is_some(),
        Err(ReceiveError::Contended { .. }) => false,
        Err(error) => panic!("no loss of the publisher: {}", ErrorChain(&error)),
    });
}

/// The device is removed and comes back while a publisher and persistent subscribers run, several times.
#[test]
#[ignore = "needs an RDMA device that may be removed: tools/soft-roce run"]
fn device_that_comes_back_is_used_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::ready("publisher", dir.path(), "");
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let target = format!("{}/t", address(PORT));
    let mut subscribers = BOTH.map(|delivery| {
        let builder = node.state_subscriber::<u64>(target.as_str()).delivery(delivery);
        // One that pulls is also a member of the publisher's channel.
        builder.notices().persistent().open().expect("a subscription")
    });
    let (mut holdings, mut soonest) = (None, Duration::MAX);
    for round in 1..=ROUNDS {
        let newest = publisher.ask_number("newest");
        let mut received = [0; 2];
        wait_until("values of both", || receive(&mut subscribers, &mut received) > newest);
        let held = *holdings.get_or_insert_with(|| publisher.holdings());
        wait_until("the release of what used the removed device", || publisher.holdings() == held);
        let (mut removal, began) = (remove(), now());
        // The publisher and this process have used the device, and go on.
        wait_until("the end of the removal", || {
            receive(&mut subscribers, &mut received);
            removal.try_wait().expect("it was started").is_some()
        });
        println!("round {round}: removed after {:?}", began.elapsed());
        wait_until("an event", || publisher.ask_number("events") == round);
        add();
        let began = now();
        wait_until("the device to be in use again", || publisher.ask_number("back") == round);
        soonest = soonest.min(began.elapsed());
        let newest = publisher.ask_number("newest");
        wait_until("newer values of both", || receive(&mut subscribers, &mut received) > newest);
        println!("round {round}: values again {:?} after it was back", began.elapsed());
    }
    println!("at the publisher: {holdings:?}");
    assert!(soonest < BACK, "{soonest:?}");
}

/// Subscribers of both kinds, while something happens that is no removal: they go on, and a node that begins afterwards can use the
/// device.
fn goes_on_after(happens: impl FnOnce(&Node)) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::ready("publisher", dir.path(), "");
    let open = || Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let target = format!("{}/t", address(PORT));
    let subscribe = |node: &Node| {
        BOTH.map(|delivery| {
            let builder = node.state_subscriber::<u64>(target.as_str()).delivery(delivery);
            builder.open().unwrap_or_else(|error| panic!("no subscription: {}", ErrorChain(&error)))
        })
    };
    let newer = |publisher: &mut Peer, subscribers: &mut [StateSubscriber<u64>; 2]| {
        let newest = publisher.ask_number("newest");
        for subscriber in subscribers {
            wait_until("a newer value", || match subscriber.try_receive() {
                Ok(sample) => sample.is_some_and(|sample| sample.value > newest),
                Err(ReceiveError::Contended { .. }) => false,
                Err(error) => panic!("{:?}: {}", subscriber.delivery(), ErrorChain(&error)),
            });
        }
    };
    let node = open();
    let mut subscribers = subscribe(&node);
    newer(&mut publisher, &mut subscribers);
    happens(&node);
    newer(&mut publisher, &mut subscribers);
    drop((subscribers, node));
    let node = open();
    newer(&mut publisher, &mut subscribe(&node));
}

/// Dials an address at which nobody listens.
fn dial_in_vain(node: &Node) {
    let target = format!("{}/t", address(PORT + 1));
    let error =
        node.state_subscriber::<u64>(target.as_str()).timeout(NOTICED).open().expect_err("nobody listens");
    println!("{}", ErrorChain(&error));
}

/// A node that dials without descriptors, or with too few for all that this takes, does not take its devices for removed.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn descriptors_at_their_limit_remove_no_device() {
    let limit = getrlimit(Resource::Nofile);
    goes_on_after(|node| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..limit }).expect("it is lowered");
        let mut taken: Vec<File> = (0..).map_while(|_| File::open("/dev/null").ok()).collect();
        assert!((100..512).contains(&taken.len()), "{}", taken.len());
        for _ in 0..8 {
            dial_in_vain(node);
            taken.pop();
        }
        setrlimit(Resource::Nofile, limit).expect("it is raised again");
    });
}

/// Gives the device another name, as udev does.
fn rename(from: &str, to: &str) {
    assert!(Command::new("rdma").args(["dev", "set", from, "name", to]).status().expect("rdma").success());
}

#[test]
#[ignore = "needs an RDMA device that may be renamed: tools/soft-roce run"]
fn another_name_removes_no_device() {
    goes_on_after(|node| {
        rename("rxe0", "rocep1s0");
        dial_in_vain(node);
    });
    rename("rocep1s0", "rxe0");
}

fn end_of(subscriber: &mut StateSubscriber<u64>) -> ReceiveError {
    let mut end = None;
    wait_within(NOTICED, "the end of a session", || {
        match subscriber.try_receive() {
            Ok(_) | Err(ReceiveError::Contended { .. }) => {}
            Err(error) => end = Some(error),
        }
        end.is_some()
    });
    end.expect("it was awaited")
}

#[test]
#[ignore = "needs an RDMA device that may be removed: tools/soft-roce run"]
fn removed_device_ends_its_sessions_and_the_node_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = Peer::ready("publisher", dir.path(), "");
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let far = BOTH.map(|delivery| {
        let target = format!("{}/t", address(PORT));
        node.state_subscriber::<u64>(target.as_str()).delivery(delivery).open().expect("a subscription")
    });
    let mut near = node.state_subscriber::<u64>("shm:p/t").open().expect("a subscription");
    wait_until("the subscribers", || publisher.ask_number("subscribers") == 3);
    let (mut removal, began) = (remove(), now());
    for mut subscriber in far {
        let end = end_of(&mut subscriber);
        println!("{:?}, {:?}: {}", began.elapsed(), subscriber.delivery(), ErrorChain(&end));
        assert!(matches!(end, ReceiveError::Gone { .. }), "{end}");
    }
    wait_within(NOTICED, "the end of the publisher's sessions", || publisher.ask_number("subscribers") == 1);
    wait_until("one event", || publisher.ask_number("events") == 1);
    // It goes on for its own host.
    let newest = publisher.ask_number("newest");
    wait_until("a newer value", || {
        near.try_receive().expect("it is not lost").is_some_and(|sample| sample.value > newest)
    });
    let target = format!("{}/t", address(PORT));
    let error = node.state_subscriber::<u64>(target.as_str()).timeout(NOTICED).open().expect_err("no device");
    println!("{}", ErrorChain(&error));
    assert!(error.is_transient(), "it may come back");
    println!(
        "removed before the end of the programs: {}",
        removal.try_wait().expect("it was started").is_some()
    );
    publisher.kill();
    drop((near, node));
    // This process has used the device, too.
    let (began, mut is_removed) = (now(), false);
    while !is_removed && began.elapsed() < PATIENCE / 20 {
        is_removed = removal.try_wait().expect("it was started").is_some();
        std::thread::park_timeout(Duration::from_millis(10));
    }
    println!("removed before the end of this program: {is_removed}");
}
