//! A serializer around another that compares a value with its topic's schema: values that depart from it are not published. It
//! handles the values that `quick` rejects, and all values of types that `quick` leaves to it.
//!
//! The schema was made from the type's `Deserialize`, and bytes do not describe themselves. So whatever the type's `Serialize`
//! omits, moves or writes in another length would be received as another value. The comparison is part by part: kinds of leaves,
//! lengths, names of fields, variants. It also enforces the bounds of `guard`, so that every published value can be received.
//!
//! A newtype on one side only is accepted, because it has no bytes; so are fields for the parts of a tuple.

mod place;

use std::fmt::{self, Display, Write};

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use self::place::{Left, Parts, Place};
use super::format::{Leaf, leaf_methods};
use super::step::{ShapePlan, Step};

pub(super) use self::place::Check;

/// A value with its place in the schema, or the serializer that compares them.
#[derive(Debug)]
pub(super) struct Checked<'p, I> {
    inner: I,
    place: Place<'p>,
}

impl<'p> Check<'p> {
    /// The value, checked while it is serialized.
    #[inline]
    pub(super) fn value<'v, T: ?Sized>(&'p self, value: &'v T) -> Checked<'p, &'v T> {
        Checked { inner: value, place: self.root() }
    }
}

impl<T: Serialize + ?Sized> Serialize for Checked<'_, &T> {
    #[inline(always)]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.inner.serialize(Checked { inner: serializer, place: self.place })
    }
}

/// Methods for leaves.
macro_rules! leaves {
    ($($method:ident($value:ty) $leaf:ident;)*) => {$(
        #[inline(always)]
        fn $method(self, value: $value) -> Result<S::Ok, S::Error> {
            self.place.leaf(Leaf::$leaf)?;
            self.inner.$method(value)
        }
    )*};
}

impl<'p, S: Serializer> Serializer for Checked<'p, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Elements<'p, S::SerializeSeq>;
    type SerializeTuple = Members<'p, S::SerializeTuple>;
    type SerializeTupleStruct = Members<'p, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Members<'p, S::SerializeTupleVariant>;
    type SerializeMap = Pairs<'p, S::SerializeMap>;
    type SerializeStruct = Members<'p, S::SerializeStruct>;
    type SerializeStructVariant = Members<'p, S::SerializeStructVariant>;

    leaf_methods!(leaves);

    #[inline(always)]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<S::Ok, S::Error> {
        self.place.bytes(bytes.len())?;
        self.inner.serialize_bytes(bytes)
    }

    #[inline(always)]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.place.option()?;
        self.inner.serialize_none()
    }

    #[inline(always)]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let place = self.place.option()?.below()?;
        self.inner.serialize_some(&Checked { inner: value, place })
    }

    #[inline(always)]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.place.unit()?;
        self.inner.serialize_unit()
    }

    #[inline(always)]
    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.place.unit()?;
        self.inner.serialize_unit_struct(name)
    }

    #[inline(always)]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        match self.place.variant(index, variant)? {
            (ShapePlan::Unit, _) => self.inner.serialize_unit_variant(name, index, variant),
            (_, place) => Err(place.other_shape(variant)),
        }
    }

    #[inline(always)]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let place = self.place.inside()?.unwrap_or(self.place);
        self.inner.serialize_newtype_struct(name, &Checked { inner: value, place })
    }

    #[inline(always)]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        match self.place.variant(index, variant)? {
            (ShapePlan::Newtype(step), place) => {
                let value = Checked { inner: value, place: place.at(step) };
                self.inner.serialize_newtype_variant(name, index, variant, &value)
            }
            (_, place) => Err(place.other_shape(variant)),
        }
    }

    #[inline(always)]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        let place = self.place.elements(len.unwrap_or_default())?;
        Ok(Elements { inner: self.inner.serialize_seq(len)?, place, left: len.unwrap_or_default() })
    }

    #[inline(always)]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let parts = self.place.parts(len)?;
        Ok(Members { inner: self.inner.serialize_tuple(len)?, parts })
    }

    #[inline(always)]
    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        let parts = self.place.parts(len)?;
        Ok(Members { inner: self.inner.serialize_tuple_struct(name, len)?, parts })
    }

    #[inline(always)]
    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        let parts = match self.place.variant(index, variant)? {
            (ShapePlan::Tuple(steps), place) => place.below()?.begin(Left::Steps(steps), len)?,
            (_, place) => return Err(place.other_shape(variant)),
        };
        Ok(Members { inner: self.inner.serialize_tuple_variant(name, index, variant, len)?, parts })
    }

    #[inline(always)]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        let (pair, place) = self.place.pairs(len.unwrap_or_default())?;
        Ok(Pairs {
            inner: self.inner.serialize_map(len)?,
            pair,
            place,
            left: len.unwrap_or_default().saturating_mul(2),
        })
    }

    #[inline(always)]
    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        let parts = self.place.parts(len)?;
        Ok(Members { inner: self.inner.serialize_struct(name, len)?, parts })
    }

    #[inline(always)]
    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        let parts = match self.place.variant(index, variant)? {
            (ShapePlan::Fields(fields), place) => place.below()?.begin(Left::Fields(fields), len)?,
            (_, place) => return Err(place.other_shape(variant)),
        };
        Ok(Members { inner: self.inner.serialize_struct_variant(name, index, variant, len)?, parts })
    }

    #[inline(always)]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        ShortText::with(value, |text| self.serialize_str(text))
    }

    #[inline(always)]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Writes the members of a tuple or struct.
#[derive(Debug)]
pub(super) struct Members<'p, I> {
    inner: I,
    parts: Parts<'p>,
}

/// Traits that write the members of something without names.
macro_rules! nameless_members {
    ($($name:ident::$method:ident)*) => {$(
        impl<I: $name> $name for Members<'_, I> {
            type Ok = I::Ok;
            type Error = I::Error;

            #[inline(always)]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), I::Error> {
                let place = self.parts.next(None)?;
                place.written(self.inner.$method(&Checked { inner: value, place }))
            }

            #[inline(always)]
            fn end(self) -> Result<I::Ok, I::Error> {
                self.parts.end()?;
                self.inner.end()
            }
        }
    )*};
}

nameless_members! {
    SerializeTuple::serialize_element
    SerializeTupleStruct::serialize_field
    SerializeTupleVariant::serialize_field
}

/// Traits that write named fields.
macro_rules! named_members {
    ($($name:ident)*) => {$(
        impl<I: $name> $name for Members<'_, I> {
            type Ok = I::Ok;
            type Error = I::Error;

            #[inline(always)]
            fn serialize_field<T>(&mut self, key: &'static str, value: &T) -> Result<(), I::Error>
            where
                T: Serialize + ?Sized,
            {
                let place = self.parts.next(Some(key))?;
                place.written(self.inner.serialize_field(key, &Checked { inner: value, place }))
            }

            #[inline(always)]
            fn skip_field(&mut self, key: &'static str) -> Result<(), I::Error> {
                Err(self.parts.skipped(key))
            }

            #[inline(always)]
            fn end(self) -> Result<I::Ok, I::Error> {
                self.parts.end()?;
                self.inner.end()
            }
        }
    )*};
}

named_members! { SerializeStruct SerializeStructVariant }

/// Writes the elements of a sequence.
#[derive(Debug)]
pub(super) struct Elements<'p, I> {
    inner: I,
    place: Place<'p>,
    left: usize,
}

impl<I: SerializeSeq> SerializeSeq for Elements<'_, I> {
    type Ok = I::Ok;
    type Error = I::Error;

    #[inline(always)]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), I::Error> {
        self.left = take(self.left, self.left % 2, self.place)?;
        let value = Checked { inner: value, place: self.place };
        self.place.written(self.inner.serialize_element(&value))
    }

    #[inline(always)]
    fn end(self) -> Result<I::Ok, I::Error> {
        none_left(self.left, self.place)?;
        self.inner.end()
    }
}

/// Writes the pairs of a map.
#[derive(Debug)]
pub(super) struct Pairs<'p, I> {
    inner: I,
    pair: &'p (Step, Step),
    place: Place<'p>,
    /// Keys and values.
    left: usize,
}

impl<I: SerializeMap> SerializeMap for Pairs<'_, I> {
    type Ok = I::Ok;
    type Error = I::Error;

    #[inline(always)]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), I::Error> {
        self.left = take(self.left, 0, self.place)?;
        let key = Checked { inner: key, place: self.place.at(&self.pair.0) };
        self.place.written(self.inner.serialize_key(&key))
    }

    #[inline(always)]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), I::Error> {
        self.left = take(self.left, 1, self.place)?;
        let value = Checked { inner: value, place: self.place.at(&self.pair.1) };
        self.place.written(self.inner.serialize_value(&value))
    }

    #[inline(always)]
    fn end(self) -> Result<I::Ok, I::Error> {
        none_left(self.left, self.place)?;
        self.inner.end()
    }
}

/// One less, if the number left has the required parity.
#[inline(always)]
fn take<E: Error>(left: usize, odd: usize, place: Place<'_>) -> Result<usize, E> {
    match left.checked_sub(1) {
        Some(rest) if left % 2 == odd => Ok(rest),
        _ => Err(place.other_count()),
    }
}

#[inline(always)]
fn none_left<E: Error>(left: usize, place: Place<'_>) -> Result<(), E> {
    if left == 0 { Ok(()) } else { Err(place.other_count()) }
}

/// Longest text built without an allocation, bytes.
const SHORT_TEXT_LEN: usize = 128;

/// A text, or its beginning.
pub(super) struct ShortText {
    bytes: [u8; SHORT_TEXT_LEN],
    len: usize,
    /// A piece did not fit; a `Display` may ignore that error.
    is_cut: bool,
}

impl ShortText {
    /// Calls `then` with the text of a value. Short texts, such as dates and decimals, are built on the stack.
    #[inline(always)]
    pub(super) fn with<T: Display + ?Sized, R, E: Error>(
        value: &T,
        then: impl FnOnce(&str) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut short = Self { bytes: [0; SHORT_TEXT_LEN], len: 0, is_cut: false };
        match write!(short, "{value}") {
            Ok(()) if !short.is_cut => then(short.text()),
            _ => then(&long_text(value)?),
        }
    }

    fn text(&self) -> &str {
        let text = self.bytes.get(..self.len).map(std::str::from_utf8);
        text.and_then(Result::ok).unwrap_or_default()
    }
}

/// The text of a value in new memory.
fn long_text<T: Display + ?Sized, E: Error>(value: &T) -> Result<String, E> {
    let mut text = String::new();
    match write!(text, "{value}") {
        Ok(()) => Ok(text),
        Err(fmt::Error) => Err(E::custom("its Display returns an error, so it has no text")),
    }
}

impl Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.len..).and_then(|room| room.get_mut(..text.len()));
        let Some(room) = room else {
            self.is_cut = true;
            return Err(fmt::Error);
        };
        room.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
