//! What providers parse of the bytes of others, for the fuzz targets.

use super::shm;
#[cfg(feature = "verbs")]
use super::verbs;
use super::{Address, Target, wake_socket};

/// Parses them as everything.
pub(crate) fn parse(bytes: &[u8]) {
    shm::fuzzed::parse(bytes);
    #[cfg(feature = "verbs")]
    verbs::fuzzed::parse(bytes);
    wake_tokens(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(address) = text.parse::<Address>() {
            assert_eq!(address.to_string().parse().ok(), Some(address), "{text}");
        }
        if let Ok(target) = text.parse::<Target>() {
            assert_eq!(target.to_string().parse().ok(), Some(target), "{text}");
        }
    }
}

/// What arrives at a wake socket.
fn wake_tokens(bytes: &[u8]) {
    let mut tokens = Vec::new();
    let is_whole = wake_socket::tokens_of(bytes, &mut tokens);
    let again: Vec<u8> = tokens.iter().flat_map(|token| wake_socket::bytes_of(*token)).collect();
    assert_eq!(is_whole, again == bytes, "{tokens:?}");
}

/// What each provider sends.
#[cfg(test)]
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let mut samples = shm::fuzzed::samples();
    #[cfg(feature = "verbs")]
    samples.extend(verbs::fuzzed::samples());
    samples.push([7, 0, u32::MAX].map(wake_socket::bytes_of).concat());
    samples
        .extend(["shm:quotes/EURUSD", "rdma://10.0.0.1:7471/quotes/a", "rdma://[::1]:1/x"].map(Into::into));
    samples
}
