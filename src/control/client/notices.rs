//! Requests for notices and wake-ups, and their answers.

use super::attachment::{AttachStep, NoticesRequest};
use super::{ClientEvent, ClientSession};
use crate::control::codec::{Outgoing, RegionKind};
use crate::control::error::ControlError;
use crate::control::message::{AttachmentId, Message};
use crate::control::notices::{Heard, Notices, WakeBy, WakeSlot};

impl ClientSession {
    /// Requests notices of what the topic publishes.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment is granted, has a landing region if it is for
    /// push, and has not requested them before.
    pub(crate) fn listen(&mut self, attachment: AttachmentId) -> Result<(), ControlError> {
        self.ready()?;
        let known = self.attachment_mut(attachment)?;
        let has_asked = known.listening != NoticesRequest::No;
        if has_asked || !matches!(known.step, AttachStep::Granted | AttachStep::Exposed) || known.topic_ended
        {
            return Err(known.not_possible(attachment));
        }
        known.listening = NoticesRequest::Asked;
        self.send(&Message::Listen(attachment));
        Ok(())
    }

    /// Asks that the publisher also wakes this side through a socket: the owner sends it with the message.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready; `NotPossible` unless the attachment has the answer to its request for notices, and no
    /// earlier request of this kind is unanswered.
    pub(crate) fn wake_by(&mut self, wake_by: WakeBy) -> Result<(), ControlError> {
        self.ready()?;
        let attachment = wake_by.attachment;
        let known = self.attachment_mut(attachment)?;
        let listens = known.listening == NoticesRequest::Answered && !known.awaits_slot;
        if !listens || !matches!(known.step, AttachStep::Granted | AttachStep::Exposed) || known.topic_ended {
            return Err(known.not_possible(attachment));
        }
        known.awaits_slot = true;
        let outgoing = Outgoing::of(&Message::WakeBy(wake_by));
        self.outbox.push_back(outgoing.with(attachment, RegionKind::Socket));
        Ok(())
    }

    /// Reports what this side receives of the session's channel.
    ///
    /// # Errors
    ///
    /// `Closed` if the session is not ready.
    pub(crate) fn heard(&mut self, heard: Heard) -> Result<(), ControlError> {
        self.ready()?;
        self.send(&Message::Heard(heard));
        Ok(())
    }

    pub(super) fn take_notices(&mut self, notices: Notices) -> Result<Option<ClientEvent>, ControlError> {
        let attachment = notices.attachment;
        let known = self.asked("Notices", attachment)?;
        if known.listening != NoticesRequest::Asked {
            return Err(known.wrong("Notices", attachment));
        }
        known.listening = NoticesRequest::Answered;
        // It crossed the message that detaches.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::Notices(notices)))
    }

    pub(super) fn take_wake_slot(&mut self, slot: WakeSlot) -> Result<Option<ClientEvent>, ControlError> {
        let attachment = slot.attachment;
        let known = self.asked("WakeSlot", attachment)?;
        if !std::mem::take(&mut known.awaits_slot) {
            return Err(known.wrong("WakeSlot", attachment));
        }
        // It crossed the message that detaches.
        let leaving = matches!(known.step, AttachStep::Detaching);
        Ok((!leaving).then_some(ClientEvent::WakeSlot(slot)))
    }
}
