use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::core::NodeCore;
use super::link::{Link, LinkError, LinkTurn, LinkUse};
use crate::control::ControlError;
use crate::fabric::{Address, PeerId};

/// Redials of a session that broke before the peer's hello.
const REDIALS_MAX: u32 = 3;

/// The sessions in which a node subscribes.
#[derive(Debug)]
pub(super) struct Links {
    core: Arc<NodeCore>,
    all: Mutex<BTreeMap<u64, Arc<Link>>>,
}

impl Links {
    /// None yet.
    pub(super) fn new(core: &Arc<NodeCore>) -> Self {
        Self { core: Arc::clone(core), all: Mutex::default() }
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Link>> {
        self.all.lock().values().cloned().collect()
    }

    /// The number of sessions that peers have dialled.
    pub(super) fn invited_count(&self) -> usize {
        self.all.lock().values().filter(|link| link.is_invited()).count()
    }

    /// The number of those that this peer has dialled.
    pub(super) fn invited_by(&self, peer: PeerId) -> usize {
        self.all.lock().values().filter(|link| link.is_invited() && link.dialled_by() == Some(peer)).count()
    }

    /// Adds one.
    pub(super) fn add(&self, link: Link) -> LinkUse {
        let link = Arc::new(link);
        self.all.lock().insert(link.key(), Arc::clone(&link));
        LinkUse::new(&link)
    }

    /// An existing session with the node at this address that accepts more attachments. Never waits for a session that another
    /// thread drives.
    pub(super) fn known(&self, address: &Address) -> Option<LinkUse> {
        let known: Vec<_> =
            self.all.lock().values().filter(|link| link.is_with(address)).map(LinkUse::new).collect();
        known.into_iter().find(|link| link.takes_more())
    }

    /// Makes a session with the node at this address. A dying node resets its queued connections; this redials then, and reaches
    /// the next node of that name or fails.
    pub(super) fn dial(&self, address: &Address, timeout_ns: u64) -> Result<LinkUse, LinkError> {
        let clock = &self.core.clock;
        let deadline_ns = clock.monotonic_ns().saturating_add(timeout_ns);
        let mut left = REDIALS_MAX;
        loop {
            let left_ns = deadline_ns.saturating_sub(clock.monotonic_ns());
            match self.dial_once(address, left_ns, timeout_ns) {
                Err(LinkError::Session(ControlError::Disconnected))
                    if left > 0 && clock.monotonic_ns() < deadline_ns =>
                {
                    left -= 1;
                }
                outcome => return outcome,
            }
        }
    }

    /// Asks over the session with the node at this address, or a new one, also if the existing one turns out to be over: the peer may have
    /// ended it because it was not used.
    pub(super) fn ask<R>(
        &self,
        address: &Address,
        timeout_ns: u64,
        mut ask: impl FnMut(&LinkUse) -> Result<R, LinkError>,
    ) -> Result<R, LinkError> {
        if let Some(link) = self.known(address) {
            match ask(&link) {
                Err(LinkError::Session(_)) if link.failure().is_some() => {}
                outcome => return outcome,
            }
        }
        ask(&self.dial(address, timeout_ns)?)
    }

    /// Dials for up to `left_ns`. The session's answers have `timeout_ns`.
    fn dial_once(&self, address: &Address, left_ns: u64, timeout_ns: u64) -> Result<LinkUse, LinkError> {
        let core = &self.core;
        core.check_runs().map_err(LinkError::Session)?;
        let (connection, left_ns) = core.dial(address, left_ns).map_err(LinkError::Fabric)?;
        let deadline_ns = core.clock.monotonic_ns().saturating_add(left_ns);
        let link = self.add(Link::dialled(core, connection, address, (timeout_ns, deadline_ns))?);
        // The node's thread may have panicked since, after failing the sessions it knew.
        core.check_runs().map_err(|error| link.abandon(error))?;
        link.greet()?;
        Ok(link)
    }

    /// Runs one turn of the session with this key, if it exists, and drops it when it is over.
    pub(super) fn turn(&self, key: u64, now_ns: u64) -> Option<(Arc<Link>, LinkTurn)> {
        let mut all = self.all.lock();
        let link = all.get(&key)?;
        let turn = link.turn(now_ns, Arc::strong_count(link) == 1);
        let link = if turn == LinkTurn::Over { all.remove(&key)? } else { Arc::clone(link) };
        Some((link, turn))
    }

    /// Fails all sessions of a node whose thread has panicked.
    pub(super) fn fail(&self, error: &ControlError) {
        for link in std::mem::take(&mut *self.all.lock()).into_values() {
            let _ = link.abandon(error.clone());
        }
    }

    /// Ends all sessions of a node that stops.
    pub(super) fn end(&self, now_ns: u64) {
        self.all().iter().for_each(|link| link.end(now_ns));
    }
}
