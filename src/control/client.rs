//! The subscriber's end of a session, as a state machine.
//!
//! ```text
//! AwaitHello --Hello--> Ready --end--> Ending --End--> Ended
//! AwaitHello --Hello--> Proving --Prove--> Ready
//!                       Ready --End--> Leaving --end--> Ended
//! (any)      --refusal, error, deadline, disconnect---> Ended
//! ```
//!
//! The owner of a session passes it events (`on_message`, `on_time`, `on_disconnected`) and sends the
//! pending messages after each call, also after one that failed, so that the peer learns why. An error of
//! an event ends the session; an error of a request leaves it unchanged.

mod attachment;
mod greeting;
mod notices;
mod progress;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use self::attachment::AttachOptions;
use self::attachment::{AttachStep, ClientAttachment, NoticesRequest};
use super::codec::{self, Outgoing, RegionKind};
use super::error::{ControlError, RefuseReason};
use super::handshake::{Greeting, Handshake};
use super::message::{
    Attach, AttachmentId, Detach, Detached, EndReason, EndSummary, Grant, Identity, ListTopics, Message,
    Refuse, Refused, SubscriberCounts, TopicEnded, TopicEntry, Topics,
};
use super::notices::{Notices, NoticesBy, WakeSlot};
use super::progress::{LetGo, SubscriberPage};
use crate::id::{Delivery, TopicId, TopicName};
use crate::keyring::{Authority, Right};
use crate::limits;

/// The subscriber's end of one session. Allocates; neither blocks nor reads a clock.
#[derive(Debug)]
pub(crate) struct ClientSession {
    handshake: Handshake,
    /// The peer, while its proofs are awaited.
    peer: Option<Identity>,
    timeout_ns: u64,
    state: ClientState,
    listing: Option<Listing>,
    /// Whether the subscribers of a topic are requested.
    is_listing_subscribers: bool,
    attachments: BTreeMap<AttachmentId, ClientAttachment>,
    attachment_next: AttachmentId,
    outbox: VecDeque<Outgoing>,
}

/// An event of a session, for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientEvent {
    /// The peer's hello arrived, and its proofs if there are any; the session accepts requests.
    Ready {
        /// The peer.
        peer: Identity,
    },
    /// A page of the directory: topics sorted by name, after the name in the request.
    Topics {
        /// The topics.
        entries: Vec<TopicEntry>,
        /// Whether more topics follow.
        more: bool,
    },
    /// The attachment is granted. For pull, the message carried the repository's region; for push, a landing
    /// region must be exposed now.
    Granted {
        /// The publisher's description of the topic.
        grant: Grant,
        /// How its values travel.
        delivery: Delivery,
    },
    /// The publisher took the landing region.
    Exposed(AttachmentId),
    /// The attachment, or its landing region, is refused. In the first case the attachment is gone; in the
    /// second it stays granted, and another region may be exposed.
    Refused {
        /// The attachment.
        attachment: AttachmentId,
        /// The reason.
        reason: RefuseReason,
        /// The reason in the peer's words; may be empty.
        text: String,
    },
    /// How the publisher gives notice of what the topic publishes. With a wake word, its memory came with this message.
    Notices(Notices),
    /// How the publisher wakes the attachment through its socket.
    WakeSlot(WakeSlot),
    /// The subscribers of a topic; `None` if the node has no such topic.
    Subscribers(Option<SubscriberPage>),
    /// The publisher no longer takes the attachment into account. One that was overtaken has to be detached in due course.
    LetGo(LetGo),
    /// The attachment is no more. A write to its landing region that had begun may still end.
    Detached(Detached),
    /// The topic's publisher was dropped. The attachment has to be detached in due course.
    TopicEnded(TopicEnded),
    /// The publisher ends the session; pending requests stay unanswered. Call
    /// [`end`](ClientSession::end) with the final counts.
    EndAsked {
        /// The reason.
        reason: EndReason,
    },
    /// The session that this side ended is over.
    Ended {
        /// The peer's last message: the counts as they arrived there.
        summary: EndSummary,
    },
}

/// The state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    AwaitHello { deadline_ns: u64 },
    Proving { deadline_ns: u64 },
    Ready,
    Leaving,
    Ending { deadline_ns: u64 },
    Ended,
}

/// A requested page of the directory.
#[derive(Debug)]
struct Listing {
    after: Option<TopicName>,
}

impl ClientSession {
    /// Creates a session with a peer that was just dialled; the first message is ready. `timeout_ns` limits how long the peer takes
    /// to begin and to end the session. The owner limits how long requests take: a missing answer does not affect what was granted.
    pub(crate) fn connect(now_ns: u64, greeting: Greeting, timeout_ns: u64) -> Self {
        let (handshake, hello) = Handshake::dialling(greeting, Right::Read);
        let state = ClientState::AwaitHello { deadline_ns: now_ns.saturating_add(timeout_ns) };
        Self { outbox: VecDeque::from([hello]), ..Self::new(handshake, state, timeout_ns) }
    }

    /// Creates a session with a peer that dialled and invited this side, which a [`ServerSession`](super::ServerSession) has found it
    /// may. It accepts requests at once.
    pub(crate) fn invited(greeting: Greeting, authority: Authority, timeout_ns: u64) -> Self {
        Self::new(Handshake::over(greeting, Right::Publish, authority), ClientState::Ready, timeout_ns)
    }

    fn new(handshake: Handshake, state: ClientState, timeout_ns: u64) -> Self {
        Self {
            handshake,
            peer: None,
            timeout_ns,
            state,
            listing: None,
            is_listing_subscribers: false,
            attachments: BTreeMap::new(),
            attachment_next: AttachmentId::new(0),
            outbox: VecDeque::new(),
        }
    }

    /// Sets the deadline of the peer's hello and of its proof only.
    pub(crate) fn expect_hello_until(&mut self, deadline_ns: u64) {
        if let ClientState::AwaitHello { deadline_ns: until_ns }
        | ClientState::Proving { deadline_ns: until_ns } = &mut self.state
        {
            *until_ns = deadline_ns;
        }
    }

    /// Handles a message of the peer, with the number of regions that it carried. The owner drops them unless the event is
    /// `Granted` or `Notices`.
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
            .and_then(|message| self.take(message, bytes));
        outcome.map_err(|error| self.fail(error))
    }

    /// Handles the passing of time. Call it when [`deadline_ns`](Self::deadline_ns) has passed, after all messages that
    /// arrived before.
    pub(crate) fn on_time(&mut self, now_ns: u64) -> Result<(), ControlError> {
        let overdue = self.deadline().filter(|(deadline_ns, _)| now_ns >= *deadline_ns);
        match overdue {
            Some((_, awaited)) => Err(self.fail(ControlError::Deadline { awaited })),
            None => Ok(()),
        }
    }

    /// Handles the peer's closing of the connection: no error if the session was over.
    pub(crate) fn on_disconnected(&mut self) -> Result<(), ControlError> {
        if self.state == ClientState::Ended { Ok(()) } else { Err(self.fail(ControlError::Disconnected)) }
    }

    /// Returns when [`on_time`](Self::on_time) is due, if it is.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline().map(|(deadline_ns, _)| deadline_ns)
    }

    /// Returns the next message to send.
    pub(crate) fn next_message(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// Requests a page of the directory: the topics after this name, or from the first.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `Busy` if the previous page has not arrived.
    pub(crate) fn list(&mut self, after: Option<TopicName>) -> Result<(), ControlError> {
        self.ready()?;
        if self.listing.is_some() {
            return Err(ControlError::Busy { awaited: LIST });
        }
        self.listing = Some(Listing { after: after.clone() });
        self.send(&Message::ListTopics(ListTopics { after }));
        Ok(())
    }

    /// Requests a topic, and returns the number of its attachment. `schema_hash` is `None` for a subscriber that
    /// decodes by the topic's own schema; with `progress` the owner sends the progress slot
    /// along.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotCovered` by the keys that the peer has proven; `TooManyAttachments`.
    pub(crate) fn attach(
        &mut self,
        topic: TopicName,
        delivery: Delivery,
        schema_hash: Option<u64>,
        options: impl Into<AttachOptions>,
    ) -> Result<AttachmentId, ControlError> {
        self.ready()?;
        self.handshake.check(&topic)?;
        if self.attachments.len() >= limits::ATTACHMENTS_PER_SESSION_MAX {
            return Err(ControlError::TooManyAttachments { max: limits::ATTACHMENTS_PER_SESSION_MAX });
        }
        // Numbers wrap after 2^32; there are always fewer attachments than numbers.
        while self.attachments.contains_key(&self.attachment_next) {
            self.attachment_next = self.attachment_next.next();
        }
        let attachment = self.attachment_next;
        self.attachment_next = attachment.next();
        let (step, AttachOptions { options, progress }) = (AttachStep::Attaching, options.into());
        let topic_id = TopicId::of(&topic);
        let known = ClientAttachment {
            topic_id,
            delivery,
            step,
            progress,
            is_let_go: false,
            topic_ended: false,
            listening: NoticesRequest::No,
            awaits_slot: false,
        };
        self.attachments.insert(attachment, known);
        let attach = Outgoing::of(&Message::Attach(Attach {
            attachment,
            topic,
            delivery,
            schema_hash,
            options,
            progress,
        }));
        self.outbox.push_back(match progress {
            Some(_) => attach.with(attachment, RegionKind::Progress),
            None => attach,
        });
        Ok(attachment)
    }

    /// Exposes a landing region: the owner sends it with the message.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted for push and has no
    /// landing region yet.
    pub(crate) fn expose(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        if known.step != AttachStep::Granted || known.delivery != Delivery::Push || known.topic_ended {
            return Err(known.not_possible(attachment));
        }
        known.step = AttachStep::Exposing;
        let expose = Outgoing::of(&Message::Expose(attachment));
        self.outbox.push_back(expose.with(attachment, RegionKind::Values));
        Ok(())
    }

    /// Whether a request for this attachment, or for its landing region, is unanswered.
    pub(crate) fn awaits_answer(&self, attachment: AttachmentId) -> bool {
        let known = self.attachments.get(&attachment);
        known.is_some_and(|known| matches!(known.step, AttachStep::Attaching | AttachStep::Exposing))
    }

    /// Ends an attachment, with its counts.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted and no answer
    /// is pending.
    pub(crate) fn detach(
        &mut self,
        attachment: AttachmentId,
        counts: SubscriberCounts,
    ) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        if !matches!(known.step, AttachStep::Granted | AttachStep::Exposed) {
            return Err(known.not_possible(attachment));
        }
        known.step = AttachStep::Detaching;
        self.send(&Message::Detach(Detach { attachment, counts }));
        Ok(())
    }

    /// Ends the session, or agrees to its end, with the counts of all its attachments. Pending requests stay
    /// unanswered.
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
            ClientState::AwaitHello { .. }
            | ClientState::Proving { .. }
            | ClientState::Ending { .. }
            | ClientState::Ended => {
                return Err(self.closed());
            }
        }
        self.send(&Message::End(EndSummary { reason, counts }));
        Ok(())
    }

    fn take(&mut self, message: Message, bytes: &[u8]) -> Result<Option<ClientEvent>, ControlError> {
        match (self.state, message) {
            (_, Message::Refuse(refuse)) => {
                // Over already, so that a refusal is not answered with another.
                self.become_last(ClientState::Ended);
                Err(refuse.into_error())
            }
            (ClientState::AwaitHello { deadline_ns }, Message::Hello(hello)) => {
                self.take_hello(hello, bytes, deadline_ns)
            }
            (ClientState::Proving { .. }, Message::Prove(prove)) => self.take_prove(&prove).map(Some),
            (ClientState::Ready, Message::Topics(topics)) => self.take_topics(topics).map(Some),
            (ClientState::Ready, Message::Granted(grant)) => self.take_granted(grant).map(Some),
            (ClientState::Ready, Message::Refused(refused)) => self.take_refused(refused).map(Some),
            (ClientState::Ready, Message::Exposed(exposed)) => self.take_exposed(exposed).map(Some),
            (ClientState::Ready, Message::Notices(notices)) => self.take_notices(notices),
            (ClientState::Ready, Message::WakeSlot(slot)) => self.take_wake_slot(slot),
            (ClientState::Ready, Message::Subscribers(subscribers)) => self.take_subscribers(subscribers),
            (ClientState::Ready, Message::LetGo(let_go)) => self.take_let_go(let_go),
            (ClientState::Ready, Message::Detached(detached)) => self.take_detached(detached).map(Some),
            (ClientState::Ready, Message::TopicEnded(ended)) => self.take_topic_ended(ended),
            (ClientState::Ready, Message::End(summary)) => {
                self.become_last(ClientState::Leaving);
                Ok(Some(ClientEvent::EndAsked { reason: summary.reason }))
            }
            (ClientState::Ending { .. }, Message::End(summary)) => {
                self.become_last(ClientState::Ended);
                Ok(Some(ClientEvent::Ended { summary }))
            }
            // The peer sent this before it knew that the session ends.
            (
                ClientState::Ending { .. },
                Message::Topics(_)
                | Message::Granted(_)
                | Message::Refused(_)
                | Message::Exposed(_)
                | Message::Notices(_)
                | Message::WakeSlot(_)
                | Message::Subscribers(_)
                | Message::LetGo(_)
                | Message::Detached(_)
                | Message::TopicEnded(_),
            ) => Ok(None),
            (state, message) => {
                Err(ControlError::Unexpected { message: message.name(), state: state.name() })
            }
        }
    }

    fn take_topics(&mut self, Topics { page, more }: Topics) -> Result<ClientEvent, ControlError> {
        let Some(Listing { after, .. }) = self.listing.take() else {
            return Err(wrong_answer("Topics", "no topics were requested"));
        };
        // Pages must advance: otherwise a peer could keep this side requesting for ever.
        let mut before = after.as_ref();
        for entry in page.items() {
            if before.is_some_and(|before| *before >= entry.name) {
                return Err(wrong_answer("Topics", "the names are not in order"));
            }
            before = Some(&entry.name);
        }
        if more && page.items().is_empty() {
            return Err(wrong_answer("Topics", "an empty page promises more"));
        }
        Ok(ClientEvent::Topics { entries: page.into_items(), more })
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
            AttachStep::Exposing => known.step = AttachStep::Granted,
            AttachStep::Granted | AttachStep::Exposed | AttachStep::Detaching => {
                return Err(known.wrong("Refused", attachment));
            }
        }
        Ok(ClientEvent::Refused { attachment, reason, text: text.into() })
    }

    fn take_exposed(&mut self, attachment: AttachmentId) -> Result<ClientEvent, ControlError> {
        let known = self.asked("Exposed", attachment)?;
        if !matches!(known.step, AttachStep::Exposing) || known.topic_ended {
            return Err(known.wrong("Exposed", attachment));
        }
        known.step = AttachStep::Exposed;
        Ok(ClientEvent::Exposed(attachment))
    }

    fn take_detached(&mut self, detached: Detached) -> Result<ClientEvent, ControlError> {
        let attachment = detached.attachment;
        let known = self.asked("Detached", attachment)?;
        if !matches!(known.step, AttachStep::Detaching) {
            return Err(known.wrong("Detached", attachment));
        }
        self.attachments.remove(&attachment);
        Ok(ClientEvent::Detached(detached))
    }

    fn take_topic_ended(&mut self, ended: TopicEnded) -> Result<Option<ClientEvent>, ControlError> {
        let attachment = ended.attachment;
        let known = self.asked("TopicEnded", attachment)?;
        if matches!(known.step, AttachStep::Attaching) || known.topic_ended {
            return Err(known.wrong("TopicEnded", attachment));
        }
        known.topic_ended = true;
        // It crossed the message that detaches: `Detached` follows.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::TopicEnded(ended)))
    }

    fn check_regions(&self, message: &Message, found: usize) -> Result<(), ControlError> {
        let expected = match message {
            Message::Granted(grant) => match self.attachments.get(&grant.attachment) {
                Some(known) if known.delivery == Delivery::Pull => limits::MESSAGE_REGIONS_MAX,
                Some(_) => 0,
                // Refused, or dropped, for another reason.
                None => found,
            },
            Message::Notices(notices) if notices.by == NoticesBy::WakeWord => limits::MESSAGE_REGIONS_MAX,
            _ => 0,
        };
        message.check_regions(expected, found)
    }

    /// Returns everything that is awaited, with its deadline.
    fn deadline(&self) -> Option<(u64, &'static str)> {
        match self.state {
            ClientState::AwaitHello { deadline_ns } => Some((deadline_ns, "hello")),
            ClientState::Proving { deadline_ns } => Some((deadline_ns, "proof of a key")),
            ClientState::Ending { deadline_ns } => Some((deadline_ns, "end of the session")),
            ClientState::Ready | ClientState::Leaving | ClientState::Ended => None,
        }
    }

    /// Moves to a state in which no request is pending.
    fn become_last(&mut self, state: ClientState) {
        self.state = state;
        self.listing = None;
        self.is_listing_subscribers = false;
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

    /// The attachment that the owner names.
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
            Self::Proving { .. } => "waiting for the proof of a key",
            Self::Ready => "ready for requests",
            Self::Leaving => "ending, at the peer's request",
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
