//! libibverbs and librdmacm as safe handles.
//!
//! Each foreign function is called in one place. A handle owns its object, holds what the object needs by `Arc`, and
//! releases it on drop, so that any drop order is correct. Numbers from the device or the
//! kernel are converted to types here, and unknown ones are kept as numbers; no C enumeration is read as a Rust one.
//!
//! Only the classic verbs are used: the bindings to the extended ones are broken on 64-bit machines.

#![expect(unsafe_code, reason = "the C bindings consist of unsafe functions and raw pointers")]

mod address_handle;
mod completion;
mod context;
mod device_list;
mod domain;
mod event;
mod identifier;
mod manager;
mod prepared;
mod presence;
mod queue_pair;
mod region;
#[cfg(test)]
mod tests;
mod window;
mod work;

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

pub(super) use address_handle::{AddressHandle, Path};
pub(super) use completion::{CompletionChannel, CompletionQueue, Status, WorkCompletion};
#[cfg(test)]
pub(super) use context::PortState;
pub(super) use context::{Context, Gid, GidKind, LinkLayer, PortAttributes};
pub(super) use domain::ProtectionDomain;
#[cfg(test)]
pub(super) use event::AsyncEvent;
pub(super) use event::{Concern, DeviceUser, fail_all};
pub(super) use identifier::{EventChannel, tend_destroyers};
#[cfg(test)]
pub(super) use identifier::{are_identifiers_destroyed, destroyers};
pub(super) use manager::{CmEvent, CmEventKind, CmId, ConnectParameters, JoinedGroup, Membership, PortSpace};
pub(super) use prepared::{Local, PreparedReceives, PreparedSends, Verb};
#[cfg(test)]
use queue_pair::QueuePairState;
pub(super) use queue_pair::{QueuePair, QueuePairKind, QueuePairPlan, RemoteFlags, RtrPlan, RtsPlan};
pub(super) use region::{MemoryRegion, RemoteAccess};
use rustix::io::Errno;
pub(super) use window::MemoryWindow;
pub(super) use work::{
    CHAIN_LEN_MAX, Operation, ReceiveRequest, Receiver, Remote, SendChain, SendRequest, Slice,
};

/// A failed call to libibverbs or librdmacm.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {reason}")]
pub(super) struct SysError {
    /// The function that failed.
    pub(super) call: &'static str,
    /// Why.
    pub(super) reason: io::Error,
}

impl SysError {
    /// The failure of a call with its reason in `errno`.
    fn last(call: &'static str) -> Self {
        Self { call, reason: io::Error::last_os_error() }
    }

    /// The failure of a call for this reason.
    pub(super) fn new(call: &'static str, errno: Errno) -> Self {
        Self { call, reason: errno.into() }
    }

    /// Whether memory, a queue or the limit of locked memory is exhausted.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.is(Errno::NOMEM)
    }

    /// Whether an argument is out of the device's range.
    pub(super) fn is_invalid(&self) -> bool {
        self.is(Errno::INVAL)
    }

    /// Whether the address is in use.
    pub(super) fn is_address_in_use(&self) -> bool {
        self.is(Errno::ADDRINUSE)
    }

    /// Whether no device has the address.
    pub(super) fn is_no_address(&self) -> bool {
        self.is(Errno::NODEV) || self.is(Errno::ADDRNOTAVAIL)
    }

    fn is(&self, errno: Errno) -> bool {
        self.reason.raw_os_error() == Some(errno.raw_os_error())
    }
}

/// The result of a call that returns 0 or the error number: positive, negated as by some drivers, or -1
/// with the error in `errno`.
fn check(call: &'static str, returned: c_int) -> Result<(), SysError> {
    match returned {
        0 => Ok(()),
        -1 => Err(SysError::last(call)),
        number => Err(SysError { call, reason: io::Error::from_raw_os_error(number.saturating_abs()) }),
    }
}

/// Makes a descriptor of the library non-blocking.
fn set_nonblocking(handle: BorrowedFd<'_>) -> Result<(), SysError> {
    let failed = |errno| SysError::new("fcntl", errno);
    let flags = rustix::fs::fcntl_getfl(handle).map_err(failed)?;
    rustix::fs::fcntl_setfl(handle, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

/// Borrows a descriptor that belongs to an object of the library.
///
/// # Safety
///
/// The object that the descriptor belongs to must outlive the result, and so keep it open.
unsafe fn borrow<'a>(handle: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller ensures that the descriptor stays open; the libraries never return -1 with an object.
    unsafe { BorrowedFd::borrow_raw(handle) }
}

/// Logs that an object could not be released. It then leaks until the process ends.
fn warn_left(call: &'static str, returned: c_int) {
    if let Err(error) = check(call, returned) {
        tracing::warn!(target: "fabricast", %error, "an object of an RDMA device could not be released");
    }
}
