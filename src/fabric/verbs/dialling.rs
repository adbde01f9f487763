//! Dialling: several attempts to connect to one node, of which the first one that is established is kept.
//!
//! Neither the connection manager nor TCP repeats a lost packet of a connection in less than a second. So a dial that has no
//! answer yet begins anew, with an identifier, or a socket, and a queue pair of its own. Earlier attempts remain: a slow node
//! still answers them. The others end when one is established, and the node then drops its ends of them: it is notified, and
//! gives up by itself what was not established in time.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use super::endpoint::Endpoint;
use super::error::VerbsError;
use super::greeting::Rejection;
use super::link::{LinkEvent, QpEnds, QpLink};
use super::opened::Devices;
use super::stream::FrameStream;
use crate::chain::ErrorChain;
use crate::fabric::{Address, FabricError, NoPlace, NotAdmitted};
use crate::limits::verbs::{CONNECT_DEADLINE_NS, REDIAL_NS};

/// Begins an attempt. The last number says what it is to show, of all that can be shown.
type Dial = Box<dyn FnMut(&Devices, u64, usize) -> Result<Box<dyn QpLink>, FabricError> + Send>;

/// The dialling end of a connection.
pub(super) struct DiallingLink {
    address: Address,
    dial: Dial,
    attempts: Vec<Attempt>,
    /// The attempt that was established.
    kept: Option<Kept>,
    /// Readable when an attempt has an event.
    events: OwnedFd,
    /// When the next attempt begins, and the pause after it, ns.
    again_ns: u64,
    pause_ns: u64,
    deadline_ns: u64,
    /// What attempts show, and how much can be shown.
    turn: usize,
    turns: usize,
}

/// An attempt that is not established.
struct Attempt {
    link: Box<dyn QpLink>,
    endpoint: Option<Arc<Endpoint>>,
}

/// The established attempt.
struct Kept {
    link: Box<dyn QpLink>,
    /// The session has yet to be notified of that.
    is_news: bool,
}

impl DiallingLink {
    /// Makes the first attempt to connect to the node at this address.
    pub(super) fn dial(
        address: &Address,
        mut dial: Dial,
        devices: &Devices,
        now_ns: u64,
    ) -> Result<Self, FabricError> {
        let first = dial(devices, now_ns, 0)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(waits)?;
        let mut link = Self {
            address: address.clone(),
            dial,
            attempts: Vec::new(),
            kept: None,
            events,
            again_ns: now_ns.saturating_add(REDIAL_NS),
            pause_ns: REDIAL_NS,
            deadline_ns: now_ns.saturating_add(CONNECT_DEADLINE_NS),
            turn: 0,
            turns: 1,
        };
        link.begin(first)?;
        Ok(link)
    }

    /// Has so much to show, one after the other, to a peer that does not admit what was shown before.
    pub(super) fn with_turns(self, turns: usize) -> Self {
        Self { turns, ..self }
    }

    fn begin(&mut self, link: Box<dyn QpLink>) -> Result<(), FabricError> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.events, link.wait_handle(), data, epoll::EventFlags::IN).map_err(waits)?;
        self.attempts.push(Attempt { link, endpoint: None });
        Ok(())
    }

    /// Begins another attempt. If that fails, for example because there are no more queue pairs, those before it still may succeed.
    fn begin_again(&mut self, devices: &Devices, now_ns: u64) {
        self.pause_ns += self.pause_ns / 2;
        self.again_ns = now_ns.saturating_add(self.pause_ns);
        let begun = (self.dial)(devices, now_ns, self.turn).and_then(|link| self.begin(link));
        match begun {
            Ok(()) => {
                tracing::debug!(target: "fabricast", address = %self.address, "no answer yet: dialled again")
            }
            Err(error) => {
                tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "not dialled again")
            }
        }
    }

    /// Takes an attempt out.
    fn take(&mut self, index: usize) -> Attempt {
        let attempt = self.attempts.remove(index);
        if let Err(error) = epoll::delete(&self.events, attempt.link.wait_handle()) {
            tracing::debug!(target: "fabricast", %error, "an attempt to connect is still waited for");
        }
        attempt
    }

    /// Keeps this attempt, and ends the others.
    fn keep(&mut self, index: usize) -> LinkEvent {
        let kept = self.attempts.swap_remove(index);
        self.end_all();
        self.kept = Some(Kept { link: kept.link, is_news: kept.endpoint.is_some() });
        kept.endpoint.map_or(LinkEvent::Established, LinkEvent::Endpoint)
    }

    fn end_all(&mut self) {
        while !self.attempts.is_empty() {
            drop(self.take(0));
        }
    }

    /// Follows the attempts. An answer of the peer is that of the dial; an attempt that fails without one leaves it to the others, and
    /// the dial fails if there are none.
    fn follow(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        let (mut index, mut ended) = (0, Ok(None));
        while let Some(attempt) = self.attempts.get_mut(index) {
            match attempt.link.next(devices, now_ns) {
                Ok(None) => index += 1,
                Ok(Some(LinkEvent::Endpoint(endpoint))) => attempt.endpoint = Some(endpoint),
                Ok(Some(LinkEvent::Established)) => return Ok(Some(self.keep(index))),
                // No frame comes before that.
                Ok(Some(LinkEvent::Frame(_))) => {}
                Ok(Some(LinkEvent::Over)) => {
                    self.take(index);
                    ended = Ok(Some(LinkEvent::Over));
                }
                Err(FabricError::NotAdmitted(NotAdmitted::Key { .. })) if self.turn + 1 < self.turns => {
                    self.show_more(devices, now_ns)?;
                    return Ok(None);
                }
                Err(error) if is_answer(&error) => return Err(error),
                Err(error) => {
                    tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "an attempt to connect failed");
                    self.take(index);
                    ended = Err(error);
                }
            }
        }
        if self.attempts.is_empty() { ended } else { Ok(None) }
    }

    /// Begins anew, with what was not shown yet. Other attempts would get the same answer.
    fn show_more(&mut self, devices: &Devices, now_ns: u64) -> Result<(), FabricError> {
        self.end_all();
        self.turn += 1;
        let link = (self.dial)(devices, now_ns, self.turn)?;
        self.begin(link)
    }

    fn advance(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        let followed = self.follow(devices, now_ns)?;
        if followed.is_some() {
            return Ok(followed);
        }
        if now_ns >= self.deadline_ns {
            return Err(FabricError::NoAnswer { address: self.address.clone() });
        }
        if now_ns >= self.again_ns {
            self.begin_again(devices, now_ns);
        }
        Ok(None)
    }
}

impl QpLink for DiallingLink {
    fn wait_handle(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn deadline_ns(&self) -> Option<u64> {
        match &self.kept {
            Some(kept) => kept.link.deadline_ns(),
            None => (!self.attempts.is_empty()).then_some(self.deadline_ns.min(self.again_ns)),
        }
    }

    fn next(&mut self, devices: &Devices, now_ns: u64) -> Result<Option<LinkEvent>, FabricError> {
        if let Some(kept) = &mut self.kept {
            if std::mem::take(&mut kept.is_news) {
                return Ok(Some(LinkEvent::Established));
            }
            return kept.link.next(devices, now_ns);
        }
        if self.attempts.is_empty() {
            return Ok(None);
        }
        let change = self.advance(devices, now_ns);
        if change.is_err() {
            self.end_all();
        }
        change
    }

    fn confirm(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.link.confirm();
        }
    }

    fn leave(&mut self) {
        match &mut self.kept {
            Some(kept) => kept.link.leave(),
            None => self.end_all(),
        }
    }

    fn is_leaving(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.link.is_leaving())
    }

    fn disconnect(&self) {
        match &self.kept {
            Some(kept) => kept.link.disconnect(),
            None => self.attempts.iter().for_each(|attempt| attempt.link.disconnect()),
        }
    }

    fn is_dialled_to_write(&self) -> bool {
        false
    }

    fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        self.kept.as_ref().and_then(|kept| kept.link.addresses())
    }

    fn ends(&self, queue_pair: u32) -> Result<QpEnds, FabricError> {
        self.kept.as_ref().ok_or(FabricError::Closed)?.link.ends(queue_pair)
    }

    fn frames(&mut self) -> Option<&mut FrameStream> {
        self.kept.as_mut().and_then(|kept| kept.link.frames())
    }
}

impl fmt::Debug for DiallingLink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DiallingLink")
            .field("address", &self.address)
            .field("attempts", &self.attempts.len())
            .field("kept", &self.kept.as_ref().map(|kept| &kept.link))
            .finish_non_exhaustive()
    }
}

/// Whether an error is the peer's answer, which another attempt would get, too. What this end, the network or the peer lacks at the
/// moment is not: an earlier attempt may have what it takes.
fn is_answer(error: &FabricError) -> bool {
    match error {
        FabricError::NoPlace(why) => *why != NoPlace::Haste,
        FabricError::NoSuchNode { .. }
        | FabricError::NotAdmitted(_)
        | FabricError::Verbs(VerbsError::NotANode | VerbsError::OtherAddress { .. }) => true,
        FabricError::Verbs(VerbsError::Refused { why }) => *why != Rejection::NO_ROOM,
        _ => false,
    }
}

/// Attempts cannot be waited for.
fn waits(error: rustix::io::Errno) -> FabricError {
    FabricError::system("wait for a peer")(error)
}

#[cfg(test)]
mod tests;
