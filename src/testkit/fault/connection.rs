//! Listeners, connections and offers with faults.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::one_sided::{FaultyRead, FaultyWrite};
use super::script::{Fault, Operation, Running};
use crate::fabric::{
    Acceptor, Address, ArrivalSource, Capabilities, Connection, Datagrams, FabricError, Offer, PeerAddress,
    Prepared, Received, Registration, RemoteRead, RemoteWaker, RemoteWrite, Sent,
};
use crate::memory::Region;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The state shared by a connection and the regions that came over it: a fault of one ends them all.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) script: Arc<Running>,
    broken: Arc<AtomicBool>,
}

impl Session {
    pub(super) fn new(script: &Arc<Running>) -> Self {
        Self { script: Arc::clone(script), broken: Arc::new(AtomicBool::new(false)) }
    }

    pub(super) fn end(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

/// A listener whose connections have faults.
#[derive(Debug)]
pub(super) struct FaultyListener {
    pub(super) inner: Box<dyn Acceptor>,
    pub(super) script: Arc<Running>,
}

impl Acceptor for FaultyListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Connection>>, FabricError> {
        let faulty = |inner| Box::new(FaultyConnection::new(inner, Session::new(&self.script))) as _;
        Ok(self.inner.accept()?.map(faulty))
    }

    fn addresses(&self) -> Vec<Address> {
        self.inner.addresses()
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.inner.wait_handle()
    }
}

/// A connection that has faults.
#[derive(Debug)]
pub(super) struct FaultyConnection {
    /// `None` once the connection was lost.
    inner: Option<Box<dyn Connection>>,
    /// A second handle of it.
    handle: OwnedFd,
    session: Session,
}

impl FaultyConnection {
    pub(super) fn new(inner: Box<dyn Connection>, session: Session) -> Self {
        let handle = inner.wait_handle().try_clone_to_owned().expect("one more descriptor");
        Self { inner: Some(inner), handle, session }
    }

    /// The connection, unless lost.
    fn inner(&mut self) -> Option<&mut Box<dyn Connection>> {
        if self.session.has_ended() {
            self.inner = None;
        }
        self.inner.as_mut()
    }
}

impl Connection for FaultyConnection {
    fn send(&mut self, message: &[u8], region: Option<&Registration>) -> Result<Sent, FabricError> {
        let script = Arc::clone(&self.session.script);
        let Some(inner) = self.inner() else { return Err(FabricError::Closed) };
        if script.is_full() {
            return Ok(Sent::Full);
        }
        match script.next(Operation::Send) {
            Some(Fault::DropMessage) => {
                self.session.end();
                self.inner = None;
                Ok(Sent::Done)
            }
            Some(Fault::FullQueue { sends }) => {
                script.fill(sends - 1);
                Ok(Sent::Full)
            }
            _ => inner.send(message, region),
        }
    }

    fn send_socket(&mut self, message: &[u8], socket: BorrowedFd<'_>) -> Result<Sent, FabricError> {
        self.inner().ok_or(FabricError::Closed)?.send_socket(message, socket)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let session = self.session.clone();
        let Some(inner) = self.inner() else { return Ok(Received::Closed) };
        if session.script.is_silent() {
            return Ok(Received::Nothing);
        }
        match session.script.next(Operation::Receive) {
            Some(Fault::Disconnect) => {
                session.end();
                self.inner = None;
                return Ok(Received::Closed);
            }
            Some(Fault::DelayMessage { looks }) => {
                session.script.silence(looks - 1);
                return Ok(Received::Nothing);
            }
            _ => {}
        }
        Ok(match inner.receive(into)? {
            Received::Message { len, offer } => {
                let faulty = |inner| Box::new(FaultyOffer { inner, session }) as _;
                Received::Message { len, offer: offer.map(faulty) }
            }
            other => other,
        })
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.as_ref().map_or_else(Capabilities::default, |inner| inner.capabilities())
    }

    fn binding(&self) -> Result<Vec<u8>, FabricError> {
        self.inner.as_ref().ok_or(FabricError::Closed)?.binding()
    }

    fn peer_address(&self) -> PeerAddress {
        self.inner.as_ref().map_or(PeerAddress::Unknown, |inner| inner.peer_address())
    }

    fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError> {
        self.inner.as_ref().ok_or(FabricError::Closed)?.prepare(registration)
    }

    fn withdraw(&mut self, registration: &Registration) {
        if let Some(inner) = &mut self.inner {
            inner.withdraw(registration);
        }
    }

    fn arrivals(&self) -> Option<Arc<dyn ArrivalSource>> {
        self.inner.as_ref().and_then(|inner| inner.arrivals())
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        self.inner.as_ref().and_then(|inner| inner.datagrams())
    }

    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// An offer of a region with faulty access.
#[derive(Debug)]
struct FaultyOffer {
    inner: Box<dyn Offer>,
    session: Session,
}

impl Offer for FaultyOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        Ok(Box::new(FaultyRead::new(self.inner.open_read(len_min)?, self.session)))
    }

    fn open_shared(self: Box<Self>, len_min: usize) -> Result<Arc<Region>, FabricError> {
        self.inner.open_shared(len_min)
    }

    fn open_waker(self: Box<Self>) -> Result<Arc<dyn RemoteWaker>, FabricError> {
        self.inner.open_waker()
    }

    fn open_write(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        Ok(Box::new(FaultyWrite::new(self.inner.open_write(len_min)?, self.session)))
    }
}
