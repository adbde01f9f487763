//! Writes that wake the peer, with a real device.

use super::*;
use crate::fabric::verbs::sys::{Operation, SendChain, SendRequest};
use crate::fabric::{ArrivalSignal, ArrivalSource};

const CREDITS: u64 = limits::verbs::WAKE_RECEIVES as u64;
const TOKEN: u32 = 7;
const WORD_8: usize = 8;

/// A landing region of the near end, which the far end writes.
struct Landing {
    near: Box<dyn Connection>,
    far: Box<dyn Connection>,
    landing: Registration,
    source: Registration,
    write: Box<dyn RemoteWrite>,
    arrivals: Arc<dyn ArrivalSource>,
    signal: Arc<ArrivalSignal>,
}

impl Landing {
    /// With wake-ups from the beginning, of which the first one has arrived.
    fn new(world: &mut World) -> Self {
        let (mut near, mut far) = world.connect();
        let landing = registered(&world.near, 4096, Exposure::Write);
        let source = registered(&world.far, 4096, Exposure::Read);
        let write = open_write(&mut *near, &mut *far, &landing);
        let arrivals = near.arrivals().unwrap();
        let signal = arrivals.signal(TOKEN);
        assert!(signal.lower());
        write.announcer().unwrap().begin(TOKEN);
        let made = Self { near, far, landing, source, write, arrivals, signal };
        made.await_wake_up();
        made
    }

    fn write(&mut self, word: u64) {
        let (far, write, source) = (&mut self.far, &mut self.write, &self.source);
        put(&mut **far, &mut **write, source, word);
    }

    fn held(&self) -> u64 {
        self.landing.region().load_acquire(WORD_8)
    }

    /// Takes what arrives until the signal is raised, and lowers it.
    fn await_wake_up(&self) {
        until("a wake-up", || {
            self.arrivals.take();
            self.signal.lower().then_some(())
        });
    }

    /// Both ends still exchange messages.
    fn assert_alive(&mut self) {
        send(&mut *self.far, b"fine", None);
        assert_eq!(receive(&mut *self.near).0, b"fine");
        send(&mut *self.near, b"fine", None);
        assert_eq!(receive(&mut *self.far).0, b"fine");
    }
}

/// Writes a word, as a publisher whose node polls the connection.
fn put(far: &mut dyn Connection, write: &mut dyn RemoteWrite, source: &Registration, word: u64) {
    until("room", || {
        assert!(matches!(far.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        (write.in_flight().unwrap() < limits::verbs::WAITING_BATCHES_MAX).then_some(())
    });
    write.post(source, &[Write::Word { offset: WORD_8, word }]).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn reader_that_sleeps_misses_none_of_thousands_of_writes() {
    const WRITES: u64 = 3000;
    let mut world = World::new();
    let mut made = Landing::new(&mut world);
    let (region, arrivals) = (Arc::clone(made.landing.region()), Arc::clone(&made.arrivals));
    let signal = Arc::clone(&made.signal);
    let slept = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let (mut held, mut slept) = (0, 0);
            while held < WRITES {
                let begun_ns = SystemClock.monotonic_ns();
                arrivals.wait(&signal, &SystemClock, Duration::from_nanos(TIMEOUT_NS)).unwrap();
                assert!(SystemClock.monotonic_ns() - begun_ns < TIMEOUT_NS, "not woken after {held}");
                held = region.load_acquire(WORD_8);
                slept += 1;
            }
            slept
        });
        // Some in quick succession, some one by one.
        for word in 1..=WRITES {
            made.write(word);
            if word % 10 == 0 {
                finish_writes(&mut *made.write).unwrap();
            }
        }
        until("the last value", || {
            assert!(matches!(made.far.receive(&mut [0; 64]).unwrap(), Received::Nothing));
            reader.is_finished().then_some(())
        });
        reader.join().unwrap()
    });
    assert!(slept > 10, "{slept} sleeps");
    made.assert_alive();
}

#[test]
#[ignore = "needs an RDMA device"]
fn write_without_credit_wakes_once_there_is_credit_again() {
    let mut world = World::new();
    let mut made = Landing::new(&mut world);
    // Nothing takes the wake-ups.
    for word in 1..=10 * CREDITS {
        made.write(word);
    }
    finish_writes(&mut *made.write).unwrap();
    assert_eq!(made.held(), 10 * CREDITS);
    made.await_wake_up();
    // The writes before the credits were returned share one more.
    until("the wake-up that is owed", || {
        assert!(matches!(made.far.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        made.arrivals.take();
        made.signal.lower().then_some(())
    });
    made.assert_alive();
    for word in 1..=CREDITS {
        made.write(word);
        made.await_wake_up();
        assert_eq!(made.held(), word);
    }
    made.assert_alive();
}

#[test]
#[ignore = "needs an RDMA device"]
fn only_a_reader_that_waits_is_woken_by_writes() {
    let mut world = World::new();
    let mut made = Landing::new(&mut world);
    made.assert_alive();
    let quiet = |made: &mut Landing| {
        assert!(matches!(made.near.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        let begun_ns = SystemClock.monotonic_ns();
        wait(&[made.near.wait_handle()], &[], Duration::from_millis(200)).unwrap();
        SystemClock.monotonic_ns() - begun_ns >= 200_000_000
    };
    assert!(quiet(&mut made));
    for word in 1..=3 {
        made.write(word);
    }
    finish_writes(&mut *made.write).unwrap();
    assert!(quiet(&mut made), "the owner of the connection was woken for nobody");
    send(&mut *made.far, b"a message", None);
    assert!(wakes(made.near.wait_handle()));
    assert_eq!(receive(&mut *made.near).0, b"a message");
    // It has taken the wake-ups, too.
    assert!(made.signal.lower());
    made.signal.expect(None);
    let arrivals = Arc::clone(&made.arrivals);
    let handle = arrivals.arm().unwrap().unwrap();
    assert!(!made.signal.is_raised());
    made.write(4);
    assert!(wakes(handle));
    made.await_wake_up();
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_reach_their_owner_while_another_thread_waits_for_writes() {
    let mut world = World::new();
    let mut made = Landing::new(&mut world);
    made.assert_alive();
    let (arrivals, signal) = (Arc::clone(&made.arrivals), Arc::clone(&made.signal));
    let region = Arc::clone(made.landing.region());
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            while region.load_acquire(WORD_8) == 0 {
                // It returns for messages, too.
                arrivals.wait(&signal, &SystemClock, Duration::from_nanos(TIMEOUT_NS)).unwrap();
            }
        });
        for number in 0..20_u8 {
            send(&mut *made.far, &[number], None);
            let mut buffer = [0; 8];
            until("the message", || {
                assert!(wakes(made.near.wait_handle()), "{number}");
                matches!(made.near.receive(&mut buffer).unwrap(), Received::Message { .. }).then_some(())
            });
            assert_eq!(buffer[0], number);
        }
        made.write(1);
        finish_writes(&mut *made.write).unwrap();
        reader.join().unwrap();
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn nothing_wakes_after_a_revocation_is_done() {
    let mut world = World::new();
    let mut made = Landing::new(&mut world);
    for word in 1..=2 * CREDITS {
        made.write(word);
    }
    let (announcer, revocation) = (made.write.announcer().unwrap(), made.write.revocation());
    until("the end of the writes", || (revocation.revoke() == Completion::Done).then_some(()));
    made.await_wake_up();
    announcer.begin(TOKEN);
    made.assert_alive();
    made.assert_alive();
    made.arrivals.take();
    assert!(!made.signal.lower(), "what was owed is forgotten");
}

/// A wake-up without regard to credits.
fn wake(rogue: &Rogue, token: u32) {
    let mut chain = SendChain::default();
    let request = SendRequest { wr_id: u64::MAX, operation: Operation::Probe, signaled: false };
    chain.push_with_immediate(&request, token);
    rogue.endpoint.queue_pair.post_send(&mut chain).unwrap();
}

#[test]
#[ignore = "needs an RDMA device"]
fn tokens_that_nobody_knows_are_ignored_and_wake_ups_without_credit_end_the_session() {
    let mut world = World::new();
    let (rogue, mut far) = world.rogue(false);
    let signal = far.arrivals().unwrap().signal(TOKEN);
    assert!(signal.lower());
    for token in (0..u32::try_from(CREDITS).unwrap()).map(|number| u32::MAX - number) {
        wake(&rogue, token);
    }
    let mut arrivals = VecDeque::new();
    until("the credits", || {
        assert!(matches!(far.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        rogue.endpoint.take_arrivals(&mut arrivals, false).unwrap();
        (!arrivals.is_empty()).then_some(())
    });
    assert!(!signal.is_raised());
    // More at once than it has credits for.
    let error = until("the end", || {
        (0..=CREDITS).for_each(|_| wake(&rogue, TOKEN));
        far.receive(&mut [0; 64]).err()
    });
    assert!(matches!(error, FabricError::Verbs(VerbsError::Malformed { .. })), "{error}");
    assert!(signal.is_raised(), "the end of the session wakes it");
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

/// A peer that never returns credits is owed one wake-up for each of its regions, and gets everything else.
#[test]
#[ignore = "needs an RDMA device"]
fn peer_that_returns_no_credits_harms_only_itself() {
    let mut world = World::new();
    let (rogue, mut far) = world.rogue(true);
    let landing = registered(&world.far, 4096, Exposure::Write);
    let source = registered(&world.near, 4096, Exposure::Read);
    send(&mut *far, b"region", Some(&landing));
    let offer = Box::new(VerbsOffer::new(Arc::clone(&rogue.endpoint), rogue.region()));
    let mut write = offer.open_write(4096).unwrap();
    write.announcer().unwrap().begin(TOKEN);
    // The rogue is the end that writes here: that of the node under test takes nothing.
    for word in 1..=20 * CREDITS {
        until("room", || (write.in_flight().unwrap() < limits::verbs::WAITING_BATCHES_MAX).then_some(()));
        write.post(&source, &[Write::Word { offset: WORD_8, word }]).unwrap();
    }
    finish_writes(&mut *write).unwrap();
    assert_eq!(landing.region().load_acquire(WORD_8), 20 * CREDITS);
    assert_eq!(rogue.endpoint.failure(), None);
}
