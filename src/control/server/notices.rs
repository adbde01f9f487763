//! Answers to requests for notices and wake-ups.

use super::step::Step;
use super::{ServerAction, ServerSession, unknown};
use crate::control::codec::{Outgoing, RegionKind};
use crate::control::error::ControlError;
use crate::control::message::{AttachmentId, Message};
use crate::control::notices::{Notices, NoticesBy, WakeBy, WakeSlot};

impl ServerSession {
    /// Answers `Listen`. With a wake word, its memory must be sent with the message. Sends nothing if the peer has detached meanwhile.
    pub(crate) fn notices(&mut self, attachment: AttachmentId, by: NoticesBy) -> Result<(), ControlError> {
        self.ready()?;
        self.step_mut(attachment)?;
        let is_wake_word = by == NoticesBy::WakeWord;
        let notices = Outgoing::of(&Message::Notices(Notices { attachment, by }));
        let notices = if is_wake_word { notices.with(attachment, RegionKind::WakeWord) } else { notices };
        self.actions.push_back(ServerAction::Send(notices));
        Ok(())
    }

    /// Answers `WakeBy`. Sends nothing if the peer has detached meanwhile.
    pub(crate) fn wake_slot(
        &mut self,
        attachment: AttachmentId,
        slot: Option<u32>,
    ) -> Result<(), ControlError> {
        self.ready()?;
        self.step_mut(attachment)?;
        self.send(&Message::WakeSlot(WakeSlot { attachment, slot }));
        Ok(())
    }

    pub(super) fn take_listen(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        match self.attachments.get(&attachment) {
            Some(Step::Granted(_) | Step::Exposed | Step::TopicEnded { .. })
                if !self.listening.insert(attachment) =>
            {
                let state = "already subscribed to notices";
                Err(ControlError::WrongAttachment { message: "Listen", attachment: attachment.get(), state })
            }
            Some(Step::Granted(_) | Step::Exposed) => {
                self.actions.push_back(ServerAction::Listen(attachment));
                Ok(())
            }
            // The two messages crossed.
            Some(Step::TopicEnded { .. }) => {
                self.send(&Message::Notices(Notices { attachment, by: NoticesBy::Nothing }));
                Ok(())
            }
            Some(step) => Err(step.wrong("Listen", attachment)),
            None => Err(unknown("Listen", attachment)),
        }
    }

    pub(super) fn take_wake_by(&mut self, wake_by: WakeBy) -> Result<(), ControlError> {
        let attachment = wake_by.attachment;
        let is_listening = self.listening.contains(&attachment);
        match self.attachments.get(&attachment) {
            Some(Step::Granted(_) | Step::Exposed) if is_listening => {
                self.actions.push_back(ServerAction::WakeBy(wake_by));
                Ok(())
            }
            // The two messages crossed.
            Some(Step::TopicEnded { .. }) => {
                self.send(&Message::WakeSlot(WakeSlot { attachment, slot: None }));
                Ok(())
            }
            Some(Step::Granted(_) | Step::Exposed) => {
                let state = "not subscribed to notices";
                Err(ControlError::WrongAttachment { message: "WakeBy", attachment: attachment.get(), state })
            }
            Some(step) => Err(step.wrong("WakeBy", attachment)),
            None => Err(unknown("WakeBy", attachment)),
        }
    }
}
