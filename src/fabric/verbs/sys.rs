//! libibverbs and librdmacm as safe handles.
//!
//! Each foreign function is called in one place. A handle owns its object, holds what the object needs by `Arc`, and
//! gives it back when it is dropped, so that no order of drops can be wrong. Numbers that come from the device or the
//! kernel are turned into types here, and unknown ones are kept as numbers; no enumeration of C is read as one.
//!
//! Only the classic verbs are used: the bindings' way to the extended ones is broken on 64-bit machines.

#![expect(unsafe_code, reason = "the bindings to C are nothing but unsafe functions and raw pointers")]

mod address_handle;
mod completion;
mod context;
mod identifier;
mod manager;
mod queue_pair;
mod region;
#[cfg(test)]
mod tests;
mod work;

use std::ffi::c_int;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

pub(super) use address_handle::{AddressHandle, Path};
pub(super) use completion::{CompletionChannel, CompletionQueue, Status, WorkCompletion};
#[cfg(test)]
pub(super) use context::PortState;
pub(super) use context::{
    AsyncEventKind, Context, Gid, GidKind, LinkLayer, PortAttributes, ProtectionDomain,
};
pub(super) use identifier::EventChannel;
pub(super) use manager::{CmEvent, CmEventKind, CmId, ConnectParameters, JoinedGroup, Membership, PortSpace};
#[cfg(test)]
use queue_pair::QueuePairState;
pub(super) use queue_pair::{QueuePair, QueuePairKind, QueuePairPlan, RemoteFlags, RtrPlan, RtsPlan};
pub(super) use region::{MemoryRegion, RemoteAccess};
use rustix::io::Errno;
pub(super) use work::{
    CHAIN_LEN_MAX, Operation, ReceiveRequest, Receiver, Remote, SendChain, SendRequest, Slice,
};

/// A call to libibverbs or librdmacm that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call} failed: {source}")]
pub(super) struct SysError {
    call: &'static str,
    #[source]
    source: io::Error,
}

impl SysError {
    /// The failure of a call that left its reason in `errno`.
    fn last(call: &'static str) -> Self {
        Self { call, source: io::Error::last_os_error() }
    }

    /// The failure of a call for this reason.
    pub(super) fn new(call: &'static str, errno: Errno) -> Self {
        Self { call, source: errno.into() }
    }

    /// The function that failed, and why.
    pub(super) fn into_parts(self) -> (&'static str, io::Error) {
        (self.call, self.source)
    }

    /// Whether there was no memory, no room in a queue, or the limit of locked memory was met.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.is(Errno::NOMEM)
    }

    /// Whether the address is used by somebody else.
    pub(super) fn is_address_in_use(&self) -> bool {
        self.is(Errno::ADDRINUSE)
    }

    /// Whether no device has the address.
    pub(super) fn is_no_address(&self) -> bool {
        self.is(Errno::NODEV) || self.is(Errno::ADDRNOTAVAIL)
    }

    fn is(&self, errno: Errno) -> bool {
        self.source.raw_os_error() == Some(errno.raw_os_error())
    }
}

/// The result of a call that returns 0 or the reason of its failure: positive, or negated, as some drivers do it, or -1
/// with the reason in `errno`.
fn check(call: &'static str, returned: c_int) -> Result<(), SysError> {
    match returned {
        0 => Ok(()),
        -1 => Err(SysError::last(call)),
        reason => {
            let source = io::Error::from_raw_os_error(reason.saturating_abs());
            Err(SysError { call, source })
        }
    }
}

/// Makes reads of a descriptor of the library return at once.
fn set_nonblocking(handle: BorrowedFd<'_>) -> Result<(), SysError> {
    let failed = |errno| SysError::new("fcntl", errno);
    let flags = rustix::fs::fcntl_getfl(handle).map_err(failed)?;
    rustix::fs::fcntl_setfl(handle, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}

/// Borrows a descriptor that belongs to an object of the library.
///
/// # Safety
///
/// The object that the descriptor belongs to must live, and so keep it open, as long as the result.
unsafe fn borrow<'a>(handle: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller sees to it that the descriptor stays open; libraries never hand out -1 with an object.
    unsafe { BorrowedFd::borrow_raw(handle) }
}

/// Says that an object could not be given back. It is left to the end of the process then.
fn warn_left(call: &'static str, returned: c_int) {
    if let Err(error) = check(call, returned) {
        tracing::warn!(target: "fabricast", %error, "an object of an RDMA device could not be released");
    }
}
