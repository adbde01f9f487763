//! A place in a value, with its part of the schema.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::ser::Error;

use super::super::EncodeError;
use super::super::format::Leaf;
use super::super::guard::elements_max;
use super::super::plan::Plan;
use super::super::step::{ShapePlan, Step, TypePlan};
use crate::limits;

/// A value being encoded.
#[derive(Debug)]
pub(in super::super) struct Check<'p> {
    plan: &'p Plan,
    /// Elements of sequences and maps so far.
    elements: Cell<usize>,
    flaw: RefCell<Option<EncodeError>>,
    /// A part has failed: the bytes may hold a piece of it, even if the type ignores the error.
    is_failed: Cell<bool>,
}

/// A place in a value, with its part of the schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'p> {
    check: &'p Check<'p>,
    step: &'p Step,
    /// Levels that may still open below.
    depth_left: usize,
}

/// The elements of bytes, for a type that writes them one by one.
const BYTE: &Step = &Step::Leaf(Leaf::U8);

impl<'p> Check<'p> {
    pub(in super::super) fn new(plan: &'p Plan) -> Self {
        Self { plan, elements: Cell::new(0), flaw: RefCell::new(None), is_failed: Cell::new(false) }
    }

    /// The place of the whole value.
    #[inline]
    pub(super) fn root(&'p self) -> Place<'p> {
        Place { check: self, step: &self.plan.root, depth_left: limits::SCHEMA_DEPTH_MAX }
    }

    /// The check that ended the encoding, if one did.
    #[cold]
    pub(in super::super) fn flaw(&self) -> Option<EncodeError> {
        self.flaw.borrow_mut().take()
    }

    /// Checks that no part has failed, and that a decoder would accept this many elements in this many bytes.
    #[inline]
    pub(in super::super) fn finish(&self, len: usize) -> Result<(), EncodeError> {
        if self.is_failed.get() {
            return Err(self.flaw().unwrap_or_else(|| EncodeError::Refused { reason: IGNORED.into() }));
        }
        let elements = self.elements.get();
        // One comparison, except for payloads of many elements.
        if elements <= limits::EMPTY_ELEMENTS_MAX {
            return Ok(());
        }
        let max = elements_max(len);
        if elements <= max { Ok(()) } else { Err(EncodeError::TooManyElements { max }) }
    }

    #[cold]
    fn stop<E: Error>(&self, flaw: EncodeError) -> E {
        let error = E::custom(&flaw);
        *self.flaw.borrow_mut() = Some(flaw);
        self.is_failed.set(true);
        error
    }

    #[cold]
    fn differs<E: Error>(&self, reason: fmt::Arguments<'_>) -> E {
        self.stop(EncodeError::Differs { reason: reason.to_string() })
    }
}

const IGNORED: &str = "its Serialize ignores the error of one of its parts: return it instead";

impl<'p> Place<'p> {
    /// Records whether a part was written.
    #[inline(always)]
    pub(super) fn written<E>(self, part: Result<(), E>) -> Result<(), E> {
        if part.is_err() {
            self.check.is_failed.set(true);
        }
        part
    }

    #[inline(always)]
    pub(super) fn at(self, step: &'p Step) -> Self {
        Self { step, ..self }
    }

    #[inline(always)]
    pub(super) fn below<E: Error>(self) -> Result<Self, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Self { depth_left, ..self }),
            None => Err(self.check.stop(EncodeError::TooDeep { max: limits::SCHEMA_DEPTH_MAX })),
        }
    }

    #[inline(always)]
    fn type_plan(self) -> Option<&'p TypePlan> {
        match self.step {
            Step::Type(number) => self.check.plan.types.get(*number),
            _ => None,
        }
    }

    /// The place inside, if the schema has a newtype here.
    #[inline]
    pub(super) fn inside<E: Error>(self) -> Result<Option<Self>, E> {
        match self.type_plan() {
            Some(TypePlan::Struct(ShapePlan::Newtype(step))) => self.at(step).below().map(Some),
            _ => Ok(None),
        }
    }

    /// The place inside, if the schema has a newtype here; otherwise the value differs.
    #[cold]
    fn inside_for<E: Error>(self, written: &str) -> Result<Self, E> {
        self.inside()?.ok_or_else(|| self.differs(format_args!("{written}")))
    }

    #[inline(always)]
    pub(super) fn leaf<E: Error>(self, leaf: Leaf) -> Result<(), E> {
        match self.step {
            Step::Leaf(expected) if *expected == leaf => Ok(()),
            _ => self.leaf_inside(leaf),
        }
    }

    // Those called `..._inside` go through a newtype: calls, because an always inlined function cannot call itself.

    #[cold]
    fn leaf_inside<E: Error>(self, leaf: Leaf) -> Result<(), E> {
        match self.inside()? {
            Some(inside) => inside.leaf(leaf),
            None => Err(self.differs(format_args!("a value of the kind {leaf}"))),
        }
    }

    #[inline(always)]
    pub(super) fn unit<E: Error>(self) -> Result<(), E> {
        match self.type_plan() {
            Some(TypePlan::Struct(ShapePlan::Unit)) => Ok(()),
            _ => self.leaf(Leaf::Unit),
        }
    }

    /// A byte string, encoded like a sequence of bytes.
    #[inline(always)]
    pub(super) fn bytes<E: Error>(self, len: usize) -> Result<(), E> {
        match self.step {
            Step::Seq(of) if matches!(**of, Step::Leaf(Leaf::U8)) => {
                self.below()?;
                self.count(len);
                Ok(())
            }
            Step::Leaf(_) => self.leaf(Leaf::Bytes),
            _ => self.inside_for("bytes")?.bytes_inside(len),
        }
    }

    #[cold]
    fn bytes_inside<E: Error>(self, len: usize) -> Result<(), E> {
        self.bytes(len)
    }

    /// The place of an option's content, on the level of the option.
    #[inline(always)]
    pub(super) fn option<E: Error>(self) -> Result<Self, E> {
        match self.step {
            Step::Option(of) => Ok(self.at(of)),
            _ => self.inside_for("an option")?.option_inside(),
        }
    }

    #[cold]
    fn option_inside<E: Error>(self) -> Result<Self, E> {
        self.option()
    }

    /// The place of each element of a sequence.
    #[inline(always)]
    pub(super) fn elements<E: Error>(self, len: usize) -> Result<Self, E> {
        match self.step {
            Step::Seq(of) => {
                self.count(len);
                self.at(of).below()
            }
            Step::Leaf(Leaf::Bytes) => self.at(BYTE).below(),
            _ => self.inside_for("a sequence")?.elements_inside(len),
        }
    }

    #[cold]
    fn elements_inside<E: Error>(self, len: usize) -> Result<Self, E> {
        self.elements(len)
    }

    /// The key and the value of each pair of a map, and their level.
    #[inline(always)]
    pub(super) fn pairs<E: Error>(self, len: usize) -> Result<(&'p (Step, Step), Self), E> {
        match self.step {
            Step::Map(pair) => {
                self.count(len);
                Ok((pair, self.below()?))
            }
            _ => self.inside_for("a map")?.pairs_inside(len),
        }
    }

    #[cold]
    fn pairs_inside<E: Error>(self, len: usize) -> Result<(&'p (Step, Step), Self), E> {
        self.pairs(len)
    }

    /// The parts of a tuple or struct with so many.
    #[inline(always)]
    pub(super) fn parts<E: Error>(self, len: usize) -> Result<Parts<'p>, E> {
        let left = match (self.step, self.type_plan()) {
            (Step::Tuple(steps), _) => Left::Steps(steps),
            (Step::Array { of, len }, _) => Left::Same(of, *len),
            (_, Some(TypePlan::Struct(ShapePlan::Tuple(steps)))) => Left::Steps(steps),
            (_, Some(TypePlan::Struct(ShapePlan::Fields(fields)))) => Left::Fields(fields),
            _ => return self.inside_for("a tuple or struct")?.parts_inside(len),
        };
        self.below()?.begin(left, len)
    }

    #[cold]
    fn parts_inside<E: Error>(self, len: usize) -> Result<Parts<'p>, E> {
        self.parts(len)
    }

    #[inline(always)]
    pub(super) fn begin<E: Error>(self, left: Left<'p>, len: usize) -> Result<Parts<'p>, E> {
        if left.len() != len {
            return Err(left.miscounted(self.check, len));
        }
        Ok(Parts { left, place: self })
    }

    /// The schema of a variant, one level down.
    #[inline(always)]
    pub(super) fn variant<E: Error>(self, index: u32, name: &str) -> Result<(&'p ShapePlan, Self), E> {
        let Some(TypePlan::Enum(variants)) = self.type_plan() else {
            return self.inside_for("a variant of an enum")?.variant_inside(index, name);
        };
        match usize::try_from(index).ok().and_then(|index| variants.get(index)) {
            Some((expected, shape)) if **expected == *name => Ok((shape, self.below()?)),
            found => Err(self.other_variant(index, name, found.map(|(name, _)| &**name))),
        }
    }

    #[cold]
    fn variant_inside<E: Error>(self, index: u32, name: &str) -> Result<(&'p ShapePlan, Self), E> {
        self.variant(index, name)
    }

    #[cold]
    fn other_variant<E: Error>(self, index: u32, name: &str, found: Option<&str>) -> E {
        let found = found.unwrap_or("no variant");
        self.check.differs(format_args!(
            "it writes variant {name} as number {index}, which is read as {found}: skip variants only at the end \
             of an enum, and give both halves the same attributes"
        ))
    }

    #[cold]
    pub(super) fn other_shape<E: Error>(self, name: &str) -> E {
        self.differs(format_args!("variant {name}"))
    }

    #[cold]
    pub(super) fn other_count<E: Error>(self) -> E {
        self.check.differs(format_args!("its sequence has another number of elements than announced"))
    }

    /// Adds to the elements that a decoder would count.
    #[inline(always)]
    fn count(self, len: usize) {
        self.check.elements.set(self.check.elements.get().saturating_add(len));
    }

    #[cold]
    fn differs<E: Error>(self, written: fmt::Arguments<'_>) -> E {
        let expected = match (self.step, self.type_plan()) {
            (Step::Leaf(leaf), _) => {
                return self.check.differs(format_args!("it writes {written}, {leaf} is read"));
            }
            (Step::Option(_), _) => "an option",
            (Step::Seq(_), _) => "a sequence",
            (Step::Map(_), _) => "a map",
            (Step::Tuple(_) | Step::Array { .. }, _) => "a tuple",
            (_, Some(TypePlan::Struct(_))) => "a struct",
            (_, Some(TypePlan::Enum(_))) => "an enum, or a variant of another shape,",
            (Step::Type(_), None) => "nothing",
        };
        self.check.differs(format_args!("it writes {written} where {expected} is read"))
    }
}

/// The parts still to be written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Left<'p> {
    Fields(&'p [(Box<str>, Step)]),
    Steps(&'p [Step]),
    /// So many of one format.
    Same(&'p Step, usize),
}

impl<'p> Left<'p> {
    #[inline(always)]
    fn len(self) -> usize {
        match self {
            Self::Fields(fields) => fields.len(),
            Self::Steps(steps) => steps.len(),
            Self::Same(_, left) => left,
        }
    }

    #[cold]
    fn miscounted<E: Error>(self, check: &Check<'_>, len: usize) -> E {
        let (of, expected) = match self {
            Self::Fields([(first, _), ..]) => {
                (format!(" of the struct that begins with {first}"), self.len())
            }
            _ => (String::new(), self.len()),
        };
        check.differs(format_args!(
            "it writes {len} of the {expected} parts{of} (serde's skip_serializing and skip_serializing_if do that): \
             write all, or publish a type without the attribute"
        ))
    }
}

/// The parts of a tuple or struct, in order.
#[derive(Debug)]
pub(super) struct Parts<'p> {
    left: Left<'p>,
    place: Place<'p>,
}

impl<'p> Parts<'p> {
    #[inline(always)]
    pub(super) fn next<E: Error>(&mut self, name: Option<&str>) -> Result<Place<'p>, E> {
        let step = match self.left {
            Left::Fields([(expected, step), rest @ ..]) => {
                if name.is_some_and(|name| *name != **expected) {
                    return Err(self.other_field(name.unwrap_or_default(), expected));
                }
                self.left = Left::Fields(rest);
                step
            }
            Left::Steps([step, rest @ ..]) => {
                self.left = Left::Steps(rest);
                step
            }
            Left::Same(step, left @ 1..) => {
                self.left = Left::Same(step, left - 1);
                step
            }
            _ => {
                return Err(self.place.check.differs(format_args!("it writes more parts than it announced")));
            }
        };
        Ok(self.place.at(step))
    }

    #[cold]
    fn other_field<E: Error>(&self, name: &str, expected: &str) -> E {
        self.place.check.differs(format_args!("it writes field {name} where field {expected} is read"))
    }

    #[cold]
    pub(super) fn skipped<E: Error>(&self, name: &str) -> E {
        let reason = format_args!("it omits field {name}, which is read all the same");
        self.place.check.differs(reason)
    }

    #[inline(always)]
    pub(super) fn end<E: Error>(&self) -> Result<(), E> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(self.place.check.differs(format_args!("it omits its last {left} parts"))),
        }
    }
}
