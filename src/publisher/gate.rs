use std::sync::Arc;
use std::time::Duration;

use super::PublishError;
use super::notices::TopicNotices;
use super::slow_subscriber::SlowSubscriber;
use super::subscribers::{Standing, TopicSubscriber, TopicSubscribers};
use crate::clock::Clock;
use crate::fabric::KeyedWaker;
use crate::id::Sequence;
use crate::limits;
use crate::repository::Writer as _;
use crate::repository::log::LogWriter;

/// Polls before a waiting publisher yields the processor, and those after that before it pauses: in all about as long as a subscriber takes
/// for a ring of some hundred KiB.
const SPINS: u32 = 100;
const YIELDS: u32 = 500;
/// The first and the longest pause between two polls.
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// The publisher's part of [`TopicSubscribers`]: what it may overwrite.
#[derive(Debug)]
pub(super) struct Gate {
    subscribers: Arc<TopicSubscribers>,
    notices: Arc<TopicNotices>,
    waker: KeyedWaker,
    clock: Arc<dyn Clock>,
    /// Whether subscribers may ask the publisher to wait for them.
    is_permitted: bool,
    timeout_ns: u64,
    /// The number of the subscribers below.
    version: u64,
    holding: Vec<Arc<TopicSubscriber>>,
    /// Frames before this position are released, as far as known.
    open_until: u64,
}

/// What is to be overwritten, and what was committed by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overwriting {
    /// All frames before this position.
    pub(super) until: u64,
    /// The end of the last committed frame.
    pub(super) committed_end: u64,
    /// The last committed record.
    pub(super) newest: Sequence,
}

impl Overwriting {
    /// What this writer overwrites up to a position, if anything.
    pub(super) fn of(writer: &LogWriter, until: Option<u64>) -> Self {
        Self { until: until.unwrap_or(0), committed_end: writer.committed_end(), newest: writer.last() }
    }
}

impl Gate {
    /// A gate that nobody holds yet. `waker` wakes the node's thread for the topic.
    pub(super) fn new(
        subscribers: Arc<TopicSubscribers>,
        notices: Arc<TopicNotices>,
        waker: KeyedWaker,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let gating = subscribers.gating();
        Self {
            subscribers,
            notices,
            waker,
            clock,
            is_permitted: gating.is_some(),
            timeout_ns: gating.map_or(0, |gating| gating.timeout_ns()),
            version: 0,
            // The publisher allocates nothing when subscribers come.
            holding: Vec::with_capacity(if gating.is_some() { limits::PROGRESS_SLOTS_MAX } else { 0 }),
            open_until: u64::MAX,
        }
    }

    /// Whether subscribers may ask the publisher to wait for them.
    #[inline]
    pub(super) fn is_permitted(&self) -> bool {
        self.is_permitted
    }

    /// Whether no subscriber is known to need a frame before this position.
    #[inline]
    pub(super) fn is_open(&self, until: u64) -> bool {
        until <= self.open_until && self.version == self.subscribers.version()
    }

    /// Waits until no gating subscriber needs what is to be overwritten, at most until the timeout, or not at all. Detaches those that
    /// asked for it. `check` says whether to go on.
    #[cold]
    pub(super) fn pass(
        &mut self,
        overwriting: &Overwriting,
        may_wait: bool,
        check: impl Fn() -> Result<(), PublishError>,
    ) -> Result<(), PublishError> {
        let mut began_ns = None;
        let mut pause = PAUSE;
        for polls in 0_u32.. {
            let Some(slowest) = self.look(overwriting) else { return Ok(()) };
            check()?;
            let now_ns = self.clock.monotonic_ns();
            let waited_ns = now_ns.saturating_sub(*began_ns.get_or_insert(now_ns));
            if !may_wait || waited_ns >= self.timeout_ns {
                return Err(PublishError::Blocked { slowest });
            }
            match polls {
                // Sleepers were woken by the commit, unless the kernel does not let this process wake them surely.
                0 => self.notices.wake(),
                1..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS_END => std::thread::yield_now(),
                _ => {
                    self.clock.pause(pause.min(Duration::from_nanos(self.timeout_ns - waited_ns)));
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        Ok(())
    }

    /// Has those pass that still need what is to be overwritten, so that an event that was admitted earlier can be committed.
    #[cold]
    pub(super) fn force(&mut self, overwriting: &Overwriting) {
        while let Some(slowest) = self.look(overwriting) {
            self.subscribers.let_go(&slowest.subscriber, Standing::Unseen);
            self.waker.wake();
        }
    }

    /// Reads how far the gating subscribers are. Returns the slowest one for which the publisher has to wait.
    fn look(&mut self, overwriting: &Overwriting) -> Option<SlowSubscriber> {
        let Overwriting { until, committed_end, newest } = *overwriting;
        loop {
            let version = self.subscribers.version();
            if version != self.version {
                self.version = version;
                self.subscribers.list_gating(&mut self.holding);
            }
            let mut slowest: Option<(u64, &Arc<TopicSubscriber>)> = None;
            let (mut open_until, mut has_overtaken) = (u64::MAX, false);
            for subscriber in &self.holding {
                subscriber.refresh();
                let released = subscriber.released(committed_end);
                if released < until && !subscriber.blocks() {
                    self.subscribers.let_go(subscriber, Standing::Overtaken);
                    has_overtaken = true;
                    continue;
                }
                open_until = open_until.min(released);
                if released < until && slowest.is_none_or(|(least, _)| released < least) {
                    slowest = Some((released, subscriber));
                }
            }
            self.open_until = open_until;
            if has_overtaken {
                self.waker.wake();
                continue;
            }
            return slowest.map(|(_, subscriber)| {
                let (subscriber, lag) = (Arc::clone(subscriber), subscriber.lag(newest));
                SlowSubscriber { subscriber, lag }
            });
        }
    }
}

/// Polls before a waiting publisher pauses.
const YIELDS_END: u32 = SPINS + YIELDS;
