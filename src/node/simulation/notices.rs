//! Notices between whole nodes: by multicast, by unicast where that does not arrive, or none.

use super::*;
use crate::publisher::LogPublisher;
use crate::repository::log::LogStart;
use crate::subscriber::{LogSubscriber, NoticePath};
use crate::testkit::fabric::DatagramFaults;

/// Publishes one more record.
fn publish_record(publisher: &mut LogPublisher<Value>) {
    let number = publisher.newest().get() + 1;
    publisher.publish(&value(number)).unwrap();
}

fn listen(node: &Node, start: LogStart) -> LogSubscriber<Value> {
    node.log_subscriber("shm:publishing/log").start(start).notices().open().expect("a grant")
}

/// Receives everything available: each record once and in order.
fn take(subscriber: &mut LogSubscriber<Value>) {
    loop {
        let next = subscriber.next_sequence();
        let Some(record) = subscriber.try_receive().expect("no loss and no end") else { return };
        assert_eq!((record.meta.sequence, record.value), (next, value(next.get())));
    }
}

/// Runs the world until this subscriber has as much, or gives up.
fn catch_up(world: &Arc<World>, subscriber: &mut LogSubscriber<Value>, newest: u64) {
    for _ in 0..TURNS {
        world.turn();
        take(subscriber);
        if subscriber.next_sequence().get() == newest + 1 {
            return;
        }
        world.network.clock().advance(1_000_000);
    }
    panic!("{} of {newest} after all turns: {:?}", subscriber.next_sequence(), subscriber.notice_counts());
}

/// Runs the world until the subscriber reports this path.
fn await_path(world: &Arc<World>, subscriber: &mut LogSubscriber<Value>, path: NoticePath) {
    for _ in 0..TURNS {
        world.turn();
        take(subscriber);
        if subscriber.notice_path() == path {
            return;
        }
        world.network.clock().advance(10_000_000);
    }
    panic!("{} instead of {path}: {:?}", subscriber.notice_path(), subscriber.notice_counts());
}

fn a_world(seed: u64) -> (Arc<World>, Node, LogPublisher<Value>, Node) {
    let world = World::new(seed, Reach::Fetched);
    let publishing = world.node("publishing", true);
    let publisher = publishing.log_publisher("log").open().unwrap();
    let subscribing = world.node("subscribing", false);
    (world, publishing, publisher, subscribing)
}

#[test]
fn whatever_happens_to_datagrams_every_record_is_received_once_and_in_order() {
    each_seed(SEEDS / 4, |seed| {
        let (world, _publishing, mut publisher, subscribing) = a_world(seed);
        let mut random = Random::new(seed);
        (0..20).for_each(|_| publish_record(&mut publisher));
        let mut subscribers =
            vec![listen(&subscribing, LogStart::Earliest), listen(&subscribing, LogStart::Newest)];
        for round in 0..60 {
            if round % 15 == 0 {
                world.network.set_datagram_faults(DatagramFaults {
                    lose_permille: random.below(4) * 300,
                    double_permille: random.below(500),
                    reorder_permille: random.below(500),
                    delay_ns_max: random.below(2) * 20_000_000,
                });
                world.network.cut_multicast(random.below(4) == 0);
            }
            (0..random.below(12)).for_each(|_| publish_record(&mut publisher));
            (0..random.below(8)).for_each(|_| world.turn());
            world.network.clock().advance(random.below(3) * 40_000_000);
            subscribers.iter_mut().for_each(take);
            if round == 30 {
                subscribers.push(listen(&subscribing, LogStart::Back(5)));
            }
        }
        for subscriber in &mut subscribers {
            catch_up(&world, subscriber, publisher.newest().get());
            assert_eq!(subscriber.stats().lapped, 0);
        }
        let counts = subscribers[0].notice_counts();
        assert!(counts.entries > 0 && counts.forged == 0 && counts.malformed == 0, "{counts:?}");
    });
}

#[test]
fn subscriber_reports_its_path_and_gets_unicast_where_the_multicast_does_not_arrive() {
    each_seed(SEEDS / 10, |seed| {
        let (world, _publishing, mut publisher, subscribing) = a_world(seed);
        let mut subscriber = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut subscriber, NoticePath::Multicast);
        publish_record(&mut publisher);
        catch_up(&world, &mut subscriber, 1);

        world.network.cut_multicast(true);
        await_path(&world, &mut subscriber, NoticePath::Unicast);
        publish_record(&mut publisher);
        catch_up(&world, &mut subscriber, 2);

        world.network.cut_unicast(true);
        await_path(&world, &mut subscriber, NoticePath::Timer);
        publish_record(&mut publisher);
        catch_up(&world, &mut subscriber, 3);

        world.network.cut_multicast(false);
        await_path(&world, &mut subscriber, NoticePath::Multicast);
        publish_record(&mut publisher);
        catch_up(&world, &mut subscriber, 4);
    });
}

/// Not with the next beat, and the subscriber's own timer is far off.
#[test]
fn notice_that_finds_the_queue_full_is_sent_soon() {
    each_seed(SEEDS / 10, |seed| {
        let (world, _publishing, mut publisher, subscribing) = a_world(seed);
        let mut random = Random::new(seed);
        let mut subscriber = listen(&subscribing, LogStart::Newest);
        for newest in 1..20 {
            await_path(&world, &mut subscriber, NoticePath::Multicast);
            for _ in 0..random.below(100) {
                world.turn();
                take(&mut subscriber);
            }
            world.network.fill_channels(1 + random.below(3));
            publish_record(&mut publisher);
            let began_ns = world.network.clock().monotonic_ns();
            while subscriber.next_sequence().get() == newest {
                world.turn();
                take(&mut subscriber);
            }
            let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
            assert!(elapsed_ns < 4 * limits::LANDING_TENDED_NS, "{elapsed_ns} ns");
        }
    });
}

/// A small record comes with its notice: no read is needed.
#[test]
fn small_records_come_with_their_notices() {
    each_seed(SEEDS / 10, |seed| {
        let (world, _publishing, mut publisher, subscribing) = a_world(seed);
        let mut subscriber = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut subscriber, NoticePath::Multicast);
        // The first one is read, because its predecessor is unknown.
        publish_record(&mut publisher);
        catch_up(&world, &mut subscriber, 1);
        for newest in 2..40 {
            publish_record(&mut publisher);
            catch_up(&world, &mut subscriber, newest);
        }
        let counts = subscriber.notice_counts();
        assert!(counts.inline_taken >= 38 && counts.inline_dropped == 0, "{counts:?}");
    });
}

#[test]
fn state_topics_have_notices_too() {
    each_seed(SEEDS / 10, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let subscribing = world.node("subscribing", false);
        let builder = subscribing.state_subscriber::<Value>("shm:publishing/topic");
        let mut subscriber = builder.notices().open().unwrap();
        world.network.set_datagram_faults(DatagramFaults {
            lose_permille: 300,
            double_permille: 200,
            reorder_permille: 200,
            delay_ns_max: 0,
        });
        let mut last = 0;
        for round in 1..=30 {
            publish(&mut publisher, 1);
            for _ in 0..TURNS {
                world.turn();
                world.network.clock().advance(1_000_000);
                if let Ok(Some(sample)) = subscriber.try_receive() {
                    assert!(sample.meta.sequence.get() > last);
                    assert_eq!(sample.value, value(sample.meta.sequence.get()));
                    last = sample.meta.sequence.get();
                }
                if last == round {
                    break;
                }
            }
            assert_eq!(last, round, "{:?}", subscriber.notice_counts());
        }
    });
}

/// Makes reads fail after a notice without its value, and receives until `is_done` finds everything. No later notice announces
/// it.
fn receive_beside_failures<S>(
    world: &Arc<World>,
    (failures, subscriber): (u32, &mut S),
    mut is_done: impl FnMut(&mut S) -> Result<bool, ReceiveError>,
) {
    world.network.fail_reads(failures);
    let (mut failed_ns, mut has_all) = (None, false);
    for _ in 0..TURNS {
        world.turn();
        match is_done(subscriber) {
            Ok(true) => {
                has_all = true;
                break;
            }
            Ok(false) => {}
            Err(ReceiveError::Fabric(_)) => {
                world.network.cut_multicast(true);
                failed_ns.get_or_insert_with(|| world.network.clock().monotonic_ns());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(has_all, "all of it");
    // Its own timer is far off.
    let elapsed_ns = world.network.clock().monotonic_ns() - failed_ns.expect("a read that fails");
    assert!(elapsed_ns < limits::NOTICE_DOUBT_NS / 4, "{elapsed_ns} ns");
    world.network.fail_reads(0);
    world.network.cut_multicast(false);
    for _ in 0..100 {
        world.turn();
        // A read in progress may fail.
        assert!(matches!(is_done(subscriber), Ok(true) | Err(ReceiveError::Fabric(_))));
    }
}

#[test]
fn records_of_which_a_read_has_failed_are_read_again_at_once() {
    each_seed(SEEDS / 4, |seed| {
        let (world, _publishing, mut publisher, subscribing) = a_world(seed);
        let mut random = Random::new(seed);
        let mut subscriber = listen(&subscribing, LogStart::Newest);
        for failures in 1..=4 {
            await_path(&world, &mut subscriber, NoticePath::Multicast);
            let first = publisher.newest().get() + 1;
            let values: Vec<_> = (first..first + 100 + random.below(50)).map(value).collect();
            publisher.publish_batch(&values).unwrap();
            let newest = publisher.newest();
            receive_beside_failures(&world, (failures, &mut subscriber), |subscriber| {
                loop {
                    let next = subscriber.next_sequence();
                    let Some(record) = subscriber.try_receive()? else { return Ok(next == newest.next()) };
                    assert_eq!((record.meta.sequence, record.value), (next, value(next.get())));
                }
            });
        }
        let stats = subscriber.stats();
        assert_eq!((stats.received, stats.lapped, stats.rejected), (publisher.newest().get(), 0, 0));
    });
}

#[test]
fn values_of_which_a_read_has_failed_are_read_again_at_once() {
    each_seed(SEEDS / 4, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let builder = publishing.state_publisher::<Vec<u64>>("large").payload_len_max(1 << 15);
        let mut publisher = builder.open().unwrap();
        let subscribing = world.node("subscribing", false);
        let builder = subscribing.state_subscriber::<Vec<u64>>("shm:publishing/large");
        let mut subscriber = builder.notices().open().unwrap();
        for failures in 1..=4_u32 {
            for _ in 0..TURNS {
                world.turn();
                assert!(subscriber.try_receive().unwrap().is_none());
                if subscriber.notice_path() == NoticePath::Multicast {
                    break;
                }
                world.network.clock().advance(10_000_000);
            }
            let expected = vec![u64::from(failures); 2000];
            publisher.publish(&expected).unwrap();
            receive_beside_failures(&world, (failures, &mut subscriber), |subscriber| {
                if let Some(sample) = subscriber.try_receive()? {
                    assert_eq!(sample.value, expected);
                }
                Ok(subscriber.last().get() == u64::from(failures))
            });
        }
        let stats = subscriber.stats();
        assert_eq!((stats.received, stats.conflated, stats.rejected), (4, 0, 0));
    });
}

/// Notices give a node's thread occasional work, not work without end.
#[test]
fn node_without_notices_is_idle() {
    each_seed(SEEDS / 10, |seed| {
        let (world, _publishing, _publisher, subscribing) = a_world(seed);
        let mut subscriber = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut subscriber, NoticePath::Multicast);
        world.network.cut_multicast(true);
        world.network.cut_unicast(true);
        await_path(&world, &mut subscriber, NoticePath::Timer);
        for _ in 0..200 {
            world.turn();
            for link in subscribing.links().all().iter() {
                let now_ns = world.network.clock().monotonic_ns();
                assert!(
                    link.deadline_ns().is_none_or(|deadline_ns| deadline_ns > now_ns),
                    "a turn is due at once"
                );
            }
            world.network.clock().advance(7_000_000);
        }
    });
}

/// Inline values that arrive between polls are conflated, as in the repository.
#[test]
fn inline_values_are_counted_like_read_ones() {
    each_seed(SEEDS / 10, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let mut publisher = publisher(&publishing);
        let subscribing = world.node("subscribing", false);
        let builder = subscribing.state_subscriber::<Value>("shm:publishing/topic");
        let mut observed = Observed::new(builder.notices().open().unwrap());
        let mut random = Random::new(seed);
        for _ in 0..60 {
            publish(&mut publisher, random.below(6));
            (0..random.below(12)).for_each(|_| world.turn());
            world.network.clock().advance(random.below(40) * 1_000_000);
            observed.receive().unwrap();
        }
        for _ in 0..TURNS {
            if observed.last == publisher.newest().get() {
                break;
            }
            world.turn();
            world.network.clock().advance(1_000_000);
            observed.receive().unwrap();
        }
        assert_eq!(observed.last, publisher.newest().get());
        let stats = observed.subscriber.stats();
        assert_eq!((stats.received, stats.conflated), (observed.received, observed.conflated));
        assert!(observed.subscriber.notice_counts().inline_taken > 0);
    });
}

/// Subscribers of an ended topic may keep their handles while those of its next incarnation come.
#[test]
fn next_incarnation_of_a_topic_has_notices_too() {
    each_seed(SEEDS / 10, |seed| {
        let (world, publishing, mut publisher, subscribing) = a_world(seed);
        let mut old = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut old, NoticePath::Multicast);
        publish_record(&mut publisher);
        catch_up(&world, &mut old, 1);
        drop(publisher);
        let mut publisher = publishing.log_publisher("log").open().unwrap();
        let mut new = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut new, NoticePath::Multicast);
        drop(old);
        for _ in 0..60 {
            world.turn();
            world.network.clock().advance(20_000_000);
        }
        await_path(&world, &mut new, NoticePath::Multicast);
        let heard = new.notice_counts().entries;
        publish_record(&mut publisher);
        catch_up(&world, &mut new, 1);
        let counts = new.notice_counts();
        assert!(counts.entries > heard && counts.forged == 0, "{counts:?}");
    });
}

/// Runs the world until so many receivers are served by unicast.
fn await_alone(world: &Arc<World>, count: usize) {
    let unicast_receivers =
        || world.drivers.lock().iter().map(|thread| thread.driver.unicast_receivers()).sum::<usize>();
    for _ in 0..TURNS {
        world.turn();
        if unicast_receivers() == count {
            return;
        }
        world.network.clock().advance(10_000_000);
    }
    panic!("{} instead of {count}", unicast_receivers());
}

/// A receiver without subscriptions frees its unicast slot, whatever else its session does, and can get it again.
#[test]
fn receiver_without_subscriptions_gets_no_unicast() {
    each_seed(SEEDS / 10, |seed| {
        let (world, _publishing, publisher, subscribing) = a_world(seed);
        let other = world.node("other", false);
        world.network.cut_multicast(true);
        let _silent = subscribing.log_subscriber::<Value>("shm:publishing/log").open().unwrap();
        let mut listening = listen(&subscribing, LogStart::Newest);
        let mut staying = listen(&other, LogStart::Newest);
        await_path(&world, &mut listening, NoticePath::Unicast);
        await_path(&world, &mut staying, NoticePath::Unicast);
        await_alone(&world, 2);
        drop(listening);
        await_alone(&world, 1);

        let mut again = listen(&subscribing, LogStart::Newest);
        await_path(&world, &mut again, NoticePath::Unicast);
        await_alone(&world, 2);
        drop(publisher);
        await_alone(&world, 0);
    });
}
