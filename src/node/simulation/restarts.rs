//! Publishers that are killed, stopped, restarted and frozen, under persistent subscribers that do nothing about it.

mod told;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};

use self::told::{Table, Told};
use super::*;
use crate::chain::ErrorChain;
use crate::id::Epoch;
use crate::publisher::{LogPublisher, TablePublisher};
use crate::subscriber::{LogSubscriber, Persistent, Subscribed, TableSubscriber};

/// The epochs that publishers name. Each of the others is of one publisher.
const NAMED: [u64; 2] = [7, 8];
/// How often something happens to the publisher.
const FATES: u64 = 12;
/// How soon after the last restart every subscriber has all, ns.
const BACK_WITHIN_NS: u64 = 2_000_000_000;
const NODE: &str = "publishing";

/// What was published, by topic and epoch.
type Story = Arc<Mutex<HashMap<(&'static str, Epoch), Told>>>;
/// The epoch of the last publisher of each topic.
type Present = Arc<Mutex<HashMap<&'static str, Epoch>>>;

/// The value with this sequence.
fn value_of(epoch: Epoch, sequence: u64) -> Value {
    // As long in any epoch: that of a publisher that names none does not follow from the seed.
    (epoch.get().wrapping_add(sequence) | 1 << 63, value(sequence).1)
}

/// A publisher of one topic.
enum Source {
    State(StatePublisher<Value>),
    Log(LogPublisher<Value>),
    /// And its table.
    Table(Box<TablePublisher<u64, Value>>, Table),
}

impl Source {
    const TOPICS: [&str; 3] = ["state", "log", "table"];

    /// Opens one of a new epoch, or one that continues or repeats an earlier one.
    fn open(node: &Node, topic: &'static str, story: &Story, random: &mut Random) -> Self {
        let named = Epoch::new(NAMED[random.index(2)]).filter(|_| random.once_in(2));
        let mut story = story.lock();
        let mut after = 0;
        if let Some(epoch) = named {
            let told = story.entry((topic, epoch)).or_default();
            let skipped = told.newest + random.below(3) * random.below(4);
            after = match random.below(4) {
                0 => told.after,
                1 if topic != "table" => random.below(told.newest + 1),
                _ => skipped,
            };
            if topic == "table" && after != told.after {
                (told.after, told.commits) = (after, BTreeMap::new());
            }
        }
        let after = Sequence::new(after);
        macro_rules! opened {
            ($builder:expr) => {{
                let builder = $builder.payload_len_max(160).after(after);
                named.into_iter().fold(builder, |builder, epoch| builder.epoch(epoch)).open().unwrap()
            }};
        }
        let source = match topic {
            "state" => Self::State(opened!(node.state_publisher(topic).slots(4))),
            "log" => Self::Log(opened!(node.log_publisher(topic).capacity(4096))),
            _ => Self::Table(Box::new(opened!(node.table_publisher(topic).capacity(16))), Table::new()),
        };
        let told = story.entry((topic, source.position().0)).or_default();
        told.afters.insert(after.get());
        told.newest = told.newest.max(after.get());
        source
    }

    fn position(&self) -> (Epoch, u64) {
        let (epoch, newest) = match self {
            Self::State(publisher) => (publisher.epoch(), publisher.newest()),
            Self::Log(publisher) => (publisher.epoch(), publisher.newest()),
            Self::Table(publisher, _) => (publisher.epoch(), publisher.newest()),
        };
        (epoch, newest.get())
    }

    fn publish(&mut self, told: &mut Told, random: &mut Random) {
        let (epoch, newest) = self.position();
        let next = newest + 1;
        let published = match self {
            Self::State(publisher) => publisher.publish(&value_of(epoch, next)).unwrap(),
            Self::Log(publisher) => publisher.publish(&value_of(epoch, next)).unwrap(),
            Self::Table(publisher, table) => {
                let changes = told.commits.get(&next).cloned().unwrap_or_else(|| told.commit(next, random));
                for (key, is_put) in changes {
                    if is_put {
                        publisher.stage(&key, &value_of(epoch, next * 100 + key)).unwrap();
                        table.insert(key, next);
                    } else {
                        assert!(publisher.stage_removal(&key).unwrap() && table.remove(&key).is_some());
                    }
                }
                publisher.commit()
            }
        };
        assert_eq!(published.get(), next);
        told.newest = told.newest.max(next);
    }
}

/// The process of the publishers.
struct Publishing {
    world: Weak<World>,
    story: Story,
    random: Random,
    node: Option<Node>,
    sources: BTreeMap<&'static str, Source>,
    /// What dead processes held. They do not run any more to drop it.
    dead: Vec<Box<dyn Any + Send>>,
    fates: u64,
    /// The publishers that remain have published all that there was; their epochs.
    present: Present,
    is_over: Arc<AtomicBool>,
}

impl Publishing {
    fn turn(&mut self) -> bool {
        let Some(world) = self.world.upgrade() else { return false };
        let Some(node) = &self.node else {
            if self.fates == 0 || self.random.once_in(30) {
                self.node = Some(world.node(NODE, true));
            }
            return true;
        };
        let name = NODE.parse().unwrap();
        match self.random.below(200) {
            0..=1 if self.fates > 0 => {
                self.fates -= 1;
                self.meet_fate(&world);
            }
            2 if self.fates > 0 => world.network.pause(&name),
            3..=5 => world.network.resume(&name),
            6..=25 => {
                let topic = Source::TOPICS[self.random.index(3)];
                let (story, random) = (&self.story, &mut self.random);
                self.sources.entry(topic).or_insert_with(|| Source::open(node, topic, story, random));
            }
            26..=60 => {
                for (topic, source) in &mut self.sources {
                    let mut story = self.story.lock();
                    let told = story.entry((topic, source.position().0)).or_default();
                    let many = if self.random.once_in(10) { 40 } else { 3 };
                    (0..self.random.below(many)).for_each(|_| source.publish(told, &mut self.random));
                }
            }
            _ => {}
        }
        if self.fates > 0 || self.sources.len() < Source::TOPICS.len() {
            return true;
        }
        world.network.resume(&name);
        self.finish();
        false
    }

    /// The process or one of its topics ends.
    fn meet_fate(&mut self, world: &World) {
        match self.random.below(5) {
            0..=1 => {
                world.kill(NODE);
                self.dead.push(Box::new((std::mem::take(&mut self.sources), self.node.take())));
            }
            2 => {
                world.network.resume(&NODE.parse().unwrap());
                (self.sources, self.node) = (BTreeMap::new(), None);
                world.stop(NODE);
            }
            _ => drop(self.sources.remove(Source::TOPICS[self.random.index(3)])),
        }
    }

    /// The last publishers publish what was not published before.
    fn finish(&mut self) {
        let mut story = self.story.lock();
        for (topic, source) in &mut self.sources {
            let told = story.entry((topic, source.position().0)).or_default();
            // Often, there is nothing new.
            let least = told.afters.last().map_or(1, |after| after + 1);
            let last = (told.newest + self.random.below(3)).max(least);
            while source.position().1 < last {
                source.publish(told, &mut self.random);
            }
        }
        drop(story);
        let finals = self.sources.iter().map(|(topic, source)| (*topic, source.position().0));
        self.present.lock().extend(finals);
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A subscriber, and what it has received in the present epoch.
struct Follower<S: Subscribed> {
    subscriber: Persistent<S>,
    topic: &'static str,
    story: Story,
    /// The topic did not exist when it was opened.
    is_absent: bool,
    epoch: Option<Epoch>,
    /// The last value received, lost or skipped, if it is known.
    last: Option<u64>,
    /// The epoch of its first subscription, and the record before the first one of that.
    start: Arc<Mutex<Option<(Epoch, u64)>>>,
    table: Table,
    /// For each key the last commit of which its value was received.
    seen: Table,
    /// A value was damaged or cut off. It, and values of a table before it, may come again.
    is_unsure: bool,
    /// How many values were received and lost in all epochs.
    received: u64,
    lost: u64,
    damaged: u64,
    restarts: u64,
}

impl<S: Subscribed> Follower<S> {
    fn new(subscriber: Persistent<S>, topic: &'static str, story: &Story) -> Self {
        let (story, table, seen) = (Arc::clone(story), Table::new(), Table::new());
        let (epoch, last, start, is_unsure) = (None, None, Arc::default(), false);
        Self {
            subscriber,
            topic,
            story,
            is_absent: false,
            epoch,
            last,
            start,
            table,
            seen,
            is_unsure,
            received: 0,
            lost: 0,
            damaged: 0,
            restarts: 0,
        }
    }

    fn describe(&self) -> String {
        let Self { subscriber, topic, epoch, last, table, .. } = self;
        let is_attached = subscriber.is_attached();
        format!("{topic}: attached {is_attached}, epoch {epoch:?}, last {last:?}, table {table:?}")
    }

    /// What was published in the last epoch, if that is its own.
    fn told(&self, present: &Present) -> Option<Told> {
        let epoch = self.epoch.filter(|epoch| present.lock().get(self.topic) == Some(epoch))?;
        self.story.lock().get(&(self.topic, epoch)).cloned()
    }

    fn begin(&mut self) {
        let Some((epoch, before)) = self.start.lock().take() else { return };
        let afters = self.story.lock().get(&(self.topic, epoch)).unwrap().afters.clone();
        assert!(!self.is_absent || afters.contains(&before), "{before} is in {afters:?}");
        (self.epoch, self.last) = (Some(epoch), Some(before));
    }

    /// Checks the epoch of a value.
    fn enter(&mut self, epoch: Epoch) {
        assert_eq!(*self.epoch.get_or_insert(epoch), epoch, "another epoch without a break");
        assert!(self.story.lock().contains_key(&(self.topic, epoch)));
    }

    /// Records an error. Panics if it is unexpected.
    fn note(&mut self, error: &ReceiveError) {
        match *error {
            ReceiveError::Contended { .. } => {}
            // It died while it wrote it.
            ReceiveError::Damaged { sequence, .. } | ReceiveError::BrokenStamps { sequence }
                if self.topic != "log" =>
            {
                (self.last, self.is_unsure) = (Some(sequence.get() - 1), true);
                self.damaged += 1;
            }
            ReceiveError::Restarted { epoch, before, last } => {
                assert_ne!(epoch, before);
                assert_eq!(self.epoch.unwrap_or(before), before);
                let is_known = self.last.is_none_or(|known| known == last.get());
                assert!(is_known || self.is_unsure, "{:?}, not {last}", self.last);
                assert!(self.story.lock().contains_key(&(self.topic, epoch)));
                (self.epoch, self.last) = (Some(epoch), None);
                (self.table, self.seen, self.is_unsure) = (Table::new(), Table::new(), false);
                self.restarts += 1;
            }
            ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count } => {
                self.advance(first_lost.get(), count);
                self.lost += count;
                if self.topic == "state" {
                    // The next publisher may have it.
                    (self.last, self.is_unsure) = (self.last.map(|last| last - 1), true);
                }
            }
            // It overwrote the record while it wrote it to a landing region.
            ReceiveError::DamagedRecords { first_lost, count } if self.topic == "log" => {
                self.advance(first_lost.get(), count);
                self.damaged += count;
            }
            // The topic ended after the grant; the fabric in memory has this error for it.
            ReceiveError::NotResumed { ref source } => {
                assert!(is_withdrawn(source), "{}", ErrorChain(error));
            }
            ref error => panic!("{}: {} after {:?}", self.topic, ErrorChain(error), self.last),
        }
    }

    /// So many records follow the last one.
    fn advance(&mut self, first: u64, count: u64) {
        let before = first - 1;
        match (self.last, self.epoch) {
            (Some(last), _) if self.topic == "log" => assert_eq!(before, last),
            (Some(last), _) => assert!(before >= last, "{before} again, after {last}"),
            // All of an epoch, whatever publishers of it were there before.
            (None, Some(_)) if self.topic == "log" && self.restarts > 0 => assert_eq!(before, 0),
            (None, _) => {}
        }
        self.last = Some(before + count);
    }
}

fn is_absent(topic: &str, story: &Story) -> bool {
    !story.lock().keys().any(|(other, _)| *other == topic)
}

/// A subscriber of any kind.
trait Follow: Send {
    /// What it has.
    fn has(&self) -> String;

    /// Receives once. False when there was nothing.
    fn take(&mut self) -> bool;

    /// Whether it has all.
    fn is_back(&self, present: &Present) -> bool;

    /// Compares its counts with those of the subscriber. Returns how often the epoch changed.
    fn check(&self) -> u64;
}

macro_rules! follow_values {
    ($($subscriber:ident)*) => {$(
        impl Follow for Follower<$subscriber<Value>> {
            fn has(&self) -> String {
                self.describe()
            }

            fn take(&mut self) -> bool {
                let received = self.subscriber.try_receive();
                self.begin();
                match received {
                    Ok(None) => return false,
                    Ok(Some(sample)) => {
                        let (epoch, sequence) = (sample.meta.epoch, sample.meta.sequence.get());
                        self.enter(epoch);
                        assert_eq!(sample.value, value_of(epoch, sequence));
                        let skipped = self.last.map_or(0, |last| sequence - last - 1);
                        assert!(std::mem::take(&mut self.is_unsure) || sample.conflated == skipped);
                        self.advance(sequence, 1);
                        self.received += 1;
                    }
                    Err(error) => self.note(&error),
                }
                true
            }

            fn is_back(&self, present: &Present) -> bool {
                self.told(present).is_some_and(|told| self.last == Some(told.newest))
            }

            fn check(&self) -> u64 {
                let stats = self.subscriber.current().unwrap().stats();
                let lost = stats.lapped + stats.cut_off;
                let counted = (stats.received, lost, stats.rejected);
                assert_eq!(counted, (self.received, self.lost, self.damaged));
                self.restarts
            }
        }
    )*};
}

follow_values!(StateSubscriber LogSubscriber);

impl Follow for Follower<TableSubscriber<u64, Value>> {
    fn has(&self) -> String {
        self.describe()
    }

    fn take(&mut self) -> bool {
        match self.subscriber.try_change() {
            Ok(None) => return false,
            Ok(Some(change)) => {
                let (key, epoch, sequence) = (change.key, change.meta.epoch, change.meta.sequence.get());
                self.enter(epoch);
                if let Some(found) = change.value {
                    assert_eq!(found, value_of(epoch, sequence * 100 + key));
                    self.table.insert(key, sequence);
                    let before = self.seen.insert(key, sequence);
                    assert!(self.is_unsure || before < Some(sequence), "{key}: {sequence} after {before:?}");
                    self.received += 1;
                } else {
                    assert!(self.table.remove(&key).is_some(), "{key} was not received");
                }
            }
            // It may die while it overwrites an entry, and cuts off changes, not values.
            Err(ReceiveError::Damaged { .. } | ReceiveError::BrokenStamps { .. }) => self.is_unsure = true,
            Err(ReceiveError::CutOff { .. }) => {}
            Err(error) => self.note(&error),
        }
        true
    }

    fn is_back(&self, present: &Present) -> bool {
        self.told(present).is_some_and(|told| self.table == told.table)
    }

    fn check(&self) -> u64 {
        assert_eq!(self.subscriber.current().unwrap().suspects(), Vec::<u64>::new());
        self.restarts
    }
}

/// Opens a subscriber. Its topic may end after the grant, for which the fabric in memory has an error of its own.
fn opened<S: Subscribed>(open: impl Fn() -> Result<Persistent<S>, SubscriberError>) -> Persistent<S> {
    loop {
        match open() {
            Ok(subscriber) => return subscriber,
            Err(error) => assert!(is_withdrawn(&error), "{}", ErrorChain(&error)),
        }
    }
}

fn is_withdrawn(error: &SubscriberError) -> bool {
    ErrorChain(error).to_string().ends_with("the peer has withdrawn it")
}

/// A subscriber of each kind.
fn follow(node: &Node, delivery: Delivery, story: &Story) -> [Arc<Mutex<dyn Follow>>; 3] {
    let state = || node.state_subscriber::<Value>("shm:publishing/state").delivery(delivery);
    let state = Follower::new(opened(|| state().persistent().open()), "state", story);
    let log = || node.log_subscriber::<Value>("shm:publishing/log").delivery(delivery);
    let is_absent = is_absent("log", story);
    let mut log = Follower { is_absent, ..Follower::new(opened(|| log().persistent().open()), "log", story) };
    let start = Arc::clone(&log.start);
    log.subscriber.configure(move |log| *start.lock() = Some((log.epoch(), log.next_sequence().get() - 1)));
    let table = || node.table_subscriber::<u64, Value>("shm:publishing/table").delivery(delivery);
    let table = Follower::new(opened(|| table().persistent().open()), "table", story);
    [Arc::new(Mutex::new(state)), Arc::new(Mutex::new(log)), Arc::new(Mutex::new(table))]
}

/// Lets a subscriber receive at a pace that changes.
fn run(world: &World, follower: &Arc<Mutex<dyn Follow>>, mut random: Random, is_over: &Arc<AtomicBool>) {
    let (follower, is_over) = (Arc::downgrade(follower), Arc::clone(is_over));
    let mut pace = 1;
    world.spawn(move || {
        let Some(follower) = follower.upgrade() else { return false };
        if random.once_in(100) {
            pace = 1 + random.below(2) * random.below(100);
        }
        if is_over.load(Ordering::Relaxed) || random.once_in(pace) {
            let mut follower = follower.lock();
            (0..1 + random.below(20)).all(|_| follower.take());
        }
        true
    });
}

/// Returns how often an epoch changed for a subscriber.
fn play(seed: u64, reach: Reach, delivery: Delivery) -> u64 {
    let mut random = Random::new(seed);
    let world = World::new(seed, reach);
    let (story, present) = (Story::default(), Present::default());
    let is_over = Arc::new(AtomicBool::new(false));
    let publishing = Publishing {
        world: Arc::downgrade(&world),
        story: Arc::clone(&story),
        random: Random::new(random.next()),
        node: None,
        sources: BTreeMap::new(),
        dead: Vec::new(),
        fates: FATES,
        present: Arc::clone(&present),
        is_over: Arc::clone(&is_over),
    };
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let mut publishing = Some(publishing);
    world.spawn(move || {
        let goes_on = publishing.as_mut().is_some_and(Publishing::turn);
        if !goes_on {
            *keeps.lock() = publishing.take();
        }
        goes_on
    });
    let nodes = [world.node("one", false), world.node("other", false)];
    let mut followers = Vec::new();
    for node in &nodes {
        (0..random.below(3) * 300).for_each(|_| world.turn());
        for follower in follow(node, delivery, &story) {
            run(&world, &follower, Random::new(random.next()), &is_over);
            followers.push(follower);
        }
    }
    while !is_over.load(Ordering::Relaxed) {
        world.turn();
    }
    let began_ns = world.network.clock().monotonic_ns();
    while !followers.iter().all(|follower| follower.lock().is_back(&present)) {
        let elapsed_ns = world.network.clock().monotonic_ns() - began_ns;
        let has: Vec<String> = followers.iter().map(|follower| follower.lock().has()).collect();
        assert!(elapsed_ns < BACK_WITHIN_NS, "not all are back at {:?}: {has:#?}", present.lock());
        world.turn();
    }
    // Nothing comes twice.
    (0..200).for_each(|_| world.turn());
    followers.iter().map(|follower| follower.lock().check()).sum()
}

fn subscribers_outlive_their_publishers(reach: Reach, delivery: Delivery) {
    let mut restarts = 0;
    each_seed(amount(SEEDS / 3, 10 * SEEDS), |seed| restarts += play(seed, reach, delivery));
    assert!(restarts > 0);
}

#[test]
fn pull_subscribers_in_place_outlive_their_publishers() {
    subscribers_outlive_their_publishers(Reach::Mapped, Delivery::Pull);
}

#[test]
fn push_subscribers_in_place_outlive_their_publishers() {
    subscribers_outlive_their_publishers(Reach::Mapped, Delivery::Push);
}

#[test]
fn pull_subscribers_over_a_wire_outlive_their_publishers() {
    subscribers_outlive_their_publishers(Reach::Fetched, Delivery::Pull);
}

#[test]
fn push_subscribers_over_a_wire_outlive_their_publishers() {
    subscribers_outlive_their_publishers(Reach::Fetched, Delivery::Push);
}

/// A key that was removed shortly before its publisher died was received again from the next one, which repeated an earlier commit.
#[test]
fn worlds_that_failed_before_do_not_fail() {
    play(4094, Reach::Fetched, Delivery::Pull);
    play(4462, Reach::Fetched, Delivery::Push);
}
