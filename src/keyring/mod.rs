//! Keys that nodes prove to each other: what a keyring holds, and what proving a key permits. `docs/security.md` describes both, and
//! what is protected.

mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod key;
mod parse;
#[cfg(any(test, feature = "verbs"))]
mod request;
mod transcript;

pub use self::file::Keyring;
pub use self::key::{KeyName, Right};
pub use self::parse::{KeyLineError, KeyringError};

pub(crate) use self::key::{Authority, Key, KeyId, Keys};
#[cfg(feature = "verbs")]
pub(crate) use self::request::REQUEST_TAG_LEN;
pub(crate) use self::transcript::{Challenge, TAG_LEN, Transcript};

#[cfg(test)]
pub(crate) mod tests;
