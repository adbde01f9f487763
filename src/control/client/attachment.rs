use crate::control::error::ControlError;
use crate::control::message::AttachmentId;
use crate::id::{Delivery, KindOptions, SlowPolicy, TopicId};

/// What an attachment asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachOptions {
    /// The options for the topic's kind.
    pub(crate) options: KindOptions,
    /// The policy of a subscriber that reports its progress.
    pub(crate) progress: Option<SlowPolicy>,
}

impl From<KindOptions> for AttachOptions {
    fn from(options: KindOptions) -> Self {
        Self { options, progress: None }
    }
}

/// The client's state of one attachment.
#[derive(Debug)]
pub(super) struct ClientAttachment {
    pub(super) topic_id: TopicId,
    pub(super) delivery: Delivery,
    pub(super) step: AttachStep,
    /// Its policy, if it reports its progress.
    pub(super) progress: Option<SlowPolicy>,
    /// The publisher has let it go.
    pub(super) is_let_go: bool,
    pub(super) topic_ended: bool,
    pub(super) listening: NoticesRequest,
    /// It has asked to be woken through a socket, and has no answer yet.
    pub(super) awaits_slot: bool,
}

/// Whether an attachment has requested notices, which it does once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoticesRequest {
    No,
    Asked,
    Answered,
}

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachStep {
    Attaching,
    Granted,
    Exposing,
    Exposed,
    Detaching,
}

impl ClientAttachment {
    fn state(&self) -> &'static str {
        match (self.step, self.delivery) {
            (AttachStep::Attaching, _) => "waiting for a grant",
            (AttachStep::Detaching, _) => "detaching",
            (AttachStep::Exposing, _) => "waiting for its landing region to be accepted",
            _ if self.topic_ended => "left over from a topic that ended",
            (AttachStep::Granted, Delivery::Pull) => "granted for pull",
            (AttachStep::Granted, Delivery::Push) => "granted for push",
            (AttachStep::Exposed, _) => "granted, with a landing region",
        }
    }

    pub(super) fn not_possible(&self, attachment: AttachmentId) -> ControlError {
        ControlError::NotPossible { attachment: attachment.get(), state: self.state() }
    }

    pub(super) fn wrong(&self, message: &'static str, attachment: AttachmentId) -> ControlError {
        ControlError::WrongAttachment { message, attachment: attachment.get(), state: self.state() }
    }
}
