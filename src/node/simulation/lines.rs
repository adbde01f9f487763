//! Two publishers of the same values that die, freeze, stop and start again, under subscribers of both lines that do nothing about it.
//! Each publisher publishes the same commits, from the first one on.

use std::any::Any;
use std::collections::BTreeMap;

use super::*;
use crate::id::Epoch;
use crate::publisher::{FeedPublisher, LogPublisher, TablePublisher};
use crate::subscriber::{FeedLines, FeedUpdate, LineReport, Lines, LogSubscriber, TableSubscriber};

const NAMES: [&str; 2] = ["a", "b"];
const KEYS: u64 = 6;
const COMMITS: usize = 120;
/// Bytes of a ring that holds all records, and of one that does not.
const RING_LENS: [usize; 2] = [1 << 15, 1 << 10];

type Table = BTreeMap<u64, u64>;

/// The commits that both lines publish. A commit of the log and the state is one value, with its number; of the table, of these keys;
/// of the feed, an event of a record for each.
#[derive(Debug)]
struct Script {
    epoch: Epoch,
    /// Keys, and whether they have a value after it.
    commits: Vec<BTreeMap<u64, bool>>,
    /// The commit of each key's value, after each commit.
    tables: Vec<Table>,
    /// The last record of the feed in each commit.
    ends: Vec<u64>,
}

impl Script {
    fn new(random: &mut Random, epoch: u64) -> Self {
        let (mut table, mut end) = (Table::new(), 0);
        let mut script = Self {
            epoch: Epoch::new(epoch).unwrap(),
            commits: Vec::new(),
            tables: vec![Table::new()],
            ends: vec![0],
        };
        for number in 1..=COMMITS as u64 {
            let mut commit = BTreeMap::new();
            for _ in 0..=random.below(3) {
                let key = random.below(KEYS);
                let is_put = !table.contains_key(&key) || !random.once_in(3);
                if commit.insert(key, is_put).is_none() {
                    if is_put {
                        table.insert(key, number)
                    } else {
                        table.remove(&key)
                    };
                }
            }
            // A key may have been drawn twice: what it is after the commit counts.
            commit.iter_mut().for_each(|(key, is_put)| *is_put = table.contains_key(key));
            end += commit.len() as u64;
            script.commits.push(commit);
            script.tables.push(table.clone());
            script.ends.push(end);
        }
        script
    }

    fn last(&self) -> &Table {
        self.tables.last().unwrap()
    }
}

/// The publishers of one line.
struct Line {
    name: &'static str,
    state: StatePublisher<u64>,
    log: LogPublisher<u64>,
    table: TablePublisher<u64, u64>,
    feed: FeedPublisher<u64, u64, u64>,
    published: usize,
    node: Node,
}

impl Line {
    fn new(world: &Arc<World>, name: &'static str, script: &Script, ring_len: usize) -> Self {
        let (node, epoch) = (world.node(name, true), script.epoch);
        let feed = node.feed_publisher("feed").capacity(12).log_capacity(ring_len);
        Self {
            name,
            state: node.state_publisher("state").slots(4).epoch(epoch).open().unwrap(),
            log: node
                .log_publisher("log")
                .payload_len_max(64)
                .capacity(ring_len)
                .epoch(epoch)
                .open()
                .unwrap(),
            table: node.table_publisher("table").capacity(8).epoch(epoch).open().unwrap(),
            feed: feed.record_len_max(64).value_len_max(32).epoch(epoch).open().unwrap(),
            published: 0,
            node,
        }
    }

    fn publish(&mut self, script: &Script) {
        let Some(commit) = script.commits.get(self.published) else { return };
        let before = &script.tables[self.published];
        self.published += 1;
        let number = self.published as u64;
        self.state.publish(&number).unwrap();
        self.log.publish(&number).unwrap();
        let mut event = self.feed.event();
        for (key, is_put) in commit {
            if *is_put {
                self.table.stage(key, &number).unwrap();
                event.update(key, &number, &number).unwrap();
            } else if before.contains_key(key) {
                self.table.stage_removal(key).unwrap();
                event.remove(key, &number).unwrap();
            } else {
                event.record(key, &number).unwrap();
            }
        }
        event.commit();
        assert_eq!(self.table.commit().get(), number);
    }
}

/// A subscriber of each kind, and what it has received in the present epoch.
struct Follower {
    state: Lines<StateSubscriber<u64>>,
    log: Lines<LogSubscriber<u64>>,
    table: Lines<TableSubscriber<u64, u64>>,
    feed: FeedLines<u64, u64, u64>,
    newest: u64,
    last: Option<u64>,
    entries: Table,
    /// For each key of the table the commit that was received last.
    seen: Table,
    values: Table,
    /// Values of the feed could not be read, and their keys are not known: no line whose publisher lives had reached them.
    lacks_values: bool,
    /// Nothing may be missing.
    is_whole: bool,
    restarts: [u64; 4],
}

fn targets(topic: &str) -> [String; 2] {
    NAMES.map(|name| format!("shm:{name}/{topic}"))
}

impl Follower {
    fn new(node: &Node, delivery: Delivery, is_whole: bool) -> Self {
        macro_rules! open {
            ($subscriber:ident, $topic:literal) => {{
                let [first, other] = targets($topic);
                node.$subscriber(first.as_str()).delivery(delivery).lines([other.as_str()]).open().unwrap()
            }};
        }
        Self {
            state: open!(state_subscriber, "state"),
            log: open!(log_subscriber, "log"),
            table: open!(table_subscriber, "table"),
            feed: open!(feed_subscriber, "feed"),
            newest: 0,
            last: None,
            entries: Table::new(),
            seen: Table::new(),
            values: Table::new(),
            lacks_values: false,
            is_whole,
            restarts: [0; 4],
        }
    }

    /// Receives once of each. Returns whether there was something.
    fn receive(&mut self, script: &Script) -> bool {
        let received = [
            self.receive_state(),
            self.receive_log(),
            self.receive_change(script),
            self.receive_update(script),
        ];
        received.contains(&true)
    }

    fn receive_state(&mut self) -> bool {
        match self.state.try_receive() {
            Ok(None) => return false,
            Ok(Some(sample)) => {
                assert_eq!(sample.meta.sequence.get(), sample.value);
                assert!(sample.value > self.newest, "{} after {}", sample.value, self.newest);
                let is_first = self.newest == 0;
                assert!(is_first || sample.conflated == sample.value - self.newest - 1);
                self.newest = sample.value;
            }
            Err(ReceiveError::Restarted { .. }) => {
                (self.newest, self.restarts[0]) = (0, self.restarts[0] + 1)
            }
            Err(error) => return note(&error),
        }
        true
    }

    fn receive_log(&mut self) -> bool {
        match self.log.try_receive() {
            Ok(None) => return false,
            Ok(Some(sample)) => {
                assert_eq!(sample.meta.sequence.get(), sample.value);
                assert!(
                    self.last.is_none_or(|last| sample.value == last + 1),
                    "{sample:?} after {:?}",
                    self.last
                );
                self.last = Some(sample.value);
            }
            Err(ReceiveError::Missing { first_lost, count }) => {
                assert!(!self.is_whole, "{count} from {first_lost} on: {:#?}", self.log);
                assert!(self.last.is_none_or(|last| first_lost.get() == last + 1));
                self.last = Some(first_lost.get() + count - 1);
            }
            Err(ReceiveError::Restarted { .. }) => {
                (self.last, self.restarts[1]) = (None, self.restarts[1] + 1)
            }
            Err(error) => return note(&error),
        }
        true
    }

    fn receive_change(&mut self, script: &Script) -> bool {
        match self.table.try_change() {
            Ok(None) => return false,
            Ok(Some(change)) => {
                let (key, sequence) = (change.key, change.meta.sequence.get());
                if let Some(value) = change.value {
                    assert_eq!(value, sequence);
                    assert_eq!(script.tables[usize::try_from(value).unwrap()].get(&key), Some(&value));
                    let before = self.seen.insert(key, sequence);
                    assert!(before < Some(sequence), "{key}: {sequence} after {before:?}");
                    self.entries.insert(key, value);
                } else {
                    let before = self.entries.remove(&key);
                    assert!(before.is_some(), "{key} was not received");
                }
            }
            Err(ReceiveError::Restarted { .. }) => {
                (self.entries, self.seen) = (Table::new(), Table::new());
                self.restarts[2] += 1;
            }
            Err(error) => return note(&error),
        }
        true
    }

    fn receive_update(&mut self, script: &Script) -> bool {
        let update = match self.feed.try_update() {
            Ok(None) => return false,
            Ok(Some(update)) => update,
            Err(ReceiveError::Missing { first_lost, count }) => {
                assert!(!self.is_whole, "{count} from {first_lost} on: {:#?}", self.feed);
                return true;
            }
            Err(ReceiveError::Restarted { .. }) => {
                (self.values, self.restarts[3]) = (Table::new(), self.restarts[3] + 1);
                self.lacks_values = false;
                return true;
            }
            Err(ReceiveError::UnreadableValues { .. }) => {
                self.lacks_values = true;
                return true;
            }
            Err(error) => return note(&error),
        };
        match &update {
            FeedUpdate::Record(it) if it.removes_key => _ = self.values.remove(&it.key).expect("a known key"),
            FeedUpdate::Record(it) => {
                let before = self.values.insert(it.key, it.record);
                assert!(before < Some(it.record), "{it:?} after {before:?}");
            }
            FeedUpdate::Value(it) => match it.value {
                Some(value) => _ = self.values.insert(it.key, value),
                None => _ = self.values.remove(&it.key),
            },
        }
        if update.ends_event() && !self.feed.is_recovering() && self.feed.suspects().is_empty() {
            let sequence = update.meta().sequence.get();
            let is_value = matches!(update, FeedUpdate::Value(_));
            let number = script.ends.iter().position(|end| *end >= sequence).unwrap();
            self.lacks_values &= self.values != script.tables[number];
            let is_right = is_value || self.lacks_values || self.values == script.tables[number];
            assert!(is_right, "after {sequence}: {:?} {:?}", self.values, script.tables[number]);
        }
        true
    }

    fn has_all(&self, script: &Script) -> bool {
        let last = Some(script.commits.len() as u64);
        Some(self.newest) == last
            && self.last == last
            && self.entries == *script.last()
            && self.values == *script.last()
            && !self.feed.is_recovering()
    }

    fn describe(&self) -> String {
        let Self { newest, last, entries, values, .. } = self;
        let reports: [Vec<LineReport>; 2] = [self.table.report(), self.feed.report()];
        format!("{newest} {last:?} {entries:?} {values:?} {:?} {reports:#?}", self.feed.is_recovering())
    }
}

/// An error that no loss follows from. Whether the next receive may return something else although the world has not turned.
fn note(error: &ReceiveError) -> bool {
    let is_known = match error {
        ReceiveError::Contended { .. } | ReceiveError::OutOfStep { .. } => true,
        // The memory of a frozen publisher is not read in time.
        ReceiveError::Fabric { .. } => true,
        // The publisher died while it wrote it.
        ReceiveError::Damaged { .. } | ReceiveError::BrokenStamps { .. } => true,
        ReceiveError::NotResumed { source } => {
            crate::chain::ErrorChain(source).to_string().ends_with("the peer has withdrawn it")
        }
        _ => false,
    };
    assert!(is_known, "{error}");
    // A value is half written until then.
    !matches!(error, ReceiveError::Contended { .. })
}

/// Both lines, and what dead processes held.
struct Publishing {
    world: Arc<World>,
    ring_len: usize,
    lines: [Option<Line>; 2],
    dead: Vec<Box<dyn Any>>,
}

impl Publishing {
    fn open(&mut self, index: usize, script: &Script) {
        if self.lines[index].is_none() {
            self.lines[index] = Some(Line::new(&self.world, NAMES[index], script, self.ring_len));
        }
    }

    fn resume(&self, index: usize) {
        self.world.network.resume(&NAMES[index].parse().unwrap());
    }

    /// Something happens to a line.
    fn meet_fate(&mut self, index: usize, random: &mut Random) {
        match random.below(4) {
            0..=1 => {
                if let Some(line) = self.lines[index].take() {
                    self.world.kill(NAMES[index]);
                    self.dead.push(Box::new(line));
                }
            }
            2 => self.world.network.pause(&NAMES[index].parse().unwrap()),
            _ => self.stop(index),
        }
    }

    fn stop(&mut self, index: usize) {
        self.resume(index);
        if let Some(Line { name, node, .. }) = self.lines[index].take() {
            drop(node);
            self.world.stop(name);
        }
    }

    /// Both lines publish a whole script while all kinds of things happen to them.
    fn play(&mut self, script: &Script, followers: &mut [Follower], random: &mut Random) {
        for _ in 0..400 {
            let index = random.index(2);
            match random.below(30) {
                0 => self.meet_fate(index, random),
                1..=2 => self.open(index, script),
                3 => self.resume(index),
                4..=10 => {
                    let count = 1 + random.below(4) * random.below(4);
                    self.lines[index]
                        .iter_mut()
                        .for_each(|line| (0..count).for_each(|_| line.publish(script)));
                }
                11..=15 => self.world.turn(),
                _ => followers.iter_mut().for_each(|follower| _ = follower.receive(script)),
            }
        }
        let left = random.index(2);
        self.resume(left);
        self.open(left, script);
        let line = self.lines[left].as_mut().unwrap();
        while line.published < script.commits.len() {
            line.publish(script);
            self.world.turn();
            followers.iter_mut().for_each(|follower| _ = follower.receive(script));
        }
        for turn in 0.. {
            let mut has_received = false;
            followers.iter_mut().for_each(|follower| has_received |= follower.receive(script));
            if !has_received {
                if followers.iter().all(|follower| follower.has_all(script)) {
                    break;
                }
                self.world.turn();
            }
            let described = || followers.iter().map(Follower::describe).collect::<Vec<_>>();
            assert!(turn < 200 * TURNS, "not all have all: {:#?}", described());
        }
    }
}

/// Both epochs of a seed.
fn play(seed: u64, reach: Reach, delivery: Delivery) {
    let mut random = Random::new(seed);
    let world = World::new(seed, reach);
    let is_whole = !random.once_in(3);
    let ring_len = RING_LENS[usize::from(!is_whole)];
    let (lines, dead) = ([None, None], Vec::new());
    let mut publishing = Publishing { world: Arc::clone(&world), ring_len, lines, dead };
    let scripts = [seed, seed + 1].map(|epoch| Script::new(&mut random, epoch + 1));
    if random.once_in(2) {
        publishing.open(random.index(2), &scripts[0]);
    }
    let nodes = [world.node("one", false), world.node("other", false)];
    let mut followers: Vec<_> = nodes.iter().map(|node| Follower::new(node, delivery, is_whole)).collect();
    publishing.play(&scripts[0], &mut followers, &mut random);
    // Another epoch begins.
    for index in [0, 1] {
        publishing.stop(index);
    }
    for _ in 0..100 {
        world.turn();
        followers.iter_mut().for_each(|follower| _ = follower.receive(&scripts[0]));
    }
    publishing.play(&scripts[1], &mut followers, &mut random);
    followers.iter().for_each(|follower| assert_eq!(follower.restarts, [1; 4]));
}

fn subscribers_survive_the_loss_of_lines(reach: Reach, delivery: Delivery) {
    each_seed(amount(SEEDS / 6, 40 * SEEDS), |seed| play(seed, reach, delivery));
}

/// A removed key was reported after a later life of the key; two lines reset each other's cuts; a feed read the tables of dead
/// publishers again and again, which had half of what it needed, and sought no others; a key of a damaged entry was taken for a removed
/// one.
#[test]
fn worlds_that_failed_before_do_not_fail() {
    play(114, Reach::Mapped, Delivery::Pull);
    play(19, Reach::Fetched, Delivery::Push);
    play(31, Reach::Fetched, Delivery::Push);
    play(1384, Reach::Fetched, Delivery::Push);
    play(2084, Reach::Fetched, Delivery::Push);
}

/// Each began with its own newest record.
#[test]
fn line_that_answers_late_brings_what_the_one_before_has_lost() {
    for reach in [Reach::Mapped, Reach::Fetched] {
        let world = World::new(1, reach);
        let nodes = NAMES.map(|name| world.node(name, true));
        let open = |node: &Node, capacity| -> LogPublisher<u64> {
            let builder = node.log_publisher("log").payload_len_max(64).capacity(capacity);
            builder.epoch(Epoch::FIRST).open().unwrap()
        };
        let mut publishers = [open(&nodes[0], RING_LENS[1]), open(&nodes[1], RING_LENS[0])];
        let mut publish = |until: u64| {
            for publisher in &mut publishers {
                (publisher.newest().get() + 1..=until).for_each(|it| _ = publisher.publish(&it).unwrap());
            }
        };
        publish(10);
        NAMES.iter().for_each(|name| world.network.pause(&name.parse().unwrap()));
        let node = world.node("one", false);
        let [first, other] = targets("log");
        let builder = node.log_subscriber::<u64>(first.as_str()).timeout(Duration::from_millis(50));
        let mut lines = builder.lines([other]).gap_timeout(Duration::MAX).open().unwrap();
        let mut received = Vec::new();
        let mut receive = |until: &dyn Fn(&[LineReport]) -> bool| {
            let is_over = (0..TURNS).any(|_| {
                world.turn();
                received.extend(lines.try_receive().unwrap().map(|sample| sample.value));
                until(&lines.report())
            });
            assert!(is_over, "{lines:?}");
        };
        world.network.resume(&NAMES[0].parse().unwrap());
        receive(&|report| report[0].is_attached);
        publish(200);
        world.network.resume(&NAMES[1].parse().unwrap());
        receive(&|report| report.iter().all(|line| line.last.get() == 200));
        assert_eq!(received, (11..=200).collect::<Vec<_>>());
    }
}

/// No publisher is attached that could bring the cut.
#[test]
fn cut_of_a_feed_is_not_overdue_while_no_line_is_attached() {
    let world = World::new(1, Reach::Fetched);
    let script = Script::new(&mut Random::new(1), 1);
    let (mut line, node) = (Line::new(&world, "a", &script, RING_LENS[0]), world.node("one", false));
    line.publish(&script);
    let [first, other] = targets("feed");
    let builder = node.feed_subscriber::<u64, u64, u64>(first.as_str()).lines([other.as_str()]);
    let mut feed = builder.open().unwrap();
    world.kill("a");
    // It finds out before it has read the table.
    (0..20).for_each(|_| world.turn());
    for _ in 0..30 {
        assert!(feed.try_update().unwrap().is_none());
        world.network.clock().advance(limits::ANSWER_DEADLINE_NS / 10);
        (0..20).for_each(|_| world.turn());
    }
    assert!(feed.is_recovering() && !feed.report()[0].is_attached);
    let mut next = Line::new(&world, "b", &script, RING_LENS[0]);
    next.publish(&script);
    let value = (0..TURNS).find_map(|_| {
        world.turn();
        feed.try_update().unwrap()
    });
    assert!(matches!(value, Some(FeedUpdate::Value(_))), "{value:?}");
    std::mem::forget(line);
}

#[test]
fn pull_subscribers_in_place_survive_the_loss_of_lines() {
    subscribers_survive_the_loss_of_lines(Reach::Mapped, Delivery::Pull);
}

#[test]
fn push_subscribers_in_place_survive_the_loss_of_lines() {
    subscribers_survive_the_loss_of_lines(Reach::Mapped, Delivery::Push);
}

#[test]
fn pull_subscribers_over_a_wire_survive_the_loss_of_lines() {
    subscribers_survive_the_loss_of_lines(Reach::Fetched, Delivery::Pull);
}

#[test]
fn push_subscribers_over_a_wire_survive_the_loss_of_lines() {
    subscribers_survive_the_loss_of_lines(Reach::Fetched, Delivery::Push);
}
