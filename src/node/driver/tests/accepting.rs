//! Listeners that cannot accept, or turn a peer away.

use std::collections::VecDeque;

use super::*;
use crate::fabric::{Address, Connection, NoPlace};
use crate::node::served::tests::woken;

/// What one call of a listener returns: an error, or nothing.
type Outcome = Option<fn() -> FabricError>;

/// A listener that is always readable, and returns this.
#[derive(Debug)]
struct Busy {
    outcomes: Arc<Mutex<VecDeque<Outcome>>>,
    calls: Arc<Mutex<u32>>,
    readable: Waker,
}

impl Busy {
    fn new() -> Self {
        Self { outcomes: Arc::default(), calls: Arc::default(), readable: woken() }
    }
}

impl Acceptor for Busy {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        *self.calls.lock() += 1;
        self.outcomes.lock().pop_front().flatten().map_or(Ok(None), |error| Err(error()))
    }

    fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.wait_handle()
    }
}

/// A driver with two such listeners, what they return, and how often each was called.
struct Doors {
    driver: Driver,
    recorder: Arc<Recorder>,
    network: Arc<Network>,
    outcomes: [Arc<Mutex<VecDeque<Outcome>>>; 2],
    calls: [Arc<Mutex<u32>>; 2],
}

impl Doors {
    fn new() -> Self {
        let (network, recorder) = (Network::new(0, Reach::Mapped), Arc::new(Recorder::default()));
        let fabric = Arc::new(network.fabric(&"node".parse().unwrap()));
        let clock = Arc::clone(network.clock());
        let (_, mut driver) = assemble((None, None), fabric, clock, Arc::clone(&recorder) as _).unwrap();
        let listeners = [Busy::new(), Busy::new()];
        let outcomes = listeners.each_ref().map(|listener| Arc::clone(&listener.outcomes));
        let calls = listeners.each_ref().map(|listener| Arc::clone(&listener.calls));
        listeners.into_iter().for_each(|listener| driver.listen(Box::new(listener)).unwrap());
        Self { driver, recorder, network, outcomes, calls }
    }

    /// A turn, and how often each listener was called in it.
    fn turn(&mut self) -> [u32; 2] {
        self.driver.wait_for(Duration::ZERO);
        self.driver.turn();
        self.calls.each_ref().map(|calls| std::mem::take(&mut *calls.lock()))
    }

    fn told(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.recorder.0.lock().iter().filter(|event| is(event)).count()
    }
}

fn no_files() -> FabricError {
    FabricError::System { what: "accept a connection", source: std::io::Error::from_raw_os_error(24) }
}

#[test]
fn listener_that_cannot_accept_pauses_alone() {
    let mut doors = Doors::new();
    doors.outcomes[0].lock().extend([Some(no_files as fn() -> _); 2]);
    assert_eq!(doors.turn(), [1, 1]);
    // The one pauses, without spinning, and the other does not.
    for _ in 0..5 {
        assert_eq!(doors.turn(), [0, 1]);
    }
    let pause_ns = saturate(TROUBLE_PAUSE);
    doors.network.clock().advance(pause_ns);
    assert_eq!(doors.turn(), [1, 1]);
    assert_eq!(doors.turn(), [0, 1]);
    doors.network.clock().advance(pause_ns);
    assert_eq!(doors.turn(), [1, 1], "it accepts again");
    assert_eq!(doors.turn(), [1, 1]);
    assert_eq!(doors.told(|event| matches!(event, Event::Trouble { .. })), 1, "it lasts");
    // Another one, and the first one again.
    let full = || FabricError::CloseBacklogFull { max: 7 };
    doors.outcomes[0].lock().extend([Some(full as fn() -> _), Some(full), Some(no_files)]);
    for told in [2, 2, 3] {
        assert_eq!(doors.turn(), [1, 1]);
        assert_eq!(doors.told(|event| matches!(event, Event::Trouble { .. })), told);
        doors.network.clock().advance(pause_ns);
    }
}

/// Peers can fill a backlog, have it emptied, and fill it again.
#[test]
fn trouble_that_comes_and_goes_is_reported_once_a_second() {
    let mut doors = Doors::new();
    let pause_ns = saturate(TROUBLE_PAUSE);
    for _ in 0..10 {
        doors.outcomes[0].lock().extend([Some(no_files as fn() -> _), None]);
        assert_eq!(doors.turn(), [1, 1]);
        doors.network.clock().advance(pause_ns);
        assert_eq!(doors.turn(), [1, 1]);
        assert_eq!(doors.told(|event| matches!(event, Event::Trouble { .. })), 1);
    }
    doors.network.clock().advance(TROUBLE_OVER_NS);
    doors.outcomes[0].lock().extend([Some(no_files as fn() -> _)]);
    assert_eq!(doors.turn(), [1, 1]);
    assert_eq!(doors.told(|event| matches!(event, Event::Trouble { .. })), 2);
}

#[test]
fn peer_that_is_turned_away_delays_nobody() {
    let mut doors = Doors::new();
    let errors: [fn() -> FabricError; 3] =
        [|| NoPlace::Rdma { max: 7 }.into(), || FabricError::Closed, || FabricError::TooManyRegions];
    doors.outcomes[0].lock().extend(errors.map(Some));
    // The next one is accepted in the same turn.
    assert_eq!(doors.turn(), [4, 1]);
    assert_eq!(doors.turn(), [1, 1]);
    assert_eq!(doors.told(|event| matches!(event, Event::Trouble { .. })), 0);
    // One that was refused often is not reported each time.
    assert_eq!(doors.told(|event| matches!(event, Event::PeerRejected { .. })), 2);
}

#[test]
fn flood_at_one_listener_leaves_the_other_its_turns() {
    let mut doors = Doors::new();
    doors.outcomes[0].lock().extend([Some((|| FabricError::Closed) as fn() -> _); 100]);
    assert_eq!(doors.turn(), [16, 1]);
    assert_eq!(doors.turn(), [16, 1]);
}

/// A listener whose device is gone, and comes back with the call that is due.
#[derive(Debug)]
struct Removed {
    clock: Arc<dyn Clock>,
    news: VecDeque<ListenerNews>,
    due_ns: Option<u64>,
    readable: Waker,
}

impl Acceptor for Removed {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        self.readable.reset();
        let address: Address = "rdma://10.0.0.1".parse().unwrap();
        let now_ns = self.clock.monotonic_ns();
        match self.due_ns {
            None => {
                self.due_ns = Some(now_ns + AGAIN_NS);
                self.news.push_back(ListenerNews::Lost { address, why: FabricError::Closed });
            }
            Some(due_ns) if due_ns <= now_ns => {
                self.due_ns = Some(u64::MAX);
                self.news.push_back(ListenerNews::Back { address });
            }
            Some(_) => {}
        }
        Ok(None)
    }

    fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    fn take_news(&mut self) -> Option<ListenerNews> {
        self.news.pop_front()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.wait_handle()
    }
}

/// When the device is back.
const AGAIN_NS: u64 = 2_000_000_000;

#[test]
fn listener_without_a_device_is_called_when_it_is_due_and_its_news_are_events() {
    let (network, recorder) = (Network::new(0, Reach::Mapped), Arc::new(Recorder::default()));
    let fabric = Arc::new(network.fabric(&"node".parse().unwrap()));
    let clock = Arc::clone(network.clock());
    let (_, mut driver) =
        assemble((None, None), fabric, Arc::clone(&clock) as _, Arc::clone(&recorder) as _).unwrap();
    let listener =
        Removed { clock: Arc::clone(&clock) as _, news: VecDeque::new(), due_ns: None, readable: woken() };
    driver.listen(Box::new(listener)).unwrap();
    let mut turn = |advance_ns| {
        clock.advance(advance_ns);
        driver.wait_for(Duration::ZERO);
        driver.turn();
        std::mem::take(&mut *recorder.0.lock())
    };
    let lost = turn(0);
    assert!(
        matches!(&lost[..], [Event::NotListening { address, .. }] if address == "rdma://10.0.0.1:7471"),
        "{lost:?}"
    );
    assert_eq!(turn(AGAIN_NS - 1), []);
    let back = turn(1);
    assert!(matches!(&back[..], [Event::ListensAgain { .. }]), "{back:?}");
    assert_eq!(turn(AGAIN_NS), []);
}
