//! Faults that the device reports by itself.

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::fabric::verbs::connection::VerbsConnection;
use crate::fabric::verbs::session::Session;
use crate::fabric::verbs::sys::{
    AsyncEvent, CHAIN_LEN_MAX, CompletionQueue, Concern, DeviceUser, QueuePair, QueuePairPlan,
    ReceiveRequest, RemoteAccess, RemoteFlags, Slice, fail_all,
};

/// A session's endpoint, as if it used another completion queue.
#[derive(Debug)]
struct Elsewhere {
    queue: Arc<CompletionQueue>,
    endpoint: Arc<Endpoint>,
}

impl DeviceUser for Elsewhere {
    fn is_concerned(&self, concern: &Concern) -> bool {
        *concern == Concern::CompletionQueue(self.queue.id())
    }

    fn fail(&self, event: &'static str) -> bool {
        DeviceUser::fail(&*self.endpoint, event)
    }
}

impl World {
    /// One more connection whose session is known.
    pub(super) fn known(&mut self) -> (VerbsConnection, Arc<Session>, Box<dyn Connection>) {
        let VerbsFabric { devices, service, channels, .. } = &self.near;
        let destination = Destination::resolve(&self.at).unwrap();
        let link = ManagedLink::dial(&destination, false, devices, SystemClock.monotonic_ns()).unwrap();
        let session = Session::new(devices, Box::new(link), None).unwrap();
        let near = VerbsConnection::new(Arc::clone(&session), service, channels);
        let far = self.accept();
        (near, session, far)
    }
}

/// Has the device report that a completion queue was overrun.
fn overrun(endpoint: &Endpoint, queue: &Arc<CompletionQueue>) {
    let queues = QueuePairPlan {
        kind: QueuePairKind::Rc,
        send_queue: queue,
        receive_queue: queue,
        send_wr_max: 1,
        receive_wr_max: 32,
        sge_max: 1,
        inline_len_max: 0,
    };
    let end = QueuePair::create(&endpoint.domain, &queues).unwrap();
    end.to_init(1, RemoteFlags::default()).unwrap();
    let memory = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
    let memory = device::register(&endpoint.domain, &memory, RemoteAccess::None, true).unwrap();
    let local = || Slice { region: &memory, offset: 0, len: 8 };
    let receives: Vec<_> = (0..CHAIN_LEN_MAX).map(|_| ReceiveRequest { wr_id: 1, local: local() }).collect();
    end.post_receive(&receives).unwrap();
    end.to_error().unwrap();
}

/// The error that an end reports without having been asked: nobody drives it but its fabric.
#[track_caller]
fn error(end: &mut dyn Connection) -> FabricError {
    until("something to receive", || {
        let mut polled = [PollFd::from_borrowed_fd(end.wait_handle(), PollFlags::IN)];
        (rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0).then_some(())
    });
    until("an error", || end.receive(&mut [0; 64]).err())
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_fault_ends_the_session_that_it_concerns_and_no_other() {
    let mut world = World::new();
    let (mut near, session, mut far) = world.known();
    let (mut other_near, other_session, mut other_far) = world.known();
    for (near, far) in [(&mut near, &mut far), (&mut other_near, &mut other_far)] {
        send(near, b"hello", None);
        assert_eq!(receive(&mut **far).0, b"hello");
    }
    let endpoint = Arc::clone(session.endpoint().unwrap());
    let context = Arc::clone(endpoint.domain.context());
    let queue = CompletionQueue::create(&context, 1, None).unwrap();
    let elsewhere = Arc::new(Elsewhere { queue: Arc::clone(&queue), endpoint: Arc::clone(&endpoint) });
    context.users().add(&elsewhere);
    // Both fabrics take events of the device, for both.
    overrun(&endpoint, &queue);
    let error_of_near = error(&mut near);
    assert!(
        matches!(error_of_near, FabricError::Verbs(VerbsError::DeviceFault { event: "CQ error" })),
        "{error_of_near}"
    );
    end(&mut *far).unwrap();
    assert_ne!(endpoint.receive_queue().id(), other_session.endpoint().unwrap().receive_queue().id());
    send(&mut *other_far, b"still here", None);
    assert_eq!(receive(&mut other_near).0, b"still here");
}

#[test]
#[ignore = "needs an RDMA device"]
fn each_part_of_a_session_is_concerned_by_its_faults_and_the_device_by_all() {
    let mut world = World::new();
    let parts: [fn(&Endpoint) -> Concern; 3] = [
        |endpoint| Concern::QueuePair(endpoint.queue_pair.number()),
        |endpoint| Concern::CompletionQueue(endpoint.receive_queue().id()),
        |_| Concern::Device,
    ];
    for part in parts {
        let (mut near, session, mut far) = world.known();
        send(&mut near, b"hello", None);
        assert_eq!(receive(&mut *far).0, b"hello");
        let endpoint = Arc::clone(session.endpoint().unwrap());
        let users = endpoint.domain.context().users();
        // A port that is down comes back, or the peer is silent for too long.
        let port = AsyncEvent { name: "port error", concern: Concern::Port(1), is_fault: false };
        assert_eq!(fail_all(&users.concerned_by(&port), &port), 0);
        let event = AsyncEvent { name: "a fault", concern: part(&endpoint), is_fault: true };
        assert!(fail_all(&users.concerned_by(&event), &event) > 0);
        let found = error(&mut near);
        let is_it = matches!(found, FabricError::Verbs(VerbsError::DeviceFault { event: "a fault" }));
        assert!(is_it, "{:?}: {found}", event.concern);
    }
}

/// A device reports the fault of a queue pair by itself, before or after it has returned the work.
#[test]
#[ignore = "needs an RDMA device"]
fn returned_work_is_explained_by_the_event_that_follows() {
    let mut world = World::new();
    let (mut near, session, mut far) = world.known();
    send(&mut near, b"hello", None);
    assert_eq!(receive(&mut *far).0, b"hello");
    let endpoint = Arc::clone(session.endpoint().unwrap());
    endpoint.queue_pair.to_error().unwrap();
    until("the work to be returned", || {
        assert!(matches!(near.receive(&mut [0; 64]), Ok(Received::Nothing)));
        endpoint.failure()
    });
    let concern = Concern::QueuePair(endpoint.queue_pair.number());
    let event = AsyncEvent { name: "a fault", concern, is_fault: true };
    assert_eq!(fail_all(&endpoint.domain.context().users().concerned_by(&event), &event), 1);
    let found = error(&mut near);
    assert!(matches!(found, FabricError::Verbs(VerbsError::DeviceFault { event: "a fault" })), "{found}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn returned_work_that_nothing_explains_ends_the_session_all_the_same() {
    let mut world = World::new();
    let (mut near, session, mut far) = world.known();
    send(&mut near, b"hello", None);
    assert_eq!(receive(&mut *far).0, b"hello");
    session.endpoint().unwrap().queue_pair.to_error().unwrap();
    // Nobody asks: the fabric's thread ends it.
    until("the end", || {
        let mut polled = [PollFd::from_borrowed_fd(near.wait_handle(), PollFlags::IN)];
        let is_readable = rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap() > 0;
        (is_readable && matches!(near.receive(&mut [0; 64]), Ok(Received::Closed))).then_some(())
    });
    end(&mut *far).unwrap();
}
