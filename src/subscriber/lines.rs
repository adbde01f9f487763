mod damage;
mod line;
mod published;
mod set;
mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::deadline::{judged, within};
use super::iterate::endlessly;
use super::{
    AnySubscriber, Change, Deadline, Persistent, ReceiveError, Renewable, Sample, Subscribed,
    SubscriberError, TableSubscriber,
};
use crate::clock::{Clock, saturate};
use crate::id::{Epoch, Sequence};
use crate::payload::{Decoded, Raw};
pub use line::LineReport;
pub(crate) use set::{LineSet, LineSettings};
pub(crate) use source::LineSource;

/// A subscriber of several publishers of the same values, its *lines*: two hosts that publish the same feed, for example (the A and
/// the B line of an exchange). It receives each value once, from the line that brings it first, and survives the loss of all lines
/// but one without a gap.
///
/// [`lines`](crate::SubscriberBuilder::lines) begins one of a state, a log, a table, or any of them, and
/// [`FeedLines`](crate::FeedLines) is one of a feed. The lines may be on different fabrics. Each is a
/// [persistent](crate::Persistent) subscriber: a publisher that is lost is sought again in the background, and need not exist yet
/// when the subscriber is opened.
///
/// # Publishers
///
/// The publishers of all lines publish the same values with the same sequences, each in its own time, and name the same
/// [epoch](crate::PublisherBuilder::epoch). A publisher that was restarted publishes all values of the epoch again. One of a state or a
/// log may instead continue [after](crate::PublisherBuilder::after) a value that it knows to be published. A publisher with another
/// epoch is out of step: nothing is received from it, which is reported once ([`ReceiveError::OutOfStep`]). Once no publisher of the epoch
/// is left, the subscriber goes over to the other epoch and reports [`ReceiveError::Restarted`].
///
/// # What is received
///
/// - *Log.* The records of all lines, in order. A record that is missing on one line, because it was overwritten or is damaged, is
///   received from another one. If another line is behind, or is sought, the subscriber waits for it, by default for
///   [`limits::LINE_GAP_NS`](crate::limits::LINE_GAP_NS). Only then are records lost: [`ReceiveError::Missing`] reports them once.
///   Lost records that no other follows wait for a line that is sought until another epoch begins. Of that epoch all records are
///   received or reported, from sequence 1 on; those from before its lines were opened in it are received if a line brings them, and
///   not reported.
/// - *State.* Each value that is newer than the last one.
/// - *Table.* Each change of a key that is newer than what was received of the key. If a key was removed while the line was away that
///   had brought it, the first other line to show that reports the removal, with the number and the time of the commit that it has
///   reached.
///
/// A value of a state or a table that is damaged on one line is received of another one. It is reported once no line that is attached
/// has it, or none has brought it in the time in which records of a log are awaited, or if more than 64 values are awaited. While a
/// line has a damaged entry of a table, it cannot show that a key is gone that another line has brought: the entry may be of that
/// key. If no other line shows it, the key keeps its value until the publisher has changed the damaged entry again.
/// [`TableSubscriber::suspects`] returns the damaged keys of a [line](Self::line).
///
/// ```
/// use std::time::Duration;
///
/// use fabricast::{Epoch, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// // Epochs are shown in hexadecimal: this is the 23rd of November 2026.
/// let today = Epoch::new(0x2026_1123).ok_or("zero")?;
/// let a = Node::builder().name("a")?.runtime_dir(dir.path()).open()?;
/// let mut trades_a = a.log_publisher::<u64>("trades").epoch(today).open()?;
/// let b = Node::builder().name("b")?.runtime_dir(dir.path()).open()?;
/// let mut trades_b = b.log_publisher::<u64>("trades").epoch(today).open()?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut trades = node.log_subscriber::<u64>("shm:a/trades").lines(["shm:b/trades"]).open()?;
/// trades_a.publish(&10)?;
/// trades_b.publish(&10)?;
/// trades_b.publish(&20)?;
/// drop((trades_a, a));
/// trades_b.publish(&30)?;
/// for expected in [10, 20, 30] {
///     let trade = trades.receive_timeout(Duration::from_secs(5))?.ok_or("nothing received")?;
///     assert_eq!(trade.value, expected);
/// }
/// let [lost, left] = &trades.report()[..] else { return Err("two lines".into()) };
/// assert!(!lost.is_attached && left.is_attached);
/// # Ok(())
/// # }
/// ```
///
/// # Cost
///
/// A receive polls the lines in turn. A duplicate costs a copy and a check, but is not decoded. A subscriber of a table keeps a map of
/// the wanted keys, and of removed ones while a line that is behind may still bring them: of these as many as the table had at once,
/// and [`limits::LINE_REMOVED_MAX`](crate::limits::LINE_REMOVED_MAX) more. A key may come again, and be removed again, of a line that
/// is behind by more removals than that. Of the keys that one line has brought and not removed, the map has at most
/// [`limits::LINE_KEYS_PER_CELL`](crate::limits::LINE_KEYS_PER_CELL) for each key that the line's table may have. Only a faulty publisher
/// brings more. They are not received from it, and keys that it lacks no longer count as removed.
///
/// Waiting polls ten thousand times a second while more than one line is attached.
///
/// Send, not Sync: it may be sent to another thread, and receives on one at a time.
pub struct Lines<S: Arbitrated> {
    pub(in crate::subscriber) set: LineSet<S>,
    deadline: Option<Deadline>,
}

/// A subscriber that can be one of several [`Lines`]. This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait Arbitrated: LineSource + Renewable {}

impl<S: LineSource + Renewable> Arbitrated for S {}

impl<S: Arbitrated> Lines<S> {
    pub(crate) fn new(set: LineSet<S>, deadline: Option<Duration>) -> Self {
        let deadline = Deadline::begin(deadline, set.clock());
        Self { set, deadline }
    }

    /// Returns what is known of each line, in the order in which they were given: which is ahead, by how much, and what each lost.
    /// Allocates.
    pub fn report(&self) -> Vec<LineReport> {
        self.set.report()
    }

    /// Returns the sequence of the last value that was received or reported missing; for a log, at first, of the record before the
    /// first to be received.
    pub fn last(&self) -> Sequence {
        self.set.last()
    }

    /// Returns the epoch that is received; `None` before the first publisher was found.
    pub fn epoch(&self) -> Option<Epoch> {
        self.set.epoch()
    }

    /// Returns how many records were reported missing.
    pub fn missing(&self) -> u64 {
        self.set.missing()
    }

    /// Returns whether a value that a line could not bring is still expected from another line: it will be received, or reported. A damaged
    /// one is decided within the [gap timeout](crate::LinesBuilder::gap_timeout). One that the end of its publisher cut off may be
    /// expected for as long as another publisher lives. A program that is to have all that was published by now receives until there is
    /// nothing more and this returns false.
    pub fn has_pending_damage(&self) -> bool {
        self.set.has_pending_damage()
    }

    /// Returns the subscriber of the line that is ahead; `None` while none is attached. It has methods such as [`TableSubscriber::get`].
    ///
    /// Do not receive from it directly: what it takes is not received again from its line, but from the other lines.
    pub fn ahead(&mut self) -> Option<&mut S> {
        self.set.in_step().into_iter().next()
    }

    /// Returns the line that brought the last value received, by its place in the order in which they were given; `None` before the first
    /// value of an epoch. Publish times of values from different lines are of different clocks.
    pub fn brought(&self) -> Option<usize> {
        self.set.brought()
    }

    /// Returns the subscriber of the line that brought the last value received, or, before the first one, of any line that is received;
    /// `None` before the first publisher was found. It has the topic's name, and the schema of that value.
    pub fn current(&self) -> Option<&S> {
        self.set.current()
    }

    /// Returns the subscriber of a line, by its place in the order in which they were given; `None` for a place without a line.
    pub fn line(&self, index: usize) -> Option<&Persistent<S>> {
        self.set.line(index)
    }

    /// Returns the subscriber of a line while that is attached, for methods that change it, such as [`TableSubscriber::snapshot`], or for
    /// [`Liveness`](crate::Liveness). Do not receive from it: see [`Self::ahead`].
    pub fn attached(&mut self, index: usize) -> Option<&mut S> {
        self.set.attached(index)
    }

    /// Returns why the publisher of a line was not found when this was opened, for example because its address is misspelled; `None` once
    /// the line has attached to a publisher.
    pub fn open_error(&self, index: usize) -> Option<&SubscriberError> {
        self.line(index)?.open_error()
    }

    /// Chooses which keys of a table are received, from each line, now or once its publisher is found: see [`Persistent::configure`].
    /// Allocates.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = fabricast::Node::builder().runtime_dir(dir.path()).open()?;
    /// let builder = node.table_subscriber::<String, f64>("shm:a/fx").lines(["shm:b/fx"]);
    /// let mut quotes = builder.open()?;
    /// quotes.configure(|table| table.only_prefix("EUR"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn configure(&mut self, setting: impl Fn(&mut S) + Send + Sync + 'static) {
        self.set.configure(setting);
    }

    /// Receives the next value.
    fn try_next(&mut self) -> Result<Option<Sample<S::Item>>, ReceiveError> {
        let received = self.set.try_next();
        if let (Ok(None), Some(deadline)) = (&received, &self.deadline) {
            self.set.each_line(|line| line.rest_until(deadline.left_ns()));
        }
        judged(&mut self.deadline, received)
    }

    /// Waits up to `timeout` until this receives something.
    fn wait_for<V>(
        &mut self,
        timeout: Duration,
        receive: impl Fn(&mut Self) -> Result<Option<V>, ReceiveError>,
    ) -> Result<Option<V>, ReceiveError> {
        let mut waiting = Waiting::new(self.set.clock(), timeout);
        loop {
            let received = receive(self);
            if !matches!(received, Ok(None) | Err(ReceiveError::Contended { .. })) {
                return received;
            }
            let Some(waited_ns) = waiting.waited_ns() else { return received };
            let timeout = within(self.deadline.as_ref(), waited_ns, timeout);
            self.set.wait(waited_ns, timeout)?;
        }
    }
}

/// A wait up to a timeout.
pub(crate) struct Waiting {
    clock: Arc<dyn Clock>,
    timeout_ns: u64,
    /// When it began, from the second poll on: a value that is there costs no look at the clock.
    began_ns: Option<u64>,
}

impl Waiting {
    pub(crate) fn new(clock: &Arc<dyn Clock>, timeout: Duration) -> Self {
        Self { clock: Arc::clone(clock), timeout_ns: saturate(timeout), began_ns: None }
    }

    /// Returns how long it has lasted; `None` if that is the timeout.
    pub(crate) fn waited_ns(&mut self) -> Option<u64> {
        let now_ns = self.clock.monotonic_ns();
        let waited_ns = now_ns.saturating_sub(*self.began_ns.get_or_insert(now_ns));
        (waited_ns < self.timeout_ns).then_some(waited_ns)
    }
}

#[expect(private_bounds, reason = "no other item names what a line receives")]
impl<S: Subscribed + Arbitrated<Item = <S as Subscribed>::Value>> Lines<S> {
    /// Receives the next value, if a line has it. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError::Missing`], [`ReceiveError::OutOfStep`] and [`ReceiveError::Restarted`], as described above. Of a value of a state or
    /// a table that is damaged, and that no other line has brought, the error of a line: [`ReceiveError::Damaged`],
    /// [`ReceiveError::BrokenStamps`], [`ReceiveError::ForeignEpoch`] or [`ReceiveError::ImpossibleLen`]; [`ReceiveError::CutOff`] of the
    /// last values, if no line is left that may bring them. Other errors of
    /// [`Persistent::try_receive`](crate::Persistent::try_receive) if they concern all lines, or the program. The next call continues
    /// after each.
    pub fn try_receive(&mut self) -> Result<Option<Sample<S::Value>>, ReceiveError> {
        self.try_next()
    }

    /// Receives the next value, waiting up to `timeout` for it, or for a publisher and it; `None` when it expires.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<S::Value>>, ReceiveError> {
        self.wait_for(timeout, Self::try_receive)
    }

    /// Returns an iterator over all further values, which waits for each without a timeout. It yields errors and continues after them,
    /// and never ends.
    pub fn samples(&mut self) -> impl Iterator<Item = Result<Sample<S::Value>, ReceiveError>> + '_ {
        endlessly(|| self.receive_timeout(Duration::MAX))
    }
}

impl<K, V> Lines<TableSubscriber<K, V>>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Receives the next change, if a line has it, like [`TableSubscriber::try_change`]. Does not block.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`]: [`ReceiveError::Damaged`] and the like for a change that is damaged and that no other line has
    /// brought, [`ReceiveError::CutOff`] for the last changes if no line is left that may bring them.
    pub fn try_change(&mut self) -> Result<Option<Change<K, V>>, ReceiveError> {
        let Some(Sample { value: (key, value), meta, conflated }) = self.try_next()? else {
            return Ok(None);
        };
        let change = self.set.change();
        let (number, is_new) = (change.number, change.is_new);
        Ok(Some(Change { key, value, meta, number, replaced: conflated, is_new }))
    }

    /// Receives the next change, waiting up to `timeout`, like [`Self::receive_timeout`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive_timeout`].
    pub fn change_timeout(&mut self, timeout: Duration) -> Result<Option<Change<K, V>>, ReceiveError> {
        self.wait_for(timeout, Self::try_change)
    }
}

impl Lines<AnySubscriber<Raw>> {
    /// Receives like [`Self::try_receive`], and decodes the value with the topic's [schema](crate::Schema::decode). Allocates.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    pub fn try_receive_value(&mut self) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        let Some(Sample { value, meta, conflated }) = self.try_next()? else { return Ok(None) };
        let decoded = self.set.current().map(|subscriber| subscriber.schema().decode(&value));
        match decoded {
            Some(Ok(value)) => Ok(Some(Sample { value, meta, conflated })),
            Some(Err(source)) => Err(ReceiveError::Decode { sequence: meta.sequence, source }),
            None => Ok(None),
        }
    }

    /// Receives the next change of a table, if a line has it, with key and value as bytes. Does not block. A value of a state or a log is
    /// returned with an empty key and number 0.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    #[expect(clippy::type_complexity, reason = "a change of bytes is a change like any other")]
    pub fn try_change(&mut self) -> Result<Option<Change<Vec<u8>, Vec<u8>>>, ReceiveError> {
        let Some(Sample { value: mut key, meta, conflated: replaced }) = self.try_next()? else {
            return Ok(None);
        };
        let is_table = matches!(self.set.current(), Some(AnySubscriber::Table(_)));
        let line::KeyChange { number, key_len, is_new } = self.set.change();
        if !is_table {
            let (key, value) = (Vec::new(), Some(key));
            return Ok(Some(Change { key, value, meta, number: 0, replaced, is_new: false }));
        }
        let mut value = key.split_off(key_len.min(key.len()));
        // Between the two, an entry says whether there is a value.
        let is_present = value.first() == Some(&1);
        value.drain(..value.len().min(1));
        Ok(Some(Change { key, value: is_present.then_some(value), meta, number, replaced, is_new }))
    }

    /// Receives like [`Self::receive_timeout`], and decodes the value likewise.
    ///
    /// # Errors
    ///
    /// Those of [`Self::receive_timeout`].
    pub fn receive_value_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Sample<Decoded>>, ReceiveError> {
        self.wait_for(timeout, Self::try_receive_value)
    }
}

impl<S: Arbitrated> fmt::Debug for Lines<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Lines").field("lines", &self.report()).finish_non_exhaustive()
    }
}
