use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::listening::{Ear, Listening};
use super::subscription::{Batch, End, Observed, Source, Subscription, look_until, subscription_accessors};
use super::{GrantError, ReceiveError, Sample, SampleRef, Subscribed};
use crate::fabric::{Completion, FabricError, RemoteRead};
use crate::id::{Epoch, Kind, Sequence};
use crate::layout::state::SlotHeader;
use crate::limits;
use crate::memory::Region;
use crate::payload::Payload;
use crate::repository::state::{Accepted, Fetch, ReadCounts, ReadFailure, StateReader, Step, Verified};

#[cfg(test)]
mod tests;

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
    subscription: Subscription,
    /// What is being fetched.
    fetching: Option<Batch<Fetch>>,
    /// The topic had ended before that was begun: what was published before the end is in it.
    ended_before: bool,
    decode_failures: u64,
    payload: PhantomData<fn() -> T>,
}

/// What notices have brought.
enum Heard {
    /// The newest value.
    Value(Accepted),
    /// No reason to look.
    Nothing,
    /// A reason to look in the repository.
    Due,
}

/// What a subscriber has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SubscriberStats {
    /// Values received.
    pub received: u64,
    /// Values that were replaced by newer ones, or gone with their topic, before this subscriber looked.
    pub conflated: u64,
    /// Reads that were repeated because the value was overwritten meanwhile.
    pub torn_retries: u64,
    /// Values that were not accepted.
    pub rejected: u64,
    /// Values among those received that came with notices and that the publisher's memory did not confirm: see
    /// [`ReceiveError::Contradicted`].
    pub withdrawn: u64,
}

impl<T: Payload> StateSubscriber<T> {
    /// What its topic has to be.
    pub(crate) const KIND: Kind = Kind::State;

    /// The subscriber of what was granted, which must be a state topic.
    pub(crate) fn new(subscription: Subscription) -> Result<Self, GrantError> {
        let granted = subscription.granted();
        let (expected, found) = (Self::KIND, granted.geometry.kind());
        let geometry = granted.geometry.state().ok_or(GrantError::Kind { expected, found })?;
        let mut reader = StateReader::new(geometry, granted.epoch, granted.topic_id);
        if let Some(Listening::Channel(_)) = subscription.listening {
            reader.expect_inline();
        }
        let (fetching, payload) = (None, PhantomData);
        Ok(Self { reader, subscription, fetching, ended_before: false, decode_failures: 0, payload })
    }

    /// The newest value, if it is newer than the one before. Does not block.
    ///
    /// # Errors
    ///
    /// [`ReceiveError`]. Those that name a sequence passed that value over, so that the next call goes on behind
    /// it; [`ReceiveError::Ended`] and [`ReceiveError::Gone`] come after the last value, and from then on always. A
    /// subscriber by pull over a wire cannot read what was published just before the publisher's node was gone. One that has not
    /// received the last value within [`limits::ENDED_FETCH_NS`] of the end gets [`ReceiveError::CutOff`], once, and then `Ended`.
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
        self.subscription.check_told()?;
        // Looked at before the value: what was published before the end is still received.
        let mut ended = self.subscription.has_ended();
        if ended || self.subscription.is_fetched() {
            let counts = self.counts();
            self.subscription.note_counts(counts);
        }
        let subscription = &mut self.subscription;
        if ended && subscription.is_shut() {
            return self.conclude_unseen();
        }
        let Subscription { source, clock, listening, .. } = subscription;
        let accepted = match source {
            Source::Mapped(memory) => self.reader.accept(memory),
            Source::Landing { region: memory, .. } => self.reader.follow(memory, || clock.monotonic_ns()),
            Source::Remote(remote) => {
                let now_ns = clock.monotonic_ns();
                let mut ear = listening.as_mut().and_then(Listening::ear);
                let mut heard = Heard::Due;
                if self.fetching.is_none() {
                    self.ended_before = ended;
                    if let Some(ear) = &mut ear {
                        heard = hear(&mut self.reader, ear, ended, now_ns);
                    }
                }
                ended = self.ended_before;
                let fetched = match heard {
                    Heard::Value(accepted) => Ok(Ok(Some(accepted))),
                    Heard::Nothing => return Ok(None),
                    Heard::Due => fetch((&mut self.reader, ear), remote.as_mut(), &mut self.fetching, now_ns),
                };
                match fetched {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // What a connection that is over has brought is not all there.
                        self.fetching = self.fetching.take().filter(|_| !error.ends_connection());
                        if subscription.has_ended() {
                            return self.conclude_unseen();
                        }
                        return subscription.lose(error, now_ns);
                    }
                }
            }
            Source::Released(_) => Ok(None),
        };
        let granted = subscription.granted();
        let (epoch, max) = (granted.epoch, granted.geometry.payload_len_max());
        match accepted {
            Ok(Some(accepted)) => {
                let Verified { header, conflated, payload: bytes } = self.reader.verified(accepted);
                let SlotHeader { sequence, published_ns, .. } = header;
                Ok(Some(SampleRef { bytes, sequence, epoch, published_ns, conflated, payload: PhantomData }))
            }
            // Nobody writes any more: what is being overwritten will stay so.
            Ok(None) | Err(ReadFailure::Contended { .. }) if ended && self.fetching.is_none() => {
                self.conclude_unseen()
            }
            Ok(None) => Ok(None),
            Err(failure) => {
                subscription.look_again();
                if let ReadFailure::Contradicted { .. } = failure {
                    subscription.distrust_notices();
                }
                Err(explain(failure, epoch, max))
            }
        }
    }

    /// The next new value, waiting for it up to `timeout`; `None` when the time is over. Looks for it without
    /// pause for 20 microseconds, then ten thousand times a second; for what is being fetched over a wire it waits. One that asked for
    /// notices sleeps until it is told, or for [`limits::BELL_SLEEP_NS`] at a time.
    ///
    /// # Errors
    ///
    /// As [`Self::try_receive`]; `Contended` only if it lasts beyond the timeout.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        look_until(self, timeout, Self::try_receive, |it, left| {
            it.subscription.pause(it.fetching.is_some(), it.reader.last(), left)
        })
    }

    subscription_accessors!("values");

    /// What has been counted so far.
    pub fn stats(&self) -> SubscriberStats {
        let ReadCounts { received, conflated, torn_retries, rejected } = self.counts();
        SubscriberStats { received, conflated, torn_retries, rejected, withdrawn: self.reader.withdrawn() }
    }

    /// The sequence of the newest value received; [`Sequence::NONE`] before the first.
    pub fn newest(&self) -> Sequence {
        self.reader.last()
    }

    /// Reports the end of a topic of which nothing more will be received, after the values before it that were not received.
    #[cold]
    fn conclude_unseen<R>(&mut self) -> Result<Option<R>, ReceiveError> {
        if let Some(End::Ended { published }) = self.subscription.end()
            && let Some((first_lost, count)) =
                self.reader.give_up(published, self.subscription.granted.newest)
        {
            return Err(ReceiveError::CutOff { first_lost, count });
        }
        self.subscription.conclude()
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

impl<T: Payload> Subscribed for StateSubscriber<T> {}

impl<T: Payload> Observed for StateSubscriber<T> {
    fn subscription(&mut self) -> &mut Subscription {
        &mut self.subscription
    }

    fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        self.subscription.headers(&mut self.fetching)
    }
}

impl<T: Payload> Drop for StateSubscriber<T> {
    fn drop(&mut self) {
        let counts = self.counts();
        self.subscription.leave(counts);
    }
}

impl<T: Payload> fmt::Debug for StateSubscriber<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StateSubscriber")
            .field("topic", &self.subscription.granted.topic)
            .field("delivery", &self.subscription.granted.delivery)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Takes what has come by notices.
fn hear(reader: &mut StateReader, ear: &mut Ear, has_ended: bool, now_ns: u64) -> Heard {
    ear.hear(now_ns);
    if reader.is_unproven() && ear.is_proof_due(now_ns) {
        return Heard::Due;
    }
    // Of those that came meanwhile only the newest is accepted: each one that is counts as received.
    let newest =
        ear.take_newest_piece().and_then(|(piece, slot)| reader.take_inline(slot, piece.notice.sequence));
    match newest {
        Some(accepted) => Heard::Value(accepted),
        None if has_ended || ear.is_due(reader.last(), now_ns) => Heard::Due,
        None => Heard::Nothing,
    }
}

/// Fetches as much as can be fetched without waiting, and checks it.
fn fetch(
    (reader, ear): (&mut StateReader, Option<&mut Ear>),
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Batch<Fetch>>,
    now_ns: u64,
) -> Result<Result<Option<Accepted>, ReadFailure>, FabricError> {
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
            Ok(Step::Fetch(more)) => completion = begin(remote, fetching, more)?,
            Ok(step) => {
                ear.into_iter().for_each(|ear| ear.answer(reader.last()));
                let Step::Value(accepted) = step else { return Ok(Ok(None)) };
                return Ok(Ok(Some(accepted)));
            }
            Err(failure) => return Ok(Err(failure)),
        }
    }
    Ok(Ok(None))
}

fn begin(
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Batch<Fetch>>,
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
        ReadFailure::Contradicted { first, told, found } => ReceiveError::Contradicted { first, told, found },
    }
}
