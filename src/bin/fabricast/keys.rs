//! Keys of tables and feeds, as arguments.

use clap::Args;
use fabricast::{AnySubscriber, Decoded, Raw, Schema, Subscriber, TableTopic};

use super::failure::Failure;
use super::feed::{Record, is_feed};
use super::place::Place;
use super::shape::is_received_as;
use super::source::Source;

/// The keys to receive, as an argument.
#[derive(Debug, Args)]
pub(crate) struct KeyArguments {
    /// Of a table or feed, only the keys that match this pattern: `*` stands for any characters, `?` for one. A key that is not a
    /// text is matched by its JSON form.
    #[arg(long, value_name = "GLOB")]
    key: Option<String>,
}

/// The records of a feed to show.
#[derive(Debug, Default)]
pub(crate) struct KeyFilter {
    /// The pattern, and the schema of the records; `None` for all records.
    wanted: Option<(Vec<char>, Schema)>,
}

impl KeyArguments {
    /// Limits the source to these keys. A feed sends the records of all keys: the filter chooses among them.
    pub(crate) fn apply(&self, source: &mut Source, target: &Place) -> Result<KeyFilter, Failure> {
        if let (Some(pattern), Some(AnySubscriber::Table(_))) = (self.key.clone(), source.current()) {
            source.configure(move |subscriber| {
                if let AnySubscriber::Table(table) = subscriber {
                    table.only_glob(&pattern);
                }
            });
        }
        source
            .current()
            .map_or_else(|| Ok(KeyFilter::default()), |subscriber| self.filter(subscriber, target))
    }

    /// The filter for a subscriber that was limited to these keys before.
    pub(crate) fn filter(
        &self,
        subscriber: &AnySubscriber<Raw>,
        target: &Place,
    ) -> Result<KeyFilter, Failure> {
        match (&self.key, subscriber) {
            (None, _) | (_, AnySubscriber::Table(_)) => Ok(KeyFilter::default()),
            (Some(pattern), log) if is_feed(log) => {
                Ok(KeyFilter { wanted: Some((pattern.chars().collect(), log.schema().clone())) })
            }
            (Some(_), _) => Err(keyless(subscriber, target, "--key")),
        }
    }

    /// The pattern of the wanted keys.
    pub(crate) fn pattern(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Whether only some keys are wanted.
    pub(crate) fn is_some(&self) -> bool {
        self.key.is_some()
    }
}

impl KeyFilter {
    /// Whether it leaves out records.
    pub(crate) fn is_some(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether to show this record. One that cannot be decoded is shown: it may have any key.
    pub(crate) fn wants(&self, record: &[u8]) -> bool {
        let Some((pattern, schema)) = &self.wanted else { return true };
        let Ok(Decoded::Value(decoded)) = schema.decode(record) else { return true };
        Record::of(&decoded).is_none_or(|record| match record.key {
            serde_json::Value::String(text) => matches(pattern, text),
            other => matches(pattern, &other.to_string()),
        })
    }
}

/// Whether a text matches a pattern of `*`, `?` and other characters, as the keys of a table do.
fn matches(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut pattern, mut text) = (pattern, text.as_slice());
    let mut star = None;
    loop {
        match (pattern, text) {
            ([], []) => return true,
            (['*', behind @ ..], _) => {
                star = Some((behind, text));
                pattern = behind;
            }
            ([one, behind @ ..], [char, rest @ ..]) if *one == '?' || one == char => {
                (pattern, text) = (behind, rest);
            }
            // The last star takes one character more.
            _ => match star {
                Some((behind, [_, rest @ ..])) => {
                    star = Some((behind, rest));
                    (pattern, text) = (behind, rest);
                }
                _ => return false,
            },
        }
    }
}

/// The failure for an argument about keys of a topic that is not a table.
pub(crate) fn keyless(subscriber: &AnySubscriber<Raw>, target: &Place, argument: &str) -> Failure {
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
    use std::collections::BTreeSet;
    use std::time::Duration;

    use fabricast::Node;
    use serde_json::json;

    use super::*;

    /// Patterns with texts that match.
    const MATCHING: [(&str, &str); 8] = [
        ("", ""),
        ("*", ""),
        ("*", "aé"),
        ("a?", "aé"),
        ("*a*b", "xaxbb"),
        ("A*", "A"),
        ("**", "a"),
        ("[a", "[a"),
    ];
    /// Patterns with texts that do not match.
    const OTHERS: [(&str, &str); 7] =
        [("", "a"), ("?", ""), ("a", "ab"), ("*a", "ab"), ("a*", "ba"), ("a*a", "a"), ("[ab]", "a")];

    fn is_match(pattern: &str, text: &str) -> bool {
        matches(&pattern.chars().collect::<Vec<_>>(), text)
    }

    #[test]
    fn pattern_matches_whole_texts() {
        for (pattern, text) in MATCHING {
            assert!(is_match(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in OTHERS {
            assert!(!is_match(pattern, text), "{pattern} {text}");
        }
        assert!(
            !is_match(&"*a".repeat(500), &"a".repeat(499)) && is_match(&"*a".repeat(500), &"a".repeat(1000))
        );
    }

    #[test]
    fn pattern_matches_as_it_does_for_tables() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::builder().name("n").unwrap().runtime_dir(dir.path()).open().unwrap();
        let mut publisher = node.table_publisher::<String, u8>("t").open().unwrap();
        let pairs = || MATCHING.into_iter().chain(OTHERS);
        for (_, text) in pairs() {
            publisher.put(text, &1).unwrap();
        }
        let mut typed = node.table_subscriber::<String, u8>("shm:n/t").open().unwrap();
        assert!(typed.changes().all(|change| change.is_ok()));
        let AnySubscriber::Table(mut raw) = node.any_subscriber::<Raw>("shm:n/t").open().unwrap() else {
            unreachable!("a table")
        };
        // Every text with every pattern.
        let known: BTreeSet<String> = typed.keys().into_iter().collect();
        assert_eq!(known, pairs().map(|(_, text)| text.to_owned()).collect());
        for (pattern, _) in pairs() {
            let expected: BTreeSet<&String> = known.iter().filter(|text| is_match(pattern, text)).collect();
            typed.only_glob(pattern);
            assert_eq!(typed.keys().iter().collect::<BTreeSet<_>>(), expected, "{pattern}");
            raw.only_glob(pattern);
            let found = raw.snapshot(Duration::from_secs(60)).unwrap().entries;
            assert_eq!(found.len(), expected.len(), "{pattern}");
        }
    }

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
