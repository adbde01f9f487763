//! The messages with which two ends prove keys to each other.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

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

/// The keys that the sender proves, at most [`KEYS_PROVEN_MAX`](limits::KEYS_PROVEN_MAX): first those of the end that dialled, then
/// those of them that the other end knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Prove(Vec<Proof>);

impl Prove {
    /// Takes as many as fit.
    pub(crate) fn cut(proofs: impl IntoIterator<Item = Proof>) -> Self {
        Self(proofs.into_iter().take(limits::KEYS_PROVEN_MAX).collect())
    }

    /// Returns the proofs.
    pub(crate) fn proofs(&self) -> &[Proof] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Prove {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ProveVisitor)
    }
}

/// Checks the number of proofs before reading them.
struct ProveVisitor;

impl<'de> Visitor<'de> for ProveVisitor {
    type Value = Prove;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {} proofs", limits::KEYS_PROVEN_MAX)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prove, A::Error> {
        let mut proofs = Vec::new();
        if let Some(len) = seq.size_hint().filter(|len| *len > limits::KEYS_PROVEN_MAX) {
            return Err(A::Error::invalid_length(len, &self));
        }
        while let Some(proof) = seq.next_element()? {
            if proofs.len() == limits::KEYS_PROVEN_MAX {
                return Err(A::Error::invalid_length(proofs.len() + 1, &self));
            }
            proofs.push(proof);
        }
        Ok(Prove(proofs))
    }
}
