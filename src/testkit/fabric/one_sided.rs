//! Regions of peers, mapped or fetched.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Network;
use super::arrival::SimAnnouncer;
use super::state::{Capability, RegionHold};
use super::transfer::Route;
use crate::fabric::{
    ArrivalAnnouncer, ByteRange, Completion, Exposure, FabricError, NothingToRevoke, Offer, Placement,
    Registration, RemoteRead, RemoteWrite, Revocation, Write, check_bounds, check_writes,
};
use crate::memory::WORD;
use crate::memory::{Access, MemoryError, Protection, Region};

/// A region sent by a peer.
#[derive(Debug)]
pub(super) struct SimOffer {
    pub(super) network: Arc<Network>,
    pub(super) process: u32,
    pub(super) capability: Capability,
}

impl SimOffer {
    fn check(&self, exposure: Exposure, why: &'static str) -> Result<(), FabricError> {
        if self.capability.exposure == exposure { Ok(()) } else { Err(FabricError::Access { why }) }
    }

    /// Maps the region as another process would, with the same access rights.
    fn map(region: &Region, len_min: usize, access: Access) -> Result<Arc<Region>, FabricError> {
        Ok(Arc::new(Region::import(region.file(), len_min, access)?))
    }

    /// The transfer route to a region.
    fn route(&self, remote: &Weak<Region>, len_min: usize) -> Result<Route, FabricError> {
        let Some(region) = remote.upgrade() else {
            return Err(FabricError::Access { why: "the peer has withdrawn it" });
        };
        if region.len() < len_min {
            return Err(MemoryError::Unfit { why: "it is shorter than what was agreed" }.into());
        }
        let Capability { owner, link, .. } = self.capability;
        Ok(Route { initiator: self.process, owner, link, remote: Weak::clone(remote) })
    }
}

impl Offer for SimOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        self.check(Exposure::Read, "peers may write it, not read it")?;
        match &self.capability.region {
            RegionHold::Kept(region) => {
                Ok(Box::new(MappedRead { mirror: Self::map(region, len_min, Access::Read)? }))
            }
            RegionHold::Known(remote) => {
                let route = self.route(remote, len_min)?;
                let mirror = Arc::new(Region::allocate(len_min.max(WORD), Protection::PeersRead)?);
                Ok(Box::new(FetchedRead { network: self.network, route, mirror, transfer: None }))
            }
        }
    }

    fn open_write(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        self.check(Exposure::Write, "peers may read it, not write it")?;
        match &self.capability.region {
            RegionHold::Kept(region) => {
                let (target, open) =
                    (Self::map(region, len_min, Access::Write)?, Arc::clone(&self.network.written));
                Ok(Box::new(MappedWrite { target, _open: open }))
            }
            RegionHold::Known(remote) => {
                let route = self.route(remote, len_min)?;
                let (sending, mirror) =
                    (Arc::default(), Region::allocate(len_min.max(WORD), Protection::PeersRead)?);
                let (len, mirror) = (len_min, Arc::new(mirror));
                let (open, network) = (Arc::clone(&self.network.written), self.network);
                let token = Arc::default();
                Ok(Box::new(SentWrite { network, route, len, mirror, sending, token, _open: open }))
            }
        }
    }
}

/// A region read in place.
#[derive(Debug)]
struct MappedRead {
    mirror: Arc<Region>,
}

impl RemoteRead for MappedRead {
    fn mirror(&self) -> &Arc<Region> {
        &self.mirror
    }

    fn is_mapped(&self) -> bool {
        true
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        check_bounds(self.mirror.len(), ranges.iter().copied())?;
        Ok(Completion::Done)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        Ok(Completion::Done)
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// A region written in place.
#[derive(Debug)]
struct MappedWrite {
    target: Arc<Region>,
    _open: Arc<()>,
}

impl RemoteWrite for MappedWrite {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        check_writes(self.target.len(), source, writes)?;
        writes.iter().for_each(|write| write.place(source.region(), &self.target));
        Ok(Completion::Done)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(0)
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        check_bounds(self.target.len(), [ByteRange { offset, len: WORD }].into_iter())?;
        Ok(Some(self.target.load_acquire(offset)))
    }

    fn mapped(&self) -> Option<&Arc<Region>> {
        Some(&self.target)
    }

    fn placement(&self) -> Placement {
        Placement::Words
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}

/// A region read by transfers.
#[derive(Debug)]
struct FetchedRead {
    network: Arc<Network>,
    route: Route,
    mirror: Arc<Region>,
    transfer: Option<u64>,
}

impl RemoteRead for FetchedRead {
    fn headers(&self, len: usize) -> Result<Option<Box<dyn RemoteRead>>, FabricError> {
        let mirror = Arc::new(Region::allocate(len, Protection::PeersRead)?);
        let (network, route) = (Arc::clone(&self.network), self.route.clone());
        Ok(Some(Box::new(Self { network, route, mirror, transfer: None })))
    }

    fn mirror(&self) -> &Arc<Region> {
        &self.mirror
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        assert!(self.transfer.is_none(), "only one batch of reads at a time");
        check_bounds(self.mirror.len(), ranges.iter().copied())?;
        let mut state = self.network.state.lock();
        if !state.reachable(self.route.owner, self.route.link) {
            return Err(FabricError::Closed);
        }
        self.transfer = Some(state.begin_read(self.route.clone(), &self.mirror, ranges));
        Ok(Completion::Pending)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        let Some(transfer) = self.transfer else { return Ok(Completion::Done) };
        let polled = self.network.state.lock().poll_transfer(transfer);
        self.transfer = self.transfer.filter(|_| matches!(polled, Ok(Completion::Pending)));
        polled
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

impl Drop for FetchedRead {
    fn drop(&mut self) {
        if let Some(transfer) = self.transfer {
            self.network.state.lock().transfers.remove(&transfer);
        }
    }
}

/// A region written by transfers.
#[derive(Debug)]
struct SentWrite {
    network: Arc<Network>,
    route: Route,
    /// The agreed length, bytes.
    len: usize,
    /// Receives the words that are read back.
    mirror: Arc<Region>,
    sending: Arc<Mutex<Sending>>,
    /// The number with which writes wake the peer, once there is one.
    token: Arc<Mutex<Option<u32>>>,
    _open: Arc<()>,
}

/// Transfers in flight, oldest first.
#[derive(Debug, Default)]
struct Sending {
    transfers: VecDeque<u64>,
    /// The transfer that reads a word back.
    fetching: Option<u64>,
    revoked: bool,
}

impl Sending {
    /// Whether a word is in flight. One that arrives after a revocation is dropped.
    fn is_fetching(&mut self, network: &Network) -> bool {
        let Some(fetching) = self.fetching else { return false };
        let is_pending = matches!(network.state.lock().poll_transfer(fetching), Ok(Completion::Pending));
        self.fetching = self.fetching.filter(|_| is_pending);
        is_pending
    }

    /// How many are incomplete.
    fn in_flight(&mut self, network: &Network) -> Result<usize, FabricError> {
        let mut state = network.state.lock();
        while let Some(first) = self.transfers.front() {
            match state.poll_transfer(*first) {
                Ok(Completion::Done) => self.transfers.pop_front(),
                Ok(Completion::Pending) => break,
                Err(error) => {
                    self.transfers.drain(..).for_each(|transfer| drop(state.transfers.remove(&transfer)));
                    return Err(error);
                }
            };
        }
        Ok(self.transfers.len())
    }
}

impl RemoteWrite for SentWrite {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        check_writes(self.len, source, writes)?;
        let mut sending = self.sending.lock();
        let mut state = self.network.state.lock();
        if sending.revoked || !state.reachable(self.route.owner, self.route.link) {
            return Err(FabricError::Closed);
        }
        let after = sending.transfers.back().copied();
        let order = (after, *self.token.lock());
        let transfer = state.begin_write(self.route.clone(), source.region(), writes, order);
        sending.transfers.push_back(transfer);
        Ok(Completion::Pending)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        self.sending.lock().in_flight(&self.network)
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        check_bounds(self.len, [ByteRange { offset, len: WORD }].into_iter())?;
        let mut sending = self.sending.lock();
        let mut state = self.network.state.lock();
        if let Some(fetching) = sending.fetching {
            let polled = state.poll_transfer(fetching);
            sending.fetching = sending.fetching.filter(|_| matches!(polled, Ok(Completion::Pending)));
            return Ok((polled? == Completion::Done).then(|| self.mirror.load(offset)));
        }
        if sending.revoked || !state.reachable(self.route.owner, self.route.link) {
            return Err(FabricError::Closed);
        }
        let ranges = [ByteRange { offset, len: WORD }];
        sending.fetching = Some(state.begin_read(self.route.clone(), &self.mirror, &ranges));
        Ok(None)
    }

    fn placement(&self) -> Placement {
        Placement::Writes
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        let (network, sending) = (Arc::clone(&self.network), Arc::clone(&self.sending));
        Arc::new(SentRevocation { network, sending })
    }

    fn announcer(&self) -> Option<Arc<dyn ArrivalAnnouncer>> {
        let (network, route) = (Arc::clone(&self.network), self.route.clone());
        Some(Arc::new(SimAnnouncer { network, route, token: Arc::clone(&self.token) }))
    }
}

impl Drop for SentWrite {
    fn drop(&mut self) {
        let mut sending = self.sending.lock();
        let mut state = self.network.state.lock();
        let fetching = sending.fetching.take();
        let under_way = sending.transfers.drain(..).chain(fetching);
        under_way.for_each(|transfer| drop(state.transfers.remove(&transfer)));
    }
}

/// Ends the writes to one region.
#[derive(Debug)]
struct SentRevocation {
    network: Arc<Network>,
    sending: Arc<Mutex<Sending>>,
}

impl Revocation for SentRevocation {
    fn revoke(&self) -> Completion {
        let mut sending = self.sending.lock();
        sending.revoked = true;
        // A failed transfer is over, too.
        let is_fetching = sending.is_fetching(&self.network);
        match sending.in_flight(&self.network) {
            Ok(0) | Err(_) if !is_fetching => Completion::Done,
            Ok(_) | Err(_) => Completion::Pending,
        }
    }
}
