use std::fmt;
use std::sync::Arc;

use super::subscribers::TopicSubscriber;
use crate::id::NodeName;

/// A subscriber for which a publisher has waited.
#[derive(Clone)]
pub struct SlowSubscriber {
    pub(super) subscriber: Arc<TopicSubscriber>,
    pub(super) lag: u64,
}

impl SlowSubscriber {
    /// Returns the name of its node.
    pub fn node(&self) -> &NodeName {
        &self.subscriber.node
    }

    /// Returns the ID of its process on its host.
    pub fn process(&self) -> u32 {
        self.subscriber.process
    }

    /// Returns by how many records it is behind, as far as it has reported.
    pub fn lag(&self) -> u64 {
        self.lag
    }
}

impl fmt::Display for SlowSubscriber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = if self.lag == 1 { "record" } else { "records" };
        write!(out, "{} (process {}), {} {records} behind", self.node(), self.process(), self.lag)
    }
}

impl fmt::Debug for SlowSubscriber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("SlowSubscriber");
        fields.field("node", self.node()).field("process", &self.process()).field("lag", &self.lag).finish()
    }
}
