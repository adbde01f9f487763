//! The publisher: what each message changes is one event of the feed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::time::{Duration, Instant};

use fabricast::FeedPublisher;

use crate::Outcome;
use crate::book::{Book, MarketRecord};
use crate::engine::{Engine, Event};
use crate::orders::Message;
use crate::subscriber::{Counts, Numbered};

/// The time between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(500);

type Feed = FeedPublisher<String, MarketRecord, Book>;

/// The engine, and what was published.
#[derive(Debug)]
pub(crate) struct Replay {
    engine: Engine,
    rate: f64,
    began: Instant,
    /// The time between two lines of progress.
    progress: Duration,
    pub(crate) messages: u32,
    pub(crate) published: Counts,
    /// The records of each instrument since it was added.
    numbers: HashMap<String, u64>,
    /// The instruments that have been in the feed since the late subscribers were started.
    pub(crate) lasting: HashSet<String>,
}

/// The bytes that the longest event of these messages takes in the log.
pub(crate) fn event_len_max(messages: &[Message]) -> usize {
    let mut engine = Engine::default();
    let events = messages.iter().filter_map(|message| engine.process(*message));
    events.map(|event| event.records.iter().map(record_len).sum()).max().unwrap_or_default()
}

/// The bytes that a record takes in the log.
fn record_len(record: &MarketRecord) -> usize {
    // A key such as S0042 is a length and five characters.
    let (head, key) = (10, 8 + 5);
    // The number of the variant, and its fields.
    let value = match record {
        MarketRecord::Trade { .. } => 4 + 4 + 4 + 4,
        MarketRecord::Level { .. } => 4 + 4 + 4 + 8,
    };
    24 + usize::next_multiple_of(head + key + value, 8)
}

impl Replay {
    /// Begins now. The rate is in messages per second.
    pub(crate) fn new(rate: f64) -> Self {
        Self {
            engine: Engine::default(),
            rate,
            began: Instant::now(),
            progress: PROGRESS,
            messages: 0,
            published: Counts::default(),
            numbers: HashMap::new(),
            lasting: HashSet::new(),
        }
    }

    /// Begins so long ago: what is due since then is published at once. Prints no progress.
    pub(crate) fn begun(rate: f64, ago: Duration) -> Self {
        let began = Instant::now().checked_sub(ago).unwrap_or_else(Instant::now);
        Self { began, progress: Duration::MAX, ..Self::new(rate) }
    }

    /// What these messages add up to, published by others.
    pub(crate) fn of(messages: &[Message]) -> Self {
        let mut replay = Self::new(1.0);
        for message in messages {
            if let Some(event) = replay.engine.process(*message) {
                replay.count(&event);
            }
            replay.messages += 1;
        }
        replay
    }

    /// Late subscribers are about to be started.
    pub(crate) fn begin_late(&mut self) {
        self.lasting = self.numbers.keys().cloned().collect();
    }

    /// Publishes the events of these messages, each when it is due.
    pub(crate) fn publish(&mut self, messages: &[Message], feed: &mut Feed) -> Outcome<()> {
        let mut shown = self.began.elapsed();
        for message in messages {
            let due = Duration::from_secs_f64(f64::from(self.messages) / self.rate);
            std::thread::sleep(due.saturating_sub(self.began.elapsed()));
            if let Some(event) = self.engine.process(*message) {
                publish_event(&event, feed)?;
                self.count(&event);
            }
            self.messages += 1;
            if self.began.elapsed() - shown >= self.progress {
                shown = self.began.elapsed();
                let (events, instruments) = (self.published.events, feed.len());
                _ = writeln!(
                    std::io::stderr(),
                    "{} messages, {events} events, {instruments} instruments",
                    self.messages
                );
            }
        }
        Ok(())
    }

    fn count(&mut self, Event { symbol, records, book }: &Event) {
        self.published.events += 1;
        self.published.records += records.len() as u64;
        if book.is_empty() {
            self.published.removals += 1;
            self.numbers.remove(symbol);
            self.lasting.remove(symbol);
        } else {
            *self.numbers.entry(symbol.clone()).or_default() += records.len() as u64;
        }
    }

    /// The engine's books, with the number of records of each.
    pub(crate) fn books(&self) -> BTreeMap<String, Numbered> {
        let number = |symbol: &String| self.numbers.get(symbol).copied().unwrap_or_default();
        let books = self.engine.books().into_iter();
        books.map(|(symbol, book)| (symbol.clone(), (book, number(&symbol)))).collect()
    }
}

fn publish_event(Event { symbol, records, book }: &Event, feed: &mut Feed) -> Outcome<()> {
    let Some((last, others)) = records.split_last() else { return Ok(()) };
    // An instrument without a book has no orders to trade with: its first event is one record, which adds it.
    let mut commit = feed.event();
    for record in others {
        commit.record(symbol.as_str(), record)?;
    }
    if book.is_empty() {
        commit.remove(symbol.as_str(), last)?;
    } else {
        commit.update(symbol.as_str(), last, book)?;
    }
    commit.commit();
    Ok(())
}
