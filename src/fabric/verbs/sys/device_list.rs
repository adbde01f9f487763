//! The devices that librdmacm has opened, and how they are given back.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::OnceLock;

use rdma_sys::ibv_context;
use rustix::fs::{Mode, OFlags};
use rustix::io::{DupFlags, Errno};

use super::SysError;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A list of librdmacm's open devices. The library keeps a device open as long as there is a list that names it, or an identifier
/// that is bound to it.
pub(super) struct DeviceList {
    list: NonNull<*mut ibv_context>,
    len: usize,
}

// SAFETY: the list is written only when it is made and freed, and the library locks what it shares.
unsafe impl Send for DeviceList {}
// SAFETY: as for `Send`: shared values only read the list, which nothing writes.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Lists all current devices. The library opens new ones, and closes those that were removed and are in no list, if there are
    /// others.
    pub(super) fn take() -> Result<Self, SysError> {
        allow_forks();
        let mut len: c_int = 0;
        // SAFETY: the function only requires a place for the length, which is a local variable.
        let list = unsafe { rdma_sys::rdma_get_devices(&raw mut len) };
        let list = NonNull::new(list).ok_or_else(|| SysError::last("rdma_get_devices"))?;
        Ok(Self { list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// The devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        // SAFETY: the library reports that the list has this many entries; nothing writes it, and it is freed after this value.
        let devices = unsafe { slice::from_raw_parts(self.list.as_ptr(), self.len) };
        devices.iter().filter_map(|raw| NonNull::new(*raw))
    }
}

/// What `ibv_fork_init` has returned, once it was called.
static FORKS: OnceLock<i32> = OnceLock::new();

/// Has the queues of devices stay with this process when it forks. Before kernel 5.12 the first write after a fork moved a page of a queue
/// away from the device, unless the verbs library keeps such pages from the child (ibv_fork_init(3)); later kernels need nothing. Regions
/// are shared mappings, which a fork leaves where they are.
fn allow_forks() {
    FORKS.get_or_init(|| {
        // SAFETY: the function has no arguments, and refuses what it cannot do any more.
        let returned = unsafe { rdma_sys::ibv_fork_init() };
        if returned != 0 {
            let errno = Errno::from_raw_os_error(returned);
            tracing::debug!(target: "fabricast", %errno, "RDMA queues may not survive a fork: memory was registered before");
        }
        returned
    });
}

/// A device was removed since this process began.
static HAS_REMOVED: AtomicBool = AtomicBool::new(false);

/// Notes that a device was removed.
pub(super) fn note_removal() {
    HAS_REMOVED.store(true, Ordering::Release);
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // librdmacm (rdma-core 44) frees what it knows of a removed device and then reads it again for the next entry of the list. So such
        // a list stays, some words for each time that the devices are listed.
        if self.len > 1 && HAS_REMOVED.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the library made the list, and it is freed once. A context of it that is still used is in another list that its user
        // holds. No entry follows one of a removed device: the list has one entry, or no device is known to have been removed.
        unsafe { rdma_sys::rdma_free_devices(self.list.as_ptr()) };
    }
}

impl std::fmt::Debug for DeviceList {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("DeviceList").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Has the kernel take a device that was removed for closed by this process. Some drivers, that of soft-RoCE for one, finish the removal of
/// a device only then, and librdmacm never closes the last device of a host. So its descriptors refer to something else from now on; the
/// library closes them if it ever closes the device.
///
/// # Safety
///
/// The context must be open, and nothing may use it any more, other than to be closed.
pub(super) unsafe fn leave(context: NonNull<ibv_context>) {
    // Nothing can be done with such a descriptor but to close it.
    let Ok(nothing) = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return };
    // SAFETY: the context is open, and the field is written only when it is opened.
    let commands = unsafe { (*context.as_ptr()).cmd_fd };
    // SAFETY: the context is open, and this field, too, is written only when it is opened.
    let events = unsafe { (*context.as_ptr()).async_fd };
    for descriptor in [commands, events] {
        // SAFETY: the descriptor belongs to the context, which is open, and is not closed here: it stays that of the context.
        let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(descriptor) });
        if let Err(error) = rustix::io::dup3(&nothing, &mut place, DupFlags::CLOEXEC) {
            tracing::warn!(target: "fabricast", %error, "an RDMA device that was removed is still open");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Later kernels need nothing, and the library says so whether it was asked or not.
    #[test]
    #[ignore = "needs an RDMA device"]
    fn queues_are_kept_from_forked_processes_where_kernels_need_it() {
        let _devices = DeviceList::take().unwrap();
        assert_eq!(FORKS.get(), Some(&0));
        // SAFETY: the function has no arguments, and reads what the library knows.
        let status = unsafe { rdma_sys::ibv_is_fork_initialized() };
        assert_ne!(status, rdma_sys::IBV_FORK_DISABLED);
    }
}
