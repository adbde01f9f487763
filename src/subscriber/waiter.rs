//! Waits for many subscriptions at once.
//!
//! A subscription that found nothing new *rests*: it leaves with its waiter how to see that something is new ([`Condition`]). Before the
//! waiter waits it *arms* those that rest since the last time: they tell their publishers that somebody waits, and only then it looks
//! once more for what is new. So neither side misses the other, and a wait costs as much as there are subscriptions that something
//! happened to, however many there are. A member that is *ready* stays so until its subscription has found nothing again.

mod channel;
mod looks;
mod member;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use self::channel::Channel;
use self::looks::Looks;
pub(crate) use self::member::{Condition, Watched, WokenBy};
use self::member::{Look, Member};
use crate::chain::ErrorChain;
use crate::clock::{Clock, SystemClock};
use crate::fabric::{FabricError, Interest, KeyedWaker, Poller, WakeQueue, WakeSocket, Wakes};
use crate::limits;
use crate::notice::WakeWord;

/// The key of the queue of members that this process wakes.
const QUEUE_KEY: u64 = 0;
/// The key of the timer, for programs that wait for the descriptor by other means.
const TIMER_KEY: u64 = 1;
/// The first key of a wake socket.
const SOCKET_KEYS: u64 = 2;
/// The first key of a channel of notices, or of a source of arrivals.
const CHANNEL_KEYS: u64 = 1 << 32;
/// The first key of a member's own descriptor.
const MEMBER_KEYS: u64 = 1 << 33;

/// How often what has happened is collected before a wait by other means, so that a peer that wakes without end cannot keep the thread.
const COLLECTIONS_MAX: usize = 16;

/// What waits for many subscriptions. They share it: those that find nothing new rest in it.
#[derive(Debug)]
pub(crate) struct Waiter {
    poller: Poller,
    /// Members that threads of this process wake.
    queue: Arc<WakeQueue>,
    timer: OwnedFd,
    state: Mutex<WaiterState>,
}

/// A subscription's membership in a waiter, until the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    member: Arc<Member>,
    waiter: Weak<Waiter>,
}

#[derive(Debug, Default)]
struct WaiterState {
    members: BTreeMap<u32, Arc<Member>>,
    token_next: u32,
    /// The sockets through which publishers wake members, by their keys.
    sockets: BTreeMap<u64, WakeSocket>,
    sockets_made: u64,
    /// What receives on behalf of members, by their keys.
    channels: BTreeMap<u64, Channel>,
    channels_made: u64,
    /// Members that rest and are not armed yet.
    resting: Vec<Arc<Member>>,
    /// Members that are ready.
    ready: Vec<Arc<Member>>,
    looks: Looks,
    /// When to look at some members, because a wake-up may have been lost, ns; and from which one on.
    look_at_some_ns: u64,
    look_from: u32,
    /// A thread waits.
    is_waiting: bool,
}

impl Waiter {
    /// Creates one without members.
    pub(crate) fn new() -> Result<Arc<Self>, FabricError> {
        let queue = Arc::new(WakeQueue::with_capacity(0)?);
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let timer = timer.map_err(FabricError::system("make a timer"))?;
        let poller = Poller::new()?;
        poller.watch(QUEUE_KEY, queue.wait_handle(), Some(Interest::Read))?;
        poller.watch(TIMER_KEY, timer.as_fd(), Some(Interest::Read))?;
        Ok(Arc::new(Self { poller, queue, timer, state: Mutex::default() }))
    }

    /// Adds a member, which is ready at first.
    pub(crate) fn add(self: &Arc<Self>, key: usize) -> Arc<Membership> {
        let mut state = self.state.lock();
        while state.members.contains_key(&state.token_next) {
            state.token_next = state.token_next.wrapping_add(1);
        }
        let token = state.token_next;
        state.token_next = token.wrapping_add(1);
        let member = Arc::new(Member::new(token, key));
        state.members.insert(token, Arc::clone(&member));
        state.ready.push(Arc::clone(&member));
        Arc::new(Membership { member, waiter: Arc::downgrade(self) })
    }

    /// Makes a socket through which a publisher's node wakes members. Returns the end for that node.
    pub(crate) fn open_socket(&self) -> Result<OwnedFd, FabricError> {
        let (socket, peer) = WakeSocket::pair()?;
        let mut state = self.state.lock();
        let key = SOCKET_KEYS + state.sockets_made;
        self.poller.watch(key, socket.as_fd(), Some(Interest::Read))?;
        state.sockets_made += 1;
        state.sockets.insert(key, socket);
        Ok(peer)
    }

    /// Relies on wake-ups only: looks at no member again that its publisher wakes.
    #[cfg(test)]
    pub(crate) fn look_at_none(&self) {
        self.state.lock().look_at_some_ns = u64::MAX;
    }

    /// Whether a thread waits, and all members rest until their publishers, or a thread of this process, wake them.
    #[cfg(test)]
    pub(crate) fn is_asleep(&self) -> bool {
        let state = self.state.lock();
        let rests = |member: &Arc<Member>| !member.is_ready() && member.look_ns().is_none();
        state.is_waiting && state.resting.is_empty() && state.members.values().all(rests)
    }

    /// Readable when a member may be ready, after [`Self::arm`] found none.
    pub(crate) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.poller.wait_handle()
    }

    /// Waits until a member is ready, up to `timeout`; it polls for `spin_ns` before it sleeps. Replaces `keys` by those of the members
    /// that are, each once.
    pub(crate) fn wait(
        &self,
        timeout: Duration,
        spin_ns: u64,
        keys: &mut Vec<usize>,
    ) -> Result<(), FabricError> {
        let began_ns = SystemClock.monotonic_ns();
        loop {
            let now_ns = SystemClock.monotonic_ns();
            let waited_ns = now_ns.saturating_sub(began_ns);
            let left = timeout.saturating_sub(Duration::from_nanos(waited_ns));
            let sleep = if waited_ns < spin_ns {
                self.poll(now_ns);
                Duration::ZERO
            } else {
                self.prepare(now_ns).map_or(Duration::ZERO, |sleep| sleep.min(left))
            };
            let mut woken = BTreeSet::new();
            let waited = self.poller.wait(sleep, &mut woken);
            self.collect(&woken);
            waited?;
            if self.gather(keys) || left.is_zero() {
                return Ok(());
            }
        }
    }

    /// Waits until a member may be ready, up to `timeout` by this clock, for a program that then polls all members.
    pub(crate) fn pause(&self, clock: &dyn Clock, timeout: Duration) -> Result<(), FabricError> {
        if let Some(sleep) = self.prepare(clock.monotonic_ns()) {
            clock.pause_until(self.wait_handle(), sleep.min(timeout));
        }
        let mut woken = BTreeSet::new();
        let waited = self.poller.wait(Duration::ZERO, &mut woken);
        self.collect(&woken);
        waited
    }

    /// Prepares for a wait by other means at [`Self::wait_handle`]. Adds the keys of the members that are ready; if there are none,
    /// the handle becomes readable when one may be.
    pub(crate) fn arm(&self, keys: &mut Vec<usize>) -> Result<(), FabricError> {
        // Until it is no longer readable: what waits for edges hears no more of what is left.
        for _ in 0..COLLECTIONS_MAX {
            let mut woken = BTreeSet::new();
            self.poller.wait(Duration::ZERO, &mut woken)?;
            if woken.is_empty() {
                break;
            }
            self.collect(&woken);
        }
        if let Some(sleep) = self.prepare(SystemClock.monotonic_ns()) {
            self.set_timer(sleep)?;
        }
        if self.gather(keys) {
            self.disarm();
        }
        Ok(())
    }

    /// Nobody waits at [`Self::wait_handle`] before the next [`Self::arm`]: it need not become readable when a member rests.
    pub(crate) fn disarm(&self) {
        self.state.lock().is_waiting = false;
    }

    /// Makes [`Self::wait_handle`] readable after this time.
    pub(crate) fn set_timer(&self, after: Duration) -> Result<(), FabricError> {
        let due = Timespec::try_from(after.max(Duration::from_nanos(1)));
        let due = due.unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let once = Itimerspec { it_interval: Timespec::default(), it_value: due };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        set.map(drop).map_err(FabricError::system("set a timer"))
    }

    /// Arms the members that rest, and looks at those that are due. `None` if a member is ready; otherwise how long to wait at most.
    fn prepare(&self, now_ns: u64) -> Option<Duration> {
        let mut state = self.state.lock();
        state.is_waiting = true;
        self.watch_channels(&mut state);
        state.arm();
        state.look(now_ns);
        state.ready.retain(|member| member.is_ready());
        if !state.ready.is_empty() {
            return None;
        }
        let due_ns = state.looks.first_ns().unwrap_or(u64::MAX).min(state.look_at_some_ns);
        Some(Duration::from_nanos(due_ns.saturating_sub(now_ns)))
    }

    /// Looks at all members, without a request to wake them.
    fn poll(&self, now_ns: u64) {
        let mut state = self.state.lock();
        state.channels.values().for_each(Channel::receive);
        state.schedule();
        state.look_at_all();
        state.look(now_ns);
    }

    /// Marks the members that were woken.
    fn collect(&self, woken: &BTreeSet<u64>) {
        let mut state = self.state.lock();
        state.is_waiting = false;
        let mut tokens = Vec::new();
        for key in woken {
            match *key {
                QUEUE_KEY => {}
                // It was set for this wait.
                TIMER_KEY => drop(rustix::io::read(&self.timer, &mut [0; 8])),
                key if (CHANNEL_KEYS..MEMBER_KEYS).contains(&key) => {
                    state.channels.get(&key).into_iter().for_each(Channel::receive);
                }
                key if key >= MEMBER_KEYS => tokens.extend(u32::try_from(key - MEMBER_KEYS).ok()),
                key => self.take_socket(&mut state, key, &mut tokens),
            }
        }
        // Last, after notices that were received above.
        let mut queued = BTreeSet::new();
        self.queue.take(&mut queued);
        tokens.extend(queued.into_iter().filter_map(|token| u32::try_from(token).ok()));
        tokens.into_iter().for_each(|token| state.mark(token));
    }

    /// Takes what a socket has received.
    fn take_socket(&self, state: &mut WaiterState, key: u64, tokens: &mut Vec<u32>) {
        let Some(wakes) = state.sockets.get(&key).map(|socket| socket.take(tokens)) else { return };
        if wakes != Wakes::Tokens {
            state.look_at_all();
        }
        if wakes == Wakes::Closed
            && let Some(socket) = state.sockets.remove(&key)
        {
            // Its session is over, which is an event of its own for each member. Fails only if it is not watched.
            let _ = self.poller.watch(key, socket.as_fd(), None);
        }
    }

    /// Replaces `keys` by those of the members that are ready. Whether there are any.
    fn gather(&self, keys: &mut Vec<usize>) -> bool {
        let mut state = self.state.lock();
        state.ready.retain(|member| member.is_ready());
        keys.clear();
        keys.extend(state.ready.iter().map(|member| member.key()));
        keys.sort_unstable();
        keys.dedup();
        !keys.is_empty()
    }

    /// Wakes a member when this handle is readable, once.
    fn watch_for(&self, token: u32, handle: BorrowedFd<'_>) {
        let watched = self.poller.watch(MEMBER_KEYS + u64::from(token), handle, Some(Interest::ReadOnce));
        if let Err(error) = watched {
            tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "a read cannot be waited for");
        }
    }

    /// Receives from this channel while it waits.
    fn receive_from(&self, channel: Channel) {
        let state = &mut *self.state.lock();
        if state.channels.values().any(|known| known.is_same(&channel)) {
            return;
        }
        let key = CHANNEL_KEYS + state.channels_made;
        state.channels_made += 1;
        state.channels.insert(key, channel);
    }

    /// Watches the channels, so that what they receive ends the wait.
    fn watch_channels(&self, state: &mut WaiterState) {
        state.channels.retain(|key, channel| match channel.watch(*key, &self.poller) {
            Ok(true) => true,
            Ok(false) => {
                self.poller.forget(*key);
                false
            }
            Err(error) => {
                tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "a channel cannot be waited for");
                true
            }
        });
    }

    /// Wakes a member from within this process.
    fn waker(&self, token: u32) -> KeyedWaker {
        self.queue.keyed(token.into())
    }

    /// Takes a member that has found nothing new.
    fn rest(&self, member: Arc<Member>) {
        let mut state = self.state.lock();
        if member.begin_rest() {
            state.resting.push(member);
        }
        if state.is_waiting {
            self.queue.wake();
        }
    }

    /// Forgets a member.
    fn forget(&self, token: u32) {
        let state = &mut *self.state.lock();
        state.members.remove(&token);
        state.looks.set(token, None);
        self.poller.forget(MEMBER_KEYS + u64::from(token));
        for members in [&mut state.resting, &mut state.ready] {
            members.retain(|member| member.token() != token);
        }
    }
}

/// Readable when a member may be ready, after [`Waiter::arm`] found none.
impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait_handle()
    }
}

impl Membership {
    /// Its waiter.
    pub(crate) fn waiter(&self) -> Option<Arc<Waiter>> {
        self.waiter.upgrade()
    }

    /// What wakes it from other processes.
    pub(crate) fn token(&self) -> u32 {
        self.member.token()
    }

    /// What wakes it from threads of this process. `None` once its waiter is gone.
    pub(crate) fn waker(&self) -> Option<KeyedWaker> {
        Some(self.waiter()?.waker(self.token()))
    }

    /// Whether its subscription may have something new.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.member.is_ready()
    }

    /// Wakes it when this handle of the subscription is readable, once. On failure the condition's time still wakes it.
    pub(crate) fn watch(&self, handle: BorrowedFd<'_>) {
        if let Some(waiter) = self.waiter() {
            waiter.watch_for(self.token(), handle);
        }
    }

    /// It is ready after so many nanoseconds at the latest; without a number, when there is something new.
    pub(crate) fn expect_within(&self, left_ns: Option<u64>) {
        let due_ns = left_ns.map_or(u64::MAX, |left_ns| SystemClock.monotonic_ns().saturating_add(left_ns));
        self.member.expect_by(due_ns);
    }

    /// The subscription has found nothing new. `condition` says how to see that this changes.
    pub(crate) fn rest(&self, condition: Condition) {
        let Some(waiter) = self.waiter() else { return };
        if let Some(channel) = Channel::of(&condition) {
            waiter.receive_from(channel);
        }
        if self.member.rest(condition) {
            waiter.rest(Arc::clone(&self.member));
        }
    }

    /// The subscription waits by other means meanwhile: its waiter has it polled once more.
    pub(crate) fn take_back(&self) {
        if let Some(waiter) = self.waiter().filter(|_| !self.is_ready()) {
            waiter.state.lock().mark_ready(Arc::clone(&self.member));
        }
    }

    /// The subscription wants to be polled again at this time, ns, even if it rests because of another condition.
    pub(crate) fn rest_anew(&self, due_ns: u64) {
        // Its waiter then takes it anew. A wake-up that this hides costs as long as the time takes to come.
        self.member.become_ready();
        self.rest(Condition::At(due_ns));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter() {
            waiter.forget(self.token());
        }
        // Here, where no lock is held: this may be the last use of a session.
        self.member.clear();
    }
}

impl WaiterState {
    /// Arms the members that rest.
    fn arm(&mut self) {
        let resting = std::mem::take(&mut self.resting);
        let mut is_demanded = false;
        for member in &resting {
            member.end_rest();
            is_demanded |= member.arm();
        }
        if !resting.is_empty() {
            WakeWord::settle(is_demanded);
        }
        for member in resting {
            if member.has_news() {
                self.mark_ready(member);
            } else {
                self.looks.set(member.token(), member.look_ns());
            }
        }
    }

    /// Has members looked at in time, without arming them.
    fn schedule(&mut self) {
        let Self { resting, looks, .. } = self;
        resting.retain(|member| {
            looks.set(member.token(), member.look_ns());
            let is_woken = member.is_woken();
            if !is_woken {
                member.end_rest();
            }
            is_woken
        });
    }

    /// Looks at the members that are due, and once a second at some of the others.
    fn look(&mut self, now_ns: u64) {
        if now_ns >= self.look_at_some_ns {
            self.look_at_some();
            self.look_at_some_ns = now_ns.saturating_add(limits::WAITER_LOOK_NS);
        }
        while let Some(token) = self.looks.take_due(now_ns) {
            let Some(member) = self.members.get(&token).cloned() else { continue };
            match member.look(now_ns) {
                Look::Ready => self.mark_ready(member),
                Look::Again(due_ns) => self.looks.set(token, Some(due_ns)),
                Look::Done => {}
            }
        }
    }

    /// Looks at a part of the members, of the next ones in turn.
    fn look_at_some(&mut self) {
        let Self { members, ready, look_from, .. } = self;
        let count =
            members.len().div_ceil(limits::WAITER_LOOK_PARTS).max(limits::WAITER_LOOK_MIN).min(members.len());
        let turn = members.range(*look_from..).chain(members.range(..*look_from)).take(count);
        let mut last = None;
        for (token, member) in turn {
            last = Some(*token);
            if !member.is_ready() && member.has_news() && member.become_ready() {
                ready.push(Arc::clone(member));
            }
        }
        *look_from = last.map_or(0, |token| token.wrapping_add(1));
    }

    /// Looks at every member that nothing has woken.
    fn look_at_all(&mut self) {
        let Self { members, ready, .. } = self;
        let waiting = members.values().filter(|member| !member.is_ready() && member.has_news());
        ready.extend(waiting.filter(|member| member.become_ready()).cloned());
    }

    /// A member was woken.
    fn mark(&mut self, token: u32) {
        if let Some(member) = self.members.get(&token).cloned() {
            self.mark_ready(member);
        }
    }

    fn mark_ready(&mut self, member: Arc<Member>) {
        if member.become_ready() {
            self.ready.push(member);
        }
    }
}

#[cfg(test)]
mod tests;
