//! What the conformance suites cannot check, on a device: leftovers, hostile peers, full queues, wake-ups.
//! Run them one at a time in a machine of `tools/soft-roce`.

mod channels;
mod endings;
mod faults;
mod hostile;
mod leftovers;
mod requests;
mod strangers;
mod traffic;
mod wakes;
mod windows;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::endpoint::{Arrival, Endpoint};
use super::link::LinkEvent;
use super::message::{Descriptor, Frame};
use super::one_sided::VerbsOffer;
use super::*;
use crate::fabric::{ByteRange, Completion, Offer, Received, RemoteRead, RemoteWrite, Sent, Write, wait};
use crate::limits;
use crate::memory::Protection;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::testkit::attempts::{below, one_of_three};

/// How long anything may take in emulation.
const TIMEOUT_NS: u64 = 30_000_000_000;

fn address() -> SocketAddr {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let ip = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let port = 19_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 1000;
    SocketAddr::new(ip.parse().unwrap(), u16::try_from(port).unwrap())
}

fn fabric() -> VerbsFabric {
    VerbsFabric::new(VerbsConfig::default()).unwrap()
}

/// Polls until there is a result.
#[track_caller]
fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun_ns = SystemClock.monotonic_ns();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(SystemClock.monotonic_ns() - begun_ns < TIMEOUT_NS, "timed out waiting for {what}");
        SystemClock.pause(Duration::from_micros(100));
    }
}

/// A listening node, and a dialling one.
struct World {
    near: VerbsFabric,
    far: VerbsFabric,
    listener: Box<dyn Acceptor>,
    at: Address,
}

impl World {
    fn new() -> Self {
        Self::with(fabric())
    }

    /// With this far end, which listens.
    fn with(far: VerbsFabric) -> Self {
        let (near, at) = (fabric(), address());
        let listener = far.listen_at(&at).unwrap();
        Self { near, far, listener, at: Address::rdma(at) }
    }

    /// Both ends of one more connection.
    fn connect(&mut self) -> (Box<dyn Connection>, Box<dyn Connection>) {
        let (near, far) = (self.near.dial(&self.at, Intent::Read, Duration::ZERO).unwrap(), self.accept());
        assert!(!near.capabilities().is_dialled_to_write && !far.capabilities().is_dialled_to_write);
        (near, far)
    }

    fn accept(&mut self) -> Box<dyn Connection> {
        until("a connection", || self.listener.accept().unwrap())
    }

    /// Both ends of one more connection, dialled to write.
    fn connect_to_write(&mut self) -> (Box<dyn Connection>, Box<dyn Connection>) {
        let (near, far) = (self.near.dial(&self.at, Intent::Write, Duration::ZERO).unwrap(), self.accept());
        assert!(!near.capabilities().is_dialled_to_write && far.capabilities().is_dialled_to_write);
        (near, far)
    }

    /// A misbehaving peer, which dials to read or to write.
    fn rogue(&mut self, writes: bool) -> (Rogue, Box<dyn Connection>) {
        // Its deadline begins later: it dials once, and the machine may do other work.
        let now_ns = SystemClock.monotonic_ns() + 30_000_000_000;
        let destination = Destination::resolve(&self.at).unwrap();
        let mut link = ManagedLink::dial(&destination, writes, &self.near.devices, now_ns).unwrap();
        let (mut endpoint, mut stands, mut far) = (None, false, None);
        until("a connection", || {
            match link.next(&self.near.devices, SystemClock.monotonic_ns()).unwrap() {
                Some(LinkEvent::Endpoint(made)) => endpoint = Some(made),
                Some(LinkEvent::Established) => stands = true,
                Some(LinkEvent::Over | LinkEvent::Frame(_)) => panic!("rejected"),
                None => {}
            }
            far = far.take().or_else(|| self.listener.accept().unwrap());
            (stands && far.is_some()).then_some(())
        });
        let endpoint = endpoint.unwrap();
        endpoint.open().unwrap();
        (Rogue { _link: Box::new(link), endpoint }, far.unwrap())
    }
}

/// A peer that sends raw frames.
struct Rogue {
    _link: Box<dyn std::fmt::Debug>,
    endpoint: Arc<Endpoint>,
}

impl Rogue {
    /// The next region.
    fn region(&self) -> Descriptor {
        let mut arrivals = VecDeque::new();
        until("a region", || {
            self.endpoint.take_arrivals(&mut arrivals, false).unwrap();
            let mut words = [0; 512];
            let Arrival::Frame(arrival) = arrivals.pop_front()? else { panic!("a wake-up") };
            let frame = Frame::parse(self.endpoint.read(arrival, &mut words)).unwrap();
            frame.fragment?.region
        })
    }
}

fn send(to: &mut dyn Connection, message: &[u8], region: Option<&Registration>) {
    until("space in the queue", || (to.send(message, region).unwrap() == Sent::Done).then_some(()));
}

fn receive(from: &mut dyn Connection) -> (Vec<u8>, Option<Box<dyn Offer>>) {
    let mut buffer = vec![0; limits::CONTROL_MESSAGE_LEN_MAX];
    until("a message", || match from.receive(&mut buffer).unwrap() {
        Received::Message { len, offer } => Some((buffer[..len].to_vec(), offer)),
        Received::Nothing => None,
        Received::Closed => panic!("closed"),
    })
}

/// How a connection ends: closed, or with an error.
fn end(of: &mut dyn Connection) -> Result<(), FabricError> {
    until("the end", || match of.receive(&mut [0; 64]) {
        Ok(Received::Closed) => Some(Ok(())),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

fn registered(fabric: &VerbsFabric, len: usize, exposure: Exposure) -> Registration {
    let protection = match exposure {
        Exposure::Read => Protection::PeersRead,
        Exposure::Write => Protection::PeersWrite,
    };
    fabric.register(&Arc::new(Region::allocate(len, protection).unwrap()), exposure).unwrap()
}

/// Sends a region and opens it at the other end.
fn open_read(
    from: &mut dyn Connection,
    at: &mut dyn Connection,
    registration: &Registration,
) -> Box<dyn RemoteRead> {
    send(from, b"region", Some(registration));
    receive(at).1.unwrap().open_read(registration.region().len()).unwrap()
}

fn open_write(
    from: &mut dyn Connection,
    at: &mut dyn Connection,
    registration: &Registration,
) -> Box<dyn RemoteWrite> {
    send(from, b"region", Some(registration));
    receive(at).1.unwrap().open_write(registration.region().len()).unwrap()
}

fn finish(read: &mut dyn RemoteRead) -> Result<(), FabricError> {
    until("a read", || match read.poll() {
        Ok(Completion::Done) => Some(Ok(())),
        Ok(Completion::Pending) => None,
        Err(error) => Some(Err(error)),
    })
}

fn finish_writes(write: &mut dyn RemoteWrite) -> Result<(), FabricError> {
    until("a write", || match write.in_flight() {
        Ok(0) => Some(Ok(())),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// Whether a handle becomes readable.
fn wakes(handle: BorrowedFd<'_>) -> bool {
    let begun_ns = SystemClock.monotonic_ns();
    wait(&[handle], &[], Duration::from_nanos(TIMEOUT_NS)).unwrap();
    SystemClock.monotonic_ns() - begun_ns < TIMEOUT_NS
}

const WORD_0: ByteRange = ByteRange { offset: 0, len: 8 };

#[test]
#[ignore = "needs an RDMA device"]
fn an_access_that_is_refused_ends_its_own_session_only() {
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    let (mut other_near, mut other_far) = world.connect();
    let kept = registered(&world.far, 4096, Exposure::Read);
    let withdrawn = registered(&world.far, 4096, Exposure::Read);
    let mut other_read = open_read(&mut *other_far, &mut *other_near, &kept);
    let mut kept_read = open_read(&mut *far, &mut *near, &kept);
    let mut read = open_read(&mut *far, &mut *near, &withdrawn);
    drop(withdrawn);
    read.post(&[WORD_0]).unwrap();
    let error = finish(&mut *read).unwrap_err();
    assert!(matches!(error, FabricError::Verbs(VerbsError::RemoteAccess)), "{error}");
    // Everything else over that connection fails for the same reason.
    let error = kept_read.post(&[WORD_0]).unwrap_err();
    assert!(matches!(error, FabricError::Verbs(VerbsError::RemoteAccess)), "{error}");
    assert!(matches!(end(&mut *near), Err(FabricError::Verbs(VerbsError::RemoteAccess))));
    end(&mut *far).unwrap();

    other_read.post(&[WORD_0]).unwrap();
    finish(&mut *other_read).unwrap();
    send(&mut *other_near, b"still here", None);
    assert_eq!(receive(&mut *other_far).0, b"still here");
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"again", None);
    assert_eq!(receive(&mut *far).0, b"again");
}

#[test]
#[ignore = "needs an RDMA device"]
fn reads_wait_for_room_in_a_full_queue() {
    let mut world = World::new();
    let (rogue, mut far) = world.rogue(false);
    let repository = registered(&world.far, 4096, Exposure::Read);
    repository.region().store(0, 7);
    send(&mut *far, b"region", Some(&repository));
    let mut read =
        Box::new(VerbsOffer::new(Arc::clone(&rogue.endpoint), rogue.region())).open_read(4096).unwrap();
    let occupied = rogue.endpoint.occupy();
    assert_eq!(read.post(&[WORD_0]).unwrap(), Completion::Pending);
    for _ in 0..3 {
        assert_eq!(read.poll().unwrap(), Completion::Pending);
        assert!(read.wait_handle().unwrap().is_none(), "no completion wakes it");
    }
    rogue.endpoint.vacate(occupied);
    finish(&mut *read).unwrap();
    assert_eq!(read.mirror().load(0), 7);
    // More than the queue accepts.
    let words: Vec<_> = (0..500).map(|word| ByteRange { offset: word * 8, len: 8 }).collect();
    words.iter().for_each(|word| repository.region().store(word.offset, word.offset as u64 + 1));
    read.post(&words).unwrap();
    finish(&mut *read).unwrap();
    assert!(words.iter().all(|word| read.mirror().load(word.offset) == word.offset as u64 + 1));
}

#[test]
#[ignore = "needs an RDMA device"]
fn writes_wait_for_room_in_a_full_queue_in_their_order() {
    const MAX: usize = limits::verbs::WAITING_BATCHES_MAX;
    let mut world = World::new();
    let (rogue, mut far) = world.rogue(true);
    let landing = registered(&world.far, 4096, Exposure::Write);
    let source = registered(&world.near, 4096, Exposure::Read);
    send(&mut *far, b"region", Some(&landing));
    let real = rogue.region();
    let open = || Box::new(VerbsOffer::new(Arc::clone(&rogue.endpoint), real)).open_write(4096).unwrap();
    let (mut write, mut revoked) = (open(), open());
    let batch =
        |word| [Write::Word { offset: 8, word }, Write::Range(WORD_0), Write::Word { offset: 16, word }];
    let occupied = rogue.endpoint.occupy();
    for count in 1..=MAX {
        assert_eq!(write.post(&source, &batch(count as u64)).unwrap(), Completion::Pending);
        assert_eq!(write.in_flight().unwrap(), count);
    }
    let error = write.post(&source, &batch(0)).unwrap_err();
    assert!(matches!(error, FabricError::Verbs(VerbsError::QueueFull { max: MAX })), "{error}");
    revoked.post(&source, &[Write::Word { offset: 24, word: 1 }]).unwrap();
    assert_eq!(revoked.revocation().revoke(), Completion::Done);

    rogue.endpoint.vacate(occupied);
    let (mut last, mut seen) = (MAX, 0);
    until("the end of all writes", || {
        let left = write.in_flight().unwrap();
        let now = landing.region().load(8);
        assert!(left <= last && now >= seen, "{left} after {last}, {now} after {seen}");
        assert!(now + left as u64 >= MAX as u64, "{left} left at {now}");
        (last, seen) = (left, now);
        (left == 0).then_some(())
    });
    assert_eq!(landing.region().load(16), MAX as u64);
    assert_eq!(write.post(&source, &[]).unwrap(), Completion::Done);
    // A batch that waited when it was revoked never starts.
    assert!(matches!(revoked.in_flight(), Err(FabricError::Closed)));
    assert_eq!(landing.region().load(24), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn messages_wait_for_room_in_a_full_queue() {
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"first", None);
    receive(&mut *far);
    let region = registered(&world.far, 1 << 20, Exposure::Read);
    let mut reads: Vec<_> = (0..20).map(|_| open_read(&mut *far, &mut *near, &region)).collect();
    let ranges: Vec<_> = (0..100).map(|range| ByteRange { offset: range * 4096, len: 4096 }).collect();
    for number in 0..20_u8 {
        reads.iter_mut().for_each(|read| {
            read.post(&ranges).unwrap();
        });
        send(&mut *near, &[number; 5000], None);
        reads.iter_mut().for_each(|read| finish(&mut **read).unwrap());
        assert_eq!(receive(&mut *far).0, [number; 5000]);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn nothing_is_written_after_a_revocation_is_done() {
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    let len = 1 << 20;
    let landing = registered(&world.near, len, Exposure::Write);
    let source = registered(&world.far, len, Exposure::Read);
    source.region().store(len - 8, 7);
    let mut write = open_write(&mut *near, &mut *far, &landing);
    let whole = [Write::Range(ByteRange { offset: 0, len })];
    assert_eq!(write.post(&source, &whole).unwrap(), Completion::Pending);
    let revocation = write.revocation();
    until("the end of the write", || (revocation.revoke() == Completion::Done).then_some(()));
    assert_eq!(landing.region().load(len - 8), 7);
    assert!(matches!(write.post(&source, &whole), Err(FabricError::Closed)));
    assert_eq!(write.in_flight().unwrap(), 0);
    // The region is the owner's again, and the session continues.
    drop(landing);
    send(&mut *near, b"still here", None);
    assert_eq!(receive(&mut *far).0, b"still here");
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_wait_for_a_read_ends() {
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    let repository = registered(&world.far, READ_LEN, Exposure::Read);
    read_and_wait(&mut *far, &mut *near, &repository);
    // A subscriber whose publisher has dialled reads at the dialled end.
    let (mut near, mut far) = world.connect_to_write();
    let repository = registered(&world.near, READ_LEN, Exposure::Read);
    read_and_wait(&mut *near, &mut *far, &repository);
}

/// Bytes read by each waiting thread.
const READ_LEN: usize = 1 << 18;

/// Three threads read from the other end, and wait for it.
fn read_and_wait(from: &mut dyn Connection, at: &mut dyn Connection, repository: &Registration) {
    let reads: Vec<_> = (0..3).map(|_| open_read(from, at, repository)).collect();
    std::thread::scope(|scope| {
        for mut read in reads {
            scope.spawn(move || {
                let whole = [ByteRange { offset: 0, len: READ_LEN }];
                for _ in 0..100 {
                    let mut completion = read.post(&whole).unwrap();
                    while completion == Completion::Pending {
                        if let Some(handle) = read.wait_handle().unwrap() {
                            assert!(wakes(handle));
                        }
                        completion = read.poll().unwrap();
                    }
                }
                assert!(read.wait_handle().unwrap().is_none(), "nothing is under way");
            });
        }
    });
}

/// A node's topics outlive the connections that it dials, whatever still holds those.
#[test]
#[ignore = "needs an RDMA device"]
fn registrations_for_a_dialled_connection_end_with_it() {
    let mut world = World::new();
    let len = 1 << 20;
    let repository = registered(&world.near, len, Exposure::Read);
    let mut kept = Vec::new();
    let before = sys::MemoryRegion::registered_len();
    for round in 0..10 {
        let (mut near, mut far) = world.connect_to_write();
        let mut read = open_read(&mut *near, &mut *far, &repository);
        read.post(&[WORD_0]).unwrap();
        finish(&mut *read).unwrap();
        let landing = registered(&world.far, 4096, Exposure::Write);
        let mut write = open_write(&mut *far, &mut *near, &landing);
        write.post(&repository, &[Write::Range(WORD_0)]).unwrap();
        finish_writes(&mut *write).unwrap();
        if round % 2 == 0 {
            drop(near)
        } else {
            drop(far)
        }
        // As an idle publisher does.
        kept.push(write);
    }
    until("the end of all registrations", || {
        let held = sys::MemoryRegion::registered_len() - before;
        (held < len as u64).then_some(())
    });
    drop(kept);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_handle_wakes_for_messages_and_for_the_end() {
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    let mut buffer = [0; 64];
    let message = |connection: &mut dyn Connection, buffer: &mut [u8]| loop {
        match connection.receive(buffer).unwrap() {
            Received::Nothing => {
                assert!(wakes(connection.wait_handle()));
            }
            Received::Message { len, .. } => return Some(len),
            Received::Closed => return None,
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while let Some(len) = message(&mut *far, &mut buffer) {
                send(&mut *far, &buffer[..len], None);
            }
        });
        for len in (1..64).chain(1..64) {
            send(&mut *near, &buffer[..len], None);
            assert_eq!(message(&mut *near, &mut buffer), Some(len));
        }
        drop(near);
    });
    // A silent peer is no reason to wake.
    let (mut near, _far) = world.connect();
    until("the connection", || (near.send(b"x", None).unwrap() == Sent::Done).then_some(()));
    let begun_ns = SystemClock.monotonic_ns();
    while SystemClock.monotonic_ns() - begun_ns < 300_000_000 {
        assert!(matches!(near.receive(&mut buffer).unwrap(), Received::Nothing));
        wait(&[near.wait_handle()], &[], Duration::from_millis(100)).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_address_of_no_device_is_reported_with_the_available_ones() {
    let at: SocketAddr = "192.0.2.9:7473".parse().unwrap();
    let error = fabric().listen_at(&at).unwrap_err().to_string();
    assert!(error.contains("no active RDMA device has the address 192.0.2.9"), "{error}");
    assert!(error.contains("rxe0:1 (Active"), "{error}");
}

/// Nothing polls: the handle alone reports that sending can resume, and that a message has arrived meanwhile.
#[test]
#[ignore = "needs an RDMA device"]
fn a_handle_wakes_for_room() {
    const MESSAGES: usize = 300;
    let mut world = World::new();
    let (mut near, mut far) = world.connect();
    let readable = |near: &dyn Connection| assert!(wakes(near.wait_handle()), "no wake-up");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                assert_eq!(receive(&mut *far).0.len(), 20_000 + number);
                send(&mut *far, b"got it", None);
            }
        });
        let (mut sent, mut got, mut buffer) = (0, 0, [0; 64]);
        let mut fulls = 0;
        while got < MESSAGES {
            while let Received::Message { .. } = near.receive(&mut buffer).unwrap() {
                got += 1;
            }
            while sent < MESSAGES && near.send(&vec![7; 20_000 + sent], None).unwrap() == Sent::Done {
                sent += 1;
            }
            fulls += usize::from(sent < MESSAGES);
            if got < MESSAGES {
                readable(&*near);
            }
        }
        assert!(fulls > 0, "the queue was never full");
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_dial_into_the_void_ends_in_time() {
    let at = address();
    let IpAddr::V4(ip) = at.ip() else { panic!("the device is to have an IPv4 address: {at:?}") };
    let [a, b, c, _] = ip.octets();
    let nobody = Address::rdma(SocketAddr::new([a, b, c, 199].into(), at.port()));
    one_of_three(|| {
        let begun_ns = SystemClock.monotonic_ns();
        let mut near = fabric().dial(&nobody, Intent::Read, Duration::ZERO).unwrap();
        assert_eq!(near.send(b"anybody?", None).unwrap(), Sent::Done);
        // The handle wakes the owner when no answer comes.
        wait(&[near.wait_handle()], &[], Duration::from_secs(20)).unwrap();
        let error = end(&mut *near).unwrap_err();
        let took_ns = SystemClock.monotonic_ns() - begun_ns;
        assert!(matches!(&error, FabricError::NoAnswer { address } if *address == nobody), "{error}");
        below("the error, ns", took_ns, 2 * limits::verbs::CONNECT_DEADLINE_NS)
    });
}
