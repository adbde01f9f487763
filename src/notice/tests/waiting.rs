//! Subscriptions that wait for news while another thread receives from the channel.

use std::time::Duration;

use super::*;
use crate::clock::{Clock, SystemClock};
use crate::fabric::wait;

/// Whether this becomes readable within so many milliseconds.
fn is_readable(handle: BorrowedFd<'_>, within_ms: u64) -> bool {
    let began_ns = SystemClock.monotonic_ns();
    wait(&[handle], &[], Duration::from_millis(within_ms)).unwrap();
    SystemClock.monotonic_ns() - began_ns < within_ms * 1_000_000
}

#[test]
fn waiting_subscription_is_woken_by_the_receiving_thread() {
    let (pair, mailbox) = Pair::with_topic();
    let other = pair.receiver.subscribe(TopicId::new(8), Epoch::FIRST, keys(KEY));
    for sequence in 1..=3 {
        let (handle, others) = (mailbox.begin_wait().unwrap(), other.begin_wait().unwrap());
        assert!(!is_readable(handle, 2) && !mailbox.has_news(Sequence::new(sequence - 1)));
        pair.announce(sequence);
        pair.deliver(1);
        assert!(is_readable(handle, 60_000) && !is_readable(others, 2));
        mailbox.end_wait();
    }
    // Without a waiting thread nothing is left behind for the next wait.
    pair.announce(4);
    pair.deliver(1);
    assert!(!is_readable(mailbox.begin_wait().unwrap(), 2) && mailbox.has_news(Sequence::new(3)));
}
