//! The only file of payloads that names the crate bincode.
//!
//! bincode is pinned to 2.0.1, the last working release, and is no longer maintained (RUSTSEC-2025-0141); that is why only this
//! file uses it. The golden bytes below fix its output, so that a replacement can be shown to write the same: little-endian;
//! integers and floats in their own length; a `char` as UTF-8; a length or count as u64; the index of a variant as u32; an option
//! as 0 or 1 and the value; nothing for names, units and tuples.

use std::marker::PhantomData;

use ::bincode::config::{Configuration, Fixint, LittleEndian, NoLimit};
use ::bincode::enc::write::SliceWriter;
use ::bincode::enc::{Encode, EncoderImpl};
use ::bincode::error::{DecodeError as BytesError, EncodeError as ValueError};
use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed};

use super::checked::Check;
use super::guard::{Budget, Guarded};
use super::plan::Plan;
use super::quick::Stopped;
use super::{DecodeError, EncodeError};

type Config = Configuration<LittleEndian, Fixint, NoLimit>;

/// The guard bounds more tightly than bincode's own limit.
const CONFIGURATION: Config =
    ::bincode::config::standard().with_little_endian().with_fixed_int_encoding().with_no_limit();

/// Bytes into which values are encoded one after another.
pub(super) struct Out<'o>(EncoderImpl<SliceWriter<'o>, Config>);

impl<'o> Out<'o> {
    #[inline(always)]
    pub(super) fn new(out: &'o mut [u8]) -> Self {
        Self(EncoderImpl::new(SliceWriter::new(out), CONFIGURATION))
    }

    /// The number of bytes written.
    #[inline(always)]
    pub(super) fn written(self) -> usize {
        self.0.into_writer().bytes_written()
    }

    #[inline(always)]
    pub(super) fn put<T: Encode + ?Sized>(&mut self, value: &T) -> Result<(), Stopped> {
        // The error would be a large text: a value that does not fit is encoded again for it.
        value.encode(&mut self.0).map_err(|_| Stopped)
    }
}

/// Encodes into the beginning of `out` what follows the plan, or returns the reason why not.
#[inline(never)]
pub(super) fn encode_or_explain<T: Serialize + ?Sized>(
    value: &T,
    plan: &Plan,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    let check = Check::new(plan);
    let max = out.len();
    match ::bincode::serde::encode_into_slice(check.value(value), out, CONFIGURATION) {
        Ok(len) => check.finish(len).map(|()| len),
        Err(ValueError::UnexpectedEnd) => Err(EncodeError::TooLong { max }),
        Err(other) => Err(refused(&check, &other)),
    }
}

/// Encodes into new memory what follows the plan.
pub(super) fn encode_checked<T: Serialize + ?Sized>(value: &T, plan: &Plan) -> Result<Vec<u8>, EncodeError> {
    let check = Check::new(plan);
    let encoded = ::bincode::serde::encode_to_vec(check.value(value), CONFIGURATION);
    let bytes = encoded.map_err(|error| refused(&check, &error))?;
    check.finish(bytes.len()).map(|()| bytes)
}

#[cold]
fn refused(check: &Check<'_>, error: &ValueError) -> EncodeError {
    check.flaw().unwrap_or_else(|| EncodeError::Refused { reason: value_reason(error) })
}

/// Encodes any value into new memory.
pub(super) fn encode_to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    ::bincode::serde::encode_to_vec(value, CONFIGURATION)
        .map_err(|error| EncodeError::Refused { reason: value_reason(&error) })
}

/// Decodes one value that occupies all the bytes.
#[inline]
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_seed(PhantomData, bytes)
}

/// Decodes the seed's value, which must occupy all the bytes.
#[inline]
pub(super) fn decode_seed<'de, S: DeserializeSeed<'de>>(
    seed: S,
    bytes: &'de [u8],
) -> Result<S::Value, DecodeError> {
    let budget = Budget::new(bytes.len());
    let guarded = Guarded::new(seed, &budget);
    match ::bincode::serde::seed_decode_from_slice(guarded, bytes, CONFIGURATION) {
        Ok((value, read)) if read == bytes.len() => Ok(value),
        Ok((_, read)) => Err(DecodeError::TrailingBytes { count: bytes.len().saturating_sub(read) }),
        Err(error) => {
            Err(budget.breach().unwrap_or_else(|| DecodeError::Malformed { reason: bytes_reason(&error) }))
        }
    }
}

/// bincode prints its errors as Rust source; these are the ones that serde can cause, as sentences.
#[cold]
fn bytes_reason(error: &BytesError) -> String {
    match error {
        BytesError::UnexpectedEnd { .. } => "they end inside it".into(),
        BytesError::Utf8 { inner } => format!("a text is not UTF-8: {inner}"),
        BytesError::InvalidCharEncoding(bytes) => format!("{bytes:02x?} is not a character"),
        BytesError::InvalidBooleanValue(byte) => format!("{byte} is neither false (0) nor true (1)"),
        BytesError::UnexpectedVariant { found, .. } => format!("{found} is neither none (0) nor some (1)"),
        BytesError::Other(text) => (*text).into(),
        BytesError::OtherString(text) => text.clone(),
        BytesError::Serde(_) => {
            "the type needs a self-describing format, which this is not (serde's untagged, tag, content, flatten)".into()
        }
        other => other.to_string(),
    }
}

#[cold]
fn value_reason(error: &ValueError) -> String {
    match error {
        ValueError::Other(text) => (*text).into(),
        ValueError::OtherString(text) => text.clone(),
        ValueError::Serde(_) => "a sequence does not know its length; collect it into a Vec first".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fmt;

    use serde::Deserialize;

    use super::super::quick::encode;
    use super::super::{Encoding, Schema};
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Scalars {
        truth: bool,
        small: (i8, u8),
        short: (i16, u16),
        word: (i32, u32),
        long: (i64, u64),
        huge: (i128, u128),
        float: (f32, f64),
        letter: char,
        wide_letter: char,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Unit,
        Newtype(u8),
        Tuple(u8, u16),
        Struct { a: u8, b: bool },
    }

    fn round_trip<T>(value: &T, golden: &[u8])
    where
        T: Serialize + DeserializeOwned + PartialEq + fmt::Debug,
    {
        let schema = Schema::of::<T>(Encoding::Bincode, &[]).unwrap();
        let plan = schema.plan();
        let mut out = vec![0xEE; golden.len() + 4];
        assert_eq!(encode(value, plan, &mut out).unwrap(), golden.len());
        assert_eq!(&out[..golden.len()], golden);
        assert_eq!(encode_to_vec(value).unwrap(), golden);
        assert_eq!(&decode::<T>(golden).unwrap(), value);
        for cut in 0..golden.len() {
            assert!(decode::<T>(&golden[..cut]).is_err(), "cut at {cut}");
            let max = cut;
            assert_eq!(encode(value, plan, &mut out[..cut]), Err(EncodeError::TooLong { max }));
        }
        let longer: Vec<u8> = golden.iter().copied().chain([0, 0]).collect();
        assert_eq!(decode::<T>(&longer), Err(DecodeError::TrailingBytes { count: 2 }));
    }

    #[test]
    fn golden_scalars() {
        let value = Scalars {
            truth: true,
            small: (-2, 0x81),
            short: (-2, 0x8182),
            word: (-2, 0x8182_8384),
            long: (-2, 0x8182_8384_8586_8788),
            huge: (-2, 0x8182_8384_8586_8788_898A_8B8C_8D8E_8F90),
            float: (1.0, -2.5),
            letter: 'A',
            wide_letter: '\u{20AC}',
        };
        let mut golden: Vec<u8> = vec![1, 0xFE, 0x81, 0xFE, 0xFF, 0x82, 0x81];
        golden.extend([0xFE, 0xFF, 0xFF, 0xFF, 0x84, 0x83, 0x82, 0x81]);
        golden.extend([0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
        golden.extend([0x88, 0x87, 0x86, 0x85, 0x84, 0x83, 0x82, 0x81]);
        golden.push(0xFE);
        golden.extend([0xFF; 15]);
        golden.extend((0x81..=0x90).rev());
        golden.extend([0, 0, 0x80, 0x3F, 0, 0, 0, 0, 0, 0, 0x04, 0xC0]);
        golden.extend([0x41, 0xE2, 0x82, 0xAC]);
        round_trip(&value, &golden);
    }

    #[test]
    fn golden_containers() {
        round_trip(&String::from("hé"), &[3, 0, 0, 0, 0, 0, 0, 0, b'h', 0xC3, 0xA9]);
        round_trip(&vec![1u16, 2], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0]);
        round_trip(&[7u16, 8], &[7, 0, 8, 0]);
        round_trip(&BTreeMap::from([(1u8, true)]), &[1, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        round_trip(&(None::<u8>, Some(5u8)), &[0, 1, 5]);
    }

    #[test]
    fn golden_enums() {
        round_trip(&Shape::Unit, &[0, 0, 0, 0]);
        round_trip(&Shape::Newtype(9), &[1, 0, 0, 0, 9]);
        round_trip(&Shape::Tuple(9, 0x0A0B), &[2, 0, 0, 0, 9, 0x0B, 0x0A]);
        round_trip(&Shape::Struct { a: 9, b: true }, &[3, 0, 0, 0, 9, 1]);
    }

    #[test]
    fn errors_are_sentences() {
        let reason = |error: DecodeError| error.to_string();
        assert_eq!(
            reason(decode::<bool>(&[2]).unwrap_err()),
            "the bytes are not a value of this type: 2 is neither false (0) nor true (1)"
        );
        assert!(
            reason(decode::<Option<u8>>(&[3]).unwrap_err()).ends_with("3 is neither none (0) nor some (1)")
        );
        assert!(reason(decode::<u32>(&[3]).unwrap_err()).contains("end"));
        assert!(reason(decode::<Shape>(&[9, 0, 0, 0]).unwrap_err()).contains("variant index"));
        assert!(reason(decode::<char>(&[0xFF]).unwrap_err()).ends_with("is not a character"));
        assert!(reason(decode::<serde_json::Value>(&[0]).unwrap_err()).contains("untagged"));
        assert!(reason(decode::<String>(&[1, 0, 0, 0, 0, 0, 0, 0, 0xFF]).unwrap_err()).contains("UTF-8"));
    }

    #[test]
    fn value_that_cannot_be_encoded_gives_the_reason() {
        struct Endless;
        impl Serialize for Endless {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq((0..).take_while(|number| *number < 3))
            }
        }
        let schema = Schema::of::<Vec<u64>>(Encoding::Bincode, &[]).unwrap();
        let error = encode(&Endless, schema.plan(), &mut [0; 64]).unwrap_err();
        assert!(error.to_string().contains("does not know its length"), "{error}");
    }
}
