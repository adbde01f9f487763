//! Requests to connect that a node does not admit: nothing is made for them.

use parking_lot::Mutex;

use super::*;
use crate::fabric::{ConnectRequest, NotAdmitted, PlaceLimits};

const CONNECTS: [RdmaConnect; 3] = [RdmaConnect::Manager, RdmaConnect::Tcp, RdmaConnect::TcpUnreliable];

/// What strangers show.
const NOTHING: &[&[u8]] = &[];
const WRONG: &[&[u8]] = &[b"wheat", b"barley"];

/// Shows words one after the other, and demands one.
#[derive(Debug, Default)]
struct Words {
    shows: &'static [&'static [u8]],
    demands: Option<&'static [u8]>,
    is_closed: bool,
    /// The requests that were made or arrived, with what they show.
    requests: Mutex<Vec<(ConnectRequest, Vec<u8>)>>,
}

impl ConnectPolicy for Words {
    fn turns(&self, _: Intent) -> usize {
        self.shows.len().max(1)
    }

    fn show(&self, request: &ConnectRequest, turn: usize) -> Vec<u8> {
        let shown = self.shows.get(turn).map_or_else(Vec::new, |word| word.to_vec());
        self.requests.lock().push((request.clone(), shown.clone()));
        shown
    }

    fn allows(&self, _: IpAddr) -> bool {
        !self.is_closed
    }

    fn admits(&self, request: &ConnectRequest, shown: &[u8]) -> bool {
        self.requests.lock().push((request.clone(), shown.to_vec()));
        self.demands.is_none_or(|word| word == shown)
    }
}

impl Words {
    /// The words that were shown here by the last of these dialling ends, which together have made all requests. One that had no answer
    /// soon was made again, and may arrive after those of the next end.
    fn words(&self, dialling: &[Arc<Self>]) -> Vec<Vec<u8>> {
        let here = self.requests.lock();
        let made: Vec<_> = dialling.iter().map(|end| end.requests.lock().clone()).collect();
        let is_made = |request| made.iter().any(|made| made.contains(request));
        assert!(here.iter().all(is_made), "{here:?}, but made were {made:?}");
        let of_last = here.iter().filter(|request| made.last().unwrap().contains(request));
        let mut words: Vec<_> =
            of_last.map(|(_, shown)| shown.clone()).filter(|word| !word.is_empty()).collect();
        words.dedup();
        words
    }
}

/// A node that listens, with this policy, and few places.
fn listening(policy: &Arc<Words>) -> World {
    let places = PlaceLimits { total: 16, per_peer: 8 };
    let policy: Option<Arc<dyn ConnectPolicy>> = Some(Arc::clone(policy) as _);
    World::with(VerbsFabric::new(VerbsConfig { places, policy, ..VerbsConfig::default() }).unwrap())
}

fn dialling(connect: RdmaConnect, policy: &Arc<Words>) -> VerbsFabric {
    let policy: Option<Arc<dyn ConnectPolicy>> = Some(Arc::clone(policy) as _);
    VerbsFabric::new(VerbsConfig { connect, policy, ..VerbsConfig::default() }).unwrap()
}

/// The queue pairs that a node has made.
fn queue_pairs(fabric: &VerbsFabric) -> u64 {
    fabric.devices.all().iter().map(|device| device.endpoints_made.load(Ordering::Relaxed)).sum()
}

/// Dials, and returns why the dialling end and the listening one say that the peer was turned away.
fn turned_away(world: &mut World, near: &VerbsFabric, intent: Intent) -> (NotAdmitted, NotAdmitted) {
    let mut dialled = near.dial(&world.at, intent, Duration::ZERO).unwrap();
    let (mut accepted, mut there, mut here) = (None, None, None);
    until("both refusals", || {
        match world.listener.accept() {
            Ok(Some(connection)) => accepted = Some(connection),
            Ok(None) => {}
            Err(error) => there = Some(error),
        }
        // Over TCP the connection says it, and leaves its place.
        if let Some(error) = accepted.as_mut().and_then(|accepted| accepted.receive(&mut [0; 64]).err()) {
            (accepted, there) = (None, Some(error));
        }
        here = here.take().or_else(|| dialled.receive(&mut [0; 64]).err());
        (there.is_some() && here.is_some()).then_some(())
    });
    match (here, there) {
        (Some(FabricError::NotAdmitted(here)), Some(FabricError::NotAdmitted(there))) => (here, there),
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn request_that_shows_nothing_known_is_rejected_before_a_queue_pair_is_made() {
    let here = Arc::new(Words { demands: Some(b"sesame"), ..Words::default() });
    let (mut world, mut strangers) = (listening(&here), Vec::new());
    let address = address().ip();
    for connect in CONNECTS {
        for shows in [NOTHING, WRONG] {
            for intent in [Intent::Read, Intent::Write] {
                let stranger = Arc::new(Words { shows, ..Words::default() });
                strangers.push(Arc::clone(&stranger));
                let near = dialling(connect, &stranger);
                // More often than there are places.
                for _ in 0..10 {
                    let told = turned_away(&mut world, &near, intent);
                    let expected = NotAdmitted::Key { address };
                    assert_eq!(told, (expected, expected), "{connect:?} {shows:?}");
                }
                assert_eq!(queue_pairs(&world.far), 0, "{connect:?} {shows:?}");
                assert_eq!(here.words(&strangers), shows.repeat(10));
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn request_that_shows_what_is_demanded_is_accepted_whenever_that_comes() {
    let here = Arc::new(Words { demands: Some(b"sesame"), ..Words::default() });
    let (mut world, mut holders) = (listening(&here), Vec::new());
    for connect in CONNECTS {
        for intent in [Intent::Read, Intent::Write] {
            let holder =
                Arc::new(Words { shows: &[b"wheat", &[7; 40], b"sesame", b"rye"], ..Words::default() });
            holders.push(Arc::clone(&holder));
            let near = dialling(connect, &holder);
            let mut dialled = near.dial(&world.at, intent, Duration::ZERO).unwrap();
            send(&mut *dialled, b"hello", None);
            let mut accepted = Vec::new();
            until("the message", || {
                accepted.extend(world.listener.accept().unwrap_or_default());
                assert!(matches!(dialled.receive(&mut [0; 64]), Ok(Received::Nothing)), "it goes on");
                let received: Vec<_> =
                    accepted.iter_mut().map(|connection| connection.receive(&mut [0; 64])).collect();
                received.iter().any(|it| matches!(it, Ok(Received::Message { len: 5, .. }))).then_some(())
            });
            assert_eq!(here.words(&holders), [&b"wheat"[..], &[7; 40], b"sesame"], "{connect:?}");
            assert!(holder.requests.lock().iter().all(|(request, _)| request.intent == intent));
            // It is made after the request was admitted.
            until("a queue pair for each request that is admitted", || {
                let requests = here.requests.lock();
                let admitted = requests.iter().filter(|(_, shown)| shown == b"sesame").count() as u64;
                (queue_pairs(&world.far) == admitted).then_some(())
            });
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn host_that_is_not_allowed_is_rejected_before_a_queue_pair_is_made() {
    let here = Arc::new(Words { is_closed: true, ..Words::default() });
    let mut world = listening(&here);
    let address = address().ip();
    for connect in CONNECTS {
        let near = dialling(connect, &Arc::new(Words::default()));
        let expected = NotAdmitted::Address { address };
        assert_eq!(turned_away(&mut world, &near, Intent::Read), (expected, expected), "{connect:?}");
    }
    assert_eq!(queue_pairs(&world.far), 0);
    assert!(here.requests.lock().is_empty(), "what it shows is not read");
}
