//! A schema with resolved names, so that comparing a value needs no search.

use std::collections::BTreeMap;

use super::format::{Field, Format, Named, Shape, Variant};
use super::quick::Runs;
use super::step::{ShapePlan, Step, TypePlan, UNKNOWN};

/// The format of the whole value, and of its named types by number.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) root: Step,
    pub(super) types: Box<[TypePlan]>,
    /// The same for the serializer of every publish, if it can handle such values.
    pub(super) runs: Option<Runs>,
    len_min: usize,
}

impl Plan {
    pub(super) fn new(root: &Format, types: &BTreeMap<String, Named>) -> Self {
        let numbers: BTreeMap<&str, usize> = types.keys().map(String::as_str).zip(0..).collect();
        let types = types.values().map(|named| type_plan(named, &numbers)).collect();
        let mut plan = Self { root: step(root, &numbers), types, runs: None, len_min: 0 };
        let known = plan.types_len_min();
        plan.len_min = plan.root.len_min(&known);
        plan.runs = Runs::new(&plan.root, &plan.types, &known);
        plan
    }

    /// The length of the shortest value, bytes.
    pub(super) fn len_min(&self) -> usize {
        self.len_min
    }

    /// The length of the shortest value of each named type, bytes.
    fn types_len_min(&self) -> Vec<usize> {
        let mut known = vec![UNKNOWN; self.types.len()];
        // A type may hold itself behind an enum: shortest values are found from the inside out.
        for _ in 0..=self.types.len() {
            let next: Vec<usize> = self.types.iter().map(|plan| plan.len_min(&known)).collect();
            if next == known {
                break;
            }
            known = next;
        }
        known
    }
}

fn type_plan(named: &Named, numbers: &BTreeMap<&str, usize>) -> TypePlan {
    match named {
        Named::Struct(of) => TypePlan::Struct(shape(of, numbers)),
        Named::Enum(variants) => {
            let variant = |Variant { name, shape: of }: &Variant| (name.as_str().into(), shape(of, numbers));
            TypePlan::Enum(variants.iter().map(variant).collect())
        }
    }
}

fn shape(of: &Shape, numbers: &BTreeMap<&str, usize>) -> ShapePlan {
    match of {
        Shape::Unit => ShapePlan::Unit,
        Shape::Newtype(format) => ShapePlan::Newtype(step(format, numbers)),
        Shape::Tuple(formats) => ShapePlan::Tuple(formats.iter().map(|of| step(of, numbers)).collect()),
        Shape::Fields(fields) => {
            let field = |Field { name, format }: &Field| (name.as_str().into(), step(format, numbers));
            ShapePlan::Fields(fields.iter().map(field).collect())
        }
    }
}

/// Schemas bound the nesting of formats.
fn step(format: &Format, numbers: &BTreeMap<&str, usize>) -> Step {
    let inner = |of: &Format| Box::new(step(of, numbers));
    match format {
        Format::Option(of) => Step::Option(inner(of)),
        Format::Seq(of) => Step::Seq(inner(of)),
        Format::Array { of, len } => Step::Array { of: inner(of), len: *len },
        Format::Map { key, value } => Step::Map(Box::new((step(key, numbers), step(value, numbers)))),
        Format::Tuple(parts) => Step::Tuple(parts.iter().map(|of| step(of, numbers)).collect()),
        Format::Type(name) => Step::Type(numbers.get(name.as_str()).copied().unwrap_or(usize::MAX)),
        leaf => leaf.leaf().map_or(Step::Type(usize::MAX), Step::Leaf),
    }
}
