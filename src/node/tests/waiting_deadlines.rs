//! Receives that sleep until a deadline, on a real clock.

use super::*;

const DEADLINE: Duration = Duration::from_millis(120);

/// The deadline is longer than any sleep, and much shorter than the timeout.
#[test]
fn receive_that_waits_wakes_for_the_deadline_and_for_a_value_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let publishing = node(&dir, "p");
    let subscribing = node(&dir, "s");
    let mut publisher = publishing.state_publisher::<u64>("t").open().unwrap();
    for notices in [false, true] {
        let builder = subscribing.state_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).deadline(DEADLINE);
        let builder = if notices { builder.notices() } else { builder };
        let mut subscriber = builder.open().unwrap();
        for round in 0..2 {
            let received = subscriber.receive_timeout(TIMEOUT);
            // The newest value of the round before.
            let received =
                if matches!(received, Ok(Some(_))) { subscriber.receive_timeout(TIMEOUT) } else { received };
            assert!(matches!(received, Err(ReceiveError::Overdue { .. })), "{received:?}");
            publisher.publish(&round).unwrap();
            let sample = subscriber.receive_timeout(TIMEOUT).unwrap();
            assert_eq!(sample.map(|sample| sample.value), Some(round));
        }
        let mut samples = subscriber.samples();
        assert!(matches!(samples.next(), Some(Err(ReceiveError::Overdue { .. }))));
        publisher.publish(&9).unwrap();
        assert!(matches!(samples.next(), Some(Ok(sample)) if sample.value == 9));
    }
}

#[test]
fn persistent_subscribers_lines_and_feeds_wake_for_the_deadline_without_a_publisher() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(&dir, "s");
    let states = || node.state_subscriber::<u64>("shm:p/t").deadline(DEADLINE);
    let feeds = || node.feed_subscriber::<u64, u64, u64>("shm:p/f").deadline(DEADLINE);
    let mut state = states().persistent().open().unwrap();
    let mut lines = states().lines(["shm:q/t"]).open().unwrap();
    let mut feed = feeds().persistent().open().unwrap();
    let mut feed_lines = feeds().lines(["shm:q/f"]).open().unwrap();
    let received = [
        state.receive_timeout(TIMEOUT).map(drop),
        lines.receive_timeout(TIMEOUT).map(drop),
        feed.update_timeout(TIMEOUT).map(drop),
        feed_lines.update_timeout(TIMEOUT).map(drop),
    ];
    assert!(received.iter().all(|one| matches!(one, Err(ReceiveError::Overdue { .. }))), "{received:?}");
}
