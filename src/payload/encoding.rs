use std::fmt;

use serde::{Deserialize, Serialize};

/// The encoding of a topic's values: see [`Payload`](super::Payload).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Encoding {
    /// Serde through bincode, little-endian, integers of fixed length.
    Bincode,
    /// The memory of a plain-old-data type: the same bytes as [`Encoding::Bincode`] for its fields.
    Pod,
    /// Bytes that only the application interprets.
    Raw,
}

impl Encoding {
    /// Its number beside a value, which never changes.
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
        /// The reason given by serde or the type.
        reason: String,
    },
    /// The type's `Serialize` departs from the topic's schema, and so from what its `Deserialize` would read: the value would be
    /// received as another one.
    #[error("the value would be received as a different value: {reason}")]
    Differs {
        /// Where it departs from the schema.
        reason: String,
    },
    /// The value is nested deeper than [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX): no subscriber would decode it.
    #[error(
        "the value is nested deeper than {max} levels: publish a flatter type, such as a list with indices"
    )]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The value has more elements without bytes of their own than a subscriber would decode.
    #[error(
        "the value has more than {max} elements, too many for a payload of its length: publish their count instead"
    )]
    TooManyElements {
        /// The limit for a payload of this length.
        max: usize,
    },
    /// The encoded value is longer than the buffer.
    #[error("the encoded value is longer than {max} bytes: declare a larger payload_len_max")]
    TooLong {
        /// The length of the buffer, bytes.
        max: usize,
    },
}

/// Why bytes are not a value of a type or schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes do not have the fixed length of the type.
    #[error("a value of this type has {expected} bytes, these are {found}")]
    Length {
        /// The length of the type, bytes.
        expected: usize,
        /// The given length, bytes.
        found: usize,
    },
    /// The bytes are not an encoded value of this type.
    #[error("the bytes are not a value of this type: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The bytes are not aligned for a value in place. Decoding them would work.
    #[error("the bytes are not aligned to {align}; decode a copy instead")]
    Misaligned {
        /// The alignment of the type, bytes.
        align: usize,
    },
    /// The value is nested deeper than [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX).
    #[error("the value is nested deeper than {max} levels")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The value claims more elements than its bytes can hold, or than the limit.
    #[error("the value claims more than {max} elements, too many for a payload of its length")]
    TooManyElements {
        /// The limit for a payload of this length.
        max: usize,
    },
    /// The value ends before the bytes do.
    #[error("{count} bytes are left over after the value: publisher and subscriber disagree about the type")]
    TrailingBytes {
        /// The bytes left over.
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
