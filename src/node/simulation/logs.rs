//! Logs between whole nodes: every published record is received or reported lost.

use super::*;
use crate::node::Listener;
use crate::publisher::LogPublisher;
use crate::repository::log::LogStart;
use crate::subscriber::{LogSubscriber, SubscriberHandle};

/// The longest pause of a publisher that does not lap a subscriber while it opens, ns.
const SLOW_NS: u64 = 1_000_000;

/// A subscriber, and the next record due.
struct Follower {
    subscriber: LogSubscriber<Value>,
    next: u64,
    lost: u64,
}

impl Follower {
    /// Receives one record. False when there was none.
    fn take(&mut self) -> Result<bool, ReceiveError> {
        match self.subscriber.try_receive() {
            Ok(Some(record)) => {
                assert_eq!((record.meta.sequence.get(), record.value), (self.next, value(self.next)));
                self.next += 1;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count }) => {
                assert_eq!(first_lost.get(), self.next);
                (self.next, self.lost) = (self.next + count, self.lost + count);
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

fn publish(publisher: &mut LogPublisher<Value>, count: u64) {
    for _ in 0..count {
        let next = publisher.newest().next().get();
        publisher.publish(&value(next)).unwrap();
    }
}

fn subscribe(node: &Node, (delivery, start): (Delivery, LogStart), first: u64) -> Follower {
    let builder = node.log_subscriber::<Value>("shm:publishing/topic").delivery(delivery).start(start);
    let subscriber = builder.open().expect("a grant");
    assert_eq!(subscriber.next_sequence().get(), first);
    Follower { subscriber, next: first, lost: 0 }
}

fn every_record_is_accounted_for(reach: Reach) {
    each_seed(SEEDS / 3, |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let builder = publishing.log_publisher::<Value>("topic").payload_len_max(200).capacity(4096);
        let mut publisher = builder.open().unwrap();
        publish(&mut publisher, 10);
        let subscribing = world.node("subscribing", false);
        let mut followers = Vec::new();
        for delivery in [Delivery::Push, Delivery::Pull] {
            let starts = [
                (LogStart::Earliest, 1),
                (LogStart::Newest, 11),
                (LogStart::At(Sequence::new(4)), 4),
                (LogStart::Back(3), 8),
            ];
            followers.extend(starts.map(|(start, first)| subscribe(&subscribing, (delivery, start), first)));
        }
        // An idle subscriber delays no one, and one that leaves is forgotten.
        let idle = subscribe(&subscribing, (Delivery::Push, LogStart::Newest), 11);
        let mut leaving = Some(subscribe(&subscribing, (Delivery::Push, LogStart::Earliest), 1));
        for step in 0..200 {
            publish(&mut publisher, random.below(4));
            (0..random.below(20)).for_each(|_| world.turn());
            for follower in &mut followers {
                for _ in 0..random.below(6) {
                    follower.take().expect("no end");
                }
            }
            leaving = leaving.filter(|_| step < 100);
        }
        let published = publisher.newest().get();
        drop((publisher, idle));
        for follower in &mut followers {
            let end = (0..100 * TURNS).find_map(|_| {
                world.turn();
                follower.take().err()
            });
            assert!(
                matches!(end, Some(ReceiveError::Ended { published: told }) if told.get() == published),
                "{end:?}"
            );
            assert_eq!(follower.next, published + 1);
        }
    });
}

#[test]
fn every_record_in_place_is_accounted_for() {
    every_record_is_accounted_for(Reach::Mapped);
}

#[test]
fn every_record_over_a_wire_is_accounted_for() {
    every_record_is_accounted_for(Reach::Fetched);
}

/// A publisher does not wait for an attaching subscriber. Records after the grant are received or reported lost, wherever the
/// subscriber begins.
fn what_comes_while_a_subscriber_opens_is_accounted_for(reach: Reach) {
    let starts = |newest: Sequence| {
        let at = LogStart::At(newest.next());
        [LogStart::Newest, LogStart::Back(0), LogStart::Back(3), LogStart::Back(20), LogStart::Earliest, at]
    };
    let (mut behind, mut lapped) = (0, 0);
    each_seed(SEEDS / 3, |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let publishing = world.node("publishing", true);
        let builder = publishing.log_publisher::<Value>("topic").payload_len_max(200).capacity(1 << 14);
        let mut publisher = builder.open().unwrap();
        publish(&mut publisher, 30);
        let (publisher, open) = (Arc::new(Mutex::new(publisher)), Arc::new(AtomicBool::new(true)));
        let (busy, goes_on, is_fast) = (Arc::clone(&publisher), Arc::clone(&open), seed % 2 == 1);
        let mut counts = Random::new(random.next());
        let (clock, mut next_ns) = (Arc::clone(world.network.clock()), 0);
        world.spawn(move || {
            if is_fast {
                publish(&mut busy.lock(), counts.below(40));
            } else if clock.monotonic_ns() >= next_ns {
                publish(&mut busy.lock(), 1);
                next_ns = clock.monotonic_ns() + counts.below(SLOW_NS);
            }
            goes_on.load(Ordering::Relaxed)
        });
        let subscribing = world.node("subscribing", false);
        let mut followers = Vec::new();
        for delivery in [Delivery::Push, Delivery::Pull] {
            for which in 0..starts(Sequence::NONE).len() {
                let before = publisher.lock().newest();
                let start = starts(before)[which];
                let builder = subscribing.log_subscriber::<Value>("shm:publishing/topic").delivery(delivery);
                let mut subscriber = builder.start(start).open().expect("a grant");
                let (granted, newest) =
                    (subscriber.subscription().granted.at.newest, publisher.lock().newest());
                assert!((before..=newest).contains(&granted), "{granted} was not the newest then");
                let first = start.record(granted).max(Sequence::new(1));
                // Those of before the grant that were overwritten by then are not reported.
                let latest = if let LogStart::At(first) = start { first } else { granted.next() };
                let next = subscriber.next_sequence();
                assert!((first..=latest).contains(&next), "{next} is not between {first} and {latest}");
                assert!(is_fast || next == first, "{next} instead of {first}, where the ring holds all");
                behind += newest.get() - granted.get();
                followers.push(Follower { subscriber, next: next.get(), lost: 0 });
            }
        }
        open.store(false, Ordering::Relaxed);
        world.turn();
        let newest = publisher.lock().newest().get();
        // Every record from the one that it named when it was opened is received or reported lost.
        for follower in &mut followers {
            for _ in 0..100 * TURNS {
                if follower.next > newest {
                    break;
                }
                if !follower.take().expect("no end") {
                    world.turn();
                }
            }
            assert_eq!(follower.next, newest + 1);
            assert!(is_fast || follower.lost == 0, "the ring holds what came");
            lapped += follower.lost;
        }
    });
    assert!(behind > 0 && lapped > 0, "records came while subscribers opened, and more than the ring holds");
}

#[test]
fn what_comes_while_a_subscriber_in_place_opens_is_accounted_for() {
    what_comes_while_a_subscriber_opens_is_accounted_for(Reach::Mapped);
}

#[test]
fn what_comes_while_a_subscriber_over_a_wire_opens_is_accounted_for() {
    what_comes_while_a_subscriber_opens_is_accounted_for(Reach::Fetched);
}

/// Receives everything available; records and losses leave no gap.
fn take_all(subscriber: &mut LogSubscriber<Value>) -> Result<(), ReceiveError> {
    loop {
        let next = subscriber.next_sequence();
        match subscriber.try_receive() {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => {
                assert_eq!((record.meta.sequence, record.value), (next, value(next.get())));
            }
            Err(ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count }) => {
                assert_eq!(first_lost, next);
                assert_eq!(subscriber.next_sequence().get(), next.get() + count);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Every published record is received or reported lost, whatever happens to the publisher after the end of its topic.
fn the_end_accounts_for_every_record(reach: Reach) {
    each_seed(SEEDS, |seed| {
        let world = World::new(seed, reach);
        let mut random = Random::new(seed);
        let publishing = world.node("publishing", true);
        let builder = publishing.log_publisher::<Value>("log").capacity(2048).payload_len_max(128);
        let mut publisher: LogPublisher<Value> = builder.open().unwrap();
        let subscribing = world.node("subscribing", false);
        let mut subscriber =
            subscribing.log_subscriber::<Value>("shm:publishing/log").earliest().open().unwrap();
        for _ in 0..random.below(60) {
            let number = publisher.newest().get() + 1;
            publisher.publish(&value(number)).unwrap();
            (0..random.below(3)).for_each(|_| world.turn());
            if random.once_in(4) {
                take_all(&mut subscriber).unwrap();
            }
        }
        let newest = publisher.newest().get();
        drop(publisher);
        // Its node knows the end when it dies.
        (0..200).for_each(|_| world.turn());
        world.kill("publishing");
        let mut end = Ok(());
        for _ in 0..TURNS {
            world.turn();
            end = take_all(&mut subscriber);
            if end.is_err() {
                break;
            }
        }
        let end = end.unwrap_err();
        assert!(matches!(end, ReceiveError::Ended { published } if published.get() == newest), "{end}");
        let stats = subscriber.stats();
        assert_eq!(stats.received + stats.lapped + stats.cut_off, newest, "{stats:?}");
        assert_eq!(stats.rejected, 0);
    });
}

#[test]
fn end_of_a_log_in_place_accounts_for_every_record() {
    the_end_accounts_for_every_record(Reach::Mapped);
}

#[test]
fn end_of_a_remote_log_accounts_for_every_record() {
    the_end_accounts_for_every_record(Reach::Fetched);
}

/// A dialled subscriber has every record from its start on: the next record is the one after the dial.
fn who_was_dialled_has_every_record(reach: Reach) {
    each_seed(SEEDS / 3, |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, reach);
        let desk = world.node("desk", true);
        let accepted = Arc::new(Mutex::new(Vec::new()));
        let starts = [(LogStart::Newest, 11), (LogStart::Earliest, 1), (LogStart::Back(3), 8)];
        let (start, first) = starts[random.index(3)];
        let delivery = [Delivery::Pull, Delivery::Push][random.index(2)];
        let builder = desk.log_listener::<Value>("topic").delivery(delivery).start(start);
        let (listener, kept): (Listener<LogSubscriber<Value>>, _) =
            (builder.open().unwrap(), Arc::clone(&accepted));
        world.spawn(move || {
            kept.lock().extend(listener.accept_timeout(Duration::ZERO).transpose());
            kept.lock().is_empty()
        });
        let publishing = world.node("publishing", false);
        let builder = publishing.log_publisher::<Value>("topic").payload_len_max(200).capacity(4096);
        let mut publisher = builder.open().unwrap();
        publish(&mut publisher, 10);
        publishing.dial_subscriber("topic", desk.address().unwrap(), Duration::from_millis(20)).unwrap();
        publish(&mut publisher, random.below(4));
        while accepted.lock().is_empty() {
            world.turn();
        }
        let subscriber = accepted.lock().remove(0).expect("a subscriber");
        let mut follower = Follower { subscriber, next: first, lost: 0 };
        for _ in 0..100 {
            publish(&mut publisher, random.below(3));
            (0..random.below(20)).for_each(|_| world.turn());
            for _ in 0..random.below(6) {
                follower.take().expect("no end");
            }
        }
        let published = publisher.newest().get();
        drop(publisher);
        let end = (0..100 * TURNS).find_map(|_| {
            world.turn();
            follower.take().err()
        });
        let told = |error: &ReceiveError| matches!(error, ReceiveError::Ended { published: told } if told.get() == published);
        assert!(end.as_ref().is_some_and(told), "{end:?}");
        assert_eq!(follower.next, published + 1);
    });
}

#[test]
fn dialled_subscriber_has_every_record_in_place() {
    who_was_dialled_has_every_record(Reach::Mapped);
}

#[test]
fn dialled_subscriber_has_every_record_over_a_wire() {
    who_was_dialled_has_every_record(Reach::Fetched);
}
