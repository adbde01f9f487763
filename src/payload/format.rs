//! The parts of a schema: formats of values, and their named types.
//!
//! Plain data without sharing, so that a schema can be sent between threads, compared, and written as JSON with the same bytes
//! each time.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kinds of leaves, each named once.
macro_rules! leaves {
    ($($leaf:ident)*) => {
        /// The format of one value.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(super) enum Format {
            $($leaf,)*
            Option(Box<Self>),
            Seq(Box<Self>),
            Map { key: Box<Self>, value: Box<Self> },
            Tuple(Vec<Self>),
            /// A tuple of equal parts, such as `[f64; 4]`.
            Array { of: Box<Self>, len: usize },
            /// One of the schema's named types.
            Type(String),
        }

        /// A value without parts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Leaf {
            $($leaf,)*
        }

        impl Format {
            /// The leaf, if it has no parts.
            pub(super) fn leaf(&self) -> Option<Leaf> {
                match self {
                    $(Self::$leaf => Some(Leaf::$leaf),)*
                    _ => None,
                }
            }
        }
    };
}

leaves! { Unit Bool I8 I16 I32 I64 I128 U8 U16 U32 U64 U128 F32 F64 Char String Bytes }

/// Passes the methods of a serializer for leaves to a macro, except those for units and bytes.
macro_rules! leaf_methods {
    ($into:ident) => {
        $into! {
            serialize_bool(bool) Bool;
            serialize_i8(i8) I8;
            serialize_i16(i16) I16;
            serialize_i32(i32) I32;
            serialize_i64(i64) I64;
            serialize_i128(i128) I128;
            serialize_u8(u8) U8;
            serialize_u16(u16) U16;
            serialize_u32(u32) U32;
            serialize_u64(u64) U64;
            serialize_u128(u128) U128;
            serialize_f32(f32) F32;
            serialize_f64(f64) F64;
            serialize_char(char) Char;
            serialize_str(&str) String;
        }
    };
}
pub(super) use leaf_methods;

/// A named type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Named {
    Struct(Shape),
    /// A variant's position is its encoded index.
    Enum(Vec<Variant>),
}

/// The contents of a struct or a variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Shape {
    Unit,
    Newtype(Format),
    Tuple(Vec<Format>),
    Fields(Vec<Field>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) format: Format,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) shape: Shape,
}

impl Format {
    /// A tuple of these parts, in short form if all are equal.
    pub(super) fn tuple(mut parts: Vec<Self>) -> Self {
        let len = parts.len();
        let equal = parts.windows(2).all(|pair| matches!(pair, [left, right] if left == right));
        match parts.pop() {
            Some(last) if equal && len > 1 => Self::Array { of: Box::new(last), len },
            Some(last) => {
                parts.push(last);
                Self::Tuple(parts)
            }
            None => Self::Tuple(parts),
        }
    }

    /// The formats directly inside this one.
    pub(super) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Option(of) | Self::Seq(of) | Self::Array { of, .. } => vec![of],
            Self::Map { key, value } => vec![key, value],
            Self::Tuple(parts) => parts.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether every value of this format contains a value of each part.
    pub(super) fn holds_all_parts(&self) -> bool {
        match self {
            Self::Option(_) | Self::Seq(_) | Self::Map { .. } => false,
            Self::Array { len, .. } => *len > 0,
            _ => true,
        }
    }
}

impl Shape {
    /// The formats directly inside this one.
    pub(super) fn parts(&self) -> Vec<&Format> {
        match self {
            Self::Unit => Vec::new(),
            Self::Newtype(format) => vec![format],
            Self::Tuple(formats) => formats.iter().collect(),
            Self::Fields(fields) => fields.iter().map(|field| &field.format).collect(),
        }
    }

    fn field_names(&self) -> impl Iterator<Item = &str> {
        let fields = if let Self::Fields(fields) = self { fields.as_slice() } else { &[] };
        fields.iter().map(|field| field.name.as_str())
    }
}

impl Named {
    /// The shapes that a value of this type can have.
    pub(super) fn shapes(&self) -> Vec<&Shape> {
        match self {
            Self::Struct(shape) => vec![shape],
            Self::Enum(variants) => variants.iter().map(|variant| &variant.shape).collect(),
        }
    }

    /// Names of variants and fields.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.shapes().into_iter().flat_map(Shape::field_names).collect();
        if let Self::Enum(variants) = self {
            names.extend(variants.iter().map(|variant| variant.name.as_str()));
        }
        names
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(of) => write!(out, "option of {of}"),
            Self::Seq(of) => write!(out, "[{of}]"),
            Self::Map { key, value } => write!(out, "{{{key}: {value}}}"),
            Self::Tuple(parts) => parenthesized(out, parts),
            Self::Array { of, len } => write!(out, "[{of}; {len}]"),
            Self::Type(name) => out.write_str(name),
            Self::Unit => out.write_str("()"),
            leaf => leaf.leaf().map_or(Ok(()), |leaf| leaf.fmt(out)),
        }
    }
}

impl fmt::Display for Leaf {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", format!("{self:?}").to_ascii_lowercase())
    }
}

impl fmt::Display for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.format)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)?;
        match &self.shape {
            Shape::Unit => Ok(()),
            Shape::Newtype(format) => write!(out, "({format})"),
            Shape::Tuple(formats) => parenthesized(out, formats),
            Shape::Fields(fields) => {
                out.write_str(" { ")?;
                comma_separated(out, fields)?;
                out.write_str(" }")
            }
        }
    }
}

impl fmt::Display for Shape {
    /// One part per line, indented by two spaces.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit => Ok(()),
            Self::Newtype(format) => writeln!(out, "  {format}"),
            Self::Tuple(formats) => formats.iter().try_for_each(|format| writeln!(out, "  {format}")),
            Self::Fields(fields) => fields.iter().try_for_each(|field| writeln!(out, "  {field}")),
        }
    }
}

impl fmt::Display for Named {
    /// One part per line, indented by two spaces.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Struct(shape) => shape.fmt(out),
            Self::Enum(variants) => variants.iter().try_for_each(|variant| writeln!(out, "  {variant}")),
        }
    }
}

fn parenthesized(out: &mut fmt::Formatter<'_>, formats: &[Format]) -> fmt::Result {
    out.write_str("(")?;
    comma_separated(out, formats)?;
    out.write_str(")")
}

fn comma_separated<T: fmt::Display>(out: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.write_str(", ")?;
        }
        item.fmt(out)?;
    }
    Ok(())
}
