//! The subscribers of topics, and attachments that are let go.

use super::step::Step;
use super::{ServerAction, ServerSession};
use crate::control::error::{ControlError, RefuseReason};
use crate::control::message::{AttachmentId, Message};
use crate::control::progress::{LetGo, LetGoReason, SubscriberPage, Subscribers};
use crate::id::TopicName;

/// Refuses the landing region of a subscriber that was overtaken meanwhile.
const OVERTAKEN: &str = "the subscriber was overtaken before its landing region was accepted";
/// Refuses the landing region of a subscriber whose access was revoked meanwhile.
const REVOKED: &str = "the access of this subscriber was revoked";

impl ServerSession {
    /// Answers `QuerySubscribers`; `None` if there is no such topic.
    pub(crate) fn answer_subscribers(&mut self, found: Option<SubscriberPage>) -> Result<(), ControlError> {
        self.ready()?;
        if !std::mem::take(&mut self.is_listing_subscribers) {
            let (message, detail) = ("Subscribers", "no subscribers were requested");
            return Err(ControlError::WrongAnswer { message, detail });
        }
        self.send(&Message::Subscribers(Subscribers { found }));
        Ok(())
    }

    /// Notifies the peer that the publisher no longer takes the attachment into account. One that was overtaken or revoked stays,
    /// without its topic, until the peer detaches. Sends nothing if the peer is leaving, or the topic has ended.
    pub(crate) fn let_go(
        &mut self,
        attachment: AttachmentId,
        reason: LetGoReason,
        published: u64,
    ) -> Result<(), ControlError> {
        self.ready()?;
        let is_over = reason != LetGoReason::Unseen;
        match self.step_mut(attachment)? {
            step @ Step::Attaching(_) => return Err(step.not_possible(attachment)),
            Step::Detaching | Step::TopicEnded { .. } => return Ok(()),
            step @ (Step::Granted(_) | Step::Exposed) if is_over => {
                *step = Step::TopicEnded { published };
            }
            step @ Step::Exposing if is_over => {
                *step = Step::TopicEnded { published };
                let (refused, text) = match reason {
                    LetGoReason::Revoked => (RefuseReason::NotPermitted, REVOKED),
                    _ => (RefuseReason::TopicEnded, OVERTAKEN),
                };
                self.send_refused(attachment, refused, text);
            }
            Step::Granted(_) | Step::Exposing | Step::Exposed => {}
        }
        self.send(&Message::LetGo(LetGo { attachment, reason, published }));
        Ok(())
    }

    pub(super) fn take_list_subscribers(&mut self, topic: TopicName) -> Result<(), ControlError> {
        if std::mem::replace(&mut self.is_listing_subscribers, true) {
            let (message, state) = ("ListSubscribers", "answering the previous one");
            return Err(ControlError::Unexpected { message, state });
        }
        self.actions.push_back(ServerAction::QuerySubscribers(topic));
        Ok(())
    }
}
