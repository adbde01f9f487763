//! What can go wrong with RDMA, in sentences that say what to do.

use std::net::{IpAddr, Ipv4Addr};

use super::sys::{Status, SysError, WorkCompletion};

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
    /// The local address cannot tell which device to use.
    #[error(
        "the addresses (GIDs) of InfiniBand ports are no IP addresses, so that {address} names no device; set \
         FABRICAST_RDMA_GID_INDEX=0, and FABRICAST_RDMA_DEVICE where there are several devices; there is: {found}"
    )]
    NoIpAddress {
        /// The address.
        address: IpAddr,
        /// What there is.
        found: String,
    },
    /// The way to a peer leaves this host by an interface that is none of RDMA.
    #[error(
        "the way to {way}, which is the address of no active RDMA device; check the \
         address and the routes, or name the device in FABRICAST_RDMA_DEVICE; there is: {found}"
    )]
    NoWay {
        /// The address that was dialled, and the local one that the routes lead to.
        way: String,
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
    /// The host has no address.
    #[error("the host name {host} has no address: {source}; write its IP address instead")]
    UnknownHost {
        /// The name.
        host: String,
        /// What the resolver answered.
        #[source]
        source: std::io::Error,
    },
    /// A node is to listen, and nobody said where.
    #[error("the node has no address to listen at; give it one of an RDMA interface of this host")]
    NoListenAddress,
    /// An address belongs to another device than the one that was chosen.
    #[error("the address belongs to the RDMA device {found}, but {chosen} was chosen")]
    OtherDevice {
        /// The device of the address.
        found: String,
        /// The device that was chosen.
        chosen: String,
    },
    /// What listens at an address is no node.
    #[error("what listens there is not a node of this version; check address and port")]
    NotANode,
    /// A peer names the address of another host, or of another interface.
    #[error(
        "the peer's RDMA device has the address (GID) {told}, but its TCP connection comes from {address}: on a host with \
         several addresses both have to be the same, that of the RDMA interface; dial that one, and leave \
         FABRICAST_RDMA_GID_INDEX alone there"
    )]
    OtherAddress {
        /// The address that it names.
        told: IpAddr,
        /// The address that it is reached by.
        address: IpAddr,
    },
    /// The peer did not want the connection.
    #[error("the peer refused the connection: {why}")]
    Refused {
        /// The reason that it gave.
        why: &'static str,
    },
    /// The connection could not be made.
    #[error(
        "the connection could not be made: {event}, status {status}; check that the address is right and try again"
    )]
    NotConnected {
        /// What the connection manager said.
        event: String,
        /// The number that came with it.
        status: i32,
    },
    /// The device that carried a connection is gone.
    #[error("the RDMA device of the connection is gone; connect again")]
    DeviceGone,
    /// The peer's device refused a read or a write.
    #[error("the peer allows no such access to its memory: it has withdrawn the region, or never gave it")]
    RemoteAccess,
    /// The peer's device does not answer.
    #[error("the peer's host does not answer any more: check that it is up, and the network between")]
    NoAnswer,
    /// A work request failed for another reason.
    #[error("a work request failed: {status} (vendor code {vendor:#x})")]
    Failed {
        /// How it ended.
        status: String,
        /// What the device's maker knows.
        vendor: u32,
    },
    /// The device took only some of the work requests of a batch.
    #[error("the RDMA device took only a part of a batch of work requests; connect again")]
    PartlyPosted,
    /// A peer sent a frame that is none.
    #[error("the peer sent a malformed frame: {why}")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// A batch needs more work requests than a queue has room for.
    #[error("a batch of {requests} work requests is over the limit of {max}; use smaller payloads")]
    BatchTooLong {
        /// Work requests of the batch.
        requests: usize,
        /// What fits.
        max: u32,
    },
    /// Too many batches wait for room in a queue.
    #[error("{max} batches of writes wait for room in a queue already; let some complete first")]
    QueueFull {
        /// The limit.
        max: usize,
    },
    /// The network did not let this host join a multicast group.
    #[error(
        "the multicast group {group} could not be joined (status {status}): check that the interface is up and that its \
         network carries multicast; datagrams to this host alone still arrive"
    )]
    NotJoined {
        /// The group.
        group: Ipv4Addr,
        /// What the connection manager said.
        status: i32,
    },
    /// The device did not attach one more queue pair to a multicast group.
    #[error(
        "the RDMA device takes no further member into the multicast group {group}; soft-RoCE takes 56 of one host: subscribe \
         in fewer processes, or with one node in each; datagrams to this one alone still arrive"
    )]
    GroupFull {
        /// The group.
        group: Ipv4Addr,
    },
    /// Datagrams cannot be sent between two ends of a connection.
    #[error("there can be no channel of datagrams beside this connection: {why}")]
    NoChannel {
        /// What is missing.
        why: &'static str,
    },
    /// A peer's ticket for a channel of datagrams is none.
    #[error("the peer's ticket for a channel of datagrams cannot be used: {why}")]
    BadTicket {
        /// What is wrong with it.
        why: &'static str,
    },
    /// A datagram could not be sent.
    #[error(
        "a datagram could not be sent: {status} (vendor code {vendor:#x}); check that the interface is up"
    )]
    NotSent {
        /// How its work request ended.
        status: String,
        /// What the device's maker knows.
        vendor: u32,
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

impl VerbsError {
    /// Whether the queue pair that it comes from is of no more use.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::RemoteAccess
                | Self::NoAnswer
                | Self::Failed { .. }
                | Self::PartlyPosted
                | Self::DeviceGone
                | Self::Malformed { .. }
        )
    }
}

impl From<SysError> for VerbsError {
    fn from(error: SysError) -> Self {
        let (call, source) = error.into_parts();
        Self::Call { call, source }
    }
}

/// Why the work requests of a queue pair fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The connection is closed.
    Closed,
    /// The device took a part of a batch only.
    PartlyPosted,
    /// The peer sent a frame that is none.
    Malformed(&'static str),
    /// A work request failed.
    Completion {
        /// How it ended.
        status: Status,
        /// What the device's maker knows.
        vendor: u32,
    },
}

impl Failure {
    /// The failure that this completion shows. One that was flushed shows that there was one before.
    pub(super) fn of(completion: &WorkCompletion) -> Self {
        match completion.status {
            Status::Flushed => Self::Closed,
            status => Self::Completion { status, vendor: completion.vendor_err },
        }
    }

    /// The failure as an error; `None` for a connection that is merely closed.
    pub(super) fn error(self) -> Option<VerbsError> {
        Some(match self {
            Self::Closed => return None,
            Self::PartlyPosted => VerbsError::PartlyPosted,
            Self::Malformed(why) => VerbsError::Malformed { why },
            // The second is what a queue pair says that allows its peer nothing of the kind.
            Self::Completion { status: Status::RemoteAccess | Status::RemoteInvalidRequest, .. } => {
                VerbsError::RemoteAccess
            }
            Self::Completion { status: Status::RetryExceeded, .. } => VerbsError::NoAnswer,
            Self::Completion { status, vendor } => VerbsError::Failed { status: status.to_string(), vendor },
        })
    }
}
