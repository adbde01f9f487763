//! Establishing and ending the connection of two queue pairs, independent of the method.

use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::endpoint::Endpoint;
use super::opened::Devices;
use super::stream::FrameStream;
use crate::fabric::FabricError;

/// An event of a link.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// Its endpoint was made.
    Endpoint(Arc<Endpoint>),
    /// It is established.
    Established,
    /// A frame of a control message arrived over it.
    Frame(Vec<u8>),
    /// It is over.
    Over,
}

/// One end of a connection, as its session establishes and ends it.
pub(super) trait QpLink: Debug + Send {
    /// Readable when [`Self::next`] may have an event.
    fn wait_handle(&self) -> BorrowedFd<'_>;

    /// The deadline of the establishment, while it is pending.
    fn deadline_ns(&self) -> Option<u64>;

    /// Returns the next event. An error ends the link.
    fn next(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError>;

    /// Marks the link established because the peer has sent a frame: the event that confirms it may be lost or
    /// late.
    fn heard(&mut self);

    /// Shuts the connection down. The peer's answer is a [`LinkEvent::Over`].
    fn leave(&mut self);

    /// Whether the shutdown was sent, and the peer has not answered.
    fn is_leaving(&self) -> bool;

    /// Ends the connection, or answers a peer that ended it.
    fn disconnect(&self);

    /// Whether the peer dialled, to write regions that this end exposes. Known once the endpoint is made.
    fn is_dialled_to_write(&self) -> bool;

    /// Returns the addresses of this end and of the peer, once established.
    fn addresses(&self) -> Option<(IpAddr, IpAddr)>;

    /// Returns the stream of control messages. `None` if the queue pair carries them.
    fn frames(&mut self) -> Option<&mut FrameStream> {
        None
    }
}
