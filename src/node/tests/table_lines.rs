//! Lines of a table whose keys, publishers or memory change in unusual ways.

use std::collections::BTreeMap;

use super::*;
use crate::id::Epoch;
use crate::publisher::TablePublisher;
use crate::subscriber::{Lines, TableSubscriber};

type Table = BTreeMap<String, u64>;
type Publisher = TablePublisher<String, u64>;
type Subscriber = Lines<TableSubscriber<String, u64>>;

fn table(node: &Node) -> Publisher {
    node.table_publisher("t").capacity(8).epoch(Epoch::new(5).unwrap()).open().unwrap()
}

fn lines(node: &Node) -> Subscriber {
    let builder = node.table_subscriber::<String, u64>("shm:a/t").timeout(TIMEOUT);
    builder.lines(["shm:b/t"]).open().unwrap()
}

/// The publishers of two nodes, each with the same key, and a subscriber to both.
fn two_of_one_key(publishing: [&Node; 2], subscribing: &Node) -> ([Publisher; 2], Subscriber) {
    let mut publishers = publishing.map(table);
    publishers.iter_mut().for_each(|publisher| _ = publisher.put("k1", &1).unwrap());
    (publishers, lines(subscribing))
}

/// Receives all changes there are, into a map.
fn follow(lines: &mut Subscriber, held: &mut Table) {
    while let Some(change) = lines.try_change().unwrap() {
        match change.value {
            Some(value) => _ = held.insert(change.key, value),
            None => _ = held.remove(&change.key).expect("a key that was received"),
        }
    }
}

/// Receives until the first line has got this far.
fn follow_until(lines: &mut Subscriber, held: &mut Table, commit: u64) {
    wait_until("the line to get there", || {
        follow(lines, held);
        let line = &lines.report()[0];
        line.is_attached && line.last.get() == commit
    });
    follow(lines, held);
}

fn map<const COUNT: usize>(entries: [(&str, u64); COUNT]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The line has attached again, and has not brought the key again that it had brought before. It was forgotten, so that every later
/// change of it was dropped.
#[test]
fn keys_are_not_forgotten_that_are_wanted_before_and_after() {
    let dir = tempfile::tempdir().unwrap();
    let subscribing = anonymous(&dir);
    let first = node(&dir, "a");
    let mut publisher = table(&first);
    let mut lines = lines(&subscribing);
    publisher.put("k1", &1).unwrap();
    publisher.put("k2", &2).unwrap();
    let mut held = Table::new();
    follow_until(&mut lines, &mut held, 2);
    drop((publisher, first));
    let first = node(&dir, "a");
    let mut publisher = table(&first);
    publisher.put("k1", &1).unwrap();
    follow_until(&mut lines, &mut held, 1);
    lines.configure(|table| table.all_keys());
    publisher.put("k2", &2).unwrap();
    follow_until(&mut lines, &mut held, 2);
    assert_eq!(held, map([("k1", 1), ("k2", 2)]));
    publisher.put("k2", &3).unwrap();
    follow_until(&mut lines, &mut held, 3);
    assert_eq!(held, map([("k1", 1), ("k2", 3)]));
    publisher.remove("k2").unwrap();
    follow_until(&mut lines, &mut held, 4);
    assert_eq!(held, map([("k1", 1)]));
}

/// A line that had seemed to have all commits there will ever be made every later key of every line a removed one.
#[test]
fn line_that_seemed_to_be_ahead_silences_no_other_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let ([one, mut other], mut lines) = two_of_one_key([&first, &second], &subscribing);
    let mut held = Table::new();
    other.put("k2", &2).unwrap();
    follow(&mut lines, &mut held);
    one.pretend_everywhere(1 << 40);
    follow(&mut lines, &mut held);
    assert_eq!(held, map([("k1", 1)]), "the first line seems not to have the other key");
    other.put("k3", &3).unwrap();
    follow(&mut lines, &mut held);
    assert_eq!(held, map([("k1", 1)]));
    one.pretend_everywhere(1);
    // One finds the error, the other offers its keys again.
    (0..2).for_each(|_| follow(&mut lines, &mut held));
    assert_eq!(held, map([("k1", 1), ("k2", 2), ("k3", 3)]));
    drop((one, first));
    other.put("k4", &4).unwrap();
    other.remove("k2").unwrap();
    follow(&mut lines, &mut held);
    assert_eq!(held, map([("k1", 1), ("k3", 3), ("k4", 4)]));
}

/// Its pages show that its hot line is damaged.
#[test]
fn line_whose_hot_line_is_ahead_hides_no_key_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let ([mut one, mut other], mut lines) = two_of_one_key([&first, &second], &subscribing);
    let mut held = Table::new();
    one.pretend(2);
    other.put("k2", &2).unwrap();
    follow(&mut lines, &mut held);
    assert_eq!(held, map([("k1", 1), ("k2", 2)]));
    // The publisher of the first line gives the sequence to its own next commit.
    one.put("k2", &2).unwrap();
    drop((other, second));
    one.put("k3", &3).unwrap();
    follow(&mut lines, &mut held);
    assert_eq!(held, map([("k1", 1), ("k2", 2), ("k3", 3)]));
}

#[test]
fn line_with_a_damaged_entry_removes_keys_of_another_line_once_the_entry_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = [node(&dir, "a"), node(&dir, "b")];
    let subscribing = anonymous(&dir);
    let (mut one, mut other) = (table(&first), table(&second));
    let mut lines = lines(&subscribing);
    let mut held = Table::new();
    one.put_batch([("k", &1), ("l", &2)]).unwrap();
    follow(&mut lines, &mut held);
    drop((one, first));
    other.put_batch([("k", &1), ("l", &2)]).unwrap();
    other.remove("k").unwrap();
    other.damage(&crate::payload::encode_unchecked("l").unwrap());
    let error = lines.change_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, ReceiveError::Damaged { .. }), "{error}");
    (0..3).for_each(|_| follow(&mut lines, &mut held));
    assert_eq!(held, map([("k", 1), ("l", 2)]), "the damaged entry may be that of the key");
    other.put("l", &3).unwrap();
    (0..2).for_each(|_| follow(&mut lines, &mut held));
    assert_eq!(held, map([("l", 3)]));
}
