//! Where a subscriber begins that was granted a topic while its publisher goes on.

use super::*;
use crate::id::{TopicId, TopicName};
use crate::layout::Geometry;
use crate::layout::log::LogGeometry;
use crate::memory::Protection;
use crate::payload::Raw;
use crate::repository::log::LogWriter;
use crate::subscriber::subscription::{Attachment, Granted};
use crate::testkit::clock::VirtualClock;

/// A session in which nothing happens.
#[derive(Debug)]
struct Quiet;

impl Attachment for Quiet {
    fn has_ended(&self) -> bool {
        false
    }

    fn end(&self) -> Option<End> {
        None
    }

    fn leave(&self, _: ReadCounts) {}
}

/// A subscriber of a log of eight records, which was granted when there were five.
fn open(delivery: Delivery, start: LogStart) -> LogSubscriber<Raw> {
    let geometry = LogGeometry::new(1 << 14, 8).unwrap();
    let topic: TopicName = "topic".parse().unwrap();
    let topic_id = TopicId::of(&topic);
    let epoch = Epoch::FIRST;
    let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    let line = Geometry::from(geometry).static_line(epoch, topic_id, 0);
    let mut writer = LogWriter::new(Arc::clone(&memory), geometry, &line);
    for number in 1..=8_u64 {
        writer.append(&number.to_le_bytes(), number).unwrap();
        writer.commit(number);
    }
    let granted = Granted {
        topic,
        topic_id,
        delivery,
        epoch,
        geometry: geometry.into(),
        schema: Raw::schema().unwrap(),
        key: 0,
        address: 0,
        newest: Sequence::new(5),
    };
    let clock = Arc::new(VirtualClock::default());
    let subscription = Subscription::new(granted, Source::Mapped(memory), Arc::new(Quiet), clock);
    LogSubscriber::open(subscription, start).unwrap()
}

/// Whoever dialled it may have published before it opens its eyes.
#[test]
fn the_next_record_is_the_one_behind_the_grant() {
    let begins = |delivery, start, first: u64| {
        let mut subscriber = open(delivery, start);
        assert_eq!(subscriber.next_sequence().get(), first);
        for number in first..=8 {
            let record = subscriber.try_receive().unwrap().expect("a record");
            assert_eq!((record.sequence.get(), &record.value[..]), (number, &number.to_le_bytes()[..]));
        }
        assert!(subscriber.try_receive().unwrap().is_none());
    };
    begins(Delivery::Pull, LogStart::Newest, 6);
    // What is written to a landing region begins with the next record.
    begins(Delivery::Push, LogStart::Newest, 1);
    for delivery in [Delivery::Pull, Delivery::Push] {
        begins(delivery, LogStart::Earliest, 1);
        begins(delivery, LogStart::At(Sequence::new(7)), 7);
    }
}
