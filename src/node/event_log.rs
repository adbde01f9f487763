use std::collections::BTreeMap;

use crate::clock::{Clock as _, SystemClock};
use crate::event::{Event, EventSink};
use crate::limits;
use crate::sync::Mutex;

/// Writes events as `tracing` records with the target `fabricast`, each with a level by its kind. Of each kind that peers can cause, up to
/// [`limits::EVENTS_LOGGED_MAX`] a second, or as many of each subscription, and of each trouble: peers decide how many there are.
#[derive(Debug, Default)]
pub(crate) struct TracingSink {
    /// What has happened within a second, or was left out.
    seconds: Mutex<BTreeMap<Source, Second>>,
}

/// What events are counted by: their kind, and what the peers do not decide: the topic or the address of the subscription that they
/// concern, or the node's trouble without its cause; otherwise empty.
type Source = (Limited, String);

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
    Reconnected,
    Lost,
    Resumed,
    Restarted,
    Overtaken,
    Contradicted,
    Revoked,
}

impl Limited {
    /// What an event is counted by; `None` if peers cannot cause many, or it is for those who debug. A peer seems to hang once a second at
    /// most. The program decides to how many topics it subscribes, so that each has its own count: a thousand subscriptions that are lost
    /// at once are all named. So are troubles of different kinds, whatever a peer can cause of one; none names a peer before its cause.
    fn source_of(event: &Event) -> Option<Source> {
        let (kind, concerns) = match event {
            Event::PeerRejected { .. } => (Self::PeerRejected, None),
            Event::Refused { .. } => (Self::Refused, None),
            Event::NoticesUnavailable { .. } => (Self::NoticesUnavailable, None),
            Event::SessionClosed { orderly: false, .. } => (Self::SessionClosed, None),
            Event::SubscriberLetGo { .. } => (Self::SubscriberLetGo, None),
            Event::SubscriberOvertaken { .. } => (Self::SubscriberOvertaken, None),
            Event::Trouble { what } => (Self::Trouble, what.split(": ").next()),
            Event::LetGo { topic, .. } => (Self::LetGo, Some(topic.as_str())),
            Event::Reconnected { target, .. } => (Self::Reconnected, Some(target.as_str())),
            Event::Lost { target, .. } => (Self::Lost, Some(target.as_str())),
            Event::Resumed { target, .. } => (Self::Resumed, Some(target.as_str())),
            Event::Restarted { target, .. } => (Self::Restarted, Some(target.as_str())),
            Event::Overtaken { topic, .. } => (Self::Overtaken, Some(topic.as_str())),
            Event::Contradicted { topic, .. } => (Self::Contradicted, Some(topic.as_str())),
            Event::Revoked { topic, .. } => (Self::Revoked, Some(topic.as_str())),
            _ => return None,
        };
        Some((kind, concerns.unwrap_or_default().to_owned()))
    }

    /// Whether events of this kind are news rather than warnings.
    fn is_information(self) -> bool {
        matches!(self, Self::SessionClosed | Self::Reconnected | Self::Lost | Self::Resumed | Self::Restarted)
    }
}

/// The events of one source in a second.
#[derive(Debug)]
struct Second {
    /// When it began, ns of the monotonic clock.
    began_ns: u64,
    logged: u32,
    omitted: u64,
}

impl Second {
    const NS: u64 = 1_000_000_000;

    fn new(began_ns: u64) -> Self {
        Self { began_ns, logged: 0, omitted: 0 }
    }

    /// Returns whether one more is logged.
    fn admit(&mut self) -> bool {
        let is_logged = self.logged < limits::EVENTS_LOGGED_MAX;
        if is_logged {
            self.logged += 1;
        } else {
            self.omitted += 1;
        }
        is_logged
    }

    fn is_over(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) >= Self::NS
    }
}

impl TracingSink {
    /// Returns whether an event of this source is written, and how many of which sources were left out in seconds that are over.
    fn admit(&self, source: Option<Source>, now_ns: u64) -> (bool, Vec<(Source, u64)>) {
        let mut seconds = self.seconds.lock();
        let mut omitted = Vec::new();
        // There are never more seconds than events that were written within the last one.
        seconds.retain(|source, second| {
            let is_over = second.is_over(now_ns);
            if is_over && second.omitted > 0 {
                omitted.push((source.clone(), second.omitted));
            }
            !is_over
        });
        let is_written =
            source.is_none_or(|source| seconds.entry(source).or_insert_with(|| Second::new(now_ns)).admit());
        (is_written, omitted)
    }
}

impl EventSink for TracingSink {
    fn event(&self, event: &Event) {
        // Without the lock: what takes the records may block, and cause events.
        let (is_written, omitted) = self.admit(Limited::source_of(event), SystemClock.monotonic_ns());
        for ((kind, concerns), omitted) in omitted {
            let concerns = Some(concerns).filter(|concerns| !concerns.is_empty());
            if kind.is_information() {
                tracing::info!(target: "fabricast", ?kind, concerns, omitted, "more events of this kind were left out");
            } else {
                tracing::warn!(target: "fabricast", ?kind, concerns, omitted, "more events of this kind were left out");
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

    fn source(kind: Limited) -> Source {
        (kind, String::new())
    }

    #[test]
    fn rejections_beyond_the_limit_of_a_second_are_counted() {
        let sink = TracingSink::default();
        let begin = 5 * Second::NS;
        let admit = |ns| sink.admit(Some(source(Limited::PeerRejected)), begin + ns);
        for number in 0..limits::EVENTS_LOGGED_MAX {
            assert_eq!(admit(number.into()), (true, vec![]));
        }
        (0..1000).for_each(|number| assert_eq!(admit(500 + number), (false, vec![])));
        assert_eq!(admit(Second::NS - 1), (false, vec![]));
        assert_eq!(admit(Second::NS), (true, vec![(source(Limited::PeerRejected), 1001)]));
        assert_eq!(admit(Second::NS), (true, vec![]));
        assert_eq!(admit(10 * Second::NS), (true, vec![]));
        assert_eq!(sink.seconds.lock().len(), 1);
    }

    #[test]
    fn what_was_left_out_is_written_with_the_next_event_of_any_kind() {
        let sink = TracingSink::default();
        let begin = 7 * Second::NS;
        for number in 0..limits::EVENTS_LOGGED_MAX + 5 {
            let (is_written, omitted) = sink.admit(Some(source(Limited::Refused)), begin);
            assert_eq!((is_written, omitted), (number < limits::EVENTS_LOGGED_MAX, vec![]));
        }
        // Others have limits of their own, or none.
        assert_eq!(sink.admit(Some(source(Limited::Trouble)), begin), (true, vec![]));
        assert_eq!(sink.admit(None, begin + Second::NS - 1), (true, vec![]));
        assert_eq!(sink.admit(None, begin + Second::NS), (true, vec![(source(Limited::Refused), 5)]));
        assert_eq!(sink.admit(Some(source(Limited::Refused)), begin + Second::NS), (true, vec![]));
    }

    /// An unusable keyring is told once.
    #[test]
    fn trouble_that_a_peer_causes_hides_no_other() {
        let sink = TracingSink::default();
        let trouble = |what: &str, cause: u32| Event::Trouble { what: format!("{what}: {cause}") };
        let written = (0..1000).filter(|number| {
            sink.admit(Limited::source_of(&trouble("accept a connection", *number)), Second::NS).0
        });
        assert_eq!(written.count(), 10);
        assert!(sink.admit(Limited::source_of(&trouble("read the key file", 1)), Second::NS).0);
    }

    #[test]
    fn many_subscriptions_that_are_lost_at_once_are_all_written() {
        let sink = TracingSink::default();
        let begin = 3 * Second::NS;
        let lost = |number: u32| Event::Lost { target: format!("shm:node/{number}"), reason: String::new() };
        for number in 0..1000 {
            assert_eq!(sink.admit(Limited::source_of(&lost(number)), begin), (true, vec![]));
        }
        let again = (0..50).filter(|_| sink.admit(Limited::source_of(&lost(7)), begin).0).count();
        assert_eq!(again, 9);
        let left_out = ((Limited::Lost, "shm:node/7".to_owned()), 41);
        assert_eq!(sink.admit(None, begin + Second::NS), (true, vec![left_out]));
        assert!(sink.seconds.lock().is_empty(), "what is over is kept");
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
        let epoch = crate::Epoch::FIRST;
        let limited = [
            Event::PeerRejected { reason: text() },
            Event::Refused { peer: peer(), topic: text(), reason: text() },
            Event::NoticesUnavailable { peer: peer(), topic: topic(), reason: text() },
            Event::SessionClosed { peer: peer(), orderly: false },
            Event::SubscriberLetGo { peer: peer(), process: 1, topic: topic() },
            Event::SubscriberOvertaken { peer: peer(), process: 1, topic: topic() },
            Event::LetGo { peer: peer(), topic: topic() },
            Event::Trouble { what: text() },
            Event::Reconnected { target: text(), reason: text() },
            Event::Lost { target: text(), reason: text() },
            Event::Resumed { target: text(), epoch },
            Event::Restarted { target: text(), epoch },
            Event::Overtaken { peer: peer(), topic: topic() },
            Event::Contradicted { peer: peer(), topic: topic() },
            Event::Revoked { peer: peer(), topic: topic() },
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
