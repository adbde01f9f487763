use std::collections::VecDeque;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::*;
use crate::fabric::Waker;
use crate::fabric::verbs::device::Wish;
use crate::fabric::verbs::error::VerbsError;

/// What an attempt does next.
enum Act {
    Establish,
    Over,
    Silent,
    Unreachable,
    Refused,
    /// The peer does not admit what was shown.
    NotAdmitted,
    /// The peer is out of resources.
    NoRoom,
    /// A call fails at this end.
    Fails,
}

/// The attempts of a dial, as their peer sees them.
#[derive(Default)]
struct Wire {
    /// When each began, ns.
    begun: Vec<u64>,
    /// What each shows.
    shown: Vec<usize>,
    /// The next answer of each; `None` while it does not answer.
    acts: Vec<VecDeque<Act>>,
    /// Those that live.
    alive: Vec<usize>,
}

struct Fake {
    number: usize,
    wire: Arc<Mutex<Wire>>,
    waker: Waker,
}

impl fmt::Debug for Fake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "attempt {}", self.number)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.wire.lock().alive.retain(|number| *number != self.number);
    }
}

impl QpLink for Fake {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.waker.wait_handle()
    }

    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    fn next(&mut self, _: &Devices, _: u64) -> Result<Option<LinkEvent>, FabricError> {
        match self.wire.lock().acts[self.number].pop_front() {
            None | Some(Act::Silent) => Ok(None),
            Some(Act::Establish) => Ok(Some(LinkEvent::Established)),
            Some(Act::Over) => Ok(Some(LinkEvent::Over)),
            Some(Act::Unreachable) => Err(FabricError::NoAnswer { address: address() }),
            Some(Act::Refused) => Err(VerbsError::Refused { why: "test" }.into()),
            Some(Act::NotAdmitted) => Err(NotAdmitted::Key { address: IpAddr::from([192, 0, 2, 2]) }.into()),
            Some(Act::NoRoom) => Err(VerbsError::Refused { why: Rejection::NO_ROOM }.into()),
            Some(Act::Fails) => Err(FabricError::system("create a queue pair")(Errno::NOMEM)),
        }
    }

    fn confirm(&mut self) {}

    fn leave(&mut self) {}

    fn is_leaving(&self) -> bool {
        false
    }

    fn disconnect(&self) {}

    fn is_dialled_to_write(&self) -> bool {
        false
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        None
    }

    fn ends(&self, _: u32) -> Result<QpEnds, FabricError> {
        Err(FabricError::Closed)
    }
}

fn address() -> Address {
    "rdma://192.0.2.1:7471".parse().unwrap()
}

/// A dial, and what its attempts do.
struct World {
    link: DiallingLink,
    wire: Arc<Mutex<Wire>>,
    devices: Devices,
}

impl World {
    fn new() -> Self {
        let (wire, devices) = (Arc::new(Mutex::new(Wire::default())), Devices::new(Wish::default()));
        let shared = Arc::clone(&wire);
        let dial = move |_: &Devices, now_ns: u64, turn: usize| {
            let mut wire = shared.lock();
            let number = wire.begun.len();
            wire.begun.push(now_ns);
            wire.shown.push(turn);
            wire.acts.push(VecDeque::new());
            wire.alive.push(number);
            let (wire, waker) = (Arc::clone(&shared), Waker::new()?);
            Ok(Box::new(Fake { number, wire, waker }) as Box<dyn QpLink>)
        };
        let link = DiallingLink::dial(&address(), Box::new(dial), &devices, 0).unwrap();
        Self { link, wire, devices }
    }

    /// Polls whenever that is due, until something happens. Returns when that was.
    fn run(&mut self) -> (u64, Result<LinkEvent, FabricError>) {
        let mut now_ns = 0;
        loop {
            if let Some(change) = self.link.next(&self.devices, now_ns).transpose() {
                return (now_ns, change);
            }
            now_ns = self.link.deadline_ns().unwrap();
        }
    }

    fn script(&self, attempt: usize, act: Act) {
        self.wire.lock().acts[attempt].push_back(act);
    }
}

/// A second attempt for which there was no queue pair left ended the first one, which was about to be established.
#[test]
fn attempt_that_lacks_resources_leaves_it_to_the_others() {
    for act in [Act::Fails, Act::NoRoom] {
        let mut world = World::new();
        assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
        world.script(1, act);
        world.script(0, Act::Silent);
        world.script(0, Act::Establish);
        assert!(matches!(world.run().1, Ok(LinkEvent::Established)));
    }
    let mut world = World::new();
    world.script(0, Act::Fails);
    assert!(matches!(world.run(), (0, Err(FabricError::System { .. }))), "without others it is final");
}

/// A lost REQ or REP ended the dial: nothing repeated it within the deadline.
#[test]
fn unanswered_dial_is_repeated_until_its_deadline() {
    let mut world = World::new();
    let (ended_ns, end) = world.run();
    assert!(matches!(end, Err(FabricError::NoAnswer { address: found }) if found == address()));
    assert_eq!(ended_ns, CONNECT_DEADLINE_NS);
    let begun = world.wire.lock().begun.clone();
    assert_eq!(begun[..3], [0, REDIAL_NS, REDIAL_NS * 5 / 2], "each pause is half as long again");
    assert!(begun.len() >= 5 && begun.len() <= 8, "{begun:?}");
    assert_eq!(world.wire.lock().alive.len(), 0, "no attempt is left");
    assert_eq!(world.link.deadline_ns(), None);
    assert!(world.link.next(&world.devices, u64::MAX).unwrap().is_none());
}

#[test]
fn first_attempt_that_is_established_is_the_only_one_kept() {
    for kept in [0, 1, 2] {
        let mut world = World::new();
        for number in 1..=2 {
            let now_ns = world.link.deadline_ns().unwrap();
            assert!(world.link.next(&world.devices, now_ns).unwrap().is_none());
            assert_eq!(world.wire.lock().begun.len(), number + 1);
        }
        world.script(kept, Act::Establish);
        let (_, established) = world.run();
        assert!(matches!(established, Ok(LinkEvent::Established)), "{established:?}");
        assert_eq!(world.wire.lock().alive, [kept]);
        assert_eq!(world.link.deadline_ns(), None, "nothing is repeated from then on");
        world.script(kept, Act::Over);
        assert!(matches!(world.run().1, Ok(LinkEvent::Over)));
    }
}

#[test]
fn attempt_that_fails_without_an_answer_leaves_it_to_the_others() {
    let mut world = World::new();
    assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
    world.script(0, Act::Unreachable);
    world.script(1, Act::Silent);
    world.script(1, Act::Establish);
    assert!(matches!(world.run().1, Ok(LinkEvent::Established)));
    // Without others it is final.
    for (act, is_end) in [(Act::Over, true), (Act::Unreachable, false)] {
        let mut world = World::new();
        world.script(0, act);
        let (now_ns, end) = world.run();
        assert_eq!((now_ns, end.is_ok()), (0, is_end));
    }
}

#[test]
fn refused_dial_is_not_repeated() {
    let mut world = World::new();
    assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
    world.script(1, Act::Refused);
    assert!(matches!(world.run().1, Err(FabricError::Verbs(VerbsError::Refused { .. }))));
    assert_eq!(world.wire.lock().alive.len(), 0);
}

/// A peer that knows a key of many is shown them all, a few with each request.
#[test]
fn everything_is_shown_to_a_peer_that_does_not_admit_the_first() {
    let mut world = World::new();
    world.link.turns = 3;
    assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
    assert_eq!(world.wire.lock().shown, [0, 0], "a request without an answer is made again");
    world.script(1, Act::NotAdmitted);
    assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
    assert_eq!(world.wire.lock().alive, [2], "no request is left that shows what was not admitted");
    world.script(2, Act::NotAdmitted);
    assert!(world.link.next(&world.devices, REDIAL_NS).unwrap().is_none());
    assert_eq!(world.wire.lock().shown, [0, 0, 1, 2]);
    world.script(3, Act::Establish);
    assert!(matches!(world.run().1, Ok(LinkEvent::Established)));
}

#[test]
fn peer_that_admits_nothing_that_is_shown_has_answered() {
    for (turns, attempts) in [(1, 1), (3, 3)] {
        let mut world = World::new();
        world.link.turns = turns;
        for number in 0..attempts {
            world.script(number, Act::NotAdmitted);
            let end = world.link.next(&world.devices, 0);
            if number + 1 < attempts {
                assert!(matches!(end, Ok(None)), "{end:?}");
            } else {
                assert!(matches!(end, Err(FabricError::NotAdmitted(NotAdmitted::Key { .. }))), "{end:?}");
            }
        }
        assert_eq!(world.wire.lock().shown, (0..attempts).collect::<Vec<_>>());
        assert_eq!(world.wire.lock().alive.len(), 0);
    }
}
