use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use self::tending::Tending;
use super::agenda::Agenda;
use super::backlog::Backlog;
use super::core::{LISTENER_KEY, QUEUE_KEY};
use super::link::{Link, LinkTurn};
use super::served::Served;
use super::serving::Serving;
use super::shared::Shared;
use crate::clock::saturate;
use crate::control::ControlError;
use crate::event::Event;
use crate::fabric::{FabricError, Interest, Listener};
use crate::limits;
use crate::sync::atomic::{AtomicBool, Ordering};

mod tending;
#[cfg(test)]
mod tests;

/// Connections accepted in one turn.
const ACCEPTED_PER_TURN: usize = 16;
/// How soon messages are looked after again that wait for room, and what was left to the next turn.
const TEND_AGAIN: Duration = Duration::from_nanos(limits::LANDING_TENDED_NS);
/// How long peers have to take part in the end of their sessions when the node stops.
const FAREWELL_NS: u64 = 250_000_000;
/// When as little as this is left of that, sessions end even if one-sided writes are under way.
const HURRY: Duration = Duration::from_nanos(FAREWELL_NS / 2);
/// The longest wait, nanoseconds.
const IDLE_NS: u64 = 10_000_000_000;
/// The shortest wait, nanoseconds: a deadline that is due is dealt with by the next turn.
const PATIENCE_NS_MIN: u64 = 1_000_000;
/// The pause after a failure of the operating system, so that a lasting one does not make the loop spin.
const TROUBLE_PAUSE: Duration = Duration::from_millis(50);

/// Drives the control plane of a node: accepts, answers, notices who is gone, shows that the process lives. A turn costs what
/// has happened since the last one, however many sessions and topics there are.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Shared,
    agenda: Agenda,
    listener: Option<Box<dyn Listener>>,
    serving: Serving,
    served: BTreeMap<u64, Served>,
    tending: Tending,
    /// Where peers that have dialled wait, by the keys of their sessions.
    invited: BTreeMap<u64, Arc<Backlog>>,
    beaten_ns: Option<u64>,
    /// Notices wait for room.
    tend_soon: bool,
    /// The sessions that had turns so far.
    #[cfg(test)]
    visited: Vec<u64>,
}

/// The thread that runs a driver until it is dropped.
#[derive(Debug)]
pub(super) struct DriverThread {
    shared: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(super) fn new(shared: &Shared, listener: Option<Box<dyn Listener>>) -> Result<Self, FabricError> {
        let core = &shared.core;
        let mut driver = Self {
            shared: shared.clone(),
            agenda: Agenda::new(core.queue(), QUEUE_KEY)?,
            listener: None,
            serving: Serving::new(core),
            served: BTreeMap::new(),
            tending: Tending::default(),
            invited: BTreeMap::new(),
            beaten_ns: None,
            tend_soon: false,
            #[cfg(test)]
            visited: Vec::new(),
        };
        if let Some(listener) = listener {
            driver.listen(listener)?;
        }
        Ok(driver)
    }

    /// Accepts connections there.
    fn listen(&mut self, listener: Box<dyn Listener>) -> Result<(), FabricError> {
        self.agenda.watch(LISTENER_KEY, listener.wait_handle(), Some(Interest::Read))?;
        self.listener = Some(listener);
        Ok(())
    }

    /// One turn: everything that can be done now.
    pub(super) fn turn(&mut self) {
        let now_ns = self.shared.core.clock().monotonic_ns();
        self.shared.core.fabric().tend();
        self.shared.core.worker().tend();
        let mut keys = self.agenda.take(self.shared.core.queue(), now_ns);
        if keys.contains(&LISTENER_KEY) {
            self.accept(now_ns, &mut keys);
        }
        self.take_dialled(&mut keys);
        self.tend_topics(now_ns, &mut keys);
        // What was brought up to date has not used it up for what is exposed now.
        self.serving.room.begin(now_ns, false);
        for key in &keys {
            self.visit_served(*key, now_ns);
        }
        for key in &keys {
            self.visit_link(*key, now_ns);
        }
    }

    /// Turns until this is set, and the thread woken then.
    fn run(&mut self, stopped: &AtomicBool) {
        loop {
            self.turn();
            // Behind the turn, which takes the wake-up: a wait would not end before the next thing is due.
            if stopped.load(Ordering::Acquire) {
                return;
            }
            self.wait();
        }
    }

    /// How many receivers are sent notices alone.
    #[cfg(test)]
    pub(super) fn lone_receivers(&self) -> usize {
        self.serving.senders.lone_receivers()
    }

    /// Waits until there is something to do, or the next thing is due.
    pub(super) fn wait(&mut self) {
        let patience = self.patience();
        self.wait_for(patience);
    }

    fn wait_for(&mut self, patience: Duration) {
        if let Err(error) = self.agenda.wait(patience) {
            self.shared.core.tell(&Event::Trouble { what: error.to_string() });
            self.shared.core.clock().pause(TROUBLE_PAUSE);
        }
    }

    /// Ends all sessions in good order, as far as the peers take part in time.
    pub(super) fn farewell(&mut self) {
        let began_ns = self.shared.core.clock().monotonic_ns();
        self.shared.links.end(began_ns);
        self.turn();
        if let Some(listener) = self.listener.take() {
            self.agenda.forget(LISTENER_KEY, listener.wait_handle());
        }
        // The last values come before the end of their topics, and that before the end of the session. A peer that takes
        // them slowly holds up nobody else.
        loop {
            let left = self.farewell_left(began_ns);
            let is_late = left.is_none_or(|left| left <= HURRY);
            for (key, served) in &mut self.served {
                if is_late || !served.has_writes_under_way() {
                    served.shutdown(began_ns);
                }
                self.agenda.mark(*key);
            }
            self.turn();
            let Some(left) = left.filter(|_| !self.served.is_empty()) else { return };
            let has_writes = self.served.values().any(Served::has_writes_under_way);
            let again = if self.is_short() { Duration::ZERO } else { TEND_AGAIN };
            let patience = if has_writes { left.min(again) } else { left };
            if self.agenda.is_blind() {
                self.shared.core.clock().pause(patience);
            } else {
                self.wait_for(patience);
            }
        }
    }

    /// How long peers still have to take part in the end; `None` when that is over.
    fn farewell_left(&self, began_ns: u64) -> Option<Duration> {
        let elapsed_ns = self.shared.core.clock().monotonic_ns().saturating_sub(began_ns);
        FAREWELL_NS.checked_sub(elapsed_ns).filter(|left_ns| *left_ns > 0).map(Duration::from_nanos)
    }

    fn accept(&mut self, now_ns: u64, keys: &mut BTreeSet<u64>) {
        let Some(listener) = &mut self.listener else { return };
        let (core, mut failed) = (&self.shared.core, false);
        for _ in 0..ACCEPTED_PER_TURN {
            match listener.accept() {
                Ok(Some(connection)) => {
                    let room = self.served.len() < limits::SESSIONS_MAX;
                    match Served::new(core, connection, now_ns, room) {
                        Ok(served) => {
                            keys.insert(served.key());
                            self.served.insert(served.key(), served);
                        }
                        Err(error) => core.tell(&Event::Trouble { what: error.to_string() }),
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    core.tell(&Event::Trouble { what: error.to_string() });
                    failed = true;
                    break;
                }
            }
        }
        // No file was left for it, as a rule. It stays waiting, and the listener readable.
        let again_ns = failed.then(|| now_ns.saturating_add(saturate(TROUBLE_PAUSE)));
        self.agenda.set_due(LISTENER_KEY, again_ns);
        let interest = (!failed).then_some(Interest::Read);
        if let Err(error) = self.agenda.watch(LISTENER_KEY, listener.wait_handle(), interest) {
            core.tell(&Event::Trouble { what: error.to_string() });
        }
    }

    /// Begins to serve the subscribers that were dialled.
    fn take_dialled(&mut self, keys: &mut BTreeSet<u64>) {
        for dialled in self.shared.dialled.take() {
            if self.served.len() < limits::SESSIONS_MAX {
                keys.insert(dialled.key());
                self.served.insert(dialled.key(), dialled);
            } else {
                dialled.give_up();
            }
        }
    }

    /// One turn of a session in which this node serves.
    fn visit_served(&mut self, key: u64, now_ns: u64) {
        let Some(served) = self.served.get_mut(&key) else { return };
        #[cfg(test)]
        self.visited.push(key);
        served.turn(&mut self.serving, now_ns);
        if let Some(topic) = served.invited_to() {
            match self.shared.admit(topic) {
                Ok(backlog) => return self.hand_over(key, backlog),
                Err(reason) => served.refuse_invite(&mut self.serving, reason),
            }
        }
        let interest = if served.has_unsent() { Interest::ReadOrWrite } else { Interest::Read };
        let watched = match served.is_over() {
            false => self.agenda.watch(key, served.wait_handle(), Some(interest)),
            true => Ok(()),
        };
        if let Err(error) = &watched {
            self.shared.core.tell(&Event::Trouble { what: error.to_string() });
        }
        if served.is_over() || watched.is_err() {
            self.agenda.forget(key, served.wait_handle());
            self.served.remove(&key);
        } else {
            self.agenda.set_due(key, served.due_ns(now_ns));
        }
    }

    /// Makes a subscription of a session with a publisher that has dialled.
    fn hand_over(&mut self, key: u64, backlog: Arc<Backlog>) {
        let Some(served) = self.served.remove(&key) else { return };
        self.agenda.forget(key, served.wait_handle());
        let Some((connection, inviter)) = served.into_invited() else { return };
        match Link::invited(&self.shared.core, connection, inviter, backlog.patience_ns()) {
            Ok(link) => {
                let link = self.shared.links.add(link);
                self.agenda.mark(link.key());
                self.invited.insert(link.key(), Arc::clone(&backlog));
                backlog.push(link);
            }
            Err(error) => self.shared.core.tell(&Event::Trouble { what: error.to_string() }),
        }
    }

    /// One turn of a session in which this node subscribes.
    fn visit_link(&mut self, key: u64, now_ns: u64) {
        let Some((link, turn)) = self.shared.links.turn(key, now_ns) else { return };
        #[cfg(test)]
        self.visited.push(key);
        let (interest, due_ns) = match turn {
            LinkTurn::GoesOn { due_ns } => (Some(Interest::Read), due_ns),
            LinkTurn::Rests { due_ns } => (None, due_ns),
            LinkTurn::Over => (None, None),
        };
        self.agenda.set_due(key, due_ns);
        if let Err(error) = self.agenda.watch(key, link.wait_handle(), interest) {
            self.shared.core.tell(&Event::Trouble { what: error.to_string() });
            let _ = link.abandon(ControlError::Broken { why: error.to_string() });
        }
        if let Some(backlog) = self.invited.get(&key) {
            backlog.tend(&self.shared.core);
            if turn == LinkTurn::Over {
                self.invited.remove(&key);
            }
        }
    }

    /// Shows that the node lives, and looks after topics. Adds the sessions to which something happens by that.
    fn tend_topics(&mut self, now_ns: u64, keys: &mut BTreeSet<u64>) {
        let core = &self.shared.core;
        let due = |beaten_ns: u64| now_ns.saturating_sub(beaten_ns) >= limits::HEARTBEAT_INTERVAL_NS;
        let beat = self.beaten_ns.is_none_or(due);
        self.serving.room.begin(now_ns, beat && !self.tending.is_empty());
        for (session, attachment) in self.tending.tend(core, &mut self.agenda, keys, &self.serving.room) {
            let served = self.served.get_mut(&session);
            if served.is_some_and(|served| served.topic_changed(attachment)) {
                keys.insert(session);
            }
        }
        let beat = beat && !self.tending.is_empty();
        if beat {
            self.beaten_ns = Some(now_ns);
            self.tending.beat(core.clock().realtime_ns());
        } else if self.tending.is_empty() {
            self.beaten_ns = None;
        }
        self.tend_soon = self.serving.senders.tend(beat);
    }

    /// Whether more is to be copied to landing regions than there was room for in the last turn.
    fn is_short(&self) -> bool {
        self.tending.is_short() || self.serving.room.is_used_up()
    }

    /// How long there is nothing to do unless a peer does something.
    fn patience(&self) -> Duration {
        if self.is_short() || self.agenda.is_pressing() {
            return Duration::ZERO;
        }
        if self.tend_soon {
            return TEND_AGAIN;
        }
        let now_ns = self.shared.core.clock().monotonic_ns();
        let beat_ns = self.beaten_ns.map(|beaten_ns| beaten_ns.saturating_add(limits::HEARTBEAT_INTERVAL_NS));
        let due_ns = beat_ns.into_iter().chain(self.agenda.due_ns()).min();
        let patience_ns = due_ns.map_or(IDLE_NS, |due_ns| due_ns.saturating_sub(now_ns));
        Duration::from_nanos(patience_ns.clamp(PATIENCE_NS_MIN, IDLE_NS))
    }
}

impl DriverThread {
    /// Starts the thread.
    pub(super) fn start(mut driver: Driver) -> Result<Self, std::io::Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let shared = driver.shared.clone();
        let failing = shared.clone();
        let thread = std::thread::Builder::new().name("fabricast-node".to_owned()).spawn(move || {
            let run = move || {
                driver.run(&stopped);
                driver.farewell();
            };
            // The driver, and with it every session that this node serves, ends before anybody is told.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                failing.fail(panic.as_ref());
            }
        })?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        // Release: what the last holder of the node did comes before the end. Pairs with the Acquire of the loop.
        self.stop.store(true, Ordering::Release);
        self.shared.core.queue().wake();
        let Some(thread) = self.thread.take() else { return };
        // An event sink may hold, and then drop, the node on its own thread, which cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(target: "fabricast", "the thread of a node panicked");
        }
    }
}
