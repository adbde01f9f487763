use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ArrivalSubscription;
use super::waiter::Condition;
use crate::chain::ErrorChain;
use crate::clock::Clock;
use crate::fabric::{DatagramReach, FabricError, KeyedWaker, wait};
use crate::id::Sequence;
use crate::limits;
use crate::notice::{Mailbox, Notice, NoticeCounts, NoticeReceiver, WakeWord};

/// How a subscriber is notified of new values at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoticePath {
    /// Not at all: it did not ask for notices, its fabric or its remote publisher has none, or it is written to over an unreliable RDMA
    /// connection. It reads when polled.
    None,
    /// Not at all, though it asked: its process or the publisher's lacks resources, usually file descriptors. It polls.
    Unavailable,
    /// The publisher wakes it, on the same host.
    WakeWord,
    /// By multicast datagrams.
    Multicast,
    /// By unicast datagrams: the multicast does not arrive.
    Unicast,
    /// No datagrams arrive: it reads by a timer.
    Timer,
    /// By the writes to its landing region themselves, over RDMA (`RDMA_WRITE` with immediate data).
    Immediate,
}

impl fmt::Display for NoticePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::None => "none",
            Self::Unavailable => "unavailable",
            Self::WakeWord => "wake-word",
            Self::Multicast => "multicast",
            Self::Unicast => "unicast",
            Self::Timer => "timer",
            Self::Immediate => "immediate",
        })
    }
}

/// Which values a subscriber receives from notices, without having read them in the publisher's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InlineValues {
    /// None: its notices bring none, or it has no notices.
    None,
    /// Those that came by unicast, under a key that no other subscriber has. Notices by multicast are hints: what they announce is read.
    Unicast,
    /// All: peers prove no keys, or the subscriber [trusts](crate::SubscriberBuilder::trust_fellow_subscribers) the others of its topic.
    All,
    /// None any more: the publisher's memory has contradicted one. That lasts as long as the subscriber.
    Contradicted,
}

impl fmt::Display for InlineValues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::None => "none",
            Self::Unicast => "unicast",
            Self::All => "all",
            Self::Contradicted => "contradicted",
        })
    }
}

/// The source of a subscriber's notices.
#[derive(Debug)]
pub(crate) enum NoticeSource {
    /// None, though requested.
    Unavailable,
    /// The publisher wakes this subscriber, on this host.
    WakeWord(WakeWord),
    /// The publisher sends notices.
    Channel(NoticeSubscription),
    /// The publisher's writes wake this subscriber.
    Immediate(ArrivalSubscription),
}

impl NoticeSource {
    /// Its subscription to a channel, if it has one.
    pub(super) fn subscription(&mut self) -> Option<&mut NoticeSubscription> {
        match self {
            Self::Unavailable | Self::WakeWord(_) | Self::Immediate(_) => None,
            Self::Channel(notices) => Some(notices),
        }
    }
}

/// A subscription to the notices of a channel.
#[derive(Debug)]
pub(crate) struct NoticeSubscription {
    receiver: Arc<NoticeReceiver>,
    mailbox: Arc<Mailbox>,
    /// Inline values are taken from multicast, too.
    trusts_shared: bool,
    /// The sequence of the newest hint that led to a read.
    followed: Sequence,
    /// The time of the last read, ns of the monotonic clock; `None` when that read was inconclusive.
    looked_ns: Option<u64>,
    /// The last inline piece.
    piece: Vec<u64>,
}

impl NoticeSubscription {
    /// A subscription with this mailbox, which gets inline values from multicast only if it trusts what is shared.
    pub(crate) fn new(receiver: Arc<NoticeReceiver>, mailbox: Arc<Mailbox>, trusts_shared: bool) -> Self {
        let piece = Vec::with_capacity(limits::NOTICE_DATAGRAM_LEN_MAX / size_of::<u64>());
        Self { receiver, mailbox, trusts_shared, followed: Sequence::NONE, looked_ns: None, piece }
    }

    /// Receives for all subscriptions of this process to the channel. On failure the timer still works.
    pub(super) fn poll(&self, now_ns: u64) {
        if let Err(error) = self.receiver.turn(now_ns) {
            tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "notices cannot be received");
        }
    }

    /// Takes the oldest inline piece, or the newest of all if not `wants_each`, with its notice.
    pub(super) fn take_piece(&mut self, wants_each: bool) -> Option<(Notice, &[u64])> {
        let mut notice = self.mailbox.take(&mut self.piece)?;
        while !wants_each && let Some(newer) = self.mailbox.take(&mut self.piece) {
            notice = newer;
        }
        Some((notice, &self.piece))
    }

    /// Whether a subscriber that has reached `last` should read the repository: because of a later hint, missing datagrams, or
    /// its timer. If so, records the read.
    pub(super) fn is_due(&mut self, last: Sequence, now_ns: u64) -> bool {
        let has_news = self.has_news(last);
        let is_due = has_news || self.mailbox.take_gap() || now_ns >= self.due_ns(now_ns);
        if is_due {
            self.looked_ns = Some(now_ns);
            if has_news {
                // Only one read for each hint, so that a forged one costs no more.
                self.followed = self.mailbox.hint();
            }
        }
        is_due
    }

    /// Whether inline values were accepted for so long without a read that the repository must confirm them first. If so, records
    /// the read.
    pub(super) fn is_proof_due(&mut self, now_ns: u64) -> bool {
        let read_ns = |looked_ns: u64| looked_ns.saturating_add(limits::NOTICE_DOUBT_NS);
        let is_due = self.looked_ns.is_none_or(|looked_ns| now_ns >= read_ns(looked_ns));
        if is_due {
            self.looked_ns = Some(now_ns);
        }
        is_due
    }

    /// Records that the repository, read after the last hint, has reached `newest`. A hint of a later sequence was forged and is
    /// dropped, so that it does not hide true ones.
    pub(super) fn answer(&mut self, newest: Sequence) {
        if newest < self.followed {
            self.mailbox.correct(self.followed, newest);
            self.followed = newest;
        }
    }

    /// Ignores inline values from now on: the repository has contradicted one.
    pub(super) fn distrust(&mut self) {
        self.refuse_inline();
        self.receiver.count_contradiction();
        self.forget();
    }

    /// Ignores inline values from now on.
    pub(super) fn refuse_inline(&self) {
        self.mailbox.refuse_inline();
    }

    /// Which inline values it takes, unless it refuses them.
    pub(super) fn inline_values(&self) -> InlineValues {
        if self.trusts_shared { InlineValues::All } else { InlineValues::Unicast }
    }

    /// Whether there is a hint of a later sequence that has not led to a read.
    fn has_news(&self, last: Sequence) -> bool {
        self.mailbox.has_news(last.max(self.followed))
    }

    /// Makes the next poll read: the last read was inconclusive.
    pub(super) fn forget(&mut self) {
        self.looked_ns = None;
    }

    /// When to read without a hint, ns of the monotonic clock.
    fn due_ns(&self, now_ns: u64) -> u64 {
        let interval_ns = match self.receiver.reach(now_ns) {
            None => limits::NOTICE_TIMER_NS,
            Some(DatagramReach::Multicast | DatagramReach::Unicast) => limits::NOTICE_DOUBT_NS,
        };
        self.looked_ns.map_or(0, |looked_ns| looked_ns.saturating_add(interval_ns))
    }

    /// How to see that there is a hint after `last`, or that its timer is due. The next entry wakes this waker.
    pub(super) fn rest(&self, last: Sequence, now_ns: u64, waker: Option<KeyedWaker>) -> Condition {
        self.mailbox.watch(waker);
        Condition::Notices {
            receiver: Arc::clone(&self.receiver),
            mailbox: Arc::clone(&self.mailbox),
            seen: last.max(self.followed),
            due_ns: self.due_ns(now_ns),
        }
    }

    /// Waits for a hint after `last`, for its timer, or for `left`. If that fails, it pauses for the timer's shortest interval.
    pub(super) fn wait(&self, clock: &dyn Clock, last: Sequence, left: Duration) {
        if let Err(error) = self.try_wait(clock, last, left) {
            tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "notices cannot be waited for");
            clock.pause(left.min(Duration::from_nanos(limits::NOTICE_TIMER_NS)));
        }
    }

    fn try_wait(&self, clock: &dyn Clock, last: Sequence, left: Duration) -> Result<(), FabricError> {
        let now_ns = clock.monotonic_ns();
        let due = Duration::from_nanos(self.due_ns(now_ns).saturating_sub(now_ns)).min(left);
        let Some(datagrams) = self.receiver.wait_handle()? else {
            clock.pause(due.min(Duration::from_micros(100)));
            return Ok(());
        };
        // Other threads also take datagrams for this subscription.
        let taken = self.mailbox.begin_wait()?;
        let waited = if self.has_news(last) { Ok(()) } else { wait(&[datagrams, taken], &[], due) };
        self.mailbox.end_wait();
        waited
    }

    /// How it is notified at the moment.
    pub(super) fn path(&self, now_ns: u64) -> NoticePath {
        match self.receiver.reach(now_ns) {
            Some(DatagramReach::Multicast) => NoticePath::Multicast,
            Some(DatagramReach::Unicast) => NoticePath::Unicast,
            None => NoticePath::Timer,
        }
    }

    /// This process's counts on the channel.
    pub(super) fn counts(&self) -> NoticeCounts {
        self.receiver.counts()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::fabric::{ChannelReceiver, Datagram};
    use crate::id::{Epoch, TopicId};
    use crate::notice::{NoticeKey, NoticeKeys};
    use crate::testkit::clock::VirtualClock;

    /// A channel receiver that always fails.
    #[derive(Debug)]
    struct Broken;

    impl ChannelReceiver for Broken {
        fn return_ticket(&self) -> &[u8] {
            b"here"
        }

        fn receive(&mut self, _: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
            Err(FabricError::Closed)
        }

        fn passed_over(&self) -> u64 {
            0
        }

        fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
            Err(FabricError::Closed)
        }
    }

    #[test]
    fn subscription_that_cannot_wait_reads_by_its_timer() {
        let receiver = Arc::new(NoticeReceiver::new(Box::new(Broken), 7));
        let key = NoticeKey::new([1; 16]);
        let keys = NoticeKeys { shared: key, own: key, trusts_shared: true };
        let mailbox = receiver.subscribe(TopicId::new(1), Epoch::FIRST, keys);
        let (notices, clock) = (NoticeSubscription::new(receiver, mailbox, true), VirtualClock::default());
        for (left_ns, expected_ns) in [(u64::MAX, limits::NOTICE_TIMER_NS), (70, 70), (0, 0)] {
            let before_ns = clock.monotonic_ns();
            notices.wait(&clock, Sequence::NONE, Duration::from_nanos(left_ns));
            assert_eq!(clock.monotonic_ns() - before_ns, expected_ns);
        }
    }
}
