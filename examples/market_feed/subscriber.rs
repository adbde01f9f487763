//! The subscribers: each runs in a thread, with a node of its own, and keeps the books of what it receives.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, FeedSubscriber, FeedUpdate, Node, ReceiveError, RecordUpdate, ValueUpdate,
};

use crate::Outcome;
use crate::book::{Book, MarketRecord};
use crate::engine::{INSTRUMENTS, symbol};

/// How long a subscriber may take to attach, and to end after the last message. A machine may be busy or emulated.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long it waits for the next update before it tries again.
pub(crate) const WAIT: Duration = Duration::from_millis(100);

pub(crate) const PLANS: [Plan; 5] = [
    Plan { name: "pull", ..ALL },
    Plan { name: "push", delivery: Delivery::Push, notices: true, by_event: true, ..ALL },
    Plan { name: "late", notices: true, by_event: true, is_late: true, ..ALL },
    Plan { name: "fifty", delivery: Delivery::Push, notices: true, wants_fifty: true, ..ALL },
    Plan { name: "conflated", interval: Some(Duration::from_millis(50)), ..ALL },
];
pub(crate) const ALL: Plan = Plan {
    name: "",
    delivery: Delivery::Pull,
    notices: false,
    by_event: false,
    is_late: false,
    wants_fifty: false,
    interval: None,
};

/// What a subscriber does.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) delivery: Delivery,
    /// Is woken by the publisher rather than polling.
    pub(crate) notices: bool,
    /// Takes whole events rather than single updates.
    pub(crate) by_event: bool,
    /// Attaches after half of the messages.
    pub(crate) is_late: bool,
    pub(crate) wants_fifty: bool,
    /// Only the newest values, once in this interval.
    pub(crate) interval: Option<Duration>,
}

/// A book as a subscriber knows it, and the number of records of its instrument since it was added.
pub(crate) type Numbered = (Book, u64);

/// What was published, or received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    pub(crate) records: u64,
    /// Instruments that were removed.
    pub(crate) removals: u64,
}

/// What a subscriber has received.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) books: BTreeMap<String, Numbered>,
    pub(crate) counts: Counts,
    /// The sequence of the first record; 0 for none.
    pub(crate) first: u64,
    pub(crate) values: u64,
    /// Errors that reported losses; values repair them.
    pub(crate) losses: u64,
    /// Updates that contradict those before.
    pub(crate) wrong: Vec<String>,
}

/// A subscriber that runs.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) plan: &'static Plan,
    attached: Receiver<()>,
    report: Receiver<Outcome<Report>>,
}

type Feed = FeedSubscriber<String, MarketRecord, Book>;
pub(crate) type Update = FeedUpdate<String, MarketRecord, Book>;

/// Every sixtieth instrument, the busiest among them.
pub(crate) fn fifty() -> impl Iterator<Item = String> {
    (0..INSTRUMENTS).step_by(60).map(symbol)
}

impl Plan {
    pub(crate) fn wants(&self, wanted: &str) -> bool {
        !self.wants_fifty || fifty().any(|symbol| symbol == wanted)
    }

    fn run(&self, at: &str, attached: &Sender<()>) -> Outcome<Report> {
        let node = Node::builder().open()?;
        let mut builder = node.feed_subscriber::<String, MarketRecord, Book>(at).delivery(self.delivery);
        if self.notices {
            builder = builder.notices();
        }
        if let Some(interval) = self.interval {
            builder = builder.conflate(interval);
        }
        let mut feed = builder.open()?;
        if self.wants_fifty {
            feed.only_keys(fifty());
        }
        _ = attached.send(());
        let mut report = Report::default();
        loop {
            match self.next(&mut feed) {
                Ok(updates) => updates.into_iter().for_each(|update| report.update(update)),
                Err(ReceiveError::Ended { .. }) => {
                    let suspects = feed.suspects().into_iter();
                    report.wrong.extend(suspects.map(|symbol| format!("{symbol} still lacks records")));
                    return Ok(report);
                }
                Err(ReceiveError::Lapped { .. } | ReceiveError::DamagedRecords { .. }) => report.losses += 1,
                // What changes faster than it can be read is tried again.
                Err(ReceiveError::Contended { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn next(&self, feed: &mut Feed) -> Result<Vec<Update>, ReceiveError> {
        if self.by_event {
            return Ok(feed.event_timeout(WAIT)?.map_or_else(Vec::new, |event| event.updates));
        }
        Ok(feed.update_timeout(WAIT)?.into_iter().collect())
    }
}

impl Report {
    pub(crate) fn update(&mut self, update: Update) {
        match update {
            FeedUpdate::Record(record) => self.record(&record),
            FeedUpdate::Value(value) => self.value(value),
            _ => self.wrong.push("an update of an unknown kind".to_owned()),
        }
    }

    /// Each record has to follow the one before, and has to fit the book.
    fn record(&mut self, record: &RecordUpdate<String, MarketRecord>) {
        if self.counts.records == 0 {
            self.first = record.meta.sequence.get();
        }
        self.counts.records += 1;
        self.counts.events += u64::from(record.ends_event);
        let (book, number) = self.books.entry(record.key.clone()).or_default();
        *number += 1;
        let is_next = *number == record.number && book.apply(&record.record);
        // An instrument is in the feed while it has orders.
        if !is_next || record.removes_key != (record.ends_event && book.is_empty()) {
            let (key, sequence) = (&record.key, record.meta.sequence);
            let found = format!("record {sequence} does not fit its book ({book}) after {number} records");
            self.wrong.push(format!("{key}: {found}"));
        }
        if record.removes_key {
            self.books.remove(&record.key);
            self.counts.removals += 1;
        }
    }

    fn value(&mut self, value: ValueUpdate<String, Book>) {
        self.values += 1;
        if let Some(book) = value.value {
            self.books.insert(value.key, (book, value.number));
        } else if self.books.remove(&value.key).is_some() {
            self.counts.removals += 1;
        }
    }
}

impl Subscriber {
    pub(crate) fn start(plan: &'static Plan, at: &str) -> Self {
        let at = at.to_owned();
        Self::start_with(plan, move |attached| plan.run(&at, attached))
    }

    /// Starts one that receives in another way.
    pub(crate) fn start_with(
        plan: &'static Plan,
        run: impl FnOnce(&Sender<()>) -> Outcome<Report> + Send + 'static,
    ) -> Self {
        let ((attach, attached), (send, report)) = (channel(), channel());
        std::thread::spawn(move || _ = send.send(run(&attach)));
        Self { plan, attached, report }
    }

    pub(crate) fn wait_until_attached(&self) -> Outcome<()> {
        match self.attached.recv_timeout(TIMEOUT) {
            Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self.failed("did not attach in time")),
            Err(RecvTimeoutError::Disconnected) => self.report().map(drop),
        }
    }

    /// Waits for its end.
    pub(crate) fn report(&self) -> Outcome<Report> {
        match self.report.recv_timeout(TIMEOUT) {
            Ok(Ok(report)) => Ok(report),
            Ok(Err(error)) => Err(self.failed(&ErrorChain(error.as_ref()).to_string())),
            Err(RecvTimeoutError::Timeout) => Err(self.failed("did not end in time")),
            Err(RecvTimeoutError::Disconnected) => Err(self.failed("ended without a report")),
        }
    }

    /// The error with which it has ended, if it has.
    pub(crate) fn error(&self) -> Option<Box<dyn std::error::Error + Send + Sync>> {
        let error = self.report.try_recv().ok()?.err()?;
        Some(self.failed(&ErrorChain(error.as_ref()).to_string()))
    }

    fn failed(&self, why: &str) -> Box<dyn std::error::Error + Send + Sync> {
        format!("the {} subscriber: {why}", self.plan.name).into()
    }
}
