use std::fmt;

use serde::{Deserialize, Serialize};

/// Which of the encodings of [`Payload`](super::Payload) a topic uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Encoding {
    /// Serde through bincode, little-endian, integers of fixed length.
    Bincode,
    /// The memory of a plain-old-data type. The same bytes that [`Encoding::Bincode`] gives for its fields.
    Pod,
    /// Bytes that mean something to the application only.
    Raw,
}

impl Encoding {
    /// The number that stands for it beside a value; it never changes.
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Bincode => 1,
            Self::Pod => 2,
            Self::Raw => 3,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Bincode => "bincode",
            Self::Pod => "pod",
            Self::Raw => "raw",
        })
    }
}

/// Why a value could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type cannot be encoded, or its own `Serialize` failed.
    #[error("the value cannot be encoded: {reason}")]
    Refused {
        /// What serde or the type said.
        reason: String,
    },
    /// The type's `Serialize` does not write what the schema of the topic has, and what its `Deserialize` would read: it
    /// would be received as another value.
    #[error("the value would be received as a different value: {reason}")]
    Differs {
        /// Where it departs from the schema.
        reason: String,
    },
    /// The value is nested deeper than [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX), so that no subscriber would
    /// decode it.
    #[error(
        "the value is nested deeper than {max} levels: publish a flatter type, such as a list with indices"
    )]
    TooDeep {
        /// Levels allowed.
        max: usize,
    },
    /// The value has more elements without bytes of their own than a subscriber would decode.
    #[error(
        "the value has more than {max} elements, too many for a payload of its length: publish their count instead"
    )]
    TooManyElements {
        /// Elements allowed in a payload of this length.
        max: usize,
    },
    /// The value needs more room than there is.
    #[error("the encoded value is longer than {max} bytes; declare a larger payload for the topic")]
    TooLong {
        /// Bytes there was room for.
        max: usize,
    },
}

/// Why bytes are not a value of a type, or of a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes do not have the one length that the type has.
    #[error("a value of this type has {expected} bytes, these are {found}")]
    Length {
        /// Bytes of the type.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The bytes are not an encoded value of this type.
    #[error("the bytes are not a value of this type: {reason}")]
    Malformed {
        /// What does not fit.
        reason: String,
    },
    /// The bytes cannot be looked at in place, because of where they lie. Decoding them would work.
    #[error("the bytes are not aligned to {align}; decode a copy instead")]
    Misaligned {
        /// Alignment of the type, bytes.
        align: usize,
    },
    /// The value is nested deeper than [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX).
    #[error("the value is nested deeper than {max} levels")]
    TooDeep {
        /// Levels allowed.
        max: usize,
    },
    /// The value claims more elements than its bytes can hold, or than are worth decoding.
    #[error("the value claims more than {max} elements, too many for a payload of its length")]
    TooManyElements {
        /// Elements allowed in a payload of this length.
        max: usize,
    },
    /// The value ends before the bytes do.
    #[error("{count} bytes are left over after the value; publisher and subscriber disagree about the type")]
    TrailingBytes {
        /// Bytes left over.
        count: usize,
    },
}

/// Copies a value that is its own encoding.
pub(super) fn copy(bytes: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
    let max = out.len();
    let room = out.get_mut(..bytes.len()).ok_or(EncodeError::TooLong { max })?;
    room.copy_from_slice(bytes);
    Ok(bytes.len())
}
