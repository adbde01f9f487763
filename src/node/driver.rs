use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use self::tending::Tending;
use super::agenda::Agenda;
use super::backlog::Backlog;
use super::core::{KEYRING_KEY, LISTENER_KEY, LISTENERS_MAX, QUEUE_KEY};
use super::link::{Link, LinkTurn};
use super::revocation::Revocation;
use super::served::Served;
use super::serving::Serving;
use super::shared::Shared;
use crate::chain::ErrorChain;
use crate::clock::saturate;
use crate::control::{ControlError, RefuseReason};
use crate::event::Event;
use crate::fabric::{Acceptor, FabricError, Interest, ListenerNews};
use crate::keyring::{Keys, Right};
use crate::limits;
use crate::sync::atomic::{AtomicBool, Ordering};

mod revoking;
mod tending;
#[cfg(test)]
mod tests;

/// Connections that one listener accepts in one turn, and after which time it accepts no more, nanoseconds: making a queue pair takes a
/// millisecond or much longer, and those that have a session wait meanwhile.
const ACCEPTED_PER_TURN: usize = 16;
const ACCEPTING_NS: u64 = 1_000_000;
/// How soon to retry queued notices and work left to the next turn.
const TEND_AGAIN: Duration = Duration::from_nanos(limits::LANDING_TENDED_NS);
/// How long peers may take to end their sessions when the node stops.
const SHUTDOWN_NS: u64 = 250_000_000;
/// Below this rest of that time, sessions end even with one-sided writes in flight.
const HURRY: Duration = Duration::from_nanos(SHUTDOWN_NS / 2);
/// The longest wait, nanoseconds.
const IDLE_NS: u64 = 10_000_000_000;
/// The shortest wait, nanoseconds: the next turn handles a deadline already due.
const WAIT_NS_MIN: u64 = 1_000_000;
/// The pause after an operating system error, so that a lasting one does not make the loop spin.
const TROUBLE_PAUSE: Duration = Duration::from_millis(50);

/// How long a listener accepts until the same trouble is reported again.
const TROUBLE_OVER_NS: u64 = 1_000_000_000;

/// Drives the control plane of a node: accepts, answers, notices dead peers, and beats. The cost of a turn depends on what has
/// happened since the last one, not on the number of sessions and topics.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Shared,
    agenda: Agenda,
    listeners: BTreeMap<u64, Box<dyn Acceptor>>,
    /// What kept listeners from accepting, by their keys, and when last.
    troubles: BTreeMap<u64, (String, u64)>,
    serving: Serving,
    served: BTreeMap<u64, Served>,
    tending: Tending,
    /// The backlogs in which publishers that have dialled wait, by the keys of their sessions.
    invited: BTreeMap<u64, Arc<Backlog>>,
    beaten_ns: Option<u64>,
    /// Notices are queued.
    tend_soon: bool,
    /// What is being revoked, and from how many subscribers.
    revoking: Vec<(Revocation, usize)>,
    /// The keys with which the sessions were compared last.
    keys: Option<Arc<Keys>>,
    /// The sessions that have had turns.
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
    pub(super) fn new(shared: &Shared, listeners: Vec<Box<dyn Acceptor>>) -> Result<Self, FabricError> {
        let core = &shared.core;
        let mut driver = Self {
            shared: shared.clone(),
            agenda: Agenda::new(&core.queue, QUEUE_KEY)?,
            listeners: BTreeMap::new(),
            troubles: BTreeMap::new(),
            serving: Serving::new(core),
            served: BTreeMap::new(),
            tending: Tending::default(),
            invited: BTreeMap::new(),
            beaten_ns: None,
            tend_soon: false,
            revoking: Vec::new(),
            keys: None,
            #[cfg(test)]
            visited: Vec::new(),
        };
        for listener in listeners {
            driver.listen(listener)?;
        }
        if driver.shared.core.guard.keyring.is_some() {
            driver.agenda.mark(KEYRING_KEY);
        }
        Ok(driver)
    }

    /// Accepts connections there.
    fn listen(&mut self, listener: Box<dyn Acceptor>) -> Result<(), FabricError> {
        let key = LISTENER_KEY + self.listeners.len() as u64;
        assert!(key < LISTENER_KEY + LISTENERS_MAX, "no fabric has so many listeners");
        self.agenda.watch(key, listener.wait_handle(), Some(Interest::Read))?;
        self.listeners.insert(key, listener);
        Ok(())
    }

    /// One turn: does everything possible now.
    pub(super) fn turn(&mut self) {
        let now_ns = self.shared.core.clock.monotonic_ns();
        self.shared.core.fabric.tend();
        self.shared.core.worker.tend();
        let mut keys = self.agenda.take(&self.shared.core.queue, now_ns);
        for key in LISTENER_KEY..LISTENER_KEY + LISTENERS_MAX {
            if keys.contains(&key) {
                self.accept(key, now_ns, &mut keys);
            }
        }
        self.revoke();
        if keys.contains(&KEYRING_KEY) {
            self.renew_keys(now_ns);
        }
        self.take_dialled(&mut keys);
        self.tend_topics(now_ns, &mut keys);
        // A full budget again for landing regions exposed in this turn.
        self.serving.budget.begin(now_ns, false);
        for key in &keys {
            self.visit_served(*key, now_ns);
        }
        for key in &keys {
            self.visit_link(*key, now_ns);
        }
        self.finish_revoking();
    }

    /// Runs turns until `stopped` is set and the thread woken.
    fn run(&mut self, stopped: &AtomicBool) {
        loop {
            self.turn();
            // After the turn, which consumes the wake-up, so that no wait follows it.
            if stopped.load(Ordering::Acquire) {
                return;
            }
            self.wait();
        }
    }

    /// The number of sessions in which invited publishers wait.
    #[cfg(test)]
    pub(super) fn waiting_publishers(&self) -> usize {
        self.invited.len()
    }

    /// The number of receivers served by unicast.
    #[cfg(test)]
    pub(super) fn unicast_receivers(&self) -> usize {
        self.serving.senders.unicast_receivers()
    }

    /// Waits until there is work, or the next deadline.
    pub(super) fn wait(&mut self) {
        let timeout = self.wait_time();
        self.wait_for(timeout);
    }

    /// Waits until there is work, at most this long.
    pub(super) fn wait_for(&mut self, timeout: Duration) {
        if self.shared.core.ok_or_report(self.agenda.wait(timeout)).is_none() {
            self.shared.core.clock.pause(TROUBLE_PAUSE);
        }
    }

    /// Ends all sessions in good order, as far as the peers cooperate in time.
    pub(super) fn shut_down(&mut self) {
        let began_ns = self.shared.core.clock.monotonic_ns();
        self.shared.links.end(began_ns);
        self.turn();
        for (key, listener) in std::mem::take(&mut self.listeners) {
            self.agenda.forget(key, listener.wait_handle());
        }
        // Last values first, then the ends of topics, then the end of the session. A slow peer delays only itself.
        loop {
            let left = self.shutdown_left(began_ns);
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
            let timeout = if has_writes { left.min(again) } else { left };
            // A simulation proceeds during a pause of its clock.
            self.shared.core.clock.pause_until(self.agenda.wait_handle(), timeout);
            self.wait_for(Duration::ZERO);
        }
    }

    /// How long peers may still take; `None` once the time is over.
    fn shutdown_left(&self, began_ns: u64) -> Option<Duration> {
        let elapsed_ns = self.shared.core.clock.monotonic_ns().saturating_sub(began_ns);
        SHUTDOWN_NS.checked_sub(elapsed_ns).filter(|left_ns| *left_ns > 0).map(Duration::from_nanos)
    }

    /// Accepts connections at the listener with this key. What is wrong with one peer costs the others nothing, and what keeps one
    /// listener from accepting does not concern the other ones.
    fn accept(&mut self, key: u64, now_ns: u64, keys: &mut BTreeSet<u64>) {
        let Some(listener) = self.listeners.get_mut(&key) else { return };
        let (core, mut is_stopped) = (&self.shared.core, false);
        let until_ns = core.clock.monotonic_ns().saturating_add(ACCEPTING_NS);
        for _ in 0..ACCEPTED_PER_TURN {
            // The listener stays readable.
            if core.clock.monotonic_ns() > until_ns {
                break;
            }
            let connection = match listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => break,
                Err(error) if error.stops_accepting() => {
                    let what = ErrorChain(&error).to_string();
                    // It is tried again and again.
                    // Peers can end it and cause it again, too.
                    let is_over = |last_ns| now_ns.saturating_sub(last_ns) >= TROUBLE_OVER_NS;
                    let before = self.troubles.insert(key, (what.clone(), now_ns));
                    if before.is_none_or(|(before, last_ns)| before != what || is_over(last_ns)) {
                        core.tell(&Event::Trouble { what });
                    }
                    is_stopped = true;
                    break;
                }
                // One that was turned away often is not reported again.
                Err(FabricError::Closed) => continue,
                Err(error) => {
                    core.tell(&Event::PeerRejected { reason: ErrorChain(&error).to_string() });
                    continue;
                }
            };
            if let Some(served) = core.ok_or_report(Served::new(core, connection, now_ns)) {
                keys.insert(served.key());
                self.served.insert(served.key(), served);
            }
        }
        while let Some(news) = listener.take_news() {
            core.tell(&match news {
                ListenerNews::Lost { address, why } => {
                    Event::NotListening { address: address.to_string(), reason: ErrorChain(&why).to_string() }
                }
                ListenerNews::Back { address } => Event::ListensAgain { address: address.to_string() },
            });
        }
        // Usually out of descriptors. The connection stays queued, and the listener readable.
        let again_ns = is_stopped.then(|| now_ns.saturating_add(saturate(TROUBLE_PAUSE)));
        let again_ns = again_ns.or_else(|| listener.due_ns());
        self.agenda.set_due(key, again_ns);
        let interest = (!is_stopped).then_some(Interest::Read);
        if core.ok_or_report(self.agenda.watch(key, listener.wait_handle(), interest)).is_none() {
            self.agenda.set_due(key, Some(now_ns.saturating_add(saturate(TROUBLE_PAUSE))));
        }
    }

    /// Begins to serve the dialled subscribers.
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

    /// One turn of a session that this node serves.
    fn visit_served(&mut self, key: u64, now_ns: u64) {
        let Some(served) = self.served.get_mut(&key) else { return };
        #[cfg(test)]
        self.visited.push(key);
        served.turn(&mut self.serving, now_ns);
        if let (Some(topic), Some(inviter)) = (served.invited_to(), served.inviter()) {
            let admitted = self.shared.core.guard.admit(&inviter, topic, Right::Publish);
            let admitted = admitted.map_err(|text| (RefuseReason::NotPermitted, text));
            let with_advice = |reason: RefuseReason| (reason, reason.advice());
            match admitted.and_then(|()| self.shared.admit(topic, served.dialled_by()).map_err(with_advice)) {
                Ok(backlog) => return self.hand_over(key, backlog),
                Err((reason, text)) => served.refuse_invite(&mut self.serving, (reason, &text)),
            }
        }
        let core = &self.shared.core;
        if !served.is_over()
            && core.ok_or_report(self.agenda.watch(key, served.wait_handle(), served.interest())).is_none()
        {
            served.abandon(core);
        }
        if served.is_over() {
            self.agenda.forget(key, served.wait_handle());
            self.served.remove(&key);
        } else {
            self.agenda.set_due(key, served.due_ns(now_ns));
        }
    }

    /// Turns a session with a publisher that dialled into a subscribing one.
    fn hand_over(&mut self, key: u64, backlog: Arc<Backlog>) {
        let Some(served) = self.served.remove(&key) else { return };
        self.agenda.forget(key, served.wait_handle());
        let Some((connection, inviter)) = served.into_invited() else { return };
        let core = &self.shared.core;
        let invited = Link::invited(core, connection, inviter, backlog.timeout_ns);
        let Some(link) = core.ok_or_report(invited) else { return };
        let link = self.shared.links.add(link);
        self.agenda.mark(link.key());
        self.invited.insert(link.key(), Arc::clone(&backlog));
        backlog.push(link);
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
            self.shared.core.tell(&Event::Trouble { what: ErrorChain(&error).to_string() });
            let _ = link.abandon(ControlError::Broken { why: ErrorChain(&error).to_string() });
        }
        while let Some(event) = link.take_event() {
            self.shared.core.tell(&event);
        }
        if self.invited.get(&key).is_some_and(|backlog| !backlog.tend(&self.shared.core, key)) {
            self.invited.remove(&key);
        }
    }

    /// Beats and tends topics. Adds the sessions affected.
    fn tend_topics(&mut self, now_ns: u64, keys: &mut BTreeSet<u64>) {
        let core = &self.shared.core;
        let due = |beaten_ns: u64| now_ns.saturating_sub(beaten_ns) >= limits::HEARTBEAT_INTERVAL_NS;
        let beat = self.beaten_ns.is_none_or(due);
        self.serving.budget.begin(now_ns, beat && !self.tending.is_empty());
        for (session, attachment) in self.tending.tend(core, &mut self.agenda, keys, &self.serving.budget) {
            let served = self.served.get_mut(&session);
            if served.is_some_and(|served| served.topic_changed(attachment)) {
                keys.insert(session);
            }
        }
        let beat = beat && !self.tending.is_empty();
        if beat {
            self.beaten_ns = Some(now_ns);
            self.tending.beat(core);
        } else if self.tending.is_empty() {
            self.beaten_ns = None;
        }
        self.tend_soon = self.serving.senders.tend(beat);
    }

    /// Whether the last turn ran out of copy budget.
    fn is_short(&self) -> bool {
        self.tending.is_short || self.serving.budget.is_used_up()
    }

    /// How long to wait if no peer acts.
    pub(super) fn wait_time(&self) -> Duration {
        if self.is_short() || self.agenda.is_pressing() {
            return Duration::ZERO;
        }
        if self.tend_soon {
            return TEND_AGAIN;
        }
        let now_ns = self.shared.core.clock.monotonic_ns();
        let beat_ns = self.beaten_ns.map(|beaten_ns| beaten_ns.saturating_add(limits::HEARTBEAT_INTERVAL_NS));
        let due_ns = beat_ns.into_iter().chain(self.agenda.due_ns()).min();
        let timeout_ns = due_ns.map_or(IDLE_NS, |due_ns| due_ns.saturating_sub(now_ns));
        Duration::from_nanos(timeout_ns.clamp(WAIT_NS_MIN, IDLE_NS))
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
                driver.shut_down();
            };
            // The driver and all its sessions drop before the failure is reported.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                failing.fail(panic.as_ref());
            }
        })?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        // Release: the last handle's work happens before the end. Pairs with the Acquire of the loop.
        self.stop.store(true, Ordering::Release);
        self.shared.core.queue.wake();
        let Some(thread) = self.thread.take() else { return };
        // An event sink may drop the last handle on this very thread, which cannot join itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(target: "fabricast", "the thread of a node panicked");
        }
    }
}
