//! The schema of a payload, for programs that do not know its type.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::format::{Format, Named, Shape};
use super::plan::Plan;
use super::{EncodeError, Encoding, bincode, trace};
use crate::{checksum, limits};

/// The description of a payload type, made from the type itself, by which a program that does not know the type can decode its
/// values.
///
/// It travels as JSON of at most [`limits::SCHEMA_LEN_MAX`] bytes. Equal types give equal bytes on every host; the schema
/// includes the names of the type and its fields, but not its module.
///
/// ```
/// use fabricast::{Decoded, Payload, Schema};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum Side { Buy, Sell }
/// #[derive(Serialize, Deserialize)]
/// struct Order { side: Side, price: f64 }
///
/// // The publisher:
/// let schema = Order::schema()?;
/// let mut bytes = [0; 16];
/// let len = Order::encode(&Order { side: Side::Sell, price: 99.5 }, &schema, &mut bytes)?;
/// let json = schema.to_json();
///
/// // A stranger:
/// let schema = Schema::from_json(&json)?;
/// let Decoded::Value(value) = schema.decode(&bytes[..len])? else { panic!("not raw bytes") };
/// assert_eq!(value.to_string(), r#"{"side":"Sell","price":99.5}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    #[serde(rename = "type")]
    type_name: String,
    encoding: Encoding,
    format: Format,
    types: BTreeMap<String, Named>,
    #[serde(skip)]
    plan: Compiled,
}

/// The plan of a schema, made on first use; not part of its identity.
#[derive(Clone, Debug, Default)]
struct Compiled(OnceLock<Arc<Plan>>);

impl PartialEq for Compiled {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Compiled {}

/// Why a type has no schema, or bytes are not a schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// A type of the schema contains itself without an option, a sequence or an enum in between: its values are infinite.
    #[error("type {type_name} of the schema contains itself, with no option, sequence or enum in between")]
    Endless {
        /// The type.
        type_name: String,
    },
    /// The bytes are not the JSON form of a schema.
    #[error("this is not a schema: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
    /// The memory of a plain-old-data type differs from what its `Serialize` writes.
    #[error(
        "{type_name} cannot be Pod: its memory layout differs from its serde fields; \
         let serde neither skip, reorder nor convert fields, or publish {type_name} without Pod"
    )]
    MemoryDiffers {
        /// The type.
        type_name: String,
    },
    /// A name in the schema is empty, too long, or has control characters.
    #[error(
        "{name:?} cannot be a name in a schema: it must have 1 to {max} bytes without control characters"
    )]
    Name {
        /// The name, cut to the limit.
        name: String,
        /// The limit, bytes.
        max: usize,
    },
    /// The bytes are a schema, but not in its canonical form.
    #[error(
        "this schema is not in the form that fabricast writes, or has parts that this version does not know"
    )]
    NotCanonical,
    /// The schema is nested too deeply.
    #[error("the schema is nested deeper than {max} levels")]
    TooDeep {
        /// The limit.
        max: usize,
    },
    /// The JSON form is too long.
    #[error("the schema has {len} bytes, over the limit of {max}")]
    TooLong {
        /// Its length, bytes.
        len: usize,
        /// The limit, bytes.
        max: usize,
    },
    /// The schema refers to a type that it does not describe.
    #[error("the schema refers to type {type_name}, which it does not describe")]
    UnknownType {
        /// The type.
        type_name: String,
    },
    /// The type cannot be described.
    #[error("{type_name} cannot be described by a schema: {reason}")]
    Untraceable {
        /// The type.
        type_name: String,
        /// The reason, and what to do.
        reason: String,
    },
}

impl Schema {
    /// The schema of a type, checked against its encoding of sample values.
    pub(super) fn of<T>(encoding: Encoding, samples: &[String]) -> Result<Self, SchemaError>
    where
        T: Serialize + DeserializeOwned,
    {
        let type_name = trace::short_name(std::any::type_name::<T>());
        let untraceable = |reason| SchemaError::Untraceable { type_name: type_name.clone(), reason };
        let traced = trace::trace::<T>(samples).map_err(untraceable)?;
        let schema = Self {
            type_name: type_name.clone(),
            encoding,
            format: traced.format,
            types: traced.types,
            plan: Compiled::default(),
        };
        schema.check()?;
        if Self::from_json(&schema.to_json())? != schema {
            return Err(SchemaError::NotCanonical);
        }
        schema.check_samples(&traced.samples).map_err(untraceable)?;
        Ok(schema)
    }

    /// The schemas of the key and of the value, if this is the schema of a table's entries.
    pub(crate) fn entry_parts(&self) -> Option<[Self; 2]> {
        let Format::Tuple(parts) = &self.format else { return None };
        let [key, Format::Option(value)] = parts.as_slice() else { return None };
        Some([self.part(key), self.part(value)])
    }

    /// The schema of a field, if this is the schema of a struct that has it.
    pub(crate) fn field(&self, name: &str) -> Option<Self> {
        let Format::Type(of) = &self.format else { return None };
        let Some(Named::Struct(Shape::Fields(fields))) = self.types.get(of) else { return None };
        fields.iter().find(|field| field.name == name).map(|field| self.part(&field.format))
    }

    /// The schema of a part of the values.
    fn part(&self, format: &Format) -> Self {
        Self { format: format.clone(), plan: Compiled::default(), ..self.clone() }
    }

    /// The schema of untyped bytes.
    pub(crate) fn raw() -> Self {
        Self {
            type_name: "bytes".into(),
            encoding: Encoding::Raw,
            format: Format::Bytes,
            types: BTreeMap::new(),
            plan: Compiled::default(),
        }
    }

    /// Returns the schema of a payload with a custom encoding, which only programs that know it can decode. The name stands for
    /// type and encoding: a subscriber with the same name receives the values, any other is refused. Name the type, the encoding
    /// and its version: `Order (exchange format 3)`.
    ///
    /// # Errors
    ///
    /// [`SchemaError::Name`] if the name is empty, longer than [`limits::TYPE_NAME_LEN_MAX`], or has control characters;
    /// [`SchemaError::Malformed`] if it is the name of [`Raw`](crate::Raw).
    pub fn own(name: &str) -> Result<Self, SchemaError> {
        let schema = Self { type_name: name.into(), ..Self::raw() };
        if schema == Self::raw() {
            let reason = format!("{name} is the name of untyped bytes: name the type and its encoding");
            return Err(SchemaError::Malformed { reason });
        }
        schema.check().map(|()| schema)
    }

    /// Returns the name of the payload type, without its modules but with generic arguments.
    pub fn type_name(&self) -> &str {
        &self.type_name
    }

    /// Returns the encoding of the values.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the number of the schema in region headers: the length of the JSON form in the high half, its CRC-32 in the low
    /// half. Never zero. It detects disagreement, not forgery.
    pub fn hash(&self) -> u64 {
        let json = self.to_json();
        let len = u32::try_from(json.len()).unwrap_or(u32::MAX);
        u64::from(len) << 32 | u64::from(checksum::crc32(&json))
    }

    /// Returns the JSON form: the same bytes for equal schemas.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a tree of texts and numbers with text keys is always JSON")
    }

    /// Parses the JSON form, and checks its length, nesting, names and references.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] if [`Self::to_json`] cannot have written these bytes.
    pub fn from_json(bytes: &[u8]) -> Result<Self, SchemaError> {
        check_len(bytes.len())?;
        let schema: Self = serde_json::from_slice(bytes)
            .map_err(|error| SchemaError::Malformed { reason: error.to_string() })?;
        schema.check()?;
        if schema.to_json() == bytes { Ok(schema) } else { Err(SchemaError::NotCanonical) }
    }

    /// The length of the shortest value, bytes.
    pub(crate) fn value_len_min(&self) -> usize {
        if self.encoding == Encoding::Raw { 0 } else { self.plan().len_min() }
    }

    /// The plan with which values are compared. Allocates on first use.
    #[inline]
    pub(super) fn plan(&self) -> &Plan {
        self.plan.0.get_or_init(|| Arc::new(Plan::new(&self.format, &self.types)))
    }

    pub(super) fn format(&self) -> &Format {
        &self.format
    }

    pub(super) fn named(&self, name: &str) -> Option<&Named> {
        self.types.get(name)
    }

    fn check(&self) -> Result<(), SchemaError> {
        check_len(self.to_json().len())?;
        if self.encoding == Encoding::Raw
            && *self != (Self { type_name: self.type_name.clone(), ..Self::raw() })
        {
            return Err(SchemaError::Malformed { reason: "raw bytes have no format".into() });
        }
        let names =
            self.types.iter().flat_map(|(name, named)| std::iter::once(name.as_str()).chain(named.names()));
        names.chain([self.type_name.as_str()]).try_for_each(check_name)?;
        self.formats().try_for_each(|format| self.check_format(format, limits::SCHEMA_DEPTH_MAX))?;
        self.check_ends()
    }

    /// The outermost formats of the schema.
    fn formats(&self) -> impl Iterator<Item = &Format> {
        let parts = self.types.values().flat_map(Named::shapes).flat_map(Shape::parts);
        std::iter::once(&self.format).chain(parts)
    }

    fn check_format(&self, format: &Format, depth_left: usize) -> Result<(), SchemaError> {
        let max = limits::SCHEMA_DEPTH_MAX;
        let depth_left = depth_left.checked_sub(1).ok_or(SchemaError::TooDeep { max })?;
        match format {
            Format::Type(name) if !self.types.contains_key(name) => {
                Err(SchemaError::UnknownType { type_name: name.clone() })
            }
            _ => format.parts().into_iter().try_for_each(|part| self.check_format(part, depth_left)),
        }
    }

    /// Checks that values are finite: removes structs that hold no other struct, until none is left.
    fn check_ends(&self) -> Result<(), SchemaError> {
        let mut open: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, named) in &self.types {
            if let Named::Struct(shape) = named {
                open.insert(name, shape.parts().into_iter().flat_map(held_types).collect());
            }
        }
        let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (name, held) in &open {
            let structs = held.iter().filter(|held| open.contains_key(*held));
            counts.insert(name, structs.clone().count());
            structs.for_each(|held| holders.entry(held).or_default().push(name));
        }
        let mut ended: Vec<&str> =
            counts.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect();
        while let Some(name) = ended.pop() {
            counts.remove(name);
            for holder in holders.remove(name).unwrap_or_default() {
                if let Some(count) = counts.get_mut(holder) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        ended.push(holder);
                    }
                }
            }
        }
        match counts.keys().next() {
            None => Ok(()),
            Some(name) => Err(SchemaError::Endless { type_name: (*name).into() }),
        }
    }

    /// Checks that the type's `Serialize` writes what its `Deserialize` reads, and that a decoded sample encodes to the same
    /// bytes.
    fn check_samples<T: Serialize + DeserializeOwned>(&self, samples: &[T]) -> Result<(), String> {
        for sample in samples {
            let bytes = match bincode::encode_checked(sample, self.plan()) {
                Ok(bytes) => bytes,
                // Samples of a recursive type may be nested deeper than any value may be.
                Err(EncodeError::TooDeep { .. }) => continue,
                Err(EncodeError::Differs { reason }) => {
                    return Err(format!("its Serialize does not write what its Deserialize reads: {reason}"));
                }
                Err(error) => return Err(error.to_string()),
            };
            let received: T = bincode::decode(&bytes)
                .map_err(|error| format!("its Deserialize rejects what its Serialize writes ({error})"))?;
            if bincode::encode_checked(&received, self.plan()) != Ok(bytes) {
                return Err(
                    "what its Deserialize reads differs from what its Serialize wrote: give both halves the same \
                            attributes and functions, each reversing the other"
                        .into(),
                );
            }
        }
        Ok(())
    }
}

impl fmt::Display for Schema {
    /// The type and its encoding, then the named types with one field or variant per line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} ({})", self.type_name, self.encoding)?;
        let root = match &self.format {
            Format::Type(name) => self.types.get_key_value(name),
            format => {
                writeln!(out, "  {format}")?;
                None
            }
        };
        if let Some((name, named)) = root {
            if *name != self.type_name {
                writeln!(out, "{name}")?;
            }
            named.fmt(out)?;
        }
        for (name, named) in &self.types {
            if root.is_none_or(|(root, _)| root != name) {
                write!(out, "{name}\n{named}")?;
            }
        }
        Ok(())
    }
}

/// The named types that every value of this format holds. The nesting was checked before.
fn held_types(format: &Format) -> Vec<&str> {
    match format {
        Format::Type(name) => vec![name],
        format if format.holds_all_parts() => format.parts().into_iter().flat_map(held_types).collect(),
        _ => Vec::new(),
    }
}

fn check_len(len: usize) -> Result<(), SchemaError> {
    let max = limits::SCHEMA_LEN_MAX;
    if len <= max { Ok(()) } else { Err(SchemaError::TooLong { len, max }) }
}

fn check_name(name: &str) -> Result<(), SchemaError> {
    let max = limits::TYPE_NAME_LEN_MAX;
    if !name.is_empty() && name.len() <= max && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(SchemaError::Name { name: name.chars().take(max).collect(), max })
}

#[cfg(test)]
mod tests;
