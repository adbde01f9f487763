mod granted;
mod notified;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::granted::Granted;
use super::notices::NoticeSource;
use super::progress::ProgressReport;
use super::waiter::{Membership, Waiter, Watched};
use super::{Deadline, IdleStrategy, PublisherClock, ReceiveError};
use crate::chain::ErrorChain;
use crate::clock::Clock;
use crate::control::ControlError;
use crate::fabric::{ByteRange, Completion, FabricError, KeyedWaker, RemoteRead, finish, read_now, wait};
use crate::id::{Delivery, Epoch, Incarnation, Sequence};
use crate::layout::header::{BODY_OFFSET, HOT_SEQUENCE};
use crate::limits;
use crate::memory::{Protection, Region};
#[cfg(test)]
use crate::notice::WakeWord;
use crate::repository::SubscriberStats;

/// The pause of a blocking receive between two polls, once it no longer spins.
pub(super) const PAUSE: Duration = Duration::from_micros(100);
/// How long a blocking receive waits for a read before it checks for the end of the topic.
const FETCH_WAIT: Duration = Duration::from_millis(10);

/// The part of a subscriber common to all kinds of topic: its source of bytes, its grant, and its end.
pub(crate) struct Subscription {
    pub(super) source: Source,
    pub(crate) granted: Granted,
    pub(crate) clock: Arc<dyn Clock>,
    pub(super) notice_source: Option<NoticeSource>,
    /// The publisher's memory has contradicted an inline value of this subscription, or of one that it continues.
    distrusts: bool,
    /// Of a subscriber that is not part of another one.
    pub(super) deadline: Option<Deadline>,
    /// Reports how far it is.
    pub(super) progress: Option<ProgressReport>,
    /// How long a receive that waits polls before it sleeps, ns.
    pub(crate) spin_ns: u64,
    /// The longest sleep until the publisher wakes this subscriber.
    sleep_max: Duration,
    /// The sequence in the hot line when it last prevented a sleep, and the last one received then.
    claim: Option<(u64, Sequence)>,
    attachment: Arc<dyn Attachment>,
    notices: NoticesAsked,
    /// What waits for this subscription among others.
    membership: Option<Arc<Membership>>,
    waking: Waking,
    conclusion: Conclusion,
    /// How old the publisher's time stamps are.
    publisher_clock: PublisherClock,
    /// The last heartbeat read of a publisher with another clock, and when it was first read, by the monotonic clock.
    heartbeat: Option<(u64, u64)>,
    has_left: bool,
}

/// Waits for what is under way, if something is. After an error it is given up: only a part of it may have been read.
fn finish_fetch<F>(
    remote: &mut dyn RemoteRead,
    fetching: &mut Option<Fetching<F>>,
    clock: &dyn Clock,
    timeout_ns: u64,
) -> Result<Completion, FabricError> {
    if fetching.is_none() {
        return Ok(Completion::Done);
    }
    let finished = remote.poll().and_then(|polled| finish(remote, polled, clock, timeout_ns));
    finished.inspect_err(|_| *fetching = None)
}

/// A batch of reads in progress.
#[derive(Debug)]
pub(super) enum Fetching<F> {
    /// The values that the reader requested.
    Values(F),
    /// The repository's headers, for a caller that no longer waits.
    Headers,
}

/// Whether notices were requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticesAsked {
    No,
    /// The answer is awaited.
    Asked,
    /// How the subscriber is notified, if at all, is settled.
    Settled,
}

/// How the publisher wakes what waits for this subscription among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waking {
    Unasked,
    /// The answer is awaited.
    Asked,
    /// By this slot of the wake word.
    Slot(u32),
    /// Not at all.
    Unavailable,
}

/// What a subscriber knows of its end.
#[derive(Debug, Default)]
struct Conclusion {
    /// The reported end, which every later receive repeats.
    told: Option<TopicEnd>,
    /// Since when the connection is lost, so that nothing can be fetched.
    lost_since_ns: Option<u64>,
}

/// The source of a subscriber's bytes.
#[derive(Debug)]
pub(crate) enum Source {
    /// Memory in which single words appear in order: the repository itself, or a landing region.
    Mapped(Arc<Region>),
    /// A landing region in which only whole writes appear in order.
    Landing {
        region: Arc<Region>,
        /// A write may never arrive.
        may_lose: bool,
    },
    /// A repository that has to be fetched.
    Remote(Box<dyn RemoteRead>),
    /// Nothing more, after the end; for a repository its last known headers.
    Released(Option<Arc<Region>>),
}

/// The session side of a subscription. Every method returns at once.
pub(crate) trait Attachment: Watched {
    /// How the topic ended, once [`Watched::has_ended`] says so.
    fn end(&self) -> Option<TopicEnd>;

    /// Whether what it reads stays there after the end.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Whether a repository on another host must not be read any more, because its topic ended some time ago.
    fn is_shut(&self) -> bool {
        false
    }

    /// Requests notices, and returns whether that is possible. Does not block.
    fn ask_notices(&self) -> bool {
        false
    }

    /// Takes the answer to [`Self::ask_notices`], once it is there. `is_mapped`: see there.
    fn take_notices(&self, granted: &Granted, is_mapped: bool) -> Option<Option<NoticeSource>> {
        let _ = (granted, is_mapped);
        None
    }

    /// Asks the publisher's node to wake this waiter by a socket, with this token, and returns whether that is possible. Does not block.
    fn ask_slot(&self, waiter: &Arc<Waiter>, token: u32) -> bool {
        let _ = (waiter, token);
        false
    }

    /// Takes the answer to [`Self::ask_slot`], once it is there.
    fn take_slot(&self) -> Option<Option<u32>> {
        None
    }

    /// Wakes by this from now on, when an answer arrives and when the topic ends.
    fn wake_with(&self, waker: Option<KeyedWaker>) {
        let _ = waker;
    }

    /// The publisher's memory contradicts an inline value.
    fn contradict(&self, granted: &Granted) {
        let _ = granted;
    }

    /// Whether the publisher takes it into account before it overwrites records.
    fn is_gating(&self) -> bool {
        false
    }

    /// Detaches, with the final counts.
    fn leave(&self, stats: SubscriberStats);
}

/// What a subscription has received, and of which publisher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: Epoch,
    pub(crate) last: Sequence,
}

/// How a topic ended for a subscriber.
#[derive(Clone, Debug)]
pub(crate) enum TopicEnd {
    /// Its publisher was dropped.
    Ended { published: Sequence },
    /// The session with its node is over.
    Gone { error: ControlError },
    /// The publisher has disconnected it, after it had received or skipped this value.
    Overtaken { last: Sequence },
}

impl Subscription {
    /// Makes a subscription from a grant.
    pub(crate) fn new(
        granted: Granted,
        source: Source,
        attachment: Arc<dyn Attachment>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let memory = match &source {
            Source::Mapped(region) => Some(region),
            _ => None,
        };
        let publisher_clock = PublisherClock::new(memory, Arc::clone(&clock));
        Self {
            source,
            granted,
            clock,
            publisher_clock,
            notice_source: None,
            distrusts: false,
            deadline: None,
            progress: None,
            spin_ns: IdleStrategy::default().spin_ns(),
            sleep_max: Duration::from_nanos(limits::WAKE_WORD_SLEEP_NS),
            claim: None,
            attachment,
            notices: NoticesAsked::No,
            membership: None,
            waking: Waking::Unasked,
            conclusion: Conclusion::default(),
            heartbeat: None,
            has_left: false,
        }
    }

    /// Lets it sleep without a time limit until the publisher wakes it, and returns its wake word.
    #[cfg(test)]
    pub(crate) fn sleep_until_woken(&mut self) -> WakeWord {
        self.sleep_max = Duration::MAX;
        let Some(NoticeSource::WakeWord(wake_word)) = &self.notice_source else {
            panic!("it does not sleep at a wake word")
        };
        wake_word.clone()
    }

    /// Sets after which time without a value that is reported, from now on.
    pub(crate) fn expect_within(&mut self, deadline: Option<Duration>) {
        self.deadline = Deadline::begin(deadline, &self.clock);
    }

    /// Whether values are late, or expire: only then receives read the clock.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.deadline.is_some() || self.granted.lifespan_ns != 0
    }

    /// Whether a value of this time is not valid any more.
    pub(super) fn has_expired(&self, published_ns: u64) -> bool {
        let lifespan_ns = self.granted.lifespan_ns;
        lifespan_ns != 0
            && u64::try_from(self.publisher_clock.age_ns(published_ns))
                .is_ok_and(|age_ns| age_ns > lifespan_ns)
    }

    /// Reports its progress from now on.
    pub(crate) fn report(&mut self, progress: ProgressReport) {
        self.progress = Some(progress);
    }

    /// Its progress slot.
    #[cfg(test)]
    pub(crate) fn progress_slot(&self) -> Arc<Region> {
        Arc::clone(self.progress.as_ref().expect("it reports its progress").slot())
    }

    /// Whether the publisher waits for it, or disconnects it, before it would lose a record.
    pub(super) fn is_gating(&self) -> bool {
        self.attachment.is_gating()
    }

    /// How the topic ended, if it has.
    pub(crate) fn end(&self) -> Option<TopicEnd> {
        self.conclusion.told.clone().or_else(|| self.attachment.end())
    }

    /// Repeats the end once it was reported.
    #[inline]
    pub(super) fn check_told(&self) -> Result<(), ReceiveError> {
        match &self.conclusion.told {
            None => Ok(()),
            Some(end) => Err(end.error()),
        }
    }

    /// Fails once the topic has ended, whether or not that was reported, unless its repository stays.
    pub(super) fn check_end(&self) -> Result<(), ReceiveError> {
        if self.attachment.is_lasting() {
            return Ok(());
        }
        self.end().map_or(Ok(()), |end| Err(end.error()))
    }

    /// Whether the topic has ended. Checked before a value is read: those published before the end are still received.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.attachment.has_ended()
    }

    /// Whether reading must stop, because the topic ended some time ago.
    #[cold]
    pub(super) fn is_shut(&self) -> bool {
        self.attachment.is_shut()
    }

    /// Whether it reads a repository on another host.
    #[inline]
    pub(super) fn is_fetched(&self) -> bool {
        matches!(self.source, Source::Remote(_))
    }

    /// Reports the end, if there is one, and records it.
    #[cold]
    pub(super) fn conclude<V>(&mut self, stats: SubscriberStats) -> Result<Option<V>, ReceiveError> {
        self.tell(self.attachment.end(), stats)
    }

    /// Reports that the publisher has disconnected it after this record, or is about to.
    #[cold]
    pub(super) fn overtaken<V>(
        &mut self,
        last: Sequence,
        stats: SubscriberStats,
    ) -> Result<Option<V>, ReceiveError> {
        self.tell(Some(TopicEnd::Overtaken { last }), stats)
    }

    fn tell<V>(&mut self, end: Option<TopicEnd>, stats: SubscriberStats) -> Result<Option<V>, ReceiveError> {
        if end.is_some() {
            self.conclusion.told = end;
            self.release(stats);
        }
        self.check_told().map(|()| None)
    }

    /// Detaches and releases the memory: nothing is received after the end.
    fn release(&mut self, stats: SubscriberStats) {
        let headers = match &self.source {
            Source::Mapped(region) if self.granted.delivery == Delivery::Pull => Some(region),
            Source::Remote(remote) => Some(remote.mirror()),
            Source::Mapped(_) | Source::Landing { .. } | Source::Released(_) => None,
        };
        let headers = headers.and_then(|region| copy_headers(region));
        self.publisher_clock.keep();
        self.source = Source::Released(headers);
        self.notice_source
            .take_if(|source| matches!(source, NoticeSource::WakeWord(_) | NoticeSource::Immediate(_)));
        self.leave(stats);
    }

    /// Handles a fetch that failed before the topic ended. A lost connection is final: the session reports how it ended, or, if
    /// it does not in time, the publisher counts as gone.
    #[cold]
    pub(super) fn lose<V>(
        &mut self,
        error: FabricError,
        now_ns: u64,
        stats: SubscriberStats,
    ) -> Result<Option<V>, ReceiveError> {
        if !error.ends_connection() {
            self.look_again();
            return Err(error.into());
        }
        let since_ns = *self.conclusion.lost_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < limits::LOSS_TOLD_NS {
            return Ok(None);
        }
        self.tell(
            Some(TopicEnd::Gone { error: ControlError::Broken { why: ErrorChain(&error).to_string() } }),
            stats,
        )
    }

    /// Waits for the read in progress, for a notice of a sequence after `last`, or else briefly; at most `left`.
    pub(super) fn pause(
        &mut self,
        is_fetching: bool,
        last: Sequence,
        left: Duration,
    ) -> Result<(), FabricError> {
        self.tend_notices();
        if let Source::Remote(remote) = &mut self.source
            && is_fetching
            && let Some(handle) = remote.wait_handle()?
        {
            return wait(&[handle], &[], FETCH_WAIT.min(left));
        }
        match (&self.notice_source, &self.source) {
            (Some(NoticeSource::Channel(notices)), Source::Remote(_)) if !is_fetching => {
                let left = left.min(Duration::from_nanos(limits::WAKE_WORD_SLEEP_NS));
                notices.wait(self.clock.as_ref(), last, left);
            }
            (
                Some(NoticeSource::WakeWord(wake_word)),
                Source::Mapped(memory) | Source::Landing { region: memory, .. },
            ) => {
                let timeout = left.min(self.sleep_max);
                let mut newest = None;
                wake_word.sleep(timeout, || {
                    newest = Some(memory.load_acquire(HOT_SEQUENCE)).filter(|newest| *newest > last.get());
                    newest.is_some()
                });
                let claim = newest.map(|newest| (newest, last));
                if claim.is_some() && claim == self.claim {
                    // A publisher whose claim proves false must not keep the processor busy.
                    self.clock.pause(PAUSE.min(left));
                }
                self.claim = claim;
            }
            (Some(NoticeSource::Immediate(arrivals)), Source::Landing { .. }) => {
                self.membership.iter().for_each(|membership| membership.take_back());
                arrivals.wait(self.clock.as_ref(), left.min(self.sleep_max));
            }
            // Nothing announces a value: each look costs the publisher's adapter a READ.
            (_, Source::Remote(_)) if !is_fetching && self.notices == NoticesAsked::Settled => {
                self.clock.pause(left.min(Duration::from_nanos(limits::NOTICE_TIMER_NS)));
            }
            _ => self.clock.pause(PAUSE.min(left)),
        }
        Ok(())
    }

    /// The repository's headers: in place, or fetched now, which blocks for a round trip. `None` for a subscriber with a landing
    /// region.
    pub(super) fn headers<F>(
        &mut self,
        fetching: &mut Option<Fetching<F>>,
    ) -> Result<Option<Arc<Region>>, FabricError> {
        if matches!(fetching, Some(Fetching::Values(_))) {
            // The next receive reads the values again; no notice would trigger that.
            self.look_again();
        }
        let remote = match &mut self.source {
            Source::Mapped(region) if self.granted.delivery == Delivery::Pull => {
                return Ok(Some(Arc::clone(region)));
            }
            Source::Mapped(_) | Source::Landing { .. } => return Ok(None),
            Source::Released(headers) => return Ok(headers.clone()),
            // The last known headers: the publisher is revoking the memory.
            Source::Remote(remote) if self.attachment.is_shut() => {
                return Ok(Some(Arc::clone(remote.mirror())));
            }
            Source::Remote(remote) => remote.as_mut(),
        };
        let (clock, timeout_ns) = (self.clock.as_ref(), limits::ANSWER_DEADLINE_NS);
        let mut completion = finish_fetch(remote, fetching, clock, timeout_ns)?;
        if completion == Completion::Done {
            let headers = ByteRange { offset: 0, len: BODY_OFFSET };
            let read = read_now(remote, headers, clock, timeout_ns);
            // An incomplete read continues, and the next call waits for it first.
            *fetching = matches!(read, Ok(Completion::Pending)).then_some(Fetching::Headers);
            completion = read?;
        }
        match completion {
            Completion::Done => Ok(Some(Arc::clone(remote.mirror()))),
            Completion::Pending => Err(FabricError::ReadOverdue),
        }
    }

    /// Whether writes to its landing region may be in flight that correct what is wrong there.
    pub(super) fn is_arriving(&self) -> bool {
        match &self.source {
            Source::Mapped(_) => self.granted.delivery == Delivery::Push,
            Source::Landing { may_lose, .. } => !*may_lose && !self.has_ended(),
            Source::Remote(_) => true,
            Source::Released(_) => false,
        }
    }

    /// Brings these ranges of the values' memory up to date, and returns it. Does nothing in mapped memory; otherwise blocks for a
    /// round trip.
    pub(super) fn read_now<F>(
        &mut self,
        fetching: &mut Option<Fetching<F>>,
        ranges: &[ByteRange],
    ) -> Result<Arc<Region>, FabricError> {
        let remote = match &mut self.source {
            Source::Mapped(region) | Source::Landing { region, .. } => return Ok(Arc::clone(region)),
            Source::Released(_) => return Err(FabricError::Closed),
            Source::Remote(remote) => remote.as_mut(),
        };
        let (clock, timeout_ns) = (self.clock.as_ref(), limits::ANSWER_DEADLINE_NS);
        let mut completion = match finish_fetch(remote, fetching, clock, timeout_ns) {
            Ok(completion) => completion,
            Err(error) => {
                // Values may not have been read, and no notice would trigger that again.
                self.look_again();
                return Err(error);
            }
        };
        if completion == Completion::Done {
            let posted = remote.post(ranges)?;
            completion = finish(remote, posted, clock, timeout_ns)?;
            if completion == Completion::Pending && fetching.is_none() {
                // The next call waits for it first.
                *fetching = Some(Fetching::Headers);
            }
        }
        match completion {
            Completion::Done => Ok(Arc::clone(remote.mirror())),
            Completion::Pending => Err(FabricError::ReadOverdue),
        }
    }

    /// The clock of the publisher, with the times that it shows now.
    pub(crate) fn publisher_clock(&self) -> PublisherClock {
        let mut clock = self.publisher_clock.clone();
        clock.keep();
        clock
    }

    /// How long the publisher's heart has been still, given the last heartbeat in its headers. Clocks that differ cannot be compared:
    /// what counts then is whether the heartbeat changes between two calls.
    pub(crate) fn heart_stands_ns(&mut self, heartbeat_ns: u64) -> u64 {
        if self.publisher_clock.is_shared() {
            // A heartbeat from just now may look later.
            return u64::try_from(self.publisher_clock.age_ns(heartbeat_ns)).unwrap_or(0);
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

    /// Detaches once, with the final counts.
    pub(super) fn leave(&mut self, stats: SubscriberStats) {
        if !std::mem::replace(&mut self.has_left, true) {
            self.progress.iter().for_each(ProgressReport::end);
            self.attachment.leave(stats);
        }
    }
}

/// Copies the headers of a repository to private memory. `None` if that fails.
fn copy_headers(region: &Region) -> Option<Arc<Region>> {
    let copy = Region::allocate(BODY_OFFSET, Protection::PeersRead).ok()?;
    let mut words = [0; BODY_OFFSET / size_of::<u64>()];
    region.copy_out(0, &mut words);
    copy.copy_in(0, &words);
    Some(Arc::new(copy))
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave(SubscriberStats::default());
    }
}

impl TopicEnd {
    fn error(&self) -> ReceiveError {
        match self {
            Self::Ended { published } => ReceiveError::Ended { published: *published },
            Self::Gone { error } => ReceiveError::Gone { source: error.clone() },
            Self::Overtaken { last } => ReceiveError::Overtaken { last: *last },
        }
    }
}
