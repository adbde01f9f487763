//! How a subscriber reads over a wire, and waits for reads.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::*;
use crate::clock::{Clock, saturate};
use crate::control::ControlError;
use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead, Waker};
use crate::id::{Delivery, Epoch, Incarnation, Sequence, TopicId, TopicName};
use crate::layout::header::{HOT_OFFSET, HOT_SEQUENCE};
use crate::layout::state::StateGeometry;
use crate::layout::{Geometry, LINE, WORD};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::notice::{WAKE_WORD_LEN, WakeWord};
use crate::payload::{Payload as _, Raw};
use crate::repository::state::StateWriter;
use crate::repository::{GrantedAt, SubscriberStats, Writer as _};
use crate::subscriber::waiter::Watched;
use crate::subscriber::{
    Attachment, Granted, NoticeSource, ReceiveError, Source, SubscriberHandle as _, Subscription, TopicEnd,
};
use crate::sync::atomic::{AtomicU64, Ordering};

const LEN_MAX: usize = 100_000;

/// A remote repository, and the requests to it.
#[derive(Debug)]
struct Remote {
    writer: StateWriter,
    /// The ranges of each batch.
    posted: Vec<Vec<ByteRange>>,
    /// How often it was asked for a handle.
    handles: u32,
    /// Values published during the next batches.
    meanwhile: u32,
    /// No batch completes.
    stalled: bool,
    /// The error of each batch from now on.
    failing: Option<fn() -> FabricError>,
}

/// Reads that complete when polled, or only after a wait.
#[derive(Debug)]
struct Wire {
    remote: Arc<Mutex<Remote>>,
    mirror: Arc<Region>,
    under_way: Vec<ByteRange>,
    /// Readable when the batch is complete. `None` if it has no handle.
    arrived: Option<Waker>,
}

impl RemoteRead for Wire {
    fn mirror(&self) -> &Arc<Region> {
        &self.mirror
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        if let Some(failing) = self.remote.lock().failing {
            return Err(failing());
        }
        assert!(self.under_way.is_empty(), "one batch at a time");
        self.under_way = ranges.to_vec();
        self.arrived.iter().for_each(Waker::reset);
        self.remote.lock().posted.push(ranges.to_vec());
        Ok(Completion::Pending)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        let mut remote = self.remote.lock();
        if let Some(failing) = remote.failing {
            return Err(failing());
        }
        if remote.stalled || (self.arrived.is_some() && remote.handles == 0) {
            return Ok(Completion::Pending);
        }
        remote.handles = 0;
        for ByteRange { offset, len } in self.under_way.drain(..) {
            for offset in (offset..offset + len).step_by(WORD) {
                self.mirror.store(offset, remote.writer.region().load(offset));
            }
            // Later ranges see another value.
            if remote.meanwhile > 0 {
                remote.meanwhile -= 1;
                remote.publish(LEN_MAX);
            }
        }
        Ok(Completion::Done)
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        let Some(arrived) = &self.arrived else { return Ok(None) };
        assert!(!self.under_way.is_empty());
        self.remote.lock().handles += 1;
        arrived.wake();
        Ok(Some(arrived.wait_handle()))
    }
}

impl Remote {
    fn publish(&mut self, len: usize) {
        let number = self.writer.last().next().get().to_le_bytes()[0];
        self.writer.publish(&vec![number; len], 3, 0).unwrap();
    }
}

/// A clock that advances whenever it is read, and counts pauses.
#[derive(Debug, Default)]
struct BusyClock {
    now_ns: AtomicU64,
    pauses: AtomicU64,
}

impl Clock for BusyClock {
    fn monotonic_ns(&self) -> u64 {
        self.now_ns.fetch_add(1_000, Ordering::Relaxed)
    }

    fn realtime_ns(&self) -> u64 {
        self.monotonic_ns()
    }

    fn pause(&self, duration: Duration) {
        self.now_ns.fetch_add(saturate(duration), Ordering::Relaxed);
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}

#[derive(Debug, Default)]
struct Attached(Mutex<Option<TopicEnd>>);

impl Watched for Attached {
    fn has_ended(&self) -> bool {
        self.0.lock().is_some()
    }
}

impl Attachment for Attached {
    fn end(&self) -> Option<TopicEnd> {
        self.0.lock().clone()
    }

    fn leave(&self, _: SubscriberStats) {}
}

struct Setup {
    remote: Arc<Mutex<Remote>>,
    clock: Arc<BusyClock>,
    attached: Arc<Attached>,
    subscriber: StateSubscriber<Raw>,
}

/// The publisher's clock may be years ahead or behind: only its heartbeats count.
#[test]
fn heart_on_another_host_is_judged_by_its_beats() {
    let Setup { clock, mut subscriber, .. } = setup(false);
    let stale = Duration::from_nanos(limits::HEARTBEAT_STALE_NS);
    for heartbeat_ns in [1, u64::MAX / 2] {
        assert_eq!(subscriber.core.subscription.heart_stands_ns(heartbeat_ns), 0, "the first check");
        clock.pause(stale);
        assert!(subscriber.core.subscription.heart_stands_ns(heartbeat_ns) >= limits::HEARTBEAT_STALE_NS);
        assert_eq!(subscriber.core.subscription.heart_stands_ns(heartbeat_ns + 1), 0, "it beats again");
    }
}

fn setup(can_wait: bool) -> Setup {
    setup_at(Sequence::NONE, can_wait)
}

/// A subscriber that was granted its topic when this was the newest value.
fn setup_at(newest: Sequence, can_wait: bool) -> Setup {
    let geometry = StateGeometry::new(8, LEN_MAX).unwrap();
    let topic: TopicName = "topic".parse().unwrap();
    let (topic_id, epoch) = (TopicId::of(&topic), Epoch::new(7).unwrap());
    let allocate = || Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    let writer =
        StateWriter::new(allocate(), geometry, &Geometry::from(geometry).static_header(epoch, topic_id, 0));
    let remote =
        Remote { writer, posted: Vec::new(), handles: 0, meanwhile: 0, stalled: false, failing: None };
    let remote = Arc::new(Mutex::new(remote));
    let arrived = can_wait.then(|| Waker::new().unwrap());
    let wire = Wire { remote: Arc::clone(&remote), mirror: allocate(), under_way: Vec::new(), arrived };
    let granted = Granted {
        topic,
        topic_id,
        delivery: Delivery::Pull,
        epoch,
        incarnation: Incarnation::new(1).unwrap(),
        geometry: geometry.into(),
        schema: Raw::schema().unwrap(),
        key: 0,
        address: 0,
        at: GrantedAt { newest, after: Sequence::NONE },
        peer: None,
        lifespan_ns: 0,
    };
    let clock = Arc::new(BusyClock::default());
    let source = Source::Remote(Box::new(wire));
    let attached = Arc::new(Attached::default());
    let subscription =
        Subscription::new(granted, source, Arc::clone(&attached) as _, Arc::clone(&clock) as _);
    let subscriber = StateSubscriber::open(subscription, ()).unwrap();
    Setup { remote, clock, attached, subscriber }
}

impl Setup {
    /// Receives until a read is complete. Returns the sequence, and how many bytes each batch read besides the hot line.
    fn look(&mut self) -> (Option<u64>, Vec<usize>) {
        self.remote.lock().posted.clear();
        let received = loop {
            let received =
                self.subscriber.try_receive_ref().unwrap().map(|sample| sample.meta.sequence.get());
            if received.is_some() || self.subscriber.core.fetching.is_none() {
                break received;
            }
        };
        let hot = ByteRange { offset: HOT_OFFSET, len: LINE };
        let beside = |ranges: &Vec<ByteRange>| {
            let is_beside = |range: &&ByteRange| **range != hot;
            assert!(ranges[1..].iter().all(|range| is_beside(&range)), "it comes first");
            ranges.iter().filter(is_beside).map(|range| range.len).sum()
        };
        (received, self.remote.lock().posted.iter().map(beside).collect())
    }

    fn publish(&self, len: usize) {
        self.remote.lock().publish(len);
    }

    /// The errors once nothing more is received: the values cut off, if any, and the end.
    fn end(&mut self) -> (Option<(u64, u64)>, u64) {
        let mut cut_off = None;
        loop {
            match self.subscriber.try_receive().expect_err("nothing is received") {
                ReceiveError::CutOff { first_lost, count } => {
                    assert_eq!(cut_off.replace((first_lost.get(), count)), None, "once");
                }
                ReceiveError::Ended { published } => return (cut_off, published.get()),
                error => panic!("{error}"),
            }
        }
    }
}

#[test]
fn short_value_is_read_with_the_next_stamp_and_a_long_one_once_announced() {
    let longest = limits::PREDICTED_LEN_MAX - 48;
    let guessed = |len: usize| len + 48 + WORD;
    let guesses = [0, 64, longest].map(|len| (len, guessed(len)));
    for (len, guess) in guesses.into_iter().chain([(longest + 1, 0), (LEN_MAX, 0)]) {
        let slot = len.next_multiple_of(8) + 48;
        let mut setup = setup(false);
        assert_eq!(setup.look(), (None, vec![0]));
        setup.publish(len);
        assert_eq!(setup.look(), (Some(1), vec![0, slot]), "{len} bytes");
        for _ in 0..5 {
            assert_eq!(setup.look(), (None, vec![guess]), "{len} bytes, nothing new");
        }
        setup.publish(len);
        let batches = if guess > 0 { vec![guess] } else { vec![0, slot] };
        assert_eq!(setup.look(), (Some(2), batches), "{len} bytes");
    }
}

#[test]
fn value_longer_than_the_last_takes_one_more_read() {
    let mut setup = setup(false);
    setup.publish(64);
    assert_eq!(setup.look(), (Some(1), vec![0, 112]));
    for (sequence, len) in (2..).zip([100, 2000, LEN_MAX, 9000]) {
        setup.publish(len);
        let (received, batches) = setup.look();
        assert_eq!((received, batches.len()), (Some(sequence), 2), "{len} bytes");
    }
}

/// The next values overtake each read, and the value is received all the same.
#[test]
fn value_is_received_though_newer_ones_came_during_the_read() {
    let mut setup = setup(false);
    setup.publish(LEN_MAX);
    let mut last = 0;
    for _ in 0..50 {
        setup.remote.lock().meanwhile = 3;
        let (received, batches) = setup.look();
        assert_eq!(batches, [0, LEN_MAX + 48]);
        assert!(received > Some(last), "{received:?} after {last}");
        last = received.unwrap();
    }
    let stats = setup.subscriber.stats();
    assert_eq!((stats.received, stats.received + stats.conflated), (50, last));
    assert_eq!((stats.torn_retries, stats.rejected), (0, 0));
}

#[test]
fn blocking_receive_waits_for_the_read() {
    let mut setup = setup(true);
    setup.publish(LEN_MAX);
    let sample = setup.subscriber.receive_timeout(Duration::from_secs(1)).unwrap().unwrap();
    assert_eq!((sample.value.len(), sample.meta.sequence.get()), (LEN_MAX, 1));
    assert_eq!(setup.clock.pauses.load(Ordering::Relaxed), 0);
    // It pauses for a millisecond between two reads that found nothing new, since nothing announces a value.
    assert!(setup.subscriber.receive_timeout(Duration::from_millis(100)).unwrap().is_none());
    let (pauses, looks) =
        (setup.clock.pauses.load(Ordering::Relaxed), setup.remote.lock().posted.len() as u64);
    assert!(pauses > 50 && looks > 50 && looks < 60 + pauses, "{pauses} pauses, {looks} looks");
}

#[test]
fn blocking_receive_pauses_where_it_cannot_wait() {
    let mut setup = setup(false);
    setup.publish(64);
    let sample = setup.subscriber.receive_timeout(Duration::from_secs(1)).unwrap().unwrap();
    assert_eq!(sample.meta.sequence.get(), 1);
    assert!(setup.subscriber.receive_timeout(Duration::from_millis(100)).unwrap().is_none());
    let pauses = setup.clock.pauses.load(Ordering::Relaxed);
    assert!((50..=200).contains(&pauses), "{pauses} pauses");
}

/// A hot line that announces a missing value is trusted once, and not again until it announces more.
#[test]
fn sleeper_pauses_between_reads_of_a_value_that_never_comes() {
    let Setup { clock, mut subscriber, .. } = setup(false);
    let allocate = |len| Arc::new(Region::allocate(len, Protection::PeersWrite).unwrap());
    let memory = allocate(4096);
    let subscription = &mut subscriber.core.subscription;
    subscription.source = Source::Mapped(Arc::clone(&memory));
    subscription.listen(NoticeSource::WakeWord(WakeWord::new(allocate(WAKE_WORD_LEN))));
    for (promise, pauses) in [(9, 0), (9, 1), (9, 2), (10, 2), (10, 3)] {
        memory.store(HOT_SEQUENCE, promise);
        subscription.pause(false, Sequence::NONE, Duration::from_secs(600)).unwrap();
        assert_eq!(clock.pauses.load(Ordering::Relaxed), pauses, "promised {promise}");
    }
}

/// Once the connection is lost the session has a while to report why, and then the publisher is gone for good.
#[test]
fn publisher_is_gone_soon_after_its_connection() {
    for under_way in [false, true] {
        let mut setup = setup(false);
        if under_way {
            assert!(setup.subscriber.try_receive().unwrap().is_none());
        }
        setup.remote.lock().failing = Some(|| FabricError::Closed);
        let began_ns = setup.clock.monotonic_ns();
        let error = setup.subscriber.receive_timeout(Duration::from_secs(60)).unwrap_err();
        let took_ns = setup.clock.monotonic_ns() - began_ns;
        assert!((limits::LOSS_TOLD_NS..2 * limits::LOSS_TOLD_NS).contains(&took_ns), "{took_ns}");
        let gone = |error: &ReceiveError| {
            matches!(error, ReceiveError::Gone { source: ControlError::Broken { .. } })
        };
        assert!(gone(&error), "{error}");
        setup.remote.lock().failing = None;
        *setup.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(1) });
        setup.publish(64);
        let error = setup.subscriber.try_receive().unwrap_err();
        assert!(gone(&error), "on every later call: {error}");
    }
}

#[test]
fn end_reported_by_the_session_is_returned_after_the_connection_is_lost() {
    let mut setup = setup(false);
    setup.remote.lock().failing = Some(|| FabricError::Closed);
    assert!(setup.subscriber.try_receive().unwrap().is_none());
    *setup.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(7) });
    assert_eq!(setup.end(), (Some((1, 7)), 7));
}

/// After the end of the topic a landing region gets no more values.
#[test]
fn unpushed_last_value_is_reported_before_the_end() {
    for received in [false, true] {
        let mut setup = setup(false);
        if received {
            setup.publish(64);
        }
        let landing = Arc::clone(setup.remote.lock().writer.region());
        setup.subscriber.core.subscription.source = Source::Mapped(landing);
        assert_eq!(setup.subscriber.try_receive().unwrap().is_some(), received);
        *setup.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(3) });
        let first = if received { 2 } else { 1 };
        assert_eq!(setup.end(), (Some((first, 4 - first)), 3));
    }
}

/// It has missed no value from before it subscribed.
#[test]
fn subscriber_that_received_nothing_is_cut_off_from_its_newest_value_on() {
    for (granted, published, cut_off) in
        [(1000, 1000, (1000, 1)), (1000, 1002, (1000, 3)), (0, 2, (1, 2)), (0, u64::MAX, (1, u64::MAX))]
    {
        let mut setup = setup_at(Sequence::new(granted), false);
        setup.remote.lock().failing = Some(|| FabricError::Closed);
        *setup.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(published) });
        assert_eq!(setup.end(), (Some(cut_off), published), "granted at {granted}");
        assert_eq!(setup.subscriber.stats().cut_off, cut_off.1);
    }
}

#[test]
fn passing_failure_is_reported_and_the_read_repeated() {
    let mut setup = setup(false);
    setup.publish(64);
    setup.remote.lock().failing =
        Some(|| FabricError::System { what: "test", source: std::io::ErrorKind::OutOfMemory.into() });
    for _ in 0..3 {
        let error = setup.subscriber.try_receive().unwrap_err();
        assert!(matches!(error, ReceiveError::Fabric(_)), "{error}");
    }
    setup.remote.lock().failing = None;
    assert_eq!(setup.look().0, Some(1));
}

/// A value that arrives after the reported end is dropped.
#[test]
fn reported_end_repeats() {
    let mut setup = setup(false);
    *setup.attached.0.lock() = Some(TopicEnd::Ended { published: Sequence::new(0) });
    let mut ended = || loop {
        match setup.subscriber.try_receive() {
            Ok(None) => {}
            Ok(Some(sample)) => panic!("{sample:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(ended(), ReceiveError::Ended { .. }));
    setup.remote.lock().publish(64);
    assert!(matches!(ended(), ReceiveError::Ended { .. }));
}

/// Headers and values share the connection, which takes one batch at a time.
#[test]
fn late_headers_are_waited_for_before_the_next_read() {
    for under_way in [false, true] {
        let mut setup = setup(false);
        setup.publish(64);
        setup.remote.lock().stalled = true;
        if under_way {
            assert!(setup.subscriber.try_receive().unwrap().is_none());
        }
        for _ in 0..2 {
            let error = setup.subscriber.headers().unwrap_err();
            assert!(matches!(error, FabricError::ReadOverdue), "{error}");
            assert!(setup.subscriber.try_receive().unwrap().is_none());
        }
        setup.remote.lock().stalled = false;
        assert_eq!(setup.look().0, Some(1));
        assert!(setup.subscriber.headers().unwrap().is_some());
        setup.publish(64);
        assert_eq!(setup.look().0, Some(2));
    }
}
