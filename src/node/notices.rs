use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::chain::ErrorChain;
use crate::fabric::{ChannelSender, FabricError};
use crate::notice::NoticeSender;
use crate::publisher::PublishedTopic;

/// The channels of a node's notices.
#[derive(Debug, Default)]
pub(super) struct NoticeSenders {
    senders: Vec<Sending>,
}

/// A channel, and the topics with notices on it.
#[derive(Debug)]
struct Sending {
    sender: Weak<NoticeSender>,
    topics: BTreeMap<u64, Arc<PublishedTopic>>,
}

impl NoticeSenders {
    /// The sender of this channel, with this topic added.
    pub(super) fn of(
        &mut self,
        channel: Arc<dyn ChannelSender>,
        topic: &Arc<PublishedTopic>,
    ) -> Result<Arc<NoticeSender>, FabricError> {
        for sending in &mut self.senders {
            if let Some(sender) = sending.sender.upgrade().filter(|it| it.ticket() == channel.ticket()) {
                sending.topics.insert(topic.key(), Arc::clone(topic));
                return Ok(sender);
            }
        }
        let sender = Arc::new(NoticeSender::new(channel)?);
        let topics = BTreeMap::from([(topic.key(), Arc::clone(topic))]);
        self.senders.push(Sending { sender: Arc::downgrade(&sender), topics });
        Ok(sender)
    }

    /// The number of receivers served by unicast.
    #[cfg(test)]
    pub(super) fn unicast_receivers(&self) -> usize {
        self.senders
            .iter()
            .filter_map(|it| it.sender.upgrade())
            .map(|sender| sender.unicast_receivers())
            .sum()
    }

    /// Sends what is queued, and on a beat what each channel's topics have reached. Whether anything is still queued. The next
    /// beat repeats what fails.
    pub(super) fn tend(&mut self, beat: bool) -> bool {
        let mut waits = false;
        self.senders.retain_mut(|Sending { sender, topics }| {
            let Some(sender) = sender.upgrade() else { return false };
            let told = if beat {
                topics.retain(|_, topic| !topic.has_ended() && topic.notices.has_channel(&sender));
                sender.heartbeat(topics.values().map(|topic| topic.notice()))
            } else {
                sender.flush()
            };
            waits |= told.unwrap_or_else(|error| {
                tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "notices cannot be sent");
                false
            });
            true
        });
        waits
    }
}
