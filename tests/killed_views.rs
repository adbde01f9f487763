//! Subscribers in processes of their own that are killed or stopped while they hold a view of a record.

use std::time::Duration;

use fabricast::{Delivery, Gating, LogPublisher, Node, PublishError, Raw, SlowPolicy};
use rustix::process::Signal;

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, wait_until};

#[cfg(test)]
mod support;

/// The length of every record.
const LEN: usize = 16 * 1024;
/// More records than the ring holds.
const MANY: usize = 100;

/// A subscriber that holds a view of a record while it waits for a command.
#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    let node = Node::builder().name("viewer").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    let builder = node.log_subscriber::<Raw>("shm:p/t").timeout(PATIENCE).slow(SlowPolicy::Block);
    let builder = if role.argument(0) == "push" { builder.push() } else { builder.pull() };
    let mut subscriber = builder.open().expect("a subscription");
    role.say("ready");
    // Until a record is in place: the first one is not.
    loop {
        let Some(view) = subscriber.try_receive_view().expect("a receive") else { continue };
        let number = view.value_at::<u64>(0).expect("a record");
        assert_eq!(number, view.meta.sequence.get());
        if !view.is_in_place() {
            role.say("copied");
            continue;
        }
        role.say("held");
        assert_eq!(role.command(), "look");
        role.say(view.is_intact());
        drop(view);
        loop {
            assert_eq!(role.command(), "gating");
            role.say(subscriber.is_gating());
        }
    }
}

fn publisher(dir: &tempfile::TempDir, gating: Gating) -> (Node, LogPublisher<Raw>) {
    let builder = Node::builder().name("p").expect("a name").runtime_dir(dir.path());
    let node = builder.open().expect("a node");
    let builder = node.log_publisher("t").capacity(16 * LEN).payload_len_max(LEN).gating(gating);
    let publisher = builder.open().expect("a topic");
    (node, publisher)
}

fn publish(publisher: &mut LogPublisher<Raw>) -> Result<(), PublishError> {
    let number = publisher.newest().get() + 1;
    let record: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(LEN).collect();
    publisher.publish(&record).map(drop)
}

/// A subscriber that holds a view.
fn holding(dir: &tempfile::TempDir, publisher: &mut LogPublisher<Raw>, delivery: Delivery) -> Peer {
    let mut peer = Peer::ready("viewer", dir.path(), &delivery.to_string());
    loop {
        publish(publisher).expect("nobody is in the way");
        match peer.hear().as_str() {
            "copied" => {}
            heard => {
                assert_eq!(heard, "held");
                return peer;
            }
        }
    }
}

const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

#[test]
fn view_of_a_killed_process_is_released() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        // Its death is noticed, and not the end of its lease.
        let gating = Gating::new().timeout(Duration::from_millis(10)).lease(PATIENCE * 10);
        let (_node, mut publisher) = publisher(&dir, gating);
        let mut peer = holding(&dir, &mut publisher, delivery);
        let error = (0..MANY).find_map(|_| publish(&mut publisher).err());
        let Some(PublishError::Blocked { slowest }) = error else { panic!("{error:?}") };
        assert_eq!(slowest.node().as_str(), "viewer");
        assert_eq!(slowest.process(), peer.pid().as_raw_nonzero().get().unsigned_abs());
        peer.kill();
        wait_until("a publish", || publish(&mut publisher).is_ok());
        (0..MANY).for_each(|_| publish(&mut publisher).expect("nobody is in the way"));
    }
}

#[test]
fn view_of_a_subscriber_that_was_let_go_says_so() {
    for delivery in DELIVERIES {
        let dir = tempfile::tempdir().expect("a directory");
        let gating = Gating::new().timeout(PATIENCE).lease(Duration::from_secs(1));
        let (_node, mut publisher) = publisher(&dir, gating);
        let mut kept = holding(&dir, &mut publisher, delivery);
        assert_eq!(kept.ask("look"), "true");
        assert_eq!(kept.ask("gating"), "true");
        kept.kill();
        let mut stopped = holding(&dir, &mut publisher, delivery);
        stopped.stop();
        (0..MANY).for_each(|_| publish(&mut publisher).expect("it is let go after its lease"));
        stopped.signal(Signal::CONT);
        let is_intact = stopped.ask("look");
        if delivery == Delivery::Pull {
            assert_eq!(is_intact, "false");
        }
        wait_until("the message", || stopped.ask("gating") == "false");
    }
}
