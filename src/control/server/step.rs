use crate::control::error::ControlError;
use crate::control::message::AttachmentId;
use crate::id::Delivery;

/// The state of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The owner decides on the attachment.
    Attaching(Delivery),
    /// Granted; for push, without a landing region yet.
    Granted(Delivery),
    /// The owner decides on the landing region.
    Lending,
    /// Granted, with a landing region.
    Lent,
    /// The owner drops the attachment.
    Detaching,
    /// The topic ended with this sequence; the peer has not detached yet.
    TopicEnded { published: u64 },
}

impl Step {
    /// Settles the open decision: the attachment is granted.
    pub(super) fn granted(&mut self) {
        *self = match *self {
            Self::Attaching(delivery) => Self::Granted(delivery),
            Self::Lending => Self::Granted(Delivery::Push),
            other => other,
        };
    }

    fn name(self) -> &'static str {
        match self {
            Self::Attaching(_) => "waiting for a grant",
            Self::Granted(Delivery::Pull) => "granted for pull",
            Self::Granted(Delivery::Push) => "granted for push",
            Self::Lending => "waiting for its landing region to be accepted",
            Self::Lent => "granted, with a landing region",
            Self::Detaching => "detaching",
            Self::TopicEnded { .. } => "left over from a topic that ended",
        }
    }

    pub(super) fn wrong(self, message: &'static str, attachment: AttachmentId) -> ControlError {
        ControlError::WrongAttachment { message, attachment: attachment.get(), state: self.name() }
    }

    pub(super) fn not_possible(self, attachment: AttachmentId) -> ControlError {
        ControlError::NotPossible { attachment: attachment.get(), state: self.name() }
    }
}
