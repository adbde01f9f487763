//! A queue pair, its two completion queues, and its work in flight.
//!
//! All posts and completions pass here, under one lock. Any thread that polls for one send completion processes
//! all of them. Receive completions wake the threads that wait for messages; while one waits for wake-ups, those of wake-ups do so too.

mod batch;
mod exposing;
mod frame;
pub(super) mod leftovers;
mod long;
mod tracker;
mod wakes;
mod waking;
mod windows;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

pub(super) use self::batch::Posted;
pub(super) use self::frame::{Arrival, BufferedFrame};
use self::leftovers::{Leftovers, Releasing};
use self::long::LongOperations;
pub(super) use self::tracker::BatchTracker;
use self::wakes::OutgoingWakes;
use self::windows::Windows;
use super::device;
use super::error::{Failure, VerbsError};
use super::opened::OpenDevice;
use super::silence::Progress;
use super::sys::{
    CHAIN_LEN_MAX, CompletionChannel, CompletionQueue, Concern, DeviceUser, MemoryRegion, MemoryWindow,
    Operation, ProtectionDomain, QueuePair, QueuePairKind, QueuePairPlan, RemoteAccess, RemoteFlags,
    SendChain, SendRequest, Status, SysError, WorkCompletion,
};
use super::work::{BatchId, WorkTable};
use crate::clock::{Clock, SystemClock};
use crate::fabric::{Exposure, FabricError, Place, Placement};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a frame buffer.
const FRAME_LEN: usize = limits::verbs::FRAME_LEN_MAX;
/// Posted receives.
const RECEIVES: u16 = limits::verbs::RECEIVES + limits::verbs::SIGNAL_RECEIVES + limits::verbs::WAKE_RECEIVES;
/// Buffers for sending frames.
const SEND_BUFFERS: u16 = limits::verbs::RECEIVES;
/// Inline bytes of a work request, if the device supports them: a slot with a payload of 128 bytes. A work
/// request then takes four lines of a typical queue.
pub(super) const INLINE_LEN_MAX: u32 = 192;
/// Inline bytes of a work request that every device supports: a line.
const INLINE_LEN_MIN: u32 = 64;
/// How long a peer waits after a receiver-not-ready NAK: 0.64 ms. Credits prevent it as long as both ends
/// count them.
pub(super) const MIN_RNR_TIMER: u8 = 12;
const _: () = assert!((RECEIVES + SEND_BUFFERS) as usize * FRAME_LEN == limits::SESSION_LOCKED_LEN);
/// Pause between two polls of a queue that is being drained.
const DRAIN_PAUSE: Duration = Duration::from_micros(100);

/// One end of a connection between two queue pairs.
///
/// When it is dropped, its queue pair stops at once; what the device takes long to release is released in the background.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Its queue pair.
    pub(super) queue_pair: Arc<QueuePair>,
    state: Mutex<EndpointState>,
    /// A buffer for each receive, then one for each frame being sent.
    frames: Arc<MemoryRegion>,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
    /// Wakes the thread that waits for a read. None if only the peer reads.
    send_channel: Option<Arc<CompletionChannel>>,
    receive_channel: Arc<CompletionChannel>,
    /// Its protection domain.
    pub(super) domain: Arc<ProtectionDomain>,
    /// Regions registered in the domain for this endpoint only. `None` if the domain is shared, or the session is over.
    own_regions: Mutex<Option<Vec<Arc<MemoryRegion>>>>,
    /// The windows through which the peer reads regions.
    windows: Mutex<Windows>,
    /// Whether the domain is its own.
    pub(super) owns_domain: bool,
    /// Bytes that one operation can move.
    pub(super) message_len_max: u32,
    /// Bytes of a packet where packets may be lost; 0 until known.
    packet_len: AtomicU32,
    send_wr_max: u32,
    /// The place of the peer that dialled, which is free once the queue pair is gone.
    place: OnceLock<Arc<Place>>,
    /// What is released in the background. Dropped last: see there.
    releasing: Releasing<Work>,
}

#[derive(Debug)]
struct EndpointState {
    work: WorkTable<Work>,
    /// Set once the queue pair is unusable.
    failure: Option<Failure>,
    /// Whether the connection is established, so that the peer may be granted access.
    is_open: bool,
    /// Whether new one-sided operations are refused.
    is_closed: bool,
    /// A window waits to be bound until nothing is in flight, so one-sided operations wait, too.
    is_draining: bool,
    /// Windows that are being bound.
    binding: usize,
    /// Whether a probe of the peer's host is in flight.
    is_probing: bool,
    /// Regions exposed to the peer.
    exposed: ExposedRegions,
    frames_under_way: u32,
    /// Completed work requests, sends and receives: they show that the peer's host is alive.
    completed: u64,
    /// Those of the send queue.
    answered: u64,
    long: LongOperations,
    wakes: OutgoingWakes,
    /// Which receive completion has an event.
    armed: Armed,
    /// Free send buffers.
    send_buffers: Vec<u16>,
}

/// How many regions the peer may access.
#[derive(Clone, Copy, Debug, Default)]
struct ExposedRegions {
    to_read: u32,
    to_write: u32,
}

/// What a batch keeps alive until it completes.
#[derive(Debug)]
enum Work {
    /// One-sided operations, and the local memory that they use.
    OneSided { tracker: Arc<BatchTracker>, _region: Arc<MemoryRegion> },
    /// A frame, in this buffer, or inline if it was small.
    Frame { buffer: Option<u16> },
    /// A probe of the peer's host.
    Probe,
    /// A window that is being bound.
    Bind { _window: Arc<MemoryWindow> },
    /// A wake-up of the peer.
    Wake { tracker: Arc<BatchTracker> },
}

/// The next receive completion that has an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    /// None: there was an event.
    No,
    /// That of a message, or of a failure.
    Messages,
    /// Any.
    All,
}

impl Endpoint {
    /// Creates an endpoint in this protection domain with a queue pair made by `make`.
    pub(super) fn create(
        device: &OpenDevice,
        domain: &Arc<ProtectionDomain>,
        kind: QueuePairKind,
        make: impl Fn(&QueuePairPlan<'_>) -> Result<QueuePair, SysError>,
    ) -> Result<Arc<Self>, FabricError> {
        #[cfg(test)]
        device.endpoints_made.fetch_add(1, Ordering::Relaxed);
        let context = domain.context();
        let buffers = usize::from(RECEIVES + SEND_BUFFERS);
        let frames = Arc::new(Region::allocate(buffers * FRAME_LEN, Protection::PeersWrite)?);
        let frames = Arc::new(device::register(domain, &frames, RemoteAccess::None, true)?);
        let owns_domain = !Arc::ptr_eq(domain, &device.serving);
        let send_channel = owns_domain.then(|| CompletionChannel::create(context)).transpose();
        let send_channel = send_channel?;
        let receive_channel = CompletionChannel::create(context)?;
        let send_wr_max = device.sends_max;
        let send_queue = CompletionQueue::create(context, send_wr_max, send_channel.as_ref())?;
        let receive_queue = CompletionQueue::create(context, RECEIVES.into(), Some(&receive_channel))?;
        let plan = |inline_len_max| QueuePairPlan {
            kind,
            send_queue: &send_queue,
            receive_queue: &receive_queue,
            send_wr_max,
            receive_wr_max: RECEIVES.into(),
            sge_max: 1,
            inline_len_max,
        };
        // Devices do not report their inline limit beforehand.
        let queue_pair = make(&plan(INLINE_LEN_MAX)).or_else(|_| make(&plan(INLINE_LEN_MIN)))?;
        let state = EndpointState {
            work: WorkTable::new(send_wr_max),
            failure: None,
            is_open: false,
            is_closed: false,
            is_draining: false,
            binding: 0,
            is_probing: false,
            exposed: ExposedRegions::default(),
            frames_under_way: 0,
            completed: 0,
            answered: 0,
            long: LongOperations::default(),
            wakes: OutgoingWakes::new(),
            armed: Armed::No,
            send_buffers: (RECEIVES..RECEIVES + SEND_BUFFERS).rev().collect(),
        };
        let endpoint = Arc::new(Self {
            queue_pair: Arc::new(queue_pair),
            state: Mutex::new(state),
            frames,
            send_queue,
            receive_queue,
            send_channel,
            receive_channel,
            domain: Arc::clone(domain),
            own_regions: Mutex::new(owns_domain.then(Vec::new)),
            windows: Mutex::default(),
            owns_domain,
            message_len_max: device.message_len_max,
            packet_len: AtomicU32::new(0),
            send_wr_max,
            place: OnceLock::new(),
            releasing: Releasing(None),
        });
        context.add_user(&endpoint);
        Ok(endpoint)
    }

    /// Posts all receives and requests their notifications. The queue pair must be in a state that accepts them.
    pub(super) fn begin_to_receive(&self) -> Result<(), FabricError> {
        self.arm_receives(false)?;
        Ok((0..RECEIVES).try_for_each(|buffer| self.post_receive(buffer))?)
    }

    /// Marks the connection established, and grants access to the regions exposed so far.
    pub(super) fn open(&self) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        state.is_open = true;
        // An unreliable queue pair does not retransmit.
        let set = if self.is_reliable() { self.queue_pair.set_min_rnr_timer(MIN_RNR_TIMER) } else { Ok(()) };
        let access = state.exposed.flags(self.is_reliable());
        let set = set.and_then(|()| self.queue_pair.set_access(access)).map_err(FabricError::from);
        set.and_then(|()| self.bind_exposed(&mut state).map(drop)).or_else(|error| {
            // A queue pair that failed meanwhile accepts no settings and needs none.
            if state.failure.is_some() { Ok(()) } else { Err(error) }
        })
    }

    /// Whether delivery is reliable. An unreliable endpoint carries no frames and no reads.
    pub(super) fn is_reliable(&self) -> bool {
        self.queue_pair.kind() == QueuePairKind::Rc
    }

    /// Returns how writes become visible, in both directions.
    pub(super) fn placement(&self) -> Placement {
        if self.is_reliable() { Placement::Writes } else { Placement::Lossy }
    }

    /// Refuses new one-sided operations: the connection was dropped.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Holds the place of the peer.
    pub(super) fn hold(&self, place: &Arc<Place>) {
        self.place.get_or_init(|| Arc::clone(place));
    }

    /// Keeps a region registered in its private domain, until it is released or the session ends.
    pub(super) fn keep(&self, region: &Arc<MemoryRegion>) -> Result<(), FabricError> {
        let kept = self.own_regions.lock().as_mut().map(|regions| regions.push(Arc::clone(region)));
        kept.ok_or(FabricError::Closed)
    }

    /// Releases a kept region.
    pub(super) fn give_up(&self, region: &Arc<MemoryRegion>) {
        let mut regions = self.own_regions.lock();
        regions.iter_mut().for_each(|regions| regions.retain(|kept| !Arc::ptr_eq(kept, region)));
    }

    /// Releases all regions kept for this endpoint: its session is over. Work in flight keeps its memory alive.
    pub(super) fn give_up_all(&self) {
        let regions = self.own_regions.lock().take();
        drop(regions);
        self.windows.lock().close_all();
    }

    /// Returns the inline bytes of a work request.
    pub(super) fn inline_len_max(&self) -> usize {
        self.queue_pair.inline_len_max() as usize
    }

    /// Returns the work requests that one batch of one-sided operations can have.
    pub(super) fn batch_len_max(&self) -> u32 {
        self.send_wr_max.saturating_sub(limits::verbs::SENDS_RESERVED)
    }

    /// Sets the length of the packets that it sends.
    pub(super) fn set_packet_len(&self, len: u32) {
        self.packet_len.store(len, Ordering::Relaxed);
    }

    /// Returns the bytes of a packet, if lost packets are not retransmitted.
    pub(super) fn lossy_packet_len(&self) -> Option<u32> {
        let len = self.packet_len.load(Ordering::Relaxed);
        (len > 0 && !self.is_reliable()).then_some(len)
    }

    /// Its completion queue of receives.
    #[cfg(test)]
    pub(super) fn receive_queue(&self) -> &Arc<CompletionQueue> {
        &self.receive_queue
    }

    /// Returns why it is unusable.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.state.lock().failure
    }

    /// Returns how far its work is.
    pub(super) fn progress(&self) -> Progress {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        let EndpointState { completed, answered, .. } = *state;
        let longest = u64::try_from(state.long.longest(answered)).unwrap_or(u64::MAX);
        let allowance_ns = longest.saturating_mul(1_000_000_000) / limits::verbs::RATE_MIN;
        Progress { completed, answered, is_asking: state.work.len() > 0, allowance_ns }
    }

    /// Probes the peer's host, unless a probe is in flight. Its device answers, whatever its process does; without an answer
    /// the endpoint fails.
    pub(super) fn probe(&self) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        if state.failure.is_some() || state.is_probing || state.work.free_len() == 0 {
            return Ok(());
        }
        let id = state.work.begin(1, Work::Probe).ok_or(VerbsError::PartlyPosted)?;
        state.is_probing = true;
        self.post_one(&mut state, id, Operation::Probe)
    }

    /// Posts a batch of one work request.
    fn post_one(
        &self,
        state: &mut EndpointState,
        id: BatchId,
        operation: Operation<'_>,
    ) -> Result<(), FabricError> {
        let mut chain = SendChain::default();
        chain.push(&SendRequest { wr_id: id.request(true), operation, signaled: true });
        self.queue_pair.post_send(&mut chain).map_err(|refused| {
            state.cancel(id);
            self.fail_locked(state, Failure::PartlyPosted);
            FabricError::from(refused.error)
        })?;
        state.long.post(operation.len(), 1);
        Ok(())
    }

    /// Stops the endpoint: work in flight fails. The first failure is kept, unless a fault of the device explains it; returns whether
    /// this one is.
    pub(super) fn fail(&self, failure: Failure) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        self.fail_locked(&mut state, failure)
    }

    fn fail_locked(&self, state: &mut EndpointState, failure: Failure) -> bool {
        match (state.failure, failure) {
            (None, _) => {}
            // It says why the work was returned.
            (Some(Failure::Flushed), Failure::Device(_) | Failure::Removed) => {
                state.failure = Some(failure);
                return true;
            }
            (Some(_), _) => return false,
        }
        state.failure = Some(failure);
        if let Err(error) = self.queue_pair.to_error() {
            tracing::warn!(target: "fabricast", %error, "a queue pair could not be stopped");
        }
        true
    }

    /// Grants the peer access to one more region.
    pub(super) fn expose(&self, exposure: Exposure) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        *state.exposed.of(exposure) += 1;
        let is_first = *state.exposed.of(exposure) == 1;
        Ok(self.set_access(&state, is_first)?)
    }

    /// Revokes one region.
    pub(super) fn withdraw(&self, exposure: Exposure) {
        let mut state = self.state.lock();
        let count = state.exposed.of(exposure);
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if let Err(error) = self.set_access(&state, is_last) {
            tracing::debug!(target: "fabricast", %error, "a peer keeps access rights without a region");
        }
    }

    fn set_access(&self, state: &EndpointState, is_change: bool) -> Result<(), SysError> {
        if !is_change || !state.is_open || state.failure.is_some() {
            return Ok(());
        }
        self.queue_pair.set_access(state.exposed.flags(self.is_reliable()))
    }

    /// Polls the send completions and processes them.
    fn poll_sends(&self, state: &mut EndpointState) {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = match self.send_queue.poll(&mut completions) {
                Ok(len) => len,
                Err(error) => {
                    tracing::warn!(target: "fabricast", %error, "a completion queue is broken");
                    self.fail_locked(state, Failure::Closed);
                    return;
                }
            };
            for completion in completions.iter().take(len) {
                if completion.status != Status::Success {
                    self.fail_locked(state, Failure::of(completion));
                }
                state.complete(completion);
            }
            if len < completions.len() {
                return;
            }
        }
    }
}

impl DeviceUser for Endpoint {
    fn is_concerned(&self, concern: &Concern) -> bool {
        match *concern {
            Concern::QueuePair(number) => number == self.queue_pair.number(),
            Concern::CompletionQueue(id) => {
                [&self.send_queue, &self.receive_queue].iter().any(|queue| queue.id() == id)
            }
            Concern::Device => true,
            Concern::Port(_) => false,
        }
    }

    fn fail(&self, event: &'static str) -> bool {
        Self::fail(self, Failure::Device(event))
    }

    fn lose_device(&self) {
        Self::fail(self, Failure::Removed);
        self.give_up_all();
    }
}

impl EndpointState {
    /// Processes the completion of a work request.
    fn complete(&mut self, completion: &WorkCompletion) {
        if completion.status != Status::Success
            && let Some(Work::OneSided { tracker, .. }) = self.work.of(completion.wr_id)
        {
            tracker.failed.store(true, Ordering::Relaxed);
        }
        let is_success = u64::from(completion.status == Status::Success);
        (self.completed, self.answered) = (self.completed + is_success, self.answered + is_success);
        let work = self.work.complete(completion.wr_id);
        self.give_back(work);
    }

    /// Cancels a batch of which nothing was posted.
    fn cancel(&mut self, id: BatchId) {
        let work = self.work.cancel(id);
        self.give_back(work);
    }

    fn give_back(&mut self, work: Option<Work>) {
        match work {
            Some(Work::OneSided { tracker, .. }) => tracker.land(),
            Some(Work::Frame { buffer }) => {
                self.frames_under_way -= 1;
                self.send_buffers.extend(buffer);
            }
            Some(Work::Probe) => self.is_probing = false,
            Some(Work::Bind { .. }) => self.binding -= 1,
            None => {}
            Some(Work::Wake { tracker }) => drop(tracker.wakes.fetch_sub(1, Ordering::Relaxed)),
        }
    }
}

impl ExposedRegions {
    fn of(&mut self, exposure: Exposure) -> &mut u32 {
        match exposure {
            Exposure::Read => &mut self.to_read,
            Exposure::Write => &mut self.to_write,
        }
    }

    /// The access flags of a queue pair. An unreliable one has no reads. A reliable one always allows writes, for the
    /// peer's probes: its domain holds no writable region except those exposed to this peer.
    fn flags(self, is_reliable: bool) -> RemoteFlags {
        let write = self.to_write > 0;
        RemoteFlags { read: self.to_read > 0 || (write && is_reliable), write: write || is_reliable }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.fail(Failure::Closed);
        let began_ns = SystemClock.monotonic_ns();
        loop {
            let mut state = self.state.lock();
            self.poll_sends(&mut state);
            let batches = state.work.len();
            // A device that broke completes nothing more; nor does one that has kept the work of another queue pair: a node with
            // many sessions does not wait for each.
            let context = self.domain.context();
            let is_broken = matches!(state.failure, Some(Failure::Device(_) | Failure::Removed))
                || context.is_removed()
                || context.keeps_work();
            drop(state);
            // Receives need no draining: one that was posted after the peer made the queue pair fail may never
            // complete, and the buffers belong to the endpoint.
            if batches == 0 || is_broken {
                break;
            }
            if SystemClock.monotonic_ns() - began_ns > limits::verbs::DRAIN_NS {
                // Their memory stays registered until the queue pair is gone, after which the device cannot access it.
                tracing::warn!(target: "fabricast", batches, "work requests did not complete");
                self.domain.context().set_keeps_work();
                break;
            }
            SystemClock.pause(DRAIN_PAUSE);
        }
        // Before the queue pair: destroying one that has windows may wait for them.
        self.windows.lock().close_all();
        let state = self.state.get_mut();
        self.releasing.0 = Some(Leftovers {
            queue_pair: Arc::clone(&self.queue_pair),
            work: std::mem::replace(&mut state.work, WorkTable::new(0)),
            frames: Arc::clone(&self.frames),
            queues: [Arc::clone(&self.send_queue), Arc::clone(&self.receive_queue)],
            place: self.place.take(),
        });
    }
}
