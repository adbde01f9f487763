//! Attachments to topics that have ended.

use super::LinkState;
use crate::control::{AttachmentId, SubscriberCounts};
use crate::limits;
use crate::sync::atomic::Ordering;

impl LinkState {
    /// Stops reading from topics that ended some time ago, and then detaches from them: the publisher revokes their memory, and a
    /// READ of revoked memory would end the session for all attachments.
    pub(super) fn tend_ended(&mut self, now_ns: u64) {
        let mut ended = std::mem::take(&mut self.ended);
        ended.retain(|(id, since_ns)| {
            let Some(attached) = self.attachments.get(id) else { return false };
            let elapsed_ns = now_ns.saturating_sub(*since_ns);
            if elapsed_ns >= limits::ENDED_FETCH_NS {
                attached.shut.store(true, Ordering::Release);
            }
            let is_over = elapsed_ns >= limits::ENDED_DETACH_NS;
            if is_over {
                self.leave(*id, SubscriberCounts::default());
            }
            !is_over
        });
        self.ended = ended;
    }

    /// When the attachment to an ended topic is due next.
    pub(super) fn ended_due_ns(&self, id: AttachmentId, since_ns: u64) -> u64 {
        let is_shut = self.attachments.get(&id).is_none_or(|it| it.shut.load(Ordering::Acquire));
        since_ns.saturating_add(if is_shut { limits::ENDED_DETACH_NS } else { limits::ENDED_FETCH_NS })
    }
}
