//! Decoding by a schema alone: bincode walks the bytes, the schema says what comes next.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Map, Number, Value};

use super::format::{Field, Format, Named, Shape, Variant};
use super::{DecodeError, Encoding, Schema, bincode};
use crate::limits;

/// A payload decoded by its schema.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decoded {
    /// The payload of a topic of raw bytes.
    Bytes(Vec<u8>),
    /// The payload of any other topic. [`Schema::decode`] describes its form.
    Value(Value),
}

impl Schema {
    /// Decodes a value by the schema. The length of `bytes` and a total of 4,194,304 values (leaves and containers) bound the
    /// memory, [`limits::SCHEMA_DEPTH_MAX`] the nesting.
    ///
    /// Structs become objects; tuples, arrays and sequences become arrays; a struct of one nameless part becomes that part. A map
    /// becomes an object if its keys are texts, otherwise an array of pairs. A variant without parts becomes its name, any other
    /// an object from its name to its contents. A missing option and a unit become null. Integers beyond 64 bits and floats that
    /// are not finite become texts.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes are not exactly one value of this schema, or exceed a limit.
    pub fn decode(&self, bytes: &[u8]) -> Result<Decoded, DecodeError> {
        if self.encoding() == Encoding::Raw {
            return Ok(Decoded::Bytes(bytes.to_vec()));
        }
        let allowance = Allowance::new(bytes.len());
        let seed = Seed { schema: self, format: self.format(), allowance: &allowance };
        match bincode::decode_seed(seed, bytes) {
            Err(_) if allowance.exhausted.get() => Err(DecodeError::TooManyElements { max: allowance.max }),
            outcome => outcome.map(Decoded::Value),
        }
    }
}

/// How many more values a decoding may produce.
#[derive(Debug)]
struct Allowance {
    left: Cell<usize>,
    max: usize,
    exhausted: Cell<bool>,
}

impl Allowance {
    /// A byte gives a leaf and the containers that open with it; a schema may add values without bytes.
    fn new(len: usize) -> Self {
        let by_len = len.saturating_mul(limits::SCHEMA_DEPTH_MAX).saturating_add(limits::EMPTY_ELEMENTS_MAX);
        let max = by_len.min(limits::DECODED_VALUES_MAX);
        Self { left: Cell::new(max), max, exhausted: Cell::new(false) }
    }

    fn take<E: Error>(&self, count: usize) -> Result<(), E> {
        match self.left.get().checked_sub(count) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.exhausted.set(true);
                Err(E::custom("too many values"))
            }
        }
    }
}

/// A part of a schema, to make a value of.
#[derive(Debug)]
struct Seed<'s, F: ?Sized> {
    schema: &'s Schema,
    format: &'s F,
    allowance: &'s Allowance,
}

impl<F: ?Sized> Clone for Seed<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: ?Sized> Copy for Seed<'_, F> {}

impl<'s, F: ?Sized> Seed<'s, F> {
    fn of<G: ?Sized>(&self, format: &'s G) -> Seed<'s, G> {
        Seed { schema: self.schema, format, allowance: self.allowance }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, Format> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, bytes: D) -> Result<Value, D::Error> {
        if !matches!(self.format, Format::Type(_)) {
            self.allowance.take(1)?;
        }
        match self.format {
            Format::Unit => bytes.deserialize_unit(Leaf),
            Format::Bool => bytes.deserialize_bool(Leaf),
            Format::I8 => bytes.deserialize_i8(Leaf),
            Format::I16 => bytes.deserialize_i16(Leaf),
            Format::I32 => bytes.deserialize_i32(Leaf),
            Format::I64 => bytes.deserialize_i64(Leaf),
            Format::I128 => bytes.deserialize_i128(Leaf),
            Format::U8 => bytes.deserialize_u8(Leaf),
            Format::U16 => bytes.deserialize_u16(Leaf),
            Format::U32 => bytes.deserialize_u32(Leaf),
            Format::U64 => bytes.deserialize_u64(Leaf),
            Format::U128 => bytes.deserialize_u128(Leaf),
            Format::F32 => bytes.deserialize_f32(Leaf),
            Format::F64 => bytes.deserialize_f64(Leaf),
            Format::Char => bytes.deserialize_char(Leaf),
            Format::String => bytes.deserialize_str(Leaf),
            Format::Bytes => bytes.deserialize_bytes(Octets(self.allowance)),
            Format::Option(of) => bytes.deserialize_option(Optional(self.of(of))),
            Format::Seq(of) => bytes.deserialize_seq(Elements(self.of(of))),
            Format::Array { of, len } => bytes.deserialize_tuple(*len, Elements(self.of(of))),
            Format::Tuple(parts) => bytes.deserialize_tuple(parts.len(), Tuple(self.of(parts.as_slice()))),
            Format::Map { key, value } => {
                let is_object = self.schema.is_text(key);
                bytes.deserialize_map(Pairs { key: self.of(key), value: self.of(value), is_object })
            }
            Format::Type(name) => match self.schema.named(name) {
                Some(Named::Struct(shape)) => self.of(shape).deserialize(bytes),
                Some(Named::Enum(variants)) => {
                    self.allowance.take(1)?;
                    bytes.deserialize_enum("", &[], Chosen { seed: self.of(variants.as_slice()), name })
                }
                None => Err(Error::custom(format_args!("the schema does not describe {name}"))),
            },
        }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, Shape> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, bytes: D) -> Result<Value, D::Error> {
        if !matches!(self.format, Shape::Newtype(_)) {
            self.allowance.take(1)?;
        }
        match self.format {
            Shape::Unit => bytes.deserialize_unit_struct("", Leaf),
            Shape::Newtype(format) => bytes.deserialize_newtype_struct("", Optional(self.of(format))),
            Shape::Tuple(formats) => {
                bytes.deserialize_tuple(formats.len(), Tuple(self.of(formats.as_slice())))
            }
            Shape::Fields(fields) => {
                bytes.deserialize_tuple(fields.len(), Object(self.of(fields.as_slice())))
            }
        }
    }
}

impl Schema {
    /// Whether values of this format become texts, and so may be keys of an object.
    fn is_text(&self, format: &Format) -> bool {
        let mut format = format;
        for _ in 0..limits::SCHEMA_DEPTH_MAX {
            match format {
                Format::String | Format::Char => return true,
                Format::Type(name) => match self.named(name) {
                    Some(Named::Struct(Shape::Newtype(inner))) => format = inner,
                    _ => return false,
                },
                _ => return false,
            }
        }
        false
    }
}

/// What a visitor expects; bincode never asks.
macro_rules! expects {
    ($text:literal) => {
        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str($text)
        }
    };
}

/// A number, or a text if JSON does not have it.
fn float(value: f64) -> Value {
    let text = || Value::String(value.to_string());
    Number::from_f64(value).map_or_else(text, Value::Number)
}

/// A value without parts.
struct Leaf;

impl Visitor<'_> for Leaf {
    type Value = Value;

    expects!("a value without parts");

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        let short = i64::try_from(value).map(Value::from).or_else(|_| u64::try_from(value).map(Value::from));
        Ok(short.unwrap_or_else(|_| Value::String(value.to_string())))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or_else(|_| Value::String(value.to_string()), Value::from))
    }

    /// The shortest decimal that is this float: 0.1, not 0.10000000149011612.
    fn visit_f32<E: Error>(self, value: f32) -> Result<Value, E> {
        Ok(float(value.to_string().parse().unwrap_or_else(|_| f64::from(value))))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(float(value))
    }

    fn visit_char<E: Error>(self, value: char) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// A byte string: an array of numbers.
struct Octets<'s>(&'s Allowance);

impl Visitor<'_> for Octets<'_> {
    type Value = Value;

    expects!("bytes");

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Value, E> {
        self.0.take(bytes.len())?;
        Ok(bytes.into())
    }
}

/// A value that may be missing, or is replaced by its only part.
struct Optional<'s>(Seed<'s, Format>);

impl<'de> Visitor<'de> for Optional<'_> {
    type Value = Value;

    expects!("a value inside another");

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, bytes: D) -> Result<Value, D::Error> {
        self.0.deserialize(bytes)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, bytes: D) -> Result<Value, D::Error> {
        self.0.deserialize(bytes)
    }
}

/// As many values of one format as the access yields. Reserves nothing for a claimed number.
struct Elements<'s>(Seed<'s, Format>);

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = Value;

    expects!("elements");

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = access.next_element_seed(self.0)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }
}

/// One value of each format.
struct Tuple<'s>(Seed<'s, [Format]>);

impl<'de> Visitor<'de> for Tuple<'_> {
    type Value = Value;

    expects!("the parts of a tuple");

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let values = self.0.format.iter().map(|format| next(&mut access, self.0.of(format)));
        values.collect::<Result<_, _>>().map(Value::Array)
    }
}

/// One value of each field.
struct Object<'s>(Seed<'s, [Field]>);

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Value;

    expects!("the fields of a struct");

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        for field in self.0.format {
            object.insert(field.name.clone(), next(&mut access, self.0.of(&field.format))?);
        }
        Ok(Value::Object(object))
    }
}

fn next<'de, A: SeqAccess<'de>>(access: &mut A, seed: Seed<'_, Format>) -> Result<Value, A::Error> {
    access.next_element_seed(seed)?.ok_or_else(|| Error::custom("a part is missing"))
}

/// The pairs of a map.
struct Pairs<'s> {
    key: Seed<'s, Format>,
    value: Seed<'s, Format>,
    is_object: bool,
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = Value;

    expects!("the pairs of a map");

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let mut pairs = Vec::new();
        while let Some(key) = access.next_key_seed(self.key)? {
            let value = access.next_value_seed(self.value)?;
            match key {
                Value::String(key) if self.is_object => {
                    object.insert(key, value);
                }
                key => pairs.push(Value::Array(vec![key, value])),
            }
        }
        Ok(if self.is_object { Value::Object(object) } else { Value::Array(pairs) })
    }
}

/// One of the variants of an enum.
struct Chosen<'s> {
    seed: Seed<'s, [Variant]>,
    name: &'s str,
}

impl<'de> Visitor<'de> for Chosen<'_> {
    type Value = Value;

    expects!("a variant");

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        let (index, access) = access.variant::<u32>()?;
        let variant = usize::try_from(index).ok().and_then(|index| self.seed.format.get(index));
        let no_variant = || Error::custom(format_args!("{} has no variant {index}", self.name));
        let variant = variant.ok_or_else(no_variant)?;
        let value = match &variant.shape {
            Shape::Unit => {
                access.unit_variant()?;
                return Ok(Value::String(variant.name.clone()));
            }
            Shape::Newtype(format) => access.newtype_variant_seed(self.seed.of(format))?,
            Shape::Tuple(formats) => {
                access.tuple_variant(formats.len(), Tuple(self.seed.of(formats.as_slice())))?
            }
            Shape::Fields(fields) => {
                access.tuple_variant(fields.len(), Object(self.seed.of(fields.as_slice())))?
            }
        };
        Ok(Value::Object(Map::from_iter([(variant.name.clone(), value)])))
    }
}

#[cfg(test)]
mod tests;
