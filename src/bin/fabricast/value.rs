//! Printing values of topics.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fabricast::{AnySubscriber, DecodeError, Decoded, PublisherClock, Raw, Schema, TopicName};
use serde::Serialize;
use serde_json::Map;

use super::feed::{Record, is_feed};
use super::output::{data, printable, readable};
use super::subscription::Value;
use super::timestamps::{Timestamp, Timestamps, as_object};

/// Bytes shown of a value without a schema.
const BYTES_SHOWN: usize = 32;
/// What is shown in place of the value of a removed key.
const REMOVED: &str = "removed";

/// How the values of a topic are decoded, and how old they are.
#[derive(Clone, Debug)]
pub(crate) struct Schemas {
    /// Of keys, if the topic is a table.
    key: Option<Schema>,
    value: Schema,
    /// Values are records of a feed.
    is_feed: bool,
    timestamps: Timestamps,
    clock: PublisherClock,
}

/// What a value says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content<'s> {
    /// Its key, in a table or feed.
    pub(crate) key: Option<serde_json::Value>,
    /// The value, unless it was removed or the topic has no schema.
    decoded: Option<serde_json::Value>,
    is_feed: bool,
    /// Its age, nanoseconds; negative where the publisher's clock is ahead.
    pub(crate) age_ns: i64,
    pub(crate) timestamps: Vec<Timestamp<'s>>,
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
    /// Of types that have them only.
    #[serde(skip_serializing_if = "Map::is_empty")]
    timestamps: Map<String, serde_json::Value>,
}

impl Schemas {
    /// Those of this subscriber's topic.
    pub(crate) fn of(subscriber: &AnySubscriber<Raw>) -> Self {
        let parts = match subscriber {
            AnySubscriber::Table(table) => table.entry_schemas(),
            _ => None,
        };
        let (key, value) = match parts {
            Some([key, value]) => (Some(key), value),
            None => (None, subscriber.schema().clone()),
        };
        let timestamps = Timestamps::of(&value);
        let clock = subscriber.publisher_clock();
        Self { key, value, is_feed: is_feed(subscriber), timestamps, clock }
    }

    /// The time stamps of values.
    pub(crate) fn timestamps(&self) -> &Timestamps {
        &self.timestamps
    }

    /// The key of a value of a table; `None` if the topic is not a table.
    pub(crate) fn key(&self, value: &Value) -> Result<Option<serde_json::Value>, DecodeError> {
        let Some(key) = &value.key else { return Ok(None) };
        match self.key.as_ref().map(|schema| schema.decode(&key.bytes)).transpose()? {
            Some(Decoded::Value(key)) => Ok(Some(key)),
            // The topic has no schema of entries.
            _ => Ok(Some(STANDARD.encode(&key.bytes).into())),
        }
    }

    /// Decodes a value.
    pub(crate) fn decode(&self, value: &Value) -> Result<Content<'_>, DecodeError> {
        let (key, age_ns) = (self.key(value)?, self.age_ns(value));
        if is_removed(value) {
            return Ok(Content { key, age_ns, ..Content::default() });
        }
        let decoded = match self.value.decode(&value.bytes)? {
            Decoded::Value(decoded) => Some(decoded),
            // Bytes, and what later versions may return.
            _ => None,
        };
        let read = |decoded| self.timestamps.read(decoded, value.meta.published_ns);
        let timestamps = decoded.as_ref().map(read).unwrap_or_default();
        let mut content = Content { key, decoded, is_feed: self.is_feed, age_ns, timestamps };
        if let Some(record) = content.record() {
            content.key = Some(record.key.clone());
        }
        Ok(content)
    }

    /// The age of a value, nanoseconds.
    fn age_ns(&self, value: &Value) -> i64 {
        self.clock.age_ns(value.meta.published_ns)
    }

    /// Decodes as much of a value as can be: its bytes are shown instead.
    pub(crate) fn decode_key(&self, value: &Value) -> Result<Content<'_>, DecodeError> {
        let age_ns = self.age_ns(value);
        let key_only = |_| Ok(Content { key: self.key(value)?, age_ns, ..Content::default() });
        self.decode(value).or_else(key_only)
    }
}

impl Content<'_> {
    /// What stands before a value for people: its key and a tab, if it has one.
    pub(crate) fn lead(&self) -> String {
        self.key.as_ref().map_or_else(String::new, |key| key_text(key) + "\t")
    }

    /// The value for people, on one line.
    pub(crate) fn text(&self, value: &Value) -> String {
        match (&self.decoded, self.record()) {
            _ if is_removed(value) => REMOVED.to_owned(),
            (_, Some(record)) => readable(record.value),
            (Some(decoded), _) => readable(decoded),
            _ => {
                let shown = value.bytes.iter().take(BYTES_SHOWN).map(|byte| format!("{byte:02x}"));
                let shown: Vec<String> = shown.collect();
                let more = if value.bytes.len() > BYTES_SHOWN { " ..." } else { "" };
                format!("{}: {}{more}", len(value), shown.join(" "))
            }
        }
    }

    /// The value and its time stamps for people, on one line.
    pub(crate) fn line(&self, value: &Value) -> String {
        format!("{}{}{}", self.text(value), self.marks(), self.times("\t", ""))
    }

    /// What stands behind a record of a feed for people: a tab, and what it does besides.
    pub(crate) fn marks(&self) -> &'static str {
        let does = |record: Record<'_>| (record.removes_key, record.ends_event);
        match self.record().map(does) {
            Some((true, true)) => "\tkey removed, end of event",
            Some((true, false)) => "\tkey removed",
            Some((false, true)) => "\tend of event",
            _ => "",
        }
    }

    /// The time stamps for people, between these texts; nothing if there are none.
    pub(crate) fn times(&self, before: &str, behind: &str) -> String {
        let texts: Vec<String> = self.timestamps.iter().map(Timestamp::text).collect();
        if texts.is_empty() { String::new() } else { format!("{before}{}{behind}", texts.join("  ")) }
    }

    /// The parts of a record of a feed.
    fn record(&self) -> Option<Record<'_>> {
        self.decoded.as_ref().filter(|_| self.is_feed).and_then(Record::of)
    }
}

impl<'a> ValueLine<'a> {
    /// The line of a value of this topic.
    pub(crate) fn new(topic: &'a TopicName, value: &Value, content: Content<'_>) -> Self {
        let Content { key, decoded, age_ns, timestamps, .. } = content;
        let removed = is_removed(value);
        let (decoded, encoding) = match decoded {
            Some(decoded) => (decoded, None),
            None if removed => (serde_json::Value::Null, None),
            None => (STANDARD.encode(&value.bytes).into(), Some("base64")),
        };
        Self {
            topic,
            key,
            sequence: value.meta.sequence.get(),
            epoch: value.meta.epoch.to_string(),
            published_ns: value.meta.published_ns,
            age_ns,
            value: decoded,
            encoding,
            number: value.key.as_ref().map(|key| key.number),
            removed,
            timestamps: as_object(&timestamps),
        }
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

/// Whether this is the removal of a key.
fn is_removed(value: &Value) -> bool {
    value.key.as_ref().is_some_and(|key| key.is_removed)
}
