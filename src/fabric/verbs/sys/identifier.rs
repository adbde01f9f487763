//! Event channels, and the shared handles of connection identifiers.

use std::ffi::c_int;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdma_sys::{rdma_cm_id, rdma_event_channel};
use rustix::io::Errno;

use super::{SysError, borrow, check, set_nonblocking, warn_left};
use crate::fabric::Worker;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Destroys the identifiers of connections on threads of its own, because the kernel may block until the network answers.
static DESTROYERS: OnceLock<Worker> = OnceLock::new();

/// Delivers the events of connections.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct EventChannel {
    pub(super) raw: NonNull<rdma_event_channel>,
    /// Held while an event is taken, which may change its identifier and that one's queue pair, and while one of
    /// those is changed or released.
    pub(super) busy: Mutex<()>,
}

// SAFETY: librdmacm locks what it shares between threads; what it does not lock of an identifier is under `busy`.
unsafe impl Send for EventChannel {}
// SAFETY: as for `Send`: events are taken under `busy`, the descriptor is written only when the channel is created.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    /// Creates a channel.
    pub(in crate::fabric::verbs) fn create() -> Result<Arc<Self>, SysError> {
        // SAFETY: the function has no requirements; it returns a null pointer on failure.
        let raw = unsafe { rdma_sys::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(|| SysError::last("rdma_create_event_channel"))?;
        let channel = Self { raw, busy: Mutex::new(()) };
        set_nonblocking(channel.as_fd())?;
        Ok(Arc::new(channel))
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this value, and nothing writes its descriptor.
        let handle = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor belongs to the channel, which lives as long as this value.
        unsafe { borrow(handle) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel by Arc, so none of them is left; it is freed once.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

/// An identifier, shared with the queue pair created on it.
#[derive(Debug)]
pub(super) struct IdHandle {
    pub(super) raw: NonNull<rdma_cm_id>,
    /// Delivers its events. Locked, together with the channel, while the identifier is used.
    pub(super) channel: Mutex<Arc<EventChannel>>,
    /// It is one of a connection, with a peer that may be dead.
    has_peer: AtomicBool,
}

// SAFETY: the identifier is only used under the locks of its channel, see `EventChannel::busy`.
unsafe impl Send for IdHandle {}
// SAFETY: as for `Send`: each method takes the locks before it passes the identifier to the library.
unsafe impl Sync for IdHandle {}

impl IdHandle {
    pub(super) fn new(raw: NonNull<rdma_cm_id>, channel: &Arc<EventChannel>) -> Self {
        Self { raw, channel: Mutex::new(Arc::clone(channel)), has_peer: AtomicBool::new(false) }
    }

    /// Notes that it is one of a connection. It is destroyed in the background then.
    pub(super) fn set_peer(&self) {
        self.has_peer.store(true, Ordering::Relaxed);
    }

    /// Calls a function of the library with exclusive access to the identifier.
    pub(super) fn with<T>(&self, call: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
        let channel = self.channel.lock();
        let _busy = channel.busy.lock();
        call(self.raw.as_ptr())
    }

    /// Calls a function of the library that requires the identifier to be bound to a device.
    pub(super) fn with_device(
        &self,
        call: &'static str,
        then: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<(), SysError> {
        let returned = self.with(|id| {
            // SAFETY: the identifier lives as long as this value, and its device is written by calls under the lock.
            let verbs = unsafe { (*id).verbs };
            (!verbs.is_null()).then(|| then(id))
        });
        check(call, returned.ok_or_else(|| SysError::new(call, Errno::NODEV))?)
    }

    /// Destroys the queue pair created on it.
    pub(super) fn destroy_queue_pair(&self) {
        // SAFETY: the one queue pair of the identifier is being dropped, and nothing refers to it; the identifier
        // lives as long as this value.
        self.with(|id| unsafe { rdma_sys::rdma_destroy_qp(id) });
    }
}

impl Drop for IdHandle {
    fn drop(&mut self) {
        let last = LastHandle { raw: self.raw, channel: Arc::clone(self.channel.get_mut()) };
        if self.has_peer.load(Ordering::Relaxed) {
            DESTROYERS.get_or_init(Worker::default).run(move || drop(last));
        } else {
            // Its address is free at once.
            drop(last);
        }
    }
}

/// Retries starting a thread for identifiers that could not be destroyed for lack of one.
pub(in crate::fabric::verbs) fn tend_destroyers() {
    DESTROYERS.get().into_iter().for_each(Worker::tend);
}

/// What destroys in the background.
#[cfg(test)]
pub(in crate::fabric::verbs) fn destroyers() -> &'static Worker {
    DESTROYERS.get_or_init(Worker::default)
}

/// Whether nothing is destroyed in the background at the moment.
#[cfg(test)]
pub(in crate::fabric::verbs) fn are_identifiers_destroyed() -> bool {
    DESTROYERS.get().is_none_or(Worker::is_done)
}

/// An identifier that is destroyed when this is dropped, and the channel that it needs until then.
struct LastHandle {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

// SAFETY: nothing else refers to the identifier any more, and any thread may destroy it, under the lock of its channel.
unsafe impl Send for LastHandle {}

impl Drop for LastHandle {
    fn drop(&mut self) {
        let busy = self.channel.busy.lock();
        // SAFETY: the queue pair created on the identifier held its handle by Arc, so none exists; all events are
        // acknowledged where they are taken; it is destroyed once.
        let returned = unsafe { rdma_sys::rdma_destroy_id(self.raw.as_ptr()) };
        drop(busy);
        warn_left("rdma_destroy_id", returned);
    }
}
