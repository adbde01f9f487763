//! The subscribers of topics, and attachments that are let go.

use super::attachment::AttachStep;
use super::{ClientEvent, ClientSession, wrong_answer};
use crate::control::error::ControlError;
use crate::control::message::Message;
use crate::control::progress::{LetGo, LetGoReason, ListSubscribers, Subscribers};
use crate::id::{SlowPolicy, TopicName};

const SUBSCRIBERS: &str = "subscribers of a topic";

impl ClientSession {
    /// Requests the subscribers of a topic.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `Busy` if the previous request is unanswered.
    pub(crate) fn list_subscribers(&mut self, topic: TopicName) -> Result<(), ControlError> {
        self.ready()?;
        if std::mem::replace(&mut self.is_listing_subscribers, true) {
            return Err(ControlError::Busy { awaited: SUBSCRIBERS });
        }
        self.send(&Message::ListSubscribers(ListSubscribers { topic }));
        Ok(())
    }

    pub(super) fn take_subscribers(
        &mut self,
        subscribers: Subscribers,
    ) -> Result<Option<ClientEvent>, ControlError> {
        if !std::mem::take(&mut self.is_listing_subscribers) {
            return Err(wrong_answer("Subscribers", "no subscribers were requested"));
        }
        Ok(Some(ClientEvent::Subscribers(subscribers.found)))
    }

    pub(super) fn take_let_go(&mut self, let_go: LetGo) -> Result<Option<ClientEvent>, ControlError> {
        let attachment = let_go.attachment;
        let known = self.asked("LetGo", attachment)?;
        let is_critical = known.progress.is_some_and(SlowPolicy::is_critical);
        let is_granted = !matches!(known.step, AttachStep::Attaching);
        // Any subscriber may be revoked; only a critical one is let go, once.
        let is_due = let_go.reason == LetGoReason::Revoked || is_critical && !known.is_let_go;
        if !is_due || !is_granted || known.topic_ended {
            return Err(known.wrong("LetGo", attachment));
        }
        known.is_let_go = true;
        known.topic_ended = let_go.reason != LetGoReason::Unseen;
        // It crossed the message that detaches.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::LetGo(let_go)))
    }
}
