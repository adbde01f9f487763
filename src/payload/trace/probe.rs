//! The deserializer of a tracing pass: it gives constants and notes what it was asked for.

use std::fmt;

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::super::format::{Field, Format, Shape};
use super::Tracer;

/// How deep a pass may go. A type has to be nested this deep, not a value: a pass enters none twice.
const DEPTH_MAX: usize = 256;

/// One place in a type: what is deserialized from it is noted in `format`, or not if it was cut short.
#[derive(Debug)]
pub(super) struct Probe<'t> {
    tracer: &'t mut Tracer,
    format: &'t mut Option<Format>,
    closing: bool,
    depth_left: usize,
}

/// Why a type could not be traced.
#[derive(Debug)]
pub(super) struct TraceError(String);

impl TraceError {
    pub(super) fn into_reason(self) -> String {
        self.0
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for TraceError {}

impl Error for TraceError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(format!(
            "its Deserialize refuses the sample values that it is tried with ({message}); check values after \
             decoding instead, or publish a plain type in its place"
        ))
    }
}

/// What a type asks for that only self-describing bytes can answer.
fn self_describing() -> TraceError {
    TraceError(
        "its Deserialize asks the bytes what they are, which they do not tell; remove serde's untagged, tag, \
         content and flatten attributes, or publish a plain type in its place"
            .into(),
    )
}

impl<'t> Probe<'t> {
    /// The place of the whole value.
    pub(super) fn new(tracer: &'t mut Tracer, format: &'t mut Option<Format>) -> Self {
        Self { tracer, format, closing: false, depth_left: DEPTH_MAX }
    }

    fn parts(self, len: usize, closing: bool) -> (Parts<'t>, &'t mut Option<Format>) {
        let parts = Parts {
            tracer: self.tracer,
            formats: Vec::new(),
            left: len,
            closing,
            depth_left: self.depth_left,
        };
        (parts, self.format)
    }

    /// Deserializes a named type that is not an enum.
    fn named<'de, V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visit: impl FnOnce(&mut Parts<'t>) -> Result<V::Value, TraceError>,
        shape: impl FnOnce(Vec<Format>) -> Result<Shape, TraceError>,
    ) -> Result<V::Value, TraceError> {
        let entry = self.tracer.enter::<V::Value>(name, None);
        let choice = self.tracer.begin(&entry, self.closing).ok_or_else(blocked)?;
        let (mut parts, format) = self.parts(len, choice.closing);
        let value = visit(&mut parts)?;
        let formats: Option<Vec<Format>> = parts.formats.into_iter().collect();
        let shape = formats.map(shape).transpose()?;
        parts.tracer.end(&entry, choice.index, shape);
        *format = Some(Format::Type(entry));
        Ok(value)
    }
}

/// The message is never read: the tracer knows that it gave up.
fn blocked() -> TraceError {
    TraceError("no value yet".into())
}

/// Methods for values without parts.
macro_rules! leaves {
    ($($method:ident $format:ident $visit:ident($value:expr);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
            *self.format = Some(Format::$format);
            let value: fn(super::Palette) -> _ = $value;
            visitor.$visit(value(self.tracer.palette))
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = TraceError;

    leaves! {
        deserialize_bool Bool visit_bool(|_| false);
        deserialize_i8 I8 visit_i8(|palette| palette.number.cast_signed());
        deserialize_i16 I16 visit_i16(|palette| palette.number.into());
        deserialize_i32 I32 visit_i32(|palette| palette.number.into());
        deserialize_i64 I64 visit_i64(|palette| palette.number.into());
        deserialize_i128 I128 visit_i128(|palette| palette.number.into());
        deserialize_u8 U8 visit_u8(|palette| palette.number);
        deserialize_u16 U16 visit_u16(|palette| palette.number.into());
        deserialize_u32 U32 visit_u32(|palette| palette.number.into());
        deserialize_u64 U64 visit_u64(|palette| palette.number.into());
        deserialize_u128 U128 visit_u128(|palette| palette.number.into());
        deserialize_f32 F32 visit_f32(|palette| palette.number.into());
        deserialize_f64 F64 visit_f64(|palette| palette.number.into());
        deserialize_char Char visit_char(|_| 'a');
        deserialize_str String visit_borrowed_str(|palette| palette.text);
        deserialize_string String visit_string(|palette| palette.text.to_owned());
        deserialize_bytes Bytes visit_borrowed_bytes(|palette| palette.text.as_bytes());
        deserialize_byte_buf Bytes visit_byte_buf(|palette| palette.text.as_bytes().to_vec());
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, TraceError> {
        Err(self_describing())
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, TraceError> {
        Err(self_describing())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, TraceError> {
        Err(self_describing())
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        *self.format = Some(Format::Unit);
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>(name, 0, |_| visitor.visit_unit(), |_| Ok(Shape::Unit))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        if self.closing {
            *self.format = None;
            return visitor.visit_none();
        }
        let (mut parts, format) = self.parts(1, false);
        let value = parts.visit(|place| visitor.visit_some(place))?;
        *format = parts.only().map(|of| Format::Option(Box::new(of)));
        Ok(value)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>(
            name,
            1,
            |parts| parts.visit(|place| visitor.visit_newtype_struct(place)),
            |formats| one(formats).map(Shape::Newtype),
        )
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.closing;
        let (mut parts, format) = self.parts(usize::from(!closing), closing);
        let value = visitor.visit_seq(&mut parts)?;
        *format = parts.only().map(|of| Format::Seq(Box::new(of)));
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.closing;
        let (mut parts, format) = self.parts(len, closing);
        let value = visitor.visit_seq(&mut parts)?;
        *format = parts.formats.into_iter().collect::<Option<Vec<Format>>>().map(Format::tuple);
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>(name, len, |parts| visitor.visit_seq(parts), |formats| Ok(Shape::Tuple(formats)))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.closing;
        let (mut parts, format) = self.parts(if closing { 0 } else { 2 }, closing);
        let value = visitor.visit_map(&mut parts)?;
        *format = match <[_; 2]>::try_from(parts.formats) {
            Ok([Some(key), Some(value)]) => Some(Format::Map { key: Box::new(key), value: Box::new(value) }),
            _ => None,
        };
        Ok(value)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>(
            name,
            fields.len(),
            |parts| visitor.visit_seq(parts),
            |formats| named_fields(fields, formats),
        )
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        let entry = self.tracer.enter::<V::Value>(name, Some(variants));
        let choice = self.tracer.begin(&entry, self.closing).ok_or_else(blocked)?;
        let mut shape = None;
        let variant = VariantProbe {
            place: Probe {
                tracer: &mut *self.tracer,
                format: &mut *self.format,
                closing: choice.closing,
                depth_left: self.depth_left,
            },
            index: choice.index,
            shape: &mut shape,
        };
        let value = visitor.visit_enum(variant)?;
        self.tracer.end(&entry, choice.index, shape);
        *self.format = Some(Format::Type(entry));
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The formats of a struct's fields with their names.
fn named_fields(names: &[&'static str], formats: Vec<Format>) -> Result<Shape, TraceError> {
    if names.len() != formats.len() {
        return Err(TraceError(super::STUCK.into()));
    }
    let field = |(name, format): (&&str, Format)| Field { name: (*name).to_owned(), format };
    Ok(Shape::Fields(names.iter().zip(formats).map(field).collect()))
}

fn one(mut formats: Vec<Format>) -> Result<Format, TraceError> {
    formats.pop().ok_or_else(|| TraceError(super::STUCK.into()))
}

/// The places directly inside one place, in order.
#[derive(Debug)]
struct Parts<'t> {
    tracer: &'t mut Tracer,
    /// What was noted in each place that was visited.
    formats: Vec<Option<Format>>,
    left: usize,
    closing: bool,
    depth_left: usize,
}

impl Parts<'_> {
    /// Visits the next place.
    fn visit<T>(&mut self, visit: impl FnOnce(Probe<'_>) -> Result<T, TraceError>) -> Result<T, TraceError> {
        let too_deep = || TraceError(format!("it is nested deeper than {DEPTH_MAX} levels"));
        let depth_left = self.depth_left.checked_sub(1).ok_or_else(too_deep)?;
        let mut format = None;
        let place =
            Probe { tracer: &mut *self.tracer, format: &mut format, closing: self.closing, depth_left };
        let value = visit(place)?;
        self.formats.push(format);
        Ok(value)
    }

    /// The format of the only place, if it was visited and not cut short.
    fn only(&mut self) -> Option<Format> {
        self.formats.pop().flatten()
    }
}

impl<'de> SeqAccess<'de> for Parts<'_> {
    type Error = TraceError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, TraceError> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.visit(|place| seed.deserialize(place)).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Parts<'_> {
    type Error = TraceError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, TraceError> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, TraceError> {
        self.left = self.left.saturating_sub(1);
        self.visit(|place| seed.deserialize(place))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left / 2)
    }
}

/// The variant of an enum: its index, then what it holds.
#[derive(Debug)]
struct VariantProbe<'t> {
    place: Probe<'t>,
    index: usize,
    shape: &'t mut Option<Shape>,
}

impl<'de> EnumAccess<'de> for VariantProbe<'_> {
    type Error = TraceError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), TraceError> {
        let index = u32::try_from(self.index).map_err(TraceError::custom)?;
        let value = seed.deserialize(U32Deserializer::<TraceError>::new(index))?;
        Ok((value, self))
    }
}

impl<'de> VariantAccess<'de> for VariantProbe<'_> {
    type Error = TraceError;

    fn unit_variant(self) -> Result<(), TraceError> {
        *self.shape = Some(Shape::Unit);
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, TraceError> {
        let closing = self.place.closing;
        let (mut parts, _) = self.place.parts(1, closing);
        let value = parts.visit(|place| seed.deserialize(place))?;
        *self.shape = parts.only().map(Shape::Newtype);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.place.closing;
        let (mut parts, _) = self.place.parts(len, closing);
        let value = visitor.visit_seq(&mut parts)?;
        *self.shape = parts.formats.into_iter().collect::<Option<_>>().map(Shape::Tuple);
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        let closing = self.place.closing;
        let (mut parts, _) = self.place.parts(fields.len(), closing);
        let value = visitor.visit_seq(&mut parts)?;
        let formats: Option<Vec<Format>> = parts.formats.into_iter().collect();
        *self.shape = formats.map(|formats| named_fields(fields, formats)).transpose()?;
        Ok(value)
    }
}
