//! Completion queues, and the channels that report their events.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{
    ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_flags, ibv_wc_opcode as opcodes, ibv_wc_status as names,
};
use rustix::io::Errno;

use super::{Context, SysError, borrow, check, set_nonblocking, warn_left};

/// Completions polled from the device at once.
const POLL_LEN_MAX: usize = 16;

/// A descriptor that becomes readable when an armed completion queue has a completion.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for `Send`: the library locks its counters, and the kernel delivers each event to one reader.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Creates a channel.
    pub(in crate::fabric::verbs) fn create(context: &Arc<Context>) -> Result<Arc<Self>, SysError> {
        // SAFETY: the context is open, and the result holds it.
        let raw = unsafe { rdma_sys::ibv_create_comp_channel(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last("ibv_create_comp_channel"))?;
        let channel = Self { raw, context: Arc::clone(context) };
        set_nonblocking(channel.as_fd())?;
        Ok(Arc::new(channel))
    }

    /// Takes all events: the descriptor stops being readable. Queues that had one must be armed again, and
    /// then polled once more. Returns the number of events.
    pub(in crate::fabric::verbs) fn drain(&self) -> Result<usize, SysError> {
        let mut count = 0;
        loop {
            let mut queue: *mut ibv_cq = ptr::null_mut();
            let mut user = ptr::null_mut();
            // SAFETY: the channel lives as long as this value, and both places are local variables.
            let returned =
                unsafe { rdma_sys::ibv_get_cq_event(self.raw.as_ptr(), &raw mut queue, &raw mut user) };
            if returned != 0 {
                let error = SysError::last("ibv_get_cq_event");
                let is_over = error.is(Errno::AGAIN) || error.is(Errno::INTR);
                return if is_over { Ok(count) } else { Err(error) };
            }
            // SAFETY: the queue of an unacknowledged event is alive: its destruction waits for this call.
            unsafe { rdma_sys::ibv_ack_cq_events(queue, 1) };
            count += 1;
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this value, and nothing writes its descriptor.
        let handle = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor belongs to the channel, which lives as long as this value.
        unsafe { borrow(handle) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues hold their channel by Arc, so none of them is left; it is freed once.
        let returned = unsafe { rdma_sys::ibv_destroy_comp_channel(self.raw.as_ptr()) };
        warn_left("ibv_destroy_comp_channel", returned);
    }
}

/// Holds the completions of work requests.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    context: Arc<Context>,
    _channel: Option<Arc<CompletionChannel>>,
}

// SAFETY: functions of libibverbs may be called by any thread at any time; the object lives as long as this value.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Send`: the driver takes a lock of the queue when it is polled or armed.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with at least this many entries. An overrun loses completions and breaks the queue: it must hold
    /// all work requests of the queue pairs that it serves.
    pub(in crate::fabric::verbs) fn create(
        context: &Arc<Context>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<Arc<Self>, SysError> {
        const CALL: &str = "ibv_create_cq";
        let entries = c_int::try_from(entries).map_err(|_| SysError::new(CALL, Errno::INVAL))?;
        if channel.is_some_and(|channel| !channel.context.is_same(context)) {
            return Err(SysError::new(CALL, Errno::INVAL));
        }
        let raw_channel = channel.map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the context is open, the channel, if any, is of the same one; the result holds both.
        let raw = unsafe { rdma_sys::ibv_create_cq(context.raw(), entries, ptr::null_mut(), raw_channel, 0) };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last(CALL))?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context), _channel: channel.map(Arc::clone) }))
    }

    /// The library's object.
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    /// What tells it from the other completion queues that exist now.
    pub(in crate::fabric::verbs) fn id(&self) -> usize {
        self.raw.as_ptr().addr()
    }

    /// Its device.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Polls completions, at most as many as `into` holds, and returns their number.
    pub(in crate::fabric::verbs) fn poll(&self, into: &mut [WorkCompletion]) -> Result<usize, SysError> {
        // SAFETY: the structure is plain numbers, for which zeros are valid.
        let mut raw: [ibv_wc; POLL_LEN_MAX] = unsafe { std::mem::zeroed() };
        let room = into.len().min(POLL_LEN_MAX);
        let room_number = c_int::try_from(room).unwrap_or(0);
        // SAFETY: the queue lives as long as this value, and `completions` holds `room_number` entries.
        let len = unsafe { rdma_sys::ibv_poll_cq(self.raw(), room_number, raw.as_mut_ptr()) };
        let Ok(len) = usize::try_from(len) else {
            return Err(SysError::new("ibv_poll_cq", Errno::IO));
        };
        for (place, raw) in into.iter_mut().zip(&raw).take(len) {
            *place = WorkCompletion::new(raw);
        }
        Ok(len.min(room))
    }

    /// Polls one completion, if any. Cheaper than [`Self::poll`] where the queue is polled without pause.
    #[inline]
    pub(in crate::fabric::verbs) fn poll_one(&self) -> Result<Option<WorkCompletion>, SysError> {
        let mut raw = MaybeUninit::<ibv_wc>::zeroed();
        // SAFETY: the queue lives as long as this value, and there is a place for one completion.
        match unsafe { rdma_sys::ibv_poll_cq(self.raw(), 1, raw.as_mut_ptr()) } {
            0 => Ok(None),
            1 => {
                // SAFETY: zeroed, then filled by the call; the structure is plain numbers, for which zeros are valid.
                let raw = unsafe { raw.assume_init_ref() };
                Ok(Some(WorkCompletion::new(raw)))
            }
            _ => Err(SysError::new("ibv_poll_cq", Errno::IO)),
        }
    }

    /// Requests an event on the channel for the next completion. Existing completions cause none.
    pub(in crate::fabric::verbs) fn arm(&self) -> Result<(), SysError> {
        self.request_event(false)
    }

    /// Requests an event for the next message or failure, not for a write with an immediate number. [`Self::arm`] still takes effect
    /// afterwards; this has none after that until there was an event.
    pub(in crate::fabric::verbs) fn arm_for_messages(&self) -> Result<(), SysError> {
        self.request_event(true)
    }

    fn request_event(&self, is_solicited_only: bool) -> Result<(), SysError> {
        // SAFETY: the queue lives as long as this value; the driver locks it.
        let returned = unsafe { rdma_sys::ibv_req_notify_cq(self.raw(), is_solicited_only.into()) };
        check("ibv_req_notify_cq", returned)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queues by Arc, so none of them is left; all events are acknowledged where
        // they are taken; it is freed once.
        let returned = unsafe { rdma_sys::ibv_destroy_cq(self.raw()) };
        warn_left("ibv_destroy_cq", returned);
    }
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct WorkCompletion {
    /// The number of its work request.
    pub(in crate::fabric::verbs) wr_id: u64,
    /// Its status. After a failure only the number, this field, the next one and the queue pair are valid.
    pub(in crate::fabric::verbs) status: Status,
    /// The vendor's error code.
    pub(in crate::fabric::verbs) vendor_err: u32,
    /// Received bytes.
    pub(in crate::fabric::verbs) byte_len: u32,
    /// The number of the queue pair that sent a datagram.
    pub(in crate::fabric::verbs) source_queue_pair: u32,
    /// Whether a datagram begins with the header that shows its source.
    pub(in crate::fabric::verbs) has_header: bool,
    /// The number of the peer's write that took this receive, which leaves the buffer as it was.
    pub(in crate::fabric::verbs) immediate: Option<u32>,
    /// Whether a number came with the message in the buffer.
    pub(in crate::fabric::verbs) is_numbered: bool,
}

impl WorkCompletion {
    pub(super) fn new(raw: &ibv_wc) -> Self {
        let status = Status::from_number(raw.status);
        let is_whole = status == Status::Success;
        Self {
            wr_id: raw.wr_id,
            status,
            vendor_err: raw.vendor_err,
            byte_len: if is_whole { raw.byte_len } else { 0 },
            source_queue_pair: if is_whole { raw.src_qp } else { 0 },
            has_header: is_whole && raw.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 != 0,
            immediate: if is_whole { immediate(raw) } else { None },
            is_numbered: is_whole
                && raw.opcode == opcodes::IBV_WC_RECV
                && raw.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0,
        }
    }
}

fn immediate(raw: &ibv_wc) -> Option<u32> {
    // SAFETY: both variants of the union are numbers of the same size.
    let number = unsafe { raw.imm_data_invalidated_rkey_union.imm_data };
    (raw.opcode == opcodes::IBV_WC_RECV_RDMA_WITH_IMM).then(|| u32::from_be(number))
}

impl Default for WorkCompletion {
    fn default() -> Self {
        let status = Status::Success;
        let (byte_len, source_queue_pair) = (0, 0);
        Self {
            wr_id: 0,
            status,
            vendor_err: 0,
            byte_len,
            source_queue_pair,
            has_header: false,
            immediate: None,
            is_numbered: false,
        }
    }
}

/// The status of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum Status {
    /// Success.
    Success,
    /// Flushed: the queue pair had failed before.
    Flushed,
    /// The peer does not support the request.
    RemoteInvalidRequest,
    /// The peer does not permit it.
    RemoteAccess,
    /// The peer did not answer.
    RetryExceeded,
    /// The peer had no receive posted for too long.
    ReceiverNotReady,
    /// Another number.
    Other(u32),
}

impl Status {
    fn from_number(number: u32) -> Self {
        match number {
            names::IBV_WC_SUCCESS => Self::Success,
            names::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            names::IBV_WC_REM_INV_REQ_ERR => Self::RemoteInvalidRequest,
            names::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            names::IBV_WC_RETRY_EXC_ERR => Self::RetryExceeded,
            names::IBV_WC_RNR_RETRY_EXC_ERR => Self::ReceiverNotReady,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Success => "success",
            Self::Other(names::IBV_WC_LOC_LEN_ERR) => "the data exceeded its buffer",
            Self::Other(names::IBV_WC_LOC_QP_OP_ERR) => "the queue pair could not execute it",
            Self::Other(names::IBV_WC_LOC_PROT_ERR) => "local memory is not registered for it",
            Self::Flushed => "flushed after an earlier failure",
            Self::Other(names::IBV_WC_MW_BIND_ERR) => "a memory window could not be bound",
            Self::Other(names::IBV_WC_BAD_RESP_ERR) => "the response was invalid",
            Self::Other(names::IBV_WC_LOC_ACCESS_ERR) => {
                "a peer's request used local memory not registered for it"
            }
            Self::RemoteInvalidRequest => "the peer does not support the request",
            Self::RemoteAccess => "the peer does not permit it",
            Self::Other(names::IBV_WC_REM_OP_ERR) => "the peer could not execute it",
            Self::RetryExceeded => "the peer did not answer",
            Self::ReceiverNotReady => "the peer had no receive posted for too long",
            Self::Other(number) => return write!(out, "status {number}"),
        })
    }
}
