//! Kills processes in turn and starts them again, and checks that everything goes on.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::publisher::Mark;
use super::subscriber::mark_of;
use super::support::pattern::Random;
use super::support::peer::{Holdings, Peer};
use super::support::time::{now, wait_until};

/// The subscribers: one of each kind is killed now and then, the last one never.
pub(crate) const MANNERS: [&str; 4] = ["pull", "push", "block", "pull"];
/// The subscriber that is never killed.
pub(crate) const SPARED: usize = 3;
/// The publishers: the first one is killed now and then, the other one never.
pub(crate) const PUBLISHERS: [&str; 2] = ["p0", "p1"];

/// A publisher's process, here or on another host.
pub(crate) trait Publishers {
    /// Kills the first publisher, or lets its host die, in this way.
    fn kill(&mut self, way: Way);
    /// Starts the first publisher, and waits until it publishes.
    fn start(&mut self, begins_anew: bool);
    /// Starts it, and kills it this soon.
    fn start_in_vain(&mut self, begins_anew: bool, after: Duration);
    /// Asks this one.
    fn ask(&mut self, publisher: usize, command: &str) -> String;
    /// What the publisher that is never killed holds.
    fn holdings(&mut self) -> Held;
    /// Objects of the RDMA devices of this host.
    fn near_objects(&self) -> u64 {
        0
    }
    /// Where they are, as subscribers name it.
    fn targets(&self) -> [String; 2];
}

/// How a process ends.
#[cfg_attr(not(feature = "verbs"), expect(dead_code, reason = "a test on one host kills processes only"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The process is killed.
    Killed,
    /// Its host is silent from one moment on, and the process dies.
    HostDies,
    /// Its host stands still for a while, and goes on.
    HostFreezes,
}

/// What a process holds that could leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) holdings: Holdings,
    pub(crate) threads: u64,
    pub(crate) mappings: u64,
    /// Resident memory, KiB.
    pub(crate) resident: u64,
    /// Objects of RDMA devices of all processes of its host.
    pub(crate) objects: u64,
}

impl Held {
    pub(crate) fn of(peer: &Peer) -> Self {
        let path = |name: &str| format!("/proc/{}/{name}", peer.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(path("status")).expect("the process runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
            line.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
        };
        let maps = std::fs::read_to_string(path("maps")).expect("the process runs");
        let mappings = maps.lines().count() as u64;
        let (threads, resident) = (field("Threads:"), field("VmRSS:"));
        Self { holdings: peer.holdings(), threads, mappings, resident, objects: 0 }
    }

    /// Whether a process that held this holds no more now. Memory is compared apart.
    fn is_no_less_than(&self, after: &Self) -> bool {
        self.holdings == after.holdings && after.threads <= self.threads && after.objects <= self.objects
    }
}

/// What came of the cycles.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// From the moment a process is ready, or its host goes on, until all that are concerned have received what was published meanwhile.
    /// The start of a process counts apart.
    recoveries: Vec<(Duration, String)>,
    /// The longest time that publishing a value took at the publisher that is never killed.
    slowest: Duration,
    /// The longest time from the start of a process until it was ready.
    start: Duration,
    /// The longest time that the subscriber that is never killed took to receive what the publisher that is never killed had published.
    spared: Duration,
    counts: [u64; 2],
}

impl Outcome {
    /// Checks that nobody waited for longer than this.
    pub(crate) fn check(&self, longest: Duration) {
        let recovery = self.recoveries.iter().map(|(time, _)| *time).max().unwrap_or_default();
        let Self { slowest, start, spared, .. } = *self;
        let times =
            [("recovery", recovery), ("publish", slowest), ("start", start), ("the two that live", spared)];
        for (waited, time) in times {
            assert!(time < longest, "TOO SLOW: {waited} {time:?}");
        }
    }

    pub(crate) fn print(&mut self, cycles: usize) {
        self.recoveries.sort();
        let at = |part: usize| self.recoveries.get(self.recoveries.len() * part / 100).map(|it| it.0);
        let [received, lost] = self.counts;
        self.recoveries.iter().rev().take(10).for_each(|(time, what)| println!("{time:?}: {what}"));
        println!(
            "{cycles} cycles, recoveries: median {:?}, 99 % {:?}, longest {:?}; slowest publish {:?}, start {:?}, \
             the two that live {:?}; {received} values received and checked, {lost} reported lost",
            at(50),
            at(99),
            self.recoveries.last().map(|it| it.0),
            self.slowest,
            self.start,
            self.spared
        );
    }
}

/// The subscribers of a host, and the publishers of this or another one.
pub(crate) struct Driver<P> {
    pub(crate) publishers: P,
    pub(crate) subscribers: Vec<Peer>,
    dir: PathBuf,
    pause_us: u64,
    pub(crate) random: Random,
    outcome: Outcome,
}

impl<P: Publishers> Driver<P> {
    pub(crate) fn new(publishers: P, dir: &Path, pause_us: u64) -> Self {
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
        println!("SEED={seed}");
        let (dir, outcome) = (dir.to_owned(), Outcome::default());
        let mut driver =
            Self { publishers, subscribers: Vec::new(), dir, pause_us, random: Random(seed), outcome };
        driver.subscribers = (0..MANNERS.len()).map(|number| driver.subscriber(number)).collect();
        driver.subscribers.iter_mut().for_each(|subscriber| assert_eq!(subscriber.hear(), "ready"));
        driver
    }

    fn subscriber(&self, number: usize) -> Peer {
        let [first, other] = self.publishers.targets();
        let arguments = format!("{} {} {first} {other}", MANNERS[number], self.pause_us);
        Peer::start("subscriber", &self.dir, &arguments)
    }

    /// How far this publisher is.
    fn mark(&mut self, publisher: usize) -> Mark {
        let answer = self.publishers.ask(publisher, "mark");
        let words: Vec<&str> = answer.split(' ').collect();
        if publisher == 1 {
            let slowest = Duration::from_millis(words[4].parse().expect("a number"));
            self.outcome.slowest = self.outcome.slowest.max(slowest);
        }
        mark_of(&words)
    }

    /// Waits until these subscribers have received what this publisher has published by now. Returns when they had, after this moment.
    pub(crate) fn reach(&mut self, subscribers: &[usize], publisher: usize, since: Instant) -> Duration {
        let Mark { epoch, newest, feed_epoch, event } = self.mark(publisher);
        let goal = format!("reach {publisher} {epoch} {newest} {feed_epoch} {event}");
        subscribers.iter().for_each(|number| self.subscribers[*number].tell(&goal));
        subscribers.iter().for_each(|number| _ = self.subscribers[*number].hear());
        since.elapsed()
    }

    /// A random time of up to this many microseconds.
    pub(crate) fn moment(&mut self, us_max: usize) -> Duration {
        Duration::from_micros(self.random.below(us_max) as u64)
    }

    /// Kills the first publisher while everything runs, starts it again, and checks that all subscribers receive from it.
    pub(crate) fn kill_publisher(&mut self, way: Way) {
        self.publishers.kill(way);
        let mut since = now();
        self.check_spared();
        if way == Way::Killed && self.random.below(4) == 0 {
            let (begins_anew, after) = (self.random.below(2) == 0, self.moment(20_000));
            self.publishers.start_in_vain(begins_anew, after);
        }
        if way != Way::HostFreezes {
            let (begins_anew, began) = (self.random.below(2) == 0, now());
            self.publishers.start(begins_anew);
            self.outcome.start = self.outcome.start.max(began.elapsed());
            since += began.elapsed();
        }
        if way == Way::Killed {
            since = now();
        }
        let all: Vec<usize> = (0..MANNERS.len()).collect();
        self.recovered(&all, since, format!("publisher, {way:?}"));
    }

    /// The same with a subscriber, which this kills.
    pub(crate) fn kill_subscriber(&mut self, number: usize, way: Way, die: impl FnOnce(&mut Peer)) {
        let counts = self.subscribers[number].ask("counts");
        self.count(&counts);
        let moment = self.moment(20_000);
        std::thread::park_timeout(moment);
        die(&mut self.subscribers[number]);
        let mut since = now();
        self.check_spared();
        if self.random.below(4) == 0 {
            let mut subscriber = self.subscriber(number);
            std::thread::park_timeout(self.moment(20_000));
            subscriber.kill();
        }
        let began = now();
        self.subscribers[number] = self.subscriber(number);
        assert_eq!(self.subscribers[number].hear(), "ready");
        self.outcome.start = self.outcome.start.max(began.elapsed());
        since += began.elapsed();
        let concerned = if way == Way::Killed { vec![number] } else { (0..MANNERS.len()).collect() };
        if way == Way::Killed {
            since = now();
        }
        self.recovered(&concerned, since, format!("{} subscriber, {way:?}", MANNERS[number]));
    }

    /// Checks that these receive from both publishers, and the one that is never killed from the other one that is never killed, and
    /// counts the time since this moment.
    fn recovered(&mut self, subscribers: &[usize], since: Instant, what: String) {
        let mut longest = Duration::ZERO;
        for publisher in [0, 1] {
            longest = longest.max(self.reach(subscribers, publisher, since));
        }
        self.check_spared();
        self.outcome.recoveries.push((longest, what));
    }

    /// Measures how long what the publisher that is never killed has published by now takes to the subscriber that is never killed.
    fn check_spared(&mut self) {
        let spared = self.reach(&[SPARED], 1, now());
        self.outcome.spared = self.outcome.spared.max(spared);
    }

    fn count(&mut self, answer: &str) {
        let counts = answer.split(' ').map(|word| word.parse::<u64>().expect("a number"));
        self.outcome.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }

    /// What the two hold that are never killed, once both have been at rest for a while.
    pub(crate) fn held(&mut self) -> [Held; 2] {
        let began = now();
        let mut held = self.held_now();
        loop {
            // Longer than a worker waits for work.
            std::thread::park_timeout(Duration::from_millis(600));
            let again = self.held_now();
            let is_at_rest = held
                .iter()
                .zip(&again)
                .all(|(held, again)| held.is_no_less_than(again) && again.is_no_less_than(held));
            if is_at_rest || began.elapsed() > Duration::from_secs(10) {
                return again;
            }
            held = again;
        }
    }

    fn held_now(&mut self) -> [Held; 2] {
        let (publisher, objects) = (self.publishers.holdings(), self.publishers.near_objects());
        [publisher, Held { objects, ..Held::of(&self.subscribers[SPARED]) }]
    }

    /// Checks that the two that are never killed hold no more than before.
    pub(crate) fn check_held(&mut self, before: &[Held; 2], growth_max: u64) {
        let mut after = self.held();
        let mut is_released = |after: &mut [Held; 2]| {
            *after = self.held_now();
            before.iter().zip(&*after).all(|(before, after)| before.is_no_less_than(after))
        };
        let began = now();
        while !is_released(&mut after) {
            assert!(began.elapsed() < Duration::from_secs(30), "before {before:#?}, after {after:#?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        println!("held before {before:?}\nheld after {after:?}");
        for (before, after) in before.iter().zip(&after) {
            assert!(after.mappings <= before.mappings + 20, "{} after {}", after.mappings, before.mappings);
            assert!(
                after.resident <= before.resident + growth_max,
                "{} KiB after {}",
                after.resident,
                before.resident
            );
        }
    }

    /// Ends all in order: subscribers have received everything up to the end of each publisher.
    pub(crate) fn finish(mut self) -> (Outcome, P) {
        for publisher in [0, 1] {
            let answer = self.publishers.ask(publisher, "halt");
            let words: Vec<&str> = answer.split(' ').collect();
            let mark = words[..4].join(" ");
            for number in 0..MANNERS.len() {
                self.subscribers[number].ask(&format!("reach {publisher} {mark}"));
                let lines = self.subscribers[number].ask(&format!("close {publisher} {mark}"));
                lines.split("; ").for_each(|line| println!("{line}"));
            }
        }
        for number in 0..MANNERS.len() {
            let counts = self.subscribers[number].ask("counts");
            self.count(&counts);
            self.subscribers[number].tell("end");
            assert!(self.subscribers[number].status().success());
        }
        (self.outcome, self.publishers)
    }
}

/// Publishers on this host.
#[derive(Debug)]
pub(crate) struct Near {
    peers: [Peer; 2],
    dir: PathBuf,
    place: [String; 2],
    pause_us: u64,
}

impl Near {
    pub(crate) fn new(dir: &Path, place: [String; 2], pause_us: u64) -> Self {
        let peers = [0, 1].map(|number| Self::publisher(dir, &place, number, true, pause_us));
        let mut near = Self { peers, dir: dir.to_owned(), place, pause_us };
        near.peers.iter_mut().for_each(|peer| assert_eq!(peer.hear(), "ready"));
        near
    }

    fn publisher(dir: &Path, place: &[String; 2], number: usize, begins_anew: bool, pause_us: u64) -> Peer {
        let manner = if begins_anew { "anew" } else { "on" };
        let arguments = format!("{} {} {manner} {pause_us}", PUBLISHERS[number], place[number]);
        Peer::start("publisher", dir, &arguments)
    }

    fn first(&self, begins_anew: bool) -> Peer {
        Self::publisher(&self.dir, &self.place, 0, begins_anew, self.pause_us)
    }

    /// Ends both in order.
    pub(crate) fn end(mut self) {
        for peer in &mut self.peers {
            peer.tell("end");
            assert!(peer.status().success());
        }
    }
}

impl Publishers for Near {
    fn kill(&mut self, _: Way) {
        self.peers[0].kill();
    }

    fn start(&mut self, begins_anew: bool) {
        self.peers[0] = self.first(begins_anew);
        assert_eq!(self.peers[0].hear(), "ready");
    }

    fn start_in_vain(&mut self, begins_anew: bool, after: Duration) {
        let mut peer = self.first(begins_anew);
        std::thread::park_timeout(after);
        peer.kill();
    }

    fn ask(&mut self, publisher: usize, command: &str) -> String {
        self.peers[publisher].ask(command)
    }

    fn holdings(&mut self) -> Held {
        Held::of(&self.peers[1])
    }

    fn targets(&self) -> [String; 2] {
        PUBLISHERS.map(|name| format!("shm:{name}"))
    }
}

/// Waits until nothing is left in the directory of nodes, and no socket is bound there.
pub(crate) fn check_directory(dir: &Path) {
    let is_left = |name: &str| [".node", ".sock", ".bind"].iter().any(|suffix| name.ends_with(suffix));
    let path = dir.to_string_lossy().into_owned();
    wait_until("the directory to be empty, and no socket left", || {
        let entries = std::fs::read_dir(dir).expect("a directory").flatten();
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("a list of sockets");
        entries.filter(|entry| is_left(&entry.file_name().to_string_lossy())).count() == 0
            && !sockets.contains(&path)
    });
}
