//! What can go wrong with RDMA, in sentences that say what to do.

use std::net::IpAddr;

use super::sys::SysError;

/// What can go wrong with RDMA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The host has no device.
    #[error(
        "this host has no RDMA device; `rdma link` lists them, and `modprobe rdma_rxe && rdma link add rxe0 type rxe \
         netdev eth0` makes one of an Ethernet interface"
    )]
    NoDevice,
    /// There are devices, and no files to reach them by.
    #[error(
        "the RDMA devices ({devices}) cannot be reached: there is no /dev/infiniband/uverbs0; load the modules ib_uverbs and \
         rdma_ucm, or give the container --device=/dev/infiniband"
    )]
    NoDeviceFiles {
        /// What the kernel has.
        devices: String,
    },
    /// The files of the devices are closed to this user.
    #[error(
        "this user may not use the RDMA devices: no permission to read and write {files}; `chmod a+rw` them, or let a \
         udev rule do it"
    )]
    NotPermitted {
        /// Which files.
        files: String,
    },
    /// The device that was asked for is not there.
    #[error(
        "there is no RDMA device or port {wanted}; FABRICAST_RDMA_DEVICE names the one to use; there is: {found}"
    )]
    NoSuchDevice {
        /// Its name, and the port, if one was asked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// No port can be used.
    #[error(
        "no port of an RDMA device is active; `ip link set IFACE up` for its interface, or check the cable and the subnet \
         manager; there is: {found}"
    )]
    NoActivePort {
        /// What there is.
        found: String,
    },
    /// No device has the local address.
    #[error(
        "no active RDMA device has the address {address}; use one of a device's interface, or give it this one with `ip \
         address add`; there is: {found}"
    )]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
        /// What there is.
        found: String,
    },
    /// The port has no address of its own.
    #[error(
        "the RDMA device has no address (GID) that can be used; give its interface an IP address, or set \
         FABRICAST_RDMA_GID_INDEX to one it has; there is: {found}"
    )]
    NoGid {
        /// What there is.
        found: String,
    },
    /// A variable of the environment is not what it should be.
    #[error("{variable}={value} is not {wanted}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// More memory would be locked than this process may lock.
    #[error(
        "cannot register {len} bytes with the RDMA device: {registered} bytes are registered, and the limit of locked \
         memory is {limit}; raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit of systemd, or memlock \
         in /etc/security/limits.conf"
    )]
    LockedMemory {
        /// Bytes to be registered.
        len: usize,
        /// Bytes that this process has registered.
        registered: u64,
        /// Bytes that it may lock.
        limit: u64,
    },
    /// The device or the kernel has no memory, though this process may lock as much as it likes.
    #[error(
        "cannot register {len} bytes with the RDMA device: it has no room for them besides the {registered} bytes that \
         are registered; free memory, or use smaller repositories"
    )]
    NoMemory {
        /// Bytes to be registered.
        len: usize,
        /// Bytes that this process has registered.
        registered: u64,
    },
    /// A function of libibverbs or librdmacm failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The function.
        call: &'static str,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl From<SysError> for VerbsError {
    fn from(error: SysError) -> Self {
        let (call, source) = error.into_parts();
        Self::Call { call, source }
    }
}
