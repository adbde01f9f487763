//! Writes that wake the peer. A wake-up may be late, and shared by several batches, but it arrives.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::Network;
use super::state::SimState;
use super::transfer::Route;
use crate::clock::Clock;
use crate::fabric::{ArrivalAnnouncer, ArrivalSignal, ArrivalSignals, ArrivalSource, FabricError};

/// The longest pause of a reader that waits, before it checks its signal.
const PAUSE: Duration = Duration::from_micros(100);
/// In each step a wake-up arrives with a chance of one in this many.
const LATE_ONE_IN: u64 = 4;

/// Wake-ups in flight.
#[derive(Debug, Default)]
pub(super) struct Waking {
    /// The signals of each end that has asked for them: link and process.
    ends: Vec<(u64, u32, Arc<ArrivalSignals>)>,
    /// To which end, and with which token; each once.
    under_way: Vec<(u64, u32, u32)>,
}

impl SimState {
    /// Sends a wake-up along this route.
    pub(super) fn wake_along(&mut self, route: &Route, token: u32) {
        let wake = (route.link, route.owner, token);
        if !self.waking.under_way.contains(&wake) {
            self.waking.under_way.push(wake);
        }
    }

    /// Lets some wake-ups arrive. Returns whether there was one.
    pub(super) fn progress_wakes(&mut self) -> bool {
        let under_way = std::mem::take(&mut self.waking.under_way);
        let had_some = !under_way.is_empty();
        for wake in under_way {
            let (link, process, token) = wake;
            if !self.random.once_in(LATE_ONE_IN) {
                self.waking.under_way.push(wake);
                continue;
            }
            let ends = self.waking.ends.iter();
            let mut signals = ends.filter(|(of, owner, _)| (*of, *owner) == (link, process));
            if let Some((.., signals)) = signals.next() {
                signals.raise(token);
            }
        }
        had_some
    }

    fn signals(&mut self, link: u64, process: u32) -> Arc<ArrivalSignals> {
        let ends = &mut self.waking.ends;
        ends.retain(|(.., signals)| Arc::strong_count(signals) > 1);
        if let Some((.., signals)) = ends.iter().find(|(of, owner, _)| (*of, *owner) == (link, process)) {
            return Arc::clone(signals);
        }
        let signals = Arc::<ArrivalSignals>::default();
        ends.push((link, process, Arc::clone(&signals)));
        signals
    }
}

/// The wake-ups of one end of a link.
#[derive(Debug)]
pub(super) struct SimArrivals {
    signals: Arc<ArrivalSignals>,
}

impl SimArrivals {
    pub(super) fn new(network: &Network, link: u64, process: u32) -> Self {
        Self { signals: network.state.lock().signals(link, process) }
    }
}

impl ArrivalSource for SimArrivals {
    fn signal(&self, token: u32) -> Arc<ArrivalSignal> {
        self.signals.add(token)
    }

    fn take(&self) {}

    /// The steps of the network raise the signals.
    fn arm(&self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }

    fn wait(&self, signal: &ArrivalSignal, clock: &dyn Clock, timeout: Duration) -> Result<(), FabricError> {
        let mut left = timeout;
        while !signal.is_raised() && !left.is_zero() {
            let pause = PAUSE.min(left);
            clock.pause(pause);
            left -= pause;
        }
        signal.lower();
        Ok(())
    }
}

/// Has the writes to one region wake the peer.
#[derive(Debug)]
pub(super) struct SimAnnouncer {
    pub(super) network: Arc<Network>,
    pub(super) route: Route,
    /// The token, once there is one.
    pub(super) token: Arc<Mutex<Option<u32>>>,
}

impl ArrivalAnnouncer for SimAnnouncer {
    fn begin(&self, token: u32) {
        *self.token.lock() = Some(token);
        self.network.state.lock().wake_along(&self.route, token);
    }
}
