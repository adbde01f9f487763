//! What the arbiter of a table keeps, and what it does with each poll.

use std::cell::Cell;

use super::*;
use crate::id::Epoch;

const A: usize = 0;
const B: usize = 1;
/// Cells of the tables.
const CAPACITY: usize = 25_000;

fn arbiter() -> TableArbiter {
    let mut arbiter = TableArbiter::default();
    arbiter.begin(Sequence::NONE, 2);
    arbiter
}

/// A commit that was published at ten times its number.
fn meta(commit: u64) -> Meta {
    Meta { sequence: Sequence::new(commit), epoch: Epoch::FIRST, published_ns: 10 * commit }
}

/// Judges a change of a key: the value of a commit, or its removal, in the life that another commit began.
fn judge(arbiter: &mut TableArbiter, line: usize, key: &str, commits: (u64, u64), is_present: bool) -> bool {
    let added = Sequence::new(commits.0);
    let (key_len, capacity) = (key.len(), CAPACITY);
    let changed = ChangedKey { key_len, number: 1, is_new: false, is_present, added, capacity };
    let arrival =
        Arrival { meta: meta(commits.1), conflated: 0, changed: Some(changed), payload: key.as_bytes() };
    arbiter.judge(line, &arrival) != Verdict::Duplicate
}

fn put(arbiter: &mut TableArbiter, line: usize, key: &str, commit: u64) -> bool {
    judge(arbiter, line, key, (commit, commit), true)
}

fn remove(arbiter: &mut TableArbiter, line: usize, key: &str, commits: (u64, u64)) -> bool {
    judge(arbiter, line, key, commits, false)
}

/// A line has read all up to this commit, and has these keys.
fn complete(arbiter: &mut TableArbiter, line: usize, commit: u64, has_key: impl Fn(&str) -> bool) {
    arbiter.complete(line, meta(commit), &|key| has_key(std::str::from_utf8(key).unwrap()));
}

/// Takes a key that was found to be gone, and the commit as of which it is.
fn take_gone(arbiter: &mut TableArbiter) -> Option<(String, u64)> {
    let GoneKey { key, meta: shown, .. } = arbiter.take_removed()?;
    assert_eq!(shown, meta(shown.sequence.get()), "the time is that of the commit");
    Some((String::from_utf8(key.into()).unwrap(), shown.sequence.get()))
}

fn gone(key: &str, commit: u64) -> Option<(String, u64)> {
    Some((key.to_owned(), commit))
}

/// How many keys it keeps in all of its collections.
fn kept(arbiter: &TableArbiter) -> usize {
    let TableArbiter { keys, dead, lines, gone, .. } = arbiter;
    let queued: usize = lines.iter().map(|line| line.unconfirmed.len()).sum();
    keys.held() + dead.len() + queued + gone.len()
}

/// A list of what a line had to confirm grew with each life of a key while the line was away.
#[test]
fn keys_that_come_and_go_while_a_line_is_away_take_no_memory() {
    let mut arbiter = arbiter();
    for commit in (1..40_000_u64).step_by(2) {
        let key = format!("k{}", commit % 1000);
        assert!(put(&mut arbiter, A, &key, commit));
        assert!(remove(&mut arbiter, A, &key, (commit, commit + 1)));
        complete(&mut arbiter, A, commit + 1, |_| false);
    }
    assert!(kept(&arbiter) < 10, "{}", kept(&arbiter));
}

#[test]
fn keys_that_never_return_take_no_memory_while_a_line_is_away() {
    let mut arbiter = arbiter();
    for commit in (1..40_000_u64).step_by(2) {
        let (key, before) = (format!("k{commit}"), format!("k{}", commit.saturating_sub(200)));
        assert!(put(&mut arbiter, A, &key, commit));
        if commit > 200 {
            assert!(remove(&mut arbiter, A, &before, (commit - 200, commit + 1)));
        }
        complete(&mut arbiter, A, commit + 1, |_| true);
    }
    assert!(kept(&arbiter) < 300, "{}", kept(&arbiter));
}

/// Each poll of a line that stood still looked at all keys that it had to confirm: this test did not come to an end.
#[test]
fn poll_of_a_line_that_has_not_advanced_looks_at_no_key() {
    let mut arbiter = arbiter();
    let count = 100_000;
    for commit in 1..=count {
        assert!(put(&mut arbiter, A, &format!("k{commit}"), commit));
    }
    let asked = Cell::new(0);
    let has_key = |_: &str| {
        asked.set(asked.get() + 1);
        true
    };
    for _ in 0..count {
        complete(&mut arbiter, B, 10, has_key);
    }
    assert_eq!(asked.get(), 10, "each key is looked at once");
    // Also while it advances, and while another line brings later values.
    for until in 11..=count {
        complete(&mut arbiter, B, until, has_key);
        assert!(judge(&mut arbiter, A, "k1", (1, count + until), true));
    }
    assert_eq!(asked.get(), count);
    assert_eq!(take_gone(&mut arbiter), None);
}

#[test]
fn line_that_brings_a_key_itself_is_not_asked_for_it() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, A, "k", 5));
    assert!(!put(&mut arbiter, B, "k", 5));
    assert!(judge(&mut arbiter, A, "k", (5, 8), true));
    complete(&mut arbiter, B, 9, |_| unreachable!("it reports the removal itself"));
    assert!(remove(&mut arbiter, B, "k", (5, 10)));
    // A later life is another matter.
    assert!(put(&mut arbiter, A, "k", 11));
    complete(&mut arbiter, B, 12, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("k", 12));
}

/// It carried the last commit of the first line, and the time of the last value of any line.
#[test]
fn key_that_is_gone_carries_the_commit_of_the_line_that_has_shown_it() {
    let mut arbiter = arbiter();
    arbiter.begin(Sequence::NONE, 3);
    for (key, commit) in [("k", 5), ("l", 6), ("m", 100)] {
        assert!(put(&mut arbiter, A, key, commit));
    }
    complete(&mut arbiter, B, 4, |_| false);
    assert_eq!(take_gone(&mut arbiter), None, "it has not got so far");
    complete(&mut arbiter, B, 50, |key| key == "l");
    complete(&mut arbiter, 2, 70, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("k", 50));
    assert_eq!(take_gone(&mut arbiter), gone("l", 70));
    assert_eq!(take_gone(&mut arbiter), None);
}

#[test]
fn key_with_a_later_value_is_gone_only_if_a_line_has_passed_that_value() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, A, "k", 5));
    assert!(judge(&mut arbiter, A, "k", (5, 8), true));
    complete(&mut arbiter, B, 7, |_| false);
    assert_eq!(take_gone(&mut arbiter), None, "commit 8 has it");
    complete(&mut arbiter, B, 8, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("k", 8));
    assert!(!judge(&mut arbiter, A, "k", (5, 8), true), "it stays removed");
}

#[test]
fn key_that_is_brought_after_a_line_has_passed_it_is_looked_at_without_an_advance() {
    let mut arbiter = arbiter();
    arbiter.begin(Sequence::NONE, 3);
    complete(&mut arbiter, B, 4, |_| false);
    for (key, commit) in [("k", 5), ("l", 9)] {
        assert!(put(&mut arbiter, A, key, commit));
    }
    complete(&mut arbiter, B, 9, |key| key == "l");
    assert_eq!(take_gone(&mut arbiter), gone("k", 9));
    assert!(put(&mut arbiter, A, "m", 10));
    complete(&mut arbiter, A, 10, |_| true);
    complete(&mut arbiter, B, 20, |key| key != "m");
    assert_eq!(take_gone(&mut arbiter), gone("m", 20));
    assert_eq!(take_gone(&mut arbiter), None);
    assert!(!put(&mut arbiter, 2, "m", 10), "it stays removed");
}

/// The place of a key is taken by one with an earlier value.
#[test]
fn key_in_the_place_of_a_removed_one_waits_for_its_own_commit() {
    let mut arbiter = arbiter();
    arbiter.begin(Sequence::NONE, 3);
    assert!(put(&mut arbiter, A, "late", 100));
    arbiter.retain_keys(&|_| false);
    assert!(put(&mut arbiter, 2, "early", 50));
    complete(&mut arbiter, B, 60, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("early", 60));
    assert_eq!(take_gone(&mut arbiter), None);
}

/// A line has shown a key, and its publisher is replaced by one that was behind and never had it, as far as the line has seen.
#[test]
fn line_shows_its_keys_again_after_it_has_attached() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, A, "k", 5));
    assert!(!put(&mut arbiter, B, "k", 5));
    arbiter.join(B);
    complete(&mut arbiter, B, 3, |_| false);
    assert_eq!(take_gone(&mut arbiter), None);
    complete(&mut arbiter, B, 7, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("k", 7));
}

/// A damaged entry keeps a line from ever being complete.
#[test]
fn removed_keys_take_little_memory_if_no_line_is_ever_complete() {
    let mut arbiter = arbiter();
    let count = 200_000_u64;
    for commit in (1..count).step_by(2) {
        let key = if commit % 4 == 1 { format!("k{commit}") } else { "k".to_owned() };
        assert!(put(&mut arbiter, A, &key, commit));
        assert!(remove(&mut arbiter, A, &key, (commit, commit + 1)));
        complete(&mut arbiter, A, 0, |_| false);
        complete(&mut arbiter, B, 0, |_| false);
        // A line that is not far behind undoes nothing.
        let before = commit.saturating_sub(4000);
        assert!(before % 4 != 1 || !put(&mut arbiter, B, &format!("k{before}"), before));
        assert!(!put(&mut arbiter, B, "k", commit.saturating_sub(4)));
    }
    assert!(kept(&arbiter) <= 2 * (limits::LINE_REMOVED_MAX + 3), "{}", kept(&arbiter));
}

#[test]
fn key_whose_removal_is_forgotten_comes_again_only_of_a_line_far_behind_that_removes_it_again() {
    let mut arbiter = arbiter();
    let count = limits::LINE_REMOVED_MAX as u64 + 2;
    for number in 0..count {
        let (key, commit) = (format!("k{number}"), 2 * number + 1);
        assert!(put(&mut arbiter, A, &key, commit));
        assert!(remove(&mut arbiter, A, &key, (commit, commit + 1)));
    }
    assert!(!put(&mut arbiter, B, "k1", 3), "the last removal that is remembered");
    assert!(put(&mut arbiter, B, "k0", 1));
    assert!(remove(&mut arbiter, B, "k0", (1, 2)));
    assert!(!put(&mut arbiter, B, "k0", 1));
}

/// As many removals as the table had keys at once are remembered in any case.
#[test]
fn removal_of_all_keys_of_a_large_table_is_not_forgotten() {
    let mut arbiter = arbiter();
    let count = 4 * limits::LINE_REMOVED_MAX as u64;
    for number in 1..=count {
        assert!(put(&mut arbiter, A, &format!("k{number}"), number));
    }
    for number in 1..=count {
        assert!(remove(&mut arbiter, A, &format!("k{number}"), (number, count + 1)));
    }
    for number in 1..=count {
        assert!(!put(&mut arbiter, B, &format!("k{number}"), number));
    }
}

/// The removal of a life that was never received was taken for one of the life before.
#[test]
fn removal_of_a_later_life_ends_that_life_too() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, A, "k", 1));
    assert!(!put(&mut arbiter, B, "k", 1));
    assert!(remove(&mut arbiter, A, "k", (1, 2)));
    assert!(!remove(&mut arbiter, B, "k", (3, 4)));
    assert!(!put(&mut arbiter, A, "k", 3), "it was removed by commit 4");
    assert!(put(&mut arbiter, A, "k", 5));
}

/// A publisher that never removes a key.
#[test]
fn line_that_brings_more_keys_than_a_table_has_takes_little_memory_and_harms_no_other() {
    let mut arbiter = arbiter();
    let most = (limits::LINE_KEYS_PER_CELL * CAPACITY) as u64;
    for commit in 1..=most + 1000 {
        assert_eq!(put(&mut arbiter, A, &format!("k{commit}"), commit), commit <= most);
        // A key that comes again counts once.
        assert!(put(&mut arbiter, A, "k1", 1_000_000 + commit));
    }
    let far = most + 1_000;
    assert!(kept(&arbiter) as u64 <= 2 * most, "{}", kept(&arbiter));
    // The other line brings what was left out, also once this one says that it has all keys, and loses none that this one lacks.
    complete(&mut arbiter, A, 10_000_000, |_| false);
    assert!(put(&mut arbiter, B, &format!("k{far}"), far));
    assert!(put(&mut arbiter, B, "k2", 2_000_000));
    complete(&mut arbiter, A, 10_000_000, |_| false);
    assert_eq!(take_gone(&mut arbiter), None);
    // There is room for one again.
    assert!(put(&mut arbiter, A, "new", 3_000_000));
    assert!(!put(&mut arbiter, A, "newer", 3_000_001));
    assert!(remove(&mut arbiter, A, "k3", (3, 3_000_002)));
    assert!(put(&mut arbiter, A, "newer", 3_000_003));
    // A later life of a key of the other line is another key of this one.
    assert!(!put(&mut arbiter, A, "k2", 3_000_004));
    arbiter.begin(Sequence::NONE, 2);
    assert!(put(&mut arbiter, A, "k1", 1));
}

/// A wrong read has hidden two keys of the first line.
#[test]
fn keys_that_a_line_wrongly_lacked_are_received_once_they_are_offered_again() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, B, "gone", 5));
    complete(&mut arbiter, A, 9, |_| false);
    assert_eq!(take_gone(&mut arbiter), gone("gone", 9));
    for key in ["gone", "dropped"] {
        assert!(!judge(&mut arbiter, B, key, (5, 6), true), "{key}");
    }
    assert!(put(&mut arbiter, B, "later", 10));
    arbiter.doubt();
    for (key, is_received) in [("gone", true), ("dropped", true), ("later", false)] {
        assert_eq!(judge(&mut arbiter, B, key, (if is_received { 5 } else { 10 }, 10), true), is_received);
    }
    // What the lines show from now on counts.
    complete(&mut arbiter, A, 12, |key| key == "dropped");
    assert_eq!(take_gone(&mut arbiter), gone("later", 12));
    assert_eq!(take_gone(&mut arbiter), gone("gone", 12));
    assert_eq!(take_gone(&mut arbiter), None);
    assert!(!put(&mut arbiter, B, "gone", 5));
}

/// A line that has attached again, or has a damaged entry, has yet to show what it had shown before.
#[test]
fn removed_keys_stay_removed_when_the_line_that_removed_them_is_behind_too() {
    let mut arbiter = arbiter();
    assert!(put(&mut arbiter, A, "k", 5));
    assert!(remove(&mut arbiter, A, "k", (5, 6)));
    complete(&mut arbiter, A, 9, |_| false);
    arbiter.join(A);
    complete(&mut arbiter, A, 0, |_| false);
    complete(&mut arbiter, A, 2, |_| false);
    assert!(!put(&mut arbiter, B, "k", 5));
}
