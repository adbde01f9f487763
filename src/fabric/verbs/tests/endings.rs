//! Endpoints that fail before they are used, or in the middle of a batch.

use super::*;
use crate::fabric::verbs::sys::QueuePair;

/// The removal notifies what uses the device: what is made meanwhile, too.
#[test]
#[ignore = "needs an RDMA device"]
fn endpoint_that_is_made_while_its_device_is_removed_has_failed() {
    let mut world = World::new();
    let _opened = world.connect();
    let device = Arc::clone(&world.near.devices.all()[0]);
    let domain = device.domain_for(true).unwrap();
    device.context.pretend(true);
    let make = |plan: &sys::QueuePairPlan<'_>| QueuePair::create(&domain, plan);
    let made = Endpoint::create(&device, &domain, QueuePairKind::Rc, make);
    let failure = made.as_ref().map(|endpoint| endpoint.failure());
    device.context.pretend(false);
    assert_eq!(failure.unwrap(), Some(Failure::Removed));
}
