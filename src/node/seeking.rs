//! The subscriptions that a node seeks again, on threads of their own that exist only meanwhile.

#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::Clock;
use crate::fabric::Address;
use crate::limits;

/// A subscription that is sought.
pub(super) trait Sought: Send {
    /// Tries to attach. May block for some seconds.
    fn attempt(&mut self) -> Attempt;
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// It was found, or is not wanted any more.
    Done,
    /// Its node refused it: others may be granted.
    Refused,
    /// Its node was not reached: others at that address would not be either.
    Unreached,
    /// Its node does not admit this one: others at that address would be refused, too, until keys were changed.
    Denied,
}

/// The subscriptions that a node seeks.
#[derive(Debug)]
pub(super) struct Seeking {
    clock: Arc<dyn Clock>,
    state: Mutex<SeekState>,
    /// Something changed for a thread that waits.
    changed: Condvar,
}

#[derive(Debug)]
struct SeekState {
    places: Vec<SoughtAddress>,
    threads: usize,
    /// A simulation has threads of its own.
    has_threads: bool,
    /// The state of a generator of random numbers: xorshift64 (Marsaglia, Xorshift RNGs, 2003).
    random: u64,
}

/// An address, and what is sought there.
struct SoughtAddress {
    address: Address,
    sought: Vec<Box<dyn Sought>>,
    /// A thread is there.
    is_busy: bool,
    /// When the next attempts are due, the longest pause after them, and when the first attempts were made, ns.
    due_ns: u64,
    pause_ns: u64,
    since_ns: u64,
}

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeekStep {
    /// Another turn.
    Turn,
    /// A turn at this time.
    At(u64),
    /// Nothing is left that no other thread does.
    Nothing,
}

impl Seeking {
    /// Seeks nothing. Two nodes with different seeds make their attempts at different times.
    pub(super) fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let state = SeekState { places: Vec::new(), threads: 0, has_threads: false, random };
        Self { clock, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Makes its attempts on threads of its own.
    pub(super) fn use_threads(&self) {
        self.state.lock().has_threads = true;
    }

    /// Seeks this at once, and then again until it is found.
    pub(super) fn seek(self: &Arc<Self>, address: &Address, sought: Box<dyn Sought>) {
        let now_ns = self.clock.monotonic_ns();
        let mut state = self.state.lock();
        match state.places.iter_mut().find(|place| place.address == *address) {
            Some(place) => {
                place.sought.push(sought);
                // Its publisher may be back at once, however long others were sought.
                (place.due_ns, place.pause_ns, place.since_ns) = (now_ns, limits::SEEK_PAUSE_MIN_NS, now_ns);
            }
            None => state.places.push(SoughtAddress {
                address: address.clone(),
                sought: vec![sought],
                is_busy: false,
                due_ns: now_ns,
                pause_ns: limits::SEEK_PAUSE_MIN_NS,
                since_ns: now_ns,
            }),
        }
        let threads_max = state.places.len().min(limits::SEEKING_THREADS_MAX);
        if state.has_threads && state.threads < threads_max {
            let seeking = Arc::clone(self);
            let spawned =
                thread::Builder::new().name("fabricast-seek".to_owned()).spawn(move || seeking.run());
            // Without one, the next call tries again; receives of the subscriber say that it is not attached.
            state.threads += usize::from(spawned.is_ok());
        }
        self.changed.notify_one();
    }

    /// Makes attempts until nothing is sought.
    fn run(&self) {
        loop {
            let next = self.turn();
            let mut state = self.state.lock();
            match next {
                SeekStep::Turn => {}
                SeekStep::At(_) => {
                    // Something may have become due earlier meanwhile.
                    let Some(due_ns) = state.due_ns() else { continue };
                    let pause = Duration::from_nanos(due_ns.saturating_sub(self.clock.monotonic_ns()));
                    if !pause.is_zero() {
                        self.changed.wait_for(&mut state, pause);
                    }
                }
                SeekStep::Nothing if state.places.iter().all(|place| place.is_busy) => {
                    state.threads -= 1;
                    return;
                }
                SeekStep::Nothing => {}
            }
        }
    }

    /// Makes the attempts at one address that are due.
    pub(super) fn turn(&self) -> SeekStep {
        let now_ns = self.clock.monotonic_ns();
        let (address, sought) = {
            let mut state = self.state.lock();
            let waiting = state.places.iter_mut().filter(|place| !place.is_busy);
            let Some(place) = waiting.min_by_key(|place| place.due_ns) else { return SeekStep::Nothing };
            if place.due_ns > now_ns {
                return SeekStep::At(place.due_ns);
            }
            place.is_busy = true;
            (place.address.clone(), std::mem::take(&mut place.sought))
        };
        let (mut left, mut has_found, mut unreached, mut is_denied) = (Vec::new(), false, None, false);
        for mut one in sought {
            if unreached.is_some() {
                left.push(one);
                continue;
            }
            match attempt(one.as_mut()) {
                Attempt::Done => has_found = true,
                Attempt::Refused => left.push(one),
                Attempt::Unreached => unreached = Some(one),
                Attempt::Denied => (unreached, is_denied) = (Some(one), true),
            }
        }
        // Last: it may be the only one that is not answered in time, and the others must have their turn.
        left.extend(unreached);
        self.put_back(&address, left, (has_found, is_denied));
        SeekStep::Turn
    }

    /// Leaves an address with those that were not found, until the next attempts are due.
    fn put_back(
        &self,
        address: &Address,
        mut left: Vec<Box<dyn Sought>>,
        (has_found, is_denied): (bool, bool),
    ) {
        let now_ns = self.clock.monotonic_ns();
        let mut state = self.state.lock();
        let random = state.draw();
        let Some(index) = state.places.iter().position(|place| place.address == *address) else { return };
        let Some(place) = state.places.get_mut(index) else { return };
        let has_new = !place.sought.is_empty();
        left.append(&mut place.sought);
        if left.is_empty() {
            state.places.swap_remove(index);
            return;
        }
        if has_found {
            (place.pause_ns, place.since_ns) = (limits::SEEK_PAUSE_MIN_NS, now_ns);
        }
        let [soon_ns, later_ns] =
            if place.address.is_local() { limits::SEEK_PAUSE_MAX_NS } else { limits::SEEK_FAR_PAUSE_MAX_NS };
        let is_soon = now_ns.saturating_sub(place.since_ns) < limits::SEEK_SOON_NS;
        if is_denied {
            place.pause_ns = limits::SEEK_DENIED_PAUSE_NS;
        }
        let half_ns = place.pause_ns / 2;
        let pause_ns = if has_new { 0 } else { half_ns + random % (half_ns + 1) };
        (place.sought, place.is_busy, place.due_ns) = (left, false, now_ns.saturating_add(pause_ns));
        place.pause_ns = (2 * place.pause_ns).min(if is_soon { soon_ns } else { later_ns });
    }
}

/// Makes one attempt. If it panics, in code of the payload type, the subscription is sought again, and so are the others.
fn attempt(sought: &mut dyn Sought) -> Attempt {
    catch_unwind(AssertUnwindSafe(|| sought.attempt())).unwrap_or(Attempt::Refused)
}

impl SeekState {
    /// When the next attempts are due at an address where no thread is.
    fn due_ns(&self) -> Option<u64> {
        self.places.iter().filter(|place| !place.is_busy).map(|place| place.due_ns).min()
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl fmt::Debug for SoughtAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("SoughtAddress")
            .field("address", &self.address)
            .field("sought", &self.sought.len())
            .finish_non_exhaustive()
    }
}
