use std::sync::{Arc, OnceLock};

use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{CompletionQueue, Concern, Context, DeviceUser, QueuePair};
use crate::fabric::{FabricError, Waker};

/// Whether a fault of the device has ended one end of a channel.
#[derive(Debug)]
pub(super) struct ChannelFault {
    queue_pair: u32,
    queue: usize,
    /// The name of the device's event.
    event: OnceLock<&'static str>,
    /// Wakes the thread that waits for datagrams.
    waker: Waker,
}

impl ChannelFault {
    /// Watches the device for faults of this queue pair and its completion queue.
    pub(super) fn watch(
        context: &Context,
        queue_pair: &QueuePair,
        queue: &CompletionQueue,
    ) -> Result<Arc<Self>, FabricError> {
        let (queue_pair, queue) = (queue_pair.number(), queue.id());
        let fault = Arc::new(Self { queue_pair, queue, event: OnceLock::new(), waker: Waker::new()? });
        context.add_user(&fault);
        Ok(fault)
    }

    /// Returns the fault, if there was one.
    pub(super) fn error(&self) -> Option<FabricError> {
        self.event.get().map(|event| VerbsError::DeviceFault { event }.into())
    }

    /// Wakes the thread that waits for datagrams, once there is a fault.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }
}

impl DeviceUser for ChannelFault {
    fn is_concerned(&self, concern: &Concern) -> bool {
        match *concern {
            Concern::QueuePair(number) => number == self.queue_pair,
            Concern::CompletionQueue(id) => id == self.queue,
            Concern::Device => true,
            Concern::Port(_) => false,
        }
    }

    fn fail(&self, event: &'static str) -> bool {
        let is_first = self.event.set(event).is_ok();
        if is_first {
            self.waker.wake();
        }
        is_first
    }
}
