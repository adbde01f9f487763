use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::{ReceiveError, Sample, SampleRef};
use crate::clock::{Clock, saturate};
use crate::control::ControlError;
use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead, finish, read_now, wait};
use crate::id::{Delivery, Epoch, Sequence, TopicId, TopicName};
use crate::layout::header::BODY_OFFSET;
use crate::layout::state::StateGeometry;
use crate::limits;
use crate::memory::Region;
use crate::payload::{Payload, Schema};
use crate::repository::state::{Fetch, ReadCounts, ReadFailure, StateReader, Step, Verified};

#[cfg(test)]
mod tests;

/// How long a blocking receive looks for a value without giving the processor away.
const SPIN_NS: u64 = 20_000;
/// The pause between two looks of a blocking receive after that.
const PAUSE: Duration = Duration::from_micros(100);
/// How long a blocking receive waits for what it has begun to fetch before it looks for the end of the topic.
const FETCH_WAIT: Duration = Duration::from_millis(10);

/// Receives the values of a state topic: each call gives the newest one, if it is newer than the one before.
///
/// A receive neither allocates (beyond what decoding the value does), nor locks, nor calls the operating system
/// on the `shm` fabric. What it returns was copied to private memory and checked there: stamps, bounds, epoch,
/// CRC-32. Values that were replaced by newer ones before this subscriber looked are counted in
/// [`Sample::conflated`]; nothing is lost without being counted.
///
/// Dropping the subscriber detaches it. If it is the last handle of its [`Node`](crate::Node), the drop joins the node's
/// thread, and may block for up to 250 ms (over RDMA a second more, where a peer does not take what was sent).
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = publishing.state_publisher::<(f64, f64)>("EURUSD").open()?;
/// publisher.publish(&(1.0841, 1.0843))?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.state_subscriber::<(f64, f64)>("shm:quotes/EURUSD").open()?;
/// let sample = subscriber.try_receive()?.ok_or("nothing published")?;
/// assert_eq!((sample.value, sample.sequence.get()), ((1.0841, 1.0843), 1));
/// assert!(subscriber.try_receive()?.is_none());
/// # Ok(())
/// # }
/// ```
pub struct StateSubscriber<T: Payload> {
    reader: StateReader,
    source: Source,
    /// What is being fetched.
    fetching: Option<Batch>,
    /// The topic had ended before that was begun: what was published before the end is in it.
    ended_before: bool,
    granted: Granted,
    attachment: Arc<dyn Attachment>,
    clock: Arc<dyn Clock>,
    decode_failures: u64,
    conclusion: Conclusion,
    /// The heartbeat that was seen last on another host, and when it was seen first, by the monotonic clock.
    heartbeat: Option<(u64, u64)>,
    payload: PhantomData<fn() -> T>,
}

/// A batch of reads that is under way.
#[derive(Debug)]
enum Batch {
    /// What the reader asked for.
    Values(Fetch),
    /// The repository's headers, which nobody waits for any more.
    Headers,
}

/// What a subscriber knows of its end.
#[derive(Debug, Default)]
struct Conclusion {
    /// What was told, and is from then on.
    told: Option<End>,
    /// Since when nothing can be fetched, because the connection is over.
    lost_since_ns: Option<u64>,
}

/// Where a subscriber's bytes come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Memory that can be read in place, word for word as it was written: the repository itself, or a landing region.
    Mapped(Arc<Region>),
    /// A landing region where only whole writes appear in order.
    Landing(Arc<Region>),
    /// A repository that has to be fetched.
    Remote(Box<dyn RemoteRead>),
}

/// What the publisher granted, checked.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) delivery: Delivery,
    pub(crate) epoch: Epoch,
    pub(crate) geometry: StateGeometry,
    pub(crate) schema: Schema,
    pub(crate) key: u64,
    pub(crate) address: u64,
}

/// The session side of a subscription. Every method returns at once.
pub(crate) trait Attachment: fmt::Debug + Send + Sync {
    /// Whether [`Self::end`] has something to tell. Looked at by every receive: one load.
    fn has_ended(&self) -> bool;

    /// How the topic ended.
    fn end(&self) -> Option<End>;

    /// Detaches, with the final counts.
    fn leave(&self, counts: ReadCounts);
}

/// How a topic ended for a subscriber.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// Its publisher was dropped.
    Ended { published: Sequence },
    /// The session with its node is over.
    Gone { error: ControlError },
}

/// What a subscriber has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Values received.
    pub received: u64,
    /// Values that were replaced by newer ones before this subscriber looked.
    pub conflated: u64,
    /// Reads that were repeated because the value was overwritten meanwhile.
    pub torn_retries: u64,
    /// Values that were not accepted.
    pub rejected: u64,
}

impl<T: Payload> StateSubscriber<T> {
    pub(crate) fn new(
        granted: Granted,
        source: Source,
        attachment: Arc<dyn Attachment>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let reader = StateReader::new(granted.geometry, granted.epoch, granted.topic_id);
        let payload = PhantomData;
        Self {
            reader,
            source,
            fetching: None,
            ended_before: false,
            granted,
            attachment,
            clock,
            decode_failures: 0,
            conclusion: Conclusion::default(),
            heartbeat: None,
            payload,
        }
    }

    /// The newest value, if it is newer than the one before. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. Those that name a sequence passed that value over, so that the next call goes on behind
    /// it; [`ReceiveError::Ended`] and [`ReceiveError::Gone`] come after the last value, and from then on always. A
    /// subscriber by pull over a wire cannot read what was published just before the publisher's node was gone.
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        let Some(sample) = self.try_receive_ref()? else { return Ok(None) };
        let SampleRef { sequence, epoch, published_ns, conflated, .. } = sample;
        match sample.decode() {
            Ok(value) => Ok(Some(Sample { value, sequence, epoch, published_ns, conflated })),
            Err(source) => {
                self.decode_failures += 1;
                Err(ReceiveError::Decode { sequence, source })
            }
        }
    }

    /// As [`Self::try_receive`], but the value is left as bytes where it was checked: nothing is decoded, and
    /// nothing allocated.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`], but for [`ReceiveError::Decode`].
    #[inline]
    pub fn try_receive_ref(&mut self) -> Result<Option<SampleRef<'_, T>>, ReceiveError> {
        if let Some(end) = &self.conclusion.told {
            return Err(end.error());
        }
        // Looked at before the value: what was published before the end is still received.
        let mut ended = self.attachment.has_ended();
        let verified = match &mut self.source {
            Source::Mapped(memory) => self.reader.poll(memory),
            Source::Landing(memory) => self.reader.follow(memory, || self.clock.monotonic_ns()),
            Source::Remote(remote) => {
                let now_ns = self.clock.monotonic_ns();
                if self.fetching.is_none() {
                    self.ended_before = ended;
                }
                ended = self.ended_before;
                match fetch(&mut self.reader, remote.as_mut(), &mut self.fetching, now_ns) {
                    Ok(verified) => verified,
                    Err(error) => {
                        // What a connection that is over has brought is not all there.
                        self.fetching = self.fetching.take().filter(|_| !error.ends_connection());
                        return self.conclusion.lose(error, self.attachment.as_ref(), now_ns);
                    }
                }
            }
        };
        let (epoch, max) = (self.granted.epoch, self.granted.geometry.payload_len_max());
        match verified {
            Ok(Some(Verified { header, conflated, payload: bytes })) => Ok(Some(SampleRef {
                bytes,
                sequence: header.sequence,
                epoch,
                published_ns: header.published_ns,
                conflated,
                payload: PhantomData,
            })),
            // Nobody writes any more: what is being overwritten will stay so.
            Ok(None) | Err(ReadFailure::Contended { .. }) if ended && self.fetching.is_none() => {
                self.conclusion.tell(self.attachment.end())
            }
            Ok(None) => Ok(None),
            Err(failure) => Err(explain(failure, epoch, max)),
        }
    }

    /// The next new value, waiting for it up to `timeout`; `None` when the time is over. Looks for it without
    /// pause for 20 microseconds, then ten thousand times a second; for what is being fetched over a wire it waits.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        let began_ns = self.clock.monotonic_ns();
        loop {
            let outcome = self.try_receive();
            let waited_ns = self.clock.monotonic_ns().saturating_sub(began_ns);
            match outcome {
                Ok(None) | Err(ReceiveError::Contended { .. }) if waited_ns < saturate(timeout) => {}
                outcome => return outcome,
            }
            if waited_ns < SPIN_NS {
                std::hint::spin_loop();
            } else {
                self.pause(timeout.saturating_sub(Duration::from_nanos(waited_ns)))?;
            }
        }
    }

    /// Waits for what is being fetched, if that can be waited for, and otherwise a little while; no longer than `left`.
    fn pause(&mut self, left: Duration) -> Result<(), FabricError> {
        if let (Source::Remote(remote), Some(_)) = (&mut self.source, &self.fetching)
            && let Some(handle) = remote.wait_handle()?
        {
            return wait(&[handle], &[], FETCH_WAIT.min(left));
        }
        self.clock.pause(PAUSE);
        Ok(())
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.granted.topic
    }

    /// How values travel.
    pub fn delivery(&self) -> Delivery {
        self.granted.delivery
    }

    /// The incarnation of the topic that this subscribes to.
    pub fn epoch(&self) -> Epoch {
        self.granted.epoch
    }

    /// The description of the topic's values.
    pub fn schema(&self) -> &Schema {
        &self.granted.schema
    }

    /// The longest payload that the topic may have, bytes.
    pub fn payload_len_max(&self) -> usize {
        self.granted.geometry.payload_len_max()
    }

    /// What has been counted so far.
    pub fn stats(&self) -> SubscriberStats {
        let ReadCounts { received, conflated, torn_retries, rejected } = self.counts();
        SubscriberStats { received, conflated, torn_retries, rejected }
    }

    /// What the publisher granted.
    pub(crate) fn granted(&self) -> &Granted {
        &self.granted
    }

    /// The repository's headers: in place, or fetched just now, which blocks for a round trip. `None` for a subscriber
    /// that has a landing region.
    pub(crate) fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        let remote = match &mut self.source {
            Source::Mapped(region) if self.granted.delivery == Delivery::Pull => {
                return Ok(Some(Arc::clone(region)));
            }
            Source::Mapped(_) | Source::Landing(_) => return Ok(None),
            Source::Remote(remote) => remote.as_mut(),
        };
        // What is being fetched is fetched again by the next receive.
        let under_way = if self.fetching.is_some() { remote.poll()? } else { Completion::Done };
        let (clock, patience_ns) = (self.clock.as_ref(), limits::ANSWER_DEADLINE_NS);
        let mut completion = finish(remote, under_way, clock, patience_ns)?;
        if completion == Completion::Done {
            let headers = ByteRange { offset: 0, len: BODY_OFFSET };
            let read = read_now(remote, headers, clock, patience_ns);
            // One that is not complete stays under way, and is waited for before the next one.
            self.fetching = matches!(read, Ok(Completion::Pending)).then_some(Batch::Headers);
            completion = read?;
        }
        match completion {
            Completion::Done => Ok(Some(Arc::clone(remote.mirror()))),
            Completion::Pending => Err(FabricError::ReadOverdue),
        }
    }

    /// How long the publisher's heart has stood still that beat last at this moment, as its headers say. The clock of
    /// another host says nothing here: what counts is whether the heart has beaten between two looks.
    pub(crate) fn heart_stands_ns(&mut self, heartbeat_ns: u64) -> u64 {
        if !matches!(self.source, Source::Remote(_)) {
            return self.clock.realtime_ns().saturating_sub(heartbeat_ns);
        }
        let now_ns = self.clock.monotonic_ns();
        match self.heartbeat {
            Some((seen, since_ns)) if seen == heartbeat_ns => now_ns.saturating_sub(since_ns),
            _ => {
                self.heartbeat = Some((heartbeat_ns, now_ns));
                0
            }
        }
    }

    /// How the topic ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.conclusion.told.clone().or_else(|| self.attachment.end())
    }

    /// Where its time comes from.
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// The sequence of the newest value received; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.reader.last()
    }

    fn counts(&self) -> ReadCounts {
        let counts = self.reader.counts();
        ReadCounts {
            received: counts.received - self.decode_failures,
            rejected: counts.rejected + self.decode_failures,
            ..counts
        }
    }
}

impl Conclusion {
    /// Tells the end, if there is one, and remembers that.
    #[cold]
    fn tell<R>(&mut self, end: Option<End>) -> Result<Option<R>, ReceiveError> {
        self.told = end;
        self.told.as_ref().map_or(Ok(None), |end| Err(end.error()))
    }

    /// What comes of a fetch that failed. Where the connection is over nothing will ever be fetched again: the session
    /// tells how it ended, and if it does not in good time, the publisher is gone.
    #[cold]
    fn lose<R>(
        &mut self,
        error: FabricError,
        attachment: &dyn Attachment,
        now_ns: u64,
    ) -> Result<Option<R>, ReceiveError> {
        if attachment.has_ended() {
            return self.tell(attachment.end());
        }
        if !error.ends_connection() {
            return Err(error.into());
        }
        let since_ns = *self.lost_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < limits::LOSS_TOLD_NS {
            return Ok(None);
        }
        self.tell(Some(End::Gone { error: ControlError::Broken { why: error.to_string() } }))
    }
}

impl End {
    fn error(&self) -> ReceiveError {
        match self {
            Self::Ended { published } => ReceiveError::Ended { published: *published },
            Self::Gone { error } => ReceiveError::Gone { source: error.clone() },
        }
    }
}

impl<T: Payload> Drop for StateSubscriber<T> {
    fn drop(&mut self) {
        self.attachment.leave(self.counts());
    }
}

impl<T: Payload> fmt::Debug for StateSubscriber<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StateSubscriber")
            .field("topic", &self.granted.topic)
            .field("delivery", &self.granted.delivery)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Fetches as much as can be fetched without waiting, and checks it.
fn fetch<'r>(
    reader: &'r mut StateReader,
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Batch>,
    now_ns: u64,
) -> Result<Result<Option<Verified<'r>>, ReadFailure>, FabricError> {
    let mut completion = match fetching {
        Some(_) => remote.poll()?,
        None => begin(remote, fetching, reader.plan())?,
    };
    // As long as the provider completes at once, but not for ever where the newest value keeps moving.
    for _ in 0..limits::TORN_RETRIES_MAX {
        if completion == Completion::Pending {
            break;
        }
        let fetched = match fetching.take() {
            Some(Batch::Values(fetched)) => fetched,
            Some(Batch::Headers) => {
                completion = begin(remote, fetching, reader.plan())?;
                continue;
            }
            None => break,
        };
        match reader.check(remote.mirror(), &fetched, now_ns) {
            Ok(Step::Nothing) => return Ok(Ok(None)),
            Ok(Step::Fetch(more)) => completion = begin(remote, fetching, more)?,
            Ok(Step::Value(accepted)) => return Ok(Ok(Some(reader.verified(accepted)))),
            Err(failure) => return Ok(Err(failure)),
        }
    }
    Ok(Ok(None))
}

fn begin(
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Batch>,
    fetch: Fetch,
) -> Result<Completion, FabricError> {
    let completion = remote.post(fetch.ranges())?;
    *fetching = Some(Batch::Values(fetch));
    Ok(completion)
}

#[cold]
fn explain(failure: ReadFailure, epoch: Epoch, max: usize) -> ReceiveError {
    match failure {
        ReadFailure::Contended { attempts } => ReceiveError::Contended { attempts },
        ReadFailure::Damaged { sequence, expected, found } => {
            ReceiveError::Damaged { sequence, expected, found }
        }
        ReadFailure::BrokenStamps { sequence } => ReceiveError::BrokenStamps { sequence },
        ReadFailure::ForeignEpoch { sequence, found } => {
            ReceiveError::ForeignEpoch { sequence, expected: epoch, found }
        }
        ReadFailure::ImpossibleLen { sequence, len } => ReceiveError::ImpossibleLen { sequence, len, max },
    }
}
