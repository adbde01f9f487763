//! The way of datagrams to one receiver, found off the threads that send them.

use std::net::Ipv4Addr;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::clock::{Clock, SystemClock};
use crate::fabric::Worker;
use crate::fabric::verbs::sys::{AddressHandle, Path, ProtectionDomain, SysError};
use crate::limits;

/// Find the ways. The kernel asks the network for the receiver's hardware address, and waits up to a second for the answer.
static FINDERS: OnceLock<Worker> = OnceLock::new();

/// Retries starting a thread for ways that could not be looked for for lack of one.
pub(in crate::fabric::verbs) fn tend() {
    FINDERS.get().into_iter().for_each(Worker::tend);
}

/// The way to one receiver.
#[derive(Debug)]
pub(super) struct Way {
    to: Ipv4Addr,
    path: Path,
    domain: Arc<ProtectionDomain>,
    found: Mutex<Found>,
}

/// What is known of a way.
#[derive(Debug)]
enum Found {
    /// It is being looked for.
    NotYet,
    /// Its address handle.
    Handle(Arc<AddressHandle>),
    /// The receiver's host did not answer. It is asked again at this time, ns.
    No { again_ns: u64 },
}

impl Way {
    /// Starts looking for the way along this path.
    pub(super) fn look_for(to: Ipv4Addr, path: Path, domain: &Arc<ProtectionDomain>) -> Arc<Self> {
        let (domain, found) = (Arc::clone(domain), Mutex::new(Found::NotYet));
        let this = Arc::new(Self { to, path, domain, found });
        this.begin();
        this
    }

    /// Its address handle, if it is found. Looks for it again if that is due.
    pub(super) fn handle(self: &Arc<Self>) -> Option<Arc<AddressHandle>> {
        let mut found = self.found.lock();
        match &*found {
            Found::Handle(handle) => return Some(Arc::clone(handle)),
            Found::No { again_ns } if SystemClock.monotonic_ns() >= *again_ns => {}
            Found::NotYet | Found::No { .. } => return None,
        }
        *found = Found::NotYet;
        drop(found);
        self.begin();
        None
    }

    fn begin(self: &Arc<Self>) {
        let sought = Arc::downgrade(self);
        FINDERS.get_or_init(Worker::default).run(move || {
            // Its session may be over already.
            let Some(way) = sought.upgrade() else { return };
            let made = AddressHandle::create(&way.domain, &way.path);
            way.note(made);
        });
    }

    fn note(&self, made: Result<AddressHandle, SysError>) {
        *self.found.lock() = match made {
            Ok(handle) => Found::Handle(Arc::new(handle)),
            Err(error) => {
                tracing::debug!(target: "fabricast", to = %self.to, %error, "no way to a receiver of unicast");
                Found::No { again_ns: SystemClock.monotonic_ns().saturating_add(limits::verbs::FIND_NS) }
            }
        };
    }
}
