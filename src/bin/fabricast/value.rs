//! Printing values of topics.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabricast::{DecodeError, Decoded, Schema, TopicName};
use serde::Serialize;

use super::clock;
use super::output::{self, data, readable};
use super::subscription::Value;

/// Bytes shown of a value without a schema.
const BYTES_SHOWN: usize = 32;

/// A value as a line of JSON.
#[derive(Debug, Serialize)]
pub(crate) struct ValueLine<'a> {
    topic: &'a TopicName,
    key: Option<&'a str>,
    sequence: u64,
    epoch: String,
    published_ns: u64,
    age_ns: i64,
    value: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

impl<'a> ValueLine<'a> {
    /// The line of a value of this topic.
    pub(crate) fn new(topic: &'a TopicName, schema: &Schema, sample: &Value) -> Result<Self, DecodeError> {
        let (value, encoding) = match schema.decode(&sample.bytes)? {
            Decoded::Value(value) => (value, None),
            // Bytes, and what later versions may return.
            _ => (serde_json::Value::String(STANDARD.encode(&sample.bytes)), Some("base64")),
        };
        Ok(Self {
            topic,
            key: None,
            sequence: sample.meta.sequence.get(),
            epoch: sample.meta.epoch.to_string(),
            published_ns: sample.meta.published_ns,
            age_ns: age_ns(sample),
            value,
            encoding,
        })
    }
}

/// The value for people, on one line.
pub(crate) fn text(schema: &Schema, sample: &Value) -> Result<String, DecodeError> {
    match schema.decode(&sample.bytes)? {
        Decoded::Value(value) => Ok(readable(&value)),
        _ => {
            let shown = sample.bytes.iter().take(BYTES_SHOWN).map(|byte| format!("{byte:02x}"));
            let shown: Vec<String> = shown.collect();
            let more = if sample.bytes.len() > BYTES_SHOWN { " ..." } else { "" };
            Ok(format!("{}: {}{more}", data(sample.bytes.len() as u64), shown.join(" ")))
        }
    }
}

/// The age of a value, nanoseconds; negative where the publisher's clock is ahead.
pub(crate) fn age_ns(sample: &Value) -> i64 {
    output::age_ns(clock::realtime_ns(), sample.meta.published_ns)
}
