//! The subscription's side of an attachment.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::membership::ChannelMembership;
use super::{Answer, Attached, Link, LinkAttachment, LinkError, LinkState, LinkUse, Parting, Request};
use crate::control::{AttachOptions, NoticeChannel, SubscriberCounts};
use crate::fabric::{Exposure, FabricError, Placement, Prepared, Registration};
use crate::memory::Region;
use crate::repository::SubscriberStats;
use crate::subscriber::{Attachment, Granted, NoticeSubscription, Source, TopicEnd};
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

    /// The source that reads the publisher's writes to this region.
    pub(in crate::node) fn landing(&self, region: Arc<Region>) -> Source {
        match self.link.state.lock().connection.capabilities().placement {
            Placement::Words => Source::Mapped(region),
            placement => Source::Landing { region, may_lose: placement == Placement::Lossy },
        }
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
        let notices =
            ChannelMembership::subscribe(&mut state.membership, state.connection.as_ref(), channel, granted)?;
        // The node's thread reports to the peer that the channel is joined.
        self.link.waker.wake();
        Ok(notices)
    }

    /// Exposes a landing region to the publisher.
    pub(in crate::node) fn expose(&self, landing: Registration) -> Result<(), LinkError> {
        assert_ne!(landing.exposure(), Exposure::Read, "a landing region is written by the peer");
        let landing = Arc::new(landing);
        let mut state = self.link.lock_prepared(&landing)?;
        let asked = state.session.expose(self.id);
        asked.map_err(|error| state.explain(error))?;
        self.attached.inbox.lock().landing = Some(landing);
        state.flush();
        Ok(())
    }
}

impl LinkUse {
    /// Requests a topic.
    pub(in crate::node) fn attach(
        &self,
        node: Arc<dyn std::any::Any + Send + Sync>,
        request: Request,
    ) -> Result<LinkAttachment, LinkError> {
        let Request { topic, delivery, schema_hash, options, progress } = request;
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
    fn lock_prepared(
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

impl Attachment for LinkAttachment {
    fn has_ended(&self) -> bool {
        // Acquire: pairs with the Release in `Attached::finish`.
        self.attached.ended.load(Ordering::Acquire)
    }

    fn end(&self) -> Option<TopicEnd> {
        self.attached.inbox.lock().end.clone()
    }

    fn is_shut(&self) -> bool {
        self.attached.shut.load(Ordering::Acquire)
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
