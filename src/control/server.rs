//! The publisher's end of a session, as a state machine.
//!
//! ```text
//! AwaitHello --Hello--> Ready --shutdown--> Ending --End--> Ended
//! Inviting   --Hello--> Ready --End---------------------> Ended
//! AwaitHello --Hello--> AwaitInvite --Invite-> Invited
//! AwaitHello, Inviting --Hello--> Proving --Prove--> Ready, AwaitInvite
//! (any)      --refusal, error, deadline, disconnect-----> Ended
//! ```
//!
//! A peer that dialled sends its hello. If it is a publisher's node, an invitation follows, and its connection goes on with a
//! [`ClientSession`](super::ClientSession). A session that begins as `Inviting` is the other end of such a connection.
//!
//! The owner of a session passes it events (`on_message`, `on_time`, `on_disconnected`), takes its actions
//! after each call until none is left, and answers those that ask for a decision. The last action of every
//! session is `Close`.

mod greeting;
mod notices;
mod progress;
mod step;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::step::Step;
use super::codec::{self, Outgoing, RegionKind};
use super::error::{ControlError, RefuseReason};
use super::handshake::{Greeting, Handshake, Invited};
use super::message::{
    Attach, AttachmentId, Detach, Detached, EndReason, EndSummary, Grant, Identity, ListTopics, Message,
    Page, Refuse, Refused, SubscriberCounts, TopicEnded, TopicEntry, Topics,
};
use super::notices::{Heard, WakeBy};
use super::text::Text;
use crate::id::{Delivery, TopicName};
use crate::keyring::Right;
use crate::limits;

/// The publisher's end of one session. Allocates; neither blocks nor reads a clock.
#[derive(Debug)]
pub(crate) struct ServerSession {
    handshake: Handshake,
    state: ServerState,
    /// The peer, until it is identified or has invited this side.
    peer: Option<Identity>,
    /// The topic to which this side invites the peer that it dialled, until it has.
    invites_to: Option<TopicName>,
    /// The peer dialled to invite this side.
    is_publisher: bool,
    /// Whether a request for a page of the directory is unanswered.
    listing: bool,
    /// Whether a request for the subscribers of a topic is unanswered.
    is_listing_subscribers: bool,
    attachments: BTreeMap<AttachmentId, Step>,
    /// Attachments that have requested notices.
    listening: BTreeSet<AttachmentId>,
    actions: VecDeque<ServerAction>,
}

/// An action for the owner of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAction {
    /// Send this message.
    Send(Outgoing),
    /// No answer needed: the peer's identity is known, and authenticated if this node has keys. The owner may
    /// [`reject`](ServerSession::reject) it.
    PeerIdentified(Identity),
    /// Continue with a [`ClientSession`](super::ClientSession) on this connection and drop this session, or
    /// [`reject`](ServerSession::reject) it.
    Invited(Invited),
    /// Look up the topics after this name (all of them if `None`), sorted by name, and call
    /// [`answer_topics`](ServerSession::answer_topics).
    QueryTopics {
        /// The last name that the peer knows.
        after: Option<TopicName>,
    },
    /// Look up the subscribers of this topic, and call [`answer_subscribers`](ServerSession::answer_subscribers).
    QuerySubscribers(TopicName),
    /// Decide whether the peer may attach, and call [`grant`](ServerSession::grant) or
    /// [`refuse`](ServerSession::refuse). With `progress`, the peer's progress slot came with this message.
    Attach(Attach),
    /// Decide whether the region that came with this message is a fit landing region, and call
    /// [`exposed`](ServerSession::exposed) or [`refuse`](ServerSession::refuse).
    Expose(AttachmentId),
    /// Decide how the peer is notified of what the topic publishes, and call [`notices`](ServerSession::notices).
    Listen(AttachmentId),
    /// Decide whether to wake the peer through the socket that came with this message, and call
    /// [`wake_slot`](ServerSession::wake_slot).
    WakeBy(WakeBy),
    /// No answer needed: what the peer receives of the session's channel.
    Heard(Heard),
    /// Forget the attachment and its landing region, and call [`detached`](ServerSession::detached).
    Detach(Detach),
    /// Nothing to answer: the last word of an attachment whose topic had ended.
    FinalCounts(Detach),
    /// Send pending messages, close the connection, and drop all attachments. Always the last.
    Close {
        /// The peer's last message, if the session ended properly.
        result: Result<EndSummary, ControlError>,
    },
}

/// The state of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerState {
    AwaitHello {
        deadline_ns: u64,
    },
    /// The hellos were exchanged, and the peer's proof is due.
    Proving {
        deadline_ns: u64,
    },
    /// The peer dialled to invite this side.
    AwaitInvite {
        deadline_ns: u64,
    },
    /// This side dialled and invited the peer.
    Inviting {
        deadline_ns: u64,
    },
    /// The peer dialled and invited this side.
    Invited,
    Ready,
    Ending {
        deadline_ns: u64,
    },
    Ended,
}

impl ServerSession {
    /// Creates a session with a peer that has just dialled and not sent its hello.
    pub(crate) fn new(now_ns: u64, greeting: Greeting) -> Self {
        let deadline_ns = now_ns.saturating_add(limits::HELLO_DEADLINE_NS);
        Self::with(Handshake::dialled(greeting), ServerState::AwaitHello { deadline_ns })
    }

    fn with(handshake: Handshake, state: ServerState) -> Self {
        Self {
            handshake,
            state,
            peer: None,
            invites_to: None,
            is_publisher: false,
            listing: false,
            is_listing_subscribers: false,
            attachments: BTreeMap::new(),
            listening: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// Creates a session with a peer that this side has just dialled, and will invite to this topic: the first message is ready.
    /// The peer's hello is due by `deadline_ns`.
    pub(crate) fn inviting(deadline_ns: u64, greeting: Greeting, topic: TopicName) -> Self {
        let (handshake, hello) = Handshake::dialling(greeting, Right::Publish);
        let mut session = Self::with(handshake, ServerState::Inviting { deadline_ns });
        session.invites_to = Some(topic);
        session.actions.push_back(ServerAction::Send(hello));
        session
    }

    /// Whether the first message of a peer that dialled is due.
    pub(crate) fn awaits_hello(&self) -> bool {
        matches!(self.state, ServerState::AwaitHello { .. })
    }

    /// Sets until when it is due.
    pub(crate) fn expect_hello_until(&mut self, until_ns: u64) {
        if let ServerState::AwaitHello { deadline_ns } = &mut self.state {
            *deadline_ns = until_ns;
        }
    }

    /// Whether the peer may attach, and is not attached to anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.state == ServerState::Ready && self.attachments.is_empty()
    }

    /// Handles a message of the peer, with the number of regions that it carried. The owner drops them unless the next action is
    /// `Attach`, `Expose` or `WakeBy`.
    pub(crate) fn on_message(&mut self, bytes: &[u8], regions: usize) {
        if self.room().is_err() {
            return;
        }
        let outcome = codec::decode(bytes)
            .and_then(|message| check_regions(&message, regions).map(|()| message))
            .and_then(|message| self.take(message, bytes));
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Handles the passing of time. Call it when [`deadline_ns`](Self::deadline_ns) has passed, after all messages that
    /// arrived before.
    pub(crate) fn on_time(&mut self, now_ns: u64) {
        match self.state {
            ServerState::AwaitHello { deadline_ns }
            | ServerState::Inviting { deadline_ns }
            | ServerState::Proving { deadline_ns }
            | ServerState::AwaitInvite { deadline_ns }
                if now_ns >= deadline_ns =>
            {
                let awaited = self.state.awaited();
                self.send(&Message::Refuse(Refuse::new(RefuseReason::HelloDeadline, "")));
                self.close(Err(ControlError::Deadline { awaited }));
            }
            ServerState::Ending { deadline_ns } if now_ns >= deadline_ns => {
                self.close(Err(ControlError::Deadline { awaited: "end of the session" }));
            }
            _ => {}
        }
    }

    /// Handles the peer's closing of the connection.
    pub(crate) fn on_disconnected(&mut self) {
        self.close(Err(ControlError::Disconnected));
    }

    /// Handles a failure of the connection.
    pub(crate) fn on_broken(&mut self, why: String) {
        self.close(Err(ControlError::Broken { why }));
    }

    /// Returns when [`on_time`](Self::on_time) is due, if it is.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        match self.state {
            ServerState::AwaitHello { deadline_ns }
            | ServerState::Inviting { deadline_ns }
            | ServerState::Proving { deadline_ns }
            | ServerState::AwaitInvite { deadline_ns }
            | ServerState::Ending { deadline_ns } => Some(deadline_ns),
            ServerState::Invited | ServerState::Ready | ServerState::Ended => None,
        }
    }

    /// Returns the next action.
    pub(crate) fn next_action(&mut self) -> Option<ServerAction> {
        self.actions.pop_front()
    }

    /// Answers `QueryTopics` with topics sorted by name, as many as fit into a message;
    /// `more` if further topics follow.
    ///
    /// # Errors
    ///
    /// This method and those below: `Closed` if the session has left the state of the question
    /// (drop the question), `NotPossible` or `WrongAnswer` if the peer has not asked.
    pub(crate) fn answer_topics(&mut self, entries: Vec<TopicEntry>, more: bool) -> Result<(), ControlError> {
        self.ready()?;
        if !std::mem::take(&mut self.listing) {
            return Err(ControlError::WrongAnswer { message: "Topics", detail: "no topics were requested" });
        }
        let more = more || entries.len() > limits::DIRECTORY_PAGE_LEN_MAX;
        self.send(&Message::Topics(Topics { page: Page::cut(entries), more }));
        Ok(())
    }

    /// Grants an `Attach`. For pull, the repository's region must be sent with the message.
    pub(crate) fn grant(&mut self, grant: Grant) -> Result<(), ControlError> {
        self.ready()?;
        let attachment = grant.attachment;
        match self.step_mut(attachment)? {
            step @ Step::Attaching(_) => {
                let is_pull = matches!(*step, Step::Attaching(Delivery::Pull));
                step.granted();
                let granted = Outgoing::of(&Message::Granted(grant));
                let granted = if is_pull { granted.with(attachment, RegionKind::Values) } else { granted };
                self.actions.push_back(ServerAction::Send(granted));
                Ok(())
            }
            step => Err(step.not_possible(attachment)),
        }
    }

    /// Refuses an `Attach` or `Expose`. An attachment whose landing region is refused stays granted.
    pub(crate) fn refuse(
        &mut self,
        attachment: AttachmentId,
        reason: RefuseReason,
        text: &str,
    ) -> Result<(), ControlError> {
        self.ready()?;
        match self.step_mut(attachment)? {
            Step::Attaching(_) => {
                self.attachments.remove(&attachment);
            }
            step @ Step::Exposing => step.granted(),
            step => return Err(step.not_possible(attachment)),
        }
        self.send_refused(attachment, reason, text);
        Ok(())
    }

    /// Accepts an `Expose`.
    pub(crate) fn exposed(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        self.ready()?;
        match self.step_mut(attachment)? {
            step @ Step::Exposing => *step = Step::Exposed,
            step => return Err(step.not_possible(attachment)),
        }
        self.send(&Message::Exposed(attachment));
        Ok(())
    }

    /// Answers `Detach`, with the topic's sequence.
    pub(crate) fn detached(&mut self, attachment: AttachmentId, published: u64) -> Result<(), ControlError> {
        self.ready()?;
        match self.step_mut(attachment)? {
            Step::Detaching => {}
            step => return Err(step.not_possible(attachment)),
        }
        self.remove(attachment);
        self.send(&Message::Detached(Detached { attachment, published }));
        Ok(())
    }

    /// Notifies the peer that the topic's publisher was dropped, with the last sequence. This settles an open decision
    /// on the attachment, which stays, without its topic, until the peer detaches.
    pub(crate) fn topic_ended(
        &mut self,
        attachment: AttachmentId,
        published: u64,
    ) -> Result<(), ControlError> {
        self.ready()?;
        match self.step_mut(attachment)? {
            Step::Attaching(_) => return self.refuse(attachment, RefuseReason::TopicEnded, ""),
            // The peer is leaving anyway: `detached` sends it the sequence.
            Step::Detaching => return Ok(()),
            step @ (Step::Granted(_) | Step::Exposed) => *step = Step::TopicEnded { published },
            step @ Step::Exposing => {
                *step = Step::TopicEnded { published };
                self.send_refused(attachment, RefuseReason::TopicEnded, "");
            }
            step @ Step::TopicEnded { .. } => return Err(step.not_possible(attachment)),
        }
        self.send(&Message::TopicEnded(TopicEnded { attachment, published }));
        Ok(())
    }

    /// Refuses the whole session, for a reason of the owner.
    pub(crate) fn reject(&mut self, reason: RefuseReason, text: &str) {
        if self.state != ServerState::Ended {
            self.send(&Message::Refuse(Refuse::new(reason, text)));
            self.close(Err(ControlError::Rejected { reason }));
        }
    }

    /// Starts ending the session: the peer has [`ANSWER_DEADLINE_NS`](limits::ANSWER_DEADLINE_NS) to agree.
    /// Does nothing to a session that is already ending.
    pub(crate) fn shutdown(&mut self, now_ns: u64) {
        match self.state {
            ServerState::AwaitHello { .. }
            | ServerState::Inviting { .. }
            | ServerState::Proving { .. }
            | ServerState::AwaitInvite { .. }
            | ServerState::Invited => self.reject(RefuseReason::ShuttingDown, ""),
            ServerState::Ready => {
                let deadline_ns = now_ns.saturating_add(limits::ANSWER_DEADLINE_NS);
                self.state = ServerState::Ending { deadline_ns };
                let counts = SubscriberCounts::default();
                self.send_end(EndSummary { reason: EndReason::SHUTDOWN, counts });
            }
            ServerState::Ending { .. } | ServerState::Ended => {}
        }
    }

    fn take(&mut self, message: Message, bytes: &[u8]) -> Result<(), ControlError> {
        match (self.state, message) {
            (_, Message::Refuse(refuse)) => {
                // Closed here and not by `fail`, so that a refusal is not answered with another.
                self.close(Err(refuse.into_error()));
                Ok(())
            }
            (ServerState::AwaitHello { deadline_ns }, Message::Hello(hello)) => {
                self.take_hello(hello, bytes, deadline_ns)
            }
            (ServerState::Inviting { deadline_ns }, Message::Hello(hello)) => {
                self.take_answer(hello, bytes, deadline_ns)
            }
            (ServerState::Proving { deadline_ns }, Message::Prove(prove)) => {
                self.take_prove(&prove, deadline_ns)
            }
            (ServerState::AwaitInvite { .. }, Message::Invite(invite)) => {
                self.take_invite(invite);
                Ok(())
            }
            (ServerState::Ready, Message::ListTopics(list)) => self.take_list(list),
            (ServerState::Ready, Message::ListSubscribers(list)) => self.take_list_subscribers(list.topic),
            (ServerState::Ready, Message::Attach(attach)) => self.take_attach(attach),
            (ServerState::Ready, Message::Expose(expose)) => self.take_expose(expose),
            (ServerState::Ready, Message::Listen(listen)) => self.take_listen(listen),
            (ServerState::Ready, Message::WakeBy(wake_by)) => self.take_wake_by(wake_by),
            (ServerState::Ready, Message::Heard(heard)) => {
                self.actions.push_back(ServerAction::Heard(heard));
                Ok(())
            }
            (ServerState::Ready, Message::Detach(detach)) => self.take_detach(detach),
            (ServerState::Ready, Message::End(summary)) => {
                self.send_end(summary);
                self.close(Ok(summary));
                Ok(())
            }
            (ServerState::Ending { .. }, Message::End(summary)) => {
                self.close(Ok(summary));
                Ok(())
            }
            // The peer sent this before it knew that the session ends.
            (
                ServerState::Ending { .. },
                Message::ListTopics(_)
                | Message::ListSubscribers(_)
                | Message::Attach(_)
                | Message::Expose(_)
                | Message::Listen(_)
                | Message::WakeBy(_)
                | Message::Heard(_)
                | Message::Detach(_),
            ) => Ok(()),
            (state, message) => {
                Err(ControlError::Unexpected { message: message.name(), state: state.name() })
            }
        }
    }

    fn take_list(&mut self, list: ListTopics) -> Result<(), ControlError> {
        if self.listing {
            return Err(ControlError::Unexpected {
                message: "ListTopics",
                state: "answering the previous one",
            });
        }
        self.listing = true;
        self.actions.push_back(ServerAction::QueryTopics { after: list.after });
        Ok(())
    }

    fn take_attach(&mut self, attach: Attach) -> Result<(), ControlError> {
        let attachment = attach.attachment;
        if let Some(step) = self.attachments.get(&attachment) {
            return Err(step.wrong("Attach", attachment));
        }
        if self.attachments.len() >= limits::ATTACHMENTS_PER_SESSION_MAX {
            let reason = RefuseReason::TooManyAttachments;
            self.send_refused(attachment, reason, &reason.advice());
            return Ok(());
        }
        // Whether or not there is such a topic.
        if !self.handshake.permits(&attach.topic) {
            self.send_refused(attachment, RefuseReason::NotPermitted, NOT_COVERED);
            return Ok(());
        }
        self.attachments.insert(attachment, Step::Attaching(attach.delivery));
        self.actions.push_back(ServerAction::Attach(attach));
        Ok(())
    }

    fn take_expose(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        match self.attachments.get_mut(&attachment) {
            Some(step @ Step::Granted(Delivery::Push)) => {
                *step = Step::Exposing;
                self.actions.push_back(ServerAction::Expose(attachment));
            }
            // The two messages crossed.
            Some(Step::TopicEnded { .. }) => self.send_refused(attachment, RefuseReason::TopicEnded, ""),
            Some(step) => return Err(step.wrong("Expose", attachment)),
            None => return Err(unknown("Expose", attachment)),
        }
        Ok(())
    }

    fn remove(&mut self, attachment: AttachmentId) {
        self.attachments.remove(&attachment);
        self.listening.remove(&attachment);
    }

    fn take_detach(&mut self, detach: Detach) -> Result<(), ControlError> {
        let attachment = detach.attachment;
        match self.attachments.get_mut(&attachment) {
            Some(step @ (Step::Granted(_) | Step::Exposed)) => {
                *step = Step::Detaching;
                self.actions.push_back(ServerAction::Detach(detach));
            }
            Some(Step::TopicEnded { published }) => {
                let published = *published;
                self.remove(attachment);
                self.send(&Message::Detached(Detached { attachment, published }));
                self.actions.push_back(ServerAction::FinalCounts(detach));
            }
            Some(step) => return Err(step.wrong("Detach", attachment)),
            None => return Err(unknown("Detach", attachment)),
        }
        Ok(())
    }

    fn send(&mut self, message: &Message) {
        self.actions.push_back(ServerAction::Send(Outgoing::of(message)));
    }

    fn send_refused(&mut self, attachment: AttachmentId, reason: RefuseReason, text: &str) {
        self.send(&Message::Refused(Refused { attachment, reason, text: Text::cut(text) }));
    }

    fn send_end(&mut self, summary: EndSummary) {
        self.send(&Message::End(summary));
    }

    fn fail(&mut self, error: ControlError) {
        if let Some(refuse) = Refuse::because(&error) {
            self.send(&Message::Refuse(refuse));
        }
        self.close(Err(error));
    }

    fn close(&mut self, result: Result<EndSummary, ControlError>) {
        if self.state != ServerState::Ended {
            self.state = ServerState::Ended;
            (self.listing, self.is_listing_subscribers) = (false, false);
            self.attachments.clear();
            self.listening.clear();
            self.actions.push_back(ServerAction::Close { result });
        }
    }

    /// An error if the session is over, or too many actions are pending; the latter ends it. No call adds more
    /// than [`ACTIONS_PER_CALL_MAX`] actions, so their number stays bounded.
    fn room(&mut self) -> Result<(), ControlError> {
        if self.actions.len() + ACTIONS_PER_CALL_MAX > ACTIONS_MAX {
            self.close(Err(ControlError::Backlog { max: ACTIONS_MAX }));
        }
        if self.state == ServerState::Ended { Err(self.closed()) } else { Ok(()) }
    }

    fn ready(&mut self) -> Result<(), ControlError> {
        self.room()?;
        if self.state == ServerState::Ready { Ok(()) } else { Err(self.closed()) }
    }

    fn closed(&self) -> ControlError {
        ControlError::Closed { state: self.state.name() }
    }

    fn step_mut(&mut self, attachment: AttachmentId) -> Result<&mut Step, ControlError> {
        let unknown = ControlError::NotPossible { attachment: attachment.get(), state: UNKNOWN };
        self.attachments.get_mut(&attachment).ok_or(unknown)
    }
}

impl ServerState {
    fn name(self) -> &'static str {
        match self {
            Self::AwaitHello { .. } => "waiting for the first hello",
            Self::Proving { .. } => "waiting for the proof of a key",
            Self::AwaitInvite { .. } => "waiting for an invitation",
            Self::Inviting { .. } => "waiting for the answer to its hello",
            Self::Invited => "invited",
            Self::Ready => "ready for requests",
            Self::Ending { .. } => "ending",
            Self::Ended => "over",
        }
    }

    /// The message that is due.
    fn awaited(self) -> &'static str {
        match self {
            Self::Proving { .. } => "proof of a key",
            Self::AwaitInvite { .. } => "invitation",
            _ => "hello",
        }
    }
}

fn unknown(message: &'static str, attachment: AttachmentId) -> ControlError {
    ControlError::WrongAttachment { message, attachment: attachment.get(), state: UNKNOWN }
}

fn check_regions(message: &Message, found: usize) -> Result<(), ControlError> {
    let expected = match message {
        Message::Attach(attach) if attach.progress.is_some() => limits::MESSAGE_REGIONS_MAX,
        Message::Expose(_) | Message::WakeBy(_) => limits::MESSAGE_REGIONS_MAX,
        _ => 0,
    };
    message.check_regions(expected, found)
}

const UNKNOWN: &str = "not an attachment of this session";
/// Refuses a topic that no proven key covers.
const NOT_COVERED: &str = "none of the keys that the subscriber's node has proven covers this topic";

/// Actions that one call adds at most: two messages, and `Close`.
const ACTIONS_PER_CALL_MAX: usize = 3;

/// Actions that may be pending: the end of the topics of all attachments, and some more.
pub(super) const ACTIONS_MAX: usize = 2 * limits::ATTACHMENTS_PER_SESSION_MAX + limits::OUTBOUND_MESSAGES_MAX;

const _: () = assert!(limits::MESSAGE_REGIONS_MAX == 1);
