//! Values that do not come in time.

use super::*;
use crate::id::Epoch;
use crate::node::SubscriberBuilder;

const MS: u64 = 1_000_000;
const DEADLINE: Duration = Duration::from_millis(50);
/// Longer than any wait until the deadline.
const LONG: Duration = Duration::from_secs(10);
/// How late a receive that waits may notice it: a pause, and what the world does meanwhile.
const SLACK_NS: u64 = 3 * MS;

/// A receive of any subscriber: whether there was a value.
type Received = Result<bool, ReceiveError>;

impl World {
    fn now_ns(&self) -> u64 {
        self.network.clock().monotonic_ns()
    }
}

fn is_overdue(received: &Received) -> bool {
    match received {
        Err(ReceiveError::Overdue { deadline, waited }) => {
            assert_eq!(*deadline, DEADLINE);
            assert!(*waited >= DEADLINE && *waited < 2 * DEADLINE, "{waited:?}");
            true
        }
        _ => false,
    }
}

/// Polls until there is something, for up to this time.
fn receive_within(world: &World, timeout: Duration, mut try_receive: impl FnMut() -> Received) -> Received {
    let until_ns = world.now_ns() + saturate(timeout);
    loop {
        match try_receive() {
            Ok(false) if world.now_ns() < until_ns => world.turn(),
            received => return received,
        }
    }
}

/// Waits until the deadline again and again, with values that come by `publish` in between.
fn silences_are_reported_once(
    world: &World,
    mut try_receive: impl FnMut() -> Received,
    mut publish: impl FnMut(),
) {
    let mut receive = |timeout| receive_within(world, timeout, &mut try_receive);
    for round in 0..3 {
        let began_ns = world.now_ns();
        let received = receive(LONG);
        let waited_ns = world.now_ns() - began_ns;
        assert!(is_overdue(&received), "round {round}: {received:?} after {waited_ns} ns");
        assert!(waited_ns <= saturate(DEADLINE) + SLACK_NS, "{waited_ns}");
        // Once, however long the silence lasts.
        let received = receive(3 * DEADLINE);
        assert!(matches!(received, Ok(false)), "{received:?}");
        publish();
        let received = receive(LONG);
        assert!(matches!(received, Ok(true)), "{received:?}");
        // A timeout before the deadline is only a timeout.
        let received = receive(DEADLINE / 5);
        assert!(matches!(received, Ok(false)), "{received:?}");
        // Values in time are no silence.
        for _ in 0..4 {
            publish();
            let received = receive(LONG);
            assert!(matches!(received, Ok(true)), "{received:?}");
            let received = receive(DEADLINE / 2);
            assert!(matches!(received, Ok(false)), "{received:?}");
        }
        publish();
        assert!(receive(LONG).unwrap());
        let began_ns = world.now_ns();
        assert!(is_overdue(&receive(LONG)));
        let waited_ns = world.now_ns() - began_ns;
        assert!(waited_ns + SLACK_NS >= saturate(DEADLINE), "{waited_ns}");
        publish();
        assert!(receive(LONG).unwrap());
    }
}

#[test]
fn deadline_of_a_state_is_reported_by_both_deliveries() {
    for (reach, delivery) in [
        (Reach::Mapped, Delivery::Pull),
        (Reach::Mapped, Delivery::Push),
        (Reach::Fetched, Delivery::Pull),
        (Reach::Fetched, Delivery::Push),
    ] {
        let world = World::new(1, reach);
        let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
        let mut publisher = publisher(&publishing);
        let builder = subscribing.state_subscriber::<Value>("shm:publishing/topic").delivery(delivery);
        let mut subscriber = builder.deadline(DEADLINE).open().unwrap();
        let receive = || subscriber.try_receive().map(|sample| sample.is_some());
        silences_are_reported_once(&world, receive, || publish(&mut publisher, 1));
    }
}

#[test]
fn deadlines_of_logs_and_tables_are_reported() {
    let world = World::new(2, Reach::Mapped);
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let mut log = publishing.log_publisher::<u64>("log").open().unwrap();
    let builder = subscribing.log_subscriber::<u64>("shm:publishing/log").deadline(DEADLINE);
    let mut records = builder.open().unwrap();
    let receive = || records.try_receive().map(|sample| sample.is_some());
    silences_are_reported_once(&world, receive, || _ = log.publish(&1).unwrap());

    let mut table = publishing.table_publisher::<u64, u64>("table").open().unwrap();
    let builder = subscribing.table_subscriber::<u64, u64>("shm:publishing/table").deadline(DEADLINE);
    let mut changes = builder.open().unwrap();
    let receive = || changes.try_change().map(|change| change.is_some());
    silences_are_reported_once(&world, receive, || _ = table.put(&1, &2).unwrap());
    // An iteration over changes ends with the error, and the next one goes on.
    world.run_until(world.now_ns() + 2 * saturate(DEADLINE));
    let errors: Vec<_> = changes.changes().collect();
    assert!(matches!(errors.as_slice(), [Err(ReceiveError::Overdue { .. })]), "{errors:?}");
    assert_eq!(changes.changes().count(), 0);
}

impl World {
    fn run_until(&self, until_ns: u64) {
        while self.now_ns() < until_ns {
            self.turn();
        }
    }
}

/// Records that were read at once are values in time, though no poll of the repository is needed for them.
#[test]
fn records_that_are_held_meet_the_deadline() {
    let world = World::new(3, Reach::Mapped);
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let mut log = publishing.log_publisher::<u64>("log").open().unwrap();
    let builder = subscribing.log_subscriber::<u64>("shm:publishing/log").deadline(DEADLINE);
    let mut records = builder.open().unwrap();
    log.publish_batch(&[1; 20]).unwrap();
    for _ in 0..20 {
        world.run_until(world.now_ns() + saturate(DEADLINE) * 3 / 4);
        assert!(records.try_receive().unwrap().is_some());
    }
    world.run_until(world.now_ns() + saturate(DEADLINE) * 3 / 4);
    assert!(records.try_receive().unwrap().is_none());
}

#[test]
fn deadline_of_a_feed_is_reported_once_for_both_topics() {
    let world = World::new(4, Reach::Mapped);
    let (publishing, subscribing) = (world.node("publishing", true), world.node("subscribing", false));
    let mut feed = publishing.feed_publisher::<u64, u64, u64>("feed").open().unwrap();
    let target = "shm:publishing/feed";
    let mut updates = subscribing.feed_subscriber::<u64, u64, u64>(target).deadline(DEADLINE).open().unwrap();
    let receive = || updates.try_update().map(|update| update.is_some());
    silences_are_reported_once(&world, receive, || _ = feed.publish(&1, &2, &3).unwrap());
    drop(updates);
    let builder = subscribing.feed_subscriber::<u64, u64, u64>(target).deadline(DEADLINE);
    let mut events = builder.persistent().open().unwrap();
    let mut receive = || events.try_event().map(|event| event.is_some());
    assert!(receive_within(&world, LONG, &mut receive).unwrap(), "the values of the keys");
    silences_are_reported_once(&world, receive, || _ = feed.publish(&1, &2, &3).unwrap());
}

fn builder(node: &Node) -> SubscriberBuilder<'_, StateSubscriber<Value>> {
    node.state_subscriber("shm:publishing/topic").deadline(DEADLINE)
}

/// It counts from the opening, through outages, and for all publishers together.
#[test]
fn deadline_of_a_persistent_subscriber_counts_without_a_publisher() {
    let world = World::new(5, Reach::Mapped);
    let subscribing = world.node("subscribing", false);
    let mut subscriber = builder(&subscribing).persistent().open().unwrap();
    let mut try_receive = || subscriber.try_receive().map(|sample| sample.is_some());
    let mut receive = |timeout| receive_within(&world, timeout, &mut try_receive);
    assert!(is_overdue(&receive(LONG)), "the topic does not exist");
    assert!(!receive(3 * DEADLINE).unwrap(), "once");
    let publishing = world.node("publishing", true);
    let mut first = publisher(&publishing);
    publish(&mut first, 1);
    assert!(receive(LONG).unwrap());
    let began_ns = world.now_ns();
    drop(first);
    let received = receive(LONG);
    assert!(
        is_overdue(&received) && world.now_ns() - began_ns <= saturate(DEADLINE) + SLACK_NS,
        "{received:?}"
    );
    let mut second = publisher(&publishing);
    publish(&mut second, 1);
    assert!(matches!(receive(LONG), Err(ReceiveError::Restarted { .. })));
    assert!(receive(LONG).unwrap());
    silences_are_reported_once(&world, try_receive, || publish(&mut second, 1));
}

/// Lines have one deadline: a line that brings nothing is not late while another one brings values.
#[test]
fn deadline_of_lines_is_that_of_all_together() {
    let world = World::new(6, Reach::Mapped);
    let subscribing = world.node("subscribing", false);
    let nodes = ["publishing", "other"].map(|name| world.node(name, true));
    let open = |node: &Node| {
        let builder = node.state_publisher::<Value>("topic").payload_len_max(128);
        builder.epoch(Epoch::FIRST).open().unwrap()
    };
    let [mut one, mut other] = nodes.each_ref().map(open);
    let mut lines = builder(&subscribing).lines(["shm:other/topic"]).open().unwrap();
    let mut is_one = false;
    let receive = || lines.try_receive().map(|sample| sample.is_some());
    silences_are_reported_once(&world, receive, || {
        // One of them misses what the other has.
        is_one = !is_one;
        let (ahead, behind) = if is_one { (&mut one, &mut other) } else { (&mut other, &mut one) };
        while behind.newest() >= ahead.newest() {
            publish(ahead, 1);
        }
    });
}
