//! Endpoints that fail before they are used, or in the middle of a batch.

use super::*;
use crate::fabric::verbs::sys::{CHAIN_LEN_MAX, Operation, QueuePair, Remote};

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

/// The device refuses the second half: nothing completes such a batch, so nobody waits for that.
#[test]
#[ignore = "needs an RDMA device"]
fn batch_that_was_posted_in_part_is_not_waited_for() {
    let mut world = World::new();
    let (rogue, mut far) = world.rogue(true);
    let landing = registered(&world.far, 4096, Exposure::Write);
    let source = registered(&world.near, 4096, Exposure::Read);
    send(&mut *far, b"region", Some(&landing));
    let real = rogue.region();
    let entry = source.entries::<VerbsRegistered>().next().unwrap();
    let local = entry.local(&rogue.endpoint).unwrap();
    let remote = Remote { address: real.address, key: real.key };
    let (fits, too_long) = ([1; 8], [1; 4096]);
    let write = |bytes| Operation::WriteInline { bytes, remote };
    let operations = (0..CHAIN_LEN_MAX).map(|_| write(&fits)).chain([write(&too_long)]);
    let posted = rogue.endpoint.post(&Arc::default(), &local, operations);
    assert!(matches!(posted, Err(FabricError::Verbs(VerbsError::Call { .. }))), "{posted:?}");
    assert_eq!(rogue.endpoint.failure(), Some(Failure::PartlyPosted));
    assert!(!rogue.endpoint.progress().is_asking);
    let context = Arc::clone(rogue.endpoint.domain.context());
    let kept = context.keeps_work();
    drop(rogue);
    assert_eq!(context.keeps_work(), kept, "no other endpoint of the device waits less for that");
}
