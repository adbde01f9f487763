use std::sync::Arc;
use std::time::Duration;

use super::ReceiveError;
use crate::clock::{Clock, saturate};

/// Reports that no value has come for some time: once, and again after a value has come.
///
/// Whoever returns values to the program has it, and no one below: what a persistent subscriber receives is late whether or not a
/// publisher is attached.
#[derive(Debug)]
pub(crate) struct Deadline {
    clock: Arc<dyn Clock>,
    after_ns: u64,
    /// When the last value came, or when it began, by the monotonic clock.
    since_ns: u64,
    is_reported: bool,
}

impl Deadline {
    /// Begins to wait, if the program has set a deadline.
    pub(crate) fn begin(after: Option<Duration>, clock: &Arc<dyn Clock>) -> Option<Self> {
        let after_ns = saturate(after?);
        Some(Self { clock: Arc::clone(clock), after_ns, since_ns: clock.monotonic_ns(), is_reported: false })
    }

    /// Records that a value has come.
    pub(super) fn meet(&mut self) {
        (self.since_ns, self.is_reported) = (self.clock.monotonic_ns(), false);
    }

    /// Passes on what was received, or reports that it is overdue.
    fn judge<V>(&mut self, received: Result<Option<V>, ReceiveError>) -> Result<Option<V>, ReceiveError> {
        match &received {
            Ok(Some(_)) => self.meet(),
            Ok(None) | Err(ReceiveError::Contended { .. }) if !self.is_reported => {
                let waited_ns = self.clock.monotonic_ns().saturating_sub(self.since_ns);
                if waited_ns >= self.after_ns {
                    self.is_reported = true;
                    return Err(ReceiveError::Overdue {
                        deadline: Duration::from_nanos(self.after_ns),
                        waited: Duration::from_nanos(waited_ns),
                    });
                }
            }
            Ok(None) | Err(_) => {}
        }
        received
    }

    /// The time left, unless it was reported already.
    pub(super) fn left_ns(&self) -> Option<u64> {
        let waited_ns = || self.clock.monotonic_ns().saturating_sub(self.since_ns);
        (!self.is_reported).then(|| self.after_ns.saturating_sub(waited_ns()))
    }
}

/// Passes on what was received, or reports that it is overdue by this deadline.
#[inline]
pub(super) fn judged<V>(
    deadline: &mut Option<Deadline>,
    received: Result<Option<V>, ReceiveError>,
) -> Result<Option<V>, ReceiveError> {
    match deadline {
        None => received,
        Some(deadline) => deadline.judge(received),
    }
}

/// How long to wait in all, with this timeout, after `waited_ns`: no longer than until the deadline.
pub(super) fn within(deadline: Option<&Deadline>, waited_ns: u64, timeout: Duration) -> Duration {
    let left_ns = deadline.and_then(Deadline::left_ns);
    left_ns.map_or(timeout, |left_ns| timeout.min(Duration::from_nanos(waited_ns.saturating_add(left_ns))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Sequence;
    use crate::testkit::clock::VirtualClock;

    #[test]
    fn a_wait_ends_at_the_deadline_or_at_its_timeout() {
        let virtual_clock = Arc::new(VirtualClock::default());
        let clock: Arc<dyn Clock> = Arc::clone(&virtual_clock) as _;
        let (ms, long) = (Duration::from_millis, Duration::MAX);
        assert_eq!(within(None, 7, long), long);
        let mut deadline = Deadline::begin(Some(ms(50)), &clock);
        let within_ms = |deadline: &Option<Deadline>, waited, timeout| {
            within(deadline.as_ref(), saturate(ms(waited)), timeout)
        };
        assert_eq!(within_ms(&deadline, 0, long), ms(50));
        assert_eq!(within_ms(&deadline, 0, ms(20)), ms(20));
        virtual_clock.advance(30_000_000);
        // A receive that began later has less time.
        assert_eq!([0, 10, 30].map(|waited| within_ms(&deadline, waited, long)), [20, 30, 50].map(ms));
        virtual_clock.advance(30_000_000);
        assert_eq!(within_ms(&deadline, 60, long), ms(60));
        let overdue = judged(&mut deadline, Ok(None::<()>));
        assert!(
            matches!(overdue, Err(ReceiveError::Overdue { waited, .. }) if waited == ms(60)),
            "{overdue:?}"
        );
        assert_eq!(within_ms(&deadline, 60, long), long, "reported already");
        assert!(matches!(judged(&mut deadline, Ok(Some(1))), Ok(Some(1))));
        assert_eq!(within_ms(&deadline, 0, long), ms(50));
    }

    #[test]
    fn losses_are_no_values() {
        let virtual_clock = Arc::new(VirtualClock::default());
        let clock: Arc<dyn Clock> = Arc::clone(&virtual_clock) as _;
        let mut deadline = Deadline::begin(Some(Duration::from_millis(50)), &clock);
        virtual_clock.advance(60_000_000);
        let lost = || Err::<Option<()>, _>(ReceiveError::Lapped { first_lost: Sequence::new(1), count: 2 });
        assert!(matches!(judged(&mut deadline, lost()), Err(ReceiveError::Lapped { .. })));
        assert!(matches!(judged(&mut deadline, Ok(None::<()>)), Err(ReceiveError::Overdue { .. })));
        assert!(matches!(judged(&mut deadline, lost()), Err(ReceiveError::Lapped { .. })));
        virtual_clock.advance(60_000_000);
        let contended = Err::<Option<()>, _>(ReceiveError::Contended { attempts: 8 });
        assert!(matches!(judged(&mut deadline, contended), Err(ReceiveError::Contended { .. })), "once");
    }
}
