//! Feeds: a log whose records have keys, and beside it a table of the newest value of each key.

use fabricast::{AnySubscriber, Raw, Schema, Target};
use serde_json::Value;

/// The type of a record of a feed's log, and its fields: the first of these types, then those of key and value.
const RECORD: &str = "FeedRecord";
const FIELDS: [&str; 5] = ["previous", "ends_event", "removes_key", "key", "value"];
const FIRST_FORMATS: [&str; 3] = ["u64", "bool", "bool"];
/// Where an encoded record says whether it ends its event: behind `previous`.
const ENDS_EVENT_AT: usize = 8;
/// What the name of a feed's table has behind that of the feed.
const TABLE: &str = "/table";

/// A decoded record of a feed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'v> {
    pub(crate) key: &'v Value,
    pub(crate) value: &'v Value,
    /// It is the last one of its event.
    pub(crate) ends_event: bool,
    /// Its key is gone after it.
    pub(crate) removes_key: bool,
}

impl<'v> Record<'v> {
    /// The record that was decoded by the schema of a feed.
    pub(crate) fn of(decoded: &'v Value) -> Option<Self> {
        let is = |name| decoded.get(name).and_then(Value::as_bool);
        Some(Self {
            key: decoded.get("key")?,
            value: decoded.get("value")?,
            ends_event: is("ends_event")?,
            removes_key: is("removes_key")?,
        })
    }
}

/// Whether this topic is the log of a feed.
pub(crate) fn is_feed(subscriber: &AnySubscriber<Raw>) -> bool {
    matches!(subscriber, AnySubscriber::Log(_)) && is_record(subscriber.schema())
}

/// Whether values of this schema are records of a feed.
pub(crate) fn is_record(schema: &Schema) -> bool {
    serde_json::to_value(schema).is_ok_and(|described| value_format(&described).is_some())
}

/// The format of the value of a record, if a schema describes records of a feed.
pub(crate) fn value_format(described: &Value) -> Option<&Value> {
    let name = described.get("format")?.get("type")?.as_str()?;
    // Its generic arguments follow.
    if name.split('<').next() != Some(RECORD) {
        return None;
    }
    let fields = described.get("types")?.get(name)?.get("struct")?.get("fields")?.as_array()?;
    let fields: Vec<(&str, &Value)> = fields.iter().filter_map(named_format).collect();
    let formats = fields.iter().map(|(_, format)| format.as_str().unwrap_or_default());
    let is_feed = fields.iter().map(|(name, _)| *name).eq(FIELDS) && formats.take(3).eq(FIRST_FORMATS);
    fields.last().filter(|_| is_feed).map(|(_, format)| *format)
}

/// The name and the format of a field that a schema describes.
pub(crate) fn named_format(field: &Value) -> Option<(&str, &Value)> {
    Some((field.get("name")?.as_str()?, field.get("format")?))
}

/// Whether an encoded record of a feed ends its event.
pub(crate) fn ends_event(record: &[u8]) -> bool {
    record.get(ENDS_EVENT_AT) == Some(&1)
}

/// The table of a feed.
pub(crate) fn table_of(log: &Target) -> Option<Target> {
    let topic = format!("{}{TABLE}", log.topic).parse().ok()?;
    Some(Target { address: log.address.clone(), topic })
}

/// The feed of a table, if it has the name of a feed's table.
pub(crate) fn log_of(table: &Target) -> Option<Target> {
    let topic = table.topic.as_str().strip_suffix(TABLE)?.parse().ok()?;
    Some(Target { address: table.address.clone(), topic })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fabricast::{Decoded, Delivery, LogStart, Node};
    use serde_json::json;

    use super::*;

    fn attach(node: &Node, target: &Target) -> AnySubscriber<Raw> {
        let subscriber = node.any_subscriber::<Raw>(target).delivery(Delivery::Pull);
        subscriber.start(LogStart::Earliest).timeout(Duration::from_secs(60)).open().unwrap()
    }

    #[test]
    fn feeds_of_the_library_are_known_by_topics_schema_and_layout() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::builder().name("n").unwrap().runtime_dir(dir.path()).open().unwrap();
        let mut feed = node.feed_publisher::<String, u32, u64>("f").open().unwrap();
        feed.publish("a", &1, &1).unwrap();
        let mut event = feed.event();
        event.update("b", &2, &2).unwrap();
        event.remove("a", &3).unwrap();
        event.record("b", &4).unwrap();
        event.commit();

        let target: Target = "shm:n/f".parse().unwrap();
        let mut log = attach(&node, &target);
        let table = table_of(&target).unwrap();
        assert_eq!(log_of(&table), Some(target));
        let table = attach(&node, &table);
        assert!(matches!(table, AnySubscriber::Table(_)) && table.epoch() == log.epoch());

        assert!(is_feed(&log) && !is_feed(&table) && !is_record(table.schema()));
        let schema = log.schema().clone();
        assert_eq!(schema.type_name().split('<').next(), Some(RECORD));
        let described = serde_json::to_value(&schema).unwrap();
        assert_eq!(value_format(&described), Some(&json!("u32")));

        let AnySubscriber::Log(log) = &mut log else { unreachable!("a feed's log") };
        let mut records = Vec::new();
        while let Some(record) = log.try_receive().unwrap() {
            let Ok(Decoded::Value(decoded)) = schema.decode(&record.value) else { panic!("{record:?}") };
            let fields: Vec<&str> = decoded.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(fields, FIELDS);
            let Record { key, value, ends_event: is_end, removes_key } = Record::of(&decoded).unwrap();
            assert_eq!(ends_event(&record.value), is_end, "{decoded}");
            records.push(json!([key, value, is_end, removes_key]));
        }
        let expected = [
            json!(["a", 1, true, false]),
            json!(["b", 2, false, false]),
            json!(["a", 3, false, true]),
            json!(["b", 4, true, false]),
        ];
        assert_eq!(records, expected);
    }
}
