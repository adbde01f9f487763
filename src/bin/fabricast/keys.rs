//! Keys of tables, as arguments.

use clap::Args;
use fabricast::{AnySubscriber, Decoded, Raw, Subscriber, TableTopic, Target};

use super::failure::Failure;
use super::shape::is_received_as;

/// The keys to receive, as an argument.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// Of a table, only the keys that match this pattern: `*` stands for any characters, `?` for one. A key that is not a text is
    /// matched by its JSON form.
    #[arg(long, value_name = "GLOB")]
    key: Option<String>,
}

impl KeyArguments {
    /// Limits the subscriber to these keys.
    pub(crate) fn apply(&self, subscriber: &mut AnySubscriber<Raw>, target: &Target) -> Result<(), Failure> {
        match (&self.key, &mut *subscriber) {
            (None, _) => Ok(()),
            (Some(pattern), AnySubscriber::Table(table)) => {
                table.only_glob(pattern);
                Ok(())
            }
            (Some(_), _) => Err(keyless(subscriber, target, "--key")),
        }
    }
}

/// The failure for an argument about keys of a topic that is not a table.
pub(crate) fn keyless(subscriber: &AnySubscriber<Raw>, target: &Target, argument: &str) -> Failure {
    let kind = subscriber.kind();
    Failure::usage(format!("{target} is a {kind} topic, which has no keys: omit {argument}"))
}

/// Limits the subscriber to the key that a user wrote like this: a text as it is, any other key as JSON.
pub(crate) fn only_key(table: &mut Subscriber<TableTopic, Raw>, written: &str) {
    let schema = table.entry_schemas().map(|[key, _]| key);
    let written = written.to_owned();
    table.only(move |key| match schema.as_ref().map(|schema| schema.decode(key)) {
        Some(Ok(Decoded::Value(key))) => is_written(&key, &written),
        _ => false,
    });
}

/// Whether a user means this key.
fn is_written(key: &serde_json::Value, written: &str) -> bool {
    match key {
        serde_json::Value::String(text) => text == written,
        key => serde_json::from_str(written).is_ok_and(|written| is_received_as(&written, key)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_written_as_they_are_and_other_keys_as_json() {
        for text in ["AAC+", "BRK.B", "7", "null", "\"quoted\"", "", " a b "] {
            assert!(is_written(&json!(text), text), "{text}");
        }
        assert!(!is_written(&json!("a"), "\"a\""));
        let keys =
            [(json!(7), "7"), (json!(7.0), "7"), (json!(["EU", 7]), "[\"EU\",7]"), (json!(true), "true")];
        for (key, written) in keys {
            assert!(is_written(&key, written), "{key}");
            assert!(!is_written(&key, "8") && !is_written(&key, "x"), "{key}");
        }
    }
}
