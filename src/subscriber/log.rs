use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::listening::{Ear, Listening};
use super::subscription::{
    Batch, End, Observed, PAUSE, Source, Subscription, look_until, subscription_accessors,
};
use super::{GrantError, ReceiveError, Record, RecordRef, Subscribed};
use crate::clock::Clock;
use crate::fabric::{Completion, FabricError, RemoteRead, read_now};
use crate::id::{Delivery, Epoch, Kind, Sequence};
use crate::layout::header::{HOT_EPOCH, HOT_SEQUENCE};
use crate::limits;
use crate::memory::Region;
use crate::payload::Payload;
use crate::repository::log::{
    Brought, Contradiction, LogCounts, LogFetch, LogReader, LogStart, LossReason, Lost, Next, Taken,
};
use crate::repository::state::ReadCounts;

#[cfg(test)]
mod tests;

/// Receives the records of a log topic: all of them, in order, from where it was asked to begin.
///
/// A receive neither allocates (beyond what decoding the record does), nor locks, nor calls the operating system
/// on the `shm` fabric. What it returns was copied to private memory and checked there: sequence, bounds, topic, epoch,
/// CRC-32. Records that the publisher has overwritten before this subscriber came to them are an error of their own,
/// [`ReceiveError::Lapped`], once and with the exact count; the next receive goes on behind them. So what was received and what was
/// told as lost is always all that was published.
///
/// A subscriber that begins with earlier records goes on to live ones without a seam: it is the same ring.
///
/// Dropping the subscriber detaches it. If it is the last handle of its [`Node`](crate::Node), the drop joins the node's
/// thread, and may block for up to 250 ms (over RDMA a second more, where a peer does not take what was sent).
///
/// ```
/// use fabricast::{Node, ReceiveError};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = publishing.log_publisher::<u64>("trades").open()?;
/// trades.publish_batch(&[10, 20])?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.log_subscriber::<u64>("shm:exchange/trades").earliest().open()?;
/// trades.publish(&30)?;
/// drop(trades);
/// let values: Vec<u64> = subscriber.records().map(|record| Ok(record?.value)).collect::<Result<_, ReceiveError>>()?;
/// assert_eq!(values, [10, 20, 30]);
/// # Ok(())
/// # }
/// ```
pub struct LogSubscriber<T: Payload> {
    reader: LogReader,
    subscription: Subscription,
    /// What is being fetched.
    fetching: Option<Batch<LogFetch>>,
    /// The topic had ended before that was begun: what was published before the end is in it.
    ended_before: bool,
    decode_failures: u64,
    payload: PhantomData<fn() -> T>,
}

/// The records of a [`LogSubscriber`], one after the other: see [`LogSubscriber::records`].
#[derive(Debug)]
pub struct Records<'a, T: Payload> {
    subscriber: &'a mut LogSubscriber<T>,
    is_over: bool,
}

/// What a subscriber of a log has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSubscriberStats {
    /// Records received.
    pub received: u64,
    /// Records that the publisher had overwritten before they were read.
    pub lapped: u64,
    /// Records that were not accepted: damaged, or not of the type.
    pub rejected: u64,
    /// Records that could not be read any more when the topic had ended.
    pub cut_off: u64,
    /// Records among those received that came with notices and are not what the publisher's memory holds: see
    /// [`ReceiveError::Contradicted`]. They are received again as it holds them.
    pub withdrawn: u64,
}

/// What one look at what is fetched gave.
enum Look {
    Taken(Taken),
    /// Nothing yet.
    Nothing,
    /// Everything that there is was received.
    All,
    /// What came with notices is not what the repository holds.
    Contradicted(Contradiction),
}

impl<T: Payload> LogSubscriber<T> {
    /// What its topic has to be.
    pub(crate) const KIND: Kind = Kind::Log;

    /// The subscriber of what was granted, which must be a log topic. Where it begins is settled when this returns; a
    /// repository on another host is read for that, which blocks for a round trip.
    pub(crate) fn open(mut subscription: Subscription, start: LogStart) -> Result<Self, GrantError> {
        let granted = subscription.granted();
        let (expected, found) = (Self::KIND, granted.geometry.kind());
        let geometry = granted.geometry.log().ok_or(GrantError::Kind { expected, found })?;
        let clock = subscription.clock.as_ref();
        let landing = match &subscription.source {
            Source::Mapped(memory) | Source::Landing { region: memory, .. } => {
                Some(memory).filter(|_| granted.delivery == Delivery::Push)
            }
            Source::Remote(_) | Source::Released(_) => None,
        };
        if let Some(memory) = landing {
            await_beginning(memory, granted.epoch, clock)?;
        }
        let reader = LogReader::new(geometry, granted.epoch, granted.topic_id, start);
        let mut reader = reader.granted_at(granted.newest);
        if let Some(Listening::Channel(_)) = subscription.listening {
            reader.expect_inline();
        }
        match &mut subscription.source {
            Source::Mapped(memory) | Source::Landing { region: memory, .. } => reader.settle(memory),
            Source::Remote(remote) => settle(&mut reader, remote.as_mut(), clock)?,
            Source::Released(_) => {}
        }
        let (fetching, payload) = (None, PhantomData);
        Ok(Self { reader, subscription, fetching, ended_before: false, decode_failures: 0, payload })
    }

    /// The next record, if there is one. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. [`ReceiveError::Lapped`] and [`ReceiveError::DamagedRecords`] tell which records are missing, before
    /// the next one that is there, [`ReceiveError::CutOff`] which ones before the end; [`ReceiveError::Decode`] passes its record
    /// over. [`ReceiveError::Ended`] and [`ReceiveError::Gone`] come after the last record, and from then on always. A subscriber by
    /// pull over a wire cannot read what was published just before the publisher's node was gone.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Record<T::Owned>>, ReceiveError> {
        let Some(record) = self.try_receive_ref()? else { return Ok(None) };
        let RecordRef { sequence, epoch, published_ns, .. } = record;
        match record.decode() {
            Ok(value) => Ok(Some(Record { value, sequence, epoch, published_ns })),
            Err(source) => {
                self.decode_failures += 1;
                Err(ReceiveError::Decode { sequence, source })
            }
        }
    }

    /// As [`Self::try_receive`], but the record is left as bytes where it was checked: nothing is decoded, and
    /// nothing allocated.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`], but for [`ReceiveError::Decode`].
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<RecordRef<'_, T>>, ReceiveError> {
        self.subscription.check_told()?;
        let epoch = self.subscription.granted.epoch;
        if let Some(taken) = self.reader.take_next() {
            return Ok(Some(RecordRef::of(self.reader.record(taken), epoch)));
        }
        let look = match &self.subscription.source {
            source @ (Source::Mapped(memory) | Source::Landing { region: memory, .. }) => {
                let is_pushed = self.subscription.granted.delivery == Delivery::Push;
                let clock = self.subscription.clock.as_ref();
                // What is wrong stays so where nothing is on its way any more, or what is may be lost.
                let mut poll = |has_ended: bool| match source {
                    Source::Landing { may_lose: false, .. } if !has_ended => {
                        self.reader.follow_late(memory, || clock.monotonic_ns())
                    }
                    _ if is_pushed => self.reader.follow(memory),
                    _ => self.reader.poll(memory),
                };
                match poll(false) {
                    Some(taken) => Look::Taken(taken),
                    None if !self.subscription.has_ended() => Look::Nothing,
                    // Looked at once more: what was published before the end is still received.
                    None => match poll(true) {
                        Some(taken) => Look::Taken(taken),
                        None if self.reader.has_more() => Look::Nothing,
                        None => Look::All,
                    },
                }
            }
            Source::Released(_) => Look::All,
            Source::Remote(_) if self.subscription.has_ended() && self.subscription.is_shut() => Look::All,
            Source::Remote(_) => match self.look() {
                Ok(look) => look,
                Err(error) => {
                    // What a connection that is over has brought is not all there.
                    self.fetching = self.fetching.take().filter(|_| !error.ends_connection());
                    let now_ns = self.subscription.clock.monotonic_ns();
                    if self.subscription.has_ended() {
                        return self.conclude();
                    }
                    self.subscription.note_counts(self.counts());
                    return self.subscription.lose(error, now_ns);
                }
            },
        };
        match look {
            Look::Nothing => Ok(None),
            Look::All => self.conclude(),
            Look::Contradicted(Contradiction { first, told, found }) => {
                self.subscription.distrust_notices();
                Err(ReceiveError::Contradicted { first, told, found })
            }
            Look::Taken(taken) => match self.reader.taken(taken) {
                Next::Record(record) => Ok(Some(RecordRef::of(record, epoch))),
                Next::Lost(lost) => Err(lost.into()),
            },
        }
    }

    /// The next record, waiting for it up to `timeout`; `None` when the time is over. Looks for it without
    /// pause for 20 microseconds, then ten thousand times a second; for what is being fetched over a wire it waits. One that asked for
    /// notices sleeps until it is told, or for [`limits::BELL_SLEEP_NS`] at a time.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`].
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Record<T::Owned>>, ReceiveError> {
        look_until(self, timeout, Self::try_receive, |it, left| {
            it.subscription.pause(it.fetching.is_some(), it.reader.last(), left)
        })
    }

    /// All records from the next one on, each as [`Self::receive_timeout`] gives it without a limit of time: earlier ones and
    /// live ones in one row. Losses are errors in it, and it goes on behind them. It is over when the topic has ended, and after
    /// [`ReceiveError::Gone`].
    pub fn records(&mut self) -> Records<'_, T> {
        Records { subscriber: self, is_over: false }
    }

    subscription_accessors!("records");

    /// The sequence of the next record to be received or told as lost.
    pub fn next_sequence(&self) -> Sequence {
        self.reader.next_sequence()
    }

    /// What has been counted so far.
    pub fn stats(&self) -> LogSubscriberStats {
        let LogCounts { received, lapped, damaged, cut_off, withdrawn } = self.reader.counts();
        let failures = self.decode_failures;
        let (received, rejected) = (received - failures, damaged + failures);
        LogSubscriberStats { received, lapped, rejected, cut_off, withdrawn }
    }

    /// Tells the end of the topic. Records before it that were not received, and never will be, are told first.
    #[cold]
    fn conclude<R>(&mut self) -> Result<Option<R>, ReceiveError> {
        if let Some(End::Ended { published }) = self.subscription.end()
            && let Some((first_lost, count)) = self.reader.give_up(published)
        {
            return Err(ReceiveError::CutOff { first_lost, count });
        }
        self.subscription.note_counts(self.counts());
        self.subscription.conclude()
    }

    fn counts(&self) -> ReadCounts {
        let LogSubscriberStats { received, lapped, rejected, cut_off, .. } = self.stats();
        ReadCounts { received, conflated: lapped + cut_off, torn_retries: 0, rejected }
    }

    /// Takes the next record of a repository on another host, and fetches as much as can be fetched without waiting.
    fn look(&mut self) -> Result<Look, FabricError> {
        // Looked at before the records: what was published before the end is still received.
        let has_ended = self.subscription.has_ended();
        let Subscription { source, clock, listening, .. } = &mut self.subscription;
        let Source::Remote(remote) = source else { return Ok(Look::Nothing) };
        // As long as the provider completes at once, but not for ever.
        for _ in 0..limits::LOG_REFILLS_MAX {
            if let Some(taken) = self.reader.take() {
                return Ok(Look::Taken(taken));
            }
            let completion = match self.fetching {
                Some(_) => remote.poll()?,
                None => {
                    if let Some(Listening::Channel(ear)) = listening
                        && !has_ended
                        && !self.reader.wants_more()
                    {
                        match hear(&mut self.reader, ear, clock.monotonic_ns()) {
                            Heard::Records => continue,
                            Heard::Nothing => break,
                            Heard::Due => {}
                        }
                    }
                    self.ended_before = has_ended;
                    begin(&self.reader, remote.as_mut(), &mut self.fetching)?
                }
            };
            if completion == Completion::Pending {
                break;
            }
            let Some(Batch::Values(fetched)) = self.fetching.take() else { continue };
            let now_ns = clock.monotonic_ns();
            let brought = self.reader.check(remote.mirror(), &fetched, now_ns);
            if let Some(Listening::Channel(ear)) = listening
                && fetched.has_hot_line()
            {
                ear.answer(Sequence::new(remote.mirror().load(HOT_SEQUENCE)));
            }
            match brought {
                Brought::Something => {}
                Brought::Nothing if self.ended_before => return Ok(Look::All),
                Brought::Nothing => return Ok(Look::Nothing),
                Brought::Contradiction(contradiction) => return Ok(Look::Contradicted(contradiction)),
            }
            if self.reader.is_behind() {
                // More comes while this is taken.
                self.ended_before = has_ended;
                begin(&self.reader, remote.as_mut(), &mut self.fetching)?;
            }
        }
        Ok(Look::Nothing)
    }
}

/// What notices have brought.
enum Heard {
    /// Records, for the reader to take.
    Records,
    /// No reason to look.
    Nothing,
    /// A reason to look in the repository.
    Due,
}

/// Takes what has come by notices.
fn hear(reader: &mut LogReader, ear: &mut Ear, now_ns: u64) -> Heard {
    ear.hear(now_ns);
    if reader.is_unproven() && ear.is_proof_due(now_ns) {
        return Heard::Due;
    }
    let mut has_records = false;
    while let Some((piece, frames)) = ear.take_piece() {
        let from = piece.notice.position.wrapping_sub(size_of_val(frames) as u64);
        has_records |= reader.take_inline(frames, from);
    }
    let last = reader.last();
    if has_records {
        Heard::Records
    } else if ear.is_due(last, now_ns) {
        Heard::Due
    } else {
        Heard::Nothing
    }
}

/// Begins to fetch what the reader wants next.
fn begin(
    reader: &LogReader,
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Batch<LogFetch>>,
) -> Result<Completion, FabricError> {
    let fetch = reader.plan();
    let completion = remote.post(fetch.ranges())?;
    *fetching = Some(Batch::Values(fetch));
    Ok(completion)
}

/// Has a reader find where to begin in a repository on another host.
fn settle(reader: &mut LogReader, remote: &mut dyn RemoteRead, clock: &dyn Clock) -> Result<(), GrantError> {
    let fetch = reader.plan();
    for range in fetch.ranges() {
        if read_now(remote, *range, clock, limits::ANSWER_DEADLINE_NS)? == Completion::Pending {
            return Err(GrantError::Unreadable);
        }
    }
    reader.check(remote.mirror(), &fetch, clock.monotonic_ns());
    Ok(())
}

/// Waits until a landing region says where its records begin. Mostly it does when the publisher has answered, but where writes may
/// be lost the first one may be, or come later than the answer.
fn await_beginning(memory: &Region, epoch: Epoch, clock: &dyn Clock) -> Result<(), GrantError> {
    let began_ns = clock.monotonic_ns();
    while memory.load_acquire(HOT_EPOCH) != epoch.get() {
        if clock.monotonic_ns().saturating_sub(began_ns) >= limits::ANSWER_DEADLINE_NS {
            return Err(GrantError::Unreadable);
        }
        clock.pause(PAUSE);
    }
    Ok(())
}

impl From<Lost> for ReceiveError {
    fn from(Lost { first: first_lost, count, reason }: Lost) -> Self {
        match reason {
            LossReason::Lapped => Self::Lapped { first_lost, count },
            LossReason::Damaged => Self::DamagedRecords { first_lost, count },
        }
    }
}

impl<T: Payload> Iterator for Records<'_, T> {
    type Item = Result<Record<T::Owned>, ReceiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_over {
            match self.subscriber.receive_timeout(Duration::MAX) {
                Ok(None) => {}
                Ok(Some(record)) => return Some(Ok(record)),
                Err(ReceiveError::Ended { .. }) => self.is_over = true,
                Err(error) => {
                    self.is_over = matches!(error, ReceiveError::Gone { .. });
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl<T: Payload> Subscribed for LogSubscriber<T> {}

impl<T: Payload> Observed for LogSubscriber<T> {
    fn subscription(&mut self) -> &mut Subscription {
        &mut self.subscription
    }

    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        self.subscription.headers(&mut self.fetching)
    }
}

impl<T: Payload> Drop for LogSubscriber<T> {
    fn drop(&mut self) {
        self.subscription.leave(self.counts());
    }
}

impl<T: Payload> fmt::Debug for LogSubscriber<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LogSubscriber")
            .field("topic", &self.subscription.granted.topic)
            .field("delivery", &self.subscription.granted.delivery)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
