//! The deserializer of a tracing pass: hands out sample values and records the requests.

use std::fmt;

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::super::format::{Field, Format, Shape};
use super::leaves::{Leaves, Len};
use super::tracer::Tracer;

/// How deep a pass may go. Only a type this deep reaches it: a pass enters each type once, and once more to end it.
const DEPTH_MAX: usize = 256;

/// One place in a type. Records what is deserialized from it in `format`, unless it was cut short.
#[derive(Debug)]
pub(super) struct Probe<'t> {
    tracer: &'t mut Tracer,
    format: &'t mut Option<Format>,
    closing: bool,
    depth_left: usize,
    /// Its name, from the innermost named type on, so that it is the same wherever that type occurs.
    place: String,
}

/// Why a pass did not come to an end.
#[derive(Debug, thiserror::Error)]
pub(super) enum TraceError {
    /// The type refused what it was given; it may take something else.
    #[error("{0}")]
    Refused(String),
    /// The type cannot be traced, whatever it is given.
    #[error("{0}")]
    Untraceable(String),
}

impl Error for TraceError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Refused(message.to_string())
    }
}

/// A request that only self-describing bytes can answer.
fn self_describing() -> TraceError {
    TraceError::Untraceable(
        "its Deserialize needs a self-describing format, which this is not; remove serde's untagged, tag, content and \
         flatten attributes, or publish a plain type in its place"
            .into(),
    )
}

impl<'t> Probe<'t> {
    /// The place of the whole value.
    pub(super) fn new(tracer: &'t mut Tracer, format: &'t mut Option<Format>) -> Self {
        Self { tracer, format, closing: false, depth_left: DEPTH_MAX, place: "the value".into() }
    }

    /// How many elements or pairs there are here.
    fn len(&mut self) -> Len {
        if self.closing { Len::none() } else { self.tracer.leaves.len(&self.place) }
    }

    fn parts(self, labels: Labels, len: usize, closing: bool) -> (Parts<'t>, &'t mut Option<Format>) {
        let parts = Parts {
            tracer: self.tracer,
            formats: Vec::new(),
            left: len,
            closing,
            depth_left: self.depth_left,
            place: self.place,
            labels,
            is_refused: false,
        };
        (parts, self.format)
    }

    /// Deserializes a named type that is not an enum.
    fn named<'de, V: Visitor<'de>>(
        self,
        (name, labels): (&'static str, Labels),
        len: usize,
        visit: impl FnOnce(&mut Parts<'t>) -> Result<V::Value, TraceError>,
        shape: impl FnOnce(Vec<Format>) -> Result<Shape, TraceError>,
    ) -> Result<V::Value, TraceError> {
        let fields = if let Labels::Names(fields) = labels { fields } else { &[] };
        let entry = self.tracer.enter::<V::Value>(name, fields, false);
        let choice = self.tracer.begin(&entry, self.closing).ok_or_else(blocked)?;
        let place = Self { place: entry.clone(), ..self };
        let (mut parts, format) = place.parts(labels, len, choice.closing);
        let value = visit(&mut parts)?;
        let formats: Option<Vec<Format>> = parts.formats.into_iter().collect();
        let shape = formats.map(shape).transpose()?;
        parts.tracer.end(&entry, choice, shape);
        *format = Some(Format::Type(entry));
        Ok(value)
    }
}

/// The message is never read: the tracer knows that the pass gave up.
fn blocked() -> TraceError {
    TraceError::Untraceable("no value yet".into())
}

/// Methods for leaves.
macro_rules! leaves {
    ($($method:ident $format:ident $visit:ident($sample:expr);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
            *self.format = Some(Format::$format);
            let leaves = &mut self.tracer.leaves;
            let sample: fn(&mut Leaves, &str) -> _ = $sample;
            let outcome = visitor.$visit(sample(leaves, &self.place));
            leaves.answered(outcome.is_ok());
            outcome
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = TraceError;

    leaves! {
        deserialize_bool Bool visit_bool(|leaves, place| leaves.boolean(place));
        deserialize_i8 I8 visit_i8(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_i16 I16 visit_i16(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_i32 I32 visit_i32(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_i64 I64 visit_i64(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_i128 I128 visit_i128(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_u8 U8 visit_u8(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_u16 U16 visit_u16(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_u32 U32 visit_u32(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_u64 U64 visit_u64(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_u128 U128 visit_u128(|leaves, place| leaves.integer(place).unwrap_or_default());
        deserialize_f32 F32 visit_f32(|leaves, place| leaves.single_float(place));
        deserialize_f64 F64 visit_f64(|leaves, place| leaves.float(place));
        deserialize_char Char visit_char(|leaves, place| leaves.character(place));
        deserialize_str String visit_string(|leaves, place| leaves.text(place));
        deserialize_string String visit_string(|leaves, place| leaves.text(place));
        deserialize_bytes Bytes visit_byte_buf(|leaves, place| leaves.bytes(place));
        deserialize_byte_buf Bytes visit_byte_buf(|leaves, place| leaves.bytes(place));
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, TraceError> {
        Err(self_describing())
    }

    serde::forward_to_deserialize_any! { identifier ignored_any }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        *self.format = Some(Format::Unit);
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>((name, Labels::Numbers), 0, |_| visitor.visit_unit(), |_| Ok(Shape::Unit))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TraceError> {
        if self.closing || self.tracer.leaves.is_absent(&self.place) {
            *self.format = None;
            return visitor.visit_none();
        }
        let (mut parts, format) = self.parts(Labels::Option, 1, false);
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
            (name, Labels::Numbers),
            1,
            |parts| parts.visit(|place| visitor.visit_newtype_struct(place)),
            |formats| one(formats).map(Shape::Newtype),
        )
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, TraceError> {
        let (closing, len) = (self.closing, self.len());
        let (mut parts, format) = self.parts(Labels::Elements, len.count(), closing);
        let value = visitor.visit_seq(&mut parts);
        parts.ended(len);
        *format = parts.only().map(|of| Format::Seq(Box::new(of)));
        value
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.closing;
        let (mut parts, format) = self.parts(Labels::Numbers, len, closing);
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
        self.named::<V>(
            (name, Labels::Numbers),
            len,
            |parts| visitor.visit_seq(parts),
            |formats| Ok(Shape::Tuple(formats)),
        )
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, TraceError> {
        let (closing, len) = (self.closing, self.len());
        let (mut parts, format) = self.parts(Labels::Pairs, 2 * len.count(), closing);
        let value = visitor.visit_map(&mut parts);
        parts.ended(len);
        *format = parts.pair().map(|[key, value]| Format::Map { key: Box::new(key), value: Box::new(value) });
        value
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TraceError> {
        self.named::<V>(
            (name, Labels::Names(fields)),
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
        let entry = self.tracer.enter::<V::Value>(name, variants, true);
        let choice = self.tracer.begin(&entry, self.closing).ok_or_else(blocked)?;
        let mut shape = None;
        let variant = VariantProbe {
            place: Probe {
                tracer: &mut *self.tracer,
                format: &mut *self.format,
                closing: choice.closing,
                depth_left: self.depth_left,
                place: format!("{entry}::{}", variants.get(choice.index).unwrap_or(&"")),
            },
            index: choice.index,
            shape: &mut shape,
        };
        let value = visitor.visit_enum(variant)?;
        self.tracer.end(&entry, choice, shape);
        *self.format = Some(Format::Type(entry));
        Ok(value)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The formats of a struct's fields, with their names.
fn named_fields(names: &[&'static str], formats: Vec<Format>) -> Result<Shape, TraceError> {
    if names.len() != formats.len() {
        return Err(TraceError::Untraceable(super::STUCK.into()));
    }
    let field = |(name, format): (&&str, Format)| Field { name: (*name).to_owned(), format };
    Ok(Shape::Fields(names.iter().zip(formats).map(field).collect()))
}

fn one(mut formats: Vec<Format>) -> Result<Format, TraceError> {
    formats.pop().ok_or_else(|| TraceError::Untraceable(super::STUCK.into()))
}

/// The names of the places inside a place.
#[derive(Clone, Copy, Debug)]
enum Labels {
    Names(&'static [&'static str]),
    Numbers,
    Option,
    Elements,
    Pairs,
}

impl Labels {
    fn inside(self, place: &str, index: usize) -> String {
        match self {
            Self::Names(names) => format!("{place}.{}", names.get(index).unwrap_or(&"")),
            Self::Numbers => format!("{place}.{index}"),
            Self::Option => format!("{place}?"),
            Self::Elements => format!("{place}[]"),
            Self::Pairs if index.is_multiple_of(2) => format!("{place}[key]"),
            Self::Pairs => format!("{place}[value]"),
        }
    }
}

/// The places directly inside a place, in order.
#[derive(Debug)]
struct Parts<'t> {
    tracer: &'t mut Tracer,
    /// The format of each visited place.
    formats: Vec<Option<Format>>,
    left: usize,
    closing: bool,
    depth_left: usize,
    place: String,
    labels: Labels,
    /// One of them was rejected.
    is_refused: bool,
}

impl Parts<'_> {
    /// Visits the next place.
    fn visit<T>(&mut self, visit: impl FnOnce(Probe<'_>) -> Result<T, TraceError>) -> Result<T, TraceError> {
        let too_deep = || TraceError::Untraceable(format!("it is nested deeper than {DEPTH_MAX} levels"));
        let depth_left = self.depth_left.checked_sub(1).ok_or_else(too_deep)?;
        let mut format = None;
        self.tracer.places += 1;
        let place = self.labels.inside(&self.place, self.formats.len());
        let tracer = &mut *self.tracer;
        let probe = Probe { tracer, format: &mut format, closing: self.closing, depth_left, place };
        let value = visit(probe);
        self.is_refused |= value.is_err();
        self.formats.push(format);
        value
    }

    /// Ends a sequence or map of this length.
    fn ended(&mut self, len: Len) {
        if !self.is_refused {
            self.tracer.leaves.ended(len);
        }
    }

    /// The format of one of these places, which are all alike, if any was recorded.
    fn only(&mut self) -> Option<Format> {
        std::mem::take(&mut self.formats).into_iter().flatten().next()
    }

    /// The formats of a key and its value.
    fn pair(&mut self) -> Option<[Format; 2]> {
        let formats = std::mem::take(&mut self.formats);
        formats
            .chunks_exact(2)
            .find_map(|pair| <[_; 2]>::try_from(pair.iter().flatten().cloned().collect::<Vec<_>>()).ok())
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

/// The variant of an enum: its index, then its content.
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
        let variant = seed.deserialize(U32Deserializer::<TraceError>::new(index));
        let refused = |error| {
            TraceError::Untraceable(format!(
                "its Deserialize rejects a variant that it announces ({error}); serde's alias of a variant does that: remove it"
            ))
        };
        Ok((variant.map_err(refused)?, self))
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
        let (mut parts, _) = self.place.parts(Labels::Numbers, 1, closing);
        let value = parts.visit(|place| seed.deserialize(place))?;
        *self.shape = parts.only().map(Shape::Newtype);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, TraceError> {
        let closing = self.place.closing;
        let (mut parts, _) = self.place.parts(Labels::Numbers, len, closing);
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
        let (mut parts, _) = self.place.parts(Labels::Names(fields), fields.len(), closing);
        let value = visitor.visit_seq(&mut parts)?;
        let formats: Option<Vec<Format>> = parts.formats.into_iter().collect();
        *self.shape = formats.map(|formats| named_fields(fields, formats)).transpose()?;
        Ok(value)
    }
}
