//! A session with a peer: its link, its endpoint, and the messages under way in both directions.
//!
//! It goes on whenever somebody looks at it: the owner of its connection, or the service thread where something is to be
//! done that no owner waits for.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::event::epoll;

use super::endpoint::{Arrival, Endpoint};
use super::error::{Failure, VerbsError};
use super::link::{Change, Link};
use super::message::{Descriptor, Frame, Inbound, Malformed, Message, Outbound};
use super::one_sided::VerbsOffer;
use super::opened::Devices;
use super::region::VerbsRegistered;
use crate::fabric::several::together;
use crate::fabric::{
    Capabilities, FabricError, Offer, Placement, Prepared, Received, Registration, RemoteKey, Sent, Waker,
};
use crate::limits;
use crate::memory::WORD;

/// Words of a frame's buffer.
const FRAME_WORDS: usize = limits::verbs::FRAME_LEN_MAX / WORD;
/// When the service thread looks again at what tells nobody that it is complete, ns.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// One end of a session.
#[derive(Debug)]
pub(super) struct Session {
    devices: Arc<Devices>,
    /// Readable when the owner has something to receive, or something is to be done.
    readable: OwnedFd,
    /// Wakes the owner for what somebody else has taken from the device.
    waker: Waker,
    /// Readable when something happens to the link.
    events: OwnedFd,
    /// Set when the device is known.
    endpoint: OnceLock<Arc<Endpoint>>,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    link: Box<dyn Link>,
    /// Whether frames may be sent.
    stands: bool,
    outbound: Outbound,
    inbound: Inbound,
    /// Frames that hold a fragment that was not taken yet.
    arrivals: VecDeque<Held>,
    /// Room for a frame to be sent.
    frame: Vec<u8>,
    end: Option<End>,
    /// The owner is gone: what was sent is delivered until then.
    lingers_until_ns: Option<u64>,
    attention: Attention,
    /// Work requests that were completed when the session was last found to be alive, or the peer was probed.
    completed: u64,
    /// When to look for that again.
    look_ns: u64,
    /// The owner was woken.
    awake: bool,
    /// The owner had a message for which there was no room, and is to be told when there is.
    wants_room: bool,
}

/// How the service thread looks after a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    /// Not at all.
    None,
    /// From time to time, to see whether the peer lives.
    Rare,
    /// Whenever something happens.
    Close,
}

/// When the service thread is to look at a session again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Never: it is over.
    Never,
    /// Then.
    At(u64),
    /// Then, or when something happens to it.
    AtEvent(u64),
}

/// A frame that is held.
#[derive(Debug)]
enum Held {
    /// In a buffer of the endpoint, by which it came.
    Buffer(Arrival),
    /// By itself: it came by the link.
    Bytes(Vec<u8>),
}

/// How a session ended.
#[derive(Debug)]
enum End {
    /// It was closed.
    Closed,
    /// It failed; the owner is told once.
    Failed(Option<FabricError>),
}

impl Session {
    /// A session over this link, whose endpoint may be made already.
    pub(super) fn new(
        devices: &Arc<Devices>,
        link: Box<dyn Link>,
        endpoint: Option<Arc<Endpoint>>,
    ) -> Result<Arc<Self>, FabricError> {
        let waker = Waker::new()?;
        let system = |source| FabricError::System { what: "wait for a peer", source };
        let events = link.wait_handle().try_clone_to_owned().map_err(system)?;
        let readable = together(&[events.as_fd(), waker.wait_handle()])?;
        let session = Self {
            devices: Arc::clone(devices),
            readable,
            waker,
            events,
            endpoint: OnceLock::new(),
            state: Mutex::new(SessionState {
                link,
                stands: false,
                outbound: Outbound::new(),
                inbound: Inbound::default(),
                arrivals: VecDeque::new(),
                frame: Vec::new(),
                end: None,
                lingers_until_ns: None,
                attention: Attention::None,
                completed: 0,
                look_ns: 0,
                awake: false,
                wants_room: false,
            }),
        };
        if let Some(endpoint) = endpoint {
            session.adopt(endpoint)?;
        }
        Ok(Arc::new(session))
    }

    /// Readable when there is something to receive, or the peer is gone.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// What becomes readable when there is something to be done, whoever does it.
    pub(super) fn event_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let arrivals = self.endpoint.get().map(|endpoint| endpoint.wait_handle());
        [self.events.as_fd()].into_iter().chain(arrivals)
    }

    /// Sends a message, or takes it to be sent.
    pub(super) fn send(
        &self,
        message: &[u8],
        region: Option<&Registration>,
        now_ns: u64,
    ) -> Result<Sent, FabricError> {
        let (len, max) = (message.len(), limits::CONTROL_MESSAGE_LEN_MAX);
        assert!(len > 0, "a message has at least one byte");
        if len > max {
            return Err(FabricError::MessageTooLong { len, max });
        }
        let mut state = self.state.lock();
        self.go_on(&mut state, now_ns);
        let sent = self.take_to_send(&mut state, message, region);
        state.wants_room = matches!(sent, Ok(Sent::Full));
        self.flush(&mut state);
        // What has come meanwhile is the owner's, too, whatever became of the message.
        self.rouse(&mut state);
        sent
    }

    fn take_to_send(
        &self,
        state: &mut SessionState,
        message: &[u8],
        region: Option<&Registration>,
    ) -> Result<Sent, FabricError> {
        if state.end.is_some() {
            return Err(FabricError::Closed);
        }
        let described = match (region, self.endpoint.get()) {
            _ if !state.outbound.has_room() => return Ok(Sent::Full),
            (None, _) => None,
            (Some(_), None) => return Ok(Sent::Full),
            (Some(registration), Some(endpoint)) => {
                let entry = registered(registration)?;
                let descriptor = entry.descriptor(endpoint)?;
                entry.lend(endpoint)?;
                Some(descriptor)
            }
        };
        Ok(state.outbound.push(message, described))
    }

    /// The next message.
    pub(super) fn receive(&self, into: &mut [u8], now_ns: u64) -> Result<Received, FabricError> {
        let mut state = self.state.lock();
        self.go_on(&mut state, now_ns);
        // Who looks sends next what waits: once is enough.
        state.wants_room &= !self.has_room(&state);
        let received = self.take_message(&mut state, into);
        // Room that was given back may be all that the peer, or this end, waits for.
        self.flush(&mut state);
        self.rouse(&mut state);
        received
    }

    /// Takes a region back that was sent.
    pub(super) fn withdraw(&self, registration: &Registration) {
        let entry = registration.entries::<VerbsRegistered>().next();
        if let Some((entry, endpoint)) = entry.zip(self.endpoint.get()) {
            entry.withdraw(endpoint);
        }
    }

    /// Sees to it that a region is registered where the peer can use it, and this end's work requests.
    pub(super) fn prepare(&self, registration: &Arc<Registration>) -> Result<Prepared, FabricError> {
        let Some(endpoint) = self.endpoint.get() else { return Ok(Prepared::Done(RemoteKey::default())) };
        let known = registered(registration)?.known(endpoint)?;
        Ok(match known.map(|Descriptor { key, address, .. }| RemoteKey { key: key.into(), address }) {
            Some(remote_key) => Prepared::Done(remote_key),
            None => {
                let (registration, endpoint) = (Arc::clone(registration), Arc::clone(endpoint));
                Prepared::Work(Box::new(move || registered(&registration)?.descriptor(&endpoint).map(|_| ())))
            }
        })
    }

    /// The addresses of this end and of the peer, if both are IPv4 ones. An error as long as they are not known.
    pub(super) fn addresses(&self) -> Result<Option<(Ipv4Addr, Ipv4Addr)>, FabricError> {
        let addresses = self.state.lock().link.addresses();
        let (near, far) = addresses.ok_or(VerbsError::NoChannel { why: "it does not stand yet" })?;
        match (near.to_canonical(), far.to_canonical()) {
            (IpAddr::V4(near), IpAddr::V4(far)) => Ok(Some((near, far))),
            _ => Ok(None),
        }
    }

    /// What it is capable of. Known as soon as the endpoint is made.
    pub(super) fn capabilities(&self) -> Capabilities {
        let placement = self.endpoint.get().map_or_else(Placement::default, |endpoint| endpoint.placement());
        let is_dialled_to_write = self.state.lock().link.is_dialled_to_write();
        Capabilities { placement, shares_memory: false, is_dialled_to_write }
    }

    /// The owner is gone. What was sent is still delivered, if that can be done in time.
    pub(super) fn close(&self, now_ns: u64) {
        let mut state = self.state.lock();
        if let Some(endpoint) = self.endpoint.get() {
            endpoint.close();
        }
        state.lingers_until_ns = Some(now_ns.saturating_add(limits::verbs::LINGER_NS));
    }

    /// Whether the service thread is to look at it now, because it does not know yet that there is something to do.
    pub(super) fn needs_attention(&self) -> bool {
        let mut state = self.state.lock();
        let needs = match state.attention {
            Attention::None => state.end.is_none(),
            // What an owner has left is given back at once.
            _ if state.lingers_until_ns.is_some() => true,
            Attention::Rare => state.is_unfinished(),
            Attention::Close => false,
        };
        if needs {
            state.attention = Attention::Close;
        }
        needs
    }

    /// One turn of the service thread.
    pub(super) fn attend(&self, now_ns: u64) -> Next {
        let mut state = self.state.lock();
        self.go_on(&mut state, now_ns);
        if let Some(until_ns) = state.lingers_until_ns {
            self.linger(&mut state, now_ns, until_ns);
        }
        self.look_for_life(&mut state, now_ns);
        self.rouse(&mut state);
        if state.end.is_some() {
            state.attention = Attention::None;
            return Next::Never;
        }
        if !state.is_unfinished() {
            state.attention = Attention::Rare;
            return Next::At(state.look_ns);
        }
        state.attention = Attention::Close;
        let link_ns = state.link.deadline_ns().unwrap_or(u64::MAX);
        let linger_ns = state.lingers_until_ns.unwrap_or(u64::MAX);
        // Sends that complete wake nobody: neither whoever has to wait for room, nor whoever waits for the last one.
        let lingers = state.lingers_until_ns.is_some() && !state.link.is_leaving();
        let looks = state.stands && (lingers || state.outbound.has_frame() || state.has_unsent());
        let look_ns = if state.stands { state.look_ns } else { u64::MAX };
        let again_ns = if looks { now_ns.saturating_add(LOOK_AGAIN_NS) } else { u64::MAX };
        Next::AtEvent(link_ns.min(linger_ns).min(again_ns).min(look_ns))
    }

    /// Probes the peer's host if nothing has been acknowledged or received for a while. Links that carry the frames of
    /// unreliable endpoints do that by themselves.
    fn look_for_life(&self, state: &mut SessionState, now_ns: u64) {
        let endpoint = self.endpoint.get().filter(|_| state.stands && state.end.is_none());
        let Some(endpoint) = endpoint.filter(|_| now_ns >= state.look_ns) else { return };
        let completed = endpoint.completed();
        // Not the first time: the connection has only just come to stand.
        if endpoint.is_reliable()
            && completed == state.completed
            && state.look_ns > 0
            && let Err(error) = endpoint.probe()
        {
            return self.end(state, End::Failed(Some(error)));
        }
        state.completed = completed;
        // Sessions that rest are looked at together, so that many of them wake the thread no more often than a few.
        let look_ns = now_ns.saturating_add(limits::verbs::QUIET_NS);
        state.look_ns = look_ns.checked_next_multiple_of(limits::verbs::QUIET_NS / 4).unwrap_or(look_ns);
    }

    /// Ends a session without an owner as soon as the peer has everything, or the time is over.
    fn linger(&self, state: &mut SessionState, now_ns: u64, until_ns: u64) {
        if state.end.is_some() {
            return;
        }
        let under_way = || self.endpoint.get().is_some_and(|endpoint| endpoint.has_frames_under_way());
        let delivered = state.outbound.is_empty() && !state.has_unsent() && !under_way();
        if now_ns >= until_ns || (delivered && !state.stands) {
            if !delivered {
                tracing::debug!(target: "fabricast", "a peer did not take everything before the end");
            }
            self.end(state, End::Closed);
        } else if delivered && !state.link.is_leaving() {
            state.link.leave();
        }
    }

    /// Does what there is to be done.
    fn go_on(&self, state: &mut SessionState, now_ns: u64) {
        if state.end.is_none()
            && let Err(error) = self.follow_link(state, now_ns)
        {
            self.end(state, End::Failed(Some(error)));
        }
        if let Some(endpoint) = self.endpoint.get() {
            if let Err(error) = self.take_arrivals(state, endpoint) {
                self.end(state, End::Failed(Some(error)));
            }
            if let (None, Some(failure)) = (&state.end, endpoint.failure()) {
                let failed = failure.error().map(|error| End::Failed(Some(error.into())));
                self.end(state, failed.unwrap_or(End::Closed));
            }
        }
        self.flush(state);
    }

    /// Takes what has happened to the link. A peer cannot hold this up: what its frames may give back, ask, answer or hold
    /// is bounded until this end has sent something, and a frame that does nothing of that is refused.
    fn follow_link(&self, state: &mut SessionState, now_ns: u64) -> Result<(), FabricError> {
        while let Some(change) = state.link.next(&self.devices, now_ns)? {
            match change {
                Change::Endpoint(endpoint) => self.adopt(endpoint)?,
                Change::Established => self.establish(state)?,
                Change::Frame(bytes) => state.take_frame(bytes)?,
                Change::Over => {
                    self.end(state, End::Closed);
                    break;
                }
            }
        }
        Ok(())
    }

    /// The connection stands: the link says so, or the peer has used it.
    fn establish(&self, state: &mut SessionState) -> Result<(), FabricError> {
        if state.stands {
            return Ok(());
        }
        state.stands = true;
        // If the owner finds this, the service thread still sleeps until the deadline of connecting.
        state.attention = Attention::None;
        state.link.heard();
        self.endpoint.get().map_or(Ok(()), |endpoint| endpoint.open())
    }

    fn adopt(&self, endpoint: Arc<Endpoint>) -> Result<(), FabricError> {
        let endpoint = self.endpoint.get_or_init(|| endpoint);
        let data = epoll::EventData::new_u64(0);
        let added = epoll::add(&self.readable, endpoint.wait_handle(), data, epoll::EventFlags::IN);
        added.map_err(|errno| FabricError::System { what: "wait for a peer", source: errno.into() })
    }

    /// Takes what the device has received. What a frame gives back counts at once, what it holds waits for the owner.
    fn take_arrivals(&self, state: &mut SessionState, endpoint: &Endpoint) -> Result<(), FabricError> {
        let mut arrivals = VecDeque::new();
        endpoint.take_arrivals(&mut arrivals)?;
        if !arrivals.is_empty() {
            // The peer has heard that it was accepted.
            self.establish(state)?;
        }
        for arrival in arrivals {
            let mut words = [0; FRAME_WORDS];
            let frame = Frame::parse(endpoint.read(arrival, &mut words)).map_err(malformed)?;
            if frame.fragment.is_none() {
                // Before the credits are used: the peer's next one of this kind may be an answer to that.
                endpoint.release(arrival)?;
            } else {
                state.arrivals.push_back(Held::Buffer(arrival));
            }
            state.outbound.credit(frame.credits).map_err(malformed)?;
        }
        Ok(())
    }

    fn take_message(&self, state: &mut SessionState, into: &mut [u8]) -> Result<Received, FabricError> {
        let Some(endpoint) = self.endpoint.get() else { return state.ended() };
        while let Some(arrival) = state.arrivals.pop_front() {
            let message = match self.take_fragment(state, endpoint, arrival) {
                Ok(message) => message,
                Err(error) => {
                    self.end(state, End::Failed(Some(error)));
                    state.arrivals.clear();
                    break;
                }
            };
            let Some(Message { bytes, region }) = message else { continue };
            let (len, max) = (bytes.len(), into.len());
            let room = into.get_mut(..len).ok_or(FabricError::MessageTooLong { len, max })?;
            room.copy_from_slice(&bytes);
            let offer = |descriptor| VerbsOffer::new(Arc::clone(endpoint), descriptor);
            let offer = region.map(|descriptor| Box::new(offer(descriptor)) as Box<dyn Offer>);
            return Ok(Received::Message { len, offer });
        }
        state.ended()
    }

    /// Takes a fragment; the whole message, if it was the last one.
    fn take_fragment(
        &self,
        state: &mut SessionState,
        endpoint: &Endpoint,
        held: Held,
    ) -> Result<Option<Message>, FabricError> {
        let mut words = [0; FRAME_WORDS];
        let bytes = match &held {
            Held::Buffer(arrival) => endpoint.read(*arrival, &mut words),
            Held::Bytes(bytes) => bytes,
        };
        let frame = Frame::parse(bytes).map_err(malformed)?;
        let message = match &frame.fragment {
            Some(fragment) => state.inbound.take(fragment).map_err(malformed)?,
            None => None,
        };
        if let Held::Buffer(arrival) = held {
            endpoint.release(arrival)?;
        }
        state.outbound.owe();
        Ok(message)
    }

    /// Sends what waits, as far as the peer has room.
    fn flush(&self, state: &mut SessionState) {
        let Some(endpoint) = self.endpoint.get().filter(|_| state.stands && state.end.is_none()) else {
            return;
        };
        while state.takes_frame(endpoint) && state.outbound.next(&mut state.frame) {
            let sent = match state.link.frames() {
                // One that is broken tells so when it is read from.
                Some(stream) => stream.send(&state.frame).map(|_| ()).or(Ok(())),
                None => endpoint.send(&state.frame),
            };
            if let Err(error) = sent {
                return self.end(state, End::Failed(Some(error)));
            }
        }
    }

    /// Ends the session here, and tells the peer. The first end is the one that counts.
    fn end(&self, state: &mut SessionState, end: End) {
        if state.end.is_some() {
            return;
        }
        if let Some(endpoint) = self.endpoint.get() {
            let failure = match &end {
                End::Failed(Some(FabricError::Verbs(VerbsError::Malformed { why }))) => {
                    Failure::Malformed(why)
                }
                _ => Failure::Closed,
            };
            endpoint.fail(failure);
            // Others may hold the endpoint still: a publisher that does not publish, say.
            endpoint.give_up_all();
        }
        state.end = Some(end);
        state.link.disconnect();
    }

    /// Whether any message could be taken to be sent.
    fn has_room(&self, state: &SessionState) -> bool {
        state.outbound.has_room() && self.endpoint.get().is_some()
    }

    /// Sees to it that the owner's handle is readable exactly while there is something to receive, or room again.
    fn rouse(&self, state: &mut SessionState) {
        let has_room = state.wants_room && self.has_room(state);
        let has_something = has_room || !state.arrivals.is_empty() || state.end.is_some();
        if has_something && !state.awake {
            self.waker.wake();
        } else if !has_something && state.awake {
            self.waker.reset();
        }
        state.awake = has_something;
    }
}

impl SessionState {
    /// Whether there is something to be done that no owner waits for.
    fn is_unfinished(&mut self) -> bool {
        let has_frames = !self.outbound.is_empty() || self.outbound.has_frame() || self.has_unsent();
        self.end.is_none() && (!self.stands || has_frames || self.lingers_until_ns.is_some())
    }

    /// Whether a part of a frame waits for the link to take it.
    fn has_unsent(&mut self) -> bool {
        self.link.frames().is_some_and(|stream| stream.has_unsent())
    }

    /// Whether a frame can be sent.
    fn takes_frame(&mut self, endpoint: &Endpoint) -> bool {
        match self.link.frames() {
            // A stream that is broken takes nothing; what it still has to say is read from it.
            Some(stream) => stream.flush().unwrap_or(false),
            None => endpoint.takes_frame(),
        }
    }

    /// Takes a frame that came by the link. What it gives back counts at once, what it holds waits for the owner.
    fn take_frame(&mut self, bytes: Vec<u8>) -> Result<(), FabricError> {
        let frame = Frame::parse(&bytes).map_err(malformed)?;
        self.outbound.credit(frame.credits).map_err(malformed)?;
        if frame.fragment.is_some() {
            if self.arrivals.len() >= usize::from(limits::verbs::RECEIVES) {
                return Err(malformed(Malformed("it holds more than there is room for")));
            }
            self.arrivals.push_back(Held::Bytes(bytes));
        }
        Ok(())
    }

    /// What a session without a message has to say.
    fn ended(&mut self) -> Result<Received, FabricError> {
        match &mut self.end {
            None => Ok(Received::Nothing),
            Some(End::Closed) => Ok(Received::Closed),
            Some(End::Failed(error)) => error.take().map_or(Ok(Received::Closed), Err),
        }
    }
}

/// What the provider keeps of a region.
fn registered(registration: &Registration) -> Result<&VerbsRegistered, FabricError> {
    let entry = registration.entries::<VerbsRegistered>().next();
    entry.ok_or(FabricError::Access { why: "it is registered with another fabric" })
}

fn malformed(Malformed(why): Malformed) -> FabricError {
    VerbsError::Malformed { why }.into()
}
