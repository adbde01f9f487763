//! How a user type becomes bytes and back, and the schema that lets a stranger decode it.
//!
//! - `bincode` is the only file that names the crate of that name: golden bytes, errors put into sentences;
//! - `guard` stands between it and a type, and bounds what hostile bytes can make of either;
//! - `schema` is the description that travels, `format` its parts, `trace` makes one out of a Rust type;
//! - `dynamic` decodes by a schema alone.

mod bincode;
mod checked;
mod difference;
mod dynamic;
mod format;
mod guard;
mod plan;
mod pod;
mod schema;
mod trace;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;

pub use dynamic::Decoded;
pub use pod::Pod;
pub use schema::{Schema, SchemaError};

/// How values of a topic become bytes, and back.
///
/// The type parameter of a publisher or a subscriber chooses one:
///
/// | parameter | published by reference | received | bytes |
/// | --- | --- | --- | --- |
/// | any `T: Serialize + DeserializeOwned` | `&T` | `T` | bincode, little-endian, integers of fixed length |
/// | [`Pod<T>`] for `T: bytemuck::Pod` | `&T` | `T` | the memory of the value, nothing is encoded |
/// | [`Raw`] | `&[u8]` | `Vec<u8>` | the bytes themselves |
///
/// ```
/// use fabricast::Payload;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, Debug, PartialEq)]
/// struct Quote { bid: f64, ask: f64, venue: Option<String> }
///
/// let quote = Quote { bid: 99.5, ask: 100.25, venue: Some("XNAS".into()) };
/// let mut bytes = [0; 64];
/// let len = Quote::encode(&quote, &Quote::schema()?, &mut bytes)?;
/// assert_eq!(Quote::decode(&bytes[..len])?, quote);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: 'static {
    /// What a publisher takes by reference.
    type Borrowed: ?Sized;
    /// What a subscriber gets.
    type Owned: Send;
    /// Which encoding this is.
    const ENCODING: Encoding;

    /// The bytes of the value, if it lies in memory as its encoded form; the publisher then skips the
    /// encoder.
    fn as_bytes(value: &Self::Borrowed) -> Option<&[u8]>;

    /// Encodes the value into the beginning of `out` and returns the length. Allocates nothing, unless the
    /// type's own `Serialize` does. A value nested deeper than
    /// [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX) can be encoded, but no subscriber decodes it.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLong`] if `out` is too short: it may have been written to.
    /// [`EncodeError::Refused`] if the type's own `Serialize` gives up, or has no length to give for a
    /// sequence.
    fn encode(value: &Self::Borrowed, schema: &Schema, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// Decodes a value that takes up all of `bytes`. Memory is bounded by the length of `bytes`, whatever
    /// they claim, and nesting by [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX).
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are not exactly one value of this type, or exceed a limit.
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// The encoded length in bytes if all values have the same.
    fn fixed_len() -> Option<usize>;

    /// The description of the type that travels with the topic. Allocates; meant for start-up.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if the type can not be described.
    fn schema() -> Result<Schema, SchemaError>;

    /// The same as [`Self::schema`] for a type that takes only certain values: these samples are tried first for its texts,
    /// bytes, characters and numbers. They are no part of the schema.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if the type cannot be described.
    fn schema_with(samples: &[String]) -> Result<Schema, SchemaError> {
        let _ = samples;
        Self::schema()
    }
}

/// Which of the encodings of [`Payload`] a topic uses.
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
    /// The type can not be encoded, or its own `Serialize` failed.
    #[error("the value can not be encoded: {reason}")]
    Refused {
        /// What serde or the type said.
        reason: String,
    },
    /// The type's `Serialize` does not write what the schema of the topic has, and what its `Deserialize` would read: it
    /// would be received as another value.
    #[error("the value would be received as another one: {reason}")]
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
    /// The bytes can not be looked at in place, because of where they lie. Decoding them would work.
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

impl<T: Serialize + DeserializeOwned + Send + 'static> Payload for T {
    type Borrowed = T;
    type Owned = T;
    const ENCODING: Encoding = Encoding::Bincode;

    #[inline]
    fn as_bytes(_: &T) -> Option<&[u8]> {
        None
    }

    #[inline]
    fn encode(value: &T, schema: &Schema, out: &mut [u8]) -> Result<usize, EncodeError> {
        bincode::encode(value, schema.plan(), out)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        bincode::decode(bytes)
    }

    #[inline]
    fn fixed_len() -> Option<usize> {
        None
    }

    fn schema() -> Result<Schema, SchemaError> {
        Self::schema_with(&[])
    }

    fn schema_with(samples: &[String]) -> Result<Schema, SchemaError> {
        Schema::of::<T>(Encoding::Bincode, samples)
    }
}

/// Bytes without a type: a publisher gives `&[u8]`, a subscriber gets `Vec<u8>`.
///
/// ```
/// use fabricast::{Payload, Raw};
///
/// assert_eq!(Raw::as_bytes(b"tick"), Some(&b"tick"[..]));
/// assert_eq!(Raw::decode(b"tick")?, b"tick");
/// # Ok::<(), fabricast::DecodeError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Raw {}

impl Payload for Raw {
    type Borrowed = [u8];
    type Owned = Vec<u8>;
    const ENCODING: Encoding = Encoding::Raw;

    #[inline]
    fn as_bytes(value: &[u8]) -> Option<&[u8]> {
        Some(value)
    }

    #[inline]
    fn encode(value: &[u8], _: &Schema, out: &mut [u8]) -> Result<usize, EncodeError> {
        copy(value, out)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Ok(bytes.to_vec())
    }

    #[inline]
    fn fixed_len() -> Option<usize> {
        None
    }

    fn schema() -> Result<Schema, SchemaError> {
        Ok(Schema::raw())
    }
}

/// Copies a value that is its own encoding.
fn copy(bytes: &[u8], out: &mut [u8]) -> Result<usize, EncodeError> {
    let max = out.len();
    let room = out.get_mut(..bytes.len()).ok_or(EncodeError::TooLong { max })?;
    room.copy_from_slice(bytes);
    Ok(bytes.len())
}

#[cfg(test)]
mod tests;
