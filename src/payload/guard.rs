//! A deserializer around another that bounds what hostile bytes can do to it, or to the type it fills:
//!
//! - nesting ends at [`limits::SCHEMA_DEPTH_MAX`], so that no recursive type runs out of stack;
//! - a count that bytes of this length cannot hold is refused before the first element, so that 2^60 elements without bytes cost
//!   nothing;
//! - texts and byte strings are borrowed before they are copied, so that a false length allocates nothing.
//!
//! It works on serde's calls, not on bytes. All of it is by value and inlined; a type without sequences pays nothing.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::DecodeError;
use crate::limits;

/// Elements that a payload of this many bytes may have. Elements with bytes, in sequences of sequences (each of which has 8 bytes
/// of its own), never reach twice the length; the constant is for elements without bytes.
pub(super) fn elements_max(len: usize) -> usize {
    len.saturating_mul(2).saturating_add(limits::EMPTY_ELEMENTS_MAX)
}

/// What one decoding may still use, and the bound that stopped it.
#[derive(Debug)]
pub(super) struct Budget {
    elements_left: Cell<usize>,
    elements_max: usize,
    breach: RefCell<Option<DecodeError>>,
}

impl Budget {
    /// The budget for a payload of this many bytes.
    pub(super) fn new(len: usize) -> Self {
        let elements_max = elements_max(len);
        Self { elements_left: Cell::new(elements_max), elements_max, breach: RefCell::new(None) }
    }

    /// The bound that ended the decoding, if one did.
    #[cold]
    pub(super) fn breach(&self) -> Option<DecodeError> {
        self.breach.borrow_mut().take()
    }

    #[inline]
    fn take_elements<E: Error>(&self, count: Option<usize>) -> Result<(), E> {
        match self.elements_left.get().checked_sub(count.unwrap_or(0)) {
            Some(left) => {
                self.elements_left.set(left);
                Ok(())
            }
            None => Err(self.stop(DecodeError::TooManyElements { max: self.elements_max })),
        }
    }

    #[cold]
    fn stop<E: Error>(&self, breach: DecodeError) -> E {
        let error = E::custom(&breach);
        *self.breach.borrow_mut() = Some(breach);
        error
    }
}

/// A bounded seed, deserializer, visitor or access: one type wraps whatever serde nests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guarded<'b, I> {
    inner: I,
    budget: &'b Budget,
    /// Levels that may still open below.
    depth_left: usize,
}

impl<'b, I> Guarded<'b, I> {
    /// Guards everything reached by deserializing `inner`.
    #[inline]
    pub(super) fn new(inner: I, budget: &'b Budget) -> Self {
        Self { inner, budget, depth_left: limits::SCHEMA_DEPTH_MAX }
    }

    /// The same bounds for something on the same level.
    #[inline]
    fn beside<J>(&self, inner: J) -> Guarded<'b, J> {
        Guarded { inner, budget: self.budget, depth_left: self.depth_left }
    }

    /// The same bounds for something one level down.
    #[inline]
    fn below<J, E: Error>(&self, inner: J) -> Result<Guarded<'b, J>, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Guarded { inner, budget: self.budget, depth_left }),
            None => Err(self.budget.stop(DecodeError::TooDeep { max: limits::SCHEMA_DEPTH_MAX })),
        }
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Guarded<'_, S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let guarded = self.beside(deserializer);
        self.inner.deserialize(guarded)
    }
}

/// Methods for leaves.
macro_rules! leaves {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        }
    )*};
}

/// Methods for values with parts: the visitor is guarded.
macro_rules! nested {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Self::Error> {
            let visitor = self.beside(visitor);
            self.inner.$method($($argument,)* visitor)
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Guarded<'_, D> {
    type Error = D::Error;

    leaves! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_bytes deserialize_unit
        deserialize_identifier deserialize_ignored_any
    }

    #[inline]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_str(Copied(visitor))
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_bytes(Copied(visitor))
    }

    nested! {
        deserialize_option();
        deserialize_newtype_struct(name: &'static str);
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let visitor = self.beside(Counted(visitor));
        self.inner.deserialize_seq(visitor)
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Guarded<'_, V> {
    type Value = V::Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(out)
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.below(deserializer)?;
        self.inner.visit_some(deserializer)
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let deserializer = self.below(deserializer)?;
        self.inner.visit_newtype_struct(deserializer)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let access = self.below(access)?;
        self.inner.visit_seq(access)
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.budget.take_elements(access.size_hint())?;
        let access = self.below(access)?;
        self.inner.visit_map(access)
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let access = self.below(access)?;
        self.inner.visit_enum(access)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Guarded<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let seed = self.beside(seed);
        self.inner.next_element_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Guarded<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let seed = self.beside(seed);
        self.inner.next_key_seed(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.beside(seed);
        self.inner.next_value_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'b, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Guarded<'b, A> {
    type Error = A::Error;
    type Variant = Guarded<'b, A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let Self { inner, budget, depth_left } = self;
        let (value, variant) = inner.variant_seed(seed)?;
        Ok((value, Guarded { inner: variant, budget, depth_left }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Guarded<'_, A> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.beside(seed);
        self.inner.newtype_variant_seed(seed)
    }

    nested! {
        tuple_variant(len: usize);
        struct_variant(fields: &'static [&'static str]);
    }
}

/// A visitor of a sequence with an encoded length.
struct Counted<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Guarded<'_, Counted<V>> {
    type Value = V::Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.0.expecting(out)
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.budget.take_elements(access.size_hint())?;
        let access = self.below(access)?;
        self.inner.0.visit_seq(access)
    }
}

/// A visitor that expects an owned text or bytes, and gets a copy of what the payload really has.
struct Copied<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Copied<V> {
    type Value = V::Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(out)
    }

    #[inline]
    fn visit_str<E: Error>(self, text: &str) -> Result<V::Value, E> {
        self.0.visit_string(text.to_owned())
    }

    #[inline]
    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<V::Value, E> {
        self.0.visit_byte_buf(bytes.to_vec())
    }
}
