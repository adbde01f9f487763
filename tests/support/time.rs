//! Time, and waiting for expected events.

use std::time::{Duration, Instant};

/// How long anything may take that is not itself a bound: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[expect(
    clippy::disallowed_methods,
    reason = "the tests look at the library from outside, by the real clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, done);
}

/// Like [`wait_until`], within a bound that the test is about.
#[track_caller]
pub(crate) fn wait_within(bound: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let began = now();
    while !done() {
        assert!(began.elapsed() < bound, "waited in vain for {bound:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
