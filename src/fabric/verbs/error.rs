//! Errors of RDMA, worded to say what to do.

use std::net::{IpAddr, Ipv4Addr};

use super::sys::{Status, SysError, WorkCompletion};

/// An error of RDMA.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The host has no RDMA device.
    #[error(
        "this host has no RDMA device; `rdma link` lists them, and `modprobe rdma_rxe && rdma link add rxe0 type rxe \
         netdev eth0` makes one of an Ethernet interface"
    )]
    NoDevice,
    /// The kernel has devices, but their device files are missing.
    #[error(
        "the RDMA devices ({devices}) cannot be reached: there is no /dev/infiniband/uverbs0; load the modules ib_uverbs and \
         rdma_ucm, or give the container --device=/dev/infiniband"
    )]
    NoDeviceFiles {
        /// The kernel's devices.
        devices: String,
    },
    /// This user may not open the device files.
    #[error(
        "this user may not use the RDMA devices: no permission to read and write {files}; `chmod a+rw` them, or let a \
         udev rule do it"
    )]
    NotPermitted {
        /// The files.
        files: String,
    },
    /// The requested device does not exist.
    #[error("no RDMA device or port {wanted}; FABRICAST_RDMA_DEVICE selects the device; available: {found}")]
    NoSuchDevice {
        /// The requested device, and the port, if given.
        wanted: String,
        /// The devices of this host.
        found: String,
    },
    /// No port is active.
    #[error(
        "no port of an RDMA device is active; `ip link set IFACE up` for its interface, or check the cable and the subnet \
         manager; available: {found}"
    )]
    NoActivePort {
        /// The devices of this host.
        found: String,
    },
    /// No active device has the local address.
    #[error(
        "no active RDMA device has the address {address}; use one of a device's interface, or give it this one with `ip \
         address add`; available: {found}"
    )]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
        /// The devices of this host.
        found: String,
    },
    /// The local address does not identify a device.
    #[error(
        "the addresses (GIDs) of InfiniBand ports are not IP addresses, so {address} does not identify a device; set \
         FABRICAST_RDMA_GID_INDEX=0, and FABRICAST_RDMA_DEVICE if there are several devices; available: {found}"
    )]
    NoIpAddress {
        /// The address.
        address: IpAddr,
        /// The devices of this host.
        found: String,
    },
    /// The route to a peer leaves from an interface without an RDMA device.
    #[error(
        "the route to {route}, which no active RDMA device owns; check the \
         address and the routes, or name the device in FABRICAST_RDMA_DEVICE; available: {found}"
    )]
    NoRoute {
        /// The peer's address, and the local address that the route leaves from.
        route: String,
        /// The devices of this host.
        found: String,
    },
    /// The port has no usable address.
    #[error(
        "the RDMA device has no usable address (GID); give its interface an IP address, or set \
         FABRICAST_RDMA_GID_INDEX to one of its addresses; available: {found}"
    )]
    NoGid {
        /// The devices of this host.
        found: String,
    },
    /// An environment variable has an invalid value.
    #[error("{variable}={value} is not {wanted}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        wanted: &'static str,
    },
    /// The process would exceed its limit of locked memory.
    #[error(
        "cannot register {len} bytes with the RDMA device: {registered} bytes are registered, and the limit of locked \
         memory is {limit}; raise it with `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit of systemd, or memlock \
         in /etc/security/limits.conf"
    )]
    LockedMemory {
        /// Bytes to register.
        len: usize,
        /// Bytes registered by this process.
        registered: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The device or the kernel is out of memory, below the limit of locked memory.
    #[error(
        "cannot register {len} bytes with the RDMA device: out of memory beside the {registered} bytes that \
         are registered; free memory, or use smaller repositories"
    )]
    NoMemory {
        /// Bytes to register.
        len: usize,
        /// Bytes registered by this process.
        registered: u64,
    },
    /// The host has no address.
    #[error("the host name {host} has no address; write its IP address instead")]
    UnknownHost {
        /// The name.
        host: String,
        /// The resolver's error.
        #[source]
        source: std::io::Error,
    },
    /// A node is to listen, but has no address to listen at.
    #[error("the node has no address to listen at; give it one of an RDMA interface of this host")]
    NoListenAddress,
    /// The address belongs to a device other than the selected one.
    #[error("the address belongs to the RDMA device {found}, but {chosen} was selected")]
    OtherDevice {
        /// The device of the address.
        found: String,
        /// The selected device.
        chosen: String,
    },
    /// A program other than a node of this version listens at the address.
    #[error("the program that listens there is not a node of this version; check address and port")]
    NotANode,
    /// A peer claims the address of another host, or of another interface.
    #[error(
        "the peer's RDMA device has the address (GID) {claimed}, but its TCP connection comes from {address}: on a host with \
         several addresses both must be the same, that of the RDMA interface; dial that one, and unset \
         FABRICAST_RDMA_GID_INDEX there"
    )]
    OtherAddress {
        /// The claimed address.
        claimed: IpAddr,
        /// The address of its TCP connection.
        address: IpAddr,
    },
    /// The peer refused the connection.
    #[error("the peer refused the connection: {why}")]
    Refused {
        /// The peer's reason.
        why: &'static str,
    },
    /// The connection could not be established.
    #[error("the connection could not be made: {event}, status {status}; check the address and retry")]
    NotConnected {
        /// The event of the connection manager.
        event: String,
        /// The status of the event.
        status: i32,
    },
    /// The device of the connection is gone.
    #[error("the RDMA device of the connection is gone; connect again")]
    DeviceGone,
    /// The device at whose address a node listens was removed.
    #[error("the RDMA device at {address} was removed: no peer reaches this node over RDMA until it is back")]
    NotListening {
        /// The address.
        address: String,
    },
    /// The device reported that the connection's queue pair, a completion queue of it, or the device itself broke.
    #[error(
        "the RDMA device reports a fault of the connection: {event}; connect again, and check the device if that fails, too"
    )]
    DeviceFault {
        /// The asynchronous event, as libibverbs names it.
        event: &'static str,
    },
    /// The peer's device refused access to its memory.
    #[error("the peer does not allow this access to its memory: it withdrew the region, or never exposed it")]
    RemoteAccess,
    /// The peer's device stopped answering.
    #[error("the peer's host stopped answering: check that it is up, and the network between")]
    NoAnswer,
    /// A work request failed for another reason.
    #[error("a work request failed: {status} (vendor code {vendor:#x})")]
    Failed {
        /// The status of its completion.
        status: String,
        /// The vendor's error code.
        vendor: u32,
    },
    /// The device accepted only some work requests of a batch.
    #[error("the RDMA device accepted only part of a batch of work requests; connect again")]
    PartlyPosted,
    /// The peer sent a malformed frame.
    #[error("the peer sent a malformed frame: {why}")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// A batch needs more work requests than a queue holds.
    #[error("a batch of {requests} work requests exceeds the limit of {max}; use smaller payloads")]
    BatchTooLong {
        /// Work requests of the batch.
        requests: usize,
        /// The limit.
        max: u32,
    },
    /// Too many batches wait for the send queue.
    #[error("{max} batches of writes already wait for the send queue; let some complete first")]
    QueueFull {
        /// The limit.
        max: usize,
    },
    /// The host could not join a multicast group.
    #[error(
        "the multicast group {group} could not be joined (status {status}): check that the interface is up and that its \
         network carries multicast; unicast datagrams to this host still arrive"
    )]
    NotJoined {
        /// The group.
        group: Ipv4Addr,
        /// The status of the connection manager's event.
        status: i32,
    },
    /// The device could not attach another queue pair to a multicast group.
    #[error(
        "the RDMA device accepts no more members of the multicast group {group}; soft-RoCE allows 56 per host: subscribe \
         in fewer processes, or with one node in each; unicast datagrams to this one still arrive"
    )]
    GroupFull {
        /// The group.
        group: Ipv4Addr,
    },
    /// This connection cannot have a channel.
    #[error("this connection cannot have a datagram channel: {why}")]
    NoChannel {
        /// Why not.
        why: &'static str,
    },
    /// The peer sent an invalid channel ticket.
    #[error("invalid channel ticket from the peer: {why}")]
    BadTicket {
        /// What is wrong with it.
        why: &'static str,
    },
    /// A datagram could not be sent.
    #[error(
        "a datagram could not be sent: {status} (vendor code {vendor:#x}); check that the interface is up"
    )]
    NotSent {
        /// The status of its completion.
        status: String,
        /// The vendor's error code.
        vendor: u32,
    },
    /// A function of libibverbs or librdmacm failed.
    #[error("{call} failed")]
    Call {
        /// The function.
        call: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl VerbsError {
    /// Whether the queue pair is unusable after this error.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::RemoteAccess
                | Self::NoAnswer
                | Self::Failed { .. }
                | Self::PartlyPosted
                | Self::DeviceGone
                | Self::DeviceFault { .. }
                | Self::Malformed { .. }
        )
    }
}

impl From<SysError> for VerbsError {
    fn from(SysError { call, reason }: SysError) -> Self {
        Self::Call { call, source: reason }
    }
}

/// Why work requests of a queue pair fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The connection is closed.
    Closed,
    /// The queue pair has returned its work, for a reason that only the device may report: the peer, or a fault.
    Flushed,
    /// The device accepted only part of a batch.
    PartlyPosted,
    /// The peer's host has not answered for too long.
    Silent,
    /// The device reported this fault.
    Device(&'static str),
    /// The device was removed.
    Removed,
    /// The peer sent a malformed frame.
    Malformed(&'static str),
    /// A work request failed.
    Completion {
        /// The status of its completion.
        status: Status,
        /// The vendor's error code.
        vendor: u32,
    },
}

impl Failure {
    /// The failure that this completion reports. A flushed completion follows an earlier failure.
    pub(super) fn of(completion: &WorkCompletion) -> Self {
        match completion.status {
            Status::Flushed => Self::Flushed,
            status => Self::Completion { status, vendor: completion.vendor_err },
        }
    }

    /// The failure as an error; `None` if the connection is merely closed.
    pub(super) fn error(self) -> Option<VerbsError> {
        Some(match self {
            Self::Closed | Self::Flushed => return None,
            Self::PartlyPosted => VerbsError::PartlyPosted,
            Self::Silent => VerbsError::NoAnswer,
            Self::Device(event) => VerbsError::DeviceFault { event },
            Self::Removed => VerbsError::DeviceGone,
            Self::Malformed(why) => VerbsError::Malformed { why },
            // The second status is that of a queue pair whose peer grants no remote access at all.
            Self::Completion { status: Status::RemoteAccess | Status::RemoteInvalidRequest, .. } => {
                VerbsError::RemoteAccess
            }
            Self::Completion { status: Status::RetryExceeded, .. } => VerbsError::NoAnswer,
            Self::Completion { status, vendor } => VerbsError::Failed { status: status.to_string(), vendor },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ErrorChain;

    /// Those of the operating system's, with its answer for a source.
    #[test]
    fn no_sentence_holds_the_answer_of_the_operating_system() {
        let source = || std::io::Error::other("the answer");
        let call = VerbsError::Call { call: "do_it", source: source() };
        let unknown = VerbsError::UnknownHost { host: "far".to_owned(), source: source() };
        for error in [call, unknown] {
            assert!(!error.to_string().contains("the answer"), "{error}");
            let chain = ErrorChain(&error).to_string();
            assert_eq!(chain.matches("the answer").count(), 1, "{chain}");
        }
    }
}
