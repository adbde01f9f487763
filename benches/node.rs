//! The cost of a node's thread: idle, with many sessions and topics, and while peers attach.
//!
//! `cargo bench --bench node`. All nodes are in this process, over shared memory. Only the thread of the publishing node is
//! measured: its processor time and its sleeps, as the kernel counts them.
//!
//! `cargo bench --bench node -- --growth --for 2 --most 1000` prints what a second at rest, and one more session, cost it by the number
//! of topics, and of sessions.

#![expect(clippy::disallowed_methods, reason = "a benchmark keeps time with the standard library")]

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use fabricast::{LogPublisher, LogSubscriber, Node, Raw, StatePublisher, StateSubscriber, SubscriberBuilder};
use rustix::process::{Resource, Rlimit};

/// How long an idle node is measured.
const WATCHED: Duration = Duration::from_secs(10);
/// How long new peers may still be busy.
const SETTLED: Duration = Duration::from_secs(2);
/// How long an answer may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the ring of a log.
const CAPACITY: usize = 64 << 10;

/// Topics, or sessions, by which the cost may grow, and how many more attach: a node has at most 1,024 sessions.
const GROWING: [usize; 4] = [1, 10, 100, 1000];
const ATTACHING: usize = 20;

fn main() {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("a limit can be raised to its maximum");
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => everything(),
        ["--growth", "--for", seconds, "--most", most] => {
            let watched = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            growth(watched, most.parse().expect("a number"));
        }
        arguments => panic!("unknown arguments {arguments:?}: use --growth --for SECONDS --most N"),
    }
}

/// The thread's time at rest, and for one more session, by topics without sessions, and by sessions of one topic.
fn growth(watched: Duration, most: usize) {
    println!("{:<12}{:>8}{:>16}{:>16}", "series", "number", "rest_ns_per_s", "attach_ns");
    for series in ["topics", "sessions"] {
        for number in GROWING.into_iter().filter(|number| *number <= most) {
            let (topics, sessions) = if series == "topics" { (number, 0) } else { (1, number) };
            let publishing = Publishing::new(topics);
            let subscribers: Vec<_> = (0..sessions).map(|_| subscribe(&publishing.peer(), 0)).collect();
            std::thread::sleep(watched.min(SETTLED));
            let began = publishing.thread.usage();
            std::thread::sleep(watched);
            let rest = publishing.thread.usage().since(&began).run_ns as f64 / watched.as_secs_f64();
            let began = publishing.thread.usage();
            let attached: Vec<_> = (0..ATTACHING).map(|_| subscribe(&publishing.peer(), 0)).collect();
            let attach = publishing.thread.usage().since(&began).run_ns as f64 / ATTACHING as f64;
            println!("{series:<12}{number:>8}{rest:>16.0}{attach:>16.0}");
            drop((attached, subscribers));
        }
    }
}

fn everything() {
    println!("{:<64} {:>10} {:>12} {:>10}", "", "% of core", "wake-ups/s", "us/wake-up");
    at_rest(0, 10, false);
    at_rest(0, 1000, false);
    at_rest(10, 10, false);
    at_rest(500, 1, false);
    at_rest(1000, 1000, false);
    at_rest(0, 1, true);
    at_rest(500, 1, true);
    for topics in [1, 4000] {
        attaches(topics);
    }
    opens(3000, false);
    opens(3000, true);
}

/// A node with topics, and its thread.
struct Publishing {
    dir: tempfile::TempDir,
    node: Node,
    topics: Vec<StatePublisher<u64>>,
    thread: Thread,
}

impl Publishing {
    fn new(topics: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let before = threads();
        let node = Node::builder().name("bench").expect("a name").runtime_dir(dir.path());
        let node = node.open().expect("a node");
        // The thread names itself when it starts.
        let thread = loop {
            if let Some(thread) = threads().difference(&before).next() {
                break thread.clone();
            }
        };
        let open = |index| node.state_publisher::<u64>(&format!("t{index}")).open().expect("a topic");
        let topics = (0..topics).map(open).collect();
        Self { dir, node, topics, thread: Thread(thread) }
    }

    /// A node of a peer.
    fn peer(&self) -> Node {
        Node::builder().runtime_dir(self.dir.path()).open().expect("a node")
    }
}

fn subscribe(node: &Node, topic: usize) -> StateSubscriber<u64> {
    let target = format!("shm:bench/t{topic}");
    node.state_subscriber::<u64>(&target).timeout(TIMEOUT).open().expect("a subscription")
}

/// Idle sessions of one subscription each, and idle topics; optionally beside a push subscriber of a log that does not consume.
fn at_rest(sessions: usize, topics: usize, is_beside_stopped: bool) {
    let publishing = Publishing::new(topics);
    let subscribers: Vec<_> =
        (0..sessions).map(|index| subscribe(&publishing.peer(), index % topics)).collect();
    let stopped = is_beside_stopped.then(|| stopped(&publishing));
    std::thread::sleep(SETTLED);
    let began = publishing.thread.usage();
    std::thread::sleep(WATCHED);
    let used = publishing.thread.usage().since(&began);
    let seconds = WATCHED.as_secs_f64();
    let beside = if is_beside_stopped { ", one stopped push subscriber" } else { "" };
    println!(
        "{:<64} {:>10.3} {:>12.1} {:>10.1}",
        format!("at rest, {sessions} sessions, {topics} topics{beside}"),
        used.run_ns as f64 / 1e9 / seconds * 100.0,
        used.wake_ups as f64 / seconds,
        used.run_ns as f64 / 1e3 / used.wake_ups.max(1) as f64,
    );
    drop((stopped, subscribers));
}

/// A log, and a push subscriber that is behind by more than its landing region holds.
fn stopped(publishing: &Publishing) -> (LogPublisher<Raw>, LogSubscriber<Raw>) {
    let log = publishing.node.log_publisher::<Raw>("log").capacity(CAPACITY).payload_len_max(1024);
    let mut log = log.open().expect("a log");
    let peer = publishing.peer();
    let subscriber = peer.log_subscriber::<Raw>("shm:bench/log").push().timeout(TIMEOUT).open();
    let subscriber = subscriber.expect("a subscription");
    (0..4 * CAPACITY / 1024).for_each(|_| _ = log.publish(&[0; 1000]).expect("a record"));
    (log, subscriber)
}

/// A hundred peers attach to a node in turn, and a hundred subscriptions of one peer.
fn attaches(topics: usize) {
    let publishing = Publishing::new(topics);
    std::thread::sleep(SETTLED);
    let one = publishing.peer();
    let kept = subscribe(&one, 0);
    for (what, is_own_session) in
        [("sessions begin and attach", true), ("subscriptions attach in one session", false)]
    {
        let began = publishing.thread.usage();
        let start = Instant::now();
        let attach = |_| if is_own_session { subscribe(&publishing.peer(), 0) } else { subscribe(&one, 0) };
        let attached: Vec<_> = (0..100).map(attach).collect();
        let took = start.elapsed();
        let used = publishing.thread.usage().since(&began);
        println!(
            "{:<64} {:>7.2} ms of the thread, {:>5} wake-ups, {:>6.1} ms in all",
            format!("{topics} topics: 100 {what}"),
            used.run_ns as f64 / 1e6,
            used.wake_ups,
            took.as_secs_f64() * 1e3,
        );
        drop(attached);
        std::thread::sleep(SETTLED);
    }
    drop((kept, publishing.topics));
}

/// One peer subscribes to all topics of a node, optionally together.
fn opens(topics: usize, is_at_once: bool) {
    let publishing = Publishing::new(topics);
    std::thread::sleep(SETTLED);
    let peer = publishing.peer();
    let began = publishing.thread.usage();
    let start = Instant::now();
    let subscribers: Vec<_> = if is_at_once {
        let builder = |index| peer.state_subscriber::<u64>(format!("shm:bench/t{index}").as_str());
        let opened = SubscriberBuilder::open_all((0..topics).map(|index| builder(index).timeout(TIMEOUT)));
        opened.into_iter().map(|opened| opened.expect("a subscription")).collect()
    } else {
        (0..topics).map(|index| subscribe(&peer, index)).collect()
    };
    let took = start.elapsed();
    let used = publishing.thread.usage().since(&began);
    println!(
        "{:<64} {:>7.2} ms of the thread, {:>5} wake-ups, {:>6.1} ms in all",
        format!("{topics} topics, opened {}", if is_at_once { "at once" } else { "one after the other" }),
        used.run_ns as f64 / 1e6,
        used.wake_ups,
        took.as_secs_f64() * 1e3,
    );
    drop(subscribers);
}

/// A thread of this process.
struct Thread(String);

/// The usage of a thread so far.
struct Usage {
    run_ns: u64,
    wake_ups: u64,
}

impl Thread {
    fn usage(&self) -> Usage {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0)).expect("the thread")
        };
        let number = |text: &str| text.trim().parse().expect("a number");
        let schedstat = read("schedstat");
        let status = read("status");
        let wake_ups = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let run_ns = schedstat.split(' ').next();
        Usage { run_ns: run_ns.map_or(0, number), wake_ups: wake_ups.map_or(0, number) }
    }
}

impl Usage {
    fn since(&self, began: &Self) -> Self {
        Self { run_ns: self.run_ns - began.run_ns, wake_ups: self.wake_ups - began.wake_ups }
    }
}

/// The threads of nodes in this process.
fn threads() -> BTreeSet<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process");
    let names = tasks.flatten().map(|task| task.file_name().to_string_lossy().into_owned());
    let is_node = |id: &String| {
        let name = fs::read_to_string(format!("/proc/self/task/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "fabricast-node")
    };
    names.filter(is_node).collect()
}
