use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::chain::ErrorChain;
use crate::fabric::{FabricError, Interest, Poller, WakeQueue};

/// What the thread of a node processes next, by key: what is ready, what was woken, and what is due.
#[derive(Debug)]
pub(super) struct Agenda {
    poller: Poller,
    ready: BTreeSet<u64>,
    due: BTreeMap<u64, u64>,
    by_time: BTreeSet<(u64, u64)>,
}

impl Agenda {
    /// Watches only this queue, which has a key of its own.
    pub(super) fn new(queue: &WakeQueue, key: u64) -> Result<Self, FabricError> {
        let poller = Poller::new()?;
        poller.watch(key, queue.wait_handle(), Some(Interest::Read))?;
        Ok(Self { poller, ready: BTreeSet::new(), due: BTreeMap::new(), by_time: BTreeSet::new() })
    }

    /// Processes this key in the next turn, which comes at once.
    pub(super) fn mark(&mut self, key: u64) {
        self.ready.insert(key);
    }

    /// Processes this key then, even if nothing happens before.
    pub(super) fn set_due(&mut self, key: u64, due_ns: Option<u64>) {
        let before_ns = match due_ns {
            Some(due_ns) => self.due.insert(key, due_ns),
            None => self.due.remove(&key),
        };
        if before_ns != due_ns {
            before_ns.map(|before_ns| self.by_time.remove(&(before_ns, key)));
            due_ns.map(|due_ns| self.by_time.insert((due_ns, key)));
        }
    }

    /// Processes this key when its handle is ready.
    pub(super) fn watch(
        &mut self,
        key: u64,
        handle: BorrowedFd<'_>,
        interest: Option<Interest>,
    ) -> Result<(), FabricError> {
        self.poller.watch(key, handle, interest)
    }

    /// Drops this key, before its handle is closed.
    pub(super) fn forget(&mut self, key: u64, handle: BorrowedFd<'_>) {
        self.set_due(key, None);
        if let Err(error) = self.watch(key, handle, None) {
            tracing::warn!(target: "fabricast", error = %ErrorChain(&error), "a session that is over is still waited for");
        }
    }

    /// The keys to process now.
    pub(super) fn take(&mut self, queue: &WakeQueue, now_ns: u64) -> BTreeSet<u64> {
        queue.take(&mut self.ready);
        while let Some((due_ns, key)) = self.by_time.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns)
        {
            self.by_time.remove(&(due_ns, key));
            self.due.remove(&key);
            self.ready.insert(key);
        }
        std::mem::take(&mut self.ready)
    }

    /// Whether a key is to be processed at once.
    pub(super) fn is_pressing(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next key is due even if nothing happens.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.by_time.first().map(|(due_ns, _)| *due_ns)
    }

    /// Readable while a handle is ready.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.poller.wait_handle()
    }

    /// Waits until something happens, or the timeout expires.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), FabricError> {
        self.poller.wait(timeout, &mut self.ready)
    }
}
