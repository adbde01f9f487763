//! Records of a log that are received in place.

use std::io::Read as _;

use super::*;
use crate::id::SlowPolicy;
use crate::payload::Pod;
use crate::publisher::{Gating, LogPublisher, PublishError};
use crate::subscriber::{LogSubscriber, LogView};

/// More than 4 KiB.
type Rows = [[f64; 32]; 32];

/// Not whole words, and longer than what is copied for being short.
const LEN: usize = 20_003;

fn gated(node: &Node, gating: Gating) -> LogPublisher<Raw> {
    let builder = node.log_publisher("t").capacity(1 << 17).payload_len_max(LEN);
    builder.gating(gating).open().unwrap()
}

fn subscriber(node: &Node, delivery: Delivery, policy: SlowPolicy) -> LogSubscriber<Raw> {
    let builder = node.log_subscriber("shm:p/t").timeout(TIMEOUT).delivery(delivery);
    builder.slow(policy).open().unwrap()
}

fn payload(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31 + at / 256) as u8).collect()
}

/// Waits for the next record, and does this with its view.
fn with_view<V>(subscriber: &mut LogSubscriber<Raw>, mut take: impl FnMut(&LogView<'_>) -> V) -> V {
    let mut taken = None;
    wait_until("a record", || {
        taken = subscriber.try_receive_view().unwrap().map(|view| take(&view));
        taken.is_some()
    });
    taken.expect("a record")
}

/// The bytes of a view, by chunks.
fn all(view: &LogView<'_>) -> Vec<u8> {
    let (mut bytes, mut chunks) = (Vec::new(), view.chunks());
    while let Some(chunk) = chunks.next_chunk() {
        bytes.extend_from_slice(chunk);
    }
    bytes
}

#[test]
fn gating_subscriber_receives_long_records_in_place_and_others_as_copies() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        for policy in [SlowPolicy::Block, SlowPolicy::Lap] {
            let dir = tempfile::tempdir().unwrap();
            let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
            let mut publisher = gated(&publishing, Gating::new());
            let mut subscriber = subscriber(&subscribing, delivery, policy);
            let mut in_place = 0;
            for number in 1..=200 {
                let len = if number % 4 == 0 { number } else { LEN - number };
                let expected = payload(number, len);
                publisher.publish(&expected).unwrap();
                with_view(&mut subscriber, |view| {
                    assert_eq!((view.meta.sequence.get(), view.len()), (number as u64, len));
                    assert_eq!(all(view), expected);
                    assert!(view.is_intact());
                    in_place += usize::from(view.is_in_place());
                });
                assert!(subscriber.try_receive_view().unwrap().is_none());
            }
            // At the start, and where the ring begins again, some are copied.
            let is_in_place = policy == SlowPolicy::Block;
            assert_eq!(in_place > 100, is_in_place, "{delivery} {policy}: {in_place}");
            assert!(is_in_place || in_place == 0);
            assert_eq!((subscriber.stats().received, subscriber.stats().lapped), (200, 0));
        }
    }
}

#[test]
fn view_is_read_at_any_offset_and_length() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new());
    let mut subscriber = subscriber(&subscribing, Delivery::Pull, SlowPolicy::Block);
    // Of the second record on, in place.
    for (number, len) in [(1, LEN), (2, LEN), (3, 100)] {
        let expected = payload(number, len);
        publisher.publish(&expected).unwrap();
        with_view(&mut subscriber, |view| {
            assert!(number != 2 || view.is_in_place());
            let offsets = (0..20).chain(len - 20..len + 2);
            for (offset, wanted) in offsets.flat_map(|offset| [0, 1, 7, 8, 9, 40].map(|len| (offset, len))) {
                let mut bytes = vec![0xEE; wanted];
                let found = view.read_at(offset, &mut bytes);
                let right = expected.get(offset..).unwrap_or_default();
                let right = &right[..wanted.min(right.len())];
                assert_eq!(&bytes[..found], right, "{wanted} at {offset}");
                assert!(bytes[found..].iter().all(|byte| *byte == 0xEE));
            }
            assert_eq!(view.value_at::<[u8; 3]>(len - 3), Some([0, 1, 2].map(|at| expected[len - 3 + at])));
            assert_eq!(view.value_at::<u64>(len - 7), None);
            assert_eq!(view.value_at::<u8>(usize::MAX), None);
            // As a decoder reads it: some bytes, and then the rest.
            let (mut chunks, mut head, mut rest) = (view.chunks(), [0; 11], Vec::new());
            chunks.read_exact(&mut head).unwrap();
            let next = chunks.next_chunk().map(<[u8]>::to_vec).unwrap_or_default();
            chunks.read_to_end(&mut rest).unwrap();
            assert_eq!([head.as_slice(), &next, &rest].concat(), expected);
            assert!(chunks.next_chunk().is_none());
        });
    }
}

#[test]
fn publisher_waits_for_a_view_and_names_its_subscriber() {
    for delivery in [Delivery::Pull, Delivery::Push] {
        let dir = tempfile::tempdir().unwrap();
        let (publishing, subscribing) = (node(&dir, "p"), node(&dir, "viewer"));
        let mut publisher = gated(&publishing, Gating::new().timeout(Duration::from_millis(5)));
        let mut viewer = subscriber(&subscribing, delivery, SlowPolicy::Block);
        publisher.publish(&payload(1, 8)).unwrap();
        with_view(&mut viewer, |view| assert!(!view.is_in_place(), "it is short"));
        wait_until("a record in place", || {
            publisher.publish(&payload(2, LEN)).unwrap();
            with_view(&mut viewer, |view| {
                if !view.is_in_place() {
                    return false;
                }
                let error = (0..100).find_map(|_| publisher.publish(&payload(3, LEN)).err());
                let Some(PublishError::Blocked { slowest }) = error else { panic!("{error:?}") };
                assert_eq!((slowest.node().as_str(), slowest.process()), ("viewer", std::process::id()));
                assert_eq!(all(view), payload(2, LEN));
                assert!(view.is_intact());
                true
            })
        });
        while viewer.last() < publisher.newest() {
            with_view(&mut viewer, |view| assert_eq!(all(view), payload(3, LEN)));
        }
        publisher.publish(&payload(4, LEN)).unwrap();
        with_view(&mut viewer, |view| assert_eq!(all(view), payload(4, LEN)));
        assert_eq!(viewer.stats().lapped, 0);
    }
}

#[test]
fn leaked_view_is_released_by_the_next_receive() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let mut publisher = gated(&publishing, Gating::new().timeout(TIMEOUT));
    let mut subscriber = subscriber(&subscribing, Delivery::Pull, SlowPolicy::Block);
    for number in 1..=100 {
        publisher.publish(&payload(number, LEN)).unwrap();
        if number % 2 == 0 {
            std::mem::forget(subscriber.try_receive_view().unwrap().expect("a record"));
        } else {
            assert_eq!(subscriber.try_receive().unwrap().expect("a record").value, payload(number, LEN));
        }
    }
}

#[test]
fn values_of_a_fixed_layout_are_viewed_field_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let (publishing, subscribing) = (node(&dir, "p"), anonymous(&dir));
    let builder = publishing.log_publisher::<Pod<Rows>>("t");
    let mut publisher = builder.gating(Gating::new()).open().unwrap();
    let builder = subscribing.log_subscriber::<Pod<Rows>>("shm:p/t").slow(SlowPolicy::Block);
    let mut subscriber = builder.open().unwrap();
    for number in 1..=10 {
        publisher.publish(&std::array::from_fn(|row| [(row * number) as f64; 32])).unwrap();
        let view = subscriber.try_receive_view().unwrap().expect("a record");
        assert_eq!(view.value_at::<f64>(8 * (32 * 20 + 5)), Some((20 * number) as f64));
    }
}
