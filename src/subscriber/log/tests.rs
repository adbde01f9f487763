//! Where a subscriber begins that was granted a topic while its publisher keeps publishing.

use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::id::{Delivery, Epoch, Incarnation, TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::log::{HEADER_LEN, LogGeometry};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::payload::Raw;
use crate::repository::log::{LogStart, LogWriter};
use crate::repository::{GrantedAt, SubscriberStats, Writer as _};
use crate::subscriber::waiter::Watched;
use crate::subscriber::{
    Attachment, Granted, ReceiveError, Source, SubscriberHandle as _, Subscription, TopicEnd,
};
use crate::testkit::clock::VirtualClock;

/// An idle session, or one whose topic has ended with this record.
#[derive(Debug)]
struct Quiet {
    published: Option<Sequence>,
}

impl Watched for Quiet {
    fn has_ended(&self) -> bool {
        self.published.is_some()
    }
}

impl Attachment for Quiet {
    fn end(&self) -> Option<TopicEnd> {
        self.published.map(|published| TopicEnd::Ended { published })
    }

    fn leave(&self, _: SubscriberStats) {}
}

/// A repository of a log whose ring has so many bytes.
fn writer(capacity: usize, payload_len_max: usize) -> LogWriter {
    let geometry = LogGeometry::new(capacity, payload_len_max).unwrap();
    let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersWrite).unwrap());
    let line = Geometry::from(geometry).static_header(Epoch::FIRST, topic_id(), 0);
    LogWriter::new(memory, geometry, &line)
}

fn topic() -> TopicName {
    "topic".parse().unwrap()
}

fn topic_id() -> TopicId {
    TopicId::of(&topic())
}

/// A subscriber of this log.
fn subscribe(writer: &LogWriter, start: (Delivery, LogStart), granted: Sequence, quiet: Quiet) -> Opened {
    let source = Source::Mapped(Arc::clone(writer.region()));
    subscribe_to(source, writer, start, (granted, quiet))
}

/// A subscriber, and its clock.
struct Opened {
    subscriber: LogSubscriber<Raw>,
    clock: Arc<VirtualClock>,
}

/// A subscriber of this log that reads it there.
fn subscribe_to(
    source: Source,
    writer: &LogWriter,
    (delivery, start): (Delivery, LogStart),
    (newest, quiet): (Sequence, Quiet),
) -> Opened {
    let granted = Granted {
        topic: topic(),
        topic_id: topic_id(),
        delivery,
        epoch: Epoch::FIRST,
        incarnation: Incarnation::new(1).unwrap(),
        geometry: writer.geometry().into(),
        schema: Raw::schema().unwrap(),
        key: 0,
        address: 0,
        at: GrantedAt { newest, after: Sequence::NONE },
        peer: None,
        lifespan_ns: 0,
    };
    let clock = Arc::new(VirtualClock::default());
    let subscription =
        Subscription::new(granted, source, Arc::new(quiet), Arc::clone(&clock) as Arc<dyn Clock>);
    Opened { subscriber: LogSubscriber::open(subscription, start).unwrap(), clock }
}

fn append(writer: &mut LogWriter, count: u64) {
    for _ in 0..count {
        let number = writer.last().get() + 1;
        writer.append(&number.to_le_bytes(), number).unwrap();
        writer.commit(number);
    }
}

/// A subscriber of a log of eight records, which was granted when there were five.
fn open(delivery: Delivery, start: LogStart) -> LogSubscriber<Raw> {
    let mut writer = writer(1 << 14, 8);
    append(&mut writer, 8);
    subscribe(&writer, (delivery, start), Sequence::new(5), Quiet { published: None }).subscriber
}

/// The dialling publisher may have published before the subscriber is open.
#[test]
fn next_record_is_the_one_after_the_grant() {
    let begins = |delivery, start, first: u64| {
        let mut subscriber = open(delivery, start);
        assert_eq!(subscriber.next_sequence().get(), first);
        for number in first..=8 {
            let record = subscriber.try_receive().unwrap().expect("a record");
            assert_eq!((record.meta.sequence.get(), &record.value[..]), (number, &number.to_le_bytes()[..]));
        }
        assert!(subscriber.try_receive().unwrap().is_none());
    };
    for delivery in [Delivery::Pull, Delivery::Push] {
        begins(delivery, LogStart::Newest, 6);
        begins(delivery, LogStart::Earliest, 1);
        begins(delivery, LogStart::At(Sequence::new(7)), 7);
        begins(delivery, LogStart::Back(0), 6);
        begins(delivery, LogStart::Back(3), 3);
    }
}

/// A long search of the index for the first record does not mean that there is none.
#[test]
fn all_records_of_a_long_ring_are_received_after_the_end() {
    let len = limits::LOG_FETCH_LEN;
    // A segment of the ring has two megabytes, and most of the first one is full.
    let mut writer = writer(128 << 20, len);
    for number in 1..=28 {
        writer.append(&vec![0; len], number).unwrap();
        writer.commit(number);
    }
    let granted = writer.last();
    append(&mut writer, 10);
    for delivery in [Delivery::Pull, Delivery::Push] {
        let quiet = Quiet { published: Some(writer.last()) };
        let start = LogStart::At(granted.next());
        let Opened { mut subscriber, .. } = subscribe(&writer, (delivery, start), granted, quiet);
        let mut received = 0;
        let end = loop {
            match subscriber.try_receive() {
                Ok(Some(_)) => received += 1,
                Ok(None) => {}
                Err(end) => break end,
            }
        };
        assert!(received == 10 && matches!(end, ReceiveError::Ended { .. }), "{received} and {end}");
    }
}

/// A wrong frame in a landing region is waited for where it may still be corrected; not where it may have been lost, and not
/// after the end of the topic.
#[test]
fn wrong_frame_is_waited_for_where_it_may_be_corrected() {
    for (may_lose, has_ended) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut writer = writer(1 << 14, 8);
        append(&mut writer, 3);
        let payload = writer.geometry().offset(writer.committed_end()) + HEADER_LEN;
        append(&mut writer, 2);
        writer.region().store(payload, 77);
        let source = Source::Landing { region: Arc::clone(writer.region()), may_lose };
        let quiet = Quiet { published: has_ended.then_some(writer.last()) };
        let start = (Delivery::Push, LogStart::Earliest);
        let Opened { mut subscriber, clock } = subscribe_to(source, &writer, start, (Sequence::NONE, quiet));
        for number in 1..=3 {
            assert_eq!(subscriber.try_receive().unwrap().unwrap().meta.sequence.get(), number);
        }
        if !may_lose && !has_ended {
            assert!(subscriber.try_receive().unwrap().is_none());
            clock.advance(limits::ARRIVAL_SETTLED_NS - 1);
            assert!(subscriber.try_receive().unwrap().is_none());
            clock.advance(1);
        }
        let told = subscriber.try_receive().unwrap_err();
        let expected = (Sequence::new(4), 1);
        assert!(
            matches!(told, ReceiveError::DamagedRecords { first_lost, count } if (first_lost, count) == expected)
        );
        assert_eq!(subscriber.try_receive().unwrap().unwrap().meta.sequence.get(), 5);
    }
}
