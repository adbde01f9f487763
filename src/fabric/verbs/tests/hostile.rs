//! Peers that break the rules, or are not nodes.

use super::*;
use crate::fabric::verbs::greeting;
use crate::fabric::verbs::sys::{
    CmEvent, CmEventKind, CmId, ConnectParameters, EventChannel, PortSpace, QueuePairPlan,
};

/// Accesses the end of a region described by a peer, after changing the description.
pub(super) fn forge(
    rogue: &Rogue,
    real: Descriptor,
    change: impl FnOnce(&mut Descriptor),
) -> Result<(), FabricError> {
    let mut forged = real;
    change(&mut forged);
    let (exposure, len) = (forged.exposure, usize::try_from(forged.len).unwrap());
    let offer = Box::new(VerbsOffer::new(Arc::clone(&rogue.endpoint), forged));
    let last = ByteRange { offset: len - 8, len: 8 };
    if exposure == Exposure::Read {
        let mut read = offer.open_read(len).unwrap();
        read.post(&[last]).unwrap();
        return finish(&mut *read);
    }
    let mut write = offer.open_write(len).unwrap();
    let source = registered(&fabric(), len, Exposure::Read);
    write.post(&source, &[Write::Range(last)]).unwrap();
    finish_writes(&mut *write)
}

/// Forgeries of a description.
const CHANGES: [fn(&mut Descriptor); 4] = [
    |region| region.len += 8,
    |region| region.address -= 4096,
    |region| region.address += 1 << 21,
    |region| region.key ^= 1,
];

/// Forgeries of a read-only one.
const WRITTEN: fn(&mut Descriptor) = |region| region.exposure = Exposure::Write;

#[track_caller]
pub(super) fn assert_refused(outcome: Result<(), FabricError>) {
    let refused = matches!(&outcome, Err(FabricError::Verbs(VerbsError::RemoteAccess)));
    assert!(refused, "{outcome:?}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_reader_reaches_only_regions_exposed_to_it() {
    let mut world = World::new();
    let (mut reader, mut to_reader) = world.connect();
    let repository = registered(&world.far, 4096, Exposure::Read);
    let mut read = open_read(&mut *to_reader, &mut *reader, &repository);
    for change in CHANGES.into_iter().chain([WRITTEN]) {
        let (rogue, mut far) = world.rogue(false);
        send(&mut *far, b"region", Some(&repository));
        let real = rogue.region();
        forge(&rogue, real, |_| {}).unwrap();
        assert_refused(forge(&rogue, real, change));
    }
    let (rogue, mut far) = world.rogue(false);
    send(&mut *far, b"region", Some(&repository));
    let real = rogue.region();
    let (stranger, _far) = world.rogue(false);
    assert_refused(forge(&stranger, real, |_| {}));
    // Nor does a peer whose access was revoked, like a subscriber that has detached.
    let (rogue, mut far) = world.rogue(false);
    send(&mut *far, b"region", Some(&repository));
    let real = rogue.region();
    forge(&rogue, real, |_| {}).unwrap();
    far.withdraw(&repository);
    assert_refused(forge(&rogue, real, |_| {}));
    // Once it is withdrawn, the peer it was exposed to cannot reach it either.
    let (rogue, mut far) = world.rogue(false);
    let withdrawn = registered(&world.far, 4096, Exposure::Read);
    send(&mut *far, b"region", Some(&withdrawn));
    let real = rogue.region();
    drop(withdrawn);
    assert_refused(forge(&rogue, real, |_| {}));
    read.post(&[WORD_0]).unwrap();
    finish(&mut *read).unwrap();
}

/// Both regions were exposed to the same peer: the key of one does not open the other.
#[test]
#[ignore = "needs an RDMA device"]
fn a_key_reaches_no_other_region_that_was_given_too() {
    let mut world = World::new();
    for (key, address) in [(0, 1), (1, 0)] {
        let (rogue, mut far) = world.rogue(false);
        let repositories = [(); 2].map(|()| registered(&world.far, 4096, Exposure::Read));
        let given = repositories.each_ref().map(|repository| {
            send(&mut *far, b"region", Some(repository));
            let real = rogue.region();
            forge(&rogue, real, |_| {}).unwrap();
            real
        });
        assert_refused(forge(&rogue, given[key], |region| region.address = given[address].address));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_writer_reaches_only_regions_exposed_to_it() {
    let (near, devices, at) = (fabric(), Devices::new(Wish::default()), address());
    let reception = manager::CmListener::open(&at, &devices).unwrap();
    let at = Address::rdma(at);
    let publisher = || {
        let mut connection = near.dial(&at, Intent::Read, Duration::ZERO).unwrap();
        let request = until("a request", || reception.next().unwrap());
        let accepted = ManagedLink::accept(request, &devices, SystemClock.monotonic_ns()).unwrap();
        let (mut link, endpoint) = accepted.unwrap();
        until("a connection", || {
            let change = link.next(&devices, SystemClock.monotonic_ns()).unwrap();
            matches!(change, Some(LinkEvent::Established)).then_some(())
        });
        let landing = registered(&near, 4096, Exposure::Write);
        send(&mut *connection, b"landing", Some(&landing));
        let rogue = Rogue { _link: Box::new(link), endpoint };
        let real = rogue.region();
        (connection, landing, rogue, real)
    };
    let (_honest, landing, honest, exposed) = publisher();
    for change in CHANGES {
        let (_connection, _landing, rogue, real) = publisher();
        forge(&rogue, real, |_| {}).unwrap();
        assert_refused(forge(&rogue, real, change));
        let (_connection, _landing, rogue, _) = publisher();
        assert_refused(forge(&rogue, exposed, |_| {}));
    }
    assert!((0..4096).step_by(8).all(|offset| landing.region().load(offset) == 0));
    forge(&honest, exposed, |_| {}).unwrap();
}

/// Publishers that have dialled a node share its device only.
#[test]
#[ignore = "needs an RDMA device"]
fn a_dialling_writer_reaches_only_regions_exposed_to_it() {
    let mut world = World::new();
    let mut publisher = |writes| {
        let (rogue, mut far) = world.rogue(writes);
        let landing = Arc::new(registered(&world.far, 4096, Exposure::Write));
        let prepared = far.prepare(&landing);
        assert_eq!(prepared.is_ok(), writes, "{:?}", prepared.as_ref().err());
        if !writes {
            assert!(matches!(far.send(b"landing", Some(&landing)), Err(FabricError::Access { .. })));
            return (rogue, far, landing, None);
        }
        send(&mut *far, b"landing", Some(&landing));
        let real = rogue.region();
        (rogue, far, landing, Some(real))
    };
    let (honest, _honest_far, landing, exposed) = publisher(true);
    let exposed = exposed.unwrap();
    for change in CHANGES {
        let (rogue, _far, _landing, real) = publisher(true);
        forge(&rogue, real.unwrap(), |_| {}).unwrap();
        assert_refused(forge(&rogue, real.unwrap(), change));
        let (rogue, _far, _landing, _) = publisher(true);
        assert_refused(forge(&rogue, exposed, |_| {}));
    }
    // A peer that claims to read only shares a domain with others, and gets no write access.
    let (liar, _far, _landing, _) = publisher(false);
    assert_refused(forge(&liar, exposed, |_| {}));
    assert!((0..4096).step_by(8).all(|offset| landing.region().load(offset) == 0));
    forge(&honest, exposed, |_| {}).unwrap();
}

/// A publisher can read the landing region exposed to it, and no other.
#[test]
#[ignore = "needs an RDMA device"]
fn a_writer_reads_only_regions_exposed_to_it() {
    let mut world = World::new();
    let mut publisher = || {
        let (rogue, mut far) = world.rogue(true);
        let landing = registered(&world.far, 4096, Exposure::Write);
        send(&mut *far, b"landing", Some(&landing));
        let exposed = rogue.region();
        (rogue, far, landing, exposed)
    };
    let read = |region: &mut Descriptor| region.exposure = Exposure::Read;
    let (_other, _other_far, _kept, lent_to_other) = publisher();
    let (rogue, _far, _landing, exposed) = publisher();
    forge(&rogue, exposed, |_| {}).unwrap();
    forge(&rogue, exposed, read).unwrap();
    assert_refused(forge(&rogue, lent_to_other, read));
    let (rogue, mut far, landing, exposed) = publisher();
    far.withdraw(&landing);
    assert_refused(forge(&rogue, exposed, read));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_sends_no_frames_loses_its_session() {
    let mut world = World::new();
    let noise = vec![0xa5; 4096];
    let credits = [[0, 1], [1, 0]].map(|[wakes, credits]| [wakes, credits, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    for frame in [&b""[..], b"x", &noise, &credits[0], &credits[1]] {
        let (rogue, mut far) = world.rogue(false);
        rogue.endpoint.send(frame).unwrap();
        let error = end(&mut *far).unwrap_err();
        assert!(matches!(error, FabricError::Verbs(VerbsError::Malformed { .. })), "{error}");
        assert!(matches!(far.send(b"anybody?", None), Err(FabricError::Closed)));
        end(&mut *far).unwrap();
    }
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

/// Endless fragments, ignoring credits.
#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_floods_harms_only_itself() {
    let mut world = World::new();
    let mut honest = world.connect();
    let (rogue, mut far) = world.rogue(false);
    let fragment = [&[0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0], [7; 100].as_slice()].concat();
    let mut sent = 0;
    let error = until("the end of a flood", || {
        if rogue.endpoint.takes_frame() {
            let _ = rogue.endpoint.send(&fragment);
            sent += 1;
        }
        send(&mut *honest.0, b"meanwhile", None);
        assert_eq!(receive(&mut *honest.1).0, b"meanwhile");
        rogue.endpoint.failure()
    });
    assert!(sent >= 10, "{sent} frames until {error:?}");
    assert!(end(&mut *far).is_err(), "fragments that do not follow each other");
    send(&mut *honest.1, b"and afterwards", None);
    assert_eq!(receive(&mut *honest.0).0, b"and afterwards");
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

/// A connection of a program that is not a node, as far as it gets.
fn connect_with(at: &Address, devices: &Devices, data: &[u8], mut also: impl FnMut()) -> CmEvent {
    let channel = EventChannel::create().unwrap();
    let id = CmId::create(&channel, PortSpace::Connections).unwrap();
    id.resolve_address(None, &manager::resolve(at).unwrap(), 2000).unwrap();
    let mut endpoint = None;
    until("the end of a connection", || {
        also();
        let event = channel.next().unwrap()?;
        match event.kind {
            CmEventKind::AddressResolved => {
                let device = devices.open(&id.context().unwrap().unwrap()).unwrap();
                let make = |plan: &QueuePairPlan<'_>| id.create_queue_pair(&device.serving, plan);
                endpoint = Some(Endpoint::create(&device, &device.serving, QueuePairKind::Rc, make).unwrap());
                id.resolve_route(2000).unwrap();
            }
            CmEventKind::RouteResolved => id.connect(&parameters(data)).unwrap(),
            _ => return Some(event),
        }
        None
    })
}

fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 6,
        rnr_retry_count: 6,
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_is_not_a_node_is_rejected_with_the_reason() {
    let mut world = World::new();
    let mut other_version = [0; 13];
    other_version[..5].copy_from_slice(b"FBC1\x02");
    for (data, reason) in [(&b""[..], "a node"), (b"GET / HTTP/1.1", "a node"), (&other_version, "version")] {
        let listener = &mut world.listener;
        let accept = || assert!(listener.accept().unwrap().is_none(), "it was accepted");
        let event = connect_with(&world.at, &world.near.devices, data, accept);
        assert_eq!((event.kind, event.status), (CmEventKind::Rejected, 28));
        let told = greeting::Rejection::parse(&event.private_data).unwrap();
        let greeting::Rejected::Why(told) = told else { panic!("{told:?}") };
        assert!(told.contains(reason), "{told}");
    }
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_answer_that_is_not_a_node_s_is_an_error() {
    let (near, devices, at) = (fabric(), Devices::new(Wish::default()), address());
    let reception = manager::CmListener::open(&at, &devices).unwrap();
    let at = Address::rdma(at);
    for data in [&b""[..], b"HTTP/1.1 400 Bad Request", &[0; 196]] {
        let mut connection = near.dial(&at, Intent::Read, Duration::ZERO).unwrap();
        let request = until("a request", || reception.next().unwrap());
        let id = request.new_id.unwrap();
        let device = devices.open(&id.context().unwrap().unwrap()).unwrap();
        let make = |plan: &QueuePairPlan<'_>| id.create_queue_pair(&device.serving, plan);
        let _endpoint = Endpoint::create(&device, &device.serving, QueuePairKind::Rc, make).unwrap();
        id.accept(&parameters(data)).unwrap();
        let error = end(&mut *connection).unwrap_err();
        assert!(matches!(error, FabricError::Verbs(VerbsError::NotANode)), "{error}");
    }
    // A peer that rejects without a reason has exited, as far as this end knows.
    let mut connection = near.dial(&at, Intent::Read, Duration::ZERO).unwrap();
    drop(until("a request", || reception.next().unwrap()));
    end(&mut *connection).unwrap();
}
