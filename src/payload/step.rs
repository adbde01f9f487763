//! The parts of a plan.

use super::format::Leaf;

/// What a value must be.
#[derive(Debug)]
pub(super) enum Step {
    Leaf(Leaf),
    Option(Box<Self>),
    Seq(Box<Self>),
    /// The key and the value of each pair.
    Map(Box<(Self, Self)>),
    Tuple(Box<[Self]>),
    Array {
        of: Box<Self>,
        len: usize,
    },
    /// A named type; a number beyond the last fits no value.
    Type(usize),
}

/// A named type.
#[derive(Debug)]
pub(super) enum TypePlan {
    Struct(ShapePlan),
    Enum(Box<[(Box<str>, ShapePlan)]>),
}

/// The contents of a struct or a variant.
#[derive(Debug)]
pub(super) enum ShapePlan {
    Unit,
    Newtype(Step),
    Tuple(Box<[Step]>),
    Fields(Box<[(Box<str>, Step)]>),
}

/// The shortest encoding is not known yet.
pub(super) const UNKNOWN: usize = usize::MAX;

impl TypePlan {
    pub(super) fn len_min(&self, known: &[usize]) -> usize {
        match self {
            Self::Struct(shape) => shape.len_min(known),
            Self::Enum(variants) => {
                let shortest = variants.iter().map(|(_, shape)| shape.len_min(known)).min();
                shortest.unwrap_or_default().saturating_add(size_of::<u32>())
            }
        }
    }
}

impl ShapePlan {
    fn len_min(&self, known: &[usize]) -> usize {
        match self {
            Self::Unit => 0,
            Self::Newtype(step) => step.len_min(known),
            Self::Tuple(steps) => sum(steps.iter(), known),
            Self::Fields(fields) => sum(fields.iter().map(|(_, step)| step), known),
        }
    }
}

impl Step {
    pub(super) fn len_min(&self, known: &[usize]) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.len_min(),
            Self::Option(_) => 1,
            Self::Seq(_) | Self::Map(_) => size_of::<u64>(),
            Self::Tuple(steps) => sum(steps.iter(), known),
            Self::Array { of, len } => of.len_min(known).saturating_mul(*len),
            Self::Type(number) => known.get(*number).copied().unwrap_or(UNKNOWN),
        }
    }
}

impl Leaf {
    fn len_min(self) -> usize {
        match self {
            Self::Unit => 0,
            Self::Bool | Self::I8 | Self::U8 | Self::Char => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::String | Self::Bytes => 8,
            Self::I128 | Self::U128 => 16,
        }
    }
}

fn sum<'s>(steps: impl Iterator<Item = &'s Step>, known: &[usize]) -> usize {
    steps.fold(0, |sum, step| sum.saturating_add(step.len_min(known)))
}
