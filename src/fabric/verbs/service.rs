//! The service thread of a fabric: drives sessions that no owner polls, and watches the devices.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::endpoint::leftovers::await_release;
use super::opened::{Devices, OpenDevice};
use super::session::{Next, Session};
use super::sys::{Concern, fail_all};
use crate::chain::ErrorChain;
use crate::clock::{Clock, SystemClock};
use crate::fabric::{FabricError, Waker, wait};
use crate::sync::atomic::{AtomicBool, Ordering};

/// How long the idle thread sleeps.
const IDLE_NS: u64 = 60_000_000_000;
/// Pause after a wait that failed.
const TROUBLE_PAUSE: Duration = Duration::from_millis(10);

/// A handle to the service thread, which starts on first use and ends with the last handle: dropping that waits until
/// pending messages are delivered, within their deadline.
#[derive(Debug)]
pub(super) struct Service {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Inner {
    devices: Arc<Devices>,
    waker: Arc<Waker>,
    stop: AtomicBool,
    /// Sessions to drive now, including new ones.
    roused: Mutex<Vec<Arc<Session>>>,
}

/// A session that the thread drives.
#[derive(Debug)]
struct Attended {
    session: Arc<Session>,
    next: Next,
}

impl Service {
    /// Creates the service of a fabric that uses these devices, without a thread yet.
    pub(super) fn new(devices: &Arc<Devices>) -> Result<Arc<Self>, FabricError> {
        let (devices, waker, stop) = (Arc::clone(devices), Arc::new(Waker::new()?), AtomicBool::new(false));
        devices.wake_with(&waker);
        let inner = Arc::new(Inner { devices, waker, stop, roused: Mutex::default() });
        Ok(Arc::new(Self { inner, thread: Mutex::default() }))
    }

    /// Starts the thread if it does not run, and watches all devices.
    pub(super) fn start(&self) -> Result<(), FabricError> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let inner = Arc::clone(&self.inner);
            let started =
                std::thread::Builder::new().name("fabricast-verbs".to_owned()).spawn(move || inner.run());
            *thread = Some(started.map_err(FabricError::system("start the thread of RDMA verbs"))?);
        }
        self.inner.waker.wake();
        Ok(())
    }

    /// Hands a session to the thread, if needed.
    pub(super) fn attend(&self, session: &Arc<Session>) {
        if !session.needs_attention() {
            return;
        }
        self.inner.roused.lock().push(Arc::clone(session));
        if let Err(error) = self.start() {
            tracing::warn!(target: "fabricast", error = %ErrorChain(&error), "a session makes progress only while its owner polls it");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Release: the last owners' work happens before the end. Pairs with the Acquire of the loop.
        self.inner.stop.store(true, Ordering::Release);
        self.inner.waker.wake();
        let Some(thread) = self.thread.get_mut().take() else { return };
        if thread.join().is_err() {
            tracing::error!(target: "fabricast", "the thread of RDMA verbs panicked");
        }
        // Usually they are few; a program that ends leaves the rest to the kernel.
        await_release();
    }
}

impl Inner {
    fn run(&self) {
        let mut attended = BTreeMap::new();
        loop {
            // Reset first, so that a change afterwards ends the wait.
            self.waker.reset();
            // Acquire: pairs with the Release of the last handle.
            let stop = self.stop.load(Ordering::Acquire);
            let devices = self.devices.all();
            if devices.iter().map(|device| take_events(device)).sum::<usize>() > 0 {
                // Their sessions end at once; those of other fabrics when they check their peers next.
                attended.values_mut().for_each(|entry: &mut Attended| entry.next = Next::At(0));
            }
            let due_ns = self.attend_all(&mut attended);
            if stop && attended.is_empty() {
                return;
            }
            let eventful = attended.values().filter(|entry| matches!(entry.next, Next::AtEvent(_)));
            let handles: Vec<BorrowedFd<'_>> = [self.waker.wait_handle()]
                .into_iter()
                .chain(devices.iter().map(|device| device.context.async_handle()))
                .chain(eventful.flat_map(|entry| entry.session.event_handles()))
                .collect();
            let wait_ns = due_ns.saturating_sub(SystemClock.monotonic_ns()).min(IDLE_NS);
            if let Err(error) = wait(&handles, &[], Duration::from_nanos(wait_ns)) {
                tracing::warn!(target: "fabricast", error = %ErrorChain(&error), "the thread of RDMA verbs cannot wait");
                SystemClock.pause(TROUBLE_PAUSE);
            }
        }
    }

    /// Drives all sessions that are due, and returns when the next one is. Sessions that are over are dropped here.
    fn attend_all(&self, attended: &mut BTreeMap<usize, Attended>) -> u64 {
        // Taken out, so that a thread that hands over a session does not wait for this.
        for session in std::mem::take(&mut *self.roused.lock()) {
            attended.insert(Arc::as_ptr(&session).addr(), Attended { session, next: Next::At(0) });
        }
        let now_ns = SystemClock.monotonic_ns();
        let mut due_ns = u64::MAX;
        attended.retain(|_, entry| {
            if !matches!(entry.next, Next::At(next_ns) if next_ns > now_ns) {
                entry.next = entry.session.attend(now_ns);
            }
            match entry.next {
                Next::Never => return false,
                Next::At(next_ns) | Next::AtEvent(next_ns) => due_ns = due_ns.min(next_ns),
            }
            true
        });
        due_ns
    }
}

/// Logs a device's events, and ends what its faults concern. Returns the number of endpoints that this has ended.
fn take_events(device: &OpenDevice) -> usize {
    let name = device.context.name();
    let mut ended = 0;
    loop {
        let (event, concerned) = match device.context.next_async_event() {
            Ok(Some(taken)) => taken,
            Ok(None) => return ended,
            Err(error) => {
                tracing::warn!(target: "fabricast", device = name, %error, "a device cannot be watched");
                return ended;
            }
        };
        let count = fail_all(&concerned, &event);
        ended += count;
        // One fault may cause many events.
        if event.is_fault && (count > 0 || concerned.is_empty()) {
            tracing::warn!(target: "fabricast", device = name, ?event, connections = count, "an RDMA device reports a fault");
        } else if matches!(event.concern, Concern::Port(_)) {
            // A port that is down for less than a peer may be silent loses nothing.
            tracing::info!(target: "fabricast", device = name, ?event, "an RDMA device reports a change of a port");
        } else {
            tracing::debug!(target: "fabricast", device = name, ?event, "an RDMA device reports");
        }
    }
}

#[cfg(test)]
mod tests;
