//! A schema as hashes of the calls that a matching `Serialize` makes.

use std::fmt::Display;

use serde::ser::Error;

use super::super::format::Leaf;
use super::super::step::{ShapePlan, Step, TypePlan};
use crate::limits;

/// From this length on the elements of an array are checked one by one, not all in one hash.
pub(super) const ARRAY_LEN_MIN: usize = 33;

/// The value is not what the schema has, or does not fit, or its `Serialize` gave up.
#[derive(Debug, thiserror::Error)]
#[error("not encoded")]
pub(in super::super) struct Stopped;

impl Error for Stopped {
    #[cold]
    fn custom<T: Display>(_: T) -> Self {
        Self
    }
}

/// The bodies of a schema. A body is a row of runs, each of which ends at an [`Op`]; one hash covers all calls of a run.
///
/// There are none for a type with values that may be nested too deeply to decode, or that have elements without bytes, because
/// these are not counted here; nor for tuples of 33 and more parts that are not all alike.
#[derive(Debug)]
pub(in super::super) struct Runs {
    runs: Box<[Run]>,
    variants: Box<[Variant]>,
    pub(super) root: u32,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    hash: u64,
    end: Op,
}

/// What follows a run. It has a body of its own inside; the next run begins after it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// The body ends.
    End,
    /// A tuple or struct.
    Parts {
        body: u32,
    },
    /// An array of at least [`ARRAY_LEN_MIN`] elements.
    Array {
        body: u32,
        len: usize,
    },
    Option {
        body: u32,
    },
    Seq {
        body: u32,
    },
    Map {
        key: u32,
        value: u32,
    },
    /// Variants of [`Runs`].
    Enum {
        first: u32,
        count: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Variant {
    hash: u64,
    body: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum VariantKind {
    Unit,
    Newtype,
    Tuple,
    Fields,
}

impl VariantKind {
    #[inline(always)]
    pub(super) fn hash(self, name: &str) -> u64 {
        mix(name_hash(name), self as u64)
    }
}

/// The position of a serializer: its run, and the hash of the calls in it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunState {
    hash: u64,
    run: u32,
}

/// The hash of no calls.
const BEGIN: u64 = 0x243F_6A88_85A3_08D3;

#[inline(always)]
fn mix(hash: u64, call: u64) -> u64 {
    let product = (hash ^ call).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

#[inline(always)]
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(name.len() as u64, |hash, byte| mix(hash, u64::from(byte)))
}

impl RunState {
    /// Outside every schema, which has fewer runs.
    pub(super) const NOWHERE: Self = Self { hash: BEGIN, run: u32::MAX };

    /// At the beginning of a body with so many parts.
    #[inline(always)]
    pub(super) fn parts(body: u32, len: usize) -> Self {
        Self { hash: mix(BEGIN, len as u64), run: body }
    }

    /// At the beginning of the next run.
    #[inline(always)]
    pub(super) fn next(self) -> Self {
        Self { hash: BEGIN, run: self.run.wrapping_add(1) }
    }

    #[inline(always)]
    pub(super) fn leaf(self, leaf: Leaf) -> Self {
        Self { hash: mix(self.hash, leaf as u64), ..self }
    }

    #[inline(always)]
    pub(super) fn name(self, name: &str) -> Self {
        Self { hash: mix(self.hash, name_hash(name)), ..self }
    }
}

/// The states before and after the only part of a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Each {
    pub(super) start: RunState,
    end: RunState,
}

impl Each {
    #[inline(always)]
    pub(super) fn check(self, state: RunState) -> Result<(), Stopped> {
        if state == self.end { Ok(()) } else { Err(Stopped) }
    }
}

impl Runs {
    pub(in super::super) fn new(root: &Step, types: &[TypePlan], known: &[usize]) -> Option<Self> {
        let progress = types.iter().map(|_| Progress::Unseen).collect();
        let mut maker = Maker { types, known, progress, runs: Vec::new(), variants: Vec::new() };
        let (root, depth) = maker.only(root, 0)?;
        (depth <= limits::SCHEMA_DEPTH_MAX).then(|| Self {
            runs: maker.runs.into(),
            variants: maker.variants.into(),
            root,
        })
    }

    /// What follows the run that ends in this state.
    #[inline(always)]
    pub(super) fn op(&self, state: RunState) -> Result<Op, Stopped> {
        match self.runs.get(state.run as usize) {
            Some(run) if run.hash == state.hash => Ok(run.end),
            _ => Err(Stopped),
        }
    }

    #[inline(always)]
    pub(super) fn ended(&self, state: RunState) -> Result<(), Stopped> {
        let Op::End = self.op(state)? else { return Err(Stopped) };
        Ok(())
    }

    /// The states of a body of one part: a leaf in its only run, or after its first.
    #[inline(always)]
    pub(super) fn each(&self, body: u32) -> Result<Each, Stopped> {
        let run = self.runs.get(body as usize).ok_or(Stopped)?;
        let start = RunState { hash: BEGIN, run: body };
        let end = match run.end {
            Op::End => RunState { hash: run.hash, run: body },
            _ => start.next(),
        };
        Ok(Each { start, end })
    }

    /// The body of a variant, if it has this hash.
    #[inline(always)]
    pub(super) fn variant(&self, first: u32, index: u32, hash: u64) -> Result<u32, Stopped> {
        match self.variants.get(first.wrapping_add(index) as usize) {
            Some(variant) if variant.hash == hash => Ok(variant.body),
            _ => Err(Stopped),
        }
    }
}

/// The translation of a place, and the levels it opens.
#[derive(Clone, Copy)]
struct Piece {
    call: Call,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Call {
    Leaf(Leaf),
    Op(Op),
}

enum Progress {
    Unseen,
    /// Meeting it in this state shows a recursive type.
    Begun,
    Done(Piece),
}

struct Maker<'p> {
    types: &'p [TypePlan],
    /// The shortest encoding of each type.
    known: &'p [usize],
    progress: Vec<Progress>,
    runs: Vec<Run>,
    variants: Vec<Variant>,
}

impl Maker<'_> {
    /// Translates a place; nothing if its elements must be counted, or it is too deep.
    fn piece(&mut self, step: &Step, above: usize) -> Option<Piece> {
        let above = above.checked_add(1).filter(|above| *above <= limits::SCHEMA_DEPTH_MAX + 1)?;
        let (op, depth) = match step {
            Step::Leaf(leaf) => return Some(Piece { call: Call::Leaf(*leaf), depth: 0 }),
            Step::Type(number) => return self.named(*number, above),
            Step::Option(of) => self.only(of, above).map(|(body, depth)| (Op::Option { body }, depth))?,
            Step::Seq(of) => {
                self.has_bytes(of.len_min(self.known))?;
                self.only(of, above).map(|(body, depth)| (Op::Seq { body }, depth))?
            }
            Step::Map(pair) => {
                self.has_bytes(pair.0.len_min(self.known).saturating_add(pair.1.len_min(self.known)))?;
                let (key, key_depth) = self.only(&pair.0, above)?;
                let (value, value_depth) = self.only(&pair.1, above)?;
                (Op::Map { key, value }, key_depth.max(value_depth))
            }
            Step::Array { of, len } if *len >= ARRAY_LEN_MIN => {
                self.only(of, above).map(|(body, depth)| (Op::Array { body, len: *len }, depth))?
            }
            Step::Array { of, len } => {
                let piece = self.piece(of, above)?;
                self.parts(&vec![(None, piece); *len])?
            }
            Step::Tuple(steps) if steps.len() >= ARRAY_LEN_MIN => return None,
            Step::Tuple(steps) => self.tuple(steps, above)?,
        };
        Some(Piece { call: Call::Op(op), depth: depth + 1 })
    }

    /// Elements of which many fit into few bytes must be counted elsewhere.
    fn has_bytes(&self, len_min: usize) -> Option<()> {
        (len_min > 0).then_some(())
    }

    fn named(&mut self, number: usize, above: usize) -> Option<Piece> {
        let progress = self.progress.get_mut(number)?;
        match progress {
            Progress::Done(piece) => return Some(*piece),
            Progress::Begun => return None,
            Progress::Unseen => *progress = Progress::Begun,
        }
        let piece = match self.types.get(number)? {
            TypePlan::Struct(ShapePlan::Unit) => Piece { call: Call::Leaf(Leaf::Unit), depth: 0 },
            TypePlan::Struct(ShapePlan::Newtype(step)) => {
                let inside = self.piece(step, above)?;
                Piece { depth: inside.depth + 1, ..inside }
            }
            TypePlan::Struct(shape) => {
                let (op, depth) = self.shape(shape, above)?;
                Piece { call: Call::Op(op), depth: depth + 1 }
            }
            TypePlan::Enum(variants) => self.variants(variants, above)?,
        };
        *self.progress.get_mut(number)? = Progress::Done(piece);
        Some(piece)
    }

    fn variants(&mut self, variants: &[(Box<str>, ShapePlan)], above: usize) -> Option<Piece> {
        let mut made = Vec::new();
        let mut depth = 0;
        for (name, shape) in variants {
            let (kind, body, inside) = match shape {
                ShapePlan::Unit => (VariantKind::Unit, 0, 0),
                ShapePlan::Newtype(step) => {
                    let (body, inside) = self.only(step, above)?;
                    (VariantKind::Newtype, body, inside)
                }
                ShapePlan::Tuple(_) | ShapePlan::Fields(_) => {
                    let (Op::Parts { body }, inside) = self.shape(shape, above)? else { return None };
                    let is_tuple = matches!(shape, ShapePlan::Tuple(_));
                    let kind = if is_tuple { VariantKind::Tuple } else { VariantKind::Fields };
                    (kind, body, inside + 1)
                }
            };
            depth = depth.max(inside + 1);
            made.push(Variant { hash: kind.hash(name), body });
        }
        let first = u32::try_from(self.variants.len()).ok()?;
        let count = u32::try_from(made.len()).ok()?;
        self.variants.append(&mut made);
        Some(Piece { call: Call::Op(Op::Enum { first, count }), depth })
    }

    fn shape(&mut self, shape: &ShapePlan, above: usize) -> Option<(Op, usize)> {
        match shape {
            ShapePlan::Fields(fields) => {
                let mut parts = Vec::new();
                for (name, step) in fields {
                    parts.push((Some(&**name), self.piece(step, above)?));
                }
                self.parts(&parts)
            }
            ShapePlan::Tuple(steps) => self.tuple(steps, above),
            ShapePlan::Unit | ShapePlan::Newtype(_) => None,
        }
    }

    fn tuple(&mut self, steps: &[Step], above: usize) -> Option<(Op, usize)> {
        let parts: Option<Vec<_>> =
            steps.iter().map(|step| self.piece(step, above).map(|piece| (None, piece))).collect();
        self.parts(&parts?)
    }

    /// Makes a body of parts, which may have names.
    fn parts(&mut self, parts: &[(Option<&str>, Piece)]) -> Option<(Op, usize)> {
        let body = self.body(RunState::parts(0, parts.len()), parts)?;
        Some((Op::Parts { body }, parts.iter().map(|(_, piece)| piece.depth).max().unwrap_or_default()))
    }

    /// Makes a body of one part.
    fn only(&mut self, step: &Step, above: usize) -> Option<(u32, usize)> {
        let piece = self.piece(step, above)?;
        Some((self.body(RunState { hash: BEGIN, run: 0 }, &[(None, piece)])?, piece.depth))
    }

    fn body(&mut self, mut state: RunState, parts: &[(Option<&str>, Piece)]) -> Option<u32> {
        let body = u32::try_from(self.runs.len()).ok()?;
        for (name, piece) in parts {
            state = name.map_or(state, |name| state.name(name));
            state = match piece.call {
                Call::Leaf(leaf) => state.leaf(leaf),
                Call::Op(end) => {
                    self.runs.push(Run { hash: state.hash, end });
                    state.next()
                }
            };
        }
        self.runs.push(Run { hash: state.hash, end: Op::End });
        Some(body)
    }
}
