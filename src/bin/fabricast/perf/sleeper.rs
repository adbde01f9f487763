use std::time::Duration;

use fabricast::{FabricError, Payload, Raw, ReceiveError, Sample, StateSubscriber, WaitSet};

use super::arguments::SleepIn;
use super::echo::Received;

/// The longest single wait for a value.
const WAIT: Duration = Duration::from_millis(20);

/// A subscriber that sleeps until there is a value.
pub(super) struct Sleeper<T: Payload> {
    pub(super) subscriber: StateSubscriber<T>,
    /// What it sleeps in, unless in a blocking receive.
    set: Option<WaitSet>,
}

impl<T: Payload> Sleeper<T> {
    pub(super) fn new(mut subscriber: StateSubscriber<T>, sleep_in: SleepIn) -> Result<Self, FabricError> {
        let set = match sleep_in {
            SleepIn::Receive => None,
            SleepIn::WaitSet => {
                let mut set = WaitSet::new()?;
                set.add(&mut subscriber, 0);
                Some(set)
            }
        };
        Ok(Self { subscriber, set })
    }

    /// Receives the next value; `None` without one, after a wait.
    #[inline]
    pub(super) fn receive(&mut self) -> Result<Option<Sample<T::Owned>>, ReceiveError> {
        let Some(set) = &mut self.set else { return self.subscriber.receive_timeout(WAIT) };
        // A set waits only for those that have found nothing.
        if let Some(sample) = self.subscriber.try_receive()? {
            return Ok(Some(sample));
        }
        set.wait(WAIT)?;
        self.subscriber.try_receive()
    }
}

impl Sleeper<Raw> {
    /// Receives what is compared of the next value; `None` without one, after a wait.
    pub(super) fn receive_compared(&mut self) -> Result<Option<Received>, ReceiveError> {
        Ok(self.receive()?.map(|sample| Received::of(sample.meta.sequence, &sample.value)))
    }
}
