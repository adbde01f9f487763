//! How long a session lasts in which nothing is attached, and how much its peer may ask for.

use super::*;
use crate::fabric::Address;
use crate::node::DialError;
use crate::node::invitation::{Invitation, Pending};
use crate::node::serving::LandingShare;

impl Setup {
    fn turn_at(&mut self, now_ns: u64) {
        let core = self.node.core();
        self.served.turn(&mut Serving::new(core), now_ns);
    }
}

#[test]
fn idle_session_is_refused_after_its_deadline_and_the_peer_is_not_blamed() {
    let mut setup = Setup::new();
    setup.turn(None);
    let due_ns = setup.served.due_ns(0).unwrap();
    assert!(due_ns >= limits::IDLE_SESSION_NS, "{due_ns}");
    setup.turn_at(due_ns - 1);
    assert!(!setup.served.is_over());
    setup.turn_at(due_ns);
    assert!(setup.served.is_over());
    let events = setup.recorder.0.lock().clone();
    assert!(matches!(events.last(), Some(Event::SessionClosed { .. })), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::PeerRejected { .. })), "{events:?}");
}

#[test]
fn listing_does_not_keep_a_session() {
    let mut setup = Setup::new();
    setup.turn(None);
    let due_ns = setup.served.due_ns(0).unwrap();
    setup.client.list(None).unwrap();
    assert!(matches!(setup.turn(None)[..], [Ok(ClientEvent::Topics { .. })]));
    assert_eq!(setup.served.due_ns(0), Some(due_ns));
}

#[test]
fn deadline_of_the_hello_begins_when_the_connection_is_established() {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.is_connecting = true;
    let began_ns = setup.node.core().clock.monotonic_ns();
    // The fabric bounds how long connecting may take.
    for second in 0..5 {
        setup.turn_at(began_ns + second * 1_000_000_000);
        assert!(!setup.served.is_over());
    }
    setup.line.lock().capabilities.is_connecting = false;
    let established_ns = began_ns + 5_000_000_000;
    setup.turn_at(established_ns);
    assert_eq!(setup.served.due_ns(0), Some(established_ns + limits::HELLO_DEADLINE_NS));
    setup.turn_at(established_ns + limits::HELLO_DEADLINE_NS - 1);
    assert!(!setup.served.is_over());
    setup.turn_at(established_ns + limits::HELLO_DEADLINE_NS);
    assert!(setup.served.is_over());
}

/// Nothing wakes the node's thread for that: the provider's thread has taken the event.
#[test]
fn connection_that_is_established_unnoticed_has_no_longer_for_its_hello() {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.is_connecting = true;
    let began_ns = setup.node.core().clock.monotonic_ns();
    setup.turn_at(began_ns);
    setup.line.lock().capabilities.is_connecting = false;
    let mut over_ns = began_ns;
    while !setup.served.is_over() {
        over_ns = setup.served.due_ns(over_ns).unwrap();
        setup.turn_at(over_ns);
    }
    let took_ns = over_ns - began_ns;
    assert!(took_ns <= limits::HELLO_DEADLINE_NS + limits::CONNECTING_CHECK_NS, "{took_ns} ns");
}

#[test]
fn connection_that_was_established_is_not_looked_at_any_more() {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.is_connecting = true;
    let now_ns = setup.node.core().clock.monotonic_ns();
    setup.turn_at(now_ns);
    assert_eq!(setup.served.due_ns(now_ns), Some(now_ns + limits::CONNECTING_CHECK_NS));
    setup.line.lock().capabilities.is_connecting = false;
    assert!(matches!(setup.turn(None)[..], [Ok(ClientEvent::Ready { .. })]));
    let due_ns = setup.served.due_ns(now_ns).unwrap();
    assert!(due_ns > now_ns + limits::HELLO_DEADLINE_NS, "{due_ns} {now_ns}");
}

/// Whether a process runs there is not known before.
#[test]
fn subscriber_is_silent_only_over_a_connection_that_is_established() {
    let node = Setup::new().node;
    let (core, address) = (node.core(), Address::shm(&"peer".parse().unwrap()));
    for is_established in [false, true] {
        let connection = Scripted::connecting();
        let invitation = Invitation::new(&address, "topic".parse().unwrap(), core.keyed_waker()).unwrap();
        let mut served =
            Served::inviting(core, Box::new(connection.clone()), u64::MAX, Pending::new(&invitation))
                .unwrap();
        if is_established {
            connection.establish();
            served.turn(&mut Serving::new(core), core.clock.monotonic_ns());
        }
        let error = invitation.outcome(false).unwrap().unwrap_err();
        match (is_established, &error) {
            (true, DialError::Session { source: ControlError::Deadline { awaited: "hello" }, .. }) => {}
            (false, DialError::Unreachable { source: FabricError::NoAnswer { address: found }, .. }) => {
                assert_eq!(*found, address);
            }
            _ => panic!("{is_established}: {error:?}"),
        }
    }
}

/// It stays readable: if it were watched, the thread would spin.
#[test]
fn connection_that_is_held_back_is_looked_at_when_it_is_due() {
    let mut setup = Setup::new();
    setup.turn(None);
    setup.client.list(None).unwrap();
    setup.line.lock().held_back_until_ns = Some(7);
    assert!(setup.turn(None).is_empty());
    assert_eq!((setup.served.interest(), setup.served.due_ns(0)), (None, Some(7)));
    setup.line.lock().held_back_until_ns = None;
    assert!(matches!(setup.turn(None)[..], [Ok(ClientEvent::Topics { .. })]));
    assert!(setup.served.interest().is_some());
}

/// What it has asked for is in the message that is held back.
#[test]
fn session_whose_first_request_is_held_back_is_not_idle() {
    let mut setup = Setup::new();
    setup.turn(None);
    let due_ns = setup.served.due_ns(0).unwrap();
    setup.line.lock().held_back_until_ns = Some(due_ns + 9);
    setup.turn_at(due_ns + 1);
    assert!(!setup.served.is_over());
    // Otherwise the thread would take turns without a pause.
    assert_eq!(setup.served.due_ns(due_ns + 1), Some(due_ns + 9));
    setup.line.lock().held_back_until_ns = None;
    setup.turn_at(due_ns + 2);
    assert!(setup.served.is_over());
}

/// The next one may be held back again, and again.
#[test]
fn session_of_which_one_message_after_another_is_held_back_is_idle_later() {
    let mut setup = Setup::new();
    setup.turn(None);
    let until_ns = setup.served.due_ns(0).unwrap() + limits::HELD_BACK_NS_MAX;
    setup.line.lock().held_back_until_ns = Some(u64::MAX);
    setup.turn_at(until_ns - 1);
    assert!(!setup.served.is_over());
    assert_eq!(setup.served.due_ns(until_ns - 1), Some(until_ns));
    setup.turn_at(until_ns);
    assert!(setup.served.is_over());
}

/// The rest waits, and is not lost.
#[test]
fn requests_of_a_peer_that_asks_for_too_much_wait_and_are_answered() {
    let places = Places::new(PlaceLimits { total: 8, per_peer: 4 });
    let mut setup = Setup::new();
    setup.turn(None);
    let now_ns = setup.node.core().clock.monotonic_ns();
    let peer = PeerId::Process { user: 1, process: 1 };
    setup.place.set(places.take(peer, 0, now_ns).unwrap()).unwrap();
    let other = places.take(PeerId::Process { user: 1, process: 2 }, 0, now_ns).unwrap();
    let mut pages = 0;
    while setup.served.interest().is_some() {
        // The previous page is not answered if this turn found that the peer has to wait.
        if setup.client.list(None).is_err() {
            break;
        }
        pages += setup.turn(None).len() as u64;
        assert!(pages < 10_000, "it may ask without end");
    }
    let each = limits::COSTLY_UNITS + limits::MESSAGE_UNITS;
    assert!(pages.abs_diff(limits::UNITS_AT_ONCE / each) < 20, "{pages} pages at once");
    let waits_ns = setup.served.due_ns(now_ns).unwrap();
    assert!(waits_ns > now_ns && waits_ns < now_ns + 1_000_000_000, "{waits_ns}");
    // What its connection held back is not looked at before.
    setup.line.lock().held_back_until_ns = Some(now_ns);
    assert_eq!(setup.served.due_ns(now_ns), Some(waits_ns));
    setup.line.lock().held_back_until_ns = None;
    assert_eq!(other.waits_until(now_ns), None);
    // Once it has earned them.
    setup.turn_at(waits_ns);
    assert!(setup.served.interest().is_some());
    assert!(!setup.served.is_over());
}

#[test]
fn landing_regions_of_all_sessions_are_bounded() {
    let landings = Arc::default();
    let first = LandingShare::take(&landings, 60, 100).unwrap();
    assert!(LandingShare::take(&landings, 41, 100).is_none());
    let second = LandingShare::take(&landings, 40, 100).unwrap();
    assert!(LandingShare::take(&landings, usize::MAX, 100).is_none());
    drop(first);
    assert!(LandingShare::take(&landings, 60, 100).is_some());
    drop(second);
    assert!(LandingShare::take(&landings, 100, 100).is_some());
}
