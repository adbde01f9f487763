//! Printing values of topics.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabricast::{AnySubscriber, DecodeError, Decoded, Raw, Schema, TopicName};
use serde::Serialize;

use super::clock;
use super::output::{self, data, printable, readable};
use super::subscription::Value;

/// Bytes shown of a value without a schema.
const BYTES_SHOWN: usize = 32;
/// What is shown in place of the value of a removed key.
const REMOVED: &str = "removed";

/// The schemas of a topic's values and, if it is a table, of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Schemas {
    key: Option<Schema>,
    value: Schema,
}

/// A value as a line of JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ValueLine<'a> {
    topic: &'a TopicName,
    key: Option<serde_json::Value>,
    sequence: u64,
    epoch: String,
    published_ns: u64,
    age_ns: i64,
    value: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    /// Of a table only.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
}

impl Schemas {
    /// Those of this subscriber's topic.
    pub(crate) fn of(subscriber: &AnySubscriber<Raw>) -> Self {
        let parts = match subscriber {
            AnySubscriber::Table(table) => table.entry_schemas(),
            _ => None,
        };
        match parts {
            Some([key, value]) => Self { key: Some(key), value },
            None => Self { key: None, value: subscriber.schema().clone() },
        }
    }

    /// The key of a value; `None` if the topic is not a table.
    pub(crate) fn key(&self, value: &Value) -> Result<Option<serde_json::Value>, DecodeError> {
        let Some(key) = &value.key else { return Ok(None) };
        match self.key.as_ref().map(|schema| schema.decode(&key.bytes)).transpose()? {
            Some(Decoded::Value(key)) => Ok(Some(key)),
            // The topic has no schema of entries.
            _ => Ok(Some(STANDARD.encode(&key.bytes).into())),
        }
    }

    /// The value for people, on one line.
    pub(crate) fn text(&self, value: &Value) -> Result<String, DecodeError> {
        if is_removed(value) {
            return Ok(REMOVED.to_owned());
        }
        match self.value.decode(&value.bytes)? {
            Decoded::Value(decoded) => Ok(readable(&decoded)),
            _ => {
                let shown = value.bytes.iter().take(BYTES_SHOWN).map(|byte| format!("{byte:02x}"));
                let shown: Vec<String> = shown.collect();
                let more = if value.bytes.len() > BYTES_SHOWN { " ..." } else { "" };
                Ok(format!("{}: {}{more}", len(value), shown.join(" ")))
            }
        }
    }

    /// What stands before a value for people: its key and a tab, if the topic is a table.
    pub(crate) fn lead(&self, value: &Value) -> Result<String, DecodeError> {
        Ok(self.key(value)?.map_or_else(String::new, |key| key_text(&key) + "\t"))
    }
}

impl<'a> ValueLine<'a> {
    /// The line of a value of this topic.
    pub(crate) fn new(topic: &'a TopicName, schemas: &Schemas, value: &Value) -> Result<Self, DecodeError> {
        let removed = is_removed(value);
        let (decoded, encoding) = match removed {
            true => (serde_json::Value::Null, None),
            false => match schemas.value.decode(&value.bytes)? {
                Decoded::Value(decoded) => (decoded, None),
                // Bytes, and what later versions may return.
                _ => (STANDARD.encode(&value.bytes).into(), Some("base64")),
            },
        };
        Ok(Self {
            topic,
            key: schemas.key(value)?,
            sequence: value.meta.sequence.get(),
            epoch: value.meta.epoch.to_string(),
            published_ns: value.meta.published_ns,
            age_ns: age_ns(value),
            value: decoded,
            encoding,
            number: value.key.as_ref().map(|key| key.number),
            removed,
        })
    }
}

/// The length of a value, for people.
pub(crate) fn len(value: &Value) -> String {
    if is_removed(value) { REMOVED.to_owned() } else { data(value.bytes.len() as u64) }
}

/// A key for people, on one line: a text as it is, any other key as JSON.
pub(crate) fn key_text(key: &serde_json::Value) -> String {
    key.as_str().map_or_else(|| readable(key), printable)
}

/// The age of a value, nanoseconds; negative where the publisher's clock is ahead.
pub(crate) fn age_ns(value: &Value) -> i64 {
    output::age_ns(clock::realtime_ns(), value.meta.published_ns)
}

/// Whether this is the removal of a key.
fn is_removed(value: &Value) -> bool {
    value.key.as_ref().is_some_and(|key| key.is_removed)
}
