//! Requests that wait, and sessions that end because nothing is attached.

use super::Served;
use crate::control::RefuseReason;
use crate::fabric::Interest;
use crate::limits;
use crate::node::core::NodeCore;

impl Served {
    /// Records what the peer has asked for.
    pub(super) fn spend(&self, core: &NodeCore, units: u64) {
        if let Ok(Some(place)) = self.connection.place()
            && units > 0
        {
            place.spend(units, core.clock.monotonic_ns());
        }
    }

    /// Whether the peer has asked for so much that what it asks next has to wait.
    pub(super) fn has_to_wait(&mut self, now_ns: u64) -> bool {
        let place = self.connection.place().ok().flatten();
        let waits_until_ns = place.and_then(|place| place.waits_until(now_ns));
        // Whatever the other sessions of the peer ask for, one message of each is taken from time to time.
        let heard_until_ns = self.tenure.heard_ns.saturating_add(limits::HEARD_NS);
        let is_due = waits_until_ns.is_some() && heard_until_ns <= now_ns;
        if is_due {
            self.tenure.heard_ns = now_ns;
        }
        self.tenure.waits_until_ns =
            waits_until_ns.filter(|_| !is_due).map(|until_ns| until_ns.min(heard_until_ns));
        self.tenure.waits_until_ns.is_some()
    }

    /// When to look again for the next message, which its connection holds back; `None` while it would not be taken.
    pub(super) fn held_back_until_ns(&self) -> Option<u64> {
        self.connection.held_back_until_ns().filter(|_| self.tenure.waits_until_ns.is_none())
    }

    /// For what its handle is to be watched.
    pub(in crate::node) fn interest(&self) -> Option<Interest> {
        // While requests wait, the handle stays readable.
        let is_read = self.tenure.waits_until_ns.is_none() && self.connection.held_back_until_ns().is_none();
        is_read.then(|| if self.has_unsent() { Interest::ReadOrWrite } else { Interest::Read })
    }

    /// The deadline of the hello begins when the connection is established.
    pub(super) fn await_connection(&mut self, now_ns: u64) {
        let was_connecting = self.tenure.connecting_ns.take().is_some();
        if let Some(invitation) = &self.invitation {
            // Its deadline is that of the dialling thread.
            let is_connecting = self.connection.capabilities().is_connecting;
            invitation.set_connecting(is_connecting);
            self.tenure.connecting_ns = is_connecting.then_some(now_ns);
            return;
        }
        if !self.session.awaits_hello() {
            return;
        }
        let is_connecting = self.connection.capabilities().is_connecting;
        if is_connecting || was_connecting {
            self.session.expect_hello_until(now_ns.saturating_add(limits::HELLO_DEADLINE_NS));
        }
        self.tenure.connecting_ns = is_connecting.then_some(now_ns);
    }

    /// Ends a session in which nothing has been attached for a while. One whose peer was invited, and has yet to attach, has a deadline of
    /// its own.
    pub(super) fn end_if_idle(&mut self, now_ns: u64) {
        if !self.session.is_idle() || self.invitation.is_some() {
            self.tenure.idle_since_ns = None;
            return;
        }
        self.tenure.idle_since_ns.get_or_insert(now_ns);
        let is_held_back = self.connection.held_back_until_ns().is_some();
        if self.tenure.idle_until_ns(is_held_back).is_some_and(|until_ns| until_ns <= now_ns) {
            let seconds = limits::IDLE_SESSION_NS / 1_000_000_000;
            self.session.reject(RefuseReason::Idle, &format!("nothing was attached for {seconds} s"));
        }
    }
}
