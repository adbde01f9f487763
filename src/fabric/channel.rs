//! Multicast channels: one send reaches any number of receivers.
//!
//! A datagram may be lost, duplicated, delayed or reordered, and any host on the network can forge one, so receivers check
//! every datagram. Receivers join and leave at any time; the sender does not know which have joined.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::FabricError;

/// Datagrams between the two ends of a connection.
pub(crate) trait Datagrams {
    /// Returns the sending end of a channel that the peer can join, shared by all connections over the same network of this
    /// host. `None` if that network has no multicast.
    fn channel_sender(&self) -> Result<Option<Arc<dyn ChannelSender>>, FabricError>;

    /// Returns a unicast sender to one receiver of that channel at the peer, by its [`ChannelReceiver::return_ticket`]. The
    /// ticket is untrusted: one that names a host other than the peer's is an error, so that a peer cannot direct datagrams
    /// at a third host. May block while the network resolves the host.
    fn unicast_sender(&self, return_ticket: &[u8]) -> Result<Arc<dyn UnicastSender>, FabricError>;

    /// Starts joining a channel of the peer by its [`ChannelSender::ticket`], which is untrusted. Datagrams arrive once the
    /// network has added the member.
    fn join_channel(&self, ticket: &[u8]) -> Result<Box<dyn ChannelReceiver>, FabricError>;
}

/// The sending end of a channel, shared by all senders of this process on one network.
pub(crate) trait ChannelSender: Debug + Send + Sync {
    /// Returns what a receiver needs to join, opaque except to the provider. At most
    /// [`crate::limits::CHANNEL_TICKET_LEN_MAX`] bytes, constant.
    fn ticket(&self) -> &[u8];

    /// Returns the longest datagram in bytes; datagrams are not fragmented.
    fn datagram_len_max(&self) -> usize;

    /// Multicasts a datagram. Returns [`Sent::Full`] without sending while the send queue is full or the channel is still
    /// being set up. A channel that fails reports that error once; from then on multicast datagrams are lost, but unicast
    /// datagrams are still sent.
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError>;
}

/// A unicast path from a channel's sender to one receiver, made by [`Datagrams::unicast_sender`]. It keeps the channel
/// open.
pub(crate) trait UnicastSender: Debug + Send + Sync {
    /// Sends a datagram to this receiver. Returns [`Sent::Full`] without sending while the send queue is full, or the way to the
    /// receiver is not known.
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError>;
}

/// The receiving end of a channel. Dropping it leaves the channel.
pub(crate) trait ChannelReceiver: Debug + Send {
    /// Returns what the sender needs to reach this receiver by unicast; at most
    /// [`crate::limits::CHANNEL_TICKET_LEN_MAX`] bytes, constant.
    fn return_ticket(&self) -> &[u8];

    /// Receives the next datagram, if any. Datagrams from another sender, as far as the medium identifies it, and datagrams
    /// longer than `into` are skipped and counted.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError>;

    /// Returns how many datagrams were skipped.
    fn passed_over(&self) -> u64;

    /// Returns a handle that becomes readable when a datagram may be waiting. Receive until none is left, then call this again
    /// before the next wait; the handle never changes. `None` in a simulation.
    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError>;
}

/// In place of a receiver that was closed.
#[derive(Debug)]
pub(crate) struct ClosedReceiver {
    passed_over: u64,
}

impl ClosedReceiver {
    /// Takes the place of this receiver, with its count.
    pub(crate) fn after(receiver: &dyn ChannelReceiver) -> Self {
        Self { passed_over: receiver.passed_over() }
    }
}

impl ChannelReceiver for ClosedReceiver {
    fn return_ticket(&self) -> &[u8] {
        &[]
    }

    fn receive(&mut self, _: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        Ok(None)
    }

    fn passed_over(&self) -> u64 {
        self.passed_over
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// The outcome of sending a message or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Accepted for sending.
    Done,
    /// Not sent: the queue is full or out of credit.
    Full,
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Its length in bytes.
    pub(crate) len: usize,
    /// How it was sent.
    pub(crate) reach: DatagramReach,
}

/// How a datagram was addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramReach {
    /// To all members of the channel.
    Multicast,
    /// To this receiver.
    Unicast,
}
