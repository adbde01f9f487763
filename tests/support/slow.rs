//! A subscriber in a process of its own that halts on command, for tests of publishers that wait for it or do not.

use std::sync::{Arc, Mutex};

use fabricast::{Delivery, ErrorChain, Event, EventSink, LogSubscriber, Node, ReceiveError, SlowPolicy};

use super::role::Role;
use super::time::{PATIENCE, wait_until};

/// Records between two polls for a command.
const AT_A_TIME: usize = 1000;

/// Keeps what happens to a node.
#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().expect("no panic").push(event.clone());
    }
}

impl Recorder {
    /// Whether any of them is such a one.
    pub(crate) fn has(&self, found: impl Fn(&Event) -> bool) -> bool {
        self.0.lock().expect("no panic").iter().any(found)
    }

    /// What happened so far.
    pub(crate) fn all(&self) -> Vec<Event> {
        self.0.lock().expect("no panic").clone()
    }
}

/// Opens a subscriber that reports its progress, once its publisher is up.
pub(crate) fn subscriber(
    node: &Node,
    target: &str,
    delivery: Delivery,
    policy: SlowPolicy,
) -> LogSubscriber<u64> {
    let mut opened = None;
    wait_until("a subscription", || {
        let builder = node.log_subscriber::<u64>(target).timeout(PATIENCE).delivery(delivery);
        match builder.slow(policy).progress().open() {
            Ok(subscriber) => opened = Some(subscriber),
            Err(error) => assert!(error.is_transient(), "{}", ErrorChain(&error)),
        }
        opened.is_some()
    });
    opened.expect("it was awaited")
}

/// What a subscriber of numbers, each its own sequence, has received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    /// The last number received or lost.
    pub(crate) last: u64,
    /// Those lost.
    pub(crate) lost: u64,
}

impl Received {
    /// Takes the next one. Returns whether there was one; the error that ends the subscriber.
    pub(crate) fn take(&mut self, subscriber: &mut LogSubscriber<u64>) -> Result<bool, ReceiveError> {
        match subscriber.try_receive() {
            Ok(Some(record)) => {
                assert_eq!(record.value, self.last + 1, "none is doubled or missing");
                assert_eq!(record.meta.sequence.get(), record.value);
                self.last = record.value;
            }
            Ok(None) => return Ok(false),
            Err(ReceiveError::Lapped { first_lost, count }) => {
                assert_eq!(first_lost.get(), self.last + 1);
                (self.last, self.lost) = (self.last + count, self.lost + count);
            }
            Err(end) => return Err(end),
        }
        Ok(true)
    }

    /// Takes all up to this number, or up to the end.
    pub(crate) fn follow(
        &mut self,
        subscriber: &mut LogSubscriber<u64>,
        number: u64,
    ) -> Result<(), ReceiveError> {
        let mut end = None;
        wait_until("the record", || {
            while self.last < number {
                match self.take(subscriber) {
                    Ok(true) => {}
                    Ok(false) => return false,
                    Err(error) => {
                        end = Some(error);
                        break;
                    }
                }
            }
            true
        });
        end.map_or(Ok(()), Err)
    }
}

/// Plays a subscriber that reads until it is told to halt, and says what it was told to count. Its arguments: the topic, its node's name,
/// the delivery, and the policy.
pub(crate) fn read(role: &Role) {
    let events = Arc::new(Recorder::default());
    let builder = Node::builder().name(role.argument(1)).expect("a name").runtime_dir(&role.dir);
    let node = builder.events(Arc::clone(&events) as _).open().expect("a node");
    let delivery = if role.argument(2) == "push" { Delivery::Push } else { Delivery::Pull };
    let policy = match role.argument(3) {
        "block" => SlowPolicy::Block,
        "disconnect" => SlowPolicy::Disconnect,
        _ => SlowPolicy::Lap,
    };
    let mut subscriber = subscriber(&node, role.argument(0), delivery, policy);
    let (mut reads, mut received) = (true, Received::default());
    role.say("ready");
    loop {
        for _ in 0..if reads { AT_A_TIME } else { 0 } {
            match received.take(&mut subscriber) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let command = if reads { role.command_now() } else { Some(role.command()) };
        match command.as_deref() {
            None => {}
            Some("halt") => (reads, _) = (false, role.say("halted")),
            Some("read") => (reads, _) = (true, role.say("reading")),
            Some("last") => role.say(received.last),
            Some("lost") => role.say(received.lost),
            Some("received") => role.say(subscriber.stats().received),
            Some("gating") => role.say(u64::from(subscriber.is_gating())),
            Some("let go") => {
                role.say(u64::from(events.has(|event| matches!(event, Event::LetGo { .. }))));
            }
            Some(command) => panic!("what is {command:?}?"),
        }
    }
}
