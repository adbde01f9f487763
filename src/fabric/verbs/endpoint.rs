//! A queue pair, its two completion queues, and the work that is under way in them.
//!
//! All that is posted and all that completes passes here, under one lock. The completions of sends are taken by whoever
//! looks for one of them; those of receives wake whoever waits for messages.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::{Failure, VerbsError};
use super::opened::OpenDevice;
use super::region;
use super::sys::{
    CHAIN_LEN_MAX, CompletionChannel, CompletionQueue, MemoryRegion, Operation, ProtectionDomain, QueuePair,
    QueuePairKind, QueuePairPlan, ReceiveRequest, RemoteAccess, RemoteFlags, SendRequest, Slice, Status,
    SysError, WorkCompletion,
};
use super::work::{BatchId, WorkTable};
use crate::clock::{Clock, SystemClock};
use crate::fabric::{Exposure, FabricError};
use crate::limits;
use crate::memory::{LINE, Protection, Region, WORD};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a frame's buffer.
const FRAME_LEN: usize = limits::VERBS_FRAME_LEN_MAX;
/// Receives that are posted.
const RECEIVES: u16 = limits::VERBS_RECEIVES + limits::VERBS_CREDIT_RECEIVES;
/// Buffers of frames that are being sent.
const SEND_BUFFERS: u16 = limits::VERBS_RECEIVES;
/// Work requests of the send queue that one-sided operations leave to control messages.
const RESERVED: u32 = SEND_BUFFERS as u32 + limits::VERBS_CREDIT_RECEIVES as u32;
/// How long a peer waits after it was told that there is no receive: 0.64 ms. It does not happen as long as both count
/// their credits.
pub(super) const MIN_RNR_TIMER: u8 = 12;
/// Pause between two looks at a queue that is to be drained.
const DRAIN_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

/// One end of a connection between two queue pairs.
///
/// Its fields are dropped in this order: what the device uses lives longer than the queue pair.
#[derive(Debug)]
pub(super) struct Endpoint {
    queue_pair: QueuePair,
    state: Mutex<State>,
    /// A buffer for each receive, then one for each frame that is sent.
    frames: Arc<MemoryRegion>,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
    /// Wakes who waits for a read, at the end that dials.
    send_channel: Option<Arc<CompletionChannel>>,
    receive_channel: Arc<CompletionChannel>,
    domain: Arc<ProtectionDomain>,
    side: Side,
    message_len_max: u32,
    send_wr_max: u32,
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The one that dialled. Its protection domain is its own, and one can wait for the end of its reads.
    Dialled,
    /// The one that was dialled. Its protection domain is that of all such ends of its device.
    Accepted,
}

#[derive(Debug)]
struct State {
    work: WorkTable<Work>,
    /// Set once, when the queue pair is of no more use.
    failure: Option<Failure>,
    /// Whether the connection stands, so that the peer may be allowed something.
    is_open: bool,
    /// Whether no one-sided operation may begin any more.
    is_closed: bool,
    /// Regions that were sent to the peer.
    lent: Lent,
    receives_posted: u16,
    frames_under_way: u32,
    /// Buffers of frames that are not being sent.
    send_buffers: Vec<u16>,
    /// Who waits on the handle of sends.
    waiting: u32,
}

/// How many regions the peer may use.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    to_read: u32,
    to_write: u32,
}

/// What a batch keeps until it is complete.
#[derive(Debug)]
enum Work {
    /// One-sided operations, and the local memory that they use.
    OneSided { flight: Arc<Flight>, _region: Arc<MemoryRegion> },
    /// A frame, in this buffer or, if it was small, in none.
    Frame { buffer: Option<u16> },
}

/// What has become of the one-sided operations of somebody. Everything is read and written under the endpoint's lock.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// Batches that are not complete.
    batches: AtomicU64,
    /// One of them failed.
    failed: AtomicBool,
    /// None may begin any more.
    revoked: AtomicBool,
    /// Its owner waits on the handle of sends.
    waits: AtomicBool,
}

/// Whether a batch could be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// It was.
    Yes,
    /// There is no room for it at the moment.
    NoRoom,
}

/// A frame that came, in its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    buffer: u16,
    len: usize,
}

impl Endpoint {
    /// One end in this protection domain, whose queue pair is made by `make`.
    pub(super) fn create(
        device: &OpenDevice,
        domain: &Arc<ProtectionDomain>,
        side: Side,
        kind: QueuePairKind,
        make: impl FnOnce(&QueuePairPlan<'_>) -> Result<QueuePair, SysError>,
    ) -> Result<Arc<Self>, FabricError> {
        let context = domain.context();
        let buffers = usize::from(RECEIVES + SEND_BUFFERS);
        let frames = Arc::new(Region::allocate(buffers * FRAME_LEN, Protection::PeersWrite)?);
        let frames = Arc::new(region::register(domain, &frames, RemoteAccess::None, true)?);
        let send_channel = (side == Side::Dialled).then(|| CompletionChannel::create(context)).transpose();
        let send_channel = send_channel?;
        let receive_channel = CompletionChannel::create(context)?;
        let send_wr_max = device.sends_max;
        let send_queue = CompletionQueue::create(context, send_wr_max, send_channel.as_ref())?;
        let receive_queue = CompletionQueue::create(context, RECEIVES.into(), Some(&receive_channel))?;
        let queue_pair = make(&QueuePairPlan {
            kind,
            send_queue: &send_queue,
            receive_queue: &receive_queue,
            send_wr_max,
            receive_wr_max: RECEIVES.into(),
            inline_len_max: LINE as u32,
        })?;
        let state = State {
            work: WorkTable::new(send_wr_max),
            failure: None,
            is_open: false,
            is_closed: false,
            lent: Lent::default(),
            receives_posted: 0,
            frames_under_way: 0,
            send_buffers: (RECEIVES..RECEIVES + SEND_BUFFERS).rev().collect(),
            waiting: 0,
        };
        Ok(Arc::new(Self {
            queue_pair,
            state: Mutex::new(state),
            frames,
            send_queue,
            receive_queue,
            send_channel,
            receive_channel,
            domain: Arc::clone(domain),
            side,
            message_len_max: device.message_len_max,
            send_wr_max,
        }))
    }

    /// Posts all receives, and asks to be woken by them. The queue pair must be able to take them.
    pub(super) fn begin_to_receive(&self) -> Result<(), FabricError> {
        self.receive_queue.arm()?;
        Ok((0..RECEIVES).try_for_each(|buffer| self.post_receive(buffer))?)
    }

    /// Allows what was sent so far to be used. The connection stands.
    pub(super) fn open(&self) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        state.is_open = true;
        // What is unreliable asks for nothing to be sent again.
        let set = if self.is_reliable() { self.queue_pair.set_min_rnr_timer(MIN_RNR_TIMER) } else { Ok(()) };
        set.and_then(|()| self.queue_pair.set_access(state.lent.flags())).or_else(|error| {
            // A queue pair that has failed meanwhile takes no settings, and needs none.
            if state.failure.is_some() { Ok(()) } else { Err(error.into()) }
        })
    }

    /// Its queue pair.
    pub(super) fn queue_pair(&self) -> &QueuePair {
        &self.queue_pair
    }

    /// Whether what it sends arrives. Otherwise it carries no frames, and reads nothing.
    pub(super) fn is_reliable(&self) -> bool {
        self.queue_pair.kind() == QueuePairKind::Rc
    }

    /// Lets no further one-sided operation begin: the connection was dropped.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Its protection domain.
    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Whether the domain is its own.
    pub(super) fn owns_domain(&self) -> bool {
        self.side == Side::Dialled
    }

    /// Bytes that one operation can move.
    pub(super) fn message_len_max(&self) -> u32 {
        self.message_len_max
    }

    /// Why it is of no more use.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.state.lock().failure
    }

    /// Ends all use of it: what is under way fails. The first reason is the one that counts.
    pub(super) fn fail(&self, failure: Failure) {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        self.fail_locked(&mut state, failure);
    }

    fn fail_locked(&self, state: &mut State, failure: Failure) {
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure);
        if let Err(error) = self.queue_pair.to_error() {
            tracing::warn!(target: "fabricast", %error, "a queue pair could not be stopped");
        }
    }

    /// Allows the peer the use of one more region.
    pub(super) fn lend(&self, exposure: Exposure) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        *state.lent.of(exposure) += 1;
        let is_first = *state.lent.of(exposure) == 1;
        Ok(self.set_access(&state, is_first)?)
    }

    /// Takes one region back.
    pub(super) fn withdraw(&self, exposure: Exposure) {
        let mut state = self.state.lock();
        let count = state.lent.of(exposure);
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if let Err(error) = self.set_access(&state, is_last) {
            tracing::debug!(target: "fabricast", %error, "a peer keeps a right without a region");
        }
    }

    fn set_access(&self, state: &State, is_change: bool) -> Result<(), SysError> {
        if !is_change || !state.is_open || state.failure.is_some() {
            return Ok(());
        }
        self.queue_pair.set_access(state.lent.flags())
    }

    /// Takes what has completed of the sends, and notes what it says.
    fn poll_sends(&self, state: &mut State) {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = match self.send_queue.poll(&mut completions) {
                Ok(len) => len,
                Err(error) => {
                    tracing::warn!(target: "fabricast", %error, "a completion queue is broken");
                    return self.fail_locked(state, Failure::Closed);
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

/// Frames of control messages.
impl Endpoint {
    /// Readable when [`Self::take_arrivals`] may have something.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.receive_channel.as_fd()
    }

    /// Takes the frames that came, in order, and sees to it that the next one makes the handle readable.
    pub(super) fn take_arrivals(&self, into: &mut VecDeque<Arrival>) -> Result<(), FabricError> {
        loop {
            self.poll_receives(into)?;
            if self.receive_channel.drain()? == 0 {
                return Ok(());
            }
            self.receive_queue.arm()?;
        }
    }

    fn poll_receives(&self, into: &mut VecDeque<Arrival>) -> Result<(), SysError> {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = self.receive_queue.poll(&mut completions)?;
            let mut state = self.state.lock();
            for completion in completions.iter().take(len) {
                state.receives_posted = state.receives_posted.saturating_sub(1);
                if completion.status == Status::Success {
                    let buffer = u16::try_from(completion.wr_id).unwrap_or(u16::MAX);
                    let len = (completion.byte_len as usize).min(FRAME_LEN);
                    into.push_back(Arrival { buffer, len });
                } else {
                    // What made the queue pair fail is told by the sends, if by anything.
                    self.poll_sends(&mut state);
                    self.fail_locked(&mut state, Failure::of(completion));
                }
            }
            if len < completions.len() {
                return Ok(());
            }
        }
    }

    /// Copies a frame out of its buffer.
    pub(super) fn read<'a>(&self, arrival: Arrival, into: &'a mut [u64; FRAME_LEN / WORD]) -> &'a [u8] {
        let (words, _) = into.split_at_mut(arrival.len.div_ceil(WORD));
        self.frames.region().copy_out(usize::from(arrival.buffer) * FRAME_LEN, words);
        let (frame, _) = bytemuck::cast_slice(words).split_at(arrival.len);
        frame
    }

    /// Gives the buffer of a frame back to be filled again.
    pub(super) fn release(&self, arrival: Arrival) -> Result<(), FabricError> {
        Ok(self.post_receive(arrival.buffer)?)
    }

    fn post_receive(&self, buffer: u16) -> Result<(), SysError> {
        let local =
            Slice { region: &self.frames, offset: usize::from(buffer) * FRAME_LEN, len: FRAME_LEN as u32 };
        let request = ReceiveRequest { wr_id: buffer.into(), local };
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return Ok(());
        }
        self.queue_pair.post_receive(&[request]).map_err(|refused| refused.error)?;
        state.receives_posted += 1;
        Ok(())
    }

    /// Whether a frame can be sent.
    pub(super) fn takes_frame(&self) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        state.failure.is_none() && !state.send_buffers.is_empty() && state.work.room() > 0
    }

    /// Whether frames are under way that the peer's device has not acknowledged.
    pub(super) fn has_frames_under_way(&self) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        state.frames_under_way > 0
    }

    /// Sends a frame; only after [`Self::takes_frame`] said that this can be done.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        if let Some(failure) = state.failure {
            return Err(failure.into());
        }
        let is_small = frame.len() <= self.queue_pair.inline_len_max() as usize;
        let buffer = if is_small { None } else { state.send_buffers.pop() };
        let operation = match buffer {
            None => Operation::SendInline { bytes: frame },
            Some(buffer) => {
                let offset = usize::from(buffer) * FRAME_LEN;
                self.frames.region().copy_in_bytes(offset, frame);
                let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
                Operation::Send { local: Slice { region: &self.frames, offset, len } }
            }
        };
        let id = state.work.begin(1, Work::Frame { buffer }).ok_or(VerbsError::PartlyPosted)?;
        state.frames_under_way += 1;
        let wr_id = id.request(true);
        let posted =
            self.queue_pair.post_send(&[SendRequest { wr_id, operation, signaled: true, fence: false }]);
        posted.map_err(|refused| {
            // The frame has left its queue, and cannot be put back.
            state.cancel(id);
            self.fail_locked(&mut state, Failure::PartlyPosted);
            refused.error.into()
        })
    }
}

/// One-sided operations.
impl Endpoint {
    /// Posts a batch of operations, which use this local memory, in order.
    pub(super) fn post<'a>(
        &self,
        flight: &Arc<Flight>,
        region: &Arc<MemoryRegion>,
        operations: impl Iterator<Item = Operation<'a>> + Clone,
    ) -> Result<Posted, FabricError> {
        let requests = operations.clone().count();
        let max = self.send_wr_max.saturating_sub(RESERVED);
        let too_long = || VerbsError::BatchTooLong { requests, max };
        let needed = u32::try_from(requests).ok().filter(|needed| *needed <= max).ok_or_else(too_long)?;
        let mut state = self.state.lock();
        if let Some(failure) = state.failure {
            return Err(failure.into());
        }
        if state.is_closed || flight.revoked.load(Ordering::Relaxed) {
            return Err(FabricError::Closed);
        }
        if state.work.room() < needed + RESERVED {
            self.poll_sends(&mut state);
        }
        if state.work.room() < needed + RESERVED {
            return Ok(Posted::NoRoom);
        }
        let work = Work::OneSided { flight: Arc::clone(flight), _region: Arc::clone(region) };
        let Some(id) = state.work.begin(needed, work) else { return Ok(Posted::NoRoom) };
        flight.batches.fetch_add(1, Ordering::Relaxed);
        self.post_chains(&mut state, id, needed, operations)
    }

    fn post_chains<'a>(
        &self,
        state: &mut State,
        id: BatchId,
        requests: u32,
        operations: impl Iterator<Item = Operation<'a>>,
    ) -> Result<Posted, FabricError> {
        let none = SendRequest {
            wr_id: 0,
            operation: Operation::SendInline { bytes: &[] },
            signaled: false,
            fence: false,
        };
        let (mut chain, mut filled, mut is_begun) = ([none; CHAIN_LEN_MAX], 0, false);
        for (operation, number) in operations.zip(1..) {
            let is_last = number == requests;
            if let Some(place) = chain.get_mut(filled) {
                *place =
                    SendRequest { wr_id: id.request(is_last), operation, signaled: is_last, fence: false };
                filled += 1;
            }
            if filled < CHAIN_LEN_MAX && !is_last {
                continue;
            }
            let (full, _) = chain.split_at(filled);
            if let Err(refused) = self.queue_pair.post_send(full) {
                if is_begun || refused.posted > 0 {
                    self.fail_locked(state, Failure::PartlyPosted);
                    return Err(refused.error.into());
                }
                state.cancel(id);
                let is_full = refused.is_full();
                return if is_full { Ok(Posted::NoRoom) } else { Err(refused.error.into()) };
            }
            (filled, is_begun) = (0, true);
        }
        Ok(Posted::Yes)
    }

    /// Batches of a flight that are not complete.
    pub(super) fn under_way(&self, flight: &Flight) -> Result<usize, FabricError> {
        let mut state = self.state.lock();
        state.end_wait(flight);
        self.poll_sends(&mut state);
        let batches = usize::try_from(flight.batches.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        match state.failure {
            Some(failure) if batches > 0 || flight.failed.load(Ordering::Relaxed) => Err(failure.into()),
            _ => Ok(batches),
        }
    }

    /// Lets no further batch of a flight begin, and says whether none is under way any more.
    pub(super) fn revoke(&self, flight: &Flight) -> bool {
        let mut state = self.state.lock();
        flight.revoked.store(true, Ordering::Relaxed);
        self.poll_sends(&mut state);
        flight.batches.load(Ordering::Relaxed) == 0
    }

    /// A handle that becomes readable when a batch of this flight is complete, or another one. `None` when there is none
    /// to wait for, though one may wait for `room`, or no handle.
    pub(super) fn wait_for(
        &self,
        flight: &Flight,
        room: bool,
    ) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        let Some(channel) = &self.send_channel else { return Ok(None) };
        let mut state = self.state.lock();
        if !flight.waits.swap(true, Ordering::Relaxed) {
            state.waiting += 1;
        }
        // An event may be meant for somebody who has not looked yet: he would wait in vain if it were taken away.
        if state.waiting == 1 {
            channel.drain()?;
        }
        self.send_queue.arm()?;
        self.poll_sends(&mut state);
        let is_complete = flight.batches.load(Ordering::Relaxed) == 0 && !room;
        let is_over = is_complete || state.failure.is_some();
        if is_over {
            state.end_wait(flight);
        }
        Ok((!is_over).then(|| channel.as_fd()))
    }

    /// Ends the waiting of an owner that is gone.
    pub(super) fn leave(&self, flight: &Flight) {
        self.state.lock().end_wait(flight);
    }
}

impl State {
    /// Takes note of the end of a work request.
    fn complete(&mut self, completion: &WorkCompletion) {
        if completion.status != Status::Success
            && let Some(Work::OneSided { flight, .. }) = self.work.of(completion.wr_id)
        {
            flight.failed.store(true, Ordering::Relaxed);
        }
        let work = self.work.complete(completion.wr_id);
        self.give_back(work);
    }

    /// Takes back a batch of which nothing was posted.
    fn cancel(&mut self, id: BatchId) {
        let work = self.work.cancel(id);
        self.give_back(work);
    }

    fn give_back(&mut self, work: Option<Work>) {
        match work {
            Some(Work::OneSided { flight, .. }) => {
                flight.batches.fetch_sub(1, Ordering::Relaxed);
            }
            Some(Work::Frame { buffer }) => {
                self.frames_under_way -= 1;
                self.send_buffers.extend(buffer);
            }
            None => {}
        }
    }

    fn end_wait(&mut self, flight: &Flight) {
        if flight.waits.swap(false, Ordering::Relaxed) {
            self.waiting -= 1;
        }
    }
}

impl Lent {
    fn of(&mut self, exposure: Exposure) -> &mut u32 {
        match exposure {
            Exposure::Read => &mut self.to_read,
            Exposure::Write => &mut self.to_write,
        }
    }

    fn flags(self) -> RemoteFlags {
        RemoteFlags { read: self.to_read > 0, write: self.to_write > 0 }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.fail(Failure::Closed);
        let (began_ns, mut arrivals) = (SystemClock.monotonic_ns(), VecDeque::new());
        loop {
            let _ = self.poll_receives(&mut arrivals);
            let mut state = self.state.lock();
            self.poll_sends(&mut state);
            let (batches, receives) = (state.work.len(), state.receives_posted);
            drop(state);
            if batches == 0 && receives == 0 {
                return;
            }
            if SystemClock.monotonic_ns() - began_ns > limits::DRAIN_NS {
                // Their memory stays registered until the queue pair is gone, and is then beyond the device's reach.
                tracing::warn!(target: "fabricast", batches, receives, "work requests were not given back");
                return;
            }
            SystemClock.pause(DRAIN_PAUSE);
        }
    }
}
