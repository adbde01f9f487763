//! A session with a peer: its link, its endpoint, and the messages in flight in both directions.
//!
//! It makes progress when polled: by the owner of its connection, or by the service thread while work is pending
//! that no owner waits for.

mod arrivals;
mod ends;
mod fault;
mod obstacle;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::event::epoll;

pub(super) use self::arrivals::SessionArrivals;
use super::endpoint::{BufferedFrame, Endpoint, Posted};
use super::error::{Failure, VerbsError};
use super::link::{LinkEvent, QpLink};
use super::message::{Descriptor, Frame, Inbound, Malformed, Message, Outbound};
use super::one_sided::VerbsOffer;
use super::opened::Devices;
use super::region::VerbsRegistered;
use super::silence::{Silence, SilenceCheck};
use super::stream::FrameStream;
use crate::fabric::wait::together;
use crate::fabric::{
    ArrivalSignals, Capabilities, FabricError, Offer, Place, Placement, Prepared, Received, Registration,
    RemoteKey, Sent, Waker,
};
use crate::limits;
use crate::memory::WORD;

/// Words of a frame buffer.
const FRAME_WORDS: usize = limits::verbs::FRAME_LEN_MAX / WORD;
/// Interval at which the service thread polls work that completes without an event, ns.
const POLL_INTERVAL_NS: u64 = 1_000_000;

/// One end of a session.
#[derive(Debug)]
pub(super) struct Session {
    devices: Arc<Devices>,
    /// Readable while the owner has something to receive, or work is pending.
    readable: OwnedFd,
    /// Wakes the owner for completions that another thread has polled.
    waker: Waker,
    /// Readable when the link has an event.
    events: OwnedFd,
    /// Set once the device is known.
    endpoint: OnceLock<Arc<Endpoint>>,
    /// The place of the peer that dialled.
    place: OnceLock<Arc<Place>>,
    /// What the peer's writes wake.
    signals: ArrivalSignals,
    /// Threads that wait at the endpoint's channel in place of the owner.
    borrowers: Mutex<u32>,
    state: Mutex<SessionState>,
}

#[derive(Debug)]
struct SessionState {
    link: Box<dyn QpLink>,
    /// Whether frames may be sent.
    is_established: bool,
    outbound: Outbound,
    inbound: Inbound,
    /// Frames that hold a fragment that was not taken yet.
    arrivals: VecDeque<HeldFrame>,
    /// Scratch for a frame to send.
    frame: Vec<u8>,
    /// Wake-ups are owed for which the send queue had no room.
    has_unsent_wakes: bool,
    end: Option<SessionEnd>,
    /// Set once the owner is gone: what it sent is delivered until then.
    lingers_until_ns: Option<u64>,
    attention: Attention,
    /// Whether the peer's host answers.
    silence: Silence,
    /// Until when this awaits the event of the device that explains why the queue pair has returned its work.
    fault_awaited_until_ns: Option<u64>,
    /// The owner was woken.
    awake: bool,
    /// The owner has a message that could not be queued, and is to be woken when it can.
    wants_to_send: Option<Obstacle>,
}

/// Why a message could not be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// The queue was full, or the device is not known yet.
    Queue,
    /// The window to its region waits until nothing is in flight.
    Window,
}

/// When the service thread drives a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    /// Never.
    None,
    /// Periodically, to check that the peer is alive.
    Rare,
    /// On every event.
    Close,
}

/// When the service thread must drive a session next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Never: it is over.
    Never,
    /// At this time.
    At(u64),
    /// At this time, or on an event.
    AtEvent(u64),
}

/// A received frame.
#[derive(Debug)]
enum HeldFrame {
    /// In the endpoint's buffer that received it.
    Buffer(BufferedFrame),
    /// Its bytes: it arrived over the link.
    Bytes(Vec<u8>),
}

/// How a session ended.
#[derive(Debug)]
enum SessionEnd {
    /// It was closed.
    Closed,
    /// It failed; the error is reported to the owner once.
    Failed(Option<FabricError>),
}

impl Session {
    /// Creates a session over this link, whose endpoint may exist already.
    pub(super) fn new(
        devices: &Arc<Devices>,
        link: Box<dyn QpLink>,
        endpoint: Option<Arc<Endpoint>>,
    ) -> Result<Arc<Self>, FabricError> {
        let waker = Waker::new()?;
        let events = link.wait_handle().try_clone_to_owned();
        let events = events.map_err(FabricError::system("wait for a peer"))?;
        let readable = together(&[events.as_fd(), waker.wait_handle()])?;
        let session = Self {
            devices: Arc::clone(devices),
            readable,
            waker,
            events,
            endpoint: OnceLock::new(),
            place: OnceLock::new(),
            signals: ArrivalSignals::default(),
            borrowers: Mutex::default(),
            state: Mutex::new(SessionState {
                link,
                is_established: false,
                outbound: Outbound::new(),
                inbound: Inbound::default(),
                arrivals: VecDeque::new(),
                frame: Vec::new(),
                has_unsent_wakes: false,
                end: None,
                lingers_until_ns: None,
                attention: Attention::None,
                silence: Silence::default(),
                fault_awaited_until_ns: None,
                awake: false,
                wants_to_send: None,
            }),
        };
        if let Some(endpoint) = endpoint {
            session.adopt(endpoint)?;
        }
        Ok(Arc::new(session))
    }

    /// Its endpoint, once it exists.
    #[cfg(test)]
    pub(super) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.get()
    }

    /// Readable while there is something to receive, or the peer is gone.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    /// Readable while work is pending, whichever thread does it.
    pub(super) fn event_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let arrivals = self.endpoint.get().map(|endpoint| endpoint.wait_handle());
        [self.events.as_fd()].into_iter().chain(arrivals)
    }

    /// Sends a message, or queues it.
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
        self.advance(&mut state, now_ns);
        let taken = self.take_to_send(&mut state, message, region);
        state.wants_to_send = taken.as_ref().ok().copied().flatten();
        let sent = taken.map(|obstacle| obstacle.map_or(Sent::Done, |_| Sent::Full));
        self.flush(&mut state);
        // Arrivals found meanwhile are the owner's, whatever happened to the message.
        self.wake_owner(&mut state);
        sent
    }

    /// Queues a message, unless something is in the way.
    fn take_to_send(
        &self,
        state: &mut SessionState,
        message: &[u8],
        region: Option<&Registration>,
    ) -> Result<Option<Obstacle>, FabricError> {
        if state.end.is_some() {
            return Err(FabricError::Closed);
        }
        let described = match (region, self.endpoint.get()) {
            _ if !state.outbound.accepts() => return Ok(Some(Obstacle::Queue)),
            (None, _) => None,
            (Some(_), None) => return Ok(Some(Obstacle::Queue)),
            (Some(registration), Some(endpoint)) => {
                let entry = registered(registration)?;
                let descriptor = entry.descriptor(endpoint)?;
                if entry.expose(endpoint)? == Posted::NoRoom {
                    return Ok(Some(Obstacle::Window));
                }
                Some(descriptor)
            }
        };
        let is_full = state.outbound.push(message, described) == Sent::Full;
        Ok(is_full.then_some(Obstacle::Queue))
    }

    /// Returns the next message.
    pub(super) fn receive(&self, into: &mut [u8], now_ns: u64) -> Result<Received, FabricError> {
        let mut state = self.state.lock();
        self.advance(&mut state, now_ns);
        // The owner sends next: one wake-up is enough.
        if self.accepts_again(&state) {
            state.wants_to_send = None;
        }
        let received = self.take_message(&mut state, into);
        // A returned credit may be all that the peer, or this end, waits for.
        self.flush(&mut state);
        self.wake_owner(&mut state);
        received
    }

    /// Revokes a region that was sent.
    pub(super) fn withdraw(&self, registration: &Registration) {
        let entry = registration.entries::<VerbsRegistered>().next();
        if let Some((entry, endpoint)) = entry.zip(self.endpoint.get()) {
            entry.withdraw(endpoint);
        }
    }

    /// Registers a region for the peer's access and for this end's work requests.
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

    /// Returns its capabilities, known once the endpoint exists.
    pub(super) fn capabilities(&self) -> Capabilities {
        let endpoint = self.endpoint.get();
        let placement = endpoint.map_or_else(Placement::default, |endpoint| endpoint.placement());
        let withdraws_one = endpoint.is_some_and(|endpoint| endpoint.has_windows());
        let state = self.state.lock();
        let (is_dialled_to_write, is_connecting) = (state.link.is_dialled_to_write(), !state.is_established);
        Capabilities { placement, shares_memory: false, is_dialled_to_write, is_connecting, withdraws_one }
    }

    /// Marks the owner gone. What it sent is still delivered, within a deadline.
    pub(super) fn close(&self, now_ns: u64) {
        let mut state = self.state.lock();
        if let Some(endpoint) = self.endpoint.get() {
            endpoint.close();
        }
        state.lingers_until_ns = Some(now_ns.saturating_add(limits::verbs::LINGER_NS));
    }

    /// Whether the service thread must be notified of new work.
    pub(super) fn needs_attention(&self) -> bool {
        let mut state = self.state.lock();
        let needs = match state.attention {
            Attention::None => state.end.is_none(),
            // Work left by an owner that is gone is returned at once.
            _ if state.lingers_until_ns.is_some() => true,
            Attention::Rare => state.is_unfinished(),
            // The thread may sleep for longer.
            Attention::Close => state.fault_awaited_until_ns.is_some() || state.awaits_window(),
        };
        if needs {
            state.attention = Attention::Close;
        }
        needs
    }

    /// One turn of the service thread.
    pub(super) fn attend(&self, now_ns: u64) -> Next {
        let mut state = self.state.lock();
        self.advance(&mut state, now_ns);
        if let Some(until_ns) = state.lingers_until_ns {
            self.linger(&mut state, now_ns, until_ns);
        }
        self.check_liveness(&mut state, now_ns);
        self.wake_owner(&mut state);
        if state.end.is_some() {
            state.attention = Attention::None;
            return Next::Never;
        }
        if !state.is_unfinished() {
            state.attention = Attention::Rare;
            return Next::At(state.silence.due_ns());
        }
        state.attention = Attention::Close;
        let link_ns = state.link.deadline_ns().unwrap_or(u64::MAX);
        let linger_ns = state.lingers_until_ns.unwrap_or(u64::MAX);
        let fault_ns = state.fault_awaited_until_ns.unwrap_or(u64::MAX);
        // Completing sends wake no thread, so a full queue, or the last send, is polled.
        let lingers = state.lingers_until_ns.is_some() && !state.link.is_leaving();
        let has_more = state.outbound.has_frame() || state.has_unsent_wakes || state.has_unsent();
        let has_more = has_more || state.awaits_window();
        let polls = state.is_established && (lingers || has_more);
        let check_ns = if state.is_established { state.silence.due_ns() } else { u64::MAX };
        let again_ns = if polls { now_ns.saturating_add(POLL_INTERVAL_NS) } else { u64::MAX };
        Next::AtEvent(link_ns.min(linger_ns).min(again_ns).min(check_ns).min(fault_ns))
    }

    /// Probes the peer's host if nothing was acknowledged or received for a while, and ends the session if it does not answer. The
    /// link of an unreliable endpoint ends if a beat is not acknowledged.
    fn check_liveness(&self, state: &mut SessionState, now_ns: u64) {
        let endpoint = self.endpoint.get().filter(|_| state.is_established && state.end.is_none());
        let Some(endpoint) = endpoint.filter(|_| now_ns >= state.silence.due_ns()) else { return };
        if !endpoint.is_reliable() {
            state.silence.put_off(now_ns);
            // Reading reports a broken stream.
            _ = state.link.frames().map(FrameStream::beat);
            return;
        }
        match state.silence.check(now_ns, endpoint.progress()) {
            SilenceCheck::Answers => {}
            SilenceCheck::Quiet => {
                if let Err(error) = endpoint.probe() {
                    self.end(state, SessionEnd::Failed(Some(error)));
                }
            }
            SilenceCheck::Lost => {
                endpoint.fail(Failure::Silent);
                self.end(state, SessionEnd::Failed(Some(VerbsError::NoAnswer.into())));
            }
        }
    }

    /// Ends a session without an owner once the peer has everything, or its deadline has passed.
    fn linger(&self, state: &mut SessionState, now_ns: u64, until_ns: u64) {
        if state.end.is_some() {
            return;
        }
        let under_way = || self.endpoint.get().is_some_and(|endpoint| endpoint.has_frames_under_way());
        let delivered = state.outbound.is_empty() && !state.has_unsent() && !under_way();
        if now_ns >= until_ns || (delivered && !state.is_established) {
            if !delivered {
                tracing::debug!(target: "fabricast", "the session ended before the peer received everything");
            }
            self.end(state, SessionEnd::Closed);
        } else if delivered && !state.link.is_leaving() {
            state.link.leave();
        }
    }

    /// Does all pending work.
    fn advance(&self, state: &mut SessionState, now_ns: u64) {
        if state.end.is_none()
            && let Err(error) = self.follow_link(state, now_ns)
        {
            self.end(state, SessionEnd::Failed(Some(error)));
        }
        if let Some(endpoint) = self.endpoint.get() {
            if let Err(error) = self.take_arrivals(state, endpoint) {
                self.end(state, SessionEnd::Failed(Some(error)));
            }
            self.check_endpoint(state, endpoint, now_ns);
        }
        self.flush(state);
    }

    /// Handles the events of the link. This terminates: what a peer's frames may return, ask, answer or hold
    /// is bounded until this end sends something, and a frame that does none of that is refused.
    fn follow_link(&self, state: &mut SessionState, now_ns: u64) -> Result<(), FabricError> {
        while let Some(change) = state.link.next(&self.devices, now_ns)? {
            match change {
                LinkEvent::Endpoint(endpoint) => self.adopt(endpoint)?,
                LinkEvent::Established => self.establish(state)?,
                LinkEvent::Frame(bytes) => state.take_frame(bytes)?,
                LinkEvent::Over => {
                    self.end(state, SessionEnd::Closed);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Marks the connection established: the link reports it, or the peer has used it.
    fn establish(&self, state: &mut SessionState) -> Result<(), FabricError> {
        if state.is_established {
            return Ok(());
        }
        state.is_established = true;
        // If the owner finds this, the service thread still sleeps until the deadline of connecting.
        state.attention = Attention::None;
        state.link.confirm();
        self.endpoint.get().map_or(Ok(()), |endpoint| endpoint.open())
    }

    fn adopt(&self, endpoint: Arc<Endpoint>) -> Result<(), FabricError> {
        let endpoint = self.endpoint.get_or_init(|| endpoint);
        self.place.get().into_iter().for_each(|place| endpoint.hold(place));
        let data = epoll::EventData::new_u64(0);
        let added = epoll::add(&self.readable, endpoint.wait_handle(), data, epoll::EventFlags::IN);
        added.map_err(FabricError::system("wait for a peer"))
    }

    fn take_message(&self, state: &mut SessionState, into: &mut [u8]) -> Result<Received, FabricError> {
        let Some(endpoint) = self.endpoint.get() else { return state.ended() };
        while let Some(arrival) = state.arrivals.pop_front() {
            let message = match self.take_fragment(state, endpoint, arrival) {
                Ok(message) => message,
                Err(error) => {
                    self.end(state, SessionEnd::Failed(Some(error)));
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

    /// Takes a fragment; returns the message if it is complete.
    fn take_fragment(
        &self,
        state: &mut SessionState,
        endpoint: &Endpoint,
        held: HeldFrame,
    ) -> Result<Option<Message>, FabricError> {
        let mut words = [0; FRAME_WORDS];
        let bytes = match &held {
            HeldFrame::Buffer(arrival) => endpoint.read(*arrival, &mut words),
            HeldFrame::Bytes(bytes) => bytes,
        };
        let frame = Frame::parse(bytes).map_err(malformed)?;
        let message = match &frame.fragment {
            Some(fragment) => state.inbound.take(fragment).map_err(malformed)?,
            None => None,
        };
        if let HeldFrame::Buffer(arrival) = held {
            endpoint.release(arrival)?;
        }
        state.outbound.owe().map_err(malformed)?;
        Ok(message)
    }

    /// Sends queued frames while the peer has credit, and wake-ups that are owed.
    fn flush(&self, state: &mut SessionState) {
        let Some(endpoint) = self.endpoint.get().filter(|_| state.is_established && state.end.is_none())
        else {
            return;
        };
        while state.takes_frame(endpoint) && state.outbound.next(&mut state.frame) {
            let sent = match state.link.frames() {
                // Reading reports a broken stream.
                Some(stream) => stream.send(&state.frame).map(|_| ()).or(Ok(())),
                None => endpoint.send(&state.frame),
            };
            if let Err(error) = sent {
                return self.end(state, SessionEnd::Failed(Some(error)));
            }
        }
        state.has_unsent_wakes = endpoint.send_wakes();
    }

    /// Ends the session and notifies the peer. The first end is kept.
    fn end(&self, state: &mut SessionState, end: SessionEnd) {
        if state.end.is_some() {
            return;
        }
        if let Some(endpoint) = self.endpoint.get() {
            let failure = match &end {
                SessionEnd::Failed(Some(FabricError::Verbs(VerbsError::Malformed { why }))) => {
                    Failure::Malformed(why)
                }
                _ => Failure::Closed,
            };
            endpoint.fail(failure);
            // Others may still hold the endpoint, for example an idle publisher.
            endpoint.give_up_all();
        }
        state.end = Some(end);
        state.link.disconnect();
        self.signals.raise_all();
    }
}

impl SessionState {
    /// Whether work is pending that no owner waits for.
    fn is_unfinished(&mut self) -> bool {
        let has_frames = !self.outbound.is_empty() || self.outbound.has_frame() || self.has_unsent();
        let has_frames = has_frames || self.has_unsent_wakes || self.awaits_window();
        let has_frames = has_frames || self.fault_awaited_until_ns.is_some();
        self.end.is_none() && (!self.is_established || has_frames || self.lingers_until_ns.is_some())
    }

    /// Whether part of a frame waits for the link.
    fn has_unsent(&mut self) -> bool {
        self.link.frames().is_some_and(|stream| stream.has_unsent())
    }

    /// Whether a frame can be sent.
    fn takes_frame(&mut self, endpoint: &Endpoint) -> bool {
        match self.link.frames() {
            // A broken stream accepts nothing; its remaining frames are still read.
            Some(stream) => stream.flush().unwrap_or(false),
            None => endpoint.takes_frame(),
        }
    }

    /// Handles a frame of the link. Returned credits count at once, fragments wait for the owner.
    fn take_frame(&mut self, bytes: Vec<u8>) -> Result<(), FabricError> {
        let frame = Frame::parse(&bytes).map_err(malformed)?;
        self.outbound.credit(frame.credits).map_err(malformed)?;
        if frame.wakes > 0 {
            return Err(malformed(Malformed("no write of this connection wakes")));
        }
        if frame.fragment.is_some() {
            if self.arrivals.len() >= usize::from(limits::verbs::RECEIVES) {
                return Err(malformed(Malformed("it exceeds its credits")));
            }
            self.arrivals.push_back(HeldFrame::Bytes(bytes));
        }
        Ok(())
    }

    /// The result of receiving without a message.
    fn ended(&mut self) -> Result<Received, FabricError> {
        match &mut self.end {
            None => Ok(Received::Nothing),
            Some(SessionEnd::Closed) => Ok(Received::Closed),
            Some(SessionEnd::Failed(error)) => error.take().map_or(Ok(Received::Closed), Err),
        }
    }
}

/// The provider's state of a region.
fn registered(registration: &Registration) -> Result<&VerbsRegistered, FabricError> {
    let entry = registration.entries::<VerbsRegistered>().next();
    entry.ok_or(FabricError::Access { why: "it is registered with another fabric" })
}

fn malformed(Malformed(why): Malformed) -> FabricError {
    VerbsError::Malformed { why }.into()
}
