//! Lines whose epochs or beginnings differ.

use super::*;
use crate::id::{Epoch, SlowPolicy};
use crate::publisher::{Gating, LogPublisher, StatePublisher, TablePublisher};
use crate::subscriber::{Arbitrated, Lines, LogSubscriber, StateSubscriber, Subscribed, TableSubscriber};

const LITTLE: Duration = Duration::from_millis(20);
const BOTH: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

fn log(node: &Node, number: u64) -> LogPublisher<u64> {
    node.log_publisher("t").epoch(epoch(number)).open().unwrap()
}

/// Publishes records up to this one.
fn publish(publisher: &mut LogPublisher<u64>, until: u64) {
    while publisher.newest().get() < until {
        publisher.publish(&(publisher.newest().get() + 1)).unwrap();
    }
}

fn lines(node: &Node, delivery: Delivery) -> Lines<LogSubscriber<u64>> {
    let builder = node.log_subscriber("shm:a/t").timeout(TIMEOUT).delivery(delivery);
    builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap()
}

/// The next value, after this epoch has begun.
fn restarted<S>(lines: &mut Lines<S>, expected: u64) -> u64
where
    S: Arbitrated<Item = u64> + Subscribed<Value = u64>,
{
    loop {
        match lines.receive_timeout(TIMEOUT) {
            Err(ReceiveError::OutOfStep { .. }) => {}
            Err(ReceiveError::Restarted { epoch: found, .. }) => {
                assert_eq!(found, epoch(expected));
                return lines.receive_timeout(TIMEOUT).unwrap().expect("a value in time").value;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Whether a line has another epoch is not what a test is about.
fn out_of_step<V>(error: ReceiveError) -> Result<Option<V>, ReceiveError> {
    if matches!(error, ReceiveError::OutOfStep { .. }) { Ok(None) } else { Err(error) }
}

/// The next value, while another line may be out of step.
fn in_step(lines: &mut Lines<LogSubscriber<u64>>) -> Option<u64> {
    loop {
        match lines.receive_timeout(TIMEOUT) {
            Err(ReceiveError::OutOfStep { .. }) => {}
            received => return received.unwrap().map(|sample| sample.value),
        }
    }
}

/// The program has discarded what it received of that epoch before.
#[test]
fn epoch_that_comes_back_begins_with_its_first_record() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut one = log(&nodes[0], 1);
        let mut lines = lines(&subscribing, delivery);
        publish(&mut one, 3);
        for number in 1..=3 {
            assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
        }
        let mut other = log(&nodes[1], 2);
        publish(&mut other, 1);
        drop(one);
        assert_eq!(restarted(&mut lines, 2), 1);
        // It goes on in its epoch, and is out of step.
        let mut one = log(&nodes[0], 1);
        publish(&mut one, 4);
        wait_until("the first line", || {
            let received = lines.try_receive();
            assert!(matches!(received, Ok(None) | Err(ReceiveError::OutOfStep { .. })), "{received:?}");
            lines.report()[0].is_attached
        });
        drop(other);
        assert_eq!(restarted(&mut lines, 1), 1, "all of it again");
        for number in 2..=4 {
            assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
        }
    }
}

/// The publishers of both epochs continue the numbering of earlier ones, which nobody received.
#[test]
fn records_of_an_epoch_that_no_line_has_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let after = |node: &Node, number| -> LogPublisher<u64> {
        let builder = node.log_publisher("t").epoch(epoch(number)).after(Sequence::new(5));
        let mut publisher = builder.open().unwrap();
        publish(&mut publisher, 6);
        publisher
    };
    for delivery in BOTH {
        let mut one = log(&nodes[0], 1);
        let mut lines = lines(&subscribing, delivery);
        publish(&mut one, 1);
        assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(1));
        let mut expect = |number| loop {
            match lines.receive_timeout(TIMEOUT) {
                Err(ReceiveError::OutOfStep { .. }) => {}
                Err(ReceiveError::Restarted { epoch: found, .. }) => {
                    assert_eq!(found, epoch(number));
                    let error = lines.receive_timeout(TIMEOUT).unwrap_err();
                    let ReceiveError::Missing { first_lost, count } = error else { panic!("{error}") };
                    assert_eq!((first_lost.get(), count), (1, 5));
                    return lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value);
                }
                other => panic!("{other:?}"),
            }
        };
        drop(one);
        let other = after(&nodes[1], 2);
        assert_eq!(expect(2), Some(6));
        // Back to the first epoch, all of which the program has discarded.
        let one = after(&nodes[0], 1);
        drop(other);
        assert_eq!(expect(1), Some(6));
        drop(one);
    }
}

/// The line was opened with the newest record of its own epoch.
#[test]
fn records_before_where_a_line_was_opened_are_not_missing() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for (delivery, is_lost_meanwhile) in
        BOTH.into_iter().flat_map(|delivery| [(delivery, false), (delivery, true)])
    {
        let (mut one, mut other) = (log(&nodes[0], 1), log(&nodes[1], 2));
        publish(&mut other, 3);
        let mut lines = lines(&subscribing, delivery);
        publish(&mut one, 1);
        assert_eq!(in_step(&mut lines), Some(1));
        if is_lost_meanwhile {
            drop(other);
            other = nodes[1].log_publisher("t").epoch(epoch(2)).after(Sequence::new(3)).open().unwrap();
            wait_until("the publisher that continues", || {
                assert_eq!(lines.try_receive().or_else(out_of_step).unwrap(), None);
                lines.report()[1].is_attached && lines.report()[1].outages == 1
            });
        }
        drop(one);
        publish(&mut other, 4);
        assert_eq!(restarted(&mut lines, 2), 4);
        assert_eq!(lines.missing(), 0);
    }
}

/// The line that brings them was in the earlier epoch when the other one was opened.
#[test]
fn records_before_where_another_line_was_opened_are_received() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let (mut one, mut other) = (log(&nodes[0], 1), log(&nodes[1], 2));
        publish(&mut other, 3);
        let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).delivery(delivery);
        // It waits for the line that is sought.
        let mut lines: Lines<LogSubscriber<u64>> =
            builder.lines(["shm:b/t"]).gap_timeout(TIMEOUT).open().unwrap();
        publish(&mut one, 1);
        assert_eq!(in_step(&mut lines), Some(1));
        drop(one);
        let mut one = log(&nodes[0], 2);
        publish(&mut one, 3);
        publish(&mut other, 4);
        assert_eq!(restarted(&mut lines, 2), 1);
        for number in 2..=4 {
            assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
        }
        assert_eq!(lines.missing(), 0);
    }
}

/// The sequence at which the lines begin is one of the epoch that they begin with.
#[test]
fn next_epoch_of_lines_that_begin_at_a_sequence_begins_with_its_first_record() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut one = log(&nodes[0], 1);
        publish(&mut one, 1000);
        let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).delivery(delivery);
        let mut lines: Lines<LogSubscriber<u64>> =
            builder.at(Sequence::new(1000)).lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap();
        assert_eq!(in_step(&mut lines), Some(1000));
        let mut other = log(&nodes[1], 2);
        publish(&mut other, 3);
        wait_until("the other line", || {
            assert_eq!(lines.try_receive().or_else(out_of_step).unwrap(), None);
            lines.report()[1].is_attached
        });
        drop(one);
        assert_eq!(restarted(&mut lines, 2), 1);
        (2..=3).for_each(|number| assert_eq!(in_step(&mut lines), Some(number)));
        // Back to the first epoch, all of which the program has discarded.
        let mut one = log(&nodes[0], 1);
        publish(&mut one, 2);
        drop(other);
        assert_eq!(restarted(&mut lines, 1), 1);
        assert_eq!(lines.missing(), 0);
    }
}

/// It attaches again: nobody reads it.
#[test]
fn line_out_of_step_that_is_overtaken_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let open = |node: &Node, number| -> LogPublisher<u64> {
            let builder = node.log_publisher("t").capacity(4096).gating(Gating::new());
            builder.epoch(epoch(number)).open().unwrap()
        };
        let (mut one, mut other) = (open(&nodes[0], 1), open(&nodes[1], 2));
        let builder = subscribing.log_subscriber("shm:a/t").timeout(TIMEOUT).delivery(delivery);
        let builder = builder.slow(SlowPolicy::Disconnect);
        let mut lines: Lines<LogSubscriber<u64>> =
            builder.lines(["shm:b/t"]).gap_timeout(LITTLE).open().unwrap();
        publish(&mut one, 1);
        assert_eq!(in_step(&mut lines), Some(1));
        for round in 1..=3 {
            publish(&mut other, 3000 * round);
            let mut was_overtaken = false;
            wait_until("the line to attach again", || {
                assert_eq!(lines.try_receive().or_else(out_of_step).unwrap(), None);
                was_overtaken |= !lines.report()[1].is_attached;
                was_overtaken && lines.report()[1].is_attached
            });
        }
        publish(&mut one, 2);
        assert_eq!(in_step(&mut lines), Some(2));
    }
}

/// Its publisher returns when no line is left.
#[test]
fn epoch_that_comes_back_to_no_line_begins_with_its_first_record() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    for delivery in BOTH {
        let mut one = log(&nodes[0], 1);
        let mut lines = lines(&subscribing, delivery);
        publish(&mut one, 2);
        for number in 1..=2 {
            assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
        }
        let mut other = log(&nodes[1], 2);
        publish(&mut other, 1);
        drop(one);
        assert_eq!(restarted(&mut lines, 2), 1);
        drop(other);
        wait_until("the end of both", || {
            assert!(matches!(lines.try_receive(), Ok(None)));
            lines.report().iter().all(|line| !line.is_attached)
        });
        let mut one = log(&nodes[0], 1);
        publish(&mut one, 3);
        assert_eq!(restarted(&mut lines, 1), 1, "all of it again");
        for number in 2..=3 {
            assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
        }
    }
}

#[test]
fn epoch_that_comes_back_has_the_value_of_the_state_and_all_keys_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let state = |node: &Node, number| -> StatePublisher<u64> {
        let mut publisher = node.state_publisher("s").epoch(epoch(number)).open().unwrap();
        publisher.publish(&number).unwrap();
        publisher
    };
    let table = |node: &Node, number| -> TablePublisher<u64, u64> {
        let mut publisher = node.table_publisher("k").epoch(epoch(number)).open().unwrap();
        publisher.put_batch([(&1, &number), (&2, &number)]).unwrap();
        publisher
    };
    for delivery in BOTH {
        let one = (state(&nodes[0], 1), table(&nodes[0], 1));
        let builder = subscribing.state_subscriber::<u64>("shm:a/s").timeout(TIMEOUT).delivery(delivery);
        let mut values: Lines<StateSubscriber<u64>> = builder.lines(["shm:b/s"]).open().unwrap();
        let builder = subscribing.table_subscriber("shm:a/k").timeout(TIMEOUT).delivery(delivery);
        let mut keys: Lines<TableSubscriber<u64, u64>> = builder.lines(["shm:b/k"]).open().unwrap();
        assert_eq!(values.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(1));
        let changed = |lines: &mut Lines<TableSubscriber<u64, u64>>, expected| {
            let mut found = Vec::new();
            while found.len() < 2 {
                match lines.change_timeout(TIMEOUT) {
                    Ok(change) => found.push(change.expect("a change in time").key),
                    Err(ReceiveError::OutOfStep { .. }) => {}
                    Err(ReceiveError::Restarted { epoch: begun, .. }) => assert_eq!(begun, epoch(expected)),
                    Err(error) => panic!("{error}"),
                }
            }
            found.sort_unstable();
            assert_eq!(found, [1, 2]);
        };
        changed(&mut keys, 1);
        let other = (state(&nodes[1], 2), table(&nodes[1], 2));
        drop(one);
        assert_eq!(restarted(&mut values, 2), 2);
        changed(&mut keys, 2);
        let one = (state(&nodes[0], 1), table(&nodes[0], 1));
        drop(other);
        assert_eq!(restarted(&mut values, 1), 1);
        changed(&mut keys, 1);
        drop(one);
    }
}

/// No other line has the epoch that it left.
#[test]
fn next_epoch_of_all_lines_is_no_difference_between_them() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let mut publishers = nodes.each_ref().map(|node| log(node, 1));
    let mut lines = lines(&subscribing, Delivery::Pull);
    for day in 2..5 {
        drop(publishers);
        publishers = nodes.each_ref().map(|node| log(node, day));
        publishers.iter_mut().for_each(|publisher| publish(publisher, 1));
        let error = lines.receive_timeout(TIMEOUT).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { .. }), "{error}");
        assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(1));
    }
}

/// Nothing waits for the records between.
#[test]
fn line_that_begins_later_takes_nothing_from_one_that_pauses() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let mut one = log(&nodes[0], 1);
    publish(&mut one, 5);
    let mut lines = lines(&subscribing, Delivery::Pull);
    let later = nodes[1].log_publisher::<u64>("t").epoch(epoch(1)).after(Sequence::new(8)).open().unwrap();
    wait_until("the second line", || {
        assert!(lines.try_receive().unwrap().is_none());
        lines.report()[1].is_attached
    });
    assert!(lines.receive_timeout(5 * LITTLE).unwrap().is_none());
    publish(&mut one, 10);
    for number in 6..=10 {
        assert_eq!(lines.receive_timeout(TIMEOUT).unwrap().map(|sample| sample.value), Some(number));
    }
    assert_eq!((lines.missing(), later.newest().get()), (0, 8));
}

fn elapsed(since_ns: u64) -> Duration {
    Duration::from_nanos(SystemClock.monotonic_ns() - since_ns)
}

#[test]
fn line_that_is_still_sought_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (present, absent) = (node(&dir, "a"), node(&dir, "b"));
    let subscribing = anonymous(&dir);
    let waited = Duration::from_millis(1500);
    let builder = present.log_publisher("t").payload_len_max(64).capacity(1 << 12);
    let mut one: LogPublisher<u64> = builder.epoch(epoch(1)).open().unwrap();
    let builder = subscribing.log_subscriber::<u64>("shm:a/t").timeout(TIMEOUT);
    let mut lines = builder.lines(["shm:b/t"]).gap_timeout(waited).open().unwrap();
    publish(&mut one, 2000);
    let began_ns = SystemClock.monotonic_ns();
    let missing = lines.receive_timeout(TIMEOUT);
    assert!(
        matches!(missing, Err(ReceiveError::Missing { .. })) && elapsed(began_ns) >= waited,
        "{missing:?}"
    );
    while lines.try_receive().unwrap().is_some() {}
    // Only once.
    let began_ns = SystemClock.monotonic_ns();
    publish(&mut one, 4000);
    let missing = lines.receive_timeout(TIMEOUT);
    assert!(
        matches!(missing, Err(ReceiveError::Missing { .. })) && elapsed(began_ns) < waited,
        "{missing:?}"
    );
    drop(absent);
}
