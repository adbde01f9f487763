//! Memory, queues and queue pairs of a real device.

use super::*;

/// Two queue pairs of one device, connected by hand, with their queues.
struct Pair {
    bench: Bench,
    ends: [QueuePair; 2],
    /// The completion queues of both: sends, and receives.
    queues: [Arc<CompletionQueue>; 2],
}

const EVERYTHING: RemoteFlags = RemoteFlags { read: true, write: true };

fn rtr(device: &Device, peer: &QueuePair) -> RtrPlan {
    RtrPlan {
        mtu: device.port_attributes.active_mtu,
        dest_qp_num: peer.number(),
        rq_psn: 0x00ff_fffe,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        port: device.port,
        dlid: device.port_attributes.lid,
        global: Some((device.gid.bytes, u8::try_from(device.gid.index).unwrap())),
        traffic_class: 0xb8,
    }
}

impl Pair {
    fn connect(kind: QueuePairKind, allowed: RemoteFlags) -> Self {
        let bench = Bench::open();
        let queues = [bench.queue(None), bench.queue(None)];
        let plan = plan(kind, &queues);
        let ends = [0; 2].map(|_| QueuePair::create(&bench.domain, &plan).unwrap());
        let rts = RtsPlan {
            sq_psn: 0x00ff_fffe,
            timeout: 14,
            retry_count: 6,
            rnr_retry_count: 6,
            max_rd_atomic: 4,
        };
        for (end, peer) in ends.iter().zip(ends.iter().rev()) {
            assert_eq!(end.state().unwrap(), QueuePairState::Reset);
            end.to_init(bench.device.port, allowed).unwrap();
            assert_eq!(end.state().unwrap(), QueuePairState::Init);
            end.to_rtr(&rtr(&bench.device, peer)).unwrap();
            assert_eq!(end.state().unwrap(), QueuePairState::ReadyToReceive);
            assert_eq!(end.traffic_class().unwrap(), 0xb8);
            end.to_rts(&rts).unwrap();
            assert_eq!(end.state().unwrap(), QueuePairState::ReadyToSend);
        }
        Self { bench, ends, queues }
    }

    /// Posts one operation at the first end and returns its status.
    fn run(&self, operation: Operation<'_>) -> Status {
        post(&self.ends[0], SendRequest { wr_id: 77, operation, signaled: true });
        let completion = next(&self.queues[0]);
        assert_eq!(completion.wr_id, 77);
        completion.status
    }
}

fn remote(region: &MemoryRegion, offset: u64) -> Remote {
    Remote { address: region.iova() + offset, key: region.remote_key() }
}

fn slice(region: &MemoryRegion, offset: usize, len: u32) -> Slice<'_> {
    Slice { region, offset, len }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_device_reports_its_attributes() {
    let bench = Bench::open();
    let Device { context, port_attributes, gid, .. } = &bench.device;
    let attributes = context.attributes().unwrap();
    assert!(attributes.qp_wr_max >= 1024 && attributes.cqe_max >= 1024, "{attributes:?}");
    assert!(attributes.qp_rd_atom_max > 0 && attributes.ports > 0, "{attributes:?}");
    assert_eq!(port_attributes.state, PortState::Active);
    assert!([256, 512, 1024, 2048, 4096].contains(&port_attributes.active_mtu), "{port_attributes:?}");
    assert!(context.gids(bench.device.port).unwrap().contains(gid));
    assert!(context.port(attributes.ports + 1).is_err());
    assert_eq!(context.gids(attributes.ports + 1).unwrap(), []);
    let again = Context::all().unwrap();
    assert!(again.iter().any(|other| Arc::ptr_eq(other, context)), "{again:?}");
    assert!(context.next_async_event().unwrap().is_none());
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn registrations_are_counted_and_have_an_address_of_their_own() {
    let bench = Bench::open();
    let before = MemoryRegion::registered_len();
    let page = bench.page(RemoteAccess::Read);
    assert_eq!(MemoryRegion::registered_len() - before, page.region().len() as u64);
    assert_ne!(page.iova(), page.region().base().as_ptr().addr() as u64);
    for iova in [page.iova() + 8, u64::MAX - 4095] {
        let error = MemoryRegion::register(&bench.domain, page.region(), iova, RemoteAccess::None, false);
        assert!(error.is_err(), "{iova:x}");
    }
    // As for publishing: the memory is sealed, also against other mappings of its file.
    let sealed = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
    let source = device::register_at(&bench.domain, &sealed, 0, RemoteAccess::Read, false).unwrap();
    drop((page, source));
    assert_eq!(MemoryRegion::registered_len(), before);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn memory_beyond_the_limit_is_refused_before_the_device_is_asked() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let bench = Bench::open();
    let page = bench.page(RemoteAccess::None);
    let (limits, rights) = (getrlimit(Resource::Memlock), capabilities(None).unwrap());
    let mut fewer = rights;
    fewer.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, fewer).unwrap();
    let outcome = |limit: u64| {
        setrlimit(Resource::Memlock, Rlimit { current: Some(limit), maximum: limits.maximum }).unwrap();
        device::register_at(&bench.domain, page.region(), 0, RemoteAccess::None, true).map(drop)
    };
    let few = MemoryRegion::registered_len();
    let refused = outcome(few).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("{few} bytes are registered")) && refused.contains("ulimit -l"),
        "{refused}"
    );
    // The kernel counts alike: what fits the limit by this count fits it by the kernel's.
    outcome(few + 4096).unwrap();
    // The kernel enforces the limit, too, in case others have locked memory.
    setrlimit(Resource::Memlock, Rlimit { current: Some(few), maximum: limits.maximum }).unwrap();
    let error =
        MemoryRegion::register(&bench.domain, page.region(), 0, RemoteAccess::None, true).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    setrlimit(Resource::Memlock, limits).unwrap();
    set_capabilities(None, rights).unwrap();
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn words_are_read_and_written_and_messages_sent() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let (here, there) = (pair.bench.page(RemoteAccess::None), pair.bench.page(RemoteAccess::Read));
    let landing = pair.bench.page(RemoteAccess::Write);
    there.region().store(64, 7);
    let read = Operation::Read { local: slice(&here, 8, 8), remote: remote(&there, 64) };
    assert_eq!(pair.run(read), Status::Success);
    assert_eq!((here.region().load(8), here.region().load(0), here.region().load(16)), (7, 0, 0));

    let write = Operation::Write { local: slice(&here, 8, 8), remote: remote(&landing, 4088) };
    assert_eq!(pair.run(write), Status::Success);
    assert_eq!(landing.region().load(4088), 7);

    let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
    let write = Operation::WriteInline { bytes: &bytes, remote: remote(&landing, 8) };
    assert_eq!(pair.run(write), Status::Success);
    assert_eq!(landing.region().load(8), u64::from_le_bytes(bytes));

    for (send, len) in [
        (Operation::Send { local: slice(&here, 8, 8) }, 8),
        (Operation::SendInline { bytes: &bytes[..3] }, 3),
        (Operation::SendInline { bytes: &[] }, 0),
        (Operation::Send { local: slice(&here, 4096, 0) }, 0),
    ] {
        landing.region().store(0, 0);
        let receive = ReceiveRequest { wr_id: 5, local: slice(&landing, 0, 64) };
        pair.ends[1].post_receive(&[receive]).unwrap();
        assert_eq!(pair.run(send), Status::Success);
        let received = next(&pair.queues[1]);
        let status = Status::Success;
        let wanted = WorkCompletion { wr_id: 5, status, vendor_err: 0, byte_len: len, ..received };
        assert_eq!(received, wanted);
        let word = landing.region().load(0);
        assert_eq!(word, [0, 0, 0, 0x0003_0201, 0, 0, 0, 0, 7][len as usize]);
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_chain_is_posted_in_order_and_only_its_end_completes() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let landing = pair.bench.page(RemoteAccess::Write);
    let words: Vec<[u8; 8]> = (1..=CHAIN_LEN_MAX as u64).map(u64::to_le_bytes).collect();
    let places = (0..).step_by(8).map(|offset| remote(&landing, offset));
    let mut chain = SendChain::default();
    for (wr_id, (bytes, remote)) in (0..).zip(words.iter().zip(places)) {
        assert!(!chain.is_full());
        let signaled = wr_id == CHAIN_LEN_MAX as u64 - 1;
        chain.push(&SendRequest { wr_id, operation: Operation::WriteInline { bytes, remote }, signaled });
    }
    assert!(chain.is_full());
    pair.ends[0].post_send(&mut chain).unwrap();
    assert_eq!(next(&pair.queues[0]).wr_id, CHAIN_LEN_MAX as u64 - 1);
    assert!((0..16).all(|index| landing.region().load(index * 8) == index as u64 + 1));
    assert_eq!(pair.queues[0].poll(&mut [WorkCompletion::default(); 4]).unwrap(), 0);
    chain.clear();
    pair.ends[0].post_send(&mut chain).unwrap();
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_full_queue_says_how_much_it_took() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let page = pair.bench.page(RemoteAccess::None);
    let requests = [ReceiveRequest { wr_id: 1, local: slice(&page, 0, 64) }; CHAIN_LEN_MAX];
    let mut taken = 0;
    let refused = loop {
        match pair.ends[0].post_receive(&requests) {
            Ok(()) => taken += CHAIN_LEN_MAX,
            Err(refused) => break refused,
        }
        assert!(taken < 10_000, "the queue takes everything");
    };
    assert!(refused.is_full() && taken + refused.posted >= 32, "{taken} and {refused:?}");
    pair.ends[0].to_error().unwrap();
    for _ in 0..taken + refused.posted {
        assert_eq!(next(&pair.queues[1]).status, Status::Flushed);
    }
    assert_eq!(pair.queues[1].poll(&mut [WorkCompletion::default()]).unwrap(), 0);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn forbidden_access_is_refused_and_breaks_the_queue_pair() {
    let no_write = RemoteFlags { read: true, write: false };
    let no_read = RemoteFlags { read: false, write: true };
    let (read, write, none) = (RemoteAccess::Read, RemoteAccess::Write, RemoteAccess::None);
    for (flags, access, is_read, shift, expected) in [
        (EVERYTHING, read, true, 0, Status::Success),
        (EVERYTHING, write, false, 0, Status::Success),
        (EVERYTHING, read, false, 0, Status::RemoteAccess),
        (EVERYTHING, write, true, 0, Status::Success),
        (EVERYTHING, none, true, 0, Status::RemoteAccess),
        (EVERYTHING, read, true, 4096 - 7, Status::RemoteAccess),
        (EVERYTHING, read, true, 1 << 20, Status::RemoteAccess),
        (no_read, read, true, 0, Status::RemoteInvalidRequest),
        (no_write, write, false, 0, Status::RemoteInvalidRequest),
    ] {
        let pair = Pair::connect(QueuePairKind::Rc, flags);
        let (here, there) = (pair.bench.page(none), pair.bench.page(access));
        let (local, remote) = (slice(&here, 0, 8), remote(&there, shift));
        let operation =
            if is_read { Operation::Read { local, remote } } else { Operation::Write { local, remote } };
        let status = pair.run(operation);
        assert_eq!(status, expected, "{flags:?} {access:?} {is_read} {shift}");
        if status != Status::Success {
            assert_eq!(pair.ends[0].state().unwrap(), QueuePairState::Error);
            // A failed queue pair still accepts requests, and flushes them.
            assert_eq!(pair.run(operation), Status::Flushed);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn rights_can_be_given_and_taken_while_connected() {
    let pair = Pair::connect(QueuePairKind::Rc, RemoteFlags::default());
    let (here, there) = (pair.bench.page(RemoteAccess::None), pair.bench.page(RemoteAccess::Read));
    let read = Operation::Read { local: slice(&here, 0, 8), remote: remote(&there, 0) };
    pair.ends[1].set_access(RemoteFlags { read: true, write: false }).unwrap();
    pair.ends[1].set_min_rnr_timer(14).unwrap();
    assert_eq!(pair.run(read), Status::Success);
    pair.ends[1].set_access(RemoteFlags::default()).unwrap();
    assert_eq!(pair.run(read), Status::RemoteInvalidRequest);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_region_that_is_deregistered_is_out_of_reach() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let (here, there) = (pair.bench.page(RemoteAccess::None), pair.bench.page(RemoteAccess::Read));
    let place = remote(&there, 0);
    let read = Operation::Read { local: slice(&here, 0, 8), remote: place };
    assert_eq!(pair.run(read), Status::Success);
    drop(there);
    assert_eq!(pair.run(read), Status::RemoteAccess);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_peer_without_a_receive_is_given_up_after_a_while() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    assert_eq!(pair.run(Operation::SendInline { bytes: &[1] }), Status::ReceiverNotReady);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_peer_that_is_gone_is_given_up_after_a_while() {
    let mut pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let other = QueuePair::create(&pair.bench.domain, &plan(QueuePairKind::Rc, &pair.queues)).unwrap();
    drop(std::mem::replace(&mut pair.ends[1], other));
    assert_eq!(pair.run(Operation::SendInline { bytes: &[1] }), Status::RetryExceeded);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn unreliable_queue_pairs_write_and_send() {
    let pair = Pair::connect(QueuePairKind::Uc, RemoteFlags { read: false, write: true });
    let landing = pair.bench.page(RemoteAccess::Write);
    let write = Operation::WriteInline { bytes: &[9], remote: remote(&landing, 0) };
    assert_eq!(pair.run(write), Status::Success);
    until("word", || (landing.region().load(0) == 9).then_some(()));
    let receive = ReceiveRequest { wr_id: 5, local: slice(&landing, 0, 64) };
    pair.ends[1].post_receive(&[receive]).unwrap();
    assert_eq!(pair.run(Operation::SendInline { bytes: &[1, 2] }), Status::Success);
    assert_eq!(next(&pair.queues[1]).byte_len, 2);
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn an_armed_queue_makes_its_channel_readable() {
    let bench = Bench::open();
    let channel = CompletionChannel::create(&bench.device.context).unwrap();
    let queues = [bench.queue(Some(&channel)), bench.queue(Some(&channel))];
    let end = QueuePair::create(&bench.domain, &plan(QueuePairKind::Rc, &queues)).unwrap();
    assert_eq!(channel.drain().unwrap(), 0);
    for queue in &queues {
        queue.arm().unwrap();
    }
    end.to_init(bench.device.port, RemoteFlags::default()).unwrap();
    let page = bench.page(RemoteAccess::None);
    end.post_receive(&[ReceiveRequest { wr_id: 1, local: slice(&page, 0, 8) }]).unwrap();
    end.to_error().unwrap();
    wait_readable(channel.as_fd());
    assert_eq!(channel.drain().unwrap(), 1);
    assert_eq!(channel.drain().unwrap(), 0);
    assert_eq!(next(&queues[1]).status, Status::Flushed);
    // A pending event does not keep the queue from being released.
    let operation = Operation::SendInline { bytes: &[] };
    post(&end, SendRequest { wr_id: 2, operation, signaled: true });
    wait_readable(channel.as_fd());
    drop((channel, queues, end));
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn handles_may_be_dropped_in_any_order() {
    let pair = Pair::connect(QueuePairKind::Rc, EVERYTHING);
    let page = pair.bench.page(RemoteAccess::Read);
    let Pair { bench: Bench { device, domain }, ends: [first, second], queues } = pair;
    let keeps = |count: &Arc<ProtectionDomain>| Arc::strong_count(count);
    assert_eq!(keeps(&domain), 4);
    drop((device, domain, queues));
    first.post_receive(&[ReceiveRequest { wr_id: 1, local: slice(&page, 0, 8) }]).unwrap();
    let bytes = [5; 8];
    let operation = Operation::SendInline { bytes: &bytes };
    post(&second, SendRequest { wr_id: 2, operation, signaled: true });
    until("message", || (page.region().load(0) != 0).then_some(()));
    drop((page, first, second));
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn a_queue_overrun_is_reported_as_an_event() {
    let bench = Bench::open();
    let context = &bench.device.context;
    let small = CompletionQueue::create(context, 1, None).unwrap();
    let queues = [Arc::clone(&small), small];
    let end = QueuePair::create(&bench.domain, &plan(QueuePairKind::Rc, &queues)).unwrap();
    end.to_init(bench.device.port, RemoteFlags::default()).unwrap();
    let page = bench.page(RemoteAccess::None);
    end.post_receive(&[ReceiveRequest { wr_id: 1, local: slice(&page, 0, 8) }; CHAIN_LEN_MAX]).unwrap();
    end.to_error().unwrap();
    wait_readable(context.async_handle());
    let (event, _) = context.next_async_event().unwrap().unwrap();
    let concern = Concern::CompletionQueue(queues[0].id());
    assert_eq!(event, AsyncEvent { name: "CQ error", concern, is_fault: true });
    while context.next_async_event().unwrap().is_some() {}
}
