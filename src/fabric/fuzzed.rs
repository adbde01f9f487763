//! What providers parse of the bytes of others, for the fuzz targets.

use super::shm;
#[cfg(feature = "verbs")]
use super::verbs;
use super::{Address, Target};

/// Parses them as everything.
pub(crate) fn parse(bytes: &[u8]) {
    shm::fuzzed::parse(bytes);
    #[cfg(feature = "verbs")]
    verbs::fuzzed::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(address) = text.parse::<Address>() {
            assert_eq!(address.to_string().parse().ok(), Some(address), "{text}");
        }
        if let Ok(target) = text.parse::<Target>() {
            assert_eq!(target.to_string().parse().ok(), Some(target), "{text}");
        }
    }
}

/// What each provider sends.
#[cfg(test)]
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let mut samples = shm::fuzzed::samples();
    #[cfg(feature = "verbs")]
    samples.extend(verbs::fuzzed::samples());
    samples
        .extend(["shm:quotes/EURUSD", "rdma://10.0.0.1:7471/quotes/a", "rdma://[::1]:1/x"].map(Into::into));
    samples
}
