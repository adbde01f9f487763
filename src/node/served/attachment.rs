use std::sync::Arc;

use crate::event::Event;
use crate::fabric::Revocation;
use crate::id::{Delivery, NodeName};
use crate::metrics::Gauge;
use crate::node::core::NodeCore;
use crate::publisher::PublishedTopic;
use crate::repository::log::LogStart;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What a peer has attached to.
#[derive(Debug)]
pub(super) struct ServedAttachment {
    pub(super) topic: Arc<PublishedTopic>,
    pub(super) delivery: Delivery,
    /// Where it begins, if the topic is a log.
    pub(super) start: LogStart,
    /// Its landing region was taken, and the peer is told so as soon as it can begin to read it.
    pub(super) is_beginning: bool,
    /// Ends the use of the landing region.
    pub(super) closed: Arc<AtomicBool>,
    /// Ends the writes to it. The peer withdraws it as soon as it is told that nothing is written any more.
    pub(super) revocation: Option<Arc<dyn Revocation>>,
    /// It is counted among the topic's subscribers.
    pub(super) counted: bool,
    /// The peer was told that the topic has ended.
    pub(super) told: bool,
}

impl ServedAttachment {
    /// Counts it among the topic's subscribers.
    pub(super) fn count(&mut self, core: &NodeCore, peer: Option<&NodeName>) {
        self.counted = true;
        let gauge = self.gauge();
        gauge.set(gauge.value() + 1);
        if let Some(peer) = peer {
            let (peer, topic) = (peer.clone(), self.topic.name().clone());
            core.tell(&Event::Attached { peer, topic, delivery: self.delivery });
        }
    }

    /// Whether its landing region was closed because writing it failed.
    pub(super) fn is_lost(&self) -> bool {
        let is_written = self.delivery == Delivery::Push && self.counted && !self.told;
        is_written && self.closed.load(Ordering::Relaxed)
    }

    fn gauge(&self) -> &Gauge {
        match self.delivery {
            Delivery::Pull => self.topic.pull_subscribers(),
            Delivery::Push => self.topic.push_subscribers(),
        }
    }
}

impl Drop for ServedAttachment {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        if self.counted {
            let gauge = self.gauge();
            gauge.set(gauge.value().saturating_sub(1));
        }
    }
}
