//! The messages with which two ends prove keys to each other.

use serde::{Deserialize, Serialize};

use super::list::List;
use crate::keyring::{KeyId, TAG_LEN};
use crate::limits;

/// Proves one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proof {
    /// Which.
    pub(crate) key: KeyId,
    /// The tag that only its holders can make.
    pub(crate) tag: [u8; TAG_LEN],
}

/// The keys that the sender proves: first those of the end that dialled, then those of them that the other end knows.
pub(crate) type Prove = List<Proof, { limits::KEYS_PROVEN_MAX }>;
