//! Bytes of a bounded length in a message.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// At most `LEN_MAX` opaque bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes<const LEN_MAX: usize>(Vec<u8>);

impl<const LEN_MAX: usize> Bytes<LEN_MAX> {
    /// Wraps these bytes. `None` if there are too many.
    pub(crate) fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= LEN_MAX).then_some(Self(bytes))
    }

    /// Truncates these bytes to the bound.
    pub(crate) fn cut(bytes: &[u8]) -> Self {
        let (bytes, _) = bytes.split_at(bytes.len().min(LEN_MAX));
        Self(bytes.to_vec())
    }

    /// Returns the bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<const LEN_MAX: usize> Serialize for Bytes<LEN_MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de, const LEN_MAX: usize> Deserialize<'de> for Bytes<LEN_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

/// Reads the bytes at once, not one by one.
struct BytesVisitor<const LEN_MAX: usize>;

impl<const LEN_MAX: usize> Visitor<'_> for BytesVisitor<LEN_MAX> {
    type Value = Bytes<LEN_MAX>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {LEN_MAX} bytes")
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
        let len = bytes.len();
        Bytes::new(bytes).ok_or_else(|| E::invalid_length(len, &self))
    }
}
