use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ReceiveError;
use super::notices::{NoticePath, NoticeSource, NoticeSubscription};
use crate::clock::Clock;
use crate::control::ControlError;
use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead, finish, read_now, wait};
use crate::id::{Delivery, Epoch, Sequence, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::header::{BODY_OFFSET, HOT_SEQUENCE};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::notice::NoticeCounts;
#[cfg(test)]
use crate::notice::WakeWord;
use crate::payload::Schema;
use crate::repository::SubscriberStats;

/// The pause between two looks of a blocking receive after that.
pub(super) const PAUSE: Duration = Duration::from_micros(100);
/// How long a blocking receive waits for what it has begun to fetch before it looks for the end of the topic.
const FETCH_WAIT: Duration = Duration::from_millis(10);

/// What every subscriber has, whatever its topic holds: where its bytes come from, what was granted, and how it ends.
pub(crate) struct Subscription {
    pub(super) source: Source,
    pub(super) granted: Granted,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) notice_source: Option<NoticeSource>,
    /// The longest sleep until the publisher wakes this subscriber.
    sleep_max: Duration,
    /// What the hot line said was there when it last kept the subscriber from sleeping, and what had been received then.
    claim: Option<(u64, Sequence)>,
    attachment: Arc<dyn Attachment>,
    conclusion: Conclusion,
    /// The heartbeat that was seen last on another host, and when it was seen first, by the monotonic clock.
    heartbeat: Option<(u64, u64)>,
    has_left: bool,
}

/// A batch of reads that is under way.
#[derive(Debug)]
pub(super) enum Fetching<F> {
    /// What the reader asked for.
    Values(F),
    /// The repository's headers, which nobody waits for any more.
    Headers,
}

/// What a subscriber knows of its end.
#[derive(Debug, Default)]
struct Conclusion {
    /// What was told, and is from then on.
    told: Option<TopicEnd>,
    /// Since when nothing can be fetched, because the connection is over.
    lost_since_ns: Option<u64>,
}

/// Where a subscriber's bytes come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Memory that can be read in place, word for word as it was written: the repository itself, or a landing region.
    Mapped(Arc<Region>),
    /// A landing region where only whole writes appear in order.
    Landing {
        region: Arc<Region>,
        /// A write may never arrive.
        may_lose: bool,
    },
    /// A repository that has to be fetched.
    Remote(Box<dyn RemoteRead>),
    /// Nothing any more, because the end was received; of a repository the headers, as they were seen last.
    Released(Option<Arc<Region>>),
}

/// What the publisher granted, checked.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) delivery: Delivery,
    pub(crate) epoch: Epoch,
    pub(crate) geometry: Geometry,
    pub(crate) schema: Schema,
    pub(crate) key: u64,
    pub(crate) address: u64,
    /// The newest sequence at that moment.
    pub(crate) newest: Sequence,
}

/// The session side of a subscription. Every method returns at once.
pub(crate) trait Attachment: fmt::Debug + Send + Sync {
    /// Whether [`Self::end`] has something to tell. Looked at by every receive: one load.
    fn has_ended(&self) -> bool;

    /// How the topic ended.
    fn end(&self) -> Option<TopicEnd>;

    /// Whether a repository on another host must not be fetched from any more, because its topic ended some time ago.
    fn is_shut(&self) -> bool {
        false
    }

    /// Detaches, with the final counts.
    fn leave(&self, stats: SubscriberStats);
}

/// How a topic ended for a subscriber.
#[derive(Clone, Debug)]
pub(crate) enum TopicEnd {
    /// Its publisher was dropped.
    Ended { published: Sequence },
    /// The session with its node is over.
    Gone { error: ControlError },
}

impl Subscription {
    /// The subscription to what was granted.
    pub(crate) fn new(
        granted: Granted,
        source: Source,
        attachment: Arc<dyn Attachment>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (conclusion, heartbeat) = (Conclusion::default(), None);
        let (notice_source, claim, has_left) = (None, None, false);
        let sleep_max = Duration::from_nanos(limits::WAKE_WORD_SLEEP_NS);
        Self {
            source,
            granted,
            clock,
            notice_source,
            sleep_max,
            claim,
            attachment,
            conclusion,
            heartbeat,
            has_left,
        }
    }

    /// Makes it sleep until the publisher wakes it, however long that takes, and returns the wake word at which it sleeps.
    #[cfg(test)]
    pub(crate) fn sleep_until_woken(&mut self) -> WakeWord {
        self.sleep_max = Duration::MAX;
        let Some(NoticeSource::WakeWord(wake_word)) = &self.notice_source else {
            panic!("it does not sleep at a wake word")
        };
        wake_word.clone()
    }

    /// Has it told from now on that there is something new.
    pub(crate) fn listen(&mut self, notice_source: NoticeSource) {
        self.notice_source = Some(notice_source);
    }

    /// How it is told that there is something new, at this moment.
    pub(super) fn notice_path(&self) -> NoticePath {
        match &self.notice_source {
            None => NoticePath::None,
            Some(NoticeSource::Unavailable) => NoticePath::Unavailable,
            Some(NoticeSource::WakeWord(_)) => NoticePath::WakeWord,
            Some(NoticeSource::Channel(notices)) => notices.path(self.clock.monotonic_ns()),
        }
    }

    /// What the process has counted on the channel that it listens to.
    pub(super) fn notice_counts(&self) -> NoticeCounts {
        match &self.notice_source {
            Some(NoticeSource::Channel(notices)) => notices.counts(),
            None | Some(NoticeSource::WakeWord(_) | NoticeSource::Unavailable) => NoticeCounts::default(),
        }
    }

    /// What the publisher granted.
    pub(crate) fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Where its time comes from.
    pub(crate) fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// How the topic ended, if it has.
    pub(crate) fn end(&self) -> Option<TopicEnd> {
        self.conclusion.told.clone().or_else(|| self.attachment.end())
    }

    /// The end that was told, which is told from then on.
    #[inline]
    pub(super) fn check_told(&self) -> Result<(), ReceiveError> {
        match &self.conclusion.told {
            None => Ok(()),
            Some(end) => Err(end.error()),
        }
    }

    /// Whether the topic has ended. Looked at before a value: what was published before the end is still received.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.attachment.has_ended()
    }

    /// Whether nothing must be fetched any more, because the topic ended some time ago.
    #[cold]
    pub(super) fn is_shut(&self) -> bool {
        self.attachment.is_shut()
    }

    /// Whether it is a repository on another host.
    #[inline]
    pub(super) fn is_fetched(&self) -> bool {
        matches!(self.source, Source::Remote(_))
    }

    /// Tells the end, if there is one, and remembers that.
    #[cold]
    pub(super) fn conclude<V>(&mut self, stats: SubscriberStats) -> Result<Option<V>, ReceiveError> {
        self.tell(self.attachment.end(), stats)
    }

    fn tell<V>(&mut self, end: Option<TopicEnd>, stats: SubscriberStats) -> Result<Option<V>, ReceiveError> {
        if end.is_some() {
            self.conclusion.told = end;
            self.release(stats);
        }
        self.check_told().map(|()| None)
    }

    /// Detaches, and lets go of the memory: nothing is received after the end.
    fn release(&mut self, stats: SubscriberStats) {
        let headers = match &self.source {
            Source::Mapped(region) if self.granted.delivery == Delivery::Pull => Some(region),
            Source::Remote(remote) => Some(remote.mirror()),
            Source::Mapped(_) | Source::Landing { .. } | Source::Released(_) => None,
        };
        let headers = headers.and_then(|region| copy_headers(region));
        self.source = Source::Released(headers);
        self.notice_source.take_if(|notice_source| matches!(notice_source, NoticeSource::WakeWord(_)));
        self.leave(stats);
    }

    /// What comes of a fetch that failed while the topic had not ended. Where the connection is over nothing will ever be fetched
    /// again: the session tells how it ended, and if it does not in good time, the publisher is gone.
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
        self.tell(Some(TopicEnd::Gone { error: ControlError::Broken { why: error.to_string() } }), stats)
    }

    /// Has it look as soon as it is asked to, because the last look has not shown what is there: no notice will tell of that
    /// again.
    pub(super) fn look_again(&mut self) {
        if let Some(NoticeSource::Channel(notices)) = &mut self.notice_source {
            notices.forget();
        }
    }

    /// Takes nothing that comes with notices any more, and looks as soon as it is asked to.
    #[cold]
    pub(super) fn distrust_notices(&mut self) {
        self.notice_source
            .iter_mut()
            .filter_map(NoticeSource::subscription)
            .for_each(NoticeSubscription::distrust);
    }

    /// Waits for what is being fetched, for a notice of something later than `last`, or, where neither can be waited for, a
    /// little while; no longer than `left`.
    pub(super) fn pause(
        &mut self,
        is_fetching: bool,
        last: Sequence,
        left: Duration,
    ) -> Result<(), FabricError> {
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
                    // It was looked for, and is not there: whoever says so must not keep the processor busy.
                    self.clock.pause(PAUSE.min(left));
                }
                self.claim = claim;
            }
            _ => self.clock.pause(PAUSE.min(left)),
        }
        Ok(())
    }

    /// The repository's headers: in place, or fetched just now, which blocks for a round trip. `None` for a subscriber
    /// that has a landing region.
    pub(super) fn headers<F>(
        &mut self,
        fetching: &mut Option<Fetching<F>>,
    ) -> Result<Option<Arc<Region>>, FabricError> {
        if matches!(fetching, Some(Fetching::Values(_))) {
            // It is fetched again by the next receive, which no notice would tell to look.
            self.look_again();
        }
        let remote = match &mut self.source {
            Source::Mapped(region) if self.granted.delivery == Delivery::Pull => {
                return Ok(Some(Arc::clone(region)));
            }
            Source::Mapped(_) | Source::Landing { .. } => return Ok(None),
            Source::Released(headers) => return Ok(headers.clone()),
            // What was seen last: the publisher takes the memory back.
            Source::Remote(remote) if self.attachment.is_shut() => {
                return Ok(Some(Arc::clone(remote.mirror())));
            }
            Source::Remote(remote) => remote.as_mut(),
        };
        let under_way = if fetching.is_some() { remote.poll()? } else { Completion::Done };
        let (clock, timeout_ns) = (self.clock.as_ref(), limits::ANSWER_DEADLINE_NS);
        let mut completion = finish(remote, under_way, clock, timeout_ns)?;
        if completion == Completion::Done {
            let headers = ByteRange { offset: 0, len: BODY_OFFSET };
            let read = read_now(remote, headers, clock, timeout_ns);
            // One that is not complete stays under way, and is waited for before the next one.
            *fetching = matches!(read, Ok(Completion::Pending)).then_some(Fetching::Headers);
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

    /// Detaches, with the final counts. Once.
    pub(super) fn leave(&mut self, stats: SubscriberStats) {
        if !std::mem::replace(&mut self.has_left, true) {
            self.attachment.leave(stats);
        }
    }
}

/// The headers of a repository, in memory of their own. `None` if there is none to be had.
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

impl fmt::Debug for Subscription {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Subscription")
            .field("topic", &self.granted.topic)
            .field("delivery", &self.granted.delivery)
            .finish_non_exhaustive()
    }
}

impl TopicEnd {
    fn error(&self) -> ReceiveError {
        match self {
            Self::Ended { published } => ReceiveError::Ended { published: *published },
            Self::Gone { error } => ReceiveError::Gone { source: error.clone() },
        }
    }
}
