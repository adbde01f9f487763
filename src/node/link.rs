mod attached;
mod attachment;
mod connecting;
mod dialled;
mod ended;
mod hanging;
mod keys;
mod landing;
mod membership;
mod over;
mod progress;
mod pulse;
mod waiting;
mod waking;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use self::attached::Attached;
pub(super) use self::attached::{Answer, Request};
use self::connecting::Connecting;
use self::membership::ChannelMembership;
use self::pulse::Pulse;
use self::waking::WakeSockets;
use super::admission::refusal;
use super::core::NodeCore;
use super::outbox::Outbox;
use crate::chain::ErrorChain;
use crate::control::{
    AttachmentId, ClientEvent, ClientSession, ControlError, Detached, EndReason, Identity, Notices, Peer,
    SubscriberCounts, SubscriberPage, TopicEnded, TopicEntry, WakeSlot,
};
use crate::event::Event;
use crate::fabric::{
    Address, ArrivalSource, Connection, FabricError, KeyedWaker, Offer, PeerId, Place, Received,
};
use crate::id::{Delivery, Sequence, TopicName};
use crate::keyring::Authority;
use crate::limits;
use crate::subscriber::TopicEnd;
use crate::sync::atomic::AtomicU32;

/// A session in which this node subscribes. The node's thread shares it with all subscriptions to a peer that this node dialled.
#[derive(Debug)]
pub(crate) struct Link {
    core: Arc<NodeCore>,
    /// Wakes the node's thread for it.
    waker: KeyedWaker,
    /// Where the peer was dialled. `None` if the peer dialled: such a session has one subscription.
    address: Option<Address>,
    /// Who dialled, if the peer did and the fabric says so.
    dialled_by: Option<PeerId>,
    /// A second handle of the connection, for waiting without the lock.
    handle: OwnedFd,
    /// The timeout of each answer.
    timeout_ns: u64,
    /// Threads that wait for an answer. They drive the session in place of the node's thread.
    waiting: AtomicU32,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    connection: Box<dyn Connection>,
    session: ClientSession,
    outbox: Outbox,
    attachments: BTreeMap<AttachmentId, Arc<Attached>>,
    /// Attachments that read from topics that have ended, and when the end arrived, ns.
    ended: Vec<(AttachmentId, u64)>,
    peer: Option<Identity>,
    /// The request that owns the directory listing; others wait for it.
    listing: Option<Ticket>,
    ticket_next: Ticket,
    page: Option<(Vec<TopicEntry>, bool)>,
    /// The request that owns the list of subscribers, and the answer.
    listing_subscribers: Option<Ticket>,
    subscribers: Option<Option<SubscriberPage>>,
    /// When to show the peer again that this node runs, ns; 0 for at once.
    life_due_ns: u64,
    /// Events to report.
    told: VecDeque<Event>,
    /// The channel of notices that it has joined.
    membership: Option<ChannelMembership>,
    /// The wake sockets of its subscribers' waiters.
    wake_sockets: WakeSockets,
    /// What the peer's writes wake, once asked for.
    arrivals: Option<Arc<dyn ArrivalSource>>,
    /// Whether the peer's node runs.
    pulse: Pulse,
    /// The counts of all detached attachments.
    total: SubscriberCounts,
    /// Since when the session is unused, though the peer has yet to confirm detaching.
    unused_since_ns: Option<u64>,
    /// The session is ending, or a request timed out: it accepts no more requests.
    ending: bool,
    /// Why the session is over.
    failure: Option<ControlError>,
    /// When the connection is dropped, ns: some time after the failure. 0 once that was done.
    hang_up_ns: Option<u64>,
    /// What is still awaited of its connection.
    connecting: Option<Connecting>,
    /// Why it could not begin.
    unreachable: Option<FabricError>,
    buffer: Vec<u8>,
}

/// Identifies one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket(u64);

/// A subscription's handle of its attachment. The fields drop in this order.
#[derive(Debug)]
pub(super) struct LinkAttachment {
    link: LinkUse,
    id: AttachmentId,
    attached: Arc<Attached>,
    /// Keeps the node alive.
    _node: Arc<dyn std::any::Any + Send + Sync>,
}

/// A use of a session; the node's thread ends an unused one. The fields drop in this order.
#[derive(Clone, Debug)]
pub(crate) struct LinkUse {
    link: Arc<Link>,
    /// After the link, so that the woken thread finds one use less.
    _parting: Parting,
}

/// Wakes the node's thread when it is dropped.
#[derive(Clone, Debug)]
struct Parting(KeyedWaker);

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTurn {
    /// The session proceeds when the peer acts, or at this time.
    GoesOn { due_ns: Option<u64> },
    /// The peer's actions need no turn until this time, or until the thread is woken.
    Rests { due_ns: Option<u64> },
    /// The session is over and unused.
    Over,
}

/// When to retry a session that another thread has locked, ns.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Fabric(FabricError),
    #[error(transparent)]
    Session(ControlError),
}

impl Link {
    /// Continues a session with a publisher's node that has dialled this one.
    pub(super) fn invited(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        (inviter, authority): (Identity, Authority),
        timeout_ns: u64,
    ) -> Result<Self, LinkError> {
        let greeting = core.greeting(connection.as_ref()).map_err(LinkError::Fabric)?;
        let session = ClientSession::invited(greeting, authority, timeout_ns);
        let link = Self::new(core, connection, session, timeout_ns)?;
        link.state.lock().peer = Some(inviter);
        Ok(link)
    }

    fn new(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        session: ClientSession,
        timeout_ns: u64,
    ) -> Result<Self, LinkError> {
        let handle = connection.wait_handle().try_clone_to_owned();
        let cloned = |source| FabricError::System { what: "share a connection between threads", source };
        Ok(Self {
            core: Arc::clone(core),
            waker: core.keyed_waker(),
            address: None,
            dialled_by: connection.place().ok().flatten().map(Place::peer),
            handle: handle.map_err(cloned).map_err(LinkError::Fabric)?,
            timeout_ns,
            waiting: AtomicU32::new(0),
            state: Mutex::new(LinkState {
                connection,
                session,
                outbox: Outbox::default(),
                attachments: BTreeMap::new(),
                ended: Vec::new(),
                peer: None,
                listing: None,
                ticket_next: Ticket(0),
                page: None,
                listing_subscribers: None,
                subscribers: None,
                life_due_ns: 0,
                told: VecDeque::new(),
                membership: None,
                wake_sockets: WakeSockets::default(),
                arrivals: None,
                pulse: Pulse::default(),
                unused_since_ns: None,
                total: SubscriberCounts::default(),
                ending: false,
                failure: None,
                hang_up_ns: None,
                connecting: None,
                unreachable: None,
                buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX],
            }),
        })
    }

    /// Its key at its node.
    pub(super) fn key(&self) -> u64 {
        self.waker.key()
    }

    /// Readable when the peer has sent something, or is gone.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Whether the peer dialled.
    pub(super) fn is_invited(&self) -> bool {
        self.address.is_none()
    }

    /// The peer that dialled, as the fabric tells peers apart.
    pub(super) fn dialled_by(&self) -> Option<PeerId> {
        self.dialled_by
    }

    /// The identity of the peer.
    pub(super) fn peer(&self) -> Option<Identity> {
        self.state.lock().peer.clone()
    }

    /// The peer, as subscribers of this topic see it.
    pub(super) fn peer_of(&self, topic: &TopicName) -> Option<Peer> {
        let state = self.state.lock();
        let Identity { node, process, host, .. } = state.peer.clone()?;
        let (address, key) = (state.connection.peer_address(), state.session.key_for(topic));
        Some(Peer { node, process, host: host.into(), address, key })
    }

    /// Whether the peer has said hello and the session accepts requests.
    pub(super) fn is_ready(&self) -> bool {
        self.state.lock().is_ready()
    }

    /// Why the session is over, if it is.
    pub(super) fn failure(&self) -> Option<ControlError> {
        self.state.lock().failure.clone()
    }

    /// Ends the session with this error, because no thread drives it any more. Notifies the peer if that needs no wait.
    pub(super) fn abandon(&self, error: ControlError) -> LinkError {
        let now_ns = self.core.clock.monotonic_ns();
        let mut state = self.state.lock();
        let total = state.total;
        state.ending = true;
        // Fails when the session has ended or not begun: the peer needs no notification then.
        let _ = state.session.end(now_ns, EndReason::DONE, total);
        state.fail(error.clone());
        LinkError::Session(error)
    }

    /// Ends the session of a node that stops.
    pub(super) fn end(&self, now_ns: u64) {
        let mut state = self.state.lock();
        state.end(now_ns);
        state.flush();
    }

    /// Whether the peer is the node at this address.
    pub(super) fn is_with(&self, address: &Address) -> bool {
        self.address.as_ref() == Some(address)
    }

    /// Whether it accepts one more attachment. Not while the peer's node hangs: another one may have its address by now.
    pub(super) fn takes_more(&self) -> bool {
        let state = self.state.lock();
        let has_room = state.attachments.len() < limits::ATTACHMENTS_PER_SESSION_MAX;
        has_room && state.is_ready() && !state.pulse.is_hung
    }

    /// Runs one turn of the node's thread, unless another thread drives the session. Ends an unused session.
    pub(super) fn turn(&self, now_ns: u64, is_unused: bool) -> LinkTurn {
        if self.is_awaited() {
            // The waiting thread wakes this one afterwards.
            return LinkTurn::Rests { due_ns: None };
        }
        let Some(mut state) = self.state.try_lock() else {
            return LinkTurn::Rests { due_ns: Some(now_ns.saturating_add(LOOK_AGAIN_NS)) };
        };
        state.turn(now_ns);
        if is_unused {
            let since_ns = *state.unused_since_ns.get_or_insert(now_ns);
            if state.attachments.is_empty() || now_ns.saturating_sub(since_ns) >= self.timeout_ns {
                state.end(now_ns);
            } else if state.pulse.is_hung {
                state.part(now_ns);
            }
        } else {
            state.unused_since_ns = None;
        }
        state.flush();
        let hang_up_ns = state.hang_up(&self.handle, now_ns);
        match (&state.failure, is_unused) {
            (Some(_), true) => LinkTurn::Over,
            // The connection to a dead peer stays readable.
            (Some(_), false) => LinkTurn::Rests { due_ns: hang_up_ns },
            (None, _) if state.connection.held_back_until_ns().is_some() => {
                LinkTurn::Rests { due_ns: state.connection.held_back_until_ns() }
            }
            (None, _) if state.outbox.is_empty() => {
                LinkTurn::GoesOn { due_ns: state.deadline_ns(self.timeout_ns) }
            }
            // A connection may accept more without becoming writable.
            (None, _) => LinkTurn::GoesOn { due_ns: Some(now_ns.saturating_add(limits::LANDING_TENDED_NS)) },
        }
    }

    /// An event to report: the peer's node hangs, or does not any more, or has let a subscriber go.
    pub(super) fn take_event(&self) -> Option<Event> {
        let mut state = self.state.try_lock()?;
        state.told.pop_front().or_else(|| state.take_pulse_event())
    }

    /// When a turn is due even if the peer does nothing.
    #[cfg(test)]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.state.lock().deadline_ns(self.timeout_ns)
    }
}

impl LinkUse {
    /// A use of this session.
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { link: Arc::clone(link), _parting: Parting(link.waker.clone()) }
    }
}

impl std::ops::Deref for LinkUse {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl LinkState {
    /// When a turn is due even if the peer does nothing.
    fn deadline_ns(&self, timeout_ns: u64) -> Option<u64> {
        let unused_ns = self.unused_since_ns.map(|since_ns| since_ns.saturating_add(timeout_ns));
        let membership_ns = self.membership.as_ref().map(|membership| membership.due_ns.max(1));
        let ended_ns = self.ended.iter().map(|(id, since_ns)| self.ended_due_ns(*id, *since_ns)).min();
        let deadlines =
            [self.session.deadline_ns().or(unused_ns), membership_ns, ended_ns, self.pulse_due_ns()];
        let deadlines = deadlines.into_iter().chain([self.life_due_ns()]);
        deadlines.flatten().min()
    }

    /// The wake-ups that come with the peer's writes: all subscriptions of the session share one source.
    fn arrivals(&mut self) -> Option<Arc<dyn ArrivalSource>> {
        if self.arrivals.is_none() {
            self.arrivals = self.connection.arrivals();
        }
        self.arrivals.clone()
    }

    fn is_ready(&self) -> bool {
        !self.ending && self.failure.is_none() && self.peer.is_some()
    }

    /// Handles received messages and expired deadlines.
    fn turn(&mut self, now_ns: u64) {
        for _ in 0..limits::MESSAGES_PER_TURN_MAX {
            if self.failure.is_some() || !self.receive(now_ns) {
                break;
            }
        }
        self.follow_connection(now_ns);
        if self.failure.is_none()
            && let Err(error) = self.session.on_time(now_ns)
        {
            self.unreachable = self.connecting.take().map(Connecting::no_answer);
            self.fail(error);
        }
        if self.failure.is_none()
            && let Some(heard) = self.membership.as_mut().and_then(|membership| membership.report(now_ns))
        {
            // Fails while the session ends: the peer needs no report then.
            let _ = self.session.heard(heard);
        }
        self.tend_ended(now_ns);
        self.check_pulse(now_ns);
        self.show_life(now_ns);
        self.flush();
    }

    /// Receives one message. False when there was none.
    fn receive(&mut self, now_ns: u64) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.connection.receive(&mut buffer);
        let more = match received {
            Ok(Received::Message { len, offer }) => {
                self.pulse.hear();
                let (message, _) = buffer.split_at(len.min(buffer.len()));
                self.bind();
                match self.session.on_message(message, usize::from(offer.is_some())) {
                    Ok(Some(event)) => self.take(event, offer, now_ns),
                    Ok(None) => {}
                    Err(error) => self.fail(error),
                }
                true
            }
            Ok(Received::Nothing) => false,
            Ok(Received::Closed) => {
                let error = self.session.on_disconnected().err();
                self.fail(error.unwrap_or(ControlError::Disconnected));
                false
            }
            Err(FabricError::MessageTooLong { len, .. }) => {
                self.fail(ControlError::TooLong { len });
                false
            }
            Err(error) => {
                let refused = refusal(&error);
                let is_refused = refused.is_some();
                self.fail(
                    refused.unwrap_or_else(|| ControlError::Broken { why: ErrorChain(&error).to_string() }),
                );
                self.unreachable = (self.peer.is_none() && !is_refused).then_some(error);
                false
            }
        };
        self.buffer = buffer;
        more
    }

    /// Lets the session know what the connection connects, if it needs that. Without it no proof is made.
    fn bind(&mut self) {
        if self.session.needs_binding()
            && let Ok(binding) = self.connection.binding()
        {
            self.session.bind(binding);
        }
    }

    fn take(&mut self, event: ClientEvent, offer: Option<Box<dyn Offer>>, now_ns: u64) {
        match event {
            ClientEvent::Ready { peer } => self.peer = Some(peer),
            ClientEvent::Topics { entries, more } => self.take_page(entries, more),
            ClientEvent::Granted { grant, .. } => {
                self.answer(grant.attachment, Answer::Granted { grant, offer });
            }
            ClientEvent::Exposed(attachment) => self.answer(attachment, Answer::Exposed),
            ClientEvent::Refused { attachment, reason, text } => {
                self.answer(attachment, Answer::Refused { reason, text });
            }
            ClientEvent::Notices(Notices { attachment, by }) => {
                self.answer(attachment, Answer::Notices { by, offer })
            }
            ClientEvent::WakeSlot(WakeSlot { attachment, slot }) => {
                self.answer(attachment, Answer::WakeSlot(slot));
            }
            ClientEvent::Subscribers(found) => self.subscribers = Some(found),
            ClientEvent::LetGo(let_go) => self.take_let_go(let_go, now_ns),
            ClientEvent::Detached(Detached { attachment, .. }) => {
                if let Some(detached) = self.attachments.remove(&attachment) {
                    // It is written no more, though its subscriber may live on.
                    let landing = detached.inbox.lock().landing.take();
                    drop(landing);
                }
            }
            ClientEvent::TopicEnded(TopicEnded { attachment, published }) => {
                let published = Sequence::new(published);
                self.finish(attachment, TopicEnd::Ended { published }, now_ns);
            }
            ClientEvent::EndAsked { .. } => {
                self.end(now_ns);
                self.fail(ControlError::Closed { state: "ended by the publisher's node" });
            }
            ClientEvent::Ended { .. } => self.fail(ControlError::Closed { state: "ended" }),
        }
    }

    /// Ends an attachment for its subscriber.
    fn finish(&mut self, attachment: AttachmentId, end: TopicEnd, now_ns: u64) {
        self.pulse.forget(attachment);
        let Some(attached) = self.attachments.get(&attachment) else { return };
        attached.finish(end);
        if attached.delivery == Delivery::Pull && !self.connection.capabilities().shares_memory {
            self.ended.push((attachment, now_ns));
        }
    }

    fn answer(&mut self, id: AttachmentId, answer: Answer) {
        let Some(attached) = self.attachments.get(&id) else { return };
        let mut inbox = attached.inbox.lock();
        let Some(counts) = inbox.leaving else {
            inbox.answer = Some(answer);
            if let Some(waker) = &inbox.waker {
                waker.wake();
            }
            return;
        };
        drop(inbox);
        // Fails when nothing was granted, and so nothing is to be detached.
        if self.session.detach(id, counts).is_err() {
            self.attachments.remove(&id);
        }
    }

    /// Gives up an attachment. Its landing region stays until the publisher confirms that it stopped writing, or the session ends (see
    /// [`Self::part`]): a write without memory would end the session for all attachments.
    fn leave(&mut self, id: AttachmentId, counts: SubscriberCounts) {
        self.pulse.forget(id);
        if let Some(attached) = self.attachments.get(&id) {
            attached.inbox.lock().has_left = true;
        }
        if self.session.awaits_answer(id) {
            if let Some(attached) = self.attachments.get(&id) {
                attached.inbox.lock().leaving = Some(counts);
            }
            return;
        }
        match self.session.detach(id, counts) {
            Ok(()) | Err(ControlError::Closed { .. }) => {}
            // It was never granted.
            Err(_) => drop(self.attachments.remove(&id)),
        }
    }

    /// The error of a failed request: how the session ended, if it is over.
    fn explain(&self, error: ControlError) -> LinkError {
        LinkError::Session(self.failure.clone().unwrap_or(error))
    }

    /// Ends the session in good order, if it is not over.
    fn end(&mut self, now_ns: u64) {
        self.ending = true;
        // Fails when the session has ended or not begun: closing the connection suffices then.
        if self.session.end(now_ns, EndReason::DONE, self.total).is_err() && self.peer.is_none() {
            self.fail(ControlError::Disconnected);
        }
    }

    fn fail(&mut self, error: ControlError) {
        self.pulse.end();
        if self.failure.is_none() {
            // First, so that a failed send below is not taken for the reason.
            self.failure = Some(error.clone());
            self.flush();
        }
        for attached in self.attachments.values() {
            attached.finish(TopicEnd::Gone { error: error.clone() });
        }
    }

    fn flush(&mut self) {
        while let Some(outgoing) = self.session.next_message() {
            let attached = outgoing.region_of.and_then(|id| self.attachments.get(&id));
            let enclosure = attached.and_then(|attached| attached.enclosure(outgoing.region_kind));
            self.outbox.push(outgoing.bytes, enclosure);
        }
        match self.outbox.flush(self.connection.as_mut()) {
            // The next receive notices a dead peer, the deadlines a stalled one.
            Ok(_) | Err(FabricError::Closed) => {}
            // Later messages would wait for ever behind one that cannot be sent.
            Err(error) if self.failure.is_none() => {
                self.fail(ControlError::Broken { why: ErrorChain(&error).to_string() })
            }
            Err(_) => {}
        }
    }
}
