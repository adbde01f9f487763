//! The progress that peers report, and attachments that publishers let go.

use super::Served;
use super::attachment::ServedAttachment;
use super::request::{Asked, Objection};
use crate::chain::ErrorChain;
use crate::control::{Attach, ControlError, LetGoReason, RefuseReason};
use crate::event::Event;
use crate::fabric::Offer;
use crate::id::TopicName;
use crate::layout::progress::PROGRESS_LEN;
use crate::node::core::NodeCore;
use crate::publisher::{ProgressSlot, Standing};

impl Served {
    /// Handles a request to attach, with the progress slot that came with it.
    pub(super) fn ask(
        &mut self,
        core: &NodeCore,
        attach: Attach,
        offer: Option<Box<dyn Offer>>,
    ) -> Result<(), ControlError> {
        let remote = attach.progress.and(offer).map(|offer| offer.open_read(PROGRESS_LEN)).transpose();
        match remote {
            Ok(remote) => self.attach(core, Asked { attach, slot: remote.map(ProgressSlot::new) }),
            Err(error) => {
                let text = format!("the progress slot cannot be read: {}", ErrorChain(&error));
                self.refuse(core, &attach, Objection::over(&error, RefuseReason::NotPermitted, text))
            }
        }
    }

    /// Describes the subscribers of a topic.
    pub(super) fn answer_subscribers(
        &mut self,
        core: &NodeCore,
        topic: &TopicName,
    ) -> Result<(), ControlError> {
        // A peer that was dialled for one topic sees no other.
        let is_shown = self.dialled_for.as_ref().is_none_or(|dialled| dialled.topic == *topic);
        let is_shown = is_shown && self.session.permits(topic);
        let found = core.topic(topic).filter(|_| is_shown);
        self.session.answer_subscribers(found.map(|topic| topic.subscribers.page(topic.newest())))
    }

    /// Notifies the peer of the attachments that are not waited for any more. Those that were overtaken end like those of topics that
    /// have ended.
    pub(super) fn tell_let_go(&mut self, core: &NodeCore) {
        if !std::mem::take(&mut self.has_let_go) {
            return;
        }
        let process = self.process;
        for (id, attachment) in &mut self.attachments {
            let Some(standing) = attachment.take_let_go() else { continue };
            let peer = self.peer.as_ref().unwrap_or(&core.identity.node).clone();
            let topic = attachment.topic.name.clone();
            if standing == Standing::Overtaken {
                core.tell(&Event::SubscriberOvertaken { peer, process, topic });
                self.ending.insert(*id);
            } else {
                // Fails if the session has ended meanwhile, and is not needed then.
                let _ = self.session.let_go(*id, LetGoReason::Unseen, attachment.topic.newest().get());
                core.tell(&Event::SubscriberLetGo { peer, process, topic });
            }
        }
    }
}

impl ServedAttachment {
    /// Whether the publisher has let it go and the peer was not notified.
    pub(super) fn is_let_go(&self) -> bool {
        !self.is_told && matches!(self.standing(), Some(Standing::Unseen | Standing::Overtaken))
    }

    /// Whether the publisher disconnects it.
    pub(super) fn is_overtaken(&self) -> bool {
        self.standing() == Some(Standing::Overtaken)
    }

    /// Returns once how the publisher has let it go.
    fn take_let_go(&mut self) -> Option<Standing> {
        let is_let_go = self.is_let_go();
        self.is_told |= is_let_go;
        self.standing().filter(|_| is_let_go)
    }

    fn standing(&self) -> Option<Standing> {
        self.subscriber.as_ref().and_then(|subscriber| subscriber.standing())
    }
}
