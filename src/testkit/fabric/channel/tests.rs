use super::*;
use std::time::Duration;

use crate::fabric::{Acceptor, Address, Connection, Fabric, Intent};
use crate::id::NodeName;
use crate::testkit::fabric::{DatagramFaults, Reach, SimFabric};
use crate::testkit::random::each_seed;

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

/// A process with a channel, the connections of others to it, and their receivers.
struct Setup {
    network: Arc<Network>,
    near: Vec<Box<dyn Connection>>,
    far: Vec<Box<dyn Connection>>,
    _listener: Box<dyn Acceptor>,
    _fabrics: Vec<SimFabric>,
}

fn setup(seed: u64, count: usize) -> Setup {
    let network = Network::new(seed, Reach::Fetched);
    let listening = network.fabric(&name("far"));
    let mut listener = listening.listen(&name("far")).unwrap().remove(0);
    let mut fabrics = vec![listening];
    fabrics.extend((0..count).map(|number| network.fabric(&name(&format!("near-{number}")))));
    let dial =
        |fabric: &SimFabric| fabric.dial(&Address::shm(&name("far")), Intent::Read, Duration::ZERO).unwrap();
    let near = fabrics.iter().skip(1).map(dial).collect();
    let mut far = Vec::new();
    while far.len() < count {
        network.step();
        far.extend(listener.accept().unwrap());
    }
    Setup { network, near, far, _listener: listener, _fabrics: fabrics }
}

impl Setup {
    fn sender(&self) -> Arc<dyn ChannelSender> {
        let sender = self.far[0].datagrams().unwrap().channel_sender().unwrap().unwrap();
        settle(&self.network);
        sender
    }

    fn join(&self, number: usize, sender: &Arc<dyn ChannelSender>) -> Box<dyn ChannelReceiver> {
        let receiver = self.near[number].datagrams().unwrap().join_channel(sender.ticket()).unwrap();
        settle(&self.network);
        receiver
    }
}

fn settle(network: &Network) {
    while network.step() {}
}

/// The first words of all datagrams received.
fn take(receiver: &mut dyn ChannelReceiver) -> Vec<u64> {
    let mut buffer = [0; DATAGRAM_LEN_MAX];
    let mut taken = Vec::new();
    while let Some(datagram) = receiver.receive(&mut buffer).unwrap() {
        assert!(datagram.len >= 8);
        taken.push(u64::from_le_bytes(buffer[..8].try_into().unwrap()));
    }
    taken
}

/// Sends a datagram by unicast to a receiver at the other end.
fn send_to(far: &dyn Connection, receiver: &dyn ChannelReceiver, datagram: &[u8]) -> Sent {
    far.datagrams().unwrap().unicast_sender(receiver.return_ticket()).unwrap().send(datagram).unwrap()
}

fn send(sender: &dyn ChannelSender, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(sender.send(&number.to_le_bytes()).unwrap(), Sent::Done);
    }
}

#[test]
fn datagram_reaches_all_joined_receivers_only() {
    let setup = setup(1, 3);
    let sender = setup.sender();
    assert!(Arc::ptr_eq(&sender, &setup.far[1].datagrams().unwrap().channel_sender().unwrap().unwrap()));
    let mut receivers = [setup.join(0, &sender), setup.join(1, &sender)];
    let mut own = setup.far[2].datagrams().unwrap().join_channel(sender.ticket()).unwrap();
    settle(&setup.network);
    send(&*sender, 0..3);
    let mut late = setup.join(2, &sender);
    for receiver in &mut receivers {
        assert_eq!(take(&mut **receiver), [0, 1, 2]);
    }
    assert_eq!(take(&mut *own), [0, 1, 2]);
    assert_eq!(take(&mut *late), [0; 0]);
    let [first, mut second] = receivers;
    drop(first);
    send(&*sender, 3..4);
    settle(&setup.network);
    assert_eq!((take(&mut *second), take(&mut *late)), (vec![3], vec![3]));
}

#[test]
fn channel_is_ready_after_a_while() {
    let setup = setup(2, 1);
    let sender = setup.far[0].datagrams().unwrap().channel_sender().unwrap().unwrap();
    assert_eq!(sender.send(b"too soon").unwrap(), Sent::Full);
    settle(&setup.network);
    assert_eq!(sender.send(b"in time!").unwrap(), Sent::Done);
}

#[test]
fn unicast_reaches_one_receiver() {
    let setup = setup(3, 3);
    let sender = setup.sender();
    let [mut first, mut second] = [setup.join(0, &sender), setup.join(1, &sender)];
    assert_eq!(send_to(&*setup.far[0], &*first, &[1; 9]), Sent::Done);
    settle(&setup.network);
    let datagram = first.receive(&mut [0; 9]).unwrap();
    assert_eq!(datagram, Some(Datagram { len: 9, reach: DatagramReach::Unicast }));
    assert_eq!(second.receive(&mut [0; 9]).unwrap(), None);

    // From another channel.
    let mut own = setup.far[2].datagrams().unwrap().join_channel(sender.ticket()).unwrap();
    let other = setup.near[2].datagrams().unwrap().unicast_sender(own.return_ticket()).unwrap();
    settle(&setup.network);
    assert_eq!(other.send(&[1; 9]).unwrap(), Sent::Done);
    settle(&setup.network);
    assert_eq!((own.receive(&mut [0; 9]).unwrap(), own.passed_over()), (None, 1));
    let gone = setup.far[1].datagrams().unwrap().unicast_sender(second.return_ticket()).unwrap();
    drop(second);
    assert_eq!(gone.send(&[1; 9]).unwrap(), Sent::Done);
}

#[test]
fn overlong_datagrams_and_invalid_tickets_are_refused() {
    let setup = setup(4, 1);
    let sender = setup.sender();
    let mut receiver = setup.join(0, &sender);
    assert!(receiver.wait_handle().unwrap().is_none());
    let longest = vec![0; sender.datagram_len_max()];
    let error = sender.send(&[&*longest, &[0]].concat()).unwrap_err();
    assert!(matches!(error, FabricError::MessageTooLong { .. }), "{error}");
    assert_eq!(sender.send(&longest).unwrap(), Sent::Done);
    settle(&setup.network);
    assert_eq!(receiver.receive(&mut [0; 8]).unwrap(), None);
    assert_eq!(receiver.passed_over(), 1);
    for len in 0..20 {
        let tickets = [vec![0; len], [sender.ticket(), receiver.return_ticket()].concat()[..len].to_vec()];
        for ticket in tickets.iter().filter(|ticket| ***ticket != *sender.ticket()) {
            assert!(setup.near[0].datagrams().unwrap().join_channel(ticket).is_err(), "{ticket:?}");
            assert!(setup.far[0].datagrams().unwrap().unicast_sender(ticket).is_err(), "{ticket:?}");
        }
    }
    assert!(setup.near[0].datagrams().unwrap().join_channel(receiver.return_ticket()).is_err());
}

#[test]
fn receiver_that_never_polls_loses_the_oldest() {
    let setup = setup(5, 1);
    let sender = setup.sender();
    let mut receiver = setup.join(0, &sender);
    let len = limits::CHANNEL_RECEIVES as u64;
    send(&*sender, 0..len + 10);
    settle(&setup.network);
    assert_eq!(take(&mut *receiver), (10..len + 10).collect::<Vec<_>>());
}

#[test]
fn a_seed_gives_the_same_faults_again() {
    let all = DatagramFaults {
        lose_permille: 100,
        double_permille: 100,
        reorder_permille: 100,
        delay_ns_max: 50_000,
    };
    let run = |seed, faults| {
        let setup = setup(seed, 2);
        let sender = setup.sender();
        let mut receivers = [setup.join(0, &sender), setup.join(1, &sender)];
        setup.network.set_datagram_faults(faults);
        send(&*sender, 0..200);
        settle(&setup.network);
        receivers.each_mut().map(|receiver| take(&mut **receiver))
    };
    each_seed(6, |seed| {
        let [first, second] = run(seed, all);
        assert_eq!([first.clone(), second.clone()], run(seed, all));
        assert_ne!(first, second);

        let [lossy, _] = run(seed, DatagramFaults { lose_permille: 100, ..DatagramFaults::default() });
        assert!(lossy.is_sorted() && (120..200).contains(&lossy.len()), "{lossy:?}");
        let [doubled, _] = run(seed, DatagramFaults { double_permille: 100, ..DatagramFaults::default() });
        assert!(doubled.is_sorted() && doubled.len() > 200, "{doubled:?}");
        let [mut mixed, _] = run(seed, DatagramFaults { reorder_permille: 100, ..DatagramFaults::default() });
        assert!(!mixed.is_sorted(), "{mixed:?}");
        mixed.sort_unstable();
        assert_eq!(mixed, (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn multicast_and_unicast_fail_independently() {
    let setup = setup(6, 1);
    let sender = setup.sender();
    let mut receiver = setup.join(0, &sender);
    for (multicast, unicast, expected) in
        [(false, false, vec![1, 2]), (true, false, vec![2]), (false, true, vec![1]), (true, true, vec![])]
    {
        setup.network.cut_multicast(multicast);
        setup.network.cut_unicast(unicast);
        send(&*sender, 1..2);
        send_to(&*setup.far[0], &*receiver, &2_u64.to_le_bytes());
        settle(&setup.network);
        assert_eq!(take(&mut *receiver), expected);
    }
}

#[test]
fn paused_process_sends_and_receives_nothing_and_a_dead_one_never_again() {
    let setup = setup(7, 1);
    let sender = setup.sender();
    let mut receiver = setup.join(0, &sender);
    for paused in ["near-0", "far"] {
        send(&*sender, 1..3);
        setup.network.pause(&name(paused));
        settle(&setup.network);
        setup.network.clock().advance(1_000_000);
        assert_eq!(take(&mut *receiver), [0; 0]);
        setup.network.resume(&name(paused));
        assert_eq!(take(&mut *receiver), [1, 2]);
    }
    send(&*sender, 1..2);
    setup.network.kill(&name("far"));
    settle(&setup.network);
    assert_eq!(take(&mut *receiver), [1]);
    assert!(matches!(sender.send(b"too late"), Err(FabricError::Closed)));
    setup.network.kill(&name("near-0"));
    assert!(matches!(receiver.receive(&mut [0; 8]), Err(FabricError::Closed)));
    assert!(setup.near[0].datagrams().unwrap().join_channel(sender.ticket()).is_err());
}
