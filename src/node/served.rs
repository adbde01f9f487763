use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use self::attachment::{EndedAttachment, Preparing, RevokedAttachment, ServedAttachment};
use self::audience::Audience;
use self::request::Objection;
use self::tenure::{Tenure, price};
use super::core::NodeCore;
use super::directory::entry;
use super::invitation::Pending;
use super::outbox::{Enclosure, Outbox};
use super::serving::Serving;
use crate::chain::ErrorChain;
use crate::control::{
    AttachmentId, ControlError, Detach, Identity, Invited, NoticesBy, Peer, RefuseReason, ServerAction,
    ServerSession, WakeBy,
};
use crate::event::Event;
use crate::fabric::{Connection, FabricError, Offer, PeerId, Place, Received, RemoteWaker};
use crate::id::{NodeName, TopicName};
use crate::keyring::Authority;
use crate::limits;

mod attaching;
mod attachment;
mod audience;
mod end;
mod leaving;
mod pacing;
mod progress;
mod request;
mod revoking;
mod tenure;
#[cfg(test)]
pub(super) mod tests;

/// Refuses a publisher's connection that does not invite.
const DIALLED_TO_WRITE: &str = "this connection was dialled to write, but asks to read";
/// Reports a landing region that failed after it was accepted.
const UNWRITABLE: &str = "the landing region can no longer be written";

/// Why a socket cannot be used.
fn wakes_nobody(error: &FabricError) -> String {
    format!("no thread can be woken through what came as a wake socket: {}", ErrorChain(error))
}

/// A session in which this node serves its topics; either side may have dialled.
#[derive(Debug)]
pub(super) struct Served {
    /// Its key at its node.
    key: u64,
    connection: Box<dyn Connection>,
    session: ServerSession,
    outbox: Outbox,
    attachments: BTreeMap<AttachmentId, ServedAttachment>,
    /// Requests whose memory is being registered.
    preparing: Vec<Preparing>,
    /// Attachments whose landing regions were accepted. The peer is notified when it can read them.
    beginning: BTreeSet<AttachmentId>,
    /// Attachments whose topics have ended, before the peer is notified.
    ending: BTreeSet<AttachmentId>,
    /// A landing region may have been given up because it cannot be written.
    may_have_lost: bool,
    /// The publisher has let attachments go, and the peer does not know it yet.
    has_let_go: bool,
    /// Detached attachments whose memory may still be written or read.
    leaving: BTreeMap<AttachmentId, ServedAttachment>,
    /// Revoked ones that the peer may still reach.
    revoked: BTreeMap<AttachmentId, RevokedAttachment>,
    /// Attachments whose topics have ended, before the peer detaches.
    ended: BTreeMap<AttachmentId, EndedAttachment>,
    /// How notices reach the peer.
    audience: Audience,
    /// Its wake sockets, by its numbers for them, while attachments use them.
    wake_sockets: BTreeMap<u32, Weak<dyn RemoteWaker>>,
    peer: Option<NodeName>,
    /// The peer's process and host.
    process: u32,
    host: String,
    /// This node dialled, and the peer is not attached yet.
    invitation: Option<Pending>,
    /// The subscription for which this node dialled the peer.
    dialled_for: Option<DialledFor>,
    /// The peer dialled, and invites this node to subscribe.
    invited: Option<Invited>,
    /// What its peer may still ask for, and how long.
    tenure: Tenure,
    /// Only queued messages are left to be sent.
    closing: bool,
    over: bool,
}

/// The one subscription for which a peer was dialled.
#[derive(Debug)]
struct DialledFor {
    topic: TopicName,
    /// Whether it was granted.
    is_granted: bool,
}

impl Served {
    /// Serves this connection, or refuses the peer, if there is no place for it.
    pub(super) fn new(
        core: &NodeCore,
        connection: Box<dyn Connection>,
        now_ns: u64,
    ) -> Result<Self, FabricError> {
        let mut session = ServerSession::new(now_ns, core.greeting(connection.as_ref())?);
        if let Err(why) = connection.place() {
            session.reject(RefuseReason::TooManySessions, &why.to_string());
        }
        Ok(Self::with(core.next_key(), connection, session))
    }

    /// Serves a peer that this node has dialled, which has to say hello by `deadline_ns`.
    pub(super) fn inviting(
        core: &NodeCore,
        connection: Box<dyn Connection>,
        deadline_ns: u64,
        invitation: Pending,
    ) -> Result<Self, FabricError> {
        let (greeting, topic) = (core.greeting(connection.as_ref())?, invitation.topic().clone());
        let dialled_for = Some(DialledFor { topic: topic.clone(), is_granted: false });
        let session = ServerSession::inviting(deadline_ns, greeting, topic);
        invitation.set_connecting(connection.capabilities().is_connecting);
        let served = Self::with(invitation.key(), connection, session);
        Ok(Self { invitation: Some(invitation), dialled_for, ..served })
    }

    fn with(key: u64, connection: Box<dyn Connection>, session: ServerSession) -> Self {
        Self {
            key,
            connection,
            session,
            outbox: Outbox::default(),
            attachments: BTreeMap::new(),
            preparing: Vec::new(),
            beginning: BTreeSet::new(),
            ending: BTreeSet::new(),
            may_have_lost: false,
            has_let_go: false,
            leaving: BTreeMap::new(),
            revoked: BTreeMap::new(),
            ended: BTreeMap::new(),
            audience: Audience::default(),
            wake_sockets: BTreeMap::new(),
            peer: None,
            process: 0,
            host: String::new(),
            invitation: None,
            dialled_for: None,
            invited: None,
            tenure: Tenure::default(),
            closing: false,
            over: false,
        }
    }

    /// Its key at its node.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Records that the topic of this attachment has ended, or has given up landing regions. Returns whether this session is
    /// affected.
    pub(super) fn topic_changed(&mut self, attachment: u32) -> bool {
        let id = AttachmentId::new(attachment);
        let Some(attachment) = self.attachments.get(&id) else { return false };
        let (is_ending, is_lost) = (attachment.is_ending(), attachment.is_lost());
        let is_let_go = attachment.is_let_go();
        self.has_let_go |= is_let_go;
        if is_ending {
            self.ending.insert(id);
        }
        self.may_have_lost |= is_lost;
        is_ending || is_lost || is_let_go
    }

    /// Gives up a dialled session, because the node serves the maximum.
    pub(super) fn give_up(self) {
        if let Some(invitation) = &self.invitation {
            invitation.no_room();
        }
    }

    /// Whether the peer invites this node to subscribe, so that its connection is to be handed over.
    pub(super) fn is_invited(&self) -> bool {
        self.invited.is_some()
    }

    /// The topic to which the peer invites this node.
    pub(super) fn invited_to(&self) -> Option<&TopicName> {
        self.invited.as_ref().map(|invite| &invite.topic)
    }

    /// The peer that dialled, as the fabric tells peers apart.
    pub(super) fn dialled_by(&self) -> Option<PeerId> {
        self.connection.place().ok().flatten().map(Place::peer)
    }

    /// The connection of a peer that invites this node, its identity, and what it may do.
    pub(super) fn into_invited(self) -> Option<(Box<dyn Connection>, (Identity, Authority))> {
        let authority = self.session.authority();
        Some((self.connection, (self.invited?.identity, authority)))
    }

    /// The publisher that invites this node, as an admission sees it.
    pub(super) fn inviter(&self) -> Option<Peer> {
        let Invited { identity, topic } = self.invited.as_ref()?;
        Some(Peer {
            node: identity.node.clone(),
            process: identity.process,
            host: identity.host.clone().into(),
            address: self.connection.peer_address(),
            key: self.session.key_for(topic),
        })
    }

    /// Refuses the peer's invitation.
    pub(super) fn refuse_invite(&mut self, serving: &mut Serving, (reason, text): (RefuseReason, &str)) {
        self.invited = None;
        self.session.reject(reason, text);
        self.act(serving, None);
        self.flush(serving);
    }

    /// Whether it is finished.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Readable when the peer has sent something, or is gone.
    pub(super) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.connection.wait_handle()
    }

    /// Whether messages wait for the peer.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// When a turn is due even if the peer does nothing.
    pub(super) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        // A connection may accept more without becoming writable.
        if self.has_unsent() || self.awaits_writes() {
            return Some(now_ns.saturating_add(limits::LANDING_TENDED_NS));
        }
        let ended = self.ended.values().filter_map(EndedAttachment::until_ns);
        let ending = self.ending().filter_map(ServedAttachment::ended_until_ns);
        let own = self
            .session
            .deadline_ns()
            .into_iter()
            .chain(self.audience.due_ns())
            .chain(self.revoked_due_ns())
            .chain(self.tenure.due_ns(self.connection.held_back_until_ns().is_some()))
            .chain(self.held_back_until_ns());
        own.chain(ended).chain(ending).min()
    }

    fn ending(&self) -> impl Iterator<Item = &ServedAttachment> {
        self.ending.iter().filter_map(|id| self.attachments.get(id))
    }

    /// Whether one-sided writes are in flight.
    pub(super) fn has_writes_under_way(&self) -> bool {
        !(self.leaving.is_empty() && self.beginning.is_empty() && self.ending.is_empty())
    }

    /// The same, except writes that wait for a stalled subscriber, which are tended from time to time.
    fn awaits_writes(&self) -> bool {
        let awaits = |it: &ServedAttachment| !it.rests();
        let is_told = self.revoked.values().all(|revoked| revoked.is_told);
        !(self.leaving.is_empty() && self.beginning.is_empty() && is_told) || self.ending().any(awaits)
    }

    /// Begins the end of the session. The newest sequence reports what could not be written.
    pub(super) fn shutdown(&mut self, now_ns: u64) {
        self.tell_ended_topics(now_ns, true);
        self.session.shutdown(now_ns);
    }

    /// One turn: receives up to a limit, reports ended topics, and sends.
    pub(super) fn turn(&mut self, serving: &mut Serving, now_ns: u64) {
        // Checked first: if the peer is gone, or has detached, its last messages say so.
        let may_have_lost = std::mem::take(&mut self.may_have_lost);
        for _ in 0..limits::MESSAGES_PER_TURN_MAX {
            if self.closing || self.over || self.is_invited() || self.has_to_wait(now_ns) {
                break;
            }
            if !self.receive(serving) {
                break;
            }
        }
        self.await_connection(now_ns);
        if self.invitation.as_ref().is_some_and(Pending::is_abandoned) {
            self.session.shutdown(now_ns);
        }
        self.session.on_time(now_ns);
        self.attach_prepared(&serving.core);
        self.act(serving, None);
        if self.audience.is_asked_for() {
            let is_listening = self.attachments.values().any(|attachment| attachment.listener.is_some());
            self.audience.tend(self.connection.as_ref(), is_listening, now_ns);
        }
        self.tell_exposed();
        self.tell_detached();
        self.tend_revoked(now_ns);
        if may_have_lost {
            self.end_if_unwritable(&serving.core);
        }
        self.tell_let_go(&serving.core);
        self.tell_ended_topics(now_ns, false);
        self.end_if_overdue(now_ns);
        self.end_if_idle(now_ns);
        self.act(serving, None);
        self.flush(serving);
        self.forget_mapped();
    }

    /// Receives one message. False when there was none.
    fn receive(&mut self, serving: &mut Serving) -> bool {
        match self.connection.receive(&mut serving.buffer) {
            Ok(Received::Message { len, offer }) => {
                let proof_units = if self.session.needs_binding() { limits::COSTLY_UNITS } else { 0 };
                self.spend(&serving.core, limits::MESSAGE_UNITS + proof_units);
                let (message, _) = serving.buffer.split_at(len.min(serving.buffer.len()));
                // Without it no proof is accepted.
                if self.session.needs_binding()
                    && let Ok(binding) = self.connection.binding()
                {
                    self.session.bind(binding);
                }
                self.session.on_message(message, usize::from(offer.is_some()));
                self.act(serving, offer);
                true
            }
            Ok(Received::Nothing) => false,
            Ok(Received::Closed) => {
                self.session.on_disconnected();
                self.act(serving, None);
                self.over = true;
                false
            }
            Err(error) => {
                let why = ErrorChain(&error).to_string();
                match &error {
                    FabricError::MessageTooLong { .. } | FabricError::TooManyRegions => {
                        self.session.reject(RefuseReason::Malformed, &why);
                    }
                    FabricError::NotAdmitted(_) if self.invitation.is_none() => {
                        serving.core.tell(&Event::PeerRejected { reason: why.clone() });
                        self.session.on_broken(why);
                    }
                    _ => self.session.on_broken(why),
                }
                if let Some(invitation) = self.invitation.as_ref().filter(|_| self.peer.is_none()) {
                    invitation.broken(error);
                }
                self.act(serving, None);
                false
            }
        }
    }

    /// Performs the session's actions. A region that came with the message is dropped unless an action uses it.
    fn act(&mut self, serving: &mut Serving, mut offer: Option<Box<dyn Offer>>) {
        while let Some(action) = self.session.next_action() {
            self.spend(&serving.core, price(&action));
            // An answer fails if the session has ended meanwhile, and is not needed then.
            let _ = match action {
                ServerAction::Send(outgoing) => {
                    let region = outgoing.region_of.and_then(|id| self.attachments.get(&id));
                    let region = region.and_then(|it| it.region(outgoing.region_kind));
                    self.outbox.push(outgoing.bytes, region.map(Enclosure::Region));
                    Ok(())
                }
                // Each such connection has its own protection domain, where anything it reads would be registered again.
                ServerAction::PeerIdentified(_) if self.connection.capabilities().is_dialled_to_write => {
                    self.session.reject(RefuseReason::NotPermitted, DIALLED_TO_WRITE);
                    Ok(())
                }
                ServerAction::PeerIdentified(identity) => {
                    serving.core.tell(&Event::SessionOpened {
                        peer: identity.node.clone(),
                        process: identity.process,
                    });
                    (self.peer, self.process) = (Some(identity.node), identity.process);
                    self.host = identity.host.into();
                    self.invitation.iter().for_each(Pending::greeted);
                    Ok(())
                }
                ServerAction::Invited(invite) => {
                    self.invited = Some(invite);
                    Ok(())
                }
                ServerAction::QueryTopics { after } => self.answer_topics(&serving.core, after.as_ref()),
                ServerAction::QuerySubscribers(topic) => self.answer_subscribers(&serving.core, &topic),
                ServerAction::Attach(attach) => self.ask(&serving.core, attach, offer.take()),
                ServerAction::Expose(attachment) => self.accept_landing(serving, attachment, offer.take()),
                ServerAction::Listen(attachment) => {
                    let listening = self.attachments.get_mut(&attachment);
                    let peer = self.peer.clone().unwrap_or_else(|| serving.core.identity.node.clone());
                    let peer = (&peer, self.connection.as_ref());
                    let by = listening.map(|it| self.audience.answer(serving, peer, it));
                    self.session.notices(attachment, by.unwrap_or(NoticesBy::Nothing))
                }
                ServerAction::WakeBy(wake_by) => {
                    let slot = self.wake_through(&serving.core, wake_by, offer.take());
                    self.session.wake_slot(wake_by.attachment, slot)
                }
                ServerAction::Heard(heard) => {
                    self.audience.record(heard, serving.core.clock.monotonic_ns());
                    Ok(())
                }
                ServerAction::Detach(Detach { attachment, counts }) => {
                    if let Some(detached) = self.detach(&serving.core, attachment, counts) {
                        self.leaving.insert(attachment, detached);
                    }
                    Ok(())
                }
                ServerAction::FinalCounts(Detach { attachment, counts }) => {
                    self.detach_ended(&serving.core, attachment, counts);
                    Ok(())
                }
                ServerAction::Close { result } => {
                    self.close(&serving.core, result);
                    Ok(())
                }
            };
        }
    }

    fn answer_topics(&mut self, core: &NodeCore, after: Option<&TopicName>) -> Result<(), ControlError> {
        let mut topics = match &self.dialled_for {
            None => {
                let shown = |topic: &TopicName| self.session.permits(topic);
                core.topics.after(after, limits::DIRECTORY_PAGE_LEN_MAX + 1, shown)
            }
            Some(DialledFor { topic, .. }) => {
                let is_behind = after.is_none_or(|after| after < topic);
                core.topic(topic).filter(|_| is_behind).into_iter().collect()
            }
        };
        let more = topics.len() > limits::DIRECTORY_PAGE_LEN_MAX;
        topics.truncate(limits::DIRECTORY_PAGE_LEN_MAX);
        let entries = topics.iter().map(|topic| entry(topic, &core.time)).collect();
        self.session.answer_topics(entries, more)
    }

    /// Wakes an attachment through a socket of the peer. Returns its slot of the wake word; `None` if that cannot be, and then the peer
    /// looks at the topic from time to time.
    fn wake_through(
        &mut self,
        core: &NodeCore,
        wake_by: WakeBy,
        offer: Option<Box<dyn Offer>>,
    ) -> Option<u32> {
        let WakeBy { attachment, socket, token } = wake_by;
        let attachment = self.attachments.get_mut(&attachment)?;
        attachment.waking = None;
        let waker = match self.wake_sockets.get(&socket).and_then(Weak::upgrade) {
            Some(known) => known,
            None => {
                let topic = &attachment.topic.name;
                let opened = |offer: Box<dyn Offer>| match offer.open_waker() {
                    Ok(waker) => Some(waker),
                    Err(error) => {
                        let Objection { reason, text } =
                            Objection::over(&error, RefuseReason::NotPermitted, wakes_nobody(&error));
                        Self::tell_refused(core, self.peer.as_ref(), topic, (reason, &text));
                        None
                    }
                };
                let waker = core.wakers.add(|| offer.and_then(opened))?;
                self.wake_sockets.retain(|_, known| known.strong_count() > 0);
                self.wake_sockets.insert(socket, Arc::downgrade(&waker));
                waker
            }
        };
        let (registration, slot) = attachment.topic.notices.wake_through(waker, token)?;
        attachment.waking = Some(registration);
        Some(slot)
    }

    /// Ends the session if a landing region can no longer be written: its subscriber would wait in vain.
    fn end_if_unwritable(&mut self, core: &NodeCore) {
        if self.attachments.values().any(ServedAttachment::is_lost) {
            // The connection gives no reason.
            core.tell(&Event::Trouble { what: "a landing region can no longer be written".to_owned() });
            self.session.reject(RefuseReason::LandingUnfit, UNWRITABLE);
        }
    }
}
