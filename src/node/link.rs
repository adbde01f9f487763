mod attachment;
mod hearing;
mod waiting;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use self::hearing::Hearing;
use super::core::NodeCore;
use super::outbox::Outbox;
use crate::control::{
    AttachmentId, ClientEvent, ClientSession, ControlError, EndReason, Grant, Identity, NoticesBy,
    RefuseReason, SubscriberCounts, TopicEntry,
};
use crate::fabric::{Address, Connection, FabricError, KeyedWaker, Offer, Received, Registration};
use crate::id::{Delivery, KindOptions, Sequence, TopicName};
use crate::limits;
use crate::subscriber::End;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A session in which this node subscribes. Shared by all subscriptions to a peer that it has dialled, and by the node's thread.
#[derive(Debug)]
pub(crate) struct Link {
    core: Arc<NodeCore>,
    /// Has the node's thread look at it.
    waker: KeyedWaker,
    /// Where the peer was dialled. `None` if it has dialled this node: such a session has one subscription.
    address: Option<Address>,
    /// The connection's handle once more, so that one can wait without holding the lock.
    handle: Option<OwnedFd>,
    /// How long each answer may take.
    patience_ns: u64,
    /// Threads that wait for an answer. They drive the session then, and the node's thread leaves it to them.
    waiting: AtomicU32,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    connection: Box<dyn Connection>,
    session: ClientSession,
    outbox: Outbox,
    attachments: BTreeMap<AttachmentId, Arc<Attached>>,
    /// Attachments that fetch from topics that have ended, and since when that is known, ns.
    ended: Vec<(AttachmentId, u64)>,
    peer: Option<Identity>,
    /// Who has asked for a page of the directory: nobody else may ask, or take it.
    listing: Option<Ticket>,
    ticket_next: Ticket,
    page: Option<(Vec<TopicEntry>, bool)>,
    /// The channel of notices that it has joined.
    hearing: Option<Hearing>,
    /// The counts of all attachments that were detached.
    total: SubscriberCounts,
    /// Since when nobody uses the session, though the peer has yet to confirm what was detached.
    unused_since_ns: Option<u64>,
    /// The session ends, or has left a question open: it takes no more requests.
    ending: bool,
    /// Why the session is over.
    failure: Option<ControlError>,
    /// Why it could not even begin.
    unreachable: Option<FabricError>,
    buffer: Vec<u8>,
}

/// Stands for one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket(u64);

/// One attachment of a link.
#[derive(Debug)]
pub(super) struct Attached {
    ended: AtomicBool,
    delivery: Delivery,
    /// The topic ended some time ago: nothing is to be fetched any more.
    shut: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    answer: Option<Answer>,
    end: Option<End>,
    /// The landing region, to be sent, and to be kept for as long as the publisher may write it.
    landing: Option<Arc<Registration>>,
    /// Its subscriber has left before the answer came: it is to be detached then, with these counts.
    leaving: Option<SubscriberCounts>,
}

/// What a publisher is asked for.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) topic: TopicName,
    pub(super) delivery: Delivery,
    pub(super) schema_hash: Option<u64>,
    pub(super) options: KindOptions,
}

/// What a publisher answered.
#[derive(Debug)]
pub(super) enum Answer {
    Granted { grant: Grant, offer: Option<Box<dyn Offer>> },
    Exposed,
    Notices { by: NoticesBy, offer: Option<Box<dyn Offer>> },
    Refused { reason: RefuseReason, text: String },
}

/// A subscription's hold on its attachment. Its fields are dropped in this order.
#[derive(Debug)]
pub(super) struct LinkAttachment {
    link: LinkUse,
    id: AttachmentId,
    attached: Arc<Attached>,
    /// Keeps the node going.
    _node: Arc<dyn std::any::Any + Send + Sync>,
}

/// A use of a session, which the node's thread ends when there is none any more. Its fields are dropped in this order.
#[derive(Clone, Debug)]
pub(crate) struct LinkUse {
    link: Arc<Link>,
    /// After the link, so that the thread it wakes finds nobody using that.
    _parting: Parting,
}

/// Wakes the node's thread when it is dropped.
#[derive(Clone, Debug)]
struct Parting(KeyedWaker);

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTurn {
    /// The session goes on when the peer does something, or at this time.
    GoesOn { due_ns: Option<u64> },
    /// Nothing is to be done for what the peer does, until this time or until the thread is woken.
    Rests { due_ns: Option<u64> },
    /// The session is over, and nobody uses it.
    Over,
}

/// When a session that another thread holds is looked at again, ns.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Why a session could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Fabric(FabricError),
    #[error(transparent)]
    Session(ControlError),
    #[error("cannot draw a random number: {0}")]
    Random(std::io::Error),
}

impl Link {
    /// A session over this connection with the node at this address, whose hello is ready to be sent. The peer has to say hello
    /// until `deadline_ns`.
    pub(super) fn dialled(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        address: &Address,
        (patience_ns, deadline_ns): (u64, u64),
    ) -> Result<Self, LinkError> {
        let link = Self::new(core, connection, patience_ns)?;
        link.state.lock().session.expect_hello_until(deadline_ns);
        Ok(Self { address: Some(address.clone()), ..link })
    }

    /// A session with a publisher's node that has dialled this one.
    pub(super) fn invited(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        inviter: Identity,
        patience_ns: u64,
    ) -> Result<Self, LinkError> {
        let link = Self::new(core, connection, patience_ns)?;
        link.state.lock().session.expect_hello_of(inviter);
        Ok(link)
    }

    fn new(
        core: &Arc<NodeCore>,
        connection: Box<dyn Connection>,
        patience_ns: u64,
    ) -> Result<Self, LinkError> {
        let handle = connection.wait_handle().map(|handle| handle.try_clone_to_owned()).transpose();
        let cloned = |source| FabricError::System { what: "share a connection between threads", source };
        let nonce = core.nonce().map_err(LinkError::Random)?;
        let now_ns = core.clock().monotonic_ns();
        Ok(Self {
            core: Arc::clone(core),
            waker: core.keyed_waker(),
            address: None,
            handle: handle.map_err(cloned).map_err(LinkError::Fabric)?,
            patience_ns,
            waiting: AtomicU32::new(0),
            state: Mutex::new(LinkState {
                connection,
                session: ClientSession::connect(now_ns, core.identity().clone(), nonce, patience_ns),
                outbox: Outbox::default(),
                attachments: BTreeMap::new(),
                ended: Vec::new(),
                peer: None,
                listing: None,
                ticket_next: Ticket(0),
                page: None,
                hearing: None,
                unused_since_ns: None,
                total: SubscriberCounts::default(),
                ending: false,
                failure: None,
                unreachable: None,
                buffer: vec![0; limits::CONTROL_MESSAGE_LEN_MAX],
            }),
        })
    }

    /// What stands for it at its node.
    pub(super) fn key(&self) -> u64 {
        self.waker.key()
    }

    /// Readable when the peer has sent something, or is gone.
    pub(super) fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.handle.as_ref().map(AsFd::as_fd)
    }

    /// Whether the peer has dialled.
    pub(super) fn is_invited(&self) -> bool {
        self.address.is_none()
    }

    /// Waits for the peer's hello.
    pub(super) fn greet(&self) -> Result<(), LinkError> {
        self.wait_for("hello", |state| state.peer.is_some().then_some(Ok(())))
    }

    /// Who the peer is.
    pub(super) fn peer(&self) -> Option<Identity> {
        self.state.lock().peer.clone()
    }

    /// Whether the peer has said hello, and the session takes requests.
    pub(super) fn is_ready(&self) -> bool {
        self.state.lock().is_ready()
    }

    /// Why the session is over, if it is.
    pub(super) fn failure(&self) -> Option<ControlError> {
        self.state.lock().failure.clone()
    }

    /// One page of the peer's directory, and whether there are more.
    pub(super) fn topics(&self, after: Option<TopicName>) -> Result<(Vec<TopicEntry>, bool), LinkError> {
        let ticket = {
            let mut state = self.state.lock();
            let ticket = state.ticket_next;
            state.ticket_next = Ticket(ticket.0.wrapping_add(1));
            ticket
        };
        self.wait_for("page of the directory", |state| {
            if state.listing.is_none() {
                if let Err(error) = state.session.list(after.clone()) {
                    return Some(Err(error));
                }
                state.listing = Some(ticket);
                state.page = None;
            }
            if state.listing != Some(ticket) {
                return None;
            }
            let page = state.page.take()?;
            state.listing = None;
            Some(Ok(page))
        })
    }

    /// Ends the session for this reason, because no thread drives it any more. The peer is notified if it takes the message at once.
    pub(super) fn abandon(&self, error: ControlError) -> LinkError {
        let now_ns = self.core.clock().monotonic_ns();
        let mut state = self.state.lock();
        let total = state.total;
        state.ending = true;
        // It fails when the session has ended already, or has not begun: then there is nobody to be told.
        let _ = state.session.end(now_ns, EndReason::Done, total);
        state.fail(error.clone());
        LinkError::Session(error)
    }

    /// Ends the session of a node that stops.
    pub(super) fn end(&self, now_ns: u64) {
        let mut state = self.state.lock();
        state.end(now_ns);
        state.flush();
    }

    /// Whether it is with the node at this address.
    pub(super) fn is_with(&self, address: &Address) -> bool {
        self.address.as_ref() == Some(address)
    }

    /// Whether it takes one more attachment.
    pub(super) fn takes_more(&self) -> bool {
        let state = self.state.lock();
        state.attachments.len() < limits::ATTACHMENTS_PER_SESSION_MAX && state.is_ready()
    }

    /// One turn of the node's thread, unless another one drives it. A session that nobody uses any more is ended.
    pub(super) fn turn(&self, now_ns: u64, is_unused: bool) -> LinkTurn {
        if self.is_awaited() {
            // The thread that waits wakes this one when it is done.
            return LinkTurn::Rests { due_ns: None };
        }
        let Some(mut state) = self.state.try_lock() else {
            return LinkTurn::Rests { due_ns: Some(now_ns.saturating_add(LOOK_AGAIN_NS)) };
        };
        state.turn(now_ns);
        if is_unused {
            let since_ns = *state.unused_since_ns.get_or_insert(now_ns);
            if state.attachments.is_empty() || now_ns.saturating_sub(since_ns) >= self.patience_ns {
                state.end(now_ns);
            }
        } else {
            state.unused_since_ns = None;
        }
        state.flush();
        match (&state.failure, is_unused) {
            (Some(_), true) => LinkTurn::Over,
            // The connection to a peer that is gone stays readable.
            (Some(_), false) => LinkTurn::Rests { due_ns: None },
            (None, _) if state.outbox.is_empty() => {
                LinkTurn::GoesOn { due_ns: state.deadline_ns(self.patience_ns) }
            }
            // A connection may have room again without waking anybody.
            (None, _) => LinkTurn::GoesOn { due_ns: Some(now_ns.saturating_add(limits::LANDING_TENDED_NS)) },
        }
    }

    /// When a turn is due even if the peer does nothing.
    #[cfg(test)]
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.state.lock().deadline_ns(self.patience_ns)
    }
}

impl LinkUse {
    /// A use of this session.
    pub(super) fn new(link: &Arc<Link>) -> Self {
        Self { link: Arc::clone(link), _parting: Parting(link.waker.clone()) }
    }

    /// Asks for a topic.
    pub(super) fn attach(
        &self,
        node: Arc<dyn std::any::Any + Send + Sync>,
        request: Request,
    ) -> Result<LinkAttachment, LinkError> {
        let Request { topic, delivery, schema_hash, options } = request;
        let (ended, shut) = (AtomicBool::new(false), AtomicBool::new(false));
        let attached = Arc::new(Attached { ended, delivery, shut, inbox: Mutex::default() });
        let mut state = self.state.lock();
        let asked = state.session.attach(topic, delivery, schema_hash, options);
        let id = asked.map_err(|error| state.explain(error))?;
        state.attachments.insert(id, Arc::clone(&attached));
        drop(state);
        Ok(LinkAttachment { link: self.clone(), id, attached, _node: node })
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
    fn deadline_ns(&self, patience_ns: u64) -> Option<u64> {
        let unused_ns = self.unused_since_ns.map(|since_ns| since_ns.saturating_add(patience_ns));
        let hearing_ns = self.hearing.as_ref().map(|hearing| hearing.due_ns().max(1));
        let ended_ns = self.ended.iter().map(|(id, since_ns)| self.ended_due_ns(*id, *since_ns)).min();
        let deadlines = [self.session.deadline_ns().or(unused_ns), hearing_ns, ended_ns];
        deadlines.into_iter().flatten().min()
    }

    fn is_ready(&self) -> bool {
        !self.ending && self.failure.is_none() && self.peer.is_some()
    }

    /// Takes what has come, and notices what has not.
    fn turn(&mut self, now_ns: u64) {
        for _ in 0..limits::MESSAGES_PER_TURN_MAX {
            if self.failure.is_some() || !self.receive(now_ns) {
                break;
            }
        }
        if self.failure.is_none()
            && let Err(error) = self.session.on_time(now_ns)
        {
            self.fail(error);
        }
        if self.failure.is_none()
            && let Some(heard) = self.hearing.as_mut().and_then(|hearing| hearing.tell(now_ns))
        {
            // It fails when the session ends: then nothing is to be told.
            let _ = self.session.heard(heard);
        }
        self.tend_ended(now_ns);
        self.flush();
    }

    /// Sees to it that nothing is fetched from a topic that ended some time ago, and then detaches from it: its publisher takes
    /// the memory back, and a fetch that found none would end the session for everybody.
    fn tend_ended(&mut self, now_ns: u64) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|(id, since_ns)| {
            let Some(attached) = self.attachments.get(id) else { return false };
            let elapsed_ns = now_ns.saturating_sub(*since_ns);
            if elapsed_ns >= limits::ENDED_FETCH_NS {
                attached.shut.store(true, Ordering::Release);
            }
            let is_over = elapsed_ns >= limits::ENDED_DETACH_NS;
            if is_over {
                self.leave(*id, SubscriberCounts::default());
            }
            !is_over
        });
        self.ended = ended;
    }

    /// When an attachment to a topic that has ended is to be looked after next.
    fn ended_due_ns(&self, id: AttachmentId, since_ns: u64) -> u64 {
        let is_shut = self.attachments.get(&id).is_none_or(|it| it.shut.load(Ordering::Acquire));
        since_ns.saturating_add(if is_shut { limits::ENDED_DETACH_NS } else { limits::ENDED_FETCH_NS })
    }

    /// Takes one message. False when there was none.
    fn receive(&mut self, now_ns: u64) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let received = self.connection.receive(&mut buffer);
        let more = match received {
            Ok(Received::Message { len, offer }) => {
                let (message, _) = buffer.split_at(len.min(buffer.len()));
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
                self.fail(ControlError::Broken { why: error.to_string() });
                self.unreachable = self.peer.is_none().then_some(error);
                false
            }
        };
        self.buffer = buffer;
        more
    }

    fn take(&mut self, event: ClientEvent, offer: Option<Box<dyn Offer>>, now_ns: u64) {
        match event {
            ClientEvent::Ready { peer } => self.peer = Some(peer),
            ClientEvent::Topics { entries, more } => self.page = Some((entries, more)),
            ClientEvent::Granted { grant, .. } => {
                self.answer(grant.attachment, Answer::Granted { grant, offer });
            }
            ClientEvent::Exposed { attachment } => self.answer(attachment, Answer::Exposed),
            ClientEvent::Refused { attachment, reason, text } => {
                self.answer(attachment, Answer::Refused { reason, text });
            }
            ClientEvent::Notices { attachment, by } => self.answer(attachment, Answer::Notices { by, offer }),
            ClientEvent::Detached { attachment, .. } => {
                if let Some(detached) = self.attachments.remove(&attachment) {
                    // Nobody writes it any more, and its subscriber may be kept.
                    let landing = detached.inbox.lock().landing.take();
                    drop(landing);
                }
            }
            ClientEvent::TopicEnded { attachment, published } => {
                if let Some(attached) = self.attachments.get(&attachment) {
                    attached.finish(End::Ended { published: Sequence::new(published) });
                    if attached.delivery == Delivery::Pull && !self.connection.capabilities().shares_memory {
                        self.ended.push((attachment, now_ns));
                    }
                }
            }
            ClientEvent::EndAsked { .. } => {
                self.end(now_ns);
                self.fail(ControlError::Closed { state: "ended by the publisher's node" });
            }
            ClientEvent::Ended { .. } => self.fail(ControlError::Closed { state: "ended" }),
        }
    }

    fn answer(&mut self, id: AttachmentId, answer: Answer) {
        let Some(attached) = self.attachments.get(&id) else { return };
        let mut inbox = attached.inbox.lock();
        let Some(counts) = inbox.leaving else {
            inbox.answer = Some(answer);
            return;
        };
        drop(inbox);
        // It fails when nothing was granted: then there is nothing to detach.
        if self.session.detach(id, counts).is_err() {
            self.attachments.remove(&id);
        }
    }

    /// Gives an attachment up. Its landing region stays until the publisher has said that it writes it no more, or the
    /// session is over: a write that finds no memory would end the session for everybody.
    fn leave(&mut self, id: AttachmentId, counts: SubscriberCounts) {
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

    /// Why a request could not be made: a session that is over says how it ended.
    fn explain(&self, error: ControlError) -> LinkError {
        LinkError::Session(self.failure.clone().unwrap_or(error))
    }

    /// Ends the session in good order, if it is not over.
    fn end(&mut self, now_ns: u64) {
        self.ending = true;
        // It fails when the session has ended already, or has not begun: then closing the connection is all.
        if self.session.end(now_ns, EndReason::Done, self.total).is_err() && self.peer.is_none() {
            self.fail(ControlError::Disconnected);
        }
    }

    fn fail(&mut self, error: ControlError) {
        if self.failure.is_none() {
            // First of all: what cannot be sent any more fails nothing.
            self.failure = Some(error.clone());
            self.flush();
        }
        for attached in self.attachments.values() {
            attached.finish(End::Gone { error: error.clone() });
        }
    }

    fn flush(&mut self) {
        while let Some(outgoing) = self.session.next_message() {
            let attached = outgoing.region_of.and_then(|id| self.attachments.get(&id));
            let region = attached.and_then(|attached| attached.inbox.lock().landing.clone());
            self.outbox.push(outgoing.bytes, region);
        }
        match self.outbox.flush(self.connection.as_mut()) {
            // A peer that is gone is noticed by the next receive, and one that takes nothing by its deadlines.
            Ok(_) | Err(FabricError::Closed) => {}
            // What stands behind the message that cannot be sent would wait for ever.
            Err(error) if self.failure.is_none() => {
                self.fail(ControlError::Broken { why: error.to_string() })
            }
            Err(_) => {}
        }
    }
}

impl Attached {
    /// Ends the attachment for its subscriber; the first reason stays.
    fn finish(&self, end: End) {
        self.inbox.lock().end.get_or_insert(end);
        // Release: whoever sees the flag finds the reason. Pairs with the Acquire in `has_ended`.
        self.ended.store(true, Ordering::Release);
    }
}
