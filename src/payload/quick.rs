//! The serializer of every publish: writes a value and compares it with its topic's schema, at the cost of one comparison for
//! each struct, sequence, option and enum.
//!
//! The calls of a type's `Serialize` are hashed: the kind of each leaf, the names of fields, the number of parts. In code derived
//! by serde all of these are constants, so the compiler computes the hash of a struct of numbers, and the program compares it
//! with the one in [`Runs`]. 64 bits detect disagreement, not forgery.
//!
//! A value that differs in anything stops here without a reason; `checked` then encodes it again, decides, and gives the reason.
//! It also handles types without [`Runs`].

mod runs;

use std::fmt::Display;

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use self::runs::{ARRAY_LEN_MIN, Each, Op, RunState, VariantKind};
pub(super) use self::runs::{Runs, Stopped};
use super::EncodeError;
use super::bincode::{self, Out};
use super::checked::ShortText;
use super::format::{Leaf, leaf_methods};
use super::plan::Plan;

/// Encodes into the beginning of `out` what follows the plan.
#[inline]
pub(super) fn encode<T: Serialize + ?Sized>(
    value: &T,
    plan: &Plan,
    out: &mut [u8],
) -> Result<usize, EncodeError> {
    match plan.runs.as_ref().map(|runs| encode_quick(value, runs, out)) {
        Some(Ok(len)) => Ok(len),
        None | Some(Err(Stopped)) => bincode::encode_or_explain(value, plan, out),
    }
}

/// The same, without a reason when `checked` has to decide.
#[inline(always)]
fn encode_quick<T: Serialize + ?Sized>(value: &T, runs: &Runs, out: &mut [u8]) -> Result<usize, Stopped> {
    let mut out = Out::new(out);
    let each = runs.each(runs.root)?;
    each.check(value.serialize(Quick { out: &mut out, runs, state: each.start })?)?;
    Ok(out.written())
}

/// What writes one value.
struct Quick<'a, 'o, 'p> {
    out: &'a mut Out<'o>,
    runs: &'p Runs,
    state: RunState,
}

impl<'a, 'o, 'p> Quick<'a, 'o, 'p> {
    #[inline(always)]
    fn op(&self) -> Result<Op, Stopped> {
        self.runs.op(self.state)
    }

    /// A writer of the parts in this place.
    #[inline(always)]
    fn parts(self, len: usize) -> Result<Members<'a, 'o, 'p>, Stopped> {
        let Op::Parts { body } = self.op()? else { return Err(Stopped) };
        Ok(self.members(RunState::parts(body, len), None))
    }

    #[inline(always)]
    fn members(self, state: RunState, each: Option<(Each, usize)>) -> Members<'a, 'o, 'p> {
        Members { out: self.out, runs: self.runs, state, each, next: self.state.next() }
    }

    /// Writes the number of a variant, and returns the place of its parts.
    #[inline(always)]
    fn variant(&mut self, index: u32, name: &str, kind: VariantKind) -> Result<u32, Stopped> {
        let Op::Enum { first, count } = self.op()? else { return Err(Stopped) };
        if index >= count {
            return Err(Stopped);
        }
        let body = self.runs.variant(first, index, kind.hash(name))?;
        self.out.put(&index)?;
        Ok(body)
    }

    #[inline(always)]
    fn inside<T: Serialize + ?Sized>(self, body: u32, value: &T) -> Result<RunState, Stopped> {
        let each = self.runs.each(body)?;
        each.check(value.serialize(Quick { state: each.start, out: self.out, runs: self.runs })?)?;
        Ok(self.state.next())
    }
}

/// Methods for leaves.
macro_rules! leaves {
    ($($method:ident($value:ty) $leaf:ident;)*) => {$(
        #[inline(always)]
        fn $method(self, value: $value) -> Result<RunState, Stopped> {
            self.out.put(&value)?;
            Ok(self.state.leaf(Leaf::$leaf))
        }
    )*};
}

impl<'a, 'o, 'p> Serializer for Quick<'a, 'o, 'p> {
    type Ok = RunState;
    type Error = Stopped;
    type SerializeSeq = Elements<'a, 'o, 'p>;
    type SerializeTuple = Members<'a, 'o, 'p>;
    type SerializeTupleStruct = Members<'a, 'o, 'p>;
    type SerializeTupleVariant = Members<'a, 'o, 'p>;
    type SerializeMap = Pairs<'a, 'o, 'p>;
    type SerializeStruct = Members<'a, 'o, 'p>;
    type SerializeStructVariant = Members<'a, 'o, 'p>;

    leaf_methods!(leaves);
    leaves! { serialize_bytes(&[u8]) Bytes; }

    #[inline(always)]
    fn serialize_none(self) -> Result<RunState, Stopped> {
        let Op::Option { .. } = self.op()? else { return Err(Stopped) };
        self.out.put(&0_u8)?;
        Ok(self.state.next())
    }

    #[inline(always)]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<RunState, Stopped> {
        let Op::Option { body } = self.op()? else { return Err(Stopped) };
        self.out.put(&1_u8)?;
        self.inside(body, value)
    }

    #[inline(always)]
    fn serialize_unit(self) -> Result<RunState, Stopped> {
        Ok(self.state.leaf(Leaf::Unit))
    }

    #[inline(always)]
    fn serialize_unit_struct(self, _: &'static str) -> Result<RunState, Stopped> {
        self.serialize_unit()
    }

    #[inline(always)]
    fn serialize_unit_variant(
        mut self,
        _: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<RunState, Stopped> {
        self.variant(index, variant, VariantKind::Unit)?;
        Ok(self.state.next())
    }

    #[inline(always)]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<RunState, Stopped> {
        value.serialize(self)
    }

    #[inline(always)]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<RunState, Stopped> {
        let body = self.variant(index, variant, VariantKind::Newtype)?;
        self.inside(body, value)
    }

    #[inline(always)]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, Stopped> {
        let (Op::Seq { body }, Some(left)) = (self.op()?, len) else { return Err(Stopped) };
        let each = self.runs.each(body)?;
        self.out.put(&left)?;
        Ok(Elements { out: self.out, runs: self.runs, each, left, next: self.state.next() })
    }

    #[inline(always)]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, Stopped> {
        // The length is a constant when inlined.
        if len < ARRAY_LEN_MIN {
            return self.parts(len);
        }
        match self.op()? {
            Op::Array { body, len: expected } if expected == len => {
                let each = self.runs.each(body)?;
                Ok(self.members(each.start, Some((each, len))))
            }
            _ => Err(Stopped),
        }
    }

    #[inline(always)]
    fn serialize_tuple_struct(
        self,
        _: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, Stopped> {
        self.parts(len)
    }

    #[inline(always)]
    fn serialize_tuple_variant(
        mut self,
        _: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, Stopped> {
        let body = self.variant(index, variant, VariantKind::Tuple)?;
        Ok(self.members(RunState::parts(body, len), None))
    }

    #[inline(always)]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, Stopped> {
        let (Op::Map { key, value }, Some(len)) = (self.op()?, len) else { return Err(Stopped) };
        let (key, value) = (self.runs.each(key)?, self.runs.each(value)?);
        self.out.put(&len)?;
        let left = len.checked_mul(2).ok_or(Stopped)?;
        Ok(Pairs { out: self.out, runs: self.runs, key, value, left, next: self.state.next() })
    }

    #[inline(always)]
    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Self::SerializeStruct, Stopped> {
        self.parts(len)
    }

    #[inline(always)]
    fn serialize_struct_variant(
        mut self,
        _: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, Stopped> {
        let body = self.variant(index, variant, VariantKind::Fields)?;
        Ok(self.members(RunState::parts(body, len), None))
    }

    #[inline(always)]
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<RunState, Stopped> {
        ShortText::with(value, |text| self.serialize_str(text))
    }

    #[inline(always)]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Parts left after a failure: more than can ever be written.
const NEVER: usize = usize::MAX;

/// What writes the parts of a tuple, a struct or a variant.
struct Members<'a, 'o, 'p> {
    out: &'a mut Out<'o>,
    runs: &'p Runs,
    state: RunState,
    /// For a long array: what each element must be, and how many are left.
    each: Option<(Each, usize)>,
    next: RunState,
}

impl Members<'_, '_, '_> {
    #[inline(always)]
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stopped> {
        let part = value.serialize(Quick { out: &mut *self.out, runs: self.runs, state: self.state });
        let written = part.and_then(|state| match &mut self.each {
            None => {
                self.state = state;
                Ok(())
            }
            Some((each, left)) => {
                *left = left.wrapping_sub(1);
                each.check(state)
            }
        });
        if written.is_err() {
            self.fail();
        }
        written
    }

    /// The bytes may hold a piece of the failed part, so this never succeeds, even if the type ignores the error.
    #[inline(always)]
    fn fail(&mut self) {
        self.state = RunState::NOWHERE;
        if let Some((_, left)) = &mut self.each {
            *left = NEVER;
        }
    }

    #[inline(always)]
    fn finish(self) -> Result<RunState, Stopped> {
        match self.each {
            None => self.runs.ended(self.state)?,
            Some((_, 0)) => {}
            Some(_) => return Err(Stopped),
        }
        Ok(self.next)
    }
}

/// Traits that write the members of something without names.
macro_rules! nameless_members {
    ($($name:ident::$method:ident)*) => {$(
        impl $name for Members<'_, '_, '_> {
            type Ok = RunState;
            type Error = Stopped;

            #[inline(always)]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stopped> {
                self.part(value)
            }

            #[inline(always)]
            fn end(self) -> Result<RunState, Stopped> {
                self.finish()
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
        impl $name for Members<'_, '_, '_> {
            type Ok = RunState;
            type Error = Stopped;

            #[inline(always)]
            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), Stopped> {
                self.state = self.state.name(key);
                self.part(value)
            }

            #[cold]
            fn skip_field(&mut self, _: &'static str) -> Result<(), Stopped> {
                self.state = RunState::NOWHERE;
                Err(Stopped)
            }

            #[inline(always)]
            fn end(self) -> Result<RunState, Stopped> {
                self.finish()
            }
        }
    )*};
}

named_members! { SerializeStruct SerializeStructVariant }

/// What writes the elements of a sequence.
struct Elements<'a, 'o, 'p> {
    out: &'a mut Out<'o>,
    runs: &'p Runs,
    each: Each,
    left: usize,
    next: RunState,
}

impl SerializeSeq for Elements<'_, '_, '_> {
    type Ok = RunState;
    type Error = Stopped;

    #[inline(always)]
    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stopped> {
        // More elements than announced wrap around, and never return to zero.
        self.left = self.left.wrapping_sub(1);
        let quick = Quick { out: &mut *self.out, runs: self.runs, state: self.each.start };
        let written = value.serialize(quick).and_then(|state| self.each.check(state));
        if written.is_err() {
            self.left = NEVER;
        }
        written
    }

    #[inline(always)]
    fn end(self) -> Result<RunState, Stopped> {
        if self.left == 0 { Ok(self.next) } else { Err(Stopped) }
    }
}

/// What writes the pairs of a map.
struct Pairs<'a, 'o, 'p> {
    out: &'a mut Out<'o>,
    runs: &'p Runs,
    key: Each,
    value: Each,
    /// Keys and values.
    left: usize,
    next: RunState,
}

impl Pairs<'_, '_, '_> {
    /// Writes a key if an even number is left, or a value if an odd one is.
    #[inline(always)]
    fn part<T: Serialize + ?Sized>(&mut self, part: &T, odd: usize, each: Each) -> Result<(), Stopped> {
        if self.left % 2 != odd {
            self.left = NEVER;
            return Err(Stopped);
        }
        self.left = self.left.wrapping_sub(1);
        let quick = Quick { out: &mut *self.out, runs: self.runs, state: each.start };
        let written = part.serialize(quick).and_then(|state| each.check(state));
        if written.is_err() {
            self.left = NEVER;
        }
        written
    }
}

impl SerializeMap for Pairs<'_, '_, '_> {
    type Ok = RunState;
    type Error = Stopped;

    #[inline(always)]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Stopped> {
        self.part(key, 0, self.key)
    }

    #[inline(always)]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Stopped> {
        self.part(value, 1, self.value)
    }

    #[inline(always)]
    fn end(self) -> Result<RunState, Stopped> {
        if self.left == 0 { Ok(self.next) } else { Err(Stopped) }
    }
}

#[cfg(test)]
mod tests;
