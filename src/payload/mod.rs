//! Encoding of user types, and the schema with which programs that do not know a type decode it.
//!
//! - `bincode` is the only file that names the crate of that name: golden bytes, and errors as sentences;
//! - `guard` stands between it and a type, and bounds what hostile bytes can do to either;
//! - `checked` stands between a value and it, and compares the value with the `plan` of its topic's schema;
//! - `quick` does the same for every publish, at full speed; for a value that differs, `checked` decides and gives the reason;
//! - `schema` is the transmitted description, `format` its parts, and `trace` makes one from a Rust type;
//! - `dynamic` decodes by a schema alone, `difference` names the differences between two.

mod bincode;
mod checked;
mod difference;
mod dynamic;
mod encoding;
mod format;
mod guard;
mod plan;
mod pod;
mod quick;
mod schema;
mod step;
mod trace;

use serde::{Serialize, de::DeserializeOwned};

pub use dynamic::Decoded;
use encoding::copy;
pub use encoding::{DecodeError, EncodeError, Encoding};
pub use pod::Pod;
pub use schema::{Schema, SchemaError};

/// An encoding of a topic's values.
///
/// The type parameter of a publisher or a subscriber chooses one:
///
/// | parameter | published by reference | received | bytes |
/// | --- | --- | --- | --- |
/// | any `T: Serialize + DeserializeOwned` | `&T` | `T` | bincode, little-endian, integers of fixed length |
/// | [`Pod<T>`] for `T: bytemuck::Pod` | `&T` | `T` | the memory of the value, unencoded |
/// | [`Raw`] | `&[u8]` | `Vec<u8>` | the bytes themselves |
/// | a type that implements this trait | any | any | any |
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
///
/// # Serde types
///
/// Encoded bytes carry no names. Whatever `Serialize` omits, or writes differently from what `Deserialize` reads, would be
/// received as another value. So the schema is made from the type's `Deserialize`; opening a publisher or subscriber refuses a
/// type whose `Serialize` writes something else; and encoding compares each value with the schema.
///
/// | | |
/// | --- | --- |
/// | types that work | structs, tuples, enums, generics, options, sequences, maps, recursive types |
/// | of the standard library | also `NonZero`, `IpAddr`, `SocketAddr`, `Duration`, `SystemTime` |
/// | of other crates | `chrono`'s `DateTime` and `Naive` types, `uuid::Uuid`, `rust_decimal::Decimal` with `serde-str` |
/// | attributes that work | `rename`, `rename_all`, `default`, `transparent`, `remote`, `deny_unknown_fields` |
/// | that work if each half reverses the other | `with`, `from`, `try_from`, `into` |
/// | `skip` of a field | the field is not sent: it arrives as its default |
/// | `skip` of the last variants of an enum | publish refuses them |
/// | refused when opened | `skip_serializing_if`, `skip_serializing`, `skip_deserializing` of a field, `skip` of other variants |
/// | refused when opened, because the bytes carry no names | `flatten`, `untagged`, `tag`, `content`, `alias`,
/// `serde_json::Value` |
/// | refused by publish | values nested deeper than [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX) |
///
/// `Decimal` without the feature `serde-str` works in a field with `#[serde(with = "rust_decimal::serde::str")]`.
///
/// Opening a topic checks with sample values what `with`, conversions and a type's own `Serialize` do; publishing does not check
/// again. Not detected: functions that round (such as `chrono::serde::ts_milliseconds`, or chrono's own for a UTC offset with
/// seconds), always write the same, or reorder or omit elements of a sequence. Such a value is received as those functions wrote
/// it.
///
/// Checking a value costs about one comparison for each struct, sequence, option and enum in it. For recursive types, and for
/// sequences of elements without bytes, which have to be counted, it takes several times as long as encoding. A `Serialize` that
/// writes the same bytes by other calls than `Deserialize` reads (bytes for a sequence of `u8`, a struct for a tuple) is encoded
/// twice at each publish.
///
/// # Types that check their values
///
/// A type whose `Deserialize` accepts only certain values is tried with several: numbers, dates, times, identifiers, addresses.
/// If it accepts none of them, name one that it accepts, on both sides; the two need not be equal:
///
/// ```
/// use fabricast::Node;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Serialize, Deserialize)]
/// #[serde(try_from = "String", into = "String")]
/// struct Account(String);
///
/// impl TryFrom<String> for Account {
///     type Error = &'static str;
///     fn try_from(text: String) -> Result<Self, Self::Error> {
///         if text.starts_with("ACME-") { Ok(Self(text)) } else { Err("not an account") }
///     }
/// }
/// # impl From<Account> for String { fn from(account: Account) -> Self { account.0 } }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let node = Node::builder().name("desk")?.runtime_dir(dir.path()).open()?;
///
/// let mut accounts = node.state_publisher::<Account>("account").sample("ACME-1").open()?;
/// let subscriber = node.state_subscriber::<Account>("shm:desk/account").sample("ACME-2").open()?;
/// # accounts.publish(&Account("ACME-7".into()))?;
/// # Ok(())
/// # }
/// ```
///
/// # Custom encodings
///
/// A type that is not `Serialize + DeserializeOwned` may implement this trait itself. [`Schema::own`] names the type and its
/// encoding: only subscribers with the same name, and those of [`Raw`], receive its values.
///
/// ```
/// use fabricast::{DecodeError, EncodeError, Encoding, Payload, Schema, SchemaError};
///
/// struct Order { id: u64, price: u32 }
///
/// impl Payload for Order {
///     type Borrowed = Self;
///     type Owned = Self;
///     const ENCODING: Encoding = Encoding::Raw;
///
///     fn as_bytes(_: &Self) -> Option<&[u8]> {
///         None
///     }
///     fn encode(order: &Self, _: &Schema, out: &mut [u8]) -> Result<usize, EncodeError> {
///         let max = out.len();
///         let out = out.first_chunk_mut::<12>().ok_or(EncodeError::TooLong { max })?;
///         out[..8].copy_from_slice(&order.id.to_be_bytes());
///         out[8..].copy_from_slice(&order.price.to_be_bytes());
///         Ok(out.len())
///     }
///     fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
///         let length = DecodeError::Length { expected: 12, found: bytes.len() };
///         let bytes: &[u8; 12] = bytes.try_into().map_err(|_| length)?;
///         let [a, b, c, d, e, f, g, h, price @ ..] = *bytes;
///         Ok(Self { id: u64::from_be_bytes([a, b, c, d, e, f, g, h]), price: u32::from_be_bytes(price) })
///     }
///     fn fixed_len() -> Option<usize> {
///         Some(12)
///     }
///     fn schema() -> Result<Schema, SchemaError> {
///         Schema::own("Order (exchange format 3)")
///     }
/// }
/// # let mut bytes = [0; 12];
/// # Order::encode(&Order { id: 1 << 40, price: 7 }, &Order::schema()?, &mut bytes)?;
/// # assert_eq!(Order::decode(&bytes)?.id, 1 << 40);
/// # assert_eq!(Order::decode(&bytes)?.price, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Payload: 'static {
    /// The type that a publisher takes by reference.
    type Borrowed: ?Sized;
    /// The type that a subscriber receives.
    type Owned: Send;
    /// The encoding.
    const ENCODING: Encoding;

    /// Returns the bytes of the value if its memory is its encoded form; the publisher then skips the encoder.
    fn as_bytes(value: &Self::Borrowed) -> Option<&[u8]>;

    /// Encodes the value into the beginning of `out` and returns the length. Allocates only if the type's own `Serialize` does.
    /// `schema` is the topic's, from [`Self::schema`]; a serde value is compared with it. A value that differs is serialized a
    /// second time, for the reason in the error.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooLong`] if `out` is too short; it may have been written to. [`EncodeError::Differs`],
    /// [`EncodeError::TooDeep`] or [`EncodeError::TooManyElements`] if no subscriber would receive this value.
    /// [`EncodeError::Refused`] if the type's own `Serialize` fails, or does not give the length of a sequence.
    fn encode(value: &Self::Borrowed, schema: &Schema, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// Decodes a value that occupies all of `bytes`. The length of `bytes` bounds the memory, whatever they claim, and
    /// [`SCHEMA_DEPTH_MAX`](crate::limits::SCHEMA_DEPTH_MAX) the nesting.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are not exactly one value of this type, or exceed a limit.
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// Returns the encoded length in bytes if all values have the same.
    fn fixed_len() -> Option<usize>;

    /// Returns the schema of the type, which travels with the topic. Allocates; intended for start-up.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if the type cannot be described.
    fn schema() -> Result<Schema, SchemaError>;

    /// Returns the same as [`Self::schema`] for a type that accepts only certain values: tries these samples first for its texts,
    /// bytes, characters and numbers. They are not part of the schema.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if the type cannot be described.
    fn schema_with(samples: &[String]) -> Result<Schema, SchemaError> {
        let _ = samples;
        Self::schema()
    }
}

/// Encodes a value with the schema of its type, like [`Payload::encode`], also an unsized one.
#[inline]
pub(crate) fn encode<T: Serialize + ?Sized>(
    value: &T,
    schema: &Schema,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    quick::encode(value, schema.plan(), out)
}

/// Encodes a value without a schema, to be compared with encoded values.
pub(crate) fn encode_unchecked<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    bincode::encode_to_vec(value)
}

/// A payload type whose memory is its encoding, so that values can be filled in place: [`Pod`] and [`Raw`].
pub trait InPlace: Payload {
    /// The value to be filled.
    type Value: ?Sized;

    /// Returns the value in these bytes, which must be aligned to 8 and have the value's length.
    ///
    /// # Panics
    ///
    /// May panic otherwise.
    fn value(bytes: &[u8]) -> &Self::Value;

    /// Returns the same, to be filled.
    ///
    /// # Panics
    ///
    /// May panic otherwise.
    fn value_mut(bytes: &mut [u8]) -> &mut Self::Value;
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
        quick::encode(value, schema.plan(), out)
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

/// Untyped bytes: a publisher takes `&[u8]`, a subscriber receives `Vec<u8>`.
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

impl InPlace for Raw {
    type Value = [u8];

    #[inline]
    fn value(bytes: &[u8]) -> &[u8] {
        bytes
    }

    #[inline]
    fn value_mut(bytes: &mut [u8]) -> &mut [u8] {
        bytes
    }
}

#[cfg(test)]
mod tests;
