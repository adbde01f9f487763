mod connection;
mod form;
mod layout;
mod queue;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::device::{self, Device, Wish};
use crate::memory::{Protection, Region};

/// How long a test waits.
const TIMEOUT_NS: u64 = 20_000_000_000;

/// What the tests of a device work with.
struct Bench {
    device: Device,
    domain: Arc<ProtectionDomain>,
}

impl Bench {
    fn open() -> Self {
        let wish = Wish::from_environment(None).unwrap();
        let device = Device::choose(&wish).unwrap_or_else(|error| panic!("{error}"));
        let domain = ProtectionDomain::allocate(&device.context).unwrap();
        Self { device, domain }
    }

    /// A fresh page, at a random address.
    fn page(&self, remote: RemoteAccess) -> MemoryRegion {
        let region = Arc::new(Region::allocate(4096, Protection::PeersWrite).unwrap());
        let page_size = rustix::param::page_size() as u64;
        let iova = (crate::random::number().unwrap() >> 17).next_multiple_of(page_size);
        device::register_at(&self.domain, &region, iova, remote, true).unwrap()
    }

    fn queue(&self, channel: Option<&Arc<CompletionChannel>>) -> Arc<CompletionQueue> {
        CompletionQueue::create(&self.device.context, 64, channel).unwrap()
    }
}

/// The plan of a queue pair with room for 32 work requests in either queue.
fn plan<'a>(kind: QueuePairKind, queues: &'a [Arc<CompletionQueue>; 2]) -> QueuePairPlan<'a> {
    let [send_queue, receive_queue] = queues;
    QueuePairPlan {
        kind,
        send_queue,
        receive_queue,
        send_wr_max: 32,
        receive_wr_max: 32,
        sge_max: 1,
        inline_len_max: 128,
    }
}

/// Posts one work request.
fn post(end: &QueuePair, request: SendRequest<'_>) {
    let mut chain = SendChain::default();
    chain.push(&request);
    end.post_send(&mut chain).unwrap();
}

/// Polls until there is a result.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = SystemClock.monotonic_ns();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(SystemClock.monotonic_ns() - start < TIMEOUT_NS, "no {what} in time");
        std::thread::yield_now();
    }
}

/// The next completion.
fn next(queue: &CompletionQueue) -> WorkCompletion {
    let mut completions = [WorkCompletion::default()];
    until("completion", || (queue.poll(&mut completions).unwrap() > 0).then_some(completions[0]))
}

/// Waits until a descriptor is readable.
fn wait_readable(handle: BorrowedFd<'_>) {
    let is_readable = || {
        let mut polled = [rustix::event::PollFd::from_borrowed_fd(handle, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&timeout)).unwrap() > 0
    };
    until("event", || is_readable().then_some(()));
}

/// The IP address of the device's port.
fn device_address(device: &Device) -> std::net::IpAddr {
    std::net::IpAddr::V6(device.gid.bytes.into()).to_canonical()
}
