//! Threads that wait for an answer, and drive the session meanwhile.

use std::time::Duration;

use super::{Link, LinkError, LinkState};
use crate::control::{ControlError, TopicEntry};
use crate::id::TopicName;
use crate::sync::atomic::Ordering;

/// The longest sleep of a thread that waits for an answer while others wait too: one of them may have received it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// The longest sleep of the only waiting thread: another may have begun to wait since and received its answer. That is rare, and
/// hundreds of waiting threads must not keep the processors from their peers.
const LOOK_AGAIN_ALONE: Duration = Duration::from_millis(25);

/// A thread's wait for an answer.
#[derive(Debug)]
struct Waiting<'a> {
    link: &'a Link,
}

impl<'a> Waiting<'a> {
    fn begin(link: &'a Link) -> Self {
        // Relaxed: the session itself is behind a lock.
        link.waiting.fetch_add(1, Ordering::Relaxed);
        Self { link }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.link.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            // The node's thread drives the session again.
            self.link.waker.wake();
        }
    }
}

impl Link {
    /// One page of the peer's directory, and whether there are more.
    pub(in crate::node) fn topics(
        &self,
        after: Option<TopicName>,
    ) -> Result<(Vec<TopicEntry>, bool), LinkError> {
        let ticket = self.state.lock().draw_ticket();
        self.wait_for("page of the directory", |state| {
            if state.listing.is_none() {
                if let Err(error) = state.session.list(after.clone()) {
                    return Some(Err(error));
                }
                state.listing = Some(ticket);
                state.page = None;
            }
            if state.listing != Some(ticket) {
                return None;
            }
            let page = state.page.take()?;
            state.listing = None;
            Some(Ok(page))
        })
    }

    /// Whether a thread waits for an answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Receives until `found` returns a result, the session fails, or the answer times out. After a timeout the session serves
    /// its present uses and accepts no new ones.
    pub(super) fn wait_for<R>(
        &self,
        awaited: &'static str,
        mut found: impl FnMut(&mut LinkState) -> Option<Result<R, ControlError>>,
    ) -> Result<R, LinkError> {
        let core = &self.core;
        let mut deadline_ns = core.clock.monotonic_ns().saturating_add(self.timeout_ns);
        let _waiting = Waiting::begin(self);
        loop {
            let now_ns = core.clock.monotonic_ns();
            let is_held_back = {
                let mut state = self.state.lock();
                let is_connecting = state.connecting.is_some();
                state.turn(now_ns);
                if is_connecting {
                    // Connecting has a deadline of its own.
                    deadline_ns = now_ns.saturating_add(self.timeout_ns);
                }
                let result = found(&mut state);
                state.flush();
                if let Some(result) = result {
                    return result.map_err(LinkError::Session);
                }
                if let Some(unreachable) = state.unreachable.take() {
                    return Err(LinkError::Fabric(unreachable));
                }
                if let Some(failure) = &state.failure {
                    return Err(LinkError::Session(failure.clone()));
                }
                if now_ns >= deadline_ns {
                    state.ending = true;
                    return Err(LinkError::Session(ControlError::Deadline { awaited }));
                }
                state.connection.held_back_until_ns().is_some()
            };
            let left = Duration::from_nanos(deadline_ns.saturating_sub(now_ns));
            let is_shared = self.waiting.load(Ordering::Relaxed) > 1;
            let again = if is_shared { LOOK_AGAIN } else { LOOK_AGAIN_ALONE };
            if is_held_back {
                // The handle is readable.
                core.clock.pause(again.min(left));
            } else {
                core.clock.pause_until(self.wait_handle(), again.min(left));
            }
        }
    }
}
