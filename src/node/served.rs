use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use self::attachment::ServedAttachment;
use self::audience::Audience;
use super::core::NodeCore;
use super::dial::Pending;
use super::directory::entry;
use super::listener::{Backlog, Place};
use super::outbox::Outbox;
use crate::control::{
    Attach, AttachmentId, ControlError, Grant, Identity, Invite, NoticesBy, RefuseReason, SchemaJson,
    ServerAction, ServerSession, SubscriberCounts,
};
use crate::event::Event;
use crate::fabric::{Completion, Connection, Exposure, FabricError, Offer, Received, RemoteKey};
use crate::id::{Delivery, NodeName, TopicName};
use crate::limits;
use crate::publisher::PublishedTopic;
use crate::sync::atomic::Ordering;

mod attachment;
mod audience;
mod end;
#[cfg(test)]
pub(super) mod tests;

/// What a peer is told that was dialled and asks for anything but its one subscription.
const DIALLED_FOR_ONE: &str = "it was dialled for one subscription to one topic";
/// What a peer is told that has dialled as publishers do, and does not invite.
const DIALLED_TO_WRITE: &str = "it has dialled to write, and asks to read";
/// What a peer is told whose landing region failed after it was taken.
const UNWRITABLE: &str = "it cannot be written any more";
/// What a peer is told that attaches too late.
const GIVEN_UP: &str = "the publisher does not wait for it any more";

/// A session in which this node serves its topics: with a peer that has dialled it, or that it has dialled.
#[derive(Debug)]
pub(super) struct Served {
    connection: Box<dyn Connection>,
    session: ServerSession,
    outbox: Outbox,
    attachments: BTreeMap<AttachmentId, ServedAttachment>,
    /// What the peer has detached from and may still be written.
    leaving: BTreeMap<AttachmentId, ServedAttachment>,
    /// What the peer hears of what is told to all.
    audience: Audience,
    peer: Option<NodeName>,
    /// This node has dialled, and the peer is not attached yet.
    invitation: Option<Pending>,
    /// What this node has dialled the peer for, if it has.
    dialled_for: Option<DialledFor>,
    /// The peer has dialled, to be subscribed to.
    invited: Option<Invited>,
    /// All that is left to do is to send what waits.
    closing: bool,
    over: bool,
}

/// The one subscription that a peer was dialled for.
#[derive(Debug)]
struct DialledFor {
    topic: TopicName,
    /// Whether it was granted.
    is_granted: bool,
}

/// Why a request is refused.
#[derive(Debug)]
struct Objection {
    reason: RefuseReason,
    /// In words; may be empty.
    text: String,
}

/// A topic that a peer may have.
#[derive(Debug)]
struct Admitted {
    topic: Arc<PublishedTopic>,
    schema: SchemaJson,
    /// What the peer gets to know of its repository.
    remote_key: RemoteKey,
}

/// What a node needs to subscribe at a peer that has dialled it.
#[derive(Debug)]
pub(super) struct Invited {
    pub(super) inviter: Identity,
    pub(super) backlog: Arc<Backlog>,
    pub(super) place: Place,
}

impl Served {
    /// The session with the peer at the other end. Without room the peer is told so, and sent away.
    pub(super) fn new(
        core: &NodeCore,
        connection: Box<dyn Connection>,
        now_ns: u64,
        room: bool,
    ) -> Result<Self, std::io::Error> {
        let mut session = ServerSession::new(now_ns, core.identity().clone(), core.nonce()?);
        if !room {
            session.reject(RefuseReason::TooManySessions, "");
        }
        Ok(Self::with(connection, session))
    }

    /// The session with a peer that this node has dialled, and that has to say hello until `deadline_ns`.
    pub(super) fn inviting(
        core: &NodeCore,
        connection: Box<dyn Connection>,
        deadline_ns: u64,
        invitation: Pending,
    ) -> Result<Self, std::io::Error> {
        let (identity, topic) = (core.identity().clone(), invitation.topic().clone());
        let dialled_for = Some(DialledFor { topic: topic.clone(), is_granted: false });
        let session = ServerSession::inviting(deadline_ns, identity, core.nonce()?, topic);
        Ok(Self { invitation: Some(invitation), dialled_for, ..Self::with(connection, session) })
    }

    fn with(connection: Box<dyn Connection>, session: ServerSession) -> Self {
        Self {
            connection,
            session,
            outbox: Outbox::default(),
            attachments: BTreeMap::new(),
            leaving: BTreeMap::new(),
            audience: Audience::default(),
            peer: None,
            invitation: None,
            dialled_for: None,
            invited: None,
            closing: false,
            over: false,
        }
    }

    /// Gives a session up that this node has dialled, because it serves as many as it may.
    pub(super) fn give_up(self) {
        if let Some(invitation) = &self.invitation {
            invitation.no_room();
        }
    }

    /// Whether the peer has dialled to be subscribed to: then its connection is to be handed over.
    pub(super) fn is_invited(&self) -> bool {
        self.invited.is_some()
    }

    /// The connection of a peer that has dialled to be subscribed to.
    pub(super) fn into_invited(self) -> Option<(Box<dyn Connection>, Invited)> {
        Some((self.connection, self.invited?))
    }

    /// Whether there is nothing left to do.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Readable when the peer has sent something, or is gone.
    pub(super) fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        self.connection.wait_handle()
    }

    /// Whether it waits for the peer to take messages.
    pub(super) fn has_unsent(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// When a turn is due even if the peer does nothing.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.session.deadline_ns()
    }

    /// Topics that have ended, but of which the peer has yet to get the last of what was published.
    pub(super) fn ending_topics(&self) -> impl Iterator<Item = &Arc<PublishedTopic>> {
        self.attachments.values().filter(|it| it.is_ending()).map(|it| &it.topic)
    }

    /// Whether it waits for one-sided writes to be complete.
    pub(super) fn has_writes_under_way(&self) -> bool {
        let awaits = |it: &ServedAttachment| it.is_beginning || it.is_ending();
        !self.leaving.is_empty() || self.attachments.values().any(awaits)
    }

    /// The same, but for those that wait until a subscriber goes on: its landing region is looked after now and then.
    pub(super) fn awaits_writes(&self) -> bool {
        let awaits = |it: &ServedAttachment| it.is_beginning || (it.is_ending() && !it.rests());
        !self.leaving.is_empty() || self.attachments.values().any(awaits)
    }

    /// Begins the end of the session. What could not be written any more is told by the newest sequence.
    pub(super) fn shutdown(&mut self, now_ns: u64) {
        self.tell_ended_topics(true);
        self.session.shutdown(now_ns);
    }

    /// One turn: takes what the peer sent, up to a limit, tells of ended topics, and sends what is to be sent.
    pub(super) fn turn(&mut self, core: &NodeCore, now_ns: u64, buffer: &mut [u8]) {
        // Looked for first: where the peer is gone, or has detached, what it sent last says so.
        let has_lost = self.has_lost();
        for _ in 0..limits::MESSAGES_PER_TURN_MAX {
            if self.closing || self.over || self.is_invited() || !self.receive(core, buffer) {
                break;
            }
        }
        if self.invitation.as_ref().is_some_and(Pending::is_abandoned) {
            self.session.shutdown(now_ns);
        }
        self.session.on_time(now_ns);
        self.act(core, None);
        let is_listening = self.attachments.values().any(|attachment| attachment.listener.is_some());
        self.audience.tend(self.connection.as_ref(), is_listening, now_ns);
        self.tell_lent();
        self.tell_detached();
        if has_lost {
            self.end_if_unwritable(core);
        }
        self.tell_ended_topics(false);
        self.act(core, None);
        self.flush(core, buffer);
    }

    /// Takes one message. False when there was none.
    fn receive(&mut self, core: &NodeCore, buffer: &mut [u8]) -> bool {
        match self.connection.receive(buffer) {
            Ok(Received::Message { len, offer }) => {
                let (message, _) = buffer.split_at(len.min(buffer.len()));
                self.session.on_message(message, usize::from(offer.is_some()));
                self.act(core, offer);
                true
            }
            Ok(Received::Nothing) => false,
            Ok(Received::Closed) => {
                self.session.on_disconnected();
                self.act(core, None);
                self.over = true;
                false
            }
            Err(error) => {
                let why = error.to_string();
                match &error {
                    FabricError::MessageTooLong { .. } | FabricError::TooManyRegions => {
                        self.session.reject(RefuseReason::Malformed, &why);
                    }
                    _ => self.session.on_broken(why),
                }
                if let Some(invitation) = self.invitation.as_ref().filter(|_| self.peer.is_none()) {
                    invitation.broken(error);
                }
                self.act(core, None);
                false
            }
        }
    }

    /// Does what the session asks for. The region that came with the message is dropped unless it is asked for.
    fn act(&mut self, core: &NodeCore, mut offer: Option<Box<dyn Offer>>) {
        while let Some(action) = self.session.next_action() {
            // An answer fails when the session has ended meanwhile: then there is nobody to be answered.
            let _ = match action {
                ServerAction::Send(outgoing) => {
                    let region = outgoing.region_of.and_then(|id| self.attachments.get(&id));
                    let region = region.and_then(|it| it.region(outgoing.is_bell));
                    self.outbox.push(outgoing.bytes, region);
                    Ok(())
                }
                // Each such connection has a protection domain of its own: what it reads would be registered there again.
                ServerAction::PeerIdentified(_) if self.connection.is_dialled_to_write() => {
                    self.session.reject(RefuseReason::NotPermitted, DIALLED_TO_WRITE);
                    Ok(())
                }
                ServerAction::PeerIdentified(identity) => {
                    core.tell(&Event::SessionOpened {
                        peer: identity.node.clone(),
                        process: identity.process,
                    });
                    self.peer = Some(identity.node);
                    self.invitation.iter().for_each(Pending::greeted);
                    Ok(())
                }
                ServerAction::Invited(invite) => {
                    self.take_invite(core, invite);
                    Ok(())
                }
                ServerAction::QueryTopics { after } => self.answer_topics(core, after.as_ref()),
                ServerAction::Attach(attach) => self.attach(core, attach),
                ServerAction::Lend { attachment } => self.lend(core, attachment, offer.take()),
                ServerAction::Listen { attachment } => {
                    let listening = self.attachments.get_mut(&attachment);
                    let peer = self.peer.as_ref().unwrap_or_else(|| &core.identity().node);
                    let peer = (peer, self.connection.as_ref());
                    let by = listening.map(|it| self.audience.answer(core, peer, it));
                    self.session.notices(attachment, by.unwrap_or(NoticesBy::Nothing))
                }
                ServerAction::Heard(heard) => {
                    self.audience.hear(heard, core.clock().monotonic_ns());
                    Ok(())
                }
                ServerAction::Detach { attachment, counts } => {
                    if let Some(detached) = self.detach(core, attachment, counts) {
                        self.leaving.insert(attachment, detached);
                    }
                    Ok(())
                }
                ServerAction::FinalCounts { attachment, counts } => {
                    self.detach(core, attachment, counts);
                    Ok(())
                }
                ServerAction::Close { result } => {
                    self.close(core, result);
                    Ok(())
                }
            };
        }
    }

    /// Lets the peer wait for the listener of the topic, if there is one, and a place.
    fn take_invite(&mut self, core: &NodeCore, Invite { identity: inviter, topic }: Invite) {
        match core.backlogs().admit(&topic) {
            Ok((backlog, place)) => self.invited = Some(Invited { inviter, backlog, place }),
            Err(reason) => self.session.reject(reason, ""),
        }
    }

    fn answer_topics(&mut self, core: &NodeCore, after: Option<&TopicName>) -> Result<(), ControlError> {
        let now_ns = core.clock().realtime_ns();
        let mut topics = match &self.dialled_for {
            None => core.topics_after(after, limits::DIRECTORY_PAGE_LEN_MAX + 1),
            Some(DialledFor { topic, .. }) => {
                let is_behind = after.is_none_or(|after| after < topic);
                core.topic(topic).filter(|_| is_behind).into_iter().collect()
            }
        };
        let more = topics.len() > limits::DIRECTORY_PAGE_LEN_MAX;
        topics.truncate(limits::DIRECTORY_PAGE_LEN_MAX);
        let entries = topics.iter().map(|topic| entry(topic, now_ns)).collect();
        self.session.answer_topics(entries, more)
    }

    fn attach(&mut self, core: &NodeCore, attach: Attach) -> Result<(), ControlError> {
        match self.admit(core, &attach) {
            Ok(admitted) => self.grant(core, &attach, admitted),
            Err(Objection { reason, text }) => {
                self.tell_refused(core, &attach.topic, reason, &text);
                self.tell_unfit(&attach.topic, reason, &text);
                self.session.refuse(attach.attachment, reason, &text)
            }
        }
    }

    fn tell_refused(&self, core: &NodeCore, topic: &TopicName, reason: RefuseReason, text: &str) {
        let peer = self.peer.as_ref().unwrap_or_else(|| &core.identity().node).clone();
        let separator = if text.is_empty() { "" } else { ": " };
        let (topic, reason) = (topic.to_string(), format!("{reason}{separator}{text}"));
        core.tell(&Event::Refused { peer, topic, reason });
    }

    /// Tells whoever invited the peer to this topic why it cannot have it.
    fn tell_unfit(&self, topic: &TopicName, reason: RefuseReason, text: &str) {
        let invited = self.invitation.iter().filter(|invitation| invitation.topic() == topic);
        invited.for_each(|invitation| invitation.unfit(reason, text));
    }

    /// The topic that the peer asks for, if it may have it; otherwise why not.
    fn admit(&mut self, core: &NodeCore, attach: &Attach) -> Result<Admitted, Objection> {
        let is_meant = |dialled: &DialledFor| !dialled.is_granted && dialled.topic == attach.topic;
        if !self.dialled_for.as_ref().is_none_or(is_meant) {
            return Err(Objection::new(RefuseReason::NotPermitted, DIALLED_FOR_ONE));
        }
        let Some(topic) = core.topic(&attach.topic) else {
            return Err(Objection::new(RefuseReason::NoSuchTopic, ""));
        };
        let schema = topic.schema();
        if attach.schema_hash.is_some_and(|hash| hash != schema.hash()) {
            let text = format!("the topic's values are {} ({})", schema.type_name(), schema.encoding());
            return Err(Objection::new(RefuseReason::SchemaMismatch, text));
        }
        let Ok(schema) = SchemaJson::new(schema.to_json()) else {
            return Err(Objection::new(
                RefuseReason::NotPermitted,
                "the topic's schema is too long to be sent",
            ));
        };
        let remote_key = match self.connection.prepare(topic.registration()) {
            Ok(remote_key) => remote_key,
            // It is noticed as soon as the answer is sent.
            Err(FabricError::Closed) => RemoteKey::default(),
            Err(error) => {
                let text = format!("the publisher's node cannot offer the topic: {error}");
                return Err(Objection::new(RefuseReason::NotPermitted, text));
            }
        };
        if attach.delivery == Delivery::Pull && !is_awaited(&mut self.invitation, &attach.topic) {
            return Err(Objection::new(RefuseReason::NotPermitted, GIVEN_UP));
        }
        Ok(Admitted { topic, schema, remote_key })
    }

    fn grant(
        &mut self,
        core: &NodeCore,
        attach: &Attach,
        Admitted { topic, schema, remote_key: RemoteKey { key, address } }: Admitted,
    ) -> Result<(), ControlError> {
        let Attach { attachment, delivery, start, .. } = *attach;
        assert_eq!(topic.registration().exposure(), Exposure::Read, "peers can only read a repository");
        let grant = Grant {
            attachment,
            topic_id: topic.topic_id(),
            kind: topic.kind(),
            epoch: topic.epoch(),
            geometry: topic.geometry().numbers().into(),
            schema,
            key,
            address,
            newest: topic.newest(),
        };
        let start = (start.into(), grant.newest);
        let mut attached = ServedAttachment::new(topic, delivery, start, Arc::default());
        if delivery == Delivery::Pull {
            attached.count(core, self.peer.as_ref());
        }
        self.attachments.insert(attachment, attached);
        if let Some(dialled_for) = &mut self.dialled_for {
            dialled_for.is_granted = true;
        }
        self.session.grant(grant)
    }

    fn lend(
        &mut self,
        core: &NodeCore,
        id: AttachmentId,
        offer: Option<Box<dyn Offer>>,
    ) -> Result<(), ControlError> {
        match self.take_landing(core, id, offer) {
            Ok(()) => Ok(()),
            Err(Objection { reason, text }) => {
                if let Some(attachment) = self.attachments.get(&id) {
                    let topic = attachment.topic.name();
                    self.tell_refused(core, topic, reason, &text);
                    self.tell_unfit(topic, reason, &text);
                }
                self.session.refuse(id, reason, &text)
            }
        }
    }

    /// Hands the landing region that was lent over to the publisher, or says why that cannot be.
    fn take_landing(
        &mut self,
        core: &NodeCore,
        id: AttachmentId,
        offer: Option<Box<dyn Offer>>,
    ) -> Result<(), Objection> {
        let unfit = |text: &str| Objection::new(RefuseReason::LandingUnfit, text);
        let attachment = self.attachments.get(&id).ok_or_else(|| unfit(""))?;
        let offer = offer.ok_or_else(|| unfit("no region came with the message"))?;
        let topic = Arc::clone(&attachment.topic);
        if topic.push_subscribers().value() >= limits::PUSH_SUBSCRIBERS_MAX as u64 {
            return Err(Objection::new(RefuseReason::TooManySubscribers, ""));
        }
        let len = topic.geometry().region_len();
        let (held, max) = (self.landing_len(id), limits::LANDING_LEN_PER_SESSION_MAX);
        if len > max.saturating_sub(held) {
            let text = format!(
                "the session has landing regions of {held} bytes, and may have {max}: it cannot have {len} more"
            );
            return Err(unfit(&text));
        }
        let remote = offer.open_write(len).map_err(|error| unfit(&error.to_string()))?;
        let attachment = self.attachments.get_mut(&id).ok_or_else(|| unfit(""))?;
        attachment.revocation = Some(remote.revocation());
        // One that was refused before is closed, and stays so.
        attachment.closed = Arc::default();
        if !topic.landings().lend(remote, &attachment.closed, attachment.start, core.copy_room()) {
            return Err(unfit("it cannot be written"));
        }
        if !is_awaited(&mut self.invitation, topic.name()) {
            attachment.closed.store(true, Ordering::Relaxed);
            return Err(Objection::new(RefuseReason::NotPermitted, GIVEN_UP));
        }
        attachment.count(core, self.peer.as_ref());
        attachment.is_beginning = true;
        Ok(())
    }

    /// Bytes of the peer's landing regions, except that of this attachment.
    fn landing_len(&self, except: AttachmentId) -> usize {
        let held = self.attachments.iter().chain(&self.leaving).filter(|(id, _)| **id != except);
        let has_landing = |it: &&ServedAttachment| it.revocation.is_some();
        held.map(|(_, it)| it).filter(has_landing).map(|it| it.topic.geometry().region_len()).sum()
    }

    /// Tells the peer of landing regions that were taken, and that it can begin to read.
    fn tell_lent(&mut self) {
        for (id, attachment) in &mut self.attachments {
            if attachment.is_beginning && attachment.topic.landings().is_begun(&attachment.closed) {
                attachment.is_beginning = false;
                // It fails when the session, or the topic, has ended meanwhile: then the peer was told that.
                let _ = self.session.lent(*id);
            }
        }
    }

    /// Ends an attachment.
    fn detach(
        &mut self,
        core: &NodeCore,
        id: AttachmentId,
        counts: SubscriberCounts,
    ) -> Option<ServedAttachment> {
        let attachment = self.attachments.remove(&id)?;
        attachment.closed.store(true, Ordering::Relaxed);
        let reads = |it: &ServedAttachment| {
            it.delivery == Delivery::Pull && Arc::ptr_eq(&it.topic, &attachment.topic)
        };
        if reads(&attachment) && !self.attachments.values().any(reads) {
            self.connection.withdraw(attachment.topic.registration());
        }
        if let Some(peer) = &self.peer {
            let SubscriberCounts { received, conflated, torn_retries, rejected } = counts;
            let (peer, topic) = (peer.clone(), attachment.topic.name().clone());
            core.tell(&Event::Detached { peer, topic, received, conflated, torn_retries, rejected });
        }
        Some(attachment)
    }

    /// Tells the peer of attachments that it has left and that are written no more.
    fn tell_detached(&mut self) {
        let session = &mut self.session;
        self.leaving.retain(|id, attachment| {
            let revoked = attachment.revocation.as_ref().map(|revocation| revocation.revoke());
            let written = revoked == Some(Completion::Pending);
            if !written {
                // It fails when the session has ended meanwhile: then there is nobody to be told.
                let _ = session.detached(*id, attachment.topic.newest().get());
            }
            written
        });
    }

    /// Whether a landing region cannot be written any more.
    fn has_lost(&self) -> bool {
        self.attachments.values().any(ServedAttachment::is_lost)
    }

    /// Ends the session when a landing region cannot be written any more: its subscriber would wait in vain.
    fn end_if_unwritable(&mut self, core: &NodeCore) {
        if self.has_lost() {
            // The connection does not say why.
            core.tell(&Event::Trouble { what: "a landing region cannot be written any more".to_owned() });
            self.session.reject(RefuseReason::LandingUnfit, UNWRITABLE);
        }
    }

    /// Tells of topics that have ended: late also if not everything was written to a landing region.
    fn tell_ended_topics(&mut self, is_late: bool) {
        for (id, attachment) in &mut self.attachments {
            if attachment.has_end_to_tell(is_late) {
                (attachment.told, attachment.listener) = (true, None);
                // It fails when the session has ended meanwhile: then there is nobody to be told.
                let _ = self.session.topic_ended(*id, attachment.topic.newest().get());
            }
        }
    }
}

impl Objection {
    fn new(reason: RefuseReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// Tells whoever dialled the peer that it is attached to this topic now. False when it must not be, because the one who
/// dialled has given up.
fn is_awaited(invitation: &mut Option<Pending>, topic: &TopicName) -> bool {
    let Some(invited) = invitation.take_if(|invitation| invitation.topic() == topic) else { return true };
    *invitation = invited.attached().err();
    invitation.is_none()
}
