//! How subscribers wait, and descriptors that are no subscribers.

use std::os::fd::AsFd;

use super::node as open_node;
use super::*;
use crate::event::Event;
use crate::id::Epoch;
use crate::node::EventQueue;
use crate::subscriber::{IdleStrategy, WaitSet, Waitable};

/// Long enough that a wait which may sleep does, unless the processor was busy.
const WAIT: Duration = Duration::from_millis(5);
/// Waits whose sleeps are counted.
const WAITS: u64 = 40;

/// How often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Whether a thread that waits so sleeps: in most waits, or in hardly any.
fn sleeps_in(mut wait: impl FnMut()) -> bool {
    let before = sleeps();
    (0..WAITS).for_each(|_| wait());
    sleeps() - before > WAITS / 2
}

#[test]
fn receive_that_spins_does_not_sleep_and_others_do() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _publisher = node.log_publisher::<u64>("t").open().unwrap();
    let spin = Duration::from_millis(1);
    let strategies = [
        (IdleStrategy::Spin, false),
        (IdleStrategy::default(), true),
        (IdleStrategy::SpinThenWait { spin }, true),
        (IdleStrategy::Wait, true),
    ];
    for (idle, may_sleep) in strategies {
        let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).idle(idle);
        let mut subscriber = builder.open().unwrap();
        let has_slept = sleeps_in(|| assert!(subscriber.receive_timeout(WAIT).unwrap().is_none()));
        assert_eq!(has_slept, may_sleep, "{idle:?}");
        drop(subscriber);
        let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).idle(idle);
        let mut lines = builder.lines([""; 0]).open().unwrap();
        let has_slept = sleeps_in(|| assert!(lines.receive_timeout(WAIT).unwrap().is_none()));
        assert_eq!(has_slept, may_sleep, "{idle:?}");
    }
}

#[test]
fn set_that_spins_sees_values_deadlines_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").open().unwrap();
    let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT);
    let mut subscriber = builder.deadline(10 * WAIT).open().unwrap();
    let mut set = WaitSet::new().unwrap().idle(IdleStrategy::Spin);
    set.add(&mut subscriber, 5);
    assert!(subscriber.try_receive().unwrap().is_none());
    publisher.publish(&1).unwrap();
    let mut next = || {
        loop {
            assert_eq!(set.wait(TIMEOUT).unwrap(), [5]);
            if let Some(received) = subscriber.try_receive().transpose() {
                break received;
            }
        }
    };
    assert_eq!(next().unwrap().value, 1);
    assert!(matches!(next(), Err(ReceiveError::Overdue { .. })));
    drop(publisher);
    assert!(matches!(next(), Err(ReceiveError::Ended { .. })));
    let mut empty = WaitSet::new().unwrap().idle(IdleStrategy::Spin);
    assert!(!sleeps_in(|| assert!(empty.wait(WAIT).unwrap().is_empty())));
}

#[test]
fn lines_that_wait_sleep_until_one_has_something_new() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = ["a", "b"].map(|name| open_node(&dir, name));
    let open = |node: &Node| node.log_publisher::<u64>("t").epoch(Epoch::new(5).unwrap()).open().unwrap();
    let mut publishers = nodes.each_ref().map(open);
    let node = anonymous(&dir);
    let builder = node.log_subscriber::<u64>("shm:a/t").timeout(TIMEOUT).lines(["shm:b/t"]);
    let mut lines = builder.open().unwrap();
    assert!(lines.receive_timeout(10 * WAIT).unwrap().is_none());
    // It would be 10,000 a second without wake-ups.
    let (before, silence) = (sleeps(), Duration::from_secs(1));
    assert!(lines.receive_timeout(silence).unwrap().is_none());
    let slept = sleeps() - before;
    assert!(slept < 200, "{slept} times");
    let (published, receives) = std::sync::mpsc::channel();
    let publishing = std::thread::spawn(move || {
        for value in 1..=20_u64 {
            let publisher = &mut publishers[(value % 2) as usize];
            // The other one is a record behind, and repeats it afterwards.
            publisher.publish(&value).unwrap();
            receives.recv_timeout(TIMEOUT).unwrap();
            publishers[((value + 1) % 2) as usize].publish(&value).unwrap();
        }
        publishers
    });
    for value in 1..=20 {
        let record = lines.receive_timeout(TIMEOUT).unwrap().expect("it is woken");
        assert_eq!(record.value, value);
        published.send(()).unwrap();
    }
    drop(publishing.join().unwrap());
    // A set of the program takes over, and gives them back.
    let mut set = WaitSet::new().unwrap();
    set.add(&mut lines, 0);
    await_ready(&mut set);
    drop(set);
    assert!(lines.receive_timeout(WAIT).unwrap().is_none());
}

/// Whether a descriptor is readable.
fn is_readable(descriptor: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Waits until a set finds its only member ready.
fn await_ready(set: &mut WaitSet) {
    assert_eq!(set.wait(TIMEOUT).unwrap(), [0]);
}

#[test]
fn queue_of_events_is_readable_while_it_holds_any() {
    let dir = tempfile::tempdir().unwrap();
    let mut events = EventQueue::new().unwrap();
    assert!(!is_readable(&events) && events.next_timeout(Duration::ZERO).unwrap().is_none());
    let builder = Node::builder().name("p").unwrap().runtime_dir(dir.path());
    let publishing = builder.events(events.sink()).open().unwrap();
    let mut set = WaitSet::new().unwrap();
    set.add(&mut events, 0);
    await_ready(&mut set);
    assert!(events.try_next().is_none());
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
    let _publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    let subscriber = publishing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
    let mut await_event = |is_it: fn(&Event) -> bool| {
        loop {
            await_ready(&mut set);
            match events.try_next() {
                Some(event) if is_it(&event) => break,
                _ => {}
            }
        }
    };
    await_event(|event| matches!(event, Event::Attached { .. }));
    drop(subscriber);
    await_event(|event| matches!(event, Event::Detached { .. }));
    assert_eq!(events.dropped(), 0);
    // The sink outlives the queue.
    let sink = events.sink();
    drop(events);
    sink.event(&Event::Trouble { what: "nobody is told".to_owned() });
}

#[test]
fn full_queue_of_events_drops_the_oldest_and_counts_them() {
    let mut events = EventQueue::new().unwrap();
    let sink = events.sink();
    let total = limits::EVENTS_QUEUED_MAX + 3;
    (0..total).for_each(|number| sink.event(&Event::Trouble { what: number.to_string() }));
    assert_eq!(events.dropped(), 3);
    for number in 3..total {
        assert!(is_readable(&events));
        assert_eq!(events.try_next(), Some(Event::Trouble { what: number.to_string() }));
    }
    assert!(!is_readable(&events) && events.try_next().is_none());
}

#[test]
fn set_waits_for_publishers_that_dial() {
    let dir = tempfile::tempdir().unwrap();
    let (desk, publishing) = (node(&dir, "desk"), anonymous(&dir));
    let mut listener = desk.state_listener::<u64>("t").timeout(TIMEOUT).open().unwrap();
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    publisher.publish(&7).unwrap();
    let mut set = WaitSet::new().unwrap();
    fn add(set: &mut WaitSet, waitable: &mut impl Waitable) {
        set.add(waitable, 0);
    }
    // Its descriptor is the same when it is added again.
    for _ in 0..2 {
        add(&mut set, &mut listener);
        await_ready(&mut set);
        assert!(listener.accept_timeout(Duration::ZERO).unwrap().is_none());
        assert!(set.wait(Duration::ZERO).unwrap().is_empty());
        set.remove(&mut listener);
    }
    add(&mut set, &mut listener);
    await_ready(&mut set);
    assert!(listener.accept_timeout(Duration::ZERO).unwrap().is_none());
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
    let address = desk.address().unwrap();
    let dialling = std::thread::spawn(move || publishing.dial_subscriber("t", &address, TIMEOUT));
    let mut subscriber = loop {
        await_ready(&mut set);
        if let Some(subscriber) = listener.accept_timeout(Duration::ZERO).unwrap() {
            break subscriber;
        }
    };
    assert_eq!(receive(&mut subscriber).value, 7);
    dialling.join().unwrap().unwrap();
    // Ready until nobody waits.
    await_ready(&mut set);
    assert!(listener.accept_timeout(Duration::ZERO).unwrap().is_none());
    assert!(set.wait(Duration::ZERO).unwrap().is_empty());
}
