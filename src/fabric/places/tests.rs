use super::*;

const S: u64 = 1_000_000_000;

fn places(total: usize, per_peer: usize) -> Arc<Places> {
    Places::new(PlaceLimits { total, per_peer })
}

fn process(user: u32, process: u32) -> PeerId {
    PeerId::Process { user, process }
}

fn host(number: u8) -> PeerId {
    PeerId::Host([10, 0, 0, number].into())
}

/// Takes as many places as the peer is given.
fn take_all(places: &Arc<Places>, peer: PeerId) -> (Vec<Place>, NoPlace) {
    let mut taken = Vec::new();
    loop {
        match places.take(peer, 0, 0) {
            Ok(place) => taken.push(place),
            Err(refused) => return (taken, refused.why),
        }
    }
}

#[test]
fn peer_has_at_most_its_share_and_gets_it_back() {
    let places = places(1024, 256);
    let (mut taken, why) = take_all(&places, host(1));
    assert_eq!((taken.len(), why), (256, NoPlace::Host { max: 256 }));
    taken.truncate(255);
    let again = places.take(host(1), 0, 0).unwrap();
    assert_eq!(again.peer(), host(1));
    drop((taken, again));
    assert_eq!(take_all(&places, host(1)).0.len(), 256);
    assert_eq!(places.peers.lock().taken, 0);
}

/// It takes ten hosts and more to fill a node, not four.
#[test]
fn greedy_peers_leave_each_other_half_of_what_is_left() {
    let places = places(1024, 256);
    let shares = [256, 256, 256, 128, 64, 32, 16, 8, 4, 2, 1];
    let mut held = Vec::new();
    for (share, number) in shares.into_iter().zip(0..) {
        let (taken, why) = take_all(&places, host(number));
        assert_eq!(taken.len(), share);
        let expected = if share == 256 { NoPlace::Host { max: 256 } } else { NoPlace::Rdma { max: 1024 } };
        assert_eq!(why, expected);
        held.push(taken);
    }
    let last = places.take(host(200), 0, 0).unwrap();
    assert!(places.take(host(201), 0, 0).is_err());
    // What one of them leaves is for the others.
    drop((held.swap_remove(0), last));
    assert_eq!(take_all(&places, host(202)).0.len(), 128);
}

#[test]
fn processes_of_one_user_leave_places_to_other_users() {
    let places = places(64, 16);
    let held: Vec<_> = (0..100).filter_map(|number| places.take(process(1000, number), 0, 0).ok()).collect();
    assert_eq!(held.len(), 60);
    let refused = places.take(process(1000, 200), 0, 0).unwrap_err();
    assert_eq!(refused, TurnedAway { why: NoPlace::Shm { max: 64 }, is_hasty: false });
    assert!(places.take(process(0, 1), 0, 0).is_ok());
    drop(held);
    assert!(places.peers.lock().by_user.is_empty());
}

#[test]
fn peer_waits_once_it_has_spent_what_it_may_and_no_other_does() {
    let places = places(8, 4);
    let (first, second) = (places.take(host(1), 0, 0).unwrap(), places.take(host(1), 0, 0).unwrap());
    let other = places.take(host(2), 0, 0).unwrap();
    first.spend(limits::UNITS_AT_ONCE, 0);
    assert_eq!(first.waits_until(0), None);
    second.spend(limits::UNITS_PER_S / 2, 0);
    // Half a second's worth too much, whichever of its sessions asks.
    for place in [&first, &second] {
        let until_ns = place.waits_until(0).unwrap();
        assert!(until_ns.abs_diff(S / 2) < S / 100, "{until_ns}");
        assert_eq!(place.waits_until(until_ns), None);
    }
    assert_eq!(other.waits_until(0), None);
    // A debt has its bound.
    first.spend(u64::MAX, 0);
    assert!(first.waits_until(0).unwrap() <= 2 * S);
}

#[test]
fn peer_that_comes_again_has_spent_what_it_had_spent() {
    let (places, peer) = (places(8, 2), process(1, 1));
    drop(places.take(peer, 2 * limits::UNITS_AT_ONCE, 0).unwrap());
    assert!(places.take(peer, 0, 0).unwrap().waits_until(0).is_some());
    let held = [places.take(peer, 0, 0).unwrap(), places.take(peer, 0, 0).unwrap()];
    assert!(places.take(peer, 0, 0).unwrap_err().is_hasty);
    assert!(!places.take(peer, 0, 2 * S).unwrap_err().is_hasty);
    drop(held);
}

#[test]
fn host_that_dials_in_a_loop_has_to_wait_before_a_queue_pair_is_made() {
    let places = places(8, 4);
    let dial = |now_ns| places.take(host(1), limits::UNITS_AT_ONCE / 4, now_ns).map(drop);
    (0..5).for_each(|_| dial(0).unwrap());
    assert_eq!(dial(0), Err(TurnedAway { why: NoPlace::Haste, is_hasty: true }));
    assert!(places.take(host(2), 0, 0).is_ok());
    dial(2 * S).unwrap();
}

#[test]
fn peers_that_are_gone_are_forgotten() {
    let places = places(8, 2);
    for number in 0..10_000_u32 {
        let now_ns = u64::from(number) * S / 100;
        let place = places.take(process(1, number), limits::DIAL_UNITS, now_ns);
        drop(place.unwrap());
        assert!(places.peers.lock().by_peer.len() < 4 * PEERS_KEPT);
    }
}

#[test]
fn refusals_name_the_limit_and_what_raises_it() {
    for (why, option) in [
        (NoPlace::Process { max: 77 }, "PeerLimits::shm_sessions_per_process"),
        (NoPlace::Host { max: 77 }, "PeerLimits::rdma_sessions_per_host"),
        (NoPlace::Shm { max: 77 }, "PeerLimits::shm_sessions "),
        (NoPlace::Rdma { max: 77 }, "PeerLimits::rdma_sessions "),
    ] {
        let text = why.to_string();
        assert!(
            text.contains("77") && text.contains(option) && text.len() < limits::REASON_LEN_MAX,
            "{text}"
        );
    }
}
