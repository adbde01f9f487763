//! The interface to the transports between nodes.
//!
//! A provider implements the traits of [`connection`] and [`one_sided`], those of [`channel`] if it has datagrams, and registers
//! its scheme in [`address`]. The layers above are independent of the provider. It offers
//!
//! - **connections**: reliable, ordered, whole messages of bounded length between two nodes, each of which may
//!   carry a registered region to the peer. A region is a capability: only a peer that received it can use it, and only
//!   as it was registered.
//! - **one-sided access**: [`RemoteRead`] reads ranges of a peer's region, [`RemoteWrite`] writes ranges of
//!   a local region to a peer's. Neither involves the peer's processor, unless the peer asked to be woken by writes ([`arrival`]).
//!
//! The fabric moves bytes and never interprets them. Only [`Fabric::dial`] with a timeout blocks: other calls
//! return when they cannot proceed, and every wait is on a file descriptor (in a simulation, a turn of its clock).

mod address;
#[cfg_attr(
    not(any(test, feature = "verbs")),
    expect(dead_code, reason = "only the provider for RDMA raises signals")
)]
mod arrival;
#[cfg(any(test, feature = "verbs"))]
mod bounds;
mod channel;
mod connection;
mod descriptors;
mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod network;
mod one_sided;
mod places;
mod poller;
mod rdma;
mod registration;
#[cfg(feature = "verbs")]
mod request;
mod scheme;
mod several;
pub(crate) mod shm;
#[cfg(feature = "verbs")]
pub(crate) mod verbs;
mod wait;
mod wake_queue;
mod wake_socket;
mod worker;

pub use address::{Address, Target};
#[cfg(any(test, feature = "verbs"))]
pub(crate) use arrival::ArrivalSignals;
pub(crate) use arrival::{ArrivalSignal, ArrivalSource};
#[cfg(any(test, feature = "verbs"))]
pub(crate) use bounds::{check_bounds, check_writes};
#[cfg(any(test, fuzzing, feature = "verbs"))]
pub(crate) use channel::Datagram;
pub(crate) use channel::{
    ChannelReceiver, ChannelSender, ClosedReceiver, DatagramReach, Datagrams, Sent, UnicastSender,
};
pub(crate) use connection::{
    Acceptor, Capabilities, Connection, Fabric, Intent, ListenerNews, Prepared, Received,
};
pub use connection::{NodeListing, PeerAddress};
pub(crate) use descriptors::{part_of, part_of_descriptors};
pub use error::{FabricError, NotAdmitted};
pub(crate) use network::Network;
pub(crate) use one_sided::{
    ArrivalAnnouncer, Completion, NothingToRevoke, Offer, Placement, RemoteRead, RemoteWrite, Revocation,
    Write,
};
pub use places::NoPlace;
pub(crate) use places::{PeerId, Place, PlaceLimits, Places, TurnedAway};
pub(crate) use poller::{Interest, Poller};
pub(crate) use rdma::Group;
pub use rdma::RdmaConnect;
pub(crate) use registration::{Exposure, Registered, Registration, RemoteKey};
#[cfg(feature = "verbs")]
pub(crate) use request::{AdmitAnyone, ConnectPolicy, ConnectRequest, SHOWN_LEN_MAX};
pub use scheme::AddressError;
pub(crate) use several::SeveralFabrics;
pub use shm::directory::default_runtime_dir;
#[cfg(feature = "verbs")]
pub(crate) use verbs::programs;
pub(crate) use wait::{Waker, finish, read_now, wait};
pub(crate) use wake_queue::{KeyedWaker, WakeQueue};
#[cfg(test)]
pub(crate) use wake_socket::Wake;
pub(crate) use wake_socket::{RemoteWaker, SocketWaker, WakeSocket, Wakes};
pub(crate) use worker::Worker;

pub(crate) use crate::memory::ByteRange;
