use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::FinishError;
use super::topic::PublishedTopic;
use crate::clock::{Timekeeper, saturate};
use crate::id::Sequence;
use crate::limits;

/// How often it is checked whether subscribers have received the end.
const PAUSE: Duration = Duration::from_millis(1);

/// A topic whose publisher is about to be dropped, to wait for its subscribers.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) topic: Arc<PublishedTopic>,
    pub(super) time: Arc<Timekeeper>,
    /// Keeps the node alive, which tells the subscribers.
    pub(super) _node: Arc<dyn Any + Send + Sync>,
}

/// Waits until no subscriber of these topics has anything to receive. Their publishers were dropped.
pub(super) fn wait(endings: &[Ending], timeout: Duration) -> Result<Sequence, FinishError> {
    let timeout_ns = saturate(timeout).min(limits::FINISH_NS_MAX);
    let Some(Ending { topic, time, .. }) = endings.first() else { return Ok(Sequence::NONE) };
    let (clock, published) = (time.clock(), topic.newest());
    let began_ns = clock.monotonic_ns();
    loop {
        // Of the topics of a feed the same subscribers.
        let subscribers = endings.iter().map(|ending| ending.topic.unfinished()).max().unwrap_or(0);
        if subscribers == 0 {
            return Ok(published);
        }
        topic.check_served().map_err(|_| FinishError::NodeFailed)?;
        if clock.monotonic_ns().saturating_sub(began_ns) >= timeout_ns {
            return Err(FinishError::Unfinished { subscribers, published });
        }
        clock.pause(PAUSE);
    }
}
