//! Subscribers under tokio, as a program uses them.
#![cfg(feature = "tokio")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fabricast::{
    AsyncError, AsyncSubscriber, AsyncWaitSet, Delivery, Epoch, FeedUpdate, Gating, LogSubscriber, Node,
    ReceiveError, SlowPolicy, SubscriberBuilder, SubscriberError, WaitSet,
};
use futures_core::Stream;
use futures_core::stream::FusedStream as _;
use tokio::runtime::{Builder, Runtime};

use self::support::time::PATIENCE;

mod support;

const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

fn node(dir: &tempfile::TempDir, name: &str) -> Node {
    Node::builder().name(name).expect("a name").runtime_dir(dir.path()).open().expect("a node")
}

fn anonymous(dir: &tempfile::TempDir) -> Node {
    Node::builder().runtime_dir(dir.path()).open().expect("a node")
}

/// A runtime of one thread, and one of two.
fn runtimes() -> [Runtime; 2] {
    [Builder::new_current_thread(), Builder::new_multi_thread()]
        .map(|mut builder| builder.worker_threads(2).enable_all().build().expect("a runtime"))
}

/// What must not take for ever.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    in_time(std::future::poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx))).await
}

/// Polls a future once.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until a future of the subscriber is pending, so that only a publisher ends the wait.
async fn open_log(node: &Node, target: &str, delivery: Delivery) -> AsyncSubscriber<LogSubscriber<u64>> {
    let builder = node.log_subscriber(target).delivery(delivery).timeout(PATIENCE);
    builder.open_async().await.expect("it is published").into_async().expect("a runtime")
}

#[test]
fn task_that_waits_receives_each_record_and_then_the_end() {
    for runtime in runtimes() {
        for delivery in BOTH {
            let dir = tempfile::tempdir().expect("a directory");
            let publishing = node(&dir, "p");
            let mut publisher = publishing.log_publisher::<u64>("t").open().expect("a topic");
            let subscribing = anonymous(&dir);
            runtime.block_on(async {
                let mut subscriber = open_log(&subscribing, "shm:p/t", delivery).await;
                let receiving = tokio::spawn(async move {
                    let mut received = Vec::new();
                    loop {
                        match subscriber.receive().await {
                            Ok(record) => received.push(record.value),
                            Err(end) => return (received, end, subscriber),
                        }
                    }
                });
                for value in 0..200 {
                    publisher.publish(&value).expect("it fits");
                    // Lets it wait for every other one.
                    if value % 2 == 0 {
                        tokio::time::sleep(Duration::from_micros(300)).await;
                    }
                }
                drop(publisher);
                let (received, end, mut subscriber) = in_time(receiving).await.expect("no panic");
                assert_eq!(received, (0..200).collect::<Vec<_>>());
                assert!(matches!(end, ReceiveError::Ended { published } if published.get() == 200), "{end}");
                assert!(matches!(in_time(subscriber.receive()).await, Err(ReceiveError::Ended { .. })));
            });
        }
    }
}

#[test]
fn stream_yields_losses_goes_on_and_ends_with_the_topic() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let publishing = node(&dir, "p");
        let builder = publishing.log_publisher::<[u64; 8]>("t").payload_len_max(256).capacity(1 << 12);
        let mut publisher = builder.open().expect("a topic");
        runtime.block_on(async {
            let builder = publishing.log_subscriber::<[u64; 8]>("shm:p/t").timeout(PATIENCE);
            let mut stream = builder.open_async().await.expect("a topic").into_async().expect("a runtime");
            for value in 0..1000 {
                publisher.publish(&[value; 8]).expect("it fits");
            }
            drop(publisher);
            let Some(Err(ReceiveError::Lapped { first_lost, count })) = next(&mut stream).await else {
                panic!("a loss is expected")
            };
            let mut expected = first_lost.get() + count;
            while let Some(record) = next(&mut stream).await {
                let record = record.expect("a record");
                assert_eq!((record.meta.sequence.get(), record.value), (expected, [expected - 1; 8]));
                expected += 1;
            }
            assert_eq!(expected, 1001);
            assert!(stream.is_terminated());
            assert!(next(&mut stream).await.is_none(), "it stays so");
        });
    }
}

#[test]
fn future_that_is_dropped_while_it_waits_has_taken_nothing() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let publishing = node(&dir, "p");
        let mut publishers =
            ["a", "b"].map(|topic| publishing.log_publisher::<u64>(topic).open().expect("a topic"));
        let subscribing = anonymous(&dir);
        runtime.block_on(async {
            let mut a = open_log(&subscribing, "shm:p/a", Delivery::Pull).await;
            let mut b = open_log(&subscribing, "shm:p/b", Delivery::Push).await;
            let publishing = tokio::task::spawn_blocking(move || {
                for value in 0..3000 {
                    publishers[0].publish(&value).expect("it fits");
                    publishers[1].publish(&value).expect("it fits");
                }
            });
            let (mut received, mut ends) = ([0_u64; 2], 0);
            // Each turn drops the futures of the others, and sometimes all.
            while ends < 2 {
                let (index, record) = tokio::select! {
                    record = a.receive(), if received[0] < 3001 => (0, record),
                    record = b.receive(), if received[1] < 3001 => (1, record),
                    () = tokio::time::sleep(Duration::from_micros(50)) => continue,
                };
                match record {
                    Ok(record) => assert_eq!(record.value, received[index]),
                    Err(ReceiveError::Ended { .. }) => {
                        assert_eq!(received[index], 3000);
                        ends += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
                received[index] += 1;
            }
            publishing.await.expect("no panic");
        });
    }
}

#[test]
fn persistent_subscriber_waits_for_a_publisher_that_restarts() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let subscribing = anonymous(&dir);
        runtime.block_on(async {
            let builder = subscribing.log_subscriber::<u64>("shm:p/t").timeout(PATIENCE).persistent();
            let mut stream =
                builder.open_async().await.expect("it is sought").into_async().expect("a runtime");
            let mut continued = subscribing
                .table_subscriber::<u64, u64>("shm:p/table")
                .timeout(PATIENCE)
                .persistent()
                .open_async()
                .await
                .expect("it is sought")
                .into_async()
                .expect("a runtime");
            for round in 1..=3 {
                let publishing = node(&dir, "p");
                let mut publisher = publishing.log_publisher::<u64>("t").open().expect("a topic");
                let epoch = Epoch::new(7).expect("not zero");
                let builder = publishing.table_publisher::<u64, u64>("table").epoch(epoch);
                let mut table = builder.after(fabricast::Sequence::new(round)).open().expect("a topic");
                let waiting = async {
                    let mut record = next(&mut stream).await.expect("it never ends");
                    if matches!(record, Err(ReceiveError::Restarted { .. })) {
                        record = next(&mut stream).await.expect("it never ends");
                    }
                    // The keys of the publisher before are gone.
                    let change = loop {
                        let change = in_time(continued.change()).await.expect("a change");
                        if change.value.is_some() {
                            break change;
                        }
                    };
                    (record.expect("a record").value, change.key)
                };
                // They wait before it is published.
                let publish = async {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    publisher.publish(&round).expect("it fits");
                    table.put(&round, &1).expect("it fits");
                };
                assert_eq!(tokio::join!(waiting, publish).0, (round, round));
            }
            assert_eq!(stream.get_ref().outages(), 2);
        });
    }
}

#[test]
fn each_kind_is_awaited() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let publishing = node(&dir, "p");
        let mut state = publishing.state_publisher::<u64>("state").open().expect("a topic");
        let mut table = publishing.table_publisher::<u64, u64>("table").open().expect("a topic");
        let mut feed = publishing.feed_publisher::<u64, u64, u64>("feed").open().expect("two topics");
        let subscribing = anonymous(&dir);
        runtime.block_on(async {
            let state_subscriber = subscribing.state_subscriber::<u64>("shm:p/state").open_async();
            let mut states = state_subscriber.await.expect("a topic").into_async().expect("a runtime");
            let table_subscriber = subscribing.table_subscriber::<u64, u64>("shm:p/table").open_async();
            let mut changes = table_subscriber.await.expect("a topic").into_async().expect("a runtime");
            let lines = subscribing.table_subscriber::<u64, u64>("shm:p/table").lines(["shm:q/table"]);
            let mut lines = lines.open_async().await.expect("lines").into_async().expect("a runtime");
            let events = subscribing.feed_subscriber::<u64, u64, u64>("shm:p/feed").open_async();
            let mut events = events.await.expect("a feed").into_async().expect("a runtime");
            let feed_lines = subscribing.feed_subscriber::<u64, u64, u64>("shm:p/feed").lines(["shm:q/feed"]);
            let mut feed_lines =
                feed_lines.open_async().await.expect("lines").into_async().expect("a runtime");
            let persistent = subscribing.feed_subscriber::<u64, u64, u64>("shm:p/feed").persistent();
            let mut persistent =
                persistent.open_async().await.expect("a feed").into_async().expect("a runtime");
            let publishing = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                for number in 1..=3 {
                    state.publish(&number).expect("it fits");
                    table.put(&number, &number).expect("it fits");
                    feed.publish(&number, &number, &number).expect("it fits");
                }
            };
            let keys = |update| match update {
                FeedUpdate::Record(record) => record.key,
                FeedUpdate::Value(value) => value.key,
                update => panic!("{update:?}"),
            };
            let receiving = async {
                while in_time(states.receive()).await.expect("a value").value < 3 {}
                let (mut sums, mut whole) = ([0; 5], Vec::new());
                for _ in 0..3 {
                    sums[0] += in_time(changes.change()).await.expect("a change").key;
                    sums[1] += in_time(lines.change()).await.expect("a change").key;
                    sums[2] += keys(in_time(persistent.update()).await.expect("an update"));
                    sums[3] += keys(next(&mut feed_lines).await.expect("no end").expect("an update"));
                }
                while whole.len() < 3 {
                    let event = in_time(events.event()).await.expect("an event");
                    whole.extend(event.updates.into_iter().map(keys));
                }
                sums[4] = whole.iter().sum();
                assert_eq!(sums, [6; 5]);
            };
            tokio::join!(publishing, receiving);
        });
    }
}

#[test]
fn one_set_waits_for_many_subscribers() {
    const TOPICS: usize = 300;
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let publishing = node(&dir, "p");
        let open = |topic| publishing.log_publisher::<u64>(&format!("t{topic}")).payload_len_max(64).open();
        let mut publishers: Vec<_> = (0..TOPICS).map(|topic| open(topic).expect("a topic")).collect();
        let subscribing = anonymous(&dir);
        runtime.block_on(async {
            let builder = |topic| subscribing.log_subscriber::<u64>(format!("shm:p/t{topic}").as_str());
            let missing = subscribing.log_subscriber::<u64>("not an address");
            let builders = (0..TOPICS).map(builder).chain([missing]);
            let mut opened = SubscriberBuilder::open_all_async(builders).await.expect("a runtime");
            assert!(matches!(opened.pop(), Some(Err(SubscriberError::Address(_)))));
            let mut subscribers: Vec<_> = opened.into_iter().map(|it| it.expect("a topic")).collect();
            let mut set = AsyncWaitSet::new().expect("a runtime");
            for (key, subscriber) in subscribers.iter_mut().enumerate() {
                set.add(subscriber, key);
            }
            let (mut received, mut published) = (BTreeMap::new(), 0);
            for round in 0..20 {
                for topic in (0..TOPICS).filter(|topic| (topic + round) % 7 == 0) {
                    publishers[topic].publish(&0).expect("it fits");
                }
                let expected = (0..TOPICS).filter(|topic| (topic + round) % 7 == 0).count();
                published += expected;
                let mut count = 0;
                while count < expected {
                    // A future that is dropped changes nothing.
                    drop(poll_once(pin!(set.ready())));
                    for key in in_time(set.ready()).await.expect("it waits") {
                        while subscribers[*key].try_receive().expect("no loss").is_some() {
                            *received.entry(*key).or_insert(0) += 1;
                            count += 1;
                        }
                    }
                }
            }
            assert_eq!(received.values().sum::<usize>(), published);
            // It is still a set for threads.
            let mut set: WaitSet = set.into_inner();
            publishers[5].publish(&1).expect("it fits");
            while !set.wait(PATIENCE).expect("it waits").contains(&5) {}
        });
    }
}

#[test]
fn hot_topic_leaves_other_tasks_their_turn() {
    const RECORDS: usize = 20_000;
    let [runtime, _] = runtimes();
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").capacity(1 << 22).open().expect("a topic");
    publisher.publish_batch(&vec![1; RECORDS]).expect("it fits");
    runtime.block_on(async {
        let builder = node.log_subscriber::<u64>("shm:p/t").earliest();
        let mut subscriber = builder.open_async().await.expect("a topic").into_async().expect("a runtime");
        let turns = std::rc::Rc::new(std::cell::Cell::new(0));
        let others = std::rc::Rc::clone(&turns);
        let local = tokio::task::LocalSet::new();
        local.spawn_local(async move {
            loop {
                others.set(others.get() + 1);
                tokio::task::yield_now().await;
            }
        });
        local
            .run_until(async {
                for _ in 0..RECORDS {
                    subscriber.receive().await.expect("a record");
                }
            })
            .await;
        assert!(turns.get() >= RECORDS / 1000, "the other task had {} turns", turns.get());
    });
}

#[test]
fn listener_whose_accept_was_cancelled_keeps_the_publisher() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let desk = node(&dir, "desk");
        runtime.block_on(async {
            let listener = desk.log_listener::<u64>("t").timeout(PATIENCE).open().expect("a name");
            let mut listener = listener.into_async().expect("a runtime");
            let publishing = anonymous(&dir);
            for round in 0..20 {
                let publishing = publishing.clone();
                let dialling = tokio::task::spawn_blocking(move || {
                    let mut publisher = publishing.log_publisher::<u64>("t").open().expect("a topic");
                    publishing.dial_subscriber("t", "shm:desk", PATIENCE).expect("it listens");
                    publisher.publish(&round).expect("it fits");
                    publisher
                });
                // Cancelled at whatever point it has reached.
                let accepted = loop {
                    tokio::select! {
                        accepted = listener.accept() => break accepted,
                        () = tokio::time::sleep(Duration::from_micros(100 * round)) => {}
                    }
                    if round > 10 {
                        break in_time(listener.accept()).await;
                    }
                };
                let mut subscriber = accepted.expect("a publisher").into_async().expect("a runtime");
                let publisher = dialling.await.expect("no panic");
                assert_eq!(in_time(subscriber.receive()).await.expect("a record").value, round);
                drop(publisher);
            }
        });
    }
}

#[test]
fn opening_that_was_cancelled_leaves_no_subscriber() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let publishing = node(&dir, "p");
        let mut publisher = publishing.log_publisher::<u64>("t").open().expect("a topic");
        let subscribing = anonymous(&dir);
        runtime.block_on(async {
            for round in 0..100 {
                let opening =
                    subscribing.log_subscriber::<u64>("shm:p/t").push().timeout(PATIENCE).open_async();
                let cancelled = tokio::time::timeout(Duration::from_micros(20 * round), opening).await;
                publisher.publish(&round).expect("it fits");
                drop(cancelled);
            }
            let mut subscriber = open_log(&subscribing, "shm:p/t", Delivery::Push).await;
            publisher.publish(&7).expect("it fits");
            assert_eq!(in_time(subscriber.receive()).await.expect("a record").value, 7);
            // It is the only one left.
            in_time(async {
                while publisher.push_subscribers() != 1 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
        });
    }
}

#[test]
fn subscriber_continues_without_and_with_a_runtime() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, "p");
    let mut publisher = node.log_publisher::<u64>("t").open().expect("a topic");
    let open = || node.log_subscriber::<u64>("shm:p/t").timeout(PATIENCE).open().expect("a topic");
    let mut subscriber = open();
    for (round, runtime) in (0..).zip(runtimes()) {
        publisher.publish_batch(&[round, round]).expect("it fits");
        subscriber = runtime.block_on(async {
            let mut subscriber = subscriber.into_async().expect("a runtime");
            assert_eq!(in_time(subscriber.receive()).await.expect("a record").value, round);
            subscriber.into_inner()
        });
        let record = subscriber.receive_timeout(PATIENCE).expect("a record").expect("in time");
        assert_eq!(record.value, round);
    }
}

#[test]
fn missing_or_ended_runtime_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, "p");
    let _publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    let builder = || node.state_subscriber::<u64>("shm:p/t").timeout(PATIENCE);
    let subscriber = builder().open().expect("a topic");
    assert!(matches!(subscriber.into_async(), Err(AsyncError::NoRuntime)));
    assert!(matches!(AsyncWaitSet::new(), Err(AsyncError::NoRuntime)));
    let listener = node.state_listener::<u64>("t").open().expect("a name");
    assert!(matches!(listener.into_async(), Err(AsyncError::NoRuntime)));
    let opened = poll_once(pin!(builder().open_async()));
    assert!(matches!(opened, Poll::Ready(Err(SubscriberError::Runtime(AsyncError::NoRuntime)))));
    let [runtime, _] = runtimes();
    let mut orphan =
        runtime.block_on(async { builder().open().expect("a topic").into_async().expect("a runtime") });
    drop(runtime);
    let received = poll_once(pin!(orphan.receive()));
    assert!(
        matches!(received, Poll::Ready(Err(ReceiveError::Runtime(AsyncError::Runtime { .. })))),
        "{received:?}"
    );
}

/// Compiles only if tasks of a runtime of several threads may own them.
#[test]
fn subscribers_and_their_futures_may_be_sent() {
    fn is_sent<T: Send>(_: &T) {}
    let [runtime, _] = runtimes();
    let dir = tempfile::tempdir().expect("a directory");
    let node = node(&dir, "p");
    let _publisher = node.table_publisher::<String, f64>("t").open().expect("a topic");
    runtime.block_on(async {
        let opening = node.table_subscriber::<String, f64>("shm:p/t").open_async();
        is_sent(&opening);
        let mut subscriber = opening.await.expect("a topic").into_async().expect("a runtime");
        is_sent(&subscriber.receive());
        is_sent(&subscriber.change());
        is_sent(&AsyncWaitSet::new().expect("a runtime").ready());
        is_sent(&subscriber);
        let opening = node.log_subscriber::<u64>("shm:p/t").lines(["shm:q/t"]).open_async();
        is_sent(&opening);
    });
}

/// A task that logs errors and goes on would never wait again.
#[test]
fn stream_of_a_subscriber_that_was_disconnected_ends_unless_that_is_persistent() {
    for runtime in runtimes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
        let builder = publishing.log_publisher::<u64>("t").capacity(4096).gating(Gating::new());
        let mut publisher = builder.open().expect("a topic");
        let builder = || subscribing.log_subscriber::<u64>("shm:p/t").slow(SlowPolicy::Disconnect);
        runtime.block_on(async {
            let mut once = builder().open().expect("it is published").into_async().expect("a runtime");
            let persistent = builder().persistent().open().expect("it is published");
            let mut persistent = persistent.into_async().expect("a runtime");
            (1..=10_000).for_each(|value| _ = publisher.publish(&value).expect("nobody is waited for"));
            let error = next(&mut once).await;
            assert!(matches!(error, Some(Err(ReceiveError::Overtaken { .. }))), "{error:?}");
            assert!(next(&mut once).await.is_none() && once.is_terminated());
            let error = next(&mut persistent).await;
            assert!(matches!(error, Some(Err(ReceiveError::Overtaken { .. }))), "{error:?}");
            let lost = next(&mut persistent).await;
            assert!(matches!(lost, Some(Err(ReceiveError::Lapped { .. }))), "{lost:?}");
            while next(&mut persistent).await.expect("no end").expect("a record").value < 10_000 {}
        });
    }
}
