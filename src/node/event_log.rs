use std::collections::BTreeMap;

use crate::clock::{Clock as _, SystemClock};
use crate::event::{Event, EventSink};
use crate::limits;
use crate::sync::Mutex;

/// Writes events as `tracing` records with the target `fabricast`, each with a level by its kind. Of each kind that peers can cause, up to
/// [`limits::EVENTS_LOGGED_MAX`] a second: peers decide how many there are.
#[derive(Debug, Default)]
pub(crate) struct TracingSink {
    /// The kinds that have happened.
    kinds: Mutex<BTreeMap<Limited, Second>>,
}

/// A kind of events that peers can cause, and that have a level of `info` or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Limited {
    PeerRejected,
    Refused,
    NoticesUnavailable,
    SessionClosed,
    SubscriberLetGo,
    SubscriberOvertaken,
    LetGo,
    Trouble,
}

impl Limited {
    /// The kind of an event; `None` if peers cannot cause many, or it is for those who debug.
    fn of(event: &Event) -> Option<Self> {
        match event {
            Event::PeerRejected { .. } => Some(Self::PeerRejected),
            Event::Refused { .. } => Some(Self::Refused),
            Event::NoticesUnavailable { .. } => Some(Self::NoticesUnavailable),
            Event::SessionClosed { orderly: false, .. } => Some(Self::SessionClosed),
            Event::SubscriberLetGo { .. } => Some(Self::SubscriberLetGo),
            Event::SubscriberOvertaken { .. } => Some(Self::SubscriberOvertaken),
            Event::LetGo { .. } => Some(Self::LetGo),
            Event::Trouble { .. } => Some(Self::Trouble),
            _ => None,
        }
    }
}

/// The events of one kind in a second.
#[derive(Debug, Default)]
struct Second {
    /// When it began, ns of the monotonic clock.
    began_ns: u64,
    logged: u32,
    omitted: u64,
}

impl Second {
    const NS: u64 = 1_000_000_000;

    /// Returns whether one more is logged, and how many before it were not since the last one that was.
    fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if self.logged > 0 && !self.is_over(now_ns) {
            if self.logged == limits::EVENTS_LOGGED_MAX {
                self.omitted += 1;
                return None;
            }
        } else {
            (self.began_ns, self.logged) = (now_ns, 0);
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.omitted))
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) >= Self::NS
    }
}

impl TracingSink {
    /// Returns whether an event of this kind is written, and how many of which kinds were left out in seconds that are over.
    fn admit(&self, kind: Option<Limited>, now_ns: u64) -> (bool, Vec<(Limited, u64)>) {
        let mut kinds = self.kinds.lock();
        let over = kinds.iter_mut().filter(|(_, second)| second.omitted > 0 && second.is_over(now_ns));
        let omitted = over.map(|(kind, second)| (*kind, std::mem::take(&mut second.omitted))).collect();
        let is_written = kind.is_none_or(|kind| kinds.entry(kind).or_default().admit(now_ns).is_some());
        (is_written, omitted)
    }
}

impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        // Without the lock: what takes the records may block, and cause events.
        let (is_written, omitted) = self.admit(Limited::of(event), SystemClock.monotonic_ns());
        for (kind, omitted) in omitted {
            if kind == Limited::SessionClosed {
                tracing::info!(target: "fabricast", ?kind, omitted, "more events of this kind were left out");
            } else {
                tracing::warn!(target: "fabricast", ?kind, omitted, "more events of this kind were left out");
            }
        }
        if is_written {
            event.log();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber, subscriber};

    use super::*;

    #[test]
    fn rejections_beyond_the_limit_of_a_second_are_counted() {
        let mut rejections = Second::default();
        let begin = 5 * Second::NS;
        let mut admit = |ns| rejections.admit(begin + ns);
        for number in 0..limits::EVENTS_LOGGED_MAX {
            assert_eq!(admit(number.into()), Some(0));
        }
        (0..1000).for_each(|number| assert_eq!(admit(500 + number), None));
        assert_eq!(admit(Second::NS - 1), None);
        assert_eq!(admit(Second::NS), Some(1001));
        assert_eq!(admit(Second::NS), Some(0));
        assert_eq!(admit(10 * Second::NS), Some(0));
    }

    #[test]
    fn what_was_left_out_is_written_with_the_next_event_of_any_kind() {
        let sink = TracingSink::default();
        let begin = 7 * Second::NS;
        for number in 0..limits::EVENTS_LOGGED_MAX + 5 {
            let (is_written, omitted) = sink.admit(Some(Limited::Refused), begin);
            assert_eq!((is_written, omitted), (number < limits::EVENTS_LOGGED_MAX, vec![]));
        }
        // Others have limits of their own, or none.
        assert_eq!(sink.admit(Some(Limited::Trouble), begin), (true, vec![]));
        assert_eq!(sink.admit(None, begin + Second::NS - 1), (true, vec![]));
        assert_eq!(sink.admit(None, begin + Second::NS), (true, vec![(Limited::Refused, 5)]));
        assert_eq!(sink.admit(Some(Limited::Refused), begin + Second::NS), (true, vec![]));
    }

    /// Counts records by their texts, and adds up what they say was left out.
    #[derive(Clone, Debug, Default)]
    struct Counting(Arc<Mutex<BTreeMap<String, u64>>>);

    /// The fields of a record.
    #[derive(Debug, Default)]
    struct Fields {
        text: String,
        omitted: u64,
    }

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if ["event", "kind"].contains(&field.name()) {
                let text = format!("{value:?}");
                self.text = text.split(' ').next().unwrap_or_default().to_owned();
            }
        }

        fn record_u64(&mut self, _: &Field, value: u64) {
            self.omitted += value;
        }
    }

    impl Subscriber for Counting {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            if fields.omitted == 0 {
                *self.0.lock().entry(fields.text).or_default() += 1;
            }
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn peers_cannot_fill_the_log_with_any_kind_of_event() {
        const MANY: u64 = 1000;
        let (peer, topic) = ("peer".parse().unwrap(), "topic".parse().unwrap());
        let peer = || -> crate::NodeName { Clone::clone(&peer) };
        let topic = || -> crate::TopicName { Clone::clone(&topic) };
        let text = String::new;
        let limited = [
            Event::PeerRejected { reason: text() },
            Event::Refused { peer: peer(), topic: text(), reason: text() },
            Event::NoticesUnavailable { peer: peer(), topic: topic(), reason: text() },
            Event::SessionClosed { peer: peer(), orderly: false },
            Event::SubscriberLetGo { peer: peer(), process: 1, topic: topic() },
            Event::SubscriberOvertaken { peer: peer(), process: 1, topic: topic() },
            Event::LetGo { peer: peer(), topic: topic() },
            Event::Trouble { what: text() },
        ];
        let (sink, counting) = (TracingSink::default(), Counting::default());
        let began_ns = SystemClock.monotonic_ns();
        subscriber::with_default(counting.clone(), || {
            for event in &limited {
                (0..MANY).for_each(|_| sink.event(event));
            }
            // What peers do not cause has no limit.
            (0..MANY).for_each(|_| sink.event(&Event::ClockSet { ahead_ns: 1 }));
        });
        let seconds = (SystemClock.monotonic_ns() - began_ns) / Second::NS;
        let counts = std::mem::take(&mut *counting.0.lock());
        assert_eq!(counts.len(), limited.len() + 1, "{counts:?}");
        let least = u64::from(limits::EVENTS_LOGGED_MAX);
        for (kind, count) in &counts {
            let most = if kind == "ClockSet" { MANY } else { least * (seconds + 1) };
            assert!((least..=most).contains(count), "{count} of {kind} in {seconds} s");
        }
        assert_eq!(counts.get("ClockSet"), Some(&MANY));
    }
}
