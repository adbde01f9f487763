//! What providers read of peers before there is a session, and the entries of the runtime directory.

use crate::fabric;

/// Everything that a provider parses, from the same bytes.
pub(super) fn run(bytes: &[u8]) {
    fabric::fuzzed::parse(bytes);
}

/// What providers send.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    fabric::fuzzed::samples()
}
