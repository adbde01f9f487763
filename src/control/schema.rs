//! The schema of a topic's values in a message.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// A schema in its JSON form, at most [`SCHEMA_LEN_MAX`](limits::SCHEMA_LEN_MAX) bytes; not looked into here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SchemaJson(Vec<u8>);

/// A schema has more bytes than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a schema may have {max} bytes, this one has {len}", max = limits::SCHEMA_LEN_MAX)]
pub(crate) struct SchemaTooLong {
    /// Bytes given.
    pub(crate) len: usize,
}

impl SchemaJson {
    /// The schema of these bytes.
    pub(crate) fn new(json: Vec<u8>) -> Result<Self, SchemaTooLong> {
        if json.len() > limits::SCHEMA_LEN_MAX {
            Err(SchemaTooLong { len: json.len() })
        } else {
            Ok(Self(json))
        }
    }

    /// The bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for SchemaJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for SchemaJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(SchemaVisitor)
    }
}

/// Reads a schema in one piece, not byte by byte.
struct SchemaVisitor;

impl Visitor<'_> for SchemaVisitor {
    type Value = SchemaJson;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {} bytes of schema", limits::SCHEMA_LEN_MAX)
    }

    fn visit_byte_buf<E: Error>(self, json: Vec<u8>) -> Result<SchemaJson, E> {
        SchemaJson::new(json).map_err(E::custom)
    }
}
