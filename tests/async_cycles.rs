//! Thousands of subscribers that tasks attach, await, cancel and detach, beside publishers that publish all the time: descriptors and
//! mapped regions return to where they were. A process of its own, whose descriptors are counted.
#![cfg(feature = "tokio")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabricast::{AsyncReceive, AsyncSubscriber, Delivery, Node, ReceiveError, Waitable};
use tokio::runtime::{Builder, Runtime};

use self::support::long::is_long;
use self::support::time::{PATIENCE, now, wait_until};

mod support;

/// Tasks at once.
const TASKS: u64 = 4;
/// Subscribers at once in the end.
const CROWD: usize = 60;

/// What a process holds: how many descriptors of each kind, and how many mappings of each kind of shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held(BTreeMap<String, usize>);

impl Held {
    fn now() -> Self {
        let mut held = BTreeMap::new();
        let mut add = |what: String| *held.entry(what).or_insert(0) += 1;
        for entry in fs::read_dir("/proc/self/fd").expect("it is mounted").flatten() {
            // The descriptor that reads the directory is gone by now.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            add(format!("descriptor of {}", target.split(":[").next().unwrap_or(&target)));
        }
        let maps = fs::read_to_string("/proc/self/maps").expect("it is mounted");
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            if words.nth(1).is_some_and(|flags| flags.ends_with('s')) {
                add(format!("mapping of {}", words.nth(3).unwrap_or("no file")));
            }
        }
        Self(held)
    }

    /// What it holds more of than before.
    fn more_than(&self, before: &Self) -> BTreeMap<&str, (usize, usize)> {
        let counts = self.0.iter().map(|(what, now)| (what, *before.0.get(what).unwrap_or(&0), *now));
        counts
            .filter(|(_, before, now)| now > before)
            .map(|(what, before, now)| (&**what, (before, now)))
            .collect()
    }

    fn descriptors(&self) -> usize {
        self.0.iter().filter(|(what, _)| what.starts_with("descriptor")).map(|(_, count)| count).sum()
    }
}

/// Numbers that follow a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn subscribers_that_come_and_go_leave_nothing_behind() {
    let cycles = if is_long() { 10_000 } else { 300 };
    let dir = tempfile::tempdir().expect("a directory");
    let publishing =
        Node::builder().name("p").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let stop = Arc::new(AtomicBool::new(false));
    let publisher = std::thread::spawn({
        let stop = Arc::clone(&stop);
        let mut state = publishing.state_publisher::<u64>("state").open().expect("a topic");
        let mut log = publishing.log_publisher::<u64>("log").open().expect("a topic");
        let mut table = publishing.table_publisher::<u64, u64>("table").capacity(16).open().expect("a topic");
        move || {
            let mut value = 0;
            while !stop.load(Ordering::Relaxed) {
                state.publish(&value).expect("it fits");
                log.publish(&value).expect("it fits");
                table.put(&(value % 16), &value).expect("it fits");
                value += 1;
                // At times so fast that nobody waits, at times so slowly that all do.
                if value / 512 % 2 == 0 {
                    std::thread::park_timeout(Duration::from_micros(100));
                }
            }
        }
    });
    let subscribing = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime =
            builder.worker_threads(2).max_blocking_threads(4).enable_all().build().expect("a runtime");
        // They keep the session between the two nodes, and what each topic makes once, for the first subscriber that waits for it: the
        // memory through which its publisher is told to wake somebody.
        let anchors = (
            subscribing
                .state_subscriber::<u64>("shm:p/state")
                .notices()
                .timeout(PATIENCE)
                .open()
                .expect("a topic"),
            subscribing
                .log_subscriber::<u64>("shm:p/log")
                .notices()
                .timeout(PATIENCE)
                .open()
                .expect("a topic"),
            subscribing
                .table_subscriber::<u64, u64>("shm:p/table")
                .notices()
                .timeout(PATIENCE)
                .open()
                .expect("a topic"),
        );
        run(&runtime, &subscribing, 64);
        let mut before = Held::now();
        wait_until("what the first have left behind to be gone", || {
            let last = std::mem::replace(&mut before, Held::now());
            std::thread::park_timeout(Duration::from_millis(50));
            last == before && before == Held::now()
        });
        let (began, received) = (now(), run(&runtime, &subscribing, cycles / 2));
        println!("{} cycles in {:?}, {received} values received", cycles / 2, began.elapsed());
        assert!(received > 0);
        await_return("the cycles", &before);
        runtime.block_on(crowd(&subscribing, &before));
        await_return("the crowd", &before);
        drop(anchors);
    }
    stop.store(true, Ordering::Relaxed);
    publisher.join().expect("no panic");
}

/// Waits until a process holds no more than before. The failure names what it holds more of: (before, now).
#[track_caller]
fn await_return(what: &str, before: &Held) {
    let began = now();
    loop {
        let held = Held::now();
        let more = held.more_than(before);
        if more.is_empty() {
            println!("after {what}: {} descriptors, {} before", held.descriptors(), before.descriptors());
            return;
        }
        assert!(began.elapsed() < PATIENCE, "left behind by {what}: {more:?}; before: {before:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Attaches many subscribers at once, each with a wait of its own, and detaches all of them.
async fn crowd(node: &Node, before: &Held) {
    let mut all = Vec::new();
    for _ in 0..CROWD {
        let opened = node.log_subscriber::<u64>("shm:p/log").timeout(PATIENCE).open_async().await;
        let mut subscriber = opened.expect("a topic").into_async().expect("a runtime");
        match tokio::time::timeout(PATIENCE, subscriber.receive()).await.expect("in time") {
            Ok(_) | Err(ReceiveError::Lapped { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        all.push(subscriber);
    }
    assert!(Held::now().descriptors() >= before.descriptors() + 3 * CROWD);
}

/// Runs so many cycles in several tasks. Returns how many values were received.
fn run(runtime: &Runtime, node: &Node, cycles: u64) -> u64 {
    let received = Arc::new(Mutex::new(0));
    runtime.block_on(async {
        let task = |task| {
            let (node, received) = (node.clone(), Arc::clone(&received));
            tokio::spawn(async move {
                let mut numbers = Numbers(task);
                for _ in 0..cycles / TASKS {
                    let count = cycle(&node, &mut numbers).await;
                    *received.lock().expect("no panic") += count;
                }
            })
        };
        for task in (0..TASKS).map(task).collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
    });
    Arc::into_inner(received).expect("the tasks have ended").into_inner().expect("no panic")
}

/// Attaches a subscriber of some kind, or cancels that, receives from it a little, and detaches.
async fn cycle(node: &Node, numbers: &mut Numbers) -> u64 {
    let delivery = if numbers.below(2) == 0 { Delivery::Pull } else { Delivery::Push };
    let cancelled = (numbers.below(8) == 0).then(|| Duration::from_micros(numbers.below(1000)));
    macro_rules! open {
        ($builder:expr) => {{
            let opening = $builder.delivery(delivery).timeout(PATIENCE).open_async();
            match tokio::time::timeout(cancelled.unwrap_or(PATIENCE), opening).await {
                Ok(opened) => {
                    follow(opened.expect("a topic").into_async().expect("a runtime"), numbers).await
                }
                Err(_) => 0,
            }
        }};
    }
    match numbers.below(3) {
        0 => open!(node.state_subscriber::<u64>("shm:p/state")),
        1 => open!(node.log_subscriber::<u64>("shm:p/log")),
        _ => open!(node.table_subscriber::<u64, u64>("shm:p/table")),
    }
}

/// Receives for a while. Each turn cancels its future unless something arrives soon.
async fn follow<S: AsyncReceive + Waitable>(
    mut subscriber: AsyncSubscriber<S>,
    numbers: &mut Numbers,
) -> u64 {
    let mut count = 0;
    for _ in 0..numbers.below(6) {
        let wait = Duration::from_micros(numbers.below(2000));
        match tokio::time::timeout(wait, subscriber.receive()).await {
            Ok(Ok(_)) => count += 1,
            // It is slow on purpose.
            Ok(Err(ReceiveError::Lapped { .. })) | Err(_) => {}
            Ok(Err(error)) => panic!("{error}"),
        }
    }
    count
}
