use crate::clock::{Clock as _, SystemClock};
use crate::event::{Event, EventSink};
use crate::limits;
use crate::sync::Mutex;

/// Writes events as `tracing` records with the target `fabricast`, each with a level by its kind. Of the events of peers that were
/// turned away, up to [`limits::REJECTIONS_LOGGED_MAX`] a second: peers decide how many there are.
#[derive(Debug, Default)]
pub(crate) struct TracingSink {
    rejections: Mutex<Rejections>,
}

/// Peers that were turned away in a second.
#[derive(Debug, Default)]
struct Rejections {
    /// When it began, ns of the monotonic clock.
    began_ns: u64,
    logged: u32,
    omitted: u64,
}

impl Rejections {
    const SECOND_NS: u64 = 1_000_000_000;

    /// Returns whether one more is logged, and how many before it were not since the last one that was.
    fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if self.logged > 0 && now_ns.saturating_sub(self.began_ns) < Self::SECOND_NS {
            if self.logged == limits::REJECTIONS_LOGGED_MAX {
                self.omitted += 1;
                return None;
            }
        } else {
            (self.began_ns, self.logged) = (now_ns, 0);
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        if matches!(event, Event::PeerRejected { .. } | Event::Refused { .. }) {
            match self.rejections.lock().admit(SystemClock.monotonic_ns()) {
                None => return,
                Some(0) => {}
                Some(omitted) => {
                    tracing::warn!(target: "fabricast", omitted, "more peers were rejected or refused")
                }
            }
        }
        event.log();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_beyond_the_limit_of_a_second_are_counted() {
        let mut rejections = Rejections::default();
        let begin = 5 * Rejections::SECOND_NS;
        let mut admit = |ns| rejections.admit(begin + ns);
        for number in 0..limits::REJECTIONS_LOGGED_MAX {
            assert_eq!(admit(number.into()), Some(0));
        }
        (0..1000).for_each(|number| assert_eq!(admit(500 + number), None));
        assert_eq!(admit(Rejections::SECOND_NS - 1), None);
        assert_eq!(admit(Rejections::SECOND_NS), Some(1001));
        assert_eq!(admit(Rejections::SECOND_NS), Some(0));
        assert_eq!(admit(10 * Rejections::SECOND_NS), Some(0));
    }
}
