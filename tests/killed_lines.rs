//! Publishers of the same values that are killed in turn and started again, under subscribers of both that do nothing about it:
//! they receive every record once. Over RDMA in a soft-RoCE machine, run by `tools/test`.

#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "counts are small, lines are two"
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabricast::{Delivery, Epoch, FeedLines, FeedUpdate, LineReport, Lines, LogSubscriber, Node};

use self::support::long::is_long;
use self::support::peer::Peer;
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const NAMES: [&str; 2] = ["a", "b"];
const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];
/// The pause between two records, on one host and over RDMA.
const PACES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// The ports of the lines.
const PORTS: [u16; 2] = [7481, 7482];
const KEYS: u64 = 50;
/// How often a line is killed in a day.
const KILLS: usize = 10;

type Feed = FeedLines<u64, u64, u64>;

/// A publisher of one line: it publishes the records of the day from the first one on, those that are due at once.
#[test]
#[ignore = "no test: a process that a test starts"]
#[expect(clippy::disallowed_methods, reason = "both lines publish by the clock of the host")]
fn role() {
    let role = Role::of_this_process();
    let began = UNIX_EPOCH + Duration::from_nanos(role.number(1) as u64);
    let line = role.number(0);
    let pace = PACES[usize::from(role.name == "rdma")];
    let builder = Node::builder().name(NAMES[line]).expect("a name").runtime_dir(&role.dir);
    let builder = match role.name.as_str() {
        "rdma" => builder.rdma(&format!("rdma://0.0.0.0:{}", PORTS[line])).expect("an address").insecure(),
        _ => builder,
    };
    let node = builder.open().expect("a node");
    let epoch = Epoch::new(1).expect("not zero");
    let log = node.log_publisher::<u64>("log").payload_len_max(64).capacity(1 << 20).epoch(epoch);
    let mut log = log.open().expect("a log");
    let feed = node.feed_publisher::<u64, u64, u64>("feed").capacity(KEYS as usize);
    let mut feed = feed.log_capacity(1 << 20).epoch(epoch).open().expect("a feed");
    role.say("ready");
    let mut number = 0;
    loop {
        let elapsed = SystemTime::now().duration_since(began).unwrap_or_default();
        let due = (elapsed.as_nanos() / pace.as_nanos()) as u64;
        while number < due {
            number += 1;
            log.publish(&number).expect("a record");
            feed.publish(&(number % KEYS), &number, &number).expect("an event");
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A subscriber of both lines, and the last record that it has received.
struct Follower {
    log: Lines<LogSubscriber<u64>>,
    feed: Feed,
    last: Option<u64>,
    last_of_feed: u64,
    values: u64,
}

impl Follower {
    fn new(node: &Node, [first, other]: &[String; 2], delivery: Delivery) -> Self {
        let log = node.log_subscriber(format!("{first}/log").as_str()).timeout(PATIENCE).delivery(delivery);
        let feed =
            node.feed_subscriber(format!("{first}/feed").as_str()).timeout(PATIENCE).delivery(delivery);
        Self {
            log: log.lines([format!("{other}/log").as_str()]).open().expect("two lines"),
            feed: feed.lines([format!("{other}/feed").as_str()]).open().expect("two lines"),
            last: None,
            last_of_feed: 0,
            values: 0,
        }
    }

    /// Receives all that there is. Every record comes once, and none is missing.
    fn follow(&mut self) {
        while let Some(sample) = self.log.try_receive().expect("no loss") {
            assert_eq!(sample.value, sample.meta.sequence.get());
            assert!(
                self.last.is_none_or(|last| sample.value == last + 1),
                "after {:?}: {sample:?}",
                self.last
            );
            self.last = Some(sample.value);
        }
        while let Some(update) = self.feed.try_update().expect("no loss") {
            match update {
                FeedUpdate::Record(it) => {
                    let last = std::mem::replace(&mut self.last_of_feed, it.record);
                    assert!(last == 0 || it.record == last + 1, "after {last}: {it:?}");
                }
                // At first. Later ones would stand for lost records.
                FeedUpdate::Value(it) => {
                    self.values += 1;
                    self.last_of_feed = self.last_of_feed.max(it.meta.sequence.get());
                }
                _ => {}
            }
        }
        assert!(self.values <= KEYS, "values in place of records");
    }

    fn reports(&self) -> [Vec<LineReport>; 2] {
        [self.log.report(), self.feed.report()]
    }
}

/// Whether this line is at most a few records behind the other one.
fn is_back(follower: &Follower, line: usize) -> bool {
    let reports = follower.reports();
    let line = reports.iter().map(|report| &report[line]);
    line.clone().all(|line| line.is_attached && line.is_in_step && line.behind < 50)
        && follower.last.is_some()
        && follower.last_of_feed > 0
}

#[test]
fn no_record_is_lost_or_doubled_while_lines_are_killed_in_turn() {
    let targets = NAMES.map(|name| format!("shm:{name}"));
    // Each round is another day: a publisher that starts again publishes all of it.
    for _ in 0..if is_long() { 10 } else { 1 } {
        kill_in_turn("shm", &DELIVERIES.map(|delivery| (targets.clone(), delivery)));
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/test runs it in a soft-RoCE machine"]
fn no_record_is_lost_or_doubled_while_lines_over_rdma_are_killed_in_turn() {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let targets = PORTS.map(|port| format!("rdma://{host}:{port}"));
    let mixed = ["shm:a".to_owned(), targets[1].clone()];
    let lines = [(targets.clone(), Delivery::Pull), (targets, Delivery::Push), (mixed, Delivery::Pull)];
    kill_in_turn("rdma", &lines);
}

#[expect(clippy::disallowed_methods, reason = "both lines publish by the clock of the host")]
fn kill_in_turn(fabric: &str, lines: &[([String; 2], Delivery)]) {
    let dir = tempfile::tempdir().expect("a directory");
    let began_ns = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
    let start = |line: usize| Peer::ready(fabric, dir.path(), &format!("{line} {began_ns}"));
    let mut publishers = [start(0), start(1)];
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let mut followers: Vec<_> =
        lines.iter().map(|(targets, delivery)| Follower::new(&node, targets, *delivery)).collect();
    let mut longest = Duration::ZERO;
    for kill in 0..KILLS {
        let index = kill % 2;
        let began = now();
        while !followers.iter().all(|follower| is_back(follower, 1 - index)) {
            followers.iter_mut().for_each(Follower::follow);
            let reports = || followers.iter().map(Follower::reports).collect::<Vec<_>>();
            assert!(began.elapsed() < PATIENCE, "line {} is not back: {:#?}", 1 - index, reports());
        }
        publishers[index].kill();
        let (killed, last) =
            (now(), followers.iter().map(|it| (it.last, it.last_of_feed)).collect::<Vec<_>>());
        // The other line goes on at once.
        wait_until("records of the other line", || {
            followers.iter_mut().for_each(Follower::follow);
            followers.iter().zip(&last).all(|(it, last)| it.last > last.0 && it.last_of_feed > last.1)
        });
        longest = longest.max(killed.elapsed());
        wait_until("the loss to be noticed", || {
            followers.iter_mut().for_each(Follower::follow);
            followers.iter().flat_map(Follower::reports).all(|report| report[index].outages > kill as u64 / 2)
        });
        publishers[index] = start(index);
    }
    for follower in &followers {
        assert_eq!((follower.log.missing(), follower.feed.missing()), (0, 0));
        for report in follower.reports() {
            let outages: Vec<u64> = report.iter().map(|line| line.outages).collect();
            assert_eq!(outages.iter().sum::<u64>(), KILLS as u64);
            println!("{:?} {:?}", outages, report.iter().map(|it| (it.first, it.lost)).collect::<Vec<_>>());
        }
    }
    let records: Vec<_> = followers.iter().map(|it| it.last).collect();
    println!("{KILLS} kills, {records:?} records, longest silence {longest:?}");
}
