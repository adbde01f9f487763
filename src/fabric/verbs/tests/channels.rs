//! Channels of datagrams, on a device.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::leftovers::leaves_nothing;
use super::*;
use crate::fabric::verbs::channel::{VerbsChannelReceiver, VerbsChannelSender};
use crate::fabric::verbs::sys::{AsyncEvent, Concern, fail_all};
use crate::fabric::{ChannelReceiver, ChannelSender, DatagramReach, Datagrams, Group, UnicastSender};
use crate::limits;

/// Offsets of the queue pair number, and of the key, in the ticket of a channel.
const QUEUE_PAIR_AT: usize = 7;
const KEY_AT: usize = 11;

/// A connection, and the channel of the dialled end.
struct Stage {
    near: Box<dyn Connection>,
    far: Box<dyn Connection>,
    sender: Arc<dyn ChannelSender>,
    world: World,
}

fn datagrams(connection: &dyn Connection) -> &dyn Datagrams {
    connection.datagrams().unwrap()
}

impl Stage {
    fn new() -> Self {
        let mut world = World::new();
        let (near, far) = connected(&mut world);
        let sender = datagrams(&*far).channel_sender().unwrap().unwrap();
        Self { near, far, sender, world }
    }

    fn begin_to_join(&self) -> Box<dyn ChannelReceiver> {
        datagrams(&*self.near).join_channel(self.sender.ticket()).unwrap()
    }

    /// A joined receiver, with nothing to receive.
    fn join(&self) -> Box<dyn ChannelReceiver> {
        let mut receiver = self.begin_to_join();
        self.wait_until_joined(&mut *receiver);
        receiver
    }

    fn wait_until_joined(&self, receiver: &mut dyn ChannelReceiver) {
        until("a first datagram", || {
            let _ = self.sender.send(b"probe").unwrap();
            take(receiver)
        });
        quiet(receiver);
    }
}

fn connected(world: &mut World) -> (Box<dyn Connection>, Box<dyn Connection>) {
    let (mut near, mut far) = world.connect();
    super::send(&mut *near, b"hello", None);
    receive(&mut *far);
    (near, far)
}

fn own_address() -> Ipv4Addr {
    let IpAddr::V4(address) = address().ip() else { panic!("an address of IPv4") };
    address
}

fn take(receiver: &mut dyn ChannelReceiver) -> Option<(Vec<u8>, DatagramReach)> {
    let mut buffer = [0; 4096];
    let datagram = receiver.receive(&mut buffer).unwrap()?;
    Some((buffer[..datagram.len].to_vec(), datagram.reach))
}

fn next(receiver: &mut dyn ChannelReceiver) -> (Vec<u8>, DatagramReach) {
    until("a datagram", || take(receiver))
}

/// Drains it, until nothing has come for a while.
fn quiet(receiver: &mut dyn ChannelReceiver) {
    loop {
        while take(receiver).is_some() {}
        SystemClock.pause(Duration::from_millis(20));
        if take(receiver).is_none() {
            return;
        }
    }
}

fn send(sender: &dyn ChannelSender, datagram: &[u8]) {
    until("space for a datagram", || (sender.send(datagram).unwrap() == Sent::Done).then_some(()));
}

fn send_to(far: &dyn Connection, receiver: &dyn ChannelReceiver, datagram: &[u8]) {
    send_unicast(&*datagrams(far).unicast_sender(receiver.return_ticket()).unwrap(), datagram);
}

fn send_unicast(sender: &dyn UnicastSender, datagram: &[u8]) {
    until("space for a datagram", || (sender.send(datagram).unwrap() == Sent::Done).then_some(()));
}

fn multicast(datagram: &[u8]) -> (Vec<u8>, DatagramReach) {
    (datagram.to_vec(), DatagramReach::Multicast)
}

fn unicast(datagram: &[u8]) -> (Vec<u8>, DatagramReach) {
    (datagram.to_vec(), DatagramReach::Unicast)
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_datagram_reaches_all_members() {
    let stage = Stage::new();
    let mut receivers: Vec<_> = (0..4).map(|_| stage.join()).collect();
    // Including the node of the sender.
    let mut own = datagrams(&*stage.far).join_channel(stage.sender.ticket()).unwrap();
    stage.wait_until_joined(&mut *own);
    receivers.push(own);
    receivers.iter_mut().for_each(|receiver| quiet(&mut **receiver));
    for number in 0..300_u32 {
        send(&*stage.sender, &number.to_le_bytes());
        for receiver in &mut receivers {
            assert_eq!(next(&mut **receiver), multicast(&number.to_le_bytes()));
        }
    }
    for receiver in &mut receivers {
        assert_eq!((take(&mut **receiver), receiver.passed_over()), (None, 0));
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn late_joins_and_early_leaves_do_not_disturb_others() {
    let stage = Stage::new();
    let mut first = stage.join();
    send(&*stage.sender, b"one");
    assert_eq!(next(&mut *first), multicast(b"one"));
    let mut second = stage.join();
    quiet(&mut *first);
    send(&*stage.sender, b"two");
    assert_eq!([next(&mut *first), next(&mut *second)], [multicast(b"two"), multicast(b"two")]);
    drop(first);
    send(&*stage.sender, b"three");
    assert_eq!(next(&mut *second), multicast(b"three"));
    // Some leave before they have joined.
    (0..5).for_each(|_| drop(stage.begin_to_join()));
    send(&*stage.sender, b"four");
    assert_eq!(next(&mut *second), multicast(b"four"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_datagram_of_every_length_up_to_the_longest_arrives() {
    let stage = Stage::new();
    let mut receiver = stage.join();
    let max = stage.sender.datagram_len_max();
    assert!(max >= 1024, "{max}");
    let bytes: Vec<u8> = (0..=250).cycle().take(max).collect();
    for len in [0, 1, 7, 8, 64, 191, 192, 193, 1000, max - 1, max] {
        send(&*stage.sender, &bytes[..len]);
        assert_eq!(next(&mut *receiver), multicast(&bytes[..len]));
        send_to(&*stage.far, &*receiver, &bytes[..len]);
        assert_eq!(next(&mut *receiver), unicast(&bytes[..len]));
    }
    let too_long = vec![0; max + 1];
    let alone = datagrams(&*stage.far).unicast_sender(receiver.return_ticket()).unwrap();
    for refused in [stage.sender.send(&too_long), alone.send(&too_long)] {
        assert!(matches!(refused, Err(FabricError::MessageTooLong { .. })));
    }
    send(&*stage.sender, &bytes);
    let passed_over = receiver.passed_over();
    until("a full send queue", || {
        assert_eq!(receiver.receive(&mut [0; 8]).unwrap(), None);
        (receiver.passed_over() > passed_over).then_some(())
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn strangers_are_passed_over() {
    let stage = Stage::new();
    let mut receiver = stage.join();
    let join = |at: usize| {
        let mut ticket = stage.sender.ticket().to_vec();
        ticket[at] ^= 1;
        datagrams(&*stage.near).join_channel(&ticket).unwrap()
    };
    // These take another queue pair, or key, for the sender's.
    let (mut deaf, mut keyless) = (join(QUEUE_PAIR_AT), join(KEY_AT));
    until("something to be passed over", || {
        send(&*stage.sender, b"from a stranger");
        assert_eq!((take(&mut *deaf), take(&mut *keyless)), (None, None));
        (deaf.passed_over() > 0).then_some(())
    });
    send_to(&*stage.far, &*keyless, b"without its key");
    send_to(&*stage.far, &*receiver, b"with its key");
    while next(&mut *receiver) != unicast(b"with its key") {}
    quiet(&mut *keyless);
    assert_eq!((keyless.passed_over(), receiver.passed_over()), (0, 0));

    // Another channel of the same host has another key.
    let other = datagrams(&*stage.near).channel_sender().unwrap().unwrap();
    assert_ne!(other.ticket()[4..12], stage.sender.ticket()[4..12]);
    send_to(&*stage.near, &*receiver, b"from another channel");
    send_to(&*stage.far, &*receiver, b"the last");
    assert_eq!(next(&mut *receiver), unicast(b"the last"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn one_receiver_is_reached_by_unicast() {
    let stage = Stage::new();
    // At once: this needs no group.
    let mut receivers = [stage.begin_to_join(), stage.begin_to_join()];
    for (number, receiver) in (1..).zip(&mut receivers) {
        send_to(&*stage.far, &**receiver, &[number]);
        assert_eq!(next(&mut **receiver), unicast(&[number]));
    }
    receivers.iter_mut().for_each(|receiver| assert_eq!(take(&mut **receiver), None));
    let [first, mut second] = receivers;
    let gone = datagrams(&*stage.far).unicast_sender(first.return_ticket()).unwrap();
    drop(first);
    // Each sender looks for its way in the background, and sends nothing before that is found.
    send_unicast(&*gone, b"anybody?");
    send_to(&*stage.far, &*second, b"still here");
    assert_eq!(next(&mut *second), unicast(b"still here"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_receiver_that_sleeps_loses_some_and_goes_on() {
    const SENT: u32 = 2000;
    let stage = Stage::new();
    let mut receiver = stage.join();
    (0..SENT).for_each(|number| send(&*stage.sender, &number.to_le_bytes()));
    let mut got = Vec::new();
    while let Some((datagram, _)) = take(&mut *receiver) {
        got.push(u32::from_le_bytes(datagram.try_into().unwrap()));
    }
    assert!(got.is_sorted() && got.len() < SENT as usize, "{} came", got.len());
    assert!(got.len() >= limits::CHANNEL_RECEIVES - 16, "{} came", got.len());
    for round in 0..3_u32 {
        for number in 0..400_u32 {
            send(&*stage.sender, &[round.to_le_bytes(), number.to_le_bytes()].concat());
        }
        for number in 0..400_u32 {
            let expected = [round.to_le_bytes(), number.to_le_bytes()].concat();
            assert_eq!(next(&mut *receiver), multicast(&expected));
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_handle_wakes_for_datagrams() {
    const SENT: u32 = 500;
    let stage = Stage::new();
    let mut receiver = stage.begin_to_join();
    let (sender, go_on) = (Arc::clone(&stage.sender), AtomicU64::new(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while go_on.load(Ordering::Relaxed) == 1 {
                let _ = sender.send(b"first").unwrap();
                SystemClock.pause(Duration::from_millis(5));
            }
            for number in 0..SENT {
                send(&*sender, &number.to_le_bytes());
                if number % 50 == 0 {
                    SystemClock.pause(Duration::from_millis(5));
                }
            }
        });
        let mut last = None;
        while last != Some(SENT - 1) {
            while let Some((datagram, _)) = take(&mut *receiver) {
                go_on.store(0, Ordering::Relaxed);
                last = datagram.try_into().ok().map(u32::from_le_bytes).or(last);
            }
            if last != Some(SENT - 1) {
                assert!(wakes(receiver.wait_handle().unwrap().unwrap()), "no wake-up after {last:?}");
            }
        }
    });
    // A datagram that has already arrived wakes, too.
    send(&*stage.sender, b"before");
    SystemClock.pause(Duration::from_millis(20));
    assert!(wakes(receiver.wait_handle().unwrap().unwrap()));
    assert_eq!(next(&mut *receiver), multicast(b"before"));
    let handle = receiver.wait_handle().unwrap().unwrap();
    let begun_ns = SystemClock.monotonic_ns();
    wait(&[handle], &[], Duration::from_millis(50)).unwrap();
    assert!(SystemClock.monotonic_ns() - begun_ns >= 50_000_000, "woken for nothing");
}

#[test]
#[ignore = "needs an RDMA device"]
fn fifty_joins_leave_nothing() {
    let stage = Stage::new();
    let mut other_world = World::new();
    let (_other_near, other_far) = connected(&mut other_world);
    leaves_nothing(|| {
        for round in 0..25_u8 {
            let mut receiver = stage.join();
            drop(stage.begin_to_join());
            let sender = datagrams(&*other_far).channel_sender().unwrap().unwrap();
            if round % 2 == 0 {
                let _ = sender.send(&[round; 300]).unwrap();
            }
            send_to(&*stage.far, &*receiver, &[round]);
            assert_eq!(next(&mut *receiver), unicast(&[round]));
        }
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_member_beyond_the_limit_gets_an_error_and_unicast() {
    let stage = Stage::new();
    let mut receivers: Vec<_> = (0..56).map(|_| stage.join()).collect();
    let mut one_more = stage.begin_to_join();
    let error = until("a refusal", || one_more.receive(&mut [0; 64]).err());
    assert!(matches!(error, FabricError::Verbs(VerbsError::GroupFull { .. })), "{error}");
    assert!(error.to_string().contains("56 per host"), "{error}");
    assert_eq!(take(&mut *one_more), None);
    quiet(&mut *receivers[0]);
    send(&*stage.sender, b"all");
    send_to(&*stage.far, &*one_more, b"alone");
    assert_eq!(next(&mut *one_more), unicast(b"alone"));
    assert_eq!(next(&mut *receivers[0]), multicast(b"all"));
    receivers.truncate(55);
    drop(one_more);
    stage.join();
}

#[test]
#[ignore = "needs an RDMA device"]
fn garbage_is_no_ticket() {
    let stage = Stage::new();
    let receiver = stage.begin_to_join();
    let (channel, back) = (stage.sender.ticket().to_vec(), receiver.return_ticket().to_vec());
    let mut state = 7_u64;
    for _ in 0..500 {
        let mut garbage = [channel.as_slice(), &back].concat();
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (at, len) = ((state >> 33) as usize % garbage.len(), (state >> 45) as usize % 70);
        garbage[at] ^= state.to_le_bytes()[7];
        garbage.truncate(len);
        if garbage.len() != channel.len() {
            assert!(datagrams(&*stage.near).join_channel(&garbage).is_err());
        }
        assert!(datagrams(&*stage.far).unicast_sender(&garbage).is_err());
    }
    // Tickets must name the host of their connection.
    let mut elsewhere = channel.clone();
    elsewhere[27] ^= 0x40;
    let error = datagrams(&*stage.near).join_channel(&elsewhere).unwrap_err();
    assert!(error.to_string().contains("host other than the peer's"), "{error}");
    let mut elsewhere = back.clone();
    elsewhere[23] ^= 0x40;
    let error = datagrams(&*stage.far).unicast_sender(&elsewhere).unwrap_err();
    assert!(error.to_string().contains("host other than the peer's"), "{error}");
    assert!(datagrams(&*stage.near).join_channel(&back).is_err());
    assert!(datagrams(&*stage.far).unicast_sender(&channel).is_err());
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_process_has_one_channel_of_a_local_address() {
    let mut stage = Stage::new();
    let (_near, far) = connected(&mut stage.world);
    assert!(Arc::ptr_eq(&stage.sender, &datagrams(&*far).channel_sender().unwrap().unwrap()));
    let ticket = stage.sender.ticket().to_vec();
    drop(stage.sender);
    let sender = datagrams(&*far).channel_sender().unwrap().unwrap();
    assert_ne!(sender.ticket(), ticket);

    let group = Ipv4Addr::new(239, 255, 77, 1);
    let config = VerbsConfig { notice_group: Group::new(group).ok(), ..VerbsConfig::default() };
    let channels = VerbsFabric::new(config).unwrap().channels;
    let own = channels.sender(own_address()).unwrap().unwrap();
    assert!(own.ticket().ends_with(&group.octets()));
}

/// Sends until a datagram arrives; earlier ones may be lost.
fn recovers(sender: &VerbsChannelSender, receiver: &mut VerbsChannelReceiver) -> Vec<FabricError> {
    let mut errors = Vec::new();
    until("a datagram after a failure", || {
        errors.extend(sender.send(b"again").err());
        SystemClock.pause(Duration::from_millis(1));
        match receiver.receive(&mut [0; 64]) {
            Ok(datagram) => datagram,
            Err(error) => {
                errors.push(error);
                None
            }
        }
    });
    errors
}

#[test]
#[ignore = "needs an RDMA device"]
fn queue_pairs_that_fail_start_again() {
    let channels = VerbsFabric::new(VerbsConfig::default()).unwrap().channels;
    let own = own_address();
    let sender = channels.sender(own).unwrap().unwrap();
    let mut receiver = channels.join(sender.ticket(), (own, own)).unwrap();
    assert_eq!(recovers(&sender, &mut receiver).len(), 0);
    for _ in 0..3 {
        quiet(&mut receiver);
        receiver.break_down();
        assert_eq!(recovers(&sender, &mut receiver).len(), 0);
        quiet(&mut receiver);
        sender.break_down();
        let errors = recovers(&sender, &mut receiver);
        assert!(matches!(errors[..], [FabricError::Verbs(VerbsError::NotSent { .. })]), "{errors:?}");
    }
    // With all of its buffers.
    quiet(&mut receiver);
    (0..600_u32).for_each(|number| send(&*sender, &number.to_le_bytes()));
    let mut count = 0;
    while take(&mut receiver).is_some() {
        count += 1;
    }
    assert!((limits::CHANNEL_RECEIVES - 16..600).contains(&count), "{count}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_lost_group_is_reported_once_and_unicast_still_works() {
    let channels = VerbsFabric::new(VerbsConfig::default()).unwrap().channels;
    let own = own_address();
    let sender = channels.sender(own).unwrap().unwrap();
    let mut receiver = channels.join(sender.ticket(), (own, own)).unwrap();
    assert_eq!(recovers(&sender, &mut receiver).len(), 0);
    quiet(&mut receiver);
    sender.lose_group();
    let error = sender.send(b"lost").unwrap_err();
    assert!(matches!(error, FabricError::Verbs(VerbsError::NotJoined { .. })), "{error}");
    for _ in 0..200 {
        assert_eq!(sender.send(b"lost").unwrap(), Sent::Done);
    }
    let alone = channels.unicast(receiver.return_ticket(), (own, own)).unwrap();
    send_unicast(&alone, b"alone");
    assert_eq!(next(&mut receiver), unicast(b"alone"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_broken_sender_returns_errors_instead_of_full() {
    let channels = VerbsFabric::new(VerbsConfig::default()).unwrap().channels;
    let own = own_address();
    let sender = channels.sender(own).unwrap().unwrap();
    let mut receiver = channels.join(sender.ticket(), (own, own)).unwrap();
    assert_eq!(recovers(&sender, &mut receiver).len(), 0);
    let alone = channels.unicast(receiver.return_ticket(), (own, own)).unwrap();
    sender.break_for_good();
    for sent in (0..3).flat_map(|_| [sender.send(b"lost"), alone.send(b"lost")]) {
        assert!(matches!(sent, Err(FabricError::Verbs(VerbsError::NotSent { .. }))), "{sent:?}");
    }
}

/// Memory, for one, may be short when a queue pair is to be restarted.
#[test]
#[ignore = "needs an RDMA device"]
fn ends_that_could_not_be_restarted_are_restarted_later() {
    let channels = VerbsFabric::new(VerbsConfig::default()).unwrap().channels;
    let own = own_address();
    let sender = channels.sender(own).unwrap().unwrap();
    let mut receiver = channels.join(sender.ticket(), (own, own)).unwrap();
    assert_eq!(recovers(&sender, &mut receiver).len(), 0);
    let soon_ns = || SystemClock.monotonic_ns() + 100_000_000;
    quiet(&mut receiver);
    sender.break_until(soon_ns());
    let errors = recovers(&sender, &mut receiver);
    let is_broken = |error: &FabricError| matches!(error, FabricError::Verbs(VerbsError::NotSent { .. }));
    assert!(errors.iter().all(is_broken), "{errors:?}");
    quiet(&mut receiver);
    receiver.break_until(soon_ns());
    assert_eq!(recovers(&sender, &mut receiver).len(), 0);
}

/// The kernel asks the network for the receiver's hardware address for up to a second, in which the node's thread has other peers.
#[test]
#[ignore = "needs an RDMA device"]
fn receiver_whose_host_does_not_answer_delays_nobody() {
    let channels = VerbsFabric::new(VerbsConfig::default()).unwrap().channels;
    let own = own_address();
    let sender = channels.sender(own).unwrap().unwrap();
    let receiver = channels.join(sender.ticket(), (own, own)).unwrap();
    let mut ticket = receiver.return_ticket().to_vec();
    let silent = Ipv4Addr::from_bits(own.to_bits() ^ 0x40);
    ticket.splice(20..24, silent.octets());
    // A machine's interface asks nobody by itself.
    let ask = |switch| {
        let asks = Command::new("ip").args(["link", "set", "eth0", "arp", switch]).status().unwrap();
        assert!(asks.success());
    };
    ask("on");
    one_of_three(|| {
        let begun_ns = SystemClock.monotonic_ns();
        let to_silent = channels.unicast(&ticket, (own, silent)).unwrap();
        let sent = to_silent.send(b"lost").unwrap();
        let took_ns = SystemClock.monotonic_ns() - begun_ns;
        println!("{sent:?} after {:?}", Duration::from_nanos(took_ns));
        assert_eq!(sent, Sent::Full);
        below("making a way to it", took_ns, 300_000_000)
    });
    ask("off");
    let alone = channels.unicast(receiver.return_ticket(), (own, own)).unwrap();
    until("the way to another", || (alone.send(b"found").unwrap() == Sent::Done).then_some(()));
}

/// A fault of the device that concerns the end of a channel with this ticket.
#[expect(clippy::big_endian_bytes, reason = "tickets are in network byte order")]
fn fault_of(stage: &Stage, ticket: &[u8]) {
    let number = u32::from_be_bytes(ticket[4..8].try_into().unwrap());
    let context = Arc::clone(&stage.world.near.devices.all()[0].context);
    let event = AsyncEvent { name: "a fault", concern: Concern::QueuePair(number), is_fault: true };
    assert_eq!(fail_all(&context.users().concerned_by(&event), &event), 1);
}

fn is_readable(receiver: &mut dyn ChannelReceiver) -> bool {
    let handle = receiver.wait_handle().unwrap().unwrap();
    let mut polled = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}

fn is_fault(error: &FabricError) -> bool {
    matches!(error, FabricError::Verbs(VerbsError::DeviceFault { event: "a fault" }))
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_fault_ends_the_sender_of_a_channel_and_the_next_one_is_another() {
    let stage = Stage::new();
    let mut receiver = stage.join();
    let unicast = datagrams(&*stage.far).unicast_sender(receiver.return_ticket()).unwrap();
    fault_of(&stage, stage.sender.ticket());
    assert!(is_fault(&stage.sender.send(b"lost").unwrap_err()));
    assert!(is_fault(&unicast.send(b"lost").unwrap_err()));
    quiet(&mut *receiver);
    let next_sender = datagrams(&*stage.far).channel_sender().unwrap().unwrap();
    assert_ne!(next_sender.ticket(), stage.sender.ticket());
    let stage = Stage { sender: next_sender, ..stage };
    let mut receiver = stage.join();
    send(&*stage.sender, b"news");
    assert_eq!(next(&mut *receiver), multicast(b"news"));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_fault_ends_the_receiver_of_a_channel_and_wakes_it() {
    let stage = Stage::new();
    let (mut receiver, mut other) = (stage.join(), stage.join());
    quiet(&mut *receiver);
    let ticket = receiver.return_ticket().to_vec();
    assert!(!is_readable(&mut *receiver));
    fault_of(&stage, &ticket);
    assert!(is_readable(&mut *receiver));
    assert!(is_fault(&receiver.receive(&mut [0; 64]).unwrap_err()));
    assert!(!is_readable(&mut *receiver));
    assert!(receiver.receive(&mut [0; 64]).unwrap().is_none(), "it is reported once");
    quiet(&mut *other);
    send(&*stage.sender, b"news");
    assert_eq!(next(&mut *other), multicast(b"news"));
}
