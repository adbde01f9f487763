//! Where peers connect by the connection manager: a listener that comes back with its device.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::epoll;

use super::manager::CmListener;
use super::opened::Devices;
use super::sys::CmEvent;
use crate::chain::ErrorChain;
use crate::fabric::{Address, FabricError, ListenerNews};
use crate::limits;

/// A listener, while its device is there.
#[derive(Debug)]
pub(super) struct Reception {
    /// Where it listens.
    at: SocketAddr,
    listener: Option<CmListener>,
    /// When it tries to listen again, ns.
    again_ns: u64,
    /// Why the last attempt failed; empty while it listens.
    last_failure: String,
    /// What was not reported yet.
    news: Option<ListenerNews>,
}

impl Reception {
    /// Takes over a listener.
    pub(super) fn new(listener: CmListener, at: &SocketAddr) -> Self {
        let at = listener.address().unwrap_or(*at);
        Self { at, listener: Some(listener), again_ns: 0, last_failure: String::new(), news: None }
    }

    /// Returns a handle that becomes readable when a request arrives. `None` without a device.
    pub(super) fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(|listener| listener.channel.as_fd())
    }

    /// Returns the addresses at which peers reach it.
    pub(super) fn addresses(&self) -> Vec<Address> {
        self.listener.as_ref().map_or_else(Vec::new, CmListener::addresses)
    }

    /// Returns what has happened since the last call.
    pub(super) fn take_news(&mut self) -> Option<ListenerNews> {
        self.news.take()
    }

    /// When [`Self::next`] is to be called although nothing is readable.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.listener.is_none().then_some(self.again_ns)
    }

    /// Returns the next connection request. Without a device, it checks every two seconds whether the device is back, and then adds the
    /// listener's handle to those that `readable` waits for.
    pub(super) fn next(
        &mut self,
        devices: &Arc<Devices>,
        readable: &impl AsFd,
        now_ns: u64,
    ) -> Result<Option<CmEvent>, FabricError> {
        let Some(listener) = &self.listener else {
            if now_ns >= self.again_ns {
                self.again_ns = now_ns.saturating_add(limits::verbs::RELISTEN_NS);
                self.listen_again(devices, readable)?;
            }
            return Ok(None);
        };
        match listener.next() {
            Ok(request) => Ok(request),
            Err(why) if why.is_not_listening() => {
                self.listener = None;
                self.again_ns = now_ns.saturating_add(limits::verbs::RELISTEN_NS);
                self.news = Some(ListenerNews::Lost { address: Address::rdma(self.at), why });
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn listen_again(&mut self, devices: &Devices, readable: &impl AsFd) -> Result<(), FabricError> {
        let listener = match CmListener::open(&self.at, devices) {
            Ok(listener) => listener,
            Err(error) => {
                let failure = ErrorChain(&error).to_string();
                // It tries every two seconds: a reason is logged when it is another one.
                if failure != self.last_failure {
                    tracing::warn!(target: "fabricast", at = %self.at, error = failure, "cannot listen for RDMA peers again yet");
                    self.last_failure = failure;
                }
                return Ok(());
            }
        };
        self.last_failure.clear();
        let data = epoll::EventData::new_u64(0);
        let added = epoll::add(readable, listener.channel.as_fd(), data, epoll::EventFlags::IN);
        added.map_err(FabricError::system("wait for peers"))?;
        self.listener = Some(listener);
        self.news = Some(ListenerNews::Back { address: Address::rdma(self.at) });
        Ok(())
    }
}
