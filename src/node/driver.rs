use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::link::Link;
use super::served::Served;
use super::serving::Serving;
use super::shared::Shared;
use crate::clock::saturate;
use crate::event::Event;
use crate::fabric::{Listener, wait};
use crate::limits;
use crate::publisher::{PublishedTopic, Tended};
use crate::sync::atomic::{AtomicBool, Ordering};

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

/// Drives the control plane of a node: accepts, answers, notices who is gone, shows that the process lives.
#[derive(Debug)]
pub(super) struct Driver {
    shared: Shared,
    listener: Option<Box<dyn Listener>>,
    serving: Serving,
    served: Vec<Served>,
    beaten_ns: Option<u64>,
    tend_soon: bool,
    /// When landing regions are looked after again, even if nothing happens.
    tend_at_ns: Option<u64>,
    /// The landing regions of the topic with this index are looked after first.
    tend_first: usize,
    /// Until then no connection is accepted, because the last one could not be.
    accept_again_ns: Option<u64>,
}

/// The thread that runs a driver until it is dropped.
#[derive(Debug)]
pub(super) struct DriverThread {
    shared: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(super) fn new(shared: &Shared, listener: Option<Box<dyn Listener>>) -> Self {
        let (shared, serving, served) = (shared.clone(), Serving::new(&shared.core), Vec::new());
        let (beaten_ns, tend_soon, tend_at_ns, tend_first, accept_again_ns) = (None, false, None, 0, None);
        Self {
            shared,
            listener,
            serving,
            served,
            beaten_ns,
            tend_soon,
            tend_at_ns,
            tend_first,
            accept_again_ns,
        }
    }

    /// One turn: everything that can be done now.
    pub(super) fn turn(&mut self) {
        let now_ns = self.shared.core.clock().monotonic_ns();
        self.shared.core.fabric().tend();
        self.accept(now_ns);
        self.take_dialled();
        self.serving.room.begin(now_ns, false);
        for served in &mut self.served {
            served.turn(&mut self.serving, now_ns);
        }
        self.hand_over_invited();
        self.served.retain(|served| !served.is_over());
        self.shared.links.turn(now_ns);
        if self.shared.backlogs.tend(&self.shared.core) {
            self.shared.links.turn(now_ns);
        }
        self.tend_topics(now_ns);
    }

    /// How many receivers are sent notices alone.
    #[cfg(test)]
    pub(super) fn lone_receivers(&self) -> usize {
        self.serving.senders.lone_receivers()
    }

    /// Waits until there is something to do, or the next thing is due.
    pub(super) fn wait(&self) {
        let links: Vec<_> = self.shared.links.all();
        let mut handles: Vec<BorrowedFd<'_>> = vec![self.shared.core.waker().wait_handle()];
        if self.accept_again_ns.is_none() {
            handles.extend(self.listener.iter().filter_map(|listener| listener.wait_handle()));
        }
        handles.extend(self.served.iter().filter_map(Served::wait_handle));
        handles.extend(links.iter().filter_map(|link| link.wait_handle()));
        let unsent = |served: &&Served| served.has_unsent();
        let writable: Vec<_> = self.served.iter().filter(unsent).filter_map(Served::wait_handle).collect();
        if let Err(error) = wait(&handles, &writable, self.patience(&links)) {
            self.shared.core.tell(&Event::Trouble { what: error.to_string() });
            self.shared.core.clock().pause(TROUBLE_PAUSE);
        }
        self.shared.core.waker().reset();
    }

    /// Ends all sessions in good order, as far as the peers take part in time.
    pub(super) fn farewell(&mut self) {
        let began_ns = self.shared.core.clock().monotonic_ns();
        self.shared.links.end(began_ns);
        self.turn();
        self.listener = None;
        // The last values come before the end of their topics, and that before the end of the session. A peer that takes
        // them slowly holds up nobody else.
        loop {
            let left = self.farewell_left(began_ns);
            let is_late = left.is_none_or(|left| left <= HURRY);
            for served in &mut self.served {
                if is_late || !served.has_writes_under_way() {
                    served.shutdown(began_ns);
                }
            }
            self.turn();
            let Some(left) = left.filter(|_| !self.served.is_empty()) else { return };
            let has_writes = self.served.iter().any(Served::has_writes_under_way);
            let again = if self.serving.room.is_used_up() { Duration::ZERO } else { TEND_AGAIN };
            self.wait_for_peers(if has_writes { left.min(again) } else { left });
        }
    }

    /// How long peers still have to take part in the end; `None` when that is over.
    fn farewell_left(&self, began_ns: u64) -> Option<Duration> {
        let elapsed_ns = self.shared.core.clock().monotonic_ns().saturating_sub(began_ns);
        FAREWELL_NS.checked_sub(elapsed_ns).filter(|left_ns| *left_ns > 0).map(Duration::from_nanos)
    }

    /// Waits until a peer has sent something, or is gone, or this time is over.
    fn wait_for_peers(&self, timeout: Duration) {
        let handles: Vec<BorrowedFd<'_>> = self.served.iter().filter_map(Served::wait_handle).collect();
        if handles.is_empty() || wait(&handles, &[], timeout).is_err() {
            self.shared.core.clock().pause(timeout);
        }
    }

    fn accept(&mut self, now_ns: u64) {
        let Some(listener) = &mut self.listener else { return };
        if self.accept_again_ns.is_some_and(|again_ns| now_ns < again_ns) {
            return;
        }
        self.accept_again_ns = None;
        for _ in 0..ACCEPTED_PER_TURN {
            match listener.accept() {
                Ok(Some(connection)) => {
                    let room = self.served.len() < limits::SESSIONS_MAX;
                    match Served::new(&self.shared.core, connection, now_ns, room) {
                        Ok(served) => self.served.push(served),
                        Err(error) => self.shared.core.tell(&Event::Trouble { what: error.to_string() }),
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    // No file is left for it, as a rule. It stays waiting, and the listener readable.
                    self.accept_again_ns = Some(now_ns.saturating_add(saturate(TROUBLE_PAUSE)));
                    return self.shared.core.tell(&Event::Trouble { what: error.to_string() });
                }
            }
        }
    }

    /// Begins to serve the subscribers that were dialled.
    fn take_dialled(&mut self) {
        for dialled in self.shared.dialled.take() {
            if self.served.len() < limits::SESSIONS_MAX {
                self.served.push(dialled);
            } else {
                dialled.give_up();
            }
        }
    }

    /// Makes subscriptions of sessions with publishers that have dialled.
    fn hand_over_invited(&mut self) {
        let mut handed_over = Vec::new();
        for served in &mut self.served {
            let Some(topic) = served.invited_to() else { continue };
            match self.shared.admit(topic) {
                Ok(backlog) => handed_over.push(backlog),
                Err(reason) => served.refuse_invite(&mut self.serving, reason),
            }
        }
        let invited = self.served.extract_if(.., |served| served.is_invited());
        for (backlog, (connection, inviter)) in
            handed_over.into_iter().zip(invited.filter_map(Served::into_invited))
        {
            match Link::invited(&self.shared.core, connection, inviter, backlog.patience_ns()) {
                Ok(link) => backlog.push(self.shared.links.add(link)),
                Err(error) => self.shared.core.tell(&Event::Trouble { what: error.to_string() }),
            }
        }
    }

    fn tend_topics(&mut self, now_ns: u64) {
        let due = |beaten_ns: u64| now_ns.saturating_sub(beaten_ns) >= limits::HEARTBEAT_INTERVAL_NS;
        let topics = self.shared.core.living_topics();
        let beat = !topics.is_empty() && self.beaten_ns.is_none_or(due);
        if beat {
            self.beaten_ns = Some(now_ns);
        } else if topics.is_empty() {
            self.beaten_ns = None;
        }
        let realtime_ns = self.shared.core.clock().realtime_ns();
        topics.iter().filter(|_| beat).for_each(|topic| topic.beat(realtime_ns));
        self.tend_soon = self.serving.senders.tend(&topics, beat);
        // What was lent in this turn has not used it up for the others.
        self.serving.room.begin(now_ns, beat);
        self.tend_landings(topics);
    }

    /// Brings landing regions up to date, also those of topics that have ended. The next turn begins behind the topic for which
    /// the room for copies was used up.
    fn tend_landings(&mut self, mut topics: Vec<Arc<PublishedTopic>>) {
        let mut ending: Vec<_> = self.served.iter().flat_map(Served::ending_topics).cloned().collect();
        supersede(&mut ending);
        topics.append(&mut ending);
        let (first, room) = (self.tend_first.min(topics.len()), &self.serving.room);
        (self.tend_first, self.tend_at_ns) = (0, None);
        let (before, after) = topics.split_at(first);
        for (index, topic) in after.iter().chain(before).enumerate() {
            let had_room = !room.is_used_up();
            let Tended { again_ns, has_written } = topic.landings().tend(room);
            if has_written {
                // Nothing else reports it.
                topic.notices().ring();
            }
            self.tend_at_ns = self.tend_at_ns.into_iter().chain(again_ns).min();
            if had_room && room.is_used_up() {
                self.tend_first = (first + index + 1) % topics.len();
            }
        }
    }

    /// How long there is nothing to do unless a peer does something.
    fn patience(&self, links: &[Arc<Link>]) -> Duration {
        if self.serving.room.is_used_up() {
            return Duration::ZERO;
        }
        // A connection may have room again without waking anybody.
        let has_unsent =
            || self.served.iter().any(Served::has_unsent) || links.iter().any(|it| it.has_unsent());
        if self.tend_soon || self.served.iter().any(Served::awaits_writes) || has_unsent() {
            return TEND_AGAIN;
        }
        let now_ns = self.shared.core.clock().monotonic_ns();
        let beat_ns = self.beaten_ns.map(|beaten_ns| beaten_ns.saturating_add(limits::HEARTBEAT_INTERVAL_NS));
        let sessions = self.served.iter().filter_map(Served::deadline_ns);
        let links = links.iter().filter_map(|link| link.deadline_ns());
        let own = beat_ns.into_iter().chain(self.accept_again_ns).chain(self.tend_at_ns);
        let due_ns = sessions.chain(links).chain(own).min();
        let patience_ns = due_ns.map_or(IDLE_NS, |due_ns| due_ns.saturating_sub(now_ns));
        Duration::from_nanos(patience_ns.clamp(PATIENCE_NS_MIN, IDLE_NS))
    }
}

/// Brings topics that have ended into the order of their names, each once. Of several incarnations of a topic only the last one
/// waits for its subscribers: a topic that is opened again and again takes no more memory for them than that.
fn supersede(ending: &mut Vec<Arc<PublishedTopic>>) {
    ending.sort_unstable_by(|one, other| {
        one.name().cmp(other.name()).then_with(|| one.opening().cmp(&other.opening()))
    });
    ending.dedup_by(|one, other| Arc::ptr_eq(one, other));
    for pair in ending.windows(2) {
        if let [earlier, later] = pair
            && earlier.name() == later.name()
        {
            earlier.supersede();
        }
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
                while !stopped.load(Ordering::Acquire) {
                    driver.turn();
                    driver.wait();
                }
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
        self.shared.core.waker().wake();
        let Some(thread) = self.thread.take() else { return };
        // An event sink may hold, and then drop, the node on its own thread, which cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!(target: "fabricast", "the thread of a node panicked");
        }
    }
}
