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

/// The numbers that identify one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpEnd {
    /// The GID of its port; zeros if packets carry none.
    pub(super) gid: [u8; 16],
    /// The number of its queue pair.
    pub(super) queue_pair: u32,
    /// The sequence number of its first packet.
    pub(super) packet_sequence: u32,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpEnds {
    /// The end that dialled.
    pub(super) dialling: QpEnd,
    /// The end that was dialled.
    pub(super) dialled: QpEnd,
}

impl QpEnds {
    /// Both ends in the right order.
    pub(super) fn new(near: QpEnd, far: QpEnd, is_dialling: bool) -> Self {
        let (dialling, dialled) = if is_dialling { (near, far) } else { (far, near) };
        Self { dialling, dialled }
    }

    /// Returns them as bytes: of each end, the one that dialled first, GID, queue pair number and packet sequence number.
    #[expect(clippy::big_endian_bytes, reason = "proofs are in network byte order")]
    pub(super) fn emit(self) -> Vec<u8> {
        let of = |end: QpEnd| {
            [&end.gid[..], &end.queue_pair.to_be_bytes(), &end.packet_sequence.to_be_bytes()].concat()
        };
        [of(self.dialling), of(self.dialled)].concat()
    }
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
    fn confirm(&mut self);

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

    /// Returns what identifies both ends, once established. The number is that of this end's queue pair.
    fn ends(&self, queue_pair: u32) -> Result<QpEnds, FabricError>;

    /// Returns the stream of control messages. `None` if the queue pair carries them.
    fn frames(&mut self) -> Option<&mut FrameStream> {
        None
    }
}
