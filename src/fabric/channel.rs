//! Channels of datagrams: what one node sends reaches any number of others at the cost of one send.
//!
//! A datagram may be lost, doubled, delayed or overtaken by another, and anybody on the network may send one that looks
//! like it: whoever receives it has to check it. A receiver joins and leaves at any time, and the sender does not know who
//! has joined.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::error::FabricError;

/// The datagrams between the two ends of a connection.
pub(crate) trait Datagrams {
    /// The sending end of a channel that the peer can join. The same one for all connections over the same network of this
    /// host. `None` where the network between the two ends has no multicast.
    fn channel_sender(&self) -> Result<Option<Arc<dyn ChannelSender>>, FabricError>;

    /// The way from that channel to one receiver at the other end, by its [`ChannelReceiver::return_ticket`]. The ticket comes
    /// from the peer, and may be anything: one that names another host than the peer's is an error, so that no peer can have
    /// datagrams sent to somebody else. May take as long as the network takes to find the host.
    fn unicast_sender(&self, return_ticket: &[u8]) -> Result<Arc<dyn UnicastSender>, FabricError>;

    /// Begins to join a channel of the peer's, by its [`ChannelSender::ticket`], which comes from the peer and may be
    /// anything. Datagrams come as soon as the network lets them.
    fn join_channel(&self, ticket: &[u8]) -> Result<Box<dyn ChannelReceiver>, FabricError>;
}

/// The sending end of a channel. Shared by everything in a process that sends to the same network.
pub(crate) trait ChannelSender: Debug + Send + Sync {
    /// What a receiver has to know to join; means something to the provider alone. At most
    /// [`crate::limits::CHANNEL_TICKET_LEN_MAX`] bytes, always the same ones.
    fn ticket(&self) -> &[u8];

    /// The longest datagram, bytes: it has to arrive in one piece.
    fn datagram_len_max(&self) -> usize;

    /// Sends a datagram to all who have joined. [`Sent::Full`] when too many are under way, or the channel does not stand
    /// yet; nothing was sent then. Where it comes not to stand, or stands no longer, that is an error once, and from then on
    /// what is sent to all is lost: a datagram to one receiver is not.
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError>;
}

/// The way from a channel's sender to one of its receivers, which [`Datagrams::unicast_sender`] finds. It keeps the
/// channel.
pub(crate) trait UnicastSender: Debug + Send + Sync {
    /// Sends a datagram to this receiver. [`Sent::Full`] when too many are under way; nothing was sent then.
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError>;
}

/// The receiving end of a channel. Dropping it leaves the channel.
pub(crate) trait ChannelReceiver: Debug + Send {
    /// What the sender has to know to reach this receiver alone; at most [`crate::limits::CHANNEL_TICKET_LEN_MAX`] bytes,
    /// always the same ones.
    fn return_ticket(&self) -> &[u8];

    /// The next datagram, if there is one. Those that did not come from the channel's sender, as far as the medium tells, are
    /// passed over and counted. One that is longer than `into` is passed over and counted too.
    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError>;

    /// Datagrams that were passed over so far.
    fn passed_over(&self) -> u64;

    /// Becomes readable when a datagram is waiting, or may be: receive then, until there is none, and ask for the handle again
    /// before the next wait, always the same one. `None` in a simulation.
    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError>;
}

/// What became of a message or datagram to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Done,
    /// The peer takes no more at the moment; nothing was sent.
    Full,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Bytes.
    pub(crate) len: usize,
    /// How it came.
    pub(crate) reach: DatagramReach,
}

/// Whom a datagram was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatagramReach {
    /// To all who have joined.
    Multicast,
    /// To this receiver alone.
    Unicast,
}
