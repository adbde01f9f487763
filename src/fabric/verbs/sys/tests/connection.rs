//! Managed connections within one process.

use std::net::SocketAddr;

use super::*;
use crate::sync::atomic::{AtomicBool, Ordering};

const RESOLVE_MS: i32 = 2000;

/// A listener and a dialling end, each with its own channel.
struct Loop {
    bench: Bench,
    queues: [Arc<CompletionQueue>; 2],
    dialing: Arc<EventChannel>,
    listening: Arc<EventChannel>,
    listener: CmId,
    dialer: CmId,
}

fn event(channel: &Arc<EventChannel>) -> CmEvent {
    until("event", || {
        let event = channel.next().unwrap();
        if event.is_none() {
            wait_readable(channel.as_fd());
        }
        event
    })
}

fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 6,
        rnr_retry_count: 6,
    }
}

impl Loop {
    /// Resolved, with a queue pair for the dialling end, not connected yet.
    fn prepare() -> (Self, QueuePair) {
        let bench = Bench::open();
        let address = SocketAddr::new(device_address(&bench.device), 0);
        let (dialing, listening) = (EventChannel::create().unwrap(), EventChannel::create().unwrap());
        let listener = CmId::create(&listening, PortSpace::Connections).unwrap();
        listener.bind(&address).unwrap();
        listener.listen(8).unwrap();
        let target = listener.local_address().unwrap();
        assert_ne!(target.port(), 0);
        assert_eq!(target.ip(), address.ip());

        let dialer = CmId::create(&dialing, PortSpace::Connections).unwrap();
        dialer.set_ack_timeout(14).unwrap();
        dialer.set_traffic_class(0xb8).unwrap();
        assert!(dialer.context().unwrap().is_none());
        dialer.resolve_address(None, &target, RESOLVE_MS).unwrap();
        expect(&dialing, CmEventKind::AddressResolved);
        assert!(dialer.context().unwrap().unwrap().is_same(&bench.device.context));
        dialer.resolve_route(RESOLVE_MS).unwrap();
        expect(&dialing, CmEventKind::RouteResolved);
        assert_eq!(dialer.peer_address(), Some(target));
        let queues = [bench.queue(None), bench.queue(None)];
        let end = dialer.create_queue_pair(&bench.domain, &plan(QueuePairKind::Rc, &queues)).unwrap();
        (Self { bench, queues, dialing, listening, listener, dialer }, end)
    }

    /// The request, as the listener receives it.
    fn request(&self, private_data: &[u8]) -> (CmId, CmEvent) {
        self.dialer.connect(&parameters(private_data)).unwrap();
        let mut request = expect(&self.listening, CmEventKind::ConnectRequest);
        let id = request.new_id.take().unwrap();
        (id, request)
    }
}

fn expect(channel: &Arc<EventChannel>, kind: CmEventKind) -> CmEvent {
    let event = event(channel);
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_connection_is_made_used_and_ended() {
    let (this, near) = Loop::prepare();
    let (id, request) = this.request(b"hello");
    assert_eq!((request.private_data.len(), &request.private_data[..6]), (56, &b"hello\0"[..]));
    assert_eq!((request.responder_resources, request.initiator_depth), (4, 4));
    assert_eq!(id.peer_address().unwrap().ip(), this.dialer.local_address().unwrap().ip());

    // Its events move to a channel of its own, and it no longer needs the listener.
    let own = EventChannel::create().unwrap();
    id.migrate(&own).unwrap();
    id.migrate(&own).unwrap();
    let far = id.create_queue_pair(&this.bench.domain, &plan(QueuePairKind::Rc, &this.queues)).unwrap();
    assert!(far.inline_len_max() >= 128);
    let landing = this.bench.page(RemoteAccess::Write);
    let local = Slice { region: &landing, offset: 0, len: 64 };
    far.post_receive(&[ReceiveRequest { wr_id: 4, local }]).unwrap();
    id.accept(&parameters(&[7; 196])).unwrap();
    let answer = expect(&this.dialing, CmEventKind::Established);
    assert_eq!(answer.private_data, [7; 196]);
    expect(&own, CmEventKind::Established);
    for end in [&near, &far] {
        assert_eq!(end.traffic_class().unwrap(), 0xb8);
    }
    assert_eq!(this.listening.next().unwrap().map(|event| event.kind), None);
    drop(this.listener);

    let operation = Operation::SendInline { bytes: b"message" };
    post(&near, SendRequest { wr_id: 3, operation, signaled: false });
    let received = next(&this.queues[1]);
    assert_eq!((received.wr_id, received.byte_len), (4, 7));
    assert_eq!(far.state().unwrap(), QueuePairState::ReadyToSend);

    this.dialer.disconnect().unwrap();
    assert_eq!(near.state().unwrap(), QueuePairState::Error);
    expect(&own, CmEventKind::Disconnected);
    // Only the name of the identifier goes before its queue pair, which holds it.
    drop(id);
    far.to_error().unwrap();
    drop(far);
    expect(&this.dialing, CmEventKind::Disconnected);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_rejection_tells_why() {
    let (this, near) = Loop::prepare();
    let (id, _) = this.request(&[]);
    assert!(id.reject(&[1; 149]).is_err());
    id.reject(&[9, 8]).unwrap();
    let event = expect(&this.dialing, CmEventKind::Rejected);
    assert_eq!((event.private_data.len(), &event.private_data[..3]), (148, &[9, 8, 0][..]));
    assert_eq!(near.state().unwrap(), QueuePairState::Error);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_connection_without_a_listener_is_rejected() {
    let (this, near) = Loop::prepare();
    drop(this.listener);
    this.dialer.connect(&parameters(&[])).unwrap();
    let event = expect(&this.dialing, CmEventKind::Rejected);
    assert_eq!(event.status, 8);
    drop(near);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn invalid_connection_parameters_are_refused() {
    let (this, near) = Loop::prepare();
    assert!(this.dialer.connect(&parameters(&[0; 57])).is_err());
    let again = this.dialer.create_queue_pair(&this.bench.domain, &plan(QueuePairKind::Rc, &this.queues));
    assert!(again.is_err());
    let (id, _) = this.request(&[]);
    let far = id.create_queue_pair(&this.bench.domain, &plan(QueuePairKind::Rc, &this.queues)).unwrap();
    assert!(id.accept(&parameters(&[0; 197])).is_err());
    assert_eq!(far.state().unwrap(), QueuePairState::Init);
    id.accept(&parameters(&[])).unwrap();
    expect(&this.dialing, CmEventKind::Established);
    drop(near);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn an_identifier_without_a_device_is_an_error_and_no_crash() {
    let bench = Bench::open();
    let channel = EventChannel::create().unwrap();
    let id = CmId::create(&channel, PortSpace::Connections).unwrap();
    assert!(channel.next().unwrap().is_none());
    let queues = [bench.queue(None), bench.queue(None)];
    assert!(id.resolve_route(RESOLVE_MS).unwrap_err().is(Errno::NODEV));
    assert!(id.connect(&parameters(&[])).unwrap_err().is(Errno::NODEV));
    assert!(id.accept(&parameters(&[])).unwrap_err().is(Errno::NODEV));
    assert!(id.disconnect().is_err());
    assert!(id.reject(&[]).is_err());
    assert!(id.create_queue_pair(&bench.domain, &plan(QueuePairKind::Rc, &queues)).is_err());
    assert_eq!((id.local_address(), id.peer_address()), (None, None));
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn an_address_is_bound_once() {
    let bench = Bench::open();
    let channel = EventChannel::create().unwrap();
    let (first, second) = (
        CmId::create(&channel, PortSpace::Connections).unwrap(),
        CmId::create(&channel, PortSpace::Connections).unwrap(),
    );
    first.bind(&SocketAddr::new(device_address(&bench.device), 0)).unwrap();
    first.listen(1).unwrap();
    let error = second.bind(&first.local_address().unwrap()).unwrap_err();
    assert!(error.is_address_in_use(), "{error}");
    let foreign = second.bind(&"203.0.113.1:7000".parse().unwrap()).unwrap_err();
    assert!(!foreign.is_address_in_use(), "{foreign}");
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn channels_are_taken_from_while_identifiers_come_and_go() {
    let (this, near) = Loop::prepare();
    let target = this.listener.local_address().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let taker = scope.spawn(|| {
            let mut count = 0_u32;
            while !done.load(Ordering::Relaxed) {
                count += u32::from(this.dialing.next().unwrap().is_some());
            }
            count
        });
        for _ in 0..50 {
            let id = CmId::create(&this.dialing, PortSpace::Connections).unwrap();
            id.resolve_address(None, &target, RESOLVE_MS).unwrap();
            let other = EventChannel::create().unwrap();
            id.migrate(&other).unwrap();
            id.migrate(&this.dialing).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        assert!(taker.join().unwrap() <= 100);
    });
    drop(near);
}
