//! Tests that may take minutes.

/// The environment variable that makes tests run in full, which takes minutes.
const LONG: &str = "FABRICAST_TEST_LONG";

/// Returns whether `FABRICAST_TEST_LONG` is 1.
pub(crate) fn is_long() -> bool {
    std::env::var(LONG).is_ok_and(|value| value == "1")
}
