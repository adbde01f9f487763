//! Plain-old-data: types whose memory is their encoding.

use std::marker::PhantomData;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    DecodeError, EncodeError, Encoding, InPlace, Payload, Schema, SchemaError, bincode, copy, trace,
};

/// Uses the memory of a plain-old-data type as its encoding: publishing copies it once, without encoding or decoding.
///
/// The memory of such a type (`repr(C)`, no padding, little-endian host) holds its fields in order, each in its own length.
/// bincode writes the same bytes, so the schema made from the type's `Deserialize` decodes them. `Pod::<T>::schema()` verifies
/// this, and refuses a type whose `Serialize` differs from its memory.
///
/// ```
/// use fabricast::{Payload, Pod};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Serialize, Deserialize, Debug, PartialEq)]
/// #[repr(C)]
/// struct Level { price: f64, size: u64 }
///
/// let level = Level { price: 99.5, size: 300 };
/// let bytes = Pod::<Level>::as_bytes(&level).ok_or("not in memory as encoded")?;
/// assert_eq!(Pod::<Level>::decode(bytes)?, level);
/// assert_eq!(Pod::<Level>::fixed_len(), Some(16));
/// assert_eq!(Pod::<Level>::schema()?.type_name(), "Level");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pod<T>(PhantomData<fn() -> T>);

impl<T: bytemuck::Pod> Pod<T> {
    /// Returns the value in these bytes, without copying. Does not allocate.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Length`] if they do not have the length of a value, [`DecodeError::Misaligned`] if they are not aligned for
    /// one.
    #[inline]
    pub fn view(bytes: &[u8]) -> Result<&T, DecodeError> {
        check_len::<T>(bytes)?;
        bytemuck::try_from_bytes(bytes).map_err(|_| DecodeError::Misaligned { align: align_of::<T>() })
    }
}

impl<T> Payload for Pod<T>
where
    T: bytemuck::Pod + Serialize + DeserializeOwned + Send,
{
    type Borrowed = T;
    type Owned = T;
    const ENCODING: Encoding = Encoding::Pod;

    #[inline]
    fn as_bytes(value: &T) -> Option<&[u8]> {
        Some(bytemuck::bytes_of(value))
    }

    #[inline]
    fn encode(value: &T, _: &Schema, out: &mut [u8]) -> Result<usize, EncodeError> {
        copy(bytemuck::bytes_of(value), out)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        check_len::<T>(bytes)?;
        Ok(bytemuck::pod_read_unaligned(bytes))
    }

    #[inline]
    fn fixed_len() -> Option<usize> {
        Some(size_of::<T>())
    }

    fn schema() -> Result<Schema, SchemaError> {
        Self::schema_with(&[])
    }

    fn schema_with(samples: &[String]) -> Result<Schema, SchemaError> {
        let counting =
            |index: usize| index.to_le_bytes().iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
        let scattered = |index: usize| counting(index.wrapping_mul(0x9E37_79B9).wrapping_add(0x55));
        if serializes_as_memory::<T>(counting) && serializes_as_memory::<T>(scattered) {
            return Schema::of::<T>(Encoding::Pod, samples);
        }
        Err(SchemaError::MemoryDiffers { type_name: trace::short_name(std::any::type_name::<T>()) })
    }
}

/// For alignments up to 8 bytes; others fail to compile where they are filled in place.
impl<T> InPlace for Pod<T>
where
    T: bytemuck::Pod + Serialize + DeserializeOwned + Send,
{
    type Value = T;

    #[inline]
    fn value(bytes: &[u8]) -> &T {
        const { assert!(align_of::<T>() <= align_of::<u64>(), "values are aligned to 8 bytes") };
        bytemuck::from_bytes(bytes)
    }

    #[inline]
    fn value_mut(bytes: &mut [u8]) -> &mut T {
        const { assert!(align_of::<T>() <= align_of::<u64>(), "values are aligned to 8 bytes") };
        bytemuck::from_bytes_mut(bytes)
    }
}

/// Whether the value whose memory has this pattern encodes to the same pattern.
fn serializes_as_memory<T: bytemuck::Pod + Serialize>(pattern: impl Fn(usize) -> u8) -> bool {
    let memory: Vec<u8> = (0..size_of::<T>()).map(pattern).collect();
    let value: T = bytemuck::pod_read_unaligned(&memory);
    bincode::encode_to_vec(&value).is_ok_and(|encoded| encoded == memory)
}

fn check_len<T>(bytes: &[u8]) -> Result<(), DecodeError> {
    let expected = size_of::<T>();
    let found = bytes.len();
    if found == expected { Ok(()) } else { Err(DecodeError::Length { expected, found }) }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::super::Decoded;
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable, Serialize, Deserialize)]
    #[repr(C)]
    struct Level {
        price: f64,
        #[serde(rename = "volume")]
        size: u32,
        flags: [u16; 2],
    }

    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Serialize, Deserialize)]
    #[repr(C)]
    struct Skipping {
        price: f64,
        #[serde(skip)]
        _spare: u64,
    }

    fn halved<S: serde::Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value / 2)
    }

    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Serialize, Deserialize)]
    #[repr(C)]
    struct Changing {
        #[serde(serialize_with = "halved")]
        size: u64,
    }

    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Reordered {
        a: u32,
        b: u32,
    }

    #[derive(Serialize, Deserialize)]
    struct Swapped {
        b: u32,
        a: u32,
    }

    impl Serialize for Reordered {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            Swapped { b: self.b, a: self.a }.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Reordered {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Swapped::deserialize(deserializer).map(|Swapped { b, a }| Self { a, b })
        }
    }

    const LEVEL: Level = Level { price: 1.5, size: 7, flags: [1, 2] };

    #[test]
    fn memory_is_decoded_by_the_schema_and_by_serde() {
        let bytes = Pod::<Level>::as_bytes(&LEVEL).unwrap();
        assert_eq!(bincode::encode_to_vec(&LEVEL).unwrap(), bytes);
        assert_eq!(bincode::decode::<Level>(bytes).unwrap(), LEVEL);
        assert_eq!(Pod::<Level>::decode(bytes).unwrap(), LEVEL);
        let schema = Pod::<Level>::schema().unwrap();
        assert_eq!(schema.encoding(), Encoding::Pod);
        let value = json!({"price": 1.5, "volume": 7, "flags": [1, 2]});
        assert_eq!(schema.decode(bytes).unwrap(), Decoded::Value(value));
    }

    #[test]
    fn length_and_alignment_are_checked() {
        let mut room = [0u64; 3];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        let schema = Pod::<Level>::schema().unwrap();
        assert_eq!(Pod::<Level>::encode(&LEVEL, &schema, room), Ok(16));
        assert_eq!(
            Pod::<Level>::encode(&LEVEL, &schema, &mut room[..15]),
            Err(EncodeError::TooLong { max: 15 })
        );
        assert_eq!(Pod::<Level>::view(&room[..16]), Ok(&LEVEL));
        assert_eq!(Pod::<Level>::view(&room[1..17]), Err(DecodeError::Misaligned { align: 8 }));
        for len in (0..24).filter(|len| *len != 16) {
            let error = DecodeError::Length { expected: 16, found: len };
            assert_eq!(Pod::<Level>::view(&room[..len]), Err(error.clone()));
            assert_eq!(Pod::<Level>::decode(&room[..len]), Err(error));
        }
    }

    #[test]
    fn type_that_serializes_differently_from_its_memory_is_refused() {
        let refused = |outcome: Result<Schema, SchemaError>| outcome.unwrap_err().to_string();
        for text in [
            refused(Pod::<Skipping>::schema()),
            refused(Pod::<Changing>::schema()),
            refused(Pod::<Reordered>::schema()),
        ] {
            assert!(text.contains("memory"), "{text}");
        }
    }
}
