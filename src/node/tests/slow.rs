//! Subscribers of a log for which its publisher waits, or that it disconnects.

use super::*;
use crate::id::SlowPolicy;
use crate::layout::WORD;
use crate::layout::progress::{PROGRESS_LEN, RELEASED};
use crate::publisher::{Gating, LogPublisher, PublishError};
use crate::repository::log::LogStart;
use crate::subscriber::{FeedUpdate, LogSubscriber, SubscriberHandle};
use crate::testkit::random::Random;

/// A ring of a few dozen small records.
const CAPACITY: usize = 4096;

fn gated(node: &Node, gating: Gating) -> LogPublisher<u64> {
    node.log_publisher("t").capacity(CAPACITY).gating(gating).open().unwrap()
}

fn subscriber(node: &Node, delivery: Delivery, policy: SlowPolicy) -> LogSubscriber<u64> {
    let builder = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).delivery(delivery);
    builder.slow(policy).open().unwrap()
}

/// Publishes numbers until a subscriber is in the way. Returns the number that was handed back.
fn fill(publisher: &mut LogPublisher<u64>) -> u64 {
    let first = publisher.newest().next().get();
    let refused = (first..first + CAPACITY as u64).find_map(|number| publisher.try_publish(number).err());
    let refused = refused.expect("the ring is bounded");
    assert!(refused.is_blocked(), "{refused}");
    assert_eq!(refused.value, publisher.newest().next().get());
    refused.value
}

#[test]
fn publisher_that_does_not_wait_hands_the_value_back_until_the_subscriber_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let subscribing = anonymous(&dir);
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = gated(&publishing, Gating::new());
        let mut slow = subscriber(&subscribing, delivery, SlowPolicy::Block);
        let mut next = 1;
        for _ in 0..20 {
            let refused = fill(&mut publisher);
            assert!(publisher.try_publish(refused).is_err());
            for _ in 0..10 {
                let record = slow.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
                assert_eq!((record.value, record.meta.sequence.get()), (next, next));
                next += 1;
            }
            while next < refused {
                next += u64::from(slow.receive_timeout(TIMEOUT).unwrap().is_some());
            }
            assert!(slow.try_receive().unwrap().is_none());
            publisher.try_publish(refused).unwrap();
        }
        assert_eq!(slow.stats().lapped, 0);
    }
}

#[test]
fn publish_waits_for_a_subscriber_and_nothing_is_lost() {
    const COUNT: u64 = 200_000;
    for delivery in [Delivery::Pull, Delivery::Push] {
        let dir = tempfile::tempdir().unwrap();
        let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
        let mut publisher = gated(&publishing, Gating::new().timeout(TIMEOUT));
        let mut subscribers =
            [SlowPolicy::Block, SlowPolicy::Block].map(|policy| subscriber(&subscribing, delivery, policy));
        std::thread::scope(|scope| {
            for subscriber in &mut subscribers {
                scope.spawn(move || {
                    let records = subscriber.samples().take(COUNT as usize);
                    assert!(records.map(|record| record.unwrap().value).eq(1..=COUNT));
                });
            }
            let batch: Vec<u64> = (1..=COUNT / 2).collect();
            publisher.publish_batch(&batch).unwrap();
            (COUNT / 2 + 1..=COUNT).for_each(|number| _ = publisher.publish(&number).unwrap());
        });
        assert!(subscribers.iter().all(|subscriber| subscriber.stats().lapped == 0));
    }
}

#[test]
fn publish_that_waits_too_long_names_the_slowest_and_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), node(&dir, "desk"));
    let timeout = Duration::from_millis(5);
    let mut publisher = gated(&publishing, Gating::new().timeout(timeout));
    let mut slow = subscriber(&subscribing, Delivery::Pull, SlowPolicy::Block);
    let mut fast = subscriber(&anonymous(&dir), Delivery::Pull, SlowPolicy::Block);
    let refused = fill(&mut publisher);
    while fast.try_receive().unwrap().is_some() {}
    let began_ns = SystemClock.monotonic_ns();
    let error = publisher.publish(&refused).unwrap_err();
    let waited = Duration::from_nanos(SystemClock.monotonic_ns() - began_ns);
    // The machine may do other work, too.
    assert!((timeout..timeout * 1000).contains(&waited), "{waited:?}");
    let PublishError::Blocked { slowest } = &error else { panic!("{error}") };
    assert_eq!((slowest.node().as_str(), slowest.process()), ("desk", std::process::id()));
    assert_eq!(slowest.lag(), publisher.newest().get());
    let text = error.to_string();
    assert!(text.contains("desk") && text.contains("Gating"), "{text}");
    assert_eq!(publisher.newest().next().get(), refused);
    // A batch is published up to that record.
    while slow.try_receive().unwrap().is_some() {}
    while fast.try_receive().unwrap().is_some() {}
    let batch: Vec<u64> = (refused..refused + CAPACITY as u64).collect();
    let error = publisher.publish_batch(&batch).unwrap_err();
    assert!(matches!(error, PublishError::Blocked { .. }), "{error}");
    let newest = publisher.newest().get();
    assert!(newest > refused && newest < refused + CAPACITY as u64);
    assert!((refused..=newest).all(|number| slow.try_receive().unwrap().unwrap().value == number));
    assert!(slow.try_receive().unwrap().is_none());
}

#[test]
fn batch_longer_than_the_ring_is_published_while_the_subscriber_reads() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let gating = Gating::new().timeout(TIMEOUT);
    let builder = publishing.log_publisher::<Raw>("t").capacity(CAPACITY).payload_len_max(1000);
    let mut publisher = builder.gating(gating).open().unwrap();
    let builder = publishing.log_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).slow(SlowPolicy::Block);
    let mut slow = builder.open().unwrap();
    // Records of a quarter of the ring, appended without a commit: those appended are committed when the next one has no room.
    let record = |number: usize| vec![number as u8; 1000 - number % 7];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let records: Vec<_> = (0..1000).map(record).collect();
            publisher.publish_batch(records.iter().map(Vec::as_slice)).unwrap();
            records.iter().for_each(|record| _ = publisher.append(record).unwrap());
            publisher.commit();
        });
        for number in 0..2000 {
            let received = slow.receive_timeout(TIMEOUT).unwrap().expect("a record in time");
            assert_eq!(received.value, record(number % 1000));
        }
    });
}

#[test]
fn subscriber_that_leaves_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new().timeout(TIMEOUT));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let slow = subscriber(&subscribing, delivery, SlowPolicy::Block);
        let refused = fill(&mut publisher);
        drop(slow);
        publisher.publish(&refused).unwrap();
        wait_until("it has left", || publisher.pull_subscribers() + publisher.push_subscribers() == 0);
        publisher.publish_batch(&[0; 10_000]).unwrap();
    }
}

#[test]
fn gating_is_refused_without_permission_and_beyond_the_number_permitted() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let _free = node.log_publisher::<u64>("free").open().unwrap();
    let _gated = gated(&node, Gating::new().subscribers_max(1));
    let open = |topic: &str, policy| {
        let target = format!("shm:p/{topic}");
        node.log_subscriber::<u64>(target.as_str()).timeout(TIMEOUT).slow(policy).open()
    };
    let refused = |outcome: Result<LogSubscriber<u64>, SubscriberError>| match outcome.unwrap_err() {
        SubscriberError::Refused { reason, text, .. } => (reason, text),
        error => panic!("{error}"),
    };
    for policy in [SlowPolicy::Block, SlowPolicy::Disconnect] {
        let (reason, text) = refused(open("free", policy));
        assert_eq!(reason, RefuseReason::GatingNotPermitted);
        assert!(text.contains("PublisherBuilder::gating"), "{text}");
    }
    open("free", SlowPolicy::Lap).unwrap();
    let first = open("t", SlowPolicy::Disconnect).unwrap();
    assert!(first.is_gating());
    let (reason, text) = refused(open("t", SlowPolicy::Block));
    assert!(reason == RefuseReason::TooManySubscribers && text.contains("subscribers_max"), "{text}");
    assert!(!open("t", SlowPolicy::Lap).unwrap().is_gating());
    drop(first);
    wait_until("another one is permitted", || open("t", SlowPolicy::Block).is_ok());
}

#[test]
fn subscribers_beyond_those_whose_progress_is_shown_receive_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let mut publisher = gated(&node, Gating::new());
    let open = || node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).progress().open().unwrap();
    let mut subscribers: Vec<_> = (0..limits::PROGRESS_SLOTS_MAX + 2).map(|_| open()).collect();
    publisher.publish(&7).unwrap();
    for subscriber in &mut subscribers {
        let record = subscriber.receive_timeout(TIMEOUT).unwrap();
        assert_eq!(record.map(|record| record.value), Some(7));
    }
    let list = node.subscribers("shm:p/t").unwrap();
    assert_eq!(list.count, subscribers.len());
    let shown = list.subscribers.iter().filter(|listing| listing.progress.is_some());
    assert_eq!(shown.count(), limits::PROGRESS_SLOTS_MAX);
    // Nor do they keep the publisher from waiting for one.
    assert!(subscriber(&node, Delivery::Pull, SlowPolicy::Block).is_gating());
}

#[test]
fn lease_that_nodes_cannot_keep_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let gating = Gating::new().lease(Duration::from_millis(300));
    let error = node.log_publisher::<u64>("t").gating(gating).open().unwrap_err();
    assert!(
        matches!(error, PublisherError::LeaseTooShort { .. }) && error.to_string().contains("1s"),
        "{error}"
    );
}

#[test]
fn overtaken_subscriber_is_disconnected_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (published, subscribed) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let open = |name: &str, events: &Arc<Recorder>| {
        let builder = Node::builder().name(name).unwrap().runtime_dir(dir.path());
        builder.events(Arc::clone(events) as _).open().unwrap()
    };
    let (publishing, subscribing) = (open("p", &published), open("s", &subscribed));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut publisher = gated(&publishing, Gating::new());
        let mut slow = subscriber(&subscribing, delivery, SlowPolicy::Disconnect);
        let mut other = subscriber(&subscribing, delivery, SlowPolicy::Lap);
        publisher.publish(&1).unwrap();
        assert_eq!(slow.receive_timeout(TIMEOUT).unwrap().unwrap().value, 1);
        (2..=10_000).for_each(|number| _ = publisher.publish(&number).unwrap());
        let mut last = 1;
        let error = loop {
            match slow.receive_timeout(TIMEOUT) {
                Ok(record) => {
                    let record = record.expect("a record or the end in time");
                    assert_eq!(record.value, last + 1);
                    last = record.value;
                }
                Err(error) => break error,
            }
        };
        let repeated = slow.try_receive().unwrap_err();
        assert_eq!(slow.samples().count(), 1, "a loop over all records ends with the error");
        for error in [error, repeated] {
            assert!(
                matches!(error, ReceiveError::Overtaken { last: told } if told.get() == last),
                "{error} {last}"
            );
        }
        assert!(matches!(other.receive_timeout(TIMEOUT), Err(ReceiveError::Lapped { .. }) | Ok(Some(_))));
        published.wait_for("the publisher's event", |it| matches!(it, Event::SubscriberOvertaken { .. }));
        wait_until("it is detached", || publisher.pull_subscribers() + publisher.push_subscribers() == 1);
        published.0.lock().clear();
    }
}

#[test]
fn loan_waits_for_gating_subscribers() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let gating = Gating::new().timeout(Duration::from_millis(2));
    let builder = node.log_publisher::<Raw>("t").capacity(CAPACITY).payload_len_max(64);
    let mut publisher = builder.gating(gating).open().unwrap();
    let builder = node.log_subscriber::<Raw>("shm:p/t").timeout(TIMEOUT).slow(SlowPolicy::Block);
    let mut subscriber = builder.open().unwrap();
    let blocked = loop {
        match publisher.loan() {
            Ok(mut loan) => {
                loan.append(&[7; 40]).unwrap();
                loan.commit();
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(blocked, PublishError::Blocked { .. }), "{blocked}");
    let received = std::iter::from_fn(|| subscriber.try_receive().unwrap());
    assert!(
        received.map(|record| record.meta.sequence).eq((1..=publisher.newest().get()).map(Sequence::new))
    );
    drop(publisher.loan().unwrap());
    assert_eq!(subscriber.stats().lapped, 0);
}

/// Whatever a subscriber writes to its slot, it can only hold up the publisher as any subscriber can, or lose records of its own.
#[test]
fn nonsense_in_a_progress_slot_harms_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new().timeout(Duration::from_millis(1)));
    let mut liar = subscriber(&subscribing, Delivery::Pull, SlowPolicy::Block);
    let mut honest = subscriber(&subscribing, Delivery::Push, SlowPolicy::Block);
    let mut random = Random::new(7);
    let slot = SubscriberHandle::subscription(&mut liar).progress_slot();
    let mut next = 1;
    for round in 0..2000_u64 {
        for offset in (0..PROGRESS_LEN).step_by(WORD) {
            let words = [0, 1, u64::MAX, u64::MAX - 7, 1 << 63, random.next(), random.below(1 << 13)];
            slot.store(offset, words[random.index(words.len())]);
        }
        for _ in 0..random.below(60) {
            let number = publisher.newest().next().get();
            let _ = publisher.try_publish(number).map_err(|error| assert!(error.is_blocked()));
        }
        if round % 100 == 0 {
            let number = publisher.newest().next().get();
            if let Err(error) = publisher.publish(&number) {
                assert!(matches!(error, PublishError::Blocked { .. }), "{error}");
            }
            let list = subscribing.subscribers("shm:p/t").unwrap();
            assert_eq!((list.count, list.newest), (2, publisher.newest()));
        }
        while let Some(record) = honest.try_receive().unwrap() {
            assert_eq!(record.value, next);
            next += 1;
        }
        wait_until("what the node writes to the landing region", || {
            next += u64::from(honest.try_receive().unwrap().is_some());
            next > publisher.newest().get()
        });
    }
    assert!(publisher.newest().get() > 10_000, "it is not in the way for ever");
    assert_eq!((honest.stats().lapped, honest.stats().rejected), (0, 0));
}

/// A position that goes back is none: what was released stays so.
#[test]
fn released_records_stay_released() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new());
    let mut liar = subscriber(&subscribing, Delivery::Pull, SlowPolicy::Block);
    let slot = SubscriberHandle::subscription(&mut liar).progress_slot();
    fill(&mut publisher);
    // Beyond the end: everything that was published.
    slot.store(RELEASED, u64::MAX);
    let before = fill_up_to(&mut publisher, 5);
    slot.store(RELEASED, 0);
    fill(&mut publisher);
    assert!(publisher.newest().get() > before + 20, "a ring without the records that were released");
}

/// Publishes so many records that nobody is in the way of. Returns the newest sequence.
fn fill_up_to(publisher: &mut LogPublisher<u64>, count: u64) -> u64 {
    (0..count).for_each(|_| _ = publisher.publish(&publisher.newest().next().get()).unwrap());
    publisher.newest().get()
}

#[test]
fn subscribers_are_listed_by_lag_and_a_missing_topic_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new());
    let _plain = subscribing.log_subscriber::<u64>("shm:p/t").open().unwrap();
    let mut lapped = subscribing.log_subscriber::<u64>("shm:p/t").progress().open().unwrap();
    publisher.publish_batch(&[0; 1000]).unwrap();
    assert!(matches!(lapped.try_receive(), Err(ReceiveError::Lapped { .. })));
    while lapped.try_receive().unwrap().is_some() {}
    let slow = subscriber(&subscribing, Delivery::Push, SlowPolicy::Block);
    (0..10).for_each(|number| _ = publisher.publish(&number).unwrap());
    let list = subscribing.subscribers("shm:p/t").unwrap();
    assert_eq!((list.count, list.newest.get()), (3, 1010));
    let [first, second, third] = &list.subscribers[..] else { panic!("{list:?}") };
    let progress = first.progress.unwrap();
    assert_eq!((first.process, progress.last.get(), progress.lag), (std::process::id(), 1000, 10));
    assert_eq!(progress.received + progress.lost, 1000);
    assert!(progress.lost > 0 && !progress.is_gating);
    let progress = second.progress.unwrap();
    assert_eq!(
        (second.delivery, progress.policy, progress.is_gating),
        (Delivery::Push, SlowPolicy::Block, true)
    );
    assert!(third.progress.is_none());
    let listing = subscribing.directory("shm:p").unwrap();
    assert_eq!(listing.topics[0].lag_max, Some(10));
    drop((slow, lapped));
    wait_until("they have left", || subscribing.subscribers("shm:p/t").unwrap().count == 1);
    let error = subscribing.subscribers("shm:p/missing").unwrap_err();
    assert!(matches!(&error, DirectoryError::NoSuchTopic { target } if target.topic.as_str() == "missing"));
}

/// A feed's log gates; its table conflates.
#[test]
fn feed_waits_for_a_subscriber_of_all_records() {
    const COUNT: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    for delivery in [Delivery::Pull, Delivery::Push] {
        let builder = publishing.feed_publisher::<u64, u64, u64>("f").capacity(8).record_len_max(64);
        let builder = builder.log_capacity(CAPACITY).gating(Gating::new().timeout(TIMEOUT));
        let mut publisher = builder.open().unwrap();
        let builder = subscribing.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT);
        let mut subscriber = builder.delivery(delivery).slow(SlowPolicy::Block).open().unwrap();
        assert!(subscriber.try_update().unwrap().is_none(), "it joins the empty feed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (1..=COUNT).step_by(2) {
                    let mut event = publisher.event();
                    event.update(&(number % 7), &number, &number).unwrap();
                    event.update(&(number % 5), &(number + 1), &number).unwrap();
                    event.commit();
                }
            });
            for number in 1..=COUNT {
                let mut update = None;
                wait_until("a record", || {
                    update = subscriber.try_update().unwrap();
                    update.is_some()
                });
                let Some(FeedUpdate::Record(record)) = update else {
                    panic!("{update:?} instead of {number}")
                };
                assert_eq!(record.record, number);
            }
        });
    }
}

#[test]
fn feed_that_waits_in_vain_leaves_the_event_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let builder = node.feed_publisher::<u64, u64, u64>("f").capacity(8).record_len_max(64);
    let gating = Gating::new().timeout(Duration::from_millis(2));
    let mut publisher = builder.log_capacity(CAPACITY).gating(gating).open().unwrap();
    let builder = node.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT);
    let mut subscriber = builder.slow(SlowPolicy::Block).open().unwrap();
    assert!(subscriber.try_update().unwrap().is_none());
    let mut number = 0;
    let error = loop {
        number += 1;
        if let Err(error) = publisher.publish(&(number % 7), &number, &number) {
            break error;
        }
    };
    assert!(matches!(error, PublishError::Blocked { .. }), "{error}");
    assert_eq!(publisher.newest().get(), number - 1);
    for expected in 1..number {
        let Some(FeedUpdate::Record(record)) = subscriber.try_update().unwrap() else { panic!("a record") };
        assert_eq!(record.record, expected);
    }
    assert!(subscriber.try_update().unwrap().is_none());
    publisher.publish(&(number % 7), &number, &number).unwrap();
    // One that is disconnected says so.
    let builder = node.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT);
    let mut hasty = builder.slow(SlowPolicy::Disconnect).open().unwrap();
    while hasty.try_update().unwrap().is_some() {}
    drop(subscriber);
    (0..1000).for_each(|number| _ = publisher.publish(&1, &number, &number).unwrap());
    let error = loop {
        match hasty.try_update() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReceiveError::Overtaken { .. }), "{error}");
    assert!(matches!(hasty.try_update(), Err(ReceiveError::Overtaken { .. })));
}

/// Adding and committing are refused at once, and leave the event as it was.
#[test]
fn feed_event_that_does_not_wait_goes_on_once_the_subscriber_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "p");
    let builder = node.feed_publisher::<u64, u64, u64>("f").capacity(8).record_len_max(64);
    // Longer than any test.
    let gating = Gating::new().timeout(Duration::from_secs(3600));
    let mut publisher = builder.log_capacity(CAPACITY).gating(gating).open().unwrap();
    let builder = node.feed_subscriber::<u64, u64, u64>("shm:p/f").timeout(TIMEOUT);
    let mut subscriber = builder.slow(SlowPolicy::Block).open().unwrap();
    assert!(subscriber.try_update().unwrap().is_none());
    let mut number = 1;
    let mut expected = 1..;
    for _ in 0..10 {
        let error = loop {
            match publisher.try_publish(&(number % 7), &number, &number) {
                Ok(sequence) => assert_eq!(sequence.get(), number),
                Err(error) => break error,
            }
            number += 1;
        };
        assert!(matches!(error, PublishError::Blocked { .. }), "{error}");
        let newest = publisher.newest();
        let mut event = publisher.try_event();
        for _ in 0..3 {
            assert!(matches!(event.update(&1, &number, &number), Err(PublishError::Blocked { .. })));
        }
        assert!(event.is_empty());
        while let Some(update) = subscriber.try_update().unwrap() {
            let FeedUpdate::Record(record) = update else { panic!("{update:?}") };
            assert_eq!(Some(record.record), expected.next());
        }
        event.update(&1, &number, &number).unwrap();
        // One that has just joined needs the oldest records.
        let builder = node.log_subscriber::<Raw>("shm:p/f").timeout(TIMEOUT).start(LogStart::Earliest);
        let late = builder.slow(SlowPolicy::Block).open().unwrap();
        for _ in 0..3 {
            assert!(matches!(event.try_commit(), Err(PublishError::Blocked { .. })));
            assert_eq!(event.len(), 1);
        }
        drop(late);
        let mut committed = None;
        wait_until("it has left", || {
            committed = event.try_commit().ok();
            committed.is_some()
        });
        assert_eq!(committed, Some(newest.next()));
        // Another one, of the same builder.
        assert!(event.is_empty());
        event.update(&2, &(number + 1), &number).unwrap();
        assert_eq!(event.try_commit().unwrap().get(), number + 1);
        number += 2;
    }
}
