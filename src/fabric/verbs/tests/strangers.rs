//! Misbehaving peers that connect by an exchange over TCP; and lost messages of the connection manager.

use std::io::Read;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::fabric::verbs::exchange::{QpInfo, READY};
use crate::fabric::verbs::handshake::LocalEnd;
use crate::fabric::verbs::stream::{self, FrameStream};

/// A frame with one fragment, which is a complete message.
const MESSAGE: &[u8] = b"\0\0\x01\x01\0\0\0\x05\0\0\0\0hello";
/// A keepalive question.
const QUESTION: &[u8] = b"\0\0\x08\x01\0\0\0\0\0\0\0\0";
/// An empty frame.
const NOTHING: &[u8] = b"\0\0\0\x01\0\0\0\0\0\0\0\0";

/// A peer that dials over TCP.
#[derive(Debug)]
struct Stranger {
    stream: FrameStream,
    near: LocalEnd,
    peer: IpAddr,
    /// The error of the node's end.
    error: Option<FabricError>,
}

impl Stranger {
    fn new(world: &World, kind: QueuePairKind) -> Self {
        let socket = TcpStream::connect(manager::resolve(&world.at).unwrap()).unwrap();
        let (local, peer) = (socket.local_addr().unwrap().ip(), socket.peer_addr().unwrap().ip());
        let near = LocalEnd::create(local, kind, true, &world.near.devices).unwrap();
        Self { stream: FrameStream::new(socket).unwrap(), near, peer, error: None }
    }

    fn say(&mut self, frame: &[u8]) {
        assert!(self.stream.send(frame).unwrap());
    }

    /// The node's next frame, while the node makes progress; `None` if it closes the connection.
    fn hear(&mut self, far: &mut dyn Connection) -> Option<Vec<u8>> {
        until("an answer", || {
            self.error = self.error.take().or_else(|| far.receive(&mut [0; 64]).err());
            match self.stream.receive() {
                stream::StreamEvent::Frame(frame) => Some(Some(frame)),
                stream::StreamEvent::Nothing => None,
                stream::StreamEvent::Closed => Some(None),
                other => panic!("{other:?}, and the node {:?}", self.error),
            }
        })
    }

    /// Sends its end, changed, and returns the answer.
    fn exchange(&mut self, far: &mut dyn Connection, change: impl FnOnce(&mut QpInfo)) -> Option<Vec<u8>> {
        let mut end = self.near.end;
        change(&mut end);
        self.say(&end.emit());
        self.hear(far)
    }

    /// Connects its queue pair like a node.
    fn connect(&mut self, far: &mut dyn Connection) {
        let answer = self.exchange(far, |_| {}).unwrap();
        self.near.connect(&QpInfo::parse(&answer).unwrap(), self.peer).unwrap();
    }
}

/// Lets a session make progress for this long.
fn drive(far: &mut dyn Connection, time_ns: u64) {
    let begun_ns = SystemClock.monotonic_ns();
    while SystemClock.monotonic_ns() - begun_ns < time_ns {
        assert!(matches!(far.receive(&mut [0; 64]).unwrap(), Received::Nothing));
        wait(&[far.wait_handle()], &[], Duration::from_millis(20)).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_is_heard_before_it_says_that_it_is_ready_may_read() {
    let mut world = World::new();
    let mut stranger = Stranger::new(&world, QueuePairKind::Rc);
    let mut far = world.accept();
    stranger.connect(&mut *far);
    stranger.near.endpoint.send(MESSAGE).unwrap();
    assert_eq!(receive(&mut *far).0, b"hello");
    let repository = registered(&world.far, 4096, Exposure::Read);
    repository.region().store(0, 7);
    send(&mut *far, b"region", Some(&repository));
    let rogue = Rogue { endpoint: Arc::clone(&stranger.near.endpoint), _link: Box::new(()) };
    let offer = Box::new(VerbsOffer::new(Arc::clone(&rogue.endpoint), rogue.region()));
    let mut read = offer.open_read(4096).unwrap();
    read.post(&[WORD_0]).unwrap();
    finish(&mut *read).unwrap();
    assert_eq!(read.mirror().load(0), 7);
    // The confirmation may come late, or never.
    stranger.say(READY);
    drive(&mut *far, limits::verbs::CONNECT_DEADLINE_NS + 200_000_000);
    stranger.near.endpoint.send(MESSAGE).unwrap();
    assert_eq!(receive(&mut *far).0, b"hello");
    stranger.say(READY);
    end(&mut *far).unwrap();
}

/// A link that never reports being established: the peer's last message was lost.
#[derive(Debug)]
struct Deaf(ManagedLink);

impl QpLink for Deaf {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.0.wait_handle()
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.0.deadline_ns()
    }

    fn next(&mut self, _: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        // The connection manager is not polled.
        Ok(self.deadline_ns().is_some_and(|deadline_ns| now_ns >= deadline_ns).then_some(LinkEvent::Over))
    }

    fn confirm(&mut self) {
        self.0.confirm();
    }

    fn leave(&mut self) {
        self.0.leave();
    }

    fn is_leaving(&self) -> bool {
        self.0.is_leaving()
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.0.addresses()
    }

    fn ends(&self, queue_pair: u32) -> Result<link::QpEnds, FabricError> {
        self.0.ends(queue_pair)
    }

    fn disconnect(&self) {
        self.0.disconnect();
    }

    fn is_dialled_to_write(&self) -> bool {
        false
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_connection_whose_last_word_was_lost_stands_when_it_is_used() {
    let (near, devices, at) = (fabric(), Arc::new(Devices::new(Wish::default())), address());
    let reception = manager::CmListener::open(&at, &devices).unwrap();
    let service = Service::new(&devices).unwrap();
    let at = Address::rdma(at);
    let mut dialled = near.dial(&at, Intent::Read, Duration::ZERO).unwrap();
    let request = until("a request", || reception.next().unwrap());
    let accepted = ManagedLink::accept(request, &devices, SystemClock.monotonic_ns()).unwrap();
    let (link, endpoint) = accepted.unwrap();
    let session = Session::new(&devices, Box::new(Deaf(link)), Some(endpoint)).unwrap();
    let mut far: Box<dyn Connection> =
        Box::new(VerbsConnection::new(session, &service, &Channels::new(&devices, None)));
    send(&mut *dialled, b"anybody?", None);
    assert_eq!(receive(&mut *far).0, b"anybody?");
    drive(&mut *far, limits::verbs::CONNECT_DEADLINE_NS + 200_000_000);
    send(&mut *far, b"still here", None);
    assert_eq!(receive(&mut *dialled).0, b"still here");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_over_tcp_that_names_another_host_or_no_size_is_refused_at_once() {
    let mut world = World::new();
    type Edit = fn(&mut QpInfo);
    let cases: [(Edit, u8); 5] = [
        // An unused address of this subnet, this host's own without IP, a third host, no address.
        (|end| end.gid[15] = 199, 4),
        (|end| end.gid = [0; 16], 4),
        (|end| end.gid[12..].copy_from_slice(&[192, 0, 2, 1]), 4),
        (|end| end.mtu = 1000, 1),
        (|end| end.reads_max = 0, 0),
    ];
    for (change, reason) in cases {
        for kind in [QueuePairKind::Rc, QueuePairKind::Uc] {
            one_of_three(|| {
                let mut stranger = Stranger::new(&world, kind);
                let mut far = world.accept();
                let begun_ns = SystemClock.monotonic_ns();
                let answer = stranger.exchange(&mut *far, change).unwrap();
                let took_ns = SystemClock.monotonic_ns() - begun_ns;
                if reason == 0 {
                    QpInfo::parse(&answer).unwrap();
                    return Ok(());
                }
                assert_eq!(answer, [b"FBC1\x01", [reason].as_slice()].concat());
                assert_eq!(stranger.hear(&mut *far), None);
                let told = stranger.error.or_else(|| end(&mut *far).err()).map(|error| error.to_string());
                let is_named =
                    told.as_ref().is_some_and(|told| told.contains("but its TCP connection comes from"));
                assert_eq!((told.is_some(), is_named), (reason == 4, reason == 4), "{told:?}");
                below("the answer, ns", took_ns, 500_000_000)
            });
        }
    }
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

/// Peers that cannot be told apart until they send something: one with the wrong queue pair, and a silent one.
#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_over_tcp_that_goes_no_further_is_left_in_time() {
    let mut world = World::new();
    one_of_three(|| below("both, ns", leaving_ns(&mut world), 2 * limits::verbs::CONNECT_DEADLINE_NS));
}

/// How long it takes until two such peers are dropped, nanoseconds.
fn leaving_ns(world: &mut World) -> u64 {
    let begun_ns = SystemClock.monotonic_ns();
    let mut strangers: Vec<_> = [0, 1]
        .map(|flip| {
            let mut stranger = Stranger::new(world, QueuePairKind::Rc);
            let mut far = world.accept();
            let answer = stranger.exchange(&mut *far, |end| end.queue_pair ^= flip).unwrap();
            stranger.near.connect(&QpInfo::parse(&answer).unwrap(), stranger.peer).unwrap();
            (stranger, far)
        })
        .into();
    for (stranger, far) in &mut strangers {
        assert_eq!(stranger.hear(&mut **far), None);
        end(&mut **far).unwrap();
    }
    let took_ns = SystemClock.monotonic_ns() - begun_ns;
    assert!(took_ns >= limits::verbs::CONNECT_DEADLINE_NS, "{took_ns} ns");
    took_ns
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_over_tcp_that_floods_loses_its_session() {
    let mut world = World::new();
    for frame in [NOTHING, QUESTION, MESSAGE] {
        let mut stranger = Stranger::new(&world, QueuePairKind::Uc);
        let mut far = world.accept();
        stranger.connect(&mut *far);
        stranger.say(READY);
        // As much as the sockets accept, before the node reads.
        while matches!(stranger.stream.send(frame), Ok(true)) {}
        let error = until("the end of a flood", || {
            let begun_ns = SystemClock.monotonic_ns();
            // An owner that cannot send takes no messages.
            let received = far.receive(&mut [0; 1]);
            let took_ns = SystemClock.monotonic_ns() - begun_ns;
            assert!(took_ns < 1_000_000_000, "{took_ns} ns for one look");
            received.err().filter(|error| !matches!(error, FabricError::MessageTooLong { .. }))
        });
        assert!(matches!(error, FabricError::Verbs(VerbsError::Malformed { .. })), "{error}");
        assert!(matches!(far.send(b"anybody?", None), Err(FabricError::Closed)));
        let mut rest = Vec::new();
        let (mut socket, handle) = (&stranger.stream.socket, stranger.stream.socket.as_fd());
        wait(&[handle], &[], Duration::from_nanos(TIMEOUT_NS)).unwrap();
        // The socket is closed, with or without an error about unread data.
        let _ = socket.read_to_end(&mut rest);
    }
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"fine", None);
    assert_eq!(receive(&mut *far).0, b"fine");
}

/// A peer's device answers as long as its host is up, whatever its process does; then nothing answers.
#[test]
#[ignore = "needs an RDMA device"]
fn a_host_that_is_lost_after_its_process_stopped_is_noticed() {
    let mut world = World::new();
    one_of_three(|| {
        let begun_ns = SystemClock.monotonic_ns();
        let (rogue, mut far) = world.rogue(false);
        until("time for some probes", || {
            assert!(matches!(far.receive(&mut [0; 64]), Ok(Received::Nothing)), "its host lives");
            (SystemClock.monotonic_ns() - begun_ns > 6 * limits::verbs::QUIET_NS).then_some(())
        });
        // Neither a message nor the connection manager reports this.
        rogue.endpoint.queue_pair.to_error().unwrap();
        let error = until("the loss", || far.receive(&mut [0; 64]).err());
        assert!(matches!(error, FabricError::Verbs(VerbsError::NoAnswer)), "{error}");
        below("the loss, ns", SystemClock.monotonic_ns() - begun_ns, limits::verbs::CONNECT_DEADLINE_NS)
    });
}

/// A peer that has no answer soon makes another attempt, and the listener may find both requests.
#[test]
#[ignore = "needs an RDMA device"]
fn request_that_was_given_up_is_no_error() {
    let mut world = World::new();
    for _ in 0..20 {
        let mut given_up = world.near.dial(&world.at, Intent::Read, Duration::ZERO).unwrap();
        until("a request", || {
            // It resolves the address, then the route.
            assert!(matches!(given_up.receive(&mut [0; 64]), Ok(Received::Nothing)));
            is_readable(world.listener.wait_handle()).then_some(())
        });
        drop(given_up);
        SystemClock.pause(Duration::from_millis(10));
        while let Some(accepted) = world.listener.accept().unwrap() {
            drop(accepted);
        }
    }
    let (mut near, mut far) = world.connect();
    send(&mut *near, b"hello", None);
    assert_eq!(receive(&mut *far).0, b"hello");
}

/// Whether a handle is readable now.
fn is_readable(handle: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0
}
