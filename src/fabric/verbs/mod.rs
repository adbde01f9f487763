//! The provider for RDMA verbs: regions are registered with a device, and a peer's device reads and writes them
//! without this host's processors.
//!
//! A session is one connected queue pair. A reliable one carries control messages as SENDs, and the one-sided READs and
//! WRITEs of both ends; an unreliable one carries only the WRITEs, and control messages go over TCP.
//!
//! [`sys`] is the only module that names the C bindings or holds unsafe code. [`device`] selects a device, port and address of
//! this host. An [`endpoint`] is a queue pair and its work in flight; a [`session`] adds a
//! [`link`] (made by the connection [`manager`], or by a [`handshake`] over TCP; [`dialling`] makes it until there is an answer),
//! and messages; [`connection`] and
//! [`one_sided`] implement the fabric's traits with them. The thread of [`service`] drives sessions that no owner polls. A
//! [`channel`] has its own queue pairs, for datagrams. [`programs`] are what measurements compare with.

mod channel;
mod connection;
mod device;
mod dialling;
mod endpoint;
mod error;
mod exchange;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod greeting;
mod handshake;
mod link;
mod manager;
mod message;
mod one_sided;
mod opened;
pub(crate) mod programs;
mod reception;
mod region;
mod service;
mod session;
mod silence;
mod stream;
mod sys;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use error::VerbsError;

use self::channel::Channels;
use self::connection::{VerbsConnection, VerbsListener};
use self::device::Wish;
use self::dialling::DiallingLink;
use self::endpoint::leftovers;
use self::error::Failure;
use self::greeting::Showing;
use self::handshake::ExchangedLink;
use self::link::QpLink;
use self::manager::{Destination, ManagedLink};
use self::opened::Devices;
use self::region::VerbsRegistered;
use self::service::Service;
use self::session::Session;
use self::sys::{QueuePairKind, SysError};
use crate::clock::{Clock, SystemClock};
use crate::fabric::{
    Acceptor, Address, AdmitAnyone, ConnectPolicy, Connection, Exposure, Fabric, FabricError, Group, Intent,
    PlaceLimits, Places, RdmaConnect, Registration,
};
use crate::id::NodeName;
use crate::memory::Region;

/// The user's RDMA settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct VerbsConfig {
    /// Where nodes listen: an address of an RDMA interface of this host, or the wildcard.
    pub(crate) listen: Option<Address>,
    /// How connections are dialled.
    pub(crate) connect: RdmaConnect,
    /// The multicast group for all channels of this process; otherwise each channel has a random one.
    pub(crate) notice_group: Option<Group>,
    /// How many places for sessions a node has.
    pub(crate) places: PlaceLimits,
    /// What it shows when it dials, and demands of those that dial it; otherwise nothing.
    pub(crate) policy: Option<Arc<dyn ConnectPolicy>>,
}

/// The provider for RDMA verbs.
#[derive(Debug)]
pub(crate) struct VerbsFabric {
    listen: Option<SocketAddr>,
    connect: RdmaConnect,
    devices: Arc<Devices>,
    channels: Arc<Channels>,
    service: Arc<Service>,
    places: Arc<Places>,
    policy: Arc<dyn ConnectPolicy>,
}

impl VerbsFabric {
    /// Creates a provider with these settings.
    pub(crate) fn new(config: VerbsConfig) -> Result<Self, FabricError> {
        let devices = Arc::new(Devices::new(Wish::from_environment(None)?));
        let channels = Channels::new(&devices, config.notice_group);
        let service = Service::new(&devices)?;
        let listen = config.listen.map(|address| manager::resolve(&address)).transpose()?;
        let places = Places::new(config.places);
        let policy = config.policy.unwrap_or_else(|| Arc::new(AdmitAnyone));
        Ok(Self { listen, connect: config.connect, devices, channels, service, places, policy })
    }

    /// Listens at this address instead of the configured one.
    pub(crate) fn listen_at(&self, at: &SocketAddr) -> Result<Box<dyn Acceptor>, FabricError> {
        let made_with = (&self.devices, &self.service, &self.channels);
        Ok(Box::new(VerbsListener::open(at, made_with, (&self.places, &self.policy))?))
    }
}

impl Fabric for VerbsFabric {
    fn listen(&self, _: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        Ok(vec![self.listen_at(&self.listen.ok_or(VerbsError::NoListenAddress)?)?])
    }

    fn tend(&self) {
        leftovers::tend();
        sys::tend_destroyers();
        channel::unicast::tend();
    }

    /// Returns at once: the session waits for the peer's answer within its own deadline.
    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        _: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        let (writes, devices, now_ns) = (intent == Intent::Write, &self.devices, SystemClock.monotonic_ns());
        let (to, connect) = (Destination::resolve(address)?, self.connect);
        let (policy, turns) = (Arc::clone(&self.policy), self.policy.turns(intent));
        let attempt =
            move |devices: &Devices, now_ns: u64, turn: usize| -> Result<Box<dyn QpLink>, FabricError> {
                let showing = Showing { policy: Arc::clone(&policy), turn };
                let exchanged = |kind| {
                    let link = ExchangedLink::dial(&to, (kind, writes), devices, now_ns)?;
                    Ok::<_, FabricError>(link.showing(showing.clone()))
                };
                Ok(match connect {
                    RdmaConnect::Manager => {
                        Box::new(ManagedLink::dial(&to, writes, devices, now_ns)?.showing(showing))
                    }
                    RdmaConnect::Tcp => Box::new(exchanged(QueuePairKind::Rc)?),
                    RdmaConnect::TcpUnreliable => Box::new(exchanged(QueuePairKind::Uc)?),
                })
            };
        let link = DiallingLink::dial(address, Box::new(attempt), devices, now_ns)?.with_turns(turns);
        let session = Session::new(&self.devices, Box::new(link), None)?;
        Ok(Box::new(VerbsConnection::new(session, &self.service, &self.channels)))
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        exposure.check(region)?;
        // A region for reading is registered once for all peers; one for writing, per peer that it is exposed to.
        let devices = if exposure == Exposure::Read { self.devices.all() } else { Vec::new() };
        let domains: Vec<_> = devices.iter().map(|device| Arc::clone(&device.serving)).collect();
        let entry = VerbsRegistered::new(region, exposure, &domains)?;
        Ok(Registration::new(Arc::clone(region), exposure, entry))
    }
}

impl From<SysError> for FabricError {
    fn from(error: SysError) -> Self {
        Self::Verbs(error.into())
    }
}

impl From<Failure> for FabricError {
    fn from(failure: Failure) -> Self {
        failure.error().map_or(Self::Closed, Self::Verbs)
    }
}

#[cfg(test)]
mod tests;
