//! The subscription's side of an attachment.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::membership::ChannelMembership;
use super::{Answer, Attached, Link, LinkAttachment, LinkError, LinkState, LinkUse, Parting, Request};
use crate::chain::ErrorChain;
use crate::control::{AttachOptions, NoticeChannel, NoticesBy, SubscriberCounts, WakeBy};
use crate::event::Event;
use crate::fabric::{FabricError, KeyedWaker, Offer, Prepared, Registration};
use crate::id::Delivery;
use crate::notice::{WAKE_WORD_LEN, WakeWord};
use crate::repository::SubscriberStats;
use crate::subscriber::{
    ArrivalSubscription, AttachError, Attachment, GrantError, Granted, NoticeSource, NoticeSubscription,
    TopicEnd, Waiter, Watched,
};
use crate::sync::atomic::{AtomicBool, Ordering};

impl LinkAttachment {
    /// Its session.
    pub(in crate::node) fn link(&self) -> &LinkUse {
        &self.link
    }

    /// Waits for the publisher's answer.
    pub(in crate::node) fn answer(&self) -> Result<Answer, LinkError> {
        let take = |_: &mut LinkState| self.attached.inbox.lock().answer.take().map(Ok);
        self.link.wait_for("answer to a request to attach", take)
    }

    /// Requests notices of the topic.
    pub(in crate::node) fn listen(&self) -> Result<(), LinkError> {
        let mut state = self.link.state.lock();
        let asked = state.session.listen(self.id);
        asked.map_err(|error| state.explain(error))?;
        state.flush();
        Ok(())
    }

    /// Subscribes to the topic's notices on this channel.
    pub(in crate::node) fn notices(
        &self,
        channel: &NoticeChannel,
        granted: &Granted,
    ) -> Result<NoticeSubscription, FabricError> {
        let state = &mut *self.link.state.lock();
        // Without keys anyone may subscribe, and pose as the publisher.
        let trusts_shared = self.attached.trusts_fellows || !state.session.is_proven();
        let (membership, connection) = (&mut state.membership, state.connection.as_ref());
        let notices =
            ChannelMembership::subscribe(membership, connection, channel, (granted, trusts_shared))?;
        // The node's thread reports to the peer that the channel is joined.
        self.link.waker.wake();
        Ok(notices)
    }

    /// The source of notices of this answer, if it has one. Where memory `is_mapped`, every publisher provides notices unless it fails.
    pub(in crate::node) fn notice_source(
        &self,
        (by, offer): (NoticesBy, Option<Box<dyn Offer>>),
        granted: &Granted,
        is_mapped: bool,
    ) -> Result<Option<NoticeSource>, AttachError> {
        Ok(match by {
            NoticesBy::Nothing => is_mapped.then_some(NoticeSource::Unavailable),
            NoticesBy::WakeWord => {
                let memory = offer.ok_or(GrantError::NoRegion)?.open_shared(WAKE_WORD_LEN)?;
                Some(NoticeSource::WakeWord(WakeWord::new(memory)))
            }
            NoticesBy::Channel(channel) => Some(NoticeSource::Channel(self.notices(&channel, granted)?)),
            // A publisher that names it where writes wake nobody costs the subscriber its notices.
            NoticesBy::Immediate => {
                let is_written = self.attached.delivery == Delivery::Push;
                let arrivals = is_written.then(|| self.link.state.lock().arrivals()).flatten();
                arrivals.map(|it| NoticeSource::Immediate(ArrivalSubscription::new(it, self.id.get())))
            }
        })
    }

    /// Asks the peer to wake this waiter by a socket, with this token.
    fn ask_to_wake(&self, waiter: &Arc<Waiter>, token: u32) -> Result<(), FabricError> {
        let state = &mut *self.link.state.lock();
        if !state.connection.capabilities().shares_memory {
            return Err(FabricError::Access { why: "this medium carries no sockets" });
        }
        let (socket, sender) = state.wake_sockets.of(waiter)?;
        self.attached.inbox.lock().socket = Some(sender);
        let asked = state.session.wake_by(WakeBy { attachment: self.id, socket, token });
        // The session is over, or the topic has ended: the waiter is told.
        asked.map_err(|_| FabricError::Closed)?;
        state.flush();
        Ok(())
    }

    /// The answer to the last request, once it is there.
    fn take_answer(&self) -> Option<Answer> {
        self.attached.inbox.lock().answer.take()
    }
}

impl LinkUse {
    /// Requests a topic.
    pub(in crate::node) fn attach(
        &self,
        node: Arc<dyn std::any::Any + Send + Sync>,
        request: Request,
    ) -> Result<LinkAttachment, LinkError> {
        let Request { topic, delivery, schema_hash, options, progress, trusts_fellows } = request;
        let slot = progress.map(|policy| Ok((self.link.allocate_slot()?, policy))).transpose()?;
        let mut state = match &slot {
            Some((slot, _)) => self.link.lock_prepared(slot)?,
            None => self.link.state.lock(),
        };
        let attached = Arc::new(Attached {
            topic: topic.clone(),
            ended: AtomicBool::new(false),
            delivery,
            progress: slot,
            gating: AtomicBool::new(Attached::gates(progress)),
            trusts_fellows,
            shut: AtomicBool::new(false),
            inbox: Mutex::default(),
        });
        let asked = state.session.attach(topic, delivery, schema_hash, AttachOptions { options, progress });
        let id = asked.map_err(|error| state.explain(error))?;
        state.attachments.insert(id, Arc::clone(&attached));
        // Its progress slot shows from the beginning that this node runs.
        state.life_due_ns = 0;
        drop(state);
        Ok(LinkAttachment { link: self.clone(), id, attached, _node: node })
    }
}

impl Link {
    /// Prepares a region to be sent, and locks the session.
    pub(super) fn lock_prepared(
        &self,
        registration: &Arc<Registration>,
    ) -> Result<MutexGuard<'_, LinkState>, LinkError> {
        loop {
            let state = self.state.lock();
            match state.connection.prepare(registration) {
                Ok(Prepared::Work(work)) => {
                    // The session may proceed meanwhile.
                    drop(state);
                    work().map_err(LinkError::Fabric)?;
                }
                // The session has the better error.
                Ok(Prepared::Done(_)) | Err(FabricError::Closed) => return Ok(state),
                Err(error) => return Err(LinkError::Fabric(error)),
            }
        }
    }
}

impl Watched for LinkAttachment {
    fn has_ended(&self) -> bool {
        // Acquire: pairs with the Release in `Attached::finish`.
        self.attached.ended.load(Ordering::Acquire)
    }
}

impl Attachment for LinkAttachment {
    fn end(&self) -> Option<TopicEnd> {
        self.attached.inbox.lock().end.clone()
    }

    fn is_shut(&self) -> bool {
        self.attached.shut.load(Ordering::Acquire)
    }

    fn ask_notices(&self) -> bool {
        self.listen().is_ok()
    }

    fn take_notices(&self, granted: &Granted, is_mapped: bool) -> Option<Option<NoticeSource>> {
        let Answer::Notices { by, offer } = self.take_answer()? else { return Some(None) };
        let source = self.notice_source((by, offer), granted, is_mapped);
        Some(source.unwrap_or_else(|error| {
            self.link.core.tell(&Event::Trouble {
                what: format!("no notices of {}: {}", granted.topic, ErrorChain(&error)),
            });
            Some(NoticeSource::Unavailable)
        }))
    }

    fn ask_slot(&self, waiter: &Arc<Waiter>, token: u32) -> bool {
        self.ask_to_wake(waiter, token).is_ok()
    }

    fn take_slot(&self) -> Option<Option<u32>> {
        match self.take_answer()? {
            Answer::WakeSlot(slot) => Some(slot),
            _ => Some(None),
        }
    }

    fn wake_with(&self, waker: Option<KeyedWaker>) {
        let mut inbox = self.attached.inbox.lock();
        inbox.waker = waker;
        if let Some(waker) = inbox.waker.as_ref().filter(|_| inbox.end.is_some()) {
            waker.wake();
        }
    }

    fn contradict(&self, granted: &Granted) {
        let Some(peer) = &granted.peer else { return };
        let (peer, topic) = (peer.node.clone(), granted.topic.clone());
        self.link.core.tell(&Event::Contradicted { peer, topic });
    }

    fn is_gating(&self) -> bool {
        self.attached.gating.load(Ordering::Relaxed)
    }

    fn leave(&self, stats: SubscriberStats) {
        let SubscriberStats { received, conflated, lapped, cut_off, torn_retries, rejected, .. } = stats;
        let lost = lapped.saturating_add(cut_off);
        let mut state = self.link.state.lock();
        let total = &mut state.total;
        total.received = total.received.saturating_add(received);
        total.conflated = total.conflated.saturating_add(conflated);
        total.torn_retries = total.torn_retries.saturating_add(torn_retries);
        total.rejected = total.rejected.saturating_add(rejected);
        total.lost = total.lost.saturating_add(lost);
        let counts = SubscriberCounts { received, conflated, torn_retries, rejected, lost };
        state.leave(self.id, counts);
        state.flush();
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        self.0.wake();
    }
}
