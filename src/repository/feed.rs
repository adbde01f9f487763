//! The records of a feed's log.
//!
//! A feed is a log and a table with one epoch and one sequence. An event appends records to the log, and writes the entries of
//! their keys to the table; the sequence of an entry is that of its key's last record. The table is committed first, with the
//! sequence of the event's last record, so a reader of the log that has received a record finds it in the table.
//!
//! A record names the one before it of the same key. So a reader that lacks records detects at the next record of a key whether
//! that key has lost any, and a snapshot of the table tells it for all keys: those whose entry has another sequence than the last
//! record received.

use serde::{Deserialize, Serialize};

use crate::payload::Schema;

/// A record of a feed's log. Programs that do not know a feed's types read it by its schema, which has these names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FeedRecord<K, R> {
    /// The sequence of the record before it of the same key; 0 if this one added the key.
    pub(crate) previous: u64,
    /// It is the last record of its event.
    pub(crate) ends_event: bool,
    /// After it the key has no value.
    pub(crate) removes_key: bool,
    pub(crate) key: K,
    pub(crate) value: R,
}

/// Bytes of an encoded record before its key.
pub(crate) const RECORD_HEAD_LEN: usize = size_of::<u64>() + 2;
/// The offset of the mark of an event's end in an encoded record.
const ENDS_EVENT: usize = size_of::<u64>();

/// Encodes the beginning of a record that does not end its event.
pub(crate) fn record_head(previous: u64, removes_key: bool) -> [u8; RECORD_HEAD_LEN] {
    let [a, b, c, d, e, f, g, h] = previous.to_le_bytes();
    [a, b, c, d, e, f, g, h, 0, removes_key.into()]
}

/// Marks an encoded record as the last one of its event.
pub(crate) fn end_event(record: &mut [u8]) {
    record.get_mut(ENDS_EVENT).into_iter().for_each(|mark| *mark = 1);
}

/// Returns the schema of the value of a record; `None` if this is not the schema of records.
pub(crate) fn record_schema(schema: &Schema) -> Option<Schema> {
    schema.field("value")
}

/// Returns whether this is the schema of a feed's records.
pub(crate) fn is_record(schema: &Schema) -> bool {
    let fields = ["previous", "ends_event", "removes_key", "key", "value"];
    schema.type_name().starts_with("FeedRecord<") && fields.iter().all(|name| schema.field(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Payload, encode};

    #[test]
    fn golden_bytes() {
        let record = FeedRecord { previous: 7, ends_event: true, removes_key: true, key: 3_u16, value: 9_u8 };
        let schema = FeedRecord::<u16, u8>::schema().unwrap();
        let mut bytes = [0; 32];
        let len = encode(&record, &schema, &mut bytes).unwrap();
        assert_eq!(bytes[..len], [7, 0, 0, 0, 0, 0, 0, 0, 1, 1, 3, 0, 9]);

        let mut head = record_head(7, true).to_vec();
        assert_eq!(head[..], [7, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        end_event(&mut head);
        assert_eq!(head[..], bytes[..RECORD_HEAD_LEN]);
        assert_eq!(record_schema(&schema).unwrap().value_len_min(), 1);
        assert!(record_schema(&u8::schema().unwrap()).is_none());
        assert!(is_record(&schema) && !is_record(&u8::schema().unwrap()));
    }
}
