//! Time bounds, which a busy machine may miss now and then.

use std::fmt::Debug;

/// Attempts, one of which has to succeed.
const ATTEMPTS: usize = 3;

/// Tries up to three times: a busy machine is slow at times, but code that is too slow is so each time.
#[track_caller]
pub(crate) fn one_of_three(mut attempt: impl FnMut() -> Result<(), String>) {
    let mut failures = Vec::new();
    while let Err(failure) = attempt() {
        failures.push(failure);
        assert!(failures.len() < ATTEMPTS, "every attempt failed: {failures:?}");
    }
}

/// Checks that a measured value is below its bound.
pub(crate) fn below<T: PartialOrd + Debug>(what: &str, measured: T, bound: T) -> Result<(), String> {
    if measured < bound { Ok(()) } else { Err(format!("{what}: {measured:?}, not below {bound:?}")) }
}
