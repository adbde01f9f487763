//! The effects of faults.

use std::sync::Arc;
use std::time::Duration;

use super::{Fault, FaultyFabric, Running, Script};
use crate::chain::ErrorChain;
use crate::fabric::{
    Address, ByteRange, Completion, Connection, Exposure, Fabric, FabricError, Intent, Received, Sent,
};
use crate::memory::{Protection, Region};
use crate::testkit::fabric::{Network, Reach};

const LEN: usize = 64;
const WHOLE: [ByteRange; 1] = [ByteRange { offset: 0, len: LEN }];

/// A faulty dialler's connection to a faultless peer that sends it a region.
struct Setup {
    network: Arc<Network>,
    near: Box<dyn Connection>,
    far: Box<dyn Connection>,
    region: Arc<Region>,
    script: Arc<Running>,
}

fn setup(fault: Fault, reach: Reach) -> Setup {
    let network = Network::new(1, reach);
    let script = Arc::new(Running::new(&Script::repeated(fault, 2, 2)));
    let (near, far) = ("near".parse().unwrap(), "far".parse().unwrap());
    let dialler = FaultyFabric::new(Box::new(network.fabric(&near)), &script);
    let listening = network.fabric(&far);
    let mut listener = listening.listen(&far).unwrap().remove(0);
    let near = dialler.dial(&Address::shm(&far), Intent::Read, Duration::ZERO).unwrap();
    while network.step() {}
    let mut far = listener.accept().unwrap().unwrap();
    let region = Arc::new(Region::allocate(LEN, Protection::PeersRead).unwrap());
    let registration = listening.register(&region, Exposure::Read).unwrap();
    assert_eq!(far.send(b"region", Some(&registration)).unwrap(), Sent::Done);
    while network.step() {}
    Setup { network, near, far, region, script }
}

/// The bytes of the mirror after a first read of ones and a second, faulty one of twos.
fn second_read(fault: Fault) -> Vec<u8> {
    let mut setup = setup(fault, Reach::Fetched);
    let Received::Message { offer: Some(offer), .. } = setup.near.receive(&mut [0; 8]).unwrap() else {
        panic!("the region was sent");
    };
    let mut read = offer.open_read(LEN).unwrap();
    for round in [1, 2] {
        setup.region.copy_in(0, &[u64::from_le_bytes([round; 8]); LEN / 8]);
        assert_eq!(read.post(&WHOLE).unwrap(), Completion::Pending);
        while read.poll().unwrap() == Completion::Pending {}
    }
    assert_eq!(setup.script.happened().len(), 1);
    let mut words = [0; LEN / 8];
    read.mirror().copy_out(0, &mut words);
    bytemuck::cast_slice(&words).to_vec()
}

#[test]
fn fetched_bytes_are_torn_replayed_or_flipped_exactly() {
    for at in 0..=LEN {
        let bytes = second_read(Fault::TearRead { at });
        assert_eq!(bytes, [vec![2; at], vec![1; LEN - at]].concat());
    }
    assert_eq!(second_read(Fault::ReplayOld), [1; LEN]);
    let mut expected = [2; LEN];
    expected[8 * 3 + 1] ^= 0x10;
    assert_eq!(second_read(Fault::FlipBit { word: 3 + 8, bit: 12 }), expected);
}

#[test]
fn a_lost_message_takes_its_connection_along() {
    let mut setup = setup(Fault::DropMessage, Reach::Mapped);
    assert_eq!(setup.near.send(b"first", None).unwrap(), Sent::Done);
    assert_eq!(setup.near.send(b"lost", None).unwrap(), Sent::Done);
    assert!(matches!(setup.near.send(b"third", None), Err(FabricError::Closed)));
    while setup.network.step() {}
    assert!(matches!(setup.far.receive(&mut [0; 8]).unwrap(), Received::Message { len: 5, .. }));
    assert!(matches!(setup.far.receive(&mut [0; 8]).unwrap(), Received::Closed));
}

#[test]
fn a_full_queue_takes_messages_again() {
    let mut setup = setup(Fault::FullQueue { sends: 2 }, Reach::Mapped);
    let outcomes: Vec<Sent> = (0..4).map(|_| setup.near.send(b"message", None).unwrap()).collect();
    assert_eq!(outcomes, [Sent::Done, Sent::Full, Sent::Full, Sent::Done]);
}

#[test]
fn a_failed_read_ends_its_connection() {
    let mut setup = setup(Fault::FailRead, Reach::Mapped);
    let Received::Message { offer: Some(offer), .. } = setup.near.receive(&mut [0; 8]).unwrap() else {
        panic!("the region was sent");
    };
    let mut read = offer.open_read(LEN).unwrap();
    assert_eq!(read.post(&WHOLE).unwrap(), Completion::Done);
    let error = read.post(&WHOLE).unwrap_err();
    assert_eq!(ErrorChain(&error).to_string(), "cannot read the peer's memory: the script of faults says so");
    assert!(matches!(read.post(&WHOLE), Err(FabricError::Closed)));
    assert!(matches!(setup.near.receive(&mut [0; 8]).unwrap(), Received::Closed));
}

#[test]
fn mixed_scripts_follow_from_their_seed() {
    assert_eq!(Script::mixed(5, 10, 100), Script::mixed(5, 10, 100));
    assert_ne!(Script::mixed(5, 10, 100), Script::mixed(6, 10, 100));
}
