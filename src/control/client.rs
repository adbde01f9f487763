//! The subscriber's end of a session, as a state machine.
//!
//! ```text
//! AwaitHello --Hello--> Ready --end--> Ending --End--> Ended
//!                       Ready --End--> Leaving --end--> Ended
//! (any)      --refusal, error, deadline, disconnect---> Ended
//! ```
//!
//! Whoever owns a session gives it what happens (`on_message`, `on_time`, `on_disconnected`) and sends the
//! messages that it has ready after each call, also after one that failed: the peer is told why. An error of
//! any of those three ends the session; an error of a request leaves it as it was.

mod attachment;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;

use self::attachment::{AttachStep, ClientAttachment, NoticesRequest};
use super::codec::{self, Outgoing};
use super::error::{ControlError, RefuseReason};
use super::message::{
    Attach, AttachmentId, Detach, Detached, End, EndReason, Farewell, Grant, Hello, Identity, Lend, Lent,
    ListTopics, Message, Refuse, Refused, SubscriberCounts, TopicEnded, TopicEntry, Topics,
};
use super::notices::{Heard, Listen, Notices, NoticesBy};
use crate::id::{Delivery, KindOptions, TopicId, TopicName};
use crate::limits;

/// The subscriber's end of one session. Allocates; neither blocks nor reads a clock.
#[derive(Debug)]
pub(crate) struct ClientSession {
    nonce: NonZeroU64,
    /// Who has to answer the hello, if the peer dialled.
    inviter: Option<Identity>,
    timeout_ns: u64,
    state: ClientState,
    listing: Option<Listing>,
    attachments: BTreeMap<AttachmentId, ClientAttachment>,
    attachment_next: AttachmentId,
    outbox: VecDeque<Outgoing>,
}

/// What happened to a session, for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    /// The peer has said hello; the session takes requests.
    Ready {
        /// Who the peer is.
        peer: Identity,
    },
    /// A page of the directory, sorted by name, all of it after the name that was asked with.
    Topics {
        /// The topics.
        entries: Vec<TopicEntry>,
        /// Whether there are more after the last one.
        more: bool,
    },
    /// The attachment is granted. For pull the repository's region came with this message; for push a landing
    /// region has to be lent now.
    Granted {
        /// What the publisher says of the topic.
        grant: Grant,
        /// How its values travel.
        delivery: Delivery,
    },
    /// The publisher took the landing region.
    Lent {
        /// Of which attachment.
        attachment: AttachmentId,
    },
    /// The attachment, or its landing region, is refused. In the first case the attachment is no more; in the
    /// second it is granted as before, and another region may be lent.
    Refused {
        /// Which attachment.
        attachment: AttachmentId,
        /// Why, as a number.
        reason: RefuseReason,
        /// Why, in the peer's words; may be empty.
        text: String,
    },
    /// How the publisher tells of what the topic publishes. With a bell, its memory came with this message.
    Notices {
        /// Of which attachment.
        attachment: AttachmentId,
        /// How.
        by: NoticesBy,
    },
    /// The attachment is no more. A write to its landing region that had begun may still end.
    Detached {
        /// Which attachment.
        attachment: AttachmentId,
        /// The topic's sequence at the end.
        published: u64,
    },
    /// The topic's publisher was dropped. The attachment has to be detached in due course.
    TopicEnded {
        /// Which attachment.
        attachment: AttachmentId,
        /// The topic's sequence at the end.
        published: u64,
    },
    /// The publisher ends the session; nothing that was asked will be answered. Call
    /// [`end`](ClientSession::end) with the final counts.
    EndAsked {
        /// Why.
        reason: EndReason,
    },
    /// The session that this side ended is over.
    Ended {
        /// The peer's farewell: the counts as they arrived there.
        farewell: Farewell,
    },
}

/// Where the session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    AwaitHello { deadline_ns: u64 },
    Ready,
    Leaving,
    Ending { deadline_ns: u64 },
    Ended,
}

/// The page of the directory that was asked for.
#[derive(Debug)]
struct Listing {
    after: Option<TopicName>,
}

impl ClientSession {
    /// A session with a peer that was just dialled; the first message is ready. `nonce` is a random number,
    /// `timeout_ns` how long the peer may take to begin and to end the session. How long a request may take is its
    /// owner's business: what was granted does not suffer from an answer that does not come.
    pub(crate) fn connect(now_ns: u64, identity: Identity, nonce: NonZeroU64, timeout_ns: u64) -> Self {
        let hello = Message::Hello(Hello { nonce, answers: None, identity });
        Self {
            nonce,
            inviter: None,
            timeout_ns,
            state: ClientState::AwaitHello { deadline_ns: now_ns.saturating_add(timeout_ns) },
            listing: None,
            attachments: BTreeMap::new(),
            attachment_next: AttachmentId::new(0),
            outbox: VecDeque::from([Outgoing::of(&hello)]),
        }
    }

    /// Waits for the peer's hello until then, and not for as long as it may take for anything else.
    pub(crate) fn expect_hello_until(&mut self, deadline_ns: u64) {
        if let ClientState::AwaitHello { deadline_ns: until_ns } = &mut self.state {
            *until_ns = deadline_ns;
        }
    }

    /// Takes the hello of nobody else than this peer, which has dialled, and invited this one: a
    /// [`ServerSession`](super::ServerSession) took its first message.
    pub(crate) fn expect_hello_of(&mut self, inviter: Identity) {
        self.inviter = Some(inviter);
    }

    /// Takes a message of the peer's, with the number of regions that came with it. Unless the event is
    /// `Granted` or `Notices`, the owner drops those.
    pub(crate) fn on_message(
        &mut self,
        bytes: &[u8],
        regions: usize,
    ) -> Result<Option<ClientEvent>, ControlError> {
        if self.state == ClientState::Ended {
            return Err(self.closed());
        }
        let outcome = codec::decode(bytes)
            .and_then(|message| self.check_regions(&message, regions).map(|()| message))
            .and_then(|message| self.take(message));
        outcome.map_err(|error| self.fail(error))
    }

    /// Takes the time. Call it when [`deadline_ns`](Self::deadline_ns) has passed, after all messages that have
    /// come until then.
    pub(crate) fn on_time(&mut self, now_ns: u64) -> Result<(), ControlError> {
        let overdue = self.deadline().filter(|(deadline_ns, _)| now_ns >= *deadline_ns);
        match overdue {
            Some((_, awaited)) => Err(self.fail(ControlError::Deadline { awaited })),
            None => Ok(()),
        }
    }

    /// Takes notice that the peer closed the connection: no error if the session was over.
    pub(crate) fn on_disconnected(&mut self) -> Result<(), ControlError> {
        if self.state == ClientState::Ended { Ok(()) } else { Err(self.fail(ControlError::Disconnected)) }
    }

    /// When [`on_time`](Self::on_time) is due, if it is.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline().map(|(deadline_ns, _)| deadline_ns)
    }

    /// The next message to send.
    pub(crate) fn next_message(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Asks for a page of the directory: the topics after this name, or from the first.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `Busy` if the page before is still to come.
    pub(crate) fn list(&mut self, after: Option<TopicName>) -> Result<(), ControlError> {
        self.ready()?;
        if self.listing.is_some() {
            return Err(ControlError::Busy { awaited: LIST });
        }
        self.listing = Some(Listing { after: after.clone() });
        self.send(&Message::ListTopics(ListTopics { after }));
        Ok(())
    }

    /// Asks for a topic, and says which number the attachment will have. `schema_hash` is `None` for one who
    /// decodes by the topic's own schema; `options` are for the topic's kind.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `TooManyAttachments`.
    pub(crate) fn attach(
        &mut self,
        topic: TopicName,
        delivery: Delivery,
        schema_hash: Option<u64>,
        options: KindOptions,
    ) -> Result<AttachmentId, ControlError> {
        self.ready()?;
        if self.attachments.len() >= limits::ATTACHMENTS_PER_SESSION_MAX {
            return Err(ControlError::TooManyAttachments { max: limits::ATTACHMENTS_PER_SESSION_MAX });
        }
        // Numbers go round after 2^32; there are always fewer attachments than numbers.
        while self.attachments.contains_key(&self.attachment_next) {
            self.attachment_next = self.attachment_next.next();
        }
        let attachment = self.attachment_next;
        self.attachment_next = attachment.next();
        let step = AttachStep::Attaching;
        let topic_id = TopicId::of(&topic);
        let (topic_ended, listening) = (false, NoticesRequest::No);
        self.attachments
            .insert(attachment, ClientAttachment { topic_id, delivery, step, topic_ended, listening });
        self.send(&Message::Attach(Attach { attachment, topic, delivery, schema_hash, options }));
        Ok(attachment)
    }

    /// Lends a landing region: the owner sends it with the message.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted for push, without a
    /// landing region so far.
    pub(crate) fn lend(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        if known.step != AttachStep::Granted || known.delivery != Delivery::Push || known.topic_ended {
            return Err(known.not_possible(attachment));
        }
        known.step = AttachStep::Lending;
        let lend = Outgoing::of(&Message::Lend(Lend { attachment }));
        self.outbox.push_back(Outgoing { region_of: Some(attachment), ..lend });
        Ok(())
    }

    /// Asks to be told of what the topic publishes.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted, has a landing region if it is for
    /// push, and has not asked before.
    pub(crate) fn listen(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        let has_asked = known.listening != NoticesRequest::No;
        if has_asked || !matches!(known.step, AttachStep::Granted | AttachStep::Lent) || known.topic_ended {
            return Err(known.not_possible(attachment));
        }
        known.listening = NoticesRequest::Asked;
        self.send(&Message::Listen(Listen { attachment }));
        Ok(())
    }

    /// Tells what is heard of the session's channel.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready.
    pub(crate) fn heard(&mut self, heard: Heard) -> Result<(), ControlError> {
        self.ready()?;
        self.send(&Message::Heard(heard));
        Ok(())
    }

    /// Whether an answer to a request for this attachment, or to its landing region, is still to come.
    pub(crate) fn awaits_answer(&self, attachment: AttachmentId) -> bool {
        let known = self.attachments.get(&attachment);
        known.is_some_and(|known| matches!(known.step, AttachStep::Attaching | AttachStep::Lending))
    }

    /// Ends an attachment, with what was counted on it.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted and waits for no
    /// answer.
    pub(crate) fn detach(
        &mut self,
        attachment: AttachmentId,
        counts: SubscriberCounts,
    ) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        if !matches!(known.step, AttachStep::Granted | AttachStep::Lent) {
            return Err(known.not_possible(attachment));
        }
        known.step = AttachStep::Detaching;
        self.send(&Message::Detach(Detach { attachment, counts }));
        Ok(())
    }

    /// Ends the session, or agrees to its end, with the counts of all its attachments. What was asked and not
    /// yet answered will not be.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready, or ending already.
    pub(crate) fn end(
        &mut self,
        now_ns: u64,
        reason: EndReason,
        counts: SubscriberCounts,
    ) -> Result<(), ControlError> {
        match self.state {
            ClientState::Ready => self.become_last(ClientState::Ending { deadline_ns: self.due_ns(now_ns) }),
            ClientState::Leaving => self.become_last(ClientState::Ended),
            ClientState::AwaitHello { .. } | ClientState::Ending { .. } | ClientState::Ended => {
                return Err(self.closed());
            }
        }
        self.send(&Message::End(End { farewell: Farewell { reason, counts } }));
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<Option<ClientEvent>, ControlError> {
        match (self.state, message) {
            (_, Message::Refuse(refuse)) => {
                // Over already, so that a refusal is not answered with another.
                self.become_last(ClientState::Ended);
                Err(refuse.into_error())
            }
            (ClientState::AwaitHello { .. }, Message::Hello(hello)) => self.take_hello(hello).map(Some),
            (ClientState::Ready, Message::Topics(topics)) => self.take_topics(topics).map(Some),
            (ClientState::Ready, Message::Granted(grant)) => self.take_granted(grant).map(Some),
            (ClientState::Ready, Message::Refused(refused)) => self.take_refused(refused).map(Some),
            (ClientState::Ready, Message::Lent(lent)) => self.take_lent(lent).map(Some),
            (ClientState::Ready, Message::Notices(notices)) => self.take_notices(notices),
            (ClientState::Ready, Message::Detached(detached)) => self.take_detached(detached).map(Some),
            (ClientState::Ready, Message::TopicEnded(ended)) => self.take_topic_ended(ended),
            (ClientState::Ready, Message::End(End { farewell })) => {
                self.become_last(ClientState::Leaving);
                Ok(Some(ClientEvent::EndAsked { reason: farewell.reason }))
            }
            (ClientState::Ending { .. }, Message::End(End { farewell })) => {
                self.become_last(ClientState::Ended);
                Ok(Some(ClientEvent::Ended { farewell }))
            }
            // The peer said this before it knew that the session ends.
            (
                ClientState::Ending { .. },
                Message::Topics(_)
                | Message::Granted(_)
                | Message::Refused(_)
                | Message::Lent(_)
                | Message::Notices(_)
                | Message::Detached(_)
                | Message::TopicEnded(_),
            ) => Ok(None),
            (state, message) => {
                Err(ControlError::Unexpected { message: message.name(), state: state.name() })
            }
        }
    }

    fn take_hello(&mut self, hello: Hello) -> Result<ClientEvent, ControlError> {
        if hello.answers != Some(self.nonce) {
            return Err(wrong_answer("Hello", "it answers somebody else"));
        }
        if self.inviter.take().is_some_and(|inviter| inviter != hello.identity) {
            return Err(wrong_answer("Hello", "it is from somebody else than the invitation"));
        }
        self.state = ClientState::Ready;
        Ok(ClientEvent::Ready { peer: hello.identity })
    }

    fn take_topics(&mut self, Topics { page, more }: Topics) -> Result<ClientEvent, ControlError> {
        let Some(Listing { after, .. }) = self.listing.take() else {
            return Err(wrong_answer("Topics", "nobody asked for topics"));
        };
        // Pages that go forward end; without this check a peer could make its asker go on for ever.
        let mut before = after.as_ref();
        for entry in page.entries() {
            if before.is_some_and(|before| *before >= entry.name) {
                return Err(wrong_answer("Topics", "the names are not in order"));
            }
            before = Some(&entry.name);
        }
        if more && page.entries().is_empty() {
            return Err(wrong_answer("Topics", "an empty page promises more"));
        }
        Ok(ClientEvent::Topics { entries: page.into_entries(), more })
    }

    fn take_granted(&mut self, grant: Grant) -> Result<ClientEvent, ControlError> {
        let known = self.asked("Granted", grant.attachment)?;
        if !matches!(known.step, AttachStep::Attaching) {
            return Err(known.wrong("Granted", grant.attachment));
        }
        if known.topic_id != grant.topic_id {
            return Err(wrong_answer("Granted", "it is of another topic"));
        }
        known.step = AttachStep::Granted;
        Ok(ClientEvent::Granted { grant, delivery: known.delivery })
    }

    fn take_refused(&mut self, refused: Refused) -> Result<ClientEvent, ControlError> {
        let Refused { attachment, reason, text } = refused;
        let known = self.asked("Refused", attachment)?;
        match known.step {
            AttachStep::Attaching => {
                self.attachments.remove(&attachment);
            }
            AttachStep::Lending => known.step = AttachStep::Granted,
            AttachStep::Granted | AttachStep::Lent | AttachStep::Detaching => {
                return Err(known.wrong("Refused", attachment));
            }
        }
        Ok(ClientEvent::Refused { attachment, reason, text: text.into() })
    }

    fn take_lent(&mut self, Lent { attachment }: Lent) -> Result<ClientEvent, ControlError> {
        let known = self.asked("Lent", attachment)?;
        if !matches!(known.step, AttachStep::Lending) || known.topic_ended {
            return Err(known.wrong("Lent", attachment));
        }
        known.step = AttachStep::Lent;
        Ok(ClientEvent::Lent { attachment })
    }

    fn take_notices(
        &mut self,
        Notices { attachment, by }: Notices,
    ) -> Result<Option<ClientEvent>, ControlError> {
        let known = self.asked("Notices", attachment)?;
        if known.listening != NoticesRequest::Asked {
            return Err(known.wrong("Notices", attachment));
        }
        known.listening = NoticesRequest::Answered;
        // It crossed the message that detaches.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::Notices { attachment, by }))
    }

    fn take_detached(&mut self, detached: Detached) -> Result<ClientEvent, ControlError> {
        let Detached { attachment, published } = detached;
        let known = self.asked("Detached", attachment)?;
        if !matches!(known.step, AttachStep::Detaching) {
            return Err(known.wrong("Detached", attachment));
        }
        self.attachments.remove(&attachment);
        Ok(ClientEvent::Detached { attachment, published })
    }

    fn take_topic_ended(&mut self, ended: TopicEnded) -> Result<Option<ClientEvent>, ControlError> {
        let TopicEnded { attachment, published } = ended;
        let known = self.asked("TopicEnded", attachment)?;
        if matches!(known.step, AttachStep::Attaching) || known.topic_ended {
            return Err(known.wrong("TopicEnded", attachment));
        }
        known.topic_ended = true;
        // It crossed the message that detaches: `Detached` follows.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::TopicEnded { attachment, published }))
    }

    fn check_regions(&self, message: &Message, found: usize) -> Result<(), ControlError> {
        let expected = match message {
            Message::Granted(grant) => match self.attachments.get(&grant.attachment) {
                Some(known) if known.delivery == Delivery::Pull => limits::MESSAGE_REGIONS_MAX,
                Some(_) => 0,
                // Refused, or dropped, for another reason.
                None => found,
            },
            Message::Notices(notices) if notices.by == NoticesBy::Bell => limits::MESSAGE_REGIONS_MAX,
            _ => 0,
        };
        if found == expected {
            Ok(())
        } else {
            Err(ControlError::WrongRegions { message: message.name(), expected, found })
        }
    }

    /// Everything that is awaited, and until when.
    fn deadline(&self) -> Option<(u64, &'static str)> {
        match self.state {
            ClientState::AwaitHello { deadline_ns } => Some((deadline_ns, "hello")),
            ClientState::Ending { deadline_ns } => Some((deadline_ns, "end of the session")),
            ClientState::Ready | ClientState::Leaving | ClientState::Ended => None,
        }
    }

    /// Goes to a state in which nothing that was asked is awaited any longer.
    fn become_last(&mut self, state: ClientState) {
        self.state = state;
        self.listing = None;
        self.attachments.clear();
    }

    fn fail(&mut self, error: ControlError) -> ControlError {
        if self.state != ClientState::Ended
            && let Some(refuse) = Refuse::because(&error)
        {
            self.send(&Message::Refuse(refuse));
        }
        self.become_last(ClientState::Ended);
        error
    }

    fn send(&mut self, message: &Message) {
        self.outbox.push_back(Outgoing::of(message));
    }

    fn ready(&self) -> Result<(), ControlError> {
        if self.state == ClientState::Ready { Ok(()) } else { Err(self.closed()) }
    }

    fn closed(&self) -> ControlError {
        ControlError::Closed { state: self.state.name() }
    }

    fn due_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.timeout_ns)
    }

    /// The attachment that this side's owner names.
    fn attachment_mut(&mut self, attachment: AttachmentId) -> Result<&mut ClientAttachment, ControlError> {
        let unknown = ControlError::NotPossible { attachment: attachment.get(), state: UNKNOWN };
        self.attachments.get_mut(&attachment).ok_or(unknown)
    }

    /// The attachment that the peer names.
    fn asked(
        &mut self,
        message: &'static str,
        attachment: AttachmentId,
    ) -> Result<&mut ClientAttachment, ControlError> {
        let unknown = ControlError::WrongAttachment { message, attachment: attachment.get(), state: UNKNOWN };
        self.attachments.get_mut(&attachment).ok_or(unknown)
    }
}

impl ClientState {
    fn name(self) -> &'static str {
        match self {
            Self::AwaitHello { .. } => "waiting for the answer to its hello",
            Self::Ready => "ready for requests",
            Self::Leaving => "ending, at the peer's wish",
            Self::Ending { .. } => "ending",
            Self::Ended => "over",
        }
    }
}

fn wrong_answer(message: &'static str, detail: &'static str) -> ControlError {
    ControlError::WrongAnswer { message, detail }
}

const LIST: &str = "page of the directory";
const UNKNOWN: &str = "not an attachment of this session";
