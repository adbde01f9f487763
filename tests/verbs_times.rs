//! Deadlines, lifespans, ages, ends, and tasks that are cancelled, over RDMA verbs on one host with a device: run by `tools/test` in a
//! soft-RoCE machine.
//!
//! ```text
//! tools/soft-roce run -- verbs_times --ignored --test-threads 1
//! ```

#![cfg(all(feature = "verbs", feature = "tokio"))]

use std::path::Path;
use std::thread;
use std::time::Duration;

use fabricast::{
    AsyncSubscriber, Delivery, ErrorChain, LogPublisher, LogStart, LogSubscriber, Node, ReceiveError,
    Sequence,
};

use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// How often a task that receives is cancelled.
const CANCELLED: u64 = 200;

/// The address of this host's RDMA device: by default that of a machine of tools/soft-roce.
fn host() -> String {
    std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

fn publishing(dir: &Path) -> Node {
    let builder = Node::builder().name("p").expect("a name").runtime_dir(dir);
    builder.rdma(&format!("rdma://{}:0", host())).expect("an address").insecure().open().expect("a node")
}

/// The address of this topic over RDMA.
fn target(node: &Node, topic: &str) -> String {
    let address = node.addresses().iter().find(|address| !address.is_local()).expect("it listens");
    format!("{address}/{topic}")
}

fn anonymous(dir: &Path) -> Node {
    Node::builder().runtime_dir(dir).open().expect("a node")
}

fn publish(publisher: &mut LogPublisher<u64>) -> u64 {
    let next = publisher.newest().next().get();
    publisher.publish(&next).expect("it fits").get()
}

/// Waits for so long.
fn pass(time: Duration) {
    let began = now();
    wait_until("the time", || began.elapsed() >= time);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn overdue_values_are_reported_once_for_each_silence() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let mut publisher = node.log_publisher::<u64>("t").open().expect("a topic");
    let subscribing = anonymous(dir.path());
    let expected = Duration::from_millis(300);
    for delivery in DELIVERIES {
        let builder = subscribing.log_subscriber::<u64>(target(&node, "t").as_str()).timeout(PATIENCE);
        let mut subscriber = builder.delivery(delivery).deadline(expected).open().expect("a subscription");
        for _ in 0..3 {
            let error = subscriber.receive_timeout(PATIENCE).expect_err("nothing is published");
            let ReceiveError::Overdue { deadline, waited } = error else { panic!("{}", ErrorChain(&error)) };
            assert!(deadline == expected && waited >= expected, "{deadline:?} {waited:?}");
            assert!(subscriber.try_receive().expect("it was reported").is_none());
            let number = publish(&mut publisher);
            wait_until("the record", || match subscriber.try_receive() {
                Ok(record) => record.is_some_and(|record| record.value == number),
                // A busy machine.
                Err(ReceiveError::Overdue { .. }) => false,
                Err(error) => panic!("{}", ErrorChain(&error)),
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn expired_values_are_skipped_and_counted() {
    const OLD: u64 = 20;
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let lifespan = Duration::from_secs(2);
    for delivery in DELIVERIES {
        let mut publisher = node.log_publisher::<u64>("t").lifespan(lifespan).open().expect("a topic");
        let subscribing = anonymous(dir.path());
        let builder = subscribing.log_subscriber::<u64>(target(&node, "t").as_str()).timeout(PATIENCE);
        let mut subscriber =
            builder.delivery(delivery).start(LogStart::First).open().expect("a subscription");
        assert_eq!(subscriber.lifespan(), Some(lifespan));
        (0..OLD).for_each(|_| _ = publish(&mut publisher));
        pass(lifespan + Duration::from_millis(200));
        // One that is read in time, however slow this machine is.
        let mut received = 0;
        wait_until("a record", || {
            publish(&mut publisher);
            while let Some(record) = subscriber.try_receive().expect("it is there") {
                assert!(record.value > OLD, "{} has expired", record.value);
                received += 1;
            }
            received > 0
        });
        let newest = publisher.newest();
        wait_until("the last record", || {
            while let Some(record) = subscriber.try_receive().expect("it is there") {
                received += u64::from(record.value > OLD);
            }
            subscriber.last() == newest
        });
        let stats = subscriber.stats();
        assert_eq!((stats.received, stats.lapped, stats.rejected), (received, 0, 0));
        assert!(stats.expired >= OLD, "{stats:?}");
        assert_eq!(stats.received + stats.expired, newest.get());
    }
}

/// What is copied from a publisher's memory on another host tells nothing about its clock: ages follow the real-time clocks.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn ages_follow_the_real_time_clock() {
    let dir = tempfile::tempdir().expect("a directory");
    let node = publishing(dir.path());
    let mut publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    publisher.publish(&1).expect("it fits");
    let subscribing = anonymous(dir.path());
    for delivery in DELIVERIES {
        let builder = subscribing.state_subscriber::<u64>(target(&node, "t").as_str()).timeout(PATIENCE);
        let mut subscriber = builder.delivery(delivery).open().expect("a subscription");
        let value = subscriber.receive_timeout(PATIENCE).expect("it is there").expect("a value in time");
        let clock = subscriber.publisher_clock();
        assert!(!clock.is_shared());
        let ages = [(); 2].map(|()| {
            pass(Duration::from_millis(20));
            Duration::from_nanos(
                clock.age_ns(value.meta.published_ns).try_into().expect("it is not from the future"),
            )
        });
        assert!(ages[0] >= Duration::from_millis(20) && ages[1] >= ages[0] && ages[1] < PATIENCE, "{ages:?}");
    }
}

/// The last value before the end.
fn last(values: impl Iterator<Item = Result<Option<u64>, ReceiveError>>) -> Option<u64> {
    let mut last = None;
    for value in values {
        match value {
            // The last change of a table is that of any key.
            Ok(value) => last = last.max(value),
            Err(ReceiveError::Ended { .. }) => break,
            Err(error) => panic!("{}", ErrorChain(&error)),
        }
    }
    last
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn publisher_that_finishes_has_had_its_last_values_received() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, subscribing) = (publishing(dir.path()), anonymous(dir.path()));
    for delivery in DELIVERIES {
        let mut state = node.state_publisher::<u64>("state").open().expect("a topic");
        let mut log = node.log_publisher::<u64>("log").open().expect("a topic");
        let mut table = node.table_publisher::<u64, u64>("table").open().expect("a topic");
        let to = |topic: &str| target(&node, topic);
        let builder = subscribing.state_subscriber::<u64>(to("state").as_str()).timeout(PATIENCE);
        let mut states = builder.delivery(delivery).open().expect("a subscription");
        let builder = subscribing.log_subscriber::<u64>(to("log").as_str()).timeout(PATIENCE);
        let mut logs = builder.delivery(delivery).open().expect("a subscription");
        let builder = subscribing.table_subscriber::<u64, u64>(to("table").as_str()).timeout(PATIENCE);
        let mut tables = builder.delivery(delivery).open().expect("a subscription");
        thread::scope(|scope| {
            let received = [
                scope.spawn(move || last(states.samples().map(|it| it.map(|it| Some(it.value))))),
                scope.spawn(move || last(logs.samples().map(|it| it.map(|it| Some(it.value))))),
                scope.spawn(move || last(tables.samples().map(|it| it.map(|it| it.value.1)))),
            ];
            for value in 1..=50 {
                state.publish(&value).expect("it fits");
                log.publish(&value).expect("it fits");
                table.put(&(value % 3), &value).expect("it fits");
            }
            let timeout = Duration::from_secs(7);
            let ends = [state.finish(timeout), log.finish(timeout), table.finish(timeout)];
            for end in ends {
                assert_eq!(end.expect("they receive"), Sequence::new(50));
            }
            let last = received.map(|last| last.join().expect("no panic"));
            assert_eq!(last, [Some(50); 3], "{delivery}");
        });
    }
}

async fn open(node: &Node, target: &str, delivery: Delivery) -> AsyncSubscriber<LogSubscriber<u64>> {
    let builder = node.log_subscriber::<u64>(target).delivery(delivery).timeout(PATIENCE);
    builder.open_async().await.expect("it is published").into_async().expect("a runtime")
}

/// Tasks that wait for records, and are cancelled while a READ or a WRITE is under way, lose none of them.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn task_that_is_cancelled_again_and_again_receives_every_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, subscribing) = (publishing(dir.path()), anonymous(dir.path()));
    let mut publisher = node.log_publisher::<u64>("t").open().expect("a topic");
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    for delivery in DELIVERIES {
        runtime.block_on(async {
            let mut subscriber = open(&subscribing, &target(&node, "t"), delivery).await;
            let mut last = publisher.newest().get();
            for cancelled in 0..CANCELLED {
                if cancelled.is_multiple_of(5) {
                    publish(&mut publisher);
                }
                // Now before it is polled again, now after a while.
                let pause = Duration::from_millis(cancelled % 3);
                loop {
                    tokio::select! {
                        record = subscriber.receive() => {
                            let record = record.unwrap_or_else(|error| panic!("{}", ErrorChain(&error)));
                            assert_eq!(record.value, last + 1);
                            last = record.value;
                        }
                        () = tokio::time::sleep(pause) => break,
                    }
                }
            }
            while last < publisher.newest().get() {
                let record = tokio::time::timeout(PATIENCE, subscriber.receive()).await.expect("in time");
                assert_eq!(record.expect("it is there").value, last + 1);
                last += 1;
            }
            assert_eq!(subscriber.get_ref().stats().lapped, 0);
        });
    }
}
