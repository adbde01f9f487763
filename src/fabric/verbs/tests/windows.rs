//! Memory windows: each peer reads a region with a key of its own.

use super::hostile::{assert_refused, forge};
use super::*;

/// Whether the listening end has windows: all devices that these tests run on have them.
fn has_windows(world: &World) -> bool {
    let devices = world.far.devices.all();
    assert!(!devices.is_empty());
    devices.iter().all(|device| device.serving.has_windows())
}

/// A hostile subscriber whose access to one topic was revoked still reads the other, and loses its connection when it tries.
#[test]
#[ignore = "needs an RDMA device"]
fn withdrawn_region_is_unreadable_although_others_of_the_connection_go_on() {
    let mut world = World::new();
    assert!(has_windows(&world));
    let (mut reader, mut to_reader) = world.connect();
    let (kept, withdrawn) =
        (registered(&world.far, 4096, Exposure::Read), registered(&world.far, 4096, Exposure::Read));
    let mut others_read = open_read(&mut *to_reader, &mut *reader, &withdrawn);
    let (rogue, mut far) = world.rogue(false);
    let [kept_at, withdrawn_at] = [&kept, &withdrawn].map(|repository| {
        send(&mut *far, b"region", Some(repository));
        rogue.region()
    });
    forge(&rogue, withdrawn_at, |_| {}).unwrap();
    far.withdraw(&withdrawn);
    forge(&rogue, kept_at, |_| {}).unwrap();
    assert_refused(forge(&rogue, withdrawn_at, |_| {}));
    others_read.post(&[WORD_0]).unwrap();
    finish(&mut *others_read).unwrap();
}

/// The key is worth nothing on another connection, even one to which the same region was given.
#[test]
#[ignore = "needs an RDMA device"]
fn key_of_another_peer_opens_nothing() {
    let mut world = World::new();
    let repository = registered(&world.far, 4096, Exposure::Read);
    let (honest, mut to_honest) = world.rogue(false);
    let (rogue, mut far) = world.rogue(false);
    let [of_honest, of_rogue] = [(&honest, &mut to_honest), (&rogue, &mut far)].map(|(end, far)| {
        send(&mut **far, b"region", Some(&repository));
        end.region()
    });
    assert_ne!(of_honest.key, of_rogue.key);
    forge(&rogue, of_rogue, |_| {}).unwrap();
    assert_refused(forge(&rogue, of_honest, |_| {}));
    forge(&honest, of_honest, |_| {}).unwrap();
}

/// A region that is exposed again has another key, and the old one stays shut.
#[test]
#[ignore = "needs an RDMA device"]
fn region_is_exposed_again_with_another_key() {
    let mut world = World::new();
    let [repository, other] = [(); 2].map(|()| registered(&world.far, 4096, Exposure::Read));
    let (rogue, mut far) = world.rogue(false);
    send(&mut *far, b"other", Some(&other));
    rogue.region();
    let mut keys = Vec::new();
    for _ in 0..3 {
        send(&mut *far, b"region", Some(&repository));
        let at = rogue.region();
        forge(&rogue, at, |_| {}).unwrap();
        keys.push(at.key);
        far.withdraw(&repository);
    }
    assert!(keys.iter().all(|key| keys.iter().filter(|other| *other == key).count() == 1), "{keys:x?}");
    send(&mut *far, b"region", Some(&repository));
    let at = rogue.region();
    assert_refused(forge(&rogue, at, |region| region.key = keys[0]));
}

/// A window is bound when nothing is in flight. Until then the owner of the connection sleeps, instead of trying again and again.
#[test]
#[ignore = "needs an RDMA device"]
fn window_that_waits_for_other_work_wakes_its_owner_once_that_is_done() {
    let mut world = World::new();
    let (mut near, session, mut far) = world.known();
    let repository = registered(&world.near, 4096, Exposure::Read);
    send(&mut near, b"hello", None);
    receive(&mut *far);
    let endpoint = Arc::clone(session.endpoint().unwrap());
    assert!(endpoint.has_windows());
    until("the acknowledgement", || (!endpoint.has_frames_under_way()).then_some(()));
    let occupied = endpoint.occupy();
    let mut woken = 0;
    for _ in 0..5 {
        assert!(matches!(near.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        assert_eq!(near.send(b"region", Some(&repository)).unwrap(), Sent::Full);
        let begun_ns = SystemClock.monotonic_ns();
        wait(&[near.wait_handle()], &[], Duration::from_millis(20)).unwrap();
        woken += u32::from(SystemClock.monotonic_ns() - begun_ns < 20_000_000);
    }
    assert_eq!(woken, 0, "it is woken in vain");
    endpoint.vacate(occupied);
    assert!(wakes(near.wait_handle()));
    send(&mut near, b"region", Some(&repository));
    assert!(receive(&mut *far).1.is_some());
}

/// Where windows are switched off, as on a device without them, all peers have the key of the region.
#[test]
#[ignore = "needs an RDMA device"]
fn regions_are_read_without_windows_too() {
    let mut far = fabric();
    let wish = Wish { without_windows: true, ..Wish::from_environment(None).unwrap() };
    far.devices = Arc::new(Devices::new(wish));
    let mut world = World::with(far);
    assert!(!has_windows(&world));
    let repository = registered(&world.far, 4096, Exposure::Read);
    let mut ends = [world.rogue(false), world.rogue(false)];
    let at = ends.each_mut().map(|(rogue, far)| {
        send(&mut **far, b"region", Some(&repository));
        rogue.region()
    });
    assert_eq!(at[0].key, at[1].key);
    let [(first, to_first), (second, _to_second)] = &mut ends;
    forge(first, at[0], |_| {}).unwrap();
    to_first.withdraw(&repository);
    assert_refused(forge(first, at[0], |_| {}));
    forge(second, at[1], |_| {}).unwrap();
}
