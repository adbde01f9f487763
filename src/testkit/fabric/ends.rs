//! Listeners and connections of a simulated network.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::arrival::SimArrivals;
use super::one_sided::SimOffer;
use super::readiness::Readiness;
use super::state::{Arrival, SimRegistered};
use super::{Network, Reach};
use crate::fabric::{
    Acceptor, Address, ArrivalSource, Capabilities, ChannelReceiver, ChannelSender, Connection, Datagrams,
    FabricError, Offer, Placement, Prepared, Received, Registration, Sent, UnicastSender,
};
use crate::id::NodeName;
use crate::limits;

/// A name with a listener.
#[derive(Debug)]
pub(super) struct SimListener {
    pub(super) network: Arc<Network>,
    pub(super) node: NodeName,
    pub(super) process: u32,
    pub(super) serial: u64,
    pub(super) readiness: Arc<Readiness>,
}

impl Acceptor for SimListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let accepted = self.network.state.lock().accept(&self.node, self.serial, self.network.now())?;
        let (network, process) = (Arc::clone(&self.network), self.process);
        let connection = |(link, readiness)| SimConnection { network, process, link, side: 1, readiness };
        Ok(accepted.map(|accepted| Box::new(connection(accepted)) as _))
    }

    fn addresses(&self) -> Vec<Address> {
        vec![Address::shm(&self.node)]
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readiness.wait_handle()
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.network.state.lock().unlisten(&self.node, self.serial, self.network.now());
    }
}

/// One end of a link.
#[derive(Debug)]
pub(super) struct SimConnection {
    pub(super) network: Arc<Network>,
    pub(super) process: u32,
    pub(super) link: u64,
    /// 0 at the end that dialled, 1 at the other.
    pub(super) side: usize,
    pub(super) readiness: Arc<Readiness>,
}

impl Connection for SimConnection {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        let (len, max) = (message.len(), limits::CONTROL_MESSAGE_LEN_MAX);
        assert!(len > 0, "a message has at least one byte");
        if len > max {
            return Err(FabricError::MessageTooLong { len, max });
        }
        let keep = self.network.reach == Reach::Mapped;
        let mut state = self.network.state.lock();
        let capability = |region| state.capability(self.process, self.link, region, keep);
        let capability = region.map(capability).transpose()?;
        state.send((self.link, self.side), message, capability, self.network.now())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let arrival = self.network.state.lock().receive((self.link, self.side), self.network.now());
        let parcel = match arrival {
            Arrival::Parcel(parcel) => parcel,
            Arrival::Nothing => return Ok(Received::Nothing),
            Arrival::Closed => return Ok(Received::Closed),
        };
        let (len, max) = (parcel.bytes.len(), into.len());
        let room = into.get_mut(..len).ok_or(FabricError::MessageTooLong { len, max })?;
        room.copy_from_slice(&parcel.bytes);
        let offer =
            |capability| SimOffer { network: Arc::clone(&self.network), process: self.process, capability };
        let offer = parcel.capability.map(|capability| Box::new(offer(capability)) as Box<dyn Offer>);
        Ok(Received::Message { len, offer })
    }

    fn capabilities(&self) -> Capabilities {
        let is_mapped = self.network.reach == Reach::Mapped;
        let placement = if is_mapped { Placement::Words } else { Placement::Writes };
        Capabilities { placement, ..Capabilities::default() }
    }

    /// The number of the link.
    #[expect(clippy::big_endian_bytes, reason = "it is compared as bytes")]
    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        Ok(self.link.to_be_bytes().to_vec())
    }

    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError> {
        let entry = registration.entries::<SimRegistered>().next();
        Ok(Prepared::Done(entry.map(|entry| entry.remote).unwrap_or_default()))
    }

    fn withdraw(&mut self, _registration: &Registration) {}

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        Some(self)
    }

    fn arrivals(&self) -> Option<Arc<dyn ArrivalSource>> {
        let is_fetched = self.network.reach == Reach::Fetched;
        is_fetched.then(|| Arc::new(SimArrivals::new(&self.network, self.link, self.process)) as _)
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readiness.wait_handle()
    }
}

impl Datagrams for SimConnection {
    fn channel_sender(&self) -> Result<Option<Arc<dyn ChannelSender>>, FabricError> {
        Ok(Some(self.network.channel_sender(self.process)?))
    }

    fn unicast_sender(&self, return_ticket: &[u8]) -> Result<Arc<dyn UnicastSender>, FabricError> {
        let peer = self.network.state.lock().peer(self.link, self.side).ok_or(FabricError::Closed)?;
        Ok(Arc::new(self.network.unicast_sender(self.process, peer, return_ticket)?))
    }

    fn join_channel(&self, ticket: &[u8]) -> Result<Box<dyn ChannelReceiver>, FabricError> {
        Ok(Box::new(self.network.join_channel(self.process, ticket)?))
    }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.network.state.lock().close(self.link, self.side, self.network.now());
    }
}
