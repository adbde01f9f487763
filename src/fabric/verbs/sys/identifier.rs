//! Event channels, and the identifiers of connections as whoever holds them keeps them.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_sys::{rdma_cm_id, rdma_event_channel};
use rustix::io::Errno;

use super::{SysError, borrow, check, set_nonblocking, warn_left};

/// Where the events of connections appear.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct EventChannel {
    pub(super) raw: NonNull<rdma_event_channel>,
    /// Held while an event is taken, which may change the identifier it concerns and its queue pair, and while one of
    /// those is changed or given back.
    pub(super) busy: Mutex<()>,
}

// SAFETY: librdmacm locks what it shares between threads; what it does not lock of an identifier is under `busy`.
unsafe impl Send for EventChannel {}
// SAFETY: as for `Send`: events are taken under `busy`, the descriptor is written when the channel is made only.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// A new one.
    pub(in crate::fabric::verbs) fn create() -> Result<Arc<Self>, SysError> {
        // SAFETY: the function has no requirement; it says by a null pointer that it failed.
        let raw = unsafe { rdma_sys::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last("rdma_create_event_channel"))?;
        let channel = Self { raw, busy: Mutex::new(()) };
        set_nonblocking(channel.as_fd())?;
        Ok(Arc::new(channel))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there as long as this value, and nobody writes its descriptor.
        let handle = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor belongs to the channel, which is there as long as this value.
        unsafe { borrow(handle) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel by Arc, so that none of them is left; it is freed once.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// An identifier, which the queue pair that was made on it holds, too.
#[derive(Debug)]
pub(super) struct IdHandle {
    pub(super) raw: NonNull<rdma_cm_id>,
    /// Where its events appear. Locked, together with the channel, while the identifier is used.
    pub(super) channel: Mutex<Arc<EventChannel>>,
}

// SAFETY: the identifier is only used under the locks of its channel, see `EventChannel::busy`.
unsafe impl Send for IdHandle {}
// SAFETY: as for `Send`: each method takes the locks before it gives the identifier to the library.
unsafe impl Sync for IdHandle {}

impl IdHandle {
    pub(super) fn new(raw: NonNull<rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, channel: Mutex::new(Arc::clone(channel)) }
    }

    /// Calls a function of the library with the identifier, while nobody else uses it.
    pub(super) fn with<T>(&self, call: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
        let channel = self.channel.lock();
        let _busy = channel.busy.lock();
        call(self.raw.as_ptr())
    }

    /// Calls a function of the library that takes for granted that the identifier is bound to a device.
    pub(super) fn with_device(
        &self,
        call: &'static str,
        then: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<(), SysError> {
        let returned = self.with(|id| {
            // SAFETY: the identifier is there as long as this value, and its device is written by calls under the lock.
            let verbs = unsafe { (*id).verbs };
            (!verbs.is_null()).then(|| then(id))
        });
        check(call, returned.ok_or_else(|| SysError::new(call, Errno::NODEV))?)
    }

    /// Destroys the queue pair that was made on it.
    pub(super) fn destroy_queue_pair(&self) {
        // SAFETY: the one queue pair of the identifier is being dropped, and nothing refers to it; the identifier is
        // there as long as this value.
        self.with(|id| unsafe { rdma_sys::rdma_destroy_qp(id) });
    }
}

impl Drop for IdHandle {
    fn drop(&mut self) {
        // SAFETY: the queue pair made on the identifier holds it by Arc, so that there is none; all events are
        // acknowledged where they are taken; it is destroyed once.
        let returned = self.with(|id| unsafe { rdma_sys::rdma_destroy_id(id) });
        warn_left("rdma_destroy_id", returned);
    }
}
