use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::fabric::{FabricError, wait};
use crate::id::Sequence;
use crate::limits;
use crate::notice::{Mailbox, NoticeCounts, NoticeReach, NoticeReceiver, Piece, WakeWord};

/// How a subscriber is told that there is something new, at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoticePath {
    /// It has not asked for notices, or there are none on its fabric, or it is written to over RDMA, or its publisher on another
    /// host has none for it: it reads when it is asked to.
    None,
    /// It has asked for notices and gets none: the publisher's process, or this one, lacks what that takes, as a rule file
    /// descriptors. It polls, as if it had not asked.
    Unavailable,
    /// The publisher wakes it, on the same host.
    WakeWord,
    /// By datagrams to all who listen.
    Multicast,
    /// By datagrams to this process alone: the multicast does not arrive.
    Unicast,
    /// No datagrams arrive: it looks by its own timer.
    Timer,
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
        })
    }
}

/// What tells a subscriber that there is something new.
#[derive(Debug)]
pub(crate) enum NoticeSource {
    /// Nothing does, though it was asked for.
    Unavailable,
    /// The publisher rings, on this host.
    WakeWord(WakeWord),
    /// The publisher sends notices.
    Channel(NoticeSubscription),
}

impl NoticeSource {
    /// Its part in the notices of a channel, if that is how it is told.
    pub(super) fn subscription(&mut self) -> Option<&mut NoticeSubscription> {
        match self {
            Self::Unavailable | Self::WakeWord(_) => None,
            Self::Channel(notices) => Some(notices),
        }
    }
}

/// A subscriber's part in the notices of a channel.
#[derive(Debug)]
pub(crate) struct NoticeSubscription {
    receiver: Arc<NoticeReceiver>,
    mailbox: Arc<Mailbox>,
    /// The sequence of the newest hint that was followed.
    followed: Sequence,
    /// When it was looked last, ns of the monotonic clock; `None` when that has shown nothing.
    looked_ns: Option<u64>,
    /// What came inline last.
    piece: Vec<u64>,
}

impl NoticeSubscription {
    /// The part of whoever has this mailbox.
    pub(crate) fn new(receiver: Arc<NoticeReceiver>, mailbox: Arc<Mailbox>) -> Self {
        let piece = Vec::with_capacity(limits::NOTICE_DATAGRAM_LEN_MAX / size_of::<u64>());
        Self { receiver, mailbox, followed: Sequence::NONE, looked_ns: None, piece }
    }

    /// Takes what has come for all who listen in this process. What fails here costs time only: the timer goes on.
    pub(super) fn poll(&self, now_ns: u64) {
        if let Err(error) = self.receiver.turn(now_ns) {
            tracing::debug!(target: "fabricast", %error, "notices cannot be received");
        }
    }

    /// Takes what came inline: the oldest, or all of it, to give the newest.
    pub(super) fn take_piece(&mut self, wants_each: bool) -> Option<(Piece, &[u64])> {
        let mut piece = self.mailbox.take(&mut self.piece)?;
        while !wants_each && let Some(newer) = self.mailbox.take(&mut self.piece) {
            piece = newer;
        }
        Some((piece, &self.piece))
    }

    /// Whether a subscriber whose last sequence is this one should look in the repository: because it was told of a later one,
    /// because datagrams are missing, or because its time has come. It is taken to do so then.
    pub(super) fn is_due(&mut self, last: Sequence, now_ns: u64) -> bool {
        let has_news = self.has_news(last);
        let is_due = has_news || self.mailbox.take_gap() || now_ns >= self.due_ns(now_ns);
        if is_due {
            self.looked_ns = Some(now_ns);
            if has_news {
                // One look for each hint: who forges them gets no more.
                self.followed = self.mailbox.hint().sequence;
            }
        }
        is_due
    }

    /// Whether the repository was not read for so long that what came inline since then has to be compared with it first. It
    /// is taken to be read then.
    pub(super) fn is_proof_due(&mut self, now_ns: u64) -> bool {
        let read_ns = |looked_ns: u64| looked_ns.saturating_add(limits::NOTICE_DOUBT_NS);
        let is_due = self.looked_ns.is_none_or(|looked_ns| now_ns >= read_ns(looked_ns));
        if is_due {
            self.looked_ns = Some(now_ns);
        }
        is_due
    }

    /// The repository, read after the last hint that was followed, had this newest sequence. A hint of a later one was a lie, and
    /// is forgotten: otherwise nothing would be a hint any more that is true.
    pub(super) fn answer(&mut self, newest: Sequence) {
        if newest < self.followed {
            self.mailbox.correct(self.followed, newest);
            self.followed = newest;
        }
    }

    /// Takes nothing inline any more: the repository has contradicted what came.
    pub(super) fn distrust(&mut self) {
        self.mailbox.refuse_inline();
        self.receiver.count_contradiction();
        self.forget();
    }

    /// Whether it was told of something later than this, and has not looked for that.
    fn has_news(&self, last: Sequence) -> bool {
        self.mailbox.has_news(last.max(self.followed))
    }

    /// Has the next look come as soon as it is asked for: the last one has not shown what is there.
    pub(super) fn forget(&mut self) {
        self.looked_ns = None;
    }

    /// When it should look even if it is told nothing, ns of the monotonic clock.
    fn due_ns(&self, now_ns: u64) -> u64 {
        let interval_ns = match self.receiver.reach(now_ns) {
            NoticeReach::Timer => limits::NOTICE_TIMER_NS,
            NoticeReach::Multicast { .. } | NoticeReach::Unicast { .. } => limits::NOTICE_DOUBT_NS,
        };
        self.looked_ns.map_or(0, |looked_ns| looked_ns.saturating_add(interval_ns))
    }

    /// Waits for news of something later than this sequence, or until it is time to look, no longer than `left`. What fails
    /// here costs time only, too: it looks as often as while it hears nothing.
    pub(super) fn wait(&self, clock: &dyn Clock, last: Sequence, left: Duration) {
        if let Err(error) = self.try_wait(clock, last, left) {
            tracing::debug!(target: "fabricast", %error, "notices cannot be waited for");
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
        // Other threads take datagrams for this subscription, too, at any moment.
        let taken = self.mailbox.begin_wait()?;
        let waited = if self.has_news(last) { Ok(()) } else { wait(&[datagrams, taken], &[], due) };
        self.mailbox.end_wait();
        waited
    }

    /// How it is told, at this moment.
    pub(super) fn path(&self, now_ns: u64) -> NoticePath {
        match self.receiver.reach(now_ns) {
            NoticeReach::Multicast { .. } => NoticePath::Multicast,
            NoticeReach::Unicast { .. } => NoticePath::Unicast,
            NoticeReach::Timer => NoticePath::Timer,
        }
    }

    /// What the process has counted on the channel.
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
    use crate::notice::NoticeKey;
    use crate::testkit::clock::VirtualClock;

    /// The end of a channel that has failed.
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
    fn an_ear_that_cannot_wait_looks_by_its_timer() {
        let receiver = Arc::new(NoticeReceiver::new(Box::new(Broken), 7));
        let mailbox = receiver.subscribe(TopicId::new(1), Epoch::FIRST, NoticeKey::new([1; 16]));
        let (notices, clock) = (NoticeSubscription::new(receiver, mailbox), VirtualClock::default());
        for (left_ns, expected_ns) in [(u64::MAX, limits::NOTICE_TIMER_NS), (70, 70), (0, 0)] {
            let before_ns = clock.monotonic_ns();
            notices.wait(&clock, Sequence::NONE, Duration::from_nanos(left_ns));
            assert_eq!(clock.monotonic_ns() - before_ns, expected_ns);
        }
    }
}
