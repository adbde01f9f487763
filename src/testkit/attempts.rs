//! Bounds in time, which a machine that does something else as well may miss now and then.

use std::fmt::Debug;

/// Attempts, of which one has to succeed.
const ATTEMPTS: usize = 3;

/// Tries until one of three attempts succeeds: a busy machine has bad moments, and what is too slow is so each time.
#[track_caller]
pub(crate) fn one_of_three(mut attempt: impl FnMut() -> Result<(), String>) {
    let mut failures = Vec::new();
    while let Err(failure) = attempt() {
        failures.push(failure);
        assert!(failures.len() < ATTEMPTS, "at each attempt: {failures:?}");
    }
}

/// Whether what was measured is below its bound.
pub(crate) fn below<T: PartialOrd + Debug>(what: &str, measured: T, bound: T) -> Result<(), String> {
    if measured < bound { Ok(()) } else { Err(format!("{what}: {measured:?}, not below {bound:?}")) }
}
