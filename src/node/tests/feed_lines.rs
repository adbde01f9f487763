//! Subscribers of several publishers of the same feed.

use super::*;
use crate::id::Epoch;
use crate::publisher::FeedPublisher;
use crate::subscriber::{FeedLines, FeedUpdate};

type Publisher = FeedPublisher<u64, u64, u64>;

fn feed(node: &Node, epoch: u64) -> Publisher {
    let builder = node.feed_publisher("f").capacity(16).log_capacity(1 << 14).record_len_max(64);
    builder.epoch(Epoch::new(epoch).unwrap()).open().unwrap()
}

fn lines<const N: usize>(node: &Node, others: [&str; N]) -> FeedLines<u64, u64, u64> {
    node.feed_subscriber("shm:a/f").timeout(TIMEOUT).lines(others).open().unwrap()
}

/// Publishes one event of a record for each of these keys.
fn publish(publisher: &mut Publisher, keys: std::ops::Range<u64>) {
    let mut event = publisher.event();
    keys.for_each(|key| event.update(&key, &key, &key).unwrap());
    event.commit();
}

/// It was returned in two parts, and the second one claimed to be whole.
#[test]
fn news_of_another_line_does_not_cut_an_event_in_two() {
    for begins_by_update in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let nodes = [node(&dir, "a"), node(&dir, "b"), node(&dir, "c")];
        let mut publishers = [feed(&nodes[0], 1), feed(&nodes[1], 1), feed(&nodes[2], 2)];
        let mut lines = lines(&anonymous(&dir), ["shm:b/f", "shm:c/f"]);
        assert!(lines.try_event().unwrap().is_none());
        let began_ns = SystemClock.monotonic_ns();
        wait_until("the other line to be out of step for long", || {
            SystemClock.monotonic_ns() - began_ns > limits::OUT_OF_STEP_NS
        });
        publishers.iter_mut().take(2).for_each(|publisher| publish(publisher, 0..3));
        // A record of each line, then the last line has its turn.
        let mut received = 0;
        if begins_by_update {
            assert!(matches!(lines.try_update(), Ok(Some(FeedUpdate::Record(_)))));
            received += 1;
        }
        let error = if begins_by_update { lines.try_update().err() } else { lines.try_event().err() };
        assert!(matches!(error, Some(ReceiveError::OutOfStep { .. })), "{error:?}");
        let event = lines.try_event().unwrap().expect("all of it is there");
        assert_eq!((event.updates.len(), event.sequence.get()), (3 - received, 3));
        assert_eq!(event.is_whole, !begins_by_update);
    }
}

/// Values stand for the records from before where the line was opened, also if its connection was lost meanwhile.
#[test]
fn next_epoch_of_a_line_that_was_opened_in_it_begins_with_its_values() {
    for is_lost_meanwhile in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let nodes = [node(&dir, "a"), node(&dir, "b")];
        let (mut one, mut other) = (feed(&nodes[0], 1), feed(&nodes[1], 2));
        publish(&mut other, 0..3);
        let mut lines = lines(&anonymous(&dir), ["shm:b/f"]);
        publish(&mut one, 0..1);
        wait_until("a record of the first line", || {
            lines.try_update().or_else(out_of_step).unwrap().is_some()
        });
        if is_lost_meanwhile {
            drop(other);
            other = feed(&nodes[1], 2);
            publish(&mut other, 0..3);
            wait_until("the publisher that publishes again", || {
                assert!(lines.try_update().or_else(out_of_step).unwrap().is_none());
                lines.report()[1].is_attached && lines.report()[1].outages == 1
            });
        }
        drop(one);
        publish(&mut other, 7..8);
        let (mut keys, mut epochs) = (std::collections::BTreeSet::new(), 0);
        wait_until("all keys", || {
            match lines.try_update() {
                Err(ReceiveError::OutOfStep { .. }) | Ok(None) => {}
                Err(ReceiveError::Restarted { .. }) => epochs += 1,
                Ok(Some(FeedUpdate::Value(value))) => _ = keys.insert(value.key),
                Ok(Some(FeedUpdate::Record(record))) => _ = keys.insert(record.key),
                Err(error) => panic!("{error}"),
            }
            keys.len() == 4
        });
        assert_eq!((epochs, lines.missing()), (1, 0));
    }
}

/// Whether a line has another epoch is not what a test is about.
fn out_of_step<V>(error: ReceiveError) -> Result<Option<V>, ReceiveError> {
    if matches!(error, ReceiveError::OutOfStep { .. }) { Ok(None) } else { Err(error) }
}

/// A value that publishers may set to 0, and one that may not be 0.
mod values {
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Serialize, Deserialize)]
    #[serde(from = "u64", into = "u64")]
    pub(super) struct Level(pub(super) u64);

    impl From<u64> for Level {
        fn from(number: u64) -> Self {
            Self(number)
        }
    }

    impl From<Level> for u64 {
        fn from(Level(number): Level) -> Self {
            number
        }
    }

    pub(super) mod positive {
        use std::num::NonZeroU64;

        use serde::{Deserialize, Serialize};

        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(try_from = "u64", into = "u64")]
        pub(in crate::node::tests::feed_lines) struct Level(NonZeroU64);

        impl TryFrom<u64> for Level {
            type Error = &'static str;

            fn try_from(number: u64) -> Result<Self, Self::Error> {
                NonZeroU64::new(number).map(Self).ok_or("0 is no level")
            }
        }

        impl From<Level> for u64 {
            fn from(Level(number): Level) -> Self {
                number.get()
            }
        }
    }
}

/// A value that is not one of the type, like one that is damaged, is taken of a line on which it is.
#[test]
fn cut_is_taken_of_a_line_on_which_all_values_are_intact() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    // The values of two keys on each line, and how many of them are received.
    for (values, count) in [([[1, 0], [1, 1]], 2), ([[0, 0], [1, 0]], 1), ([[0, 1], [0, 0]], 1)] {
        let open = |(node, values): (&Node, [u64; 2])| {
            let builder = node.feed_publisher::<u64, u64, values::Level>("f").epoch(Epoch::FIRST);
            let mut publisher = builder.open().unwrap();
            for (key, value) in (0..).zip(values) {
                publisher.publish(&key, &key, &values::Level(value)).unwrap();
            }
            publisher
        };
        let publishers: Vec<_> = nodes.iter().zip(values).map(open).collect();
        let builder = subscribing.feed_subscriber::<u64, u64, values::positive::Level>("shm:a/f");
        let mut lines = builder.timeout(TIMEOUT).lines(["shm:b/f"]).open().unwrap();
        let event = lines.event_timeout(TIMEOUT).unwrap().expect("the values");
        assert_eq!((event.updates.len(), event.is_whole), (count, count == 2));
        match lines.try_event() {
            Ok(None) => assert_eq!(count, 2),
            Err(ReceiveError::UnreadableValues { count: 1 }) => assert_eq!(count, 1),
            received => panic!("{received:?}"),
        }
        assert_eq!(lines.suspects().len(), 2 - count);
        drop(publishers);
    }
}
