use super::*;
use crate::fabric::{ArrivalSignal, ArrivalSignals, ArrivalSource};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::memory::{Protection, Region};

/// A source from which nothing comes: signals are raised without it.
#[derive(Debug)]
struct NoArrivals;

impl ArrivalSource for NoArrivals {
    fn signal(&self, _token: u32) -> Arc<ArrivalSignal> {
        ArrivalSignals::default().add(0)
    }

    fn take(&self) {}

    fn arm(&self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }

    fn wait(&self, _: &ArrivalSignal, _: &dyn Clock, _: Duration) -> Result<(), FabricError> {
        Ok(())
    }
}

/// What the descriptor of a waiter shows.
fn is_readable(waiter: &Waiter) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};

    let mut polled = [PollFd::new(waiter, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn arming_leaves_nothing_to_read_however_much_a_peer_has_sent() {
    let waiter = Waiter::new().unwrap();
    let membership = waiter.add(7);
    membership.rest(Condition::Told);
    let peer = waiter.open_socket().unwrap();
    let noise = vec![0xff; 40_000];
    let sent = rustix::net::send(&peer, &noise, rustix::net::SendFlags::DONTWAIT).unwrap();
    assert!(sent > 8192, "more than one collection: {sent}");
    assert!(is_readable(&waiter));
    let mut keys = Vec::new();
    waiter.arm(&mut keys).unwrap();
    assert!(keys.is_empty() && !is_readable(&waiter));
    membership.waker().unwrap().wake();
    assert!(is_readable(&waiter));
    waiter.arm(&mut keys).unwrap();
    assert!(keys == [7] && !is_readable(&waiter));
}

/// However many there are, each is looked at within so many looks.
#[test]
fn looks_go_round_all_members() {
    for count in [1, limits::WAITER_LOOK_MIN, 513, 1000, 1001] {
        let waiter = Waiter::new().unwrap();
        let memberships: Vec<_> = (0..count).map(|key| waiter.add(key)).collect();
        let signals = ArrivalSignals::default();
        let raised: Vec<_> = (0..).zip(&memberships).map(|(token, it)| (signals.add(token), it)).collect();
        for (signal, membership) in &raised {
            // It is raised already, and nothing wakes the waiter for it.
            let (source, signal) = (Arc::new(NoArrivals), Arc::clone(signal));
            membership.rest(Condition::Arrivals { source, signal, due_ns: None });
        }
        let mut state = waiter.state.lock();
        state.ready.clear();
        let looks = (0..).take_while(|_| {
            let before = state.ready.len();
            state.look_at_some();
            state.ready.len() > before
        });
        assert!(looks.count() <= limits::WAITER_LOOK_PARTS, "{count}");
        assert_eq!(state.ready.len(), count);
    }
}

#[test]
fn member_that_rests_can_ask_to_be_polled_again() {
    let waiter = Waiter::new().unwrap();
    let membership = waiter.add(7);
    membership.rest(Condition::Told);
    let mut keys = Vec::new();
    waiter.wait(Duration::ZERO, 0, &mut keys).unwrap();
    assert!(keys.is_empty());
    membership.rest_anew(SystemClock.monotonic_ns() + 1_000_000);
    waiter.wait(Duration::from_secs(3600), 0, &mut keys).unwrap();
    assert_eq!(keys, [7]);
}

#[test]
fn member_that_rests_wakes_a_waiter_only_while_it_is_armed() {
    let waiter = Waiter::new().unwrap();
    let membership = waiter.add(7);
    let mut keys = Vec::new();
    waiter.arm(&mut keys).unwrap();
    assert_eq!(keys, [7]);
    membership.rest(Condition::Told);
    assert!(!is_readable(&waiter), "the program polls, and then arms it again");
    waiter.arm(&mut keys).unwrap();
    assert!(keys.is_empty());
    membership.rest_anew(u64::MAX);
    assert!(is_readable(&waiter), "another thread has changed what it waits for");
    waiter.arm(&mut keys).unwrap();
    waiter.disarm();
    membership.rest_anew(u64::MAX);
    assert!(keys.is_empty() && !is_readable(&waiter));
}

/// A topic that lives on.
#[derive(Debug)]
struct Living;

impl Watched for Living {
    fn has_ended(&self) -> bool {
        false
    }
}

/// The reader of a damaged number is told when the memory names another one, also an earlier one.
#[test]
fn earlier_number_than_the_last_one_seen_is_something_new() {
    const FAR: u64 = 1 << 40;
    let memory = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
    let waiter = Waiter::new().unwrap();
    let membership = waiter.add(7);
    let mut keys = Vec::new();
    for (last, seen, restored) in [(FAR, FAR, 21), (21, 20, 21)] {
        memory.store(HOT_SEQUENCE, seen);
        membership.rest(Condition::Values {
            memory: Arc::clone(&memory),
            last: Sequence::new(last),
            seen: Sequence::new(seen),
            topic: Arc::new(Living),
            by: WokenBy::Looks { interval_ns: 1000, from_ns: 0 },
        });
        waiter.wait(Duration::ZERO, 0, &mut keys).unwrap();
        assert!(keys.is_empty());
        memory.store(HOT_SEQUENCE, restored);
        waiter.wait(Duration::from_secs(10), 0, &mut keys).unwrap();
        assert_eq!(keys, [7], "{last}");
    }
}
