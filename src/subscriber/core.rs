use std::sync::Arc;
use std::time::Duration;

use super::deadline::{judged, within};
use super::notices::{NoticeSource, NoticeSubscription};
use super::offer::Offer;
use super::subscription::{Fetching, PAUSE, Source, Subscription, TopicEnd};
use super::{GrantError, ReceiveError, Sample};
use crate::clock::{Clock, saturate};
use crate::fabric::{Completion, FabricError, RemoteRead, read_now};
use crate::id::{Delivery, Epoch};
use crate::layout::header::HOT_EPOCH;
use crate::limits;
use crate::memory::Region;
use crate::payload::{DecodeError, Schema};
use crate::repository::{
    Arrival, Fetch, Finding, LossReason, Lost, ReadFailure, Reader, SubscriberStats, Taken, Verdict,
    Verified, WriteOrder,
};

/// The part of a subscriber common to all kinds of topic: reads values in place or fetches them, follows notices, and reports
/// losses and the end in order.
pub(crate) struct Core<R: Reader> {
    pub(super) reader: R,
    pub(super) subscription: Subscription,
    /// The read in progress.
    pub(super) fetching: Option<Fetching<Fetch<R::Purpose>>>,
    /// The topic had ended before that read began, so the read covers everything published.
    ended_before: bool,
    /// The values that cannot be received were reported.
    has_given_up: bool,
    decode_failures: u64,
    /// Has room for inline values.
    takes_inline: bool,
    expired: u64,
    /// The last receive has skipped as many expired values as one may: there may be more.
    is_cut_short: bool,
}

/// The outcome of polling a repository on another host.
enum Look {
    Value(Taken),
    /// Nothing yet.
    Nothing,
    /// The topic has ended, and everything readable was received.
    End,
    Failure(ReadFailure),
}

impl<R: Reader> Core<R> {
    /// Opens a subscriber from a grant, which must be of the reader's kind. Its starting position is fixed on return. Blocks for
    /// a round trip if the reader needs a repository on another host for that.
    pub(super) fn open(mut subscription: Subscription, options: R::Options) -> Result<Self, GrantError> {
        let granted = &subscription.granted;
        let names = (granted.epoch, granted.topic_id);
        let reader = R::open(&granted.geometry, names, granted.at, options);
        let (expected, found) = (R::KIND, granted.geometry.kind());
        let mut reader = reader.ok_or(GrantError::Kind { expected, found })?;
        let takes_inline = matches!(subscription.notice_source, Some(NoticeSource::Channel(_)));
        if takes_inline {
            reader.expect_inline();
        }
        if !reader.has_begun() {
            begin(&mut reader, &mut subscription)?;
        }
        let is_landing = subscription.granted.delivery == Delivery::Push;
        let newest = subscription.granted.at.newest;
        subscription.progress.iter_mut().for_each(|progress| progress.begin(&reader, is_landing, newest));
        Ok(Self {
            reader,
            subscription,
            fetching: None,
            ended_before: false,
            has_given_up: false,
            decode_failures: 0,
            expired: 0,
            is_cut_short: false,
            takes_inline,
        })
    }

    /// Continues with the next subscription of the same topic, whose reader takes over what this one has received. The old one is
    /// left behind.
    pub(super) fn renew(&mut self, next: &mut Self, is_same_epoch: bool) {
        next.reader.resume(&mut self.reader, is_same_epoch);
        next.subscription.inherit_distrust(&self.subscription);
        std::mem::swap(&mut self.reader, &mut next.reader);
        std::mem::swap(&mut self.subscription, &mut next.subscription);
        self.fetching = next.fetching.take();
        (self.ended_before, self.has_given_up) = (false, false);
        self.takes_inline = next.takes_inline;
        next.subscription.join(None);
    }

    /// Detaches once, with the final counts.
    pub(super) fn leave(&mut self) {
        let stats = self.stats();
        self.subscription.leave(stats);
    }

    /// Returns the next value, if there is one, in this form.
    #[inline]
    pub(super) fn try_receive<'a, V>(
        &'a mut self,
        form: impl FnOnce(Verified<'a>) -> V,
    ) -> Result<Option<V>, ReceiveError> {
        self.subscription.check_told()?;
        // A branch of its own, which keeps a held value in registers.
        if !self.subscription.is_timed()
            && let Some(taken) = self.reader.take_held()
        {
            return Ok(Some(form(self.reader.verified(taken))));
        }
        match self.take_next()? {
            Some(taken) => Ok(Some(form(self.reader.verified(taken)))),
            None => {
                self.rest();
                Ok(None)
            }
        }
    }

    /// The same, decoded with the topic's schema.
    #[inline]
    pub(super) fn try_receive_decoded<V>(
        &mut self,
        decode: impl FnOnce(&[u8], &Schema) -> Result<V, DecodeError>,
    ) -> Result<Option<Sample<V>>, ReceiveError> {
        self.subscription.check_told()?;
        // As above.
        if !self.subscription.is_timed()
            && let Some(taken) = self.reader.take_held()
        {
            return self.decoded(taken, decode);
        }
        let Some(taken) = self.take_next()? else {
            self.rest();
            return Ok(None);
        };
        self.decoded(taken, decode)
    }

    /// Offers the next value to an arbiter, and decodes it unless it is a duplicate.
    #[inline]
    pub(super) fn try_offer<V>(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
        decode: impl FnOnce(&[u8], &Schema) -> Result<V, DecodeError>,
    ) -> Result<Option<Offer<V>>, ReceiveError> {
        self.subscription.check_told()?;
        let held = self.reader.take_held();
        let Some(taken) = held.map_or_else(|| self.take_any(), |held| Ok(Some(held)))? else {
            self.rest();
            return Ok(None);
        };
        let changed = self.reader.changed_key();
        let Verified { meta, conflated, payload } = self.reader.verified(taken);
        let verdict = judge(&Arrival { meta, conflated, changed, payload });
        let (number, key_len) = changed.map_or((0, 0), |changed| (changed.number, changed.key_len));
        let conflated = match verdict {
            Verdict::Duplicate => return Ok(Some(Offer { verdict, meta, number, key_len, value: None })),
            Verdict::First { .. } if self.expires(taken) => {
                // It counts as received for the other lines, which publish it with the same lifespan.
                let verdict = Verdict::Duplicate;
                return Ok(Some(Offer { verdict, meta, number, key_len, value: None }));
            }
            Verdict::First { conflated, .. } => conflated,
            Verdict::Early => 0,
        };
        let value = self.decoded(taken, decode).transpose();
        let value = value.map(|decoded| decoded.map(|sample| Sample { conflated, ..sample }));
        Ok(Some(Offer { verdict, meta, number, key_len, value }))
    }

    #[inline]
    fn decoded<V>(
        &mut self,
        taken: Taken,
        decode: impl FnOnce(&[u8], &Schema) -> Result<V, DecodeError>,
    ) -> Result<Option<Sample<V>>, ReceiveError> {
        let Verified { meta, conflated, payload } = self.reader.verified(taken);
        match decode(payload, &self.subscription.granted.schema) {
            Ok(value) => Ok(Some(Sample { value, meta, conflated })),
            Err(source) => {
                self.decode_failures += 1;
                Err(ReceiveError::Decode { sequence: meta.sequence, source })
            }
        }
    }

    /// The same, with a wait of up to `timeout`: it spins first, and then pauses between polls. Reports `Contended` only if it
    /// lasts beyond the timeout.
    pub(super) fn receive_timeout<V>(
        &mut self,
        timeout: Duration,
        decode: impl Fn(&[u8], &Schema) -> Result<V, DecodeError>,
    ) -> Result<Option<Sample<V>>, ReceiveError> {
        let is_nothing = |outcome: &_| matches!(outcome, Ok(None) | Err(ReceiveError::Contended { .. }));
        let mut outcome = self.try_receive_decoded(&decode);
        // An available value costs no clock read.
        if !is_nothing(&outcome) {
            return outcome;
        }
        let clock = Arc::clone(&self.subscription.clock);
        let began_ns = clock.monotonic_ns();
        loop {
            let waited_ns = clock.monotonic_ns().saturating_sub(began_ns);
            if !is_nothing(&outcome) || waited_ns >= saturate(timeout) {
                return outcome;
            }
            self.wait(waited_ns, timeout)?;
            outcome = self.try_receive_decoded(&decode);
        }
    }

    /// Waits before the next poll: spins first, and then pauses, at most until `timeout`.
    pub(super) fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), FabricError> {
        if waited_ns < self.subscription.spin_ns {
            std::hint::spin_loop();
            return Ok(());
        }
        let timeout = within(self.subscription.deadline.as_ref(), waited_ns, timeout);
        let left = timeout.saturating_sub(Duration::from_nanos(waited_ns));
        let waited = self.subscription.pause(self.fetching.is_some(), self.reader.last(), left);
        self.accept_inline();
        waited
    }

    /// Nothing new was found: tells what waits for this subscriber among others.
    #[inline]
    pub(super) fn rest(&mut self) {
        if self.subscription.is_reported_ready() && !self.is_cut_short {
            self.subscription.rest(self.fetching.is_some(), self.reader.brought());
            self.accept_inline();
        }
    }

    /// Makes room for inline values, once notices bring them.
    fn accept_inline(&mut self) {
        if !self.takes_inline && matches!(self.subscription.notice_source, Some(NoticeSource::Channel(_))) {
            self.takes_inline = true;
            self.reader.expect_inline();
        }
    }

    /// The repository's headers: see [`Subscription::headers`].
    pub(super) fn headers(&mut self) -> Result<Option<Arc<Region>>, FabricError> {
        self.subscription.headers(&mut self.fetching)
    }

    /// The counts so far.
    pub(super) fn stats(&self) -> SubscriberStats {
        let mut stats = self.reader.counts();
        stats.received -= self.decode_failures + self.expired;
        stats.expired += self.expired;
        stats.rejected += self.decode_failures;
        stats
    }

    /// Takes the next value, if there is one and it is not held already.
    #[inline]
    pub(super) fn take_next(&mut self) -> Result<Option<Taken>, ReceiveError> {
        if self.subscription.is_timed() { self.take_timed() } else { self.take_any() }
    }

    /// The same, also of what is held, of values that are late or expire.
    #[inline(never)]
    fn take_timed(&mut self) -> Result<Option<Taken>, ReceiveError> {
        let mut received = Ok(None);
        self.is_cut_short = true;
        for _ in 0..limits::EXPIRED_PER_CALL_MAX {
            received = self.reader.take_held().map_or_else(|| self.take_any(), |held| Ok(Some(held)));
            match received {
                Ok(Some(taken)) if self.expires(taken) => received = Ok(None),
                _ => {
                    self.is_cut_short = false;
                    break;
                }
            }
        }
        judged(&mut self.subscription.deadline, received)
    }

    /// Counts a value that is not valid any more. The removal of a key always is.
    fn expires(&mut self, taken: Taken) -> bool {
        let published_ns = self.reader.verified(taken).meta.published_ns;
        let is_removal = || self.reader.changed_key().is_some_and(|changed| !changed.is_present);
        let expires = self.subscription.has_expired(published_ns) && !is_removal();
        self.expired += u64::from(expires);
        expires
    }

    #[inline]
    fn take_any(&mut self) -> Result<Option<Taken>, ReceiveError> {
        let taken = self.take_unreported();
        match self.subscription.progress {
            None => taken,
            Some(_) => self.report(taken),
        }
    }

    /// Reports how far this is. Losing a record is the end of a subscriber that asked to be disconnected then, whether or not the
    /// publisher's node has said so yet.
    fn report(&mut self, taken: Result<Option<Taken>, ReceiveError>) -> Result<Option<Taken>, ReceiveError> {
        let lost = match taken {
            Err(ReceiveError::Lapped { first_lost: first, count }) => {
                Some(Lost { first, count, reason: LossReason::Lapped })
            }
            // Overwritten while they were written to a landing region that is not written any more.
            Err(ReceiveError::DamagedRecords { first_lost: first, count })
                if self.subscription.has_ended() =>
            {
                let is_overtaken = matches!(self.subscription.end(), Some(TopicEnd::Overtaken { .. }));
                is_overtaken.then_some(Lost { first, count, reason: LossReason::Damaged })
            }
            _ => None,
        };
        if let Some(lost) = lost
            && self.subscription.progress.as_mut().is_some_and(|progress| progress.disconnects(&lost))
        {
            // It was disconnected before it lost them. One that is persistent attaches again after its last record.
            self.reader.take_back(&lost);
            return self.subscription.overtaken(self.reader.last(), self.stats());
        }
        if let Some(progress) = &mut self.subscription.progress {
            progress.tell(&self.reader, self.subscription.granted.delivery == Delivery::Push);
        }
        taken
    }

    #[inline]
    fn take_unreported(&mut self) -> Result<Option<Taken>, ReceiveError> {
        if self.subscription.is_fetched() {
            return self.take_fetched();
        }
        let failure = match self.take(false) {
            Ok(Some(taken)) => return Ok(Some(taken)),
            Ok(None) if !self.subscription.has_ended() => return Ok(None),
            Ok(None) => None,
            Err(failure) => Some(failure),
        };
        self.take_again(failure)
    }

    /// Handles a poll of mapped memory that failed, or that found nothing after the end of the topic.
    #[cold]
    fn take_again(&mut self, failure: Option<ReadFailure>) -> Result<Option<Taken>, ReceiveError> {
        let is_nothing = matches!(failure, None | Some(ReadFailure::Contended { .. }));
        if let Some(failure) = failure
            && !(is_nothing && self.subscription.has_ended())
        {
            return Err(self.explain(failure));
        }
        // Polls once more: values published before the end are still received. With no writer left, a half-overwritten value
        // stays so.
        self.reader.look_closely();
        match self.take(true) {
            Ok(Some(taken)) => Ok(Some(taken)),
            Ok(None) if self.reader.has_more() => Ok(None),
            Ok(None) | Err(ReadFailure::Contended { .. }) => self.conclude(),
            Err(failure) => Err(self.explain(failure)),
        }
    }

    /// Takes the next value of a repository on another host.
    fn take_fetched(&mut self) -> Result<Option<Taken>, ReceiveError> {
        match self.fetch() {
            Ok(Look::Value(taken)) => Ok(Some(taken)),
            Ok(Look::Nothing) => Ok(None),
            Ok(Look::End) => self.conclude(),
            Ok(Look::Failure(failure)) => Err(self.explain(failure)),
            Err(error) => self.fail(error),
        }
    }

    /// Takes the next value from mapped memory.
    #[inline]
    fn take(&mut self, has_ended: bool) -> Result<Option<Taken>, ReadFailure> {
        let Subscription { source, granted, clock, .. } = &self.subscription;
        let (landing, order) = match source {
            Source::Mapped(memory) if granted.delivery == Delivery::Pull => return self.reader.poll(memory),
            Source::Mapped(landing) => (landing, WriteOrder::Words),
            Source::Landing { region, may_lose } if *may_lose || has_ended => {
                (region, WriteOrder::FinalWrites)
            }
            Source::Landing { region, .. } => (region, WriteOrder::Writes),
            Source::Remote(_) | Source::Released(_) => return Ok(None),
        };
        self.reader.follow(landing, order, || clock.monotonic_ns())
    }

    /// Takes the next value of a repository on another host, and fetches as much as possible without waiting.
    fn fetch(&mut self) -> Result<Look, FabricError> {
        // Loaded before the values: those published before the end are still received.
        let has_ended = self.subscription.has_ended();
        if has_ended && self.subscription.is_shut() {
            return Ok(Look::End);
        }
        let Self { reader, subscription, fetching, ended_before, .. } = self;
        let Subscription { source, clock, notice_source, .. } = subscription;
        let Source::Remote(remote) = source else { return Ok(Look::Nothing) };
        let mut notices = notice_source.as_mut().and_then(NoticeSource::subscription);
        // Bounded, for a provider that always completes at once.
        for _ in 0..limits::READS_PER_CALL_MAX {
            match reader.take_fetched(remote.mirror(), || clock.monotonic_ns()) {
                Ok(Some(taken)) => return Ok(Look::Value(taken)),
                Ok(None) => {}
                Err(failure) => return Ok(Look::Failure(failure)),
            }
            let completion = if fetching.is_some() {
                // What has failed may be there in part: it is read again.
                remote.poll().inspect_err(|_| *fetching = None)?
            } else {
                if let Some(notices) = &mut notices
                    && !reader.wants_more()
                    && let Some(finding) = poll_notices(reader, notices, has_ended, clock.monotonic_ns())
                {
                    match finding {
                        Finding::Taken(taken) => return Ok(Look::Value(taken)),
                        Finding::Something => continue,
                        Finding::More(_) | Finding::Nothing => return Ok(Look::Nothing),
                    }
                }
                *ended_before = has_ended;
                let fetch = reader.plan();
                post(remote.as_mut(), fetching, reader, fetch)?
            };
            if completion == Completion::Pending {
                break;
            }
            let Some(Fetching::Values(fetched)) = fetching.take() else { continue };
            let checked = match reader.check(remote.mirror(), &fetched, clock.monotonic_ns()) {
                Ok(checked) => checked,
                Err(ReadFailure::Contended { .. }) if *ended_before => return Ok(Look::End),
                Err(failure) => return Ok(Look::Failure(failure)),
            };
            if let Finding::More(fetch) = checked {
                if post(remote.as_mut(), fetching, reader, fetch)? == Completion::Pending {
                    break;
                }
                continue;
            }
            if let (Some(notices), Some(newest)) =
                (&mut notices, reader.newest_fetched(remote.mirror(), &fetched))
            {
                notices.answer(newest);
            }
            match checked {
                Finding::Taken(taken) => return Ok(Look::Value(taken)),
                Finding::Nothing if *ended_before => return Ok(Look::End),
                Finding::Nothing => return Ok(Look::Nothing),
                Finding::Something | Finding::More(_) => {}
            }
            if reader.is_behind() {
                // Fetches more while the caller processes this.
                *ended_before = has_ended;
                let fetch = reader.plan();
                post(remote.as_mut(), fetching, reader, fetch)?;
            }
        }
        Ok(Look::Nothing)
    }

    /// Handles a failed fetch.
    #[cold]
    fn fail(&mut self, error: FabricError) -> Result<Option<Taken>, ReceiveError> {
        if self.subscription.has_ended() {
            return self.conclude();
        }
        let (now_ns, stats) = (self.subscription.clock.monotonic_ns(), self.stats());
        self.subscription.lose(error, now_ns, stats)
    }

    /// Reports the end of the topic, after a report of the last values if they cannot be received.
    #[cold]
    fn conclude(&mut self) -> Result<Option<Taken>, ReceiveError> {
        let is_damaged = self.reader.ends_damaged();
        // Once: a reader of a landing region finds again that it does not have them.
        if !std::mem::replace(&mut self.has_given_up, true)
            && let Some(TopicEnd::Ended { published }) = self.subscription.end()
            && let Some((first_lost, count)) = self.reader.give_up(published)
        {
            return Err(match is_damaged {
                true => ReceiveError::DamagedRecords { first_lost, count },
                false => ReceiveError::CutOff { first_lost, count },
            });
        }
        let stats = self.stats();
        match self.subscription.end() {
            Some(TopicEnd::Overtaken { .. }) => self.subscription.overtaken(self.reader.last(), stats),
            _ => self.subscription.conclude(stats),
        }
    }

    #[cold]
    fn explain(&mut self, failure: ReadFailure) -> ReceiveError {
        match failure {
            ReadFailure::Contradicted { .. } => self.subscription.distrust_notices(),
            // The next value is held, or being fetched.
            ReadFailure::Lost(_) => {}
            _ => self.subscription.look_again(),
        }
        failure.into()
    }
}

impl<R: Reader> Drop for Core<R> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Takes what notices have delivered; `None` when the repository is to be read.
fn poll_notices<R: Reader>(
    reader: &mut R,
    notices: &mut NoticeSubscription,
    has_ended: bool,
    now_ns: u64,
) -> Option<Finding<R::Purpose>> {
    notices.poll(now_ns);
    if reader.is_unproven() && notices.is_proof_due(now_ns) {
        return None;
    }
    let mut has_values = false;
    while let Some((notice, words)) = notices.take_piece(R::WANTS_EACH) {
        match reader.take_inline(words, notice.sequence, notice.position) {
            taken @ Finding::Taken(_) => return Some(taken),
            Finding::Something => has_values = true,
            Finding::More(_) | Finding::Nothing => {}
        }
    }
    if has_values {
        return Some(Finding::Something);
    }
    if has_ended || notices.is_due(reader.brought(), now_ns) { None } else { Some(Finding::Nothing) }
}

/// Posts a read.
fn post<R: Reader>(
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Fetching<Fetch<R::Purpose>>>,
    reader: &R,
    fetch: Fetch<R::Purpose>,
) -> Result<Completion, FabricError> {
    let completion = remote.post(reader.ranges(&fetch))?;
    *fetching = Some(Fetching::Values(fetch));
    Ok(completion)
}

/// Fixes where a reader begins.
fn begin<R: Reader>(reader: &mut R, subscription: &mut Subscription) -> Result<(), GrantError> {
    let Subscription { source, granted, clock, .. } = subscription;
    match source {
        Source::Mapped(memory) | Source::Landing { region: memory, .. } => {
            if granted.delivery == Delivery::Push {
                await_beginning::<R>(memory, granted.epoch, clock.as_ref())?;
            }
            reader.settle(memory);
        }
        Source::Remote(remote) => {
            let fetch = reader.plan();
            for range in reader.ranges(&fetch) {
                let read = read_now(remote.as_mut(), *range, clock.as_ref(), limits::ANSWER_DEADLINE_NS)?;
                if read == Completion::Pending {
                    return Err(GrantError::Unreadable);
                }
            }
            // The first fetch of a reader determines where it begins.
            _ = reader.check(remote.mirror(), &fetch, clock.monotonic_ns());
        }
        Source::Released(_) => {}
    }
    Ok(())
}

/// Waits until a landing region says where its values begin. Usually it does by the time of the publisher's answer; where writes
/// may be lost, the first one may be missing or late. Its words may arrive one after the other.
fn await_beginning<R: Reader>(landing: &Region, epoch: Epoch, clock: &dyn Clock) -> Result<(), GrantError> {
    let began_ns = clock.monotonic_ns();
    while landing.load_acquire(HOT_EPOCH) != epoch.get() || landing.load_acquire(R::HOT_WRITTEN) == 0 {
        if clock.monotonic_ns().saturating_sub(began_ns) >= limits::ANSWER_DEADLINE_NS {
            return Err(GrantError::Unreadable);
        }
        clock.pause(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
