//! How long a driver waits.

use super::*;
use crate::control::ClientSession;
use crate::event::TracingSink;
use crate::node::builder::assemble;
use crate::node::served::tests::Scripted;
use crate::testkit::fabric::{Network, Reach};

/// A medium need not wake anybody who waits for room.
#[test]
fn messages_that_wait_for_room_are_looked_after_soon() {
    let network = Network::new(0, Reach::Fetched);
    let name = "node".parse().unwrap();
    let (fabric, clock) = (Arc::new(network.fabric(&name)), Arc::clone(network.clock()));
    let (core, mut driver) = assemble(None, fabric, clock, Arc::new(TracingSink)).unwrap();
    let mut peer = ClientSession::connect(0, core.identity().clone(), core.nonce().unwrap(), u64::MAX);
    let hello = peer.next_message().unwrap().bytes;
    assert!(driver.patience(&[]) > TEND_AGAIN);
    let served = Served::new(&core, Box::new(Scripted::full(hello)), 0, true).unwrap();
    driver.served.push(served);
    driver.turn();
    assert_eq!(driver.patience(&[]), TEND_AGAIN);
}
