use std::sync::{Arc, Weak};

use crate::fabric::ChannelSender;
use crate::notice::NoticeSender;
use crate::publisher::PublishedTopic;

/// The channels on which a node tells of its topics.
#[derive(Debug, Default)]
pub(super) struct NoticeSenders {
    senders: Vec<Weak<NoticeSender>>,
}

impl NoticeSenders {
    /// The one of this channel.
    pub(super) fn of(
        &mut self,
        channel: Arc<dyn ChannelSender>,
    ) -> Result<Arc<NoticeSender>, std::io::Error> {
        let known = self.senders.iter().filter_map(Weak::upgrade).find(|it| it.ticket() == channel.ticket());
        if let Some(known) = known {
            return Ok(known);
        }
        let sender = Arc::new(NoticeSender::new(channel)?);
        self.senders.retain(|sender| sender.strong_count() > 0);
        self.senders.push(Arc::downgrade(&sender));
        Ok(sender)
    }

    /// How many receivers are sent to alone.
    #[cfg(test)]
    pub(super) fn lone_receivers(&self) -> usize {
        self.senders.iter().filter_map(Weak::upgrade).map(|sender| sender.lone_receivers()).sum()
    }

    /// Sends what waits for room, and at a beat what all topics have reached. Whether anything still waits. What fails is told
    /// by the next beat.
    pub(super) fn tend(&self, topics: &[Arc<PublishedTopic>], beat: bool) -> bool {
        let mut waits = false;
        for sender in self.senders.iter().filter_map(Weak::upgrade) {
            let told = if beat {
                sender.heartbeat(topics.iter().map(|topic| topic.notice()))
            } else {
                sender.flush()
            };
            waits |= told.unwrap_or_else(|error| {
                tracing::debug!(target: "fabricast", %error, "notices cannot be sent");
                false
            });
        }
        waits
    }
}
