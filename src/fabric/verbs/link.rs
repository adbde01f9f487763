//! What brings two queue pairs together and tells when they part: one of several ways.

use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::endpoint::Endpoint;
use super::opened::Devices;
use super::stream::FrameStream;
use crate::fabric::FabricError;

/// What has happened to a link.
#[derive(Debug)]
pub(super) enum Change {
    /// Its endpoint was made.
    Endpoint(Arc<Endpoint>),
    /// It stands.
    Established,
    /// A frame of a control message came by it.
    Frame(Vec<u8>),
    /// It is over.
    Over,
}

/// One end of a connection, as whoever makes and ends it sees it.
pub(super) trait Link: Debug + Send {
    /// Readable when [`Self::next`] may have something.
    fn wait_handle(&self) -> BorrowedFd<'_>;

    /// When it has to stand, as long as it does not.
    fn deadline_ns(&self) -> Option<u64>;

    /// What has happened next. An error is the end of it.
    fn next(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<Change>, FabricError>;

    /// Takes note that the peer has sent a frame, which it does only when the connection stands: what would say so may
    /// be lost, or on its way.
    fn heard(&mut self);

    /// Tells the peer that the connection is over. The peer's answer is a [`Change::Over`].
    fn leave(&mut self);

    /// Whether the peer was told that the connection is over, and has yet to answer.
    fn is_leaving(&self) -> bool;

    /// Answers a peer that ended the connection, or ends it.
    fn disconnect(&self);

    /// Whether the peer has dialled, to write regions that this end lends it. Known as soon as the endpoint is made.
    fn is_dialled_to_write(&self) -> bool;

    /// The addresses of this end and of the peer, once the connection stands.
    fn addresses(&self) -> Option<(IpAddr, IpAddr)>;

    /// What carries the frames of control messages. `None` when the queue pair does.
    fn frames(&mut self) -> Option<&mut FrameStream> {
        None
    }
}
