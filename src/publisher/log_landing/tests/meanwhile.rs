//! Records published while the node has the landing region.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::*;
use super::world::{Medium, Subscriber, Way, World};
use crate::fabric::{FabricError, Placement, RemoteWrite, Revocation};
use crate::publisher::CopyBudget;
use crate::repository::log::{LogReader, LogStart};

/// Writes in memory that call `event` after each batch, until it returns that it is finished.
struct Watched {
    way: Way,
    meanwhile: Box<dyn FnMut() -> bool + Send>,
    is_over: bool,
}

impl fmt::Debug for Watched {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Watched").field(&self.way).finish()
    }
}

impl RemoteWrite for Watched {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let posted = self.way.post(source, writes);
        if !self.is_over {
            self.is_over = (self.meanwhile)();
        }
        posted
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        self.way.in_flight()
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        self.way.fetch_word(offset)
    }

    fn placement(&self) -> Placement {
        self.way.placement()
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        self.way.revocation()
    }
}

/// Publishes this many records, one after each batch to a subscriber that has just joined and that only the node writes. Returns
/// how many of them the subscriber has after so many turns.
fn received_of(records: u64, turns: u64) -> u64 {
    let World { mut publisher, topic, .. } = World::new(1 << 16, 64);
    let geometry = topic.geometry.log().unwrap();
    let way = Way::new(Medium::Memory, geometry.region_len(), 1);
    let (target, closed) = (Arc::clone(&way.0.lock().target), Arc::default());
    publisher.publish(&super::world::payload(1, 64)).unwrap();
    let published = Arc::new(Mutex::new((publisher, 1)));
    let meanwhile = Arc::clone(&published);
    let watched = Watched {
        way: way.clone(),
        meanwhile: Box::new(move || {
            let (publisher, newest) = &mut *meanwhile.lock();
            *newest += 1;
            publisher.publish(&super::world::payload(*newest, 64)).unwrap();
            *newest > records
        }),
        is_over: false,
    };
    let start = LogStart::Earliest;
    assert!(topic.accept(Box::new(watched), &closed, start.options(), &CopyBudget::new()));
    for _ in 0..turns {
        let soon = topic.landings.tend(&CopyBudget::new()).again_ns.is_some();
        assert!(soon || published.lock().1 > records, "it is tended again soon");
    }
    let reader = LogReader::new(geometry, topic.epoch, topic.topic_id, start);
    let (received, lapped, damaged) = (0, 0, 0);
    let mut subscriber =
        Subscriber { way, closed, target, reader, received, lapped, damaged, before: 0, now_ns: 0 };
    subscriber.read(usize::MAX, 64);
    subscriber.received
}

/// The publisher finds no landing region, and does not return for it.
#[test]
fn records_published_while_the_node_has_the_landing_region_come_in_the_same_turn() {
    // The first batch when it joins, with a new start, frames and an end; the later records in the first turn.
    assert_eq!(received_of(1, 1), 2);
    assert_eq!(received_of(5, 1), 6);
}

/// The node must not follow one publisher without end.
#[test]
fn turn_of_the_node_ends_although_the_publisher_goes_on() {
    let received = received_of(400, 1);
    assert!((6..100).contains(&received), "{received}");
    assert_eq!(received_of(400, 400), 401);
}
